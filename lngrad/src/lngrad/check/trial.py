"""The result of one case: call, compare with the float64 truth, call again, diagnose.

A kernel is called with inputs A, with others, and with A again; with other layouts, numbers of threads, and in a fresh process.
What only these calls show comes before any diagnosis: after "not repeatable" nothing else is concluded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from time import perf_counter
from typing import Any

import numpy as np

from lngrad.check.calls.kernel import OTHER_POISON, KernelError, Request, arrays_of, with_arrays
from lngrad.check.case import OF_ROWS, CheckCase, Results
from lngrad.check.case_calls import CaseCalls
from lngrad.check.comparison import Comparison, Piece, different
from lngrad.check.implementations import NotApplicable
from lngrad.check.implementations.libraries import xla_flushes
from lngrad.check.inputs import DrawnInputs, draw, with_other_values
from lngrad.check.mistakes.diagnosis import FILL, UNEXPLAINED, Diagnosis, diagnose
from lngrad.check.mistakes.terms import wide
from lngrad.check.result import EARLIER, NOT_EXPLAINED, CaseResult
from lngrad.check.truth import truth_of
from lngrad.core.machine import copy_speed
from lngrad.support.dtypes import UNIT_ROUNDOFF
from lngrad.typing import Array

DIAGNOSED = 1 << 23  # elements of a case whose failure is explained as a whole
TIMED_SECONDS = 0.05  # of calls in a row, three times; the fastest counts
OWN = "it computes mean and rstd from x itself"
WHOSE = {"x": "the gradient of x", "residual": "the gradient of the residual"}  # of one total
IN_FLOAT32 = "computed in float32"  # what float64 is by many kernels: a limit
QUICK_SECONDS = 1.0  # a call that takes longer is made once more, with other inputs if it is right
SLOW_SECONDS = 20.0  # and one that takes longer than this is made once
THREADS = (1, 2, 3)
REPEATED = 12  # calls more, where bits must be equal
MORE_ROWS = 600  # of a call between two others, of cases that are called more often than by default
DEFAULT_CALLS = CheckCase.calls
MAX_APART = 0.05  # of what is added to memory: roundings of a result
FLUSHED_BELOW = 2.0**-100  # sums of numbers below 2^-126, times rstd and gamma
HIDDEN = "right with the case's values, and wrong with others of the same shape"


def result_of(calls: CaseCalls, bare: CaseResult) -> CaseResult:
    """The case's result: `bare` with what was found.

    Raises:
        NotApplicable, KernelError: The implementation does not take the case, or raised something else.
    """
    if calls.is_whole and calls.kernel is not None:
        first, found, finding = _in_one_call(calls)
    else:
        first, found, finding = None, _in_blocks(calls), None
    failed = finding is not None or not found.passed
    result = replace(bare, outputs=tuple(found.outputs), reason=found.reason)
    if failed and finding is None:
        finding = diagnosis = _of_one_gradient(calls, found, _diagnosed(calls, found, first))
        is_open = diagnosis.sentence.startswith(UNEXPLAINED) or not calls.case.M
        if first is not None and not found.broken and calls.options.explained == "whole":
            finding = _refilled(calls, diagnosis, first) or (alone(calls) if is_open else None) or diagnosis
    if finding is not None:
        result = replace(result, **finding._asdict(), reason=found.reason or finding.mistake or HIDDEN)
    elif calls.options.timed and first is not None:
        result, failed = _timed(calls, result)
    return replace(result, status="failed" if failed else "passed", notes=tuple(calls.notes), calls=calls.calls)


def _in_one_call(calls: CaseCalls) -> tuple[Results, Comparison, Diagnosis | None]:
    """All rows at once: the results, what is wrong with them, and what further calls show."""
    first = calls.first()
    found = calls.compared(first)
    if not found.passed and not found.broken and _ignores_statistics(calls, first):
        found = _with_own_statistics(calls, first, found)
    if not found.passed and not found.broken and _is_in_float32(calls, first):
        raise NotApplicable(IN_FLOAT32)
    if not found.passed and not found.broken and _is_flushed(calls, first):
        calls.call(replace(calls.placed(), is_flushed=True))  # which refuses it, where it is XLA that flushes
    finding = without_layout(calls) if not found.passed and calls.case.layouts else None
    return first, found, finding or further(calls, found, first)


def _is_in_float32(calls: CaseCalls, got: Results) -> bool:
    """Whether results of float64 are right as those of float32, of inputs in float32."""
    case = calls.case
    if case.dtype != "float64" or len(calls.blocks) > 1:
        return False
    drawn, narrow = calls.drawn(*calls.blocks[0]), np.dtype("float32")
    whole = [Piece(0, case.M, got, None, [drawn])]
    if Comparison(case, "stable", calls.options.level, whole, own_statistics=calls.own_eps).passed:
        return False  # right as float64, and held to more by the case's standard
    inputs = with_arrays(drawn, {name: array.astype(narrow) for name, array in arrays_of(drawn).items()})
    results = got._replace(**{name: array.astype(narrow) for name, array in _there(got).items()})
    gamma_dtype = None if case.gamma_dtype is None else narrow.name
    as_float32 = replace(
        case, dtype=narrow.name, gamma_dtype=gamma_dtype, statistics_dtype=narrow.name, output_dtypes={}
    )
    pieces = [Piece(0, case.M, results, None, [inputs])]
    return Comparison(as_float32, "stable", calls.options.level, pieces, own_statistics=calls.own_eps).passed


def _is_flushed(calls: CaseCalls, got: Results) -> bool:
    """Whether XLA would take inputs for 0, and no result is off by more than such numbers."""
    drawn = calls.drawn(*calls.blocks[0])
    if xla_flushes(calls.case, drawn) is None:
        return False
    truth = truth_of(calls.case, drawn.exact)
    errors = (np.abs(wide(array) - truth[name]).max(initial=0) for name, array in _there(got).items())
    return all(error < FLUSHED_BELOW for error in errors)


def _there(results: Any) -> dict[str, Array]:
    """The results that are there, by name."""
    return {name: array for name, array in results._asdict().items() if array is not None}


def _in_blocks(calls: CaseCalls) -> Comparison:
    """A block of rows after the other: where memory is short, and of a device's dumps."""
    if calls.kernel is not None:
        text = f"called in {len(calls.blocks)} blocks of {calls.blocks[0][1]} rows, as memory is short"
        calls.notes.append(f"{text}: what goes wrong with more rows in a call is not seen")
    return calls.compare(calls.pieces())


