"""Which mistake explains a failed result: a known one, else a formula, else what the error looks like."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from lngrad.check.case import FORWARD, OF_ROWS, CheckCase
from lngrad.check.inputs import DrawnInputs, true_grads
from lngrad.check.mistakes import column_sums, gates, misplaced, row_means
from lngrad.check.mistakes.catalogue import MISTAKES
from lngrad.check.mistakes.changes import ExactCase, Mistake
from lngrad.check.mistakes.dx_search import explain_dx
from lngrad.check.mistakes.fit import SLACK, TINY, Difference, Explanation, Fit, WrongOutput, nearly_all
from lngrad.check.mistakes.forward_search import explain_forward
from lngrad.check.mistakes.other_inputs import another_statistic, inputs_of_other_rows
from lngrad.check.mistakes.places import MAX_ROWS, in_places, nearest_of, some_rows
from lngrad.check.mistakes.symptoms import MIN_AGREE, NO_PATTERN, describe
from lngrad.check.mistakes.terms import Terms, terms_of, wide
from lngrad.check.result import Formula, Weights
from lngrad.core.norms import PLAIN, norm_with
from lngrad.core.problem import Grads
from lngrad.core.reference import gate_factors
from lngrad.support.bounded_cache import cached_property
from lngrad.testing import Inputs, gradient_scales
from lngrad.typing import Array

UNEXPLAINED = "no known mistake explains it."
OF_GATE = (
    "dgate alone is wrong: it is the gradient of silu(gate) times silu'(gate) = sigmoid·(1 + gate·(1 − sigmoid)). What the "
    "gate multiplies is xhat·gamma, or x, and is not to be read as it was rounded."
)
OVERFLOW = Difference(  # of which no finite number says where
    "overflow in 16 bits", "what is wrong is not finite, and no case says more: a product, or a row sum, is kept in 16 bits, "
    "and beyond their largest number. Keep it in float32.")  # fmt: skip
MIN_ROWS = 4
MIN_TIES = 8  # that are rounded otherwise: one may be chance
FLUSHED = 4.0  # numbers on the way, for each term
FILL = 1e37  # less than what the check fills memory with, in float32, bfloat16 and float64
SMALL = 1 << 16  # elements: of more, mistakes are looked at in some rows first
MAX_COMBINED = 1 << 17  # elements: of more, two mistakes on top of each other are left to other cases
# What has a free number for each row or column: a mistake without one says more.
VAGUE = ("another rstd", "another mean", "dx times a factor a row", "dx times a factor a column",
         "another gamma in part of the columns")  # fmt: skip

# A sum that takes nothing is also the end of a row of cases whose sums take less and less: others tell.
TAKES_NOTHING = {
    "mean and rstd detached": ["columns in the means"], "mean of dxhat missing": ["columns in the mean of dxhat"],
    "mean of dxhat·xhat missing": ["columns in the mean of dxhat·xhat"],
    "dgamma and dbeta never written": ["rows in the column sums"], "dgamma never written": ["rows in the column sums"],
    "dbeta never written": ["rows in the column sums"],
}  # fmt: skip
OF_SIZE = re.compile(r"(?<=\b1/)N\b|\bN(?= times)")
# What may explain one wrong output, in this order.
EXPLAINERS: dict[str, tuple[Callable[[Fit], Explanation | None], ...]] = {
    "dx": (misplaced.unwritten, misplaced.narrow_store, misplaced.overflow, misplaced.clipped, explain_dx),
    "dgamma or dbeta": (
        column_sums.other_sum, column_sums.column_weights, column_sums.wrong_axis, misplaced.unwritten, misplaced.clipped,
        misplaced.moved, misplaced.added, column_sums.last_size, misplaced.narrow_store, column_sums.of_other_rows),
    # Rare beside another mistake: only where the inputs are right.
    "dx, rare": (row_means.partial_means, row_means.tiled_means, row_means.of_other_rows, misplaced.factors,
                 misplaced.another_gamma, misplaced.moved, misplaced.added, row_means.narrow_means),
}  # fmt: skip
# Inputs that the whole result may have been computed from, in this order.
OTHER_INPUTS = (inputs_of_other_rows, another_statistic)


def one_blas_thread() -> AbstractContextManager[object]:
    """The matrices are small: several threads of a BLAS wait longer for each other than they compute."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    return threadpool_limits(1, user_api="blas")  # type: ignore[no-any-return]


