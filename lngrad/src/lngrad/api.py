"""The public functions: describe a call, decide it, execute it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf
from typing import Any, overload

import numpy as np

from lngrad.core import calls
from lngrad.core.arrays import as_array, note_writes, without_history
from lngrad.core.calls import Switches
from lngrad.core.plan import Plan, make_plan
from lngrad.core.problem import (
    BACKWARD,
    EXTENDED,
    FORWARD,
    RMS_BACKWARD,
    RMS_FORWARD,
    ROLES,
    Forward,
    ForwardWithTotal,
    GatedGrads,
    Grads,
    Normalization,
    Operator,
    RmsForward,
    RmsGrads,
    Role,
    check_elements,
    describe,
    epsilon,
)
from lngrad.core.threads import torch_thread_count
from lngrad.errors import ShapeError
from lngrad.typing import Shape


@overload
def layer_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    normalized_shape: int | Sequence[int] | None = None,
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
    gamma: Any = None,
    beta: Any = None,
    *,
    normalized_shape: int | Sequence[int] | None = None,
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
    gamma: Any = None,
    beta: Any = None,
    *,
    normalized_shape: int | Sequence[int] | None = None,
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
        gamma, beta: (*R) in any of these dtypes: they are converted exactly, so the call is computed in float64 if one of
            them or x has it, and in float32 otherwise. None: 1 and 0. With a normalized_shape each sample may have its own, as
            in adaptive layer normalization: (*S, 1, …, 1, *R), S being the first dimensions of A.
        normalized_shape: R. None: gamma's shape, or the last axis.
        eps: Added to the biased variance of a row.
        offset: Added to gamma, or to the 1 in its place: 1 for weights that are stored around zero.
        residual: (*A, *R) in x's dtype, or in float32 beside 16 bits: a second summand. None: there is none.
        alpha: The factor of x beside a residual, as DeepNorm has it.
        axis: Normalize over this axis alone, in place of the last ones: 1 for channels first. gamma and beta have its size.
        out: A Forward of arrays to write to, with a residual a ForwardWithTotal; None in it is allocated. y may be x itself,
            total x or residual.
        backend: A name from `backends()`; None chooses.

    Returns:
        y in x's dtype and kind; mean and rstd (*A, 1, …, 1) in what the call is computed in; with a residual the total in its
        dtype.
        With axis y is a view with that axis innermost in memory, and mean and rstd have size 1 there.

    Raises:
        ShapeError, DtypeError, OverlapError, NumberError: An argument breaks a rule; nothing was written.
        BackendUnavailable: The named backend can't run this.
    """
    numbers = (eps if type(eps) is float and 0.0 <= eps < inf else epsilon(eps),)
    switches = tuple.__new__(Switches, (offset, alpha, False, True))
    return _call(  # type: ignore[no-any-return]
        FORWARD, (x, gamma, beta), numbers, switches, normalized_shape, None, out, backend, axis, residual
    )


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
        dy, x: (*A, *R), the same shape and dtype: float16, bfloat16, float32 or float64; any strides. Beside dtotal dy may have
            16 bits and x float32. NumPy, torch on the CPU, or anything with `__array_interface__` or DLPack.
        mean, rstd: Any shape with one element per row, in any of these dtypes; converted to what the call is computed in.
            They are taken as given, never recomputed; but see complete_mean.
        gamma: (*R) in any of these dtypes: it is converted exactly, so the call is computed in float64 if gamma or x has it,
            and in float32 otherwise. None: 1. Or the forward's of each sample: so are dgamma and dbeta then.
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
    switches = tuple.__new__(Switches, (offset, 1.0, bool(complete_mean), True))
    return _call(  # type: ignore[no-any-return]
        BACKWARD, (dy, x, mean, rstd, gamma), (), switches, normalized_shape, output_mask, out, backend, axis, dtotal
    )


