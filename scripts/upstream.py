"""Run the unit tests of CANN's norm kernels, and its host examples, on the simulated NPU; write docs/upstream.md.

Run when CANN publishes a release, or the simulated NPU has changed much: a few times a year.

    python scripts/upstream.py ops-nn --gtest /usr            all operators of norm/ and experimental/norm/
    python scripts/upstream.py ops-nn --only layer_norm_grad_v3 --print
    python scripts/upstream.py ops-nn --minutes 20 --first rms_norm    those that fit; the page names the others
    python scripts/upstream.py ops-nn --results kept.json    what is in the file is not run again; what was run is added
    python scripts/upstream.py ops-nn --kit asc-devkit      the vector examples of the Ascend C kit too

ops-nn is a checkout of the operator library (hicann/ops-nn), which stays as it is. It takes one to two hours of a core.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from upstream_examples import Example, run_example, section, sources

from lngrad import __version__
from lngrad.ascend.sdk.operator_tests import MODES, Case, TestFile, run_operator
from lngrad.ascend.sdk.program import compile_program
from lngrad.ascend.sdk.settings import Settings
from lngrad.ascend.sdk.toolkit import cflags, libs, write_toolkit
from lngrad.errors import LngradError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "upstream.md"
ROOMS = ("norm", "experimental/norm")

# What a person has found behind a test that does not pass, by operator ("" for any) and words of its text. "ours": the
# simulator is too strict or lacks something; "upstream": a true fault; "test": it contradicts itself or its kernel.
_CUT = "test: its tiling covers 2 of 20 columns (ubLoop 2, ubFormer 1, ubTail 1)"
JUDGEMENTS: dict[tuple[str, str], str] = {
    ("", "framework's temporary buffer"): "ours: InitOutput behind InitOutput, which write equal values",
    ("", "InitOutput: the GmAlloc memory"): (
        "test: memory that it passes (a workspace of 32 bytes) is smaller than what the kernel clears"
    ),
    ("", "is allocated, the vector unit must not use it"): (
        "ours: a VECIN buffer used as plain memory, which the hardware takes and CANN's checker reports"
    ),
    ("", "overlap 0 bytes apart"): (
        "upstream: a widening Cast in place, which CANN's checker refuses; a device reads a repeat before it writes it"
    ),
    ("", "must be at VECIN or VECCALC, it is at VECOUT"): (
        "upstream: DataCopy from global memory to VECOUT, which is not in its table; a device knows no such places"
    ),
    ("", "was freed and must not be used"): (
        "upstream: a tensor is used behind FreeTensor; no other has its memory, so a device runs it, and CANN's checker "
        "reports it"
    ),
    ("", "was not written since AllocTensor"): (
        "upstream: what a buffer held before AllocTensor is used; a device keeps it, and CANN's checker reports it"
    ),
    (
        "",
        "tensors were not freed",
    ): "upstream: a tensor is never freed; harmless on a device, reported by CANN's",
    ("group_norm_grad", "DataCopyPad at group_norm_grad.h:8"): (
        "upstream: InitOutput's copies read memory that InitBuffer hands out next, with no MTE3_MTE2 flag between"
    ),
    ("add_layer_norm_quant", "add_layer_norm_dynamic_quant_normal_kernel.h:150"): (
        "upstream: in float without a bias Add reads the bias's buffer, which nothing has filled"
    ),
    ("group_norm_swish", "that DataCopyPad reads"): (
        "upstream: no MTE3_V flag before Duplicate fills the buffer that DataCopyPad still copies out"
    ),
    ("group_norm_swish_grad", "blocks 0 and 1"): ("upstream: under __CCE_KT_TEST__ the kernel leaves out its SyncAll"),
    (
        "group_norm_grad",
        "Mul at group_norm_grad.h:513",
    ): "upstream: no V_MTE2 flag before DataCopyPad fills the buffer again",
    ("group_norm_grad", "has 90 elements from here on"): "upstream: reads behind the size that it gave SetGlobalBuffer",
    (
        "layer_norm_grad_v3",
        "18253611096",
    ): "test: colAlignV is 1 for 20 columns, so that a gap of DataCopyPad wraps below 0",
    ("layer_norm_grad_v3", "was never written"): _CUT,
    ("layer_norm_grad_v3", "has 0 elements from here on"): _CUT,
    ("layer_normalization_grad", "that Add reads"): "upstream: no V_MTE2 flag before DataCopy reuses the buffer",
}


class Row(NamedTuple):
    """An operator's files, or why there are none for this machine."""

    room: str
    operator: str
    files: list[TestFile]
    refused: str = ""
    late: bool = False  # not run: its turn came after the given minutes


