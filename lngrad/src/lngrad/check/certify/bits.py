"""Do the bits repeat: run after run, for other threads, other addresses, another batch around a row?

"Invariant" means 0 ULP, as the batch-invariance community has it. Accuracy is measured elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import TypeAlias

import numpy as np

from lngrad.check.certify.measured import (
    Measured,
    bare_sums,
    column_names,
    different_bits,
    gradients,
    normalized,
    takes,
)
from lngrad.check.implementations import Implementation, NotApplicable
from lngrad.core.norms import NORMS
from lngrad.core.problem import Grads
from lngrad.typing import Array

SHAPES = ((7, 33), (64, 64), (130, 100), (300, 256), (33, 1000), (1000, 48))
ALIGNMENTS = (0, 4, 8, 16, 20, 32, 60)  # bytes past a cache line
WIDTHS = (37, 64, 256, 1000)
BATCHES = (1, 2, 3, 5, 8, 16, 33, 64, 100, 257)


def arguments(M: int, N: int, seed: int) -> tuple[Array, Array, Array, Array, Array]:
    """dy, x, mean, rstd, gamma in float32; the statistics are x's."""
    rng = np.random.default_rng([seed, M, N])
    x = (0.5 + 2 * rng.standard_normal((M, N))).astype(np.float32)
    wide = x.astype(np.float64)
    mean, rstd = wide.mean(1), 1 / np.sqrt(wide.var(1) + 1e-5)
    dy, gamma = rng.standard_normal((M, N)).astype(np.float32), (1 + 0.5 * rng.standard_normal(N)).astype(np.float32)
    return dy, x, mean.astype(np.float32), rstd.astype(np.float32), gamma


def _compared(group: str, name: str, differences: Iterator[tuple[str, str | None]]) -> Measured:
    """A promise of equal bits, from (which trial, where it differs)."""
    trials, failed, first = 0, 0, ""
    for which, difference in differences:
        trials += 1
        if difference is not None:
            failed += 1
            first = first or f"{which}: {difference}"
    if not trials:
        return Measured(group, name, "not measured: it takes none of these calls")
    answer = "yes" if not failed else f"no, in {failed} of {trials}"
    return Measured(group, name, answer, not failed, trials, first)


def _all_bits(got: Grads, expected: Grads) -> str | None:
    unlike = ((name, different_bits(np.asarray(array), np.asarray(other)))
              for name, array, other in zip(Grads._fields, got, expected, strict=True) if other is not None)  # fmt: skip
    return next((f"{name}: {found}" for name, found in unlike if found), None)


_Calls: TypeAlias = "Iterator[tuple[str, Grads]]"  # (which, its results)


def repeatability(subject: Implementation, trials: int) -> list[Measured]:
    """Run after run, with other numbers of threads, at other addresses, in an input's memory."""
    group, switch = "The same bits", subject.set_threads
    shapes = [shape for shape in SHAPES if takes(subject, *shape)]

    def compared(name: str, seed: int, again: Callable[[tuple[Array, ...], str], _Calls]) -> Measured:
        """Calls with the same arguments against a first one; `again` gives them for a shape's."""

        def differences() -> Iterator[tuple[str, str | None]]:
            for M, N in shapes:
                arrays = arguments(M, N, seed)
                first = gradients(subject, *arrays)
                for which, got in again(arrays, f"{M}×{N}"):
                    yield which, _all_bits(got, first)

        return _compared(group, name, differences())

    def runs(arrays: tuple[Array, ...], where: str) -> _Calls:
        return ((f"{where}, run {run}", gradients(subject, *arrays)) for run in range(1, max(2, trials)))

    def threads(arrays: tuple[Array, ...], where: str) -> _Calls:
        assert switch is not None  # looked at below
        for number in (2, 3, 4):
            switch(number)
            yield f"{where}, {number} threads against 1", gradients(subject, *arrays)
        switch(1)

    def addresses(arrays: tuple[Array, ...], where: str) -> _Calls:
        for offset in ALIGNMENTS:
            yield (
                f"{where}, {offset} bytes past a cache line",
                gradients(subject, *(_at(array, offset) for array in arrays)),
            )

    def in_place(place: int, arrays: tuple[Array, ...], where: str) -> _Calls:
        copies = [array.copy() for array in arrays]
        yield f"seed 3, {where}", gradients(subject, *copies, place=copies[place])

    def forward() -> Iterator[tuple[str, str | None]]:
        for M, N in shapes:
            dy, x, _, _, gamma = arguments(M, N, 3)
            first, copy = normalized(subject, x, gamma, dy[0]), x.copy()
            got = normalized(subject, copy, gamma, dy[0], copy)
            unlike = (different_bits(got[name].reshape(-1), array.reshape(-1)) for name, array in first.items())
            yield f"seed 3, {M}×{N}", next((found for found in unlike if found), None)

    found = [compared("run after run", 0, runs)]
    if switch is None:
        found.append(Measured(group, "for any number of threads", "not measured: it has no switch of its own"))
    else:
        switch(1)
        found.append(compared("for 1 to 4 threads", 1, threads))
        switch(2)
    found.append(compared("at any address and alignment", 2, addresses))
    names = "in place: dx in dy's memory", "in place: dx in x's memory", "in place: y in x's memory"
    if not subject.into or subject.norm in subject.own_statistics:
        count = 2 if subject.forward is None else 3
        return [*found, *(Measured(group, name, "does not apply: it takes no outputs") for name in names[:count])]
    places = names[: 1 if NORMS[subject.norm].residual else 2]  # a total's memory is of the call's making
    found += [compared(name, 3, partial(in_place, place)) for place, name in enumerate(places)]
    return found if subject.forward is None else [*found, _compared(group, names[2], forward())]


