"""The table of the regression corpus: which report, judged by which standard, named how often.

    python -m cases.regression_corpus.table

Prints the rows that stand in README.md beside this file.
"""

from __future__ import annotations

import sys

from cases.regression_corpus import columns, forwards, rows, statistics
from cases.regression_corpus.frame import BUG_REPORTS, BugReport

from lngrad.check.inputs import draw
from lngrad.check.judge import Options, check_case

MISTAKES = (rows, columns, statistics, forwards)  # importing them fills BUG_REPORTS
CASES = 10


def verdict(report: BugReport, seed: int) -> tuple[str, str, str]:
    """(status, the mistake that was named, the sentence) of one random case."""
    result = check_case(report.case(seed), Options(impl=f"cases.regression_corpus.{report.name}", seed=seed))
    return result.status, result.mistake or "", result.sentence


def row(report: BugReport) -> str:
    results = [verdict(report, seed) for seed in range(CASES)]
    failed = sum(status == "failed" for status, _, _ in results)
    named = sum(name.startswith(report.named) for _, name, _ in results)
    source = ", ".join(filter(None, (report.report, report.date, report.version)))
    says = f"{named} of {CASES}" if report.named else "described, not named"
    return f"| {report.story} | {source} | {report.standard}: {failed} of {CASES} | {says} |"


def main() -> int:
    for report in BUG_REPORTS.values():
        print(row(report), flush=True)
    return 0


__all__ = ["BUG_REPORTS", "MISTAKES", "draw", "row", "verdict"]

if __name__ == "__main__":
    sys.exit(main())
