"""The public functions: JAX's arguments turned into facts, and checked when a call is traced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lngrad.core.arrays import ArraySpec, refuse_sizes, require_memory
from lngrad.core.problem import (
    GATED_FORWARD,
    Forward,
    ForwardWithTotal,
    Grads,
    Normalization,
    RmsForward,
    RmsGrads,
    describe,
    epsilon,
    operator_of,
)
from lngrad.errors import DtypeError, ShapeError, install_command
from lngrad.support.dtypes import ACCUMULATORS, UNIT_ROUNDOFF

try:
    import jax
    import jax.numpy as jnp
    from jax.typing import ArrayLike
except ImportError as reason:
    raise ImportError(f"lngrad.jax: expected jax 0.10 or later, got none: {install_command('jax')}") from reason
if not hasattr(jax.sharding, "ManualAxisType"):
    raise ImportError(f"lngrad.jax: expected jax 0.10 or later, got {jax.__version__}: {install_command('jax')}")

from lngrad.jax import derivatives, operators
from lngrad.jax.meshes import check_axis, on_shards, refuse_sharded, vary_together
from lngrad.jax.operators import AxisName


def layer_norm(
    x: ArrayLike, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, *, eps: float | jax.Array = 1e-5,
    offset: float = 0.0, normalized_shape: int | Sequence[int] | None = None, axis: int | None = None,
    axis_name: AxisName = None,
) -> jax.Array:  # fmt: skip
    """Layer normalization: y = (x - mean)·rstd·gamma + beta, with rstd = 1/sqrt(variance + eps).

    It can be jitted, batched, rematerialized, scanned over, sharded with jax.shard_map, and differentiated in forward and
    reverse mode to any order.

    Args:
        x: (*A, *R), 1 to 8 dimensions, float16, bfloat16, float32 or float64.
        gamma, beta: (*R) in any of these dtypes. One in float64, or x, has the call computed in it. None: 1 and 0.
        eps: Added to the biased variance of a row. A number runs our kernels. A traced value of no dimensions is computed by
            a formula of jax.numpy, and can be differentiated too.
        offset: Added to gamma, or to the 1 in its place: 1 for weights that are stored around zero.
        normalized_shape: R. None: gamma's shape, or the last axis.
        axis: Normalize over this axis alone, in place of the last ones: 1 for channels first. gamma and beta have its size.
        axis_name: Inside jax.shard_map, the axis of the mesh that rows are cut along (or several, the slowest first): x, gamma
            and beta are then this device's part of R along its first dimension, and statistics are those of whole rows. With
            explicit axes None: types tell. On the CPU y and all gradients have the bits of one device where each has a multiple
            of 512 elements of a row; otherwise, and elsewhere, they are summed over the axis by a formula.

    Returns:
        (*A, *R) in x's dtype. On the CPU it and its gradients have the bits of lngrad.layer_norm and
        lngrad.layer_norm_backward. Gradients come in the dtype of what they belong to.

    Raises:
        ShapeError, DtypeError, NumberError: An argument breaks a rule; all have their usual Python base, ValueError or
            TypeError. They are raised when the call is traced.
    """
    x, normalized_shape = _with_axis_last(x, axis, normalized_shape)
    y, _ = _normalized(Normalization.of(True, offset), eps, normalized_shape, axis_name, x=x, gamma=gamma, beta=beta)
    return y if axis is None else jnp.moveaxis(y, -1, axis)


def rms_norm(
    x: ArrayLike, gamma: ArrayLike | None = None, *, eps: float | jax.Array | None = None, offset: float = 0.0,
    normalized_shape: int | Sequence[int] | None = None, axis: int | None = None, axis_name: AxisName = None,
) -> jax.Array:  # fmt: skip
    """RMS normalization: y = x·rstd·(offset + gamma), with rstd = 1/sqrt(mean of x² + eps).

    It can be transformed as layer_norm can.

    Args:
        x, gamma, normalized_shape, axis, axis_name: As for layer_norm.
        eps: Added to the mean of the squares of a row; as for layer_norm. None: the machine epsilon of float32 (1.2e-7), or of
            float64 if x is, as for lngrad.rms_norm.
        offset: Added to gamma, or to the 1 in its place: 1 for weights that are stored around zero, as Gemma's.

    Returns:
        (*A, *R) in x's dtype. On the CPU it and its gradients have the bits of lngrad.rms_norm and lngrad.rms_norm_backward.

    Raises:
        ShapeError, DtypeError, NumberError: As for layer_norm.
    """
    x, normalized_shape = _with_axis_last(x, axis, normalized_shape)
    y, _ = _normalized(Normalization.of(False, offset), eps, normalized_shape, axis_name, x=x, gamma=gamma)
    return y if axis is None else jnp.moveaxis(y, -1, axis)


def _with_axis_last(x: Any, axis: int | None, normalized_shape: Any) -> tuple[Any, Any]:
    """x with an axis last, and the shape that is normalized."""
    if axis is None:
        return x, normalized_shape
    if normalized_shape is not None:
        raise ShapeError(f"axis: expected no normalized_shape with it, got {normalized_shape}")
    if not isinstance(axis, int) or not -jnp.ndim(x) <= axis < jnp.ndim(x):
        raise ShapeError(f"axis: expected one of x's {jnp.ndim(x)} axes, got {axis}")
    return jnp.moveaxis(jnp.asarray(x), axis, -1), jnp.shape(x)[axis]


def add_layer_norm(
    x: ArrayLike, residual: ArrayLike, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, *,
    eps: float | jax.Array = 1e-5, offset: float = 0.0, alpha: float = 1.0,
    normalized_shape: int | Sequence[int] | None = None, axis_name: AxisName = None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Layer normalization of alpha·x + residual, and that total itself, for a residual stream.

    Args:
        x, gamma, beta, eps, offset, normalized_shape, axis_name: As for layer_norm.
        residual: (*A, *R) in x's dtype, or in float32 beside 16 bits.
        alpha: The factor of x, as DeepNorm has it.

    Returns:
        (y, total), (*A, *R) in x's dtype and in the residual's; y is that of the total as it is rounded. Its gradients have the
        bits of lngrad.layer_norm_backward with dtotal; dx is that of the total times alpha.

    Raises:
        ShapeError, DtypeError, NumberError: As for layer_norm.
    """
    switches = Normalization.of(True, offset, alpha, has_residual=True)
    return _normalized(  # type: ignore[no-any-return]
        switches, eps, normalized_shape, axis_name, x=x, gamma=gamma, beta=beta, residual=residual
    )


