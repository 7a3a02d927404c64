"""The facts of a call, and all checks of them.

A call is described once, here: what is computed, shapes, dtypes, strides, what is wanted. Nothing below this file asks whether
an argument fits, and nothing here touches data. Two calls with equal facts get the same `Problem`, so its plans stay
with it. What differs between operators is a row of a table: an `Operator` names its arrays, `ROLES` says what each is.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import compress
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from lngrad.core.arrays import ArraySpec, Output, array_at, as_array, key_of, require_memory, shares_places, spec_of
from lngrad.errors import DtypeError, NumberError, OverlapError, ShapeError
from lngrad.support.addresses import address_of, as_numpy
from lngrad.support.bounded_cache import BoundedCache, cached_property
from lngrad.support.dtypes import UNIT_ROUNDOFF, accumulator_for, bytes_of
from lngrad.typing import AnyArray, Array, Mask, Shape

Described: TypeAlias = "AnyArray | ArraySpec"  # an array, or facts that stand for one
_MAX_PLANS = 64  # of a problem: one for each number of threads, backend and simulated device that it is computed with
_OrNone: TypeAlias = "tuple[Described | None, ...]"


class Forward(NamedTuple):
    """Results of the forward: y (*A, *R) in x's dtype; mean, rstd (*A, 1, …, 1) in float32, or float64 if an input is."""

    y: Any
    mean: Any
    rstd: Any


class Grads(NamedTuple):
    """Results of the backward: dx (*A, *R); dgamma, dbeta (*R). None where masked off."""

    dx: Any
    dgamma: Any
    dbeta: Any


class ForwardWithTotal(NamedTuple):
    """Results of a forward with a residual: those of Forward; total (*A, *R) = alpha·x + residual in the residual's dtype."""

    y: Any
    mean: Any
    rstd: Any
    total: Any


class RmsForward(NamedTuple):
    """Results of rms_norm: y (*A, *R) in x's dtype; rstd (*A, 1, …, 1) in float32, or float64 if an input is.

    total (*A, *R) = alpha·x + residual in the residual's dtype; None without a residual.
    """

    y: Any
    rstd: Any
    total: Any = None


class RmsGrads(NamedTuple):
    """Results of rms_norm_backward: dx (*A, *R); dgamma (*R). None where masked off."""

    dx: Any
    dgamma: Any


class GatedGrads(NamedTuple):
    """Results of rms_norm_backward with a gate: those of RmsGrads; dgate (*A, *R) in x's dtype."""

    dx: Any
    dgamma: Any
    dgate: Any


class Normalization(NamedTuple):
    """The switches of a normalization. With h = alpha·x + residual: y = (h - mean)·rstd·(offset + gamma) + beta.

    The operator says whether there is a residual (then h is a result) or a gate (y, or x, is multiplied by silu(gate)).

    Attributes:
        centred: Whether mean is that of the row of h; else it is 0.
        offset: Added to gamma: 1 for weights that are stored around zero.
        alpha: The factor of x beside a residual.
        modulated: Whether each sample has a gamma and a beta of its own: (*S, 1, …, 1, *R), S being the first of A.
        norm_before_gate: Whether a gate is a factor of y; else it is one of x.
    """

    centred: bool = True
    offset: float = 0.0
    alpha: float = 1.0
    modulated: bool = False
    norm_before_gate: bool = True

    @staticmethod
    def of(
        centred: bool, offset: object, alpha: object = 1.0, has_residual: bool = False, modulated: bool = False,
        norm_before_gate: bool = True,
    ) -> Normalization:  # fmt: skip
        """The one with these switches.

        Raises:
            NumberError: offset or alpha is not a finite number, or there is an alpha and no residual.
        """
        if (
            type(offset) is type(alpha) is float
            and offset == 0.0
            and alpha == 1.0
            and not modulated
            and norm_before_gate
        ):
            return LAYER_NORM if centred else RMS_NORM
        for name, number in (("offset", offset), ("alpha", alpha)):
            if not isinstance(number, Real) or not math.isfinite(number):
                raise NumberError(f"{name}: expected a finite number, got {number!r}")
        if not has_residual and alpha != 1:
            raise NumberError(f"alpha: expected 1 without a residual, got {alpha!r}")
        return Normalization(centred, float(offset), float(alpha), modulated, norm_before_gate)  # type: ignore[arg-type]  # both are real numbers

    @property
    def has_beta(self) -> bool:
        """Whether a beta is added, and has a gradient: where rows are centred."""
        return self.centred

    def scale(self, gamma: Any) -> Any:
        """The factor of xhat: offset + gamma; gamma itself without an offset, since -0.0 + 0.0 is 0.0."""
        return gamma + self.offset if self.offset else gamma


