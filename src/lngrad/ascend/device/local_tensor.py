"""Tensors in the Unified Buffer, and the rules of every access to them.

Every access goes through ``LocalTensor.read`` or ``LocalTensor.write``, and those enforce what a device does not check:
lifetime, queue state, bounds, 32-byte alignment, and that nobody reads bytes that were never written. The bytes
themselves are NumPy views, so that an instruction costs one NumPy call however long it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from lngrad.ascend.device.unified_buffer import Allocation, Pipe, State, TPosition, UnifiedBuffer
from lngrad.ascend.faults import AlignmentFault, BoundsFault, LifetimeFault, PoisonFault, QueueFault
from lngrad.typing import Array, Dtype

__all__ = ["LocalTensor", "pop_stack_buffer"]


class LocalTensor:
    """A typed window on the Unified Buffer (``LocalTensor<T>``).

    Indexing follows C++: ``tensor[n]`` is the rest of the tensor from element n on; a slice is a window.
    Kernels get tensors from a TQue or a TBuf; nothing else constructs them.
    """

    __slots__ = ("_epoch", "allocation", "dtype", "nbytes", "start", "ub")

    def __init__(self, ub: UnifiedBuffer, allocation: Allocation, dtype: Dtype, start: int, nbytes: int) -> None:
        self.ub = ub
        self.allocation = allocation
        self.dtype = dtype
        self.start = start
        self.nbytes = nbytes
        self._epoch = allocation.epoch

    def __repr__(self) -> str:
        return f"LocalTensor({self.describe()}, {self.GetSize()} x {self.dtype})"

    def describe(self) -> str:
        """Return the owner and the place, for texts."""
        return f"{self.allocation.name} at byte {self.start}"

    def GetSize(self) -> int:
        """Return the number of elements. C prototype: ``uint32_t GetSize() const``."""
        return self.nbytes // self.dtype.itemsize

    def SetSize(self, size: int) -> None:
        """Set the number of elements. C prototype: ``void SetSize(const uint32_t size)``.

        CANN: refused past the end of the allocation; a device lets it pass.
        """
        self._within("SetSize", "this", self.start, size * self.dtype.itemsize, self.allocation_end)
        self.nbytes = size * self.dtype.itemsize

    def GetPhyAddr(self) -> int:
        """Return the byte address in the Unified Buffer. C prototype: ``uint64_t GetPhyAddr() const``."""
        return self.start

    def GetPosition(self) -> TPosition:
        """Return the position. C prototype: ``int32_t GetPosition() const``."""
        return self.allocation.position

    def ReinterpretCast(self, dtype: DTypeLike) -> LocalTensor:
        """Return the same bytes as another type. C prototype: ``LocalTensor<CAST_T> ReinterpretCast() const``."""
        return self._window(self.start, self.nbytes, np.dtype(dtype))

    def GetValue(self, index: int) -> float:
        """Return one element. C prototype: ``PrimType GetValue(const uint32_t index) const``."""
        return float(self[index].read("GetValue", "this", 1, aligned=False)[0])

    def SetValue(self, index: int, value: float) -> None:
        """Set one element. C prototype: ``void SetValue(const uint32_t index, const T1 value) const``."""
        self[index].write("SetValue", "this", 1, aligned=False)[0] = value

    def __getitem__(self, index: int | slice) -> LocalTensor:
        first = index if isinstance(index, int) else (index.start or 0)
        last = self.GetSize() if isinstance(index, int) or index.stop is None else index.stop
        if isinstance(index, slice) and index.step not in (None, 1):
            raise BoundsFault(f"{self.describe()}: a slice has step 1, got {index.step}")
        if not 0 <= first <= last <= self.GetSize():
            raise BoundsFault(f"{self.describe()}: has {self.GetSize()} elements, got [{first}:{last}]")
        size = self.dtype.itemsize
        return self._window(self.start + first * size, (last - first) * size, self.dtype)

    @property
    def is_dead(self) -> bool:
        """Whether the memory was given back since this tensor was handed out."""
        return self.allocation.epoch != self._epoch or self.allocation.state is State.FREE

    @property
    def allocation_end(self) -> int:
        """The first byte behind the piece of the Unified Buffer that this tensor lies in."""
        return self.allocation.start + self.allocation.size

    def _window(self, start: int, nbytes: int, dtype: Dtype) -> LocalTensor:
        window = LocalTensor(self.ub, self.allocation, dtype, start, nbytes)
        window._epoch = self._epoch
        return window

    def _within(self, api: str, role: str, start: int, nbytes: int, end: int) -> None:
        if start + nbytes > end:
            raise BoundsFault(
                f"{api}: {role} ({self.describe()}) ends at byte {end}, the access reaches byte {start + nbytes}, "
                f"{start + nbytes - end} too far"
            )

    def _check(self, api: str, role: str, count: int, pipe: Pipe, aligned: bool, writing: bool) -> int:
        """Check one access of ``count`` elements and return the byte behind it."""
        allocation = self.allocation
        if allocation.epoch != self._epoch or allocation.state is State.FREE:
            raise LifetimeFault(f"{api}: {role} ({self.describe()}) was freed and must not be used any more")
        if allocation.state is State.ENQUED:
            raise LifetimeFault(f"{api}: {role} ({self.describe()}) waits in its queue, DeQue it first")
        if allocation.state is not State.BUFFER:
            self._check_order(api, role, pipe, writing)
        stop = self.start + count * self.dtype.itemsize
        if stop > self.start + self.nbytes:
            self._within(api, role, self.start, stop - self.start, self.start + self.nbytes)
        if aligned and self.start % self.ub.soc.block_bytes:
            raise AlignmentFault(
                f"{api}: {role} ({self.describe()}): an address must be a multiple of {self.ub.soc.block_bytes} "
                f"bytes, this one is {self.start % self.ub.soc.block_bytes} past it"
            )
        return stop

    def _check_order(self, api: str, role: str, pipe: Pipe, writing: bool) -> None:
        """Refuse what only works by luck on a device, because EnQue and DeQue are what makes one unit wait."""
        position, state = self.allocation.position, self.allocation.state
        fix = ""
        if position is TPosition.VECIN:
            if state is State.ALLOCATED and pipe is Pipe.V:
                fix = "EnQue and DeQue it between the copy and the computation"
            elif state is State.DEQUED and pipe is Pipe.MTE2:
                fix = "free it and allocate a new one before the next copy"
        elif position is TPosition.VECOUT:
            if state is State.ALLOCATED and pipe is Pipe.MTE3:
                fix = "EnQue and DeQue it between the computation and the copy"
            elif state is State.DEQUED and pipe is Pipe.V and writing:
                fix = "free it and allocate a new one before the next computation"
        if fix:
            raise QueueFault(f"{api}: {role} ({self.describe()}) is {state.value}, {pipe.value} must not use it: {fix}")

    def read(self, api: str, role: str, count: int, pipe: Pipe = Pipe.V, aligned: bool = True) -> Array:
        """Return the first ``count`` elements as a view to read.

        Raises:
            DeviceFault: one of the rules of this module; the text starts with ``api`` and ``role``.
        """
        stop = self._check(api, role, count, pipe, aligned, writing=False)
        written = self.ub.written[self.start : stop]
        # count_nonzero, not all(): 0.3 instead of 3.6 microseconds for 4 KiB, and every operand comes through here.
        if np.count_nonzero(written) != written.size:
            first = int(np.argmin(written))
            raise PoisonFault(
                f"{api}: {role} ({self.describe()}) was never written at element {first // self.dtype.itemsize}, "
                f"{written.size - np.count_nonzero(written)} of the {written.size} bytes read hold no value"
            )
        if self.ub.stale:
            self.ub.note_read(self.start, stop)
        return self.ub.data[self.start : stop].view(self.dtype)

    def write(self, api: str, role: str, count: int, pipe: Pipe = Pipe.V, aligned: bool = True) -> Array:
        """Return the first ``count`` elements as a view to fill; they count as written from here on."""
        stop = self._check(api, role, count, pipe, aligned, writing=True)
        self.ub.note_write(self.start, stop)
        return self.ub.data[self.start : stop].view(self.dtype)

    def mark_stale(self, count: int, text: str) -> None:
        """Warn with ``text`` when somebody reads of the first ``count`` elements from now on."""
        self.ub.mark_stale(self.start, self.start + count * self.dtype.itemsize, text)

    def overlaps(self, other: LocalTensor) -> bool:
        """Return whether the two share a byte."""
        same = self.ub is other.ub
        return same and self.start < other.start + other.nbytes and other.start < self.start + self.nbytes


def pop_stack_buffer(ub: UnifiedBuffer) -> LocalTensor:
    """Return what no allocation has taken, as the framework's temporary buffer (``PopStackBuffer``)."""
    start, size = ub.next_free, ub.size - ub.next_free
    rest = Allocation("the framework's temporary buffer", TPosition.LCM, start, size, State.BUFFER)
    ub.poison(start, start + size)
    return LocalTensor(ub, rest, np.dtype(np.uint8), start, size)
