"""The facts of a call, and all checks of them.

A call is described once, here: shapes, dtypes, strides, what is wanted. Nothing below this file asks whether an argument
fits, and nothing here touches data. Two calls with equal facts get the same `Problem`, so a plan is looked up by identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

from numpy import ndarray

from lngrad.core.arrays import ArraySpec, Output, as_array, key_of, spec_of
from lngrad.core.bounded_cache import BoundedCache
from lngrad.core.dtypes import accumulator_for
from lngrad.errors import DtypeError, ShapeError
from lngrad.typing import AnyArray, Mask, Shape

Described: TypeAlias = "AnyArray | ArraySpec"  # an array, or facts that stand for one
_Given: TypeAlias = "tuple[Described | None, ...] | None"  # the caller's arrays for results


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


_BACKWARD_INPUTS = ("dy", "x", "mean", "rstd", "gamma")


@dataclass(frozen=True, eq=False)
class Problem:
    """One layer normalization, forward or backward, as far as it can be known without data.

    Attributes:
        op: Which of the two.
        lead, normalized_shape: x has the shape (*lead, *normalized_shape).
        M, N: Rows, and normalized elements per row: the products of the two.
        dtype: Of x, dy, dx, y.
        accumulator: float32, or float64 if x, gamma or beta is: what the call is computed in, statistics and sums too.
        inputs: ArraySpec of every argument by its name, in the order of the call; None for an absent gamma or beta.
        out: ArraySpec of the arrays that the caller brought for results, by name; None where there is none.
        wanted: For each result, whether it is wanted.
        kind, device: Of x, and so of the results.
    """

    op: Literal["forward", "backward"]
    lead: Shape
    normalized_shape: Shape
    M: int
    N: int
    dtype: str
    accumulator: str
    inputs: dict[str, ArraySpec | None]
    out: dict[str, ArraySpec | None]
    wanted: Mask
    kind: str
    device: str

    @staticmethod
    def forward(
        x: Described,
        gamma: Described | None,
        beta: Described | None,
        normalized_shape: int | Sequence[int] | None = None,
        out: Forward | None = None,
    ) -> tuple[Problem, tuple[Any, ...]]:
        """Check a forward call. Returns the problem and the arguments as arrays, in the order x, gamma, beta."""
        arrays = _arrays(("x", "gamma", "beta"), (x, gamma, beta))
        given = _out(Forward, out)
        shape = _shape_key(normalized_shape)
        key = "forward", *map(key_of, arrays), shape, given and tuple(map(key_of, given))
        return _known(key, lambda: _check_forward(arrays, normalized_shape=shape, given=given)), arrays

    @staticmethod
    def backward(
        dy: Described,
        x: Described,
        mean: Described,
        rstd: Described,
        gamma: Described | None,
        normalized_shape: int | Sequence[int] | None = None,
        output_mask: Sequence[bool] = (True, True, True),
        out: Grads | None = None,
    ) -> tuple[Problem, tuple[Any, ...]]:
        """Check a backward call. Returns the problem and the arguments as arrays, in the order of the signature."""
        arrays = _arrays(_BACKWARD_INPUTS, (dy, x, mean, rstd, gamma))
        given = _out(Grads, out)
        shape, wanted = _shape_key(normalized_shape), _mask(output_mask)
        key = "backward", *map(key_of, arrays), shape, wanted, given and tuple(map(key_of, given))
        return _known(key, lambda: _check_backward(arrays, normalized_shape=shape, given=given, wanted=wanted)), arrays

    def outputs(self) -> tuple[Output | None, Output | None, Output | None]:
        """Shape and dtype of each result, None where it is not wanted: the one source for fake kernels and shape inference."""
        return self._outputs

    @cached_property
    def _outputs(self) -> tuple[Output | None, Output | None, Output | None]:
        expected = _expected(self)
        return tuple(  # type: ignore[return-value]
            Output.of(output.shape, facts.dtype if facts else output.dtype) if wanted else None
            for output, facts, wanted in zip(expected, self.out.values(), self.wanted, strict=True)
        )


def _expected(problem: Problem) -> tuple[Output, Output, Output]:
    """The results' shapes and dtypes, before a given output has its say on the dtype."""
    full = Output.of((*problem.lead, *problem.normalized_shape), problem.dtype)
    if problem.op == "forward":
        statistics = Output.of((*problem.lead, *(1,) * len(problem.normalized_shape)), problem.accumulator)
        return full, statistics, statistics
    gamma = problem.inputs["gamma"]
    parameter = Output.of(problem.normalized_shape, gamma.dtype if gamma else problem.dtype)
    return full, parameter, parameter


_OPTIONAL = ("gamma", "beta")


def _arrays(names: tuple[str, ...], arrays: tuple[Described | None, ...]) -> tuple[Any, ...]:
    for array in arrays:
        if type(array) is not ndarray:
            break
    else:
        return arrays
    return tuple(
        None if array is None and name in _OPTIONAL else as_array(name, array)
        for name, array in zip(names, arrays, strict=True)
    )


def _out(kind: type[Forward] | type[Grads], out: Forward | Grads | None) -> _Given:
    if out is None:
        return None
    if not isinstance(out, tuple) or len(out) != 3:
        raise ShapeError(f"out: expected a {kind.__name__} of three arrays or None, got {type(out).__name__}")
    return tuple(
        None if array is None else as_array(f"out.{name}", array) for name, array in zip(kind._fields, out, strict=True)
    )


def _shape_key(normalized_shape: int | Sequence[int] | None) -> Shape | None:
    if normalized_shape is None or type(normalized_shape) is tuple:
        return normalized_shape
    if isinstance(normalized_shape, int):
        return (normalized_shape,)
    return tuple(normalized_shape)


