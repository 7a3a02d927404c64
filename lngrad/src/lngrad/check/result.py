"""What is known of a case after it ran: plain values, so that they can be kept in a file and sent between processes.

A case alone may leave a choice of names: the last 3 rows of 19 are lost, after whole parts of 8, or of 16. Other cases decide
it. A name that one case has alone, where another name explains nearly all others, or nothing explains them, is a likeness.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

Status = Literal["passed", "failed", "skipped"]
EARLIER = "an earlier call's results"
# What was seen, and not concluded from a result's numbers.
SEEN = frozenset({
    EARLIER, "not repeatable", "results that change", "layout ignored", "number of threads", "NaN or infinity lost",
    "no gradient", "backward raises", "another shape", "another dtype", "inputs overwritten",
})  # fmt: skip
BELIEVED = "believed, as --resume any says, whoever wrote the file"
NO_NAME, NOT_EXPLAINED = "no known mistake", "not explained, as --no-diagnosis says"
MANY = 4  # times as many cases: those outvote a name
AT_A_PLACE = re.compile(r" in (dx|dgamma|dbeta|the [^;]*) alone$| in part of the (rows|columns)( of \w+)?$")
NUMBER = re.compile(r"\b\d+(\.\d+)?(e[-+]?\d+)?\b")


@dataclass(frozen=True)
class RuleResult:
    """One rule of the standard: what was measured, and the most that is allowed."""

    name: str
    measured: float
    limit: float
    holds: bool


@dataclass(frozen=True)
class WorstElement:
    """One of the worst elements: its index, row and column, and both values."""

    index: tuple[int, ...]
    row: int
    column: int
    golden: float
    got: float
    share: float


@dataclass(frozen=True)
class OutputResult:
    """One output of a case.

    Attributes:
        name, dtype, shape: Of the output.
        passed: Whether every rule holds.
        rules: All rules of the standard.
        off: Share of elements that use more than their tolerance.
        worst_error, worst_ulp, worst_share: Largest error, as it is, in ULP, and in tolerances.
        histogram: Number of elements by ULP; the edges are in rules.HISTOGRAM.
        worst, map: Of failed outputs: the worst elements; the largest share in each cell over (row, column).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    passed: bool
    rules: tuple[RuleResult, ...]
    off: float
    worst_error: float
    worst_ulp: float
    worst_share: float
    histogram: tuple[int, ...]
    worst: tuple[WorstElement, ...] = ()
    map: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Formula:
    """What one output is, as it was found.

    Attributes:
        output: dx, dgamma or dbeta.
        parts: (text, whether it differs from the right formula), in order.
        right: The right formula.
    """

    output: str
    parts: tuple[tuple[str, bool], ...]
    right: str = ""

    @property
    def text(self) -> str:
        """With what differs between two asterisks: dx = rstd·(dxhat − **2**·mean_dxhat − …)."""
        return f"{self.output} = " + "".join(f"**{text}**" if changed else text for text, changed in self.parts)


@dataclass(frozen=True)
class Weights:
    """Which rows or columns entered a sum, and how often.

    Attributes:
        sum: What is summed, as "dbeta" or "mean_dxhat".
        of: "row" or "column".
        runs: (first, number, weight) of neighbours with the same weight, in order.
        text: The same as a sentence.
    """

    sum: str
    of: str
    runs: tuple[tuple[int, int, float], ...]
    text: str


@dataclass(frozen=True)
class CaseResult:
    """One case.

    Attributes:
        name, source: Of the case.
        status: skipped where the implementation does not do what the case asks, or the case is switched off.
        reason: One line: the rule that failed, where and by how much; or why it was skipped or did not finish.
        facts: Shape, dtypes and mask, for people.
        standard: By which it was judged.
        outputs: Empty unless it ran to the end.
        mistake, sentence: The diagnosis of a failed case.
        formulas: What its wrong outputs obey, as far as that was found.
        weights: Which rows or columns entered sums that do not take all of them once.
        alternatives: (mistake, sentence) of others that explain this case too; further cases tell which it is.
        command: Reproduces it.
        seconds: Of computing and judging.
        notes: What is worth knowing besides, a line each.
        calls: How often the implementation was called.
        time: Seconds of a call, where it was timed.
        nbytes: Of all inputs and outputs, each once.
        of_memory: These over that time, as a share of a copy's speed.
        key: Of everything that the result depends on: a resumed run takes a result only if its key is the same.
    """

    name: str
    source: str
    status: Status
    reason: str
    facts: str
    standard: str
    outputs: tuple[OutputResult, ...] = ()
    mistake: str | None = None
    sentence: str = ""
    formulas: tuple[Formula, ...] = ()
    weights: tuple[Weights, ...] = ()
    alternatives: tuple[tuple[str, str], ...] = ()
    command: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    calls: int = 0
    time: float | None = None
    nbytes: int = 0
    of_memory: float | None = None
    key: str = ""
    others: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(entry: dict[str, Any]) -> CaseResult:
        """The result that to_json gave.

        Raises:
            ValueError, TypeError, KeyError: It is not one.
        """
        texts = ("name", "source", "reason", "facts", "standard", "sentence", "command", "key")
        if entry["status"] not in get_args(Status) or any(type(entry[name]) is not str for name in texts):
            raise ValueError("its status or one of its texts is not what lngrad check writes")
        values = mapped(entry, lambda value: value, tuple)
        for output in values["outputs"]:
            output["rules"] = tuple(RuleResult(**rule) for rule in output["rules"])
            output["worst"] = tuple(WorstElement(**worst) for worst in output["worst"])
        for output in values.get("formulas", ()):
            output["parts"] = tuple((str(text), bool(changed)) for text, changed in output["parts"])
        for output in values.get("weights", ()):
            output["runs"] = tuple((int(first), int(number), float(weight)) for first, number, weight in output["runs"])
        for name, kind in (("outputs", OutputResult), ("formulas", Formula), ("weights", Weights)):
            values[name] = tuple(kind(**facts) for facts in values.get(name, ()))
        values["alternatives"] = tuple((str(name), str(text)) for name, text in values.get("alternatives", ()))
        return CaseResult(**values)


