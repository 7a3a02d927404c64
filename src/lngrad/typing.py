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

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]  # any dtype
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]  # a workspace
Words: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]  # a job: addresses and sizes
Dtype: TypeAlias = np.dtype[Any]
Address: TypeAlias = int  # where an array's first element lies; 0: there is none
Shape: TypeAlias = tuple[int, ...]
Mask: TypeAlias = tuple[bool, bool, bool]  # which of three results are wanted


class HasArrayInterface(Protocol):
    """An array of another library that NumPy can view."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class HasDLPack(Protocol):
    """An array of another library that hands its memory over by DLPack."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...


AnyArray: TypeAlias = "Array | Tensor | HasArrayInterface | HasDLPack"
