"""Calls of the core with dense CPU tensors, in as few steps as Python allows: what a call needs is looked up by its facts.

Below the dispatcher's autograd keys. A small call is prepared, and runs on addresses. For any other, statistics and
parameters reach the core contiguous and in the accumulator's dtype (torch converts faster than the core would). Results
are torch's own memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import torch
from lngrad.backend.numba_cpu.prepared import prepare
from lngrad.backend.numba_cpu.workers import lent_threads
from lngrad.dtypes import ACCUMULATORS, torch_dtype
from lngrad.plan import Plan, make_plan
from lngrad.problem import Forward, Grads, Problem
from lngrad.torch.memory import empty
from lngrad.torch.threads import parallel_for, thread_count

__all__ = ["accumulator_of", "backward_calls", "forward_calls"]

_MOST = 512  # calls that are remembered; each keeps a little memory of its own

_PLAIN = torch.contiguous_format  # else the stride of a dimension of one element would be x's
_like = torch.empty_like  # 0.7 µs less than torch.empty with a shape


def _contiguous(tensor: Any) -> Any:
    return None if tensor is None else tensor.contiguous()


def _ready(tensor: Any, accumulator: Any) -> Any:
    if tensor is None or (tensor.dtype is accumulator and tensor.is_contiguous()):
        return tensor
    return tensor.to(accumulator).contiguous()


def _remember(calls: dict[Any, Any], key: Any, call: Any) -> Any:
    if len(calls) >= _MOST:
        calls.clear()
    calls[key] = call
    return call


_ACCUMULATORS = {torch_dtype(name): torch_dtype(accumulator) for name, accumulator in ACCUMULATORS.items()}


def accumulator_of(x: Any) -> Any:
    """The dtype in which sums over x's elements are kept, and statistics."""
    return _ACCUMULATORS.get(x.dtype, torch.float32)


def _plan(problem: Problem) -> Plan:
    return make_plan(problem, None, thread_count())


