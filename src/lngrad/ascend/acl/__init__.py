"""What ``acl/acl.h`` and ``aclnn/acl_meta.h`` declare, under the same names.

Each function returns values first, its status last, as pyACL does; those that return a pointer in C
(aclCreateTensor, aclCreateIntArray, …, aclGetRecentErrMsg) return the object alone, None for a null pointer.
Nothing raises: a wrong argument gives a code, and a text for aclGetRecentErrMsg.
"""

# ruff: noqa: F403, F405 - the names are listed once, below; one that no module has fails at import
from __future__ import annotations

from lngrad.ascend.acl import enums as acl_enums
from lngrad.ascend.acl.device import *
from lngrad.ascend.acl.enums import *
from lngrad.ascend.acl.interface import *
from lngrad.ascend.acl.memory import *
from lngrad.ascend.acl.streams import *
from lngrad.ascend.acl.tensor import *
from lngrad.ascend.acl.values import *
from lngrad.ascend.prototypes import add_to_docstrings

__all__ = [
    "aclBoolArray", "aclCreateBoolArray", "aclCreateFloatArray", "aclCreateIntArray", "aclCreateScalar",
    "aclCreateScalarList", "aclCreateTensor", "aclCreateTensorList", "aclDataTypeSize", "aclDestroyBoolArray",
    "aclDestroyFloatArray", "aclDestroyIntArray", "aclDestroyScalar", "aclDestroyScalarList", "aclDestroyTensor",
    "aclDestroyTensorList", "aclDumpOpTensors", "aclFinalize", "aclFinalizeReference", "aclFloat16ToFloat",
    "aclFloatArray", "aclFloatToFloat16", "aclGetBoolArraySize", "aclGetDataType", "aclGetFloatArraySize",
    "aclGetFormat", "aclGetIntArraySize", "aclGetRawTensorAddr", "aclGetRecentErrMsg", "aclGetScalarListSize",
    "aclGetStorageShape", "aclGetTensorListSize", "aclGetViewOffset", "aclGetViewShape", "aclGetViewStrides",
    "aclInit", "aclInitTensor", "aclIntArray", "aclScalar", "aclScalarList", "aclSetRawTensorAddr", "aclTensor",
    "aclTensorList", "aclrtContext", "aclrtCreateContext", "aclrtCreateEvent", "aclrtCreateStream",
    "aclrtCreateStreamWithConfig", "aclrtCtxGetSysParamOpt", "aclrtCtxSetSysParamOpt", "aclrtDestroyContext",
    "aclrtDestroyEvent", "aclrtDestroyStream", "aclrtDestroyStreamForce", "aclrtEvent", "aclrtEventElapsedTime",
    "aclrtFree", "aclrtFreeHost", "aclrtGetCurrentContext", "aclrtGetDevice", "aclrtGetDeviceCount",
    "aclrtGetMemInfo", "aclrtGetRunMode", "aclrtGetSocName", "aclrtGetSysParamOpt", "aclrtGetVersion",
    "aclrtMalloc", "aclrtMallocAlign32", "aclrtMallocCached", "aclrtMallocHost", "aclrtMemcpy", "aclrtMemcpyAsync",
    "aclrtMemset", "aclrtMemsetAsync", "aclrtRecordEvent", "aclrtResetDevice", "aclrtResetDeviceForce",
    "aclrtSetCurrentContext", "aclrtSetDevice", "aclrtSetSysParamOpt", "aclrtStream", "aclrtStreamQuery",
    "aclrtStreamWaitEvent", "aclrtSynchronizeDevice", "aclrtSynchronizeEvent", "aclrtSynchronizeStream",
    "aclrtSynchronizeStreamWithTimeout", "not_supported",
]  # fmt: skip
__all__ += acl_enums.__all__
add_to_docstrings(globals()[name] for name in __all__)
