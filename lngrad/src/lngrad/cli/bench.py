"""The command `lngrad bench`: a line about progress, a table a scope."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

from typer import Option

from lngrad.cli.signature import with_options
from lngrad.cli.terminal import REFUSED, UNFINISHED, escape, fail, new_table, say
from lngrad.core.machine import BUSY

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from lngrad.bench.cases import Settings
    from lngrad.bench.records import Record
    from lngrad.bench.runner import Bench


@dataclass(frozen=True)
class BenchOptions:
    """The options of `lngrad bench`; benchmarks/bench.py has these, and more."""

    quick: Annotated[bool, Option("--quick", help="Three shapes and three rounds: does it work?")] = False
    scopes: Annotated[
        str, Option(help="Some of call,override,autograd,kernel,forward,overhead,first_call.", show_default="all")
    ] = ""
    cases: Annotated[str, Option(help="Shapes ROWSxCOLUMNS, separated by commas.", show_default="twelve of them")] = ""
    dtypes: Annotated[str, Option(help="Some of float32,bfloat16,float16.", show_default="all")] = ""
    threads: Annotated[
        str, Option(help="Numbers of threads, separated by commas.", show_default="what the machine grants")
    ] = ""
    rounds: Annotated[int, Option(min=1, help="Turns of each contestant.")] = 15
    json: Annotated[Path | None, Option(help="Append a record a line.", show_default="none")] = None
    resume: Annotated[
        bool, Option("--resume", help="Keep what the --json file has of these sources and this machine.")
    ] = False
    time_limit: Annotated[
        float | None,
        Option(min=1, help="Begin nothing after so many seconds; exit code 3 if there is more.", show_default="none"),
    ] = None
    only_idle: Annotated[
        bool, Option("--only-idle", help="Drop what was timed while other programs used over 10 % of the machine.")
    ] = False


@with_options
def bench(options: BenchOptions) -> None:
    """Time the kernels side by side with torch and with the memory's own speed, turn by turn.

    Every result is checked before it is timed. Where other programs use over 10 % of the machine, times
    are shown without ratios.

    Example: lngrad bench --quick --scopes kernel --cases 512x384 --dtypes float32
    """
    from lngrad.bench.cpu import CpuBench

    chosen = CpuBench()
    time_all(chosen, settings_of(chosen, options), options)


def settings_of(chosen: Bench, options: BenchOptions, peers: str = "") -> Settings:
    """Settings from comma-separated options; ends the command at a name, shape or number that can't be used."""
    from lngrad.bench.cases import DTYPES, Settings, names_of, shapes_of, threads_of
    from lngrad.bench.runner import why_not

    default = tuple(name for name in chosen.peers if why_not(chosen, name) is None) or chosen.peers[:1]
    try:
        return Settings(
            scopes=names_of("scopes", options.scopes, chosen.scopes, chosen.scopes),
            peers=names_of("peers", peers, chosen.known_peers, default),
            dtypes=names_of("dtypes", options.dtypes, DTYPES, chosen.dtypes), shapes=shapes_of(options.cases),
            threads=threads_of(options.threads), rounds=options.rounds, quick=options.quick,
        )  # fmt: skip
    except ValueError as error:
        fail(f"--{error}", REFUSED)


def time_all(chosen: Bench, settings: Settings, options: BenchOptions) -> list[Record]:
    """Time everything in the settings and print it; ends the command with UNFINISHED if the time is up before."""
    start = monotonic()
    if options.resume and options.json is None:
        fail("--resume: needs --json FILE, which has the records so far", REFUSED)
    from rich.console import Console

    deadline = None if options.time_limit is None else start + options.time_limit
    lines, left = run_and_print(chosen, settings, Console(), options.json, options.resume, deadline, options.only_idle)
    if left:
        fail(f"{left} more to time; the same command with --resume goes on", UNFINISHED)
    return lines


