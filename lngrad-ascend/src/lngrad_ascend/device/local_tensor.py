"""Tensors in the Unified Buffer: typed windows, whose every access goes through the core's checks."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from lngrad.typing import Array, Dtype
from lngrad_ascend.device.core import TEMPORARY, Core
from lngrad_ascend.device.descriptors import BLOCK_BYTES
from lngrad_ascend.device.numerics import CODES, element_type
from lngrad_ascend.device.pipes import S, V
from lngrad_ascend.device.unified_buffer import Allocation, State, TPosition
from lngrad_ascend.faults import BoundsFault, CapacityFault


class LocalTensor:
    """A typed window on the Unified Buffer (``LocalTensor<T>``).

    Indexing follows C++: ``tensor[n]`` is the rest of the tensor from element n on; a slice is a window. Kernels get
    tensors from a TQue or a TBuf; nothing else constructs them.

    Attributes:
        core: The core whose Unified Buffer it is.
        allocation: The piece that it lies in.
        handle: Which life of that piece it belongs to.
        dtype, code: T, and its code in descriptors.
        start, end: First byte, and the byte behind the last one.
    """

    __slots__ = ("allocation", "code", "core", "dtype", "end", "handle", "start")

    def __init__(self, core: Core, allocation: Allocation, dtype: Dtype, start: int, nbytes: int) -> None:
        self.core = core
        self.allocation = allocation
        self.handle = allocation.handle
        self.dtype = dtype
        self.code = CODES[dtype]
        self.start = start
        self.end = start + nbytes

    def __repr__(self) -> str:
        return f"LocalTensor({self.describe()}, {self.GetSize()} x {self.dtype})"

    def describe(self) -> str:
        """Return the owner and the place, for texts."""
        return f"{self.allocation.name} at byte {self.start}"

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.end - self.start

    def GetSize(self) -> int:
        """Return the number of elements. C prototype: ``uint32_t GetSize() const``."""
        return (self.end - self.start) // self.dtype.itemsize

    def SetSize(self, size: int) -> None:
        """Set the number of elements. C prototype: ``void SetSize(const uint32_t size)``.

        CANN: "checked" refuses what passes the end of the allocation; a device lets it pass.
        """
        stop, end = self.start + size * self.dtype.itemsize, self.allocation.start + self.allocation.size
        if stop > end:
            self.core.tolerate(
                BoundsFault(
                    f"SetSize: this ({self.describe()}) ends at byte {end}, the access reaches byte {stop}, "
                    f"{stop - end} too far"
                )
            )
        self.end = min(stop, self.core.ub.size)

    def GetPhyAddr(self, offset: int = 0) -> int:
        """Return the byte address of an element in the Unified Buffer.

        C prototypes: ``uint64_t GetPhyAddr() const`` and ``GetPhyAddr(const uint32_t offset) const``
        """
        return self.start + offset * self.dtype.itemsize

    def GetPosition(self) -> TPosition:
        """Return the position. C prototype: ``int32_t GetPosition() const``."""
        return self.allocation.position

    def ReinterpretCast(self, dtype: DTypeLike) -> LocalTensor:
        """Return the same bytes as another type.

        C prototype: ``LocalTensor<CAST_T> ReinterpretCast() const``
        """
        return self._window(self.start, self.end, element_type("ReinterpretCast", dtype))

    def GetValue(self, index: int) -> np.generic:
        """Return one element, in T.

        C prototype: ``PrimType GetValue(const uint32_t index) const``
        """
        place = self._scalar("GetValue", index, writing=False)
        return self.core.ub.typed[self.code][place]  # type: ignore[no-any-return]

    def SetValue(self, index: int, value: float) -> None:
        """Set one element.

        C prototype: ``void SetValue(const uint32_t index, const T1 value) const``
        """
        place = self._scalar("SetValue", index, writing=True)
        self.core.ub.typed[self.code][place] = value

    def _scalar(self, api: str, index: int, writing: bool) -> int:
        size = self.dtype.itemsize
        start = self.start + index * size
        core = self.core
        core.access(api, "this", (self.handle, start, start + size, self.end), size, S, writing)
        core.clock.after_scalar_access()
        return start // size

    def __getitem__(self, index: int | slice) -> LocalTensor:
        size = self.dtype.itemsize
        if not isinstance(index, slice):
            start = self.start + index * size
            if self.start <= start <= self.end:
                return self._window(start, self.end, self.dtype)
            index = slice(index, None)
        if index.step not in (None, 1):
            raise BoundsFault(f"{self.describe()}: a slice has step 1, got {index.step}")
        first, last = index.start or 0, self.GetSize() if index.stop is None else index.stop
        if not 0 <= first <= last <= self.GetSize():
            raise BoundsFault(f"{self.describe()}: has {self.GetSize()} elements, got [{first}:{last}]")
        return self._window(self.start + first * size, self.start + last * size, self.dtype)

    def _window(self, start: int, end: int, dtype: Dtype) -> LocalTensor:
        window = LocalTensor.__new__(LocalTensor)
        window.core, window.allocation, window.handle = self.core, self.allocation, self.handle
        window.dtype, window.code = dtype, self.code if dtype is self.dtype else CODES[dtype]
        window.start, window.end = start, end
        return window

    def read(
        self, api: str, role: str, count: int, aligned: bool = True, writing: bool = False, carries: bool = False
    ) -> Array:
        """Return the first ``count`` elements as a view to read, for code that is one instruction or many.

        ``carries``: whether the caller carries on which bytes have no value; else reading them is reported.

        Raises:
            DeviceFault: A rule of the memory is broken; the text starts with ``api`` and ``role``.
        """
        size = self.dtype.itemsize
        stop = self.start + count * size
        place = (self.handle, self.start, stop, self.end)
        self.core.access(api, role, place, BLOCK_BYTES if aligned else 1, V, writing, carries)
        if self.start % size:
            return self.core.ub.data[self.start : stop].view(self.dtype)
        return self.core.ub.typed[self.code][self.start // size : stop // size]

    def write(self, api: str, role: str, count: int, aligned: bool = True) -> Array:
        """Return the first ``count`` elements as a view to fill; they have values from here on."""
        return self.read(api, role, count, aligned, writing=True)

    def take(self, api: str, role: str, count: int, aligned: bool = True) -> tuple[Array, Array]:
        """Copy the first ``count`` elements, and for each byte of each why it has no value (``UnifiedBuffer.poison``)."""
        values = self.read(api, role, count, aligned, carries=True).copy()
        poison = self.core.ub.poison[self.start : self.start + values.nbytes]
        return values, poison.reshape(count, values.itemsize).copy()

    def put(self, api: str, role: str, values: Array, origins: Array, aligned: bool = True) -> None:
        """Write elements, of which some bytes have no value: what ``take`` returned, in another order."""
        self.write(api, role, values.size, aligned)[...] = values
        if origins.any():
            runs, ub = [(self.start, self.start + values.nbytes)], self.core.ub
            ub.poison[runs[0][0] : runs[0][1]] = origins.reshape(-1)
            ub.doubt(runs)

    def mark_stale(self, count: int, text: str) -> None:
        """Warn with ``text`` when somebody reads of the first ``count`` elements from now on."""
        self.core.ub.mark_stale(self.start, self.start + count * self.dtype.itemsize, text)

    def overlaps(self, other: LocalTensor) -> bool:
        """Return whether the two share a byte."""
        return self.core is other.core and self.start < other.end and other.start < self.end


def pop_stack_buffer(core: Core) -> LocalTensor:
    """Return what no allocation has taken, as the framework's temporary buffer (``PopStackBuffer``)."""
    ub = core.ub
    start, size = ub.next_free, ub.size - ub.next_free
    rest = Allocation(TEMPORARY, TPosition.LCM, start, size, State.BUFFER)
    ub.new_handle(rest)
    ub.forget(start, start + size)
    return LocalTensor(core, rest, np.dtype(np.uint8), start, size)


