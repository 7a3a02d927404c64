"""Inputs, tolerances and the comparators: one of each, for our tests, our command line and our users."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import default_rng  # a fork beside NumPy's own first import of it would leave the child waiting

from lngrad.core import problem, reference
from lngrad.core.problem import LAYER_NORM, Forward, ForwardWithTotal, Grads, Normalization, RmsForward, RmsGrads
from lngrad.core.reference import Terms, backward_terms
from lngrad.support.addresses import as_numpy
from lngrad.support.dtypes import DTYPES, SMALLEST, UNIT_ROUNDOFF, accumulator_for, numpy_dtype, rounded
from lngrad.typing import Mask

__all__ = [
    "CASES", "TOLERANCES", "UNIT_ROUNDOFF", "Case", "GradientError", "Inputs", "Normalization", "check_forward",
    "check_grads", "check_same_bits", "error_share", "error_shares", "gradient_scales", "make_inputs",
    "terms_of",
]  # fmt: skip


class GradientError(AssertionError):
    """A result differs from what it should be; the text says which one, where, and by how much."""


@dataclass(frozen=True)
class Case:
    """A shape to be tested or timed.

    Attributes:
        lead, normalized: x has the shape (*lead, *normalized).
        offset, spread: x is offset + spread·noise, and each row has an offset of its own besides.
        gamma: Whether there is one.
        gamma_dtype, statistics_dtype: None for x's dtype, and for the accumulator's.
    """

    lead: tuple[int, ...]
    normalized: tuple[int, ...]
    offset: float = 0.5
    spread: float = 2.0
    gamma: bool = True
    gamma_dtype: str | None = None
    statistics_dtype: str | None = None

    def __str__(self) -> str:
        return "x".join(map(str, self.lead)) + "|" + "x".join(map(str, self.normalized))


# Every row loop, tail, remainder and regime of the kernels has a case here; the comment says which.
CASES = (
    Case((1,), (1,)),  # the smallest: dx and dgamma are exactly zero
    Case((130,), (1,)),  # N = 1 over three chunks
    Case((67,), (7,)),  # rows shorter than a vector, with lanes left over
    Case((5, 13), (3,)),
    Case((64,), (8,)),  # exactly one vector and one chunk
    Case((131,), (13,)),  # a vector and a tail, eight rows at a time and a rest
    Case((66,), (37,)),
    Case((3, 5, 7), (4, 6)),
    Case((257,), (64,)),
    Case((100,), (129,), gamma=False),
    Case((70,), (300,)),  # fewer rows at a time
    Case((65,), (1000,), offset=3.0),
    Case((2, 3, 2), (2, 5, 31)),
    Case((200,), (768,)),
    Case((9,), (4096,)),
    Case((6,), (5003,)),  # nine segments, the last the longest
    Case((4,), (8197,)),  # sixteen segments, by columns where there are threads
    Case((130,), (8200,)),  # three chunks by columns
    Case((3,), (20011,)),
    Case((1, 1, 1, 2, 1, 3, 1), (5,)),  # eight dimensions
    Case((96,), (40,), offset=1000.0, spread=1.0),  # cancellation, were it not centred
)


@dataclass(frozen=True)
class Inputs:
    """Arguments of a forward and its backward: NumPy arrays, rounded to their dtypes; mean and rstd are the total's.

    Attributes:
        normalized: How many dimensions are normalized.
        normalization: Which one it is. Where it is not centred, mean is 0 and beta None.
        residual: What the forward adds to alpha·x, or None.
        dtotal: The gradient of that total where it was used besides, or None.
        gate: What y, or x, is multiplied with silu of, or None.
    """

    dy: Any
    x: Any
    mean: Any
    rstd: Any
    gamma: Any
    beta: Any
    normalized: int
    normalization: Normalization = LAYER_NORM
    residual: Any = None
    dtotal: Any = None
    gate: Any = None

    @property
    def total(self) -> Any:
        """What is normalized, and the backward's x: alpha·x + residual in the residual's dtype, or x itself."""
        if self.residual is None:
            return self.x
        return rounded(reference.total(self.x, self.residual, normalization=self.normalization), self.residual.dtype)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """dy, the total, mean, rstd and gamma: what layer_norm_backward takes, in its order."""
        return self.dy, self.total, self.mean, self.rstd, self.gamma

    @property
    def normalized_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[self.x.ndim - self.normalized :])


def make_inputs(
    case: Case, dtype: str, seed: int = 0, *, normalization: Normalization = LAYER_NORM, residual: bool | str = False,
    gated: bool = False,
) -> Inputs:  # fmt: skip
    """Random inputs: dy, gamma and beta are all different, so that no backward can do without one of them.

    Args:
        case: What shape, and which dtypes besides x's.
        dtype: Of x and dy.
        seed: Equal seeds give equal inputs on every machine.
        normalization: Which one they are for; samples with a gamma of their own are the first dimension of x.
        residual: Whether there is one, with a gradient of the total; or the dtype of both, where that is not x's.
        gated: Whether there is a gate.
    """
    rng = default_rng([seed, *case.lead, *case.normalized])
    shape, wanted = (*case.lead, *case.normalized), numpy_dtype(dtype)
    accumulator = accumulator_for(dtype, case.gamma_dtype or dtype)
    rows = (*case.lead, *(1,) * len(case.normalized))
    noise = rng.standard_normal(shape) + 0.3 * rng.standard_normal(rows)
    x = (case.offset + case.spread * noise).astype(wanted)
    dy = rng.standard_normal(shape).astype(wanted)
    parameter = numpy_dtype(case.gamma_dtype or dtype)
    own = (*case.lead[:1], *(1,) * len(case.lead[1:])) if normalization.modulated else ()
    gamma = (1 + 0.5 * rng.standard_normal((*own, *case.normalized))).astype(parameter) if case.gamma else None
    beta = rng.standard_normal((*own, *case.normalized)).astype(parameter) if case.gamma else None
    of_total = numpy_dtype(residual if isinstance(residual, str) else dtype)
    added = [rng.standard_normal(shape).astype(of_total) for _ in range(2)] if residual else [None, None]
    beta = beta if normalization.has_beta else None
    gate = (2 * rng.standard_normal(shape)).astype(wanted) if gated else None
    inputs = Inputs(dy, x, None, None, gamma, beta, len(case.normalized), normalization, added[0], added[1], gate)
    forward = reference.layer_norm(inputs.total, normalized=inputs.normalized, normalization=normalization, gate=gate)
    statistics = numpy_dtype(case.statistics_dtype or accumulator)
    return replace(inputs, mean=forward.mean.astype(statistics), rstd=forward.rstd.astype(statistics))


# |error| <= u(result)·|result| + C(accumulator)·u(accumulator)·scale: one rounding, and what the sum before it may lose.
# u is half the distance from 1 to the next number of a dtype, scale the sum of the absolute values of the terms that a
# result is a sum of. C is half of the 64 rows that a column sum adds in sequence, which equal rows come near to (15 seen);
# over CASES with ten random seeds the worst was 3.3 in float32 and 4.7 in float64.
TOLERANCES = {"float32": 32.0, "float64": 32.0}


def gradient_scales(inputs: Inputs, *, rounded_mean: bool = False) -> Any:
    """The sums of the absolute values of the terms of each gradient, as Grads, or with a gate as GatedGrads.

    Args:
        inputs: Of the gradients.
        rounded_mean: Whether the mean may be rounded once more, as by who computes it from x, or x·rstd − mean·rstd.
    """
    dy, xhat, dxhat, rstd = _absolute_terms(inputs)
    rows, axes = _axes(inputs)
    mean_dxhat, mean_dxhat_xhat = (terms.mean(axes, keepdims=True) for terms in (dxhat, dxhat * xhat))
    dx = (dxhat + mean_dxhat if inputs.normalization.centred else dxhat) + xhat * mean_dxhat_xhat
    if rounded_mean:
        shift = np.abs(_float64(inputs.total)).mean(axes, keepdims=True) * rstd
        shift = np.where(np.isfinite(shift), shift, 0.0)  # of a row with an infinity, whose rstd is 0
        # xhat, which may be off by as many roundings of `shift`, stands before the mean and in it.
        accumulator = _accumulator(inputs)
        twice = TOLERANCES[accumulator] * UNIT_ROUNDOFF[accumulator] * shift
        dx += shift * (mean_dxhat_xhat + (xhat + twice) * mean_dxhat)
        xhat = xhat + shift
    dx *= rstd
    if inputs.dtotal is not None:
        dx += np.abs(_float64(inputs.dtotal))
    dgamma = reference.over_rows(dy * xhat, rows, inputs.gamma)
    if inputs.gate is None:
        return Grads(dx, dgamma, reference.over_rows(dy, rows, inputs.gamma))
    of_x, _, (sigmoid, rest) = reference.gate_factors(inputs.gate, inputs.normalization)
    ungated = np.abs(terms_of(replace(inputs, gate=None)).dxhat * xhat)
    of_silu = ungated if inputs.normalization.norm_before_gate else dx * np.abs(_float64(inputs.x))
    steep = of_silu * sigmoid * (1 + np.abs(rest))
    return problem.GatedGrads(dx * np.abs(of_x), dgamma, steep)


def _absolute_terms(inputs: Inputs) -> Terms:
    return Terms(*map(np.abs, terms_of(inputs)))


def terms_of(inputs: Inputs) -> Terms:
    """What the true gradients are made of."""
    facts = {"normalized": inputs.normalized, "normalization": inputs.normalization, "gate": inputs.gate}
    return backward_terms(*inputs.arguments, **facts)


def error_share(got: Any, expected: Any, scale: Any, accumulator: str) -> Any:
    """Element by element, which share of its tolerance an error uses up. Equal infinities and NaNs count as 0.

    Args:
        got: A result in one of the four dtypes.
        expected: The same in float64.
        scale: The sum of the absolute values of its terms, in float64.
        accumulator: The dtype that it was summed in: float32 or float64.
    """
    got = np.asarray(got)
    dtype = got.dtype.name
    with np.errstate(invalid="ignore", over="ignore"):
        wide, of_sums = got.astype(np.float64), TOLERANCES[accumulator] * UNIT_ROUNDOFF[accumulator] * scale
        bound = UNIT_ROUNDOFF[dtype] * np.abs(expected) + of_sums + SMALLEST[dtype]
        share = np.asarray(np.abs(wide - expected) / bound)
        worst = np.max(share, initial=0.0)
        if worst <= 1:  # of a right result: nothing below would change it, and it takes half the time
            return share
        same = wide == np.asarray(expected).astype(got.dtype).astype(np.float64)
    if worst < np.inf:  # and there is no NaN
        return np.where(same, np.minimum(share, 1.0), share)
    same |= np.isnan(wide) & np.isnan(expected)
    most = np.where(np.isnan(share), np.inf, np.minimum(share, np.finfo(share.dtype).max))
    return np.where(same, np.where(share < np.inf, np.minimum(share, 1.0), 0.0), most)


def check_grads(
    got: Grads | RmsGrads | problem.GatedGrads, inputs: Inputs, *, output_mask: Mask | None = None
) -> float:
    """Compare gradients with the float64 reference of the same inputs; return the worst share of the tolerance used.

    Args:
        got: NumPy arrays or CPU tensors; None where masked off. RmsGrads where the inputs' normalization is not centred.
        inputs: What they were computed from.
        output_mask: Which are wanted; None: all.

    Raises:
        GradientError: A result is missing or there although masked off, has another shape, or is wrong.
    """
    added = {"residual": inputs.dtotal is not None, "gate": inputs.gate is not None}
    operator = problem.operator_of("backward", inputs.normalization, **added)
    mask = operator.everything if output_mask is None else output_mask
    expected, scales = _true(inputs)._asdict(), gradient_scales(inputs)._asdict()
    return _check(operator.outputs, got, expected, scales, mask, _accumulator(inputs))


def error_shares(got: Grads, inputs: Inputs) -> Grads:
    """Element by element, which share of its tolerance the error of a gradient uses up. check_grads bounds them by 1.

    Args:
        got: NumPy arrays or CPU tensors, all three.
        inputs: What they were computed from.
    """
    expected, scales, accumulator = _true(inputs)._asdict(), gradient_scales(inputs)._asdict(), _accumulator(inputs)
    shares = (
        error_share(as_numpy(result), expected[name], scales[name], accumulator)
        for name, result in got._asdict().items()
    )
    return Grads(*shares)


def check_forward(got: Forward | ForwardWithTotal | RmsForward, inputs: Inputs, *, eps: float = 1e-5) -> float:
    """Compare a forward with the float64 reference of the same x, gamma, beta and residual; see check_grads.

    With a residual the total is compared first, and the rest with what follows from the total as it is.
    """
    normalization, accumulator, x = inputs.normalization, _accumulator(inputs), _float64(inputs.x)
    added = {"residual": inputs.residual is not None, "gate": inputs.gate is not None}
    operator = problem.operator_of("forward", normalization, **added)
    expected, scales = {}, {}
    if inputs.residual is not None:
        expected["total"] = reference.total(x, inputs.residual, normalization=normalization)
        scales["total"] = np.abs(normalization.alpha * x) + np.abs(_float64(inputs.residual))
        total = dict(zip(operator.outputs, got, strict=True))["total"]
        _check(("total",), (total,), expected, scales, (True,), accumulator)
        x = _float64(as_numpy(total))
    forward = reference.layer_norm(
        x,
        inputs.gamma,
        inputs.beta,
        normalized=inputs.normalized,
        eps=eps,
        normalization=normalization,
        gate=inputs.gate,
    )
    expected |= forward._asdict()
    scales |= forward_scales(replace(inputs, x=x, residual=None, mean=forward.mean, rstd=forward.rstd))
    return _check(operator.outputs, got, expected, scales, operator.everything, accumulator)


def forward_scales(inputs: Inputs) -> dict[str, Any]:
    """The sums of the absolute values of the terms of y, mean, rstd and a total, whose mean and rstd the inputs have."""
    normalization, x = inputs.normalization, _float64(inputs.total)
    _, xhat, _, rstd = _absolute_terms(inputs)
    scale = np.abs(normalization.scale(1.0 if inputs.gamma is None else _float64(inputs.gamma)))
    beta = 0.0 if inputs.beta is None else np.abs(_float64(inputs.beta))
    mean = np.abs(x).mean(_axes(inputs)[1], keepdims=True) if x.size else np.zeros(rstd.shape)
    # The mean is rounded to the accumulator's dtype once, which shifts a row with a large offset by as much.
    shift = mean * rstd if normalization.centred else 0.0
    of_y = np.abs(reference.gate_factors(inputs.gate, normalization)[1])
    scales = {"y": ((xhat + shift) * scale + beta) * of_y, "mean": mean, "rstd": rstd}
    if inputs.residual is not None:
        scales["total"] = np.abs(normalization.alpha * _float64(inputs.x)) + np.abs(_float64(inputs.residual))
    return scales


def _float64(array: Any) -> Any:
    return np.asarray(array).astype(np.float64)


def _accumulator(inputs: Inputs) -> str:
    parameters = (array for array in (inputs.gamma, inputs.beta) if array is not None)
    return accumulator_for(inputs.x.dtype.name, *(array.dtype.name for array in parameters))


def _check(names: Any, got: Any, expected: Any, scales: Any, mask: Mask, accumulator: str) -> float:
    worst = 0.0
    for name, result, wanted in zip(names, got, mask, strict=True):
        if not wanted:
            if result is not None:
                raise GradientError(f"{name}: expected None, as it is masked off, got {type(result).__name__}")
            continue
        if result is None:
            raise GradientError(f"{name}: expected a result, got None")
        result, truth = as_numpy(result), expected[name]
        if result.shape != truth.shape:
            raise GradientError(f"{name}: expected shape {truth.shape}, got {result.shape}")
        if result.dtype.name not in DTYPES:
            raise GradientError(f"{name}: expected one of {', '.join(DTYPES)}, got {result.dtype}")
        if result.size == 0:
            continue
        share = error_share(result, truth, scales[name], accumulator)
        at = np.unravel_index(int(np.argmax(share)), share.shape)
        worst = max(worst, float(share[at]))
        if share[at] > 1:
            wrong = float(np.mean(share > 1))
            raise GradientError(
                f"{name}: {wrong:.2%} of the elements are off; the worst at {tuple(map(int, at))} by "
                f"{share[at]:.3g} tolerances: expected {truth[at]:.9g}, got {float(result[at]):.9g} in {result.dtype}"
            )
    return worst


def check_same_bits(got: Any, expected: Any) -> None:
    """Compare two arrays, or tuples of arrays, bit by bit.

    Raises:
        GradientError: Shape, dtype or a bit differs.
    """
    if isinstance(got, tuple):
        if not isinstance(expected, tuple) or len(got) != len(expected):
            raise GradientError(f"expected {type(expected).__name__}, got {type(got).__name__} of {len(got)}")
        for array, other in zip(got, expected, strict=True):
            check_same_bits(array, other)
        return
    if got is None or expected is None:
        if got is not expected:
            raise GradientError(f"expected {expected}, got {got}")
        return
    got, expected = as_numpy(got), as_numpy(expected)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise GradientError(f"expected {expected.dtype} {expected.shape}, got {got.dtype} {got.shape}")
    unlike = _bits(got) != _bits(expected)
    if unlike.any():
        at = tuple(int(axis[0]) for axis in np.nonzero(unlike))
        raise GradientError(
            f"{int(unlike.sum())} of {unlike.size} elements differ in bits, first at {at}: {got[at]} against {expected[at]}"
        )


def _bits(array: Any) -> Any:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)


def _true(inputs: Inputs) -> Any:
    return reference.layer_norm_backward(
        *inputs.arguments, normalized=inputs.normalized, normalization=inputs.normalization, dtotal=inputs.dtotal,
        gate=inputs.gate,
    )  # fmt: skip


def _axes(inputs: Inputs) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of rows, and those that are normalized."""
    split = inputs.x.ndim - inputs.normalized
    return tuple(range(split)), tuple(range(split, inputs.x.ndim))
