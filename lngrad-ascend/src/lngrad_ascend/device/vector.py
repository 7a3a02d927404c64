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
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, ParamSpec, Union, cast

from lngrad.errors import DtypeError
from lngrad_ascend.device.descriptors import (
    COUNT,
    BinaryRepeatParams,
    BrcbRepeatParams,
    CopyRepeatParams,
    Mask,
    UnaryRepeatParams,
    elements_of,
    params_of,
)
from lngrad_ascend.device.local_tensor import LocalTensor
from lngrad_ascend.device.numerics import CAST_MODES, RoundMode
from lngrad_ascend.device.operations import NUMBERS_OF, OPERATIONS, Operands
from lngrad_ascend.device.report import Site, caller

P = ParamSpec("P")
Binary = Union[BinaryRepeatParams, Sequence[int], None]  # noqa: UP007  # an alias is evaluated, on Python 3.10 too
Unary = Union[UnaryRepeatParams, Sequence[int], None]  # noqa: UP007


class CMPMODE(enum.IntEnum):
    """The comparisons of Compare."""

    LT, GT, EQ, LE, GE, NE = range(6)


class SELMODE(enum.IntEnum):
    """The bits by which Select chooses: the same for every repeat, or one for each element."""

    VSEL_CMPMASK_SPR, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE = range(3)


class ReduceOrder(enum.IntEnum):
    """The results of a maximum or a minimum of a repeat."""

    ORDER_VALUE_INDEX, ORDER_INDEX_VALUE, ORDER_ONLY_VALUE, ORDER_ONLY_INDEX = range(4)


class ReduceType(enum.Enum):
    """The computations of ReduceRepeat."""

    SUM = "WholeReduceSum"
    MAX = "WholeReduceMax"
    MIN = "WholeReduceMin"


def issue_unary(
    op: int, dst: LocalTensor, src: LocalTensor, scalar: float, count: Mask, repeatTime: int | None, params: Unary,
    site: Site | None = None,
) -> None:  # fmt: skip
    """Issue an instruction on one tensor, with or without a scalar, for the caller of the calling function."""
    if repeatTime is None and type(count) is int:  # the common case, without a call
        form: tuple[int, ...] = (COUNT, count, 0, 0, 1, 1, 1, 8, 8, 8)
    else:
        d, s, dr, sr = params_of("repeatParams", UnaryRepeatParams, params)
        form = (*elements_of("mask", count, repeatTime), d, s, 1, dr, sr, 8)
    descriptor = (op, dst.code | src.code << 8, *form, dst.start, dst.end, src.start, src.end, 0, 0, 0, 0, 0)
    dst.core.issue(site or caller(3), scalar, dst.handle, src.handle, 0, descriptor)


def _issue(
    name: str, count: Mask, repeatTime: int | None, strides: tuple[int, ...], extra: int, dst: LocalTensor,
    *sources: LocalTensor, scalar: float = 0.0, api: str = "",
) -> None:  # fmt: skip
    """Issue an instruction that has another meaning of the strides, a use for ``extra``, or up to three sources."""
    op, codes, places, handles = NUMBERS_OF[name], dst.code, [], [0, 0, 0]
    form = elements_of(api or name, count, repeatTime)
    for number, source in enumerate(sources):
        codes |= source.code << 8 * (number + 1)
        places += [source.start, source.end]
        handles[number] = source.handle
    places += [0] * (6 - len(places))
    descriptor = (op, codes, *form, *strides, dst.start, dst.end, *places[:4], extra, *places[4:])
    dst.core.issue(caller(3), scalar, dst.handle, handles[0], handles[1], descriptor, handles[2])


def _form(template: Callable[P, None]) -> Callable[[str], Callable[P, None]]:
    """Make a factory of the instructions of one form: functions with a template's code and a name and number of their own."""
    parameters = inspect.signature(template)
    shown = parameters.replace(
        parameters=[parameter for parameter in parameters.parameters.values() if parameter.name != "op"]
    )

    def instruction(name: str) -> Callable[P, None]:
        operation = OPERATIONS[NUMBERS_OF[name]]
        function: Any = FunctionType(template.__code__, template.__globals__, name, template.__defaults__)
        function.__kwdefaults__ = {"op": NUMBERS_OF[name]}
        function.__qualname__, function.__module__, function.__signature__ = name, __name__, shown
        tail = ", the scalar rounded to T" if operation.operands is Operands.SCALAR else ""
        function.__doc__ = f"dst = {operation.formula}{tail}."
        return cast(Callable[P, None], function)

    return instruction