def explain(fit: Fit) -> Explanation | None:
    """The first explanation of a wrong output; None if there is none."""
    if fit.name != "dx":
        usable = len(fit.result) >= 4 and fit.is_finite
        explainers = EXPLAINERS["dgamma or dbeta"] if usable else (misplaced.unwritten, column_sums.last_size)
    else:
        explainers = EXPLAINERS["dx"] + (EXPLAINERS["dx, rare"] if fit.depth > 1 else ())
    return next((found for explainer in explainers if (found := explainer(fit)) is not None), None)


class Diagnosis(NamedTuple):
    """The mistake's name, None if nothing explains the result; a sentence to act on; formulas and recovered weights; name and
    sentence of each other mistake that explains it too."""

    mistake: str | None
    sentence: str
    formulas: tuple[Formula, ...] = ()
    weights: tuple[Weights, ...] = ()
    alternatives: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Failure:
    """A failed case, its results, and what several stages take from them.

    Attributes:
        call: The inputs, their terms and the right gradients.
        got: The results by name, in their own dtypes; None where there is none.
        shares: For each output that failed, how much of the standard's tolerance each element used.
        likely: Known mistakes that are tried first.
    """

    call: ExactCase
    got: Mapping[str, Any]
    shares: Mapping[str, Array]
    likely: Sequence[str] = ()

    @cached_property
    def outputs(self) -> list[WrongOutput]:
        """All that are wanted."""
        scales = gradient_scales(self.call.raw)
        return [
            WrongOutput(name, np.asarray(array), getattr(self.call.true, name), getattr(scales, name))
            for name, array in self.got.items()
            if array is not None and array.size
        ]

    @property
    def wrong(self) -> list[WrongOutput]:
        return [output for output in self.outputs if output.is_wrong]

    @cached_property
    def known(self) -> dict[str, Grads]:
        """The gradients of each known mistake that may explain an output."""
        of_dx, sums = (any((difference.name == "dx") == is_dx for difference in self.wrong) for is_dx in (True, False))
        known, is_small = {}, self.call.terms.dy.size <= SMALL
        for name, mistake in MISTAKES.items():
            family = mistake.family
            if family.rounding or (family.sums_only and not sums) or (family.dx_only and not of_dx):
                continue
            if family.by_size and family.dx_only and self.call.terms.M < MIN_ROWS:
                continue  # two numbers a row, of which half may be left, fit by chance
            wrong = mistake.gradients(self.call) if _may_explain(mistake, self.call, self.outputs) else None
            if wrong is not None and (is_small or any(nearest_of([each], [(name, wrong)]) for each in self.wrong)):
                known[name] = wrong
        return known

    @cached_property
    def formulas(self) -> dict[str, Explanation]:
        """Of the wrong outputs that obey one."""
        return _formulas(self.call.terms, self.outputs, self.call.true)

    def in_places(self, only_clean: bool = False) -> list[Explanation] | None:
        return in_places(self.call, self.outputs, self.formulas, self.known, only_clean)


def diagnose(
    case: CheckCase, drawn: DrawnInputs, got: Any, shares: Mapping[str, Array], in_brief: bool = False,
    likely: Sequence[str] = (),
) -> Diagnosis:  # fmt: skip
    """Explain a failed result of a case: the first stage that has something to say.

    Args:
        case, given: What was computed.
        got: The result, in its own dtypes.
        shares: For each output that failed, how much of the standard's tolerance each element used.
        in_brief: Search no mistake.
        likely: Known mistakes, of which one that explains the result is named at once.
    """
    gradients = {name: share for name, share in shares.items() if name not in FORWARD}
    if len(gradients) == len(shares):
        return _of_gradients(case, drawn, got, shares, in_brief, likely)
    with np.errstate(all="ignore"), one_blas_thread():
        ahead = _of_forward(case, drawn, got, shares)
    if not gradients or ahead.mistake:
        return ahead
    behind = _of_gradients(case, drawn, got, gradients, in_brief, likely)
    return behind._replace(sentence=f"{behind.sentence} And y is wrong: {ahead.sentence}")


