"""The calls of one case, and what follows from them: draw, call, compare with the float64 truth, call again, diagnose.

A kernel is called with inputs A, with others, and with A again. What only these calls show comes before any diagnosis: after
"not repeatable" nothing else is concluded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import ceil
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from lngrad.check.calls.kernel import Kernel, KernelError, Request, arrays_of
from lngrad.check.case import OUTPUTS, CheckCase, Options
from lngrad.check.comparison import Comparison, Piece, different
from lngrad.check.formats.reading import dump_of
from lngrad.check.implementations import NotApplicable
from lngrad.check.inputs import DrawnInputs, block_rows, draw, true_grads, with_other_values
from lngrad.check.mistakes.diagnosis import UNEXPLAINED, Diagnosis, diagnose
from lngrad.check.result import CaseResult
from lngrad.core.dtypes import ACCUMULATORS
from lngrad.core.machine import available_bytes, copy_speed
from lngrad.core.problem import Grads
from lngrad.testing import error_share, gradient_scales
from lngrad.typing import Array

# How often the outputs are in memory, beside the inputs: the kernel's, its copy as it returned, and what came through the pipe.
OUTPUTS_OF_A_CALL = 3
OUTPUTS_OF_TWO = 5  # with the first call's, and which elements differ
QUICK_SECONDS = 1.0  # a call that takes longer is not made with other inputs, layouts and threads
SLOW_SECONDS = 20.0  # and one that takes longer than this is made once
FAR_OFF = 4.0  # tolerances of `stable`, of a further call of a kernel whose first is within one
THREADS = (1, 2, 3)
MORE_ROWS = 600  # of a call between two others, of cases that are called more often than by default
DEFAULT_CALLS = CheckCase.calls
DIAGNOSED = 1 << 23  # elements of a case whose failure is explained as a whole
TIMED_SECONDS = 0.05  # of calls in a row, three times; the fastest counts
OWN = "it computes mean and rstd from x itself"

Kernels = Callable[..., Kernel]  # of a name, and of whether memory is filled before its calls


class Finding(NamedTuple):
    """What further calls show of a kernel; its name and a sentence."""

    mistake: str
    sentence: str


class Trial:
    """The calls of one case, and what follows from them."""

    def __init__(self, case: CheckCase, options: Options, standard: str, kernels: Kernels) -> None:
        self.case, self.options, self.standard, self._kernels = case, options, standard, kernels
        self.kernel = None if options.against else kernels(options.impl)
        self.third = kernels(options.third) if standard == "dual" else None
        rows = case.M if case.layouts else max(1, block_rows(case, options.block_bytes))
        self.blocks = [(start, min(start + rows, case.M)) for start in range(0, case.M, rows)] if case.M else [(0, 0)]
        self.is_whole = len(self.blocks) == 1 or (not options.against and self._fits(OUTPUTS_OF_A_CALL))
        self._twice_fits = self._fits(OUTPUTS_OF_TWO)  # before any of it is taken
        self.notes: list[str] = []
        self._drawn: DrawnInputs | None = None
        self._calls = 0

    def result(self, bare: CaseResult) -> CaseResult:
        """The case's result.

        Raises:
            NotApplicable, KernelError: The implementation does not take the case, or raised something else.
        """
        first: Grads | None = None
        finding: Finding | None = None
        if self.is_whole and self.kernel is not None:
            first = self._first()
            found = self._compared(first)
            if not found.passed and not found.broken and self._ignores_statistics(first):
                found = self._with_own_statistics(first, found)
            if not found.passed and self.case.layouts:
                finding = self._without_layout()
            finding = finding or self._further(found, first)
        else:
            if self.kernel is not None:
                rows = self.blocks[0][1]
                self.notes.append(
                    f"called in {len(self.blocks)} blocks of {rows} rows, as memory is short: what goes wrong with more "
                    f"rows in a call is not seen"
                )
            found = self._compare(self._pieces())
        failed = finding is not None or not found.passed
        made = replace(
            bare, outputs=tuple(found.outputs), reason=found.reason, notes=tuple(self.notes), calls=self._calls
        )
        said = self._diagnosed(found, first) if failed and finding is None else None
        if said is not None and first is not None and (said.sentence.startswith(UNEXPLAINED) or not self.case.M):
            finding = self._alone()
        if finding is not None:
            made = replace(
                made, mistake=finding.mistake, sentence=finding.sentence, reason=found.reason or finding.mistake
            )
        elif said is not None:
            made = replace(made, **said._asdict())
        elif self.options.timed and self.kernel is not None and self.is_whole:
            made, failed = self._timed(made)
        return replace(made, status="failed" if failed else "passed", notes=tuple(self.notes), calls=self._calls)

    def _fits(self, outputs: int) -> bool:
        """Whether memory suffices for all inputs, for so many times the outputs, and for a block of the truth."""
        needed = self.case.nbytes + (outputs - 1) * self.case.output_nbytes + self.options.block_bytes
        return needed <= available_bytes()

    def _given(self, start: int, stop: int) -> DrawnInputs:
        if self._drawn is None or (self._drawn.start, self._drawn.stop) != (start, stop):
            seed = self.options.seed if self.case.seed is None else self.case.seed
            self._drawn = draw(self.case, seed, start, stop, self.options.max_bytes)
        return self._drawn

    def _all_blocks(self) -> Iterator[DrawnInputs]:
        return (self._given(*block) for block in self.blocks)

    def _call(self, kernel: Kernel, request: Request) -> Grads:
        if kernel.has_threads and request.threads is None:
            request = replace(request, threads=kernel.threads)
        self._calls += kernel is self.kernel
        return kernel.call(request)

    def _placed(self, given: DrawnInputs | None = None, case: CheckCase | None = None) -> Request:
        """All rows as they are drawn, or others, in the kernel's memory."""
        assert self.kernel is not None  # there is something to be called
        blocks = self._all_blocks() if given is None else iter([given])
        return self.kernel.memory.place(case or self.case, self.case.M, blocks)

    def _first(self) -> Grads:
        assert self.kernel is not None
        try:
            return self._call(self.kernel, self._placed())
        except (NotApplicable, KernelError) as refusal:
            if self.case.layouts and not getattr(refusal, "died", False):
                self._call(self.kernel, self._placed(case=replace(self.case, layouts={})))
                how = ", ".join(f"{name} with {layout}" for name, layout in self.case.layouts.items())
                raise NotApplicable(f"it does not take this layout ({how}): {refusal}") from None
            raise

    def _pieces(self) -> Iterator[Piece]:
        """Calls with blocks of rows, or a device's dumps, a block after the other."""
        for start, stop in self.blocks:
            given = self._given(start, stop)
            if self.kernel is None:
                assert self.options.against is not None  # as there is no implementation
                got = dump_of(self.case, self.options.against, start, stop, self.options.max_bytes)
            else:
                got = self._call(self.kernel, self.kernel.memory.place(self.case, stop - start, [given]))
            yield Piece(start, stop, got, self._third_party([given], stop - start), [given])

    def _third_party(self, blocks: Any, rows: int) -> Grads | None:
        return None if self.third is None else self._call(self.third, self.third.memory.place(self.case, rows, blocks))

    def _compare(self, pieces: Any, own_statistics: float | None = None, standard: str = "") -> Comparison:
        return Comparison(
            self.case, standard or self.standard, self.options.level, pieces, summed=self.kernel is not None,
            own_statistics=own_statistics,
        )  # fmt: skip

    def _compared(self, got: Grads, given: DrawnInputs | None = None, standard: str = "") -> Comparison:
        """Results of all rows, beside the truth of the inputs as they are drawn, or of others."""
        blocks = self._all_blocks() if given is None else [given]
        third = None if standard else self._third_party(self._all_blocks() if given is None else blocks, self.case.M)
        return self._compare([Piece(0, self.case.M, got, third, blocks)], self._own_eps, standard)

    def _is_far_off(self, got: Grads, given: DrawnInputs | None, first: Grads) -> bool:
        """Whether more is wrong with a further call than the last digits, which strict standards fail in right results."""
        if self._compared(first, standard="stable").passed:
            outputs = self._compared(got, given, "stable").outputs
            return any(not one.passed and one.worst_share > FAR_OFF for one in outputs)
        return not self._compared(got, given, "cosine").passed

    _own_eps: float | None = None  # set where the kernel computes statistics of its own

    def _ignores_statistics(self, first: Grads) -> bool:
        """Whether results are the same with another mean and rstd."""
        case = self.case
        if len(self.blocks) > 1 or not (case.takes_statistics_of_x or case.recomputed == "skipped"):
            return False
        given = self._given(*self.blocks[0])
        one = given.inputs
        with np.errstate(all="ignore"):
            others = replace(one, mean=one.mean + one.mean.dtype.type(1), rstd=one.rstd * one.rstd.dtype.type(2))
            changed = replace(
                given, inputs=others, exact=others, variance=given.variance + given.variance.dtype.type(1)
            )
        try:
            assert self.kernel is not None  # it has been called
            return not different(self._call(self.kernel, self._placed(changed)), first)
        except (NotApplicable, KernelError):
            return False

    def _with_own_statistics(self, first: Grads, found: Comparison) -> Comparison:
        """The verdict on a kernel that takes no statistics.

        Raises:
            NotApplicable: It is right, but not for the statistics of this case, which need not be taken.
        """
        for eps in {self.case.eps, self._given(*self.blocks[0]).eps, 1e-5}:
            self._own_eps = eps
            own = self._compared(first)
            if own.passed and not (self.case.takes_statistics_of_x and self._own_eps == self.case.eps):
                raise NotApplicable(
                    f"{OWN}, and this case gives others. That is a choice: such cases say nothing about it"
                )
            if own.passed:
                self.notes.append(f"{OWN}; that is a choice")
                return own
        self._own_eps = None
        return found

    def _without_layout(self) -> Finding | None:
        """Whether inputs that lie otherwise make the difference."""
        assert self.kernel is not None
        try:
            plain = self._call(self.kernel, self._placed(case=replace(self.case, layouts={})))
        except (NotApplicable, KernelError):
            return None
        if not self._compared(plain).passed:
            return None
        which = " and ".join(f"{name} ({layout})" for name, layout in self.case.layouts.items())
        return Finding(
            "layout ignored",
            f"It is right where all inputs are contiguous and wrong for {which}: it has to use their strides, or copy "
            f"them, or raise NotImplementedError.",
        )

    def _further(self, found: Comparison, first: Grads) -> Finding | None:
        """Other inputs of the same shape, and the first ones again; other numbers of threads."""
        kernel = self.kernel
        assert kernel is not None  # it has been called
        if kernel.seconds > SLOW_SECONDS:
            self.notes.append(f"called once: a call takes {kernel.seconds:.0f} s")
            return None
        if len(self.blocks) > 1 and not self._twice_fits:
            self.notes.append("called once: memory does not suffice for the results of two calls")
            return None
        is_quick, other = kernel.seconds <= QUICK_SECONDS, None
        if is_quick and len(self.blocks) == 1:
            given = with_other_values(self.case, self._given(*self.blocks[0]))
            request = self._placed(given)  # where the first inputs were
            if found.passed and (difference := different(kernel.again(), first)):
                return Finding(
                    "results that change",
                    f"Its results changed after it had returned, when the inputs did: {difference}.",
                )
            other = self._later(request)
        request = self._placed()
        for number in range(max(1, self.case.calls - 1)):
            again = self._later(request)
            if difference := different(again, first):
                if found.passed and self._compared(again).passed:
                    self.notes.append(f"its bits differ from call to call: {difference}; all are right")
                    break
                if not found.passed and self._differs_by_rounding(again, first):
                    self.notes.append(
                        f"its bits differ from call to call: {difference}; by no more than sums in another order do"
                    )
                    break
                return _not_repeatable(f"call {number + 2} with the same inputs: {difference}")
        if found.passed and self.case.calls > DEFAULT_CALLS and (kept := self._after_more_rows(request, first)):
            return kept
        if not found.passed:
            return self._raced(request, first)
        if (
            other is not None
            and not (second := self._compared(other, given)).passed
            and self._is_far_off(other, given, first)
        ):
            if raced := self._raced(self._placed(given), other):
                return raced
            same = "It gave the first call's results once more" if not different(other, first) else second.reason
            return Finding(
                "an earlier call's results",
                f"The first call was right, a second one with other values of the same shape was not: {same}. Something is "
                f"kept between calls, by shape or by a part of the values; or calls are counted.",
            )
        if is_quick and kernel.has_threads:
            return self._with_threads(first)
        return None

    def _later(self, request: Request) -> Grads:
        assert self.kernel is not None
        try:
            return self._call(self.kernel, request)
        except (NotApplicable, KernelError) as error:
            text = str(error) if str(error).startswith("it ") else f"in call {self._calls} of this case: {error}"
            raise KernelError(text) from None

    def _alone(self) -> Finding | None:
        """Whether it is right in a process that has seen no other case."""
        assert self.kernel is not None  # it has been called
        if not self.kernel.restart():
            return None
        try:
            if not self._compared(self._call(self.kernel, self._placed())).passed:
                return None
        except (NotApplicable, KernelError):
            return None
        return Finding(
            "an earlier call's results",
            "Right as the first call of a process, and wrong after the calls of other cases: something is kept from call to "
            "call, such as a workspace, a sum, or results by shape.",
        )

    def _after_more_rows(self, request: Request, first: Grads) -> Finding | None:
        """Whether a call with more rows leaves something that the next one takes for its own."""
        assert self.kernel is not None  # it has been called
        larger = replace(self.case, lead=(self.case.M + MORE_ROWS,), layouts={}, files={})
        seed = self.options.seed if self.case.seed is None else self.case.seed
        try:
            self._call(self.kernel, self._placed(draw(larger, seed, 0, larger.M, self.options.max_bytes), larger))
        except (NotApplicable, KernelError):
            return None
        again = self._later(self._placed())
        if not (difference := different(again, first)) or self._compared(again).passed:
            return None
        return self._raced(request, again) or Finding(
            "an earlier call's results",
            f"Right until a call with {larger.M} rows, and wrong after it: {difference}. A workspace is kept from call to "
            f"call, and summed beyond what the last one wrote.",
        )

    def _raced(self, request: Request, wrong: Grads) -> Finding | None:
        """Whether a wrong result comes again."""
        for _ in range(3):
            again = self._later(request)
            if (difference := different(again, wrong)) and not self._differs_by_rounding(again, wrong):
                return _not_repeatable(difference)
        return None

    def _differs_by_rounding(self, got: Grads, expected: Grads) -> bool:
        """Whether results of equal calls are as near as sums in another order are, which no standard but `binary` forbids."""
        if self.standard == "binary" or len(self.blocks) > 1:
            return False
        for one, other, scale in zip(got, expected, gradient_scales(self._given(*self.blocks[0]).exact), strict=True):
            if (one is None) != (other is None) or (one is not None and one.shape != other.shape):
                return False
            if one is not None and one.size:
                wide = other.astype(np.float64)
                share = error_share(one, wide, scale.reshape(one.shape), ACCUMULATORS[one.dtype.name])
                if share.max() > FAR_OFF:
                    return False
        return True

    def _with_threads(self, first: Grads) -> Finding | None:
        for threads in THREADS:
            request = replace(self._placed(), threads=threads)
            got = self._later(request)
            if not different(got, first) or (found := self._compared(got)).passed:
                continue
            if self._is_far_off(got, None, first):
                return self._raced(request, got) or Finding(
                    "number of threads",
                    f"With {threads} threads it is wrong, and with the usual number right: {found.reason}.",
                )
        return None

    def _diagnosed(self, found: Comparison, first: Grads | None) -> Diagnosis:
        if found.kept is None or found.broken:
            return Diagnosis(None, "")
        shares = found.shares
        if len(self.blocks) > 1:
            if first is not None and self.case.M * self.case.N <= DIAGNOSED:
                self.blocks = [(0, self.case.M)]
                found = self._compared(first)
                shares = found.shares
            else:  # a block says nothing of the sums of all
                shares = {name: share for name, share in shares.items() if name == OUTPUTS[0]}
        if not shares or found.kept is None:
            return Diagnosis(None, "no diagnosis: the case is too large")
        if hidden := _hidden(found.kept[1], found.kept[0], shares):
            return hidden
        try:
            return diagnose(self.case, *found.kept, shares)
        except Exception as error:  # of a search that meets numbers it does not expect: the verdict stands without it
            return Diagnosis(None, f"no diagnosis: it failed with {type(error).__name__}: {error}")

    def _timed(self, made: CaseResult) -> tuple[CaseResult, bool]:
        """With the time of a call; and whether what came of timed calls is wrong."""
        kernel = self._kernels(self.options.impl, filled=False)
        request = kernel.memory.place(self.case, self.case.M, self._all_blocks())
        kernel.call(request)
        number, best = 1, float("inf")
        for _ in range(3):
            start = perf_counter()
            kernel.repeat(request, number)
            best = min(best, (perf_counter() - start) / number)
            number = max(1, min(10_000, ceil(TIMED_SECONDS / best)))
        last = self._compared(kernel.again())
        share = None if kernel.on_device else self.case.nbytes / best / copy_speed(kernel.threads)
        made = replace(made, time=best, nbytes=self.case.nbytes, of_memory=share)
        if last.passed:
            return made, False
        sentence = f"The calls that were timed gave other results than the first: {last.reason}."
        return replace(made, reason=last.reason, mistake="an earlier call's results", sentence=sentence), True


