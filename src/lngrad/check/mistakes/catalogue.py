"""Known mistakes by name: how to make each and what to say about it. The first is named where two explain a result alike."""

from __future__ import annotations

import numpy as np

from lngrad.check.mistakes import wrong_inputs as inputs_
from lngrad.check.mistakes import wrong_results as results_
from lngrad.check.mistakes.mistake import Mistake, of_inputs, of_results, of_sums

_INPUTS = {
    "gamma forgotten": of_inputs(
        inputs_.nothing_for_gamma, "dx is computed without gamma: multiply dy by gamma before the two row means."
    ),
    "dy ignored": of_inputs(inputs_.ones_for_dy, "the result does not depend on dy: it is what dy = 1 gives."),
    "dy of the previous row": of_inputs(
        inputs_.by_rows("dy", -1), "each row uses the dy of the row before it: an index is off by one row."
    ),
    "dy of the next row": of_inputs(
        inputs_.by_rows("dy", 1), "each row uses the dy of the row after it: an index is off by one row."
    ),
    "variance in rstd's place": of_inputs(
        inputs_.rstd_as(lambda variance, eps, N: variance + eps),
        "the variance was given where rstd is expected, or read as if it were: check which of the two the third output "
        "of the forward is.",
    ),
    "rstd taken for a variance": of_inputs(
        inputs_.rstd_as(lambda variance, eps, N: 1 / np.sqrt(1 / np.sqrt(variance + eps) + eps)),
        "1/√(· + eps) is applied to rstd, which has it already: the interface gives rstd, not the variance.",
    ),
    "mean and rstd swapped": of_inputs(
        inputs_.swapped,
        "mean and rstd are exchanged: the tile APIs take the variance before the mean, aclnn takes the mean first.",
    ),
    "eps added twice": of_inputs(
        inputs_.with_eps(lambda eps: 2 * eps), "eps is added twice: the variance, or rstd, already contains it."
    ),
    "eps missing": of_inputs(inputs_.with_eps(lambda eps: 0.0), "eps is not added to the variance."),
    "eps outside the root": of_inputs(
        inputs_.rstd_as(lambda variance, eps, N: 1 / (np.sqrt(np.maximum(variance, 0)) + eps)),
        "rstd is 1/(√variance + eps): eps belongs under the root.",
    ),
    "root forgotten": of_inputs(
        inputs_.rstd_as(lambda variance, eps, N: (variance + eps) ** -2.0),
        "rstd is 1/(variance + eps)²: the power is -1/2.",
    ),
    "eps 1e-5 for 1e-12": of_inputs(
        inputs_.with_eps(lambda eps: 1e-5), "eps is 1e-5, the graph op's value for 16-bit x; this case has another."
    ),
    "eps 1e-12 for 1e-5": of_inputs(
        inputs_.with_eps(lambda eps: 1e-12), "eps is 1e-12, the graph op's value for float32 x; this case has another."
    ),
    "variance over N - 1": of_inputs(
        inputs_.rstd_as(lambda variance, eps, N: 1 / np.sqrt(variance * N / max(N - 1, 1) + eps)),
        "the variance is divided by N - 1: layer normalization divides by N.",
    ),
    "variance 1 % too large": of_inputs(
        inputs_.rstd_as(lambda variance, eps, N: 1 / np.sqrt(1.01 * (variance + eps))),
        "the variance is 1 % too large, so rstd is 0.5 % too small: another eps, or a sum with too many terms.",
    ),
    "variance of a padded row": of_inputs(
        inputs_.padded_variance,
        "the variance counts mean² for each column that fills the row up to a power of two: mask x - mean, not x alone.",
    ),
    "mean of the previous row": of_inputs(
        inputs_.by_rows("mean", -1), "each row uses the mean of the row before it: an index is off by one row."
    ),
    "statistics transposed": of_inputs(
        inputs_.transposed, "mean and rstd are read in the order of the transposed leading dimensions."
    ),
    "statistics recomputed": of_inputs(
        inputs_.statistics_of_x, "mean and rstd are recomputed from x; the interface takes those that are given."
    ),
    "mean ignored": of_inputs(
        inputs_.no_mean,
        "mean is not subtracted: xhat is x·rstd, as RMSNorm has it. Layer normalization's is (x − mean)·rstd.",
    ),
    **{
        f"statistics rounded to {dtype}": of_inputs(
            inputs_.narrow_statistics(dtype),
            f"mean and rstd are rounded to {dtype} before they are used: keep them in float32, whatever x's dtype is.",
        )
        for dtype in ("bfloat16", "float16")
    },
    **{
        name: of_inputs(
            inputs_.gamma_transposed(back), "gamma is read in the order of the transposed normalized dimensions."
        )
        for name, back in (("gamma transposed", False), ("gamma transposed back", True))
    },
    **{
        f"{name} rounded to {dtype}": of_inputs(
            inputs_.narrow_input(name, dtype), f"{name} is rounded to {dtype} before anything is computed from it."
        )
        for name in ("dy", "x", "gamma")
        for dtype in ("bfloat16", "float16")
    },
    "mean recomputed": of_inputs(
        inputs_.mean_of_x, "mean is recomputed from x; the interface takes the one that is given."
    ),
    "uncentred variance": of_inputs(
        inputs_.uncentred, "the variance is taken about zero: mean(x²) without subtracting mean²."
    ),
    "variance by cancellation": of_inputs(
        inputs_.in_float32,
        "the variance is E[x²] - E[x]² in float32, which cancels where the mean is large: centre x first.",
        by_size=True,
    ),
}  # fmt: skip