def _run(problem: Problem, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
    plan = _plan(problem)
    with lent_threads(parallel_for):
        plan.run(plan, inputs, outputs, np.empty(plan.workspace_bytes, np.uint8))


# --- The calls ------------------------------------------------------------------------------------------------------


def forward_calls(check: Callable[..., Any]) -> Callable[..., tuple[Any, Any, Any]]:
    """A function (x, shape, gamma, beta, eps) -> (y, mean, rstd) for CPU tensors.

    Args:
        check: (x, gamma, beta) -> the dtype in which mean and rstd are wanted. Asked once for calls with equal facts; it
            may raise to refuse them.

    Returns:
        The function. x: (*A, *R), any strides; shape: R; gamma, beta: (*R) or None. y: in x's dtype; mean, rstd
        (*A, 1, …, 1). All contiguous. It raises what check raises, and ShapeError and DtypeError of the core.
    """
    calls: dict[Any, Any] = {}

    def forward(x: Any, shape: Any, gamma: Any, beta: Any, eps: float) -> tuple[Any, Any, Any]:
        key = (
            x.shape, x.dtype, x.is_contiguous() or x.stride(), tuple(shape),
            gamma is None or (gamma.shape, gamma.dtype), beta is None or (beta.shape, beta.dtype),
        )  # fmt: skip
        run, statistics, problem = calls.get(key) or new(key, x, shape, gamma, beta)
        if run is None:
            return _forward_once(problem, x, gamma, beta, eps, statistics)
        if not ((gamma is None or gamma.is_contiguous()) and (beta is None or beta.is_contiguous())):
            gamma, beta = _contiguous(gamma), _contiguous(beta)
        y, mean, rstd = _like(x, memory_format=_PLAIN), _like(statistics), _like(statistics)
        run(
            x.data_ptr(), y.data_ptr(), mean.data_ptr(), rstd.data_ptr(),
            0 if gamma is None else gamma.data_ptr(), 0 if beta is None else beta.data_ptr(), eps,
        )  # fmt: skip
        return y, mean, rstd

    def new(key: Any, x: Any, shape: Any, gamma: Any, beta: Any) -> Any:
        dtype = check(x, gamma, beta)
        checked, _ = Problem.forward(x, gamma, beta, tuple(shape))  # the caller's own arguments, for the errors
        statistics = torch.empty((*checked.lead, *(1,) * len(shape)), dtype=dtype, device="cpu")
        out = Forward(None, statistics, torch.empty_like(statistics))
        bound, _ = Problem.forward(x, _contiguous(gamma), _contiguous(beta), tuple(shape), out)
        run = prepare(_plan(bound)) if x.is_contiguous() else None
        problem, _ = Problem.forward(x, _ready(gamma, accumulator_of(x)), _ready(beta, accumulator_of(x)), tuple(shape))
        return _remember(calls, key, (run, statistics, problem))

    return forward


def _forward_once(problem: Problem, x: Any, gamma: Any, beta: Any, eps: float, statistics: Any) -> tuple[Any, Any, Any]:
    """A forward that is not prepared. mean and rstd come as `statistics` has it, in its dtype."""
    accumulator = accumulator_of(x)
    y = empty(x.shape, x.dtype)
    mean, rstd = _like(statistics, dtype=accumulator), _like(statistics, dtype=accumulator)
    _run(problem, (x, _ready(gamma, accumulator), _ready(beta, accumulator), eps), (y, mean, rstd))
    return (y, mean, rstd) if statistics.dtype is accumulator else (y, mean.to(statistics), rstd.to(statistics))


def backward_calls(check: Callable[..., Any]) -> Callable[..., tuple[Any, Any, Any]]:
    """A function (dy, x, shape, mean, rstd, gamma, beta, mask) -> (dx, dgamma, dbeta) for CPU tensors.

    Args:
        check: (x, mean, rstd, gamma, beta, mask) -> the dtype in which dgamma and dbeta are wanted. Asked once for calls
            with equal facts; it may raise to refuse them.

    Returns:
        The function. dy, x: (*A, *R), any strides; shape: R; mean, rstd: one element per row; gamma, beta: (*R) or None, and
        of beta the dtype alone is looked at; mask: which results are wanted, the others are None. All contiguous. It raises
        what check raises, and ShapeError and DtypeError of the core.
    """
    calls: dict[Any, Any] = {}

    def backward(
        dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, gamma: Any, beta: Any, mask: Any
    ) -> tuple[Any, Any, Any]:
        key = (
            x.shape, x.dtype, x.is_contiguous() or x.stride(), dy.shape, dy.dtype, dy.is_contiguous() or dy.stride(),
            mean.shape, mean.dtype, rstd.shape, rstd.dtype, gamma is None or (gamma.shape, gamma.dtype),
            beta is None or beta.dtype, tuple(shape), tuple(mask),
        )  # fmt: skip
        run, parameter, problem = calls.get(key) or new(key, dy, x, shape, mean, rstd, gamma, beta, mask)
        wants_dx, wants_dgamma, wants_dbeta = mask
        dgamma = _like(parameter) if wants_dgamma else None
        dbeta = _like(parameter) if wants_dbeta else None
        if run is None:
            mean, rstd, gamma = (_ready(tensor, accumulator_of(x)) for tensor in (mean, rstd, gamma))
            dx = empty(x.shape, x.dtype) if wants_dx else None
            _run(problem, (dy, x, mean, rstd, gamma), (dx, dgamma, dbeta))
            return dx, dgamma, dbeta
        if not (mean.is_contiguous() and rstd.is_contiguous() and (gamma is None or gamma.is_contiguous())):
            mean, rstd, gamma = _contiguous(mean), _contiguous(rstd), _contiguous(gamma)
        dx = _like(x, memory_format=_PLAIN) if wants_dx else None
        run(
            dy.data_ptr(), x.data_ptr(), 0 if dx is None else dx.data_ptr(), mean.data_ptr(), rstd.data_ptr(),
            0 if gamma is None else gamma.data_ptr(),
            0 if dgamma is None else dgamma.data_ptr(), 0 if dbeta is None else dbeta.data_ptr(),
        )  # fmt: skip
        return dx, dgamma, dbeta

    def new(key: Any, dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, gamma: Any, beta: Any, mask: Any) -> Any:
        dtype = check(x, mean, rstd, gamma, beta, mask)
        parameter = torch.empty(tuple(shape), dtype=dtype, device="cpu")
        Problem.backward(dy, x, mean, rstd, gamma, tuple(shape), mask)  # the caller's own arguments, for the errors
        out = Grads(None, parameter, torch.empty_like(parameter))
        plain = _contiguous(mean), _contiguous(rstd), _contiguous(gamma)
        bound, _ = Problem.backward(dy, x, *plain, tuple(shape), mask, out)
        run = prepare(_plan(bound)) if x.is_contiguous() else None
        accumulator = accumulator_of(x)
        ready = _ready(mean, accumulator), _ready(rstd, accumulator), _ready(gamma, accumulator)
        problem, _ = Problem.backward(dy, x, *ready, tuple(shape), mask, out)
        return _remember(calls, key, (run, parameter, problem))

    return backward
