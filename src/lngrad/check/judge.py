"""One case from its inputs to its result: draw, compute, compare with the float64 truth, diagnose."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np

from lngrad.check.case import OUTPUTS, CheckCase
from lngrad.check.formats.reading import dump_of
from lngrad.check.implementations import Implementation, NotApplicable, find
from lngrad.check.inputs import DrawnInputs, block_rows, draw, true_grads
from lngrad.check.mistakes.diagnosis import Diagnosis, diagnose
from lngrad.check.result import CaseResult, OutputResult, RuleResult, WorstElement
from lngrad.check.standards.rules import SMALL, STANDARDS, Sums, Tolerances, error_of
from lngrad.core.arrays import as_numpy
from lngrad.core.dtypes import numpy_dtype
from lngrad.core.problem import Grads
from lngrad.errors import FileFormatError
from lngrad.testing import gradient_scales


@dataclass(frozen=True)
class Options:
    """What a run of the command is about, besides the cases.

    Attributes:
        impl: Name of the implementation.
        standard: Name of the standard, for cases that have none of their own.
        level: Of the standard `dual`.
        third: Implementation that gives the third-party result of `dual`.
        against: A folder of dumps to be judged instead of an implementation's results, or None.
        seed: Of the inputs.
        max_bytes: A case whose arrays take more is not run.
        block_bytes: A case is computed in blocks of rows that take about this much.
        invoked: The command up to the cases, for the line that reproduces a failure.
    """

    impl: str = "numba_cpu"
    standard: str = "mixed"
    level: str = "L1"
    third: str = "torch"
    against: str | None = None
    seed: int = 0
    max_bytes: int = 8 << 30
    block_bytes: int = 512 << 20
    invoked: str = ""


def case_facts(case: CheckCase) -> str:
    """A case in one line, for people."""
    lead, normalized = ("×".join(map(str, sizes)) or "1" for sizes in (case.lead, case.normalized))
    gamma = "no gamma" if case.gamma_dtype is None else f"gamma {case.gamma_dtype}"
    outputs = ", ".join(
        f"{name} {dtype}" for name, dtype, on in zip(OUTPUTS, case.output_dtypes, case.output_mask, strict=True) if on
    )
    return f"{lead} | {normalized} {case.dtype}, {gamma}, {case.third} {case.statistics_dtype} → {outputs or 'nothing'}"


@cache
def _impl(name: str) -> Implementation:
    return find(name)


Running = Callable[[bool], object]


def check_case(case: CheckCase, options: Options, running: Running = bool) -> CaseResult:
    """Run and judge one case. An exception of the implementation is a failed case; its text is the reason.

    Args:
        case, options: What to run.
        running: Called with True before an implementation runs, and with False behind it.
    """
    standard = case.standard or options.standard
    start = perf_counter()
    bare = CaseResult(case.name, str(case.source), "skipped", "", case_facts(case), standard, others=case.others)
    bare = replace(bare, command=command_of(case, options))
    if not case.enabled:
        return replace(bare, reason="switched off in its file")
    if standard not in STANDARDS:
        raise FileFormatError(f"{case.source}: standard: expected one of {', '.join(STANDARDS)}, got {standard!r}")
    if case.nbytes > options.max_bytes:
        text = f"needs {case.nbytes} bytes, --max-bytes allows {options.max_bytes}"
        return replace(bare, status="failed", reason=f"too large: {text}")
    try:
        outputs, diagnosis = _judge(case, options, standard, running)
    except NotApplicable as reason:
        return replace(bare, reason=str(reason), seconds=perf_counter() - start)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0][:500]
        return replace(bare, status="failed", reason=text, seconds=perf_counter() - start)
    failed = [output for output in outputs if not output.passed]
    return replace(
        bare,
        status="failed" if failed else "passed",
        reason="; ".join(map(_reason, failed)),
        outputs=tuple(outputs),
        mistake=diagnosis.mistake,
        sentence=diagnosis.sentence,
        formulas=diagnosis.formulas,
        weights=diagnosis.weights,
        seconds=perf_counter() - start,
    )


def command_of(case: CheckCase, options: Options) -> str:
    import shlex

    return f"{options.invoked} {shlex.quote(case.source.file)} --seed {options.seed} --filter {shlex.quote('=' + case.name)}"


def _reason(output: OutputResult) -> str:
    broken = next(rule for rule in output.rules if not rule.holds)
    if not output.histogram:
        return f"{output.name}: {broken.name}"
    text = f"{output.name}: {broken.name} is {broken.measured:.3g}, allowed {broken.limit:.3g}"
    if not output.worst:
        return text
    worst = output.worst[0]
    where = ", ".join(map(str, worst.index))
    return (
        f"{text}; {output.off:.2%} of the elements are off, the worst at ({where}) in row {worst.row}: "
        f"expected {worst.golden:.9g}, got {worst.got:.9g}"
    )


def _judge(case: CheckCase, options: Options, standard: str, running: Running) -> tuple[list[OutputResult], Diagnosis]:
    impl = None if options.against else _impl(options.impl)
    third = _impl(options.third) if standard == "dual" else None
    judges = _Judges(case, options, standard, third is not None)
    step = max(1, block_rows(case, options.block_bytes))
    starts = range(0, case.M, step) if case.M else (0,)
    several = len(starts) > 1
    partials: list[_Partials] = []
    kept: tuple[DrawnInputs, Grads] | None = None
    for start in starts:
        stop = min(start + step, case.M)
        given = draw(case, options.seed, start, stop, options.max_bytes)
        got = _results(case, given, impl, options, running)
        truth = true_grads(given.exact)
        with np.errstate(all="ignore"):
            scales = gradient_scales(given.exact)
        other = _run(third, case, given, running) if third else None
        judges.add("dx", got.dx, truth.dx, scales.dx, other and other.dx, start)
        partials.append(_Partials(got, truth, scales, other))
        if kept is None or (not judges.passed("dx") and not judges.kept_failed):
            kept, judges.kept_failed = (given, got), not judges.passed("dx")
    for name in OUTPUTS[1:]:
        if options.against and several:
            total: Any = getattr(partials[0].got, name)  # the dump's sums over all rows
        else:
            total = _total([getattr(one.got, name) for one in partials])
        true, scale = (_total([getattr(getattr(one, what), name) for one in partials]) for what in ("truth", "scales"))
        other = _total([getattr(one.other, name) for one in partials]) if third else None
        judges.add(name, total, true, scale, other, 0)
    outputs = judges.outputs()
    if all(output.passed for output in outputs) or kept is None or judges.broken:
        return outputs, Diagnosis(None, "")
    try:
        return outputs, diagnose(case, *kept, judges.shares)
    except Exception as error:  # of a search that meets numbers it does not expect: the verdict stands without it
        return outputs, Diagnosis(None, f"no diagnosis: it failed with {type(error).__name__}: {error}")


@dataclass(frozen=True)
class _Partials:
    """Of a block: what adds up to dgamma and dbeta."""

    got: Grads
    truth: Grads
    scales: Grads
    other: Grads | None

    def __post_init__(self) -> None:
        for what in ("got", "truth", "scales", "other"):
            grads = getattr(self, what)
            if grads is not None:
                object.__setattr__(self, what, grads._replace(dx=None))


def _total(parts: list[Any]) -> Any:
    """The sum over blocks, in float64 and rounded once; a single one as it is."""
    if len(parts) == 1 or parts[0] is None:
        return parts[0]
    return np.sum([part.astype(np.float64) for part in parts], axis=0).astype(parts[0].dtype)


def _results(
    case: CheckCase, given: DrawnInputs, impl: Implementation | None, options: Options, running: Running
) -> Grads:
    if impl is None:
        assert options.against is not None  # as no implementation was looked up
        return dump_of(case, options.against, given.start, given.stop, options.max_bytes)
    # An implementation gets copies: the truth is computed from the inputs as they were.
    inputs = given.inputs
    arrays = {name: getattr(inputs, name) for name in ("dy", "x", "mean", "rstd", "gamma")}
    copies: dict[str, Any] = {name: None if array is None else np.array(array) for name, array in arrays.items()}
    got = _run(impl, case, replace(given, inputs=replace(inputs, **copies), variance=np.array(given.variance)), running)
    for name, array in arrays.items():
        if array is not None and _changed(copies[name], array):
            raise RuntimeError(f"it changed its input {name}")
    return got


def _changed(after: Any, before: Any) -> bool:
    """Whether a bit differs; of bfloat16 too, which has no comparison of its own for NaN."""
    kind = f"u{after.dtype.itemsize}"
    first, second = (np.ascontiguousarray(one).view(kind) for one in (after, before))
    return bool((first != second).any())


def _run(impl: Implementation, case: CheckCase, given: DrawnInputs, running: Running) -> Grads:
    running(True)
    try:
        return Grads(*(None if one is None else as_numpy(one) for one in impl(case, given)))
    finally:
        running(False)


class _Judges:
    """The sums of each output, and its rules at the end."""

    def __init__(self, case: CheckCase, options: Options, standard: str, dual: bool) -> None:
        self.case, self.dual = case, dual
        self.standard = STANDARDS[standard]
        pair = case.tolerances or (None, None)
        self.tolerances = Tolerances(pair[0], pair[1], case.atol, options.level)
        self.shapes = {"dx": case.shape, "dgamma": case.normalized, "dbeta": case.normalized}
        self.dtypes = dict(zip(OUTPUTS, case.output_dtypes, strict=True))
        self.wanted = dict(zip(OUTPUTS, case.output_mask, strict=True))
        self.sums = {name: self._sums(name) for name in OUTPUTS}
        self.thirds = {name: self._sums(name) for name in OUTPUTS}
        self.shares: dict[str, Any] = {}
        self.broken: dict[str, str] = {}
        self.kept_failed = False

    def _sums(self, name: str) -> Sums:
        return Sums(self.case.M if name == "dx" else 1, self.case.N)

    def add(self, name: str, got: Any, truth: Any, scale: Any, third: Any, start: int) -> None:
        """Judge rows from `start` on of dx, or all of dgamma or dbeta."""
        dtype = self.dtypes[name]
        if not self.wanted[name]:
            if got is not None:
                self.broken[name] = f"expected None, as it is masked off, got {got.dtype} {got.shape}"
            return
        expected = truth.shape
        if got is None:
            self.broken[name] = "expected a result, got None"
        elif got.shape != expected:
            self.broken[name] = f"expected shape {expected}, got {got.shape}"
        elif got.dtype.name != dtype:
            self.broken[name] = f"expected {dtype}, got {got.dtype}"
        if name in self.broken:
            return
        share = self._into(self.sums[name], got, truth, scale, dtype, start)
        if (share > 1).any():
            self.shares.setdefault(name, share)
        if third is not None:
            self._into(self.thirds[name], third, truth, scale, dtype, start)

    def _into(self, sums: Sums, got: Any, truth: Any, scale: Any, dtype: str, start: int) -> Any:
        got, truth, scale = (one.reshape(-1, max(1, self.case.N)) for one in (got, truth, scale))
        if not got.size:
            return np.zeros(got.shape)
        with np.errstate(all="ignore"):
            golden = truth.astype(numpy_dtype(dtype)).astype(np.float64)
            got = got.astype(np.float64)
            share = self.standard.share(got, golden, truth, scale, dtype, self.tolerances)
            sums.add(got, golden, share, error_of(got, golden), dtype, SMALL[dtype], start)
        return share

    def passed(self, name: str) -> bool:
        return name not in self.shares and name not in self.broken

    def outputs(self) -> list[OutputResult]:
        return [self._output(name) for name in OUTPUTS if self.wanted[name] or name in self.broken]

    def _output(self, name: str) -> OutputResult:
        sums, dtype = self.sums[name], self.dtypes[name]
        if name in self.broken:
            rule = RuleResult(self.broken[name], math.inf, 0.0, False)
            return OutputResult(name, dtype, self.shapes[name], False, (rule,), 1.0, math.inf, math.inf, math.inf, ())
        third = self.thirds[name] if self.dual else None
        judged = self.standard.judge(sums, dtype, self.tolerances, third)
        rules = tuple(RuleResult(rule.name, float(rule.measured), float(rule.limit), rule.holds) for rule in judged)
        passed = all(rule.holds for rule in rules)
        worst = tuple(
            WorstElement(self._index(name, row, column), row, column, golden, got, share)
            for share, row, column, golden, got in sums.worst
        )
        return OutputResult(
            name, dtype, self.shapes[name], passed, rules, sums.part_off, sums.worst_error, sums.worst_ulp,
            sums.worst_share, tuple(sums.histogram), () if passed else worst,
            () if passed else tuple(tuple(map(float, row)) for row in sums.map),
        )  # fmt: skip

    def _index(self, name: str, row: int, column: int) -> tuple[int, ...]:
        flat = row * self.case.N + column if name == "dx" else column
        return tuple(map(int, np.unravel_index(flat, self.shapes[name])))
