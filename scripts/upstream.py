"""Run the unit tests of CANN's kernels, and its host examples, on the simulated NPU; write docs/upstream.md.

Run when CANN publishes a release, or the simulated NPU has changed much: a few times a year.

    python scripts/upstream.py ops-nn --gtest /usr            all operators of norm/ and experimental/norm/
    python scripts/upstream.py ops-nn --only layer_norm_grad_v3 --print
    python scripts/upstream.py ops-nn --minutes 20 --first rms_norm    those that fit; the page names the others
    python scripts/upstream.py ops-nn --results kept.json    what is in the file is not run again; what was run is added
    python scripts/upstream.py ops-nn --kit asc-devkit      the vector examples of the Ascend C kit too
    python scripts/upstream.py ops-nn --others ops-nn --others ops-math    all other operators of these checkouts too
    python scripts/upstream.py ops-nn --others ops-nn --compile-only --results kept.json    see which of these compile

Every test and example is a row of benchmarks/results/upstream.csv; the page has their sums.

ops-nn is a checkout of the operator library (hicann/ops-nn), which stays as it is. It takes one to two hours of a core.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, NamedTuple

import typer
from upstream_examples import Example, run_example, section, sources

from lngrad import __version__
from lngrad.errors import LngradError
from lngrad_ascend.sdk.operator_tests import MODES, Outcome, TestFile, chosen_tests, run_operator
from lngrad_ascend.sdk.program import compile_program
from lngrad_ascend.sdk.toolkit import cflags, libs, write_toolkit
from lngrad_ascend.soc import DEFAULT, Settings

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE, RECORDS = ROOT / "docs" / "upstream.md", RESULTS / "upstream.csv"
# What a person has found behind a test that does not pass, by operator (empty for any) and words of its text; the first row
# that fits counts. "ours": the simulator is too strict or lacks something; "upstream": a true fault; "test": it contradicts
# itself or its kernel.
JUDGEMENTS = RESULTS / "upstream-judgements.csv"
COLUMNS = ("part", "name", "checked", "device", "remarks", "note")
ROOMS = ("norm", "experimental/norm")
NO_VECTOR = re.compile(r"\b(conv|matmul|examples|scripts)\b")  # rooms of the cube, or of no operators
EXAMPLE_S = 300  # for a host example
FEW = 3  # a reason of more tests than this has a line of its own on the page


class Row(NamedTuple):
    """An operator's files, or why there are none for this machine."""

    room: str
    operator: str
    files: list[TestFile]
    refused: str = ""
    late: bool = False  # not run: its turn came after the given minutes


def _operator(
    room: str, folder: Path, toolkit: Path, gtest: Path | None, time_limit: float, compile_only: bool = False
) -> Row:
    alone: dict[str, Any] = {"options": ["-fsyntax-only"], "modes": ()} if compile_only else {}
    with tempfile.TemporaryDirectory(prefix="lngrad-upstream-") as scratch:
        try:
            files = list(
                run_operator(
                    folder, Path(scratch), soc=DEFAULT, toolkit=toolkit, gtest=gtest, time_limit=time_limit, **alone
                )
            )
        except LngradError as error:
            return Row(room, folder.name, [], str(error))
    print(folder.name, *(file.error or [file.count(mode) for mode in MODES] for file in files), file=sys.stderr)
    return Row(room, folder.name, files)


def _not_run(room: str, folder: Path) -> Row:
    try:
        chosen_tests(folder, DEFAULT)
    except LngradError as error:
        return Row(room, folder.name, [], str(error))
    return Row(room, folder.name, [], late=True)


class Kept:
    """Results by "room/name" in a JSON file, written after each."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.lock = path, Lock()
        self.found: dict[str, Any] = json.loads(path.read_text()) if path and path.is_file() else {}

    def add(self, name: str, found: Any) -> None:
        """Add one."""
        with self.lock:
            self.found[name] = found
            if self.path:
                self.path.write_text(json.dumps(self.found, indent=1))

    def add_row(self, row: Row, compiled_only: bool) -> None:
        """Add an operator's."""
        files = [vars(file) | {"path": str(file.path)} for file in row.files]
        found = {"files": files, "refused": row.refused, "compiled only": compiled_only}
        self.add(f"{row.room}/{row.operator}", found)

    def row(self, room: str, operator: str) -> Row | None:
        """Return an operator's, None if it is not there."""
        found = self.found.get(f"{room}/{operator}")
        if found is None:
            return None
        files = [
            TestFile(**{**file, "path": Path(file["path"]), "cases": [Outcome(*case) for case in file["cases"]]})
            for file in found["files"]
        ]
        return Row(room, operator, files, found["refused"])


