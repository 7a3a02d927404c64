"""The structs that say how the repeats of an instruction walk through memory.

Where a kernel writes a braced initializer in C++, ``{1, 8}``, a tuple does the same here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, TypeVar, Union

from lngrad.errors import DtypeError

Mask = Union[int, Sequence[int]]  # noqa: UP007  # an alias is evaluated, on Python 3.10 too
P = TypeVar("P")


@dataclass(frozen=True)
class BinaryRepeatParams:
    """Strides of dst, src0 and src1 in blocks of 32 bytes: between blocks, and between repeats."""

    dstBlkStride: int = 1
    src0BlkStride: int = 1
    src1BlkStride: int = 1
    dstRepStride: int = 8
    src0RepStride: int = 8
    src1RepStride: int = 8


@dataclass(frozen=True)
class UnaryRepeatParams:
    """Strides of dst and src in blocks of 32 bytes: between blocks, and between repeats."""

    dstBlkStride: int = 1
    srcBlkStride: int = 1
    dstRepStride: int = 8
    srcRepStride: int = 8


@dataclass(frozen=True)
class CopyRepeatParams:
    """Strides of Copy in blocks of 32 bytes: between blocks (Stride), and between repeats
    (RepeatSize)."""

    dstStride: int = 0
    srcStride: int = 0
    dstRepeatSize: int = 8
    srcRepeatSize: int = 8


@dataclass(frozen=True)
class BrcbRepeatParams:
    """Strides of Brcb's dst in blocks of 32 bytes: between the blocks of a repeat, and between
    repeats."""

    dstBlkStride: int = 1
    dstRepStride: int = 8


def params_of(api: str, kind: type[P], given: P | Sequence[int] | None) -> tuple[int, ...]:
    """Return the fields of a struct that came as itself, as a tuple of its first fields, or not at
    all.

    Raises:
        DtypeError: It is something else, or a field is out of range.
    """
    if given is None:
        given = kind()
    elif isinstance(given, (tuple, list)):
        given = kind(*given)
    if not isinstance(given, kind):
        raise DtypeError(f"{api}: expected {kind.__name__}, got {given!r}")
    struct: Any = given
    fields: tuple[int, ...] = astuple(struct)
    if any(field < 0 or field > 65535 for field in fields):
        raise DtypeError(f"{api}: the fields of {kind.__name__} are 0 to 65535, got {given}")
    return fields
