"""What a kernel does besides its results: the inputs that it changes, the memory that it takes, the calls that it refuses."""

from __future__ import annotations

import hashlib
import re
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lngrad.check.certify.bits import arguments
from lngrad.check.certify.measured import Measured
from lngrad.check.certify.subject import Subject
from lngrad.check.implementations import NotApplicable
from lngrad.errors import LngradError
from lngrad.typing import Array

MUTATIONS = ((65, 33), (1, 64), (300, 64))
TRACED = (1024, 1024)
RESIDENT = (4096, 4096)  # 64 MiB an array: more than malloc keeps for the next call
CALLS = 3  # of which the one that took least is told: the first ones fill caches


def effects(subject: Subject) -> list[Measured]:
    """What it changes besides its results, and what it refuses."""
    group, names = "Effects", ("dy", "x", "mean", "rstd", "gamma")
    trials, changed = 0, ""
    for M, N in MUTATIONS:
        if not subject.takes(M, N):
            continue
        given = arguments(M, N, 0)
        before = [hashlib.sha256(one.tobytes()).digest() for one in given]
        subject.backward(*given)
        trials += 1
        for name, one, digest in zip(names, given, before, strict=True):
            if hashlib.sha256(one.tobytes()).digest() != digest:
                changed = changed or f"seed 0, {M}×{N}: {name} is changed"
    found = [Measured(group, "leaves its inputs as they are", "no" if changed else "yes", not changed, trials, changed)]
    M, N = next(((M, N) for M, N in ((65, 33), (65, 64)) if subject.takes(M, N)), (64, 64))
    return [*found, *(_refused(subject, name, some) for name, some in _odd_calls(M, N).items())]


def _odd_calls(M: int, N: int) -> dict[str, tuple[Any, ...]]:
    dy, x, mean, rstd, gamma = arguments(M, N, 0)
    return {
        "dy with one more column": (np.pad(dy, ((0, 0), (0, 1))), x, mean, rstd, gamma),
        "dy with one row less": (dy[:-1], x, mean, rstd, gamma),
        "dy in float16, x in float32": (dy.astype(np.float16), x, mean, rstd, gamma),
        "gamma that is too short": (dy, x, mean, rstd, gamma[:-1]),
        "no rows": (dy[:0], x[:0], mean[:0], rstd[:0], gamma),
        "a read-only dy": (_read_only(dy), x, mean, rstd, gamma),
        "a dy with gaps between its rows": (_with_gaps(dy), x, mean, rstd, gamma),
    }


def _refused(subject: Subject, name: str, given: tuple[Any, ...]) -> Measured:
    example = ""
    try:
        got = subject.backward(*given)
    except NotApplicable as reason:
        answer = f"refused: {_line(reason)}"
    except LngradError as error:
        answer = f"refused: {type(error).__name__}: {_line(error)}"
    except Exception as error:
        answer = f"refused by {type(error).__name__}: {_line(error)}"
    else:
        answer = "taken"
        if given[0].shape != given[1].shape:
            example = f"dy {given[0].shape}, x {given[1].shape} → dx {np.asarray(got.dx).shape}"
    return Measured("Effects", name, answer, None, 1, example)


def _line(error: Exception) -> str:
    return str(error).split("\n")[0][:110]


def _read_only(array: Array) -> Array:
    array = array.copy()
    array.flags.writeable = False
    return array


def _with_gaps(array: Array) -> Array:
    wide = np.zeros((len(array), array.shape[1] + 7), array.dtype)
    wide[:, : array.shape[1]] = array
    return wide[:, : array.shape[1]]


def memory(subject: Subject) -> list[Measured]:
    """What a call allocates beyond its results: by its own allocator, and as the machine sees it."""
    group = "Memory, beyond dx, dgamma and dbeta"
    own = f"allocated in a call of {TRACED[0]}×{TRACED[1]} float32"
    resident = f"resident at the peak of a call of {RESIDENT[0]}×{RESIDENT[1]} float32"
    if subject.elsewhere:
        text = f"not measured: {subject.elsewhere}"
        return [Measured(group, own, text), Measured(group, resident, text)]
    return [_allocated(subject, group, own), _resident(subject, group, resident)]


def _allocated(subject: Subject, group: str, name: str) -> Measured:
    given = arguments(*TRACED, 0)
    results = 4 * TRACED[1] * (TRACED[0] + 2)
    measure: Callable[..., tuple[int, str]] = subject.allocated or (lambda *some: _traced(subject, *some))
    subject.backward(*given)  # kernels are compiled
    figures = []
    for _ in range(CALLS):
        subject.empty_cache()
        figures.append(measure(*given))
    least, whose = min(figures)
    facts = {"bytes": [number for number, _ in figures], "results": results}
    return Measured(group, name, f"{_size(max(0, least - results))} ({whose})", None, CALLS, facts=facts)


def _traced(subject: Subject, *given: Array) -> tuple[int, str]:
    """The most that Python and NumPy hold at once in a call, over what they hold before."""
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        subject.backward(given[0], given[1], given[2], given[3], given[4])
        return tracemalloc.get_traced_memory()[1] - start, "Python and NumPy, by tracemalloc, at the peak"
    finally:
        tracemalloc.stop()


def _resident(subject: Subject, group: str, name: str) -> Measured:
    """The growth of the process, by the kernel's own high-water mark."""
    if sys.platform != "linux" or not subject.takes(*RESIDENT):
        return Measured(group, name, "not measured: it needs Linux's /proc, and a kernel that takes the shape")
    given = arguments(*RESIDENT, 0)
    results = 4 * RESIDENT[1] * (RESIDENT[0] + 2)
    figures = []
    for _ in range(CALLS):
        subject.empty_cache()
        Path("/proc/self/clear_refs").write_text("5")  # the mark starts anew from what is resident now
        start = _status("VmRSS")
        subject.backward(*given)
        figures.append(_status("VmHWM") - start)
    beyond = max(0, min(figures) - results)
    share = beyond / (4 * RESIDENT[0] * RESIDENT[1])
    text = "less than 1 MiB" if beyond < 2**20 else f"{_size(beyond)}, {share:.2f} times x"
    facts = {"bytes": figures, "results": results}
    return Measured(group, name, text, None, CALLS, facts=facts)


def _status(field: str) -> int:
    """Bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"), re.MULTILINE)
    assert found is not None  # every Linux has these fields
    return int(found[1]) * 1024


def _size(number: int) -> str:
    return f"{number / 2**20:.1f} MiB" if number >= 2**20 else f"{number / 2**10:.1f} KiB"
