"""The Unified Buffer of one block: its bytes, which of them hold values, and who owns what."""

from __future__ import annotations

import enum
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lngrad.ascend import soc as socs
from lngrad.ascend.faults import AscendWarning, CapacityFault

__all__ = ["Allocation", "Block", "Pipe", "State", "TPosition", "Tally", "UnifiedBuffer", "current_block"]


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
    """What one block did: bytes moved; instructions, calls of tile APIs and instructions inside these, by name."""

    bytes_in: int = 0
    bytes_out: int = 0
    instructions: Counter[str] = field(default_factory=Counter)
    tile_apis: Counter[str] = field(default_factory=Counter)
    api_instructions: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def within(self, api: str) -> Iterator[None]:
        """Count one call of a tile API, and what is issued meanwhile as its instructions."""
        before = self.instructions.total()
        yield
        self.tile_apis[api] += 1
        self.api_instructions[api] += self.instructions.total() - before


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

    def poison(self, start: int, stop: int) -> None:
        """Forget what was written to [start, stop)."""
        self.written[start:stop] = False
        self.stale = [entry for entry in self.stale if entry[0] < start or entry[1] > stop]

    def mark_stale(self, start: int, stop: int, text: str) -> None:
        """Warn with ``text`` when somebody reads of [start, stop) from now on."""
        self.stale.append((start, stop, text))

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
