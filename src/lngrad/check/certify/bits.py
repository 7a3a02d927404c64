"""Do the bits repeat: run after run, for other threads, other addresses, another batch around a row?

"Invariant" means 0 ULP, as the batch-invariance community has it. Accuracy is measured elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from lngrad.check.certify.measured import Measured, Place, Subject, different_bits
from lngrad.check.implementations import NotApplicable
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
    for name, one, other in zip(Grads._fields, got, expected, strict=True):
        found = different_bits(np.asarray(one), np.asarray(other))
        if found:
            return f"{name}: {found}"
    return None


def repeatability(subject: Subject, trials: int) -> list[Measured]:
    """Run after run, with other numbers of threads, at other addresses."""
    shapes = [shape for shape in SHAPES if subject.takes(*shape)]

    def runs() -> Iterator[tuple[str, str | None]]:
        for M, N in shapes:
            given = arguments(M, N, 0)
            first = subject.backward(*given)
            for run in range(1, max(2, trials)):
                yield f"{M}×{N}, run {run}", _all_bits(subject.backward(*given), first)

    def threads() -> Iterator[tuple[str, str | None]]:
        assert subject.set_threads is not None  # looked at below
        for M, N in shapes:
            given = arguments(M, N, 1)
            subject.set_threads(1)
            first = subject.backward(*given)
            for number in (2, 3, 4):
                subject.set_threads(number)
                yield f"{M}×{N}, {number} threads against 1", _all_bits(subject.backward(*given), first)
        subject.set_threads(2)

    def addresses() -> Iterator[tuple[str, str | None]]:
        for M, N in shapes:
            given = arguments(M, N, 2)
            first = subject.backward(*given)
            for offset in ALIGNMENTS:
                moved = tuple(_at(one, offset) for one in given)
                found = _all_bits(subject.backward(moved[0], moved[1], moved[2], moved[3], moved[4]), first)
                yield f"{M}×{N}, {offset} bytes past a cache line", found

    group = "The same bits"
    found = [_compared(group, "run after run", runs())]
    if subject.set_threads is None:
        found.append(Measured(group, "for any number of threads", "not measured: it has no switch of its own"))
    else:
        found.append(_compared(group, "for 1 to 4 threads", threads()))
    return [*found, _compared(group, "at any address and alignment", addresses()), *_in_place(subject, shapes)]


def _in_place(subject: Subject, shapes: list[tuple[int, int]]) -> list[Measured]:
    """The same bits where a result takes an input's memory."""

    def backward(place: Place) -> Iterator[tuple[str, str | None]]:
        assert subject.backward_into is not None  # looked at below
        for M, N in shapes:
            given = arguments(M, N, 3)
            first = subject.backward(*given)
            got = subject.backward_into(place, *(one.copy() for one in given))
            yield f"seed 3, {M}×{N}", _all_bits(got, first)

    def forward() -> Iterator[tuple[str, str | None]]:
        assert subject.forward is not None  # looked at below
        assert subject.forward_into is not None
        for M, N in shapes:
            dy, x, _, _, gamma = arguments(M, N, 3)
            first = subject.forward(x, gamma, dy[0], 1e-5)
            got = subject.forward_into(x.copy(), gamma, dy[0], 1e-5)
            unlike = (different_bits(np.asarray(one).reshape(-1), np.asarray(other).reshape(-1))
                      for one, other in zip(got, first, strict=True))  # fmt: skip
            yield f"seed 3, {M}×{N}", next((found for found in unlike if found), None)

    group, none = "The same bits", "does not apply: it takes no outputs"
    names = "in place: dx in dy's memory", "in place: dx in x's memory", "in place: y in x's memory"
    if subject.backward_into is None:
        found = [Measured(group, name, none) for name in names[:2]]
    else:
        found = [_compared(group, names[0], backward("dy")), _compared(group, names[1], backward("x"))]
    if subject.forward is None:
        return found
    return [*found, Measured(group, names[2], none) if subject.forward_into is None else
            _compared(group, names[2], forward())]  # fmt: skip


