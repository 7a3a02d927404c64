"""Which known mistake is nearest to a result: how much of the error each leaves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lngrad.check.mistakes.catalogue import MISTAKES
from lngrad.check.mistakes.fit import EXPLAINED, SLACK, WrongOutput
from lngrad.core.problem import Grads
from lngrad.typing import Array

NOTHING = 0.05  # tolerances, that are left of an error: what leaves less is no better
ALIKE = 0.5  # of the error must vanish, for mistakes that depend on the order of sums


class Nearest(NamedTuple):
    """The known mistake that leaves the least of an error.

    Attributes:
        name: Of it.
        is_clean: Whether the result is as near to it as a right result is to the truth.
        others: Further mistakes that explain the result.
    """

    name: str
    is_clean: bool
    others: tuple[str, ...]


def nearest_of(outputs: Sequence[WrongOutput], made: Iterable[tuple[str, Grads]]) -> Nearest | None:
    """The nearest of some named gradients that explain all the outputs; the first of those that are about as near."""
    nearest, best, explaining, is_clean = np.inf, "", [], False
    for name, wrong in made:
        left = left_of(outputs, wrong, name in MISTAKES and MISTAKES[name].family.by_size)
        if left is None:
            continue
        explaining.append(name)
        if left < 0.9 * nearest:
            nearest, best = left, name
            is_clean = all(_is_clean(output, getattr(wrong, output.name)) for output in outputs)
    return Nearest(best, is_clean, tuple(one for one in explaining if one != best)) if best else None


def _is_clean(output: WrongOutput, expected: Array) -> bool:
    """Whether a result is as near to a mistake's as a right result is to the truth, where the mistake makes a difference."""
    near = output.shares_with(expected)[0] <= 1
    return bool(np.mean(near | (expected == output.true)) >= EXPLAINED)


def left_of(outputs: Sequence[WrongOutput], wrong: Grads, by_size: bool) -> float | None:
    """How much of the error is left if the mistake is granted, 0 to 1; None if it does not explain the result."""
    before = after = 0.0
    for output in outputs:
        expected = getattr(wrong, output.name)
        if not by_size and not output.is_made(expected):
            return None
        with_mistake, without = output.shares_with(expected)
        limit = 1e30
        left, whole = np.minimum(with_mistake, limit), np.minimum(np.maximum(without, output.share), limit)
        if by_size and np.sqrt(np.mean(left**2)) > max(ALIKE * np.sqrt(np.mean(whole**2)), SLACK):
            return None
        after += float(
            np.mean(np.minimum(np.maximum(left, NOTHING), whole) ** 2)
        )  # dx has more elements, and no more to say
        before += float(np.mean(whole**2))
    if before == 0 or after > ALIKE * before:
        return None
    return float(np.sqrt(after / before))