def rms_norm(
    x: Any,
    gamma: Any = None,
    *,
    normalized_shape: int | Sequence[int] | None = None,
    eps: float | None = None,
    offset: float = 0.0,
    residual: Any = None,
    alpha: float = 1.0,
    gate: Any = None,
    norm_before_gate: bool = True,
    axis: int | None = None,
    out: RmsForward | None = None,
    backend: str | None = None,
) -> RmsForward:
    """RMS normalization: y = x·rstd·(offset + gamma), with rstd = 1/sqrt(mean of x² + eps).

    With a residual, the total alpha·x + residual is normalized in place of x, and is a result too: y and rstd are those of the
    total as it is rounded to x's dtype. For a backward the total is x.

    Args:
        x: (*A, *R), 1 to 8 dimensions, as for layer_norm.
        gamma: (*R), as for layer_norm. None: 1.
        normalized_shape: R. None: gamma's shape, or the last axis.
        eps: Added to the mean of the squares of a row. None: torch's, the machine epsilon of float32 (1.2e-7), or of float64 if
            x is.
        offset: Added to gamma, or to the 1 in its place: 1 for weights that are stored around zero, as Gemma's.
        residual: (*A, *R) in x's dtype, or in float32 beside 16 bits: a second summand. None: there is none.
        alpha: The factor of x beside a residual.
        gate: (*A, *R) in x's dtype, and no residual: y is multiplied with silu(gate) before it is rounded. None: none.
        norm_before_gate: False: x is multiplied with silu(gate), and the product normalized, in place of that.
        axis: Normalize over this axis alone, in place of the last ones.
        out: An RmsForward of arrays to write to; None in it is allocated. y may be x itself, total x or residual.
        backend: A name from `backends()`; None chooses.

    Returns:
        y in x's dtype and kind; rstd (*A, 1, …, 1) in what the call is computed in; the total in the residual's dtype,
        None without one.

    Raises:
        ShapeError, DtypeError, OverlapError, NumberError: An argument breaks a rule; nothing was written.
        BackendUnavailable: The named backend can't run this.
    """
    numbers = (eps if eps is None or (type(eps) is float and 0.0 <= eps < inf) else epsilon(eps),)
    switches = tuple.__new__(Switches, (offset, alpha, False, gate is None or bool(norm_before_gate)))
    return _call(  # type: ignore[no-any-return]
        RMS_FORWARD, (x, gamma), numbers, switches, normalized_shape, None, out, backend, axis, residual, gate
    )


@overload
def rms_norm_backward(
    dy: Any,
    x: Any,
    rstd: Any,
    gamma: Any = None,
    *,
    normalized_shape: int | Sequence[int] | None = None,
    offset: float = 0.0,
    dtotal: Any = None,
    gate: None = None,
    norm_before_gate: bool = True,
    axis: int | None = None,
    output_mask: Sequence[bool] | None = None,
    out: RmsGrads | None = None,
    backend: str | None = None,
) -> RmsGrads: ...
@overload
def rms_norm_backward(
    dy: Any,
    x: Any,
    rstd: Any,
    gamma: Any = None,
    *,
    normalized_shape: int | Sequence[int] | None = None,
    offset: float = 0.0,
    dtotal: Any = None,
    gate: Any,
    norm_before_gate: bool = True,
    axis: int | None = None,
    output_mask: Sequence[bool] | None = None,
    out: GatedGrads | None = None,
    backend: str | None = None,
) -> GatedGrads: ...
def rms_norm_backward(
    dy: Any,
    x: Any,
    rstd: Any,
    gamma: Any = None,
    *,
    normalized_shape: int | Sequence[int] | None = None,
    offset: float = 0.0,
    dtotal: Any = None,
    gate: Any = None,
    norm_before_gate: bool = True,
    axis: int | None = None,
    output_mask: Sequence[bool] | None = None,
    out: RmsGrads | GatedGrads | None = None,
    backend: str | None = None,
) -> RmsGrads | GatedGrads:
    """Gradients of RMS normalization, from the forward's input and rstd.

    With xhat = x·rstd and dxhat = dy·(offset + gamma): dx = rstd·(dxhat - xhat·mean_dxhat_xhat) + dtotal, dgamma = Σ dy·xhat.

    After a forward with a residual, x is its total, and dx the gradient of the total: the residual's gradient is dx, and
    that of the forward's x is alpha·dx.

    Args:
        dy, x, rstd, gamma, normalized_shape, offset, dtotal, axis: As for layer_norm_backward.
        gate, norm_before_gate: The forward's.
        output_mask: Which of dx, dgamma, with a gate dgate, are wanted; the others are None. None: all.
        out: An RmsGrads, or GatedGrads, of arrays to write to; None in it is allocated. dgamma takes its dtype from it, and is
            rounded once. dx and dgate may each be dy, x, dtotal or gate itself.
        backend: A name from `backends()`; None chooses.

    Returns:
        dx in x's dtype and kind; dgamma (*R) in gamma's dtype, or x's without gamma. With a gate GatedGrads, dgate being as dx.

    Raises:
        ShapeError, DtypeError, OverlapError, NumberError: An argument breaks a rule; nothing was written.
        BackendUnavailable: The named backend can't run this.
    """
    switches = tuple.__new__(Switches, (offset, 1.0, False, gate is None or bool(norm_before_gate)))
    return _call(  # type: ignore[no-any-return]
        RMS_BACKWARD,
        (dy, x, rstd, gamma),
        (),
        switches,
        normalized_shape,
        output_mask,
        out,
        backend,
        axis,
        dtotal,
        gate,
    )


