"""Memory as a list of spans: which bytes have a value, and who touched them last.

A span is a range of bytes that was always accessed as a whole. A read or a write of another range
cuts the spans at its ends; a write makes one span of what it covers. As kernels use the same few
ranges again and again, an access finds its span at once, and its cost does not depend on its
length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, Generic, Protocol, TypeVar

# (name, pipe, core, site): what a fault says about an instruction. A plain tuple, for every
# instruction makes one. ``site`` is (code, offset) of a Python frame or (file, line).
Instruction = tuple[str, int, int, Any]
NOBODY: Instruction = ("nothing", 0, 0, ("", 0))


class Span:
    """A range of bytes of the Unified Buffer.

    Attributes:
        live: False once the span was cut or merged; its extent never changes.
        valid: Whether the bytes have a value.
        writer, write_epoch, writer_pipe: The last write.
        read_epochs, readers: By pipe, the last read.
    """

    __slots__ = (
        "live", "read_epochs", "readers", "start", "stop", "valid", "write_epoch", "writer", "writer_pipe",
    )  # fmt: skip

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.live = True
        self.valid = False
        self.writer, self.write_epoch, self.writer_pipe = NOBODY, -1, 0
        self.read_epochs = [-1, -1, -1, -1]
        self.readers = [NOBODY] * 4

    def part(self, start: int, stop: int) -> Span:
        """Return a piece of this span with the same history."""
        piece = Span(start, stop)
        piece.valid = self.valid
        piece.writer, piece.write_epoch, piece.writer_pipe = self.writer, self.write_epoch, self.writer_pipe
        piece.read_epochs, piece.readers = self.read_epochs.copy(), self.readers.copy()
        return piece


class _Range(Protocol):
    start: int
    stop: int
    live: bool

    def __init__(self, start: int, stop: int) -> None: ...

    def part(self: T, start: int, stop: int) -> T: ...


T = TypeVar("T", bound=_Range)


class Spans(Generic[T]):
    """All spans of a memory of ``size`` bytes, in order and without gaps."""

    def __init__(self, kind: type[T], size: int) -> None:
        self._kind = kind
        self._starts = [0]
        self._spans = [kind(0, size)]

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
        """Return one span for [start, stop), whose spans ``cover`` has cut; their history is
        lost."""
        first = bisect_left(self._starts, start)
        if self._spans[first].stop == stop:
            return self._spans[first]
        last = bisect_left(self._starts, stop)
        for span in self._spans[first:last]:
            span.live = False
        whole = self._kind(start, stop)
        self._starts[first:last] = [start]
        self._spans[first:last] = [whole]
        return whole

    def _cut(self, index: int, at: int) -> None:
        span = self._spans[index]
        span.live = False
        self._spans[index : index + 1] = [span.part(span.start, at), span.part(at, span.stop)]
        self._starts.insert(index + 1, at)
