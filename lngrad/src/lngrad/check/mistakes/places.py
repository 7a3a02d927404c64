"""The known mistake that is nearest to a result: of the whole call, or at one place alone.

A place is one term of dx, some rows or columns, or one of the results.

What changes the inputs changes all three gradients. A kernel that computes them in two loops, or reads an input twice, has such
a mistake in one of them: these are the combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from lngrad.check.inputs import true_grads
from lngrad.check.mistakes.catalogue import MISTAKES
from lngrad.check.mistakes.changes import ExactCase
from lngrad.check.mistakes.dx_search import explain_dx
from lngrad.check.mistakes.fit import MIN_ELEMENTS, SLACK, Difference, Explanation, Fit, WrongOutput, nearly_all
from lngrad.check.mistakes.sum_weights import describe_places
from lngrad.check.mistakes.terms import Terms, row_mean, terms_of, without_nan
from lngrad.core.problem import Grads
from lngrad.testing import Inputs
from lngrad.typing import Array

MAX_ROWS = 128  # of dx that are looked at, before all of them are
MAX_CUT = 1 << 20  # elements whose rows or columns are looked at apart
MIN_CUT = 4  # elements that are wrong
NOTHING = 0.05  # tolerances, that are left of an error: what leaves less is no better
ALIKE = 0.5  # of the error must vanish, for mistakes that depend on the order of sums


class Nearest(NamedTuple):
    """The known mistake that leaves the least of an error; whether that is no more than a right result's; and other ones."""

    name: str
    is_clean: bool
    others: tuple[str, ...]


def nearest_of(outputs: Sequence[WrongOutput], candidates: Iterable[tuple[str, Grads]]) -> Nearest | None:
    """The nearest of some named gradients that explain all the outputs; the first of those that are about as near."""
    nearest, best, explaining, is_clean = np.inf, "", [], False
    for name, wrong in candidates:
        left = left_of(outputs, wrong, name in MISTAKES and MISTAKES[name].family.by_size)
        if left is None:
            continue
        explaining.append(name)
        if left < 0.9 * nearest:
            nearest, best = left, name
            is_clean = all(_is_clean(output, getattr(wrong, output.name)) for output in outputs)
    return Nearest(best, is_clean, tuple(name for name in explaining if name != best)) if best else None


def _is_clean(output: WrongOutput, expected: Array) -> bool:
    """Whether a result is as near to a mistake's as a right result is to the truth, where the mistake makes a difference."""
    return bool(nearly_all((output.shares_with(expected)[0] <= 1) | (expected == output.true)))


def left_of(outputs: Sequence[WrongOutput], wrong: Grads, by_size: bool) -> float | None:
    """How much of the error is left if the mistake is granted, 0 to 1; None if it does not explain the result."""
    before = after = 0.0
    for output in outputs:
        expected = getattr(wrong, output.name)
        if not by_size and not output.is_made(expected):
            return None
        with_mistake, without = output.shares_with(expected)
        left, whole = (np.minimum(array, 1e30) for array in (with_mistake, np.maximum(without, output.share)))
        if by_size and np.sqrt(np.mean(left**2)) > max(ALIKE * np.sqrt(np.mean(whole**2)), SLACK):
            return None
        # Means: dx has more elements, and no more to say.
        after += float(np.mean(np.minimum(np.maximum(left, NOTHING), whole) ** 2))
        before += float(np.mean(whole**2))
    if before == 0 or after > ALIKE * before:
        return None
    return float(np.sqrt(after / before))


class Placed(NamedTuple):
    """A mistake at a place: its name, its sentence, and the output that it makes."""

    name: str
    sentence: str
    gradient: Array


def some_rows(inputs: Inputs, dx: WrongOutput, rows: Array | None = None) -> tuple[Inputs, WrongOutput]:
    """Some rows of a call and of its dx: those that are given, or a few from the first to the last."""
    M, shape = inputs.mean.size, inputs.normalized_shape
    if rows is None:
        rows = np.linspace(0, M - 1, min(M, MAX_ROWS)).astype(int)

    def cut(of: Any, names: str, last: tuple[int, ...] = shape) -> dict[str, Any]:
        return {name: np.asarray(getattr(of, name)).reshape(M, -1)[rows].reshape(-1, *last) for name in names.split()}

    tensors = "dy x" if inputs.dtotal is None else "dy x dtotal"
    few = replace(inputs, **cut(inputs, tensors), **cut(inputs, "mean rstd", (1,) * len(shape)))
    return few, replace(dx, **cut(dx, "result true scale"))


def in_one_output(output: WrongOutput, true: Grads, known: Mapping[str, Grads]) -> Iterator[Placed]:
    """Each mistake in this output, whatever it would make of the others."""
    for name, wrong in known.items():
        if MISTAKES[name].family.by_size:
            continue
        sentence, wrong_output = MISTAKES[name].sentence, getattr(wrong, output.name)
        if all((getattr(wrong, field) == getattr(true, field)).all() for field in true._fields if field != output.name):
            yield Placed(name, sentence, wrong_output)
        else:
            yield Placed(f"{name} in {output.name} alone", f"In {output.name} alone: {sentence}", wrong_output)


