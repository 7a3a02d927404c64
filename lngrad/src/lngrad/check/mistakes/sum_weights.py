"""Rows and columns: which of them entered a sum, by which rule an index is wrong, and both in words.

Weights w of a sum are recovered from its values, A·w = b; most are 0, 1 or 2. Where there are more sums than terms, least
squares gives every weight. Where there are fewer, weights are looked for that are equal over blocks, over a prefix or a
suffix, or repeat with a period: what loops, tiles, cores and blocks do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain, pairwise

import numpy as np

from lngrad.check.result import Weights
from lngrad.typing import Array, Shape

BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PERIODS = (2, 3, 4, 8)
TILES = (2, 4, *(1 << bits for bits in range(3, 17)))  # of a loop over terms
MIN_SUMS = 8  # for a pattern of any place: of fewer, tiles alone
TINY = 1e-300
MAX_DENSE = 2048  # unknowns of a least squares problem
ENOUGH = 1.25  # sums for each unknown, so that the fit is a test as well
NEAR = 0.05  # of a whole number
MAX_LOST = 8  # terms, one by one
MAX_RULES = 4  # of a kind
LOOKED_AT = 4  # places, one by one

WORD = 1 << 16  # what a count of 16 bits begins anew after

Fits = Callable[[Array], bool]


def recover_weights(A: Array, b: Array, fits: Fits, few: bool = False) -> Array | None:
    """Weights of the terms.

    Args:
        A: (sums, terms), b: (sums,). Rows of A should have about the same size.
        few: Whether a few terms anywhere may be lost: where the result is known well.
        fits: Whether given weights explain the result; the last word on every candidate.

    Returns:
        The simplest weights that fit and are not all the same; None if there are none.
    """
    others = _tiled(A, b)
    if few:
        others = chain(_one_many_times(A, b), others, _but_for_a_few(A, b))
    elif len(A) < MIN_SUMS:
        return next(filter(fits, others), None)
    for weights in chain(_prefixes(A, b), _periodic(A, b), _of_blocks(A, b), others):
        if not (weights == weights[0]).all() and fits(weights):
            return weights
    return None


def _of_blocks(A: Array, b: Array) -> Iterator[Array]:
    """Whole numbers, one a block of terms, by least squares."""
    terms = A.shape[1]
    for block in BLOCKS:
        blocks = -(-terms // block)
        if blocks > MAX_DENSE or blocks * ENOUGH > len(A) or blocks < 2:
            continue
        summed = A if block == 1 else np.add.reduceat(A, np.arange(0, terms, block), axis=1)
        weights, _, rank, _ = np.linalg.lstsq(summed, b, rcond=1e-9)
        whole = np.round(weights)
        if rank == blocks and np.isfinite(weights).all() and np.abs(weights - whole).max() <= NEAR:
            yield np.repeat(whole, block)[:terms]


def _one_many_times(A: Array, b: Array) -> Iterator[Array]:
    """One term that is counted several times, as where the rows that fill a block are its last one."""
    left = b - A.sum(1)
    size = np.maximum(np.square(A).sum(0), TINY)
    times = (left @ A) / size
    term = int(np.argmax(times**2 * size))
    whole = np.round(times[term])
    if whole >= 2 and abs(times[term] - whole) <= NEAR:
        weights = np.ones(A.shape[1])
        weights[term] += whole
        yield weights


def _tiled(A: Array, b: Array) -> Iterator[Array]:
    """Terms that tiles leave out, or take twice, at the end, or at the beginning: those that leave the least come first."""
    terms, found = A.shape[1], []
    index = np.arange(terms)
    for tile in (1, *TILES):
        if tile >= terms:
            break
        whole = terms // tile * tile
        start = whole if whole < terms else terms - tile
        found += [(index < start) * 1.0, (index >= start) * 1.0, (index < tile) * 1.0, (index >= tile) * 1.0]
        if whole < terms:
            found.append(1.0 + ((index >= terms - tile) & (index < whole)))
    left = np.square(A @ np.transpose(found) - b[:, None]).sum(0)
    yield from (found[place] for place in np.argsort(left, kind="stable")[:MAX_RULES].tolist())


def _but_for_a_few(A: Array, b: Array) -> Iterator[Array]:
    """One to MAX_LOST terms lost, or counted twice: one by one, the term that leaves the least."""
    for sign, weight in ((1.0, 0.0), (-1.0, 2.0)):
        left, weights = sign * (A.sum(1) - b), np.ones(A.shape[1])
        squares = np.square(A).sum(0)
        for _ in range(min(MAX_LOST, A.shape[1] - 1)):
            term = int(np.argmin(np.where(weights == 1, squares - 2 * (left @ A), np.inf)))
            weights[term] = weight
            left = left - A[:, term]
            yield weights.copy()


def _prefixes(A: Array, b: Array) -> Iterator[Array]:
    """The first k terms lost, or all but them, or counted twice: k by the smallest remainder."""
    sums = np.cumsum(A, axis=1)
    whole = sums[:, -1:]
    for target, inner, outer in ((sums, 1.0, 0.0), (whole - sums, 0.0, 1.0), (whole + sums, 2.0, 1.0),
                                 (2 * whole - sums, 1.0, 2.0)):  # fmt: skip
        left = np.square(target - b[:, None]).sum(0)
        k = int(np.argmin(left)) + 1
        weights = np.full(A.shape[1], outer)
        weights[:k] = inner
        yield weights


def _periodic(A: Array, b: Array) -> Iterator[Array]:
    """Every p-th block of terms lost, alone, or counted twice."""
    terms = A.shape[1]
    best: list[tuple[float, int, Array]] = []
    index = np.arange(terms)
    whole = A.sum(1)
    for block in (size for size in BLOCKS if 2 * size <= terms):
        phases = ((period, phase) for period in PERIODS for phase in range(min(period, -(-terms // block))))
        for period, phase in phases:
            chosen = (index // block) % period == phase
            part = A[:, chosen].sum(1)
            for value, rest in ((0.0, 1.0), (2.0, 1.0), (1.0, 0.0)):
                left = float(np.square(value * part + rest * (whole - part) - b).sum())
                if np.isfinite(left):
                    best.append((left, len(best), np.where(chosen, value, rest)))
        best = sorted(best, key=lambda item: item[:2])[:3]
    yield from (weights for _, _, weights in best)


def weighted(sum_name: str, what: str, weights: Array, *more: str) -> Weights:
    """The weights of a sum's rows or columns, with their text, and what is to be said besides."""
    return Weights(sum_name, what, runs_of(weights), "".join((describe_weights(weights, what), *more)))