def _ignores_statistics(calls: CaseCalls, first: Results) -> bool:
    """Whether results are the same with another mean and rstd."""
    case = calls.case
    if len(calls.blocks) > 1 or not (case.takes_statistics_of_x or case.recomputed == "skipped"):
        return False
    drawn = calls.drawn(*calls.blocks[0])
    inputs = drawn.inputs
    mean, rstd = inputs.mean, inputs.rstd
    with np.errstate(all="ignore"):
        others = replace(inputs, mean=mean + mean.dtype.type(1), rstd=rstd * rstd.dtype.type(2))
        changed = replace(drawn, inputs=others, exact=others, variance=drawn.variance + drawn.variance.dtype.type(1))
    try:
        return not different(calls.call(calls.placed(changed)), first)
    except (NotApplicable, KernelError):
        return False


def _with_own_statistics(calls: CaseCalls, first: Results, found: Comparison) -> Comparison:
    """The verdict on a kernel that takes no statistics.

    Raises:
        NotApplicable: It is right, but not for the statistics of this case, which need not be taken.
    """
    for eps in {calls.case.eps, calls.drawn(*calls.blocks[0]).eps, 1e-5}:
        calls.own_eps = eps
        own = calls.compared(first)
        if own.passed and not (calls.case.takes_statistics_of_x and calls.own_eps == calls.case.eps):
            raise NotApplicable(f"{OWN}, and this case gives others. That is a choice: such cases say nothing about it")
        if own.passed:
            calls.notes.append(f"{OWN}; that is a choice")
            return own
    calls.own_eps = None
    return found


