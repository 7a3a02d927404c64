"""The last accesses to bytes of the Unified Buffer and of global memory, and the fault of a race.

A span is a range of bytes that was always accessed as a whole. A read or a write of another range cuts the spans at
its ends; a write makes one span of what it covers. As kernels use the same few ranges again and again, an access
finds its span at once, and its cost does not depend on its length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from lngrad.typing import Bytes
from lngrad_ascend.device.pipes import PIPE_NAMES, PIPE_WORDS, PipeClock, S, Snapshot
from lngrad_ascend.device.report import NOBODY, Arrows, Instruction, race_svg, site_text
from lngrad_ascend.faults import RaceFault

NO_READS = (-1,) * 4
LINE_BYTES = 64  # of the scalar unit's data cache


@dataclass(eq=False, slots=True)
class Span:
    """A range of bytes of the Unified Buffer.

    Attributes:
        live: False once the span was cut or merged; its extent never changes.
        valid: Whether the bytes have a value.
        writer, write_epoch, writer_pipe: The last write.
        read_epochs, readers: By pipe, the last read.
    """

    start: int
    stop: int
    live: bool = True
    valid: bool = False
    writer: Instruction = NOBODY
    write_epoch: int = -1
    writer_pipe: int = 0
    read_epochs: list[int] = field(default_factory=[*NO_READS].copy)
    readers: list[Instruction] = field(default_factory=([NOBODY] * 4).copy)

    def cut(self, at: int) -> list[Span]:
        """Return two pieces of this span with the same history."""
        self.live = False
        return [
            Span(
                start, stop, True, self.valid, self.writer, self.write_epoch, self.writer_pipe, self.read_epochs.copy(),
                self.readers.copy(),
            )
            for start, stop in ((self.start, at), (at, self.stop))
        ]  # fmt: skip


T = TypeVar("T", Span, "GlobalSpan")


class Spans(Generic[T]):
    """All spans of a memory of ``size`` bytes, in order and without gaps."""

    def __init__(self, kind: type[T], size: int) -> None:
        self._kind: type[T] = kind
        self._starts = [0]
        self._spans: list[T] = [kind(0, size)]

    def cover(self, start: int, stop: int) -> list[T]:
        """Return the spans that make up [start, stop), cutting at its ends where needed."""
        if start >= stop:
            return []
        starts, spans = self._starts, self._spans
        first = bisect_right(starts, start) - 1
        if spans[first].start != start:
            self._cut(first, start)
            first += 1
        if spans[first].stop == stop:
            return [spans[first]]
        last = bisect_left(starts, stop)
        if spans[last - 1].stop != stop:
            self._cut(last - 1, stop)
        return spans[first:last]

    def merge(self, start: int, stop: int) -> T:
        """Return one span for [start, stop), whose spans ``cover`` has cut; their history is lost."""
        first = bisect_left(self._starts, start)
        if self._spans[first].stop == stop:
            return self._spans[first]
        last = bisect_left(self._starts, stop)
        for span in self._spans[first:last]:
            span.live = False
        merged = self._kind(start, stop)
        self._starts[first:last] = [start]
        self._spans[first:last] = [merged]
        return merged

    def __iter__(self) -> Iterator[T]:
        return iter(self._spans)

    def _cut(self, index: int, at: int) -> None:
        self._spans[index : index + 1] = self._spans[index].cut(at)
        self._starts.insert(index + 1, at)


ADDRESSES = 1 << 64
Last = dict[tuple[int, int], tuple[int, Instruction]]  # (core, pipe) -> epoch, instruction


READ, WRITE, ATOMIC = range(3)  # what an access does to global memory; atomic ones need no order among each other


@dataclass(eq=False, slots=True)
class GlobalSpan:
    """A range of global memory, and who touched it last.

    Attributes:
        writer, write_epoch: The last plain write; its core and pipe are in the instruction.
        atomics: The atomic writes since then.
        reads: The reads since then.
        cached: The SetValue that wrote it, as long as the bytes may be in a data cache alone.
        padding: Whether the bytes are what DataCopyPad filled a block up with.
    """

    start: int
    stop: int
    live: bool = True
    writer: Instruction = NOBODY
    write_epoch: int = -1
    cached: Instruction | None = None
    padding: bool = False
    atomics: Last = field(default_factory=dict)
    reads: Last = field(default_factory=dict)

    def cut(self, at: int) -> list[GlobalSpan]:
        """Cut its end off, and return it and a piece with the same history."""
        piece = GlobalSpan(
            at,
            self.stop,
            True,
            self.writer,
            self.write_epoch,
            self.cached,
            self.padding,
            self.atomics.copy(),
            self.reads.copy(),
        )
        self.stop = at
        return [self, piece]

    def earlier(self, kind: int) -> list[tuple[int, Instruction, bool]]:
        """Return epoch, instruction and whether it writes, of all that an access of this kind must come behind."""
        accesses = [(*last, False) for last in self.reads.values()] if kind != READ else []
        if kind != ATOMIC:
            accesses += [(*last, True) for last in self.atomics.values()]
        if self.write_epoch >= 0:
            accesses.append((self.write_epoch, self.writer, True))
        return accesses


class Conflict(NamedTuple):
    """The earlier access of a race: what made it, whether it writes, the bytes in common, and whether a data cache has them."""

    instruction: Instruction
    writes: bool
    nbytes: int
    cached: bool = False


class GlobalOrder:
    """The accesses to global memory during a launch. Addresses are those of the machine."""

    def __init__(self) -> None:
        self._spans = Spans(GlobalSpan, ADDRESSES)
        self._lines: dict[tuple[int, int], tuple[int, Instruction]] = {}  # of an array -> the last SetValue

    def note(self, clock: PipeClock, start: int, stop: int, instruction: Instruction, kind: int) -> Conflict | None:
        """Check one access against all earlier ones, and keep it where it is in order.

        Args:
            clock: Of the core that makes it.
            start, stop: First address, address behind the last.
            kind: READ, WRITE or ATOMIC.

        Returns:
            The access that nothing orders before this one, or None.
        """
        pipe, core = instruction[1], clock.index
        last = clock.now[pipe], instruction
        spans = self._spans.cover(start, stop)
        for span in spans:
            if span.write_epoch < 0 and not span.reads and not span.atomics:
                continue  # nobody has touched it
            for epoch, other, wrote in span.earlier(kind):
                if not clock.knows(pipe, other[2], other[1], epoch):
                    return Conflict(other, wrote, min(span.stop, stop) - max(span.start, start))
            if span.cached is not None and kind == READ and (pipe != S or span.cached[2] != core):
                return Conflict(span.cached, True, span.stop - span.start, cached=True)
        if kind == WRITE:
            span = self._spans.merge(start, stop)
            span.write_epoch, span.writer = last
            span.cached, span.padding = instruction if pipe == S else None, False
            span.atomics, span.reads = {}, {}
        else:
            for span in spans:
                (span.reads if kind == READ else span.atomics)[core, pipe] = last
        return None

    def written(self, place: tuple[int, int]) -> bool:
        """Whether the launch has written any byte between two addresses."""
        return any(span.write_epoch >= 0 or span.atomics for span in self._spans.cover(*place))

    def written_since(self, start: int, stop: int, core: int, known: list[Snapshot] | None) -> Instruction | None:
        """Return a write of another core to these bytes that is not among what is ``known`` of others."""
        for span in self._spans.cover(start, stop):
            for epoch, other, _ in [
                *((*last, True) for last in span.atomics.values()),
                (span.write_epoch, span.writer, True),
            ]:
                if epoch >= 0 and other[2] != core and (known is None or epoch > known[other[2]][other[1]]):
                    return other
        return None

    def pad(self, start: int, numbers: Bytes) -> None:
        """Note which bytes of a write that was noted are padding."""
        edges = np.flatnonzero(np.diff(numbers != 0, prepend=False, append=False)).tolist()
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            for span in self._spans.cover(start + first, start + last):
                span.padding = True

    def padded(self) -> Iterable[GlobalSpan]:
        """Return the ranges that hold padding."""
        return (span for span in self._spans if span.padding)

    def share(self, clock: PipeClock, instruction: Instruction, base: int, start: int, stop: int) -> Instruction | None:
        """Keep a write of the scalar unit, and return one of another core to the same line that nothing orders before it."""
        shared = None
        for line in range(start // LINE_BYTES, (stop - 1) // LINE_BYTES + 1):
            epoch, other = self._lines.get((base, line), (-1, instruction))
            if other[2] != clock.index and not clock.knows(S, other[2], S, epoch):
                shared = other
            self._lines[base, line] = clock.now[S], instruction
        return shared

    def clean(self, core: int, base: int, start: int, kind: int) -> None:
        """Write back the data cache of a core: of kind 0 one line, 1 all, 2 one that other cores do not share."""
        line = start // LINE_BYTES
        first = base + line * LINE_BYTES
        for span in self._spans if kind == 1 else self._spans.cover(first, first + LINE_BYTES):
            if span.cached is not None and span.cached[2] == core:
                span.cached = None
        if kind == 2:
            self._lines.pop((base, line), None)


def race(
    earlier: Conflict, later: Instruction, writes: bool, memory: str, log: Iterable[Instruction], arrows: Arrows
) -> RaceFault:
    """Return the fault of an access that nothing orders behind an earlier one, with a picture of what the block has issued.

    Args:
        later, writes: What makes the later one, and whether it writes.
        memory: Whose bytes they are.
    """
    (first, first_writes, nbytes, _), second, second_writes = earlier, later, writes
    first_pipe, second_pipe = PIPE_NAMES[first[1]], PIPE_NAMES[second[1]]
    if first[2] != second[2]:
        verb = "both write" if first_writes and second_writes else "write and read"
        head = f"blocks {first[2]} and {second[2]} {verb} the same {nbytes} bytes of {memory}"
        missing, code = "SyncAll, CrossCoreSetFlag and CrossCoreWaitFlag, or SetAtomicAdd for sums", "ErrorSync2"
    else:
        verbs = ["writes" if writes else "reads" for writes in (first_writes, second_writes)]
        head = f"{second[0]} {verbs[1]} {nbytes} bytes of {memory} that {first[0]} {verbs[0]}"
        if first_pipe == second_pipe:
            missing, code = f"PipeBarrier<PIPE_{first_pipe}>()", "ErrorSync1"
        else:
            event = f"HardEvent::{first_pipe}_{second_pipe}"
            missing, code = f"SetFlag<{event}> and WaitFlag<{event}> (or EnQue and DeQue)", "ErrorSync2"
    fault = RaceFault(
        f"{head}, and nothing orders the two: {first[0]} at {site_text(first[3])} ({PIPE_WORDS[first[1]]}), then "
        f"{second[0]} at {site_text(second[3])} ({PIPE_WORDS[second[1]]}). Missing between them: {missing} [{code}]"
    )
    fault.svg = race_svg(log, arrows, first, second, missing)
    return fault
