"""The vector instructions as kernels call them: the count form, and the form with a mask and
repeats.

Every function that ends in ``count, repeatTime, repeatParams`` has both forms::

    Add(dst, src0, src1, count)
    Add(dst, src0, src1, mask, repeatTime, repeatParams)

``mask`` is how many elements of each repeat of 256 bytes take part, or two integers whose bits say
which. C prototypes (Sub, Mul, … alike)::

    template <typename T> void Add(const LocalTensor<T>& dst, const LocalTensor<T>& src0,
        const LocalTensor<T>& src1, const int32_t& count)
    template <typename T, bool isSetMask = true> void Add(const LocalTensor<T>& dst,
        const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask | uint64_t mask[],
        const uint8_t repeatTime, const BinaryRepeatParams& repeatParams)

Operands lie in the Unified Buffer and start on a block of 32 bytes. isSetMask=false is not
simulated. All of them raise DeviceFault where a rule is broken, DtypeError for a wrong type.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Union

from lngrad.ascend.device.local_tensor import LocalTensor, caller
from lngrad.ascend.device.operations import CAST_MODES, OPCODES, RoundMode
from lngrad.ascend.device.plan import BITS, COUNT, MASK
from lngrad.ascend.device.repeat_params import (
    BinaryRepeatParams,
    BrcbRepeatParams,
    CopyRepeatParams,
    Mask,
    UnaryRepeatParams,
    params_of,
)
from lngrad.ascend.device.source import Site
from lngrad.ascend.faults import BoundsFault, DeviceFault
from lngrad.errors import DtypeError

MASK_WORD = 1 << 64
ADD, SUB, MUL, DIV, MAX, MIN, ADDS, MULS, MAXS, MINS, SQRT, RSQRT, EXP, ABS, RECIPROCAL, LN, RELU = range(
    17
)  # places in OPERATIONS
Binary = Union[BinaryRepeatParams, Sequence[int], None]  # noqa: UP007  # evaluated, on Python 3.10 too
Unary = Union[UnaryRepeatParams, Sequence[int], None]  # noqa: UP007


class ReduceType(enum.Enum):
    """What ReduceRepeat computes. Only the sum is simulated."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


def _form(api: str, count: Mask, repeatTime: int | None) -> tuple[int, int, int, int]:
    """Return (form, n, high, repeat) of a descriptor."""
    if isinstance(count, Sequence):
        low, high = (*count, 0)[:2] if count else (0, 0)
        if repeatTime is None or len(count) > 2 or not (0 <= low < MASK_WORD and 0 <= high < MASK_WORD):
            raise BoundsFault(f"{api}: a mask of bits is one or two uint64_t with a repeatTime, got {list(count)}")
        # A descriptor has signed words.
        return BITS, low - MASK_WORD * (low >> 63), high - MASK_WORD * (high >> 63), repeatTime
    if repeatTime is None:
        return COUNT, int(count), 0, 0
    return MASK, int(count), 0, repeatTime


def _binary(
    site: Site,
    op: int,
    operands: tuple[LocalTensor, LocalTensor, LocalTensor],
    count: Mask,
    repeatTime: int | None,
    repeatParams: BinaryRepeatParams | Sequence[int] | None,
) -> None:
    dst, a, b = operands
    types = dst.code | a.code << 8 | b.code << 16
    if repeatTime is None and type(count) is int:  # the common case, without a call
        form: tuple[int, ...] = (op, types, 0, count, 0, 0, 1, 1, 1, 8, 8, 8)
    else:
        strides = params_of("repeatParams", BinaryRepeatParams, repeatParams)
        form = (op, types, *_form("mask", count, repeatTime), *strides)
    dst.core.issue(
        site, 0.0, dst.handle, a.handle, b.handle, (*form, dst.start, dst.end, a.start, a.end, b.start, b.end)
    )


def _unary(
    site: Site,
    op: int,
    operands: tuple[LocalTensor, LocalTensor],
    scalar: float,
    count: Mask,
    repeatTime: int | None,
    repeatParams: UnaryRepeatParams | Sequence[int] | None,
) -> None:
    dst, a = operands
    types = dst.code | a.code << 8
    if repeatTime is None and type(count) is int:
        form: tuple[int, ...] = (op, types, 0, count, 0, 0, 1, 1, 1, 8, 8, 8)
    else:
        d, s, dr, sr = params_of("repeatParams", UnaryRepeatParams, repeatParams)
        form = (op, types, *_form("mask", count, repeatTime), d, s, 1, dr, sr, 8)
    dst.core.issue(site, scalar, dst.handle, a.handle, 0, (*form, dst.start, dst.end, a.start, a.end, 0, 0))


