"""What an aclTensor was made of, and its storage."""

from __future__ import annotations

from lngrad.ascend.acl.enums import aclDataType, aclFormat
from lngrad.ascend.acl.handles import check_handle
from lngrad.ascend.acl.refusals import returns_status, returns_value
from lngrad.ascend.acl.status import aclnnStatus
from lngrad.ascend.acl.tensor import aclTensor
from lngrad.typing import Shape


@returns_value(aclnnStatus, otherwise=())
def aclGetViewShape(tensor: aclTensor) -> Shape:
    """Return (viewDims, ret).

    C: ``aclnnStatus aclGetViewShape(const aclTensor *tensor, int64_t **viewDims, uint64_t
    *viewDimsNum)``
    """
    return check_handle(tensor, aclTensor, "tensor").facts.shape


@returns_value(aclnnStatus, otherwise=())
def aclGetStorageShape(tensor: aclTensor) -> Shape:
    """Return (storageDims, ret).

    C: ``aclnnStatus aclGetStorageShape(const aclTensor *tensor, int64_t **storageDims, uint64_t
    *storageDimsNum)``
    """
    return check_handle(tensor, aclTensor, "tensor").storage_dims


@returns_value(aclnnStatus, otherwise=())
def aclGetViewStrides(tensor: aclTensor) -> Shape:
    """Return (strides in elements, ret).

    C: ``aclnnStatus aclGetViewStrides(const aclTensor *tensor, int64_t **stridesValue, uint64_t
    *stridesNum)``
    """
    return check_handle(tensor, aclTensor, "tensor").facts.strides


@returns_value(aclnnStatus, otherwise=0)
def aclGetViewOffset(tensor: aclTensor) -> int:
    """Return (offset in elements, ret).

    C: ``aclnnStatus aclGetViewOffset(const aclTensor *tensor, int64_t *offset)``
    """
    return check_handle(tensor, aclTensor, "tensor").offset


@returns_value(aclnnStatus, otherwise=aclFormat.ACL_FORMAT_UNDEFINED)
def aclGetFormat(tensor: aclTensor) -> aclFormat:
    """Return (format, ret).

    C: ``aclnnStatus aclGetFormat(const aclTensor *tensor, aclFormat *format)``
    """
    return check_handle(tensor, aclTensor, "tensor").format


@returns_value(aclnnStatus, otherwise=aclDataType.ACL_DT_UNDEFINED)
def aclGetDataType(tensor: aclTensor) -> aclDataType:
    """Return (dataType, ret).

    C: ``aclnnStatus aclGetDataType(const aclTensor *tensor, aclDataType *dataType)``
    """
    return check_handle(tensor, aclTensor, "tensor").facts.dtype


@returns_value(aclnnStatus, otherwise=None)
def aclGetRawTensorAddr(tensor: aclTensor) -> object:
    """Return (the storage's address or buffer as given, ret).

    C: ``aclnnStatus aclGetRawTensorAddr(const aclTensor *tensor, void **addr)``
    """
    return check_handle(tensor, aclTensor, "tensor").data


@returns_status(aclnnStatus)
def aclSetRawTensorAddr(tensor: aclTensor, addr: object) -> None:
    """Lay the tensor's view over another storage of the same shape; None takes it away.

    C: ``aclnnStatus aclSetRawTensorAddr(aclTensor *tensor, void *addr)``
    """
    check_handle(tensor, aclTensor, "tensor").attach("addr", addr)