def _at(array: Array, offset: int) -> Array:
    """The array at another address, so many bytes past a cache line."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    moved = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def batch_invariance(subject: Implementation, trials: int) -> list[Measured]:
    """A row's dx, y, mean and rstd in any batch, at any place, beside any neighbours."""
    group = "A row does not depend on its batch"

    def dx(*arrays: Array) -> dict[str, Array]:
        return {"": np.asarray(gradients(subject, *arrays[:5]).dx)}

    def forward(dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array, beta: Array) -> dict[str, Array]:
        results = normalized(subject, x, gamma, beta).items()
        return {f"{name}: ": array.reshape(len(x), -1) for name, array in results}

    kinds: dict[str, Callable[..., dict[str, Array]]] = {"dx": dx}
    if subject.forward is not None:
        *names, last = normalized(subject, *arguments(1, 64, 0)[1::3], np.ones(64, np.float32))
        kinds[f"{', '.join(names)} and {last}" if names else last] = forward
    found = []
    for (name, rows_of), (label, spoil) in product(kinds.items(), _NEIGHBOURS):
        found.append(_compared(group, f"{name}, {label}", _in_batches(subject, trials, spoil, rows_of)))
    return [*found, *_column_sums(subject, trials)]


def _nan(rows: Array) -> None:
    rows[::2] = np.nan
    rows[1::2] = np.inf


_NEIGHBOURS: tuple[tuple[str, Callable[[Array], None]], ...] = (
    ("any batch size and place", lambda rows: None),
    ("neighbours NaN and infinite", _nan),
    ("rows of padding behind it", lambda rows: rows.fill(0)),
)


def _in_batches(
    subject: Implementation, trials: int, spoil: Callable[[Array], None], rows_of: Callable[..., dict[str, Array]]
) -> Iterator[tuple[str, str | None]]:
    """A row of a batch against the same row alone; rows_of gives results by name, a row of each for a row of x."""
    widths = [N for N in WIDTHS if takes(subject, 1, N)]
    for seed in range(max(1, trials // 4)):
        rng = np.random.default_rng([seed, 7])
        for N, size in product(widths, BATCHES):
            place = int(rng.integers(size))
            *rows, gamma = arguments(size, N, seed)
            beta = rows[0][0].copy()
            alone = rows_of(*(row[place : place + 1] for row in rows), gamma, beta)
            others = np.arange(size) != place
            for array in rows[:2]:  # dy and x
                neighbours = array[others]
                spoil(neighbours)
                array[others] = neighbours
            try:
                whole = rows_of(*rows, gamma, beta)
            except NotApplicable:  # such neighbours are not for it
                continue
            unlike = ((name, different_bits(rows[place], alone[name][0])) for name, rows in whole.items())
            found = next((f"{name}{difference}" for name, difference in unlike if difference), None)
            yield f"seed {seed}, row {place} of {size}×{N}", found


def _column_sums(subject: Implementation, trials: int) -> list[Measured]:
    """dgamma and dbeta of permuted rows, in tolerances of a sum; and of halves, added up, in bits."""
    worst, sums = 0.0, column_names(subject)
    for seed in range(trials):
        *rows, gamma = arguments(300, 64, seed)
        order = np.random.default_rng(seed).permutation(300)
        first, other = (bare_sums(subject, *array, gamma).astype(np.float64)
                        for array in (rows, [row[order] for row in rows]))  # fmt: skip
        scale = np.abs(rows[0].astype(np.float64)).sum(0) * 2.0**-24
        worst = max(worst, float((np.abs(first - other) / scale).max()))

    def halves() -> Iterator[tuple[str, str | None]]:
        for seed, M in product(range(trials), (128, 256, 512)):
            *rows, gamma = arguments(M, 64, seed)
            whole, *parts = (gradients(subject, *(row[part] for row in rows), gamma)
                             for part in (slice(None), slice(M // 2), slice(M // 2, None)))  # fmt: skip
            for name in sums:
                first, other, both = (np.asarray(getattr(grads, name)) for grads in (*parts, whole))
                yield f"seed {seed}, {name} of {M}×64 in halves", different_bits(first + other, both)

    group = "Column sums"
    text = f"within {worst:.1f} units of roundoff of Σ|dy|"
    split = _compared(group, f"{' and '.join(sums)} of 64·2^k rows are the sums of their halves, bit by bit", halves())
    name = f"{sums[-1]} under a permutation of 300 rows"
    return [Measured(group, name, text, None, trials, facts={"worst": worst}), split]
