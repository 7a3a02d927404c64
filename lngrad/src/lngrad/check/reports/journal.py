"""Results for programs: a journal of JSON lines that grows with a run, JUnit XML, and what changed since an earlier run."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree import ElementTree

import lngrad
from lngrad.check.case import CheckCase, Options
from lngrad.check.result import BELIEVED, CaseResult, mapped
from lngrad.check.verdict import Run, code_of
from lngrad.errors import FileFormatError, printable
from lngrad.files.boundary import as_format_error, parse_json, read_text
from lngrad.files.writing import write_text

MAX_BYTES = 1 << 30
STDOUT = Path("-")
ANY, DIGITS = "any", 16  # of --resume: a file in whatever state; of a digest
SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def key_of(case: CheckCase, options: Options) -> str:
    """Of everything that a result depends on: the case as read, and the options; not the code of the implementation."""
    asked = [options.impl, options.standard, options.level, options.third, options.against, options.seed, options.timed]
    text = json.dumps([asdict(case), asked], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def line_of(result: CaseResult) -> str:
    return json.dumps(mapped(result.to_json(), _word), ensure_ascii=False, allow_nan=False) + "\n"


class Journal:
    """What --json writes and --resume reads: a line for each result as it comes, so that an interrupted run keeps them.

    An earlier file is emptied: a kernel may kill its judges, and leaves no verdict of another run then. It ends with a whole
    line also on a full disk.
    """

    def __init__(self, path: Path, kept: Iterable[CaseResult] = ()) -> None:
        """kept: Results of an earlier run that stay."""
        self.path = path
        self._file: BinaryIO | None = None
        lines = "".join(map(line_of, kept))
        if lines or path.is_file():
            self._begin(lines)

    def _begin(self, lines: str) -> None:
        write_text(self.path, lines)
        if self.path.is_file():  # and no pipe
            self._file = self.path.open("ab", buffering=0)

    def append(self, result: CaseResult) -> None:
        """Write a line at once.

        Raises:
            FileFormatError: It can't be written; the file ends with the line before.
        """
        line = line_of(result)
        if self._file is None:
            self._begin(line)
            return
        size, data = self._file.tell(), line.encode(errors="replace")
        try:
            if self._file.write(data) != len(data):
                raise OSError("no space left on device")
        except OSError as reason:
            self._file.truncate(size)
            raise FileFormatError(f"{self.path}: can't be written: {reason.strerror or reason}") from None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()


def finish(path: Path, run: Run) -> str:
    """Write all results, with the names that others have changed, and a last line: the run; return the file's digest.

    What is no file keeps what came, and has no digest.
    """
    line = json.dumps(mapped(run.to_json(), _word), ensure_ascii=False, allow_nan=False) + "\n"
    if path == STDOUT:
        sys.stdout.write(line)
    elif path.is_file():
        write_text(path, text := "".join([*map(line_of, run.results), line]))
        return _digest(text)
    return ""


def _digest(text: str) -> str:
    """What tells a file that is as we left it from one that somebody has written since: it is printed, and no file has it."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:DIGITS]


def write_sarif(path: Path, run: Run, impl: str) -> None:
    """A result a failed case, in the kernel's file where there is one, for code scanning."""
    module = impl.rpartition(":")[0]
    file = Path(module if module.endswith(".py") else module.replace(".", "/") + ".py")
    uri = file.as_posix() if file.is_file() and not file.is_absolute() else None
    names = sorted({result.mistake or "unexplained" for result in run.results if result.status == "failed"})
    results = [
        {
            "ruleId": code_of(result.mistake) or result.mistake or "unexplained", "level": "error",
            "message": {"text": printable(f"{result.facts}: {result.reason}. {result.sentence} {result.command}")},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": uri or Path(result.source.partition(":")[0]).name},
                                                "region": {"startLine": 1}}}],
        }
        for result in run.results if result.status == "failed"
    ]  # fmt: skip
    rules = [{"id": code_of(name) or name, "shortDescription": {"text": name}} for name in names]
    driver = {"name": "lngrad check", "version": lngrad.__version__, "rules": rules}
    whole = {"version": "2.1.0", "$schema": SARIF, "runs": [{"tool": {"driver": driver}, "results": results}]}
    write_text(path, json.dumps(whole, indent=1) + "\n")


