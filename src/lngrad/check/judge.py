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
from lngrad.check.standards.rules import STANDARDS, Compared, Sums, Tolerances
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
    norm = "" if case.norm == "layer_norm" else f"{case.norm} "
    return f"{norm}{lead} | {normalized} {case.dtype}, {gamma}, {case.third} {case.statistics_dtype} → {outputs or 'nothing'}"


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
        **diagnosis._asdict(),
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
    judges = {name: _Judge(case, options, standard, index) for index, name in enumerate(OUTPUTS)}
    dx = judges["dx"]
    step = max(1, block_rows(case, options.block_bytes))
    starts = range(0, case.M, step) if case.M else (0,)
    blocks: list[tuple[Grads, Grads, Grads, Grads | None]] = []  # the result, the truth, its scales, the third party's
    kept: tuple[DrawnInputs, Grads] | None = None
    kept_failed = False
    for start in starts:
        given = draw(case, options.seed, start, min(start + step, case.M), options.max_bytes)
        got = _results(case, given, impl, options, running)
        truth = true_grads(given.exact)
        with np.errstate(all="ignore"):
            scales = gradient_scales(given.exact)
        other = _run(third, case, given, running) if third else None
        dx.add(got.dx, truth.dx, scales.dx, other and other.dx, start)
        if kept is None or (dx.failed and not kept_failed):
            kept, kept_failed = (given, got), dx.failed
        # What adds up to dgamma and dbeta stays.
        got, truth, scales = (grads._replace(dx=None) for grads in (got, truth, scales))
        blocks.append((got, truth, scales, other and other._replace(dx=None)))
    for name in OUTPUTS[1:]:
        total, true, scale, from_third = (
            None if which[0] is None else _total([getattr(grads, name) for grads in which])
            for which in zip(*blocks, strict=True)
        )
        if options.against:
            total = getattr(blocks[0][0], name)  # the dump's sums over all rows
        judges[name].add(total, true, scale, from_third, 0)
    outputs = [one.output(third is not None) for one in judges.values() if one.wanted or one.broken]
    if all(output.passed for output in outputs) or kept is None or any(one.broken for one in judges.values()):
        return outputs, Diagnosis(None, "")
    shares = {name: one.share for name, one in judges.items() if one.share is not None}
    try:
        return outputs, diagnose(case, *kept, shares)
    except Exception as error:  # of a search that meets numbers it does not expect: the verdict stands without it
        return outputs, Diagnosis(None, f"no diagnosis: it failed with {type(error).__name__}: {error}")


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
    names = "dy", "x", "mean", "rstd", "gamma", "residual", "dtotal"
    arrays = {name: getattr(given.inputs, name) for name in names}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    copies: dict[str, Any] = {name: np.array(array) for name, array in arrays.items()}
    own = replace(given, inputs=replace(given.inputs, **copies), variance=np.array(given.variance))
    got = _run(impl, case, own, running)
    for name, array in arrays.items():
        if _changed(copies[name], array):
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


class _Judge:
    """The sums of one output, and its rules at the end.

    Attributes:
        wanted: Whether the case asks for it.
        broken: Why it can't be judged, "" if it can.
        share: Of the first rows that are off, how much of its tolerance each element uses; None if none are off.
    """

    def __init__(self, case: CheckCase, options: Options, standard: str, index: int) -> None:
        self.name, self.dtype, self.wanted = OUTPUTS[index], case.output_dtypes[index], case.output_mask[index]
        self.shape = case.normalized if index else case.shape
        self.N, self.standard = case.N, STANDARDS[standard]
        rtol, part = case.tolerances or (None, None)
        self.tolerances = Tolerances(rtol, part, case.atol, options.level)
        self.sums, self.third = (Sums(1 if index else case.M, case.N) for _ in range(2))
        self.share: Any = None
        self.broken = ""

    @property
    def failed(self) -> bool:
        return self.share is not None or bool(self.broken)

    def add(self, got: Any, truth: Any, scale: Any, third: Any, start: int) -> None:
        """Judge rows from `start` on of dx, or all of dgamma or dbeta."""
        if not self.wanted:
            if got is not None:
                self.broken = f"expected None, as it is masked off, got {got.dtype} {got.shape}"
        elif got is None:
            self.broken = "expected a result, got None"
        elif got.shape != truth.shape:
            self.broken = f"expected shape {truth.shape}, got {got.shape}"
        elif got.dtype.name != self.dtype:
            self.broken = f"expected {self.dtype}, got {got.dtype}"
        if self.broken or not self.wanted:
            return
        share = self._into(self.sums, got, truth, scale, start)
        if self.share is None and (share > 1).any():
            self.share = share
        if third is not None:
            self._into(self.third, third, truth, scale, start)

    def _into(self, sums: Sums, got: Any, truth: Any, scale: Any, start: int) -> Any:
        got, truth, scale = (one.reshape(-1, max(1, self.N)) for one in (got, truth, scale))
        if not got.size:
            return np.zeros(got.shape)
        with np.errstate(all="ignore"):
            golden = truth.astype(numpy_dtype(self.dtype)).astype(np.float64)
            compared = Compared(got.astype(np.float64), golden, truth, scale, self.dtype, self.tolerances)
            share = self.standard.share(compared)
            sums.add(compared, share, start)
        return share

    def output(self, dual: bool) -> OutputResult:
        sums, inf = self.sums, math.inf
        if self.broken:
            rule = RuleResult(self.broken, inf, 0.0, False)
            return OutputResult(self.name, self.dtype, self.shape, False, (rule,), 1.0, inf, inf, inf, ())
        judged = self.standard.judge(sums, self.dtype, self.tolerances, self.third if dual else None)
        rules = tuple(RuleResult(rule.name, float(rule.measured), float(rule.limit), rule.holds) for rule in judged)
        found = OutputResult(
            self.name, self.dtype, self.shape, all(rule.holds for rule in rules), rules, sums.mean("off"), sums.most["error"],
            sums.most["ulp"], sums.most["share"], tuple(sums.histogram.tolist()),
        )  # fmt: skip
        if found.passed:
            return found
        worst = tuple(
            WorstElement(
                tuple(map(int, np.unravel_index(row * self.N + column, self.shape))), row, column, golden, got, share
            )
            for share, row, column, golden, got in sums.worst
        )
        return replace(found, worst=worst, map=tuple(map(tuple, sums.map.tolist())))