def runs_of(weights: Array) -> tuple[tuple[int, int, float], ...]:
    """(first, number, weight) of neighbours with the same weight."""
    starts = np.flatnonzero(np.diff(weights, prepend=np.nan) != 0)
    ends = np.append(starts[1:], len(weights))
    return tuple((int(a), int(b - a), float(weights[a])) for a, b in zip(starts, ends, strict=True))


def describe_weights(weights: Array, what: str) -> str:
    """Weights, not all 1, of rows or columns: "the last 5 rows are missing", "every 2nd block of 16 rows is counted twice"."""
    odd = weights != 1
    values = set(weights[odd].tolist())
    verbs = {0.0: "missing", 2.0: "counted twice", -1.0: "of the opposite sign"}
    only = next(iter(values))
    verb = verbs.get(only, f"counted {only:g} times") if len(values) == 1 else "weighted by other numbers than 1"
    total, number = len(weights), int(odd.sum())
    if values == {0.0} and number > total / 2:
        wraps = total - number == total % WORD < total and not odd[: total - number].any()
        why = f", which is {total} modulo {WORD}: a count of 16 bits" if wraps else ""
        return f"only {which_places(~odd, what)} of {total} are counted{why}"
    first, last = np.flatnonzero(odd)[[0, -1]]
    tile, is_run = total - int(first), number == last - first + 1
    why = ""
    if values == {2.0} and is_run and tile in TILES and last + 1 == total - total % tile:
        why = ": what the tile before left lies behind the end of the last one, or the last one begins early"
    return f"{which_places(odd, what)} of {total} {'is' if number == 1 else 'are'} {verb}{why}"


def describe_places(chosen: Array, what: str) -> str:
    """Which rows or columns, in words: "the last 4 columns (from 96 on) of 100"."""
    return f"all {len(chosen)} {what}s" if chosen.all() else f"{which_places(chosen, what)} of {len(chosen)}"