_DX = {
    "mean of dxhat missing": of_results(
        results_.means_missing(0, 1), "dx lacks the row mean of dy·gamma: subtract it."
    ),
    "mean of dxhat·xhat missing": of_results(
        results_.means_missing(1, 0), "dx lacks xhat times the row mean of dy·gamma·xhat: subtract it."
    ),
    "means over the last axis only": of_results(
        results_.means_over("last"), "the row means go over the last axis only: normalized_shape has more, flatten it."
    ),
    "means over rows": of_results(
        results_.means_over("rows"), "the two means go over axis 0, the rows, instead of the normalized axes."
    ),
    "means over the whole tensor": of_results(
        results_.means_over("all"),
        "the two means go over the whole tensor: normalized_shape was flattened into the rows.",
    ),
    "sums for means": of_results(
        results_.sums_for_means, "the two row sums are not divided by the number of normalized elements."
    ),
    "gamma of the row's index": of_results(
        results_.gamma_by_row, "dx is computed with gamma[row] in place of gamma[column]: gamma's index is the column."
    ),
    "rstd missing in dx": of_results(results_.rstd_missing, "dx is not multiplied by rstd."),
    "extra term of the tile formula": of_results(
        results_.extra_term,
        "dx has the tile APIs' extra term pd_var·(1/H)·Σ(-2(x - mean)): right for LayerNormGrad on tiles, "
        "not for the graph ops and aclnn; it shows where mean is not the row's mean.",
    ),
    **{
        f"row means rounded to {dtype}": of_results(
            results_.narrow_means(dtype),
            f"the two row means are rounded to {dtype} before they are subtracted: keep them in float32.",
        )
        for dtype in ("bfloat16", "float16")
    },
    **{
        f"{what} rounded to {dtype} in dx": of_results(
            results_.narrow_factor(dtype, what),
            f"{meaning} is rounded to {dtype} before dx is computed from it: keep it in float32 and round dx once.",
        )
        for what, meaning in (("dxhat", "dy·gamma"), ("xhat", "(x − mean)·rstd"))
        for dtype in ("bfloat16", "float16")
    },
}  # fmt: skip

