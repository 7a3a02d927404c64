"""Which mistake explains a failed result: a known one, else a formula, else what the error looks like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from lngrad.check.case import OUTPUTS, CheckCase
from lngrad.check.inputs import DrawnInputs
from lngrad.check.mistakes.added import explain_added
from lngrad.check.mistakes.another_mean import another_mean
from lngrad.check.mistakes.another_rstd import another_rstd
from lngrad.check.mistakes.catalogue import MISTAKES
from lngrad.check.mistakes.column_formula import explain_columns, explain_rows
from lngrad.check.mistakes.dx_factors import explain_factors
from lngrad.check.mistakes.dx_formula import explain_dx
from lngrad.check.mistakes.formula import Difference, Explanation
from lngrad.check.mistakes.mistake import true_grads
from lngrad.check.mistakes.other_gamma import explain_gamma
from lngrad.check.mistakes.other_rows import inputs_of_other_rows
from lngrad.check.mistakes.outputs import EXPLAINED, SLACK, Output, share_of
from lngrad.check.mistakes.partial_dx import explain_partial_means, explain_unwritten
from lngrad.check.mistakes.patterns import NO_PATTERN, describe
from lngrad.check.mistakes.places import explain_moved
from lngrad.check.mistakes.row_means import (
    describe_means,
    explain_means_of_other_rows,
    explain_narrow_means,
    explain_tiled_means,
)
from lngrad.check.mistakes.terms import Terms, terms_of
from lngrad.check.result import Formula, Weights
from lngrad.core.problem import Grads
from lngrad.testing import Inputs, gradient_scales
from lngrad.typing import Array

FEWEST_TIES = 8  # that are rounded otherwise: one may be chance
MOST_ROWS = 128  # of dx that are looked at for other inputs, before all of them are
ALIKE = 0.5  # of the error must vanish, for mistakes that depend on the order of sums


class Diagnosis(NamedTuple):
    """The mistake's name, None if nothing explains the result; a sentence to act on; formulas and recovered weights."""

    mistake: str | None
    sentence: str
    formulas: tuple[Formula, ...] = ()
    weights: tuple[Weights, ...] = ()


def diagnose(case: CheckCase, given: DrawnInputs, got: Grads, shares: dict[str, Array]) -> Diagnosis:
    """Explain a failed result.

    Args:
        case, given: What was computed.
        got: The result, in its own dtypes.
        shares: For each output that failed, how much of the standard's tolerance each element used.
    """
    with np.errstate(all="ignore"):
        truth, scales = true_grads(given.exact), gradient_scales(given.exact)
        outputs = [
            Output(name, np.asarray(result), true, scale)
            for name, result, true, scale in zip(OUTPUTS, got, truth, scales, strict=True)
            if result is not None and result.size
        ]
        if all(output.share.max() <= 1 for output in outputs):
            return _only_rounding(case, given, outputs)
        sums = any(output.share.max() > 1 for output in outputs if output.name != "dx")
        known = {
            name: mistake.grads(case, given.exact)
            for name, mistake in MISTAKES.items()
            if not mistake.rounding and (sums or not mistake.sums_only)
        }
        terms = terms_of(given.exact)
        found = _known(outputs, known)
        if found is not None:
            formula = [one for one in _formulas(terms, outputs, truth).values() if one.formula]
            return _diagnosis([Difference(found, MISTAKES[found].sentence)], formula)
        each = (
            _each_output(terms, outputs, truth, known)
            or _with_other_inputs(terms, given, outputs)
            or _with_changed_inputs(case, given, outputs)
        )
    if each is not None:
        differences = {one.name: one for explanation in each for one in explanation.differences}
        return _diagnosis(list(differences.values()), each)
    sentences = [_described(terms, output, shares[output.name]) for output in outputs if output.name in shares]
    return Diagnosis(None, "no known mistake explains it. " + "; ".join(sentences))


def _described(terms: Terms, output: Output, share: Array) -> str:
    """What an output looks like that nothing explains."""
    golden = output.true.astype(output.result.dtype).astype(np.float64).reshape(share.shape)
    wide = output.result.astype(np.float64).reshape(share.shape)
    if output.name == "dx":
        with np.errstate(all="ignore"):
            found = describe_means(terms, wide.reshape(terms.dy.shape), output.bound.reshape(terms.dy.shape))
        if found is not None and (output.result.dtype.itemsize > 2 or output.describe_roundings() is None):
            return f"dx: {found}"
    text = describe(output.name, wide, golden, share)
    roundings = output.describe_roundings() if text.endswith(NO_PATTERN) else None
    return f"{text}; {roundings}" if roundings else text


def _diagnosis(differences: Sequence[Difference], explanations: Sequence[Explanation]) -> Diagnosis:
    return Diagnosis(
        "; ".join(one.name for one in differences),
        " And ".join(one.sentence for one in differences),
        tuple(one.formula for one in explanations if one.formula is not None),
        tuple(weights for one in explanations for weights in one.weights),
    )


