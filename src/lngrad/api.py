"""The public functions: describe a call, decide it, execute it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, overload

import numpy as np

from lngrad.core import calls
from lngrad.core.arrays import as_array, empty, scratch
from lngrad.core.plan import Plan, make_plan
from lngrad.core.problem import (
    BACKWARD,
    FORWARD,
    RMS_BACKWARD,
    RMS_FORWARD,
    ROLES,
    WITH_RESIDUAL,
    Forward,
    ForwardWithTotal,
    Grads,
    Normalization,
    Operator,
    Problem,
    RmsForward,
    RmsGrads,
    Role,
    check_elements,
    check_memory,
    describe,
)
from lngrad.core.threads import torch_parallel_for, torch_thread_count, use_parallel_for
from lngrad.errors import ShapeError, WorkspaceError
from lngrad.support.addresses import addresses_of
from lngrad.typing import Shape

_forward, _backward, _rms_forward, _rms_backward = map(calls.Repeats, WITH_RESIDUAL)


@overload
def layer_norm(
    x: Any,
    normalized_shape: int | Sequence[int] | None = None,
    gamma: Any = None,
    beta: Any = None,
    *,
    eps: float = 1e-5,
    offset: float = 0.0,
    residual: None = None,
    alpha: float = 1.0,
    axis: int | None = None,
    out: Forward | None = None,
    backend: str | None = None,
) -> Forward: ...
@overload
def layer_norm(
    x: Any,
    normalized_shape: int | Sequence[int] | None = None,
    gamma: Any = None,
    beta: Any = None,
    *,
    eps: float = 1e-5,
    offset: float = 0.0,
    residual: Any,
    alpha: float = 1.0,
    axis: int | None = None,
    out: ForwardWithTotal | None = None,
    backend: str | None = None,
) -> ForwardWithTotal: ...
def layer_norm(
    x: Any,
    normalized_shape: int | Sequence[int] | None = None,
    gamma: Any = None,
    beta: Any = None,
    *,
    eps: float = 1e-5,
    offset: float = 0.0,
    residual: Any = None,
    alpha: float = 1.0,
    axis: int | None = None,
    out: Forward | ForwardWithTotal | None = None,
    backend: str | None = None,
) -> Forward | ForwardWithTotal:
    """Layer normalization: y = (x - mean)·rstd·gamma + beta, with rstd = 1/sqrt(variance + eps).

    With a residual, the total alpha·x + residual is normalized in place of x, and is a result too: y and the statistics are
    those of the total as it is rounded to x's dtype. For a backward the total is x.

    Args:
        x: (*A, *R), 1 to 8 dimensions, float16, bfloat16, float32 or float64, any strides. NumPy, torch on the CPU, or
            anything with `__array_interface__` or DLPack.
        normalized_shape: R. None: gamma's shape, or the last axis.
        gamma, beta: (*R) in any of these dtypes: they are converted exactly, so the call is computed in float64 if one of
            them or x has it, and in float32 otherwise. None: 1 and 0.
        eps: Added to the biased variance of a row.
        offset: Added to gamma, or to the 1 in its place: 1 for weights that are stored around zero.
        residual: (*A, *R) in x's dtype, a second summand. None: there is none.
        alpha: The factor of x beside a residual, as DeepNorm has it.
        axis: Normalize over this axis alone, in place of the last ones: 1 for channels first. gamma and beta have its size.
        out: A Forward of arrays to write to, with a residual a ForwardWithTotal; None in it is allocated. y may be x itself,
            total x or residual.
        backend: A name from `backends()`; None chooses.

    Returns:
        y in x's dtype and kind; mean and rstd (*A, 1, …, 1) in what the call is computed in; with a residual the total, as y.
        With axis y is a view with that axis innermost in memory, and mean and rstd have size 1 there.

    Raises:
        ShapeError, DtypeError, OverlapError, NumberError: An argument breaks a rule; nothing was written.
        BackendUnavailable: The named backend can't run this.
    """
    arguments = x, gamma, beta, residual, normalized_shape, eps, offset, alpha, axis, backend, out
    known = _forward.again(arguments)
    if known is not None:
        return known  # type: ignore[no-any-return]
    return _call(  # type: ignore[no-any-return]
        FORWARD, Normalization.of(True, offset, alpha, residual), (x, gamma, beta), residual, float(eps),
        shape=normalized_shape, axis=axis, out=out, backend=backend, asked=(_forward, arguments),
    )  # fmt: skip


def layer_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any = None,
    *,
    normalized_shape: int | Sequence[int] | None = None,
    offset: float = 0.0,
    dtotal: Any = None,
    axis: int | None = None,
    complete_mean: bool = False,
    output_mask: Sequence[bool] = (True, True, True),
    out: Grads | None = None,
    backend: str | None = None,
) -> Grads:
    """Gradients of layer normalization, from the forward's input and row statistics.

    With xhat = (x - mean)·rstd and dxhat = dy·gamma, over rows and normalized elements:
    dx = rstd·(dxhat - mean_dxhat - xhat·mean_dxhat_xhat) + dtotal, dgamma = Σ dy·xhat, dbeta = Σ dy.

    After a forward with a residual, x is its total, and dx the gradient of the total: the residual's gradient is dx, and
    that of the forward's x is alpha·dx.

    Args:
        dy, x: (*A, *R), the same shape and dtype: float16, bfloat16, float32 or float64; any strides. NumPy, torch on the
            CPU, or anything with `__array_interface__` or DLPack.
        mean, rstd: Any shape with one element per row, in any of these dtypes; converted to what the call is computed in.
            They are taken as given, never recomputed; but see complete_mean.
        gamma: (*R) in any of these dtypes: it is converted exactly, so the call is computed in float64 if gamma or x has it,
            and in float32 otherwise. None: 1.
        normalized_shape: R. None: gamma's shape, or the last axis.
        offset: The forward's.
        dtotal: (*A, *R) in x's dtype: added to dx before it is rounded. The gradient of the total where it was used besides,
            as in a residual stream. None: 0.
        axis: The forward's axis. mean and rstd have one element per row in the order of x's other axes.
        complete_mean: Whether to find from x what a mean lost when it was rounded, in rows where it is 8 and more times the
            spread and is the row's own up to its last place. So errors do not grow with mean·rstd, at the price of one more sum
            for such a row. False: mean is taken as it is.
        output_mask: Which of dx, dgamma, dbeta are wanted; the others cost nothing and are None.
        out: A Grads of arrays to write to; None in it is allocated. dgamma and dbeta take their dtype from it, and are
            rounded once. dx may be dy, x or dtotal itself.
        backend: A name from `backends()`; None chooses.

    Returns:
        dx in x's dtype and kind; dgamma, dbeta (*R) in gamma's dtype, or x's without gamma. The bits do not depend on
        the number of threads; a row's dx depends on that row alone.

    Raises:
        ShapeError, DtypeError, OverlapError, NumberError: An argument breaks a rule; nothing was written.
        BackendUnavailable: The named backend can't run this.
    """
    options = normalized_shape, offset, axis, complete_mean, output_mask, backend
    arguments = dy, x, mean, rstd, gamma, dtotal, *options, out
    known = _backward.again(arguments)
    if known is not None:
        return known  # type: ignore[no-any-return]
    return _call(  # type: ignore[no-any-return]
        BACKWARD, Normalization.of(True, offset), (dy, x, mean, rstd, gamma), dtotal,
        shape=normalized_shape, axis=axis, mask=output_mask, out=out, backend=backend, asked=(_backward, arguments),
        complete_mean=complete_mean,
    )  # fmt: skip


def rms_norm(
    x: Any,
    normalized_shape: int | Sequence[int] | None = None,
    gamma: Any = None,
    *,
    eps: float | None = None,
    offset: float = 0.0,
    residual: Any = None,
    alpha: float = 1.0,
    axis: int | None = None,
    out: RmsForward | None = None,
    backend: str | None = None,
) -> RmsForward:
    """RMS normalization: y = x·rstd·(offset + gamma), with rstd = 1/sqrt(mean of x² + eps).

    With a residual, the total alpha·x + residual is normalized in place of x, and is a result too: y and rstd are those of the
    total as it is rounded to x's dtype. For a backward the total is x.

    Args:
        x: (*A, *R), 1 to 8 dimensions, as for layer_norm.
        normalized_shape: R. None: gamma's shape, or the last axis.
        gamma: (*R), as for layer_norm. None: 1.
        eps: Added to the mean of the squares of a row. None: torch's, the machine epsilon of float32 (1.2e-7), or of float64 if
            x is.
        offset: Added to gamma, or to the 1 in its place: 1 for weights that are stored around zero, as Gemma's.
        residual: (*A, *R) in x's dtype, a second summand. None: there is none.
        alpha: The factor of x beside a residual.
        axis: Normalize over this axis alone, in place of the last ones.
        out: An RmsForward of arrays to write to; None in it is allocated. y may be x itself, total x or residual.
        backend: A name from `backends()`; None chooses.

    Returns:
        y in x's dtype and kind; rstd (*A, 1, …, 1) in what the call is computed in; the total as y, None without
        a residual.

    Raises:
        ShapeError, DtypeError, OverlapError, NumberError: An argument breaks a rule; nothing was written.
        BackendUnavailable: The named backend can't run this.
    """
    arguments = x, gamma, residual, normalized_shape, eps, offset, alpha, axis, backend, out
    known = _rms_forward.again(arguments)
    if known is not None:
        return known  # type: ignore[no-any-return]
    return _call(  # type: ignore[no-any-return]
        RMS_FORWARD, Normalization.of(False, offset, alpha, residual), (x, gamma), residual,
        None if eps is None else float(eps), shape=normalized_shape, axis=axis, out=out, backend=backend,
        asked=(_rms_forward, arguments),
    )  # fmt: skip


def rms_norm_backward(
    dy: Any,
    x: Any,
    rstd: Any,
    gamma: Any = None,
    *,
    normalized_shape: int | Sequence[int] | None = None,
    offset: float = 0.0,
    dtotal: Any = None,
    axis: int | None = None,
    output_mask: Sequence[bool] = (True, True),
    out: RmsGrads | None = None,
    backend: str | None = None,
) -> RmsGrads:
    """Gradients of RMS normalization, from the forward's input and rstd.

    With xhat = x·rstd and dxhat = dy·(offset + gamma): dx = rstd·(dxhat - xhat·mean_dxhat_xhat) + dtotal, dgamma = Σ dy·xhat.

    After a forward with a residual, x is its total, and dx the gradient of the total: the residual's gradient is dx, and
    that of the forward's x is alpha·dx.

    Args:
        dy, x, rstd, gamma, normalized_shape, offset, dtotal, axis: As for layer_norm_backward.
        output_mask: Which of dx, dgamma are wanted; the other costs nothing and is None.
        out: An RmsGrads of arrays to write to; None in it is allocated. dgamma takes its dtype from it, and is rounded once.
            dx may be dy, x or dtotal itself.
        backend: A name from `backends()`; None chooses.

    Returns:
        dx in x's dtype and kind; dgamma (*R) in gamma's dtype, or x's without gamma.

    Raises:
        ShapeError, DtypeError, OverlapError, NumberError: An argument breaks a rule; nothing was written.
        BackendUnavailable: The named backend can't run this.
    """
    arguments = dy, x, rstd, gamma, dtotal, normalized_shape, offset, axis, output_mask, backend, out
    known = _rms_backward.again(arguments)
    if known is not None:
        return known  # type: ignore[no-any-return]
    return _call(  # type: ignore[no-any-return]
        RMS_BACKWARD, Normalization.of(False, offset), (dy, x, rstd, gamma), dtotal,
        shape=normalized_shape, axis=axis, mask=output_mask, out=out, backend=backend, asked=(_rms_backward, arguments),
    )  # fmt: skip


def _call(
    operator: Operator,
    normalization: Normalization,
    arrays: tuple[Any, ...],
    added: Any,
    *numbers: float | None,
    shape: int | Sequence[int] | None,
    axis: int | None,
    mask: Sequence[bool] | None = None,
    out: Any,
    backend: str | None,
    asked: tuple[calls.Repeats, tuple[Any, ...]],
    complete_mean: bool = False,
) -> Any:
    """Describe, plan and execute a call, with its axis last; the next time, execute it at once.

    asked: The public function and its arguments, for its backend to know.
    added is the residual or the gradient of the total, if there is one; an eps of None is torch's.
    """
    if added is not None:
        operator, arrays = WITH_RESIDUAL[operator], (*arrays, added)
    mask = operator.everything if mask is None else mask
    if axis is not None:
        arrays, axis, shape = _with_axis_last(operator, arrays, axis, shape)
        out = _outputs_moved(operator, out, axis, -1)
    key = calls.key_of_call(operator, normalization, arrays, out, shape, mask, backend)
    if complete_mean and key is not None:
        key = "complete_mean", key
    known = calls.run_again(key, arrays, numbers, out, _asked(operator, *asked, axis))
    if known is not None:
        results = operator.results(*known)
        return results if axis is None else _outputs_moved(operator, results, -1, axis)
    problem, arrays = describe(operator, arrays, shape, mask, out, normalization, complete_mean)
    check_elements(problem, arrays, out)
    plan = make_plan(problem, backend, torch_thread_count() if _is_torchs(problem) else None)
    results = operator.results(*execute(plan, (*arrays, *problem.numbers(numbers)), out))
    calls.keep(key, plan)
    return results if axis is None else _outputs_moved(operator, results, -1, axis)


def _with_axis_last(
    operator: Operator, arrays: tuple[Any, ...], axis: int, normalized_shape: Any
) -> tuple[tuple[Any, ...], int, Shape]:
    """The arguments with an axis of x last, in views; that axis counted from the front; and the shape that is normalized."""
    if normalized_shape is not None:
        raise ShapeError(f"axis: expected no normalized_shape with it, got {normalized_shape}")
    given = dict(zip(operator.inputs, arrays, strict=True))
    x = given["x"] = as_array("x", given["x"])
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"axis: expected one of x's {x.ndim} axes, got {axis}")
    axis %= x.ndim
    for name in operator.inputs:
        if ROLES[name] is Role.TENSOR:
            given[name] = _moved(as_array(name, given[name]), axis, -1)
    return tuple(given.values()), axis, (x.shape[axis],)


def _outputs_moved(operator: Operator, out: Any, source: int, target: int) -> Any:
    """Results, or arrays for them, with an axis moved in views; what is no such tuple is left to the checks."""
    if not isinstance(out, tuple) or len(out) != len(operator.outputs):
        return out
    pairs = zip(operator.outputs, out, strict=True)
    return operator.results(
        *(array if ROLES[name] is Role.PARAMETER else _moved(array, source, target) for name, array in pairs)
    )


def _asked(operator: Operator, function: calls.Repeats, arguments: tuple[Any, ...], axis: int | None) -> calls.Asked:
    """A call as its backend may know it."""
    if axis is None:
        return calls.Asked(function, arguments, None)
    return calls.Asked(function, arguments, lambda results: _outputs_moved(operator, results, -1, axis))


def _moved(array: Any, source: int, target: int) -> Any:
    """A view; None and what has fewer axes are left to the checks."""
    if array is None or not -array.ndim <= source < array.ndim:
        return array
    if not isinstance(array, np.ndarray):
        return array.movedim(source, target)
    order = list(range(array.ndim))  # np.moveaxis takes 4 µs
    order.insert(target % array.ndim, order.pop(source))
    return array.transpose(order)


def _is_torchs(problem: Problem) -> bool:
    """Whether torch's own threads do the work, since torch keeps them awake between our calls."""
    return problem.kind == "torch" and problem.device == "cpu"


