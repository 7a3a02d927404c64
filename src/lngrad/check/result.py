"""What is known of a case after it ran: plain values, so that they can be kept in a file and sent between processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, get_args

Status = Literal["passed", "failed", "skipped"]


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
        outputs = []
        for one in map(partial(mapped, leaf=lambda value: value, sequence=tuple), entry["outputs"]):
            made = {"rules": tuple(RuleResult(**rule) for rule in one["rules"])}
            outputs.append(
                OutputResult(**one | made | {"worst": tuple(WorstElement(**worst) for worst in one["worst"])})
            )
        formulas = tuple(
            Formula(one["output"], tuple((str(text), bool(changed)) for text, changed in one["parts"]), one["right"])
            for one in entry.get("formulas", ())
        )
        weights = tuple(
            Weights(**{**one, "runs": tuple((int(first), int(number), float(w)) for first, number, w in one["runs"])})
            for one in entry.get("weights", ())
        )
        values = {
            "outputs": tuple(outputs),
            "formulas": formulas,
            "weights": weights,
            "alternatives": tuple((str(name), str(text)) for name, text in entry.get("alternatives", ())),
            "notes": tuple(entry.get("notes", ())),
        }
        return CaseResult(**(entry | values))


def mapped(value: Any, leaf: Callable[[Any], Any], sequence: Callable[[Iterable[Any]], Any] = list) -> Any:
    """JSON with other values in it, and its lists as another kind of sequence."""
    if isinstance(value, dict):
        return {key: mapped(item, leaf, sequence) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return sequence(mapped(item, leaf, sequence) for item in value)
    return leaf(value)