def in_one_term(call: ExactCase, dx: WrongOutput) -> Iterator[Placed]:
    """Each mistake of the inputs in one term of dx; all rows are made only where some are explained."""
    cut = terms_of(some_rows(call.inputs, dx)[0])
    for name, mistake in MISTAKES.items():
        changed = mistake.changed(call)
        if changed is None or changed.normalization != call.inputs.normalization:
            continue
        few, part = some_rows(changed, dx)
        whole: list[tuple[str, Array]] | None = None
        for number, (where, gradient) in enumerate(_in_terms(cut, terms_of(few))):
            if not part.is_made(without_nan(gradient.reshape(part.result.shape), part.true)):
                continue
            whole = whole or list(_in_terms(call.terms, terms_of(changed)))
            gradient = without_nan(whole[number][1].reshape(dx.result.shape), dx.true)
            yield Placed(f"{name} in {where} alone", f"In {where} alone: {mistake.sentence}", gradient)


def _in_terms(t: Terms, other: Terms) -> Iterator[tuple[str, Array]]:
    """dx with one of its terms made of other inputs."""
    first, second = t.means
    of_dxhat, of_xhat, of_rstd = (
        (getattr(t, name) != getattr(other, name)).any() for name in ("dxhat", "xhat", "rstd")
    )
    if of_rstd:
        yield "the factor before the bracket", other.rstd * (t.dxhat - first - t.xhat * second) + t.dtotal
    if of_dxhat:
        yield "the first term of dx", t.rstd * (other.dxhat - first - t.xhat * second) + t.dtotal
        if t.normalization.centred:
            yield "the mean of dxhat", t.dx(first=row_mean(other.dxhat))
            yield "the row means", t.dx(row_mean(other.dxhat), row_mean(other.dxhat * other.xhat))
    if of_dxhat or of_xhat:
        yield "the mean of dxhat·xhat", t.dx(second=row_mean(other.dxhat * other.xhat))
    if of_xhat:
        yield "the xhat before its mean", t.rstd * (t.dxhat - first - other.xhat * second) + t.dtotal
        yield "the last term of dx", t.rstd * (t.dxhat - first - other.xhat * row_mean(t.dxhat * other.xhat)) + t.dtotal


class Cut(NamedTuple):
    """The wrong rows or columns of a result, as a call of their own.

    Attributes:
        call: These rows; of columns, the whole call.
        whole: From a mistake's gradients of this call to those of all rows and columns.
        fit: Of the wrong elements of dx alone.
    """

    where: str
    what: str
    call: ExactCase
    whole: Callable[[Grads], Grads]
    fit: Fit


def cuts(call: ExactCase, dx: WrongOutput) -> Iterator[Cut]:
    """The wrong rows, and the wrong columns, of a dx that has right ones too."""
    t = call.terms
    if dx.result.size > MAX_CUT:
        return
    fit = Fit.of(t, dx, call.true, 2)
    wrong = np.abs(fit.result - fit.true) > SLACK * fit.bound
    wrong |= ~np.isfinite(fit.result) & np.isfinite(fit.true)
    rows, columns = (~nearly_all(~wrong, axis) for axis in (1, 0))
    if wrong.sum() < MIN_CUT:
        return
    if 0 < rows.sum() < t.M:
        places = np.flatnonzero(rows)
        few, part = some_rows(call.inputs, dx, places)
        cut, sub = ExactCase(replace(call.case, lead=(len(places),), layouts={}, files={}), few), true_grads(few)

        def of_rows(grads: Grads) -> Grads:
            whole = fit.true.copy()
            whole[places] = grads.dx.reshape(len(places), -1)
            sums = (
                true + (other - right) for true, other, right in zip(call.true[1:], grads[1:], sub[1:], strict=True)
            )
            return Grads(whole.reshape(call.true.dx.shape), *sums)

        yield Cut(describe_places(rows, "row"), "rows", cut, of_rows, Fit.of(cut.terms, part, sub, 2))
    if 0 < columns.sum() < t.N:

        def of_columns(grads: Grads) -> Grads:
            flat = (
                (array.reshape(-1, t.N), true.reshape(-1, t.N)) for array, true in zip(grads, call.true, strict=True)
            )
            whole = Grads(*(np.where(columns, wrong, true) for wrong, true in flat))
            return Grads(*(array.reshape(true.shape) for array, true in zip(whole, call.true, strict=True)))

        of_these = replace(fit, bound=np.where(columns, fit.bound, np.inf))
        yield Cut(describe_places(columns, "column"), "columns", call, of_columns, of_these)


def in_part(cut: Cut) -> Iterator[tuple[str, Grads]]:
    """(name, all gradients) of each known mistake in some rows or columns alone."""
    for name, mistake in MISTAKES.items():
        family = mistake.family
        if family.by_size or family.rounding or family.sums_only or family.unwritten:
            continue
        if (grads := mistake.gradients(cut.call)) is not None:
            yield name, cut.whole(grads)


