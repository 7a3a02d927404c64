"""aclTensor: a strided view of memory that C programs describe, and hand to the aclnn functions; its element types."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntEnum
from operator import index
from typing import NamedTuple, TypeVar

import numpy as np

from lngrad.support.addresses import address_of
from lngrad.support.dtypes import contiguous_strides, numpy_dtype
from lngrad.typing import Address, Array, Dtype, Shape
from lngrad_ascend.acl.enums import aclDataType, aclFormat, aclnnStatus
from lngrad_ascend.acl.interface import (
    Handle,
    check_handle,
    destroy,
    invalid_argument,
    named,
    returns_aclnnStatus,
    returns_pointer,
    returns_value,
)
from lngrad_ascend.acl.memory import Block, region_of

# Types without an entry (strings, 4 and 6 bits, the 8-bit floats) make tensors that every interface refuses.
_SAME_NAMES = "FLOAT16 DOUBLE INT8 UINT8 INT16 UINT16 INT32 UINT32 INT64 UINT64 BOOL COMPLEX64 COMPLEX128"
NUMPY_DTYPES: dict[aclDataType, Dtype] = {
    aclDataType.ACL_FLOAT: np.dtype(np.float32),
    aclDataType.ACL_BF16: numpy_dtype("bfloat16"),
    **{aclDataType["ACL_" + name]: np.dtype(name.lower()) for name in _SAME_NAMES.split()},
}

_BYTES = {kind: dtype.itemsize for kind, dtype in NUMPY_DTYPES.items()}
_BYTES |= {kind: 1 for kind in aclDataType if "FLOAT8" in kind.name} | {aclDataType.ACL_COMPLEX32: 4}


def aclDataTypeSize(dataType: int) -> int:
    """Return the bytes of one element; 0 for an unknown type, a string, and types below a byte."""
    return _BYTES.get(dataType, 0) if isinstance(dataType, int) else 0  # type: ignore[call-overload,no-any-return]


def aclFloat16ToFloat(value: int) -> float:
    """Return the number that 16 bits stand for; NaN for anything that is not 16 bits."""
    if type(value) is not int or not 0 <= value < 1 << 16:
        return float("nan")
    return float(np.uint16(value).view(np.float16))


def aclFloatToFloat16(value: float) -> int:
    """Return the 16 bits of the nearest float16, ties to even; those of NaN for what is no number."""
    try:
        number = float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:  # an integer beyond every float
        number = math.inf if value > 0 else -math.inf
    with np.errstate(over="ignore"):
        return int(np.float32(number).astype(np.float16).view(np.uint16))


# What every NumPy can describe; lower limits are checked by those who have them. Empty dimensions count as 1.
MAX_DIMS, MAX_ELEMENTS = 32, 1 << 59
DATA_ALIGNMENT = 32  # of device addresses, as documented; host buffers need their element's alignment only

Enumeration = TypeVar("Enumeration", bound=IntEnum)
Got = TypeVar("Got")


class TensorFacts(NamedTuple):
    """A tensor as the checks and the plan see it. Strides in elements."""

    dtype: aclDataType
    shape: Shape
    strides: Shape


class View(NamedTuple):
    """A tensor's elements.

    Attributes:
        array: They, as an array that looks at them.
        block: The device's block that they lie in; None in host memory.
        place: The address of the first, and whether they may be written: with the facts, all that memory is checked by.
    """

    array: Array
    block: Block | None
    place: tuple[Address, bool]


class aclTensor(Handle):
    """A strided view of a storage. Made by aclCreateTensor.

    Attributes:
        facts: The view's dtype, shape and strides; a new object whenever the tensor is initialised anew.
        offset: The view's first element, counted in elements from the storage's first.
        format: As given; only ND is computed.
        storage_dims: The storage's shape; its product is how many elements there are.
        data: The storage's address or buffer as given, None for a null pointer.
        view: The elements; None for a null pointer, and for element types that NumPy has not.
    """

    __slots__ = ("data", "facts", "format", "offset", "storage_dims", "view")

    @property
    def array(self) -> Array | None:
        """The elements as an array that looks at them; None where there are none to look at."""
        return None if self.view is None else self.view.array

    def describe(
        self,
        viewDims: object,
        dataType: object,
        strides: object,
        offset: object,
        format: object,
        storageDims: object,
        data: object,
    ) -> aclTensor:
        """Take what aclCreateTensor is given, or raise StatusError; then everything is as before."""
        shape = _sizes("viewDims", viewDims)
        steps = contiguous_strides(shape) if strides is None else _sizes("strides", strides)
        if len(steps) != len(shape):
            raise invalid_argument(
                f"strides: expected {len(shape)} of them, one per dimension of the view, got {len(steps)}"
            )
        facts = TensorFacts(enumerator("dataType", aclDataType, dataType), shape, steps)
        (start,) = _sizes("offset", (offset,))
        layout, dims = enumerator("format", aclFormat, format), _sizes("storageDims", storageDims)
        _check_extent(facts, start, dims)
        self.view = _view("data", data, facts, start, dims)
        self.facts, self.offset, self.format, self.storage_dims, self.data = facts, start, layout, dims, data
        return self

    def view_of(self, name: str, data: object) -> View | None:
        """The view laid over another storage. Raises StatusError if that is too small or misaligned."""
        return _view(name, data, self.facts, self.offset, self.storage_dims)

    def attach(self, name: str, data: object) -> None:
        """Lay the tensor's view over another storage; None takes it away. Raises as view_of."""
        self.view = self.view_of(name, data)
        self.data = data


