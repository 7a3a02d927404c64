"""What explains a wrong dgamma or dbeta: what is summed over the rows, how often, and which rows or columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from lngrad.check.mistakes.fit import SUMS, TINY, Difference, Explanation, Fit, number_text
from lngrad.check.mistakes.sum_weights import BLOCKS, describe_places, recover_weights, weighted, why_so_many_columns
from lngrad.typing import Array

NEIGHBOURS = (1, 2, 4, 8, 16, 32)
_TIMES = {
    "−1": "{name} has the opposite sign.",
    "0": "{name} is zero: nothing is added up, as where all rows are in a tail that is skipped.",
    "1/M": "{name} is divided by the number of rows: it is their sum, and no mean.",
    "1/N": "{name} is divided by the number of columns: it is a sum over rows.",
}
TYPICAL = 16.0  # bounds are that many times a sum's usual error
MAX_ROWS_LEFT = 0.05  # of the error's square, by weights of rows
MIN_LOST = 4  # columns
MIN_NAMED = 0.5  # of the wrong columns: others lack more than one
MAX_CHANCE = 0.02  # that some row's product is what is missing
NOTHING = 1e-5  # a factor that is a rounding of 0
MIN_FACTOR = 0.01  # that a whole column sum is off by
MAX_COLUMNS = 0.95  # wrong, for columns that are right to be left out
LOOKED_AT = 16  # columns, before all of them are
MAX_WEIGHTED = 4 << 20  # elements: weights of rows are not looked for in larger cases


def _summed(name: str) -> str:
    return SUMS[name].removeprefix("Σ_rows ")


def _explains(fit: Fit, array: Array) -> bool:
    return fit.explains(array, np.abs(array) * 1e-7)


def other_sum(fit: Fit) -> Explanation | None:
    """The simplest sum over all rows, times a number, that a wrong dgamma or dbeta is."""
    sums = list(_sums(fit))
    once = [(text, summed, 1.0) for text, summed in sums[1:]]
    times = ((*sum_, factor) for sum_ in sums for factor in _coefficients(fit, sum_[1], any_factor=sum_ is sums[0]))
    for text, summed, coefficient in chain(once, times):
        if _explains(fit, coefficient * summed):
            return _other_sum(fit, text, coefficient)
    return None


def _sums(fit: Fit) -> Iterator[tuple[str, Array]]:
    """What could have been summed instead, the right one first."""
    t, dx = fit.terms, fit.rights["dx"]
    dy, x, xhat, rstd, gamma = t.dy, t.x, t.xhat, t.rstd, t.gamma[0]
    products = {
        "dgamma": (("dy·xhat", dy * xhat), ("dy·x", dy * x), ("dy·(x−mean)", dy * (x - t.mean)), ("dy·x·rstd", dy * x * rstd),
                   ("dy·xhat·rstd", dy * xhat * rstd), ("dy", dy), ("xhat", xhat), ("dx·xhat", dx * xhat)),
        "dbeta": (("dy", dy), ("dy·xhat", dy * xhat), ("dy·rstd", dy * rstd), ("dx", dx), ("x", x), ("xhat", xhat)),
    }[fit.name]  # fmt: skip
    if isinstance(t.dtotal, np.ndarray):
        more = dy + t.dtotal
        added = ("(dy+dtotal)·xhat", more * xhat) if fit.name == "dgamma" else ("dy+dtotal", more)
        products = (products[0], added, *products[1:])
    sums = [(text, product.sum(0)) for text, product in products]
    yield from sums
    text, whole = sums[0]
    if (gamma != 1).any():
        yield f"{text}·γ", whole * gamma
        yield f"{text}·γ²", whole * gamma**2
        yield f"{text}·(1+γ)", whole * (1 + gamma)
        yield f"{text}/γ", whole / gamma
    index = np.arange(len(whole))
    for step in NEIGHBOURS:
        if step < len(whole):
            other = np.where((index ^ step) < len(whole), index ^ step, index)
            yield f"{text} of columns j and j^{step}", whole + np.where(other == index, 0.0, whole[other])


def _coefficients(fit: Fit, summed: Array, any_factor: bool) -> Iterator[float]:
    """The plain number that the ratio is near to, if there is one; any other ratio where that is wanted."""
    usable = np.isfinite(summed)
    size = float(np.square(summed * fit.weight, where=usable, out=np.zeros_like(summed)).sum())
    if not np.isfinite(size) or size == 0:
        return
    ratio = float(np.where(usable, summed * fit.result * fit.weight**2, 0.0).sum()) / size
    M, N = fit.terms.M, fit.terms.N
    means = (1 / size for size in (M, N, *fit.terms.lead))
    for plain in (2.0, -1.0, 0.5, 3.0, 4.0, float(M), float(N), 0.25, 8.0, *means):
        if abs(ratio - plain) <= 0.01 * abs(plain):
            yield plain
    if any_factor and abs(ratio - 1) > MIN_FACTOR:
        yield ratio if abs(ratio) > NOTHING else 0.0


def _other_sum(fit: Fit, text: str, coefficient: float) -> Explanation:
    name, right = fit.name, _summed(fit.name)
    formula, differences = "", []
    if coefficient != 1:
        times = number_text(coefficient, fit.terms.N, fit.terms.M)
        formula = f"**{times}**·"
        sentence = _TIMES.get(times, "{name} is {times} times what it should be.").format(name=name, times=times)
        lead = fit.terms.lead
        sizes = {size: axis for axis, size in enumerate(lead) if size > 1} if len(lead) > 1 else {}
        if (size := round(1 / coefficient) if coefficient else 0) in sizes and coefficient == 1 / size:
            times = f"1/x.shape[{sizes[size]}]"
            axis = f"{size}, the size of axis {sizes[size]}"
            sentence = f"{name} is divided by {axis}: it is a sum over all rows, and no mean."
        differences.append(Difference(f"{name} {times} times", sentence))
    if text != right:
        sentence = f"{name} sums {text} over the rows: it sums {right}."
        differences.append(Difference(f"{text} for {right} in {name}", sentence))
    formula += f"Σ_rows {text}" if text == right else f"Σ_rows **{text}**"
    return Explanation(fit.formula(formula), tuple(differences))


def column_weights(fit: Fit) -> Explanation | None:
    """Columns of dgamma or dbeta that are lost or counted twice as a whole."""
    true = fit.true
    weights = np.round(fit.result / true)
    weights = np.where(np.abs(true) <= fit.bound, 1.0, weights)
    if (weights == 1).all() or not set(weights.tolist()) <= {-1.0, 0.0, 1.0, 2.0} or not (weights == 1).any():
        return None
    if not fit.explains(weights * true):
        return None
    found = weighted(fit.name, "column", weights, why_so_many_columns(weights == 1, fit.terms.normalized, fit.name))
    text = f"not every column of {fit.name} is right: {found.text}."
    return fit.explanation(f"part of the columns of {fit.name}", text, f"**w_column**·{SUMS[fit.name]}", found)


def last_size(fit: Fit) -> Explanation | None:
    """Columns that are counted by gamma's last size: all other axes are added up in the first of them."""
    last = fit.terms.normalized[-1]
    if len(fit.terms.normalized) < 2 or not 4 <= last < len(fit.result):
        return None
    folded, bound = fit.true.reshape(-1, last).sum(0), fit.bound.reshape(-1, last).sum(0)
    if not np.isfinite(fit.result[:last]).all() or not (np.abs(folded - fit.result[:last]) <= bound).all():
        return None
    text = (f"{fit.name} has {last} sums, over the other normalized axes too, in its first elements: gamma.size(-1) was taken "
            "for the number of columns, which is the product of its sizes.")  # fmt: skip
    return fit.explanation(f"{fit.name} over gamma's last size", text, f"Σ_rows,**axes** {_summed(fit.name)}")


