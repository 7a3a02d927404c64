"""The vector instructions by number: their names, the types they take, and what they compute.

The number of an instruction is its place in ``OPERATIONS``; a descriptor carries it.

Arithmetic is IEEE in the type of the operands, rounded to nearest even after every instruction;
subnormals are kept. CANN: Rsqrt, Reciprocal, Exp and Ln are the correctly rounded steps of NumPy;
a device approximates some of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from lngrad.ascend.device.element_types import BFLOAT16, CPP_NAMES, FLOAT, HALF, INT16, INT32
from lngrad.typing import Array, Dtype


class Kind(enum.Enum):
    """What operands an instruction takes."""

    BINARY = "dst, src0, src1"
    SCALAR = "dst, src, scalar"
    UNARY = "dst, src"
    DUPLICATE = "dst, scalar"
    CAST = "dst, src, round mode"
    BRCB = "dst, eight elements of src a repeat"
    WHOLE_REDUCE = "one element of dst, a repeat of src"
    REDUCE = "dst[0], src, temporary buffer"


class RoundMode(enum.Enum):
    """How Cast rounds. CAST_NONE rounds as CAST_RINT where the target cannot hold the value."""

    CAST_NONE = "none"
    CAST_RINT = "nearest, ties to even"
    CAST_FLOOR = "towards minus infinity"
    CAST_CEIL = "towards plus infinity"
    CAST_ROUND = "nearest, ties away from zero"
    CAST_TRUNC = "towards zero"
    CAST_ODD = "to odd where inexact"


CAST_MODES = tuple(RoundMode)  # CANN's numbers are the places


@dataclass(frozen=True)
class Operation:
    """One vector instruction.

    Attributes:
        name: As kernels call it.
        kind: Its operands.
        types: Codes of the element types it takes.
        function: Writes the result: ``(out, …)`` are arrays of one shape.
        ufunc: NumPy's function that does the same, called as ``ufunc(…, out)``.
        accumulates: Whether dst may be src1 of every repeat (Add over rows).
    """

    name: str
    kind: Kind
    types: frozenset[int]
    ufunc: np.ufunc | None = None
    function: Callable[..., object] | None = None
    accumulates: bool = False


def _rsqrt(src: Array, out: Array) -> None:
    np.divide(src.dtype.type(1), np.sqrt(src), out=out)


def _reciprocal(src: Array, out: Array) -> None:
    np.divide(src.dtype.type(1), src, out=out)


def _max(one: Array, other: Array, out: Array) -> None:
    np.maximum(one, other, out=out)  # by position NumPy calls it deprecated


def _min(one: Array, other: Array, out: Array) -> None:
    np.minimum(one, other, out=out)


def _relu(src: Array, out: Array) -> None:
    np.maximum(src, src.dtype.type(0), out=out)


def _copy(src: Array, out: Array) -> None:
    out[...] = src


REAL = frozenset((HALF, FLOAT))
NUMBERS = frozenset((HALF, FLOAT, INT16, INT32))
ANY_16_32 = frozenset(
    CPP_NAMES.index(n) for n in ("half", "float", "bfloat16_t", "int16_t", "uint16_t", "int32_t", "uint32_t")
)

OPERATIONS: tuple[Operation, ...] = (
    Operation("Add", Kind.BINARY, NUMBERS, np.add, accumulates=True),
    Operation("Sub", Kind.BINARY, NUMBERS, np.subtract, accumulates=True),
    Operation("Mul", Kind.BINARY, NUMBERS, np.multiply, accumulates=True),
    Operation("Div", Kind.BINARY, REAL, np.divide),
    Operation("Max", Kind.BINARY, NUMBERS, function=_max, accumulates=True),
    Operation("Min", Kind.BINARY, NUMBERS, function=_min, accumulates=True),
    Operation("Adds", Kind.SCALAR, NUMBERS, np.add),
    Operation("Muls", Kind.SCALAR, NUMBERS, np.multiply),
    Operation("Maxs", Kind.SCALAR, NUMBERS, function=_max),
    Operation("Mins", Kind.SCALAR, NUMBERS, function=_min),
    Operation("Sqrt", Kind.UNARY, REAL, np.sqrt),
    Operation("Rsqrt", Kind.UNARY, REAL, function=_rsqrt),
    Operation("Exp", Kind.UNARY, REAL, np.exp),
    Operation("Abs", Kind.UNARY, REAL, np.absolute),
    Operation("Reciprocal", Kind.UNARY, REAL, function=_reciprocal),
    Operation("Ln", Kind.UNARY, REAL, np.log),
    Operation("Relu", Kind.UNARY, frozenset((HALF, FLOAT, INT32)), function=_relu),
    Operation("Copy", Kind.UNARY, ANY_16_32, function=_copy),
    Operation("Duplicate", Kind.DUPLICATE, ANY_16_32),
    Operation("Cast", Kind.CAST, frozenset((HALF, FLOAT, BFLOAT16, INT32))),
    Operation("Brcb", Kind.BRCB, ANY_16_32),
    Operation("WholeReduceSum", Kind.WHOLE_REDUCE, REAL),
    Operation("ReduceSum", Kind.REDUCE, REAL),
    Operation("DataCopy", Kind.UNARY, frozenset(range(len(CPP_NAMES))), function=_copy),
)
OPCODES: dict[str, int] = {operation.name: code for code, operation in enumerate(OPERATIONS)}


def round_to(values: Array, dtype: Dtype, mode: RoundMode) -> Array:
    """Return ``values`` in ``dtype``, rounded as Cast does."""
    if dtype.kind == "i":
        return _round_to_integer(values, dtype, mode)
    nearest = values.astype(dtype)
    if mode in (RoundMode.CAST_NONE, RoundMode.CAST_RINT) or (dtype == np.float32 and values.dtype != np.int32):
        return nearest
    exact, got = values.astype(np.float64), nearest.astype(np.float64)
    wrong = np.isfinite(exact) & (exact != got)
    # The neighbour on the other side of the exact value: ``nearest`` and it are the two candidates
    # of every mode. NumPy's overflow to infinity counts as the neighbour of the largest number.
    other = np.nextafter(nearest, np.where(exact > got, dtype.type(np.inf), dtype.type(-np.inf)).astype(dtype))
    lower = np.where(exact > got, nearest, other)
    upper = np.where(exact > got, other, nearest)
    if mode is RoundMode.CAST_FLOOR:
        chosen = lower
    elif mode is RoundMode.CAST_CEIL:
        chosen = upper
    elif mode is RoundMode.CAST_TRUNC:
        chosen = np.where(exact > 0, lower, upper)
    elif mode is RoundMode.CAST_ODD:
        chosen = np.where(lower.view(f"u{dtype.itemsize}") & 1, lower, upper)
    else:
        tie = np.abs(exact - got) == np.abs(other.astype(np.float64) - exact)
        chosen = np.where(tie, np.where(exact > 0, upper, lower), nearest)
    return np.where(wrong, chosen, nearest).astype(dtype)


def _round_to_integer(values: Array, dtype: Dtype, mode: RoundMode) -> Array:
    exact = values.astype(np.float64)
    if mode is RoundMode.CAST_FLOOR:
        exact = np.floor(exact)
    elif mode is RoundMode.CAST_CEIL:
        exact = np.ceil(exact)
    elif mode is RoundMode.CAST_TRUNC:
        exact = np.trunc(exact)
    elif mode is RoundMode.CAST_ROUND:
        exact = np.trunc(exact + np.copysign(0.5, exact))
    else:
        exact = np.rint(exact)
    limits = np.iinfo(dtype)
    return np.clip(np.nan_to_num(exact, nan=0.0), limits.min, limits.max).astype(dtype)


def saturated(rounded: Array) -> Array:
    """Return ``rounded`` with what became infinite clamped to the largest finite number."""
    largest = ml_dtypes.finfo(rounded.dtype).max
    return np.where(np.isinf(rounded), np.copysign(largest, rounded), rounded).astype(rounded.dtype)
