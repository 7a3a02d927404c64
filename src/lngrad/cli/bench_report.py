"""Run a benchmark and print it as it goes: a line about progress, a table a scope."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from lngrad.bench.records import Record, append, machine
from lngrad.bench.runner import plan_of, run
from lngrad.bench.settings import Settings
from lngrad.bench.tables import geometric_mean
from lngrad.bench.trial import Bench

__all__ = ["run_and_print"]


def run_and_print(bench: Bench, settings: Settings, console: Console, json: Path | None) -> list[Record]:
    """Time everything in the settings; append records to `json` as they come."""
    about = machine()
    threads = " and ".join(map(str, settings.threads))
    console.print(f"{about['cpu']}, {threads} threads, {about['cache']}")
    lines: list[Record] = []
    total = len(plan_of(bench, settings))
    with console.status("") as status:
        for line in run(bench, settings, lambda text: console.print(text, style="yellow")):
            lines.append(line)
            status.update(f"{len(lines)}/{total}  {line['scope']} {line['M']}×{line['N']} {line['dtype']}")
            if json is not None:
                append(json, [line])
    for scope, number in dict.fromkeys((line["scope"], line["threads"]) for line in lines):
        chosen = [line for line in lines if (line["scope"], line["threads"]) == (scope, number)]
        console.print(_table(f"{scope}, {number} threads", chosen))
    if json is not None:
        console.print(f"records appended to {json}")
    return lines


def _table(title: str, lines: list[Record]) -> Table:
    peers = list(dict.fromkeys(name for line in lines for name in line["ratio"]))
    roofline = any("of_roofline" in line for line in lines)
    table = Table(title=title, title_justify="left")
    for header in ("rows × columns", "dtype", "median", "p90", "GB/s"):
        table.add_column(header, justify="right")
    if roofline:
        table.add_column("of roofline", justify="right")
    for peer in peers:
        table.add_column(f"{peer} ÷ lngrad", justify="right")
    for line in lines:
        time = line["time_us"]["lngrad"]
        cells = [
            f"{line['M']} × {line['N']}",
            line["dtype"],
            _time(time["median"]),
            _time(time["p90"]),
            f"{line['bandwidth']:.1f}",
        ]
        if roofline:
            cells.append(f"{line['of_roofline']:.0%}" if "of_roofline" in line else "")
        table.add_row(*cells, *(f"{line['ratio'][peer]:.2f}×" if peer in line["ratio"] else "" for peer in peers))
    table.caption = "\n".join(_mean(peer, lines) for peer in peers)
    return table


def _mean(peer: str, lines: list[Record]) -> str:
    ratios = [line["ratio"][peer] for line in lines if peer in line["ratio"]]
    return f"{peer}: geometric mean {geometric_mean(ratios):.2f}×, least {min(ratios):.2f}× of {len(ratios)}"


def _time(microseconds: float) -> str:
    return f"{microseconds:.1f} µs" if microseconds < 1000 else f"{microseconds / 1000:.2f} ms"
