"""The functions with which kernels call vector instructions; what each computes is its row in `operations`.

Every function that ends in ``count, repeatTime, repeatParams`` has two forms::

    Add(dst, src0, src1, count)
    Add(dst, src0, src1, mask, repeatTime, repeatParams)

``mask`` is how many elements of each repeat of 256 bytes take part, or two integers whose bits say which. C
prototypes (Sub, Mul, … alike)::

    template <typename T> void Add(const LocalTensor<T>& dst, const LocalTensor<T>& src0,
        const LocalTensor<T>& src1, const int32_t& count)
    template <typename T, bool isSetMask = true> void Add(const LocalTensor<T>& dst,
        const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask | uint64_t mask[],
        const uint8_t repeatTime, const BinaryRepeatParams& repeatParams)

Operands lie in the Unified Buffer and start on a block of 32 bytes. isSetMask=false is not simulated. All of them
raise DeviceFault where a rule is broken, DtypeError for a wrong type.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, Union

from lngrad.ascend.device.descriptors import (
    COUNT,
    MASK,
    BinaryRepeatParams,
    BrcbRepeatParams,
    CopyRepeatParams,
    Mask,
    UnaryRepeatParams,
    elements_of,
    params_of,
)
from lngrad.ascend.device.local_tensor import LocalTensor
from lngrad.ascend.device.numerics import CAST_MODES, RoundMode
from lngrad.ascend.device.operations import NUMBERS_OF, OPERATIONS, Operands
from lngrad.ascend.device.running import Site, caller
from lngrad.ascend.faults import DeviceFault
from lngrad.errors import DtypeError

F = TypeVar("F", bound=Callable[..., None])


Binary = Union[BinaryRepeatParams, Sequence[int], None]  # noqa: UP007  # an alias is evaluated, on Python 3.10 too
Unary = Union[UnaryRepeatParams, Sequence[int], None]  # noqa: UP007


class BinaryInstruction(Protocol):
    """An instruction on two tensors, as ``Add``."""

    __name__: str

    def __call__(
        self, dst: LocalTensor, src0: LocalTensor, src1: LocalTensor, count: Mask, repeatTime: int | None = None,
        repeatParams: Binary = None,
    ) -> None: ...  # fmt: skip


class ScalarInstruction(Protocol):
    """An instruction on a tensor and a number, as ``Adds``."""

    __name__: str

    def __call__(
        self, dst: LocalTensor, src: LocalTensor, scalarValue: float, count: Mask, repeatTime: int | None = None,
        repeatParams: Unary = None,
    ) -> None: ...  # fmt: skip


class UnaryInstruction(Protocol):
    """An instruction on one tensor, as ``Sqrt``."""

    __name__: str

    def __call__(
        self, dst: LocalTensor, src: LocalTensor, count: Mask, repeatTime: int | None = None, repeatParams: Unary = None
    ) -> None: ...


def issue_unary(
    site: Site, op: int, dst: LocalTensor, src: LocalTensor, scalar: float, count: Mask, repeatTime: int | None,
    params: Unary,
) -> None:  # fmt: skip
    """Issue an instruction on one tensor, with or without a scalar."""
    if repeatTime is None and type(count) is int:  # the common case, without a call
        form: tuple[int, ...] = (COUNT, count, 0, 0, 1, 1, 1, 8, 8, 8)
    else:
        d, s, dr, sr = params_of("repeatParams", UnaryRepeatParams, params)
        form = (*elements_of("mask", count, repeatTime), d, s, 1, dr, sr, 8)
    descriptor = (op, dst.code | src.code << 8, *form, dst.start, dst.end, src.start, src.end, 0, 0)
    dst.core.issue(site, scalar, dst.handle, src.handle, 0, descriptor)


def _issue_special(
    site: Site, op: int, dst: LocalTensor, src: LocalTensor, form: tuple[int, ...], strides: tuple[int, ...],
    src1: tuple[int, int] = (0, 0), handle1: int = 0,
) -> None:  # fmt: skip
    """Issue an instruction on one tensor that has another meaning of the strides, or a use for src1."""
    places = (dst.start, dst.end, src.start, src.end, *src1)
    descriptor = (op, dst.code | src.code << 8, *form, *strides, *places)
    dst.core.issue(site, 0.0, dst.handle, src.handle, handle1, descriptor)


def _binary(name: str) -> BinaryInstruction:
    op = NUMBERS_OF[name]

    def instruction(
        dst: LocalTensor,
        src0: LocalTensor,
        src1: LocalTensor,
        count: Mask,
        repeatTime: int | None = None,
        repeatParams: Binary = None,
    ) -> None:
        if repeatTime is None and type(count) is int:
            form: tuple[int, ...] = (COUNT, count, 0, 0, 1, 1, 1, 8, 8, 8)
        else:
            strides = params_of("repeatParams", BinaryRepeatParams, repeatParams)
            form = (*elements_of("mask", count, repeatTime), *strides)
        codes = dst.code | src0.code << 8 | src1.code << 16
        descriptor = (op, codes, *form, dst.start, dst.end, src0.start, src0.end, src1.start, src1.end)
        dst.core.issue(caller(), 0.0, dst.handle, src0.handle, src1.handle, descriptor)

    return _documented(instruction, op)


def _scalar(name: str) -> ScalarInstruction:
    op = NUMBERS_OF[name]

    def instruction(
        dst: LocalTensor,
        src: LocalTensor,
        scalarValue: float,
        count: Mask,
        repeatTime: int | None = None,
        repeatParams: Unary = None,
    ) -> None:
        issue_unary(caller(), op, dst, src, scalarValue, count, repeatTime, repeatParams)

    return _documented(instruction, op)


def _unary(name: str) -> UnaryInstruction:
    op = NUMBERS_OF[name]

    def instruction(
        dst: LocalTensor, src: LocalTensor, count: Mask, repeatTime: int | None = None, repeatParams: Unary = None
    ) -> None:
        issue_unary(caller(), op, dst, src, 0.0, count, repeatTime, repeatParams)

    return _documented(instruction, op)


def _documented(function: F, op: int) -> F:
    operation = OPERATIONS[op]
    function.__name__ = function.__qualname__ = operation.name
    tail = ", the scalar rounded to T" if operation.operands is Operands.SCALAR else ""
    function.__doc__ = f"dst = {operation.formula}{tail}."
    return function


Add = _binary("Add")
Add = _binary("Add")
Sub = _binary("Sub")
Mul = _binary("Mul")
Div = _binary("Div")
Max = _binary("Max")
Min = _binary("Min")
Adds = _scalar("Adds")
Muls = _scalar("Muls")
Maxs = _scalar("Maxs")
Mins = _scalar("Mins")
Sqrt = _unary("Sqrt")
Rsqrt = _unary("Rsqrt")
Exp = _unary("Exp")
Abs = _unary("Abs")
Reciprocal = _unary("Reciprocal")
Ln = _unary("Ln")
Relu = _unary("Relu")

# The others have parameters of their own; their functions follow. DataCopy's is in copies.
COPY = NUMBERS_OF["Copy"]
DUPLICATE = NUMBERS_OF["Duplicate"]
CAST = NUMBERS_OF["Cast"]
BRCB = NUMBERS_OF["Brcb"]
WHOLE_REDUCE_SUM = NUMBERS_OF["WholeReduceSum"]
REDUCE_SUM = NUMBERS_OF["ReduceSum"]
DATA_COPY = NUMBERS_OF["DataCopy"]


class ReduceType(enum.Enum):
    """What ReduceRepeat computes. Only the sum is simulated."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


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
    form = elements_of("Duplicate", count, repeatTime)
    strides = (dstBlockStride, 1, 1, dstRepeatStride, 8, 8)
    descriptor = (DUPLICATE, dst.code, *form, *strides, dst.start, dst.end, 0, 0, 0, 0)
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
    strides = (1, 1, 8, 8) if repeatTime is None else params_of("Copy", CopyRepeatParams, repeatParams)
    issue_unary(caller(), COPY, dst, src, 0.0, count, repeatTime, strides)


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

    A widening Cast may read from the upper half of its own result; then a repeat is counted in the larger type.

    Args:
        dst: The target.
        src: The source, of another type.
        roundMode: Ignored where the target holds every value of the source.
        count: Elements; or the mask.
        repeatTime: Repeats, with a mask.
        repeatParams: Strides, with a mask. Default: without gaps on both sides.
        saturate: Clamp what is too large to the largest finite number instead of infinity. On a device a register
            decides (INFNAN is the documented default); here the caller does.
    """
    if not isinstance(roundMode, RoundMode):
        raise DtypeError(f"Cast: roundMode must be a RoundMode, got {roundMode!r}")
    form = elements_of("Cast", count, repeatTime)
    if repeatParams is None:
        wide = max(dst.dtype.itemsize, src.dtype.itemsize)
        strides: tuple[int, ...] = (1, 1, 8 * dst.dtype.itemsize // wide, 8 * src.dtype.itemsize // wide)
    else:
        strides = params_of("Cast", UnaryRepeatParams, repeatParams)
    d, s, dr, sr = strides
    last = (CAST_MODES.index(roundMode), int(saturate))
    _issue_special(caller(), CAST, dst, src, form, (d, s, 1, dr, sr, 8), last)


def Brcb(dst: LocalTensor, src: LocalTensor, repeatTime: int, repeatParams: BrcbRepeatParams | Sequence[int]) -> None:
    """Fill one 32-byte block of dst with each of 8 elements of src, ``repeatTime`` times.

    C prototype::

        void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint8_t repeatTime,
            const BrcbRepeatParams& repeatParams)
    """
    block, repeat = params_of("Brcb", BrcbRepeatParams, repeatParams)
    _issue_special(caller(), BRCB, dst, src, (MASK, 0, 0, repeatTime), (block, 1, 1, repeat, 8, 8))


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

    Neighbours are added first, then neighbouring sums. ``dstRepStride`` is in elements, the other two in blocks. dst
    needs the alignment of an element only.
    """
    form = elements_of("WholeReduceSum", mask, repeatTime)
    strides = (1, srcBlkStride, 1, dstRepStride, srcRepStride, 8)
    _issue_special(caller(), WHOLE_REDUCE_SUM, dst, src, form, strides)


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
    form = elements_of("WholeReduceSum", mask, repeatTime)
    strides = (1, srcBlkStride, 1, dstRepStride, srcRepStride, 8)
    _issue_special(caller(), WHOLE_REDUCE_SUM, dst, src, form, strides)


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

    The order of the sum is the architecture's (``device.numerics``): on A2 the count form adds up each 256 bytes as
    a tree and the partial sums one after another. dst needs the alignment of an element only.
    """
    form = elements_of("ReduceSum", count, repeatTime)
    places = (sharedTmpBuffer.start, sharedTmpBuffer.end)
    strides = (1, 1, 1, 1, srcRepStride, 8)
    _issue_special(caller(), REDUCE_SUM, dst, src, form, strides, places, sharedTmpBuffer.handle)