def lost_additions(fit: Fit) -> Explanation | None:
    """One addition lost in most wrong columns, of another row, or block of rows, in each: as atomics do that are none."""
    t = fit.terms
    if t.dy.size > MAX_WEIGHTED:
        return None
    lost, tolerance = fit.true - fit.result, fit.bound / TYPICAL
    wrong = np.abs(lost) > fit.bound
    if wrong.sum() < MIN_LOST:
        return None
    product = t.summed(fit.name)[:, wrong]
    for block in (size for size in BLOCKS if 2 * size <= t.M):
        parts = product if block == 1 else np.add.reduceat(product, np.arange(0, t.M, block), axis=0)
        spread = np.maximum(parts.std(0), TINY)
        chance = len(parts) * tolerance[wrong] / spread
        if np.median(chance) > MAX_CHANCE:
            continue
        found = np.abs(parts - lost[wrong]) <= tolerance[wrong]
        if np.mean(found.any(0)) >= MIN_NAMED:
            what = "a row's product" if block == 1 else f"the sum of a block of {block} rows"
            text = (f"in {wrong.sum()} of {t.N} columns {fit.name} lacks {what}, of another place in each: threads add to the "
                    "same element, and lose what others add: use atomic additions, a lock, or partial sums.")  # fmt: skip
            return fit.explanation("additions lost", text, f"Σ_rows **w_row_column**·{_summed(fit.name)}")
    return None


def wrong_axis(fit: Fit) -> Explanation | None:
    """Sums over the columns, which have the right number of elements where there are as many rows."""
    t = fit.terms
    if t.M != t.N or not _explains(fit, t.summed(fit.name).sum(1)):
        return None
    text = f"{fit.name} is summed over the columns, one number a row: it is a sum over the rows."
    return fit.explanation(f"{fit.name} over the columns", text, f"**Σ_columns** {_summed(fit.name)}")


