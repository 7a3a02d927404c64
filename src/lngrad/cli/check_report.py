"""Results of `lngrad check` on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from lngrad.check.result import CaseResult

__all__ = ["print_result", "print_summary"]

MOST_PRINTED = 20


def print_result(console: Console, result: CaseResult) -> None:
    """A failed case in a few lines: which, which rule and where, which mistake, how to see it again."""
    console.print(f"[bold red]failed[/] [bold]{escape(result.name)}[/]  [dim]{escape(result.facts)}[/]")
    console.print(f"  {escape(result.reason)}")
    if result.sentence:
        label = f"[yellow]{escape(result.mistake)}[/]: " if result.mistake else ""
        console.print(f"  {label}{escape(result.sentence)}")
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
