"""The vector instructions that the tile APIs are built from, one NumPy call each.

Arithmetic is IEEE in the type of the operands, rounded to nearest even after every instruction, as the vector unit
does it; subnormals are kept. Operands lie in the Unified Buffer, start on a block of 32 bytes, and are the same
memory or none at all of each other. Mask registers are not simulated: every instruction takes its count.
"""

from __future__ import annotations

import enum

import ml_dtypes
import numpy as np

from lngrad.ascend.device.local_tensor import LocalTensor
from lngrad.ascend.faults import BoundsFault, OverlapFault
from lngrad.errors import DtypeError
from lngrad.typing import Array, Dtype

__all__ = [
    "Add",
    "Adds",
    "Brcb",
    "Cast",
    "Div",
    "Duplicate",
    "Mul",
    "Muls",
    "ReduceSum",
    "RoundMode",
    "Sqrt",
    "Sub",
    "WholeReduceSum",
    "pairwise_sum",
    "quiet",
    "refuse_partial_overlap",
    "repeat_sums",
    "round_to",
]

ARITHMETIC = (np.dtype(np.float32), np.dtype(np.float16))
CASTS = (*ARITHMETIC, np.dtype(ml_dtypes.bfloat16))
REPEAT_FLOATS = 64  # 256 bytes a repeat
MAX_REPEATS = 255
BRCB_ROWS = 8

# Infinities and NaN are results on the device, not events.
quiet = np.errstate(all="ignore")


class RoundMode(enum.Enum):
    """How Cast rounds. CAST_NONE rounds as CAST_RINT where the target cannot hold the value."""

    CAST_NONE = "none"
    CAST_RINT = "nearest, ties to even"
    CAST_FLOOR = "towards minus infinity"
    CAST_CEIL = "towards plus infinity"
    CAST_ROUND = "nearest, ties away from zero"
    CAST_TRUNC = "towards zero"
    CAST_ODD = "to odd where inexact"


def _operands(api: str, dst: LocalTensor, sources: dict[str, LocalTensor], count: int) -> tuple[Array, list[Array]]:
    """Check the operands of an elementwise instruction and return their views."""
    for role, src in sources.items():
        if src.dtype != dst.dtype or dst.dtype not in ARITHMETIC:
            raise DtypeError(f"{api}: dst and {role} must both be half or both float, got {dst.dtype} and {src.dtype}")
        refuse_partial_overlap(api, dst, role, src, count)
    views = [src.read(api, role, count) for role, src in sources.items()]
    dst.ub.tally.instructions[api] += 1
    return dst.write(api, "dst", count), views


def refuse_partial_overlap(api: str, dst: LocalTensor, role: str, src: LocalTensor, count: int) -> None:
    """Refuse operands that are shifted against each other: the unit reads some elements before, some after the write.

    Raises:
        OverlapFault: they share some bytes and do not start together.
    """
    distance = abs(dst.start - src.start)
    if distance and dst.ub is src.ub and distance < count * max(dst.dtype.itemsize, src.dtype.itemsize):
        ends = (dst.start + count * dst.dtype.itemsize, src.start + count * src.dtype.itemsize)
        if dst.start < ends[1] and src.start < ends[0]:
            raise OverlapFault(
                f"{api}: dst ({dst.describe()}) and {role} ({src.describe()}) overlap {distance} bytes apart; they "
                f"must be the same memory or none of each other's, count is {count}"
            )


@quiet
def Add(dst: LocalTensor, src0: LocalTensor, src1: LocalTensor, count: int) -> None:
    """dst = src0 + src1. C prototype: ``void Add(dst, src0, src1, const int32_t& count)``."""
    out, (a, b) = _operands("Add", dst, {"src0": src0, "src1": src1}, count)
    np.add(a, b, out=out)


@quiet
def Sub(dst: LocalTensor, src0: LocalTensor, src1: LocalTensor, count: int) -> None:
    """dst = src0 - src1. C prototype: ``void Sub(dst, src0, src1, const int32_t& count)``."""
    out, (a, b) = _operands("Sub", dst, {"src0": src0, "src1": src1}, count)
    np.subtract(a, b, out=out)