@_form
def _binary(
    dst: LocalTensor, src0: LocalTensor, src1: LocalTensor, count: Mask, repeatTime: int | None = None,
    repeatParams: Binary = None, *, op: int = 0,
) -> None:  # fmt: skip
    if repeatTime is None and type(count) is int:
        form: tuple[int, ...] = (COUNT, count, 0, 0, 1, 1, 1, 8, 8, 8)
    else:
        strides = params_of("repeatParams", BinaryRepeatParams, repeatParams)
        form = (*elements_of("mask", count, repeatTime), *strides)
    codes = dst.code | src0.code << 8 | src1.code << 16
    places = (dst.start, dst.end, src0.start, src0.end, src1.start, src1.end)
    handles = dst.handle, src0.handle, src1.handle
    dst.core.issue(caller(), 0.0, *handles, (op, codes, *form, *places, 0, 0, 0))


@_form
def _scalar(
    dst: LocalTensor, src: LocalTensor, scalarValue: float, count: Mask, repeatTime: int | None = None,
    repeatParams: Unary = None, *, op: int = 0,
) -> None:  # fmt: skip
    issue_unary(op, dst, src, scalarValue, count, repeatTime, repeatParams)


@_form
def _unary(
    dst: LocalTensor, src: LocalTensor, count: Mask, repeatTime: int | None = None, repeatParams: Unary = None, *,
    op: int = 0,
) -> None:  # fmt: skip
    issue_unary(op, dst, src, 0.0, count, repeatTime, repeatParams)


@_form
def _repeat_reduction(
    dst: LocalTensor, src: LocalTensor, mask: Mask, repeatTime: int, dstRepStride: int, srcBlkStride: int,
    srcRepStride: int, order: ReduceOrder = ReduceOrder.ORDER_VALUE_INDEX, *, op: int = 0,
) -> None:  # fmt: skip
    strides = (1, srcBlkStride, 1, dstRepStride, srcRepStride, 8)
    _issue(OPERATIONS[op].name, mask, repeatTime, strides, int(order), dst, src)


@_form
def _block_reduction(
    dst: LocalTensor, src: LocalTensor, repeatTime: int, mask: Mask, dstRepStride: int, srcBlkStride: int,
    srcRepStride: int, *, op: int = 0,
) -> None:  # fmt: skip
    strides = (1, srcBlkStride, 1, dstRepStride, srcRepStride, 8)
    _issue(OPERATIONS[op].name, mask, repeatTime, strides, 0, dst, src)


def mathematical(
    name: str, dst: LocalTensor, *operands: LocalTensor | float, count: int, sharedTmpBuffer: LocalTensor | None = None
) -> None:
    """Issue a library function: a row of the table with the sources and then the scalar, as Tanh or Swish."""
    sources = [operand for operand in operands if isinstance(operand, LocalTensor)]
    (scalar,) = [float(operand) for operand in operands if not isinstance(operand, LocalTensor)] or [0.0]
    buffers = [*sources, *([dst] * (2 - len(sources))), *([sharedTmpBuffer] if sharedTmpBuffer else [])]
    _issue(name, count, None, _PACKED, 0, dst, *buffers, scalar=scalar)


_PACKED = (1, 1, 1, 8, 8, 8)  # strides without gaps


