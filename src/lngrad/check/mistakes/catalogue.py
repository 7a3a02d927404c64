"""Known mistakes by name: what to say about each. The order decides where two explain a result alike."""

from __future__ import annotations

from dataclasses import dataclass

from lngrad.check.mistakes.mutants import (
    Wrong,
    both_recomputed,
    cancelled,
    extra_term,
    gamma_in_sums,
    half_away,
    known,
    last_columns,
    last_rows,
    means_over,
    narrow_sums,
    next_row,
    on_changed_inputs,
    recomputed,
    rstd_missing,
    sums_for_means,
    sums_swapped,
    swapped,
    transposed,
    uncentred,
    with_eps,
    with_results,
    without_mean,
)

__all__ = ["MISTAKES", "Mistake"]


@dataclass(frozen=True)
class Mistake:
    """What to say about a mistake, and how to make it.

    Attributes:
        sentence: What the person did, and where to look.
        grads: The result of it, in float64.
        by_size: Its result depends on an order of sums that only the author knows: alike, not equal.
        rounding: It changes roundings only, so only bits show it.
    """

    sentence: str
    grads: Wrong
    by_size: bool = False
    rounding: bool = False


# In order: where two explain a result alike, the first is named.
MISTAKES: dict[str, Mistake] = {
    "gamma forgotten": Mistake(
        "dx is computed without gamma: multiply dy by gamma before the two row means.", known("gamma forgotten")
    ),
    "dy ignored": Mistake("the result does not depend on dy: it is what dy = 1 gives.", known("dy ignored")),
    "dy of the previous row": Mistake(
        "each row uses the dy of the row before it: an index is off by one row.", known("dy of the previous row")
    ),
    "dy of the next row": Mistake(
        "each row uses the dy of the row after it: an index is off by one row.", on_changed_inputs(next_row)
    ),
    "mean of dxhat missing": Mistake("dx lacks the row mean of dy·gamma: subtract it.", known("mean of dxhat missing")),
    "mean of dxhat·xhat missing": Mistake(
        "dx lacks xhat times the row mean of dy·gamma·xhat: subtract it.", known("mean of dxhat·xhat missing")
    ),
    "variance in rstd's place": Mistake(
        "the variance was given where rstd is expected, or read as if it were: check which of the two the "
        "third output of the forward is.",
        known("variance in rstd's place"),
    ),
    "mean and rstd swapped": Mistake(
        "mean and rstd are exchanged: the tile APIs take the variance before the mean, aclnn takes the mean first.",
        on_changed_inputs(swapped),
    ),
    "eps added twice": Mistake(
        "eps is added twice: the variance, or rstd, already contains it.", with_eps(lambda eps: 2 * eps)
    ),
    "eps missing": Mistake("eps is not added to the variance.", with_eps(lambda eps: 0.0)),
    "eps 1e-5 for 1e-12": Mistake(
        "eps is 1e-5, the graph op's value for 16-bit x; this case has another.", with_eps(lambda eps: 1e-5)
    ),
    "eps 1e-12 for 1e-5": Mistake(
        "eps is 1e-12, the graph op's value for float32 x; this case has another.", with_eps(lambda eps: 1e-12)
    ),
    "variance 1 % too large": Mistake(
        "the variance is 1 % too large, so rstd is 0.5 % too small: as with another eps, or with N - 1 for N = 101.",
        known("variance 1 % too large"),
    ),
    "mean of the previous row": Mistake(
        "each row uses the mean of the row before it: an index is off by one row.", known("mean of the previous row")
    ),
    "statistics transposed": Mistake(
        "mean and rstd are read in the order of the transposed leading dimensions.", on_changed_inputs(transposed)
    ),
    "statistics recomputed": Mistake(
        "mean and rstd are recomputed from x; the interface takes those that are given.",
        on_changed_inputs(both_recomputed),
    ),
    "mean recomputed": Mistake(
        "mean is recomputed from x; the interface takes the one that is given.", on_changed_inputs(recomputed)
    ),
    "uncentred variance": Mistake(
        "the variance is taken about zero: mean(x²) without subtracting mean².", on_changed_inputs(uncentred)
    ),
    "variance by cancellation": Mistake(
        "the variance is E[x²] - E[x]² in float32, which cancels where the mean is large: centre x first.",
        on_changed_inputs(cancelled),
        by_size=True,
    ),
    "means over the last axis only": Mistake(
        "the row means go over the last axis only: normalized_shape has more, flatten it.", means_over("last")
    ),
    "means over rows": Mistake(
        "the two means go over axis 0, the rows, instead of the normalized axes.", means_over("rows")
    ),
    "means over the whole tensor": Mistake(
        "the two means go over the whole tensor: normalized_shape was flattened into the rows.", means_over("all")
    ),
    "sums for means": Mistake(
        "the two row sums are not divided by the number of normalized elements.", with_results(sums_for_means)
    ),
    "rstd missing in dx": Mistake("dx is not multiplied by rstd.", with_results(rstd_missing)),
    "extra term of the tile formula": Mistake(
        "dx has the tile APIs' extra term pd_var·(1/H)·Σ(-2(x - mean)): right for LayerNormGrad on tiles, "
        "not for the graph ops and aclnn; it shows since mean is not the row's mean.",
        with_results(extra_term),
    ),
    "last row lost": Mistake("dgamma and dbeta lack the last row.", known("last row lost")),
    **{
        f"last part of {rows} rows {word}": Mistake(
            f"dgamma and dbeta {verb} the last rows behind whole parts of {rows}: a partial sum is {word}.",
            last_rows(rows, factor),
        )
        for rows in (8, 16, 32, 64, 128)
        for word, verb, factor in (("lost", "lack", 0.0), ("counted twice", "have twice", 2.0))
    },
    "sums added twice": Mistake(
        "dgamma and dbeta are twice what they should be: partial sums are added into a buffer that has them already.",
        known("sums added twice"),
    ),
    "dgamma and dbeta swapped": Mistake("dgamma and dbeta are exchanged.", with_results(sums_swapped)),
    "gamma in the column sums": Mistake(
        "dgamma and dbeta are sums of dy·gamma: they take dy alone.", with_results(gamma_in_sums)
    ),
    "dgamma without the mean": Mistake("dgamma uses x·rstd: subtract the mean before.", with_results(without_mean)),
    "last column lost": Mistake(
        "the last column of dx is zero: a loop ends one column early.", known("last column lost")
    ),
    **{
        f"last tile of {width} columns skipped": Mistake(
            f"the columns behind the last whole tile of {width} are zero: the tail is not computed.",
            last_columns(width),
        )
        for width in (512, 256, 128, 64, 32, 16, 8)
    },
    "bfloat16 sums": Mistake(
        "dgamma and dbeta are accumulated in bfloat16: keep them in float32 and round once.",
        narrow_sums("bfloat16"),
        by_size=True,
    ),
    "float16 sums": Mistake(
        "dgamma and dbeta are accumulated in float16: keep them in float32 and round once.",
        narrow_sums("float16"),
        by_size=True,
    ),
    **{
        f"{name} sums in {parts} parts": Mistake(
            f"dgamma and dbeta are accumulated in {dtype}, in {parts} parts of the rows (one a thread or core, say): "
            "keep them in float32 and round once.",
            narrow_sums(dtype, parts),
            by_size=True,
        )
        for name, dtype in (("bfloat16", "bfloat16"), ("float16", "float16"))
        for parts in (2, 4, 8)
    },
    "half-away rounding": Mistake(
        "ties are rounded away from zero, as Atlas A2 does for bfloat16; the golden rounds them to even.",
        half_away,
        rounding=True,
    ),
}