def _at(array: Array, offset: int) -> Array:
    """The array at another address, so many bytes past a cache line."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    moved = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def batch_invariance(subject: Subject, trials: int) -> list[Measured]:
    """A row's dx, y, mean and rstd in any batch, at any place, beside any neighbours."""
    group = "A row does not depend on its batch"

    def dx(dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array, beta: Array) -> dict[str, Array]:
        return {"": np.asarray(subject.backward(dy, x, mean, rstd, gamma).dx)}

    def forward(dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array, beta: Array) -> dict[str, Array]:
        assert subject.forward is not None  # looked at below
        results = zip(("y: ", "mean: ", "rstd: "), subject.forward(x, gamma, beta, 1e-5), strict=True)
        return {name: np.asarray(one).reshape(len(x), -1) for name, one in results}

    kinds = {"dx": dx} if subject.forward is None else {"dx": dx, "y, mean and rstd": forward}
    found = [
        _compared(group, f"{name}, {label}", _in_batches(subject, trials, spoil, rows_of))
        for name, rows_of in kinds.items()
        for label, spoil in _NEIGHBOURS
    ]
    return [*found, *_column_sums(subject, trials)]


def _nan(rows: Array) -> None:
    rows[::2] = np.nan
    rows[1::2] = np.inf


_NEIGHBOURS: tuple[tuple[str, Callable[[Array], None]], ...] = (
    ("any batch size and place", lambda rows: None),
    ("neighbours NaN and infinite", _nan),
    ("rows of padding behind it", lambda rows: rows.fill(0)),
)


def _batches(subject: Subject, trials: int) -> Iterator[tuple[int, int, int, int]]:
    """(seed, N, batch size, place)."""
    widths = [N for N in WIDTHS if subject.takes(1, N)]
    for seed in range(max(1, trials // 4)):
        rng = np.random.default_rng([seed, 7])
        for N in widths:
            for size in BATCHES:
                yield seed, N, size, int(rng.integers(size))


def _in_batches(
    subject: Subject, trials: int, spoil: Callable[[Array], None], rows_of: Callable[..., dict[str, Array]]
) -> Iterator[tuple[str, str | None]]:
    """A row of a batch against the same row alone; rows_of gives results by name, a row of each for a row of x."""
    for seed, N, size, place in _batches(subject, trials):
        *rows, gamma = arguments(size, N, seed)
        beta = rows[0][0].copy()
        alone = rows_of(*(one[place : place + 1] for one in rows), gamma, beta)
        others = np.arange(size) != place
        for array in rows[:2]:  # dy and x
            neighbours = array[others]
            spoil(neighbours)
            array[others] = neighbours
        try:
            whole = rows_of(*rows, gamma, beta)
        except NotApplicable:  # such neighbours are not for it
            continue
        unlike = ((name, different_bits(one[place], alone[name][0])) for name, one in whole.items())
        found = next((f"{name}{difference}" for name, difference in unlike if difference), None)
        yield f"seed {seed}, row {place} of {size}×{N}", found


def _column_sums(subject: Subject, trials: int) -> list[Measured]:
    """dgamma and dbeta of permuted rows, in tolerances of a sum; and of halves, added up, in bits."""
    worst = 0.0
    for seed in range(trials):
        dy, x, mean, rstd, gamma = arguments(300, 64, seed)
        order = np.random.default_rng(seed).permutation(300)
        first = subject.backward(dy, x, mean, rstd, gamma).dbeta
        other = subject.backward(dy[order], x[order], mean[order], rstd[order], gamma).dbeta
        scale = np.abs(dy.astype(np.float64)).sum(0) * 2.0**-24
        worst = max(worst, float((np.abs(np.asarray(first, np.float64) - np.asarray(other, np.float64)) / scale).max()))

    def halves() -> Iterator[tuple[str, str | None]]:
        for seed in range(trials):
            for M in (128, 256, 512):
                dy, x, mean, rstd, gamma = arguments(M, 64, seed)
                whole = subject.backward(dy, x, mean, rstd, gamma)
                half = M // 2
                parts = [
                    subject.backward(dy[a:b], x[a:b], mean[a:b], rstd[a:b], gamma) for a, b in ((0, half), (half, M))
                ]
                for name in ("dgamma", "dbeta"):
                    one, other = (np.asarray(getattr(part, name)) for part in parts)
                    found = different_bits(one + other, np.asarray(getattr(whole, name)))
                    yield f"seed {seed}, {name} of {M}×64 in halves", found

    group = "Column sums"
    text = f"within {worst:.1f} units of roundoff of Σ|dy|"
    split = _compared(group, "dgamma and dbeta of 64·2^k rows are the sums of their halves, bit by bit", halves())
    return [Measured(group, "dbeta under a permutation of 300 rows", text, None, trials, facts={"worst": worst}), split]