def add_rms_norm(
    x: ArrayLike, residual: ArrayLike, gamma: ArrayLike | None = None, *, eps: float | jax.Array | None = None,
    offset: float = 0.0, alpha: float = 1.0, normalized_shape: int | Sequence[int] | None = None,
    axis_name: AxisName = None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """RMS normalization of alpha·x + residual, and that total itself, for a residual stream: (y, total).

    x, gamma, eps, offset, normalized_shape and axis_name are as for rms_norm; residual, alpha, results and errors as for
    add_layer_norm.
    """
    switches = Normalization.of(False, offset, alpha, has_residual=True)
    return _normalized(  # type: ignore[no-any-return]
        switches, eps, normalized_shape, axis_name, x=x, gamma=gamma, residual=residual
    )


def gated_rms_norm(
    x: ArrayLike, gate: ArrayLike, gamma: ArrayLike | None = None, *, eps: float | None = None, offset: float = 0.0,
    norm_before_gate: bool = True,
) -> jax.Array:  # fmt: skip
    """rms_norm times silu(gate), rounded once; or with norm_before_gate=False rms_norm of x·silu(gate), as in Mamba 2.

    x, gamma, eps (a number) and offset, the bits and errors are those of rms_norm; gate is as x. It can be jitted, batched
    (groups of columns by jax.vmap over them and their gammas), and differentiated in reverse mode to any order, and forward
    over reverse.
    """
    x, gamma, gate = _arrays(x=x, gamma=gamma, gate=gate)
    refuse_sharded("x, gamma, gate", x, gamma, gate)
    normalization = Normalization.of(False, offset, norm_before_gate=norm_before_gate)
    facts = tuple(map(_facts, (x, gamma, gate)))
    problem, _ = describe(GATED_FORWARD, facts, None, GATED_FORWARD.everything, None, normalization)
    number = 2 * UNIT_ROUNDOFF[ACCUMULATORS[problem.dtype]] if eps is None else epsilon(eps)
    return derivatives.gated(*vary_together(x, gamma, gate), (len(problem.normalized_shape), number, normalization))


def modulated_layer_norm(
    x: ArrayLike, scale: ArrayLike, shift: ArrayLike | None = None, *, eps: float | jax.Array = 1e-5
) -> jax.Array:
    """Adaptive layer normalization (AdaLN): layer_norm of the last axis, times 1 + scale, plus shift, rounded once.

    Args:
        x: (*A, N), as for layer_norm.
        scale, shift: One row for each sample, in any of the dtypes: (*S, N) or (*S, 1, …, 1, N), S being the first dimensions
            of A, as (B, N) and (B, 1, N) for (B, T, N). No shift: 0.
        eps: As for layer_norm.

    Returns:
        (*A, N) in x's dtype. It can be transformed as layer_norm can, but for axis_name and explicit axes. On the CPU it and
        its gradients have the bits of lngrad.layer_norm with a gamma of each sample.

    Raises:
        ShapeError, DtypeError, NumberError: As for layer_norm.
    """
    return _modulated(True, eps, x=x, gamma=scale, beta=shift)


def modulated_rms_norm(x: ArrayLike, scale: ArrayLike, *, eps: float | jax.Array | None = None) -> jax.Array:
    """rms_norm of the last axis, times 1 + scale, as modulated_layer_norm; eps and the bits are those of rms_norm."""
    return _modulated(False, eps, x=x, gamma=scale)


def _modulated(centred: bool, eps: Any, **arguments: Any) -> jax.Array:
    """A batch of samples, each normalized by itself."""
    x, *parameters = _arrays(**arguments)
    refuse_sharded("x, scale, shift", x, *parameters)
    for k, array in enumerate(parameters):
        if array is not None and 1 < array.ndim < x.ndim:
            parameters[k] = array.reshape(*array.shape[:-1], *(1,) * (x.ndim - array.ndim), array.shape[-1])
    normalization = Normalization.of(centred, 1.0, modulated=True)
    operator, facts = operator_of("forward", normalization), tuple(map(_facts, (x, *parameters)))
    problem, _ = describe(operator, facts, x.shape[-1:], operator.everything, None, normalization)

    def of_sample(*arrays: Any) -> Any:
        alone, named = normalization._replace(modulated=False), dict(zip(arguments, arrays, strict=True))
        y, _ = _normalized(alone, eps, problem.normalized_shape, None, **named)
        return y

    shape = problem.samples, problem.M // max(problem.samples, 1), problem.N
    samples, _, N = shape
    own = [None if array is None else array.reshape(samples, N) for array in parameters]
    return jax.vmap(of_sample)(x.reshape(shape), *own).reshape(x.shape)


def _normalized(
    normalization: Normalization, eps: Any, normalized_shape: int | Sequence[int] | None, axis_name: AxisName,
    statistics: bool = False, **arguments: Any,
) -> Any:  # fmt: skip
    """y and total, None without a residual, or with statistics all results, of the operator's arguments in its order."""
    check_axis(axis_name)
    operator = operator_of("forward", normalization, residual="residual" in arguments)
    arrays = dict(zip(arguments, _arrays(**arguments), strict=True))
    described = tuple(map(_facts, arrays.values()))
    problem, _ = describe(operator, described, normalized_shape, operator.everything, None, normalization)
    normalized = len(problem.normalized_shape)
    x, gamma, beta, residual = map(arrays.get, ("x", "gamma", "beta", "residual"))
    if statistics:
        refuse_sharded(", ".join(arrays), *arrays.values())

    def chosen(results: Any) -> Any:
        named = dict(zip(("y", "mean", "rstd", "total"), results, strict=True))
        return operator.results(*map(named.get, operator.outputs)) if statistics else (named["y"], named["total"])

    if eps is None and not normalization.centred:
        eps = 2 * UNIT_ROUNDOFF[ACCUMULATORS[problem.dtype]]
    if not isinstance(eps, jax.core.Tracer):
        number = epsilon(eps)

        def of_shards(x: Any, residual: Any, gamma: Any, beta: Any, axis: AxisName) -> Any:
            return chosen(derivatives.forward(x, gamma, beta, residual, normalized, number, normalization, axis))

        return on_shards(of_shards, normalized, axis_name, x, residual, gamma, beta)
    if eps.ndim or not jnp.issubdtype(eps.dtype, jnp.floating):
        raise DtypeError(f"eps: expected a float of no dimensions, got {eps.dtype} of shape {eps.shape}")
    eps = eps.astype(operators.accumulator(x, gamma, beta))
    return chosen(
        operators.forward_formula(
            x, gamma, beta, residual, normalized=normalized, eps=eps, normalization=normalization, axis=axis_name
        )
    )


def layer_norm_forward(
    x: ArrayLike, gamma: ArrayLike | None = None, beta: ArrayLike | None = None, *, eps: float | jax.Array = 1e-5,
    offset: float = 0.0, residual: ArrayLike | None = None, alpha: float = 1.0,
    normalized_shape: int | Sequence[int] | None = None, axis_name: AxisName = None,
) -> Forward | ForwardWithTotal:  # fmt: skip
    """y, mean and rstd of layer_norm, or with a residual of add_layer_norm and its total: what layer_norm_backward takes.

    The arguments and errors are those of the two. Arrays that are explicitly sharded are refused, as by layer_norm_backward.

    Returns:
        y (*A, *R) in x's dtype; mean, rstd (*A, 1, …, 1) in float32, or float64 if an input is; total as of add_layer_norm.
    """
    added = {} if residual is None else {"residual": residual}
    normalization = Normalization.of(True, offset, alpha, has_residual=bool(added))
    arrays = {"x": x, "gamma": gamma, "beta": beta, **added}
    return _normalized(normalization, eps, normalized_shape, axis_name, True, **arrays)  # type: ignore[no-any-return]


def rms_norm_forward(
    x: ArrayLike, gamma: ArrayLike | None = None, *, eps: float | jax.Array | None = None, offset: float = 0.0,
    residual: ArrayLike | None = None, alpha: float = 1.0, normalized_shape: int | Sequence[int] | None = None,
    axis_name: AxisName = None,
) -> RmsForward:  # fmt: skip
    """y and rstd of rms_norm, or with a residual of add_rms_norm and its total; as layer_norm_forward."""
    added = {} if residual is None else {"residual": residual}
    normalization = Normalization.of(False, offset, alpha, has_residual=bool(added))
    return _normalized(  # type: ignore[no-any-return]
        normalization, eps, normalized_shape, axis_name, True, x=x, gamma=gamma, **added
    )


def layer_norm_backward(
    dy: ArrayLike, x: ArrayLike, mean: ArrayLike, rstd: ArrayLike, gamma: ArrayLike | None = None, *,
    normalized_shape: int | Sequence[int] | None = None, offset: float = 0.0, dtotal: ArrayLike | None = None,
    output_mask: Sequence[bool] = (True, True, True), axis_name: AxisName = None,
) -> Grads:  # fmt: skip
    """lngrad.layer_norm_backward for JAX: whatever layer_norm can be, this can be too, but for explicitly sharded arrays.

    Go into jax.shard_map with those; gradients of layer_norm itself take them as they are.

    Args:
        dy, x: (*A, *R), the same shape and dtype; x is the total after a forward with a residual.
        mean, rstd: One element per row, as layer_norm_forward returns.
        gamma: (*R) or None.
        normalized_shape: R. None: gamma's shape, or the last axis.
        offset: That of the forward.
        dtotal: (*A, *R) in x's dtype or None: the gradient of a total that was used besides, added to dx before it is rounded.
        output_mask: Which of dx, dgamma, dbeta are wanted; the others are None.
        axis_name: As for layer_norm.

    Raises:
        ShapeError, DtypeError, NumberError: As for layer_norm.
    """
    arguments = {"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma, "dtotal": dtotal}
    return _gradients(Normalization.of(True, offset), normalized_shape, output_mask, axis_name, arguments)  # type: ignore[no-any-return]


def rms_norm_backward(
    dy: ArrayLike, x: ArrayLike, rstd: ArrayLike, gamma: ArrayLike | None = None, *,
    normalized_shape: int | Sequence[int] | None = None, offset: float = 0.0, dtotal: ArrayLike | None = None,
    output_mask: Sequence[bool] = (True, True), axis_name: AxisName = None,
) -> RmsGrads:  # fmt: skip
    """lngrad.rms_norm_backward for JAX; the arguments, what it can be and the errors are those of layer_norm_backward.

    Args:
        output_mask: Which of dx, dgamma are wanted; the other is None.
    """
    arguments = {"dy": dy, "x": x, "rstd": rstd, "gamma": gamma, "dtotal": dtotal}
    return _gradients(Normalization.of(False, offset), normalized_shape, output_mask, axis_name, arguments)  # type: ignore[no-any-return]


def _gradients(
    normalization: Normalization, normalized_shape: int | Sequence[int] | None, output_mask: Sequence[bool],
    axis_name: AxisName, arguments: dict[str, Any],
) -> Any:  # fmt: skip
    """The operator's results, None where not wanted, of its arguments in its order, dtotal last."""
    check_axis(axis_name)
    if arguments["dtotal"] is None:
        del arguments["dtotal"]
    operator = operator_of("backward", normalization, residual="dtotal" in arguments)
    arrays = dict(zip(arguments, _arrays(**arguments), strict=True))
    problem, _ = describe(
        operator, tuple(map(_facts, arrays.values())), normalized_shape, output_mask, None, normalization
    )
    refuse_sharded(", ".join(arrays), *arrays.values())
    dy, x, mean, rstd, gamma, dtotal = vary_together(*map(arrays.get, ("dy", "x", "mean", "rstd", "gamma", "dtotal")))
    dtype, wanted = (x if gamma is None else gamma).dtype, tuple(name in problem.wanted for name in Grads._fields)
    static = len(problem.normalized_shape), wanted, (dtype, dtype), normalization, axis_name
    grads = dict(zip(Grads._fields, derivatives.backward(dy, x, mean, rstd, gamma, dtotal, *static), strict=True))
    return operator.results(*map(grads.get, operator.outputs))


def _arrays(**arrays: Any) -> Iterator[Any]:
    """JAX's arrays; what comes from elsewhere is checked for memory first, because JAX would read it as it is."""
    for name, array in arrays.items():
        refuse_sizes(name, array)
        require_memory(name, array)
        yield None if array is None else jnp.asarray(array)


def _facts(array: jax.Array | None) -> ArraySpec | None:
    if array is None:
        return None
    return ArraySpec(array.shape, array.dtype.name, (0,) * array.ndim, "cpu", "numpy")
