"""CPU backend without a compiler: NumPy, one thread, bounded memory. Slower, and there wherever NumPy is.

Same numerics as the compiled kernels, other bits: row sums are NumPy's pairwise ones. Column sums run over chunks of
CHUNK rows and the binary tree of their index here too, so their error grows with log M, not M.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lngrad.core.column_tree import CHUNK, ColumnTree
from lngrad.core.error_bound import COMPENSATED_FROM
from lngrad.core.plan import Plan, Serves, run_empty
from lngrad.core.problem import (
    ADD_BACKWARD,
    ADD_FORWARD,
    ADD_RMS_BACKWARD,
    ADD_RMS_FORWARD,
    BACKWARD,
    FORWARD,
    GATED_BACKWARD,
    GATED_FORWARD,
    RMS_BACKWARD,
    RMS_FORWARD,
    SLICE_BACKWARD,
    Problem,
)
from lngrad.core.reference import gate_factors
from lngrad.support.addresses import as_numpy
from lngrad.support.dtypes import numpy_dtype, rounded

Array = np.ndarray[Any, Any]

# By the accumulator: a rstd above which squares may have vanished, and one below which x minus the mean may overflow.
_LARGEST_RSTD, _FAR_RSTD = {"float32": 2.0**50, "float64": 2.0**450}, {"float32": 2.0**-96, "float64": 2.0**-960}

SERVES = Serves(
    frozenset(
        (FORWARD, BACKWARD, ADD_FORWARD, ADD_BACKWARD, RMS_FORWARD, RMS_BACKWARD, ADD_RMS_FORWARD, ADD_RMS_BACKWARD,
         GATED_FORWARD, GATED_BACKWARD, SLICE_BACKWARD)
    ),
    switches=frozenset(("centred", "offset", "alpha", "modulated", "norm_before_gate")),
)  # fmt: skip


def plan(problem: Problem, threads: int) -> Plan:
    """One thread, whatever is allowed; temporaries of one chunk of rows are NumPy's own."""
    run = {"forward": _run_forward, "backward": _run_backward}[problem.operator.direction]
    return Plan(problem, "numpy_cpu", 0, None, run)


def _chunks(problem: Problem) -> list[tuple[int, int, int]]:
    """Each chunk's sample, first row and the row behind its last."""
    rows = problem.M // max(1, problem.samples)
    starts = [(sample, start) for sample in range(problem.samples) for start in range(0, rows, CHUNK)]
    return [(sample, sample * rows + start, sample * rows + min(rows, start + CHUNK)) for sample, start in starts]


def _rows(array: Any, problem: Problem, start: int, stop: int) -> Array:
    """Rows start … stop-1 in the accumulator's dtype, (rows, N); copies no more than these rows."""
    rows: Array = as_numpy(array)[_lead(problem, start, stop)].reshape(-1, problem.N)
    return rows.astype(problem.accumulator, copy=False)


def _put_rows(array: Array, problem: Problem, start: int, stop: int, rows: Array) -> None:
    rows = rounded(rows, array.dtype)
    array[_lead(problem, start, stop)] = rows.reshape((*rows.shape[: bool(problem.lead)], *problem.normalized_shape))


def _lead(problem: Problem, start: int, stop: int) -> Any:
    return np.unravel_index(np.arange(start, stop), problem.lead) if problem.lead else ...


def _vector(array: Any, problem: Problem, elements: int, default: float = 0) -> Array:
    if array is None:
        return np.full(elements, default, problem.accumulator)
    return as_numpy(array).reshape(elements).astype(problem.accumulator)


def _parameters(array: Any, problem: Problem, default: float) -> Array:
    """gamma or beta of each sample, (samples, N)."""
    return _vector(array, problem, problem.samples * problem.N, default).reshape(problem.samples, problem.N)


def _factors(arrays: dict[str, Any], problem: Problem, start: int, stop: int) -> tuple[Array | None, ...]:
    """The factors of x and y, one being silu(gate), and its derivative, in the accumulator's dtype; None without a gate."""
    if "gate" not in arrays:
        return None, None, None
    of_x, of_y, (sigmoid, rest) = gate_factors(_rows(arrays["gate"], problem, start, stop), problem.normalization)
    return tuple(factor.astype(problem.accumulator) for factor in (of_x, of_y, sigmoid * (1 + rest)))


def _times(rows: Array, factor: Array | None) -> Array:
    return rows if factor is None else rows * factor


