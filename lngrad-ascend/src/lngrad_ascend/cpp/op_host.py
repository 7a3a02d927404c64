"""What an operator's op_host declares for its kernel: the tiling structs, with their constants.

The operator build makes GET_TILING_DATA of the struct that REGISTER_TILING_DATA_CLASS names for the operator. So does this.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_STRUCT = re.compile(r"(?s)BEGIN_TILING_DATA_DEF\(\s*(\w+)\s*\).*?END_TILING_DATA_DEF")
_REGISTERED = re.compile(r"REGISTER_TILING_DATA_CLASS\(\s*(\w+)\s*,\s*(\w+)\s*\)")
_NESTED = re.compile(r"TILING_DATA_FIELD_DEF_STRUCT\(\s*(\w+)\s*,")
_COUNT = re.compile(r"(TILING_DATA_FIELD_DEF_ARR\([^,]*,)([^,]*),")
_CONSTANT = re.compile(r"\bconst(?:expr)?\s+[\w:]+\s+(\w+)\s*=\s*([^;]+);|#define[ \t]+(\w+)[ \t]+([^\n/]+)")
_COMMENT = re.compile(r"//[^\n]*|/\*(?s:.*?)\*/")
INCLUDED = re.compile(r'#include\s+"([^"]*)"')
_DEPTH = 5  # of constants that are made of constants
# In a path: what is for Ascend 950 alone.
OF_950 = re.compile(r"arch35|_apt|regbase|950")
_OP_FILE = re.compile(r'ExtendCfgInfo\(\s*"opFile\.value"\s*,\s*"(\w+)"')
_KERNEL_SRC = re.compile(r"(?m)^\s*KERNEL_SRC\s+([\w./]+)")


def operator_of(kernel: str) -> str:
    """The operator's name for a kernel's name: AddCustom for add_custom."""
    return "".join(word[:1].upper() + word[1:] for word in kernel.split("_"))


def kernel_source(folder: Path, kernel: str, regbase: bool) -> Path | None:
    """The file of an operator's kernel for Ascend 950 (``regbase``) or for the others; None if there is none.

    For 950: what CMakeLists.txt names as KERNEL_SRC, or op_host as opFile.value; else by the name.
    """
    names = [kernel]
    if regbase:
        builds = (
            path for path in (folder / "CMakeLists.txt", folder / "op_kernel" / "CMakeLists.txt") if path.is_file()
        )
        names = [
            name.removesuffix(".cpp")
            for path in builds
            for name in _KERNEL_SRC.findall(path.read_text(errors="replace"))
        ]
        definitions = (folder / "op_host").rglob("*_def.cpp")
        chosen = [name for path in definitions for name in _OP_FILE.findall(path.read_text(errors="replace"))]
        names += sorted(
            chosen, key=lambda name: name == kernel
        )  # of two configurations that of 950 has a name of its own
        names = [place + name for name in (*names, f"{kernel}_apt", kernel) for place in ("", "arch35/")]
        names.sort(key=lambda name: name == kernel)  # the last: it is the others' where there is another one
    places = (folder / "op_kernel" / f"{name}.cpp" for name in names)
    return next((path for path in places if path.is_file()), None)


def registers(text: str) -> bool:
    """Whether a header registers a tiling struct."""
    return _REGISTERED.search(text) is not None


def texts_of(*places: Path) -> dict[Path, str]:
    """The texts of C++ files, or of those in folders, and of what they include by a path relative to them."""
    files = [path for place in places for path in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    files = [path.resolve() for path in files if path.suffix in (".h", ".hpp", ".cpp", ".cc")]
    texts: dict[Path, str] = {}
    while files:
        path = files.pop(0)
        if path not in texts and path.is_file():
            texts[path] = path.read_text(encoding="utf-8", errors="replace")
            files += [(path.parent / name).resolve() for name in INCLUDED.findall(texts[path])]
    return texts


def defines(text: str, struct: str) -> bool:
    """Whether a text has the definition of a struct."""
    text = _COMMENT.sub("", text)
    body, alias = (
        rf"(struct|class|BEGIN_TILING_DATA_DEF\()\s*{struct}\b(?!\s*[;&*>])",
        rf"typedef\s[^;{{}}]*\b{struct}\s*;",
    )
    return re.search(rf"\b({body}|{alias}|using\s+{struct}\s*=)", text) is not None


def default_struct(hosts: Sequence[str], operator: str) -> str | None:
    """The struct that is registered for an operator, whose name may have other capitals."""
    every = (pair for text in hosts for pair in _REGISTERED.findall(text))
    return next((struct for name, struct in every if name.lower() == operator.lower()), None)


def tiling_header(hosts: Sequence[str], operator: str, known: str = "") -> str:
    """The text of a header with an operator's tiling structs; "" where nothing is registered for it.

    Args:
        hosts: Texts of op_host headers, the operator's own first.
        operator: Its name, as REGISTER_TILING_DATA_CLASS has it.
        known: The texts of its kernel and tests: a struct that they define stays theirs.
    """
    default = default_struct(hosts, operator)
    if default is None:
        return ""
    every = dict(pair for text in reversed(hosts) for pair in _constants(text))
    structs = {
        found[1]: (found[0], {**every, **dict(_constants(text))})
        for text in reversed(hosts)
        for found in _STRUCT.finditer(text)
    }
    wanted: dict[str, str] = {}
    its_file = next(text for text in hosts if default_struct([text], operator) == default)

    def want(name: str) -> None:
        if name in wanted or name not in structs:
            return
        text, constants = structs[name]
        for part in _NESTED.findall(text):
            want(part)

        def count(field: re.Match[str]) -> str:
            number = field[2]
            for _ in range(_DEPTH):
                number = re.sub(r"\b[A-Za-z_]\w*", lambda word: constants.get(word[0], word[0]), number)
            return f"{field[1]}{number},"

        wanted[name] = _COUNT.sub(count, text)

    for text in hosts:
        for name, struct in _REGISTERED.findall(text):
            if f"{name}_".lower().startswith(f"{operator}_".lower()):
                want(struct)
    for name in re.findall(r"BEGIN_TILING_DATA_DEF\(\s*(\w+)", its_file):
        want(name)
    lines = ["#pragma once", '#include "kernel_operator.h"', '#include "register/tilingdata_base.h"']
    lines += ["namespace lngrad_op_host {", *(f"{text};" for text in wanted.values()), "}"]
    lines += [f"using lngrad_op_host::{name};" for name in wanted if not defines(known, name)]
    if not re.search(r"REGISTER_TILING_DEFAULT|#define\s+GET_TILING_DATA\(", known):
        reading = f"auto name = lngrad::tiling_data<{default}>(address)"
        lines += ["#undef GET_TILING_DATA", f"#define GET_TILING_DATA(name, address) {reading}"]
    return "\n".join([*lines, ""])


def _constants(text: str) -> list[tuple[str, str]]:
    return [(name or other, f"({value or line})".strip()) for name, value, other, line in _CONSTANT.findall(text)]