def in_rows_of_a_sum(call: ExactCase, output: WrongOutput) -> Iterator[Placed]:
    """Each mistake of the inputs in the first or the last rows of a column sum, as many as fit best."""
    t = call.terms
    if output.name == "dx" or t.M < 2 or t.dy.size > MAX_CUT or not np.isfinite(output.error).all():
        return
    off = output.result.astype(np.float64).reshape(-1) - output.true.reshape(-1)
    weight = 1 / np.maximum(output.bound.reshape(-1), 1e-300)
    product = t.summed(output.name)
    for name, mistake in MISTAKES.items():
        if (changed := mistake.changed(call)) is None:
            continue
        apart = terms_of(changed).summed(output.name) - product
        if not apart.any() or not np.isfinite(apart).all():
            continue
        sums = np.cumsum(apart, axis=0)
        for last, parts in ((True, sums[-1] - sums[:-1]), (False, sums[:-1])):
            # The rows after the k-th, or up to it.
            k = int(np.argmin(np.square((parts - off) * weight).sum(1))) + 1
            rows = (np.arange(t.M) >= k) == last
            text = f"In {describe_places(rows, 'row')}, of {output.name}: {mistake.sentence}"
            wrong = output.true + parts[k - 1].reshape(output.true.shape)
            yield Placed(f"{name} in part of the rows of {output.name}", text, wrong)


def in_places(
    call: ExactCase, outputs: Sequence[WrongOutput], formulas: Mapping[str, Explanation], known: Mapping[str, Grads],
    only_clean: bool = False,
) -> list[Explanation] | None:  # fmt: skip
    """A known mistake in some rows or columns, or one at one place in each wrong output that no formula explains.

    only_clean: Only what leaves no more than a right result's roundings.
    """
    wrong_ones = [output for output in outputs if output.is_wrong]
    if not any(np.isfinite(wrong_one.result.astype(np.float64)[wrong_one.share > 1]).any() for wrong_one in wrong_ones):
        return None  # NaN alone says nothing of its cause
    if call.terms.N < 2 or min(wrong_one.result.size for wrong_one in wrong_ones) < MIN_ELEMENTS:
        return None  # one of so many combinations would explain a few numbers
    dx = next((wrong_one for wrong_one in wrong_ones if wrong_one.name == "dx"), None)
    cut_ones = [] if dx is None else list(cuts(call, dx))
    for cut in cut_ones:
        if (explained := _known_in_cut(cut, outputs, lambda grads: grads, only_clean)) is not None:
            return [explained]
    found = []
    for output in wrong_ones:
        explained = formulas.get(output.name)
        if explained is None and output is dx:
            explained = next(
                (explanation for cut in cut_ones if (explanation := _cut_alone(cut, dx, call.true)) is not None), None
            )
        if explained is None or only_clean:
            placed = _at_one_place(call, output, known, only_clean)
            explained = placed if only_clean else placed or explained
        if explained is None:
            return None
        found.append(explained)
    return found


def _at_one_place(
    call: ExactCase, output: WrongOutput, known: Mapping[str, Grads], only_clean: bool
) -> Explanation | None:
    """The nearest known mistake at one place of an output."""
    seen: list[Placed] = []
    others = in_one_term(call, output) if output.name == "dx" else in_rows_of_a_sum(call, output)

    def candidates() -> Iterator[tuple[str, Grads]]:
        for placed in chain(in_one_output(output, call.true, known), others):
            seen.append(placed)
            yield str(len(seen) - 1), call.true._replace(**{output.name: placed.gradient})

    nearest = nearest_of([output], candidates())
    if nearest is None or (only_clean and not nearest.is_clean):
        return None
    best = seen[int(nearest.name)]
    return Explanation(None, (Difference(best.name, best.sentence),))


def _known_in_cut(
    cut: Cut, outputs: Sequence[WrongOutput], of: Callable[[Grads], Grads], only_clean: bool = False
) -> Explanation | None:
    """The known mistake in some rows or columns alone that is nearest to some outputs."""
    nearest = nearest_of(outputs, ((name, of(grads)) for name, grads in in_part(cut)))
    if nearest is None or (only_clean and not nearest.is_clean):
        return None
    return Explanation(None, (_in_part(nearest.name, cut, MISTAKES[nearest.name].sentence),))


def _cut_alone(cut: Cut, dx: WrongOutput, truth: Grads) -> Explanation | None:
    """What explains dx in some rows or columns alone: a known mistake, or a formula."""
    known = _known_in_cut(cut, [dx], lambda grads: truth._replace(dx=grads.dx))
    explained = explain_dx(cut.fit) if known is None else None
    if explained is None:
        return known
    return replace(
        explained,
        differences=tuple(_in_part(difference.name, cut, difference.sentence) for difference in explained.differences),
    )


def _in_part(name: str, cut: Cut, sentence: str) -> Difference:
    return Difference(f"{name} in part of the {cut.what}", f"In {cut.where} alone: {sentence}")
