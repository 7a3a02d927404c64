"""C prototypes, read as data: what each parameter of a function is, and in which direction it goes.

A function is written once, as the C header has it. Its declaration, its entry point in the library and the conversion
of its arguments all follow from the types: ``uint64_t *workspaceSize`` is a result, ``const int64_t *viewDims`` with
``uint64_t viewDimsNum`` after it is a list, ``aclTensor *`` is a handle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum, auto

# Pointers to these are handles; those of the second line are themselves pointers in C.
OPAQUE: tuple[str, ...] = (
    "aclTensor",
    "aclScalar",
    "aclIntArray",
    "aclFloatArray",
    "aclBoolArray",
    "aclTensorList",
    "aclScalarList",
    "aclOpExecutor",
)
HANDLE_TYPES: tuple[str, ...] = ("aclrtStream", "aclrtContext", "aclrtEvent")
HANDLES = OPAQUE + HANDLE_TYPES

REALS = ("double", "float")
STATUSES = ("aclError", "aclnnStatus")


class Kind(Enum):
    """What a parameter is. All fit one 64-bit word: a number, a pointer, or the bits of a double."""

    NUMBER = auto()
    REAL = auto()
    HANDLE = auto()
    ADDRESS = auto()  # a void pointer: of the device, or of the host where the function's row says so
    TEXT = auto()
    LIST = auto()  # of numbers, booleans or handles, its length in another parameter
    LENGTH = auto()  # of a list; no argument in Python
    OUT_NUMBER = auto()
    OUT_REAL = auto()
    OUT_HANDLE = auto()
    OUT_ADDRESS = auto()
    OUT_LIST = auto()  # a new array of int64_t that the caller frees
    OUT_LENGTH = auto()


RESULTS = (Kind.OUT_NUMBER, Kind.OUT_REAL, Kind.OUT_HANDLE, Kind.OUT_ADDRESS, Kind.OUT_LIST, Kind.OUT_LENGTH)


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Attributes:
        name: as in the prototype.
        type: its C type, without the name.
        kind: what it is.
        base: the type without const and stars: of a handle, of an element, of a number.
        length: for a list, the position of the parameter that has its length.
    """

    name: str
    type: str
    kind: Kind
    base: str
    length: int = -1

    @property
    def is_result(self) -> bool:
        """Whether the function writes through it."""
        return self.kind in RESULTS


@dataclass(frozen=True)
class Function:
    """One function.

    Attributes:
        prototype: as in the C header, without the semicolon.
        name: its name.
        result: its C type.
        parameters: in C's order.
        host: parameters that may point to the host's memory, each with the parameter that counts its bytes.
        device: parameters that point to the device's memory, likewise where a parameter counts its bytes.
        python: the name of the function that answers, where it is not the same.
    """

    prototype: str
    name: str
    result: str
    parameters: tuple[Parameter, ...]
    host: dict[str, str] = field(default_factory=dict)
    device: dict[str, str] = field(default_factory=dict)
    python: str = ""

    @property
    def has_status(self) -> bool:
        """Whether it returns a code."""
        return self.result in STATUSES


_PROTOTYPE = re.compile(r"^(?P<result>[\w ]+?[ *]+)(?P<name>\w+)\((?P<parameters>.*)\)$", re.DOTALL)
_PARAMETER = re.compile(r"^(?P<type>.*?[ *])(?P<name>\w+)$", re.DOTALL)


def function(
    prototype: str,
    *,
    host: dict[str, str] | None = None,
    device: dict[str, str] | None = None,
    python: str = "",
) -> Function:
    """Read a prototype.

    Raises:
        ValueError: it is not one, or a type in it is unknown.
    """
    text = " ".join(prototype.split())
    match = _PROTOTYPE.match(text)
    if match is None:
        raise ValueError(f"prototype: expected 'type name(parameters)', got {prototype!r}")
    inside = match["parameters"]
    pairs = [] if inside in ("", "void") else [_split(one) for one in inside.split(",")]
    names = [name for _, name in pairs]
    lengths = {name: _length_of(name, type_, names) for type_, name in pairs if _is_list(type_)}
    parameters = tuple(_parameter(type_, name, names, lengths) for type_, name in pairs)
    return Function(
        text, match["name"], match["result"].strip(), parameters, host or {}, device or {}, python or match["name"]
    )


def _split(text: str) -> tuple[str, str]:
    match = _PARAMETER.match(text.strip())
    if match is None:
        raise ValueError(f"parameter: expected 'type name', got {text!r}")
    return match["type"].strip(), match["name"]


def _base(type_: str) -> str:
    return type_.replace("const", " ").replace("*", " ").strip()


def _is_list(type_: str) -> bool:
    """A pointer to constant elements: numbers, or handles, which are pointers."""
    base, stars = _base(type_), type_.count("*")
    if base in OPAQUE:
        return stars == 2 and type_.startswith("const")
    return stars == 1 and type_.startswith("const") and base not in ("void", "char")


def _length_of(name: str, type_: str, names: list[str]) -> str:
    """viewDims goes with viewDimsNum, stride with viewDimsNum, value with size."""
    for candidate in (name + "Num", "size", "viewDimsNum"):
        if candidate in names:
            return candidate
    raise ValueError(f"{name}: expected its length among {', '.join(names)}")


def _parameter(type_: str, name: str, names: list[str], lengths: dict[str, str]) -> Parameter:
    base, stars = _base(type_), type_.count("*")
    length = -1
    if name in lengths:
        kind, length = Kind.LIST, names.index(lengths[name])
    elif name in lengths.values():
        kind = Kind.LENGTH
    elif base in HANDLE_TYPES:
        kind = (Kind.HANDLE, Kind.OUT_HANDLE)[stars]
    elif base in OPAQUE:
        kind = Kind.HANDLE if stars == 1 else Kind.OUT_HANDLE if base == "aclOpExecutor" else Kind.ADDRESS
    elif base == "void":
        kind = {1: Kind.ADDRESS, 2: Kind.OUT_ADDRESS}[stars]
    elif base == "char":
        kind = Kind.TEXT
    elif stars == 2:
        kind, length = Kind.OUT_LIST, names.index(name + "Num")
    elif stars == 1:
        is_length = name.endswith("Num") and name.removesuffix("Num") in names
        kind = Kind.OUT_LENGTH if is_length else Kind.OUT_REAL if base in REALS else Kind.OUT_NUMBER
    else:
        kind = Kind.REAL if base in REALS else Kind.NUMBER
    return Parameter(name, type_, kind, base, length)
