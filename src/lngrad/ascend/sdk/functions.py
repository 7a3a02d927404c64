"""The table of functions: every prototype that the folder declares and the library exports, by header.

This is the only place where they are listed. ``headers`` declares them, ``entry_points`` defines them in C, ``marshal``
calls ``lngrad.ascend.acl`` and ``lngrad.ascend.aclnn`` for them. A function that neither has answers
ACL_ERROR_API_NOT_SUPPORT, or a null pointer, with a text.

Sources: the prototypes of acl_rt.h, acl_base_rt.h and acl.h (CANN's runtime), acl_meta.h and aclnn_base.h (opbase),
aclnn_layer_norm.h and aclnn_layer_norm_backward.h (the operator library).
"""

from __future__ import annotations

from lngrad.ascend.sdk.prototypes import Function, function

_COPY = {"dst": "destMax", "src": "count"}

_RUNTIME = (
    function("aclError aclInit(const char *configPath)"),
    function("aclError aclFinalize(void)"),
    function("aclError aclFinalizeReference(uint64_t *refCount)"),
    function("const char *aclGetRecentErrMsg(void)"),
    function("const char *aclrtGetSocName(void)"),
    function("aclError aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion, int32_t *patchVersion)"),
    function("aclError aclrtSetDevice(int32_t deviceId)"),
    function("aclError aclrtResetDevice(int32_t deviceId)"),
    function("aclError aclrtResetDeviceForce(int32_t deviceId)"),
    function("aclError aclrtGetDevice(int32_t *deviceId)"),
    function("aclError aclrtGetDeviceCount(uint32_t *count)"),
    function("aclError aclrtGetRunMode(aclrtRunMode *runMode)"),
    function("aclError aclrtSynchronizeDevice(void)"),
    function("aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId)"),
    function("aclError aclrtDestroyContext(aclrtContext context)"),
    function("aclError aclrtSetCurrentContext(aclrtContext context)"),
    function("aclError aclrtGetCurrentContext(aclrtContext *context)"),
    function("aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t value)"),
    function("aclError aclrtGetSysParamOpt(aclSysParamOpt opt, int64_t *value)"),
    function("aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value)"),
    function("aclError aclrtCtxGetSysParamOpt(aclSysParamOpt opt, int64_t *value)"),
    function("aclError aclrtCreateStream(aclrtStream *stream)"),
    function("aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag)"),
    function("aclError aclrtDestroyStream(aclrtStream stream)"),
    function("aclError aclrtDestroyStreamForce(aclrtStream stream)"),
    function("aclError aclrtSynchronizeStream(aclrtStream stream)"),
    function("aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout)"),
    function("aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status)"),
    function("aclError aclrtCreateEvent(aclrtEvent *event)"),
    function("aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream)"),
    function("aclError aclrtSynchronizeEvent(aclrtEvent event)"),
    function("aclError aclrtDestroyEvent(aclrtEvent event)"),
    function("aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event)"),
    function("aclError aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent)"),
    function("aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy)"),
    function("aclError aclrtMallocAlign32(void **devPtr, size_t size, aclrtMemMallocPolicy policy)"),
    function("aclError aclrtMallocCached(void **devPtr, size_t size, aclrtMemMallocPolicy policy)"),
    function("aclError aclrtFree(void *devPtr)"),
    function("aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free, size_t *total)"),
    function("aclError aclrtMallocHost(void **hostPtr, size_t size)"),
    function("aclError aclrtFreeHost(void *hostPtr)"),
    function(
        "aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind)",
        host=_COPY,
    ),
    function(
        "aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind, "
        "aclrtStream stream)",
        host=_COPY,
    ),
    function(
        "aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count)",
        device={"devPtr": "maxCount"},
    ),
    function(
        "aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream)",
        device={"devPtr": "maxCount"},
    ),
)

_BASE = (
    function("size_t aclDataTypeSize(aclDataType dataType)"),
    function("float aclFloat16ToFloat(aclFloat16 value)"),
    function("aclFloat16 aclFloatToFloat16(float value)"),
)

_DESCRIPTION = (
    "const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t *stride, int64_t offset, "
    "aclFormat format, const int64_t *storageDims, uint64_t storageDimsNum"
)
_STORAGE = "storageDims"  # its bytes are those of this many elements
_TENSOR = "tensor"  # its bytes are those of that tensor's storage


def _setters(prefix: str) -> tuple[Function, ...]:
    """aclSetInputTensorAddr and its kin. AclSet… is the older spelling of the same functions."""
    plain = tuple(
        function(
            f"aclnnStatus {prefix}Set{what}TensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor, "
            "void *addr)",
            device={"addr": _TENSOR},
            python=f"aclSet{what}TensorAddr",
        )
        for what in ("Input", "Output", "")
    )
    dynamic = tuple(
        function(
            f"aclnnStatus {prefix}SetDynamic{what}TensorAddr(aclOpExecutor *executor, size_t irIndex, "
            "const size_t relativeIndex, aclTensorList *tensors, void *addr)",
            python=f"aclSetDynamic{what}TensorAddr",
        )
        for what in ("Input", "Output", "")
    )
    return plain + dynamic