def _call(
    operator: Operator,
    arrays: tuple[Any, ...],
    numbers: tuple[float | None, ...],
    switches: Switches,
    shape: int | Sequence[int] | None,
    mask: Sequence[bool] | None,
    out: Any,
    backend: str | None,
    axis: int | None,
    added: Any,
    gate: Any = None,
) -> Any:
    """Execute a call, with its axis last; the first time it is described and planned.

    added is the residual or the gradient of the total, or None; an eps of None is torch's.
    """
    if added is not None or gate is not None:
        if added is not None and gate is not None:
            raise ShapeError("gate: expected no residual and no dtotal beside it")
        operator = EXTENDED[operator, added is not None, gate is not None]
        arrays = (*arrays, gate if added is None else added)
    mask = operator.everything if mask is None else mask
    if axis is not None:
        arrays, axis, shape = _with_axis_last(operator, arrays, axis, shape)
        out = _outputs_moved(operator, out, axis, -1)
    key = calls.key_of_call(operator, arrays, out, shape, mask, backend, switches)
    call = calls.find(key)
    if call is None:
        call, arrays = _first_call(key, operator, arrays, switches, shape, mask, out, backend)
    results = tuple.__new__(operator.results, call.run(arrays, numbers, out))
    if out is not None and call.plan.problem.kind == "torch":
        note_writes(out)
    return results if axis is None else _outputs_moved(operator, results, -1, axis)


def _first_call(
    key: Hashable | None, operator: Operator, arrays: tuple[Any, ...], switches: Switches,
    shape: int | Sequence[int] | None, mask: Sequence[bool], out: Any, backend: str | None,
) -> tuple[calls.BoundCall, tuple[Any, ...]]:  # fmt: skip
    """Describe and plan a call, and keep it under its key. Returns it, and the arguments as arrays."""
    if key is None:
        arrays = tuple(map(without_history, operator.inputs, arrays))
        for name, array in zip(operator.outputs, out if isinstance(out, tuple) else (), strict=False):
            without_history(f"out.{name}", array)
    gamma = arrays[operator.inputs.index("gamma")]
    axes = 0 if shape is None else len(shape) if isinstance(shape, Sequence) else 1
    normalization = Normalization.of(
        "mean" in (*operator.inputs, *operator.outputs), switches.offset, switches.alpha,
        has_residual="residual" in operator.inputs, modulated=0 < axes < getattr(gamma, "ndim", 0),
        norm_before_gate=switches.norm_before_gate,
    )  # fmt: skip
    problem, arrays = describe(operator, arrays, shape, mask, out, normalization, switches.completes_mean)
    check_elements(problem, arrays, out)
    is_torchs = problem.kind == "torch" and problem.device == "cpu"  # torch's own threads do the work
    return calls.keep(key, make_plan(problem, backend, torch_thread_count() if is_torchs else None)), arrays


def _with_axis_last(
    operator: Operator, arrays: tuple[Any, ...], axis: int, normalized_shape: Any
) -> tuple[tuple[Any, ...], int, Shape]:
    """The arguments with an axis of x last, in views; that axis counted from the front; and the shape that is normalized."""
    if normalized_shape is not None:
        raise ShapeError(f"axis: expected no normalized_shape with it, got {normalized_shape}")
    named = dict(zip(operator.inputs, arrays, strict=True))
    x = named["x"] = as_array("x", named["x"])
    if not isinstance(axis, int) or not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"axis: expected one of x's {x.ndim} axes, got {axis}")
    axis %= x.ndim
    for name in operator.inputs:
        if ROLES[name] is Role.TENSOR:
            named[name] = _moved(as_array(name, named[name]), axis, -1)
    return tuple(named.values()), axis, (x.shape[axis],)


def _outputs_moved(operator: Operator, out: Any, source: int, target: int) -> Any:
    """Results, or arrays for them, with an axis moved in views; what is no such tuple is left to the checks."""
    if not isinstance(out, tuple) or len(out) != len(operator.outputs):
        return out
    pairs = zip(operator.outputs, out, strict=True)
    return operator.results(
        *(array if ROLES[name] is Role.PARAMETER else _moved(array, source, target) for name, array in pairs)
    )


def _moved(array: Any, source: int, target: int) -> Any:
    """A view; None and what has fewer axes are left to the checks."""
    if array is None or not -array.ndim <= source < array.ndim:
        return array
    if not isinstance(array, np.ndarray):
        return array.movedim(source, target)
    order = list(range(array.ndim))  # np.moveaxis takes 4 µs
    order.insert(target % array.ndim, order.pop(source))
    return array.transpose(order)


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
        As BoundCall.run.
    """
    split = len(plan.problem.inputs)
    return tuple(calls.bound(plan).run(inputs[:split], inputs[split:], out, workspace))
