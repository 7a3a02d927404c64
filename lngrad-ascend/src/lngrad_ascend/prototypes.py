"""The C prototypes of acl and aclnn: the one place where they are written, and what each parameter of them is.

A function is written as the C header has it, an aclnn operator in short (`OPERATORS`). Its declaration, its entry point in
the library of the SDK, the conversion of its arguments and the last line of its documentation follow from the types:
``uint64_t *workspaceSize`` is a result, ``const int64_t *viewDims`` with ``uint64_t viewDimsNum`` after it is a list,
``aclTensor *`` is a handle. What an aclnn operator reads and writes follows, too. A function that neither acl nor aclnn has
gives ACL_ERROR_API_NOT_SUPPORT in C, or a null pointer, with a text.

Sources: acl_rt.h, acl_base_rt.h and acl.h (CANN's runtime), acl_meta.h and aclnn_base.h (opbase), aclnn_layer_norm.h and
aclnn_layer_norm_backward.h (the operator library); those of the other norms from their pages in ops-nn.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

# Pointers to these are handles; those of the second line are themselves pointers in C.
OPAQUE: tuple[str, ...] = (
    "aclTensor", "aclScalar", "aclIntArray", "aclFloatArray", "aclBoolArray", "aclTensorList", "aclScalarList",
    "aclOpExecutor",
)  # fmt: skip
HANDLE_TYPES: tuple[str, ...] = ("aclrtStream", "aclrtContext", "aclrtEvent")
HANDLES = OPAQUE + HANDLE_TYPES

REALS = ("double", "float")
STATUSES = ("aclError", "aclnnStatus")


# What a parameter is. All fit one 64-bit word: a number, a pointer, or the bits of a double. ADDRESS: a void pointer, of
# the device, or of the host where the function's row says so. LIST: of numbers, booleans or handles; its LENGTH, another
# parameter, is no argument in Python. OUT_LIST: a new array of int64_t that the caller frees.
Kind = Enum(
    "Kind", "NUMBER REAL HANDLE ADDRESS TEXT LIST LENGTH OUT_NUMBER OUT_REAL OUT_HANDLE OUT_ADDRESS OUT_LIST OUT_LENGTH"
)

# Parameters that may point to the host's memory, each with the one that counts its bytes; and those that point to the
# device's. "storageDims": the bytes are those of so many elements; "tensor": those of that tensor's storage.
HOST_SIZES = {"dst": "destMax", "src": "count", "graph": "graphSize", "facts": "factsSize"}
DEVICE_SIZES = {"devPtr": "maxCount", "tensorData": "storageDims", "tensorDataAddr": "storageDims", "addr": "tensor",
                "workspace": "workspaceSize"}  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """A parameter.

    Attributes:
        type: its C type, without the name.
        base: the type without const and stars: of a handle, of an element, of a number.
        length: for a list, the position of the parameter that has its length.
    """

    name: str
    type: str
    kind: Kind
    base: str
    length: int = -1

    @property
    def is_result(self) -> bool:
        """Whether the function writes through it."""
        return self.kind.name.startswith("OUT_")


@dataclass(frozen=True)
class Function:
    """A function: its prototype as in the C header, without the semicolon; its name, C type, and parameters in C's order."""

    prototype: str
    name: str
    result: str
    parameters: tuple[Parameter, ...]

    @property
    def has_status(self) -> bool:
        """Whether it returns a code."""
        return self.result in STATUSES

    def size_of(self, sizes: dict[str, str], parameter: str) -> str | None:
        """Return the parameter that counts the bytes behind a pointer, by HOST_SIZES or DEVICE_SIZES; None: none does."""
        size = sizes.get(parameter)
        return size if any(parameter.name == size for parameter in self.parameters) else None


_PROTOTYPE = re.compile(r"^(?P<result>[\w ]+?[ *]+)(?P<name>\w+)\((?P<parameters>.*)\)$", re.DOTALL)
_PARAMETER = re.compile(r"^(?P<type>.*?[ *])(?P<name>\w+)$", re.DOTALL)


def parse(prototype: str) -> Function:
    """Read a prototype. Raises ValueError where it is none, or has an unknown type."""
    text = " ".join(prototype.split())
    match = _PROTOTYPE.match(text)
    if match is None:
        raise ValueError(f"prototype: expected 'type name(parameters)', got {prototype!r}")
    inside = match["parameters"]
    pairs = [] if inside in ("", "void") else [_split(parameter) for parameter in inside.split(",")]
    names = [name for _, name in pairs]
    lengths = {name: _length_of(name, type_, names) for type_, name in pairs if _is_list(type_)}
    parameters = tuple(_parameter(type_, name, names, lengths) for type_, name in pairs)
    return Function(text, match["name"], match["result"].strip(), parameters)


