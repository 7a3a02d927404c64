"""Results against the float64 truth of the same inputs, some rows at a time; what is known of each output at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from ml_dtypes import finfo

from lngrad.check.case import OF_ROWS, STATISTICS, CheckCase, Results
from lngrad.check.inputs import DrawnInputs, with_own_statistics
from lngrad.check.result import OutputResult, RuleResult, WorstElement
from lngrad.check.standards import LLAMA, STANDARDS, Compared, Sums, Tolerances
from lngrad.check.truth import scales_of, truth_of
from lngrad.support.dtypes import UNIT_ROUNDOFF, numpy_dtype
from lngrad.testing import TOLERANCES

# What a tolerance of float32's sums is multiplied by where terms may be rounded to 16 bits, four times each.
OF_16_BITS = {
    dtype: 1 + 4 * UNIT_ROUNDOFF[dtype] / (TOLERANCES["float32"] * 2.0**-24) for dtype in ("float16", "bfloat16")
}


class Piece(NamedTuple):
    """What one call had and gave: rows [start, stop), its results, a third party's for the standard dual, and its inputs."""

    start: int
    stop: int
    got: Results
    third: Results | None
    blocks: Iterable[DrawnInputs]


class Comparison:
    """The results of a case beside what they should be.

    Args:
        case, standard, level: By which rule.
        pieces: All calls, in the order of their rows.
        summed: Whether dgamma and dbeta of the pieces are parts of a sum; else each piece has the whole.
        own_statistics: The truth is that of x's mean and rstd with this epsilon, whatever is given.

    Attributes:
        outputs: All that are wanted, or there although they are not.
        passed, broken: Whether all of them are right; whether one can't be judged at all.
        form: A name and a sentence for one that has another shape or dtype.
        shares: Of outputs that are off, how much of its tolerance each element uses, in the rows of `kept`.
        kept: The inputs of the first block of rows, or of the first in which a row is off, and their call's results.
    """

    def __init__(
        self, case: CheckCase, standard: str, level: str, pieces: Iterable[Piece], *, summed: bool = True,
        own_statistics: float | None = None,
    ) -> None:  # fmt: skip
        self.case, self._standard, self._own_statistics = case, standard, own_statistics
        self._judges = {name: _Output(case, standard, level, name) for name in case.outputs}
        self._sums = {name: _ColumnSum() for name in self._judges if name not in OF_ROWS}
        self.kept: tuple[DrawnInputs, Results] | None = None
        self._was_off = False
        for number, piece in enumerate(pieces):
            self._take(piece, with_sums=summed or not number)
            for block in piece.blocks:
                self._add(piece, block)
        for name, sum_ in self._sums.items():
            self._judges[name].add(_total(sum_.got), sum_.truth, sum_.scale, _total(sum_.third), 0)
        judges = self._judges.values()
        self.outputs = [judge.result(standard == "dual") for judge in judges if judge.wanted or judge.broken]
        self.passed = all(output.passed for output in self.outputs)
        self.broken = any(judge.broken for judge in judges)
        self.form = next((judge.form for judge in judges if judge.form), None)
        self.shares = {judge.name: judge.share for judge in judges if judge.share is not None}

    def _take(self, piece: Piece, with_sums: bool) -> None:
        """Look at what a call gave, and keep its column sums."""
        for name, shape in self.case.shapes_of_results(piece.stop - piece.start).items():
            self._judges[name].take(getattr(piece.got, name), shape)
        for name, sum_ in self._sums.items():
            if with_sums:
                sum_.got.append(getattr(piece.got, name))
                sum_.third.append(piece.third and getattr(piece.third, name))

    def _add(self, piece: Piece, drawn: DrawnInputs) -> None:
        """Judge what some rows have a part of, and add what they give to the true column sums."""
        own = self._own_statistics
        exact = drawn.exact if own is None else with_own_statistics(drawn.exact, own)
        rows = slice(drawn.start - piece.start, drawn.stop - piece.start)
        total = _rows(piece.got, "total", piece, rows, exact.x) if self.case.residual else None
        truth = scales = truth_of(self.case, exact, total)
        if exact.x.size:
            with np.errstate(all="ignore"):
                is_llama, sized = self._standard == LLAMA, exact
                if is_rounded := is_llama and self.case.dtype in OF_16_BITS:
                    # Below the smallest normal number a rounding is absolute.
                    least = float(finfo(numpy_dtype(self.case.dtype)).smallest_normal)
                    sized = replace(exact, dy=np.maximum(np.abs(exact.dy.astype(np.float64)), least))
                scales = scales_of(
                    self.case, sized, rounded_mean=is_llama or self._standard == "stable" or own is not None
                )
                if is_rounded:
                    times = OF_16_BITS[self.case.dtype]
                    scales = {name: scale * times for name, scale in scales.items()}
        of_rows: dict[str, Any] = {}
        for name in (name for name in self._judges if name in OF_ROWS and name in truth):
            true, scale = truth[name], scales[name]
            of_rows[name], third = (_rows(array, name, piece, rows, true) for array in (piece.got, piece.third))
            self._judges[name].add(of_rows[name], true, scale, third, drawn.start)
        is_off = any(self._judges[name].failed for name in of_rows)
        if self.kept is None or (is_off and not self._was_off):
            self.kept = drawn, piece.got._replace(**of_rows)
            self._was_off = is_off
        for name, sum_ in self._sums.items():
            sum_.add(truth.get(name, 0.0), scales.get(name, 0.0))

    @property
    def reason(self) -> str:
        """Which rules failed, where, and by how much; "" if none did."""
        return "; ".join(_reason(output) for output in self.outputs if not output.passed)


