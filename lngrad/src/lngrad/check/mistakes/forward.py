"""Mistakes of a forward: the last part of the table. Those of statistics, gamma and x that a backward can have stand with it.

A change returns what of the forward's inputs and statistics is another, or results by name; see `ForwardCase`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
    axes = {"rows": tuple(range(rows)), "all": tuple(range(x.ndim)), "last": (x.ndim - 1,)}[which]  # fmt: skip
    is_same = {"rows": call.case.M < 2, "all": call.case.M < 2, "last": call.inputs.normalized < 2}
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


def _residual_in_y(call: ForwardCase) -> Changes:
    """The residual added to y alone."""
    x, inputs = call.raw.x, call.inputs
    if call.raw.residual is None:
        return None
    own = statistics_of(call, x, inputs.normalization) or {}
    return {"y": call.y(inputs=replace(inputs, x=x, **own)) + wide(call.raw.residual)}


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


def _root(call: ForwardCase, new: Callable[[Array, float, int], Array]) -> Changes:
    return {"rstd": new(call.variance, call.case.eps, call.case.N)}


def _row(
    code: str, name: str, sentence: str, change: Any, example: str = "", values: Any = (), norm: str = "layer_norm"
) -> Family:
    return Family(f"LN-F{code}", name, sentence, forward=change, example=example, values=values, norm=norm)


FORWARDS = (
    _row("01", "bias forgotten", "y lacks beta: add it behind the scale.", (_beta_times, 0.0), "beta = 0.0"),
    _row("02", "bias added before the scale", "beta is added to xhat, and multiplied by gamma with it: y is xhat·gamma + beta.",
         _beta_in_xhat, "beta = beta * gamma"),
    _row("03", "gamma forgotten in y", "y is xhat without gamma: multiply by it, and then add beta.",
         lambda call: None if call.inputs.gamma is None else {"gamma": None}, "gamma = np.ones_like(gamma)"),
    _row("04", "offset forgotten in y", "y is xhat·gamma: this norm multiplies by offset + gamma (1 + gamma, as Gemma's).",
         (_offset, 0.0), "gamma = gamma - 1", norm="gemma_rms_norm"),
    _row("05", "row sums divided by the next {text}", "mean and variance are a row's sums over its size filled up to a "
         "{text}, as a block has it: divide by N.", (_padded, True, True, False), PADDED
         + "mean = x.sum(1, keepdims=True) / padded\nvariance = ((x - mean) ** 2).sum(1, keepdims=True) / padded", BESIDE),
    _row("06", "mean divided by the next {text}", "the mean is a row's sum over its size filled up to a {text}, as a block "
         "has it: divide by N.", (_padded, True, False, False), PADDED + "mean = x.sum(1, keepdims=True) / padded", BESIDE),
    _row("07", "variance divided by the next {text}", "the variance is a row's sum of squares over its size filled up to a "
         "{text}, as a block has it: divide by N.", (_padded, False, True, False), PADDED
         + "variance = ((x - mean) ** 2).sum(1, keepdims=True) / padded", BESIDE),
    _row("08", "padding counted in the variance, to the next {text}", "the variance counts mean² for each column that fills "
         "the row up to a {text}: mask x − mean, not x alone.", (_padded, False, False, True), PADDED
         + "variance = variance + (padded - x.shape[1]) / x.shape[1] * mean**2", BESIDE[1:]),
    _row("09", "padding counted in mean and variance, to the next {text}", "a row is filled up to a {text} with zeros, which "
         "mean and variance count as elements: mask them, and divide by N.", (_padded, True, True, True), PADDED
         + "mean = x.sum(1, keepdims=True) / padded\n"
         "variance = (((x - mean) ** 2).sum(1, keepdims=True) + (padded - x.shape[1]) * mean**2) / padded", BESIDE),
    *(_row(code, f"statistics over {what}", f"mean and variance go over {what}: each row has its own, over all normalized "
         "axes.",
           (_over, which), example) for code, what, which, example in (
        ("10", "the rows", "rows", "mean, variance = x.mean(0), x.var(0)"),
        ("11", "the whole tensor", "all", "mean, variance = x.mean(), x.var()"),
        ("12", "the last axis only", "last", "last = x.reshape(len(x), -1, normalized_shape[-1])\nmean, variance = (np.repeat("
         "one, normalized_shape[-1], 1) for one in (last.mean(2), last.var(2)))"))),
    _row("13", "xhat rounded to {dtype} before gamma", "xhat is rounded to {dtype} before it is multiplied by gamma, as "
         "Llama's module does: multiply in float32, and round y once.", _rounded_xhat,
         'y = xhat.astype("{dtype}").astype(x.dtype) * gamma + beta', DTYPES),
    _row("14", "xhat·gamma rounded to {dtype} before the bias", "xhat·gamma is rounded to {dtype} before beta is added: add in "
         "float32, and round y once.", _rounded_product, 'y = (xhat * gamma).astype("{dtype}").astype(x.dtype) + beta', DTYPES),
    _row("15", "y rounded to {dtype}", "y is right to {dtype}, and declared wider: it is stored, or cast, in {dtype} on the "
         "way.",
         lambda call, dtype: {"y": narrowed(call.y(), dtype)}, 'y = y.astype("{dtype}")', DTYPES),
    _row("16", "residual added to y alone", "x alone is normalized, and the residual added to y: add it before the norm.",
         _residual_in_y, "y = (x * gamma / np.sqrt((x**2).mean(1, keepdims=True) + eps)) + residual",
         norm="add_rms_norm"),
    _row("17", "total without the residual", "x alone is normalized and returned as the total: add the residual before.",
         (_total, None, 0.0), "total = alpha * x", norm="deep_norm"),
    _row("18", "x returned for the total", "y is right, and what is returned as the total is x: return alpha·x + residual.",
         lambda call: None if call.raw.residual is None else {"total": wide(call.raw.x)}, "y, total = y, x",
         norm="add_rms_norm"),
    _row("19", "residual added in {dtype}", "alpha·x + residual is rounded to {dtype} before it is normalized and returned: "
         "add in float32.", _narrow_total, 'total = (x + residual).astype("{dtype}").astype(x.dtype)', DTYPES,
         "add_layer_norm"),
    _row("20", "variance over N - 1 and eps outside the root", "rstd is 1/(√variance + eps) with the variance over N − 1, as "
         "with torch's std: say correction=0, and add eps under the root.",
         (_root, lambda variance, eps, N: 1 / (np.sqrt(np.maximum(variance, 0) * N / max(N - 1, 1)) + eps)),
         "rstd = 1 / (x.std(1, ddof=1, keepdims=True) + eps)"),
    _row("21", "square of rstd in y", "1/(variance + eps) is the factor: the root is missing.",
         (_root, lambda variance, eps, N: 1 / (variance + eps)), "rstd = 1 / (variance + eps)"),
    _row("22", "rstd of the sum of squares", "rstd is taken of the sum of squares over the row: divide it by N.",
         (_root, lambda variance, eps, N: 1 / np.sqrt(N * variance + eps)), "rstd = 1 / np.sqrt(variance * x.shape[1] + eps)"),
    _row("23", "variance returned for rstd", "y is right, and the variance is returned where rstd is expected.",
         lambda call: {RETURNED + "rstd": call.variance}, "y, rstd = y, variance"),
)  # fmt: skip