def _split(text: str) -> tuple[str, str]:
    match = _PARAMETER.match(text.strip())
    if match is None:
        raise ValueError(f"parameter: expected 'type name', got {text!r}")
    return match["type"].strip(), match["name"]


def _base(type_: str) -> str:
    return type_.replace("const", " ").replace("*", " ").strip()


def _is_list(type_: str) -> bool:
    """A pointer to constant elements: numbers, or handles, which are pointers."""
    base, stars = _base(type_), type_.count("*")
    if base in OPAQUE:
        return stars == 2 and type_.startswith("const")
    return stars == 1 and type_.startswith("const") and base not in ("void", "char")


def _length_of(name: str, type_: str, names: list[str]) -> str:
    """viewDims goes with viewDimsNum, stride with viewDimsNum, value with size."""
    for candidate in (name + "Num", "size", "viewDimsNum"):
        if candidate in names:
            return candidate
    raise ValueError(f"{name}: expected its length among {', '.join(names)}")


def _parameter(type_: str, name: str, names: list[str], lengths: dict[str, str]) -> Parameter:
    base, stars = _base(type_), type_.count("*")
    length = -1
    if name in lengths:
        kind, length = Kind.LIST, names.index(lengths[name])
    elif name in lengths.values():
        kind = Kind.LENGTH
    elif base in HANDLE_TYPES:
        kind = (Kind.HANDLE, Kind.OUT_HANDLE)[stars]
    elif base in OPAQUE:
        kind = Kind.HANDLE if stars == 1 else Kind.OUT_HANDLE if base == "aclOpExecutor" else Kind.ADDRESS
    elif base == "void":
        kind = {1: Kind.ADDRESS, 2: Kind.OUT_ADDRESS}[stars]
    elif base == "char":
        kind = Kind.TEXT
    elif stars == 2:
        kind, length = Kind.OUT_LIST, names.index(name + "Num")
    elif stars == 1:
        is_length = name.endswith("Num") and name.removesuffix("Num") in names
        kind = Kind.OUT_LENGTH if is_length else Kind.OUT_REAL if base in REALS else Kind.OUT_NUMBER
    else:
        kind = Kind.REAL if base in REALS else Kind.NUMBER
    return Parameter(name, type_, kind, base, length)


_BASE = """
    size_t aclDataTypeSize(aclDataType dataType);
    float aclFloat16ToFloat(aclFloat16 value);
    aclFloat16 aclFloatToFloat16(float value);
"""

_RUNTIME = """
    aclError aclInit(const char *configPath);
    aclError aclFinalize(void);
    aclError aclFinalizeReference(uint64_t *refCount);
    const char *aclGetRecentErrMsg(void);
    const char *aclrtGetSocName(void);
    aclError aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion, int32_t *patchVersion);
    aclError aclrtSetDevice(int32_t deviceId);
    aclError aclrtResetDevice(int32_t deviceId);
    aclError aclrtResetDeviceForce(int32_t deviceId);
    aclError aclrtGetDevice(int32_t *deviceId);
    aclError aclrtGetDeviceCount(uint32_t *count);
    aclError aclrtGetRunMode(aclrtRunMode *runMode);
    aclError aclrtSynchronizeDevice(void);
    aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId);
    aclError aclrtDestroyContext(aclrtContext context);
    aclError aclrtSetCurrentContext(aclrtContext context);
    aclError aclrtGetCurrentContext(aclrtContext *context);
    aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t value);
    aclError aclrtGetSysParamOpt(aclSysParamOpt opt, int64_t *value);
    aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value);
    aclError aclrtCtxGetSysParamOpt(aclSysParamOpt opt, int64_t *value);
    aclError aclrtCreateStream(aclrtStream *stream);
    aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag);
    aclError aclrtDestroyStream(aclrtStream stream);
    aclError aclrtDestroyStreamForce(aclrtStream stream);
    aclError aclrtSynchronizeStream(aclrtStream stream);
    aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout);
    aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status);
    aclError aclrtCreateEvent(aclrtEvent *event);
    aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
    aclError aclrtSynchronizeEvent(aclrtEvent event);
    aclError aclrtDestroyEvent(aclrtEvent event);
    aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
    aclError aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent);
    aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
    aclError aclrtMallocAlign32(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
    aclError aclrtMallocCached(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
    aclError aclrtFree(void *devPtr);
    aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free, size_t *total);
    aclError aclrtMallocHost(void **hostPtr, size_t size);
    aclError aclrtFreeHost(void *hostPtr);
    aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind);
    aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind,
        aclrtStream stream);
    aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count);
    aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream);
"""

