"""The Unified Buffer of one core: its bytes, which of them have a value, and who owns what."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lngrad.typing import Array, Bytes
from lngrad_ascend import soc as socs
from lngrad_ascend.device.numerics import DTYPES
from lngrad_ascend.device.pipes import READ_MTE3, READ_V, WRITE_MTE2, WRITE_V, Snapshot
from lngrad_ascend.device.races import Span, Spans
from lngrad_ascend.device.report import Instruction, Site, site_text
from lngrad_ascend.faults import CapacityFault


class TPosition(enum.Enum):
    """The position of a tensor, as kernels name it. Only the vector positions are simulated; the cube's are not."""

    __hash__ = object.__hash__  # every call of a queue looks one up; Enum's own is a function in Python
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


class State(enum.Enum):
    """The state of a piece of the Unified Buffer."""

    __hash__ = object.__hash__
    FREE = "free"
    ALLOCATED = "allocated"
    ENQUED = "in the queue"
    DEQUED = "taken from the queue"
    BUFFER = "a TBuf"


FREE, ALLOCATED, ENQUED, DEQUED, BUFFER = State  # an attribute of an Enum takes long
VECIN, VECOUT, VECCALC = TPosition.VECIN, TPosition.VECOUT, TPosition.VECCALC
UNUSED = (FREE, BUFFER)
MAX_ORIGINS = 256

# EnQue and DeQue are what makes one unit wait for another. What works without them only by luck:
_FORBIDDEN = {
    (TPosition.VECIN, State.ALLOCATED): READ_V | WRITE_V,
    (TPosition.VECIN, State.DEQUED): WRITE_MTE2,
    (TPosition.VECOUT, State.ALLOCATED): READ_MTE3,
    (TPosition.VECOUT, State.DEQUED): WRITE_V,
}


@dataclass(eq=False)
class Allocation:
    """A piece of the Unified Buffer with an owner.

    Attributes:
        handle: Number under which tensors of its present life know it; -1 when it is free. A tensor with another
            number is one that was freed.
        forbidden: Bits of what no unit may do in its present state.
        flag: What EnQue's flag says to be finished, until DeQue has waited for it; or FreeTensor's, until AllocTensor has.
        waits: The pipe that waits for it.
        pool: The TBufPool that it is of, if any.
    """

    name: str
    position: TPosition
    start: int
    size: int
    state: State
    handle: int = -1
    forbidden: int = 0
    flag: Snapshot | None = None
    waits: int = 0
    pool: Any = None

    def enter(self, state: State, checked: bool = True) -> None:
        """Change the state; ``checked``: whether the order of the queue is enforced."""
        self.state = state
        self.forbidden = _FORBIDDEN.get((self.position, state), 0) if checked else 0
        if checked and state is ENQUED:
            self.forbidden = READ_V | WRITE_V | WRITE_MTE2 | READ_MTE3


@dataclass
class Registers:
    """The special registers of the vector unit.

    Attributes:
        deq_scale: What Cast from int32 to half multiplies with (SetDeqScale).
        sum: Of the last ReduceSum (GetAccVal).
        extreme: The value and the place of the last ReduceMax or ReduceMin (GetReduceMaxMinCount).
        pad_value: What DataCopyPad pads with (SetPadValue), if it was set.
    """

    deq_scale: float = 1.0
    sum: float = 0.0
    extreme: tuple[float, int] = (0.0, 0)
    pad_value: float | None = None


@dataclass
class Origin:
    """The reason why bytes have no value, and the first instruction that read them."""

    text: str
    first: Instruction | None = None


