"""Run calls: compare with the formula, look at the canaries and the inputs, repeat with other threads; count."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import lngrad
from lngrad.dtypes import SMALLEST, UNIT_ROUNDOFF, accumulator_for, numpy_dtype
from lngrad.errors import OverlapError
from lngrad.problem import Forward, Grads
from lngrad.soak import doors, formula
from lngrad.soak.call import DOORS, Call, draw
from lngrad.soak.memory import Guarded
from lngrad.typing import Array

__all__ = ["Report", "Violation", "run", "soak"]

# Of the accumulator's roundings in proportion to the terms: 64 rows in sequence, a tree above, and the products before.
ROUNDINGS = 96


class Violation(Exception):
    """A call gave what it must not; the text says what."""


@dataclass
class Report:
    """What a soak did."""

    calls: int = 0
    seconds: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[Call, str]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.calls} calls in {self.seconds:.0f} s, {len(self.violations)} violations"]
        lines += [f"  {count:7} refused: {reason}" for reason, count in self.refusals.most_common()]
        return "\n".join(lines)


def soak(
    *, calls: int | None = None, seconds: float | None = None, seed: int = 0, doors: tuple[str, ...] = DOORS
) -> Report:
    """Run random calls until there were enough of them, or the time is over, or ten violated a rule.

    Args:
        calls: How many; None: as many as there is time for.
        seconds: For how long; None: as long as the calls take.
        seed: Equal seeds draw equal calls.
        doors: Which doors to use.
    """
    rng, report, start = np.random.default_rng(seed), Report(), time.monotonic()
    while (calls is None or report.calls < calls) and len(report.violations) < 10:
        report.seconds = time.monotonic() - start
        if seconds is not None and report.seconds > seconds:
            break
        call = draw(rng, doors)
        try:
            report.refusals.update(run(call))
        except Violation as violation:
            report.violations.append((call, str(violation)))
        report.calls += 1
    report.seconds = time.monotonic() - start
    return report


def run(call: Call) -> list[str]:
    """Run one call; returns what was refused, and rightly so.

    Raises:
        Violation: A result is wrong, memory was written that must not be, or an exception came that none expects.
    """
    refused: list[str] = []
    with np.errstate(all="ignore"):
        inputs = _inputs(call)
        for part in (_check_forward, _check_backward):
            try:
                part(call, inputs)
            except doors.NotTaken as reason:
                refused.append(str(reason))
            except OverlapError as reason:
                if call.place != "shifted x":
                    raise Violation(f"refused: {reason}") from reason
                refused.append("OverlapError: dx in part of x's memory")
            except Violation:
                raise
            except Exception as reason:
                raise Violation(f"{type(reason).__name__}: {reason}") from reason
        for name, array in inputs.items():
            if array is not None and not array.unchanged():
                raise Violation(f"{name}: was written")
    return refused


def _inputs(call: Call) -> dict[str, Guarded | None]:
    rng = np.random.default_rng(call.seed)
    shape, rows = (*call.lead, *call.normalized), (*call.lead, *(1,) * len(call.normalized))

    def filled(size: Any, dtype: str, layout: str, values: Array) -> Guarded:
        guarded = Guarded(size, numpy_dtype(dtype), layout)
        guarded.fill(values)
        return guarded

    x, dy = rng.standard_normal(shape), rng.standard_normal(shape)
    match call.special:
        case "zeros":
            x, dy = np.zeros(shape), np.zeros(shape)
        case "offset":
            x = x + 100
        case "tiny":
            x = x * 1e-3
        case "" | _:
            pass
    for name, array in (("x", x), ("dy", dy)):
        if call.special.endswith(f" in {name}") and array.size:
            array.flat[int(rng.integers(array.size))] = np.inf if call.special.startswith("inf") else np.nan
    parameters = {
        name: None if not call.parameters else filled(call.normalized, call.parameters, "plain", values)
        for name, values in (
            ("gamma", 1 + 0.5 * rng.standard_normal(call.normalized)),
            ("beta", rng.standard_normal(call.normalized)),
        )
    }
    # Wider statistics are rounded to the accumulator's dtype first; these are there already.
    kept = numpy_dtype(accumulator_for(call.dtype, call.parameters))
    mean, rstd = (0.1 * rng.standard_normal(rows)).astype(kept), (0.5 + rng.random(rows)).astype(kept)
    return {
        "dy": filled(shape, call.dtype, call.dy, dy),
        "x": filled(shape, call.dtype, call.x, x),
        "mean": filled(rows, call.statistics, "plain", mean),
        "rstd": filled(rows, call.statistics, "plain", rstd),
        **parameters,
    }


def _arrays(inputs: dict[str, Guarded | None], *names: str) -> dict[str, Array | None]:
    chosen = {name: inputs[name] for name in names}
    return {name: None if one is None else one.array for name, one in chosen.items()}


def _check_forward(call: Call, inputs: dict[str, Guarded | None]) -> None:
    given = _arrays(inputs, "x", "gamma", "beta")
    x = given["x"]
    assert x is not None
    M, N = int(np.prod(call.lead, dtype=np.int64)), int(np.prod(call.normalized, dtype=np.int64))

    def forward() -> Any:
        return doors.forward(call.door, x, given["gamma"], given["beta"], len(call.normalized))

    got = forward()
    if M * N:
        gamma, beta = _flat(given, "gamma", "beta")
        expected = formula.forward(x.reshape(M, N), gamma, beta, doors.EPS)
        named = zip(Forward._fields, got if isinstance(got, tuple) else (got,), expected, strict=False)
        for name, result, (exact, scale) in named:
            if not (call.special.startswith("inf in x") and name != "y"):  # mean and rstd of such a row are NaN
                _compare(name, result, exact, scale, call)
    _repeat(call, got, forward)


def _check_backward(call: Call, inputs: dict[str, Guarded | None]) -> None:
    given = _arrays(inputs, "dy", "x", "mean", "rstd", "gamma")
    M, N = int(np.prod(call.lead, dtype=np.int64)), int(np.prod(call.normalized, dtype=np.int64))
    dy, x = given["dy"], given["x"]
    assert dy is not None
    assert x is not None
    expected = formula.backward(
        dy.reshape(M, N), x.reshape(M, N), *_flat(given, "mean", "rstd"), *_flat(given, "gamma")
    ) if M * N else None  # fmt: skip
    out, guard = _output(call, given)

    def backward() -> Grads:
        return doors.backward(call.door, given, len(call.normalized), call.mask, out)

    got = backward()
    if guard is not None and not guard.gaps_unchanged():
        raise Violation("dx: memory between or around its elements was written")
    for name, result, wanted in zip(Grads._fields, got, call.mask, strict=True):
        if wanted == (result is None):
            raise Violation(f"{name}: {'missing' if wanted else 'there although masked off'}")
    if expected is not None:
        for name, result, (exact, scale) in zip(Grads._fields, got, expected, strict=True):
            if result is not None:
                _compare(name, result, exact, scale, call)
    if call.place == "":  # else the inputs are overwritten by now
        _repeat(call, got, backward)


def _flat(given: dict[str, Array | None], *names: str) -> list[Any]:
    arrays = [given[name] for name in names]
    return [None if array is None else array.reshape(-1) for array in arrays]


def _output(call: Call, given: dict[str, Array | None]) -> tuple[Grads | None, Guarded | None]:
    """Where dx goes. An input that it takes the place of is copied first, so that inputs stay as they were."""
    shape = (*call.lead, *call.normalized)
    if not doors.takes_outputs(call.door) or not call.mask[0]:
        return None, None
    if call.place in ("dy", "x"):
        copy = Guarded(shape, numpy_dtype(call.dtype), "plain")
        copy.fill(given[call.place])  # type: ignore[arg-type]  # dy and x are there
        given[call.place] = copy.array
        return Grads(copy.array, None, None), copy
    if call.place == "shifted x" and int(np.prod(shape, dtype=np.int64)) > 1:
        size = int(np.prod(shape, dtype=np.int64))
        memory = np.zeros(size + 1, numpy_dtype(call.dtype))
        memory[1:] = given["x"].reshape(-1)  # type: ignore[union-attr]
        given["x"] = memory[1:].reshape(shape)
        return Grads(memory[:-1].reshape(shape), None, None), None
    if not call.dx:
        return None, None
    target = Guarded(shape, numpy_dtype(call.dtype), call.dx)
    return Grads(target.array, None, None), target


def _compare(name: str, result: Array, exact: Array, scale: Array, call: Call) -> None:
    accumulator = accumulator_for(call.dtype, call.parameters)
    got = result.reshape(exact.shape)
    kind = got.dtype.name
    rounded = exact.astype(np.float64).astype(got.dtype)
    wide, finite = got.astype(np.longdouble), np.isfinite(exact) & np.isfinite(rounded.astype(np.float64))
    if (np.isnan(wide) != np.isnan(exact)).any():
        raise Violation(f"{name}: NaN where there is none, or none where there is")
    if (wide != rounded.astype(np.longdouble))[~finite & ~np.isnan(exact)].any():
        raise Violation(f"{name}: not the infinity that it is")
    bound = (
        UNIT_ROUNDOFF[kind] * np.abs(exact) * (1 + 1e-6)
        + ROUNDINGS * UNIT_ROUNDOFF[accumulator] * scale
        + SMALLEST[kind]
        + SMALLEST[accumulator]
    )
    off = np.where(finite, np.abs(wide - exact), 0) > np.where(finite, bound, np.inf)
    if off.any():
        at = tuple(int(axis[0]) for axis in np.nonzero(off))
        raise Violation(f"{name}: at {at} {float(wide[at])!r}, exactly {float(exact[at])!r}, in {kind}")


def _repeat(call: Call, got: Any, again: Any) -> None:
    """The same call with another number of threads has the same bits."""
    if not call.threads:
        return
    with _threads(call.threads):
        other = again()
    for one, two in zip(_each(got), _each(other), strict=True):
        if one is not None and one.tobytes() != two.tobytes():
            raise Violation(f"other bits with {call.threads} threads")


def _each(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = lngrad.get_num_threads()
    lngrad.set_num_threads(count)
    try:
        yield
    finally:
        lngrad.set_num_threads(before)