def number(name: str, value: Any) -> float:
    """A number of Python's, NumPy's or a framework's.

    Raises:
        NumberError: It is none.
    """
    if not isinstance(value, (str, bytes)):
        with suppress(TypeError, ValueError):
            return float(value)
    raise NumberError(f"{name}: expected a number, got {value!r}")


def epsilon(eps: Any) -> float:
    """What is added to a variance.

    Raises:
        NumberError: It is no number, negative, infinite or NaN.
    """
    value = eps if type(eps) is float else number("eps", eps)
    if not 0 <= value < math.inf:
        raise NumberError(f"eps: expected a number that is finite and not negative, got {eps!r}")
    return value


LAYER_NORM = Normalization()
RMS_NORM = Normalization(centred=False)


class Role(Enum):
    """The role of an array in a call, from which its shape and its dtype as a result follow."""

    TENSOR = "(*A, *R) in x's dtype; a residual and a total may have float32 beside 16 bits of x and y"
    STATISTIC = "one element a row, (*A, 1, …, 1) as a result, in the accumulator's dtype"
    PARAMETER = "(*R), or one for each sample, in gamma's dtype, or x's without gamma; may be absent"


ROLES = {
    **dict.fromkeys(("x", "residual", "y", "total", "dy", "dtotal", "dx", "gate", "dgate"), Role.TENSOR),
    **dict.fromkeys(("mean", "rstd", "lost"), Role.STATISTIC),
    **dict.fromkeys(("gamma", "beta", "dgamma", "dbeta"), Role.PARAMETER),
}


@dataclass(frozen=True, eq=False)
class Operator:
    """Arguments and results of one direction of a normalization.

    Attributes:
        direction: Forward or backward.
        inputs: The arrays, by names of ROLES, in the order of a call.
        numbers: What follows the arrays when a plan runs.
        results: The type of the results; its fields are their names.
    """

    direction: Literal["forward", "backward"]
    inputs: tuple[str, ...]
    numbers: tuple[str, ...]
    results: type[Forward | ForwardWithTotal | Grads | RmsForward | RmsGrads | GatedGrads]

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The results by name."""
        return self.results._fields

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Arguments and results of x's shape: what the time of a call grows with."""
        return tuple(name for name in (*self.inputs, *self.outputs) if ROLES[name] is Role.TENSOR)

    def __str__(self) -> str:
        return f"{self.direction} of {', '.join(self.inputs)} to {', '.join(self.outputs)}"

    @cached_property
    def everything(self) -> Mask:
        """The mask with which all results are wanted; there is a total of a residual only."""
        return tuple(name != "total" or "residual" in self.inputs for name in self.outputs)


FORWARD = Operator("forward", ("x", "gamma", "beta"), ("eps",), Forward)
BACKWARD = Operator("backward", ("dy", "x", "mean", "rstd", "gamma"), (), Grads)
ADD_FORWARD = Operator("forward", ("x", "gamma", "beta", "residual"), ("eps",), ForwardWithTotal)
ADD_BACKWARD = Operator("backward", ("dy", "x", "mean", "rstd", "gamma", "dtotal"), (), Grads)
RMS_FORWARD = Operator("forward", ("x", "gamma"), ("eps",), RmsForward)
RMS_BACKWARD = Operator("backward", ("dy", "x", "rstd", "gamma"), (), RmsGrads)
ADD_RMS_FORWARD = Operator("forward", ("x", "gamma", "residual"), ("eps",), RmsForward)
ADD_RMS_BACKWARD = Operator("backward", ("dy", "x", "rstd", "gamma", "dtotal"), (), RmsGrads)
GATED_FORWARD = Operator("forward", ("x", "gamma", "gate"), ("eps",), RmsForward)
GATED_BACKWARD = Operator("backward", ("dy", "x", "rstd", "gamma", "gate"), (), GatedGrads)

# For slices of rows: a slice cannot compute what rounding the mean lost, so it is passed in.
SLICE_BACKWARD = Operator("backward", ("dy", "x", "mean", "rstd", "lost", "gamma"), (), Grads)

