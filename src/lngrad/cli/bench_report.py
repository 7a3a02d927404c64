"""Run a benchmark and print it as it goes: a line about progress, a table a scope."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

from rich import box
from rich.console import Console
from rich.table import Table

from lngrad.bench.cases import Settings
from lngrad.bench.records import Record, append, best, finished, key, key_of, machine, read
from lngrad.bench.runner import Bench, plan_of, run
from lngrad.bench.tables import geometric_mean

BUSY = 0.1  # share of all cores: more of it spoils a record


def run_and_print(
    bench: Bench,
    settings: Settings,
    console: Console,
    json: Path | None,
    resume: bool,
    deadline: float | None,
    only_idle: bool,
) -> tuple[list[Record], int]:
    """Time everything in the settings.

    Args:
        bench: The device.
        settings: What to time.
        console: Where tables go.
        json: A file to which records are appended as they come.
        resume: Do not time again what that file has.
        deadline: Of time.monotonic(); no job begins after it.
        only_idle: Drop records of moments in which other programs ran.

    Returns:
        The records, of this run and of the file, and how many jobs are left.
    """
    about = machine()
    threads = " and ".join(map(str, settings.threads))
    console.print(f"{about['cpu']}, {threads} threads, {about['cache']}")
    planned = [key(*each) for each in plan_of(bench, settings)]
    recorded = read(json) if resume and json is not None and json.is_file() else []
    done = finished(recorded, settings.peers, 1 if settings.quick else settings.rounds)
    found = {which: done[which] for which in planned if which in done}
    dropped = left = 0
    with console.status("") as status:
        for line in run(bench, settings, lambda text: console.print(text, style="yellow"), done):
            if only_idle and line["others"] > BUSY:
                dropped += 1
            else:
                found[key_of(line)] = line
                if json is not None:
                    append(json, [line])
            status.update(f"{len(found)}/{len(planned)}  {line['scope']} {line['M']}×{line['N']} {line['dtype']}")
            if deadline is not None and monotonic() > deadline:
                left = sum(which not in found for which in planned)
                break
        else:
            left = dropped
    if dropped:
        console.print(
            f"{dropped} jobs dropped: other programs used more than {BUSY:.0%} of this machine", style="yellow"
        )
    lines = list(found.values())
    for scope, number in dict.fromkeys((line["scope"], line["threads"]) for line in lines):
        chosen = [line for line in lines if (line["scope"], line["threads"]) == (scope, number)]
        console.print(_table(f"{scope}, {number} threads", chosen))
    busy = [line["others"] for line in lines if line["others"] > BUSY]
    if busy:
        text = f"other programs used up to {max(busy):.0%} of this machine during {len(busy)} of {len(lines)} jobs"
        console.print(f"{text}: do not quote those", style="yellow")
    if json is not None:
        console.print(f"records appended to {json}")
    return lines, left


def _table(title: str, lines: list[Record]) -> Table:
    peers = list(dict.fromkeys(name for line in lines for name in line["ratio"]))
    roofline = any("of_roofline" in line for line in lines)
    table = Table(
        title=f"{title}: time, and times faster than",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
    wide = len(peers) < 3  # what a terminal of 80 columns has room for
    headers = [
        "shape",
        "dtype",
        "median",
        *(("p90", "GB/s") if wide else ()),
        *(("roofline",) if roofline else ()),
        *peers,
    ]
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    for line in lines:
        time = line["time_us"]["lngrad"]
        cells = [f"{line['M']} × {line['N']}", line["dtype"], _time(time["median"])]
        if wide:
            cells += [_time(time["p90"]), f"{line['bandwidth']:.1f}"]
        if roofline:
            cells.append(f"{line['of_roofline']:.0%}" if "of_roofline" in line else "")
        table.add_row(*cells, *(f"{line['ratio'][peer]:.2f}×" if peer in line["ratio"] else "" for peer in peers))
    ratios = {peer: [line["ratio"][peer] for line in lines if peer in line["ratio"]] for peer in peers}
    if len(peers) > 1:
        ratios["best of them"] = [best(line)[1] for line in lines if line["ratio"]]
    table.caption = "\n".join(f"{name}: {_summary(found)}" for name, found in ratios.items())
    table.caption_justify = "left"
    return table


def _summary(ratios: list[float]) -> str:
    won = sum(ratio >= 1 for ratio in ratios)
    return f"geometric mean {geometric_mean(ratios):.2f}×, least {min(ratios):.2f}×, {won} of {len(ratios)} won"


def _time(microseconds: float) -> str:
    return f"{microseconds:.1f} µs" if microseconds < 1000 else f"{microseconds / 1000:.2f} ms"