def _check_extent(facts: TensorFacts, offset: int, storage_dims: Shape) -> None:
    extent, stored = 0, math.prod(storage_dims)
    if 0 not in facts.shape:  # one more than the highest element that the view touches
        steps = zip(facts.shape, facts.strides, strict=True)
        extent = offset + 1 + sum((size - 1) * stride for size, stride in steps)
    if extent > stored:
        raise invalid_argument(
            f"viewDims: expected a view inside the storage {storage_dims} of {stored} elements, "
            f"got {facts.shape} with strides {facts.strides} and offset {offset}, which reaches to {extent}"
        )
    if len(facts.shape) > MAX_DIMS or math.prod(size or 1 for size in facts.shape) >= MAX_ELEMENTS:
        raise invalid_argument(f"viewDims: expected at most {MAX_DIMS} dimensions and 2^59 elements, got {facts.shape}")


def _view(name: str, data: object, facts: TensorFacts, offset: int, storage_dims: Shape) -> View | None:
    dtype = NUMPY_DTYPES.get(facts.dtype)
    region = None if data is None else region_of(name, data)
    if dtype is None:
        return None
    if region is not None:
        needed = math.prod(storage_dims) * dtype.itemsize
        if region.memory.nbytes < needed:
            raise invalid_argument(
                f"{name}: expected at least {needed} bytes for {facts.dtype.name} {storage_dims}, "
                f"got {region.memory.nbytes}"
            )
        alignment = min(dtype.itemsize, 8) if region.block is None else DATA_ALIGNMENT
        address = region.memory.ctypes.data if region.block is None else data
        if address % alignment:  # type: ignore[operator]  # a region with a block was found by a number
            raise invalid_argument(f"{name}: expected an address that is a multiple of {alignment}, got {address:#x}")
    if 0 in facts.shape:  # needs no memory
        array = np.empty(facts.shape, dtype)
    elif region is None:
        return None
    else:
        strides = tuple(stride * dtype.itemsize for stride in facts.strides)
        array = np.ndarray(facts.shape, dtype, region.memory, offset * dtype.itemsize, strides)
    return View(array, region and region.block, (address_of(array), array.flags.writeable))


