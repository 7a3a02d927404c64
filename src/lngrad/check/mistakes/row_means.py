"""A dx with other row means, recovered: of some columns, of a tile, of other rows, in 16 bits, or of no known kind."""

from __future__ import annotations

import numpy as np

from lngrad.check.mistakes.fit import MIN_ELEMENTS, SLACK, TINY, Explanation, Fit
from lngrad.check.mistakes.sum_weights import describe_weights, maps_through, recover_weights, runs_of, spread
from lngrad.check.result import Weights
from lngrad.core.dtypes import UNIT_ROUNDOFF, numpy_dtype
from lngrad.typing import Array

TILES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)  # columns
SURE = 8.0  # times what a mean is known to, for a 16-bit grid to be told from chance


def _with_means(first: object, second: object) -> str:
    return f"rstd·(dxhat − {first} − xhat·{second})"


def _is_usable(fit: Fit, rows: int, columns: int = MIN_ELEMENTS) -> bool:
    return rows <= fit.terms.M and columns <= fit.terms.N and fit.is_finite and bool((fit.terms.rstd != 0).all())


def explain_partial_means(fit: Fit) -> Explanation | None:
    """Row means that do not take every column once: which columns they take."""
    t = fit.terms
    if not _is_usable(fit, rows=4, columns=4):
        return None
    first, second = (one[:, 0] for one in _recovered(fit))
    A1, A2 = t.dxhat / t.N, t.dxhat * t.xhat / t.N
    for sum_name, label, A, b, in_first, in_second in (
        ("mean_dxhat_xhat", "mean of dxhat·xhat takes", A2, second, False, True),
        ("mean_dxhat", "mean of dxhat takes", A1, first, True, False),
        ("both means", "means take", np.vstack([A1, A2]), np.append(first, second), True, True),
    ):

        def fits(w: Array, in_first: bool = in_first, in_second: bool = in_second) -> bool:
            return fit.explains(t.dx((A1 @ w)[:, None] if in_first else None, (A2 @ w)[:, None] if in_second else None))

        weights = recover_weights(A, b, fits)
        if weights is not None:
            text = describe_weights(weights, "column")
            return fit.explanation(
                f"part of the columns in the {label.rpartition(' ')[0]}",
                f"the {label} not every column once: {text}.",
                "rstd·(dxhat − " + ("**mean_dxhat**" if in_first else "mean_dxhat") + " − "
                + ("**xhat·mean_dxhat_xhat**" if in_second else "xhat·mean_dxhat_xhat") + ")",
                Weights(sum_name, "column", runs_of(weights), text),
            )  # fmt: skip
    return None


def explain_tiled_means(fit: Fit) -> Explanation | None:
    """Row means of a tile of columns each, in place of the row's: by itself, as its part of the sum, or up to the tile."""
    t = fit.terms
    for tile in TILES:
        if tile >= t.N:
            return None
        starts = np.arange(0, t.N, tile)
        sizes = np.diff(np.append(starts, t.N))
        sums = [np.add.reduceat(one, starts, axis=1) for one in (t.dxhat, t.dxhat * t.xhat)]
        for name, text, made in (
            ("means of each tile", f"are those of the tile of {tile} columns alone", [one / sizes for one in sums]),
            ("sums of a tile for the row's", f"have the sums of the tile of {tile} columns alone, divided by N: the tiles' "
             "sums are not added up", [one / t.N for one in sums]),
            ("sums up to the tile", f"have the sums of the columns up to the end of the tile of {tile}: dx is computed before "
             "the sums are complete", [np.cumsum(one, axis=1) / t.N for one in sums]),
        ):  # fmt: skip
            if fit.explains(t.dx(*(np.repeat(one, sizes, axis=1) for one in made))):
                formula = _with_means(f"**mean_tile_{tile}(dxhat)**", f"**mean_tile_{tile}(dxhat·xhat)**")
                return fit.explanation(name, f"the two row means {text}.", formula)
    return None