# Each with a residual, or with the gradient of its total.
WITH_RESIDUAL = {
    FORWARD: ADD_FORWARD, BACKWARD: ADD_BACKWARD, RMS_FORWARD: ADD_RMS_FORWARD, RMS_BACKWARD: ADD_RMS_BACKWARD,
}  # fmt: skip
WITH_GATE = {RMS_FORWARD: GATED_FORWARD, RMS_BACKWARD: GATED_BACKWARD}


# By an operator without either, whether there is a residual (or the gradient of its total), and whether there is a gate.
EXTENDED = {
    **{(operator, False, False): operator for operator in WITH_RESIDUAL},
    **{(operator, True, False): extended for operator, extended in WITH_RESIDUAL.items()},
    **{(operator, False, True): extended for operator, extended in WITH_GATE.items()},
}
# By direction and whether rows are centred: what a new switch of Normalization chooses an operator by stands here.
_PLAIN = {
    ("forward", True): FORWARD, ("forward", False): RMS_FORWARD, ("backward", True): BACKWARD,
    ("backward", False): RMS_BACKWARD,
}  # fmt: skip


def operator_of(
    direction: Literal["forward", "backward"], normalization: Normalization, *, residual: bool = False, gate: bool = False
) -> Operator:  # fmt: skip
    """The operator of a normalization, with a residual (or the gradient of its total) or a gate.

    Raises:
        KeyError: There is none with both.
    """
    return EXTENDED[_PLAIN[direction, normalization.centred], residual, gate]


@dataclass(frozen=True, eq=False)
class Problem:
    """One normalization, forward or backward, as far as it can be known without data.

    Attributes:
        operator: The names of its arguments and results.
        normalization: Which one is computed.
        lead, normalized_shape: x has the shape (*lead, *normalized_shape).
        M, N: Rows, and normalized elements per row: the products of the two.
        parameters, samples: The shape of gamma and beta, and how many of each there are: one for M/samples rows.
        dtype: Of x, dy, dx, y.
        accumulator: float32, or float64 if x, gamma or beta is: what the call is computed in, statistics and sums too.
        inputs: ArraySpec of every argument by its name, in the order of the call; None for an absent gamma or beta.
        out: ArraySpec of the arrays that the caller brought for results, by name; None where there is none.
        wanted: The names of the results that are wanted.
        completes_mean: Whether a backward may find what its means lost by their rounding. A backend that does not takes them
            as they are.
        kind, device: Of x, and so of the results.
    """

    operator: Operator
    normalization: Normalization
    lead: Shape
    normalized_shape: Shape
    M: int
    N: int
    parameters: Shape
    samples: int
    dtype: str
    accumulator: str
    inputs: dict[str, ArraySpec | None]
    out: dict[str, ArraySpec | None]
    wanted: frozenset[str]
    kind: str
    device: str
    completes_mean: bool = False

    @staticmethod
    def forward(
        x: Described, gamma: Described | None, beta: Described | None,
        normalized_shape: int | Sequence[int] | None = None, out: Forward | None = None,
    ) -> tuple[Problem, tuple[Any, ...]]:  # fmt: skip
        """Check a forward call. Returns the problem and the arguments as arrays, in the order x, gamma, beta."""
        return describe(FORWARD, (x, gamma, beta), normalized_shape, FORWARD.everything, out)

    @staticmethod
    def backward(
        dy: Described, x: Described, mean: Described, rstd: Described, gamma: Described | None,
        normalized_shape: int | Sequence[int] | None = None, output_mask: Sequence[bool] = (True, True, True),
        out: Grads | None = None, completes_mean: bool = False,
    ) -> tuple[Problem, tuple[Any, ...]]:  # fmt: skip
        """Check a backward call. Returns the problem and the arguments as arrays, in the order of the signature."""
        arrays = dy, x, mean, rstd, gamma
        return describe(BACKWARD, arrays, normalized_shape, output_mask, out, completes_mean=completes_mean)

    def numbers(self, numbers: tuple[float | None, ...]) -> tuple[float, ...]:
        """The operator's numbers. An eps of None is torch's since 2.7: the machine epsilon of what sums of x are kept in."""
        return tuple(2 * UNIT_ROUNDOFF[accumulator_for(self.dtype)] if number is None else number for number in numbers)

    @cached_property
    def plans(self) -> BoundedCache[Hashable, Any]:
        """The plans of make_plan, by what they depend on besides."""
        return BoundedCache(_MAX_PLANS)

    def outputs(self) -> tuple[Output | None, ...]:
        """Shape and dtype of each result, None where it is not wanted: the one source for fake kernels and shape inference."""
        return self._outputs

    @cached_property
    def _outputs(self) -> tuple[Output | None, ...]:
        outputs = []
        for name, spec in self.out.items():
            shape, dtype = self.result(name)
            outputs.append(Output.of(shape, spec.dtype if spec else dtype) if name in self.wanted else None)
        return tuple(outputs)

    def result(self, name: str) -> tuple[Shape, str]:
        """A result's shape and dtype, before a given output has its say on the dtype."""
        if ROLES[name] is Role.TENSOR:
            like = self.inputs.get("residual") if name == "total" else None
            return (*self.lead, *self.normalized_shape), like.dtype if like else self.dtype
        if ROLES[name] is Role.STATISTIC:
            return (*self.lead, *(1,) * len(self.normalized_shape)), self.accumulator
        gamma = self.inputs["gamma"]
        return self.parameters, gamma.dtype if gamma else self.dtype