_META = """
    aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType,
        const int64_t *stride, int64_t offset, aclFormat format, const int64_t *storageDims,
        uint64_t storageDimsNum, void *tensorData);
    aclScalar *aclCreateScalar(void *value, aclDataType dataType);
    aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size);
    aclFloatArray *aclCreateFloatArray(const float *value, uint64_t size);
    aclBoolArray *aclCreateBoolArray(const bool *value, uint64_t size);
    aclTensorList *aclCreateTensorList(const aclTensor *const *value, uint64_t size);
    aclScalarList *aclCreateScalarList(const aclScalar *const *value, uint64_t size);
    aclnnStatus aclDestroyTensor(const aclTensor *tensor);
    aclnnStatus aclDestroyScalar(const aclScalar *scalar);
    aclnnStatus aclDestroyIntArray(const aclIntArray *array);
    aclnnStatus aclDestroyFloatArray(const aclFloatArray *array);
    aclnnStatus aclDestroyBoolArray(const aclBoolArray *array);
    aclnnStatus aclDestroyTensorList(const aclTensorList *array);
    aclnnStatus aclDestroyScalarList(const aclScalarList *array);
    aclnnStatus aclGetViewShape(const aclTensor *tensor, int64_t **viewDims, uint64_t *viewDimsNum);
    aclnnStatus aclGetStorageShape(const aclTensor *tensor, int64_t **storageDims, uint64_t *storageDimsNum);
    aclnnStatus aclGetViewStrides(const aclTensor *tensor, int64_t **stridesValue, uint64_t *stridesValueNum);
    aclnnStatus aclGetViewOffset(const aclTensor *tensor, int64_t *offset);
    aclnnStatus aclGetFormat(const aclTensor *tensor, aclFormat *format);
    aclnnStatus aclGetDataType(const aclTensor *tensor, aclDataType *dataType);
    aclnnStatus aclGetIntArraySize(const aclIntArray *array, uint64_t *size);
    aclnnStatus aclGetFloatArraySize(const aclFloatArray *array, uint64_t *size);
    aclnnStatus aclGetBoolArraySize(const aclBoolArray *array, uint64_t *size);
    aclnnStatus aclGetTensorListSize(const aclTensorList *tensorList, uint64_t *size);
    aclnnStatus aclGetScalarListSize(const aclScalarList *scalarList, uint64_t *size);
    aclnnStatus aclInitTensor(aclTensor *tensor, const int64_t *viewDims, uint64_t viewDimsNum,
        aclDataType dataType, const int64_t *stride, int64_t offset, aclFormat format, const int64_t *storageDims,
        uint64_t storageDimsNum, void *tensorDataAddr);
    aclnnStatus aclSetRawTensorAddr(aclTensor *tensor, void *addr);
    aclnnStatus aclGetRawTensorAddr(const aclTensor *tensor, void **addr);
    aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor);
    aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor);
"""

# AclSet… is the older spelling of the same functions.
_SETTERS = "".join(
    f"aclnnStatus {prefix}Set{what}TensorAddr(aclOpExecutor *executor, {parameters}, void *addr);"
    for prefix in ("acl", "Acl")
    for kind, parameters in (
        ("", "const size_t index, aclTensor *tensor"),
        ("Dynamic", "size_t irIndex, const size_t relativeIndex, aclTensorList *tensors"),
    )
    for what in (f"{kind}Input", f"{kind}Output", kind)
)

_DUMP = """
    aclnnStatus aclDumpOpTensors(const char *opType, const char *opName, aclTensor **tensors, size_t inputTensorNum,
        size_t outputTensorNum, aclrtStream stream);
"""

_ACLNN_BASE = """
    aclnnStatus aclnnInit(const char *configPath);
    aclnnStatus aclnnFinalize(void);
"""

# What the graph engine's C++ headers call: not CANN's, whose engine is C++.
_GRAPH = """
    aclError lngradGraphInfer(const void *graph, size_t graphSize, void *facts, size_t factsSize);
    aclError lngradGraphRun(const void *graph, size_t graphSize);
"""

_TWO_PHASES = """
    aclnnStatus {0}GetWorkspaceSize({1}, uint64_t *workspaceSize, aclOpExecutor **executor);
    aclnnStatus {0}(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream);
"""

_FIRST_PHASE = """Check a call, and decide how much workspace it takes. Returns (workspaceSize, executor, ret).

"""

_FORWARD = """
    input, const aclIntArray *normalizedShape, weightOptional, biasOptional, double eps, *out, *meanOutOptional,
    *rstdOutOptional"""

# CANN: outputs of the operators of root mean squares are const, too, by their pages.
_RMS_FORWARD = "x, gamma, double epsilon, yOut, rstdOut"

