"""Turns, rounds and medians: everybody who is compared is timed in every round of one process."""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

__all__ = ["Contestants", "Timing", "interleave", "keep_memory"]

REST = 0.004  # seconds before a turn: OpenMP's and our own threads stop their active waiting and free the other cores
TURN = 0.003  # seconds that a turn lasts at the least
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt

# name -> its call, and name -> what is in force during its turns (nothing, where a name is missing)
Contestants = tuple[dict[str, Callable[[], object]], dict[str, Callable[[], AbstractContextManager[Any]]]]


@dataclass(frozen=True)
class Timing:
    """Seconds a call, over the rounds."""

    rounds: int
    minimum: float
    median: float
    p90: float

    @staticmethod
    def of(times: list[float]) -> Timing:
        times = sorted(times)
        late = times[min(len(times) - 1, int(0.9 * len(times)))]
        return Timing(len(times), times[0], statistics.median(times), late)


def interleave(
    calls: dict[str, Callable[[], object]],
    rounds: int,
    turn: float = TURN,
    during: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {},  # read only
) -> dict[str, Timing]:
    """Time several calls in turns, round after round.

    A turn rests, enters what `during` has under the call's name, runs once untimed, then as often as it takes to fill
    `turn` seconds, and counts the mean.
    """
    repeats: dict[str, int] = {}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(REST)
            with during.get(name, nullcontext)():
                call()
                count = repeats.get(name) or repeats.setdefault(name, _repeats(call, turn))
                start = time.perf_counter()
                for _ in range(count):
                    call()
                samples[name].append((time.perf_counter() - start) / count)
    return {name: Timing.of(times) for name, times in samples.items()}


def _repeats(call: Callable[[], object], turn: float) -> int:
    call()
    start = time.perf_counter()
    call()
    return max(1, int(turn / (time.perf_counter() - start + 1e-7)))


def keep_memory() -> None:
    """Tell glibc not to return freed memory, so that page faults of results do not drown the kernels, for all alike."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
            libc.mallopt(M_MMAP_THRESHOLD, 2**30)
