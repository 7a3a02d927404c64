"""Results of `lngrad check` on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from lngrad.check.reports.journal import Change
from lngrad.check.result import CaseResult

MOST_PRINTED = 20


def print_result(console: Console, result: CaseResult) -> None:
    """A failed case in a few lines: which, which rule and where, which mistake, how to see it again."""
    console.print(f"[bold red]failed[/] [bold]{escape(result.name)}[/]  [dim]{escape(result.facts)}[/]")
    console.print(f"  {escape(result.reason)}")
    if result.sentence:
        label = f"[yellow]{escape(result.mistake)}[/]: " if result.mistake else ""
        console.print(f"  {label}{escape(result.sentence)}")
    for formula in result.formulas:
        parts = (f"[bold red]{escape(text)}[/]" if changed else escape(text) for text, changed in formula.parts)
        console.print(f"  your {formula.output} = {''.join(parts)}", soft_wrap=True)
    console.print(f"  [dim]{escape(result.command)}[/]", soft_wrap=True)


def print_summary(console: Console, results: Sequence[CaseResult], seconds: float) -> None:
    counts = Counter(result.status for result in results)
    for reason, number in Counter(result.reason for result in results if result.status == "skipped").most_common(
        MOST_PRINTED
    ):
        console.print(f"[dim]skipped {number}: {escape(reason)}[/]")
    mistakes = Counter(result.mistake for result in results if result.mistake)
    for mistake, number in mistakes.most_common(MOST_PRINTED):
        console.print(f"{number} × {escape(mistake)}")
    colour = "red" if counts["failed"] else "green"
    console.print(
        f"[bold {colour}]{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped[/] "
        f"in {seconds:.1f} s"
    )


def print_changes(console: Console, changes: Sequence[Change]) -> None:
    """What got better and what got worse, and how many of each."""
    for change in changes[:MOST_PRINTED]:
        colour = {"better": "green", "worse": "red"}.get(change.kind, "yellow")
        console.print(f"[{colour}]{change.kind}[/] [bold]{escape(change.name)}[/]  {escape(change.text)}")
    counts = Counter(change.kind for change in changes)
    console.print(f"{counts['better']} better, {counts['worse']} worse, {counts['other']} otherwise changed")
