"""What is wrong with a forward's results: a known mistake, else numbers fitted to y, else what the error looks like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from lngrad.check.case import FORWARD, OF_ROWS, CheckCase
from lngrad.check.mistakes import misplaced
from lngrad.check.mistakes.catalogue import MISTAKES
from lngrad.check.mistakes.changes import ForwardCase
from lngrad.check.mistakes.fit import MIN_ELEMENTS, SLACK, TINY, Difference, Explanation, Fit, WrongOutput, number_text
from lngrad.check.mistakes.other_inputs import Statistics, means_like, rstds_like
from lngrad.check.mistakes.places import nearest_of
from lngrad.check.mistakes.symptoms import describe
from lngrad.check.mistakes.terms import row_sum, wide
from lngrad.check.truth import scales_of
from lngrad.testing import Inputs
from lngrad.typing import Array

MAX_WHOLE = 1 << 17  # elements: of more, some rows are looked at
SOME_ROWS = 64
TOGETHER = {
    "bias forgotten": "beta",
    "gamma forgotten in y": "gamma",
}  # which another mistake may stand beside, and what lacks
MANY = 16  # elements for each number that is fitted
NO_NUMBER = 1e-6  # of a coefficient that is fitted


def explain_forward(
    case: CheckCase, exact: Inputs, got: Mapping[str, Any], shares: Mapping[str, Array]
) -> tuple[list[Explanation], list[Difference], str]:
    """What explains the wrong results of a forward, if anything; what explains them as well; and what they look like."""
    call = ForwardCase(case, exact)
    true, scales = call.results, scales_of(case, exact)
    outputs = [
        WrongOutput(name, np.asarray(got[name]), true[name], scales[name])
        for name in FORWARD if got.get(name) is not None and got[name].size
    ]  # fmt: skip
    text = "; ".join(_described(output, shares[output.name]) for output in outputs if output.name in shares)
    if case.M * case.N > MAX_WHOLE and not case.normalization.modulated and case.M > SOME_ROWS:
        call, outputs = _some_rows(call, outputs)
    if not any(output.is_wrong for output in outputs):
        return [], [], "every element is right to the rounding of its dtype"
    if case.N < 2 or max(output.result.size for output in outputs) < MIN_ELEMENTS:
        return [], [], text  # anything would explain so few numbers
    if (nearest := nearest_of(outputs, _known(call))) is not None:
        return (
            [_known_mistake(nearest.name)],
            [Difference(name, MISTAKES[name].sentence) for name in nearest.others],
            text,
        )
    for first, absent in TOGETHER.items():
        nothing: dict[str, Any] = {absent: None}
        without = _known(replace(call, raw=replace(call.raw, **nothing)))
        if getattr(call.raw, absent) is not None and (nearest := nearest_of(outputs, without)) is not None:
            return [_known_mistake(first), _known_mistake(nearest.name)], [], text
    found = [list(_explanations(call, output)) for output in outputs if output.is_wrong]
    if not all(found):
        return [], [], text
    others = [explanation.differences[0] for explanation in found[0][1:]] if len(found) == 1 else []
    return [explanations[0] for explanations in found], others, text


def _known(call: ForwardCase) -> Iterator[tuple[str, Any]]:
    """The results of each known mistake of a forward."""
    for name, mistake in MISTAKES.items():
        if (results := mistake.forward(call)) is not None:
            yield name, SimpleNamespace(**results)


def _known_mistake(name: str) -> Explanation:
    return Explanation(None, (Difference(name, MISTAKES[name].sentence),))


def _described(output: WrongOutput, share: Array) -> str:
    golden = output.true.astype(output.result.dtype).astype(np.float64).reshape(share.shape)
    return describe(output.name, wide(output.result).reshape(share.shape), golden, share)


def _some_rows(call: ForwardCase, outputs: Sequence[WrongOutput]) -> tuple[ForwardCase, list[WrongOutput]]:
    """Rows from the first to the last, half of them wrong ones, as a call of their own."""
    case, raw, M = call.case, call.raw, call.case.M
    wrong = np.flatnonzero(np.any([(output.share > 1).reshape(M, -1).any(1) for output in outputs], axis=0))
    rows = np.unique(
        [*np.linspace(0, M - 1, SOME_ROWS // 2).astype(int), *wrong[:: max(1, 2 * len(wrong) // SOME_ROWS)]]
    )

    def cut(array: Any) -> Any:
        return array.reshape(M, *array.shape[len(case.lead) :])[rows]

    names = [name for name in OF_ROWS if getattr(raw, name, None) is not None and name != "total"]
    few = replace(raw, **{name: cut(getattr(raw, name)) for name in names})
    parts = [
        replace(output, result=cut(output.result), true=cut(output.true), scale=cut(output.scale)) for output in outputs
    ]
    return ForwardCase(replace(case, lead=(len(rows),), layouts={}, files={}), few, is_cut=True), parts


def _explanations(call: ForwardCase, output: WrongOutput) -> Iterator[Explanation]:
    """What one wrong result may be, the simplest first."""
    t, shape = call.terms, (call.terms.M, -1)
    result, bound, true = (array.reshape(shape) for array in (wide(output.result), output.bound, output.true))
    fit = Fit(t, output.name, result, bound, {output.name: true}, 1, output.max_left)
    if not fit.is_finite:
        return
    explainers: Sequence[Any] = (misplaced.unwritten, misplaced.narrow_store, misplaced.clipped, misplaced.moved)
    if output.name in ("mean", "rstd"):
        explainers = explainers[1:2]
    yield from (found for explainer in explainers if (found := explainer(fit)) is not None)
    if output.name == "y":
        yield from _multiples(call, fit)
        yield from _rows(call, fit) if t.N >= MIN_ELEMENTS else ()


def _parts(call: ForwardCase) -> tuple[Array, Array]:
    """The two summands of y: that of xhat, and that of beta; (rows, columns)."""
    shape = (call.terms.M, -1)
    without = call.y(replace(call.inputs, beta=None)).reshape(shape)
    return without, call.y().reshape(shape) - without


def _multiples(call: ForwardCase, fit: Fit) -> Iterator[Explanation]:
    """Plain numbers before the terms of y."""
    of_xhat, of_beta = _parts(call)
    for extra, added in ((None, 0.0), ("x", call.terms.x), ("gamma", call.terms.gamma), ("1", 1.0)):
        basis = {"xhat·gamma": of_xhat, "beta": of_beta, str(extra): np.broadcast_to(added, of_xhat.shape)}
        basis = {name: term for name, term in basis.items() if term.any()}
        columns = np.stack([(term * fit.weight).reshape(-1) for term in basis.values()])
        if not np.isfinite(columns).all():
            return
        size = np.maximum(np.sqrt(np.square(columns).sum(1)), TINY)
        numbers, _, rank, _ = np.linalg.lstsq(
            (columns / size[:, None]).T, (fit.result * fit.weight).reshape(-1), rcond=1e-9
        )
        numbers = np.where(np.abs(numbers / size) < NO_NUMBER, 0.0, numbers / size)
        times = dict(zip(basis, numbers, strict=True))
        computed = sum(factor * basis[name] for name, factor in times.items())
        if rank < len(basis) or not fit.explains(computed) or not fit.is_left_little(computed, fit.true):
            continue
        texts = {name: number_text(factor, call.terms.N, call.terms.M) for name, factor in times.items()}
        off = {name: text for name, text in texts.items() if name == extra or text != "1"}
        if not off or MANY * len(basis) > call.terms.M * call.terms.N:
            continue
        formula = " + ".join(f"**{text}**·{name}" if name in off else name for name, text in texts.items())
        same = f"y {texts['xhat·gamma']} times" if extra is None and len({*texts.values()}) == 1 else ""
        name = same or f"y = {formula.replace('**', '')}"
        yield fit.explanation(name, f"{name}: right is xhat·gamma + beta.", formula)


def _rows(call: ForwardCase, fit: Fit) -> Iterator[Explanation]:
    """Another rstd or another mean in each row: (x − m)·r·gamma + beta, with m or r fitted."""
    t, inputs = call.terms, call.inputs
    of_xhat, of_beta = _parts(call)
    gamma = call.y(replace(inputs, beta=None), xhat=np.ones(np.shape(inputs.x))).reshape(t.M, -1)
    target, weight = (fit.result - of_beta) * fit.weight, fit.weight
    first, second = of_xhat * weight, gamma * weight
    squares = np.maximum(row_sum(first**2), TINY)
    factor = row_sum(first * target) / squares
    rstd, error = (factor * t.rstd)[:, 0], (SLACK / np.sqrt(squares) * t.rstd)[:, 0]
    yield from _named(call, fit, "rstd", rstds_like(t, np.abs(rstd), error) if (rstd > 0).all() else iter(()))
    if not t.normalization.centred:
        return
    size = np.maximum(row_sum(second**2), TINY)
    apart = (row_sum(second * (first - target)) / size / t.rstd)[:, 0]
    yield from _named(call, fit, "mean", means_like(t, apart, (SLACK / np.sqrt(size) / t.rstd)[:, 0]))


def _named(call: ForwardCase, fit: Fit, name: str, statistics: Statistics) -> Iterator[Explanation]:
    """Those of some statistics that explain y, in their words."""
    formula = fit.right.replace("mean", "**mean′**") if name == "mean" else fit.right.replace("rstd", "**rstd′**")
    for values, difference in statistics:
        changed: dict[str, Any] = {name: values.reshape(np.shape(call.inputs.rstd))}
        computed = call.y(replace(call.inputs, **changed)).reshape(fit.result.shape)
        if fit.explains(computed) and fit.is_left_little(computed, fit.true):
            yield Explanation(fit.formula(formula), (difference,))