def _known(outputs: Sequence[Output], known: Mapping[str, Grads | None]) -> str | None:
    """The mistake that is nearest to the result among those that explain all the outputs."""
    best: tuple[float, str] | None = None
    for name, wrong in known.items():
        if wrong is None:
            continue
        left = _left(outputs, wrong, MISTAKES[name].by_size)
        if left is not None and (best is None or left < 0.9 * best[0]):
            best = (left, name)
    return None if best is None else best[1]


def _left(outputs: Sequence[Output], wrong: Grads, by_size: bool) -> float | None:
    """How much of the error is left if the mistake is granted, 0 to 1; None if it does not explain the result."""
    before = after = 0.0
    for output in outputs:
        expected = getattr(wrong, output.name)
        scale = output.scale + np.abs(expected - output.true)
        with_mistake, without = (share_of(output.result, one, scale) for one in (expected, output.true))
        # A mistake that leaves this output alone must find it right.
        explained = with_mistake <= SLACK
        if not by_size and explained.mean() < EXPLAINED:
            return None
        limit = 1e30
        left, whole = np.minimum(with_mistake, limit), np.minimum(np.maximum(without, output.share), limit)
        if by_size and np.sqrt(np.mean(left**2)) > max(ALIKE * np.sqrt(np.mean(whole**2)), SLACK):
            return None
        after += float(np.sum(np.minimum(left, whole) ** 2))
        before += float(np.sum(whole**2))
    if before == 0 or after > ALIKE * before:
        return None
    return float(np.sqrt(after / before))


def _each_output(
    terms: Terms, outputs: Sequence[Output], truth: Grads, known: dict[str, Grads | None]
) -> list[Explanation] | None:
    """One explanation for each wrong output: different mistakes may have made them. None if one has none."""
    formulas = _formulas(terms, outputs, truth)
    found = []
    for output in outputs:
        if output.share.max() <= 1:
            continue
        possible = {name: wrong for name, wrong in known.items() if wrong and _alone(output, outputs, wrong)}
        name = _known([output], {name: wrong for name, wrong in possible.items() if not MISTAKES[name].by_size})
        if name is None and output.name not in formulas:
            name = _known([output], possible)
        if name is not None:
            formula = formulas[output.name].formula if output.name in formulas else None
            found.append(Explanation(formula, (Difference(name, MISTAKES[name].sentence),)))
        elif output.name in formulas:
            found.append(formulas[output.name])
        else:
            return None
    return _one_factor(found)


def _one_factor(found: list[Explanation]) -> list[Explanation]:
    """One difference where all three gradients are the same number of times what they should be."""
    names = [one.name for explanation in found for one in explanation.differences]
    times = {name.removeprefix(output) for name, output in zip(names, OUTPUTS, strict=False)}
    if len(names) != len(OUTPUTS) or len(times) != 1 or not (text := times.pop()).endswith(" times"):
        return found
    said = f"all three gradients are{text} what they should be: dy has a factor, as of dropout, a loss scale or a mean."
    return [replace(one, differences=(Difference(f"all gradients{text}", said),)) for one in found]


def _alone(output: Output, outputs: Sequence[Output], wrong: Grads) -> bool:
    """Whether a mistake, made in this output, either explains the others too or leaves them alone."""
    for other in outputs:
        expected = getattr(wrong, other.name)
        scale = other.scale + np.abs(expected - other.true)
        if other is output or np.mean(share_of(other.result, expected, scale) <= SLACK) >= EXPLAINED:
            continue
        if np.mean(np.abs(expected - other.true) <= other.bound) < EXPLAINED:
            return False
    return True


def _formulas(terms: Terms, outputs: Sequence[Output], truth: Grads, depth: int = 2) -> dict[str, Explanation]:
    """The formulas of the wrong outputs that obey one."""
    true = {
        "dx": truth.dx.reshape(terms.dy.shape),
        "dgamma": truth.dgamma.reshape(-1),
        "dbeta": truth.dbeta.reshape(-1),
    }
    wrong = {output.name: output for output in outputs if output.share.max() > 1}
    wide = {name: output.result.astype(np.float64).reshape(true[name].shape) for name, output in wrong.items()}
    bounds = {name: output.bound.reshape(true[name].shape) for name, output in wrong.items()}
    found: dict[str, Explanation] = {}
    for name in wrong:
        if name == "dx":
            explanation = _formula_of_dx(terms, wide[name], bounds[name], true, depth, wrong[name].most_left)
        else:
            explanation = explain_columns(terms, name, wide[name], bounds[name], true)
        if explanation is not None:
            found[name] = explanation
    sums = [name for name in wrong if name != "dx" and name not in found]
    if sums and depth > 1:
        found |= explain_rows(terms, {name: wide[name] for name in sums}, {name: bounds[name] for name in sums}) or {}
    return found


