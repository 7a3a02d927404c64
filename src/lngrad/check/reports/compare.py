"""Two runs side by side: what got better, what got worse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lngrad.check.result import CaseResult

NOTABLE = 2.0  # times the largest error


@dataclass(frozen=True)
class Change:
    """One case that is not as it was.

    Attributes:
        kind: better, worse or other.
        name: Of the case.
        text: What it was, and what it is.
    """

    kind: str
    name: str
    text: str


def changes(before: Iterable[CaseResult], after: Sequence[CaseResult]) -> list[Change]:
    """The cases whose verdict, mistake or largest error changed: worse ones first.

    Args:
        before, after: Results of two runs; cases are matched by name. Cases that are in one run only are left out.
    """
    old = {result.name: result for result in before}
    found = [change for result in after if result.name in old for change in _changes_of(old[result.name], result)]
    return sorted(found, key=lambda change: ("worse", "better", "other").index(change.kind))


def _changes_of(old: CaseResult, new: CaseResult) -> list[Change]:
    if old.status != new.status:
        kind = {"passed": "better", "failed": "worse"}.get(new.status, "other")
        kind = kind if {old.status, new.status} == {"passed", "failed"} else "other"
        why = new.mistake or new.reason if new.status != "passed" else old.mistake or old.reason
        return [Change(kind, new.name, f"{old.status}, now {new.status}: {why}")]
    if old.status == "failed" and old.mistake != new.mistake:
        return [
            Change("other", new.name, f"{old.mistake or 'no known mistake'}, now {new.mistake or 'no known mistake'}")
        ]
    errors = [max((output.worst_error for output in result.outputs), default=0.0) for result in (old, new)]
    if min(errors) > 0 and max(errors) / min(errors) >= NOTABLE:
        kind = "better" if errors[1] < errors[0] else "worse"
        return [Change(kind, new.name, f"largest error {errors[0]:.3g}, now {errors[1]:.3g}")]
    return []
