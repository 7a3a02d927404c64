"""Element types: names, NumPy's and torch's types for them, bytes, digits, and what sums of them are kept in.

Nothing here imports torch: a torch tensor in the caller's hands proves that torch is loaded already.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

DTYPES: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

# What sums and statistics are kept in.
ACCUMULATORS = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}

# Half the distance from 1 to the next larger number: the largest relative error of one rounding.
UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}

# The smallest positive number, a subnormal one.
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}


def accumulator_for(x: str, *parameters: str) -> str:
    """The name of the dtype that a call is computed in: float64 if x or a parameter has it, so that each converts exactly."""
    return "float64" if "float64" in (x, *parameters) else ACCUMULATORS[x]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name; bfloat16 is ml_dtypes'."""
    return DTYPES[name]


def dtype_name(dtype: Any) -> str | None:
    """The name of a NumPy or torch dtype, or None if it is none of DTYPES in native byte order."""
    if isinstance(dtype, np.dtype):
        return _NAMES.get(dtype)
    name = str(dtype).removeprefix("torch.")
    return name if name in DTYPES else None


def rounded(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """array.astype(dtype), rounded once: ml_dtypes would go from float64 to bfloat16 through float32, which is twice."""
    if array.dtype != DTYPES["float64"] or dtype != DTYPES["bfloat16"]:
        return array.astype(dtype, copy=False)
    near = array.astype(np.float32)
    back = near.astype(np.float64)
    inexact = (back != array) & ~np.isnan(array)
    # To odd: towards zero, and the last bit set where anything was lost. Rounding that is rounding the float64 itself.
    odd: np.ndarray[Any, Any] = (near.view(np.uint32) - (np.abs(back) > np.abs(array))) | inexact
    return odd.view(np.float32).astype(dtype)


def bytes_of(name: str) -> int:
    """Bytes of one element."""
    return DTYPES[name].itemsize


def contiguous_strides(shape: tuple[int, ...], itemsize: int = 1) -> tuple[int, ...]:
    """Strides of a row-major array: in bytes for an itemsize in bytes, in elements for 1."""
    steps, step = [], itemsize
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


@cache
def torch_dtype(name: str) -> Any:
    """The torch dtype of a name; torch must be loaded."""
    return getattr(sys.modules["torch"], name)


def to_torch(array: np.ndarray[Any, Any]) -> Any:
    """A CPU tensor on the memory of a writable NumPy array. torch takes no bfloat16 from NumPy: its bits go over as uint16."""
    torch = sys.modules["torch"]
    if array.dtype == DTYPES["bfloat16"]:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: Any) -> np.ndarray[Any, Any]:
    """A NumPy array on the memory of a CPU tensor, without its gradient."""
    torch = sys.modules["torch"]
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)  # type: ignore[no-any-return]
    return tensor.numpy()  # type: ignore[no-any-return]
