"""Results as JUnit XML, which every CI shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from lngrad.check.result import CaseResult


def write_junit(path: Path, results: Sequence[CaseResult], impl: str) -> None:
    """One test case a case; a failure has the reason as its message, diagnosis and command as its text."""
    counts = {status: sum(result.status == status for result in results) for status in ("failed", "skipped")}
    suite = ElementTree.Element(
        "testsuite",
        name=_clean(f"lngrad check {impl}"),
        tests=str(len(results)),
        failures=str(counts["failed"]),
        skipped=str(counts["skipped"]),
        errors="0",
        time=f"{sum(result.seconds for result in results):.3f}",
    )
    for result in results:
        case = ElementTree.SubElement(
            suite, "testcase", name=_clean(result.name), classname=_clean(result.source), time=f"{result.seconds:.3f}"
        )
        if result.status == "skipped":
            ElementTree.SubElement(case, "skipped", message=_clean(result.reason))
        elif result.status == "failed":
            failure = ElementTree.SubElement(
                case, "failure", message=_clean(result.reason), type=_clean(result.mistake or "unexplained")
            )
            formulas = "".join(f"{formula.text}\n" for formula in result.formulas)
            failure.text = _clean(f"{result.facts}\n{result.sentence}\n{formulas}{result.command}")
    whole = ElementTree.Element("testsuites")
    whole.append(suite)
    ElementTree.ElementTree(whole).write(path, encoding="utf-8", xml_declaration=True)


def _clean(text: str) -> str:
    """Without the characters that XML can't hold, even escaped."""
    return "".join(
        letter if letter in "\t\n\r" or (" " <= letter < "\ufffe" and not "\ud800" <= letter <= "\udfff") else "�"
        for letter in text
    )
