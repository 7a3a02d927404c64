"""Calls of the core with dense CPU tensors, in as few steps as Python allows: what a call needs is looked up by its facts.

Below the dispatcher's autograd keys. A plan runs on addresses; results are torch's own memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from lngrad.core.arrays import bytes_spanned, has_memory, require_memory
from lngrad.core.plan import Plan, RunOnAddresses, make_plan
from lngrad.core.problem import Forward, Grads, Normalization, Operator, Problem, describe
from lngrad.core.threads import torch_parallel_for, torch_thread_count, use_parallel_for
from lngrad.errors import LngradError
from lngrad.support.bounded_cache import BoundedCache
from lngrad.support.dtypes import ACCUMULATORS, torch_dtype
from lngrad.torch.memory import empty
from lngrad.typing import Mask, Shape, Tensor

_MAX_CALLS = 512  # calls that are remembered; each keeps a little memory of its own
SMALL_ELEMENTS = 1 << 15  # below, a call is one core's, and its results are small blocks of torch's allocator

_PLAIN = torch.contiguous_format  # else the stride of a dimension of one element would be x's
_like = torch.empty_like  # 0.7 µs less than torch.empty with a shape
_ACCUMULATORS = {torch_dtype(name): torch_dtype(accumulator) for name, accumulator in ACCUMULATORS.items()}


def accumulator_of(x: Tensor, *parameters: Tensor | None) -> Any:
    """The torch dtype in which a call with this x and these parameters is computed, statistics and sums too."""
    wide = any(one is not None and one.dtype is torch.float64 for one in parameters)
    return torch.float64 if wide else _ACCUMULATORS.get(x.dtype, torch.float32)


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


# Of every argument its name and the bytes from its first element to behind its last.
_Spans = tuple[tuple[str, int], ...]


def _spans(names: tuple[str, ...], tensors: tuple[Tensor | None, ...]) -> _Spans:
    return tuple(
        (name, 0 if tensor is None else bytes_spanned(tensor)) for name, tensor in zip(names, tensors, strict=True)
    )


def _require_storage(spans: _Spans, tensors: tuple[Tensor | None, ...]) -> None:
    """Refuse tensors whose storage was freed or made smaller, as torch lets anybody do."""
    for (name, span), tensor in zip(spans, tensors, strict=True):
        if not has_memory(tensor, span):
            require_memory(name, tensor)


def plan_forward(
    check: Callable[..., Any], x: Tensor, shape: Shape, gamma: Tensor | None, beta: Tensor | None
) -> tuple[Plan, Tensor]:
    """The plan of a forward whose gamma and beta are contiguous, and a tensor like mean and rstd."""
    dtype = check(x, gamma, beta)
    checked, _ = Problem.forward(x, gamma, beta, tuple(shape))  # the caller's own arguments, for the errors
    statistics = torch.empty((*checked.lead, *(1,) * len(shape)), dtype=dtype, device="cpu")
    out = Forward(None, statistics, torch.empty_like(statistics))
    problem, _ = Problem.forward(x, _contiguous(gamma), _contiguous(beta), tuple(shape), out)
    return make_plan(problem, None, torch_thread_count()), statistics


def plan_backward(
    check: Callable[..., Any], dy: Tensor, x: Tensor, shape: Shape, mean: Tensor, rstd: Tensor, gamma: Tensor | None,
    beta: Tensor | None, mask: Mask,
) -> tuple[Plan, Tensor]:  # fmt: skip
    """The plan of a backward whose mean, rstd and gamma are contiguous, and a tensor like dgamma and dbeta."""
    dtype = check(x, mean, rstd, gamma, beta, mask)
    parameter = torch.empty(tuple(shape), dtype=dtype, device="cpu")
    Problem.backward(dy, x, mean, rstd, gamma, tuple(shape), mask)  # the caller's own arguments, for the errors
    out = Grads(None, parameter, torch.empty_like(parameter))
    plain = mean.contiguous(), rstd.contiguous(), _contiguous(gamma)
    problem, _ = Problem.backward(dy, x, *plain, tuple(shape), mask, out, completes_mean=True)
    return make_plan(problem, None, torch_thread_count()), parameter


def _problem_of(
    operator: Operator, arrays: tuple[Tensor | None, ...], shape: Shape, mask: Mask, normalization: Normalization
) -> Problem:
    """A call of the family. torch's operators keep their own statistics, and so a backward may complete the mean."""
    completes = "lost" not in operator.inputs
    return describe(operator, arrays, shape, mask, None, normalization, completes_mean=completes)[0]