def memory_at(core: Core, position: TPosition, dtype: Dtype, start: int, nbytes: int) -> LocalTensor:
    """Return bytes of the Unified Buffer as a tensor, by their address: LocalMemAllocator and LocalTensor's constructor.

    Raises:
        CapacityFault: They reach past its end.
    """
    ub = core.ub
    if start < 0 or start + nbytes > ub.size:
        raise CapacityFault(f"LocalTensor: bytes {start} to {start + nbytes} of {ub.size} of the Unified Buffer")
    matching = (a for a in ub.allocations if (a.start, a.size, a.position) == (start, nbytes, position))
    piece = next(matching, None)
    if piece is None:
        piece = Allocation(f"the tensor at byte {start}", position, start, nbytes, State.BUFFER)
        ub.new_handle(piece)
        ub.allocations.append(piece)
        ub.next_free = max(ub.next_free, start + nbytes)
        ub.peak = max(ub.peak, ub.next_free)
    return LocalTensor(core, piece, dtype, start, nbytes)


def rest_of_buffer(core: Core, position: TPosition, dtype: Dtype) -> LocalTensor:
    """Return all that is free of the Unified Buffer as a tensor, without taking it: PopStackBuffer."""
    ub = core.ub
    start = -(-ub.next_free // 32) * 32
    rest = memory_at(core, position, dtype, start, ub.size - start)
    ub.next_free = start
    return rest
