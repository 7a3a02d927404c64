"""A dx with other row means, recovered: of some columns, of a tile, of other rows, in 16 bits, or of no known kind."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from lngrad.check.mistakes.fit import MIN_ELEMENTS, SLACK, TINY, Explanation, Fit
from lngrad.check.mistakes.sum_weights import maps_through, recover_weights, weighted
from lngrad.check.mistakes.terms import Terms, narrowed, row_mean, row_sum
from lngrad.support.dtypes import UNIT_ROUNDOFF
from lngrad.typing import Array

TILES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)  # columns
SURE = 8.0  # times what a mean is known to, for a 16-bit grid to be told from chance
LABELS = ("mean of dxhat", "mean of dxhat·xhat")
Means: TypeAlias = "tuple[Array, Array]"
# Which of the two means are wrong, and what they are called.
WHICH = (((0,), LABELS[0]), ((1,), LABELS[1]), ((0, 1), "row means"))


def _is_usable(fit: Fit, rows: int, columns: int = MIN_ELEMENTS) -> bool:
    return rows <= fit.terms.M and columns <= fit.terms.N and fit.is_finite and bool((fit.terms.rstd != 0).all())


def _marked(t: Terms, which: tuple[int, ...]) -> str:
    """The right formula, with some of its means marked as others."""
    names = enumerate(("mean_dxhat", "mean_dxhat_xhat"))
    return t.dx_text(*(f"**{name}**" if place in which else name for place, name in names))


def partial_means(fit: Fit) -> Explanation | None:
    """Row means that do not take every column once: which columns they take."""
    t = fit.terms
    if not _is_usable(fit, rows=1, columns=4) or fit.explains(t.dx()):
        return None
    A, means = tuple(product / t.N for product in t.averaged), [product[:, 0] for product in _recovered(fit)[0]]
    for which, label, sum_name in (((1,), f"{LABELS[1]} takes", "mean_dxhat_xhat"), ((0,), f"{LABELS[0]} takes", "mean_dxhat"),
                                   ((0, 1), "means take", "both means")):  # fmt: skip

        def fits(w: Array, which: tuple[int, ...] = which) -> bool:
            return fit.explains(t.dx(*((A[array] @ w)[:, None] if array in which else None for array in (0, 1))))

        of_these, b = (np.concatenate([both[place] for place in which]) for both in (A, means))
        if (weights := recover_weights(of_these, b, fits)) is not None:
            found = weighted(sum_name, "column", weights)
            name = f"part of the columns in the {label.rpartition(' ')[0]}"
            return fit.explanation(name, f"the {label} not every column once: {found.text}.", _marked(t, which), found)
    return None


def tiled_means(fit: Fit) -> Explanation | None:
    """Row means of a tile of columns each, in place of the row's: by itself, as its part of the sum, or up to the tile."""
    t = fit.terms
    if fit.explains(t.dx()):
        return None
    for tile in TILES:
        if tile >= t.N:
            return None
        starts = np.arange(0, t.N, tile)
        sizes = np.diff(np.append(starts, t.N))
        sums = [np.add.reduceat(product, starts, axis=1) for product in t.averaged]
        for name, text, means in (
            ("means of each tile", f"are those of the tile of {tile} columns alone", [sum_ / sizes for sum_ in sums]),
            ("sums of a tile for the row's", f"have the sums of the tile of {tile} columns alone, divided by N: the tiles' "
             "sums are not added up", [sum_ / t.N for sum_ in sums]),
            ("sums up to the tile", f"have the sums of the columns up to the end of the tile of {tile}: dx is computed before "
             "the sums are complete", [np.cumsum(sum_, axis=1) / t.N for sum_ in sums]),
            ("unweighted means of chunks", f"are averages over chunks of {tile} columns, of which the last is shorter: weight "
             "each by its size", [row_mean(sum_ / sizes) * np.ones_like(sum_) for sum_ in sums]),
        ):  # fmt: skip
            if fit.explains(t.dx(*(np.repeat(mean, sizes, axis=1) for mean in means))):
                formula = fit.terms.dx_text(f"**mean_tile_{tile}(dxhat)**", f"**mean_tile_{tile}(dxhat·xhat)**")
                return fit.explanation(name, f"the two row means {text}.", formula)
    return None


