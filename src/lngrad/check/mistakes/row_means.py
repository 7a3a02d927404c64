"""The two row means that a wrong dx has, recovered: of a tile, in 16 bits, or of no known kind."""

from __future__ import annotations

import numpy as np

from lngrad.check.mistakes.formula import Difference, Explanation
from lngrad.check.mistakes.index_maps import maps_through, spread
from lngrad.check.mistakes.terms import Terms
from lngrad.check.result import Formula
from lngrad.core.dtypes import UNIT_ROUNDOFF, numpy_dtype
from lngrad.typing import Array

SLACK = 4.0  # tolerances: a formula in float32 is rounded at other places than ours in float64
EXPLAINED = 0.995  # of the elements
FEWEST = 8  # columns, so that two free numbers a row explain nothing by chance
TILES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)  # columns
SURE = 8.0  # times what a mean is known to, for a 16-bit grid to be told from chance


def explain_tiled_means(terms: Terms, dx: Array, bound: Array) -> Explanation | None:
    """Row means of a tile of columns each, in place of the row's: by itself, as its part of the sum, or up to the tile."""
    N = terms.N
    products = terms.dxhat, terms.dxhat * terms.xhat
    for tile in TILES:
        if tile >= N:
            return None
        starts = np.arange(0, N, tile)
        sizes = np.diff(np.append(starts, N))
        sums = [np.add.reduceat(one, starts, axis=1) for one in products]
        for name, text, made in (
            ("means of each tile", "are those of the tile of {} columns alone", [one / sizes for one in sums]),
            ("sums of a tile for the row's", "have the sums of the tile of {} columns alone, divided by N: the tiles' sums "
             "are not added up", [one / N for one in sums]),
            ("sums up to the tile", "have the sums of the columns up to the end of the tile of {}: dx is computed before the "
             "sums are complete", [np.cumsum(one, axis=1) / N for one in sums]),
        ):  # fmt: skip
            means = [np.repeat(one, sizes, axis=1) for one in made]
            if obeys(terms, dx, bound, *means):
                found = Difference(name, f"the two row means {text.format(tile)}.")
                parts = (("rstd·(dxhat − ", False), (f"mean_tile_{tile}(dxhat)", True), (" − xhat·", False),
                         (f"mean_tile_{tile}(dxhat·xhat)", True), (")", False))  # fmt: skip
                return Explanation(Formula("dx", parts), (found,))
    return None


def explain_narrow_means(terms: Terms, dx: Array, bound: Array) -> Explanation | None:
    """Row means that are 16-bit numbers, or whose sums are, in every row: what they are kept in."""
    M, N = terms.dy.shape
    if M < 4 or N < FEWEST or not np.isfinite(dx).all() or not (terms.rstd != 0).all():
        return None
    first, second = row_means_of(terms, dx)
    rights = terms.dxhat.mean(1), (terms.dxhat * terms.xhat).mean(1)
    known = _known(terms, bound)
    if not obeys(terms, dx, _widened(terms, bound, *known), first, second) or obeys(terms, dx, bound, *rights):
        return None
    for dtype in ("bfloat16", "float16"):
        for what, times in (("sums", N), ("means", 1)):
            if all(
                _on_grid(one * times, near * times, dtype) for one, near in zip((first, second), known, strict=True)
            ):
                found = Difference(
                    f"row {what} kept in {dtype}",
                    f"the two row {what} are numbers of {dtype} in every row, and off: add them up, and keep them, in float32.",
                )
                parts = (("rstd·(dxhat − ", False), (f"{dtype}(mean_dxhat)", True), (" − xhat·", False),
                         (f"{dtype}(mean_dxhat_xhat)", True), (")", False))  # fmt: skip
                return Explanation(Formula("dx", parts), (found,))
    return None