@quiet
def Mul(dst: LocalTensor, src0: LocalTensor, src1: LocalTensor, count: int) -> None:
    """dst = src0 * src1. C prototype: ``void Mul(dst, src0, src1, const int32_t& count)``."""
    out, (a, b) = _operands("Mul", dst, {"src0": src0, "src1": src1}, count)
    np.multiply(a, b, out=out)


@quiet
def Div(dst: LocalTensor, src0: LocalTensor, src1: LocalTensor, count: int) -> None:
    """dst = src0 / src1. C prototype: ``void Div(dst, src0, src1, const int32_t& count)``."""
    out, (a, b) = _operands("Div", dst, {"src0": src0, "src1": src1}, count)
    np.divide(a, b, out=out)


@quiet
def Muls(dst: LocalTensor, src: LocalTensor, scalarValue: float, count: int) -> None:
    """dst = src * scalar. C prototype: ``void Muls(dst, src, const T& scalarValue, const int32_t& count)``."""
    out, (a,) = _operands("Muls", dst, {"src": src}, count)
    np.multiply(a, dst.dtype.type(scalarValue), out=out)


@quiet
def Adds(dst: LocalTensor, src: LocalTensor, scalarValue: float, count: int) -> None:
    """dst = src + scalar. C prototype: ``void Adds(dst, src, const T& scalarValue, const int32_t& count)``."""
    out, (a,) = _operands("Adds", dst, {"src": src}, count)
    np.add(a, dst.dtype.type(scalarValue), out=out)


@quiet
def Sqrt(dst: LocalTensor, src: LocalTensor, count: int) -> None:
    """dst = sqrt(src). C prototype: ``void Sqrt(dst, src, const int32_t& count)``."""
    out, (a,) = _operands("Sqrt", dst, {"src": src}, count)
    np.sqrt(a, out=out)


def Duplicate(dst: LocalTensor, scalarValue: float, count: int) -> None:
    """dst = scalar. C prototype: ``void Duplicate(dst, const T& scalarValue, const int32_t& count)``."""
    dst.ub.tally.instructions["Duplicate"] += 1
    dst.write("Duplicate", "dst", count)[:] = scalarValue


def Brcb(dst: LocalTensor, src: LocalTensor, repeatTime: int, dstBlkStride: int, dstRepStride: int) -> None:
    """Fill one 32-byte block of dst with each of 8 elements of src, ``repeatTime`` times.

    C prototype::

        void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint8_t repeatTime,
            const BrcbRepeatParams& repeatParams)

    CANN: the two strides of BrcbRepeatParams, in blocks, are arguments.
    """
    if not 0 <= repeatTime <= MAX_REPEATS:
        raise BoundsFault(f"Brcb: repeatTime is a uint8_t, got {repeatTime}")
    lanes = dst.ub.soc.block_bytes // dst.dtype.itemsize
    values = src.read("Brcb", "src", repeatTime * BRCB_ROWS)
    dst.ub.tally.instructions["Brcb"] += 1
    for index in range(repeatTime * BRCB_ROWS):
        repeat, row = divmod(index, BRCB_ROWS)
        place = (repeat * dstRepStride + row * dstBlkStride) * lanes
        dst[place:].write("Brcb", "dst", lanes)[:] = values[index]


@quiet
def Cast(dst: LocalTensor, src: LocalTensor, roundMode: RoundMode, count: int, *, saturate: bool = False) -> None:
    """Convert between half, float and bfloat16.

    C prototype: ``void Cast(dst, src, const RoundMode& roundMode, const uint32_t count)``

    Args:
        dst: the target.
        src: the source, of another type.
        roundMode: ignored where the target holds every value of the source.
        count: elements.
        saturate: clamp what is too large to the largest finite number instead of infinity. On a device a register
            decides (INFNAN is the documented default); here the caller does.
    """
    if dst.dtype == src.dtype or dst.dtype not in CASTS or src.dtype not in CASTS:
        raise DtypeError(f"Cast: expected two different types of half, float, bfloat16, got {src.dtype} to {dst.dtype}")
    refuse_partial_overlap("Cast", dst, "src", src, count)
    values = src.read("Cast", "src", count)
    rounded = round_to(values, dst.dtype, roundMode)
    if saturate:
        largest = ml_dtypes.finfo(dst.dtype).max
        rounded = np.where(np.isinf(rounded), np.copysign(largest, rounded), rounded)
    dst.ub.tally.instructions["Cast"] += 1
    dst.write("Cast", "dst", count)[:] = rounded