def run_and_print(
    bench: Bench, settings: Settings, console: Console, json: Path | None, resume: bool, deadline: float | None,
    only_idle: bool,
) -> tuple[list[Record], int]:  # fmt: skip
    """Time everything in the settings and print it. Return the records, of this run and the file, and the number of jobs left.

    Records are appended to `json` as they come; with `resume`, what that file has is not timed again. No job begins after
    `deadline`, of time.monotonic(). With `only_idle`, records of moments in which other programs ran are dropped.
    """
    from lngrad.bench.records import append, finished, key_of, machine, read
    from lngrad.bench.runner import plan_of, run

    about = machine()
    threads = " and ".join(map(str, settings.threads))
    console.print(f"{escape(about['cpu'])}, {threads} threads, {about['cache']}")
    planned = plan_of(bench, settings)
    recorded = read(json) if resume and json is not None and json.is_file() else []
    done = finished(recorded, settings.peers, 1 if settings.quick else settings.rounds)
    found = {which: done[which] for which in planned if which in done}
    dropped, late = 0, False
    with console.status("") as status:
        for line in run(bench, settings, lambda text: console.print(escape(text), style="yellow"), done):
            if only_idle and line["others"] > BUSY:
                dropped += 1
            else:
                found[key_of(line)] = line
                if json is not None:
                    append(json, [line])
            status.update(f"{len(found)}/{len(planned)}  {line['scope']} {line['M']}×{line['N']} {line['dtype']}")
            if late := deadline is not None and monotonic() > deadline:
                break
    if dropped:
        console.print(f"{dropped} jobs dropped: other programs used over {BUSY:.0%} of this machine", style="yellow")
    _print_tables(console, list(found.values()))
    if json is not None:
        say(f"records appended to {json}")
    return list(found.values()), sum(which not in found for which in planned) if late else dropped


def _print_tables(console: Console, lines: list[Record]) -> None:
    """One for each scope and number of threads; and what was not measured, as the machine was busy."""
    for scope, number in dict.fromkeys((line["scope"], line["threads"]) for line in lines):
        chosen = [line for line in lines if (line["scope"], line["threads"]) == (scope, number)]
        console.print(_table(f"{scope}, {number} threads", chosen))
    if busy := [line["others"] for line in lines if line["others"] > BUSY]:
        text = f"{len(busy)} of {len(lines)} jobs not measured: the machine is busy (others used up to {max(busy):.0%} of it,"
        console.print(f"{text} {BUSY:.0%} is the limit); --only-idle --json FILE --resume repeats them", style="yellow")


def _table(title: str, lines: list[Record]) -> Table:
    from rich import box

    from lngrad.bench.records import best

    peers, busy = list(dict.fromkeys(name for line in lines for name in line["ratio"])), "busy"
    quiet = [line for line in lines if line["others"] <= BUSY]
    roofline = any("of_roofline" in line for line in lines)
    wide = len(peers) < 3  # what a terminal of 80 columns has room for
    more = [*(("p90", "GB/s") if wide else ()), *(("roofline",) if roofline else ())]
    table = new_table(
        f"{title}: time, and times faster than", title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1), pad_edge=False,
    )  # fmt: skip
    for header in ("shape", "dtype", "median", *more, *peers):
        table.add_column(header, justify="right", no_wrap=True)
    for line in lines:
        time = line["time_us"]["lngrad"]
        cells = [f"{line['M']} × {line['N']}", line["dtype"], _time(time["median"])]
        if wide:
            cells += [_time(time["p90"]), f"{line['bandwidth']:.1f}"]
        if roofline:
            cells.append((f"{line['of_roofline']:.0%}" if line in quiet else busy) if "of_roofline" in line else "")
        ratios = {peer: f"{ratio:.2f}×" if line in quiet else busy for peer, ratio in line["ratio"].items()}
        table.add_row(*cells, *(ratios.get(peer, "") for peer in peers))
    found = {peer: [line["ratio"][peer] for line in quiet if peer in line["ratio"]] for peer in peers}
    if len(peers) > 1:
        found["best of them"] = [best(line)[1] for line in quiet if line["ratio"]]
    table.caption = "\n".join(f"{name}: {_summary(ratios)}" for name, ratios in found.items() if ratios)
    return table


def _summary(ratios: list[float]) -> str:
    from statistics import geometric_mean  # 10 ms that other commands do not need

    won = sum(ratio >= 1 for ratio in ratios)
    return f"geometric mean {geometric_mean(ratios):.2f}×, least {min(ratios):.2f}×, {won} of {len(ratios)} won"


def _time(microseconds: float) -> str:
    return f"{microseconds:.1f} µs" if microseconds < 1000 else f"{microseconds / 1000:.2f} ms"