def which_places(chosen: Array, what: str) -> str:
    places = np.flatnonzero(chosen)
    first, last, number, total = int(places[0]), int(places[-1]), len(places), len(chosen)
    if number == 1:
        return f"{'the last' if first == total - 1 and first else ''}{what} {first}".replace("last", "last ", 1)
    if number == last - first + 1:
        if first == 0:
            return f"the first {number} {what}s"
        return f"the last {number} {what}s (from {first} on)" if last == total - 1 else f"{what}s {first} to {last}"
    runs = [run for run in runs_of(chosen.astype(float)) if run[2] == 1]
    steps = {after[0] - before[0] for before, after in pairwise(runs)}
    sizes = {run[1] for run in runs[:-1]}
    if len(steps) == 1 and len(sizes) == 1 and len(runs) > 2:
        step, size = steps.pop(), sizes.pop()
        if step % size == 0:
            block = f"{what}" if size == 1 else f"block of {size} {what}s"
            return f"every {ordinal(step // size)} {block}, from {what} {first} on: {number} {what}s"
    shown = ", ".join(str(start) if size == 1 else f"{start} to {start + size - 1}" for start, size, _ in runs[:6])
    return f"{number} {what}s ({shown}{', …' if len(runs) > 6 else ''})"


def why_so_many_columns(right: Array, dims: Shape, name: str) -> str:
    """What it means that as many columns as the last size of gamma are right, from the first on."""
    counted = int(right.sum())
    if len(dims) < 2 or counted != dims[-1] or not right[:counted].all():
        return ""
    return f", as many as gamma.size(-1): {name} has as many elements as gamma, the product of its sizes"


def ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"


def maps_through(places: Array, may_use: Callable[[int], Array], dims: Shape, what: str) -> Iterator[tuple[str, Array]]:
    """Rules that a few of some places obey, the simplest first: (in words, the place that each place uses).

    Args:
        places: Those that use another's; they are counted over dims.
        may_use: Which of all places one of them may use.
    """
    chosen = places[np.linspace(0, len(places) - 1, min(LOOKED_AT, len(places))).astype(int)].tolist()
    sources = {place: {*np.flatnonzero(may_use(place)).tolist()} - {place} for place in chosen}
    if not sources or not all(sources.values()):
        return
    index = np.arange(math.prod(dims))
    yield from _all_of_one(sources, index, what)
    yield from _shifted(sources, index, what)
    for text, members in chain(_in_blocks(index, what), _transposed(index, dims, what), _modulo(sources, index, what),
                           _strided(index, what)):  # fmt: skip
        if all(int(members[place]) in sources[place] for place in chosen):
            yield text, members


Sources = dict[int, set[int]]  # of a few places, those that each may use
Rules = Iterator[tuple[str, Array]]


def _all_of_one(sources: Sources, index: Array, what: str) -> Rules:
    if len(sources) > 1:
        for source in sorted(set.intersection(*sources.values()))[:MAX_RULES]:
            yield f"of {what} {source}", np.full_like(index, source)


def _shifted(sources: Sources, index: Array, what: str) -> Rules:
    size = len(index)
    offsets = set.intersection(*({(place - source) % size for source in ones} for place, ones in sources.items()))
    wraps = any(place - offset < 0 for place in sources for offset in offsets)
    for offset in sorted((offset_ - size if wraps and 2 * offset_ > size else offset_ for offset_ in offsets), key=abs)[
        :MAX_RULES
    ]:
        text = f"of the {what} {abs(offset)} {'before' if offset > 0 else 'after'}"
        yield text, np.clip(index - offset, 0, size - 1)
        yield text, (index - offset) % size


def _in_blocks(index: Array, what: str) -> Rules:
    yield from ((f"of the first {what} of each block of {block}", index // block * block) for block in BLOCKS[1:9])


def _transposed(index: Array, dims: Shape, what: str) -> Rules:
    """An array that is read as if its dimensions were reversed."""
    if sum(length > 1 for length in dims) > 1:
        text = f"of the {what} at its place in the transposed dimensions {'×'.join(map(str, dims))}"
        yield from ((text, index.reshape(fromkey).T.reshape(-1)) for fromkey in dict.fromkeys((dims, dims[::-1])))


def _modulo(sources: Sources, index: Array, what: str) -> Rules:
    """After how many places an index may begin anew, powers of two first."""
    possible = range(2, max(sources) + 1)
    counts = [count for count in possible if all(place % count in ones for place, ones in sources.items())]
    counts.sort(key=lambda count: count & (count - 1) != 0)
    yield from ((f"of the {what} modulo {count}", index % count) for count in counts[:MAX_RULES])


def _strided(index: Array, what: str) -> Rules:
    yield from ((f"of the {what} at {step} times its index", index * step % len(index)) for step in (2, 4, 8))
    yield f"of the {what} counted from the end", index[::-1]
