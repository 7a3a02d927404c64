"""Accesses to global memory by all blocks of a launch, and the text of a race."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from lngrad.ascend.device.clock import Clock
from lngrad.ascend.device.pipes import PIPE_NAMES, PIPE_WORDS
from lngrad.ascend.device.source import site_text
from lngrad.ascend.device.spans import NOBODY, Instruction, Spans
from lngrad.ascend.device.timeline import race_svg
from lngrad.ascend.faults import RaceFault


class Runner(Protocol):
    """What is asked of a core about the order of its instructions."""

    @property
    def index(self) -> int: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def log(self) -> Iterable[Instruction]: ...

    @property
    def arrows(self) -> Iterable[tuple[Instruction, Instruction]]: ...

    def knows(self, pipe: int, other: Instruction, epoch: int) -> bool: ...


ADDRESSES = 1 << 64
Last = dict[tuple[int, int], tuple[int, Instruction]]  # (core, pipe) -> epoch, instruction


class GlobalSpan:
    """A range of global memory, and who touched it last.

    Attributes:
        writer, write_epoch: The last plain write; its core and pipe are in the instruction.
        atomics: The atomic adds since then. They need no order among each other.
        reads: The reads since then.
    """

    __slots__ = ("atomics", "live", "reads", "start", "stop", "write_epoch", "writer")

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.live = True
        self.writer, self.write_epoch = NOBODY, -1
        self.atomics: Last = {}
        self.reads: Last = {}

    def part(self, start: int, stop: int) -> GlobalSpan:
        """Return a piece of this span with the same history."""
        piece = GlobalSpan(start, stop)
        piece.writer, piece.write_epoch = self.writer, self.write_epoch
        piece.atomics, piece.reads = self.atomics.copy(), self.reads.copy()
        return piece


class GlobalOrder:
    """Who touched which global bytes during a launch. Addresses are those of the machine."""

    def __init__(self) -> None:
        self._spans = Spans(GlobalSpan, ADDRESSES)

    def note(
        self, core: Runner, place: tuple[int, int, str], instruction: Instruction, writing: bool, atomic: bool = False
    ) -> None:
        """Check one access against all earlier ones, and keep it.

        Args:
            core: The core that makes it.
            place: First address, address behind the last, name of the array.
            instruction: What makes it.
            writing: Whether it writes.
            atomic: Whether it adds atomically.

        Raises:
            RaceFault: Nothing orders it behind an earlier access.
        """
        start, stop, name = place
        pipe = instruction[1]
        key, entry = (core.index, pipe), (core.clock.now[pipe], instruction)
        spans = self._spans.cover(start, stop)
        for span in spans:
            earlier = [(*last, False) for last in span.reads.values()] if writing else []
            if not atomic:
                earlier += [(*last, True) for last in span.atomics.values()]
            if span.write_epoch >= 0:
                earlier.append((span.write_epoch, span.writer, True))
            for epoch, other, wrote in earlier:
                if not core.knows(pipe, other, epoch):
                    raise race(core, (other, wrote), (instruction, writing), _overlap(span, start, stop), name)
        if writing and not atomic:
            whole = self._spans.merge(start, stop)
            whole.writer, whole.write_epoch = instruction, entry[0]
            whole.atomics.clear()
            whole.reads.clear()
        else:
            for span in spans:
                (span.atomics if atomic else span.reads)[key] = entry


def _overlap(span: GlobalSpan, start: int, stop: int) -> int:
    return min(span.stop, stop) - max(span.start, start)


def race(
    core: Runner, earlier: tuple[Instruction, bool], later: tuple[Instruction, bool], nbytes: int, memory: str
) -> RaceFault:
    """Return the fault of two unordered accesses, each (instruction, whether it writes)."""
    (first, first_writes), (second, second_writes) = earlier, later
    one, other = PIPE_NAMES[first[1]], PIPE_NAMES[second[1]]
    if first[2] != second[2]:
        what = "both write" if first_writes and second_writes else "write and read"
        head = f"blocks {first[2]} and {second[2]} {what} the same {nbytes} bytes of {memory}"
        missing, code = "SyncAll, CrossCoreSetFlag and CrossCoreWaitFlag, or SetAtomicAdd for sums", "ErrorSync2"
    else:
        verbs = ["writes" if writes else "reads" for writes in (first_writes, second_writes)]
        head = f"{second[0]} {verbs[1]} {nbytes} bytes of {memory} that {first[0]} {verbs[0]}"
        if one == other:
            missing, code = f"PipeBarrier<PIPE_{one}>()", "ErrorSync1"
        else:
            event = f"HardEvent::{one}_{other}"
            missing, code = f"SetFlag<{event}> and WaitFlag<{event}> (or EnQue and DeQue)", "ErrorSync2"
    fault = RaceFault(
        f"{head}, and nothing orders the two: {first[0]} at {site_text(first[3])} ({PIPE_WORDS[first[1]]}), then "
        f"{second[0]} at {site_text(second[3])} ({PIPE_WORDS[second[1]]}). Missing between them: {missing} [{code}]"
    )
    fault.svg = race_svg(core.log, core.arrows, first, second)
    return fault