def Add(
    dst: LocalTensor,
    src0: LocalTensor,
    src1: LocalTensor,
    count: Mask,
    repeatTime: int | None = None,
    repeatParams: Binary = None,
) -> None:
    """dst = src0 + src1."""
    _binary(caller(), ADD, (dst, src0, src1), count, repeatTime, repeatParams)


def Sub(
    dst: LocalTensor,
    src0: LocalTensor,
    src1: LocalTensor,
    count: Mask,
    repeatTime: int | None = None,
    repeatParams: Binary = None,
) -> None:
    """dst = src0 - src1."""
    _binary(caller(), SUB, (dst, src0, src1), count, repeatTime, repeatParams)


def Mul(
    dst: LocalTensor,
    src0: LocalTensor,
    src1: LocalTensor,
    count: Mask,
    repeatTime: int | None = None,
    repeatParams: Binary = None,
) -> None:
    """dst = src0 * src1."""
    _binary(caller(), MUL, (dst, src0, src1), count, repeatTime, repeatParams)


def Div(
    dst: LocalTensor,
    src0: LocalTensor,
    src1: LocalTensor,
    count: Mask,
    repeatTime: int | None = None,
    repeatParams: Binary = None,
) -> None:
    """dst = src0 / src1."""
    _binary(caller(), DIV, (dst, src0, src1), count, repeatTime, repeatParams)


def Max(
    dst: LocalTensor,
    src0: LocalTensor,
    src1: LocalTensor,
    count: Mask,
    repeatTime: int | None = None,
    repeatParams: Binary = None,
) -> None:
    """dst = max(src0, src1)."""
    _binary(caller(), MAX, (dst, src0, src1), count, repeatTime, repeatParams)


def Min(
    dst: LocalTensor,
    src0: LocalTensor,
    src1: LocalTensor,
    count: Mask,
    repeatTime: int | None = None,
    repeatParams: Binary = None,
) -> None:
    """dst = min(src0, src1)."""
    _binary(caller(), MIN, (dst, src0, src1), count, repeatTime, repeatParams)


def Adds(
    dst: LocalTensor,
    src: LocalTensor,
    scalarValue: float,
    count: Mask,
    repeatTime: int | None = None,
    repeatParams: Unary = None,
) -> None:
    """dst = src + scalarValue, the scalar rounded to T."""
    _unary(caller(), ADDS, (dst, src), scalarValue, count, repeatTime, repeatParams)


def Muls(
    dst: LocalTensor,
    src: LocalTensor,
    scalarValue: float,
    count: Mask,
    repeatTime: int | None = None,
    repeatParams: Unary = None,
) -> None:
    """dst = src * scalarValue, the scalar rounded to T."""
    _unary(caller(), MULS, (dst, src), scalarValue, count, repeatTime, repeatParams)


def Maxs(
    dst: LocalTensor,
    src: LocalTensor,
    scalarValue: float,
    count: Mask,
    repeatTime: int | None = None,
    repeatParams: Unary = None,
) -> None:
    """dst = max(src, scalarValue), the scalar rounded to T."""
    _unary(caller(), MAXS, (dst, src), scalarValue, count, repeatTime, repeatParams)


def Mins(
    dst: LocalTensor,
    src: LocalTensor,
    scalarValue: float,
    count: Mask,
    repeatTime: int | None = None,
    repeatParams: Unary = None,
) -> None:
    """dst = min(src, scalarValue), the scalar rounded to T."""
    _unary(caller(), MINS, (dst, src), scalarValue, count, repeatTime, repeatParams)


def Sqrt(
    dst: LocalTensor, src: LocalTensor, count: Mask, repeatTime: int | None = None, repeatParams: Unary = None
) -> None:
    """dst = sqrt(src)."""
    _unary(caller(), SQRT, (dst, src), 0.0, count, repeatTime, repeatParams)


def Rsqrt(
    dst: LocalTensor, src: LocalTensor, count: Mask, repeatTime: int | None = None, repeatParams: Unary = None
) -> None:
    """dst = 1 / sqrt(src)."""
    _unary(caller(), RSQRT, (dst, src), 0.0, count, repeatTime, repeatParams)


def Exp(
    dst: LocalTensor, src: LocalTensor, count: Mask, repeatTime: int | None = None, repeatParams: Unary = None
) -> None:
    """dst = e ** src."""
    _unary(caller(), EXP, (dst, src), 0.0, count, repeatTime, repeatParams)


