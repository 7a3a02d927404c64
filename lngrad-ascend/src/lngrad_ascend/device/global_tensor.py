"""Tensors in global memory: typed windows on the arrays of a launch."""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import DTypeLike

from lngrad.errors import DtypeError
from lngrad.typing import Array, Dtype
from lngrad_ascend.device.core import Core, current_core
from lngrad_ascend.device.global_memory import GlobalAddress, GlobalRegion
from lngrad_ascend.device.numerics import element_type
from lngrad_ascend.faults import BoundsFault, LifetimeFault


class CacheMode(enum.IntEnum):
    """Whether a GlobalTensor's copies go through the L2 cache."""

    CACHE_MODE_NORMAL, CACHE_MODE_DISABLE = range(2)


def too_far(core: Core | None, api: str, region: GlobalRegion, room: int, taken: int, stop: int) -> BoundsFault | None:
    """Return the fault of ``taken`` elements, up to byte ``stop``, of a tensor that has ``room``.

    CANN: its checker and a device do not know the size that SetGlobalBuffer was given: inside the memory it is a warning.
    """
    text = f"{api}: {region.name} has {room} elements from here on, the access takes {taken}"
    if core is None or stop > region.data.size:
        return BoundsFault(f"{text} [ErrorRead3, ErrorWrite2]")
    core.warn(f"{text}; SetGlobalBuffer got that size, the memory goes on")
    return None