def _of_forward(case: CheckCase, drawn: DrawnInputs, got: Any, shares: Mapping[str, Array]) -> Diagnosis:
    explanations, others, text = explain_forward(case, drawn.exact, got._asdict(), shares)
    if not explanations:
        return Diagnosis(None, f"{UNEXPLAINED} {text}")
    return _diagnosis(explanations)._replace(alternatives=tuple((other.name, other.sentence) for other in others))


def _of_gradients(
    case: CheckCase, drawn: DrawnInputs, got: Any, shares: Mapping[str, Array], in_brief: bool, likely: Sequence[str]
) -> Diagnosis:
    results = {name: array for name, array in got._asdict().items() if name not in FORWARD}
    if drawn.exact.gate is not None:
        with np.errstate(all="ignore"):
            of_gate = gates.of_gates(drawn.exact, results, shares)
        if of_gate:
            return _diagnosis((), of_gate)
        if shares.keys() == {"dgate"}:
            return Diagnosis(None, f"{UNEXPLAINED} {OF_GATE}")
    with np.errstate(all="ignore"), one_blas_thread():
        make = _plain if case.norm not in PLAIN else lambda case, exact, *found: Failure(ExactCase(case, exact), *found)
        failure = replace(make(case, drawn.exact, results, shares), likely=likely)
        stages = IN_BRIEF if in_brief else STAGES
        found = next(found for stage in stages if (found := stage(failure)) is not None)
    sums = TAKES_NOTHING.get(str(found.mistake), ())
    others = [(f"part of the {sum_}", f"there are none of the {sum_}.") for sum_ in sums]
    if case.M == case.N and found.mistake and OF_SIZE.search(found.mistake):  # other cases tell M from N
        others.append((OF_SIZE.sub("M", found.mistake), OF_SIZE.sub("M", found.sentence)))
    return found._replace(alternatives=(*found.alternatives, *others))


def _plain(case: CheckCase, exact: Inputs, got: Mapping[str, Any], shares: Mapping[str, Array]) -> Failure:
    """The failure of a call without a gate whose dx is that one's but for a factor; of one sample, the first of the worst."""
    norm, (of_x, of_y, _) = exact.normalization, gate_factors(exact.gate, exact.normalization)
    inputs = replace(exact, gate=None, normalization=norm._replace(modulated=False, norm_before_gate=True))
    sums, dx, lead = {name: array for name, array in got.items() if name not in OF_ROWS}, got["dx"], case.lead
    if exact.gate is not None:
        inputs = replace(inputs, dy=wide(exact.dy) * of_y, x=wide(exact.x) * of_x)
        if not norm.norm_before_gate and dx is not None:
            dx = (wide(dx) / of_x if "dx" in shares else true_grads(inputs).dx).astype(dx.dtype)
    if norm.modulated and lead and exact.gamma is not None:
        shares = {name: share.reshape(lead[0], -1, case.N) for name, share in shares.items()}
        sample = int(np.argmax(sum((share > 1).any((1, 2)) for share in shares.values())))
        rows = {name: getattr(inputs, name)[sample] for name in ("dy", "x", "mean", "rstd")}
        inputs = replace(inputs, **rows, gamma=exact.gamma[sample].reshape(case.normalized))
        sums = {
            name: array if array is None else array[sample].reshape(case.normalized) for name, array in sums.items()
        }
        dx, lead = None if dx is None else dx[sample], lead[1:]
        shares = {name: share[sample] for name, share in shares.items()}
    plain = replace(case, norm=norm_with(inputs.normalization).name, lead=lead)
    return Failure(ExactCase(plain, inputs), {"dx": dx, **sums}, shares)