def Abs(
    dst: LocalTensor, src: LocalTensor, count: Mask, repeatTime: int | None = None, repeatParams: Unary = None
) -> None:
    """dst = |src|."""
    _unary(caller(), ABS, (dst, src), 0.0, count, repeatTime, repeatParams)


def Reciprocal(
    dst: LocalTensor, src: LocalTensor, count: Mask, repeatTime: int | None = None, repeatParams: Unary = None
) -> None:
    """dst = 1 / src."""
    _unary(caller(), RECIPROCAL, (dst, src), 0.0, count, repeatTime, repeatParams)


def Ln(
    dst: LocalTensor, src: LocalTensor, count: Mask, repeatTime: int | None = None, repeatParams: Unary = None
) -> None:
    """dst = ln(src)."""
    _unary(caller(), LN, (dst, src), 0.0, count, repeatTime, repeatParams)


def Relu(
    dst: LocalTensor, src: LocalTensor, count: Mask, repeatTime: int | None = None, repeatParams: Unary = None
) -> None:
    """dst = max(src, 0)."""
    _unary(caller(), RELU, (dst, src), 0.0, count, repeatTime, repeatParams)


def Duplicate(
    dst: LocalTensor,
    scalarValue: float,
    count: Mask,
    repeatTime: int | None = None,
    dstBlockStride: int = 1,
    dstRepeatStride: int = 8,
) -> None:
    """dst = scalarValue.

    C prototypes::

        void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, const int32_t& count)
        void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, uint64_t mask | uint64_t mask[],
            const uint8_t repeatTime, const uint16_t dstBlockStride, const uint8_t dstRepeatStride)
    """
    form = _form("Duplicate", count, repeatTime)
    strides = (dstBlockStride, 1, 1, dstRepeatStride, 8, 8)
    descriptor = (OPCODES["Duplicate"], dst.code, *form, *strides, dst.start, dst.end, 0, 0, 0, 0)
    dst.core.issue(caller(), scalarValue, dst.handle, 0, 0, descriptor)


def Copy(
    dst: LocalTensor,
    src: LocalTensor,
    count: Mask,
    repeatTime: int | None = None,
    repeatParams: CopyRepeatParams | Sequence[int] | None = None,
) -> None:
    """dst = src, inside the Unified Buffer.

    C prototypes::

        void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count)
        void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask | const uint64_t mask[],
            const uint8_t repeatTime, const CopyRepeatParams& repeatParams)
    """
    if repeatTime is None:
        strides: Sequence[int] = (1, 1, 8, 8)
    else:
        strides = params_of("Copy", CopyRepeatParams, repeatParams)
    _unary(caller(), OPCODES["Copy"], (dst, src), 0.0, count, repeatTime, tuple(strides))