class _ColumnSum:
    """One of dgamma and dbeta: the pieces' own, and the truth so far."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.third: list[Any] = []
        self.truth: Any = 0.0
        self.scale: Any = 0.0

    def add(self, truth: Any, scale: Any) -> None:
        with np.errstate(all="ignore"):
            self.truth, self.scale = self.truth + truth, self.scale + scale


def _rows(results: Results | None, name: str, piece: Piece, rows: slice, like: Any) -> Any:
    """Some rows of a result; all of it as it is."""
    got = None if results is None else getattr(results, name)
    if got is None or rows == slice(0, piece.stop - piece.start) or got.size % max(1, piece.stop - piece.start):
        return got
    return got.reshape(piece.stop - piece.start, -1)[rows].reshape(like.shape)


def _total(parts: list[Any]) -> Any:
    """The sum of calls, in float64 and rounded once; a single one as it is."""
    if len(parts) == 1 or any(part is None or part.shape != parts[0].shape for part in parts):
        return parts[0]
    return np.sum([part.astype(np.float64) for part in parts], axis=0).astype(parts[0].dtype)


def _reason(output: OutputResult) -> str:
    broken = next(rule for rule in output.rules if not rule.holds)
    if not output.histogram:
        return f"{output.name}: {broken.name}"
    text = f"{output.name}: {broken.name} is {broken.measured:.3g}, allowed {broken.limit:.3g}"
    if not output.worst:
        return text
    worst = output.worst[0]
    where = f"({', '.join(map(str, worst.index))})" + f" in row {worst.row}" * (output.name in OF_ROWS)
    values = f"expected {worst.golden:.9g}, got {worst.got:.9g}"
    return f"{text}; {output.off:.2%} of the elements are off, the worst at {where}: {values}"


class _Output:
    """The sums of one output, and its rules at the end.

    Attributes:
        wanted: Whether the case asks for it.
        broken: Why it can't be judged, "" if it can.
        form: A name and a sentence for another shape or dtype.
        share: Of the first rows that are off, how much of its tolerance each element uses; None if none are off.
    """

    def __init__(self, case: CheckCase, standard: str, level: str, name: str) -> None:
        self.name, self.shape = name, case.shapes_of_results()[name]
        self.dtype, self.wanted = case.output_dtypes[name], name in (case.wanted or ())
        self.N = 1 if name in STATISTICS else case.N
        self.standard, self._takes_nan = STANDARDS[standard], standard != "binary"
        rtol, part = case.tolerances or (None, None)
        self.tolerances = Tolerances(rtol, part, case.atol, level)
        self.sums, self.third = (Sums(max(math.prod(self.shape) // max(self.N, 1), 1), self.N) for _ in range(2))
        self.share: Any = None
        self.broken = ""
        self.form: tuple[str, str] | None = None

    @property
    def failed(self) -> bool:
        return self.share is not None or bool(self.broken)

    def take(self, got: Any, shape: tuple[int, ...]) -> None:
        """Look at what a call gave: is it there, and has it the shape and dtype of the case?"""
        if not self.wanted:
            if got is not None:
                what = f"{got.dtype} {got.shape}"
                self.broken = f"expected None, as it is masked off, got {what}; or don't take output_mask"
        elif got is None:
            self.broken = "expected a result, got None"
        elif got.shape != shape:
            self.broken, same = f"expected shape {shape}, got {got.shape}", got.size == math.prod(shape)
            text = f"{self.name} has {'the right' if same else 'another'} number of elements: give it {shape}."
            self.form = "another shape", text
        elif got.dtype.name != self.dtype:
            self.broken = f"expected {self.dtype}, got {got.dtype}"
            is_narrow = got.dtype.itemsize < numpy_dtype(self.dtype).itemsize
            text = f"keep it in {self.dtype} from its terms on" if is_narrow else "convert it"
            self.form = "another dtype", f"{self.name} is declared {self.dtype}: {text}."

    def add(self, got: Any, truth: Any, scale: Any, third: Any, start: int) -> None:
        """Judge rows from `start` on, or all of a column sum."""
        if self.broken or not self.wanted:
            return
        share = self._into(self.sums, got, truth, scale, start)
        if self.share is None and (share > 1).any():
            self.share = share
        if third is not None:
            self._into(self.third, third, truth, scale, start)

    def _into(self, sums: Sums, got: Any, truth: Any, scale: Any, start: int) -> Any:
        got, truth, scale = (array.reshape(-1, max(1, self.N)) for array in (got, truth, scale))
        if not got.size:
            return np.zeros(got.shape)
        with np.errstate(all="ignore"):
            golden = truth.astype(numpy_dtype(self.dtype)).astype(np.float64)
            wide = got.astype(np.float64)
            if self._takes_nan:  # where infinity is right: a sum with a compensation makes NaN of it
                wide = np.where(np.isnan(wide) & np.isinf(truth), golden, wide)
            compared = Compared(wide, golden, truth, scale, self.dtype, self.tolerances)
            share = self.standard.share(compared)
            sums.add(compared, share, start)
        return share

    def result(self, dual: bool) -> OutputResult:
        sums, inf = self.sums, math.inf
        if self.broken:
            rule = RuleResult(self.broken, inf, 0.0, False)
            return OutputResult(
                name=self.name, dtype=self.dtype, shape=self.shape, passed=False, rules=(rule,), off=1.0, worst_error=inf,
                worst_ulp=inf, worst_share=inf, histogram=(),
            )  # fmt: skip
        standard = STANDARDS["mixed"] if dual and not self.third.total["count"] else self.standard
        rules = tuple(standard.judge(sums, self.dtype, self.tolerances, self.third if dual else None))
        found = OutputResult(
            name=self.name, dtype=self.dtype, shape=self.shape, passed=all(rule.holds for rule in rules), rules=rules,
            off=sums.mean("off"), worst_error=sums.most["error"], worst_ulp=sums.most["ulp"],
            worst_share=sums.most["share"], histogram=tuple(sums.histogram.tolist()),
        )  # fmt: skip
        if found.passed:
            return found
        worst = []
        for share, row, column, golden, got in sums.worst:
            index = tuple(map(int, np.unravel_index(row * self.N + column, self.shape)))
            worst.append(WorstElement(index, row, column, golden, got, share))
        return replace(found, worst=tuple(worst), map=tuple(map(tuple, sums.map.tolist())))


def different(got: Results, expected: Results) -> str:
    """Where two results first differ in bits; "" if nowhere."""
    for name in got._fields:
        now, before = getattr(got, name), getattr(expected, name)
        if now is None or before is None:
            if now is not before:
                return f"{name} is there in one of them only"
            continue
        if now.shape != before.shape or now.dtype != before.dtype:
            return f"{name} is {now.dtype} {now.shape}, and was {before.dtype} {before.shape}"
        first, second = (np.ascontiguousarray(array).reshape(-1).view(f"u{now.itemsize}") for array in (now, before))
        unlike = first != second
        if unlike.any():
            at, number = tuple(map(int, np.unravel_index(int(unlike.argmax()), now.shape))), int(unlike.sum())
            return f"{name} differs in {number} of {now.size} elements, first at {at}: {now[at]} and {before[at]}"
    return ""
