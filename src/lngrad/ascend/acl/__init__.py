"""What ``acl/acl.h`` and ``aclnn/acl_meta.h`` declare, under the same names.

Each function returns values first, its status last, as pyACL does; those that return a pointer in C (aclCreateTensor,
aclCreateIntArray, aclCreateBoolArray, aclGetRecentErrMsg) return the object alone, None for a null pointer. Nothing
raises: a wrong argument gives a code, and a text for aclGetRecentErrMsg.
"""

from __future__ import annotations

from lngrad.ascend.acl import codes as acl_codes
from lngrad.ascend.acl.codes import *  # noqa: F403 - the enumerators are plain names in C too
from lngrad.ascend.acl.device import (
    aclFinalize,
    aclInit,
    aclrtGetDevice,
    aclrtGetDeviceCount,
    aclrtGetSocName,
    aclrtResetDevice,
    aclrtSetDevice,
)
from lngrad.ascend.acl.errors import aclGetRecentErrMsg
from lngrad.ascend.acl.getters import (
    aclGetBoolArraySize,
    aclGetDataType,
    aclGetFormat,
    aclGetIntArraySize,
    aclGetRawTensorAddr,
    aclGetStorageShape,
    aclGetViewOffset,
    aclGetViewShape,
    aclGetViewStrides,
    aclSetRawTensorAddr,
)
from lngrad.ascend.acl.memory import aclrtFree, aclrtMalloc, aclrtMemcpy
from lngrad.ascend.acl.stream import (
    aclrtCreateStream,
    aclrtDestroyStream,
    aclrtStream,
    aclrtSynchronizeDevice,
    aclrtSynchronizeStream,
)
from lngrad.ascend.acl.tensor import (
    aclBoolArray,
    aclCreateBoolArray,
    aclCreateIntArray,
    aclCreateTensor,
    aclDestroyBoolArray,
    aclDestroyIntArray,
    aclDestroyTensor,
    aclInitTensor,
    aclIntArray,
    aclTensor,
)

__all__ = [
    "aclBoolArray",
    "aclCreateBoolArray",
    "aclCreateIntArray",
    "aclCreateTensor",
    "aclDestroyBoolArray",
    "aclDestroyIntArray",
    "aclDestroyTensor",
    "aclFinalize",
    "aclGetBoolArraySize",
    "aclGetDataType",
    "aclGetFormat",
    "aclGetIntArraySize",
    "aclGetRawTensorAddr",
    "aclGetRecentErrMsg",
    "aclGetStorageShape",
    "aclGetViewOffset",
    "aclGetViewShape",
    "aclGetViewStrides",
    "aclInit",
    "aclInitTensor",
    "aclIntArray",
    "aclSetRawTensorAddr",
    "aclTensor",
    "aclrtCreateStream",
    "aclrtDestroyStream",
    "aclrtFree",
    "aclrtGetDevice",
    "aclrtGetDeviceCount",
    "aclrtGetSocName",
    "aclrtMalloc",
    "aclrtMemcpy",
    "aclrtResetDevice",
    "aclrtSetDevice",
    "aclrtStream",
    "aclrtSynchronizeDevice",
    "aclrtSynchronizeStream",
]
__all__ += acl_codes.__all__
