"""Which known mistake explains a failed result, else what the error looks like."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lngrad.check.case import OUTPUTS, CheckCase
from lngrad.check.inputs import Given
from lngrad.check.mistakes.catalogue import MISTAKES
from lngrad.check.mistakes.mutants import true_grads
from lngrad.check.mistakes.patterns import describe
from lngrad.problem import Grads
from lngrad.testing import error_share, gradient_scales

__all__ = ["Diagnosis", "diagnose"]

SLACK = 4.0  # tolerances: a mistake made in float32 is rounded at other places than ours in float64
EXPLAINED = 0.995  # of the elements
ALIKE = 0.5  # of the error must vanish, for mistakes that depend on the order of sums


class Diagnosis(NamedTuple):
    """The mistake's name, None if no known one explains the result; and a sentence to act on."""

    mistake: str | None
    sentence: str


def diagnose(case: CheckCase, given: Given, got: Grads, shares: dict[str, Any]) -> Diagnosis:
    """Explain a failed result.

    Args:
        case, given: What was computed.
        got: The result, in its own dtypes.
        shares: For each output that failed, how much of the standard's tolerance each element used.
    """
    with np.errstate(all="ignore"):
        truth, scales = true_grads(given.exact), gradient_scales(given.exact)
        wanted = [
            (name, np.asarray(result), true, scale)
            for name, result, true, scale in zip(OUTPUTS, got, truth, scales, strict=True)
            if result is not None and result.size
        ]
        right = all(_ratio(result, true, scale).max() <= 1 for _, result, true, scale in wanted)
        if right:
            return _only_rounding(case, given, wanted, truth)
        found = _explain(case, given, wanted, truth, scales)
    if found is not None:
        return Diagnosis(found, MISTAKES[found].sentence)
    sentences = []
    for name, result, true, _ in wanted:
        if name in shares:
            shape = shares[name].shape
            golden = true.astype(result.dtype).astype(np.float64).reshape(shape)
            sentences.append(describe(name, result.astype(np.float64).reshape(shape), golden, shares[name]))
    return Diagnosis(None, "no known mistake explains it. " + "; ".join(sentences))


def _ratio(result: Any, expected: Any, scale: Any) -> Any:
    accumulator = "float64" if result.dtype.name == "float64" else "float32"
    return error_share(result, expected, scale, accumulator)


def _explain(case: CheckCase, given: Given, wanted: Any, truth: Grads, scales: Grads) -> str | None:
    """The mistake that is nearest to the result among those that explain it."""
    best: tuple[float, str] | None = None
    for name, mistake in MISTAKES.items():
        if mistake.rounding:
            continue
        wrong = mistake.grads(case, given)
        if wrong is None:
            continue
        left = _left(wanted, wrong, mistake.by_size)
        if left is not None and (best is None or left < 0.9 * best[0]):
            best = (left, name)
    return None if best is None else best[1]


def _left(wanted: Any, wrong: Grads, by_size: bool) -> float | None:
    """How much of the error is left if the mistake is granted, 0 to 1; None if it does not explain the result."""
    before = after = 0.0
    for name, result, true, scale in wanted:
        expected = wrong[OUTPUTS.index(name)]
        with_mistake, without = (_ratio(result, one, scale + np.abs(one - true)) for one in (expected, true))
        plain = _ratio(result, true, scale)
        # A mistake that leaves this output alone must find it right.
        explained = with_mistake <= SLACK
        if not by_size and explained.mean() < EXPLAINED:
            return None
        limit = 1e30
        left, whole = np.minimum(with_mistake, limit), np.minimum(np.maximum(without, plain), limit)
        if by_size and np.sqrt(np.mean(left**2)) > max(ALIKE * np.sqrt(np.mean(whole**2)), SLACK):
            return None
        after += float(np.sum(np.minimum(left, whole) ** 2))
        before += float(np.sum(whole**2))
    if before == 0 or after > ALIKE * before:
        return None
    return float(np.sqrt(after / before))


def _only_rounding(case: CheckCase, given: Given, wanted: Any, truth: Grads) -> Diagnosis:
    """The result is right to its dtype's last digit: bits differ, or the standard asks for more than the dtype holds."""
    mistake = MISTAKES["half-away rounding"]
    rounded = mistake.grads(case, given)
    if rounded is not None:
        unlike = explained = 0
        for name, result, true, _ in wanted:
            even = true.astype(np.float32).astype(result.dtype)
            away = rounded[OUTPUTS.index(name)].astype(result.dtype)
            off = result != even
            unlike += int(off.sum())
            explained += int((off & (result == away)).sum())
        if unlike and explained >= 0.9 * unlike:
            return Diagnosis("half-away rounding", mistake.sentence)
    return Diagnosis(
        None,
        "no mistake: every element is right to the rounding of its dtype (standard exact passes). Where results are near "
        "zero or bits are compared, this standard asks for more than the dtype holds",
    )