# One a line: the reference reads the source, and sees no names in a tuple.
Add = _binary("Add")
Sub = _binary("Sub")
Mul = _binary("Mul")
Div = _binary("Div")
Max = _binary("Max")
Min = _binary("Min")
And = _binary("And")
Or = _binary("Or")
AddRelu = _binary("AddRelu")
SubRelu = _binary("SubRelu")
AbsSub = _binary("AbsSub")
AddReluCast = _binary("AddReluCast")
SubReluCast = _binary("SubReluCast")
MulCast = _binary("MulCast")
MulAddDst = _binary("MulAddDst")
FusedMulAdd = _binary("FusedMulAdd")
MulAddRelu = _binary("MulAddRelu")
Adds = _scalar("Adds")
Muls = _scalar("Muls")
Maxs = _scalar("Maxs")
Mins = _scalar("Mins")
Axpy = _scalar("Axpy")
LeakyRelu = _scalar("LeakyRelu")
ShiftLeft = _scalar("ShiftLeft")
ShiftRight = _scalar("ShiftRight")
Sqrt = _unary("Sqrt")
Rsqrt = _unary("Rsqrt")
Exp = _unary("Exp")
Abs = _unary("Abs")
Reciprocal = _unary("Reciprocal")
Ln = _unary("Ln")
Relu = _unary("Relu")
Not = _unary("Not")
Neg = _unary("Neg")