def _no_rows(failure: Failure) -> Diagnosis | None:
    if failure.call.case.M:
        return None
    text = "without rows dgamma and dbeta are 0: set them, also where nothing is computed."
    return Diagnosis("column sums of no rows", text)


def _never_written(failure: Failure) -> Diagnosis | None:
    """Zeros, or what filled memory, in all that is wrong; what is right is more than subnormal."""
    value = float((failure.wrong or failure.outputs)[0].result.flat[0])
    filled = [
        output.name for output in failure.outputs if FILL < abs(value) < np.inf and (wide(output.result) == value).all()
    ]
    zeros = filled or [output.name for output in failure.outputs if not output.result.any()]
    t, wrong = failure.call.terms, [output.name for output in failure.wrong]
    if not zeros or not {*wrong} <= {*zeros} or (t.N == 1 and isinstance(t.dtotal, np.ndarray)):
        return None
    least = [float(ml_dtypes.finfo(output.result.dtype).smallest_normal) for output in failure.wrong]
    normal = any((np.abs(output.true) >= size).any() for output, size in zip(failure.wrong, least, strict=True))
    if not normal or (zeros == ["dx"] and failure.call.inputs.gamma is None):
        return None
    what, found = format(value, ".3g") if filled else "zeros", []
    for names in (
        (zeros,) if len(zeros) == len(failure.outputs) else dict.fromkeys((tuple(wrong or zeros), tuple(zeros)))
    ):
        which = " and ".join([", ".join(names[:-1]), names[-1]]) if names[1:] else names[0]
        label = "never written" if len(names) == len(failure.outputs) else f"{which} never written"
        found.append((label, f"all {what} in {which}: never written, or the kernel was never launched."))
    return Diagnosis(*found[0], alternatives=tuple(found[1:]))


def _one_known_mistake(failure: Failure) -> Diagnosis | None:
    """The known mistake that explains all outputs; unless one at some places alone is nearer."""
    tried = ((name, MISTAKES[name].gradients(failure.call)) for name in failure.likely)
    found = nearest_of(failure.outputs, ((name, wrong) for name, wrong in tried if wrong is not None))
    if found is not None and found.is_clean:
        alike = tuple((name, MISTAKES[name].sentence) for name in found.others)
        return _diagnosis((), (_named(found.name),))._replace(alternatives=alike)
    found = nearest_of(failure.outputs, failure.known.items())
    if found is None:
        return None
    if not found.is_clean and (each := failure.in_places(only_clean=True)) is not None:
        return _diagnosis(each)
    names, diagnosis = found.others, _diagnosis(list(failure.formulas.values()), (_named(found.name),))
    if names and not any(np.isfinite(wide(output.result)[output.share > 1]).any() for output in failure.wrong):
        names, diagnosis = (found.name, *names), _diagnosis((), (OVERFLOW,))
    return diagnosis._replace(alternatives=tuple((name, MISTAKES[name].sentence) for name in names))


def _several_mistakes(failure: Failure) -> Diagnosis | None:
    """What explains every output, in the order of EVIDENCE; free numbers give way to a known mistake at some places."""
    each = next((found for stage in EVIDENCE if (found := stage(failure)) is not None), None)
    if each is not None and any(
        difference.name in VAGUE for explanation in each for difference in explanation.differences
    ):
        each = failure.in_places(only_clean=True) or each
    diagnosis = None if each is None else _diagnosis(each)
    if diagnosis is None or "dx or rstd" not in str(diagnosis.mistake):
        return diagnosis
    fit = Fit.of(failure.call.terms, failure.outputs[0], failure.call.true, 1)
    others = another_statistic(fit, failure.call.inputs)
    return diagnosis._replace(
        alternatives=tuple((difference.name, difference.sentence) for _, difference in others)
    )  # other cases tell which


