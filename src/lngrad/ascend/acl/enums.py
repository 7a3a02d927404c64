"""Enumerations of the Ascend host interfaces, each enumerator with its number.

As in C, every enumerator is also a plain name of this module: ``ACL_FLOAT`` is
``aclDataType.ACL_FLOAT``.

Source: acl_base_rt.h, acl_rt.h.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "aclDataType",
    "aclFormat",
    "aclSysParamOpt",
    "aclrtFloatOverflowMode",
    "aclrtMemAttr",
    "aclrtMemMallocPolicy",
    "aclrtMemcpyKind",
    "aclrtRunMode",
    "aclrtStreamStatus",
]


class aclDataType(IntEnum):
    """The element type of an aclTensor."""

    ACL_DT_UNDEFINED = -1
    ACL_FLOAT = 0
    ACL_FLOAT16 = 1
    ACL_INT8 = 2
    ACL_INT32 = 3
    ACL_UINT8 = 4
    ACL_INT16 = 6
    ACL_UINT16 = 7
    ACL_UINT32 = 8
    ACL_INT64 = 9
    ACL_UINT64 = 10
    ACL_DOUBLE = 11
    ACL_BOOL = 12
    ACL_STRING = 13
    ACL_COMPLEX64 = 16
    ACL_COMPLEX128 = 17
    ACL_BF16 = 27
    ACL_INT4 = 29
    ACL_UINT1 = 30
    ACL_COMPLEX32 = 33
    ACL_HIFLOAT8 = 34
    ACL_FLOAT8_E5M2 = 35
    ACL_FLOAT8_E4M3FN = 36
    ACL_FLOAT8_E8M0 = 37
    ACL_FLOAT6_E3M2 = 38
    ACL_FLOAT6_E2M3 = 39
    ACL_FLOAT4_E2M1 = 40
    ACL_FLOAT4_E1M2 = 41


class aclFormat(IntEnum):
    """The data layout of an aclTensor. The formulas know ND alone and read every layout of the list
    as it.
    """

    ACL_FORMAT_UNDEFINED = -1
    ACL_FORMAT_NCHW = 0
    ACL_FORMAT_NHWC = 1
    ACL_FORMAT_ND = 2
    ACL_FORMAT_NC1HWC0 = 3
    ACL_FORMAT_FRACTAL_Z = 4
    ACL_FORMAT_NC1HWC0_C04 = 12
    ACL_FORMAT_HWCN = 16
    ACL_FORMAT_NDHWC = 27
    ACL_FORMAT_FRACTAL_NZ = 29
    ACL_FORMAT_NCDHW = 30
    ACL_FORMAT_NDC1HWC0 = 32
    ACL_FRACTAL_Z_3D = 33
    ACL_FORMAT_NC = 35
    ACL_FORMAT_NCL = 47
    ACL_FORMAT_FRACTAL_NZ_C0_16 = 50
    ACL_FORMAT_FRACTAL_NZ_C0_32 = 51
    ACL_FORMAT_FRACTAL_NZ_C0_2 = 52
    ACL_FORMAT_FRACTAL_NZ_C0_4 = 53
    ACL_FORMAT_FRACTAL_NZ_C0_8 = 54


class aclrtMemMallocPolicy(IntEnum):
    """Which pages aclrtMalloc prefers; here all memory is the same. The last three may be added to
    another.
    """

    ACL_MEM_MALLOC_HUGE_FIRST = 0
    ACL_MEM_MALLOC_HUGE_ONLY = 1
    ACL_MEM_MALLOC_NORMAL_ONLY = 2
    ACL_MEM_MALLOC_HUGE_FIRST_P2P = 3
    ACL_MEM_MALLOC_HUGE_ONLY_P2P = 4
    ACL_MEM_MALLOC_NORMAL_ONLY_P2P = 5
    ACL_MEM_MALLOC_HUGE1G_ONLY = 6
    ACL_MEM_MALLOC_HUGE1G_ONLY_P2P = 7
    ACL_MEM_TYPE_LOW_BAND_WIDTH = 0x0100
    ACL_MEM_TYPE_HIGH_BAND_WIDTH = 0x1000
    ACL_MEM_ACCESS_USER_SPACE_READONLY = 0x100000


class aclrtMemcpyKind(IntEnum):
    """From where to where aclrtMemcpy copies. DEFAULT: as the addresses say."""

    ACL_MEMCPY_HOST_TO_HOST = 0
    ACL_MEMCPY_HOST_TO_DEVICE = 1
    ACL_MEMCPY_DEVICE_TO_HOST = 2
    ACL_MEMCPY_DEVICE_TO_DEVICE = 3
    ACL_MEMCPY_DEFAULT = 4
    ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE = 5
    ACL_MEMCPY_INNER_DEVICE_TO_DEVICE = 6
    ACL_MEMCPY_INTER_DEVICE_TO_DEVICE = 7


class aclrtMemAttr(IntEnum):
    """Which memory aclrtGetMemInfo is to count; here all memory is the same."""

    ACL_DDR_MEM = 0
    ACL_HBM_MEM = 1
    ACL_DDR_MEM_HUGE = 2
    ACL_DDR_MEM_NORMAL = 3
    ACL_HBM_MEM_HUGE = 4
    ACL_HBM_MEM_NORMAL = 5
    ACL_DDR_MEM_P2P_HUGE = 6
    ACL_DDR_MEM_P2P_NORMAL = 7
    ACL_HBM_MEM_P2P_HUGE = 8
    ACL_HBM_MEM_P2P_NORMAL = 9
    ACL_HBM_MEM_HUGE1G = 10
    ACL_HBM_MEM_P2P_HUGE1G = 11
    ACL_MEM_NORMAL = 12
    ACL_MEM_HUGE = 13
    ACL_MEM_HUGE1G = 14
    ACL_MEM_P2P_NORMAL = 15
    ACL_MEM_P2P_HUGE = 16
    ACL_MEM_P2P_HUGE1G = 17


class aclrtFloatOverflowMode(IntEnum):
    """What a device does with a value too large for its type."""

    ACL_RT_OVERFLOW_MODE_SATURATION = 0
    ACL_RT_OVERFLOW_MODE_INFNAN = 1
    ACL_RT_OVERFLOW_MODE_UNDEF = 2


class aclrtRunMode(IntEnum):
    """Where the calling program runs: on the device's own CPU, or on the host."""

    ACL_DEVICE = 0
    ACL_HOST = 1


class aclrtStreamStatus(IntEnum):
    """Whether a stream has run everything that was submitted to it."""

    ACL_STREAM_STATUS_COMPLETE = 0
    ACL_STREAM_STATUS_NOT_READY = 1
    ACL_STREAM_STATUS_RESERVED = 0xFFFF


class aclSysParamOpt(IntEnum):
    """Which switch aclrtSetSysParamOpt sets."""

    ACL_OPT_DETERMINISTIC = 0
    ACL_OPT_ENABLE_DEBUG_KERNEL = 1
    ACL_OPT_STRONG_CONSISTENCY = 2
    ACL_OPT_ENABLE_KERNEL_EARLY_START = 3


for _enum in (
    aclDataType,
    aclFormat,
    aclrtMemMallocPolicy,
    aclrtMemcpyKind,
    aclrtMemAttr,
    aclrtFloatOverflowMode,
    aclrtRunMode,
    aclrtStreamStatus,
    aclSysParamOpt,
):
    globals().update(_enum.__members__)
    __all__ += list(_enum.__members__)