def _diagnosed(calls: CaseCalls, found: Comparison, first: Results | None) -> Diagnosis:
    if calls.options.explained == "not":
        return Diagnosis(None, NOT_EXPLAINED)
    if found.form:
        return Diagnosis(*found.form)
    if found.kept is None or found.broken:
        return Diagnosis(None, "")
    is_part = len(calls.blocks) > 1  # which says nothing of the sums of all
    if is_part and first is not None and calls.case.M * calls.case.N <= DIAGNOSED:
        calls.blocks, is_part = [(0, calls.case.M)], False
        found = calls.compared(first)
    shares = {name: share for name, share in found.shares.items() if name in OF_ROWS or not is_part}
    if is_part and not shares:
        return Diagnosis(None, "no diagnosis: the case is too large")
    assert found.kept is not None  # of a case that can be judged
    if hidden := _hidden(calls.case, found.kept[1], found.kept[0], shares):
        return hidden
    try:
        return diagnose(calls.case, *found.kept, shares, calls.options.explained == "brief", calls.options.likely)
    except Exception as error:  # of a search that meets numbers it does not expect: the verdict stands without it
        return Diagnosis(None, f"no diagnosis: it failed with {type(error).__name__}: {error}")


def _of_one_gradient(calls: CaseCalls, found: Comparison, diagnosis: Diagnosis) -> Diagnosis:
    """With its place, where a forward has a gradient of x and one of the residual, and one of the two is right."""
    signature = calls.kernel and calls.kernel.signature
    if not signature or signature.library == "numpy" or not calls.case.residual or {*found.shares} != {"dx"}:
        return diagnosis
    cases = {name: replace(calls.case, of_total=name) for name in ("x", "residual")}
    wrong = [name for name, case in cases.items() if not _is_right(calls, calls.placed(case=case))]
    if len(wrong) != 1 or diagnosis.mistake is None or WHOSE[wrong[0]] in diagnosis.mistake:
        return diagnosis
    where = f"{WHOSE[wrong[0]]} alone"
    others = tuple((f"{name} in {where}", f"In {where}: {text}") for name, text in diagnosis.alternatives)
    name, text = f"{diagnosis.mistake} in {where}", f"In {where}: {diagnosis.sentence}"
    return diagnosis._replace(mistake=name, sentence=text, alternatives=others)


def _timed(calls: CaseCalls, result: CaseResult) -> tuple[CaseResult, bool]:
    """With the time of a call; and whether what came of timed calls is wrong."""
    kernel = calls.kernels(calls.options.impl, filled=False)
    request = kernel.memory.place(calls.case, calls.case.M, calls.all_blocks())
    kernel.call(request)
    number, best = 1, float("inf")
    for _ in range(3):
        start = perf_counter()
        kernel.repeat(request, number)
        best = min(best, (perf_counter() - start) / number)
        number = max(1, min(10_000, ceil(TIMED_SECONDS / best)))
    last = calls.compared(kernel.again())
    share = None if kernel.on_device else calls.case.nbytes / best / copy_speed(kernel.threads)
    result = replace(result, time=best, nbytes=calls.case.nbytes, of_memory=share)
    if last.passed:
        return result, False
    sentence = f"The calls that were timed gave other results than the first: {last.reason}."
    return replace(result, reason=last.reason, mistake=EARLIER, sentence=sentence), True


def _hidden(case: CheckCase, got: Results, drawn: DrawnInputs, shares: Mapping[str, Array]) -> Diagnosis | None:
    """What became of NaN and infinity in the inputs; None if there are none. Least squares may not end with them.

    It has a name where nothing else is wrong.
    """
    if all(np.isfinite(array.astype(np.float64)).all() for array in arrays_of(drawn).values()):
        return None
    sentences, truth, others = [], truth_of(case, drawn.exact), 0
    for name, array in _there(got).items():
        if array.shape != truth[name].shape:
            continue
        is_finite, should_be = np.isfinite(array.astype(np.float64)), np.isfinite(truth[name])
        lost, spread = int((is_finite & ~should_be).sum()), int((~is_finite & should_be).sum())
        if name in shares:
            others += int((shares[name].reshape(array.shape) > 1)[is_finite & should_be].sum())
        of, wild = f"elements of {name} are", "NaN or infinite"
        sentences += [f"{lost} {of} finite, and should be {wild}: are they masked or clamped?"] * bool(lost)
        sentences += [f"{spread} {of} {wild}, and should be finite: is 0 multiplied by them?"] * bool(spread)
    text = " ".join(sentences) or (
        "NaN and infinity, which this case has in its inputs, are where they should be; what is off besides, other cases tell."
    )
    is_named = bool(sentences) and not others and "should be finite" not in text
    return Diagnosis("NaN or infinity lost" if is_named else None, text)


