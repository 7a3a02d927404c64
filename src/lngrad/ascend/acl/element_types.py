"""Element types: the NumPy dtype of each aclDataType, its size, and conversions of single float16
values.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from lngrad.ascend.acl.enums import aclDataType
from lngrad.typing import Dtype

# Types without an entry (strings, 4 and 6 bits, the 8-bit floats) make tensors that every interface
# refuses.
NUMPY_DTYPES: dict[aclDataType, Dtype] = {
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

_BYTES = {kind: dtype.itemsize for kind, dtype in NUMPY_DTYPES.items()} | {
    aclDataType.ACL_COMPLEX32: 4,
    aclDataType.ACL_HIFLOAT8: 1,
    aclDataType.ACL_FLOAT8_E5M2: 1,
    aclDataType.ACL_FLOAT8_E4M3FN: 1,
    aclDataType.ACL_FLOAT8_E8M0: 1,
}


def aclDataTypeSize(dataType: int) -> int:
    """Return the bytes of one element; 0 for an unknown type, a string, and types of less than a
    byte.

    C: ``size_t aclDataTypeSize(aclDataType dataType)``
    """
    return _BYTES.get(dataType, 0) if isinstance(dataType, int) else 0  # type: ignore[call-overload,no-any-return]


def aclFloat16ToFloat(value: int) -> float:
    """Return the number that 16 bits stand for; NaN for anything that is not 16 bits.

    C: ``float aclFloat16ToFloat(aclFloat16 value)``
    """
    if type(value) is not int or not 0 <= value < 1 << 16:
        return float("nan")
    return float(np.uint16(value).view(np.float16))


def aclFloatToFloat16(value: float) -> int:
    """Return the 16 bits of the nearest float16, ties to even; those of NaN for anything that is no
    number.

    C: ``aclFloat16 aclFloatToFloat16(float value)``
    """
    try:
        number = float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:  # an integer beyond every float
        number = math.inf if value > 0 else -math.inf
    with np.errstate(over="ignore"):
        return int(np.float32(number).astype(np.float16).view(np.uint16))