# The others have parameters of their own. DataCopy's function is in copies.
DUPLICATE, DATA_COPY = NUMBERS_OF["Duplicate"], NUMBERS_OF["DataCopy"]


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
    strides = (dstBlockStride, 1, 1, dstRepeatStride, 8, 8)
    _issue("Duplicate", count, repeatTime, strides, 0, dst, scalar=scalarValue)


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
    issue_unary(NUMBERS_OF["Copy"], dst, src, 0.0, count, repeatTime, strides)


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
    """Convert to another type.

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
    if repeatParams is None:
        wide = max(dst.dtype.itemsize, src.dtype.itemsize)
        strides: tuple[int, ...] = (1, 1, 8 * dst.dtype.itemsize // wide, 8 * src.dtype.itemsize // wide)
    else:
        strides = params_of("Cast", UnaryRepeatParams, repeatParams)
    d, s, dr, sr = strides
    extra = CAST_MODES.index(roundMode) + 256 * saturate
    _issue("Cast", count, repeatTime, (d, s, 1, dr, sr, 8), extra, dst, src)


def Brcb(dst: LocalTensor, src: LocalTensor, repeatTime: int, repeatParams: BrcbRepeatParams | Sequence[int]) -> None:
    """Fill one 32-byte block of dst with each of 8 elements of src, ``repeatTime`` times.

    C prototype::

        void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint8_t repeatTime,
            const BrcbRepeatParams& repeatParams)
    """
    block, repeat = params_of("Brcb", BrcbRepeatParams, repeatParams)
    strides = (block, 1, 1, repeat, 8, 8)
    _issue("Brcb", 0, repeatTime, strides, 0, dst, src)


def CreateVecIndex(dst: LocalTensor, firstValue: float, count: int) -> None:
    """dst = firstValue, firstValue + 1, ….

    C prototype: ``void CreateVecIndex(LocalTensor<T> dst, const T& firstValue, uint32_t count)``
    """
    _issue("CreateVecIndex", count, None, _PACKED, 0, dst, scalar=firstValue)


def Compare(
    dst: LocalTensor,
    src0: LocalTensor,
    src1: LocalTensor,
    cmpMode: CMPMODE,
    count: Mask,
    repeatTime: int | None = None,
    repeatParams: Binary = None,
) -> None:
    """Set a bit of dst for each element of src0 that compares with src1, lowest bit first.

    C prototypes::

        void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,
            CMPMODE cmpMode, uint32_t count)
        void Compare(…, CMPMODE cmpMode, const uint64_t mask | const uint64_t mask[], uint8_t repeatTime,
            const BinaryRepeatParams& repeatParams)
    """
    strides = params_of("Compare", BinaryRepeatParams, repeatParams)
    _issue("Compare", count, repeatTime, strides, int(cmpMode), dst, src0, src1)


def CompareScalar(
    dst: LocalTensor,
    src0: LocalTensor,
    src1Scalar: float,
    cmpMode: CMPMODE,
    count: Mask,
    repeatTime: int | None = None,
    repeatParams: Unary = None,
) -> None:
    """`Compare` with a scalar; its newer name is Compares."""
    d, s, dr, sr = params_of("CompareScalar", UnaryRepeatParams, repeatParams)
    _issue("CompareScalar", count, repeatTime, (d, s, 1, dr, sr, 8), int(cmpMode), dst, src0, scalar=src1Scalar)


def Select(
    dst: LocalTensor,
    selMask: LocalTensor,
    src0: LocalTensor,
    src1: LocalTensor | float,
    selMode: SELMODE,
    count: Mask,
    repeatTime: int | None = None,
    repeatParams: Binary = None,
) -> None:
    """dst = src0 where selMask has a bit, else src1 (a tensor or a scalar).

    C prototypes::

        void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            const LocalTensor<T>& src1 | T src1, SELMODE selMode, uint32_t count)
        void Select(…, SELMODE selMode, uint64_t mask | uint64_t mask[], uint8_t repeatTime,
            const BinaryRepeatParams& repeatParams)
    """
    strides = params_of("Select", BinaryRepeatParams, repeatParams)
    if isinstance(src1, LocalTensor):
        _issue("Select", count, repeatTime, strides, int(selMode), dst, selMask, src0, src1)
    else:
        _issue("SelectScalar", count, repeatTime, strides, int(selMode), dst, selMask, src0, scalar=src1, api="Select")


def Gather(
    dst: LocalTensor,
    src: LocalTensor,
    srcOffset: LocalTensor,
    srcBaseOffset: int,
    count: Mask,
    repeatTime: int | None = None,
    dstRepStride: int = 8,
) -> None:
    """dst[i] = the element of src that begins srcBaseOffset + srcOffset[i] bytes from its start.

    C prototypes::

        void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& srcOffset,
            const uint32_t srcBaseOffset, const uint32_t count)
        void Gather(…, const uint64_t mask | const uint64_t mask[], const uint8_t repeatTime,
            const uint16_t dstRepStride)
    """
    strides = (1, 1, 1, dstRepStride, 8, 8)
    _issue("Gather", count, repeatTime, strides, srcBaseOffset, dst, src, srcOffset)


# Neighbours are added first, then neighbouring sums. dstRepStride is in results of a repeat, the other two in blocks.
WholeReduceSum = _repeat_reduction("WholeReduceSum")
WholeReduceMax = _repeat_reduction("WholeReduceMax")
WholeReduceMin = _repeat_reduction("WholeReduceMin")
BlockReduceSum = _block_reduction("BlockReduceSum")
BlockReduceMax = _block_reduction("BlockReduceMax")
BlockReduceMin = _block_reduction("BlockReduceMin")
PairReduceSum = _block_reduction("PairReduceSum")


def ReduceRepeat(
    dst: LocalTensor,
    src: LocalTensor,
    mask: Mask,
    repeatTime: int,
    dstRepStride: int,
    srcBlkStride: int,
    srcRepStride: int,
    reduceType: ReduceType = ReduceType.SUM,
    order: ReduceOrder = ReduceOrder.ORDER_VALUE_INDEX,
) -> None:
    """WholeReduceSum, WholeReduceMax and WholeReduceMin under their new name.

    C prototype::

        template <ReduceType reduceType, typename T, typename U, bool isSetMask = true>
        void ReduceRepeat(const LocalTensor<T>& dst, const LocalTensor<T>& src,
            const int32_t mask | const uint64_t mask[], const int32_t repeatTime,
            const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride, ReduceOrder order)

    CANN: ``reduceType`` is an argument.
    """
    strides = (1, srcBlkStride, 1, dstRepStride, srcRepStride, 8)
    _issue(reduceType.value, mask, repeatTime, strides, int(order), dst, src, api="ReduceRepeat")


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
    strides = (1, 1, 1, 1, srcRepStride, 8)
    _issue("ReduceSum", count, repeatTime, strides, 0, dst, src, sharedTmpBuffer)


@_form
def _extreme(
    dst: LocalTensor, src: LocalTensor, sharedTmpBuffer: LocalTensor, count: Mask, repeatTime: int | None = None,
    srcRepStride: int = 8, calIndex: bool = False, *, op: int = 0,
) -> None:  # fmt: skip
    strides = (1, 1, 1, 1, srcRepStride, 8)
    _issue(OPERATIONS[op].name, count, repeatTime, strides, int(calIndex), dst, src, sharedTmpBuffer)


# The prototypes are those of ReduceSum, with ``bool calIndex = 0`` at the end: then dst[1] is its place, in the bits of T.
ReduceMax = _extreme("ReduceMax")
ReduceMin = _extreme("ReduceMin")
