"""Run a call: compare with the formula, look at the canaries and the inputs, repeat with other threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

import lngrad
from lngrad.check.soak import doors, formula
from lngrad.check.soak.call import Call
from lngrad.check.soak.memory import Guarded
from lngrad.check.soak.values import Given, forward_outputs, gradient_outputs, inputs
from lngrad.core.dtypes import SMALLEST, UNIT_ROUNDOFF, accumulator_for
from lngrad.core.problem import Forward, Grads
from lngrad.errors import OverlapError, ShapeError
from lngrad.typing import Array

# Of the accumulator's roundings in proportion to the terms: 64 rows in sequence, a tree above, and the products before.
ROUNDINGS = 96


class Violation(Exception):
    """A call gave what it must not; the text says what."""


def run(call: Call) -> list[str]:
    """Run one call; returns what was refused, and rightly so.

    Raises:
        Violation: A result is wrong, memory was written that must not be, or an exception came that none expects.
    """
    with np.errstate(all="ignore"):
        given = inputs(call)
        refused = [_refusal(call, part, given) for part in (_check_forward, _check_backward)]
        for name, array in given.items():
            if array is not None and not array.unchanged():
                raise Violation(f"{name}: was written")
    return [reason for reason in refused if reason]


def _refusal(call: Call, part: Callable[..., None], given: dict[str, Guarded | None]) -> str:
    """Why one part of a call was refused, "" if it was taken."""
    try:
        part(call, {name: None if one is None else one.array for name, one in given.items()})
    except doors.NotTaken as reason:
        return str(reason)
    except OverlapError as reason:
        if call.place == "shifted x":
            return "OverlapError: an output in part of x's memory"
        raise Violation(f"refused: {reason}") from reason
    except ShapeError as reason:
        if not call.normalized:
            return "ShapeError: x without dimensions"
        raise Violation(f"refused: {reason}") from reason
    except Violation:
        raise
    except Exception as reason:
        raise Violation(f"{type(reason).__name__}: {reason}") from reason
    if not call.normalized:
        raise Violation("x without dimensions: was taken")
    return ""


def _check_forward(call: Call, given: Given) -> None:
    given = {name: given[name] for name in ("x", "gamma", "beta")}
    expected = None
    if size := prod(call.lead) * prod(call.normalized):
        x, gamma, beta = _rows(call, given, size)
        wide = formula.wider(accumulator_for(call.dtype, call.parameters))
        expected = formula.forward(x, gamma, beta, doors.EPS, wide)
    out, guards = forward_outputs(call, given) if doors.takes_outputs(call.door) else (None, {})

    def forward() -> Any:
        return doors.forward(call.door, given, len(call.normalized), out)

    got = forward()
    results = got if isinstance(got, tuple) else (got,)
    _look(call, dict(zip(Forward._fields, results, strict=False)), expected, guards)
    _repeat(call, results, forward)


def _check_backward(call: Call, given: Given) -> None:
    given = {name: given[name] for name in ("dy", "x", "mean", "rstd", "gamma")}
    expected = None
    if size := prod(call.lead) * prod(call.normalized):
        wide = formula.wider(accumulator_for(call.dtype, call.parameters))
        dy, x, mean, rstd, gamma = _rows(call, given, size)
        expected = formula.backward(dy, x, mean, rstd, gamma, wide)
    out, guards = gradient_outputs(call, given) if doors.takes_outputs(call.door) else (None, {})

    def backward() -> Grads:
        return doors.backward(call.door, given, len(call.normalized), call.mask, out)

    got = backward()
    for name, result, wanted in zip(Grads._fields, got, call.mask, strict=True):
        if wanted == (result is None):
            raise Violation(f"{name}: {'missing' if wanted else 'there although masked off'}")
    _look(call, got._asdict(), expected, guards)
    _repeat(call, got, backward)


def _rows(call: Call, given: Given, size: int) -> list[Any]:
    """The arrays as (M, N), (M,) or (N,)."""
    shape = (size // prod(call.normalized), prod(call.normalized))
    return [
        None if one is None else one.reshape(shape) if name in ("x", "dy") else one.reshape(-1)
        for name, one in given.items()
    ]


def _look(call: Call, results: dict[str, Array | None], expected: Any, guards: dict[str, Guarded]) -> None:
    """At the memory around given outputs, and at the values."""
    for name, guard in guards.items():
        if not guard.gaps_unchanged():
            raise Violation(f"{name}: memory between or around its elements was written")
    if expected is not None:
        for (name, result), (exact, scale) in zip(results.items(), expected, strict=False):
            if result is not None:
                _compare(name, result, exact, scale, accumulator_for(call.dtype, call.parameters))


def _compare(name: str, result: Array, exact: Array, scale: Array, accumulator: str) -> None:
    got = result.reshape(exact.shape)
    kind = got.dtype.name
    wide = got.astype(np.float64)
    bound = UNIT_ROUNDOFF[kind] * (1 + 1e-6) * np.abs(exact) + ROUNDINGS * UNIT_ROUNDOFF[accumulator] * scale
    bound += SMALLEST[kind] + SMALLEST[accumulator]
    if np.isfinite(exact).all() and (np.abs(wide - exact) <= bound).all():
        return
    rounded = exact.astype(np.float64).astype(got.dtype).astype(np.float64)
    finite = np.isfinite(rounded)
    if (np.isnan(wide) != np.isnan(exact)).any():
        raise Violation(f"{name}: NaN where there is none, or none where there is")
    if (wide != rounded)[~finite & ~np.isnan(rounded)].any():
        raise Violation(f"{name}: not the infinity that it is")
    off = finite & ~(np.abs(wide - exact) <= bound)
    if off.any():
        at = tuple(int(axis[0]) for axis in np.nonzero(off))
        raise Violation(f"{name}: at {at} {float(wide[at])!r}, exactly {float(exact[at])!r}, in {kind}")


def _repeat(call: Call, results: tuple[Array | None, ...], again: Callable[[], Any]) -> None:
    """The same call with another number of threads has the same bits, unless its inputs are overwritten by now."""
    if not call.threads or call.place:
        return
    before = [None if one is None else one.tobytes() for one in results]
    with _threads(call.threads):
        got = again()
    after = got if isinstance(got, tuple) else (got,)
    if before != [None if one is None else one.tobytes() for one in after]:
        raise Violation(f"other bits with {call.threads} threads")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = lngrad.get_num_threads()
    lngrad.set_num_threads(count)
    try:
        yield
    finally:
        lngrad.set_num_threads(before)