def explain_means_of_other_rows(fit: Fit) -> Explanation | None:
    """One row mean, or both, that are those of other rows, by a rule."""
    t = fit.terms
    if not _is_usable(fit, rows=2):
        return None
    got, known = _recovered(fit), _known(fit)
    if not _obeys(fit, got, known):
        return None
    wrong = [
        np.flatnonzero(np.abs(one - right) > SLACK * near) for one, right, near in zip(got, t.means, known, strict=True)
    ]
    for which, label in (((0,), "mean of dxhat"), ((1,), "mean of dxhat·xhat"), ((0, 1), "row means")):
        places = np.unique(np.concatenate([wrong[one] for one in which]))
        if len(places) < 2:
            continue
        pairs = []
        for row in map(int, spread(places)):
            fits = [np.abs(t.means[one] - got[one][row])[:, 0] <= SLACK * known[one][row] for one in which]
            pairs.append((row, {*map(int, np.flatnonzero(np.all(fits, axis=0)))} - {row}))
        for text, whose in maps_through(pairs, t.M, t.lead, "row"):
            used = np.arange(t.M)
            used[places] = whose[places]
            if fit.explains(t.dx(*(right[used] if one in which else right for one, right in enumerate(t.means)))):
                rows = "all rows" if len(places) == t.M else f"{len(places)} of {t.M} rows"
                stars = ["**" if one in which else "" for one in (0, 1)]
                return fit.explanation(
                    f"{label} of other rows",
                    f"{rows} take the {label} {text}: it is not the row's own.",
                    _with_means(*(f"{star}{mean}{star}" for star, mean in zip(stars, _MEANS, strict=True))),
                )
    return None


_MEANS = ("mean_dxhat", "mean_dxhat_xhat")


def explain_narrow_means(fit: Fit) -> Explanation | None:
    """Row means that are 16-bit numbers, or whose sums are, in every row: what they are kept in."""
    if not _is_usable(fit, rows=4):
        return None
    means, known = _recovered(fit), _known(fit)
    if not _obeys(fit, means, known) or fit.explains(fit.terms.dx()):
        return None
    for dtype in ("bfloat16", "float16"):
        for what, times in (("sums", fit.terms.N), ("means", 1)):
            if all(_on_grid(one * times, near * times, dtype) for one, near in zip(means, known, strict=True)):
                return fit.explanation(
                    f"row {what} kept in {dtype}",
                    f"the two row {what} are numbers of {dtype} in every row, and off: add them up, and keep them, in float32.",
                    _with_means(*(f"**{dtype}({mean})**" for mean in _MEANS)),
                )
    return None


def _on_grid(values: Array, known: Array, dtype: str) -> bool:
    """Whether values are a 16-bit dtype's numbers, as far as they are known, where that dtype is much coarser than that."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32).astype(numpy_dtype(dtype)).astype(np.float64)
    sure = UNIT_ROUNDOFF[dtype] * np.abs(values) > SURE * known
    return int(sure.sum()) >= 4 and bool((np.abs(values - rounded) <= 2 * known)[sure].all())


def _recovered(fit: Fit) -> tuple[Array, Array]:
    """The two row means that dx has: dxhat − dx/rstd = m1 + xhat·m2 for each row, two unknowns, by least squares."""
    t = fit.terms
    left = t.dxhat - fit.result / t.rstd
    centre = t.xhat.mean(1, keepdims=True)
    apart = t.xhat - centre
    second = (left * apart).sum(1, keepdims=True) / np.maximum(np.square(apart).sum(1, keepdims=True), TINY)
    return left.mean(1, keepdims=True) - centre * second, second


def _known(fit: Fit) -> tuple[Array, Array]:
    """To which the two recovered means are known, roughly."""
    t = fit.terms
    apart = np.maximum(np.square(t.xhat - t.xhat.mean(1, keepdims=True)).sum(1, keepdims=True), TINY)
    error = np.sqrt(np.square(fit.bound / t.rstd).sum(1, keepdims=True))
    return error / t.N, error / np.sqrt(t.N * apart)


def _obeys(fit: Fit, means: tuple[Array, Array], known: tuple[Array, Array]) -> bool:
    """Whether dx is the right formula with these recovered means."""
    t = fit.terms
    return fit.explains(t.dx(*means), np.abs(t.rstd) * (known[0] + np.abs(t.xhat) * known[1]))


def describe_means(fit: Fit) -> str | None:
    """Return a sentence if dx is right but for its two row means, where they are of no known kind, else None."""
    if not _is_usable(fit, rows=0):
        return None
    got, rights, known = _recovered(fit), fit.terms.means, _known(fit)
    if not _obeys(fit, got, known):
        return None
    wrong = [0, 1]
    if _obeys(fit, (rights[0], got[1]), known):
        wrong = [1]
    elif _obeys(fit, (got[0], rights[1]), known):
        wrong = [0]
    texts = []
    for one in wrong:
        row = int(np.argmax(np.abs(got[one] - rights[one])))
        label = ("mean of dxhat", "mean of dxhat·xhat")[one]
        texts.append(
            f"the {label} (in row {row} it is {got[one][row, 0]:.4g}, and should be {rights[one][row, 0]:.4g})"
        )
    return f"the formula is right, but for {' and '.join(texts)}: look at what these row sums take, divide by and are kept in"