def mapped(value: Any, leaf: Callable[[Any], Any], sequence: Callable[[Iterable[Any]], Any] = list) -> Any:
    """JSON with other values in it, and its lists as another kind of sequence."""
    if isinstance(value, dict):
        return {key: mapped(item, leaf, sequence) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return sequence(mapped(item, leaf, sequence) for item in value)
    return leaf(value)


def settled(results: Sequence[CaseResult]) -> list[CaseResult]:
    """The same results: of the names that explain a failure, each has that which explains most of all failures.

    A name that only a few cases have, and many others not, becomes a likeness: the case keeps its sentence, and has no name.
    """
    support = Counter(name for result in results if result.mistake for name in _names(result))
    chosen = [_chosen(result, support) for result in results]
    named = Counter(kind_of(result.mistake) for result in chosen if result.mistake)
    unnamed = sum(map(is_unexplained, chosen))
    if named.total() * MANY <= unnamed and not SEEN & set(named):
        text = f"Nothing explains {unnamed} other cases. This one alone looks like"
        return [_withdrawn(result, text) if result.mistake else result for result in chosen]
    if not named:
        return chosen
    (most, number), *_ = named.most_common(1)
    if most in SEEN:
        return chosen
    text = f"{number} other cases have another mistake: {_spelled(chosen)[most]}. This one alone looks like"
    return [_withdrawn(result, text) if _is_outvoted(result, named, most) else result for result in chosen]


def tally(results: Sequence[CaseResult]) -> list[tuple[str, int]]:
    """What the failures are, and how many of each: names, those that nothing explains, and those that did not finish.

    Names that differ in numbers alone are one, with … for what differs.
    """
    unnamed, spelled = {NOT_EXPLAINED: NOT_EXPLAINED}, _spelled(results)
    return Counter(
        spelled[kind_of(result.mistake)] if result.mistake
        else unnamed.get(result.sentence) or (NO_NAME if result.outputs else "did not finish")
        for result in results if result.status == "failed"
    ).most_common()  # fmt: skip


def kind_of(name: str) -> str:
    """A mistake's name with … for its numbers: those of one kind depend on the case's sizes."""
    return NUMBER.sub("…", name)


def _spelled(results: Iterable[CaseResult]) -> dict[str, str]:
    """Of each kind the name, where all of the kind have the same; else the kind."""
    found: dict[str, str] = {}
    for name in (result.mistake for result in results if result.mistake):
        kind = kind_of(name)
        found[kind] = name if found.get(kind, name) == name else kind
    return found


def is_unexplained(result: CaseResult) -> bool:
    """Whether a diagnosis ran to its end and named nothing."""
    return result.status == "failed" and result.mistake is None and result.sentence.startswith(NO_NAME)


def _names(result: CaseResult) -> set[str]:
    return {str(result.mistake), *(name for name, _ in result.alternatives)}


def _chosen(result: CaseResult, support: Counter[str]) -> CaseResult:
    if result.mistake is None or not result.alternatives:
        return result
    name, sentence = max(result.alternatives, key=lambda item: support[item[0]])
    if support[name] <= support[result.mistake]:
        return result
    others = (
        (result.mistake, result.sentence),
        *(alternative for alternative in result.alternatives if alternative[0] != name),
    )
    return replace(result, mistake=name, sentence=sentence, alternatives=others)


def _is_outvoted(result: CaseResult, named: Counter[str], most: str) -> bool:
    name = kind_of(result.mistake or "")
    if not name or name in SEEN or named[name] * MANY > named[most]:
        return False
    parts, theirs = ({AT_A_PLACE.sub("", part) for part in array.split("; ")} for array in (name, most))
    return not parts & theirs


def _withdrawn(result: CaseResult, text: str) -> CaseResult:
    return replace(result, mistake=None, sentence=f"{text} {result.mistake}: {result.sentence}")
