"""The element types of tensors, how Cast rounds between them, the orders in which the vector unit adds up many numbers, and
mathematical functions."""

from __future__ import annotations

import enum
import math
import typing
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from lngrad.errors import DtypeError
from lngrad.typing import Array, Dtype
from lngrad_ascend.soc import Target

# C++'s names and NumPy's types. The code of a type in a descriptor is its place here; a compiled front has the same list.
# Two int4b_t lie in a byte; only Cast knows them.
_TYPES = {
    "half": np.float16, "float": np.float32, "bfloat16_t": ml_dtypes.bfloat16, "int8_t": np.int8, "uint8_t": np.uint8,
    "int16_t": np.int16, "uint16_t": np.uint16, "int32_t": np.int32, "uint32_t": np.uint32, "int64_t": np.int64,
    "uint64_t": np.uint64, "int4b_t": ml_dtypes.int4,
}  # fmt: skip
CPP_NAMES = tuple(_TYPES)
DTYPES: tuple[Dtype, ...] = tuple(map(np.dtype, _TYPES.values()))
CODES: dict[Dtype, int] = {dtype: code for code, dtype in enumerate(DTYPES)}
INT4 = CPP_NAMES.index("int4b_t")

# C++'s float and int are 32 bits wide; NumPy reads Python's as 64.
_PYTHON: dict[object, Dtype] = {float: np.dtype(np.float32), int: np.dtype(np.int32)}


def element_type(api: str, T: DTypeLike) -> Dtype:
    """Return the dtype of T. Python's ``float`` and ``int`` mean C++'s: 32 bits.

    Raises:
        DtypeError: The vector core has no such type, as float64.
    """
    if isinstance(T, np.dtype) and T in CODES:  # as C++ has them
        return T
    if typing.get_origin(T) is typing.Annotated:  # int64 and the like of the tiling structs
        field: Dtype = np.dtype(typing.get_args(T)[1])
        return field
    mapped = _PYTHON.get(T) if isinstance(T, type) else None
    dtype = np.dtype(T) if mapped is None else mapped
    if dtype not in CODES:
        raise DtypeError(f"{api}: T must be one of {', '.join(CPP_NAMES)}, got {dtype}")
    return dtype


REPEAT_BYTES = 256  # what the vector unit takes at a time
REPEAT_FLOATS = REPEAT_BYTES // 4


def pairwise_sum(values: Array) -> Array:
    """Return the sums over the last axis, adding neighbours and then their sums; n is padded with zeros to a power of two."""
    lanes = values.shape[-1]
    width = 1 << (lanes - 1).bit_length()
    if width != lanes:
        values = np.concatenate([values, np.zeros((*values.shape[:-1], width - lanes), values.dtype)], axis=-1)
    flat = values.reshape(-1)
    for _ in range(width.bit_length() - 1):
        flat = flat[0::2] + flat[1::2]
    return flat.reshape(values.shape[:-1])


def partial_sums(rows: Array, lanes: int) -> Array:
    """Return the sum of every ``lanes`` elements: (M, n) to (M, ceil(n / lanes))."""
    M, n = rows.shape
    whole = n // lanes * lanes
    sums = pairwise_sum(rows[:, :whole].reshape(M, -1, lanes))
    if whole < n:
        sums = np.concatenate([sums, pairwise_sum(rows[:, whole:])[:, None]], axis=1)
    return sums


def repeat_sums(rows: Array, lanes: int) -> Array:
    """Return the sum of every row: (M, n) to (M,), one round of partial sums after the other."""
    while rows.shape[1] > 1:
        rows = partial_sums(rows, lanes)
    return rows[:, 0]


def lane_sums(rows: Array) -> Array:
    """Return the sum of every row, (M, n) to (M,): 64-float pieces are added lane by lane in order, then neighbours."""
    n = rows.shape[1]
    total = rows[:, :REPEAT_FLOATS].copy()
    for start in range(REPEAT_FLOATS, n, REPEAT_FLOATS):
        piece = rows[:, start : start + REPEAT_FLOATS]
        total[:, : piece.shape[1]] += piece
    return pairwise_sum(total)