# What the first phase of each aclnn operator takes; its results and the second phase are alike. A name without a type is a
# `const aclTensor *`, and one with a star an `aclTensor *`.
OPERATORS: dict[str, str] = {
    "aclnnLayerNormBackward": """
    gradOut, input, const aclIntArray *normalizedShape, mean, rstd, weightOptional, biasOptional, const
    aclBoolArray *outputMask, *gradInputOut, *gradWeightOut, *gradBiasOut""",
    "aclnnLayerNorm": _FORWARD,
    "aclnnLayerNormWithImplMode": f"{_FORWARD}, int32_t implMode",
    "aclnnFastLayerNorm": _FORWARD,
    "aclnnLayerNormalizationGrad": "dy, x, gamma, mean, rstd, *dx, *dgamma, *dbeta",
    "aclnnRmsNorm": _RMS_FORWARD,
    "aclnnRmsNormGrad": "dy, x, rstd, gamma, dxOut, dgammaOut",
    "aclnnGemmaRmsNorm": _RMS_FORWARD,
    "aclnnAddRmsNorm": "x1, x2, gamma, double epsilon, *yOut, *rstdOut, *xOut",
    "aclnnAddLayerNorm": """
    x1, x2, gamma, beta, biasOptional, double epsilon, bool additionalOutput, yOut, meanOut, rstdOut, xOut""",
    "aclnnAddLayerNormGrad": "dy, x1, x2, rstd, mean, gamma, dsumOptional, dxOut, dgammaOut, dbetaOut",
    "aclnnDeepNorm": "x, gx, beta, gamma, double alpha, double epsilon, meanOut, rstdOut, yOut",
    "aclnnDeepNormGrad": "dy, x, gx, gamma, mean, rstd, double alpha, dxOut, dgxOut, dbetaOut, dgammaOut",
    "aclnnAddRmsNormCast": "x1, x2, gamma, double epsilon, y1Out, y2Out, rstdOut, xOut",
    "aclnnFusedAddRmsNorm": "x1, x2, gamma, double epsilon, double scale, yOut, rstdOut, xOut",
    "aclnnAdaLayerNorm": "x, scale, shift, weightOptional, biasOptional, double epsilon, *out",
    "aclnnAdaLayerNormV2": """
    x, scale, shift, weightOptional, biasOptional, double epsilon, *out, *meanOutOptional, *rstdOutOptional""",
    "aclnnRmsNormQuant": "x, gamma, beta, scale, offset, double epsilon, *y",
    "aclnnAddRmsNormQuant": """
    x1, x2, gamma, scales1, scales2Optional, zeroPoints1Optional, zeroPoints2Optional, int64_t axis, double
    epsilon, bool divMode, *y1Out, *y2Out, *xOut""",
    "aclnnLayerNormQuant": "x, gamma, beta, scale, zeroPointsOptional, int quantMode, double epsilon, *res, *scaleOut",
    "aclnnInplaceAddRmsNorm": "*x1Ref, *x2Ref, gamma, double epsilon, rstdOut",
}


def _header(name: str) -> str:
    """The header that declares an operator, which is called after it, or after the one that it is a variant of."""
    words = re.sub("(?<=[a-z])(?=[A-Z])", "_", name.replace("Fast", "").removesuffix("WithImplMode"))
    return f"aclnnop/{words.lower()}.h"


def _read(text: str) -> tuple[Function, ...]:
    return tuple(parse(prototype) for prototype in text.split(";") if prototype.strip())


HEADERS: dict[str, tuple[Function, ...]] = {
    "acl/acl_base_rt.h": _read(_BASE),
    "acl/acl_rt.h": _read(_RUNTIME),
    "aclnn/acl_meta.h": _read(_META + _SETTERS + _DUMP),
    "aclnn/aclnn_base.h": _read(_ACLNN_BASE),
}
for _name, _parameters in OPERATORS.items():
    _typed = re.sub(r"(^|, )(?=\w+(,|$))", r"\1const aclTensor *", " ".join(_parameters.split()))
    _typed = re.sub(r"(^|, )\*(?=\w+(,|$))", r"\1aclTensor *", _typed)
    HEADERS[_header(_name)] = HEADERS.get(_header(_name), ()) + _read(_TWO_PHASES.format(_name, _typed))
HEADERS["lngrad/graph_engine.h"] = _read(_GRAPH)  # last: folders that are there know functions by number

FUNCTIONS: dict[str, Function] = {function.name: function for functions in HEADERS.values() for function in functions}


def add_to_docstrings(functions: Iterable[object]) -> None:
    """Add what nobody writes twice and `help` has: to first phases how all of them begin, and at the end C prototypes."""
    for function in functions:
        row = FUNCTIONS.get(getattr(function, "__name__", ""))
        if row is not None and function.__doc__:
            begin = _FIRST_PHASE if row.name.endswith("GetWorkspaceSize") else ""
            function.__doc__ = f"{begin}{inspect.cleandoc(function.__doc__)}\n\nC: ``{row.prototype}``"