def _on_grid(values: Array, known: Array, dtype: str) -> bool:
    """Whether values are a 16-bit dtype's numbers, as far as they are known, where that dtype is much coarser than that."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32).astype(numpy_dtype(dtype)).astype(np.float64)
    sure = UNIT_ROUNDOFF[dtype] * np.abs(values) > SURE * known
    return int(sure.sum()) >= 4 and bool((np.abs(values - rounded) <= 2 * known)[sure].all())


def row_means_of(terms: Terms, dx: Array) -> tuple[Array, Array]:
    """The two row means that dx has: dxhat − dx/rstd = m1 + xhat·m2 for each row, two unknowns, by least squares."""
    left = terms.dxhat - dx / terms.rstd
    centre, apart = terms.xhat.mean(1, keepdims=True), terms.xhat - terms.xhat.mean(1, keepdims=True)
    second = (left * apart).sum(1) / np.maximum(np.square(apart).sum(1), 1e-300)
    return left.mean(1) - centre[:, 0] * second, second


def _known(terms: Terms, bound: Array) -> tuple[Array, Array]:
    """To which the two recovered means are known, roughly."""
    apart = np.maximum(np.square(terms.xhat - terms.xhat.mean(1, keepdims=True)).sum(1), 1e-300)
    error = np.sqrt(np.square(bound / terms.rstd).sum(1))
    return error / terms.N, error / np.sqrt(terms.N * apart)


def _widened(terms: Terms, bound: Array, first: Array, second: Array) -> Array:
    """The error that a dx may have which is made with recovered means."""
    return np.asarray(bound + np.abs(terms.rstd) * (first[:, None] + np.abs(terms.xhat) * second[:, None]))


def explain_means_of_other_rows(terms: Terms, dx: Array, bound: Array) -> Explanation | None:
    """One row mean, or both, that are those of other rows, by a rule."""
    if terms.M < 2 or terms.N < FEWEST or not np.isfinite(dx).all() or not (terms.rstd != 0).all():
        return None
    got, known = row_means_of(terms, dx), _known(terms, bound)
    rights = terms.dxhat.mean(1), (terms.dxhat * terms.xhat).mean(1)
    if not obeys(terms, dx, _widened(terms, bound, *known), *got):
        return None
    wrong = [
        np.flatnonzero(np.abs(one - right) > SLACK * near) for one, right, near in zip(got, rights, known, strict=True)
    ]
    for which, label in (((0,), "mean of dxhat"), ((1,), "mean of dxhat·xhat"), ((0, 1), "row means")):
        places = np.unique(np.concatenate([wrong[one] for one in which]))
        if len(places) < 2:
            continue
        pairs = []
        for row in map(int, spread(places)):
            fits = [np.abs(rights[one] - got[one][row]) <= SLACK * known[one][row] for one in which]
            pairs.append((row, {*map(int, np.flatnonzero(np.all(fits, axis=0)))} - {row}))
        for text, whose in maps_through(pairs, terms.M, terms.lead, "row"):
            used = np.arange(terms.M)
            used[places] = whose[places]
            means = [right[used] if one in which else right for one, right in enumerate(rights)]
            if obeys(terms, dx, bound, *means):
                rows = "all rows" if len(places) == terms.M else f"{len(places)} of {terms.M} rows"
                found = Difference(
                    f"{label} of other rows", f"{rows} take the {label} {text}: it is not the row's own."
                )
                parts = (("rstd·(dxhat − ", False), ("mean_dxhat", 0 in which), (" − xhat·", False),
                         ("mean_dxhat_xhat", 1 in which), (")", False))  # fmt: skip
                return Explanation(Formula("dx", parts), (found,))
    return None


def obeys(terms: Terms, dx: Array, bound: Array, m1: Array, m2: Array) -> bool:
    """Whether dx is the right formula with these two means, (rows,) or (rows, N)."""
    first, second = (one if one.ndim == 2 else one[:, None] for one in (m1, m2))
    made = terms.rstd * (terms.dxhat - first - terms.xhat * second)
    return bool(np.mean(np.abs(made - dx) <= SLACK * bound) >= EXPLAINED)


def describe_means(terms: Terms, dx: Array, bound: Array) -> str | None:
    """That dx is right but for its two row means, where they are of no known kind; None if it is not so."""
    if terms.N < FEWEST or not np.isfinite(dx).all() or not (terms.rstd != 0).all():
        return None
    first, second = row_means_of(terms, dx)
    rights = terms.dxhat.mean(1), (terms.dxhat * terms.xhat).mean(1)
    bound = _widened(terms, bound, *_known(terms, bound))
    if not obeys(terms, dx, bound, first, second):
        return None
    wrong = {"mean of dxhat": (first, rights[0]), "mean of dxhat·xhat": (second, rights[1])}
    if obeys(terms, dx, bound, rights[0], second):
        del wrong["mean of dxhat"]
    elif obeys(terms, dx, bound, first, rights[1]):
        del wrong["mean of dxhat·xhat"]
    texts = []
    for label, (got, right) in wrong.items():
        row = int(np.argmax(np.abs(got - right)))
        texts.append(f"the {label} (in row {row} it is {got[row]:.4g}, and should be {right[row]:.4g})")
    return f"the formula is right, but for {' and '.join(texts)}: look at what these row sums take, divide by and are kept in"