class GlobalTensor:
    """A window on global memory (``GlobalTensor<T>``).

    Args:
        dtype: T; None takes the type of the address. Raw bytes (a workspace) can become any type, else the two agree;
            ``GlobalAddress.ReinterpretCast`` changes the type on purpose.
    """

    __slots__ = ("_end", "_region", "_start", "bypass", "dtype", "name")

    def __init__(self, dtype: DTypeLike | None = None) -> None:
        self.dtype: Dtype | None = None if dtype is None else element_type("GlobalTensor", dtype)
        self.name = "a GlobalTensor without SetGlobalBuffer"
        self._region: GlobalRegion | None = None
        self._start = self._end = 0
        self.bypass = False  # whether its copies pass the L2 cache by, which only their time depends on

    def SetGlobalBuffer(self, buffer: GlobalAddress | Array, bufferSize: int | None = None) -> None:
        """Bind the tensor to memory.

        C prototype::

            void SetGlobalBuffer(__gm__ PrimType* buffer, uint64_t bufferSize)

        A size of 0 is no size: the tensor reaches to the end of the array, as without one.

        CANN: an array serves as an address, and a size past its end is refused here rather than at the access.
        """
        address = buffer if isinstance(buffer, GlobalAddress) else GlobalAddress(buffer)
        region = GlobalRegion(address.array, address.name)
        held = address.array.dtype
        wanted = held if self.dtype is None else self.dtype
        if held not in (wanted, np.uint8):
            raise DtypeError(f"{address.name}: holds {held}, the GlobalTensor is of {wanted}")
        start = address.offset * held.itemsize
        room = max(0, region.data.size - start) // wanted.itemsize
        size = bufferSize or room
        if size > room:
            raise BoundsFault(f"{address.name}: has {room} elements from here on, SetGlobalBuffer got {size}")
        self.dtype, self.name = wanted, address.name
        self._region, self._start, self._end = region, start, start + size * wanted.itemsize

    @classmethod
    def at(cls, region: GlobalRegion, start: int, end: int, dtype: Dtype, bypass: bool = False) -> GlobalTensor:
        """Return the tensor of bytes [start, end) of a region."""
        tensor = cls.__new__(cls)
        tensor.bypass = bypass
        tensor.dtype, tensor.name = dtype, region.name
        tensor._region, tensor._start, tensor._end = region, start, end
        return tensor

    def GetSize(self) -> int:
        """Return the number of elements. C prototype: ``uint64_t GetSize() const``."""
        _, dtype = self.bound("GetSize")
        return (self._end - self._start) // dtype.itemsize

    def GetPhyAddr(self, offset: int = 0) -> GlobalAddress:
        """Return the address of element ``offset``, to which elements can be added.

        C prototype: ``const __gm__ T* GetPhyAddr(const uint64_t offset) const``
        """
        region, dtype = self.bound("GetPhyAddr")
        aligned = region.data[self._start % dtype.itemsize :]
        typed = aligned[: aligned.size // dtype.itemsize * dtype.itemsize].view(dtype)
        return GlobalAddress(typed, self.name, self._start // dtype.itemsize + offset)

    def bound(self, api: str) -> tuple[GlobalRegion, Dtype]:
        """Return the memory and T. Raises LifetimeFault if SetGlobalBuffer was not called."""
        if self._region is None or self.dtype is None:
            raise LifetimeFault(f"{api}: {self.name}")
        return self._region, self.dtype

    def extent(self, api: str) -> tuple[GlobalRegion, int, int]:
        """Return the region and the byte range of its whole elements."""
        region, dtype = self.bound(api)
        return region, self._start, self._end - (self._end - self._start) % dtype.itemsize

    def window(self, api: str, first: int, count: int) -> tuple[GlobalRegion, int, int]:
        """Return the region and the byte range of elements [first, first + count). Raises BoundsFault if there are fewer."""
        region, dtype = self.bound(api)
        start = self._start + first * dtype.itemsize
        stop = start + count * dtype.itemsize
        if stop > self._end or first < 0:
            last = stop if first >= 0 else region.stop
            fault = too_far(current_core.get(), api, region, self.GetSize(), first + count, last)
            if fault is not None:
                raise fault
        return region, start, stop

    def GetValue(self, offset: int) -> np.generic:
        """Return one element in T. C prototype: ``PrimType GetValue(const uint64_t offset) const``."""
        return self._scalar("GetValue", offset, writing=False)[0]  # type: ignore[no-any-return]

    def SetValue(self, offset: int, value: float) -> None:
        """Set one element. C prototype: ``void SetValue(const uint64_t offset, PrimType value)``."""
        place = self._scalar("SetValue", offset, writing=True)
        if (core := current_core.get()) is not None:
            core.writes(place, value)
        place[0] = value

    def _scalar(self, api: str, offset: int, writing: bool) -> Array:
        region, start, stop = self.window(api, offset, 1)
        if writing:
            region.check_writable(api)
        core = current_core.get()
        if core is not None:
            core.scalar_global(api, region, start, stop, writing)
        return region.data[start:stop].view(self.bound(api)[1])

    def ReinterpretCast(self, T: DTypeLike) -> GlobalTensor:
        """Return the same bytes as another type. C prototype: ``GlobalTensor<U> ReinterpretCast() const``."""
        dtype = element_type("ReinterpretCast", T)
        region, _ = self.bound("ReinterpretCast")
        return self.at(region, self._start, self._end, dtype, self.bypass)

    def __getitem__(self, offset: int) -> GlobalTensor:
        region, dtype = self.bound("operator[]")
        if not 0 <= offset <= self.GetSize():
            raise BoundsFault(f"{self.name}: has {self.GetSize()} elements, got [{offset}]")
        return self.at(region, self._start + offset * dtype.itemsize, self._end, dtype, self.bypass)

    def moved(self, nbytes: int) -> GlobalTensor:
        """Return the tensor that starts so many bytes later; no rule is checked."""
        region, dtype = self.bound("DataCopy")
        return self.at(region, self._start + nbytes, self._end, dtype, self.bypass)

    def SetL2CacheHint(self, mode: int) -> None:
        """Say whether copies go through the L2 cache: CacheMode. C prototype: ``void SetL2CacheHint(CacheMode mode)``."""
        self.bypass = mode == CacheMode.CACHE_MODE_DISABLE