def _hidden(got: Grads, given: DrawnInputs, shares: Mapping[str, Array]) -> Diagnosis | None:
    """What became of NaN and infinity in the inputs; None if there are none. Least squares may not end with them.

    It has a name where nothing else is wrong.
    """
    if all(np.isfinite(array.astype(np.float64)).all() for array in arrays_of(given).values()):
        return None
    said, truth, others = [], true_grads(given.exact), 0
    for name, one, true in zip(OUTPUTS, got, truth, strict=True):
        if one is None or true is None or one.shape != true.shape:
            continue
        is_finite, should_be = np.isfinite(one.astype(np.float64)), np.isfinite(true)
        lost, spread = int((is_finite & ~should_be).sum()), int((~is_finite & should_be).sum())
        if name in shares:
            others += int((shares[name].reshape(one.shape) > 1)[is_finite & should_be].sum())
        if lost:
            said.append(
                f"{lost} elements of {name} are finite, and should be NaN or infinite: are they masked or clamped?"
            )
        if spread:
            said.append(
                f"{spread} elements of {name} are NaN or infinite, and should be finite: is 0 multiplied by them?"
            )
    text = " ".join(said) or "the inputs have NaN or infinity; the elements that are off do not."
    is_named = bool(said) and not others and "should be finite" not in text
    return Diagnosis("NaN or infinity lost" if is_named else None, text)


def _not_repeatable(difference: str) -> Finding:
    return Finding(
        "not repeatable",
        f"Equal calls gave different results, and not all of them right: {difference}. A race, a sum that is not set to zero, "
        f"or memory that nobody has written. Nothing else can be concluded.",
    )