def reduce_sum(values: Array, arch: int) -> Array:
    """Return the sum of all elements in the order of ReduceSum's count form.

    Shapes: (n,) to (1,).

    2201 (A2, A3) adds up each repeat as a tree and the repeats one after another. 3510 adds up whole repeats lane by
    lane first where the data take 256 to 1024 bytes. The others, and longer data there, are trees of trees. Source:
    ReduceSum's page of the Ascend C manual.
    """
    lanes = REPEAT_BYTES // values.dtype.itemsize
    if arch == 2201:
        total: Array = partial_sums(values[None], lanes)[0].cumsum(dtype=values.dtype)[-1:]
        return total
    if arch == 3510 and REPEAT_BYTES <= values.nbytes <= 4 * REPEAT_BYTES:
        lanewise = np.zeros(lanes, values.dtype)
        for start in range(0, values.size, lanes):
            piece = values[start : start + lanes]
            lanewise[: piece.size] += piece
        return pairwise_sum(lanewise[None])
    return repeat_sums(values[None], lanes)


class RoundMode(enum.Enum):
    """The rounding of Cast. CAST_NONE rounds as CAST_RINT where the target cannot hold the value."""

    CAST_NONE = "none"
    CAST_RINT = "nearest, ties to even"
    CAST_FLOOR = "towards minus infinity"
    CAST_CEIL = "towards plus infinity"
    CAST_ROUND = "nearest, ties away from zero"
    CAST_TRUNC = "towards zero"
    CAST_ODD = "to odd where inexact"


CAST_MODES = tuple(RoundMode)  # CANN's numbers are the places


def round_to(values: Array, dtype: Dtype, mode: RoundMode) -> Array:
    """Return ``values`` in ``dtype``, rounded as Cast does."""
    if dtype.kind in "iu" or dtype == ml_dtypes.int4:
        limits = ml_dtypes.iinfo(dtype)
        integers: Any = values
        if values.dtype.kind not in "iu":
            integers = np.nan_to_num(_TO_INTEGER.get(mode, np.rint)(values.astype(np.float64)), nan=0.0)
            if dtype.itemsize == 8:  # float64 does not hold the largest one
                fits = np.abs(integers) < 2.0**63
                largest = np.where(integers > 0, limits.max, limits.min).astype(dtype)
                return np.where(fits, np.where(fits, integers, 0).astype(dtype), largest)
        return np.clip(integers, int(limits.min), int(limits.max)).astype(dtype)  # type: ignore[no-any-return]
    if dtype == values.dtype:  # Cast from float to float rounds to whole numbers
        return _TO_INTEGER.get(mode, np.rint)(values)
    nearest = values.astype(dtype)
    if mode in (RoundMode.CAST_NONE, RoundMode.CAST_RINT) or (dtype == np.float32 and values.dtype.kind not in "iu"):
        return nearest
    exact, got = values.astype(np.float64), nearest.astype(np.float64)
    wrong = np.isfinite(exact) & (exact != got)
    # The neighbour on the other side of the exact value: ``nearest`` and it are the two candidates
    # of every mode. NumPy's overflow to infinity counts as the neighbour of the largest number.
    other = np.nextafter(nearest, np.where(exact > got, dtype.type(np.inf), dtype.type(-np.inf)).astype(dtype))
    lower, upper = np.where(exact > got, nearest, other), np.where(exact > got, other, nearest)
    tie = np.abs(exact - got) == np.abs(other.astype(np.float64) - exact)
    chosen = {
        RoundMode.CAST_FLOOR: lower,
        RoundMode.CAST_CEIL: upper,
        RoundMode.CAST_TRUNC: np.where(exact > 0, lower, upper),
        RoundMode.CAST_ODD: np.where(lower.view(f"u{dtype.itemsize}") & 1, lower, upper),
        RoundMode.CAST_ROUND: np.where(tie, np.where(exact > 0, upper, lower), nearest),
    }[mode]
    return np.where(wrong, chosen, nearest).astype(dtype)