class UnifiedBuffer:
    """The Unified Buffer of one core.

    Args:
        soc: The SoC whose size and alignment apply.
        size: Bytes, where it is not the SoC's (a scratch copy that the simulator compares with).

    Attributes:
        data: All bytes; 0xFF (NaN in every float format) where nothing was written.
        typed: The same bytes as arrays of each element type, by its code.
        handles: Every allocation by handle, also those that were freed.
        compared: Bytes behind the buffer, for the 128 bits of the last Compare without a dst.
        poison: For every byte 0, or the number of the origin of its having no value. Copies and computations carry it
            on; where it reaches global memory, an address or the scalar unit, it is reported. Above its 8 bits: those
            bits of Compare's dst that have a value for all that.
        padding: Bytes that DataCopyPad has filled up rows with, or that were computed of these; ``padded``: there are some.
        on_release: What is called when everything is taken back: queues forget their memory.
    """

    def __init__(self, soc: socs.Soc, size: int | None = None) -> None:
        self.soc = soc
        self.size = soc.ub_bytes if size is None else size
        room = self.size // soc.block_bytes * soc.block_bytes + soc.block_bytes
        self.data: Bytes = np.full(room, 0xFF, np.uint8)
        self.typed: tuple[Array, ...] = tuple(self.data.view(dtype) for dtype in DTYPES)
        self.spans = Spans(Span, room)
        self.poison = np.ones(room, np.uint16)
        self.padding = np.zeros(room, np.uint16)
        self.padded = False
        self._origins = [Origin("has a value"), Origin("was never written")]
        self._origin_numbers: dict[tuple[str, Site | None], int] = {}
        self.next_free = 0
        self.peak = 0
        self.allocations: list[Allocation] = []
        self.handles: list[Allocation] = []
        self.stale: list[tuple[int, int, str]] = []
        self.registers = Registers()
        start = room - soc.block_bytes
        self.compared = Allocation("the register of Compare", TPosition.VECCALC, start, soc.block_bytes, State.BUFFER)
        self.new_handle(self.compared)
        self.data[start:], self.poison[start:] = 0, 0
        self.on_release: list[Callable[[], None]] = []

    def allocate(self, name: str, position: TPosition, size: int, state: State) -> Allocation:
        """Take the next ``size`` bytes, rounded up to whole blocks. Raises CapacityFault if they do not fit."""
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

    def new_handle(self, allocation: Allocation) -> int:
        """Start a new life of an allocation: tensors of an earlier one are dead."""
        allocation.handle = len(self.handles)
        self.handles.append(allocation)
        return allocation.handle

    def release_all(self) -> None:
        """Take everything back; tensors of before are dead."""
        for allocation in self.allocations:
            allocation.handle = -1
            allocation.state = State.FREE
        self.allocations.clear()
        for forget in self.on_release:
            forget()
        self.on_release.clear()
        self.next_free = 0
        self.stale.clear()

    def forget(self, start: int, stop: int, text: str = "was never written", site: Site | None = None) -> None:
        """Let [start, stop) have no value, for the reason ``text`` and at ``site``; who touched it last stays known."""
        self.poison[start:stop] = self.origin_number(text, site)
        for span in self.spans.cover(start, stop):
            span.valid = False
        if self.stale:
            self.unmark_stale(((start, stop),))

    def origin_number(self, text: str, site: Site | None = None) -> int:
        """Return the number of ``poison`` for a reason why bytes have no value, ``text`` and at ``site``."""
        number = self._origin_numbers.get((text, site))
        if number is None:
            if len(self._origins) >= MAX_ORIGINS:
                self._origins[2:], self._origin_numbers = [], {}
            number = self._origin_numbers[text, site] = len(self._origins)
            self._origins.append(Origin(f"{text} at {site_text(site)}" if site else text))
        return number

    def pad(self, runs: Sequence[tuple[int, int]], number: int) -> None:
        """Note whether ranges are padding: 1 or 0."""
        self.padded = self.padded or bool(number)
        for start, stop in runs:
            self.padding[start:stop] = number

    def origin(self, number: int) -> Origin:
        """Return the origin of a number of ``poison``."""
        return self._origins[min(number % MAX_ORIGINS, len(self._origins) - 1)]

    def settle(self, spans: Sequence[Span]) -> bool:
        """Note which spans have a value throughout, and return whether all have."""
        complete = True
        for span in spans:
            if not span.valid:
                span.valid = not self.poison[span.start : span.stop].any()
                complete = complete and span.valid
        return complete

    def doubt(self, runs: Sequence[tuple[int, int]]) -> None:
        """Look again at ranges to which bytes without a value were carried."""
        for start, stop in runs:
            spans = self.spans.cover(start, stop)
            for span in spans:
                span.valid = False
            self.settle(spans)

    def give_value(self, span: Span) -> None:
        """Note that every byte of a span was written."""
        self.poison[span.start : span.stop] = 0
        span.valid = True

    def copy_to(self, start: int, stop: int, target: UnifiedBuffer, at: int) -> None:
        """Copy the bytes of [start, stop), and which of them have a value, to byte ``there`` of another buffer."""
        end = at + stop - start
        target.data[at:end] = self.data[start:stop]
        target.poison[at:end] = self.poison[start:stop] != 0
        spans = target.spans.cover(at, end)
        for span in spans:
            span.valid = False
        target.settle(spans)

    def mark_stale(self, start: int, stop: int, text: str) -> None:
        """Warn with ``text`` when somebody reads of [start, stop) from now on."""
        self.stale.append((start, stop, text))

    def take_stale(self, runs: Sequence[tuple[int, int]]) -> list[str]:
        """Return the warnings of the stale ranges that are being read, each once."""
        read = [e for e in self.stale if any(e[0] < stop and start < e[1] for start, stop in runs)]
        self.stale = [e for e in self.stale if e not in read]
        return [text for _, _, text in read]

    def unmark_stale(self, runs: Sequence[tuple[int, int]]) -> None:
        """Drop the stale ranges that are overwritten as a whole."""
        if self.stale:
            self.stale = [e for e in self.stale if not any(start <= e[0] and e[1] <= stop for start, stop in runs)]