def _operator(room: str, folder: Path, toolkit: Path, gtest: Path | None, time_limit: float) -> Row:
    with tempfile.TemporaryDirectory(prefix="lngrad-upstream-") as scratch:
        try:
            found = run_operator(folder, Path(scratch), toolkit=toolkit, gtest=gtest, time_limit=time_limit)
            files = list(found)
        except LngradError as error:
            return Row(room, folder.name, [], str(error))
    print(folder.name, *(file.error or [file.count(mode) for mode in MODES] for file in files), file=sys.stderr)
    return Row(room, folder.name, files)


class Kept:
    """Results by "room/name" in a JSON file, written after each."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found: dict[str, Any] = json.loads(path.read_text()) if path and path.is_file() else {}

    def add(self, name: str, found: Any) -> None:
        """Add one."""
        self.found[name] = found
        if self.path:
            self.path.write_text(json.dumps(self.found, indent=1))

    def add_row(self, row: Row) -> None:
        """Add an operator's."""
        files = [
            {"path": str(one.path), "error": one.error, "cases": one.cases, "remarks": list(one.remarks)}
            for one in row.files
        ]
        self.add(f"{row.room}/{row.operator}", {"files": files, "refused": row.refused})

    def row(self, room: str, operator: str) -> Row | None:
        """Return an operator's, None if it is not there."""
        found = self.found.get(f"{room}/{operator}")
        if found is None:
            return None
        files = [
            TestFile(
                Path(one["path"]), one["error"], [Case(*case) for case in one["cases"]], dict.fromkeys(one["remarks"])
            )
            for one in found["files"]
        ]
        return Row(room, operator, files, found["refused"])


def _example(source: Path, toolkit: Path) -> str:
    """Why a host example does not run, "" if it does."""
    program = toolkit.parent / source.stem
    try:
        compile_program(source, program, [*cflags(toolkit), f"-I{source.parent}"], libs(toolkit))
    except LngradError as error:
        return str(error).partition(": ")[2].splitlines()[0]
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout.strip().splitlines()
    return f"ended with {done.returncode}: {said[-1] if said else ''}" if done.returncode else ""


def _judgement(operator: str, why: str) -> str:
    found = [text for (name, word), text in JUDGEMENTS.items() if name in (operator, "") and word in why]
    return found[0] if found else "not judged"


def _cell(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x…", " ".join(text.split())).replace("|", "\\|")[:220]


def _table(rows: list[Row]) -> str:
    lines = [
        "| operator | compiles | " + " | ".join(MODES) + " | remarks |",
        "|---|---|" + "---|" * len(MODES) + "---|",
    ]
    total = dict.fromkeys(MODES, 0)
    cases = compiled = operators = 0
    for row in rows:
        if row.refused:
            continue
        operators += 1
        builds = [not file.error for file in row.files]
        compiled += all(builds)
        counts = {mode: [file.count(mode) for file in row.files] for mode in MODES}
        cells = [f"{sum(one for one, _ in pairs)} of {sum(all_ for _, all_ in pairs)}" for pairs in counts.values()]
        for mode, pairs in counts.items():
            total[mode] += sum(one for one, _ in pairs)
        cases += sum(all_ for _, all_ in counts["checked"])
        error = next((file.error for file in row.files if file.error), "")
        name = row.room.removesuffix("norm") + row.operator
        remarks = sum(len(file.remarks) for file in row.files)
        lines.append(f"| {name} | {'yes' if all(builds) else _cell(error)} | {' | '.join(cells)} | {remarks} |")
    sums = " | ".join(f"**{passed} of {cases}**" for passed in total.values())
    remarks = sum(len(file.remarks) for row in rows for file in row.files)
    return "\n".join([*lines, f"| **{operators} operators** | **{compiled}** | {sums} | **{remarks}** |"])


def _failures(rows: list[Row]) -> str:
    lines = ["| operator | test | mode | what is told | judgement |", "|---|---|---|---|---|"]
    for row in rows:
        for file in row.files:
            for case in file.cases:
                if case.state != "passed":
                    what = f"{case.state}: {_cell(case.why)}"
                    judged = _judgement(row.operator, case.why)
                    lines.append(
                        f"| {row.operator} | {case.name.partition('.')[2]} | {case.mode} | {what} | {judged} |"
                    )
    return "\n".join(lines)


def _examples(results: dict[str, str]) -> str:
    runs = [name for name, why in results.items() if not why]
    lines = [f"{len(runs)} of {len(results)} run: {', '.join(runs)}.", ""]
    lines += ["The others:", "", "| example | why |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {_cell(why)} |" for name, why in results.items() if why)])


