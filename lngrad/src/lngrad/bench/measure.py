"""Turns, rounds and medians: all contestants are timed in every round of one process."""

from __future__ import annotations

import ctypes
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from lngrad.check.implementations import PreparedCall

REST = 0.004  # seconds before a turn, at the least
LONGEST_REST = 0.25  # seconds; then threads are not waiting, but at work
TURN = 0.003  # seconds that a turn lasts at the least
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt

Context: TypeAlias = Callable[[], AbstractContextManager[Any]]
Clock: TypeAlias = Callable[[str, PreparedCall], float]  # times one turn of a contestant, by name: seconds a call


@dataclass(frozen=True)
class Timing:
    """Seconds a call, over the rounds."""

    rounds: int
    minimum: float
    median: float
    p90: float

    @staticmethod
    def of(times: list[float]) -> Timing:
        """The statistics of one time a round."""
        times = sorted(times)
        late = times[min(len(times) - 1, int(0.9 * len(times)))]
        return Timing(len(times), times[0], statistics.median(times), late)


@dataclass
class TurnClock:
    """A CPU's clock: a turn runs once untimed, then fills `turn` seconds and counts the mean."""

    turn: float = TURN
    _repeats: dict[str, int] = field(default_factory=dict)

    def __call__(self, name: str, call: PreparedCall) -> float:
        rest()
        call()
        if name not in self._repeats:
            self._repeats[name] = max(1, int(self.turn / (seconds_a_call(call, 1) + 1e-7)))
        return seconds_a_call(call, self._repeats[name])


def seconds_a_call(call: PreparedCall, repeats: int) -> float:
    """The mean of calls in a row."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def rest() -> None:
    """Sleep until no other thread of this process runs.

    OpenMP's threads wait actively after their work, for 6 ms and more, and would take a core from
    whoever is next.
    """
    end = time.perf_counter() + LONGEST_REST
    time.sleep(REST)
    while _threads_run() and time.perf_counter() < end:
        time.sleep(0.001)


def _threads_run() -> bool:
    """Whether other threads of this process run or would; False where Linux does not say."""
    own = str(threading.get_native_id())
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return False
    return any(_state(thread) == "R" for thread in threads if thread != own)


def _state(thread: str) -> str:
    try:
        with open(f"/proc/self/task/{thread}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(") ")[2][:1]
    except OSError:  # it has ended
        return ""


def interleave(
    calls: Mapping[str, PreparedCall],
    rounds: int,
    clock: Clock,
    during: Mapping[str, Context] = {},  # read only
) -> dict[str, Timing]:
    """Time several calls in turns, round after round.

    Each round has an order of its own: whoever came after the roofline each time would find the caches empty each time.

    Args:
        calls: By contestant.
        rounds: In each of which every contestant has one turn.
        clock: Times a turn.
        during: Contexts that are entered for the turns of some contestants.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in random.Random(number).sample(list(calls), len(calls)):
            with during.get(name, nullcontext)():
                samples[name].append(clock(name, calls[name]))
    return {name: Timing.of(times) for name, times in samples.items()}


def keep_memory() -> None:
    """Have glibc keep freed memory, for all alike: page faults of results would hide the kernels."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
            libc.mallopt(M_MMAP_THRESHOLD, 2**30)
