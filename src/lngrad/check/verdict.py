"""The names of all failures together: what explains most of them is not one thing here and another there.

A case alone may leave a choice: the last 3 rows of 19 are lost, after whole parts of 8, or of 16. Other cases decide it. A name
that one case has alone, where another name explains nearly all others, or nothing explains them, is no name but a likeness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from lngrad.check.result import CaseResult

# What was seen, and not concluded from a result's numbers.
SEEN = frozenset({
    "not repeatable", "an earlier call's results", "results that change", "layout ignored", "number of threads",
    "NaN or infinity lost",
})  # fmt: skip
NO_NAME = "no known mistake"
MANY = 4  # times as many cases: those outvote a name
# A first call that was right where a second one was not: in one case among many wrong ones, the first values hid the mistake.
HIDDEN, VERY_MANY = "an earlier call's results", 20


def settled(results: Sequence[CaseResult]) -> list[CaseResult]:
    """The same results: of the names that explain a failure, each has that which explains most of all failures.

    A name that only a few cases have, and many others not, becomes a likeness: the case keeps its sentence, and has no name.
    """
    support = Counter(name for result in results if result.mistake for name in _names(result))
    chosen = [_chosen(result, support) for result in results]
    named = Counter(result.mistake for result in chosen if result.mistake)
    unnamed = sum(map(_is_unexplained, chosen))
    if named.total() * MANY <= unnamed and not SEEN & set(named):
        text = f"Nothing explains {unnamed} other cases. This one alone looks like"
        return [_withdrawn(result, text) if result.mistake else result for result in chosen]
    if not named:
        return chosen
    (most, number), *_ = named.most_common(1)
    if most in SEEN:
        return chosen
    text = f"{number} other cases have another mistake: {most}. This one alone looks like"
    return [_withdrawn(result, text) if _is_outvoted(result, named, most) else result for result in chosen]


def tally(results: Sequence[CaseResult]) -> list[tuple[str, int]]:
    """What the failures are, and how many of each: names, those that nothing explains, and those that did not finish."""
    failed = (result for result in results if result.status == "failed")
    return Counter(one.mistake or (NO_NAME if one.outputs else "did not finish") for one in failed).most_common()


def _is_unexplained(result: CaseResult) -> bool:
    """Whether a diagnosis ran to its end and named nothing."""
    return result.status == "failed" and result.mistake is None and result.sentence.startswith(NO_NAME)


def _names(result: CaseResult) -> set[str]:
    return {str(result.mistake), *(name for name, _ in result.alternatives)}


def _chosen(result: CaseResult, support: Counter[str]) -> CaseResult:
    if result.mistake is None or not result.alternatives:
        return result
    name, sentence = max(result.alternatives, key=lambda one: support[one[0]])
    if support[name] <= support[result.mistake]:
        return result
    others = ((result.mistake, result.sentence), *(one for one in result.alternatives if one[0] != name))
    return replace(result, mistake=name, sentence=sentence, alternatives=others)


def _is_outvoted(result: CaseResult, named: Counter[str], most: str) -> bool:
    name = result.mistake
    if name == HIDDEN:
        return named[name] * VERY_MANY <= named[most] and result.sentence.startswith("The first call was right")
    if name is None or name in SEEN or named[name] * MANY > named[most]:
        return False
    return not set(name.split("; ")) & set(most.split("; "))


def _withdrawn(result: CaseResult, text: str) -> CaseResult:
    return replace(result, mistake=None, sentence=f"{text} {result.mistake}: {result.sentence}")