def _formula_of_dx(
    terms: Terms, dx: Array, bound: Array, true: dict[str, Array], depth: int, most_left: float
) -> Explanation | None:
    """The formula that a wrong dx obeys; depth 1 leaves out what is rare beside another mistake."""
    found = explain_unwritten(terms, dx, bound, true["dx"]) or explain_dx(terms, dx, bound, depth, most_left)
    if found is not None or depth == 1:
        return found
    return (
        explain_partial_means(terms, dx, bound)
        or explain_tiled_means(terms, dx, bound)
        or explain_means_of_other_rows(terms, dx, bound)
        or explain_factors(terms, dx, bound, true["dx"])
        or explain_gamma(terms, dx, bound)
        or explain_moved(terms, dx, SLACK * bound, true["dx"])
        or explain_added(terms, "dx", dx, SLACK * bound, true)
        or explain_narrow_means(terms, dx, bound)
    )


def _with_other_inputs(terms: Terms, given: DrawnInputs, outputs: Sequence[Output]) -> list[Explanation] | None:
    """Some rows with inputs of others, or another rstd, if that explains all outputs, or dx alone and the others are right."""
    dx = next((one for one in outputs if one.name == "dx"), None)
    if dx is None or dx.share.max() <= 1:
        return None
    result, bound, true = (one.reshape(terms.dy.shape) for one in (dx.result.astype(np.float64), dx.bound, dx.true))
    for changed, difference in chain(
        inputs_of_other_rows(terms, given.exact, result, bound, true),
        another_rstd(terms, given.exact, result, bound),
        another_mean(terms, given.exact, result, bound),
    ):
        wrong, scales = true_grads(changed), gradient_scales(changed)
        others = (one.with_inputs(getattr(wrong, one.name), getattr(scales, one.name)) for one in outputs)
        if all(
            other.is_explained or (one.name != "dx" and one.share.max() <= 1)
            for one, other in zip(outputs, others, strict=True)
        ):
            return [Explanation(None, (difference,))]
    return None


def _with_changed_inputs(case: CheckCase, given: DrawnInputs, outputs: Sequence[Output]) -> list[Explanation] | None:
    """A mistake in the inputs, and others in the formulas on top of it."""
    best: list[Explanation] | None = None
    for name, mistake in MISTAKES.items():
        changed = mistake.changed(case, given.exact)
        if changed is None or not _may_explain_dx(changed, outputs):
            continue
        wrong, scales, terms = true_grads(changed), gradient_scales(changed), terms_of(changed)
        others = [one.with_inputs(getattr(wrong, one.name), getattr(scales, one.name)) for one in outputs]
        formulas = _formulas(terms, others, wrong, depth=1)
        if all(one.name in formulas or one.is_explained for one in others):
            found = [Explanation(None, (Difference(name, mistake.sentence),)), *formulas.values()]
            if best is None or len(found) < len(best):
                best = found
    return best


def _may_explain_dx(changed: Inputs, outputs: Sequence[Output]) -> bool:
    """Whether some rows of dx obey a formula with these inputs: a look at a few spares one at all of a large case."""
    dx = next((one for one in outputs if one.name == "dx"), None)
    M, shape = changed.mean.size, changed.normalized_shape
    if dx is None or M <= MOST_ROWS:
        return True
    rows = np.linspace(0, M - 1, MOST_ROWS).astype(int)

    def some(array: Array, *last: int) -> Array:
        found: Array = np.asarray(array).reshape(M, -1)[rows].reshape(MOST_ROWS, *last)
        return found

    ones = (1,) * len(shape)
    few = replace(
        changed, dy=some(changed.dy, *shape), x=some(changed.x, *shape), mean=some(changed.mean, *ones),
        rstd=some(changed.rstd, *ones),
    )  # fmt: skip
    wrong, scales = true_grads(few), gradient_scales(few)
    part = Output("dx", some(dx.result, *shape), some(dx.true, *shape), some(dx.scale, *shape))
    other = part.with_inputs(wrong.dx, scales.dx)
    return other.is_explained or "dx" in _formulas(terms_of(few), [other], wrong, depth=1)


def _only_rounding(case: CheckCase, given: DrawnInputs, outputs: Sequence[Output]) -> Diagnosis:
    """The result is right to its dtype's last digit: bits differ, or the standard asks for more than the dtype has."""
    mistake = MISTAKES["half-away rounding"]
    rounded = mistake.grads(case, given.exact)
    if rounded is not None:
        unlike = explained = 0
        for output in outputs:
            even = output.true.astype(np.float32).astype(output.result.dtype)
            away = getattr(rounded, output.name).astype(output.result.dtype)
            off = output.result != even
            unlike += int(off.sum())
            explained += int((off & (output.result == away)).sum())
        if unlike >= FEWEST_TIES and explained >= 0.9 * unlike:
            return Diagnosis("half-away rounding", mistake.sentence)
    return Diagnosis(
        None,
        "no mistake: every element is right to the rounding of its dtype (standard exact passes). Where results are near "
        "zero or bits are compared, this standard asks for more than the dtype has",
    )
