"""The public functions: describe a call, decide it, execute it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from lngrad.core import calls
from lngrad.core.arrays import addresses_of, as_array, empty, scratch
from lngrad.core.plan import Plan, make_plan
from lngrad.core.problem import Forward, Grads, Problem, check_elements, check_memory
from lngrad.core.threads import torch_parallel_for, torch_thread_count, use_parallel_for
from lngrad.errors import ShapeError, WorkspaceError
from lngrad.typing import AnyArray, Shape


def layer_norm(
    x: Any,
    normalized_shape: int | Sequence[int] | None = None,
    gamma: Any = None,
    beta: Any = None,
    *,
    eps: float = 1e-5,
    axis: int | None = None,
    out: Forward | None = None,
    backend: str | None = None,
) -> Forward:
    """Layer normalization: y = (x - mean)·rstd·gamma + beta, with rstd = 1/sqrt(variance + eps).

    Args:
        x: (*A, *R), 1 to 8 dimensions, float16, bfloat16, float32 or float64, any strides. NumPy, torch on the CPU, or
            anything with `__array_interface__` or DLPack.
        normalized_shape: R. None: gamma's shape, or the last axis.
        gamma, beta: (*R) in any of these dtypes: they are converted exactly, so the call is computed in float64 if one of
            them or x has it, and in float32 otherwise. None: 1 and 0.
        eps: Added to the biased variance of a row.
        axis: Normalize over this axis alone, in place of the last ones: 1 for channels first. gamma and beta have its size.
        out: A Forward of arrays to write to; None in it is allocated. y may be x itself.
        backend: A name from `backends()`; None chooses.

    Returns:
        y in x's dtype and kind; mean and rstd (*A, 1, …, 1) in what the call is computed in. With axis y is a view with
        that axis innermost in memory, and mean and rstd have size 1 there.

    Raises:
        ShapeError, DtypeError, OverlapError: An argument breaks a rule; nothing was written.
        BackendUnavailable: The named backend can't run this.
    """
    if axis is not None:
        x, axis, normalized_shape = _with_axis_last(x, axis, normalized_shape)
        out = None if out is None else Forward(*(_moved(array, axis, -1) for array in out))
        moved = layer_norm(x, normalized_shape, gamma, beta, eps=eps, out=out, backend=backend)
        return Forward(*(_moved(array, -1, axis) for array in moved))
    key = calls.forward_key(x, normalized_shape, gamma, beta, backend) if out is None else None
    known = calls.forward(key, x, gamma, beta, eps)
    if known is not None:
        return known
    problem, arrays = Problem.forward(x, gamma, beta, normalized_shape, out)
    check_elements(problem, arrays, out)
    plan = make_plan(problem, backend, torch_thread_count() if _is_torchs(problem) else None)
    forward = Forward(*execute(plan, (*arrays, float(eps)), out))
    calls.keep(key, plan)
    return forward


def layer_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any = None,
    *,
    normalized_shape: int | Sequence[int] | None = None,
    axis: int | None = None,
    output_mask: Sequence[bool] = (True, True, True),
    out: Grads | None = None,
    backend: str | None = None,
) -> Grads:
    """Gradients of layer normalization, from the forward's input and row statistics.

    With xhat = (x - mean)·rstd and dxhat = dy·gamma, over rows and normalized elements:
    dx = rstd·(dxhat - mean_dxhat - xhat·mean_dxhat_xhat), dgamma = Σ dy·xhat, dbeta = Σ dy.

    Args:
        dy, x: (*A, *R), the same shape and dtype: float16, bfloat16, float32 or float64; any strides. NumPy, torch on the
            CPU, or anything with `__array_interface__` or DLPack.
        mean, rstd: Any shape with one element per row, in any of these dtypes; converted to what the call is computed in.
            They are taken as given, never recomputed.
        gamma: (*R) in any of these dtypes: it is converted exactly, so the call is computed in float64 if gamma or x has it,
            and in float32 otherwise. None: 1.
        normalized_shape: R. None: gamma's shape, or the last axis.
        axis: The forward's axis. mean and rstd have one element per row in the order of x's other axes.
        output_mask: Which of dx, dgamma, dbeta are wanted; the others cost nothing and are None.
        out: A Grads of arrays to write to; None in it is allocated. dgamma and dbeta take their dtype from it, and are
            rounded once. dx may be dy or x itself.
        backend: A name from `backends()`; None chooses.

    Returns:
        dx in x's dtype and kind; dgamma, dbeta (*R) in gamma's dtype, or x's without gamma. The bits do not depend on
        the number of threads; a row's dx depends on that row alone.

    Raises:
        ShapeError, DtypeError, OverlapError: An argument breaks a rule; nothing was written.
        BackendUnavailable: The named backend can't run this.
    """
    if axis is not None:
        dy = _moved(as_array("dy", dy), axis, -1)
        x, axis, normalized_shape = _with_axis_last(x, axis, normalized_shape)
        out = None if out is None else out._replace(dx=_moved(out.dx, axis, -1))
        grads = layer_norm_backward(
            dy,
            x,
            mean,
            rstd,
            gamma,
            normalized_shape=normalized_shape,
            output_mask=output_mask,
            out=out,
            backend=backend,
        )
        return grads._replace(dx=_moved(grads.dx, -1, axis))
    key = None
    if out is None:
        key = calls.backward_key(dy, x, mean, rstd, gamma, normalized_shape, output_mask, backend)
    known = calls.backward(key, dy, x, mean, rstd, gamma)
    if known is not None:
        return known
    problem, arrays = Problem.backward(dy, x, mean, rstd, gamma, normalized_shape, output_mask, out)
    check_elements(problem, arrays, out)
    plan = make_plan(problem, backend, torch_thread_count() if _is_torchs(problem) else None)
    grads = Grads(*execute(plan, arrays, out))
    calls.keep(key, plan)
    return grads


def _with_axis_last(x: AnyArray, axis: int, normalized_shape: Any) -> tuple[AnyArray, int, Shape]:
    """A view of x with an axis last, that axis counted from the front, and the shape that is normalized."""
    if normalized_shape is not None:
        raise ShapeError(f"axis: expected no normalized_shape with it, got {normalized_shape}")
    array = as_array("x", x)
    if not -array.ndim <= axis < array.ndim:
        raise ShapeError(f"axis: expected one of x's {array.ndim} axes, got {axis}")
    axis %= array.ndim
    return _moved(array, axis, -1), axis, (array.shape[axis],)


def _moved(array: Any, source: int, target: int) -> Any:
    """A view; None and what has fewer axes are left to the checks."""
    if array is None or not -array.ndim <= source < array.ndim:
        return array
    return np.moveaxis(array, source, target) if isinstance(array, np.ndarray) else array.movedim(source, target)


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