_MAX_PROBLEMS = 4096
_problems: BoundedCache[Hashable, Problem] = BoundedCache(_MAX_PROBLEMS)


def forget() -> None:
    """Let every problem be a first one, without a plan."""
    _problems.clear()


def describe(
    operator: Operator, arguments: _OrNone, normalized_shape: int | Sequence[int] | None, output_mask: Sequence[bool],
    out: tuple[Any, ...] | None, normalization: Normalization = LAYER_NORM, completes_mean: bool = False,
) -> tuple[Problem, tuple[Any, ...]]:  # fmt: skip
    """Check a call. Returns the problem and the arguments as arrays.

    Rules are about facts, so a call is checked when its facts are first seen.
    """
    arrays = _arrays(operator, arguments)
    out_arrays = None if out is None else _out(operator, out)
    shape, wanted = _shape_key(normalized_shape), _mask(operator, output_mask)
    switches = normalization, bool(completes_mean)
    key = operator, switches, *map(key_of, arrays), shape, wanted, out_arrays and tuple(map(key_of, out_arrays))

    def check() -> Problem:
        return _checked(operator, switches, arrays, shape, wanted, out_arrays)

    try:
        problem = _problems.get(key)
    except TypeError:  # sizes of a traced tensor are symbols, which can't be hashed and hold for one trace only
        return check(), arrays
    return problem or _problems.keep(key, check()), arrays


def _arrays(operator: Operator, arguments: _OrNone) -> tuple[Any, ...]:
    for array in arguments:
        if type(array) is not np.ndarray:
            break
    else:
        return arguments
    return tuple(
        None if array is None and ROLES[name] is Role.PARAMETER else as_array(name, array)
        for name, array in zip(operator.inputs, arguments, strict=True)
    )


def _out(operator: Operator, out: tuple[Any, ...]) -> _OrNone:
    names = operator.outputs
    if not isinstance(out, tuple) or len(out) != len(names):
        expected = f"a {operator.results.__name__} of {('two', 'three', 'four')[len(names) - 2]} arrays or None"
        raise ShapeError(f"out: expected {expected}, got {type(out).__name__}")
    return tuple(
        None if array is None else as_array(f"out.{name}", array) for name, array in zip(names, out, strict=True)
    )


def refuse_array(normalized_shape: Any, meant: str) -> None:
    """Refuse an array in the place of a shape: elsewhere, gamma is the second argument."""
    if getattr(normalized_shape, "ndim", 0):
        shape = tuple(normalized_shape.shape)
        raise ShapeError(
            f"normalized_shape: got an array of shape {shape}, {normalized_shape.dtype}; did you mean {meant}=?"
        )


def _shape_key(normalized_shape: int | Sequence[int] | None) -> Shape | None:
    if normalized_shape is None:
        return None
    refuse_array(normalized_shape, "gamma")
    if isinstance(normalized_shape, (int, np.integer)):
        return (int(normalized_shape),)
    shape = tuple(normalized_shape)
    if any(isinstance(size, (float, np.floating)) for size in shape):  # 64.0 is equal to 64: it would be found for that
        raise ShapeError(f"normalized_shape: expected integers, got {shape}")
    return shape


def _mask(operator: Operator, output_mask: Sequence[bool]) -> Mask:
    if output_mask == operator.everything:
        return operator.everything
    mask = tuple(map(bool, output_mask))
    names = operator.outputs
    if len(mask) != len(names):
        raise ShapeError(f"output_mask: expected {len(names)} booleans for {', '.join(names)}, got {len(mask)}")
    return mask


