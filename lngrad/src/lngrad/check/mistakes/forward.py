"""Mistakes of a forward: the last part of the table. Those of statistics, gamma and x that a backward can have stand with it.

A change returns what of the forward's inputs and statistics is another, or results by name; see `ForwardCase`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lngrad.check.mistakes.changes import RETURNED, Changes, Family, ForwardCase, statistics_of
from lngrad.check.mistakes.precision import DTYPES
from lngrad.check.mistakes.terms import narrowed, row_sum, wide
from lngrad.core import reference
from lngrad.typing import Array

SIZES = (0, 8, 16, 32, 64, 128, 256, 512, 1024)  # that a row is filled up to a multiple of; 0: to a power of two
BESIDE = tuple({"size": size, "text": f"multiple of {size}" if size else "power of two"} for size in SIZES)
PADDED = "padded = -(-x.shape[1] // {size}) * {size} if {size} else 1 << (x.shape[1] - 1).bit_length()\n"
GATES: dict[str, tuple[Callable[[Array], Any], str]] = {
    "gate forgotten": (np.ones_like, "1.0"), "gate without silu": (lambda z: z, "gate"),
    "sigmoid of the gate for silu": (lambda z: 1 / (1 + np.exp(-z)), "1 / (1 + np.exp(-gate))"),
}  # fmt: skip


def _beta_times(call: ForwardCase, factor: float) -> Changes:
    return None if call.inputs.beta is None else {"beta": factor * wide(call.inputs.beta)}


def _beta_in_xhat(call: ForwardCase) -> Changes:
    """(xhat + beta)·gamma."""
    inputs = call.inputs
    if inputs.beta is None:
        return None
    return {"beta": wide(inputs.beta) * inputs.normalization.scale(1.0 if inputs.gamma is None else wide(inputs.gamma))}


def _offset(call: ForwardCase, factor: float) -> Changes:
    norm = call.inputs.normalization
    return {"normalization": norm._replace(offset=factor * norm.offset)} if norm.offset else None


def _padded(call: ForwardCase, mean: bool, variance: bool, counted: bool, size: int, **_: str) -> Changes:
    """The sums of a row over the size that it is filled up to; or with what fills it counted as so many zeros."""
    t, eps = call.terms, call.case.eps
    P = -(-t.N // size) * size if size else 1 << max(0, t.N - 1).bit_length()
    if t.N in (0, P) or (not call.centred and (counted or not variance)):
        return None
    of_row = row_sum(t.x) / (P if mean else t.N) if call.centred else np.zeros((t.M, 1))
    squares = row_sum((t.x - of_row) ** 2) + (P - t.N) * of_row**2 * counted
    return {"mean": of_row, "rstd": 1 / np.sqrt(squares / (P if variance else t.N) + eps)}


def _over(call: ForwardCase, which: str) -> Changes:
    """Statistics over other axes."""
    x, rows = wide(call.inputs.x), call.inputs.x.ndim - call.inputs.normalized
    axes = {"rows": tuple(range(rows)), "all": tuple(range(x.ndim)), "last": (x.ndim - 1,),
            "sample": tuple(range(1, x.ndim))}[which]  # fmt: skip
    is_same = {"rows": call.case.M < 2, "all": call.case.M < 2, "last": call.inputs.normalized < 2, "sample": rows < 2}
    if is_same[which] or call.is_cut:
        return None
    mean = x.mean(axes, keepdims=True) * call.centred
    return {"y": call.y(xhat=(x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + call.case.eps))}


def _rounded_xhat(call: ForwardCase, dtype: str) -> Changes:
    return {"y": call.y(xhat=narrowed(call.y(bare=True), dtype))}


def _rounded_product(call: ForwardCase, dtype: str) -> Changes:
    inputs = call.inputs
    if inputs.beta is None:
        return None
    return {"y": narrowed(call.y(inputs=replace(inputs, beta=None)), dtype) + wide(inputs.beta)}


def _residual_in_y(call: ForwardCase, instead: bool) -> Changes:
    """The residual added to y; instead of to x, which is normalized alone then."""
    residual, x = call.raw.residual, call.raw.x
    if residual is None:
        return None
    inputs = call.inputs
    if instead:
        inputs = replace(inputs, x=x, **(statistics_of(call, x, inputs.normalization) or {}))
    return {"y": call.y(inputs=inputs) + wide(residual)}


def _total(call: ForwardCase, alpha: float | None, of_residual: float | None, in_y: bool = True) -> Changes:
    """Another total, which is returned, and normalized with statistics of its own."""
    raw, right = call.raw, call.inputs.normalization.alpha
    if raw.residual is None or (right == 1 and None in (alpha, of_residual)):
        return None
    first, second = (right if factor is None else factor for factor in (alpha, of_residual))
    total = first * wide(raw.x) + second * wide(raw.residual)
    of_y = {"x": total, **(statistics_of(call, total, call.inputs.normalization) or {})} if in_y else {}
    return {"total": total, **of_y}


def _narrow_total(call: ForwardCase, dtype: str) -> Changes:
    if call.raw.residual is None:
        return None
    total = narrowed(reference.total(call.raw.x, call.raw.residual, normalization=call.inputs.normalization), dtype)
    return {"total": total, "x": total, **(statistics_of(call, total, call.inputs.normalization) or {})}


def _gated(call: ForwardCase, name: str) -> Changes:
    """Another function of the gate."""
    raw, norm = call.raw, call.inputs.normalization
    if raw.gate is None:
        return None
    factor = GATES[name][0](wide(raw.gate))
    if norm.norm_before_gate:
        return {"y": call.y(inputs=replace(call.inputs, gate=None)) * factor}
    x = wide(raw.x) * factor
    return {"x": x, **(statistics_of(call, x, norm) or {})}


def _root(call: ForwardCase, new: Callable[[Array, float, int], Array]) -> Changes:
    return {"rstd": new(call.variance, call.case.eps, call.case.N)}


def _row(
    code: str, name: str, sentence: str, change: Any, example: str = "", values: Any = (), norm: str = "layer_norm"
) -> Family:
    return Family(f"LN-F{code}", name, sentence, forward=change, example=example, values=values, norm=norm)


def _returned(call: ForwardCase, **of: Callable[[Array, Array], Array]) -> Changes:
    """Statistics that are another function of (rstd, mean) where they are returned alone."""
    if not call.centred and "mean" in of:
        return None
    rstd, mean = wide(call.inputs.rstd), wide(call.inputs.mean)
    return {RETURNED + name: function(rstd, mean) for name, function in of.items()}


FORWARDS = (
    _row("01", "bias forgotten", "y lacks beta: add it behind the scale.", (_beta_times, 0.0), "beta = 0.0"),
    _row("02", "bias added twice", "y has beta twice.", (_beta_times, 2.0), "beta = 2 * beta"),
    _row("03", "bias added before the scale", "beta is added to xhat, and multiplied by gamma with it: y is xhat·gamma + beta.",
         _beta_in_xhat, "beta = beta * gamma"),
    _row("04", "gamma forgotten in y", "y is xhat without gamma: multiply by it, and then add beta.",
         lambda call: None if call.inputs.gamma is None else {"gamma": None}, "gamma = np.ones_like(gamma)"),
    _row("05", "offset forgotten in y", "y is xhat·gamma: this norm multiplies by offset + gamma (1 + gamma, as Gemma's).",
         (_offset, 0.0), "gamma = gamma - 1", norm="gemma_rms_norm"),
    _row("06", "offset added twice in y", "the offset is added to gamma twice: where gamma is stored as offset + gamma, it is "
         "in it already.", (_offset, 2.0), "gamma = gamma + 1", norm="zero_centred_layer_norm"),
    _row("07", "row sums divided by the next {text}", "mean and variance are a row's sums over its size filled up to a "
         "{text}, as a block has it: divide by N.", (_padded, True, True, False), PADDED
         + "mean = x.sum(1, keepdims=True) / padded\nvariance = ((x - mean) ** 2).sum(1, keepdims=True) / padded", BESIDE),
    _row("08", "mean divided by the next {text}", "the mean is a row's sum over its size filled up to a {text}, as a block "
         "has it: divide by N.", (_padded, True, False, False), PADDED + "mean = x.sum(1, keepdims=True) / padded", BESIDE),
    _row("09", "variance divided by the next {text}", "the variance is a row's sum of squares over its size filled up to a "
         "{text}, as a block has it: divide by N.", (_padded, False, True, False), PADDED
         + "variance = ((x - mean) ** 2).sum(1, keepdims=True) / padded", BESIDE),
    _row("10", "padding counted in the variance, to the next {text}", "the variance counts mean² for each column that fills "
         "the row up to a {text}: mask x − mean, not x alone.", (_padded, False, False, True), PADDED
         + "variance = variance + (padded - x.shape[1]) / x.shape[1] * mean**2", BESIDE[1:]),
    _row("11", "padding counted in mean and variance, to the next {text}", "a row is filled up to a {text} with zeros, which "
         "mean and variance count as elements: mask them, and divide by N.", (_padded, True, True, True), PADDED
         + "mean = x.sum(1, keepdims=True) / padded\n"
         "variance = (((x - mean) ** 2).sum(1, keepdims=True) + (padded - x.shape[1]) * mean**2) / padded", BESIDE),
    *(_row(code, f"statistics over {what}", f"mean and variance go over {what}: each row has its own, over all normalized "
         "axes.",
           (_over, which), example) for code, what, which, example in (
        ("12", "the rows", "rows", "mean, variance = x.mean(0), x.var(0)"),
        ("13", "the whole tensor", "all", "mean, variance = x.mean(), x.var()"),
        ("14", "the last axis only", "last", "last = x.reshape(len(x), -1, normalized_shape[-1])\nmean, variance = (np.repeat("
         "one, normalized_shape[-1], 1) for one in (last.mean(2), last.var(2)))"),
        ("15", "all rows of a sample", "sample", "rows = len(x) // lead[0]\nmean, variance = (np.repeat("
         "one, rows)[:, None] for one in (x.reshape(lead[0], -1).mean(1), x.reshape(lead[0], -1).var(1)))"))),
    _row("16", "xhat rounded to {dtype} before gamma", "xhat is rounded to {dtype} before it is multiplied by gamma, as "
         "Llama's module does: multiply in float32, and round y once.", _rounded_xhat,
         'y = xhat.astype("{dtype}").astype(x.dtype) * gamma + beta', DTYPES),
    _row("17", "xhat·gamma rounded to {dtype} before the bias", "xhat·gamma is rounded to {dtype} before beta is added: add in "
         "float32, and round y once.", _rounded_product, 'y = (xhat * gamma).astype("{dtype}").astype(x.dtype) + beta', DTYPES),
    _row("18", "y rounded to {dtype}", "y is right to {dtype}, and declared wider: it is stored, or cast, in {dtype} on the "
         "way.",
         lambda call, dtype: {"y": narrowed(call.y(), dtype)}, 'y = y.astype("{dtype}")', DTYPES),
    _row("19", "residual added to y too", "the residual is added to x, as it should be, and to y once more.",
         (_residual_in_y, False), "y = y + residual", norm="add_layer_norm"),
    _row("20", "residual added to y alone", "x alone is normalized, and the residual added to y: add it before the norm.",
         (_residual_in_y, True), "y = (x * gamma / np.sqrt((x**2).mean(1, keepdims=True) + eps)) + residual",
         norm="add_rms_norm"),
    _row("21", "total without the residual", "x alone is normalized and returned as the total: add the residual before.",
         (_total, None, 0.0), "total = alpha * x", norm="deep_norm"),
    _row("22", "total without alpha", "the total is x + residual: DeepNorm's is alpha·x + residual.", (_total, 1.0, 1.0),
         "total = x + residual", norm="deep_norm"),
    _row("23", "total with alpha on the residual", "the residual is multiplied by alpha: the total is alpha·x + residual.",
         (_total, 1.0, None), "total = x + alpha * residual", norm="deep_norm"),
    _row("24", "x returned for the total", "y is right, and what is returned as the total is x: return alpha·x + residual.",
         lambda call: None if call.raw.residual is None else {"total": wide(call.raw.x)}, "y, total = y, x",
         norm="add_rms_norm"),
    _row("25", "residual added in {dtype}", "alpha·x + residual is rounded to {dtype} before it is normalized and returned: "
         "add in float32.", _narrow_total, 'total = (x + residual).astype("{dtype}").astype(x.dtype)', DTYPES,
         "add_layer_norm"),
    *(_row(code, name, f"{what}: the factor is silu(gate) = gate·sigmoid(gate).", (_gated, name), f"factor = {GATES[name][1]}",
           norm="gated_rms_norm") for code, name, what in (
        ("26", "gate forgotten", "the gate is no factor"),
        ("27", "gate without silu", "the gate itself is the factor"),
        ("28", "sigmoid of the gate for silu", "sigmoid(gate) is the factor"))),
    _row("29", "variance over N - 1 and eps outside the root", "rstd is 1/(√variance + eps) with the variance over N − 1, as "
         "with torch's std: say correction=0, and add eps under the root.",
         (_root, lambda variance, eps, N: 1 / (np.sqrt(np.maximum(variance, 0) * N / max(N - 1, 1)) + eps)),
         "rstd = 1 / (x.std(1, ddof=1, keepdims=True) + eps)"),
    _row("30", "square of rstd in y", "1/(variance + eps) is the factor: the root is missing.",
         (_root, lambda variance, eps, N: 1 / (variance + eps)), "rstd = 1 / (variance + eps)"),
    _row("31", "√(variance + eps) for its reciprocal", "x − mean is multiplied by √(variance + eps): divide by it.",
         (_root, lambda variance, eps, N: np.sqrt(variance + eps)), "rstd = np.sqrt(variance + eps)"),
    _row("32", "rstd of the sum of squares", "rstd is taken of the sum of squares over the row: divide it by N.",
         (_root, lambda variance, eps, N: 1 / np.sqrt(N * variance + eps)), "rstd = 1 / np.sqrt(variance * x.shape[1] + eps)"),
    _row("33", "variance returned for rstd", "y is right, and the variance is returned where rstd is expected.",
         lambda call: {RETURNED + "rstd": call.variance}, "y, rstd = y, variance"),
    _row("34", "√(variance + eps) returned for rstd", "y is right, and √(variance + eps) is returned: rstd is its reciprocal.",
         partial(_returned, rstd=lambda rstd, mean: 1 / rstd), "y, rstd = y, np.sqrt(variance + eps)"),
    _row("35", "mean and rstd returned in each other's place", "y is right; the mean is returned as rstd, and rstd as the "
         "mean.",
         partial(_returned, mean=lambda rstd, mean: rstd, rstd=lambda rstd, mean: mean), "y, mean, rstd = y, rstd, mean"),
)  # fmt: skip
