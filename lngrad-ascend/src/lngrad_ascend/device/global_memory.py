"""Global memory: the arrays that a kernel is launched on, as addresses and regions."""

from __future__ import annotations

import ctypes
import re
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from lngrad.errors import ShapeError
from lngrad.support.addresses import address_of
from lngrad.typing import Address, Array, Bytes
from lngrad_ascend.device.numerics import element_type
from lngrad_ascend.faults import BoundsFault


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

    def check_writable(self, api: str) -> None:
        """Raise BoundsFault if the memory is read-only."""
        if not self.data.flags.writeable:
            raise BoundsFault(f"{api}: {self.name} is read-only")


class GlobalRegions:
    """The regions that a launch may touch, found by address, which is all that a compiled kernel has."""

    def __init__(self, regions: list[GlobalRegion]) -> None:
        self._regions = sorted(regions, key=lambda region: region.start)
        self._starts = [region.start for region in self._regions]
        self._mapped: list[tuple[Address, Address]] = []  # the kernel's own memory, once somebody has asked

    def find(self, api: str, address: int, nbytes: int, code: Address = 0, size: int = 0) -> GlobalRegion:
        """Return the region that [address, address + nbytes) lies in. BoundsFault says how far away the nearest one is."""
        place = bisect_right(self._starts, address) - 1
        if place >= 0 and address + nbytes <= self._regions[place].stop:
            return self._regions[place]
        # Two arrays of a launch may be views of one memory, so that the nearest start is not the only one.
        for region in reversed(self._regions[: place + 1]):
            if address + nbytes <= region.stop:
                return region
        size = size or nbytes
        if constants := self._constants(address, size, code):
            return constants
        near = min(self._regions, key=lambda region: max(region.start - address, address - region.stop), default=None)
        if near is None or max(near.start - address, address - near.stop) >= 1 << 30:
            where = "no array is near" if address else "the address is null"
        elif address < near.start:
            where = f"{near.name} begins {near.start - address} bytes further on"
        else:
            where = f"{near.name} ends {address + size - near.stop} bytes before their end"
        raise BoundsFault(
            f"{api}: {size or 'the'} bytes of global memory at {address:#x} belong to no array of the launch; {where} "
            "[ErrorRead3, ErrorWrite2]"
        )

    def _constants(self, address: Address, nbytes: int, code: Address) -> GlobalRegion | None:
        """Return bytes of the file mapped at ``code``, where a kernel's `const __gm__` arrays lie; 0: all that follow."""
        for again in (False, True):
            self._mapped = _mapped(code) if again else self._mapped
            for stop in (stop for start, stop in self._mapped if start <= address < stop >= address + nbytes):
                memory = np.frombuffer(ctypes.string_at(address, nbytes or stop - address), np.uint8)  # read-only
                return GlobalRegion(memory, "the kernel's own memory", address)
        return None


def _mapped(code: Address) -> list[tuple[Address, Address]]:
    """Return the readable memory of the file that has a kernel's code."""
    maps = re.findall(r"^(\w+)-(\w+) r\S+ \S+ (\S+ \d+ +/.*)$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    places = [(int(start, 16), int(stop, 16), file) for start, stop, file in maps]
    own = next((file for start, stop, file in places if start <= code < stop), None)
    return [(start, stop) for start, stop, file in places if file == own]


@dataclass(frozen=True)
class GlobalAddress:
    """The address of an array as a kernel gets it (``GM_ADDR``): flat memory with a type, to which elements can be added."""

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
        typed = old.view(np.uint8)[: old.nbytes // dtype.itemsize * dtype.itemsize].view(dtype)
        return GlobalAddress(typed, self.name, first // dtype.itemsize)
