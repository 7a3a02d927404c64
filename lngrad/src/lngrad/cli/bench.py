"""The command `lngrad bench`: a line about progress, a table a scope."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

from typer import Option

from lngrad import backends
from lngrad.cli.terminal import REFUSED, UNFINISHED, choice, escape, fail, in_table, need, new_table, one_of, say
from lngrad.core.machine import BUSY

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from lngrad.bench.cases import Settings
    from lngrad.bench.records import Record
    from lngrad.bench.runner import Bench


def bench(
    quick: Annotated[bool, Option("--quick", help="Three shapes and three rounds: does it work?")] = False,
    scopes: Annotated[
        str,
        Option(
            help="Some of call,override,autograd,jax,model,kernel,forward,overhead,first_call; with cuda, of "
            "call,forward,overhead,model.",
            show_default="all",
        ),
    ] = "",
    cases: Annotated[str, Option(help="Shapes ROWSxCOLUMNS, separated by commas.", show_default="twelve of them")] = "",
    dtypes: Annotated[
        str, Option(help="Some of float32,bfloat16,float16.", show_default="all; with cuda bfloat16,float32")
    ] = "",
    peers: Annotated[
        str,
        Option(
            help="Some of torch,onednn,compile,jax,mindspore,onnxruntime; with cuda, of torch,compile,liger,quack.",
            show_default="torch, and onednn where its wheel is installed",
        ),
    ] = "",
    threads: Annotated[
        str, Option(help="Numbers of threads, separated by commas.", show_default="what the machine grants")
    ] = "",
    rounds: Annotated[int, Option(min=1, help="Turns of each contestant.")] = 15,
    norm: Annotated[
        str,
        choice(
            "layer_norm; or rms_norm, gemma_rms_norm, add_layer_norm, add_rms_norm, gated_rms_norm, rms_norm_of_gated, "
            "modulated_layer_norm, with the scopes forward,autograd,model and the peers layer_norm,separate,torch,override,"
            "llama,compile,compile_llama; with cuda no override, and overhead, liger and quack besides.",
            lambda: ("layer_norm", *in_table("lngrad.bench.family", "TIMED")),
        ),
    ] = "layer_norm",
    device: Annotated[str, choice("cpu or cuda.", lambda: ("cpu", "cuda"))] = "cpu",
    json: Annotated[Path | None, Option(help="Append a record a line.", show_default="none")] = None,
    resume: Annotated[
        bool, Option("--resume", help="Keep what the --json file has of these sources and this machine.")
    ] = False,
    time_limit: Annotated[
        float | None,
        Option(min=1, help="Begin nothing after so many seconds; exit code 3 if there is more.", show_default="none"),
    ] = None,
    only_idle: Annotated[
        bool, Option("--only-idle", help="Drop what was timed while other programs used over 10 % of the machine.")
    ] = False,
    plot: Annotated[Path | None, Option(help="Draw ratios and roofline, .svg or .png.", show_default="none")] = None,
) -> None:
    """Time the kernels side by side with peers and with the memory's own speed, turn by turn.

    Every result is checked before it is timed. Where other programs use over 10 % of the machine, times
    are shown without ratios.

    Example: lngrad bench --quick --scopes kernel --cases 512x384 --dtypes float32
    """
    start = monotonic()
    if plot is not None:
        need("plots", matplotlib="matplotlib")
    one_of("--device", device, ("cpu", "cuda"))
    if resume and json is None:
        fail("--resume: needs --json FILE, which has the records so far", REFUSED)
    if device == "cuda" and (reason := why_no_device()) is not None:
        fail(f"--device: {reason}", REFUSED)
    from rich.console import Console

    from lngrad.bench.cases import check_plot
    from lngrad.bench.runner import why_not

    chosen = _bench_of(device, norm)
    try:
        settings = settings_of(chosen, scopes, cases, dtypes, peers, threads, rounds, quick)
        if plot is not None:
            check_plot(settings, chosen.drawn, lambda name: why_not(chosen, name))
    except ValueError as error:
        fail(f"--{error}", REFUSED)
    deadline = None if time_limit is None else start + time_limit
    lines, left = run_and_print(chosen, settings, Console(), json, resume, deadline, only_idle)
    if left:
        fail(f"{left} more to time; the same command with --resume goes on", UNFINISHED)
    if plot is not None:
        from lngrad.bench.plots import plot as draw

        quiet = [line for line in lines if line["others"] <= BUSY]
        draw([quiet or fail("--plot: not drawn: the machine is busy", UNFINISHED)], plot, chosen.drawn)
        say(f"picture written to {plot}")


def _bench_of(device: str, norm: str) -> Bench:
    if norm != "layer_norm":
        from lngrad.bench.family import TIMED, FamilyBench

        one_of("--norm", norm, ("layer_norm", *TIMED))
        if device == "cuda":
            from lngrad.bench.cuda import CudaFamilyBench

            return CudaFamilyBench(norm)
        return FamilyBench(norm)
    if device == "cuda":
        from lngrad.bench.cuda import CudaBench

        return CudaBench()
    from lngrad.bench.cpu import CpuBench

    return CpuBench()


def settings_of(
    chosen: Bench, scopes: str, cases: str, dtypes: str, peers: str, threads: str, rounds: int, quick: bool
) -> Settings:
    """Settings from comma-separated options.

    Raises:
        ValueError: A name, shape or number cannot be used; the text names the option and what it takes.
    """
    from lngrad.bench.cases import DTYPES, Settings, names_of, shapes_of, threads_of
    from lngrad.bench.runner import why_not

    default = tuple(name for name in chosen.peers if why_not(chosen, name) is None) or chosen.peers[:1]
    return Settings(
        scopes=names_of("scopes", scopes, chosen.scopes, chosen.scopes),
        peers=names_of("peers", peers, chosen.known_peers, default),
        dtypes=names_of("dtypes", dtypes, DTYPES, chosen.dtypes),
        shapes=shapes_of(cases),
        threads=threads_of(threads),
        rounds=rounds,
        quick=quick,
    )


def why_no_device() -> str | None:
    """Why nothing can be timed on a GPU here, or None."""
    state = backends()["triton_gpu"]
    if state != "available":
        return f"expected a CUDA device for --device cuda, got none: {state}"
    if import_module("lngrad.gpu.kernels").INTERPRETED:
        return "expected compiled kernels for --device cuda, got TRITON_INTERPRET=1: unset it"
    return None


def run_and_print(
    bench: Bench,
    settings: Settings,
    console: Console,
    json: Path | None,
    resume: bool,
    deadline: float | None,
    only_idle: bool,
) -> tuple[list[Record], int]:
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