def without_layout(calls: CaseCalls) -> Diagnosis | None:
    """Whether inputs that lie otherwise make the difference."""
    if not _is_right(calls, calls.placed(case=replace(calls.case, layouts={}))):
        return None
    which = " and ".join(f"{name} ({layout})" for name, layout in calls.case.layouts.items())
    text = f"It is right where all inputs are contiguous and wrong for {which}"
    return Diagnosis(
        "layout ignored", f"{text}: it has to use their strides, or copy them, or raise NotImplementedError."
    )


def _is_right(calls: CaseCalls, request: Request) -> bool:
    try:
        return calls.compared(calls.call(request)).passed
    except (NotApplicable, KernelError):
        return False


def further(calls: CaseCalls, found: Comparison, first: Results) -> Diagnosis | None:
    """After the first call: other inputs of the same shape, and the first ones again; more rows; other numbers of threads."""
    kernel = calls.called
    if kernel.seconds > SLOW_SECONDS:
        calls.notes.append(f"called once: a call takes {kernel.seconds:.0f} s")
        return None
    if len(calls.blocks) > 1 and not calls.twice_fits:
        calls.notes.append("called once: memory does not suffice for the results of two calls")
        return None
    is_quick, other = kernel.seconds <= QUICK_SECONDS, None
    if len(calls.blocks) == 1 and (is_quick or found.passed):
        drawn = with_other_values(calls.case, calls.drawn(*calls.blocks[0]))
        request = calls.placed(drawn)  # where the first inputs were
        if found.passed and (difference := different(kernel.again(), first)):
            text = f"Its results changed after it had returned, when the inputs did: {difference}."
            return Diagnosis("results that change", text)
        other, is_quick = (drawn, calls.later(request)), kernel.seconds <= QUICK_SECONDS  # the first may compile
    if other is not None and not is_quick:
        return _of_an_earlier_call(calls, *other, first)
    request = calls.placed()
    if finding := _the_same_again(calls, request, found, first):
        return finding
    if not found.passed:
        return _raced(calls, request, first)
    if calls.case.calls > DEFAULT_CALLS and (finding := _after_more_rows(calls, request, first)):
        return finding
    if other is not None and (finding := _of_an_earlier_call(calls, *other, first)):
        return finding
    return _with_threads(calls, first) if is_quick and kernel.has_threads else None


def _the_same_again(calls: CaseCalls, request: Request, found: Comparison, first: Results) -> Diagnosis | None:
    """Whether equal calls differ by more than sums in another order do."""
    repeatable = calls.options.repeatable and found.passed
    for number in range(max(1, calls.case.calls - 1, REPEATED * repeatable)):
        again = calls.later(request)
        difference = different(again, first)
        if not difference:
            continue
        if found.passed and calls.compared(again).passed:
            if repeatable:
                return Diagnosis("not repeatable", f"Equal calls gave right results with different bits: {difference}. "
                               "--repeatable wants equal ones.")  # fmt: skip
            harmless = "all are right"
        elif not found.passed and calls.differs_by_rounding(again, first):
            harmless = "by no more than sums in another order do"
        else:
            return _not_repeatable(f"call {number + 2} with the same inputs: {difference}")
        calls.notes.append(f"its bits differ from call to call: {difference}; {harmless}")
        break
    return None


def _of_an_earlier_call(calls: CaseCalls, drawn: DrawnInputs, other: Results, first: Results) -> Diagnosis | None:
    """Whether a call with other inputs, after a right one, is wrong by more than the last digits; and as the first one too."""
    second = calls.compared(other, drawn)
    if second.passed or not calls.is_far_off(other, drawn, first):
        return None
    same = "It gave the first call's results once more" if not different(other, first) else second.reason
    if same == second.reason and (raced := _raced(calls, calls.placed(drawn), other)):
        return raced
    if is_fresh := calls.called.restart():
        other = calls.later(calls.placed(drawn))
        second = calls.compared(other, drawn)
    diagnosis = None if second.passed or not different(other, first) else _diagnosed(calls, second, None)
    if diagnosis and (diagnosis.mistake or is_fresh):  # nothing is kept: the first values hide what is wrong
        calls.notes.append(f"{HIDDEN}: {second.reason}")
        return diagnosis
    return Diagnosis(
        EARLIER, f"The first call was right, a second one with other values of the same shape was not: {same}. Something is "
        "kept between calls, by shape or by a part of the values; or calls are counted.")  # fmt: skip