def _flushed(failure: Failure) -> Diagnosis | None:
    """No wrong result is subnormal where many should be, and no error larger than what flushed terms lose."""
    inputs, least = failure.call.inputs, float(ml_dtypes.finfo(failure.wrong[0].result.dtype).smallest_normal)
    gamma = None if inputs.gamma is None else np.maximum(np.abs(wide(inputs.gamma)), 1.0)
    lost = gradient_scales(replace(inputs, dy=np.full(inputs.dy.shape, FLUSHED * least), gamma=gamma))
    is_small = [sum(((np.abs(each) > 0) & (np.abs(each) < least)).sum() for each in pair)
                for pair in zip(*((output.true, wide(output.result)) for output in failure.wrong), strict=True)]  # fmt: skip
    is_within = all((output.error <= getattr(lost, output.name)).all() for output in failure.wrong)
    if is_small[0] < MIN_TIES or is_small[1] or not is_within:
        return None
    text = f"no result is smaller than {least:.3g}, the smallest normal number: subnormal ones are zero on the way, as by XLA."
    return Diagnosis("flushed to zero", text)


def _in_float32(failure: Failure) -> Diagnosis | None:
    if not all(output.result.dtype == np.float64 and output.rounded_in() == "float32" for output in failure.wrong):
        return None
    text = "results of float64 are right to a few roundings to float32: compute in float64."
    return Diagnosis("computed in float32", text)


def _unexplained(failure: Failure) -> Diagnosis:
    off = [(output, failure.shares[output.name]) for output in failure.outputs if output.name in failure.shares]
    text = "; ".join(_described(failure.call, output, share) for output, share in off)
    return Diagnosis(None, f"{UNEXPLAINED} {text or 'no element is beyond its tolerance: all of them together are'}")


def _may_explain(mistake: Mistake, call: ExactCase, outputs: Sequence[WrongOutput]) -> bool:
    """Whether a mistake in the inputs of a large case gives the dx of some rows, each of which is its own inputs' alone.

    One that does not is no explanation of another output either, as it changes dx.
    """
    dx = next((output for output in outputs if output.name == "dx"), None)
    if dx is None or mistake.family.by_size or call.terms.dy.size <= SMALL:
        return True
    if (changed := mistake.changed(call)) is None:
        return True
    few, part = some_rows(changed, dx)
    return bool(np.mean(part.shares_with(true_grads(few).dx)[0] <= SLACK) >= MIN_AGREE)


def _described(call: ExactCase, output: WrongOutput, share: Array) -> str:
    """What an output looks like that nothing explains."""
    golden = output.true.astype(output.result.dtype).astype(np.float64).reshape(share.shape)
    if output.name == "dx":
        with np.errstate(all="ignore"):
            found = row_means.describe_means(Fit.of(call.terms, output, call.true, 1))
        if found is not None and (output.result.dtype.itemsize > 2 or output.rounded_in() is None):
            return f"dx: {found}"
    text = describe(output.name, output.result.astype(np.float64).reshape(share.shape), golden, share)
    dtype = output.rounded_in() if text.endswith(NO_PATTERN) else None
    if dtype is None:
        return text
    bits = -int(np.log2(np.max(output.error / np.maximum(output.scale, TINY))))
    few = (
        f"; no error is larger than a few roundings of its terms to {dtype}, and the largest leaves {bits} bits: is it "
    )
    return f"{text}{few}computed, or kept, in {dtype}? (tf32 and float16 have 11 bits, bfloat16 8, two of these 16, fp8 3 or 4)"


def _diagnosis(explanations: Sequence[Explanation], named: Sequence[Difference] = ()) -> Diagnosis:
    """What explanations say together, by their own names or by others."""
    sentence = (
        named
        or {
            difference.name: difference for explanation in explanations for difference in explanation.differences
        }.values()
    )
    return Diagnosis(
        "; ".join(difference.name for difference in sentence),
        " And ".join(difference.sentence for difference in sentence),
        tuple(explanation.formula for explanation in explanations if explanation.formula is not None),
        tuple(weights for explanation in explanations for weights in explanation.weights),
    )


def _named(mistake: str) -> Difference:
    return Difference(mistake, MISTAKES[mistake].sentence)


