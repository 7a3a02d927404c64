"""An operator as msopgen lays it out: op_host gives tiling, blocks and workspace, op_kernel is run.

``op_host/*.cpp`` is compiled into a library of its own, whose definition and tiling function answer in lines of text.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lngrad.errors import DtypeError, ShapeError
from lngrad.typing import Array
from lngrad_ascend.cpp import bridge
from lngrad_ascend.cpp.compiling import CompileError, library
from lngrad_ascend.cpp.op_host import registers
from lngrad_ascend.cpp.protocol import DATA_TYPES
from lngrad_ascend.device.numerics import CPP_NAMES, DTYPES

# By ge::DataType's number: its name, C++'s, NumPy's.
_NAMES = {number: f"DT_{name}" for name, number in DATA_TYPES.items()}
_CPP = {0: "float", 1: "half", 2: "int8_t", 3: "int32_t", 4: "uint8_t", 6: "int16_t", 7: "uint16_t", 8: "uint32_t",
        9: "int64_t", 10: "uint64_t", 12: "bool", 27: "bfloat16_t"}  # fmt: skip
TYPES = {number: np.dtype(bool) if name == "bool" else DTYPES[CPP_NAMES.index(name)] for number, name in _CPP.items()}
CPP_TYPES = {_NAMES[number].removeprefix("DT_"): name for number, name in _CPP.items()}
NUMBERS = {dtype.name: number for number, dtype in TYPES.items()}
_NOT_HOST = re.compile(r"op_api|aclnn|arch35|fallback|_graph_infer")
_WHOLE, _FLOAT = r"[+-]?\d+", r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
# The forms of an attribute's value, by its type in lngrad/op_host.h: in words, and as a pattern.
_FORMS = [
    ("a whole number", _WHOLE),
    ("a number", _FLOAT),
    ("true or false", "true|false|1|0"),
    ("a word", r"\S+"),
    ("whole numbers as 1,2 or [1,2]", f"(?:{_WHOLE}(?:,{_WHOLE})*)?"),
    ("numbers as 0.5,2 or [0.5,2]", f"(?:{_FLOAT}(?:,{_FLOAT})*)?"),
]


class Launch(NamedTuple):
    """Arguments of `kernel.compile`, arrays by name (None: an optional input), options of `launch`, bytes of workspace."""

    build: dict[str, Any]
    arrays: dict[str, Array | None]
    options: dict[str, Any]
    workspace: int


class Project:
    """A folder with op_host and op_kernel.

    Raises:
        CompileError: It has no such folders, op_host does not compile, or has no operator's definition.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sources = sorted(path for path in (folder / "op_host").glob("*.cpp") if not _NOT_HOST.search(path.name))
        if not sources:
            raise CompileError(f"{folder}: expected op_host/*.cpp of an operator, got none")
        included = ["lngrad/project.h", *(str(path.resolve()) for path in sources)]
        text = "".join(f"#include {json.dumps(path)}\n" for path in included)
        self._library = ctypes.PyDLL(str(library(text, sources[0].resolve(), "op_host", [f"-I{folder / 'op_host'}"])))
        self._library.lngrad_bind(ctypes.py_object(bridge.answer))
        self._library.lngrad_project.restype = ctypes.c_char_p
        answer = self._ask("")
        self.operator = answer["operator"][0][0] if answer["operator"][0] else ""
        if not self.operator:
            raise CompileError(f"{folder / 'op_host'}: expected an operator's definition (OpDef and OP_ADD), got none")
        self.inputs, self.outputs = answer.get("input", []), answer.get("output", [])
        self.attributes = {name: _FORMS[int(kind)] for name, kind in answer.get("attr", [])}

    def _ask(self, request: str) -> dict[str, list[list[str]]]:
        answer: dict[str, list[list[str]]] = {}
        for line in bytes(self._library.lngrad_project(request.encode())).decode().splitlines():
            word, *rest = line.split(" ")
            answer.setdefault(word, []).append(rest)
        if "failed" in answer:
            fault = bridge.last_fault()
            raise CompileError(f"{self.folder}: {' '.join(answer['failed'][0])} failed{f': {fault}' if fault else ''}")
        return answer

    def plan(
        self,
        arguments: Mapping[str, Array],
        shapes: Mapping[str, Sequence[int]],
        dtype: str,
        attributes: Mapping[str, str],
    ) -> Launch:
        """Work out a launch.

        Args:
            given: Arrays by the names of the definition: inputs, and outputs that are not to be allotted here.
            shapes: Of inputs that are drawn here, from a normal distribution with a fixed seed, and of outputs whose shape
                op_host does not infer.
            dtype: Of inputs that are drawn; one that the definition does not allow becomes its first one.
            attributes: Their values as text, in the form of their type: 2, 0.5, true, relu, 1,2 or [1,2]; the definition's
                defaults else.

        Raises:
            ShapeError, DtypeError: A name that the definition does not have, or an input without an array and a shape.
            CompileError: The tiling function has failed.
        """
        if dtype not in NUMBERS:
            raise DtypeError(f"--dtype: expected a dtype of {', '.join(NUMBERS)}, got {dtype!r}")
        self._check_names(arguments, shapes, attributes)
        random, arrays, lines = np.random.default_rng(0), dict(arguments), []
        place = 0  # of the input's type among those of its definition: the outputs' is at the same
        for name, required, *allowed in self.inputs:
            if name in shapes and name not in arrays:
                number = NUMBERS[dtype] if not allowed or str(NUMBERS[dtype]) in allowed else int(allowed[0])
                values = random.standard_normal(shapes[name])
                arrays[name] = (np.abs(values * 10) if TYPES[number].kind in "iub" else values).astype(TYPES[number])
            if name in arrays:
                number, sizes = _number(name, arrays[name]), arrays[name].shape
                place = place or (allowed.index(str(number)) if str(number) in allowed else 0)
                address = arrays[name].ctypes.data  # a tiling function may read what an input holds
                lines.append(f"input {name} {number} {address} {' '.join(map(str, sizes))}")
            elif required == "1":
                raise ShapeError(f"{name}: expected --arg {name}=FILE.npy or --shape {name}=…, got neither")
        for name, _, *allowed in self.outputs:
            of = arrays.get(name)
            number = int((allowed[place:] or allowed or [str(NUMBERS[dtype])])[0]) if of is None else _number(name, of)
            sizes = tuple(shapes.get(name, ())) if of is None else of.shape
            lines.append(f"output {name} {number} 0 {' '.join(map(str, sizes))}")
        answer = self._ask(
            "\n".join([*lines, *(f"attr {name} {self._attribute(name, value)}" for name, value in attributes.items())])
        )
        for name, code, *shape in answer.get("output", ()):
            if name not in arrays:
                whole = (*map(int, shape), TYPES[int(code)].itemsize)
                arrays[name] = np.full(whole, 0xFF, np.uint8).view(TYPES[int(code)])[..., 0]
        ordered = {name: arrays.get(name) for name, *_ in self.inputs}
        for name, *_ in self.outputs:  # one with an input's name is that input, as an argument of its own
            ordered[f"{name}_ref" if name in ordered else name] = arrays[name]
        blocks, key, workspace = (int(answer[word][0][0]) for word in ("blocks", "key", "workspace"))
        options = {"blocks": blocks, "tiling_key": key, "tiling": bytes.fromhex(answer["tiling"][0][0])}
        return Launch(self._build(ordered), ordered, options, workspace)

    def _check_names(self, arguments: Mapping[str, Array], shapes: Iterable[str], attributes: Iterable[str]) -> None:
        for name, array in arguments.items():
            if not isinstance(array, np.ndarray):
                raise ShapeError(f"--arg {name}: expected an array for --project, got {array!r}")
        names = [row[0] for row in (*self.inputs, *self.outputs)]
        for kind, words, known in (
            ("--arg", arguments, names),
            ("--shape", shapes, names),
            ("--attr", attributes, self.attributes),
        ):
            for name in words:
                if name not in known:
                    raise ShapeError(f"{kind}: expected a name of {', '.join(known) or 'none'}, got {name!r}")

    def _attribute(self, name: str, text: str) -> str:
        """An attribute's value as op_host's side reads it."""
        form, pattern = self.attributes[name]
        value = text.strip("[]").replace(" ", "") if "," in form else text
        if not re.fullmatch(pattern, value, re.IGNORECASE):
            raise ShapeError(f"--attr {name}: expected {form}, got {text!r}")
        return {"true": "1", "false": "0"}.get(value.lower(), value) if "true" in form else value

    def _build(self, arrays: Mapping[str, Array | None]) -> dict[str, Any]:
        kernel = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", self.operator).lower()
        sources = sorted((self.folder / "op_kernel").glob("*.cpp"))
        source = next((path for path in sources if path.stem == kernel), sources[0] if len(sources) == 1 else None)
        if source is None:
            found = ", ".join(path.name for path in sources) or "none"
            raise CompileError(f"{self.folder}: expected op_kernel/{kernel}.cpp, got {found}")
        define: dict[str, str] = {}
        for name, array in arrays.items():
            if array is None:
                continue
            number = _number(name, array)
            define |= {f"DTYPE_{name.upper()}": _CPP[number], f"ORIG_DTYPE_{name.upper()}": _NAMES[number]}
        hosts = [*sorted((self.folder / "op_host").glob("*.*")), *sorted((self.folder / "op_kernel").glob("*.h"))]
        headers = [
            path for path in hosts if path.suffix in (".h", ".cpp") and registers(path.read_text(errors="replace"))
        ]
        return {"path": source, "kernel": kernel, "headers": headers, "define": define}


def _number(name: str, array: Array) -> int:
    if array.dtype.name not in NUMBERS:
        raise DtypeError(f"{name}: expected a dtype of {', '.join(NUMBERS)}, got {array.dtype}")
    return NUMBERS[array.dtype.name]
