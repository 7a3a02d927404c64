"""The order of a kernel's sums, from probes of its backward alone, and the tree's own result against the kernel's bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from lngrad.check.certify.measured import OWN, Measured, column_names, different_bits, gradients
from lngrad.check.certify.trees import Pairs, Tree, Unrevealed, fold, reveal, text_of, words
from lngrad.check.implementations import Implementation
from lngrad.core.norms import NORMS
from lngrad.typing import Array, Dtype

LARGE = 2.0**100  # absorbs ones in any accumulator
REPLAYS = 100
ALONE = 32  # sums of two numbers among zeros, for each addition of a tree
GROUP = "The order of sums"
MAX_DRAWN = 320  # leaves of a tree that a certificate keeps


def _ones(M: int, N: int) -> tuple[Array, ...]:
    """dy = 1, x = 0, mean 0, rstd 1, gamma 1: dbeta is the sum of dy, and dx = dy − mean(dy)."""
    zeros, ones = np.zeros((M, N), np.float32), np.ones((M, N), np.float32)
    return ones, zeros, zeros[:, 0].copy(), ones[:, 0].copy(), ones[0].copy()


def _masks(dy: Array, pairs: Pairs, size: int) -> Iterator[tuple[Sequence[tuple[int, int]], Array]]:
    """(pairs, dy with +L and −L in their places): as many pairs at once as dy has columns, one a column."""
    for start in range(0, len(pairs), size):
        chosen, probe = pairs[start : start + size], dy.copy()
        for column, (i, j) in enumerate(chosen):
            probe[i, column], probe[j, column] = LARGE, -LARGE
        yield chosen, probe


def column_order(subject: Implementation, M: int, N: int, threads: int | None = None) -> list[Measured]:
    """The trees of dbeta, a bare column sum of M rows, and of dgamma, a sum of products; replayed on random numbers.

    N masks are probed in a call, one a column.
    """
    if threads is not None and subject.set_threads is not None:
        subject.set_threads(threads)
    arrays = _ones(M, N)

    def probed(name: str, x: Array) -> Callable[[Pairs], list[float]]:
        """The column sum of that name."""

        def outside(pairs: Pairs) -> list[float]:
            found: list[float] = []
            for chosen, dy in _masks(arrays[0], pairs, N):
                sums = np.asarray(getattr(gradients(subject, dy, x, *arrays[2:]), name), np.float64)
                found += sums[: len(chosen)].tolist()
            return found

        return outside

    where = f"of {M}×{N} float32" + (f", {threads} thread{'s' * (threads > 1)}" if threads is not None else "")
    found = []
    if "dbeta" in column_names(subject):
        found.append(_measured(f"dbeta {where}", M, "rows", probed("dbeta", arrays[1]),
                               lambda tree: _replayed_columns(subject, tree, arrays))[0])  # fmt: skip
    if subject.norm in subject.own_statistics:
        return [*found, Measured(GROUP, f"dgamma {where}", OWN)]
    # xhat = 1: dgamma is the sum of dy, product by product.
    dgamma, _ = _measured(f"dgamma {where}", M, "rows", probed("dgamma", arrays[0]),
                          lambda tree: _replayed_products(subject, tree, M, N))  # fmt: skip
    return [*found, dgamma]


def row_order(subject: Implementation, N: int) -> list[Measured]:
    """The trees of both row sums of N columns, from dx where xhat is 0 and where it is 1."""
    names = [f"{name} over {N} columns float32" for name in ("Σ dy·gamma", "Σ dy·gamma·xhat")]
    centred = NORMS[subject.norm].normalization.centred
    names = names if centred else names[1:]
    if subject.norm in subject.own_statistics:
        return [Measured(GROUP, name, OWN) for name in names]
    M = 64
    arrays = _ones(M, N)

    def sums(pairs: Pairs, x: Array) -> list[float]:
        """N·(1 − dx) at a place whose dy is 1: the sum, or both sums together."""
        found: list[float] = []
        for chosen, columns in _masks(arrays[0].T, pairs, M):
            dy = np.ascontiguousarray(columns.T)
            dx = np.asarray(gradients(subject, dy, x, *arrays[2:]).dx, np.float64)
            for row, (i, j) in enumerate(chosen):
                probe = next(place for place in (0, 1, 2) if place not in (i, j))
                total = N * (1 - dx[row, probe])
                found.append(float(np.round(total)) if abs(total - np.round(total)) < 0.25 else total)
        return found

    if not centred:  # where xhat is 1, dx has this sum alone
        return [_measured(names[0], N, "columns", lambda pairs: sums(pairs, np.ones_like(arrays[1])))[0]]
    first, tree = _measured(names[0], N, "columns", lambda pairs: sums(pairs, arrays[1]))
    if tree is None:
        return [first]
    shared = _shared_sizes(tree, N)

    def second(pairs: Pairs) -> list[float]:
        both = sums(pairs, np.ones_like(arrays[1]))
        return [total - (N - int(shared[i, j])) for total, (i, j) in zip(both, pairs, strict=True)]

    return [first, _measured(names[1], N, "columns", second)[0]]


def _measured(
    label: str, n: int, what: str, outside: Callable[[Pairs], list[float]],
    replayed: Callable[[Tree], tuple[str, str]] | None = None,
) -> tuple[Measured, Tree | None]:  # fmt: skip
    """The order of a sum in words, with the verdict of its replay; and the tree, if the probes fit one."""
    probes = 0

    def counted(pairs: Pairs) -> list[float]:
        nonlocal probes
        probes += len(pairs)
        return outside(pairs)

    with np.errstate(all="ignore"):
        try:
            tree = reveal(n, counted)
        except Unrevealed as reason:
            return Measured(GROUP, label, f"not revealed: {reason}", None, probes), None
        verdict, counterexample = replayed(tree) if replayed is not None else ("", "")
    facts: dict[str, Any] = {"terms": n} | ({"tree": text_of(tree)} if n <= MAX_DRAWN else {})
    text = "; ".join(filter(None, (words(tree, what), verdict)))
    return Measured(GROUP, label, text, None, probes, counterexample, facts), tree


def _replayed_columns(subject: Implementation, tree: Tree, arrays: Any) -> tuple[str, str]:
    """Whether the tree's own sums have the kernel's bits, for dbeta; and in which precision they are kept."""
    shape = arrays[0].shape
    inputs = [np.random.default_rng([seed, 3]).standard_normal(shape).astype(np.float32) for seed in range(REPLAYS)]
    got = np.stack([np.asarray(gradients(subject, dy, *arrays[1:]).dbeta) for dy in inputs])
    terms = np.stack(inputs, axis=1)  # all at once: an addition is one call of NumPy, however many numbers it adds
    ways = ((f"in {name}", replay(tree, terms, np.dtype(name)).astype(got.dtype)) for name in ("float32", "float64"))
    verdict, example = _verdict(ways, got, "the tree's sums ")
    return "; ".join(filter(None, (verdict, example and _not_rounded_once(subject, tree, arrays)))), example


def _not_rounded_once(subject: Implementation, tree: Tree, arrays: Any) -> str:
    """Two rows whose numbers, alone among zeros, do not come to their sum rounded once: then the order may be right."""
    meetings: list[tuple[int, int]] = []

    def joined(_: tuple[Tree, ...], firsts: list[int]) -> int:
        meetings.append((firsts[0], firsts[1]))
        return min(firsts)

    fold(tree, lambda item: item if isinstance(item, int) else None, joined)
    M, N = arrays[0].shape
    pairs, rng = np.repeat(meetings, ALONE, axis=0), np.random.default_rng(5)
    for chosen in (pairs[start : start + N] for start in range(0, len(pairs), N)):
        dy, columns = np.zeros((M, N), np.float32), np.arange(len(chosen))
        drawn = 2.0 ** rng.integers(-3, 4, (2, len(chosen))) * rng.standard_normal((2, len(chosen)))
        first, other = drawn.astype(np.float32)
        dy[chosen[:, 0], columns], dy[chosen[:, 1], columns] = first, other
        got = np.asarray(gradients(subject, dy, *arrays[1:]).dbeta)[: len(chosen)]
        for at in np.flatnonzero(got != (first + other).astype(got.dtype))[:1]:
            i, j = map(int, chosen[at])
            which = f"{first[at]:.9g} in row {i} and {other[at]:.9g} in row {j}, among zeros"
            values = f"come to {got[at]:.9g}, where {first[at] + other[at]:.9g} belongs"
            return f"its additions are not all rounded once: {which}, {values}"
    return ""


def _replayed_products(subject: Implementation, tree: Tree, M: int, N: int) -> tuple[str, str]:
    """Whether the tree's sums of dy·xhat have the kernel's bits, for dgamma; and how products are rounded."""
    inputs = []
    for seed in range(REPLAYS):
        rng = np.random.default_rng([seed, 4])
        dy, x = (rng.standard_normal((M, N)).astype(np.float32) for _ in range(2))
        mean = rng.standard_normal(M).astype(np.float32)
        mean = mean if NORMS[subject.norm].normalization.centred else np.zeros_like(mean)
        inputs.append((dy, x, mean, 2.0 ** rng.integers(-2, 3, M).astype(np.float32)))
    got = np.stack([np.asarray(gradients(subject, *input, np.ones(N, np.float32)).dgamma) for input in inputs])
    dy, x, mean, rstd = (np.stack(arrays, axis=1) for arrays in zip(*inputs, strict=True))
    return _verdict(product_sums(tree, dy, x, mean, rstd), got, "")


def _verdict(ways: Iterable[tuple[str, Array]], got: Array, what: str) -> tuple[str, str]:
    """The first way of rounding that gives the kernel's bits for every seed, else the nearest and where it differs."""
    nearest: tuple[int, str, str] | None = None
    for label, own in ways:
        differences = [(seed, different_bits(own[seed], got[seed])) for seed in range(REPLAYS)]
        wrong = [f"seed {seed}: {difference}" for seed, difference in differences if difference]
        if not wrong:
            return f"{label}, confirmed by replay: the same bits on {REPLAYS} of {REPLAYS} random inputs", ""
        if nearest is None or len(wrong) < nearest[0]:
            nearest = len(wrong), label, wrong[0]
    assert nearest is not None  # there is a way
    number, label, example = nearest
    verb, right = "have" if what else "has", REPLAYS - number
    return f"NOT confirmed: {what}{label} {verb} the kernel's bits on {right} of {REPLAYS} random inputs", example


