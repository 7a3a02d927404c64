"""One case from its inputs to its result: draw, call, compare with the float64 truth, call again, diagnose.

A kernel is called with inputs A, with others, and with A again. What only these calls show comes before any diagnosis: after
"not repeatable" nothing else is concluded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from lngrad.check.calls.kernel import Kernel, KernelError, Request, arrays_of, first_line, here
from lngrad.check.case import OUTPUTS, CheckCase
from lngrad.check.comparison import Comparison, Piece
from lngrad.check.formats.fuzz import FUZZ
from lngrad.check.formats.reading import dump_of
from lngrad.check.implementations import NotApplicable
from lngrad.check.inputs import DrawnInputs, block_rows, draw, true_grads, with_other_values
from lngrad.check.mistakes.diagnosis import Diagnosis, diagnose
from lngrad.check.result import CaseResult
from lngrad.check.standards.rules import AUTO, STANDARDS, usual
from lngrad.core.machine import available_bytes, copy_speed
from lngrad.core.problem import Grads
from lngrad.errors import BackendUnavailable, FileFormatError

COPIES = 4  # of a case, that a call takes with its results on both sides of a pipe
QUICK_SECONDS = 1.0  # a call that takes longer is not made with other inputs, layouts and threads
SLOW_SECONDS = 20.0  # and one that takes longer than this is made once
FAR_OFF = 4.0  # tolerances of `stable`, of a further call of a kernel whose first is within one
THREADS = (1, 2, 3)
DIAGNOSED = 1 << 23  # elements of a case whose failure is explained as a whole
TIMED_SECONDS = 0.05  # of calls in a row, three times; the fastest counts
OWN = "it computes mean and rstd from x itself"

Kernels = Callable[..., Kernel]  # of a name, and of whether memory is filled before its calls


@dataclass(frozen=True)
class Options:
    """What a run of the command is about, besides the cases.

    Attributes:
        impl: Name of the implementation.
        standard: Name of the standard, for cases that have none of their own; "auto" for stable where x is float32 or float64
            and mixed where it has 16 bits.
        level: Of the standard `dual`.
        third: Implementation that gives the third-party result of `dual`.
        against: A folder of dumps to be judged instead of an implementation's results, or None.
        seed: Of the inputs.
        max_bytes: A case whose arrays take more is not run.
        block_bytes: Results are judged in blocks of rows that take about this much.
        timed: Whether right ones are timed.
        invoked: The command up to the cases, for the line that reproduces a failure.
    """

    impl: str = "numba_cpu"
    standard: str = AUTO
    level: str = "L1"
    third: str = "torch"
    against: str | None = None
    seed: int = 0
    max_bytes: int = 8 << 30
    block_bytes: int = 512 << 20
    timed: bool = False
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


def check_case(case: CheckCase, options: Options, kernels: Kernels = here) -> CaseResult:
    """Run and judge one case. An exception of the implementation is a failed case; its text is the reason.

    Args:
        case, options: What to run.
        kernels: Gives an implementation by its name; one that is not trusted lives in a process of its own.

    Raises:
        BackendUnavailable: There is no such implementation.
        FileFormatError: The case asks for what does not exist.
    """
    standard = case.standard or options.standard
    if standard == AUTO:
        standard = usual(case.dtype)
    start = perf_counter()
    bare = CaseResult(case.label, str(case.source), "skipped", "", case_facts(case), standard, others=case.others)
    bare = replace(bare, command=command_of(case, options))
    if not case.enabled:
        return replace(bare, reason="switched off in its file")
    if standard not in STANDARDS:
        raise FileFormatError(f"{case.source}: standard: expected one of {', '.join(STANDARDS)}, got {standard!r}")
    if case.nbytes > options.max_bytes:
        text = f"needs {case.nbytes} bytes, --max-bytes allows {options.max_bytes}"
        return replace(bare, status="failed", reason=f"too large: {text}")
    try:
        result = _Trial(case, options, standard, kernels).result(bare)
    except BackendUnavailable:
        raise
    except NotApplicable as reason:
        result = replace(bare, reason=str(reason))
    except Exception as error:
        text = str(error) if isinstance(error, KernelError) else first_line(error)
        result = replace(bare, status="failed", reason=text)
    return replace(result, seconds=perf_counter() - start)


def command_of(case: CheckCase, options: Options) -> str:
    import shlex

    seed = options.seed if case.seed is None else case.seed
    where = case.source.file if case.source.file.startswith(FUZZ) else shlex.quote(case.source.file)
    return f"{options.invoked} {where} --seed {seed} --filter {shlex.quote('=' + case.name)}"


class Finding(NamedTuple):
    """What further calls show of a kernel; its name and a sentence."""

    mistake: str
    sentence: str


class _Trial:
    """The calls of one case, and what follows from them."""

    def __init__(self, case: CheckCase, options: Options, standard: str, kernels: Kernels) -> None:
        self.case, self.options, self.standard, self._kernels = case, options, standard, kernels
        self.kernel = None if options.against else kernels(options.impl)
        self.third = kernels(options.third) if standard == "dual" else None
        rows = case.M if case.layouts else max(1, block_rows(case, options.block_bytes))
        self.blocks = [(start, min(start + rows, case.M)) for start in range(0, case.M, rows)] if case.M else [(0, 0)]
        self.is_whole = len(self.blocks) == 1 or (not options.against and COPIES * case.nbytes <= available_bytes())
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
        if finding is not None:
            made = replace(
                made, mistake=finding.mistake, sentence=finding.sentence, reason=found.reason or finding.mistake
            )
        elif failed:
            made = replace(made, **self._diagnosed(found, first)._asdict())
        elif self.options.timed and self.kernel is not None and self.is_whole:
            made, failed = self._timed(made)
        return replace(made, status="failed" if failed else "passed", notes=tuple(self.notes), calls=self._calls)

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
            return not _different(self._call(self.kernel, self._placed(changed)), first)
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
        is_quick, other = kernel.seconds <= QUICK_SECONDS, None
        if is_quick and len(self.blocks) == 1:
            given = with_other_values(self.case, self._given(*self.blocks[0]))
            request = self._placed(given)  # where the first inputs were
            if found.passed and (difference := _different(kernel.again(), first)):
                return Finding(
                    "results that change",
                    f"Its results changed after it had returned, when the inputs did: {difference}.",
                )
            other = self._later(request)
        request = self._placed()
        for number in range(max(1, self.case.calls - 1)):
            again = self._later(request)
            if difference := _different(again, first):
                if found.passed and self._compared(again).passed:
                    self.notes.append(f"its bits differ from call to call: {difference}; all are right")
                    break
                return _not_repeatable(f"call {number + 2} with the same inputs: {difference}")
        if not found.passed:
            return self._raced(request, first)
        if (
            other is not None
            and not (second := self._compared(other, given)).passed
            and self._is_far_off(other, given, first)
        ):
            if raced := self._raced(self._placed(given), other):
                return raced
            same = "It gave the first call's results once more" if not _different(other, first) else second.reason
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

    def _raced(self, request: Request, wrong: Grads) -> Finding | None:
        """Whether a wrong result comes again."""
        for _ in range(3):
            if difference := _different(self._later(request), wrong):
                return _not_repeatable(difference)
        return None

    def _with_threads(self, first: Grads) -> Finding | None:
        for threads in THREADS:
            request = replace(self._placed(), threads=threads)
            got = self._later(request)
            if not _different(got, first) or (found := self._compared(got)).passed:
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
        if hidden := _hidden(found.kept[1], found.kept[0]):
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


def _hidden(got: Grads, given: DrawnInputs) -> Diagnosis | None:
    """What became of NaN and infinity in the inputs; None if there are none. Least squares may not end with them."""
    if all(np.isfinite(array.astype(np.float64)).all() for array in arrays_of(given).values()):
        return None
    said, truth = [], true_grads(given.exact)
    for name, one, true in zip(OUTPUTS, got, truth, strict=True):
        if one is None or true is None or one.shape != true.shape:
            continue
        is_finite, should_be = np.isfinite(one.astype(np.float64)), np.isfinite(true)
        lost, spread = int((is_finite & ~should_be).sum()), int((~is_finite & should_be).sum())
        if lost:
            said.append(
                f"{lost} elements of {name} are finite, and should be NaN or infinite: are they masked or clamped?"
            )
        if spread:
            said.append(
                f"{spread} elements of {name} are NaN or infinite, and should be finite: is 0 multiplied by them?"
            )
    text = " ".join(said) or "the inputs have NaN or infinity; the elements that are off do not."
    return Diagnosis("NaN or infinity lost" if said and "should be finite" not in text else None, text)


def _not_repeatable(difference: str) -> Finding:
    return Finding(
        "not repeatable",
        f"Equal calls gave different results, and not all of them right: {difference}. A race, a sum that is not set to zero, "
        f"or memory that nobody has written. Nothing else can be concluded.",
    )


def _different(got: Grads, expected: Grads) -> str:
    """Where two results first differ in bits; "" if nowhere."""
    for name, one, other in zip(OUTPUTS, got, expected, strict=True):
        if one is None or other is None:
            if one is not other:
                return f"{name} is there in one of them only"
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"{name} is {one.dtype} {one.shape}, and was {other.dtype} {other.shape}"
        first, second = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (one, other))
        unlike = np.flatnonzero(first != second) // one.dtype.itemsize
        if unlike.size:
            at = tuple(map(int, np.unravel_index(int(unlike[0]), one.shape)))
            number = np.unique(unlike).size
            return f"{name} differs in {number} of {one.size} elements, first at {at}: {one[at]} and {other[at]}"
    return ""