def read_journal(path: Path, digest: str | None = None) -> dict[str, CaseResult]:
    """Results by key. A last line that was cut off is dropped.

    Args:
        digest: That `finish` gave; ANY: what the kernel may have written is believed, and each result has a note of it.

    Raises:
        FileFormatError: The digest is another, or another line is no result; the line is named.
    """
    found: dict[str, CaseResult] = {}
    text, notes = read_text(path, MAX_BYTES), (BELIEVED,) if digest == ANY else ()
    if digest not in (None, ANY, _digest(text)):
        expected = f"expected the file as the interrupted run left it, with digest {digest}, got {_digest(text)}"
        raise FileFormatError(f"{path}: {expected}: something has written it since; --resume any believes it")
    lines = text.removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        try:
            with as_format_error(where, "expected a result of lngrad check"):
                entry = parse_json(line, where)
                if "verdict" in entry:  # of the run
                    continue
                result = CaseResult.from_json(mapped(entry, _number))
        except FileFormatError:
            if number == len(lines):
                break
            raise
        found[result.key] = replace(result, notes=tuple(dict.fromkeys((*result.notes, *notes))))
    return found


def seed_of(results: Iterable[CaseResult], otherwise: int) -> int:
    """The seed of an earlier run's results, or another if there are none."""
    seeds = (re.search(r" --seed (\d+)", result.command) for result in results)
    return next((int(found[1]) for found in seeds if found), otherwise)


def _word(value: Any) -> Any:
    """JSON has no infinity and no NaN: words for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _number(value: Any) -> Any:
    return _NUMBERS.get(value, value) if isinstance(value, str) else value


def write_junit(path: Path, results: Sequence[CaseResult], impl: str) -> None:
    """One test case a case; a failure has the reason as its message, diagnosis and command as its text."""

    def under(parent: ElementTree.Element, kind: str, **facts: object) -> ElementTree.Element:
        return ElementTree.SubElement(parent, kind, {name: printable(str(fact)) for name, fact in facts.items()})

    counts, seconds = Counter(result.status for result in results), sum(result.seconds for result in results)
    whole = ElementTree.Element("testsuites")
    facts: dict[str, object] = {"tests": len(results), "failures": counts["failed"], "errors": 0}
    facts |= {"skipped": counts["skipped"], "time": f"{seconds:.3f}"}
    suite = under(whole, "testsuite", name=f"lngrad check {impl}", **facts)
    for result in results:
        case = under(suite, "testcase", name=result.name, classname=result.source, time=f"{result.seconds:.3f}")
        if result.status == "skipped":
            under(case, "skipped", message=result.reason)
        elif result.status == "failed":
            failure = under(case, "failure", message=result.reason, type=result.mistake or "unexplained")
            formulas = "".join(f"{formula.text}\n" for formula in result.formulas)
            failure.text = printable(f"{result.facts}\n{result.sentence}\n{formulas}{result.command}")
    write_text(path, f"<?xml version='1.0' encoding='utf-8'?>\n{ElementTree.tostring(whole, encoding='unicode')}")


NOTABLE = 2.0  # times the largest error


@dataclass(frozen=True)
class VerdictChange:
    """One case that is not as it was.

    Attributes:
        kind: better, worse or other.
        name: Of the case.
        text: What it was, and what it is.
    """

    kind: str
    name: str
    text: str


def changes(before: Iterable[CaseResult], after: Sequence[CaseResult]) -> list[VerdictChange]:
    """The cases whose verdict, mistake or largest error changed: worse ones first.

    Args:
        before, after: Results of two runs; cases are matched by name. Cases that are in one run only are left out.
    """
    old = {(result.name, result.facts): result for result in before}
    pairs = ((old.get((result.name, result.facts)), result) for result in after)
    found = [change for earlier, result in pairs if earlier is not None for change in _changes_of(earlier, result)]
    return sorted(found, key=lambda change: ("worse", "better", "other").index(change.kind))


def _changes_of(old: CaseResult, new: CaseResult) -> list[VerdictChange]:
    if old.status != new.status:
        kind = {"passed": "better", "failed": "worse"}.get(new.status, "other")
        kind = kind if {old.status, new.status} == {"passed", "failed"} else "other"
        why = new.mistake or new.reason if new.status != "passed" else old.mistake or old.reason
        return [VerdictChange(kind, new.name, f"{old.status}, now {new.status}: {why}")]
    if old.status == "failed" and old.mistake != new.mistake:
        return [
            VerdictChange(
                "other", new.name, f"{old.mistake or 'no known mistake'}, now {new.mistake or 'no known mistake'}"
            )
        ]
    errors = [max((output.worst_error for output in result.outputs), default=0.0) for result in (old, new)]
    if min(errors) > 0 and max(errors) / min(errors) >= NOTABLE:
        kind = "better" if errors[1] < errors[0] else "worse"
        return [VerdictChange(kind, new.name, f"largest error {errors[0]:.3g}, now {errors[1]:.3g}")]
    return []