VECTORS = "## Vector examples of the Ascend C kit"


def _section_of_page(heading: str) -> str:
    """What the page has under a heading."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    return text.partition(heading)[2].partition("\n## ")[0].strip() or "Not run."


def _vector_examples(kit: Path, scratch: Path, kept: Kept) -> str:
    commit = subprocess.run(["git", "-C", str(kit), "log", "-1", "--format=%h %cs"], capture_output=True, text=True)
    results: dict[str, Example] = {}
    for one in sources(kit):
        name = one.relative_to(kit / "examples").as_posix()
        if name not in kept.found:
            kept.add(name, run_example(one, scratch / "kit"))
        results[name] = Example(*kept.found[name])
    return (
        f"From asc-devkit {commit.stdout.strip() or 'of unknown commit'}, built and run as their READMEs say.\n\n"
        + section(results, _cell)
    )


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
    kit: Annotated[Path | None, typer.Option(help="A checkout of the Ascend C kit (asc-devkit).")] = None,
    to_stdout: Annotated[bool, typer.Option("--print", help="Print the page, and write no file.")] = False,
) -> None:
    """Run them, and write the page."""
    end = time.monotonic() + 60 * minutes
    commit = subprocess.run(["git", "-C", str(library), "log", "-1", "--format=%h %cs"], capture_output=True, text=True)
    folders = [
        (room, one.parents[2]) for room in ROOMS for one in sorted((library / room).glob("*/tests/ut/op_kernel"))
    ]
    wanted = [(room, folder) for room, folder in folders if not only or folder.name in only]
    wanted.sort(key=lambda one: one[1].name not in (first or ()))
    with tempfile.TemporaryDirectory(prefix="lngrad-upstream-") as scratch:
        toolkit = Path(scratch) / "toolkit"
        write_toolkit(toolkit, Settings())
        programs = [one for room in ROOMS for one in sorted((library / room).glob("*/examples/test_aclnn_*.cpp"))]
        kept = Kept(results_file)
        vectors = _vector_examples(kit, Path(scratch), kept) if kit else _section_of_page(VECTORS)
        results: dict[str, str] = {}
        for one in programs:
            name = f"{one.parents[1].name}/{one.stem}"
            if name not in kept.found:
                kept.add(name, _example(one, toolkit))
            results[name] = kept.found[name]

        def run(one: tuple[str, Path]) -> Row:
            known = kept.row(one[0], one[1].name)
            if known is None and time.monotonic() > end:
                return Row(one[0], one[1].name, [], late=True)
            row = known or _operator(*one, toolkit, gtest, time_limit)
            kept.add_row(row)
            return row

        with ThreadPoolExecutor(jobs) as pool:
            tried = list(pool.map(run, wanted))
    rows = [row for row in tried if not row.late]
    others = sorted(row.room.removesuffix("norm") + row.operator for row in rows if row.refused)
    ran = {(row.room, row.operator) for row in rows}
    waiting = sorted(folder.name for room, folder in folders if (room, folder.name) not in ran)
    left = f"\n\n**Not run** ({len(waiting)} of {len(folders)} operators): {', '.join(waiting)}." if waiting else ""
    page = f"""# CANN's own programs on the simulated NPU

Written by `scripts/upstream.py`, with lngrad {__version__}, from ops-nn {commit.stdout.strip() or "of unknown commit"}.
No file of it is changed or kept here. `checked`: what CANN's checker reports is an error, and races are looked for.
`device`: what the hardware runs without an error runs here too. `remarks`: what `checked` finds harmless and worth a look, each
line of a kernel once. One operator: `lngrad kernel test OPS_NN/norm/OPERATOR`.

## Unit tests of norm kernels

{_table(rows)}{left}

Of {len(rows)} folders with tests of a kernel {len(rows) - len(others)} build them for A2. The others are left out, as
their CMakeLists.txt builds none, or those of the register API of Ascend 950 alone, which is not simulated:
{", ".join(others) or "none"}.

## Tests that do not pass

{_failures(rows)}

## Host examples of the norm family

{_examples(results)}

{VECTORS}

{vectors}
"""
    if to_stdout:
        print(page)
    else:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