def plan_norm(call: Callable[..., Any], *arguments: Any) -> tuple[Plan, Tensor]:
    """The plan of a call of the family with contiguous arrays, and a tensor like mean and rstd, or dgamma and dbeta.

    call: of the same arguments, the operator, its arrays, the normalized shape, the mask and the normalization.
    """
    operator, arrays, shape, mask, normalization = call(*arguments)
    problem = _problem_of(operator, arrays, shape, mask, normalization)
    gamma = problem.inputs["gamma"]
    parameter = gamma.dtype if gamma else problem.dtype
    small = problem.accumulator if problem.operator.direction == "forward" else parameter
    return make_plan(problem, None, torch_thread_count()), torch.empty(0, dtype=getattr(torch, small))


def prepare(plan_call: Callable[..., tuple[Plan, Tensor]], check: Callable[..., Any]) -> Callable[..., Any]:
    """A function that prepares contiguous calls for the native code.

    Args:
        plan_call: plan_forward, plan_backward or plan_norm.
        check: As in forward_calls or backward_calls; for plan_norm its call.

    Returns:
        The function, with the arguments of plan_call behind check: a tensor like the small results, and the plan as numbers; or
        None where the native code shall leave the call to Python.
    """

    def prepare_call(*arguments: Any) -> tuple[Tensor, Tensor] | None:
        try:
            plan, like = plan_call(check, *arguments)
        except LngradError:
            return None
        numbers = None if plan.pack is None else plan.pack(plan)
        return None if numbers is None else (like, torch.from_numpy(numbers))

    return prepare_call


def _bind(plan: Plan, is_small: bool) -> RunOnAddresses:
    """A run on addresses; torch's threads help with a large one."""
    run = plan.on_addresses
    assert run is not None  # the tensors are on the CPU
    if is_small:
        return run

    def run_shared(*addresses: float) -> None:
        with use_parallel_for(torch_parallel_for()):
            run(*addresses)

    return run_shared


# How a call runs, a tensor like the small results, whether it is small, and what its arguments span.
_Call = tuple[RunOnAddresses, Tensor, bool, _Spans]