def _shared_sizes(tree: Tree, n: int) -> Array:
    """(n, n): the size of the smallest subtree that has two places."""
    sizes = np.zeros((n, n), int)

    def joined(_: tuple[Tree, ...], parts: list[list[int]]) -> list[int]:
        places = [place for part in parts for place in part]
        shared = sizes[np.ix_(places, places)]
        sizes[np.ix_(places, places)] = np.where(shared, shared, len(places))
        return places

    fold(tree, lambda item: [item] if isinstance(item, int) else None, joined)
    return sizes


def replay(tree: Tree, terms: Array, dtype: Dtype, factors: Array | None = None) -> Array:
    """The sum of terms (n, …) over the first axis in a tree's order, each addition rounded to dtype.

    With factors, also (n, …), of terms·factors by fused multiply-add, in float32: a product added alone is not rounded before.
    """

    def leaf(tree: Tree) -> Array | None:
        if not isinstance(tree, int):
            return None
        return np.asarray(terms[tree] if factors is None else terms[tree] * factors[tree]).astype(dtype)

    def added(node: tuple[Tree, ...], parts: list[Array]) -> Array:
        pairs = list(zip(node, parts, strict=True))
        if factors is not None:  # a sum takes leaves, whichever of them comes first in the tree's text
            pairs.sort(key=lambda pair: isinstance(pair[0], int))
        total = pairs[0][1]
        for part, value in pairs[1:]:
            if factors is not None and isinstance(part, int):
                total = _fused(terms[part], factors[part], total)
            else:
                total = (total + value).astype(dtype)
        return total

    return fold(tree, leaf, added)