def _mask(output_mask: Sequence[bool]) -> Mask:
    if output_mask == (True, True, True):
        return (True, True, True)
    mask = tuple(map(bool, output_mask))
    if len(mask) != 3:
        raise ShapeError(f"output_mask: expected 3 booleans for dx, dgamma, dbeta, got {len(mask)}")
    return mask


_MOST_PROBLEMS = 4096
_problems: BoundedCache[Hashable, Problem] = BoundedCache(_MOST_PROBLEMS)


def _known(key: Hashable, check: Callable[[], Problem]) -> Problem:
    """The problem of these facts; checked on first sight only, as all rules are about facts."""
    try:
        problem = _problems.get(key)
    except TypeError:  # sizes of a traced tensor are symbols, which can't be hashed and hold for one trace only
        return check()
    return problem or _problems.keep(key, check())


def _check_forward(arrays: tuple[Described | None, ...], *, normalized_shape: Shape | None, given: _Given) -> Problem:
    x, gamma, beta = _all_facts(("x", "gamma", "beta"), arrays)
    lead, R = _split(x, gamma, normalized_shape)
    _check_parameter("gamma", gamma, R)
    _check_parameter("beta", beta, R)
    inputs = {"x": x, "gamma": gamma, "beta": beta}
    return _described("forward", x, lead=lead, R=R, inputs=inputs, given=given, wanted=(True, True, True))


def _check_backward(
    arrays: tuple[Described | None, ...], *, normalized_shape: Shape | None, given: _Given, wanted: Mask
) -> Problem:
    dy, x, mean, rstd, gamma = _all_facts(_BACKWARD_INPUTS, arrays)
    lead, R = _split(x, gamma, normalized_shape)
    if dy.shape != x.shape:
        raise ShapeError(f"dy: expected the shape of x, {x.shape}, got {dy.shape}")
    if dy.dtype != x.dtype:
        raise DtypeError(f"dy: expected the dtype of x, {x.dtype}, got {dy.dtype}")
    for name, facts in (("mean", mean), ("rstd", rstd)):
        _check_statistics(name, facts, x, lead, R)
    _check_parameter("gamma", gamma, R)
    inputs = {"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma}
    return _described("backward", x, lead=lead, R=R, inputs=inputs, given=given, wanted=wanted)


def _all_facts(names: tuple[str, ...], arrays: tuple[Described | None, ...]) -> Any:
    facts = tuple(None if array is None else spec_of(name, array) for name, array in zip(names, arrays, strict=True))
    device = facts[names.index("x")].device  # type: ignore[union-attr]
    for name, one in zip(names, facts, strict=True):
        if one is not None and one.device != device:
            raise DtypeError(f"{name}: expected an array on the device of x, {device}, got one on {one.device}")
    return facts


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


def _check_statistics(name: str, facts: ArraySpec, x: ArraySpec, lead: Shape, R: Shape) -> None:
    M = math.prod(lead)
    if math.prod(facts.shape) != M:
        elements = f"{M} element{'s' if M != 1 else ''}"
        raise ShapeError(
            f"{name}: expected {elements}, one per row of x {x.shape} normalized over {R}, got shape {facts.shape}"
        )


def _check_parameter(name: str, facts: ArraySpec | None, R: Shape) -> None:
    if facts is not None and facts.shape != R:
        raise ShapeError(f"{name}: expected the normalized shape {R}, got {facts.shape}")


def _described(
    op: Literal["forward", "backward"],
    x: ArraySpec,
    *,
    lead: Shape,
    R: Shape,
    inputs: dict[str, ArraySpec | None],
    given: _Given,
    wanted: Mask,
) -> Problem:
    """The problem, once its inputs are checked; its outputs are checked here."""
    fields = Forward._fields if op == "forward" else Grads._fields
    out: dict[str, ArraySpec | None] = dict.fromkeys(fields)
    problem = Problem(
        op=op,
        lead=lead,
        normalized_shape=R,
        M=math.prod(lead),
        N=math.prod(R),
        dtype=x.dtype,
        accumulator=accumulator_for(x.dtype, *(inputs[name].dtype for name in _OPTIONAL if inputs.get(name))),  # type: ignore[union-attr]
        inputs=inputs,
        out=out,
        wanted=wanted,
        kind=x.kind,
        device=x.device,
    )
    arrays = given or (None, None, None)
    for name, array, output, is_wanted in zip(fields, arrays, _expected(problem), wanted, strict=True):
        if array is not None and is_wanted:
            facts = spec_of(f"out.{name}", array)
            _check_out(f"out.{name}", facts, output, x, full=name in ("dx", "y"))
            out[name] = facts
    return problem


def _check_out(name: str, facts: ArraySpec, output: Output, x: ArraySpec, *, full: bool) -> None:
    """A given output: full ones have x's dtype; the others may have any of the four, and are rounded to it once."""
    if facts.shape != output.shape:
        raise ShapeError(f"{name}: expected shape {output.shape}, got {facts.shape}")
    if facts.device != x.device:
        raise DtypeError(f"{name}: expected an array on the device of x, {x.device}, got one on {facts.device}")
    if full and facts.dtype != x.dtype:
        raise DtypeError(f"{name}: expected the dtype of x, {x.dtype}, got {facts.dtype}")
    for size, stride in zip(facts.shape, facts.strides, strict=True):
        if stride == 0 and size > 1 and 0 not in facts.shape:  # NumPy may give an empty array any strides
            raise ShapeError(f"{name}: expected a place of its own for every element, got strides {facts.strides}")
