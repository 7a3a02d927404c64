"""Run a call: compare with the formula, look at canaries and inputs, repeat with other threads. Many calls; smaller ones."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import lngrad
from lngrad.check.implementations import Arguments, NotApplicable
from lngrad.check.layouts import Guarded
from lngrad.core.norms import NORMS
from lngrad.core.problem import ROLES, Operator, Role
from lngrad.errors import BackendUnavailable, OverlapError, ShapeError
from lngrad.support.dtypes import SMALLEST, UNIT_ROUNDOFF, accumulator_for
from lngrad.typing import Array, Shape
from soak import formula
from soak.call import ENTRY_POINTS, Call, Given, draw, inputs, installed, operators, outputs, wanted
from soak.entries import ENTRIES
from soak.faults import REFUSED, SAME, inject

# Of the accumulator's roundings in proportion to the terms: 64 rows in sequence, a tree above, and the products before.
ROUNDINGS = 96
_EPS = 1e-5
_MAX_VIOLATIONS = 10  # then a soak ends


class Violation(Exception):
    """A call gave what it must not; the text says what."""


def run(call: Call, faults: Counter[str] | None = None) -> list[str]:
    """Run one call; returns what was refused, and rightly so.

    Args:
        call: Which.
        faults: Where the outcome of its fault is counted.

    Raises:
        Violation: A result is wrong, memory was written that must not be, or an exception came that none expects.
    """
    with np.errstate(all="ignore"):
        arrays_in = inputs(call)
        refused = [_refusal(call, kind, arrays_in, Counter() if faults is None else faults) for kind in operators(call)]
        for name, array in arrays_in.items():
            if array is not None and not array.unchanged():
                raise Violation(f"{name}: was written")
    return [reason for reason in refused if reason]


def _refusal(call: Call, kind: Operator, arrays_in: dict[str, Guarded | None], faults: Counter[str]) -> str:
    """Why the forward or the backward was refused, "" if it was taken."""
    try:
        _check(call, {name: None if array is None else array.array for name, array in arrays_in.items()}, kind, faults)
    except NotApplicable as reason:
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


def _check(call: Call, arrays_in: Given, kind: Operator, faults: Counter[str]) -> None:
    is_forward, normalization = kind.direction == "forward", NORMS[call.norm].normalization
    names = (
        ("x", "gamma", "beta", "residual") if is_forward else ("dy", "x", "mean", "rstd", "gamma", "dtotal", "residual")
    )
    arrays_in = {name: arrays_in[name] for name in names if name in arrays_in}
    entry = ENTRIES[call.entry_point]
    rows: dict[str, Any] = {}
    if size := prod(call.lead) * prod(call.normalized):
        rows = _rows(call, arrays_in, size)
    out, guards = outputs(call, arrays_in, kind) if entry.into else (None, {})

    def results() -> dict[str, Array | None]:
        prepare = entry.forward if is_forward else entry.backward
        assert prepare is not None  # every entry has both
        arrays: dict[str, Any] = (
            arrays_in if is_forward else {**arrays_in, "summand": arrays_in["x"] if "residual" in arrays_in else None}
        )
        arguments = Arguments(
            **arrays,
            normalized_shape=call.normalized,
            names=wanted(call),
            eps=_EPS,
            out=out,
            normalization=normalization,
        )
        got: Any = prepare(arguments)()
        if isinstance(got, dict):
            return got
        fields = ("y", "total") if not isinstance(got, tuple) or (len(got) == 2 and is_forward) else kind.outputs
        return dict(zip(getattr(got, "_fields", fields), got if isinstance(got, tuple) else (got,), strict=False))

    got = results()
    expected = _expected(call, rows, got, is_forward) if size else {}
    if not is_forward:
        for name in kind.outputs:
            if (is_wanted := name in wanted(call)) == (got[name] is None):
                raise Violation(f"{name}: {'missing' if is_wanted else 'there although masked off'}")
    for name, guard in guards.items():
        if not guard.gaps_unchanged():
            raise Violation(f"{name}: memory between or around its elements was written")
    for name, (exact, scale) in expected.items():
        result = got.get(name)
        if result is not None:
            _compare(name, result, exact, scale, accumulator_for(call.dtype, call.parameters))
    if call.place:  # inputs are overwritten by now
        return

    def bits() -> list[bytes | None]:
        return [None if result is None else result.tobytes() for result in results().values()]

    before = [None if array is None else array.tobytes() for array in got.values()]
    if call.threads:
        with _threads(call.threads):
            if before != bits():
                raise Violation(f"other bits with {call.threads} threads")
    if call.fault:
        outcome = inject(call.fault, bits, before, call.seed)
        if outcome not in (SAME, REFUSED):
            raise Violation(f"{call.fault}: {outcome}")
        faults[f"{call.fault}: {outcome}"] += 1


def _expected(
    call: Call, rows: dict[str, Any], got: dict[str, Array | None], is_forward: bool
) -> dict[str, formula.Result]:
    """What the formula gives. What is normalized is the total as it was rounded, where it is a result."""
    normalization, residual = NORMS[call.norm].normalization, NORMS[call.norm].residual
    wide = formula.wider(accumulator_for(call.dtype, call.parameters))
    switches = normalization.centred, normalization.offset
    x, gamma, found = rows["x"], rows["gamma"], {}
    sums_here = (
        call.entry_point == "aclnn"
    )  # its gradients add, and some of its norms normalize a sum that is not rounded
    if residual and (is_forward or (sums_here and call.norm in ("add_layer_norm", "deep_norm"))):
        found["total"] = formula.total(x, rows["residual"], normalization.alpha, wide)
        x = found["total"][0]
        if is_forward and not (sums_here and normalization.centred):
            x = np.asarray(got["total"]).reshape(x.shape)
    if is_forward:
        return found | formula.forward(x, gamma, rows["beta"] if normalization.centred else None, _EPS, wide, *switches)
    rstd = rows["rstd"]
    if call.norm in ENTRIES[call.entry_point].own_statistics:
        rstd = formula.forward(x, None, None, _EPS, wide, *switches)["rstd"][0]
    dtotal = None if sums_here and call.norm == "deep_norm" else rows.get("dtotal")
    grads = formula.backward(rows["dy"], x, rows["mean"], rstd, gamma, wide, *switches, dtotal)
    if "total" in found:  # its gradients add in float32, and lose what the sum is rounded by
        value, scale = grads["dgamma"]
        lost = np.abs(rows["dy"].astype(wide) * x * rstd.astype(wide)[:, None]).sum(0)
        grads["dgamma"] = value, scale + lost
    return grads


def _rows(call: Call, arrays_in: Given, size: int) -> dict[str, Any]:
    """Copies of the arrays as (M, N), (M,) or (N,)."""
    shape = (size // prod(call.normalized), prod(call.normalized))
    return {
        name: None if array is None else np.array(array).reshape(shape if ROLES[name] is Role.TENSOR else -1)
        for name, array in arrays_in.items()
    }


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


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = lngrad.get_num_threads()
    lngrad.set_num_threads(count)
    try:
        yield
    finally:
        lngrad.set_num_threads(before)


@dataclass
class Report:
    """What a soak did.

    Attributes:
        calls: How many were made.
        seconds: How long they took.
        refusals: How often each refusal came that is right, by its kind.
        faults: How often each fault was injected, with its outcome.
        violations: Calls that broke a rule, each with what was wrong.
    """

    calls: int = 0
    seconds: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[Call, str]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.calls:,} calls in {self.seconds:.0f} s, {len(self.violations)} violations"]
        lines += [f"  {count:9,} refused: {reason}" for reason, count in self.refusals.most_common()]
        lines += [f"  {count:9,} faults: {outcome}" for outcome, count in sorted(self.faults.items())]
        return "\n".join(lines)

    def programs(self) -> str:
        """Each violation with the smallest call that shows it, as a line for the shell."""
        return "\n".join(f"{reason}\n  {program(shrink(call))}" for call, reason in self.violations)


def soak(
    *,
    calls: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    entry_points: Sequence[str] = ENTRY_POINTS,
    norm: str | None = None,
    fault: str | None = None,
    tell: Callable[[Report], object] = lambda so_far: None,
) -> Report:
    """Run random calls until there were enough of them, or the time is over, or ten violated a rule.

    Args:
        calls: How many; None: as many as there is time for.
        seconds: For how long; None: as long as the calls take, and a minute if `calls` is None too.
        seed: Equal seeds draw equal calls.
        entry_points: Which entry points to use: those of them whose framework is installed.
        norm: Which one; None: any, half of the calls layer normalizations.
        fault: Which one every call has; None: a few have any.
        tell: Called after each call with the report so far.

    Raises:
        BackendUnavailable: An entry point has no such name, or none of them is installed and has the norm.
        ValueError: `calls` or `seconds` is not positive: nothing would be checked.
    """
    for name in entry_points:
        if name not in ENTRY_POINTS:
            raise BackendUnavailable(f"entry_points: expected some of {', '.join(ENTRY_POINTS)}, got {name!r}")
    entry_points = tuple(
        entry_point for entry_point in entry_points if norm is None or norm in ENTRIES[entry_point].norms
    )
    if not installed(entry_points):
        raise BackendUnavailable(
            f"entry_points: expected one whose framework is installed, got {', '.join(entry_points) or 'none'}"
        )
    for name, limit in (("calls", calls), ("seconds", seconds)):
        if limit is not None and not limit > 0:
            raise ValueError(f"{name}: expected a positive number, got {limit}")
    if calls is None and seconds is None:
        seconds = 60.0
    rng, report, start = Random(seed), Report(), time.monotonic()
    traced: list[Call] = []
    # An interrupt is to come while it opens and closes, too.
    kept = "override" in installed(entry_points) and fault != "interrupt"
    with _kept_open() if kept else nullcontext():
        while (calls is None or report.calls < calls) and len(report.violations) < _MAX_VIOLATIONS:
            report.seconds = time.monotonic() - start
            if seconds is not None and report.seconds > seconds:
                break
            call = draw(rng, entry_points, traced, norm, fault)
            try:
                report.refusals.update(run(call, report.faults))
            except Violation as violation:
                report.violations.append((call, str(violation)))
            report.calls += 1
            tell(report)
    report.seconds = time.monotonic() - start
    return report


def _kept_open() -> AbstractContextManager[Any]:
    """override() for all calls: to nest it costs nothing."""
    from lngrad.torch import override

    return override()


def _fails(call: Call) -> bool:
    try:
        run(call)
    except Violation:
        return True
    return False


def shrink(call: Call, fails: Callable[[Call], bool] = _fails) -> Call:
    """The simplest call found that still fails: plain fields, fewer dimensions, smaller sizes."""
    improved = True
    while improved:
        improved = False
        for simpler in _simpler(call):
            if fails(simpler):
                call, improved = simpler, True
                break
    return call


def _simpler(call: Call) -> Iterator[Call]:
    for option in fields(Call):
        if (
            option.name not in ("lead", "normalized", "entry_point", "norm")
            and getattr(call, option.name) != option.default
        ):
            plain: dict[str, Any] = {option.name: option.default}
            yield replace(call, **plain)
    for name in ("lead", "normalized"):
        for shape in _smaller(getattr(call, name), least=name == "normalized"):
            changed: dict[str, Any] = {name: shape}
            yield replace(call, **changed)


def _smaller(shape: Shape, least: int) -> Iterator[Shape]:
    for axis, size in enumerate(shape):
        if len(shape) > least:
            yield (*shape[:axis], *shape[axis + 1 :])
        for less in dict.fromkeys((1, size // 2, size - 1)):
            if 0 < less < size:
                yield (*shape[:axis], less, *shape[axis + 1 :])


def program(call: Call) -> str:
    """One line for the shell that runs a call again."""
    changed = ", ".join(
        f"{field.name}={getattr(call, field.name)!r}"
        for field in fields(Call)
        if getattr(call, field.name) != field.default
    )
    python = f"PYTHONPATH={shlex.quote(str(Path(__file__).parents[1]))} {shlex.quote(sys.executable)}"
    return f'{python} -c "from soak import Call, run; run(Call({changed}))"'