def of_other_rows(fit: Fit) -> Explanation | None:
    """Sums whose statistics, dy or x are those of other rows: of the row's place in a tile, its first one, a neighbour."""
    t = fit.terms
    if t.M < 2 or not fit.is_finite:
        return None
    few = np.unique(np.linspace(0, t.N - 1, min(t.N, LOOKED_AT)).astype(int))
    columns = {name: getattr(t, name)[:, few] for name in ("dy", "x", "xhat", "dxhat", "gamma")}
    arrays = {name: getattr(fit, name)[few] for name in ("result", "bound")}
    part = replace(fit, **arrays, rights={fit.name: fit.true[few]}, terms=replace(t, **columns, dtotal=0.0))
    index = np.arange(t.M)
    tiles = [tile for tile in BLOCKS[1:] if tile < t.M]
    maps = [
        *((f"of the row modulo {tile}", index % tile) for tile in tiles),
        *((f"of the first row of each block of {tile}", index // tile * tile) for tile in tiles),
        ("of the first row", 0 * index), ("of the row before", index - 1), ("of the row after", (index + 1) % t.M),
    ]  # fmt: skip
    for which in (("mean", "rstd"), ("rstd",), ("mean",), ("dy",), ("x",))[3 * (fit.name == "dbeta") :]:
        for text, rows in maps:
            if part.explains(_of_rows(part, which, rows)) and fit.explains(_of_rows(fit, which, rows)):
                what = " and ".join(which)
                why = "the index of the row in its tile lacks the tile's start, or is not the row's"
                name = f"{'statistics' if len(which) > 1 else what} of other rows in {fit.name}"
                formula = f"Σ_rows {_summed(fit.name)} **with another row's {what}**"
                return fit.explanation(name, f"{fit.name} takes the {what} {text}: {why}.", formula)
    return None


def _of_rows(fit: Fit, which: tuple[str, ...], rows: Array) -> Array:
    arrays = {name: getattr(fit.terms, name) for name in ("mean", "rstd", "dy", "x")}
    mean, rstd, dy, x = (array[rows] if name in which else array for name, array in arrays.items())
    return np.asarray((dy * (x - mean) * rstd if fit.name == "dgamma" else dy).sum(0))


def part_of_rows(fits: Sequence[Fit]) -> dict[str, Explanation]:
    """Which rows entered dgamma and dbeta, from those of the two that are wrong; nothing if no weights of rows explain them."""
    t = fits[0].terms
    if t.M < 2 or t.dy.size > MAX_WEIGHTED or not all(fit.is_finite for fit in fits):
        return {}
    products = [t.summed(fit.name) for fit in fits]
    A = np.concatenate([product.T for product in products])
    b, bound = (np.concatenate(parts) for parts in zip(*((fit.result, fit.bound) for fit in fits), strict=True))
    both = Fit(t, "dgamma", b, bound, {})
    weights, where = _weights_of_rows(both, A), ""
    if weights is None:
        wrong = ~np.all([fit.is_near(product.sum(0)) for fit, product in zip(fits, products, strict=True)], axis=0)
        if not MAX_COLUMNS > wrong.mean() > 0:
            return {}
        arrays = np.tile(wrong, len(fits))
        weights = _weights_of_rows(Fit(t, "dgamma", b[arrays], bound[arrays], {}), A[arrays])
        where = f" in {describe_places(wrong, 'column')}"
    if weights is None:
        return {}
    names, name, explained = " and ".join(fit.name for fit in fits), "part of the rows in the column sums", {}
    for fit in fits:
        found = weighted(fit.name, "row", weights, _why_so_many(weights, fits[0]), where)
        text = f"{names}: not every row is counted once: {found.text}."
        explained[fit.name] = fit.explanation(name, text, f"Σ_rows **w_row**·{_summed(fit.name)}", found)
    return explained


def _weights_of_rows(fit: Fit, A: Array) -> Array | None:
    most = MAX_ROWS_LEFT * fit.squares_left(A.sum(1))
    return recover_weights(
        A, fit.result, lambda weights: fit.explains(A @ weights) and fit.squares_left(A @ weights) <= most, few=True
    )


def _why_so_many(weights: Array, fit: Fit) -> str:
    """What a number of rows that are counted is known for."""
    lead, counted = fit.terms.lead, int((weights == 1).sum())
    if (weights[-counted:] == 1).all() and not weights[:-counted].any() and counted & (counted - 1) == 0:
        return (": of each of that many partial sums the last row alone: is it loaded before it is added to? Look at the count "
                "of its lock, if it has one")  # fmt: skip
    if not (weights[:counted] == 1).all():
        return ""
    if len(lead) > 1 and counted == lead[0]:
        return ", as many as x.shape[0]: the number of rows is the product of all leading sizes"
    if counted in (1 << 15, (1 << 16) - 1, 1 << 16):
        return ", the most that a 16-bit count or the y of a CUDA grid has"
    return ""