def round_to(values: Array, dtype: Dtype, mode: RoundMode) -> Array:
    """Return ``values`` in ``dtype``, rounded as Cast does."""
    nearest = values.astype(dtype)
    if mode in (RoundMode.CAST_NONE, RoundMode.CAST_RINT) or dtype == np.float32:
        return nearest
    exact, got = values.astype(np.float64), nearest.astype(np.float64)
    wrong = np.isfinite(exact) & (exact != got)
    # The neighbour on the other side of the exact value: ``nearest`` and it are the two candidates of every mode.
    # NumPy's overflow to infinity counts as the neighbour of the largest finite number.
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
        chosen = np.where(lower.view(np.uint16) & 1, lower, upper)
    else:
        tie = np.abs(exact - got) == np.abs(other.astype(np.float64) - exact)
        chosen = np.where(tie, np.where(exact > 0, upper, lower), nearest)
    return np.where(wrong, chosen, nearest).astype(dtype)


def pairwise_sum(values: Array) -> Array:
    """Return the sums over the last axis, adding neighbours and then their sums, as the vector unit does.

    Shapes: (…, n) to (…); n is padded with zeros to a power of two, at most 64 on a device.
    """
    lanes = values.shape[-1]
    width = 1 << (lanes - 1).bit_length()
    if width != lanes:
        values = np.concatenate([values, np.zeros((*values.shape[:-1], width - lanes), values.dtype)], axis=-1)
    while values.shape[-1] > 1:
        values = values[..., 0::2] + values[..., 1::2]
    return values[..., 0]


@quiet
def WholeReduceSum(
    dst: LocalTensor,
    src: LocalTensor,
    mask: int,
    repeatTime: int,
    dstRepStride: int,
    srcBlkStride: int,
    srcRepStride: int,
) -> None:
    """Sum the first ``mask`` elements of every repeat of src into one element of dst.

    C prototype::

        void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,
            const int32_t repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,
            const int32_t srcRepStride)

    Neighbours are added first, then neighbouring sums. ``dstRepStride`` is in elements, the other two in blocks.
    """
    lanes = src.ub.soc.block_bytes // src.dtype.itemsize
    if not 1 <= mask <= 8 * lanes or not 0 <= repeatTime <= MAX_REPEATS:
        raise BoundsFault(
            f"WholeReduceSum: mask must be 1 to {8 * lanes} and repeatTime 0 to {MAX_REPEATS}, "
            f"got {mask} and {repeatTime}"
        )
    src.ub.tally.instructions["WholeReduceSum"] += 1
    lane = np.arange(mask)
    places = lane // lanes * srcBlkStride * lanes + lane % lanes
    for repeat in range(repeatTime):
        window = src[repeat * srcRepStride * lanes :]
        total = pairwise_sum(window.read("WholeReduceSum", "src", int(places[-1]) + 1)[places])
        dst[repeat * dstRepStride :].write("WholeReduceSum", "dst", 1, aligned=False)[0] = total


@quiet
def ReduceSum(dst: LocalTensor, src: LocalTensor, sharedTmpBuffer: LocalTensor, count: int) -> None:
    """Sum ``count`` elements into dst[0]: repeats first, then the partial sums in the same way.

    C prototype: ``void ReduceSum(dst, src, sharedTmpBuffer, const int32_t count)``
    """
    values = src.read("ReduceSum", "src", count)
    lanes = 256 // src.dtype.itemsize
    sharedTmpBuffer.write("ReduceSum", "sharedTmpBuffer", -(-count // lanes))[:] = _partials(values[None], lanes)[0]
    src.ub.tally.instructions["ReduceSum"] += 1
    dst.write("ReduceSum", "dst", 1)[0] = repeat_sums(values[None], lanes)[0]


def _partials(rows: Array, lanes: int) -> Array:
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
        rows = _partials(rows, lanes)
    return rows[:, 0]
