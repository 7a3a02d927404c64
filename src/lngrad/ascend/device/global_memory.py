"""Global memory: the arrays that a kernel is launched on, as addresses and as typed tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from lngrad.ascend.faults import BoundsFault, LifetimeFault
from lngrad.errors import DtypeError, ShapeError
from lngrad.typing import Array, Dtype

__all__ = ["GlobalAddress", "GlobalTensor"]


@dataclass(frozen=True)
class GlobalAddress:
    """What a kernel gets for an array (``GM_ADDR``): flat memory with a type, to which elements can be added."""

    array: Array
    name: str = "global memory"
    offset: int = 0

    def __add__(self, elements: int) -> GlobalAddress:
        return GlobalAddress(self.array, self.name, self.offset + elements)


class GlobalTensor:
    """A window on global memory (``GlobalTensor<T>``).

    Args:
        dtype: T; None takes the type of the address. Raw bytes (a workspace) can become any type, else the two agree.
    """

    def __init__(self, dtype: DTypeLike | None = None) -> None:
        self.dtype: Dtype | None = None if dtype is None else np.dtype(dtype)
        self.name = "a GlobalTensor without SetGlobalBuffer"
        self._memory: Array | None = None

    def SetGlobalBuffer(self, buffer: GlobalAddress | Array, bufferSize: int | None = None) -> None:
        """Bind the tensor to memory.

        C prototype::

            void SetGlobalBuffer(__gm__ PrimType* buffer, uint64_t bufferSize)

        CANN: an array serves as an address, and a size past its end is refused here rather than at the access.
        """
        address = buffer if isinstance(buffer, GlobalAddress) else GlobalAddress(buffer)
        memory = address.array
        if not memory.flags.c_contiguous:
            raise ShapeError(f"{address.name}: global memory must be contiguous, got strides {memory.strides}")
        flat = memory.reshape(-1)[address.offset :]
        wanted = flat.dtype if self.dtype is None else self.dtype
        if flat.dtype != wanted:
            if flat.dtype != np.uint8:
                raise DtypeError(f"{address.name}: holds {flat.dtype}, the GlobalTensor is of {wanted}")
            flat = flat[: flat.size // wanted.itemsize * wanted.itemsize].view(wanted)
        size = flat.size if bufferSize is None else bufferSize
        if size > flat.size:
            raise BoundsFault(f"{address.name}: has {flat.size} elements from here on, SetGlobalBuffer got {size}")
        self.dtype, self.name = wanted, address.name
        self._memory = flat[:size]

    def GetSize(self) -> int:
        """Return the number of elements. C prototype: ``uint64_t GetSize() const``."""
        return int(self._bound("GetSize").size)

    def _bound(self, api: str) -> Array:
        if self._memory is None:
            raise LifetimeFault(f"{api}: {self.name}")
        return self._memory

    def elements(self, api: str, count: int) -> Array:
        """Return the first ``count`` elements as a view.

        Raises:
            BoundsFault: there are fewer.
        """
        memory = self._bound(api)
        if count > memory.size:
            raise BoundsFault(f"{api}: {self.name} has {memory.size} elements from here on, the access takes {count}")
        return memory[:count]

    def GetValue(self, offset: int) -> float:
        """Return one element. C prototype: ``PrimType GetValue(const uint64_t offset) const``."""
        return float(self.elements("GetValue", offset + 1)[offset])

    def SetValue(self, offset: int, value: float) -> None:
        """Set one element. C prototype: ``void SetValue(const uint64_t offset, PrimType value)``."""
        self.elements("SetValue", offset + 1)[offset] = value

    def __getitem__(self, offset: int) -> GlobalTensor:
        memory = self._bound("operator[]")
        if not 0 <= offset <= memory.size:
            raise BoundsFault(f"{self.name}: has {memory.size} elements, got [{offset}]")
        rest = GlobalTensor(self.dtype)
        rest.name, rest._memory = self.name, memory[offset:]
        return rest