def _checked(
    operator: Operator, switches: tuple[Normalization, bool], arrays: _OrNone, normalized_shape: Shape | None,
    wanted: Mask, out: _OrNone | None,
) -> Problem:  # fmt: skip
    """The problem of a call that breaks no rule."""
    normalization, completes_mean = switches
    if normalization.centred and "mean" not in (*operator.inputs, *operator.outputs):
        raise ValueError("normalization: expected one that is not centred for an operator without a mean")
    inputs = {
        name: None if array is None else spec_of(name, array)
        for name, array in zip(operator.inputs, arrays, strict=True)
    }
    x: ArraySpec = inputs["x"]  # type: ignore[assignment]  # a parameter alone may be absent
    for name, spec in inputs.items():
        if spec is not None and spec.device != x.device:
            raise DtypeError(f"{name}: expected an array on the device of x, {x.device}, got one on {spec.device}")
    lead, R = _split(x, inputs["gamma"], normalized_shape)
    own = _of_samples(inputs["gamma"], lead, R) if normalization.modulated else ()
    for name, spec in inputs.items():
        if spec is not None:
            _check_input(name, spec, x, lead, R, own, operator)
    parameters = [spec.dtype for name, spec in inputs.items() if spec and ROLES[name] is Role.PARAMETER]
    problem = Problem(
        operator=operator, normalization=normalization, lead=lead, normalized_shape=R, M=math.prod(lead),
        N=math.prod(R), parameters=(*own, *R), samples=math.prod(own), dtype=x.dtype,
        accumulator=accumulator_for(x.dtype, *parameters), inputs=inputs, out=dict.fromkeys(operator.outputs),
        wanted=frozenset(compress(operator.outputs, wanted)), kind=x.kind, device=x.device,
        completes_mean=completes_mean,
    )  # fmt: skip
    for name, array in zip(operator.outputs, out or (), strict=out is not None):
        if array is not None and name in problem.wanted:
            problem.out[name] = _checked_out(problem, name, array)
    return problem


def _split(x: ArraySpec, gamma: ArraySpec | None, normalized_shape: Shape | None) -> tuple[Shape, Shape]:
    """x's shape as (lead, normalized)."""
    if not 1 <= len(x.shape) <= 8:
        raise ShapeError(f"x: expected 1 to 8 dimensions, got {len(x.shape)}")
    if normalized_shape is None:
        normalized_shape = x.shape[-1:] if gamma is None else gamma.shape
    if not normalized_shape:
        raise ShapeError("normalized_shape: expected at least 1 dimension, got ()")
    if len(normalized_shape) > len(x.shape) or x.shape[-len(normalized_shape) :] != normalized_shape:
        raise ShapeError(
            f"normalized_shape: expected the last dimensions of x, whose shape is {x.shape}, got {normalized_shape}"
        )
    return x.shape[: -len(normalized_shape)], normalized_shape


def _of_samples(gamma: ArraySpec | None, lead: Shape, R: Shape) -> Shape:
    """Dimensions of gamma before R where each sample has one: the first of x's leading dimensions, and ones; else ()."""
    own = gamma.shape[: len(lead)] if gamma and gamma.shape[len(lead) :] == R else ()
    cut = len(own) - next((k for k, size in enumerate(reversed(own)) if size != 1), len(own))
    if own[:cut] != lead[:cut]:
        raise ShapeError(f"gamma: expected the first of x's dimensions {lead}, ones and {R}, got {(*own, *R)}")
    return own


def _may_be_wider(operator: Operator, name: str, spec: ArraySpec, x: ArraySpec) -> bool:
    """Whether a stream of totals is kept in float32 beside 16 bits of what is added to it, and of y."""
    if name == "residual":
        return spec.dtype == "float32" and bytes_of(x.dtype) == 2
    return name == "dy" and "dtotal" in operator.inputs and x.dtype == "float32" and bytes_of(spec.dtype) == 2


