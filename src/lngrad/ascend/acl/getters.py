"""What an aclTensor, aclIntArray or aclBoolArray is made of; a null or destroyed one gives a code."""

from __future__ import annotations

from typing import Any

from lngrad.ascend.acl.codes import aclDataType, aclFormat, aclnnStatus
from lngrad.ascend.acl.errors import Refused
from lngrad.ascend.acl.tensor import aclBoolArray, aclIntArray, aclTensor, asked, living, reported

__all__ = [
    "aclGetViewShape",
    "aclGetStorageShape",
    "aclGetViewStrides",
    "aclGetViewOffset",
    "aclGetFormat",
    "aclGetDataType",
    "aclGetIntArraySize",
    "aclGetBoolArraySize",
    "aclGetRawTensorAddr",
    "aclSetRawTensorAddr",
]


def aclGetViewShape(tensor: aclTensor) -> tuple[tuple[int, ...], aclnnStatus]:
    """Return (viewDims, ret).

    C: ``aclnnStatus aclGetViewShape(const aclTensor *, int64_t **, uint64_t *)``
    """
    known, ret = asked(tensor, aclTensor, "tensor")
    return known.facts.shape if known else (), ret


def aclGetStorageShape(tensor: aclTensor) -> tuple[tuple[int, ...], aclnnStatus]:
    """Return (storageDims, ret).

    C: ``aclnnStatus aclGetStorageShape(const aclTensor *, int64_t **, uint64_t *)``
    """
    known, ret = asked(tensor, aclTensor, "tensor")
    return known.storage_dims if known else (), ret


def aclGetViewStrides(tensor: aclTensor) -> tuple[tuple[int, ...], aclnnStatus]:
    """Return (strides in elements, ret).

    C: ``aclnnStatus aclGetViewStrides(const aclTensor *, int64_t **, uint64_t *)``
    """
    known, ret = asked(tensor, aclTensor, "tensor")
    return known.facts.strides if known else (), ret


def aclGetViewOffset(tensor: aclTensor) -> tuple[int, aclnnStatus]:
    """Return (offset in elements, ret).

    C: ``aclnnStatus aclGetViewOffset(const aclTensor *, int64_t *)``
    """
    known, ret = asked(tensor, aclTensor, "tensor")
    return known.offset if known else 0, ret


def aclGetFormat(tensor: aclTensor) -> tuple[aclFormat, aclnnStatus]:
    """Return (format, ret).

    C: ``aclnnStatus aclGetFormat(const aclTensor *, aclFormat *)``
    """
    known, ret = asked(tensor, aclTensor, "tensor")
    return known.format if known else aclFormat.ACL_FORMAT_UNDEFINED, ret


def aclGetDataType(tensor: aclTensor) -> tuple[aclDataType, aclnnStatus]:
    """Return (dataType, ret).

    C: ``aclnnStatus aclGetDataType(const aclTensor *, aclDataType *)``
    """
    known, ret = asked(tensor, aclTensor, "tensor")
    return known.facts.dtype if known else aclDataType.ACL_DT_UNDEFINED, ret


def aclGetIntArraySize(array: aclIntArray) -> tuple[int, aclnnStatus]:
    """Return (size, ret).

    C: ``aclnnStatus aclGetIntArraySize(const aclIntArray *, uint64_t *)``
    """
    known, ret = asked(array, aclIntArray, "array")
    return len(known.values) if known else 0, ret


def aclGetBoolArraySize(array: aclBoolArray) -> tuple[int, aclnnStatus]:
    """Return (size, ret).

    C: ``aclnnStatus aclGetBoolArraySize(const aclBoolArray *, uint64_t *)``
    """
    known, ret = asked(array, aclBoolArray, "array")
    return len(known.values) if known else 0, ret


def aclGetRawTensorAddr(tensor: aclTensor) -> tuple[Any, aclnnStatus]:
    """Return (the storage's address or buffer as given, ret).

    C: ``aclnnStatus aclGetRawTensorAddr(…, void **addr)``
    """
    known, ret = asked(tensor, aclTensor, "tensor")
    return known.data if known else None, ret


def aclSetRawTensorAddr(tensor: aclTensor, addr: Any) -> aclnnStatus:
    """Lay the tensor's view over another storage of the same shape.

    C: ``aclnnStatus aclSetRawTensorAddr(aclTensor *tensor, void *addr)``
    """
    try:
        living(tensor, aclTensor, "tensor").attach("addr", addr)
    except Refused as refusal:
        return reported(refusal)
    return aclnnStatus.ACLNN_SUCCESS