def of_other_rows(fit: Fit) -> Explanation | None:
    """One row mean, or both, that are those of other rows, by a rule."""
    t, found = fit.terms, _other_means(fit, rows=2)
    if found is None:
        return None
    compared = zip(found[0], t.means, found[1], strict=True)
    off = [(np.abs(mean - right) > SLACK * near)[:, 0] for mean, right, near in compared]
    for which, label in WHICH:
        wrong = np.any([off[name] for name in which], axis=0)
        number = wrong.sum()
        if number < 2:
            continue

        def may_use(row: int, which: tuple[int, ...] = which) -> Array:
            near = [np.abs(t.means[name] - found[0][name][row])[:, 0] <= SLACK * found[1][name][row] for name in which]
            return np.asarray(np.all(near, axis=0))

        for text, whose in maps_through(np.flatnonzero(wrong), may_use, t.lead, "row"):
            used = np.where(wrong, whose, np.arange(t.M))
            if fit.explains(t.dx(*(right[used] if mean in which else right for mean, right in enumerate(t.means)))):
                rows = "all rows" if number == t.M else f"{number} of {t.M} rows"
                sentence = f"{rows} take the {label} {text}: it is not the row's own."
                return fit.explanation(f"{label} of other rows", sentence, _marked(t, which))
    return None


def narrow_means(fit: Fit) -> Explanation | None:
    """Row means that are 16-bit numbers, or whose sums are, in every row: what they are kept in."""
    found = _other_means(fit, rows=4)
    if found is None or fit.explains(fit.terms.dx()):
        return None
    means = [*zip(*found, strict=True)][0 if fit.terms.normalization.centred else 1 :]
    for dtype in ("bfloat16", "float16", "float32"):
        for what, times in (("sums", fit.terms.N), ("means", 1)):
            if all(_on_grid(mean * times, near * times, dtype) for mean, near in means):
                wider = "float64" if dtype == "float32" else "float32"
                text = f"are numbers of {dtype} in every row, and off: add them up, and keep them, in {wider}"
                formula = fit.terms.dx_text(f"**{dtype}(mean_dxhat)**", f"**{dtype}(mean_dxhat_xhat)**")
                return fit.explanation(f"row {what} kept in {dtype}", f"the two row {what} {text}.", formula)
    return None


def _on_grid(values: Array, known: Array, dtype: str) -> bool:
    """Whether values are a 16-bit dtype's numbers, as far as they are known, where that dtype is much coarser than that."""
    with np.errstate(over="ignore"):
        off = np.abs(values - narrowed(values, dtype)) > 2 * known
    sure = UNIT_ROUNDOFF[dtype] * np.abs(values) > SURE * known
    return int(sure.sum()) >= 4 and not off[sure].any()


def _recovered(fit: Fit) -> tuple[Means, Means]:
    """The two row means that dx has, and to which they are known, roughly.

    By least squares: dxhat − dx/rstd = m1 + xhat·m2 for each row, two unknowns.
    """
    t = fit.terms
    left, centre = t.dxhat - fit.of_norm / t.rstd, row_mean(t.xhat)
    apart = t.xhat - centre
    size = np.maximum(row_sum(np.square(apart)), TINY)
    second, error = row_sum(left * apart) / size, np.sqrt(row_sum(np.square(fit.bound / t.rstd)))
    return (row_mean(left) - centre * second, second), (error / t.N, error / np.sqrt(t.N * size))


def _other_means(fit: Fit, rows: int) -> tuple[Means, Means] | None:
    """The recovered means of so many rows at least, and to which they are known; None where other terms are wrong as well."""
    if not _is_usable(fit, rows):
        return None
    means, known = _recovered(fit)
    return (means, known) if _obeys(fit, means, known) else None


def _obeys(fit: Fit, means: Means, known: Means) -> bool:
    """Whether dx is the right formula with these recovered means."""
    t = fit.terms
    return fit.explains(t.dx(*means), np.abs(t.rstd) * (known[0] + np.abs(t.xhat) * known[1]))


def describe_means(fit: Fit) -> str | None:
    """Return a sentence if dx is right but for its two row means, where they are of no known kind, else None."""
    found = _other_means(fit, rows=0)
    if found is None:
        return None
    (got, known), rights = found, fit.terms.means
    second_alone, first_alone = (_obeys(fit, array, known) for array in ((rights[0], got[1]), (got[0], rights[1])))
    wrong = [1] if second_alone else [0] if first_alone else [0, 1]
    texts = []
    for name in wrong:
        row = int(np.argmax(np.abs(got[name] - rights[name])))
        values = f"in row {row} it is {got[name][row, 0]:.4g}, and should be {rights[name][row, 0]:.4g}"
        texts.append(f"the {LABELS[name]} ({values})")
    return f"the formula is right, but for {' and '.join(texts)}: look at what these row sums take, divide by and are kept in"