def _each_output(failure: Failure) -> list[Explanation] | None:
    """One explanation for each wrong output: different mistakes may have made them. None if one has none."""
    found = []
    certain = [output for output in failure.wrong if not output.share.max() <= SLACK]  # and no rounding
    for output in certain or failure.wrong:
        explained = failure.formulas.get(output.name)
        possible = {name: wrong for name, wrong in failure.known.items() if _alone(output, failure.outputs, wrong)}
        exact = ((name, wrong) for name, wrong in possible.items() if not MISTAKES[name].family.by_size)
        nearest = nearest_of([output], exact)
        if nearest is None and explained is None:
            nearest = nearest_of([output], possible.items())
        if nearest is not None:
            explained = Explanation(explained.formula if explained else None, (_named(nearest.name),))
        if explained is None:
            return None
        found.append(explained)
    return _one_factor(found, [difference.name for difference in failure.outputs])


def _one_factor(found: list[Explanation], outputs: list[str]) -> list[Explanation]:
    """One difference where all gradients, of which there are several, are the same number of times what they should be."""
    names = [difference.name for explanation in found for difference in explanation.differences]
    times = {name.removeprefix(output) for name, output in zip(names, outputs, strict=False)}
    if not 1 < len(names) == len(outputs) or len(times) != 1 or not (text := times.pop()).endswith(" times"):
        return found
    sentence = f"all gradients are{text} what they should be: dy has a factor, as of dropout, a loss scale or a mean."
    return [replace(explanation, differences=(Difference(f"all gradients{text}", sentence),)) for explanation in found]


def _alone(output: WrongOutput, outputs: Sequence[WrongOutput], wrong: Grads) -> bool:
    """Whether a mistake, made in this output, either explains the others too or leaves them alone."""
    others = ((difference, getattr(wrong, difference.name)) for difference in outputs if difference is not output)
    return all(output.is_made(wrong) or (np.abs(wrong - output.true) <= output.bound).all() for output, wrong in others)


def _formulas(terms: Terms, outputs: Sequence[WrongOutput], truth: Grads, depth: int = 2) -> dict[str, Explanation]:
    """Explanations of the wrong outputs that have one; depth 1 leaves out what is rare beside another mistake."""
    fits = [Fit.of(terms, output, truth, depth) for output in outputs if output.is_wrong]
    found = {fit.name: explanation for fit in fits if (explanation := explain(fit)) is not None}
    sums = [fit for fit in fits if fit.name != "dx" and fit.name not in found]
    if not sums or depth == 1:
        return found
    if rows := column_sums.part_of_rows(sums):
        return found | rows
    return found | {
        fit.name: explanation for fit in sums if fit.is_finite and (explanation := column_sums.lost_additions(fit))
    }


def _with_other_inputs(failure: Failure) -> list[Explanation] | None:
    """Some rows with inputs of others, or another rstd, if that explains all outputs, or dx alone and the others are right."""
    call, outputs = failure.call, failure.outputs
    dx = next((output for output in outputs if output.name == "dx"), None)
    if dx is None or not dx.is_wrong:
        return None
    fit = Fit.of(call.terms, dx, call.true, 1)
    for changed, difference in chain.from_iterable(find(fit, call.inputs) for find in OTHER_INPUTS):
        both = zip(outputs, _compared_with(changed, outputs, loose=True)[1], strict=True)
        if all(other.is_explained or (output.name != "dx" and not output.is_wrong) for output, other in both):
            return [Explanation(None, (difference,))]
    return None


def _compared_with(
    inputs: Inputs, outputs: Sequence[WrongOutput], loose: bool = False
) -> tuple[Grads, list[WrongOutput]]:
    """The gradients of other inputs, and the same outputs beside these; loose: the mean may be rounded once more."""
    wrong, scales = true_grads(inputs), gradient_scales(inputs, rounded_mean=loose)
    beside = ((output, getattr(wrong, output.name), getattr(scales, output.name)) for output in outputs)
    return wrong, [replace(output, true=true, scale=scale, origin=output) for output, true, scale in beside]


