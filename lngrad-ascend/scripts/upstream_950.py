"""Run the unit tests of CANN's kernels for Ascend 950, and write their section of docs/upstream.md.

    python lngrad-ascend/scripts/upstream_950.py ops-nn --gtest /usr --results kept.json
    python lngrad-ascend/scripts/upstream_950.py ops-nn --results kept.json --minutes 0     the page, of what is kept

Runs as scripts/upstream.py does for A2: what is in the JSON file is not run again. Every folder and every test that does not
pass is a row of benchmarks/results/upstream-950.csv; the section stands beside it, for scripts/upstream.py's page.
"""

from __future__ import annotations

import csv
import re
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from lngrad.errors import LngradError
from lngrad_ascend.cpp.op_host import texts_of
from lngrad_ascend.sdk.operator_tests import MODES, REGBASE, chosen_tests, run_operator
from lngrad_ascend.sdk.toolkit import write_toolkit
from lngrad_ascend.soc import Settings

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import upstream  # noqa: E402  # the page's script

RECORDS = upstream.RESULTS / "upstream-950.csv"
SECTION = RECORDS.with_suffix(".md")
# What kernels are written with; the first that fits counts.
KINDS = {
    "the cube": re.compile(r"[Cc]onv[23][dD]\w*(Tiling|Intf)|\bMatmulImpl\b"),
    "SIMT": re.compile(r"__simt_vf__|simt_api/|\bSimt::"),
    "the framework atvoss": re.compile(r"atvoss/|Ops::Base::(Vec|Bind|DAGSch|Placeholder)\b"),
    "registers": re.compile(r"\b(MicroAPI|RegTensor|__VEC_SCOPE__|__simd_vf__)\b"),
}
MEMORY = "memory alone"


def kind_of(folder: Path) -> str:
    """What an operator's kernel for 950 is written with."""
    kernel = chosen_tests(folder, REGBASE).kernel
    places = [path for path in (kernel, folder / "op_kernel" / "arch35") if path and path.exists()]
    text = "\n".join(texts_of(*places).values())
    beside = (folder.parent / name / "op_kernel" for name in set(re.findall(r'#include "(?:\.\./)+(\w+)/', text)))
    text += "\n".join(texts_of(*filter(Path.is_dir, beside)).values())
    return next((kind for kind, words in KINDS.items() if words.search(text)), MEMORY)


def folders_of(library: Path) -> list[Path]:
    """The folders of a library with tests that are built for 950, norms first."""
    found = []
    for tests in sorted(library.rglob("tests/ut/op_kernel")):
        try:
            if "950" in chosen_tests(tests.parents[2], REGBASE).call:
                found.append(tests.parents[2])
        except LngradError:  # none for it
            continue
    return sorted(found, key=lambda folder: folder.parent.name != "norm")


def section(records: list[dict[str, str]]) -> str:
    """The text of the section."""
    operators = [record for record in records if record["part"].startswith("operator ")]
    norms = [record for record in operators if record["name"].startswith("norm/")]

    def line(head: str, of: list[dict[str, str]]) -> str:
        compiled = [record for record in of if not record["note"]]
        cells = [head, len(of), len(compiled)]
        for mode in MODES:
            pairs = [tuple(map(int, record[mode].split(" of "))) for record in of]
            cells.append(sum(passed == count > 0 for passed, count in pairs))
            cells.append(f"{sum(passed for passed, _ in pairs)} of {sum(count for _, count in pairs)}")
        return "| " + " | ".join(map(str, cells)) + " |"

    kinds = Counter(record["part"].removeprefix("operator ") for record in operators)
    rows = [line(kind, [record for record in operators if record["part"] == f"operator {kind}"]) for kind in kinds]
    rows += [line("norms", norms), line("all", operators)]
    each = "\n".join(
        f"| {record['name'].removeprefix('norm/')} | {record['checked']} | {record['device']} | "
        f"{record['part'].removeprefix('operator ')} | {record['note']} |"
        for record in norms
    )
    waiting = sum(record["part"] == "not run" for record in records)
    left = f"\n{waiting} more folders were not run.\n" if waiting else ""
    tests = [record for record in records if record["part"] == "test"]
    reasons = Counter((record["note"], mode) for record in tests for mode in MODES if record[mode])
    texts = sorted({text for text, _ in reasons}, key=lambda text: -reasons[text, "checked"])
    why = "\n".join(f"* {reasons[text, 'checked']} and {reasons[text, 'device']}: {text}" for text in texts)
    return f"""
## Ascend 950

Folders of ops-nn whose tests are built for Ascend 950, by what their kernels are written with. `lngrad kernel test` takes
950 for them by itself, or with `--soc Ascend950`. Every test: [upstream-950.csv](../benchmarks/results/upstream-950.csv).

| kernels of | folders | compile | clean checked | tests | clean device | tests |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}
{left}
The norms:

| operator | checked | device | of | does not compile |
|---|---|---|---|---|
{each}

Failures in `checked` and `device`:

{why}
"""


def main(
    library: Annotated[Path, typer.Argument(metavar="OPS_NN", help="A checkout of the operator library.")],
    gtest: Annotated[Path | None, typer.Option(help="A folder with include/gtest and libgtest.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Operators to run; all by default.")] = None,
    results_file: Annotated[
        Path | None, typer.Option("--results", help="A JSON file of results to go on from.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="No operator starts later than this.")] = float("inf"),
    jobs: Annotated[int, typer.Option(help="Operators at a time.")] = 2,
    time_limit: Annotated[float, typer.Option(help="Seconds for a test.")] = 120.0,
) -> None:
    """Run them, and write the section and the page."""
    end, kept, records = time.monotonic() + 60 * minutes, upstream.Kept(results_file), []
    with tempfile.TemporaryDirectory(prefix="lngrad-upstream-") as place:
        toolkit = Path(place) / "toolkit"
        write_toolkit(toolkit, Settings(soc=REGBASE))

        def run(folder: Path) -> upstream.Row:
            room = folder.parent.relative_to(library).as_posix()
            known = kept.row(room, folder.name)
            if known or time.monotonic() > end or (only and folder.name not in only):
                return known or upstream.Row(room, folder.name, [], late=True)
            with tempfile.TemporaryDirectory(prefix="lngrad-upstream-") as scratch:
                files = list(
                    run_operator(
                        folder, Path(scratch), toolkit=toolkit, soc=REGBASE, gtest=gtest, time_limit=time_limit
                    )
                )
            print(folder.name, *(file.error or [file.count(mode) for mode in MODES] for file in files), flush=True)
            row = upstream.Row(room, folder.name, files)
            kept.add_row(row, False)
            return row

        folders = folders_of(library)
        with ThreadPoolExecutor(jobs) as pool:
            rows = list(pool.map(run, folders))
    for folder, row in zip(folders, rows, strict=True):
        for record in upstream._records(row, room=f"{row.room}/"):
            if record["part"] == "operator":
                record["part"] = f"operator {kind_of(folder)}"
            elif record["part"] == "test":
                record["name"] = f"{row.room}/{record['name']}"
            records.append(record)
    with RECORDS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, upstream.COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    SECTION.write_text(section(records), encoding="utf-8")
    upstream.PAGE.write_text(upstream.page(upstream.read()), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