@np.errstate(all="ignore")
def _refilled(calls: CaseCalls, diagnosis: Diagnosis, first: Results) -> Diagnosis | None:
    """What results are that have in them what memory held, seen with other numbers in it: huge ones hide all else."""
    truth = truth_of(calls.case, calls.drawn(*calls.blocks[0]).exact)
    is_huge = (~(np.abs(wide(array)) < FILL) & np.isfinite(truth[name]) for name, array in _there(first).items())
    if len(calls.blocks) > 1 or not any(elements.any() for elements in is_huge):
        return None
    other = calls.later(replace(calls.placed(), fill=OTHER_POISON))
    found, added = calls.compared(other), dict[str, str]()
    if not different(other, first) or found.passed or found.broken:
        return None
    for name, share in found.shares.items():
        got, right = (wide(array).reshape(share.shape)[share > 1] for array in (getattr(other, name), truth[name]))
        most, unit = np.abs(got - right).max(), UNIT_ROUNDOFF[getattr(other, name).dtype.name]
        if np.ptp(got - right) <= max(MAX_APART * most, 4 * unit * np.abs(got).max()) < most < np.inf and np.ptp(got):
            added[name] = f"{np.median(got - right):.4g} more in {name}"
    if added and {*added} == {*found.shares}:
        text = f"with other numbers in memory there is {', '.join(added.values())}: what is added to was not cleared."
        return Diagnosis(f"{' and '.join(added)} added to memory that is not cleared", text)
    again = _diagnosed(calls, found, other) if diagnosis.mistake is None else diagnosis
    return again if again.mistake and again is not diagnosis else None


def alone(calls: CaseCalls) -> Diagnosis | None:
    """Whether it is right in a process that has seen no other case."""
    if not calls.called.restart() or not _is_right(calls, calls.placed()):
        return None
    return Diagnosis(EARLIER, "Right as the first call of a process, and wrong after the calls of other cases: something is "
                     "kept from call to call, such as a workspace, a sum, or results by shape.")  # fmt: skip


def _after_more_rows(calls: CaseCalls, request: Request, first: Results) -> Diagnosis | None:
    """Whether a call with more rows leaves something that the next one takes for its own."""
    larger = replace(calls.case, lead=(calls.case.M + MORE_ROWS,), layouts={}, files={})
    try:
        calls.call(calls.placed(draw(larger, calls.seed, 0, larger.M, calls.options.max_bytes), larger))
    except (NotApplicable, KernelError):
        return None
    again = calls.later(calls.placed())
    if not (difference := different(again, first)) or calls.compared(again).passed:
        return None
    return _raced(calls, request, again) or Diagnosis(
        EARLIER, f"Right until a call with {larger.M} rows, and wrong after it: {difference}. A workspace is kept from call to "
        "call, and summed beyond what the last one wrote.")  # fmt: skip


def _raced(calls: CaseCalls, request: Request, wrong: Results) -> Diagnosis | None:
    """Whether a wrong result comes again."""
    for _ in range(3):
        again = calls.later(request)
        if (difference := different(again, wrong)) and not calls.differs_by_rounding(again, wrong):
            return _not_repeatable(difference)
    return None


def _with_threads(calls: CaseCalls, first: Results) -> Diagnosis | None:
    for threads in THREADS:
        request = replace(calls.placed(), threads=threads)
        got = calls.later(request)
        if not different(got, first) or (found := calls.compared(got)).passed:
            continue
        if calls.is_far_off(got, None, first):
            text = f"With {threads} threads it is wrong, and with the usual number right: {found.reason}."
            return _raced(calls, request, got) or Diagnosis("number of threads", text)
    return None


def _not_repeatable(difference: str) -> Diagnosis:
    text = f"Equal calls gave different results, and not all of them right: {difference}. A race, a sum that is not set to zero"
    return Diagnosis("not repeatable", f"{text}, or memory that nobody has written. Nothing else can be concluded.")