def forward_calls(check: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """A function (x, shape, gamma, beta, eps) -> (y, mean, rstd) for CPU tensors.

    Args:
        check: (x, gamma, beta) -> the dtype in which mean and rstd are wanted. Called once for calls with equal facts; it
            may raise to refuse them.

    Returns:
        The function. x: (*A, *R), any strides; shape: R; gamma, beta: (*R) or None. y: in x's dtype; mean, rstd
        (*A, 1, …, 1). All contiguous. It raises what check raises, and ShapeError and DtypeError of the core.
    """
    calls: BoundedCache[Hashable, _Call] = BoundedCache(_MAX_CALLS)

    def forward(
        x: Tensor, shape: Shape, gamma: Tensor | None, beta: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        key = (
            x.shape, x.dtype, x.is_contiguous() or x.stride(), tuple(shape),
            gamma is None or (gamma.shape, gamma.dtype), beta is None or (beta.shape, beta.dtype), torch_thread_count(),
        )  # fmt: skip
        run, statistics, is_small, spans = calls.get(key) or new(key, x, shape, gamma, beta)
        _require_storage(spans, (x, gamma, beta))
        if not ((gamma is None or gamma.is_contiguous()) and (beta is None or beta.is_contiguous())):
            gamma, beta = _contiguous(gamma), _contiguous(beta)
        y = _like(x, memory_format=_PLAIN) if is_small else empty(x.shape, x.dtype)
        mean, rstd = _like(statistics), _like(statistics)
        run(
            x.data_ptr(), 0 if gamma is None else gamma.data_ptr(), 0 if beta is None else beta.data_ptr(),
            y.data_ptr(), mean.data_ptr(), rstd.data_ptr(), eps,
        )  # fmt: skip
        return y, mean, rstd

    def new(key: Hashable, x: Tensor, shape: Shape, gamma: Tensor | None, beta: Tensor | None) -> _Call:
        plan, statistics = plan_forward(check, x, shape, gamma, beta)
        is_small = x.numel() < SMALL_ELEMENTS
        spans = _spans(("x", "gamma", "beta"), (x, gamma, beta))
        return calls.keep(key, (_bind(plan, is_small), statistics, is_small, spans))

    return forward


def backward_calls(check: Callable[..., Any]) -> Callable[..., tuple[Tensor | None, Tensor | None, Tensor | None]]:
    """A function (dy, x, shape, mean, rstd, gamma, beta, mask) -> (dx, dgamma, dbeta) for CPU tensors.

    Args:
        check: (x, mean, rstd, gamma, beta, mask) -> the dtype in which dgamma and dbeta are wanted. Called once for calls
            with equal facts; it may raise to refuse them.

    Returns:
        The function. dy, x: (*A, *R), any strides; shape: R; mean, rstd: one element per row; gamma, beta: (*R) or None, and
        of beta the dtype alone is looked at; mask: which results are wanted, the others are None. All contiguous. It raises
        what check raises, and ShapeError and DtypeError of the core.
    """
    calls: BoundedCache[Hashable, _Call] = BoundedCache(_MAX_CALLS)

    def backward(
        dy: Tensor, x: Tensor, shape: Shape, mean: Tensor, rstd: Tensor, gamma: Tensor | None, beta: Tensor | None,
        mask: Mask,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
        key = (
            x.shape, x.dtype, x.is_contiguous() or x.stride(), dy.shape, dy.dtype, dy.is_contiguous() or dy.stride(),
            mean.shape, mean.dtype, rstd.shape, rstd.dtype, gamma is None or (gamma.shape, gamma.dtype),
            beta is None or beta.dtype, tuple(shape), tuple(mask), torch_thread_count(),
        )  # fmt: skip
        run, parameter, is_small, spans = calls.get(key) or new(key, dy, x, shape, mean, rstd, gamma, beta, mask)
        _require_storage(spans, (dy, x, mean, rstd, gamma))
        wants_dx, wants_dgamma, wants_dbeta = mask
        dgamma = _like(parameter) if wants_dgamma else None
        dbeta = _like(parameter) if wants_dbeta else None
        if not (mean.is_contiguous() and rstd.is_contiguous() and (gamma is None or gamma.is_contiguous())):
            mean, rstd, gamma = mean.contiguous(), rstd.contiguous(), _contiguous(gamma)
        dx = None
        if wants_dx:
            dx = _like(x, memory_format=_PLAIN) if is_small else empty(x.shape, x.dtype)
        run(
            dy.data_ptr(), x.data_ptr(), mean.data_ptr(), rstd.data_ptr(), 0 if gamma is None else gamma.data_ptr(),
            0 if dx is None else dx.data_ptr(),
            0 if dgamma is None else dgamma.data_ptr(), 0 if dbeta is None else dbeta.data_ptr(),
        )  # fmt: skip
        return dx, dgamma, dbeta

    def new(
        key: Hashable, dy: Tensor, x: Tensor, shape: Shape, mean: Tensor, rstd: Tensor, gamma: Tensor | None,
        beta: Tensor | None, mask: Mask,
    ) -> _Call:  # fmt: skip
        plan, parameter = plan_backward(check, dy, x, shape, mean, rstd, gamma, beta, mask)
        is_small = x.numel() < SMALL_ELEMENTS
        spans = _spans(("dy", "x", "mean", "rstd", "gamma"), (dy, x, mean, rstd, gamma))
        return calls.keep(key, (_bind(plan, is_small), parameter, is_small, spans))

    return backward


# How a call of any operator of the family runs; shape and dtype of each result, None where not wanted; the arguments' spans.
_AnyCall = tuple[RunOnAddresses, tuple[tuple[Shape, Any] | None, ...], _Spans]
_any_calls: BoundedCache[Hashable, _AnyCall] = BoundedCache(_MAX_CALLS)


def run(
    operator: Operator, arrays: tuple[Tensor | None, ...], shape: Shape, mask: Mask, normalization: Normalization,
    *numbers: float,
) -> list[Tensor | None]:  # fmt: skip
    """The results of an operator of the family for CPU tensors of any strides, contiguous; None where not wanted.

    It raises ShapeError and DtypeError of the core, and BackendUnavailable for tensors on another device.
    """
    facts = [None if array is None else (array.shape, array.dtype, array.stride(), array.device) for array in arrays]
    key = operator, normalization, shape, mask, torch_thread_count(), *facts
    call = _any_calls.get(key)
    if call is None:
        problem = _problem_of(operator, arrays, shape, mask, normalization)
        plan = make_plan(problem, None, torch_thread_count())
        outputs = [None if one is None else (one.shape, getattr(torch, one.dtype)) for one in problem.outputs()]
        x = arrays[operator.inputs.index("x")]
        assert x is not None  # the core has checked it
        spans = _spans(operator.inputs, arrays)
        call = _any_calls.keep(key, (_bind(plan, x.numel() < SMALL_ELEMENTS), tuple(outputs), spans))
    run_on_addresses, outputs_wanted, spans = call
    _require_storage(spans, arrays)
    results = [None if wanted is None else empty(*wanted) for wanted in outputs_wanted]
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in (*arrays, *results)]
    run_on_addresses(*addresses, *numbers)
    return results
