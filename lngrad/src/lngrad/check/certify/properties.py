"""Accuracy and the range of numbers; and what a kernel does besides: inputs it changes, memory it takes, calls it refuses."""

from __future__ import annotations

import re
import sys
import tracemalloc
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lngrad.check.certify.bits import arguments
from lngrad.check.certify.measured import OWN, Measured, bare_sums, column_names, gradients, takes
from lngrad.check.implementations import Implementation, NotApplicable, PreparedCall
from lngrad.core import reference
from lngrad.core.norms import NORMS
from lngrad.core.problem import LAYER_NORM, RMS_NORM
from lngrad.errors import LngradError
from lngrad.support.dtypes import UNIT_ROUNDOFF, numpy_dtype
from lngrad.typing import Array

MUTATIONS = ((65, 33), (1, 64), (300, 64))
TRACED = (1024, 1024)
RESIDENT = (4096, 4096)  # 64 MiB an array: more than malloc keeps for the next call
CALLS = 3  # of which the one that took least is told: the first ones fill caches
GROWTH = (64, 256, 1024, 4096, 16384)


def accuracy(subject: Implementation, trials: int) -> list[Measured]:
    """Errors of column sums against exact ones as rows are added, and where 16-bit sums stop growing."""
    last = column_names(subject)[-1]
    if last == "dgamma" and subject.norm in subject.own_statistics:
        return [Measured("Accuracy", f"error of {last}", OWN)]
    errors, growth = [], list(GROWTH[:-1] if subject.simulated else GROWTH)
    for M in growth:
        worst = 0.0
        for seed in range(max(1, trials // 5)):
            dy, *others = arguments(M, 64, seed)
            dy = np.abs(dy) + np.float32(0.5)  # of one sign, so that partial sums grow with the rows
            sums = bare_sums(subject, dy, *others).astype(np.float64)
            exact = dy.astype(np.float64).sum(0)
            worst = max(worst, float((np.abs(sums - exact) / exact).max() / UNIT_ROUNDOFF["float32"]))
        errors.append(worst)
    slope = float(np.polyfit(np.log(growth), np.log(np.maximum(errors, 1e-3)), 1)[0])
    text = ", ".join(f"{error:.2f} at {M}" for M, error in zip(growth, errors, strict=True))
    name = f"error of {last} in units of roundoff of Σdy, dy > 0, by rows"
    by_rows = Measured("Accuracy", name, f"{text}; slope {slope:+.2f}",
                       facts={"rows": growth, "errors": errors, "slope": slope})  # fmt: skip
    return [by_rows, _growth(subject, "bfloat16", 1024), _growth(subject, "float16", 16384)]


def _growth(subject: Implementation, dtype: str, most: int) -> Measured:
    """The column sum of so many rows of ones."""
    narrow = numpy_dtype(dtype)
    zeros, ones = np.zeros((most, 16), narrow), np.ones((most, 16), narrow)
    name = f"{column_names(subject)[-1]} of {most} rows of ones in {dtype}"
    refused = ""
    # Some take statistics in x's dtype only, or gamma in float32 only.
    for wide, parameter in ((np.float32, narrow), (narrow, narrow), (np.float32, np.float32)):
        arrays = ones, zeros, np.zeros(most, wide), np.ones(most, wide), np.ones(16, parameter)
        try:
            got = float(bare_sums(subject, *arrays).astype(np.float64).max())
            break
        except Exception as error:
            refused = _refusal(error)
    else:
        return Measured("Accuracy", name, refused)
    if got == most:
        return Measured("Accuracy", name, "right", True, 1)
    text = f"{got:g}: the sum stops growing, or is kept in {dtype}"
    return Measured("Accuracy", name, text, False, 1, f"expected {most}, got {got:g}")


def _first_line(text: object) -> str:
    return str(text).split("\n")[0][:110]


def _refusal(error: Exception) -> str:
    return f"refused: {_first_line(f'{type(error).__name__}: {error}')}"


def number_range(subject: Implementation) -> list[Measured]:
    """What comes of subnormals, NaN and infinity, one column, constant rows, offsets and overflow."""
    dy, *others = arguments(8, 32, 0)
    last = column_names(subject)[-1]
    centred = NORMS[subject.norm].normalization.centred
    normalization = LAYER_NORM if centred else RMS_NORM

    def subnormal() -> str:
        if not centred and subject.norm in subject.own_statistics:
            return OWN
        sums = bare_sums(subject, np.full_like(dy, 2.0**-140), *others).astype(np.float64)
        return "kept" if (sums == 8 * 2.0**-140).all() else "flushed to zero"

    def spoiled(value: float) -> str:
        changed_dy = dy.copy()
        changed_dy[3, 5] = value
        got = gradients(subject, changed_dy, *others)
        dx, column = (np.isfinite(np.asarray(array, np.float64)) for array in (got.dx, getattr(got, last)))
        rows, columns = (np.flatnonzero(~array).tolist() for array in (dx.all(1), column))
        if (rows, columns) == ([3], [5]):
            return f"in its row of dx and its column of {last}, nowhere else"
        return f"in rows {rows} of dx and columns {columns[:6]} of {last}"

    def one_column() -> str:
        got = gradients(subject, *arguments(9, 1, 0))
        if not np.asarray(got.dx).any() and not np.asarray(got.dgamma).any():
            return "dx and dgamma are 0"
        return f"dx is {np.abs(np.asarray(got.dx)).max():.3g} at most, which should be 0"

    def dx_of(arrays: Sequence[Array]) -> tuple[Array, Array]:
        dy, x, mean, rstd, gamma = arrays
        mean = mean if centred else np.zeros_like(mean)
        truth = reference.layer_norm_backward(dy, x, mean, rstd, gamma, normalization=normalization).dx
        return np.asarray(gradients(subject, *arrays).dx, np.float64), truth

    def with_its_statistics(arrays: Sequence[Array], x: Array) -> tuple[Array, Array]:
        _, *found = reference.layer_norm(x, normalization=normalization)
        mean, rstd = (array.reshape(-1).astype(np.float32) for array in found)
        return dx_of((arrays[0], x, mean, rstd, arrays[4]))

    def constant_rows() -> str:
        dy, _, _, _, gamma = arguments(8, 32, 1)
        rstd = np.full(8, 1e-5**-0.5 if centred else 1 / 3.25, np.float32)
        got, truth = dx_of((dy, np.full((8, 32), 3.25, np.float32), np.full(8, 3.25, np.float32), rstd, gamma))
        scale = rstd.max() * np.abs(dy * gamma).max()
        return f"error {np.abs(got - truth).max() / scale / UNIT_ROUNDOFF['float32']:.1f} units of roundoff"

    def offset() -> str:
        wide = 1e6 + np.random.default_rng(5).standard_normal((8, 64))
        got, truth = with_its_statistics(arguments(8, 64, 2), wide.astype(np.float32))
        return f"largest error of dx {np.abs(got - truth).max() / np.abs(truth).max():.1e} of its largest element"

    def overflow() -> str:
        arrays = arguments(4, 64, 3)
        got, truth = with_its_statistics(arrays, (1e30 * arrays[1]).astype(np.float32))
        if not np.isfinite(got).all():
            return f"{int((~np.isfinite(got)).sum())} of {got.size} elements of dx are not finite"
        return f"finite; largest error {np.abs(got - truth).max() / np.abs(truth).max():.1e} of the largest element"

    found = []
    for name, measure in (
        (f"subnormal dy in {last}", subnormal), ("a NaN in dy", partial(spoiled, np.nan)),
        ("an infinity in dy", partial(spoiled, np.inf)), *((("N = 1", one_column),) if centred else ()),
        ("constant rows", constant_rows), ("x around 1e6, statistics given", offset),
        ("x around 1e30, statistics given", overflow),
    ):  # fmt: skip
        try:
            with np.errstate(all="ignore"):
                answer = measure()
        except Exception as error:
            answer = _refusal(error)
        found.append(Measured("The range of numbers", name, answer, None, 1))
    return found


def effects(subject: Implementation) -> list[Measured]:
    """What it changes besides its results, and what it refuses."""
    group, names = "Effects", ("dy", "x", "mean", "rstd", "gamma")
    trials, changed = 0, ""
    for M, N in (shape for shape in MUTATIONS if takes(subject, *shape)):
        arrays = arguments(M, N, 0)
        before = [array.tobytes() for array in arrays]
        gradients(subject, *arrays)
        trials += 1
        unlike = [name for name, array, old in zip(names, arrays, before, strict=True) if array.tobytes() != old]
        changed = changed or (f"seed 0, {M}×{N}: {unlike[0]} is changed" if unlike else "")
    found = [Measured(group, "leaves its inputs as they are", "no" if changed else "yes", not changed, trials, changed)]
    M, N = next(((M, N) for M, N in ((65, 33), (65, 64)) if takes(subject, M, N)), (64, 64))
    return [*found, *(_refused(subject, name, odd_call) for name, odd_call in _odd_calls(M, N).items())]


def _odd_calls(M: int, N: int) -> dict[str, tuple[Any, ...]]:
    dy, *others, gamma = arguments(M, N, 0)
    read_only = dy.copy()
    read_only.flags.writeable = False
    return {
        "dy with one more column": (np.pad(dy, ((0, 0), (0, 1))), *others, gamma),
        "dy with one row less": (dy[:-1], *others, gamma),
        "dy in float16, x in float32": (dy.astype(np.float16), *others, gamma),
        "gamma that is too short": (dy, *others, gamma[:-1]),
        "no rows": (dy[:0], *(other[:0] for other in others), gamma), "a read-only dy": (read_only, *others, gamma),
        "a dy with gaps between its rows": (np.pad(dy, ((0, 0), (0, 7)))[:, :N], *others, gamma),
    }  # fmt: skip


def _refused(subject: Implementation, name: str, arrays: tuple[Any, ...]) -> Measured:
    example = ""
    try:
        got = gradients(subject, *arrays)
    except NotApplicable as reason:
        answer = f"refused: {_first_line(reason)}"
    except LngradError as error:
        answer = f"refused: {type(error).__name__}: {_first_line(error)}"
    except Exception as error:
        answer = f"refused by {type(error).__name__}: {_first_line(error)}"
    else:
        answer = "taken"
        if arrays[0].shape != arrays[1].shape:
            example = f"dy {arrays[0].shape}, x {arrays[1].shape} → dx {np.asarray(got.dx).shape}"
    return Measured("Effects", name, answer, None, 1, example)


def memory(subject: Implementation) -> list[Measured]:
    """What a call allocates beyond its results: by its own allocator, and as the machine sees it."""
    group = "Memory, beyond dx, dgamma and dbeta"
    own = f"allocated in a call of {TRACED[0]}×{TRACED[1]} float32"
    resident = f"resident at the peak of a call of {RESIDENT[0]}×{RESIDENT[1]} float32"
    residual = "a total and zeros are made for each call here" if NORMS[subject.norm].residual else ""
    if reason := subject.elsewhere or residual:
        text = f"not measured: {reason}"
        return [Measured(group, own, text), Measured(group, resident, text)]
    return [_allocated(subject, group, own), _resident(subject, group, resident)]


def _allocated(subject: Implementation, group: str, name: str) -> Measured:
    arrays = arguments(*TRACED, 0)
    results = 4 * TRACED[1] * (TRACED[0] + len(column_names(subject)))
    measure = subject.allocated or _traced
    gradients(subject, *arrays)  # kernels are compiled
    figures = []
    for _ in range(CALLS):
        subject.empty_cache()
        figures.append(measure(lambda: gradients(subject, *arrays)))
    least, whose = min(figures)
    facts = {"bytes": [number for number, _ in figures], "results": results}
    return Measured(group, name, f"{_size(max(0, least - results))} ({whose})", None, CALLS, facts=facts)


def _traced(call: PreparedCall) -> tuple[int, str]:
    """The most that Python and NumPy allocate at once in a call, over what they have before."""
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - start, "Python and NumPy, by tracemalloc, at the peak"
    finally:
        tracemalloc.stop()


def _resident(subject: Implementation, group: str, name: str) -> Measured:
    """The growth of the process, by the kernel's own high-water mark."""
    if sys.platform != "linux" or not takes(subject, *RESIDENT):
        return Measured(group, name, "not measured: it needs Linux's /proc, and a kernel that takes the shape")
    arrays = arguments(*RESIDENT, 0)
    results = 4 * RESIDENT[1] * (RESIDENT[0] + len(column_names(subject)))
    figures = []
    for _ in range(CALLS):
        subject.empty_cache()
        Path("/proc/self/clear_refs").write_text("5")  # the mark starts anew from what is resident now
        start = _status("VmRSS")
        gradients(subject, *arrays)
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
