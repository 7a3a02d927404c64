"""Known mistakes, a family a row. Where two explain a result alike, the first is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lngrad.check.inputs import true_grads
from lngrad.check.mistakes import changes, indices, precision
from lngrad.check.mistakes.changes import Family, Mistake, each
from lngrad.check.mistakes.forward import FORWARDS
from lngrad.check.mistakes.precision import DTYPES, PRECISION
from lngrad.check.mistakes.terms import wide
from lngrad.core.problem import LAYER_NORM

INDEXED = "{what} spread over the columns, one for each, which no shape forbids where there are as many rows: give "
OFFSET = "row·N is computed in {} and wraps at element {}, in the loads{}: make the type of the offset 64 bits wide."
OF_X = "mean and rstd are recomputed from x, and {}; the interface takes those that are given."
ANOTHER_EPS = "eps is {text}, {whose}; this case has another."
AVERAGES = (
    " plain averages over chunks of {chunk} columns, of which the last is shorter: weight each chunk by its size."
)
CLAMPED = (
    "xhat is recovered from the output as (y - beta)/gamma, with gamma {} {{least:g}}: where gamma is smaller, xhat is lost. "
    "Keep x, mean and rstd for the backward."
)
TOO_MANY = "the two row sums take {} too: the mask is off by one (cols < N)."
TREE = "partial sums of {rows} rows are added in a tree, whose halves leave out the last of an odd number of them."
MEAN_OF_X, RSTD_OF_X = "mean = x.mean(1, keepdims=True)\n", "variance = x.var(1, keepdims=True)\n"
CHUNKS = "chunks = np.split(x, range({chunk}, x.shape[1], {chunk}), axis=1)\n"
OF_CHUNKS = "rstd = 1 / np.sqrt(np.mean([((one - mean) ** 2).mean(1, keepdims=True) for one in chunks], 0) + eps)"
KEPT = "kept = np.arange(x.shape[1]) < x.shape[1] - 1\n"
ODD_TREE = (
    "parts = np.add.reduceat(np.stack([dy * xhat, dy], 1), np.arange(0, len(dy), {rows}))\n"
    "while len(parts) > 1:\n    half = len(parts) // 2\n    parts = "
)
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
TILES = (8, 16, 32, 64, 128, 256, 1024)
LEAST = each(least=(0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8))
PARTS_OF_ROWS = each(rows=(8, 16, 32, 64, 128))
ROWS = each(rows=(1, 8, 16, 32, 64, 128, 256))
EPSILONS = (
    (1e-3, "the default of Keras"), (1e-6, "the default of Llama, T5 and Gemma"), (1e-8, "the default of some RMSNorms"),
    (2.0**-23, "finfo(float32).eps, torch.nn.RMSNorm's default"),
    (2.0**-7, "finfo(bfloat16).eps, an older default of torch.nn.RMSNorm"),
    (2.0**-10, "finfo(float16).eps, an older default of torch.nn.RMSNorm"),
)  # fmt: skip


def _other_eps(call: changes.ExactCase, eps: float, **_: str) -> changes.Changes:
    return changes.with_eps(call, lambda _: eps)


FAMILIES = (
    # Of the inputs.
    Family("LN-X01", "gamma forgotten", "dx is computed without gamma: multiply dy by gamma before the two row means.",
           lambda call: None if call.inputs.gamma is None else {"gamma": None}, example="dxhat = dy"),
    Family("LN-I01", "dy ignored", "the result does not depend on dy: it is what dy = 1 gives.",
           lambda call: {"dy": np.ones_like(call.inputs.dy)}, example="dy = np.ones_like(dy)"),
    Family("LN-I02", "dy of the previous row", "each row uses the dy of the row before it: an index is off by one row.",
           (indices.by_rows, "dy", -1), example="dy = np.roll(dy, 1, axis=0)"),
    Family("LN-I03", "dy of the next row", "each row uses the dy of the row after it: an index is off by one row.",
           (indices.by_rows, "dy", 1), example="dy = np.roll(dy, -1, axis=0)"),
    Family("LN-S01", "variance in rstd's place", "the variance was given where rstd is expected, or read as if it were: check "
           "which of the two the third output of the forward is.",
           (changes.rstd_as, lambda variance, eps, N: variance), example="rstd = variance"),
    Family("LN-S02", "rstd taken for a variance",
           "1/√(· + eps) is applied to rstd, which has it already: the interface gives rstd, not the variance.",
           (changes.rstd_as, lambda variance, eps, N: 1 / np.sqrt(1 / np.sqrt(variance + eps) + eps)),
           example="rstd = 1 / np.sqrt(rstd + eps)"),
    Family("LN-S03", "mean and rstd swapped",
           "mean and rstd are exchanged: the tile APIs take the variance before the mean, aclnn takes the mean first.",
           lambda call: {"mean": call.inputs.rstd, "rstd": call.inputs.mean}, example="mean, rstd = rstd, mean"),
    Family("LN-S04", "eps added twice", "eps is added twice: the variance, or rstd, already contains it.",
           (changes.with_eps, lambda eps: 2 * eps), example="rstd = 1 / np.sqrt(variance + 2 * eps)"),
    Family("LN-S05", "eps missing", "eps is not added to the variance, or one that is far smaller, such as 1e-12.",
           (changes.with_eps, lambda eps: 0.0), example="rstd = 1 / np.sqrt(variance)"),
    Family("LN-S06", "eps outside the root", "rstd is 1/(√variance + eps): eps belongs under the root.",
           (changes.rstd_as, lambda variance, eps, N: 1 / (np.sqrt(np.maximum(variance, 0)) + eps)),
           example="rstd = 1 / (np.sqrt(variance) + eps)"),
    Family("LN-S07", "root forgotten", "rstd is 1/(variance + eps)²: the power is -1/2.",
           (changes.rstd_as, lambda variance, eps, N: (variance + eps) ** -2.0), example="rstd = (variance + eps) ** -2.0"),
    Family("LN-S31", "rstd squared", "rstd is 1/(variance + eps), the square of the right one: a reciprocal for its root.",
           (changes.rstd_as, lambda variance, eps, N: 1 / (variance + eps)), example="rstd = 1 / (variance + eps)"),
    Family("LN-S08", "eps {text} for {right}", ANOTHER_EPS, _other_eps, values=(
        {"text": "1e-5", "right": "1e-12", "eps": 1e-5, "whose":
         "the default of torch's LayerNorm and the graph op's value for 16-bit x"},
        {"text": "1e-12", "right": "1e-5", "eps": 1e-12, "whose": "the graph op's value for float32 x"}),
           example="rstd = 1 / np.sqrt(variance + {eps})"),
    Family("LN-S09", "variance over N - 1", "the variance is divided by N - 1: layer normalization divides by N.",
           (changes.rstd_as, lambda variance, eps, N: 1 / np.sqrt(variance * N / max(N - 1, 1) + eps)),
           example="rstd = 1 / np.sqrt(x.var(1, ddof=1, keepdims=True) + eps)"),
    Family("LN-S10", "variance 1 % too large", "the variance is 1 % too large, so rstd is 0.5 % too small: another eps, or a "
           "sum with too many terms.", (changes.rstd_as, lambda variance, eps, N: 1 / np.sqrt(1.01 * (variance + eps))),
           example="rstd = 1 / np.sqrt(1.01 * (variance + eps))"),
    Family("LN-S11", "variance of a padded row",
           "the variance counts mean² for each column that fills the row up to a power of two: mask x - mean, not x alone.",
           changes.padded_variance, example="padding = (1 << (x.shape[1] - 1).bit_length()) - x.shape[1]\n"
           "rstd = 1 / np.sqrt(variance + padding * mean**2 / x.shape[1] + eps)"),
    Family("LN-I04", "mean of the previous row", "each row uses the mean of the row before it: an index is off by one row.",
           (indices.by_rows, "mean", -1), example="mean = np.roll(mean, 1, axis=0)"),
    Family("LN-I05", "statistics transposed", "mean and rstd are read in the order of the transposed leading dimensions.",
           indices.statistics_transposed, example="mean, rstd = (one.reshape(lead).T.reshape(-1, 1) for one in (mean, rstd))"),
    Family("LN-I06", "statistics of the column's index", INDEXED.format(what="mean and rstd are") + "them a last axis of 1.",
           results=(indices.statistics_by_column, "mean", "rstd"), example="mean, rstd = mean.T, rstd.T"),
    Family("LN-I07", "mean of the column's index", INDEXED.format(what="mean is") + "it a last axis of 1.",
           results=(indices.statistics_by_column, "mean"), example="mean = mean.T"),
    Family("LN-I08", "rstd of the column's index", INDEXED.format(what="rstd is") + "it a last axis of 1.",
           results=(indices.statistics_by_column, "rstd"), example="rstd = rstd.T"),
    Family("LN-S12", "statistics recomputed",
           "mean and rstd are recomputed from x; the interface takes those that are given.", changes.statistics_of_x,
           example="mean, rstd = x.mean(1, keepdims=True), 1 / np.sqrt(x.var(1, keepdims=True) + eps)"),
    Family("LN-S13", "mean ignored", "mean is not subtracted: xhat is x·rstd, as RMSNorm has it. Layer normalization's is (x − "
           "mean)·rstd.", lambda call: {"mean": np.zeros_like(np.asarray(call.inputs.mean))}, example="xhat = x * rstd"),
    Family("LN-P01", "statistics rounded to {dtype}", "mean and rstd are rounded to {dtype} before they are used: keep them in "
           "float32, whatever x's dtype is.", (changes.narrow_statistics, "mean", "rstd"), values=DTYPES,
           example='mean, rstd = mean.astype("{dtype}"), rstd.astype("{dtype}")'),
    *(Family(code, f"{name} rounded to {{dtype}}", f"{name} is rounded to {{dtype}} before it is used: keep it in float32.",
             (changes.narrow_statistics, name), values=DTYPES,
             example=f'{name} = {name}.astype("{{dtype}}")') for code, name in (("LN-P02", "mean"), ("LN-P03", "rstd"))),
    Family("LN-P04", "statistics of x rounded to {dtype}",
           "mean and rstd are computed from x rounded to {dtype}: compute them from x itself.",
           changes.statistics_of_narrow_x, values=DTYPES, example='short = x.astype("{dtype}").astype(x.dtype)\n'
           "mean, rstd = short.mean(1, keepdims=True), 1 / np.sqrt(short.var(1, keepdims=True) + eps)"),
    Family("LN-S14", "variance over N - 1, recomputed from x", OF_X.format("the variance is divided by N - 1"),
           (changes.recomputed, lambda variance, eps, N: 1 / np.sqrt(variance * N / max(N - 1, 1) + eps)),
           example=MEAN_OF_X + "rstd = 1 / np.sqrt(x.var(1, ddof=1, keepdims=True) + eps)"),
    Family("LN-S15", "eps outside the root, recomputed from x", OF_X.format("eps is added to the root, and not under it"),
           (changes.recomputed, lambda variance, eps, N: 1 / (np.sqrt(variance) + eps)),
           example=MEAN_OF_X + "rstd = 1 / (x.std(1, keepdims=True) + eps)"),
    Family("LN-S16", "eps missing, recomputed from x", OF_X.format("eps is not added"),
           (changes.recomputed, lambda variance, eps, N: 1 / np.sqrt(variance)),
           example=MEAN_OF_X + "rstd = 1 / x.std(1, keepdims=True)"),
    Family("LN-S17", "eps added twice, recomputed from x", OF_X.format("eps is added twice"),
           (changes.recomputed, lambda variance, eps, N: 1 / np.sqrt(variance + 2 * eps)),
           example=MEAN_OF_X + RSTD_OF_X + "rstd = 1 / np.sqrt(variance + 2 * eps)"),
    Family("LN-S18", "statistics averaged over chunks of {chunk}", "mean and variance are" + AVERAGES,
           (changes.statistics_of_chunks, True), values=each(chunk=SIZES),
           example=CHUNKS + "mean = np.mean([one.mean(1, keepdims=True) for one in chunks], 0)\n" + OF_CHUNKS),
    Family("LN-S19", "variance averaged over chunks of {chunk}", "the variances are" + AVERAGES,
           (changes.statistics_of_chunks, False), values=each(chunk=SIZES), example=CHUNKS + OF_CHUNKS),
    # Of indices and masks.
    Family("LN-I09", "last column masked off", "the last column is not loaded: the mask of the loads ends one column early "
           "(cols < N, not N - 1).", (indices.last_column_off, 0.0), example=KEPT + "dy, x = dy * kept, x * kept"),
    Family("LN-I10", "last column masked off, xhat too",
           "the last column counts as zero in dy and xhat: the mask ends one column early (cols < N, not N - 1).",
           (indices.last_column_off, None), example=KEPT + "dy, x = np.where(kept, dy, 0), np.where(kept, x, mean)"),
    Family("LN-I11", "last column masked off in loads and stores", "the last column is neither loaded nor stored: the mask "
           "ends one column early (cols < N, not N - 1).", results=indices.last_column_unwritten, unwritten=True,
           example=KEPT + "dy, x = dy * kept, x * kept\ndx[:, -1] = dgamma[-1] = dbeta[-1] = np.nan"),
    *(Family(f"LN-I{12 + number:02}", f"row offset in {kind}{' of loads and stores' * stores}",
             OFFSET.format(kind, 1 << bits, " and stores" * stores),
             None if stores else (indices.wrapped, bits, kind), (indices.wrapped_stores, bits, kind) if stores else None,
             unwritten=stores, example=f'places = (np.arange(len(x)) * x.shape[1]).astype("{kind}").astype(int)\n'
             "places = (places[:, None] + np.arange(x.shape[1])) % x.size\n"
             + "dy, x = dy.reshape(-1)[places], x.reshape(-1)[places]"
             + "\nflat = np.full(x.size, np.nan)\nflat[places] = dx\ndx = flat.reshape(x.shape)" * stores)
      for number, (kind, bits, stores) in enumerate((
          ("int16", 15, False), ("int16", 15, True), ("uint16", 16, False), ("uint16", 16, True)))),
    Family("LN-I16", "gamma broadcast along axis {one}", "gamma's first elements along {one} of its axes are used for all: its "
           "index lacks these axes.", indices.gamma_broadcast, values=each(one=(0, 1, 2)),
           example="gamma = gamma.reshape(normalized_shape)\n"
           "gamma = np.broadcast_to(gamma.take([0], axis={one}), gamma.shape).reshape(-1)"),
    Family("LN-I17", "gamma broadcast along axes {one} and {other}", "gamma's first elements along {one} and {other} of its "
           "axes are used for all: its index lacks these axes.", indices.gamma_broadcast,
           values=({"one": 0, "other": 1}, {"one": 0, "other": 2}, {"one": 1, "other": 2}),
           example="gamma = gamma.reshape(normalized_shape)\nfirst_ones = gamma.take([0], axis={one}).take([0], axis={other})\n"
           "gamma = np.broadcast_to(first_ones, gamma.shape).reshape(-1)"),
    *(Family(code, name, "gamma is read in the order of the transposed normalized dimensions.",
             (indices.gamma_transposed, back),
             example=f"gamma = gamma.reshape(normalized_shape{'[::-1]' * (not back)}).T.reshape(-1)")
      for code, name, back in (("LN-I18", "gamma transposed", False), ("LN-I19", "gamma transposed back", True))),
    *(Family(code, f"{name} rounded to {{dtype}}", f"{name} is rounded to {{dtype}} before anything is computed from it.",
             (changes.narrow_input, name), values=DTYPES,
             example=f'{name} = {name}.astype("{{dtype}}").astype(x.dtype)')
      for code, name in (("LN-P05", "dy"), ("LN-P06", "x"), ("LN-P07", "gamma"))),
    Family("LN-S20", "mean recomputed", "mean is recomputed from x; the interface takes the one that is given.",
           lambda call: changes.mean_of_x(call) if call.centred else None, example="mean = x.mean(1, keepdims=True)"),
    Family("LN-S21", "uncentred variance", "the variance is taken about zero: mean(x²) without subtracting mean².",
           changes.uncentred_variance, example="rstd = 1 / np.sqrt((x**2).mean(1, keepdims=True) + eps)"),
    Family("LN-S22", "variance by cancellation", "the variance is E[x²] - E[x]² in float32, which cancels where the mean is "
           "large: centre x first.", changes.cancelling_variance, by_size=True, example='single = x.astype("float32")\n'
           "variance = (single * single).mean(1, keepdims=True) - single.mean(1, keepdims=True) ** 2\n"
           "rstd = 1 / np.sqrt(np.maximum(variance, 0) + eps)"),
    Family("LN-S23", "eps {text}", ANOTHER_EPS, _other_eps, example="rstd = 1 / np.sqrt(variance + {text})",
           values=tuple({"eps": eps, "text": f"{eps:.3g}", "whose": whose} for eps, whose in EPSILONS)),
    # Of the family.
    Family("LN-N01", "mean subtracted", "xhat is (x − mean)·rstd: RMSNorm subtracts no mean, its xhat is x·rstd.",
           lambda call: None if call.centred else changes.mean_of_x(call), norm="rms_norm",
           example="xhat = (x - x.mean(1, keepdims=True)) * rstd"),
    Family("LN-N02", "variance about the mean", "rstd is recomputed from the variance about the mean: RMSNorm's is of the mean "
           "square, about 0.", lambda call: None if call.centred else changes.rstd_of_layer_norm(call), norm="rms_norm",
           example="rstd = 1 / np.sqrt(x.var(1, keepdims=True) + eps)"),
    Family("LN-N03", "mean of dxhat subtracted", "dx has layer normalization's − mean_dxhat: RMSNorm's gradient has no such "
           "term.", changes.centred, norm="rms_norm",
           example="dx = rstd * (dxhat - dxhat.mean(1, keepdims=True) - xhat * second)"),
    Family("LN-N04", "layer normalization for RMSNorm", "the gradients are layer normalization's: RMSNorm subtracts neither "
           "the mean of x nor that of dxhat.", (changes.centred, changes.mean_of_x), norm="rms_norm",
           example="xhat = (x - x.mean(1, keepdims=True)) * rstd\n"
           "dx = rstd * (dxhat - dxhat.mean(1, keepdims=True) - xhat * second)"),
    Family("LN-N05", "layer normalization for RMSNorm, with its own statistics",
           "the gradients are layer normalization's, with its mean and variance: RMSNorm has no mean.",
           lambda call: changes.centred(call, lambda call: changes.statistics_of(call, call.inputs.x, LAYER_NORM)),
           norm="rms_norm", example="rstd = 1 / np.sqrt(x.var(1, keepdims=True) + eps)\n"
           "xhat = (x - x.mean(1, keepdims=True)) * rstd\n"
           "dx = rstd * (dxhat - dxhat.mean(1, keepdims=True) - xhat * second)"),
    Family("LN-N06", "offset forgotten", "dx is computed with gamma alone: this norm multiplies by offset + gamma (1 + gamma, "
           "as Gemma's).", (changes.offset_times, 0), norm="gemma_rms_norm", example="dxhat = dy * gamma"),
    Family("LN-N07", "offset added twice", "the offset is added to gamma twice: where gamma is stored as offset + gamma, it is "
           "in it already.", (changes.offset_times, 2), norm="zero_centred_layer_norm", example="dxhat = dy * (2 + gamma)"),
    Family("LN-N08", "dtotal forgotten", "dx lacks dtotal, the gradient that comes through the residual stream: add it to the "
           "norm's own.", (changes.dtotal_times, 0), norm="add_rms_norm", example="dx = rstd * (dxhat - xhat * second)"),
    Family("LN-N09", "dtotal added twice", "dtotal is added to dx twice.", (changes.dtotal_times, 2), norm="add_rms_norm",
           example="dx = dx + dtotal"),
    Family("LN-N10", "dtotal times rstd", "dtotal is added inside the bracket, and so multiplied by rstd: it is added behind "
           "it.", lambda call: changes.dtotal_times(call, wide(call.inputs.rstd)), norm="add_rms_norm",
           example="dx = rstd * (dxhat - xhat * second + dtotal)"),
    Family("LN-N11", "dtotal added to dy", "dtotal is added to dy and goes through the norm: it is the total's gradient, not "
           "y's.", changes.dtotal_in_dy, norm="add_rms_norm", example="dy, dtotal = dy + dtotal, 0"),
    Family("LN-N12", "dtotal added to dxhat", "dtotal is added to dxhat and goes through the norm: it is added behind it.",
           changes.dtotal_in_dxhat, norm="add_rms_norm", example="dxhat, dtotal = dxhat + dtotal, 0"),
    Family("LN-N13", "residual forgotten", "xhat is made of x alone: what is normalized is alpha·x + residual.",
           changes.summand, norm="add_layer_norm", example="total = x"),
    Family("LN-N14", "residual added after the norm", "x alone is normalized, with statistics of its own: the residual is "
           "added before the norm.", (changes.summand, True), norm="add_rms_norm",
           example="total = x\nrstd = 1 / np.sqrt((x**2).mean(1, keepdims=True) + eps)"),
    Family("LN-N15", "alpha forgotten", "x and residual are added without alpha.", (changes.other_total, 1.0, 1.0),
           norm="deep_norm", example="total = x + residual"),
    Family("LN-N16", "alpha on the residual", "the residual is multiplied by alpha: DeepNorm's total is alpha·x + residual.",
           (changes.other_total, 1.0, None), norm="deep_norm", example="total = x + alpha * residual"),
    Family("LN-N17", "total not rounded", "what is normalized is alpha·x + residual before it is rounded to x's dtype: mean "
           "and rstd are those of the total that the forward returns.", (changes.other_total, None, 1.0, False)),
    Family("LN-S24", "variance over N - 1, in its derivative too",
           "the variance is divided by N - 1, forward and backward, as with torch's var and std: say correction=0.",
           results=(changes.corrected, False), example="rstd = 1 / np.sqrt(x.var(1, ddof=1, keepdims=True) + eps)\n"
           "second = (dxhat * xhat).sum(1, keepdims=True) / (x.shape[1] - 1)"),
    Family("LN-S25", "variance over N - 1 and eps outside the root, in its derivative too", "the variance is divided by N - 1 "
           "and eps outside the root, forward and backward, as with torch's var and std: say correction=0.",
           results=(changes.corrected, True), example="deviation = x.std(1, ddof=1, keepdims=True)\n"
           "rstd = 1 / (deviation + eps)\n"
           "second = (dxhat * xhat).sum(1, keepdims=True) / (x.shape[1] - 1) / (deviation * rstd)"),
    Family("LN-S26", "sum of squares for their mean", "rstd is taken of the sum of squares over the row, forward and backward: "
           "dx and dgamma are 1/√N times what they should be. Divide the sum by N.", results=changes.of_sum_of_squares,
           example="dx, dgamma = dx / np.sqrt(x.shape[1]), dgamma / np.sqrt(x.shape[1])"),
    # Of dx.
    Family("LN-X02", "mean of dxhat missing", "dx lacks the row mean of dy·gamma: subtract it.",
           results=(changes.means_times, 0, 1), example="dx = rstd * (dxhat - xhat * second)"),
    Family("LN-X03", "mean of dxhat·xhat missing", "dx lacks xhat times the row mean of dy·gamma·xhat: subtract it.",
           results=(changes.means_times, 1, 0), example="dx = rstd * (dxhat - first)"),
    Family("LN-X04", "means over the last axis only",
           "the row means go over the last axis only: normalized_shape has more, flatten it.",
           results=(changes.means_over, "last axis"), example="last = normalized_shape[-1]\nfirst, second = (np.repeat("
           "one.reshape(len(x), -1, last).mean(2), last, axis=1) for one in (dxhat, dxhat * xhat))"),
    *(Family(code, f"{which} of the column's index", f"column j of a tile takes {which} of the tile's row j: a number for each "
             "row is spread over the columns, as without [:, None] or keepdims.", dx_only=True,
             results=(changes.means_by_column, first, second), example="tile = 1 << (x.shape[1] - 1).bit_length()\n"
             "rows = np.arange(len(x))[:, None] // tile * tile + np.arange(x.shape[1])\n"
             + "\n".join(f"{name} = np.append({name}, np.zeros(tile))[rows]" for name in names.split()))
      for code, which, first, second, names in (
          ("LN-I38", "both row means", True, True, "first second"), ("LN-I39", "the mean of dxhat", True, False, "first"),
          ("LN-I40", "the mean of dxhat·xhat", False, True, "second"))),
    *(Family(code, f"row means divided by the {which} size alone",
             f"the two row sums are divided by the {which} of the normalized sizes: divide by the product of all.",
             results=(changes.means_divided, axis), example="first, second = (one.sum(1, keepdims=True) / "
             f"normalized_shape[{axis}] for one in (dxhat, dxhat * xhat))")
      for code, which, axis in (("LN-X05", "last", -1), ("LN-X06", "first", 0))),
    Family("LN-X07", "means over rows", "the two means go over axis 0, the rows, instead of the normalized axes.",
           results=(changes.means_over, "rows"), example="first, second = dxhat.mean(0), (dxhat * xhat).mean(0)"),
    Family("LN-X08", "means over the whole tensor",
           "the two means go over the whole tensor: normalized_shape was flattened into the rows.",
           results=(changes.means_over, "all"), example="first, second = dxhat.mean(), (dxhat * xhat).mean()"),
    Family("LN-X09", "sums for means", "the two row sums are not divided by the number of normalized elements.",
           results=changes.means_divided,
           example="first, second = dxhat.sum(1, keepdims=True), (dxhat * xhat).sum(1, keepdims=True)"),
    Family("LN-I20", "gamma of the row's index", "dx is computed with gamma[row] in place of gamma[column]: gamma's index is "
           "the column.", results=indices.gamma_by_row, example="dxhat = dy * gamma[np.arange(len(dy)) % len(gamma), None]"),
    Family("LN-X10", "rstd missing in dx", "dx is not multiplied by rstd.",
           results=lambda call: {"dx": call.true.dx.reshape(call.terms.dy.shape) / call.terms.rstd},
           example="dx = dxhat - first - xhat * second"),
    Family("LN-X11", "extra term of the tile formula", "dx has the tile APIs' extra term pd_var·(1/H)·Σ(-2(x - mean)): right "
           "for LayerNormGrad on tiles, not for the graph ops and aclnn; it shows where mean is not the row's mean.",
           results=changes.extra_term, example="pd_var = -0.5 * (dxhat * xhat).sum(1, keepdims=True) * rstd**2\n"
           "dx = dx + pd_var * (-2 * (x - mean)).mean(1, keepdims=True) / x.shape[1]"),
    Family("LN-P08", "row means rounded to {dtype}", "the two row means are rounded to {dtype} before they are subtracted: "
           "keep them in float32.", results=(precision.rounded, "means"), values=DTYPES,
           example='first, second = first.astype("{dtype}"), second.astype("{dtype}")'),
    Family("LN-P09", "dxhat rounded to {dtype} in dx", "dy·gamma is rounded to {dtype} before dx is computed from it: keep it "
           "in float32 and round dx once.", results=(precision.rounded, "dxhat"), values=DTYPES,
           example='dxhat = (dy * gamma).astype("{dtype}").astype(x.dtype)'),
    Family("LN-P10", "xhat rounded to {dtype} in dx", "(x − mean)·rstd is rounded to {dtype} before dx is computed from it: "
           "keep it in float32 and round dx once.", results=(precision.rounded, "xhat"), values=DTYPES,
           example='short = xhat.astype("{dtype}").astype(x.dtype)\n'
           "dx = rstd * (dxhat - first - short * (dxhat * short).mean(1, keepdims=True))"),
    Family("LN-P11", "rounded to {dtype} before the weight", "xhat is rounded to {dtype} before it is multiplied by gamma, as "
           "Llama's module does, and so is dy·gamma: keep both in float32 and round the results once.",
           results=(precision.rounded, "dxhat", "xhat of dgamma"), values=DTYPES,
           example='dxhat = (dy * gamma).astype("{dtype}").astype(x.dtype)\ndgamma = (dy * xhat.astype("{dtype}")).sum(0)'),
    # Of dgamma and dbeta.
    Family("LN-G01", "last row lost", "dgamma and dbeta lack the last row.", results=(indices.last_rows, 0.0, 1),
           example="dgamma, dbeta = (dy * xhat)[:-1].sum(0), dy[:-1].sum(0)"),
    *(Family(code, f"last part of {{rows}} rows {word}",
             f"dgamma and dbeta {verb} the last rows after whole parts of {{rows}}: a partial sum is {word}.",
             results=(indices.last_rows, factor), values=PARTS_OF_ROWS,
             example=f"tail = len(dy) // {{rows}} * {{rows}}\ndgamma = dgamma {sign} (dy * xhat)[tail:].sum(0)\n"
             f"dbeta = dbeta {sign} dy[tail:].sum(0)")
      for code, word, verb, factor, sign in (("LN-G02", "lost", "lack", 0.0, "-"),
                                             ("LN-G03", "counted twice", "have twice", 2.0, "+"))),
    Family("LN-G04", "sums added twice", "dgamma and dbeta are twice what they should be: partial sums are added into a buffer "
           "that has them already: is it, with its locks and counts, set to zero before each call?",
           results=lambda call: {"dgamma": 2 * call.true.dgamma, "dbeta": 2 * call.true.dbeta},
           example="dgamma, dbeta = 2 * dgamma, 2 * dbeta"),
    Family("LN-G05", "dgamma and dbeta swapped", "dgamma and dbeta are exchanged.",
           results=lambda call: {"dgamma": call.true.dbeta, "dbeta": call.true.dgamma},
           example="dgamma, dbeta = dbeta, dgamma"),
    Family("LN-G06", "gamma in the column sums", "dgamma and dbeta are sums of dy·gamma: they take dy alone.",
           results=changes.gamma_in_sums, example="dgamma, dbeta = (dxhat * xhat).sum(0), dxhat.sum(0)"),
    Family("LN-G07", "dgamma without the mean", "dgamma uses x·rstd: subtract the mean before.",
           results=lambda call: {"dgamma": (call.terms.dy * call.terms.x * call.terms.rstd).sum(0)},
           example="dgamma = (dy * x * rstd).sum(0)"),
    Family("LN-I21", "xhat with gamma of another index, tile {tile}", "dgamma's xhat is (y - beta)/gamma with the gamma of the "
           "row's place in a tile of {tile}: gamma's index is the column.",
           results=indices.xhat_from_output, values=each(tile=(16, 32, 64)),
           example="other = gamma[np.arange(len(x)) % {tile} % len(gamma), None]\ndgamma = (dy * xhat * gamma / other).sum(0)"),
    Family("LN-X12", "xhat from y/gamma clamped at {least:g}", CLAMPED.format("clamped in size to"),
           results=(changes.clamped, True), values=LEAST,
           example="xhat = xhat * gamma / (np.copysign(1, gamma) * np.maximum(np.abs(gamma), {least}))"),
    Family("LN-X13", "xhat from y/max(gamma) at {least:g}", CLAMPED.format("raised to"), results=(changes.clamped, False),
           values=LEAST, example="xhat = xhat * gamma / np.maximum(gamma, {least})"),
    # Columns that are never computed.
    Family("LN-I22", "last column lost", "the last column of dx is zero: a loop ends one column early.",
           results=(indices.columns_lost, 0), example="dx[:, -1] = 0"),
    Family("LN-I23", "last tile of {width} columns skipped", "the columns after the last whole tile of {width} are zero: the "
           "tail is not computed.", results=indices.columns_lost, values=each(width=(512, 256, 128, 64, 32, 16, 8)),
           example="tail = x.shape[1] // {width} * {width}\ndx[:, tail:] = dgamma[tail:] = dbeta[tail:] = 0"),
    # Of what memory holds, and of the order of sums.
    Family("LN-X14", "dx zero without gamma", "dx is zero where there is no gamma: is what is missing taken for 0, or dxhat "
           "set to 1 in place of dy?", results=changes.dx_without_gamma, example="dxhat = 0 * dy"),
    *(Family(code, f"{what} read in x's dtype",
             f"{what} has a wider dtype than x, and its bytes are read as x's: convert it from its own dtype.",
             (indices.read_as, *what.split(" and ")))
      for code, what in (("LN-I24", "gamma"), ("LN-I25", "mean and rstd"))),
    Family("LN-I26", "gamma modulo {size}", "column j has gamma of column j modulo {size}: the index begins anew, as in a "
           "buffer of {size} elements.", (indices.modulo, "gamma"), values=each(size=tuple(1 << bits for bits in range(6, 17))),
           example="gamma = gamma[np.arange(len(gamma)) % {size}]"),
    Family("LN-I37", "column sums modulo {size}", "the sums of columns j and j + {size} are one: the buffer that they are "
           "gathered in has {size} elements.", results=indices.sums_modulo, sums_only=True,
           values=each(size=tuple(1 << bits for bits in range(5, 17))), example="place = np.arange(x.shape[1]) % {size}\n"
           "dgamma, dbeta = (np.bincount(place, one, {size})[place] for one in (dgamma, dbeta))"),
    Family("LN-N18", "dtotal modulo {size}", "each tile of {size} columns adds dtotal's first {size}: its address does not go "
           "on with the tiles.", (indices.modulo, "dtotal"), values=each(size=(32, 64, 128, 256, 512, 1024)), dx_only=True,
           norm="add_rms_norm", example="dtotal = dtotal[:, np.arange(x.shape[1]) % {size}]"),
    *(Family(code, f"row index in uint16{' of loads and stores' * stores}",
             "row r is taken for row r modulo 65536: make the type of the row's index 32 bits wide.",
             results=(indices.rows_in_uint16, stores), unwritten=stores,
             example=f"rows = np.arange(len(x)) % 65536\ndx{'[65536:] = np.nan' if stores else ' = dx[rows]'}\n"
             "dgamma, dbeta = (dy * xhat)[rows].sum(0), dy[rows].sum(0)")
      for code, stores in (("LN-I27", False), ("LN-I28", True))),
    *(Family(code, f"one column too many in the row sums, {where}{', without gamma' * (not gamma)}", TOO_MANY.format(text),
             results=(indices.columns_more, gamma, after), dx_only=True,
             example=f"more = np.zeros_like(dy[:, :1])\nmore[{to}] = dy[{of}]{f' * gamma[{column}]' * gamma}\n"
             f"other = np.zeros_like(more)\nother[{to}] = more[{to}] * (x[{of}] - mean[{to}]) * rstd[{to}]\n"
             "first, second = first + more / x.shape[1], second + other / x.shape[1]")
      for code, where, text, after, gamma, to, of, column in (
          ("LN-X15", "the next row's", "the first element of the next row", True, True, ":-1", "1:, :1", 0),
          ("LN-X16", "the next row's", "the first element of the next row", True, False, ":-1", "1:, :1", 0),
          ("LN-X17", "the last row's", "the last element of the row before", False, True, "1:", ":-1, -1:", -1),
          ("LN-X18", "the last row's", "the last element of the row before", False, False, "1:", ":-1, -1:", -1))),
    Family("LN-G08", "odd partial sum of {rows} rows lost in a tree", TREE, results=(indices.lost_in_a_tree, False),
           values=ROWS, sums_only=True, example=ODD_TREE + "parts[:half] + parts[half:2 * half]\ndgamma, dbeta = parts[0]"),
    Family("LN-G09", "odd partial sum of {rows} rows lost in a tree of neighbours", TREE,
           results=(indices.lost_in_a_tree, True), values=ROWS, sums_only=True,
           example=ODD_TREE + "parts[0:2 * half:2] + parts[1:2 * half:2]\ndgamma, dbeta = parts[0]"),
    Family("LN-S27", "variance within chunks of {chunk}", "partial variances of {chunk} columns are merged without what "
           "the chunks' means differ by: Welford's merge adds δ²·n₁·n₂/(n₁ + n₂), with each chunk's own count.",
           changes.variance_within_chunks, values=each(chunk=SIZES[:7]), example=CHUNKS
           + "rstd = 1 / np.sqrt(sum(one.var(1, keepdims=True) * one.shape[1] for one in chunks) / x.shape[1] + eps)"),
    *(Family(code, f"rstd of the first 1/{{share}} of the columns{', in its derivative too' * derived}",
             "rstd is taken of the first columns alone, 1/{share} of them: RMSNorm's is of all.",
             None if derived else changes.rstd_of_part, (changes.rstd_of_part, True) if derived else None,
             values=each(share=(2, 4, 8, 16)), norm="rms_norm",
             example="part = x.shape[1] // {share}\nrstd = 1 / np.sqrt((x[:, :part] ** 2).mean(1, keepdims=True) + eps)"
             + "\nsecond = (dxhat * xhat).sum(1, keepdims=True) / part * (np.arange(x.shape[1]) < part)" * derived)
      for code, derived in (("LN-S28", False), ("LN-S29", True))),
    Family("LN-S30", "normalized twice", "xhat is normalized once more with x's mean and rstd: x is normalized already "
           "where it comes in, or in two places.",
           results=lambda call: call.terms.with_xhat((call.terms.xhat - call.terms.mean) * call.terms.rstd),
           example="x = (x - mean) * rstd"),
    *(Family(code, f"xhat of the {which} row", f"each row uses the xhat of the row {where} it: an index is off by one row.",
             results=lambda call, step=step: call.terms.with_xhat(np.roll(call.terms.xhat, -step, axis=0)),
             example=f"xhat = np.roll(xhat, {-step}, axis=0)")
      for code, which, where, step in (("LN-I29", "previous", "before", -1), ("LN-I30", "next", "after", 1))),
    *(Family(code, f"row sums to the end of a tile of {{tile}}, x {of}", "the row sums go on to the end of a tile of {tile} "
             "columns with the next row's dy: mask dy and xhat (cols < N).", results=(indices.columns_more, False, True, x),
             values=each(tile=TILES), dx_only=True, example="more = -x.shape[1] % {tile}\nbeside = np.zeros((len(dy), more))\n"
             f"beside[:-1] = dy[1:, :more]\nother = np.zeros_like(beside)\n{'other[:-1] = x[1:, :more]' + chr(10) if x else ''}"
             "first = first + beside.sum(1, keepdims=True) / x.shape[1]\n"
             "second = second + (beside * (other - mean) * rstd).sum(1, keepdims=True) / x.shape[1]")
      for code, of, x in (("LN-X19", "masked", False), ("LN-X20", "of the next row too", True))),
    Family("LN-X21", "gradients through {function}", "gradients are the right ones through {function}: large ones are made "
           "small, and no gradient is bounded.", results=changes.compressed, values=each(function=tuple(changes.COMPRESSIONS)),
           example="dx, dgamma, dbeta = np.tanh(dx), np.tanh(dgamma), np.tanh(dbeta)"),
    Family("LN-X22", "mean and rstd detached", "dx lacks both row means: mean and rstd are taken for constants, as if "
           "detached from x.", results=(changes.means_times, 0, 0), example="dx = rstd * dxhat"),
    Family("LN-X23", "xhat from y/gamma", "xhat is recovered from the output as (y - beta)/gamma, which is 0/0 where gamma is "
           "0: keep x, mean and rstd for the backward.", results=changes.from_output, example="xhat = xhat * gamma / gamma"),
    Family("LN-X24", "dgamma divided by gamma", "dgamma is a sum of dxhat·xhat, divided by gamma: where gamma is 0, that is "
           "0/0. Sum dy·xhat.", results=(changes.from_output, "", False), sums_only=True,
           example="dgamma = (dxhat * xhat).sum(0) / gamma"),
    Family("LN-I31", "dy and x swapped", "dy and x are exchanged: look at the order of the arguments.",
           results=lambda call: true_grads(replace(call.inputs, dy=call.inputs.x, x=call.inputs.dy))._asdict(),
           example="dy, x = x, dy"),
    Family("LN-I32", "dx in column-major order", "dx has the right elements in another order: those of a column lie side by "
           "side in memory, as Fortran has them.", results=lambda call: {"dx": call.true.dx.reshape(call.terms.dy.shape).T},
           dx_only=True, example="dx = dx.T.reshape(dx.shape)"),
    Family("LN-I33", "tiles of dx of {tile} transposed", "each square tile of {tile} rows and columns of dx is transposed: "
           "its row and column are exchanged where it is stored.", results=indices.tiles_transposed, dx_only=True,
           values=each(tile=(4, 8, 16, 32)), example="M, N = (size // {tile} * {tile} for size in dx.shape)\n"
           "tiles = dx[:M, :N].reshape(M // {tile}, {tile}, N // {tile}, {tile})\n"
           "dx[:M, :N] = tiles.transpose(0, 3, 2, 1).reshape(M, N)"),
    *(Family(code, f"{what} read as {{dtype}}", f"the bytes of {what} are read as {{dtype}}, which is not its dtype.",
             (indices.read_as, what), values=DTYPES,
             example=f'{what} = np.ascontiguousarray({what}.astype("float32")).reshape(-1).view("{{dtype}}")[:{what}.size]'
             f".astype(float).reshape({what}.shape)")
      for code, what in (("LN-I34", "dy"), ("LN-I35", "x"), ("LN-I36", "gamma"))),
    Family("LN-N19", "dx times alpha", "dx is multiplied by alpha: that is the gradient of the summand, and dx the total's.",
           results=lambda call: {"dx": call.inputs.normalization.alpha * call.true.dx}, norm="deep_norm",
           example="dx = alpha * dx"),
    Family("LN-N20", "alpha forgotten in the gradient of x", "the gradient of x lacks alpha: it is alpha times the total's, "
           "which is the residual's.", results=lambda call: {"dx": call.true.dx / call.inputs.normalization.alpha},
           norm="deep_norm", example="dx = dx / alpha"),
    *PRECISION,
    *FORWARDS,
)  # fmt: skip
MISTAKES: dict[str, Mistake] = {name: mistake for family in FAMILIES for name, mistake in family.mistakes()}
