"""What further calls of a kernel show: other inputs, the same again, other layouts, numbers of threads, a fresh process."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from lngrad.check.calls.kernel import KernelError, Request
from lngrad.check.case import CheckCase
from lngrad.check.case_calls import CaseCalls
from lngrad.check.comparison import Comparison, different
from lngrad.check.implementations import NotApplicable
from lngrad.check.inputs import DrawnInputs, draw, with_other_values
from lngrad.core.problem import Grads

QUICK_SECONDS = 1.0  # a call that takes longer is not made with other inputs, layouts and threads
SLOW_SECONDS = 20.0  # and one that takes longer than this is made once
THREADS = (1, 2, 3)
MORE_ROWS = 600  # of a call between two others, of cases that are called more often than by default
DEFAULT_CALLS = CheckCase.calls


class Finding(NamedTuple):
    """What further calls show of a kernel; its name and a sentence."""

    mistake: str
    sentence: str


def without_layout(calls: CaseCalls) -> Finding | None:
    """Whether inputs that lie otherwise make the difference."""
    assert calls.kernel is not None
    try:
        plain = calls.call(calls.kernel, calls.placed(case=replace(calls.case, layouts={})))
    except (NotApplicable, KernelError):
        return None
    if not calls.compared(plain).passed:
        return None
    which = " and ".join(f"{name} ({layout})" for name, layout in calls.case.layouts.items())
    return Finding(
        "layout ignored",
        f"It is right where all inputs are contiguous and wrong for {which}: it has to use their strides, or copy "
        f"them, or raise NotImplementedError.",
    )


def further(calls: CaseCalls, found: Comparison, first: Grads) -> Finding | None:
    """Other inputs of the same shape, and the first ones again; a call with more rows; other numbers of threads.

    Args:
        calls: Of the case, of which one has been made.
        found: What came of it.
        first: Its results.
    """
    kernel = calls.kernel
    assert kernel is not None  # it has been called
    if kernel.seconds > SLOW_SECONDS:
        calls.notes.append(f"called once: a call takes {kernel.seconds:.0f} s")
        return None
    if len(calls.blocks) > 1 and not calls.twice_fits:
        calls.notes.append("called once: memory does not suffice for the results of two calls")
        return None
    is_quick, other = kernel.seconds <= QUICK_SECONDS, None
    if is_quick and len(calls.blocks) == 1:
        given = with_other_values(calls.case, calls.given(*calls.blocks[0]))
        request = calls.placed(given)  # where the first inputs were
        if found.passed and (difference := different(kernel.again(), first)):
            text = f"Its results changed after it had returned, when the inputs did: {difference}."
            return Finding("results that change", text)
        other = given, calls.later(request)
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


def _the_same_again(calls: CaseCalls, request: Request, found: Comparison, first: Grads) -> Finding | None:
    """Whether equal calls differ by more than sums in another order do."""
    for number in range(max(1, calls.case.calls - 1)):
        again = calls.later(request)
        difference = different(again, first)
        if not difference:
            continue
        if found.passed and calls.compared(again).passed:
            harmless = "all are right"
        elif not found.passed and calls.differs_by_rounding(again, first):
            harmless = "by no more than sums in another order do"
        else:
            return _not_repeatable(f"call {number + 2} with the same inputs: {difference}")
        calls.notes.append(f"its bits differ from call to call: {difference}; {harmless}")
        break
    return None


def _of_an_earlier_call(calls: CaseCalls, given: DrawnInputs, other: Grads, first: Grads) -> Finding | None:
    """Whether a call with other inputs, after a right one, is wrong by more than the last digits."""
    second = calls.compared(other, given)
    if second.passed or not calls.is_far_off(other, given, first):
        return None
    same = "It gave the first call's results once more" if not different(other, first) else second.reason
    return _raced(calls, calls.placed(given), other) or Finding(
        "an earlier call's results",
        f"The first call was right, a second one with other values of the same shape was not: {same}. Something is "
        f"kept between calls, by shape or by a part of the values; or calls are counted.",
    )


def alone(calls: CaseCalls) -> Finding | None:
    """Whether it is right in a process that has seen no other case."""
    assert calls.kernel is not None  # it has been called
    if not calls.kernel.restart():
        return None
    try:
        if not calls.compared(calls.call(calls.kernel, calls.placed())).passed:
            return None
    except (NotApplicable, KernelError):
        return None
    return Finding(
        "an earlier call's results",
        "Right as the first call of a process, and wrong after the calls of other cases: something is kept from call to "
        "call, such as a workspace, a sum, or results by shape.",
    )


def _after_more_rows(calls: CaseCalls, request: Request, first: Grads) -> Finding | None:
    """Whether a call with more rows leaves something that the next one takes for its own."""
    assert calls.kernel is not None  # it has been called
    larger = replace(calls.case, lead=(calls.case.M + MORE_ROWS,), layouts={}, files={})
    try:
        calls.call(calls.kernel, calls.placed(draw(larger, calls.seed, 0, larger.M, calls.options.max_bytes), larger))
    except (NotApplicable, KernelError):
        return None
    again = calls.later(calls.placed())
    if not (difference := different(again, first)) or calls.compared(again).passed:
        return None
    return _raced(calls, request, again) or Finding(
        "an earlier call's results",
        f"Right until a call with {larger.M} rows, and wrong after it: {difference}. A workspace is kept from call to "
        f"call, and summed beyond what the last one wrote.",
    )


def _raced(calls: CaseCalls, request: Request, wrong: Grads) -> Finding | None:
    """Whether a wrong result comes again."""
    for _ in range(3):
        again = calls.later(request)
        if (difference := different(again, wrong)) and not calls.differs_by_rounding(again, wrong):
            return _not_repeatable(difference)
    return None


def _with_threads(calls: CaseCalls, first: Grads) -> Finding | None:
    for threads in THREADS:
        request = replace(calls.placed(), threads=threads)
        got = calls.later(request)
        if not different(got, first) or (found := calls.compared(got)).passed:
            continue
        if calls.is_far_off(got, None, first):
            return _raced(calls, request, got) or Finding(
                "number of threads",
                f"With {threads} threads it is wrong, and with the usual number right: {found.reason}.",
            )
    return None


def _not_repeatable(difference: str) -> Finding:
    return Finding(
        "not repeatable",
        f"Equal calls gave different results, and not all of them right: {difference}. A race, a sum that is not set to zero, "
        f"or memory that nobody has written. Nothing else can be concluded.",
    )