def _example(source: Path, toolkit: Path) -> str:
    """Why a host example does not run, "" if it does."""
    program = toolkit.parent / source.stem
    try:
        compile_program(source, program, [*cflags(toolkit), f"-I{source.parent}"], libs(toolkit))
    except LngradError as error:
        return str(error).partition(": ")[2].splitlines()[0]
    try:
        done = subprocess.run([str(program)], capture_output=True, text=True, timeout=EXAMPLE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not done within {EXAMPLE_S} s"
    lines = done.stdout.strip().splitlines()
    return f"ended with {done.returncode}: {lines[-1] if lines else ''}" if done.returncode else ""


def _judgement(operator: str, why: str) -> str:
    rows = (row for row in read(JUDGEMENTS) if row["operator"] in (operator, "") and row["words"] in why)
    return next((row["judgement"] for row in rows), "not judged")


def _cell(text: str) -> str:
    text = re.sub(r"0x[0-9a-f]+", "0x…", " ".join(text.split()))
    return re.sub(r"/\S*/(?=[\w.]+:\d)", "", text)[:220]  # without the folder of a file


def _record(*values: object) -> dict[str, str]:
    return dict(zip(COLUMNS, map(str, [*values, *[""] * (len(COLUMNS) - len(values))]), strict=True))


def _records(row: Row, prefix: str = "", room: str = "") -> list[dict[str, str]]:
    """A record of an operator, with the compiler's first error, and of each test that does not pass, with its judgement.

    Args:
        row: The operator's.
        prefix: Of the records' parts: of operators that are no norms.
        room: What stands before the operator's name.
    """
    name = room + row.operator
    if row.refused or row.late:
        return [_record(prefix + ("not run" if row.late else "left out"), name)]
    error = next((file.error for file in row.files if file.error), "")
    note = _cell(f"does not compile: {error}" if error and prefix else error)
    compiled_only = prefix and not error and not any(file.cases for file in row.files)
    counts = ["", ""] if compiled_only else _counts(row.files)
    records = [_record(f"{prefix}operator", name, *counts, sum(len(file.remarks) for file in row.files), note)]
    for case in (case for file in row.files for case in file.cases if case.state != "passed"):
        reason = f"{case.state}: {_cell(case.why)}"
        where = [reason if case.mode == mode else "" for mode in MODES]
        test = f"{room if prefix else ''}{row.operator}/{case.name.partition('.')[2]}"
        records.append(_record(f"{prefix}test", test, *where, "", _judgement(row.operator, case.why)))
    return records


def _others(checkouts: list[Path]) -> list[tuple[str, Path]]:
    """Rooms and folders of operators that are no norms, of checkouts of operator libraries."""
    found = []
    for checkout in checkouts:
        for tests in sorted(checkout.rglob("tests/ut/op_kernel")):
            folder = tests.parents[2]
            room = "" if folder == checkout else folder.parent.relative_to(checkout).as_posix()
            if room and room not in ROOMS and not NO_VECTOR.search(room):
                found.append((f"{checkout.name}/{room}", folder))
    return found


def _counts(files: list[TestFile]) -> list[str]:
    pairs = [[file.count(mode) for file in files] for mode in MODES]
    return [f"{sum(passed for passed, _ in pair)} of {sum(count for _, count in pair)}" for pair in pairs]


def _others_table(records: list[dict[str, str]]) -> str:
    """The section of operators that are no norms, "" where none was run."""
    rooms: dict[str, list[dict[str, str]]] = {}
    for record in records:
        if record["part"] == "other operator":
            library, family, *_ = record["name"].split("/")
            for room in (f"{library}/{family}" if family == "experimental" else library, "all"):
                rooms.setdefault(room, []).append(record)
    if not rooms:
        return ""
    waiting = sum(record["part"] == "other not run" for record in records)
    lines = []
    for room, every in sorted(rooms.items(), key=lambda pair: (pair[0] == "all", pair[0])):
        compiled = [record for record in every if not record["note"].startswith("does not compile")]
        ran = [record for record in compiled if record["checked"]]
        cells = [room, len(every), len(compiled), len(ran)]
        for mode in MODES:
            pairs = [tuple(map(int, record[mode].split(" of "))) for record in ran]
            cells.append(f"{sum(passed == count > 0 for passed, count in pairs)}")
            cells.append(f"{sum(passed for passed, _ in pairs)} of {sum(count for _, count in pairs)}")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    left = f" {waiting} more were not run." if waiting else ""
    failed = [record for record in records if record["part"] == "other test"]
    reasons: Counter[tuple[str, str]] = Counter()
    for record in failed:
        reasons.update((record["note"], mode) for mode in MODES if record[mode])
    texts = dict.fromkeys(text for (text, _), _ in reasons.most_common())
    often = [text for text in texts if max(reasons[text, mode] for mode in MODES) > FEW]
    rest = [sum(reasons[text, mode] for text in texts if text not in often) for mode in MODES]
    why = "\n".join(f"* {reasons[text, 'checked']} and {reasons[text, 'device']}: {text}" for text in often)
    why += f"\n* {rest[0]} and {rest[1]}: others, each in {FEW} tests at most"
    return f"""
## Operators that are no norms

All others that build for A2; those not run were compiled.{left}

| library | operators | compile | run | clean checked | tests | clean device | tests |
|---|---|---|---|---|---|---|---|
{chr(10).join(lines)}

Failures in `checked` and `device`, most judged by their words:

{why}
"""


def _vector_examples(kit: Path, scratch: Path, kept: Kept) -> list[dict[str, str]]:
    results: dict[str, Example] = {}
    for source in sources(kit):
        name = source.relative_to(kit / "examples").as_posix()
        if name not in kept.found:
            kept.add(name, run_example(source, scratch / "kit"))
        results[name] = Example(*kept.found[name])
    summary, rows = section(results, _cell)
    source = _record("source", "asc-devkit", "", "", "", _commit(kit))
    return [source, _record("kit", "", "", "", "", summary), *(_record("kit example", *row) for row in rows)]


def _commit(checkout: Path) -> str:
    done = subprocess.run(["git", "-C", str(checkout), "log", "-1", "--format=%h %cs"], capture_output=True, text=True)
    return done.stdout.strip() or "of unknown commit"


def page(records: list[dict[str, str]]) -> str:
    """The text of docs/upstream.md."""

    def part(name: str) -> list[dict[str, str]]:
        return [record for record in records if record["part"] == name]

    operators, tests, hosts, others = part("operator"), part("test"), part("host example"), part("other operator")
    besides = sum(not record["note"].startswith("does not compile") for record in others)
    more = f" Of {len(others)} operators that are no norms {besides} compile." if others else ""
    source = {record["name"]: record["note"] for record in part("source")}
    sums = {}
    for mode in MODES:
        pairs = [record[mode].split(" of ") for record in operators]
        sums[mode] = [sum(int(pair[place]) for pair in pairs) for place in (0, 1)]
    judged = Counter(record["note"] for record in tests if record["checked"])
    reasons = "\n".join(f"| {count} | {text} |" for text, count in judged.most_common())
    device = "\n".join(
        f"* {record['name']}: {record['device']} ({record['note']})" for record in tests if record["device"]
    )
    compiled = sum(not record["note"] for record in operators)
    ran = [record["name"].partition("/test_aclnn_")[2] for record in hosts if record["device"] == "right"]
    waiting = [record["name"] for record in part("not run")]
    left = f"\nNot run: {', '.join(waiting)}.\n" if waiting else ""
    kit = "".join(record["note"] for record in part("kit"))
    checked, device_ = (" of ".join(map(str, sums[mode])) for mode in MODES)
    return f"""# CANN's own programs on the simulated NPU

Unit tests of ops-nn's norm kernels: {compiled} of {len(operators)} operators compile unmodified; {checked} tests pass in
`checked` mode, {device_} in `device` mode. Of {len(hosts)} host examples {len(ran)} run; the others call operators that
are not here.{more}
From ops-nn {source["ops-nn"]} with lngrad {source["lngrad"]}, written by `scripts/upstream.py`; no file
of CANN is changed. Every test with its message:
[upstream.csv](../benchmarks/results/upstream.csv). To run one operator: `lngrad kernel test OPS_NN/norm/OPERATOR`.

`checked` reports as errors what CANN's own checker reports, and looks for races; `device` accepts what the hardware runs
without an error. {len(part("left out"))} more folders build no tests for A2, or
only those of Ascend 950's register API.
{left}{_others_table(records)}{(RESULTS / "upstream-950.md").read_text()}
## Tests that fail in checked mode

| tests | reason |
|---|---|
{reasons}

In device mode:

{device}

## Vector examples of the Ascend C kit

From asc-devkit {source.get("asc-devkit", "(not run)")}, built and run as their READMEs say. {kit}
"""


def read(path: Path = RECORDS) -> list[dict[str, str]]:
    """The rows of a file that is kept."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main(
    library: Annotated[Path, typer.Argument(metavar="OPS_NN", help="A checkout of the operator library.")],
    gtest: Annotated[Path | None, typer.Option(help="A folder with include/gtest and libgtest.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Operators whose unit tests to run; all by default.")] = None,
    jobs: Annotated[int, typer.Option(help="Operators at a time.")] = 2,
    time_limit: Annotated[float, typer.Option(help="Seconds for a test.")] = 120.0,
    first: Annotated[list[str] | None, typer.Option(help="Operators to run before the others.")] = None,
    minutes: Annotated[float, typer.Option(help="No operator starts later than this.")] = float("inf"),
    results_file: Annotated[
        Path | None, typer.Option("--results", help="A JSON file of results to go on from.")
    ] = None,
    others: Annotated[list[Path] | None, typer.Option(help="Checkouts whose other operators to run, too.")] = None,
    others_only: Annotated[bool, typer.Option(help="Run no norms and no host examples; keep their records.")] = False,
    compile_only: Annotated[bool, typer.Option(help="Compile tests that are not run yet, and run none.")] = False,
    kit: Annotated[Path | None, typer.Option(help="A checkout of the Ascend C kit (asc-devkit).")] = None,
    to_stdout: Annotated[bool, typer.Option("--print", help="Print the page, and write no file.")] = False,
) -> None:
    """Run them, and write the page."""
    end = time.monotonic() + 60 * minutes
    rooms = () if others_only else ROOMS
    folders = [
        (room, tests.parents[2]) for room in rooms for tests in sorted((library / room).glob("*/tests/ut/op_kernel"))
    ]
    wanted = [(room, folder) for room, folder in folders if not only or folder.name in only]
    wanted.sort(key=lambda pair: pair[1].name not in (first or ()))
    with tempfile.TemporaryDirectory(prefix="lngrad-upstream-") as scratch:
        toolkit = Path(scratch) / "toolkit"
        write_toolkit(toolkit, Settings())
        programs = [source for room in rooms for source in sorted((library / room).glob("*/examples/test_aclnn_*.cpp"))]
        kept = Kept(results_file)
        vectors = _vector_examples(kit, Path(scratch), kept) if kit else []
        results: dict[str, str] = {}
        for source in programs:
            name = f"{source.parents[1].name}/{source.stem}"
            if name not in kept.found:
                kept.add(name, _example(source, toolkit))
            results[name] = kept.found[name]

        def run(pair: tuple[str, Path]) -> Row:
            known = kept.row(pair[0], pair[1].name)
            waits = not compile_only and kept.found.get(f"{pair[0]}/{pair[1].name}", {}).get("compiled only")
            whole = known and not waits
            if whole or time.monotonic() > end:
                return known or _not_run(*pair)
            row = _operator(*pair, toolkit, gtest, time_limit, compile_only)
            kept.add_row(row, compile_only)
            return row

        with ThreadPoolExecutor(jobs) as pool:
            tried = list(pool.map(run, wanted))
            every = _others(others or [])
            ordered = sorted(every, key=lambda pair: pair[1].name not in (first or ()))
            rows = dict(zip(ordered, pool.map(run, ordered), strict=True))
            beside = [record for pair in every for record in _records(rows[pair], "other ", f"{pair[0]}/")]
    if not kit and RECORDS.is_file():
        vectors = [record for record in read() if record["part"].startswith("kit") or record["name"] == "asc-devkit"]
    if not others and RECORDS.is_file():
        beside = [record for record in read() if record["part"].startswith("other ")]
    waiting = [Row(room, folder.name, [], late=True) for room, folder in folders if (room, folder) not in wanted]
    ran = [record for row in (*tried, *waiting) for record in _records(row, "", row.room.removesuffix("norm"))]
    norms = ("operator", "test", "not run", "left out", "host example")
    records = [
        *(record for record in (read() if others_only else ()) if record["part"] in norms),
        _record("source", "ops-nn", "", "", "", _commit(library)),
        _record("source", "lngrad", "", "", "", f"{__version__} on {date.today()}"),
        *sorted(ran, key=lambda record: record["part"] == "test"),
        *(_record("host example", name, "", _cell(why) or "right") for name, why in results.items()),
        *vectors,
        *beside,
        *(
            _record("source", checkout.name, "", "", "", _commit(checkout))
            for checkout in others or ()
            if checkout.name != library.name
        ),
    ]
    if to_stdout:
        print(page(records))
        return
    with RECORDS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    PAGE.write_text(page(records), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
