"""aclTensor, aclIntArray, aclBoolArray: arguments of aclnn functions, as handles that know when they are destroyed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from lngrad.ascend.acl.codes import aclDataType, aclFormat, aclnnStatus
from lngrad.ascend.acl.errors import Refused, report
from lngrad.ascend.acl.memory import Region, region_of

__all__ = [
    "DTYPES",
    "TensorFacts",
    "aclBoolArray",
    "aclCreateBoolArray",
    "aclCreateIntArray",
    "aclCreateTensor",
    "aclDestroyBoolArray",
    "aclDestroyIntArray",
    "aclDestroyTensor",
    "aclInitTensor",
    "aclIntArray",
    "aclTensor",
    "asked",
    "contiguous_strides",
    "living",
    "reported",
]

# The NumPy dtype of each type; those without one (strings, 4-bit integers) make tensors that can only be refused.
DTYPES: dict[aclDataType, np.dtype[Any]] = {
    aclDataType.ACL_FLOAT: np.dtype(np.float32),
    aclDataType.ACL_FLOAT16: np.dtype(np.float16),
    aclDataType.ACL_INT8: np.dtype(np.int8),
    aclDataType.ACL_INT32: np.dtype(np.int32),
    aclDataType.ACL_UINT8: np.dtype(np.uint8),
    aclDataType.ACL_INT16: np.dtype(np.int16),
    aclDataType.ACL_UINT16: np.dtype(np.uint16),
    aclDataType.ACL_UINT32: np.dtype(np.uint32),
    aclDataType.ACL_INT64: np.dtype(np.int64),
    aclDataType.ACL_UINT64: np.dtype(np.uint64),
    aclDataType.ACL_DOUBLE: np.dtype(np.float64),
    aclDataType.ACL_BOOL: np.dtype(np.bool_),
    aclDataType.ACL_COMPLEX64: np.dtype(np.complex64),
    aclDataType.ACL_COMPLEX128: np.dtype(np.complex128),
    aclDataType.ACL_BF16: np.dtype(ml_dtypes.bfloat16),
}

# What every NumPy can describe; interfaces with a lower limit check it themselves. Empty dimensions count as 1.
MOST_DIMS, MOST_ELEMENTS = 32, 1 << 59
DATA_ALIGNMENT = 32  # of device addresses, as documented; host buffers need their element's alignment only


class TensorFacts(NamedTuple):
    """What the checks and the plan need to know of a tensor. Strides in elements."""

    dtype: aclDataType
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class aclTensor:
    """A strided view of a storage. Made by aclCreateTensor.

    Attributes:
        facts: the view's dtype, shape and strides; a new object whenever the tensor is initialised anew.
        offset: the view's first element, counted in elements from the storage's first.
        format: as given; only ND is computed.
        storage_dims: the storage's shape; its product is how many elements there are.
        data: the storage's address or buffer as given, None for a null pointer.
        alive: False once destroyed.
    """

    __slots__ = ("_region", "alive", "array", "data", "facts", "format", "offset", "storage_dims")

    facts: TensorFacts
    offset: int
    format: aclFormat
    storage_dims: tuple[int, ...]
    data: Any
    array: Any
    _region: Region | None

    def __init__(self) -> None:
        self.alive = True

    def describe(self, facts: TensorFacts, offset: int, layout: aclFormat, storage_dims: tuple[int, ...]) -> None:
        """Take new facts. Raises Refused if the view reaches past the storage."""
        extent = _extent(facts, offset)
        if extent > math.prod(storage_dims):
            raise _invalid(
                f"viewDims: expected a view inside the storage {storage_dims} of {math.prod(storage_dims)} elements, "
                f"got {facts.shape} with strides {facts.strides} and offset {offset}, which reaches to {extent}"
            )
        if len(facts.shape) > MOST_DIMS or math.prod(size or 1 for size in facts.shape) >= MOST_ELEMENTS:
            raise _invalid(f"viewDims: expected at most {MOST_DIMS} dimensions and 2^59 elements, got {facts.shape}")
        self.facts, self.offset, self.format, self.storage_dims = facts, offset, layout, storage_dims
        self.data, self.array, self._region = None, _without_data(facts), None

    def view_of(self, name: str, data: Any) -> tuple[Any, Region]:
        """The view laid over another storage of the same shape: the array, and what it keeps alive.

        Raises:
            Refused: the storage is too small, or its first element misaligned.
        """
        region, dtype = region_of(name, data), DTYPES.get(self.facts.dtype)
        if dtype is None:
            return None, region
        needed = math.prod(self.storage_dims) * dtype.itemsize
        if region.memory.nbytes < needed:
            raise _invalid(
                f"{name}: expected at least {needed} bytes for {self.facts.dtype.name} {self.storage_dims}, "
                f"got {region.memory.nbytes}"
            )
        alignment = min(dtype.itemsize, 8) if region.block is None else DATA_ALIGNMENT
        address = region.memory.ctypes.data if region.block is None else data
        if address % alignment:
            raise _invalid(f"{name}: expected an address that is a multiple of {alignment}, got {address:#x}")
        array = self.array if math.prod(self.facts.shape) == 0 else None
        if array is None:
            strides = tuple(stride * dtype.itemsize for stride in self.facts.strides)
            start = self.offset * dtype.itemsize
            array = np.ndarray(self.facts.shape, dtype, region.memory, start, strides)
        return array, region

    def attach(self, name: str, data: Any) -> None:
        """Lay the view over a storage; None takes it away."""
        if data is None:
            self.array, self._region = _without_data(self.facts), None
        else:
            self.array, self._region = self.view_of(name, data)
        self.data = data

    @property
    def region(self) -> Region | None:
        """What the array looks at, None for a null pointer."""
        return self._region


def _extent(facts: TensorFacts, offset: int) -> int:
    """One more than the highest element that a view touches."""
    if 0 in facts.shape:
        return 0
    return offset + 1 + sum((size - 1) * stride for size, stride in zip(facts.shape, facts.strides, strict=True))


def _without_data(facts: TensorFacts) -> Any:
    """An array for a null pointer: there is one only if it has no elements."""
    dtype = DTYPES.get(facts.dtype)
    return np.empty(facts.shape, dtype) if dtype is not None and 0 in facts.shape else None


class aclIntArray:
    """A copied list of 64-bit integers."""

    __slots__ = ("alive", "values")

    def __init__(self, values: tuple[int, ...]):
        self.alive, self.values = True, values


class aclBoolArray:
    """A copied list of booleans."""

    __slots__ = ("alive", "values")

    def __init__(self, values: tuple[bool, ...]):
        self.alive, self.values = True, values


# --- Creating and destroying ----------------------------------------------------------------------------------------


def aclCreateTensor(
    viewDims: Sequence[int],
    dataType: int,
    strides: Sequence[int] | None,
    offset: int,
    format: int,
    storageDims: Sequence[int],
    data: Any,
) -> aclTensor | None:
    """Create a tensor: a view of a storage. Returns it, or None as C returns a null pointer.

    Args:
        viewDims: the view's shape.
        dataType: of aclDataType.
        strides: the view's steps in elements, not negative; None for contiguous.
        offset: the view's first element, in elements from the storage's first.
        format: of aclFormat.
        storageDims: the storage's shape.
        data: a device address (a multiple of 32), or a contiguous host buffer: NumPy, torch on the CPU, anything with
            the buffer protocol. Its bytes are taken as dataType, as in C. None: set later.

    C: ``aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t
    *stride, int64_t offset, aclFormat format, const int64_t *storageDims, uint64_t storageDimsNum, void *tensorData)``.
    CANN: no bounds are checked; here a view that reaches past its storage, or a storage past its memory, is refused.
    """
    tensor = aclTensor()
    ret = aclInitTensor(tensor, viewDims, dataType, strides, offset, format, storageDims, data)
    return tensor if ret == aclnnStatus.ACLNN_SUCCESS else None


def aclInitTensor(
    tensor: aclTensor,
    viewDims: Sequence[int],
    dataType: int,
    strides: Sequence[int] | None,
    offset: int,
    format: int,
    storageDims: Sequence[int],
    data: Any,
) -> aclnnStatus:
    """Describe an existing tensor anew; after a failure it is as before. Arguments as for aclCreateTensor.

    C: ``aclnnStatus aclInitTensor(aclTensor *tensor, const int64_t *viewDims, …, void *tensorDataAddr)``
    """
    try:
        known = living(tensor, aclTensor, "tensor")
        shape = _whole("viewDims", viewDims)
        steps = contiguous_strides(shape) if strides is None else _whole("strides", strides)
        if len(steps) != len(shape):
            raise _invalid(f"strides: expected {len(shape)} of them, one per dimension of the view, got {len(steps)}")
        facts = TensorFacts(_member("dataType", aclDataType, dataType), shape, steps)
        (start,) = _whole("offset", (offset,))
        fresh = aclTensor()
        fresh.describe(facts, start, _member("format", aclFormat, format), _whole("storageDims", storageDims))
        fresh.attach("data", data)
    except Refused as refusal:
        return reported(refusal)
    for name in ("facts", "offset", "format", "storage_dims", "data", "array", "_region"):
        setattr(known, name, getattr(fresh, name))
    return aclnnStatus.ACLNN_SUCCESS


def aclCreateIntArray(value: Iterable[int]) -> aclIntArray | None:
    """Copy integers. None, as C returns a null pointer, if they are none.

    C: ``aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size)``
    """
    try:
        values = tuple(index(one) for one in value)
    except TypeError as reason:
        report(aclnnStatus.ACLNN_ERR_PARAM_INVALID, f"value: expected a sequence of integers: {reason}")
        return None
    return aclIntArray(values)


def aclCreateBoolArray(value: Iterable[bool]) -> aclBoolArray | None:
    """Copy booleans. None, as C returns a null pointer, if it is no sequence.

    C: ``aclBoolArray *aclCreateBoolArray(const bool *value, uint64_t size)``
    """
    try:
        values = tuple(bool(one) for one in value)
    except (TypeError, ValueError) as reason:
        report(aclnnStatus.ACLNN_ERR_PARAM_INVALID, f"value: expected a sequence of booleans: {reason}")
        return None
    return aclBoolArray(values)


def aclDestroyTensor(tensor: aclTensor | None) -> aclnnStatus:
    """Destroy a tensor, not its memory. A null pointer is fine, a second time is not.

    C: ``aclnnStatus aclDestroyTensor(const aclTensor *tensor)``
    """
    return _destroy(tensor, aclTensor, "tensor")


def aclDestroyIntArray(array: aclIntArray | None) -> aclnnStatus:
    """Destroy an array of integers; as aclDestroyTensor.

    C: ``aclnnStatus aclDestroyIntArray(const aclIntArray *array)``
    """
    return _destroy(array, aclIntArray, "array")


def aclDestroyBoolArray(array: aclBoolArray | None) -> aclnnStatus:
    """Destroy an array of booleans; as aclDestroyTensor.

    C: ``aclnnStatus aclDestroyBoolArray(const aclBoolArray *array)``
    """
    return _destroy(array, aclBoolArray, "array")


# --- Arguments ------------------------------------------------------------------------------------------------------


def living(handle: Any, kind: type[Any], name: str) -> Any:
    """The handle, if it is one of this kind and not destroyed.

    Raises:
        Refused: with ACLNN_ERR_PARAM_NULLPTR or ACLNN_ERR_PARAM_INVALID.
    """
    if handle is None:
        raise Refused(aclnnStatus.ACLNN_ERR_PARAM_NULLPTR, f"{name}: expected an {kind.__name__}, got a null pointer")
    if type(handle) is not kind:
        raise _invalid(f"{name}: expected an {kind.__name__}, got {type(handle).__name__}")
    if not handle.alive:
        raise _invalid(f"{name}: expected a living {kind.__name__}, got a destroyed one")
    return handle


def asked(handle: Any, kind: type[Any], name: str) -> tuple[Any, aclnnStatus]:
    """The same as values: (the handle or None, ret)."""
    try:
        return living(handle, kind, name), aclnnStatus.ACLNN_SUCCESS
    except Refused as refusal:
        return None, reported(refusal)


def _destroy(handle: Any, kind: type[Any], name: str) -> aclnnStatus:
    if handle is None:
        return aclnnStatus.ACLNN_SUCCESS
    known, ret = asked(handle, kind, name)
    if known is not None:
        known.alive = False
    return ret


def _whole(name: str, values: Any) -> tuple[int, ...]:
    """A copy of integers that are not negative."""
    if values is None:
        raise _invalid(f"{name}: expected a sequence of integers, got a null pointer")
    try:
        whole = tuple(index(value) for value in values)
    except TypeError as reason:
        raise _invalid(f"{name}: expected integers: {reason}") from None
    if any(not 0 <= value < 2**63 for value in whole):
        raise _invalid(f"{name}: expected 64-bit integers that are not negative, got {whole}")
    return whole


def _member(name: str, kind: Any, value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise _invalid(f"{name}: expected one of {kind.__name__}, got {value!r}") from None


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a row-major tensor, in elements."""
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


def _invalid(text: str) -> Refused:
    return Refused(aclnnStatus.ACLNN_ERR_PARAM_INVALID, text)


def reported(refusal: Refused) -> aclnnStatus:
    """The text kept, the code as one of aclnn's: one of aclrt's, from the memory rules, means a wrong argument."""
    if isinstance(refusal.code, aclnnStatus):
        return report(refusal.code, refusal.text)
    return report(aclnnStatus.ACLNN_ERR_PARAM_INVALID, refusal.text)