def Cast(
    dst: LocalTensor,
    src: LocalTensor,
    roundMode: RoundMode,
    count: Mask,
    repeatTime: int | None = None,
    repeatParams: Unary = None,
    *,
    saturate: bool = False,
) -> None:
    """Convert between half, float, bfloat16 and int32.

    C prototypes::

        void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode,
            const uint32_t count)
        void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode,
            const uint64_t mask | const uint64_t mask[], const uint8_t repeatTime,
            const UnaryRepeatParams& repeatParams)

    A widening Cast may read from the upper half of its own result; then a repeat is counted in the
    larger type.

    Args:
        dst: The target.
        src: The source, of another type.
        roundMode: Ignored where the target holds every value of the source.
        count: Elements; or the mask.
        repeatTime: Repeats, with a mask.
        repeatParams: Strides, with a mask. Default: without gaps on both sides.
        saturate: Clamp what is too large to the largest finite number instead of infinity. On a
            device a register decides (INFNAN is the documented default); here the caller does.
    """
    if not isinstance(roundMode, RoundMode):
        raise DtypeError(f"Cast: roundMode must be a RoundMode, got {roundMode!r}")
    form = _form("Cast", count, repeatTime)
    if repeatParams is None:
        wide = max(dst.dtype.itemsize, src.dtype.itemsize)
        strides: tuple[int, ...] = (1, 1, 8 * dst.dtype.itemsize // wide, 8 * src.dtype.itemsize // wide)
    else:
        strides = params_of("Cast", UnaryRepeatParams, repeatParams)
    d, s, dr, sr = strides
    places = (dst.start, dst.end, src.start, src.end, CAST_MODES.index(roundMode), int(saturate))
    descriptor = (OPCODES["Cast"], dst.code | src.code << 8, *form, d, s, 1, dr, sr, 8, *places)
    dst.core.issue(caller(), 0.0, dst.handle, src.handle, 0, descriptor)


def Brcb(dst: LocalTensor, src: LocalTensor, repeatTime: int, repeatParams: BrcbRepeatParams | Sequence[int]) -> None:
    """Fill one 32-byte block of dst with each of 8 elements of src, ``repeatTime`` times.

    C prototype::

        void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint8_t repeatTime,
            const BrcbRepeatParams& repeatParams)
    """
    block, repeat = params_of("Brcb", BrcbRepeatParams, repeatParams)
    strides = (block, 1, 1, repeat, 8, 8)
    places = (dst.start, dst.end, src.start, src.end, 0, 0)
    descriptor = (OPCODES["Brcb"], dst.code | src.code << 8, MASK, 0, 0, repeatTime, *strides, *places)
    dst.core.issue(caller(), 0.0, dst.handle, src.handle, 0, descriptor)


def WholeReduceSum(
    dst: LocalTensor,
    src: LocalTensor,
    mask: Mask,
    repeatTime: int,
    dstRepStride: int,
    srcBlkStride: int,
    srcRepStride: int,
) -> None:
    """Sum the masked elements of every repeat of src into one element of dst.

    C prototype::

        void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src,
            const int32_t mask | const uint64_t mask[], const int32_t repeatTime,
            const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride)

    Neighbours are added first, then neighbouring sums. ``dstRepStride`` is in elements, the other
    two in blocks. dst needs the alignment of an element only.
    """
    _whole_reduce(caller(), (dst, src), mask, repeatTime, (dstRepStride, srcBlkStride, srcRepStride))


def ReduceRepeat(
    dst: LocalTensor,
    src: LocalTensor,
    mask: Mask,
    repeatTime: int,
    dstRepStride: int,
    srcBlkStride: int,
    srcRepStride: int,
    reduceType: ReduceType = ReduceType.SUM,
) -> None:
    """WholeReduceSum under its new name.

    C prototype::

        template <ReduceType reduceType, typename T, typename U, bool isSetMask = true>
        void ReduceRepeat(const LocalTensor<T>& dst, const LocalTensor<T>& src,
            const int32_t mask | const uint64_t mask[], const int32_t repeatTime,
            const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride, …)

    CANN: ``reduceType`` is an argument. MAX and MIN are not simulated: DeviceFault.
    """
    if reduceType is not ReduceType.SUM:
        raise DeviceFault(f"ReduceRepeat: {reduceType} is not simulated; SUM is")
    _whole_reduce(caller(), (dst, src), mask, repeatTime, (dstRepStride, srcBlkStride, srcRepStride))


def _whole_reduce(
    site: Site, operands: tuple[LocalTensor, LocalTensor], mask: Mask, repeatTime: int, strides: tuple[int, int, int]
) -> None:
    dst, src = operands
    form = _form("WholeReduceSum", mask, repeatTime)
    all_strides = (1, strides[1], 1, strides[0], strides[2], 8)
    places = (dst.start, dst.end, src.start, src.end, 0, 0)
    descriptor = (OPCODES["WholeReduceSum"], dst.code | src.code << 8, *form, *all_strides, *places)
    dst.core.issue(site, 0.0, dst.handle, src.handle, 0, descriptor)


def ReduceSum(
    dst: LocalTensor,
    src: LocalTensor,
    sharedTmpBuffer: LocalTensor,
    count: Mask,
    repeatTime: int | None = None,
    srcRepStride: int = 8,
) -> None:
    """Sum elements of src into dst[0].

    C prototypes::

        void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src,
            const LocalTensor<T>& sharedTmpBuffer, const int32_t count)
        void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src,
            const LocalTensor<T>& sharedTmpBuffer, const int32_t mask | const uint64_t mask[],
            const int32_t repeatTime, const int32_t srcRepStride)

    The order of the sum is the architecture's (``device.summation``): on A2 the count form adds up
    each 256 bytes as a tree and the partial sums one after another. dst needs the alignment of an
    element only.
    """
    form = _form("ReduceSum", count, repeatTime)
    types = dst.code | src.code << 8
    places = (dst.start, dst.end, src.start, src.end, sharedTmpBuffer.start, sharedTmpBuffer.end)
    descriptor = (OPCODES["ReduceSum"], types, *form, 1, 1, 1, 1, srcRepStride, 8, *places)
    dst.core.issue(caller(), 0.0, dst.handle, src.handle, sharedTmpBuffer.handle, descriptor)
