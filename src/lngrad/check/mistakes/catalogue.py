"""Known mistakes: what each changes, its name, and its sentence. The first is named where two explain a result alike."""

from __future__ import annotations

import numpy as np

from lngrad.check.mistakes import changes, indices, precision
from lngrad.check.mistakes.fit import wide
from lngrad.check.mistakes.mistake import Mistake
from lngrad.check.mistakes.precision_mistakes import BOTH, PRECISION
from lngrad.core.problem import LAYER_NORM


def _rstd(new: changes.RstdOf, sentence: str) -> Mistake:
    return Mistake(sentence, inputs=changes.rstd_as(new))


MISTAKES: dict[str, Mistake] = {
    # Of the inputs.
    "gamma forgotten": Mistake(
        "dx is computed without gamma: multiply dy by gamma before the two row means.",
        inputs=lambda call: None if call.inputs.gamma is None else {"gamma": None}),
    "dy ignored": Mistake(
        "the result does not depend on dy: it is what dy = 1 gives.",
        inputs=lambda call: {"dy": np.ones_like(call.inputs.dy)}),
    "dy of the previous row": Mistake(
        "each row uses the dy of the row before it: an index is off by one row.", inputs=indices.by_rows("dy", -1)),
    "dy of the next row": Mistake(
        "each row uses the dy of the row after it: an index is off by one row.", inputs=indices.by_rows("dy", 1)),
    "variance in rstd's place": _rstd(
        lambda variance, eps, N: variance + eps,
        "the variance was given where rstd is expected, or read as if it were: check which of the two the third output "
        "of the forward is."),
    "rstd taken for a variance": _rstd(
        lambda variance, eps, N: 1 / np.sqrt(1 / np.sqrt(variance + eps) + eps),
        "1/√(· + eps) is applied to rstd, which has it already: the interface gives rstd, not the variance."),
    "mean and rstd swapped": Mistake(
        "mean and rstd are exchanged: the tile APIs take the variance before the mean, aclnn takes the mean first.",
        inputs=lambda call: {"mean": call.inputs.rstd, "rstd": call.inputs.mean}),
    "eps added twice": Mistake(
        "eps is added twice: the variance, or rstd, already contains it.",
        inputs=changes.with_eps(lambda eps: 2 * eps)),
    "eps missing": Mistake(
        "eps is not added to the variance, or one that is far smaller, such as 1e-12.",
        inputs=changes.with_eps(lambda eps: 0.0)),
    "eps outside the root": _rstd(
        lambda variance, eps, N: 1 / (np.sqrt(np.maximum(variance, 0)) + eps),
        "rstd is 1/(√variance + eps): eps belongs under the root."),
    "root forgotten": _rstd(
        lambda variance, eps, N: (variance + eps) ** -2.0, "rstd is 1/(variance + eps)²: the power is -1/2."),
    "eps 1e-5 for 1e-12": Mistake(
        "eps is 1e-5, the default of torch's LayerNorm and the graph op's value for 16-bit x; this case has another.",
        inputs=changes.with_eps(lambda eps: 1e-5)),
    "eps 1e-12 for 1e-5": Mistake(
        "eps is 1e-12, the graph op's value for float32 x; this case has another.",
        inputs=changes.with_eps(lambda eps: 1e-12)),
    "variance over N - 1": _rstd(
        lambda variance, eps, N: 1 / np.sqrt(variance * N / max(N - 1, 1) + eps),
        "the variance is divided by N - 1: layer normalization divides by N."),
    "variance 1 % too large": _rstd(
        lambda variance, eps, N: 1 / np.sqrt(1.01 * (variance + eps)),
        "the variance is 1 % too large, so rstd is 0.5 % too small: another eps, or a sum with too many terms."),
    "variance of a padded row": Mistake(
        "the variance counts mean² for each column that fills the row up to a power of two: mask x - mean, not x alone.",
        inputs=changes.padded_variance),
    "mean of the previous row": Mistake(
        "each row uses the mean of the row before it: an index is off by one row.", inputs=indices.by_rows("mean", -1)),
    "statistics transposed": Mistake(
        "mean and rstd are read in the order of the transposed leading dimensions.",
        inputs=indices.statistics_transposed),
    "statistics of the column's index": Mistake(
        "mean and rstd are spread over the columns, one for each, which no shape forbids where there are as many rows: give "
        "them a last axis of 1.", results=indices.statistics_by_column("mean", "rstd")),
    **{
        f"{name} of the column's index": Mistake(
            f"{name} is spread over the columns, one for each, which no shape forbids where there are as many rows: give it a "
            "last axis of 1.", results=indices.statistics_by_column(name))
        for name in ("mean", "rstd")
    },
    "statistics recomputed": Mistake(
        "mean and rstd are recomputed from x; the interface takes those that are given.",
        inputs=changes.statistics_of_x),
    "mean ignored": Mistake(
        "mean is not subtracted: xhat is x·rstd, as RMSNorm has it. Layer normalization's is (x − mean)·rstd.",
        inputs=lambda call: {"mean": np.zeros_like(np.asarray(call.inputs.mean))}),
    **{
        f"statistics rounded to {dtype}": Mistake(
            f"mean and rstd are rounded to {dtype} before they are used: keep them in float32, whatever x's dtype is.",
            inputs=changes.narrow_statistics(dtype, "mean", "rstd"))
        for dtype in BOTH
    },
    **{
        f"{name} rounded to {dtype}": Mistake(
            f"{name} is rounded to {dtype} before it is used: keep it in float32.",
            inputs=changes.narrow_statistics(dtype, name))
        for name in ("mean", "rstd")
        for dtype in BOTH
    },
    **{
        f"statistics of x rounded to {dtype}": Mistake(
            f"mean and rstd are computed from x rounded to {dtype}: compute them from x itself.",
            inputs=changes.statistics_of_narrow_x(dtype))
        for dtype in BOTH
    },
    **{
        f"{name}, recomputed from x": Mistake(
            f"mean and rstd are recomputed from x, and {text}; the interface takes those that are given.",
            inputs=changes.recomputed(new))
        for name, text, new in (
            ("variance over N - 1", "the variance is divided by N - 1",
             lambda variance, eps, N: 1 / np.sqrt(variance * N / max(N - 1, 1) + eps)),
            ("eps outside the root", "eps is added to the root, and not under it",
             lambda variance, eps, N: 1 / (np.sqrt(variance) + eps)),
            ("eps missing", "eps is not added", lambda variance, eps, N: 1 / np.sqrt(variance)),
            ("eps added twice", "eps is added twice", lambda variance, eps, N: 1 / np.sqrt(variance + 2 * eps)),
        )
    },
    **{
        f"{kind} averaged over chunks of {chunk}": Mistake(
            f"{what} plain averages over chunks of {chunk} columns, of which the last is shorter: weight each chunk by its "
            "size.", inputs=changes.statistics_of_chunks(chunk, mean_too))
        for kind, what, mean_too in (("statistics", "mean and variance are", True), ("variance", "the variances are", False))
        for chunk in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    },
    # Of indices and masks.
    "last column masked off": Mistake(
        "the last column is not loaded: the mask of the loads ends one column early (cols < N, not N - 1).",
        inputs=indices.last_column_off(0.0)),
    "last column masked off, xhat too": Mistake(
        "the last column counts as zero in dy and xhat: the mask ends one column early (cols < N, not N - 1).",
        inputs=indices.last_column_off(None)),
    "last column masked off in loads and stores": Mistake(
        "the last column is neither loaded nor stored: the mask ends one column early (cols < N, not N - 1).",
        results=indices.last_column_unwritten, unwritten=True),
    **{
        f"row offset in {kind}{' of loads and stores' * stores}": Mistake(
            f"row·N is computed in {kind} and wraps at element {1 << bits}, in the loads{' and stores' * stores}: make the "
            "type of the offset 64 bits wide.", inputs=None if stores else indices.wrapped(bits, kind),
            results=indices.wrapped_stores(bits, kind) if stores else None, unwritten=stores)
        for kind, bits in (("int16", 15), ("uint16", 16))
        for stores in (False, True)
    },
    **{
        f"gamma broadcast along {'axes' if len(axes) > 1 else 'axis'} {' and '.join(map(str, axes))}": Mistake(
            f"gamma's first elements along {' and '.join(map(str, axes))} of its axes are used for all: its index lacks "
            "these axes.", inputs=indices.gamma_broadcast(axes))
        for axes in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2))
    },
    **{
        name: Mistake(
            "gamma is read in the order of the transposed normalized dimensions.",
            inputs=indices.gamma_transposed(back))
        for name, back in (("gamma transposed", False), ("gamma transposed back", True))
    },
    **{
        f"{name} rounded to {dtype}": Mistake(
            f"{name} is rounded to {dtype} before anything is computed from it.",
            inputs=changes.narrow_input(name, dtype))
        for name in ("dy", "x", "gamma")
        for dtype in BOTH
    },
    "mean recomputed": Mistake(
        "mean is recomputed from x; the interface takes the one that is given.",
        inputs=lambda call: changes.mean_of_x(call) if call.centred else None),
    "uncentred variance": Mistake(
        "the variance is taken about zero: mean(x²) without subtracting mean².", inputs=changes.uncentred_variance),
    "variance by cancellation": Mistake(
        "the variance is E[x²] - E[x]² in float32, which cancels where the mean is large: centre x first.",
        inputs=changes.cancelling_variance, by_size=True),
    **{
        f"eps {eps:.3g}": Mistake(
            f"eps is {eps:.3g}, {whose}; this case has another.", inputs=changes.with_eps(lambda _, eps=eps: eps))  # type: ignore[misc]  # a default that binds it
        for eps, whose in (
            (1e-3, "the default of Keras"), (1e-6, "the default of Llama, T5 and Gemma"),
            (1e-8, "the default of some RMSNorms"), (2.0**-23, "finfo(float32).eps, torch.nn.RMSNorm's default"),
            (2.0**-7, "finfo(bfloat16).eps, an older default of torch.nn.RMSNorm"),
            (2.0**-10, "finfo(float16).eps, an older default of torch.nn.RMSNorm"))
    },
    # Of the family.
    "mean subtracted": Mistake(
        "xhat is (x − mean)·rstd: RMSNorm subtracts no mean, its xhat is x·rstd.",
        inputs=lambda call: None if call.centred else changes.mean_of_x(call)),
    "variance about the mean": Mistake(
        "rstd is recomputed from the variance about the mean: RMSNorm's is of the mean square, about 0.",
        inputs=lambda call: None if call.centred else changes.rstd_of_layer_norm(call)),
    "mean of dxhat subtracted": Mistake(
        "dx has layer normalization's − mean_dxhat: RMSNorm's gradient has no such term.",
        inputs=lambda call: changes.centred(call)),
    "layer normalization for RMSNorm": Mistake(
        "the gradients are layer normalization's: RMSNorm subtracts neither the mean of x nor that of dxhat.",
        inputs=lambda call: changes.centred(call, changes.mean_of_x)),
    "layer normalization for RMSNorm, with its own statistics": Mistake(
        "the gradients are layer normalization's, with its mean and variance: RMSNorm has no mean.",
        inputs=lambda call: changes.centred(call, lambda call: changes.statistics_of(call, call.inputs.x, LAYER_NORM))),
    "offset forgotten": Mistake(
        "dx is computed with gamma alone: this norm multiplies by offset + gamma (1 + gamma, as Gemma's).",
        inputs=changes.offset_times(0)),
    "offset added twice": Mistake(
        "the offset is added to gamma twice: where gamma is stored as offset + gamma, it is in it already.",
        inputs=changes.offset_times(2)),
    "dtotal forgotten": Mistake(
        "dx lacks dtotal, the gradient that comes through the residual stream: add it to the norm's own.",
        inputs=changes.dtotal_times(0)),
    "dtotal added twice": Mistake("dtotal is added to dx twice.", inputs=changes.dtotal_times(2)),
    "dtotal times rstd": Mistake(
        "dtotal is added inside the bracket, and so multiplied by rstd: it is added behind it.",
        inputs=lambda call: changes.dtotal_times(wide(call.inputs.rstd))(call)),
    "dtotal added to dy": Mistake(
        "dtotal is added to dy and goes through the norm: it is the total's gradient, not y's.", inputs=changes.dtotal_in_dy),
    "dtotal added to dxhat": Mistake(
        "dtotal is added to dxhat and goes through the norm: it is added behind it.", inputs=changes.dtotal_in_dxhat),
    "residual forgotten": Mistake(
        "xhat is made of x alone: what is normalized is alpha·x + residual.", inputs=changes.summand()),
    "residual added after the norm": Mistake(
        "x alone is normalized, with statistics of its own: the residual is added before the norm.",
        inputs=changes.summand(own_statistics=True)),
    "alpha forgotten": Mistake("x and residual are added without alpha.", inputs=changes.other_total(1.0, 1.0)),
    "alpha on the residual": Mistake(
        "the residual is multiplied by alpha: DeepNorm's total is alpha·x + residual.", inputs=changes.other_total(1.0, None)),
    "total not rounded": Mistake(
        "what is normalized is alpha·x + residual before it is rounded to x's dtype: mean and rstd are those of the total "
        "that the forward returns.", inputs=changes.other_total(None, 1.0, rounded=False)),
    **{
        f"variance over N - 1{and_eps}, in its derivative too": Mistake(
            f"the variance is divided by N - 1{and_eps}, forward and backward, as with torch's var and std: say correction=0.",
            results=changes.corrected(outside))
        for outside, and_eps in ((False, ""), (True, " and eps outside the root"))
    },
    "sum of squares for their mean": Mistake(
        "rstd is taken of the sum of squares over the row, forward and backward: dx and dgamma are 1/√N times what they should "
        "be. Divide the sum by N.", results=changes.of_sum_of_squares),
    # Of dx.
    "mean of dxhat missing": Mistake(
        "dx lacks the row mean of dy·gamma: subtract it.", results=changes.means_times(0, 1)),
    "mean of dxhat·xhat missing": Mistake(
        "dx lacks xhat times the row mean of dy·gamma·xhat: subtract it.", results=changes.means_times(1, 0)),
    "means over the last axis only": Mistake(
        "the row means go over the last axis only: normalized_shape has more, flatten it.",
        results=changes.means_over_last_axis),
    **{
        f"row means divided by the {which} size alone": Mistake(
            f"the two row sums are divided by the {which} of the normalized sizes: divide by the product of all.",
            results=changes.means_divided(axis))
        for which, axis in (("last", -1), ("first", 0))
    },
    "means over rows": Mistake(
        "the two means go over axis 0, the rows, instead of the normalized axes.", results=changes.means_over(0)),
    "means over the whole tensor": Mistake(
        "the two means go over the whole tensor: normalized_shape was flattened into the rows.",
        results=changes.means_over(0, 1)),
    "sums for means": Mistake(
        "the two row sums are not divided by the number of normalized elements.", results=changes.sums_for_means),
    "gamma of the row's index": Mistake(
        "dx is computed with gamma[row] in place of gamma[column]: gamma's index is the column.",
        results=indices.gamma_by_row),
    "rstd missing in dx": Mistake(
        "dx is not multiplied by rstd.",
        results=lambda call: {"dx": call.true.dx.reshape(call.terms.dy.shape) / call.terms.rstd}),
    "extra term of the tile formula": Mistake(
        "dx has the tile APIs' extra term pd_var·(1/H)·Σ(-2(x - mean)): right for LayerNormGrad on tiles, "
        "not for the graph ops and aclnn; it shows where mean is not the row's mean.", results=changes.extra_term),
    **{
        f"row means rounded to {dtype}": Mistake(
            f"the two row means are rounded to {dtype} before they are subtracted: keep them in float32.",
            results=precision.narrow_means(dtype))
        for dtype in BOTH
    },
    **{
        f"{what} rounded to {dtype} in dx": Mistake(
            f"{meaning} is rounded to {dtype} before dx is computed from it: keep it in float32 and round dx once.",
            results=precision.narrow_dxhat(dtype) if what == "dxhat" else precision.narrow_xhat(dtype, "dx"))
        for what, meaning in (("dxhat", "dy·gamma"), ("xhat", "(x − mean)·rstd"))
        for dtype in BOTH
    },
    **{
        f"rounded to {dtype} before the weight": Mistake(
            f"xhat is rounded to {dtype} before it is multiplied by gamma, as Llama's module does, and so is dy·gamma: "
            "keep both in float32 and round the results once.", results=precision.narrow_before_weight(dtype))
        for dtype in BOTH
    },
    # Of dgamma and dbeta.
    "last row lost": Mistake("dgamma and dbeta lack the last row.", results=indices.last_rows(1, 0.0)),
    **{
        f"last part of {rows} rows {word}": Mistake(
            f"dgamma and dbeta {verb} the last rows after whole parts of {rows}: a partial sum is {word}.",
            results=indices.last_rows(rows, factor))
        for rows in (8, 16, 32, 64, 128)
        for word, verb, factor in (("lost", "lack", 0.0), ("counted twice", "have twice", 2.0))
    },
    "sums added twice": Mistake(
        "dgamma and dbeta are twice what they should be: partial sums are added into a buffer that has them already: "
        "is it, with its locks and counts, set to zero before each call?",
        results=lambda call: {"dgamma": 2 * call.true.dgamma, "dbeta": 2 * call.true.dbeta}),
    "dgamma and dbeta swapped": Mistake(
        "dgamma and dbeta are exchanged.", results=lambda call: {"dgamma": call.true.dbeta, "dbeta": call.true.dgamma}),
    "gamma in the column sums": Mistake(
        "dgamma and dbeta are sums of dy·gamma: they take dy alone.", results=changes.gamma_in_sums),
    "dgamma without the mean": Mistake(
        "dgamma uses x·rstd: subtract the mean before.",
        results=lambda call: {"dgamma": (call.terms.dy * call.terms.x * call.terms.rstd).sum(0)}),
    **{
        f"xhat with gamma of another index, tile {tile}": Mistake(
            f"dgamma's xhat is (y - beta)/gamma with the gamma of the row's place in a tile of {tile}: gamma's index is "
            "the column.", results=indices.xhat_from_output(tile))
        for tile in (16, 32, 64)
    },
    **{
        f"xhat from y/{text} at {least:g}": Mistake(
            f"xhat is recovered from the output as (y - beta)/gamma, with gamma {what} {least:g}: where gamma is smaller, xhat "
            "is lost. Keep x, mean and rstd for the backward.", results=changes.clamped(least, signed))
        for signed, text, what in ((True, "gamma clamped", "clamped in size to"), (False, "max(gamma)", "raised to"))
        for least in (0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
    },
    # Columns that are never computed.
    "last column lost": Mistake(
        "the last column of dx is zero: a loop ends one column early.", results=indices.columns_lost(0)),
    **{
        f"last tile of {width} columns skipped": Mistake(
            f"the columns after the last whole tile of {width} are zero: the tail is not computed.",
            results=indices.columns_lost(width))
        for width in (512, 256, 128, 64, 32, 16, 8)
    },
    # Of what memory holds, and of the order of sums.
    "dx zero without gamma": Mistake(
        "dx is zero where there is no gamma: is what is missing taken for 0, or dxhat set to 1 in place of dy?",
        results=changes.dx_without_gamma),
    **{
        f"{what} read in x's dtype": Mistake(
            f"{what} has a wider dtype than x, and its bytes are read as x's: convert it from its own dtype.",
            inputs=indices.read_as_x(*names))
        for what, names in (("gamma", ("gamma",)), ("mean and rstd", ("mean", "rstd")))
    },
    **{
        f"gamma modulo {size}": Mistake(
            f"column j has gamma of column j modulo {size}: the index begins anew, as in a buffer of {size} elements.",
            inputs=indices.gamma_modulo(size))
        for size in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
    },
    **{
        f"dtotal modulo {size}": Mistake(
            f"each tile of {size} columns adds dtotal's first {size}: its address does not go on with the tiles.",
            inputs=indices.dtotal_modulo(size), dx_only=True)
        for size in (32, 64, 128, 256, 512, 1024)
    },
    **{
        f"row index in uint16{' of loads and stores' * stores}": Mistake(
            "row r is taken for row r modulo 65536: make the type of the row's index 32 bits wide.",
            results=indices.rows_in_uint16(stores), unwritten=stores)
        for stores in (False, True)
    },
    **{
        f"one column too many in the row sums, {where}{', without gamma' * (not gamma)}": Mistake(
            f"the two row sums take {text} too: the mask is off by one (cols < N).",
            results=indices.one_column_more(gamma, after), dx_only=True)
        for where, text, after in (("the next row's", "the first element of the next row", True),
                                   ("the last row's", "the last element of the row before", False))
        for gamma in (True, False)
    },
    **{
        f"odd partial sum of {rows} rows lost in a tree{' of neighbours' * neighbours}": Mistake(
            f"partial sums of {rows} rows are added in a tree, whose halves leave out the last of an odd number of them.",
            results=indices.lost_in_a_tree(rows, neighbours), sums_only=True)
        for rows in (1, 8, 16, 32, 64, 128, 256)
        for neighbours in (False, True)
    },
    **PRECISION,
}  # fmt: skip