_SUMS = {
    "last row lost": of_results(results_.last_rows(1, 0.0), "dgamma and dbeta lack the last row."),
    **{
        f"last part of {rows} rows {word}": of_results(
            results_.last_rows(rows, factor),
            f"dgamma and dbeta {verb} the last rows after whole parts of {rows}: a partial sum is {word}.",
        )
        for rows in (8, 16, 32, 64, 128)
        for word, verb, factor in (("lost", "lack", 0.0), ("counted twice", "have twice", 2.0))
    },
    "sums added twice": of_results(
        results_.sums_doubled,
        "dgamma and dbeta are twice what they should be: partial sums are added into a buffer that has them already.",
    ),
    "dgamma and dbeta swapped": of_results(results_.sums_swapped, "dgamma and dbeta are exchanged."),
    "gamma in the column sums": of_results(
        results_.gamma_in_sums, "dgamma and dbeta are sums of dy·gamma: they take dy alone."
    ),
    "dgamma without the mean": of_results(
        results_.without_mean, "dgamma uses x·rstd: subtract the mean before."
    ),
    **{
        f"xhat with gamma of another index, tile {tile}": of_results(
            results_.xhat_from_output(tile),
            f"dgamma's xhat is (y - beta)/gamma with the gamma of the row's place in a tile of {tile}: gamma's index is "
            "the column.",
        )
        for tile in (16, 32, 64)
    },
}  # fmt: skip

_TILES = {
    "last column lost": of_results(
        results_.columns_lost(0), "the last column of dx is zero: a loop ends one column early."
    ),
    **{
        f"last tile of {width} columns skipped": of_results(
            results_.columns_lost(width),
            f"the columns after the last whole tile of {width} are zero: the tail is not computed.",
        )
        for width in (512, 256, 128, 64, 32, 16, 8)
    },
}

_PRECISION = {
    **{
        f"{dtype} sums": of_sums(
            results_.narrow_sums(dtype),
            f"dgamma and dbeta are accumulated in {dtype}: keep them in float32 and round once.",
        )
        for dtype in ("bfloat16", "float16")
    },
    **{
        f"{dtype} sums in {parts} parts": of_sums(
            results_.narrow_sums(dtype, parts),
            f"dgamma and dbeta are accumulated in {dtype}, in {parts} parts of the rows (one a thread or core, say): "
            "keep them in float32 and round once.",
        )
        for dtype in ("bfloat16", "float16")
        for parts in (2, 4, 8)
    },
    **{
        f"{dtype} sums of rounded products": of_sums(
            results_.narrow_sums(dtype, products=True),
            f"dgamma and dbeta are accumulated in {dtype}, and so are the products that are added: keep both in float32 and "
            "round once.",
        )
        for dtype in ("bfloat16", "float16")
    },
    **{
        f"{dtype} sums in blocks of {block} rows{' of rounded products' * products}": of_sums(
            results_.narrow_sums(dtype, block=block, products=products),
            f"dgamma and dbeta are accumulated in {dtype} over blocks of {block} rows, whose sums are then added in float32: "
            "keep the partial sums in float32 too.",
        )
        for dtype in ("bfloat16", "float16")
        for block in (32, 64, 128, 256)
        for products in (False, True)
    },
    **{
        f"xhat rounded to {dtype}": of_results(
            results_.narrow_xhat(dtype),
            f"xhat is rounded to {dtype} before dx and dgamma are computed from it: keep it in float32.",
        )
        for dtype in ("bfloat16", "float16")
    },
    **{
        f"products rounded to {dtype}": of_results(
            results_.narrow_products(dtype),
            f"xhat and dy·xhat are rounded to {dtype} before they are summed: keep them in float32.",
            by_size=True,
        )
        for dtype in ("bfloat16", "float16")
    },
    "xhat by cancellation": of_results(
        results_.uncentred_xhat,
        "xhat is x·rstd - mean·rstd in float32, two large numbers that cancel: subtract the mean from x first.",
        by_size=True,
    ),
    "half-away rounding": of_results(
        results_.half_away,
        "ties are rounded away from zero, as Atlas A2 does for bfloat16; the golden rounds them to even.",
        rounding=True,
    ),
}

MISTAKES: dict[str, Mistake] = {**_INPUTS, **_DX, **_SUMS, **_TILES, **_PRECISION}