_TO_INTEGER: dict[RoundMode, Callable[[Array], Array]] = {
    RoundMode.CAST_FLOOR: np.floor,
    RoundMode.CAST_CEIL: np.ceil,
    RoundMode.CAST_TRUNC: np.trunc,
    RoundMode.CAST_ROUND: lambda exact: np.trunc(exact + np.copysign(0.5, exact)),
}


def saturated(rounded: Array) -> Array:
    """Return ``rounded`` with what became infinite clamped to the largest finite number."""
    largest = ml_dtypes.finfo(rounded.dtype).max
    return np.where(np.isinf(rounded), np.copysign(largest, rounded), rounded).astype(rounded.dtype)


_BLOCK = 1 << 14  # elements at a time, so that the mask of NaNs is never of size
_HALF, _KEPT = np.uint32(0x8000), np.uint32(0xFFFF0000)
_MAGNITUDE, _INFINITY = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)


def rounds_half_away(target: Target) -> bool:
    """Whether bfloat16 results round ties away from zero, as the kernels of Atlas A2 and A3 do; 950's round them to even."""
    return target.rounding == "device" and target.soc.arch == 2201


def round_half_away(values: Array) -> None:
    """Round float32 values in place to those that bfloat16 has, ties away from zero, as CAST_ROUND does. NaN stays.

    Args:
        values: contiguous, any shape. Their cast to bfloat16 is exact afterwards.
    """
    # Sign and magnitude lie side by side, so adding half of the last kept bit rounds a tie outwards
    # for either sign; a carry out of the largest finite value gives infinity, as it should.
    words = values.reshape(-1).view(np.uint32)
    for start in range(0, words.size, _BLOCK):
        block = words[start : start + _BLOCK]
        number = (block & _MAGNITUDE) <= _INFINITY
        np.add(block, _HALF, out=block, where=number)
        np.bitwise_and(block, _KEPT, out=block, where=number)


# What the mathematical functions compute, in float64 and rounded once to the type of the result. CANN's own are polynomials and
# steps in float, so that a device's results differ from these in their last bits.
_ASYMPTOTIC = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760)  # of digamma, in 1 / x²


def exactly(function: Callable[..., Any]) -> Callable[..., None]:
    """Make a function of numbers the arithmetic of a row: of arrays of any type, into ``out``."""

    def compute(*arrays: Array) -> None:
        *sources, out = arrays
        with np.errstate(all="ignore"):
            out[...] = function(*(source.astype(np.float64) for source in sources))

    return compute


def each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """Make a function of Python's one of arrays; where it has no value, NaN, or infinity at a pole."""

    def evaluate(value: float) -> float:
        try:
            return function(value)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan if math.isinf(value) else math.inf

    return np.vectorize(evaluate, otypes=[np.float64])


def digamma(x: float) -> float:
    """The derivative of ln Γ: NaN at 0 and at the negative whole numbers."""
    if x <= 0 and x == math.floor(x):
        return math.nan
    if x < 0:
        return digamma(1 - x) - math.pi / math.tan(math.pi * x)
    shift = 0.0
    while x < 10:
        shift, x = shift - 1 / x, x + 1
    return shift + math.log(x) - 1 / (2 * x) + sum(c / x ** (2 * k) for k, c in enumerate(_ASYMPTOTIC, 1))


def sigmoid(x: Array) -> Array:
    """1 / (1 + e ** -x)."""
    return 1 / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    """x / (1 + e ** (-1.5957691 x - 0.0713548 x³)): the form of CANN's Gelu, with tanh."""
    return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x**3))


def faster_gelu(x: Array) -> Array:
    """x / (1 + e ** (-1.702 x))."""
    return x * sigmoid(1.702 * x)


def power(base: Array, exponent: Array, out: Array) -> None:
    """base ** exponent, of whole numbers modulo 2 ** 32."""
    if out.dtype.kind == "i":
        wide = [int(b) ** int(e) if e >= 0 else int(float(b) ** int(e)) if b else 0
                for b, e in np.broadcast(base, exponent)]  # fmt: skip
        out[...] = np.array([result & 0xFFFFFFFF for result in wide], np.uint32).view(np.int32).reshape(out.shape)
    else:
        exactly(np.power)(base, exponent, out)