@returns_pointer
def aclCreateTensor(
    viewDims: Sequence[int],
    dataType: int,
    strides: Sequence[int] | None,
    offset: int,
    format: int,
    storageDims: Sequence[int],
    data: object,
) -> aclTensor:
    """Create a tensor: a view of a storage. Returns it, or None as C returns a null pointer.

    Args:
        viewDims: The view's shape.
        dataType: Of aclDataType.
        strides: The view's steps in elements, not negative; None for contiguous.
        offset: The view's first element, in elements from the storage's first.
        format: Of aclFormat.
        storageDims: The storage's shape.
        data: A device address (a multiple of 32), or a contiguous host buffer: NumPy, torch on the CPU, anything
            with the buffer protocol. Its bytes are taken as dataType, as in C. None: set later.

    CANN: no bounds are checked; here a view that reaches past its storage, or a storage past its memory, is
    refused.
    """
    return aclTensor().describe(viewDims, dataType, strides, offset, format, storageDims, data)


@returns_aclnnStatus
def aclInitTensor(
    tensor: aclTensor,
    viewDims: Sequence[int],
    dataType: int,
    strides: Sequence[int] | None,
    offset: int,
    format: int,
    storageDims: Sequence[int],
    data: object,
) -> None:
    """Describe an existing tensor anew, as aclCreateTensor; after a failure it is as before."""
    _living(tensor).describe(viewDims, dataType, strides, offset, format, storageDims, data)


@returns_aclnnStatus
def aclDestroyTensor(tensor: aclTensor | None) -> None:
    """Destroy a tensor, not its memory. A null pointer is fine, a second time is not."""
    destroy(tensor, aclTensor, "tensor")


def _sizes(name: str, values: object) -> Shape:
    """A copy of integers that are not negative."""
    if values is None:
        raise invalid_argument(f"{name}: expected a sequence of integers, got a null pointer")
    try:
        sizes = tuple(index(value) for value in values)  # type: ignore[attr-defined]  # or TypeError
    except TypeError as reason:
        raise invalid_argument(f"{name}: expected integers: {reason}") from None
    if any(not 0 <= value < 2**63 for value in sizes):
        raise invalid_argument(f"{name}: expected 64-bit integers that are not negative, got {sizes}")
    return sizes


def enumerator(name: str, kind: type[Enumeration], value: object) -> Enumeration:
    """The enumerator with a number. Raises StatusError where there is none."""
    try:
        return kind(value)  # type: ignore[arg-type]  # whatever it is
    except ValueError:
        raise invalid_argument(f"{name}: expected one of {kind.__name__}, got {value!r}") from None


def _living(tensor: object) -> aclTensor:
    return check_handle(tensor, aclTensor, "tensor")


def _getter(
    name: str, otherwise: Got, of: Callable[[aclTensor], Got], text: str
) -> Callable[[aclTensor], tuple[Got, aclnnStatus]]:
    """The interface of this name, which returns (what `of` gives, or `otherwise` after an error; ret)."""

    @returns_value(aclnnStatus, otherwise)
    def call(tensor: aclTensor) -> Got:
        return of(_living(tensor))

    return named(call, name, f"Return ({text}, ret).")


_NO_SIZES: Shape = ()
aclGetViewShape = _getter("aclGetViewShape", _NO_SIZES, lambda tensor: tensor.facts.shape, "viewDims")
aclGetStorageShape = _getter("aclGetStorageShape", _NO_SIZES, lambda tensor: tensor.storage_dims, "storageDims")
aclGetViewStrides = _getter("aclGetViewStrides", _NO_SIZES, lambda tensor: tensor.facts.strides, "strides in elements")
aclGetViewOffset = _getter("aclGetViewOffset", 0, lambda tensor: tensor.offset, "offset in elements")
aclGetFormat = _getter("aclGetFormat", aclFormat.ACL_FORMAT_UNDEFINED, lambda tensor: tensor.format, "format")
aclGetDataType = _getter("aclGetDataType", aclDataType.ACL_DT_UNDEFINED, lambda tensor: tensor.facts.dtype, "dataType")
aclGetRawTensorAddr = _getter(
    "aclGetRawTensorAddr", None, lambda tensor: tensor.data, "the storage's address or buffer as given"
)


@returns_aclnnStatus
def aclSetRawTensorAddr(tensor: aclTensor, addr: object) -> None:
    """Lay the tensor's view over another storage of the same shape; None takes it away."""
    _living(tensor).attach("addr", addr)
