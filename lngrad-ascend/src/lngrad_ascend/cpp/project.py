"""An operator as msopgen lays it out: op_host gives tiling, blocks and workspace, op_kernel is run.

``op_host/*.cpp`` is compiled into a library of its own, whose definition and tiling function answer in lines of text.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lngrad.errors import DtypeError, ShapeError
from lngrad.typing import Array
from lngrad_ascend import soc as socs
from lngrad_ascend.cpp import bridge
from lngrad_ascend.cpp.compiling import CompileError, folder_for, library
from lngrad_ascend.cpp.headers import digest
from lngrad_ascend.cpp.op_host import INCLUDED, OF_950, kernel_source, registers, texts_of
from lngrad_ascend.cpp.protocol import DATA_TYPES
from lngrad_ascend.device.numerics import CPP_NAMES, DTYPES

# By ge::DataType's number: its name, C++'s, NumPy's.
_NAMES = {number: f"DT_{name}" for name, number in DATA_TYPES.items()}
_CPP = {0: "float", 1: "half", 2: "int8_t", 3: "int32_t", 4: "uint8_t", 6: "int16_t", 7: "uint16_t", 8: "uint32_t",
        9: "int64_t", 10: "uint64_t", 12: "bool", 27: "bfloat16_t"}  # fmt: skip
TYPES = {number: np.dtype(bool) if name == "bool" else DTYPES[CPP_NAMES.index(name)] for number, name in _CPP.items()}
CPP_TYPES = {_NAMES[number].removeprefix("DT_"): name for number, name in _CPP.items()}
NUMBERS = {dtype.name: number for number, dtype in TYPES.items()}
_NOT_HOST = re.compile(r"op_api|aclnn|fallback|_graph_infer")
_WHOLE, _FLOAT = r"[+-]?\d+", r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
# The forms of an attribute's value, by its type in lngrad/op_host.h: in words, and as a pattern.
_FORMS = [
    ("a whole number", _WHOLE),
    ("a number", _FLOAT),
    ("true or false", "true|false|1|0"),
    ("a word", r"\S+"),
    ("whole numbers as 1,2 or [1,2]", f"(?:{_WHOLE}(?:,{_WHOLE})*)?"),
    ("numbers as 0.5,2 or [0.5,2]", f"(?:{_FLOAT}(?:,{_FLOAT})*)?"),
    ("1 or 0 as 1,0 or [1,0]", "(?:[01](?:,[01])*)?"),
]


class Launch(NamedTuple):
    """Arguments of `kernel.compile`, arrays by name (None: an optional input), options of `launch`, bytes of workspace."""

    build: dict[str, Any]
    arrays: dict[str, Array | None]
    options: dict[str, Any]
    workspace: int


class Project:
    """A folder with op_host and op_kernel, for this thread's SoC.

    Args:
        folder: The operator's: one by itself, or of an operator library.
        include: Folders to search for headers first.

    Raises:
        CompileError: It has no such folders, op_host does not compile, or has no operator's definition.
    """

    def __init__(self, folder: Path, include: Sequence[Path] = ()) -> None:
        self.folder, self._regbase = folder.resolve(), socs.current().soc.regbase
        hosts = self.folder / "op_host"
        found = [*hosts.glob("*.cpp"), *hosts.glob("arch35/*.cpp")]
        # Of two that register something, the last counts: that of 950 on it.
        sources = sorted(
            (path for path in found if not _NOT_HOST.search(path.name) and self._fits(path)),
            key=lambda path: (OF_950.search(str(path.relative_to(hosts))) is not None, path),
        )
        if not sources:
            raise CompileError(f"{folder}: expected op_host/*.cpp of an operator, got none")
        self._root = library_of(self.folder)
        inc = self._root / "common" / "inc" if self._root else hosts
        common = [inc, inc / "op_host", self._root] if self._root else []
        options = [f"-I{path}" for path in (*include, hosts, *common)]
        lone = sources if len(sources) == 1 else []
        text = "".join(f"#include {json.dumps(path)}\n" for path in ("lngrad/project.h", *map(str, lone)))
        parts = [path for path in sources if path not in lone] + (_linked(sources, self._root) if self._root else [])
        self._library = ctypes.PyDLL(str(library(text, sources[0], "op_host", options, parts)))
        self._library.lngrad_bind(ctypes.py_object(bridge.answer))
        self._library.lngrad_project.restype = ctypes.c_char_p
        answer = self._ask("")
        self.operator = answer["operator"][0][0] if answer["operator"][0] else ""
        if not self.operator:
            raise CompileError(f"{folder / 'op_host'}: expected an operator's definition (OpDef and OP_ADD), got none")
        self.inputs, self.outputs = answer.get("input", []), answer.get("output", [])
        self.attributes = {name: _FORMS[int(kind)] for name, kind in answer.get("attr", [])}

    def _fits(self, path: Path) -> bool:
        return self._regbase or not OF_950.search(str(path.relative_to(self.folder)))

    def _ask(self, request: str) -> dict[str, list[list[str]]]:
        answer: dict[str, list[list[str]]] = {}
        for line in bytes(self._library.lngrad_project(request.encode())).decode().splitlines():
            word, *rest = line.split(" ")
            answer.setdefault(word, []).append(rest)
        if "failed" in answer:
            lines = (" ".join([word, *words]) for word, (words, *_) in answer.items() if word != "failed")
            why = bridge.last_fault() or " ".join(lines)
            raise CompileError(f"{self.folder}: {' '.join(answer['failed'][0])} failed{f': {why}' if why else ''}")
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
            arguments: Arrays by the names of the definition: inputs, and outputs that are not to be allotted here.
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
        for name, required, *allowed in self.inputs:
            if name in shapes and name not in arrays:
                number = NUMBERS[dtype] if not allowed or str(NUMBERS[dtype]) in allowed else int(allowed[0])
                values = random.standard_normal(shapes[name])
                arrays[name] = (np.abs(values * 10) if TYPES[number].kind in "iub" else values).astype(TYPES[number])
            if name in arrays:
                number, sizes = _number(name, arrays[name]), arrays[name].shape
                address = arrays[name].ctypes.data  # a tiling function may read what an input holds
                lines.append(f"input {name} {number} {address} {' '.join(map(str, sizes))}")
            elif required == "1":
                raise ShapeError(f"{name}: expected --arg {name}=FILE.npy or --shape {name}=…, got neither")
        column = self._column(arrays)
        for name, _, *allowed in self.outputs:
            of = arrays.get(name)
            number = int((allowed[column:] or allowed or [str(NUMBERS[dtype])])[0]) if of is None else _number(name, of)
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

    def _column(self, arrays: Mapping[str, Array | None]) -> int:
        """The column of types of the definition that the inputs have; else the first that one of them has."""
        types = [
            (str(_number(name, array)), allowed)
            for name, _, *allowed in self.inputs
            if (array := arrays.get(name)) is not None
        ]
        count = max((len(allowed) for _, allowed in types), default=0)
        whole = (
            column for column in range(count) if all(allowed[column : column + 1] == [own] for own, allowed in types)
        )
        single = (allowed.index(own) for own, allowed in types if own in allowed[1:])
        return next(whole, next(single, 0))

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
        source = kernel_source(self.folder, kernel, self._regbase) or (sources[0] if len(sources) == 1 else None)
        if source is None:
            found = ", ".join(path.name for path in sources) or "none"
            raise CompileError(f"{self.folder}: expected op_kernel/{kernel}.cpp, got {found}")
        define: dict[str, str] = {}
        for name, array in arrays.items():
            if array is None:
                continue
            number = _number(name, array)
            define |= {f"DTYPE_{name.upper()}": _CPP[number], f"ORIG_DTYPE_{name.upper()}": _NAMES[number]}
        hosts = [
            *sorted(path for path in (self.folder / "op_host").rglob("*.*") if self._fits(path)),
            *sorted((self.folder / "op_kernel").glob("*.h")),
        ]
        headers = [
            path for path in hosts if path.suffix in (".h", ".cpp") and registers(path.read_text(errors="replace"))
        ]
        include = [self.folder / "op_kernel", *(_beside(self.folder, self._root) if self._root else ())]
        return {"path": source, "kernel": kernel, "headers": headers, "define": define, "include": include}


def library_of(folder: Path) -> Path | None:
    """The operator library that a folder is of: a folder above it with common/inc/op_kernel."""
    return next((parent for parent in folder.parents if (parent / "common" / "inc" / "op_kernel").is_dir()), None)


def _linked(sources: Sequence[Path], root: Path) -> list[Path]:
    """The sources of a library's own headers that these include: common/src/NAME.cpp for common/inc/NAME.h."""
    names = dict.fromkeys(name for text in texts_of(*sources).values() for name in INCLUDED.findall(text))
    places = (root / "common" / "src" / f"{name.removesuffix('.h')}.cpp" for name in names)
    return [path for path in places if path.is_file()]


def _beside(folder: Path, root: Path) -> list[Path]:
    """Folders from which kernels include those of operators beside them as the library's build has them, by "../../name/"."""
    place = folder_for(f"kernels-{digest(str(folder.parent).encode())[:16]}")
    (place / "one" / "two").mkdir(parents=True, exist_ok=True)
    kernels = {path.parent.name: path for path in folder.parent.glob("*/op_kernel")}
    for name, kernel in {**kernels, "inc": root / "common" / "inc" / "op_kernel"}.items():
        with suppress(FileExistsError):
            (place / name).symlink_to(kernel, target_is_directory=True)
    return [place / "one" / "two", place / "one", place]


def _number(name: str, array: Array) -> int:
    if array.dtype.name not in NUMBERS:
        raise DtypeError(f"{name}: expected a dtype of {', '.join(NUMBERS)}, got {array.dtype}")
    return NUMBERS[array.dtype.name]
