"""Names for what signatures take and return. Nothing here exists at run time but aliases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any  # torch is optional, and not imported for its name

__all__ = [
    "Address",
    "AnyArray",
    "Array",
    "Bytes",
    "Dtype",
    "HasArrayInterface",
    "HasDLPack",
    "Mask",
    "Shape",
    "Tensor",
    "Words",
]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array of any dtype; results of NumPy calls are."""

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
"""A NumPy array of uint8: a workspace."""

Words: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
"""A NumPy array of int64: a job for the kernels, addresses and sizes."""

Dtype: TypeAlias = np.dtype[Any]
"""A NumPy dtype, ml_dtypes' among them."""

Address: TypeAlias = int
"""Where an array's first element lies in memory; 0: there is none."""

Shape: TypeAlias = tuple[int, ...]
"""The sizes of an array's dimensions."""

Mask: TypeAlias = tuple[bool, ...]
"""Which of a call's results are wanted, such as dx, dgamma and dbeta."""


class HasArrayInterface(Protocol):
    """An array of another library that NumPy can view."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class HasDLPack(Protocol):
    """An array of another library that hands its memory over by DLPack."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...


AnyArray: TypeAlias = "Array | Tensor | HasArrayInterface | HasDLPack"
"""What a call of lngrad takes as an array."""