def execute(
    plan: Plan, inputs: tuple[Any, ...], out: Sequence[Any] | None = None, workspace: np.ndarray[Any, Any] | None = None
) -> tuple[Any, ...]:
    """Run a plan: the second phase, for callers that bring their own outputs and workspace.

    Args:
        plan: From make_plan.
        inputs: The arrays that the problem was made of, in its order, and then the operator's numbers.
        out: An array for each result as the problem knows it; None in it is allocated if it is wanted.
        workspace: At least plan.workspace_bytes of uint8, contiguous, or None to allocate it.

    Raises:
        WorkspaceError: The workspace is too small.
        OverlapError: An output shares memory with an input or another output, or can't be written.
        MemoryError: An output or the workspace can't be allocated. Nothing was written.
    """
    problem = plan.problem
    outputs = problem.outputs()
    if out is None:
        results = tuple([None if output is None else empty(problem.kind, output, problem.device) for output in outputs])
    else:
        check_memory(problem, inputs, out)
        results = tuple(
            None if output is None else given if given is not None else empty(problem.kind, output, problem.device)
            for output, given in zip(outputs, out, strict=True)
        )
    if workspace is None and plan.bind is not None:
        split = len(problem.inputs)
        with use_parallel_for(torch_parallel_for()) if _is_torchs(problem) else nullcontext():
            plan.on_addresses(*addresses_of((*inputs[:split], *results)), *inputs[split:])  # type: ignore[misc]  # a plan with bind has it
        return results
    if workspace is None:
        workspace = scratch(plan.workspace_bytes, problem.device)
    elif workspace.nbytes < plan.workspace_bytes:
        raise WorkspaceError(f"workspace: expected at least {plan.workspace_bytes} bytes, got {workspace.nbytes}")
    plan.run(plan, inputs, results, workspace)
    return results