def _named(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments by name, and results that are wanted as NumPy arrays."""
    operator = plan.problem.operator
    arrays = dict(zip((*operator.inputs, *operator.numbers), inputs, strict=True))
    results = zip(operator.outputs, outputs, strict=True)
    return arrays, {name: as_numpy(output) for name, output in results if output is not None}


def _moments(rows: Array, centred: bool) -> tuple[Array, Any, Array]:
    """Rows less their mean, the mean, 0 where they are not centred, and the mean of the squares."""
    mean: Any = 0
    if centred:
        centre = rows.mean(1, keepdims=True)
        rows = rows - centre
        shift = rows.mean(1, keepdims=True)
        rows -= shift
        mean = centre + shift
    return rows, mean, np.square(rows).mean(1, keepdims=True)


def _measured(rows: Array, centred: bool, eps: float) -> tuple[Array, Any, Array]:
    """xhat, mean and rstd. A row whose squares overflow or vanish is divided by a power of two first."""
    less_mean, mean, variance = _moments(rows, centred)
    rstd = 1 / np.sqrt(variance + rows.dtype.type(eps))
    xhat = less_mean * rstd
    extreme = ~((rstd > 0) & (rstd < _LARGEST_RSTD[rows.dtype.name]))[:, 0]
    if extreme.any():
        exponents = np.frexp(np.abs(rows[extreme]).max(1, keepdims=True, initial=math.sqrt(eps)))[1]
        less_mean, means, variance = _moments(np.ldexp(rows[extreme], -exponents), centred)
        no_spread = variance == 0
        of_scaled = 1 / np.sqrt(variance + np.where(no_spread, eps, np.ldexp(np.float64(eps), -2 * exponents)))
        rstd[extreme] = np.where(no_spread, of_scaled, np.ldexp(of_scaled, -exponents))
        xhat[extreme] = less_mean * of_scaled
        if centred:
            mean[extreme] = np.ldexp(means, exponents)
    return xhat, mean, rstd


@np.errstate(all="ignore")  # infinities and NaNs are results: docs/precision.md
def _run_forward(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    problem, normalization = plan.problem, plan.problem.normalization
    arrays, results = _named(plan, inputs, outputs)
    if problem.N == 0:
        run_empty(plan, inputs, outputs, workspace)
        return
    scale = normalization.scale(_parameters(arrays["gamma"], problem, 1))
    beta = _parameters(arrays.get("beta"), problem, 0)
    eps, alpha = float(arrays["eps"]), numpy_dtype(problem.accumulator).type(normalization.alpha)
    statistics = {name: np.empty(problem.M, problem.accumulator) for name in ("mean", "rstd") if name in results}
    for sample, start, stop in _chunks(problem):
        of_x, of_y, _ = _factors(arrays, problem, start, stop)
        rows = _times(_rows(arrays["x"], problem, start, stop), of_x)
        if "residual" in arrays:
            total = rounded(alpha * rows + _rows(arrays["residual"], problem, start, stop), results["total"].dtype)
            _put_rows(results["total"], problem, start, stop, total)
            rows = total.astype(problem.accumulator, copy=False)
        xhat, mean, rstd = _measured(rows, normalization.centred, eps)
        if normalization.centred:
            statistics["mean"][start:stop] = mean[:, 0]
        statistics["rstd"][start:stop] = rstd[:, 0]
        _put_rows(results["y"], problem, start, stop, _times(xhat * scale[sample] + beta[sample], of_y))
    for name, values in statistics.items():
        results[name][...] = values.reshape(results[name].shape)


@np.errstate(all="ignore")
def _run_backward(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    problem, normalization = plan.problem, plan.problem.normalization
    arrays, results = _named(plan, inputs, outputs)
    mean, rstd, lost = (_vector(arrays.get(name), problem, problem.M)[:, None] for name in ("mean", "rstd", "lost"))
    scale = normalization.scale(_parameters(arrays["gamma"], problem, 1))
    sums = [name for name in ("dgamma", "dbeta") if name in results]
    trees = [ColumnTree() for _ in range(problem.samples)]
    for sample, start, stop in _chunks(problem) if problem.N else []:
        own_dy, x = (_rows(arrays[name], problem, start, stop) for name in ("dy", "x"))
        of_x, of_y, slope = _factors(arrays, problem, start, stop)
        dy, h, m, s = _times(own_dy, of_y), _times(x, of_x), mean[start:stop], rstd[start:stop]
        far = (s > 0) & (s < _FAR_RSTD[problem.accumulator])
        if normalization.centred and far.any():
            factor = np.where(far, x.dtype.type(2.0**-34), x.dtype.type(1))
            h, m, s = h * factor, m * factor, s / factor
        centred = h - m
        if problem.completes_mean and normalization.centred:
            rest = centred.mean(1, keepdims=True)
            own = np.abs(rest) < np.abs(m) * np.finfo(rest.dtype).eps
            shows = ~(np.square(m * s) < COMPENSATED_FROM**2)
            centred -= np.where(own & shows, rest, 0)
        xhat = centred * s + lost[start:stop]
        if sums:
            trees[sample].add(np.stack([(dy * xhat if name == "dgamma" else dy).sum(0) for name in sums]))
        if "dx" in results or "dgate" in results:
            dxhat = dy * scale[sample]
            less_mean = dxhat - dxhat.mean(1, keepdims=True) if normalization.centred else dxhat
            dx = (less_mean - xhat * (dxhat * xhat).mean(1, keepdims=True)) * rstd[start:stop]
            if "dtotal" in arrays:
                dx += _rows(arrays["dtotal"], problem, start, stop)
            if "dx" in results:
                _put_rows(results["dx"], problem, start, stop, _times(dx, of_x))
            if "dgate" in results:
                of_silu = own_dy * xhat * scale[sample] if normalization.norm_before_gate else dx * x
                _put_rows(results["dgate"], problem, start, stop, _times(of_silu, slope))
    totals = [tree.total(np.zeros((len(sums), problem.N), problem.accumulator)) for tree in trees]
    for k, name in enumerate(sums):
        total = np.asarray([of_sample[k] for of_sample in totals], problem.accumulator)
        results[name][...] = rounded(total.reshape(results[name].shape), results[name].dtype)
