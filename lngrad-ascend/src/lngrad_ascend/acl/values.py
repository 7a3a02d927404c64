"""Arguments that are not tensors: scalars, arrays of numbers, and lists of tensors and scalars.

All copy their values. The destruction of a list destroys what is in it, as in CANN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import index
from typing import Any, TypeVar

from lngrad_ascend.acl.enums import aclDataType, aclnnStatus
from lngrad_ascend.acl.interface import (
    Handle,
    Value,
    ValueArray,
    check_handle,
    destroy,
    invalid_argument,
    named,
    null_argument,
    returns_aclnnStatus,
    returns_pointer,
    returns_value,
)
from lngrad_ascend.acl.tensor import aclTensor, enumerator

Values = TypeVar("Values", bound=ValueArray[Any])


class aclScalar(Handle):
    """A number and its type."""

    __slots__ = ("dtype", "value")

    def __init__(self, value: float, dtype: aclDataType):
        super().__init__()
        self.value, self.dtype = value, dtype


class aclIntArray(ValueArray[int]):
    """64-bit integers."""


class aclFloatArray(ValueArray[float]):
    """Floating-point numbers."""


class aclBoolArray(ValueArray[bool]):
    """Booleans."""


class aclTensorList(ValueArray[aclTensor]):
    """Tensors."""


class aclScalarList(ValueArray[aclScalar]):
    """Scalars."""


def _copied(value: Iterable[object], convert: Callable[[object], Value], kind: str) -> tuple[Value, ...]:
    if value is None:
        raise null_argument(f"value: expected a sequence of {kind}, got a null pointer")
    try:
        return tuple(convert(member) for member in value)
    except (TypeError, ValueError, OverflowError) as reason:
        raise invalid_argument(f"value: expected a sequence of {kind}: {reason}") from None


@returns_pointer
def aclCreateScalar(value: float, dataType: int) -> aclScalar:
    """Copy a number. Returns a null pointer, None, if it is none."""
    if value is None:
        raise null_argument("value: expected a number, got a null pointer")
    if not isinstance(value, (bool, int, float)):
        raise invalid_argument(f"value: expected a number, got {type(value).__name__}")
    return aclScalar(value, enumerator("dataType", aclDataType, dataType))


@returns_pointer
def aclCreateIntArray(value: Iterable[int]) -> aclIntArray:
    """Copy integers. Returns a null pointer, None, if they are none."""
    return aclIntArray(_copied(value, index, "integers"))  # type: ignore[arg-type]  # what has no index is refused


@returns_pointer
def aclCreateFloatArray(value: Iterable[float]) -> aclFloatArray:
    """Copy floating-point numbers. Returns a null pointer, None, if they are none."""
    return aclFloatArray(_copied(value, float, "numbers"))  # type: ignore[arg-type]  # what is no number is refused


@returns_pointer
def aclCreateBoolArray(value: Iterable[bool]) -> aclBoolArray:
    """Copy booleans. Returns a null pointer, None, if it is no sequence."""
    return aclBoolArray(_copied(value, bool, "booleans"))


@returns_pointer
def aclCreateTensorList(value: Iterable[aclTensor]) -> aclTensorList:
    """Copy a list of tensors, not the tensors. Returns a null pointer, None, if they are none."""
    return aclTensorList(_copied(value, lambda tensor: check_handle(tensor, aclTensor, "value"), "aclTensor"))


@returns_pointer
def aclCreateScalarList(value: Iterable[aclScalar]) -> aclScalarList:
    """Copy a list of scalars, not the scalars. Returns a null pointer, None, if they are none."""
    return aclScalarList(_copied(value, lambda scalar: check_handle(scalar, aclScalar, "value"), "aclScalar"))


@returns_aclnnStatus
def aclDestroyScalar(scalar: aclScalar | None) -> None:
    """Destroy a scalar; a null pointer is fine, a second time is not."""
    destroy(scalar, aclScalar, "scalar")


def _destroyer(name: str, kind: type[Handle], text: str) -> Callable[[Handle | None], aclnnStatus]:
    @returns_aclnnStatus
    def call(array: Handle | None) -> None:
        destroy(array, kind, "array")

    return named(call, name, f"Destroy {text}.")


_AGAIN, _ALL = "a null pointer is fine, a second time is not", "in it, which need not, and can't, be destroyed again"
aclDestroyIntArray = _destroyer("aclDestroyIntArray", aclIntArray, f"an array of integers; {_AGAIN}")
aclDestroyFloatArray = _destroyer(
    "aclDestroyFloatArray", aclFloatArray, f"an array of floating-point numbers; {_AGAIN}"
)
aclDestroyBoolArray = _destroyer("aclDestroyBoolArray", aclBoolArray, f"an array of booleans; {_AGAIN}")
aclDestroyTensorList = _destroyer("aclDestroyTensorList", aclTensorList, f"a list and the tensors {_ALL}")
aclDestroyScalarList = _destroyer("aclDestroyScalarList", aclScalarList, f"a list and the scalars {_ALL}")


def _size_of(name: str, kind: type[Values]) -> Callable[[Values], tuple[int, aclnnStatus]]:
    @returns_value(aclnnStatus, 0)
    def call(array: Values) -> int:
        return len(check_handle(array, kind, "array").values)

    return named(call, name, "Return (size, ret).")


aclGetIntArraySize = _size_of("aclGetIntArraySize", aclIntArray)
aclGetFloatArraySize = _size_of("aclGetFloatArraySize", aclFloatArray)
aclGetBoolArraySize = _size_of("aclGetBoolArraySize", aclBoolArray)


@returns_value(aclnnStatus, 0)
def aclGetTensorListSize(tensorList: aclTensorList) -> int:
    """Return (size, ret)."""
    return len(check_handle(tensorList, aclTensorList, "tensorList").values)


@returns_value(aclnnStatus, 0)
def aclGetScalarListSize(scalarList: aclScalarList) -> int:
    """Return (size, ret)."""
    return len(check_handle(scalarList, aclScalarList, "scalarList").values)
