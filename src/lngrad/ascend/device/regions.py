"""The memory that a launch may touch, as ranges of addresses."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from lngrad.ascend.faults import BoundsFault
from lngrad.errors import ShapeError
from lngrad.typing import Array, Bytes


class Region:
    """A contiguous array in global memory.

    Attributes:
        start, stop: Addresses of its first byte and of the byte behind its last one: the host's, or
            those that a device has for it.
        data: Its bytes.
    """

    __slots__ = ("data", "name", "start", "stop")

    def __init__(self, array: Array, name: str, start: int | None = None) -> None:
        if not array.flags.c_contiguous:
            raise ShapeError(f"{name}: global memory must be contiguous, got strides {array.strides}")
        self.name = name
        self.data: Bytes = array.reshape(-1).view(np.uint8)
        self.start = int(array.__array_interface__["data"][0]) if start is None else start
        self.stop = self.start + array.nbytes


class Regions:
    """The regions that a launch may touch, found by address: what a compiled kernel has of them."""

    def __init__(self, regions: list[Region]) -> None:
        self._regions = sorted(regions, key=lambda region: region.start)
        self._starts = [region.start for region in self._regions]

    def find(self, api: str, address: int, nbytes: int) -> Region:
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