_META = (
    function(f"aclTensor *aclCreateTensor({_DESCRIPTION}, void *tensorData)", device={"tensorData": _STORAGE}),
    function("aclScalar *aclCreateScalar(void *value, aclDataType dataType)"),
    function("aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size)"),
    function("aclFloatArray *aclCreateFloatArray(const float *value, uint64_t size)"),
    function("aclBoolArray *aclCreateBoolArray(const bool *value, uint64_t size)"),
    function("aclTensorList *aclCreateTensorList(const aclTensor *const *value, uint64_t size)"),
    function("aclScalarList *aclCreateScalarList(const aclScalar *const *value, uint64_t size)"),
    function("aclnnStatus aclDestroyTensor(const aclTensor *tensor)"),
    function("aclnnStatus aclDestroyScalar(const aclScalar *scalar)"),
    function("aclnnStatus aclDestroyIntArray(const aclIntArray *array)"),
    function("aclnnStatus aclDestroyFloatArray(const aclFloatArray *array)"),
    function("aclnnStatus aclDestroyBoolArray(const aclBoolArray *array)"),
    function("aclnnStatus aclDestroyTensorList(const aclTensorList *array)"),
    function("aclnnStatus aclDestroyScalarList(const aclScalarList *array)"),
    function("aclnnStatus aclGetViewShape(const aclTensor *tensor, int64_t **viewDims, uint64_t *viewDimsNum)"),
    function(
        "aclnnStatus aclGetStorageShape(const aclTensor *tensor, int64_t **storageDims, uint64_t *storageDimsNum)"
    ),
    function(
        "aclnnStatus aclGetViewStrides(const aclTensor *tensor, int64_t **stridesValue, uint64_t *stridesValueNum)"
    ),
    function("aclnnStatus aclGetViewOffset(const aclTensor *tensor, int64_t *offset)"),
    function("aclnnStatus aclGetFormat(const aclTensor *tensor, aclFormat *format)"),
    function("aclnnStatus aclGetDataType(const aclTensor *tensor, aclDataType *dataType)"),
    function("aclnnStatus aclGetIntArraySize(const aclIntArray *array, uint64_t *size)"),
    function("aclnnStatus aclGetFloatArraySize(const aclFloatArray *array, uint64_t *size)"),
    function("aclnnStatus aclGetBoolArraySize(const aclBoolArray *array, uint64_t *size)"),
    function("aclnnStatus aclGetTensorListSize(const aclTensorList *tensorList, uint64_t *size)"),
    function("aclnnStatus aclGetScalarListSize(const aclScalarList *scalarList, uint64_t *size)"),
    function(
        f"aclnnStatus aclInitTensor(aclTensor *tensor, {_DESCRIPTION}, void *tensorDataAddr)",
        device={"tensorDataAddr": _STORAGE},
    ),
    function("aclnnStatus aclSetRawTensorAddr(aclTensor *tensor, void *addr)", device={"addr": _TENSOR}),
    function("aclnnStatus aclGetRawTensorAddr(const aclTensor *tensor, void **addr)"),
    function("aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor)"),
    function("aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor)"),
    *_setters("acl"),
    *_setters("Acl"),
    function(
        "aclnnStatus aclDumpOpTensors(const char *opType, const char *opName, aclTensor **tensors, "
        "size_t inputTensorNum, size_t outputTensorNum, aclrtStream stream)"
    ),
)

_ACLNN_BASE = (
    function("aclnnStatus aclnnInit(const char *configPath)"),
    function("aclnnStatus aclnnFinalize(void)"),
)


def _two_phases(name: str, parameters: str) -> tuple[Function, Function]:
    """Both functions of an operator interface."""
    return (
        function(
            f"aclnnStatus {name}GetWorkspaceSize({parameters}, uint64_t *workspaceSize, aclOpExecutor **executor)"
        ),
        function(
            f"aclnnStatus {name}(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)",
            device={"workspace": "workspaceSize"},
        ),
    )


_BACKWARD = _two_phases(
    "aclnnLayerNormBackward",
    "const aclTensor *gradOut, const aclTensor *input, const aclIntArray *normalizedShape, const aclTensor *mean, "
    "const aclTensor *rstd, const aclTensor *weightOptional, const aclTensor *biasOptional, "
    "const aclBoolArray *outputMask, aclTensor *gradInputOut, aclTensor *gradWeightOut, aclTensor *gradBiasOut",
)

_FORWARD_PARAMETERS = (
    "const aclTensor *input, const aclIntArray *normalizedShape, const aclTensor *weightOptional, "
    "const aclTensor *biasOptional, double eps, aclTensor *out, aclTensor *meanOutOptional, aclTensor *rstdOutOptional"
)
_FORWARD = (
    *_two_phases("aclnnLayerNorm", _FORWARD_PARAMETERS),
    *_two_phases("aclnnLayerNormWithImplMode", _FORWARD_PARAMETERS + ", int32_t implMode"),
    *_two_phases("aclnnFastLayerNorm", _FORWARD_PARAMETERS),
)

_EXPERIMENTAL = _two_phases(
    "aclnnLayerNormalizationGrad",
    "const aclTensor *dy, const aclTensor *x, const aclTensor *gamma, const aclTensor *mean, const aclTensor *rstd, "
    "aclTensor *dx, aclTensor *dgamma, aclTensor *dbeta",
)

HEADERS: dict[str, tuple[Function, ...]] = {
    "acl/acl_base_rt.h": _BASE,
    "acl/acl_rt.h": _RUNTIME,
    "aclnn/acl_meta.h": _META,
    "aclnn/aclnn_base.h": _ACLNN_BASE,
    "aclnnop/aclnn_layer_norm_backward.h": _BACKWARD,
    "aclnnop/aclnn_layer_norm.h": _FORWARD,
    "aclnnop/aclnn_layer_normalization_grad.h": _EXPERIMENTAL,
}

FUNCTIONS: tuple[Function, ...] = tuple(one for functions in HEADERS.values() for one in functions)
