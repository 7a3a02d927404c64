"""Global memory: the arrays that a kernel is launched on, as addresses, regions and typed tensors."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from lngrad.ascend.device.numerics import element_type
from lngrad.ascend.device.running import current_core
from lngrad.ascend.faults import BoundsFault, LifetimeFault
from lngrad.core.arrays import address_of
from lngrad.errors import DtypeError, ShapeError
from lngrad.typing import Array, Bytes, Dtype


class GlobalRegion:
    """A contiguous array in global memory.

    Attributes:
        start, stop: Addresses of its first byte and of the byte behind its last one: the host's, or those that a
            device has for it.
        data: Its bytes.
    """

    __slots__ = ("data", "name", "start", "stop")

    def __init__(self, array: Array, name: str, start: int | None = None) -> None:
        if not array.flags.c_contiguous:
            raise ShapeError(f"{name}: global memory must be contiguous, got strides {array.strides}")
        self.name = name
        self.data: Bytes = array.reshape(-1).view(np.uint8)
        self.start = address_of(array) if start is None else start
        self.stop = self.start + array.nbytes


class GlobalRegions:
    """The regions that a launch may touch, found by address: what a compiled kernel has of them."""

    def __init__(self, regions: list[GlobalRegion]) -> None:
        self._regions = sorted(regions, key=lambda region: region.start)
        self._starts = [region.start for region in self._regions]

    def find(self, api: str, address: int, nbytes: int) -> GlobalRegion:
        """Return the region that [address, address + nbytes) lies in.

        Raises:
            BoundsFault: None does; the text says how far away the nearest one is.
        """
        place = bisect_right(self._starts, address) - 1
        # Two arrays of a launch may be views of one memory, so that the nearest start is not the
        # only one.
        for region in reversed(self._regions[: place + 1]):
            if address + nbytes <= region.stop:
                return region
        nearest = self._regions[place] if place >= 0 else None
        where = f"; {nearest.name} ends {address + nbytes - nearest.stop} bytes before its end" if nearest else ""
        raise BoundsFault(
            f"{api}: {nbytes} bytes of global memory at {address:#x} belong to no array of the launch{where} "
            "[ErrorRead3, ErrorWrite2]"
        )


@dataclass(frozen=True)
class GlobalAddress:
    """What a kernel gets for an array (``GM_ADDR``): flat memory with a type, to which elements can be added."""

    array: Array
    name: str = "global memory"
    offset: int = 0

    def __add__(self, elements: int) -> GlobalAddress:
        return GlobalAddress(self.array, self.name, self.offset + elements)

    def __int__(self) -> int:
        return address_of(self.array) + self.offset * self.array.itemsize

    def ReinterpretCast(self, T: DTypeLike) -> GlobalAddress:
        """Return the same memory as another type (``reinterpret_cast<__gm__ T*>``).

        Raises:
            BoundsFault: The address is not a multiple of the type's size.
        """
        dtype = element_type("ReinterpretCast", T)
        first, old = self.offset * self.array.dtype.itemsize, self.array.reshape(-1)
        if first % dtype.itemsize:
            raise BoundsFault(f"{self.name}: byte {first} is not the start of an element of {dtype}")
        whole = old.view(np.uint8)[: old.nbytes // dtype.itemsize * dtype.itemsize].view(dtype)
        return GlobalAddress(whole, self.name, first // dtype.itemsize)


class GlobalTensor:
    """A window on global memory (``GlobalTensor<T>``).

    Args:
        dtype: T; None takes the type of the address. Raw bytes (a workspace) can become any type, else the two agree;
            ``GlobalAddress.ReinterpretCast`` changes the type on purpose.
    """

    __slots__ = ("_end", "_region", "_start", "dtype", "name")

    def __init__(self, dtype: DTypeLike | None = None) -> None:
        self.dtype: Dtype | None = None if dtype is None else element_type("GlobalTensor", dtype)
        self.name = "a GlobalTensor without SetGlobalBuffer"
        self._region: GlobalRegion | None = None
        self._start = self._end = 0

    def SetGlobalBuffer(self, buffer: GlobalAddress | Array, bufferSize: int | None = None) -> None:
        """Bind the tensor to memory.

        C prototype::

            void SetGlobalBuffer(__gm__ PrimType* buffer, uint64_t bufferSize)

        CANN: an array serves as an address, and a size past its end is refused here rather than at the access.
        """
        address = buffer if isinstance(buffer, GlobalAddress) else GlobalAddress(buffer)
        region = GlobalRegion(address.array, address.name)
        given = address.array.dtype
        wanted = given if self.dtype is None else self.dtype
        if given not in (wanted, np.uint8):
            raise DtypeError(f"{address.name}: holds {given}, the GlobalTensor is of {wanted}")
        start = address.offset * given.itemsize
        room = max(0, region.data.size - start) // wanted.itemsize
        size = room if bufferSize is None else bufferSize
        if size > room:
            raise BoundsFault(f"{address.name}: has {room} elements from here on, SetGlobalBuffer got {size}")
        self.dtype, self.name = wanted, address.name
        self._region, self._start, self._end = region, start, start + size * wanted.itemsize

    @classmethod
    def at(cls, region: GlobalRegion, start: int, end: int, dtype: Dtype) -> GlobalTensor:
        """Return the tensor of bytes [start, end) of a region."""
        tensor = cls.__new__(cls)
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
        whole = region.data[self._start % dtype.itemsize :]
        typed = whole[: whole.size // dtype.itemsize * dtype.itemsize].view(dtype)
        return GlobalAddress(typed, self.name, self._start // dtype.itemsize + offset)

    def bound(self, api: str) -> tuple[GlobalRegion, Dtype]:
        """Return the memory and T.

        Raises:
            LifetimeFault: SetGlobalBuffer was not called.
        """
        if self._region is None or self.dtype is None:
            raise LifetimeFault(f"{api}: {self.name}")
        return self._region, self.dtype

    def window(self, api: str, first: int, count: int) -> tuple[GlobalRegion, int, int]:
        """Return the region and the byte range of elements [first, first + count).

        Raises:
            BoundsFault: There are fewer.
        """
        region, dtype = self.bound(api)
        start = self._start + first * dtype.itemsize
        stop = start + count * dtype.itemsize
        if stop > self._end or first < 0:
            raise BoundsFault(
                f"{api}: {self.name} has {self.GetSize()} elements from here on, the access takes {first + count} "
                "[ErrorRead3, ErrorWrite2]"
            )
        return region, start, stop

    def GetValue(self, offset: int) -> np.generic:
        """Return one element in T.

        C prototype: ``PrimType GetValue(const uint64_t offset) const``
        """
        return self._scalar("GetValue", offset, writing=False)[0]  # type: ignore[no-any-return]

    def SetValue(self, offset: int, value: float) -> None:
        """Set one element.

        C prototype: ``void SetValue(const uint64_t offset, PrimType value)``
        """
        self._scalar("SetValue", offset, writing=True)[0] = value

    def _scalar(self, api: str, offset: int, writing: bool) -> Array:
        region, start, stop = self.window(api, offset, 1)
        core = current_core.get()
        if core is not None:
            core.scalar_global(api, region, start, stop, writing)
        return region.data[start:stop].view(self.bound(api)[1])

    def ReinterpretCast(self, T: DTypeLike) -> GlobalTensor:
        """Return the same bytes as another type.

        C prototype: ``GlobalTensor<U> ReinterpretCast() const``
        """
        dtype = element_type("ReinterpretCast", T)
        region, _ = self.bound("ReinterpretCast")
        return self.at(region, self._start, self._end, dtype)

    def __getitem__(self, offset: int) -> GlobalTensor:
        region, dtype = self.bound("operator[]")
        if not 0 <= offset <= self.GetSize():
            raise BoundsFault(f"{self.name}: has {self.GetSize()} elements, got [{offset}]")
        return self.at(region, self._start + offset * dtype.itemsize, self._end, dtype)
