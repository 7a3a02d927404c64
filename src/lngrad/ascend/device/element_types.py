"""The element types of tensors: NumPy's dtype for C++'s T, and the code that descriptors carry."""

from __future__ import annotations

import typing

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from lngrad.errors import DtypeError
from lngrad.typing import Dtype

BFLOAT16_DTYPE = np.dtype(ml_dtypes.bfloat16)
# The code of a type in a descriptor is its place here; a compiled front has the same list.
CPP_NAMES = (
    "half", "float", "bfloat16_t", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t",
    "uint64_t",
)  # fmt: skip
DTYPES: tuple[Dtype, ...] = (
    np.dtype(np.float16), np.dtype(np.float32), BFLOAT16_DTYPE, np.dtype(np.int8), np.dtype(np.uint8),
    np.dtype(np.int16), np.dtype(np.uint16), np.dtype(np.int32), np.dtype(np.uint32), np.dtype(np.int64),
    np.dtype(np.uint64),
)  # fmt: skip
CODES: dict[Dtype, int] = {dtype: code for code, dtype in enumerate(DTYPES)}
HALF, FLOAT, BFLOAT16, INT16, INT32 = (
    CPP_NAMES.index(n) for n in ("half", "float", "bfloat16_t", "int16_t", "int32_t")
)

# C++'s float and int are 32 bits wide; NumPy reads Python's as 64.
_PYTHON: dict[object, Dtype] = {float: np.dtype(np.float32), int: np.dtype(np.int32)}


def element_type(api: str, T: DTypeLike) -> Dtype:
    """Return the dtype of T. Python's ``float`` and ``int`` mean C++'s: 32 bits.

    Raises:
        DtypeError: The vector core has no such type, as float64.
    """
    if typing.get_origin(T) is typing.Annotated:  # int64 and the like of the tiling structs
        field: Dtype = np.dtype(typing.get_args(T)[1])
        return field
    known = _PYTHON.get(T) if isinstance(T, type) else None
    dtype = np.dtype(T) if known is None else known
    if dtype not in CODES:
        raise DtypeError(f"{api}: T must be one of {', '.join(CPP_NAMES)}, got {dtype}")
    return dtype
