"""CPU backend without a compiler: NumPy, one thread, bounded memory. Slower, and there wherever NumPy is.

Same numerics as the compiled kernels, other bits: row sums are NumPy's pairwise ones. Column sums run over chunks of
CHUNK rows and the binary tree of their index here too, so their error grows with log M, not M.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lngrad.core.arrays import as_numpy
from lngrad.core.column_tree import CHUNK, ColumnTree
from lngrad.core.dtypes import numpy_dtype, rounded
from lngrad.core.plan import Plan
from lngrad.core.problem import Problem

Array = np.ndarray[Any, Any]


def plan(problem: Problem, threads: int) -> Plan:
    """One thread, whatever is allowed; temporaries of one chunk of rows are NumPy's own."""
    run = _run_forward if problem.op == "forward" else _run_backward
    return Plan(problem, "numpy_cpu", 0, None, run)


def _chunks(problem: Problem) -> list[tuple[int, int]]:
    return [(start, min(problem.M, start + CHUNK)) for start in range(0, problem.M, CHUNK)]


def _rows(array: Array, problem: Problem, start: int, stop: int) -> Array:
    """Rows start … stop-1 in the accumulator's dtype, (rows, N); copies no more than these rows."""
    lead = np.unravel_index(np.arange(start, stop), problem.lead) if problem.lead else ()
    return array[lead].reshape(-1, problem.N).astype(problem.accumulator, copy=False)


def _put_rows(array: Array, problem: Problem, start: int, stop: int, rows: Array) -> None:
    lead = np.unravel_index(np.arange(start, stop), problem.lead) if problem.lead else ()
    array[lead if lead else ...] = rounded(rows, array.dtype).reshape(
        (stop - start, *problem.normalized_shape) if lead else problem.normalized_shape
    )


def _vector(array: Any, problem: Problem, elements: int, default: float) -> Array:
    if array is None:
        return np.full(elements, default, problem.accumulator)
    return as_numpy(array).reshape(elements).astype(problem.accumulator)


@np.errstate(all="ignore")  # infinities and NaNs are results: docs/precision.md
def _run_forward(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    problem = plan.problem
    x, gamma, beta, eps = inputs
    gamma, beta = _vector(gamma, problem, problem.N, 1), _vector(beta, problem, problem.N, 0)
    y, mean, rstd = (as_numpy(output) for output in outputs)
    if problem.N == 0:
        mean[...], rstd[...] = 0, math.nan
        return
    means = np.empty(problem.M, problem.accumulator)
    rstds = np.empty(problem.M, problem.accumulator)
    for start, stop in _chunks(problem):
        rows = _rows(as_numpy(x), problem, start, stop)
        centre = rows.mean(1, keepdims=True)
        rows = rows - centre
        shift = rows.mean(1, keepdims=True)
        rows -= shift
        rstd_rows = 1 / np.sqrt(np.square(rows).mean(1, keepdims=True) + numpy_dtype(problem.accumulator).type(eps))
        means[start:stop], rstds[start:stop] = (centre + shift)[:, 0], rstd_rows[:, 0]
        _put_rows(y, problem, start, stop, rows * rstd_rows * gamma + beta)
    mean[...] = means.reshape(mean.shape)
    rstd[...] = rstds.reshape(rstd.shape)


@np.errstate(all="ignore")
def _run_backward(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any) -> None:
    problem = plan.problem
    dy, x, mean, rstd, gamma = inputs
    dx, dgamma, dbeta = (None if output is None else as_numpy(output) for output in outputs)
    mean, rstd = _vector(mean, problem, problem.M, 0)[:, None], _vector(rstd, problem, problem.M, 0)[:, None]
    gamma = _vector(gamma, problem, problem.N, 1)
    tree = ColumnTree()
    for start, stop in _chunks(problem) if problem.N else []:
        dy_rows = _rows(as_numpy(dy), problem, start, stop)
        xhat = (_rows(as_numpy(x), problem, start, stop) - mean[start:stop]) * rstd[start:stop]
        if dgamma is not None or dbeta is not None:
            tree.add(np.stack([(dy_rows * xhat).sum(0), dy_rows.sum(0)]))
        if dx is not None:
            dxhat = dy_rows * gamma
            centred = dxhat - dxhat.mean(1, keepdims=True)
            result = (centred - xhat * (dxhat * xhat).mean(1, keepdims=True)) * rstd[start:stop]
            _put_rows(dx, problem, start, stop, result)
    for output, total in zip((dgamma, dbeta), tree.total(np.zeros((2, problem.N), problem.accumulator)), strict=True):
        if output is not None:
            output[...] = rounded(total.reshape(output.shape), output.dtype)