def _with_changed_inputs(failure: Failure) -> list[Explanation] | None:
    """A mistake in the inputs, and others in the formulas on top of it."""
    call, outputs = failure.call, failure.outputs
    best: list[Explanation] | None = None
    if call.terms.dy.size > MAX_COMBINED:
        return None
    for name, mistake in MISTAKES.items():
        changed = mistake.changed(call)
        if changed is None or not _may_explain_dx(changed, outputs):
            continue
        wrong, others = _compared_with(changed, outputs)
        formulas = _formulas(terms_of(changed), others, wrong, depth=1)
        if all(other.name in formulas or other.is_explained for other in others):
            found = [Explanation(None, (_named(name),)), *formulas.values()]
            if best is None or len(found) < len(best):
                best = found
    return best


def _may_explain_dx(changed: Inputs, outputs: Sequence[WrongOutput]) -> bool:
    """Whether some rows of dx obey a formula with these inputs: a look at a few spares one at all."""
    dx, M = next((output for output in outputs if output.name == "dx"), None), changed.mean.size
    if dx is None:
        return True
    few, part = some_rows(changed, dx)
    wrong, (other,) = _compared_with(few, [part])
    terms = terms_of(few)
    if other.is_explained:
        return True
    if not _in_span(terms, Fit.of(terms, other, wrong, depth=1)):
        return False
    return M <= MAX_ROWS or "dx" in _formulas(terms_of(few), [other], wrong, depth=1)


def _in_span(terms: Terms, fit: Fit) -> bool:
    """Whether each row of dx is a sum of dxhat or dy, xhat and 1, as every formula of one row is, whatever its numbers."""
    weight = 1 / np.maximum(fit.bound, 1e-12)[..., None]
    if not np.isfinite(weight).all() or not fit.is_finite or not np.isfinite(terms.xhat).all():
        return True
    target = (fit.of_norm[..., None] * weight)[..., 0]
    for first in (terms.dxhat, terms.dy):
        basis = np.stack([first, terms.xhat, np.ones_like(first)], axis=-1) * weight
        basis /= np.maximum(np.sqrt(np.square(basis).sum(1, keepdims=True)), 1e-30)
        gram = basis.swapaxes(1, 2) @ basis + 1e-12 * np.eye(3)
        found = np.linalg.solve(gram, basis.swapaxes(1, 2) @ target[..., None])
        if nearly_all(np.abs((basis @ found)[..., 0] - target) <= SLACK):
            return True
    return False


def _only_rounding(failure: Failure) -> Diagnosis | None:
    """The result is right to its dtype's last digit: bits differ, or the standard asks for more than the dtype has."""
    if failure.wrong:
        return None
    mistake = MISTAKES["half-away rounding"]
    rounded = mistake.gradients(failure.call)
    unlike = explained = 0
    for output in failure.outputs if rounded is not None else ():
        roundings = output.true.astype(np.float32), getattr(rounded, output.name)
        even, away = (array.astype(output.result.dtype) for array in roundings)
        off = output.result != even
        unlike += int(off.sum())
        explained += int((off & (output.result == away)).sum())
    if unlike >= MIN_TIES and explained >= 0.9 * unlike:
        return Diagnosis("half-away rounding", mistake.sentence)
    text = ("no mistake: every element is right to the rounding of its dtype (standard exact passes). Where results are near "
            "zero or bits are compared, this standard asks for more than the dtype has")  # fmt: skip
    return Diagnosis(None, text)


# The order in which a failure is explained: the first stage that says something is the diagnosis, and the last one always does.
STAGES: tuple[Callable[[Failure], Diagnosis | None], ...] = (
    _no_rows, _only_rounding, _never_written, _one_known_mistake, _flushed, _several_mistakes, _in_float32, _unexplained,
)  # fmt: skip
IN_BRIEF = (_no_rows, _only_rounding, _never_written, _unexplained)
# The kinds of evidence for several mistakes, in the order in which they count.
EVIDENCE: tuple[Callable[[Failure], list[Explanation] | None], ...] = (
    _each_output, _with_other_inputs, _with_changed_inputs, Failure.in_places,
)  # fmt: skip
