"""The memory of one block of the simulated NPU: its Unified Buffer, and the tensors in it.

Every access goes through ``LocalTensor.read`` or ``LocalTensor.write``, and those enforce what a device does not check:
lifetime, queue state, bounds, 32-byte alignment, and that nobody reads bytes that were never written. The bytes
themselves are NumPy views, so that an instruction costs one NumPy call however long it is.
"""

from __future__ import annotations

import enum
import warnings
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lngrad.ascend import soc as socs
from lngrad.ascend.faults import (
    AlignmentFault,
    AscendWarning,
    BoundsFault,
    CapacityFault,
    LifetimeFault,
    PoisonFault,
    QueueFault,
)

__all__ = [
    "Allocation",
    "Block",
    "LocalTensor",
    "Pipe",
    "State",
    "TPosition",
    "Tally",
    "UnifiedBuffer",
    "current_block",
]

Array = NDArray[Any]


class TPosition(enum.Enum):
    """Where a tensor lies, as kernels name it. Only the vector positions are simulated; the cube's are not."""

    GM = "GM"
    VECIN = "VECIN"
    VECOUT = "VECOUT"
    VECCALC = "VECCALC"
    LCM = "LCM"
    A1 = "A1"
    A2 = "A2"
    B1 = "B1"
    B2 = "B2"
    C1 = "C1"
    C2 = "C2"
    CO1 = "CO1"
    CO2 = "CO2"


class Pipe(enum.Enum):
    """Which unit makes an access; the units run side by side on a device, and queues are what orders them."""

    MTE2 = "the copy from global memory"
    V = "the vector unit"
    MTE3 = "the copy to global memory"


class State(enum.Enum):
    """Where a piece of the Unified Buffer is in its life."""

    FREE = "free"
    ALLOCATED = "allocated"
    ENQUED = "in the queue"
    DEQUED = "taken from the queue"
    BUFFER = "a TBuf"


@dataclass
class Allocation:
    """A piece of the Unified Buffer with an owner.

    ``epoch`` counts the times it was handed out: a tensor of an earlier epoch is one that was freed.
    """

    name: str
    position: TPosition
    start: int
    size: int
    state: State
    epoch: int = 0


@dataclass
class Tally:
    """What one block did: bytes moved, instructions and tile APIs called, by name."""

    bytes_in: int = 0
    bytes_out: int = 0
    instructions: Counter[str] = field(default_factory=Counter)
    tile_apis: Counter[str] = field(default_factory=Counter)


class UnifiedBuffer:
    """The Unified Buffer of one block: its bytes, which of them were written, and who owns what.

    Args:
        soc: the SoC whose size and alignment hold.
        size: bytes, where it is not the SoC's (a scratch copy that the simulator compares with).
    """

    def __init__(self, soc: socs.Soc, size: int | None = None) -> None:
        self.soc = soc
        self.size = soc.ub_bytes if size is None else size
        self.data: NDArray[np.uint8] = np.full(self.size, 0xFF, np.uint8)  # NaN in every float format
        self.written: NDArray[np.bool_] = np.zeros(self.size, np.bool_)
        self.next_free = 0
        self.peak = 0
        self.tally = Tally()
        self.allocations: list[Allocation] = []
        self.stale: list[tuple[int, int, str]] = []

    def allocate(self, name: str, position: TPosition, size: int, state: State) -> Allocation:
        """Hand out the next ``size`` bytes, rounded up to whole blocks.

        Raises:
            CapacityFault: they do not fit.
        """
        size = -(-size // self.soc.block_bytes) * self.soc.block_bytes
        if self.next_free + size > self.size:
            taken = ", ".join(f"{a.name} {a.size}" for a in self.allocations) or "nothing"
            raise CapacityFault(
                f"{name}: {size} bytes do not fit, the Unified Buffer of {self.soc.name} has {self.size} bytes and "
                f"{self.next_free} are taken ({taken})"
            )
        allocation = Allocation(name, position, self.next_free, size, state)
        self.allocations.append(allocation)
        self.next_free += size
        self.peak = max(self.peak, self.next_free)
        return allocation

    def release_all(self) -> None:
        """Take everything back; tensors of before are dead."""
        for allocation in self.allocations:
            allocation.epoch += 1
            allocation.state = State.FREE
        self.allocations.clear()
        self.next_free = 0
        self.stale.clear()

    def pop_stack_buffer(self) -> LocalTensor:
        """Return what no allocation has taken, as the framework's temporary buffer (PopStackBuffer)."""
        rest = Allocation("the framework's temporary buffer", TPosition.LCM, self.next_free,
                          self.size - self.next_free, State.BUFFER)  # fmt: skip
        self.poison(rest.start, rest.start + rest.size)
        return LocalTensor(self, rest, np.dtype(np.uint8), rest.start, rest.size)

    def poison(self, start: int, stop: int) -> None:
        """Forget what was written to [start, stop)."""
        self.written[start:stop] = False
        self.stale = [entry for entry in self.stale if entry[0] < start or entry[1] > stop]

    def mark_stale(self, tensor: LocalTensor, count: int, text: str) -> None:
        """Warn with ``text`` when somebody reads the first ``count`` elements of ``tensor`` from now on."""
        self.stale.append((tensor.start, tensor.start + count * tensor.dtype.itemsize, text))

    def note_read(self, start: int, stop: int) -> None:
        """Give the warning of a stale range that is being read, once."""
        for entry in [e for e in self.stale if e[0] < stop and start < e[1]]:
            self.stale.remove(entry)
            warnings.warn(entry[2], AscendWarning, stacklevel=4)

    def note_write(self, start: int, stop: int) -> None:
        """Record that [start, stop) holds values now."""
        self.written[start:stop] = True
        if stop > self.peak:
            self.peak = stop
        if self.stale:
            self.stale = [entry for entry in self.stale if entry[0] < start or entry[1] > stop]


class LocalTensor:
    """A typed window on the Unified Buffer (``LocalTensor<T>``).

    Indexing follows C++: ``tensor[n]`` is the rest of the tensor from element n on; a slice is a window.
    Kernels get tensors from a TQue or a TBuf; nothing else constructs them.
    """

    __slots__ = ("_epoch", "allocation", "dtype", "nbytes", "start", "ub")

    def __init__(
        self, ub: UnifiedBuffer, allocation: Allocation, dtype: np.dtype[Any], start: int, nbytes: int
    ) -> None:
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

    def _window(self, start: int, nbytes: int, dtype: np.dtype[Any]) -> LocalTensor:
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

    def overlaps(self, other: LocalTensor) -> bool:
        """Return whether the two share a byte."""
        same = self.ub is other.ub
        return same and self.start < other.start + other.nbytes and other.start < self.start + self.nbytes


@dataclass
class Block:
    """One block of a launch: its index, its Unified Buffer, and the global bytes that it wrote.

    Attributes:
        global_writes: (first byte, byte behind the last, name) by address, for the check across blocks.
    """

    index: int
    count: int
    ub: UnifiedBuffer
    global_writes: list[tuple[int, int, str]] = field(default_factory=list)
    pipes: list[Any] = field(default_factory=list)


current_block: ContextVar[Block | None] = ContextVar("current_block", default=None)
