"""CUDA events as a clock."""

from __future__ import annotations

from typing import Protocol

import torch

from lngrad.bench.measure import Call

FLUSH_BYTES = 1 << 30  # written before each turn: longer than the host takes to launch
READ_BYTES = 256 << 20  # then read: several times any L2, which then has nothing to write back


class DeviceClock(Protocol):
    """Seconds that a call takes, done `repeats` times in a row and divided."""

    def __call__(self, call: Call, repeats: int) -> float: ...


class EventClock:
    """CUDA events on the current stream.

    Before a single call, much is written, and then enough is read to empty L2: that keeps the
    device busy while the host launches what is timed, and leaves no line that would be written back
    meanwhile.
    """

    def __init__(self) -> None:
        self._written = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self._read = torch.zeros(READ_BYTES // 4, device="cuda")
        self._total = torch.zeros((), device="cuda")

    def __call__(self, call: Call, repeats: int) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if repeats == 1:
            self._written.zero_()
            torch.sum(self._read, 0, out=self._total)
        start.record()
        for _ in range(repeats):
            call()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3 / repeats