def _fused(array: Array, other: Array, addend: Array) -> Array:
    """one·other + addend in float32, rounded once.

    The product is exact in float64. The sum is rounded to odd there, so that rounding it to float32 is the only rounding
    that shows.
    """
    product, wide = array.astype(np.float64) * other.astype(np.float64), addend.astype(np.float64)
    total = product + wide
    back = total - product
    lost = (product - (total - back)) + (wide - back)
    even = (total.view(np.int64) & 1) == 0
    odd = np.where((lost != 0) & even, np.nextafter(total, np.where(lost > 0, np.inf, -np.inf)), total)
    return odd.astype(np.float32)


def product_sums(tree: Tree, dy: Array, x: Array, mean: Array, rstd: Array) -> Iterator[tuple[str, Array]]:
    """Σ dy·xhat in a tree's order of rows, in each way that kernels are known to round it: (in words, the sums).

    rstd is a power of two, so that xhat has the same bits however a kernel computes it.
    """
    narrow, wide = np.dtype(np.float32), np.dtype(np.float64)
    xhat = (x - mean[..., None]) * rstd[..., None]
    yield "dy·xhat added by fused multiply-add in float32", replay(tree, dy, narrow, xhat)
    yield "dy·xhat rounded, then added in float32", replay(tree, dy * xhat, narrow)
    yield "dy·xhat exact, added in float64", replay(tree, dy.astype(wide) * xhat, wide).astype(narrow)