def _check_input(
    name: str, spec: ArraySpec, x: ArraySpec, lead: Shape, R: Shape, own: Shape, operator: Operator
) -> None:
    role, M = ROLES[name], math.prod(lead)
    if role is Role.TENSOR and spec.shape != x.shape:
        raise ShapeError(f"{name}: expected the shape of x, {x.shape}, got {spec.shape}")
    if role is Role.TENSOR and spec.dtype != x.dtype and not _may_be_wider(operator, name, spec, x):
        raise DtypeError(f"{name}: expected the dtype of x, {x.dtype}, got {spec.dtype}")
    if role is Role.STATISTIC and math.prod(spec.shape) != M:
        elements = f"{M} element{'s' if M != 1 else ''}"
        raise ShapeError(
            f"{name}: expected {elements}, one per row of x {x.shape} normalized over {R}, got shape {spec.shape}"
        )
    if role is Role.PARAMETER and spec.shape != (*own, *R):
        expected = f"the shape of gamma, {(*own, *R)}" if own else f"the normalized shape {R}"
        raise ShapeError(f"{name}: expected {expected}, got {spec.shape}")


def _checked_out(problem: Problem, name: str, array: Described) -> ArraySpec:
    """A given output: tensors have their own dtype; the others may have any of the four, and are rounded to it once."""
    spec, (shape, dtype) = spec_of(f"out.{name}", array), problem.result(name)
    if spec.shape != shape:
        raise ShapeError(f"out.{name}: expected shape {shape}, got {spec.shape}")
    if spec.device != problem.device:
        raise DtypeError(
            f"out.{name}: expected an array on the device of x, {problem.device}, got one on {spec.device}"
        )
    if ROLES[name] is Role.TENSOR and spec.dtype != dtype:
        of = "x" if dtype == problem.dtype else "residual"
        raise DtypeError(f"out.{name}: expected the dtype of {of}, {dtype}, got {spec.dtype}")
    if shares_places(spec.shape, spec.strides, bytes_of(spec.dtype)):
        raise ShapeError(f"out.{name}: expected a place of its own for every element, got strides {spec.strides}")
    return spec


# --- Memory ---------------------------------------------------------------------------------------------------------


def check_elements(problem: Problem, arrays: Sequence[Any], out: Sequence[Any] | None) -> None:
    """Refuse arguments and given outputs whose elements do not all lie in memory; see require_memory."""
    for name, array in zip(problem.inputs, arrays, strict=True):
        require_memory(name, array)
    for name, array in zip(problem.out, out or (), strict=False):
        require_memory(f"out.{name}", array)


_MAX_WORK = 1000  # of numpy.shares_memory; a pair too entangled to be told apart is refused


def check_memory(problem: Problem, inputs: Sequence[AnyArray | None], out: Sequence[AnyArray | None]) -> None:
    """Refuse outputs that can't be written, or share memory with an input or another output.

    A tensor may replace one that goes in as a whole, since every element is read before it is written.

    Raises:
        OverlapError: Naming both arrays.
    """
    tensors = problem.operator.tensors
    outputs = [
        (name, array)
        for name, array in zip(problem.out, out, strict=True)
        if name in problem.wanted and array is not None
    ]
    for position, (name, array) in enumerate(outputs):
        view = _view(array, problem.device)
        if not view.flags.writeable:
            raise OverlapError(f"out.{name}: expected a writable array, got a read-only one")
        replaced = [other for other in problem.inputs if other in tensors] if name in tensors else []
        for other_name, other in zip(problem.inputs, inputs, strict=False):
            if other is None or (other_name in replaced and same_array(array, other)):
                continue
            if shares_memory(view, _view(other, problem.device)):
                raise OverlapError(
                    f"out.{name}: shares memory with {other_name}; an output may take the place of an input only as a "
                    f"whole, with the same strides (out.{name}: {' or '.join(replaced) or 'none'})"
                )
        for other_name, other in outputs[:position]:
            if shares_memory(view, _view(other, problem.device)):
                raise OverlapError(f"out.{name}: shares memory with out.{other_name}")


def _view(array: AnyArray, device: str) -> Array:
    """An array as NumPy sees its memory; on another device than the CPU its elements must not be read."""
    return as_numpy(array) if device == "cpu" else array_at(address_of(array), spec_of("array", array))


def same_array(array: AnyArray, other: AnyArray) -> bool:
    """Whether two arrays are the same elements in the same places."""
    return array is other or (address_of(array) == address_of(other) and key_of(array) == key_of(other))


def shares_memory(array: Array, other: Array) -> bool:
    """Whether two arrays have an element in common, or can't be told apart with bounded work."""
    if not np.may_share_memory(array, other):
        return False
    try:
        return bool(np.shares_memory(array, other, max_work=_MAX_WORK))  # type: ignore[arg-type]  # any int is taken
    except Exception as reason:  # numpy.exceptions.TooHardError since 1.25, elsewhere before
        if type(reason).__name__ != "TooHardError":
            raise
        return True
