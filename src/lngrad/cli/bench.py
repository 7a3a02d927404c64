"""The command `lngrad bench`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from lngrad import backends
from lngrad.cli.app import REFUSED, UNFINISHED, fail, need

if TYPE_CHECKING:
    from lngrad.bench.cases import Settings
    from lngrad.bench.runner import Bench


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Three shapes and three rounds: does it work?")] = False,
    scopes: Annotated[
        str,
        typer.Option(
            help="Some of call,override,autograd,jax,kernel,forward,overhead,first_call; with cuda, of call,forward.",
            show_default="all",
        ),
    ] = "",
    cases: Annotated[
        str, typer.Option(help="Shapes ROWSxCOLUMNS, separated by commas.", show_default="twelve of them")
    ] = "",
    dtypes: Annotated[
        str,
        typer.Option(help="Some of float32,bfloat16,float16.", show_default="all; with cuda bfloat16,float32"),
    ] = "",
    peers: Annotated[
        str,
        typer.Option(
            help="Some of torch,onednn,compile,jax,mindspore; with cuda, of torch,compile,liger,quack.",
            show_default="torch, and onednn where its wheel is installed",
        ),
    ] = "",
    threads: Annotated[
        str, typer.Option(help="Numbers of threads, separated by commas.", show_default="what the machine grants")
    ] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contestant.")] = 15,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json: Annotated[Path | None, typer.Option(help="Append a record a line.", show_default="none")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what the --json file has of these sources and this machine.")
    ] = False,
    time_limit: Annotated[
        float | None,
        typer.Option(
            min=1, help="Begin nothing after so many seconds; exit code 3 if there is more.", show_default="none"
        ),
    ] = None,
    only_idle: Annotated[
        bool,
        typer.Option("--only-idle", help="Drop what was timed while other programs used over 10 % of the machine."),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw ratios and roofline, .svg or .png.", show_default="none")
    ] = None,
) -> None:
    """Time the kernels side by side with peers and with the memory's own speed, turn by turn.

    Every result is checked before it is timed. Other programs on the machine disturb everybody's turns:
    quote nothing from a busy machine.

    Example: lngrad bench --quick --scopes kernel --cases 512x384 --dtypes float32
    """
    start = monotonic()
    if plot is not None:
        need("plots", matplotlib="matplotlib")
    if device not in ("cpu", "cuda"):
        fail(f"device: expected cpu or cuda, got {device!r}", REFUSED)
    if resume and json is None:
        fail("--resume: needs --json FILE, which has the records so far", REFUSED)
    if device == "cuda":
        reason = why_no_device()
        if reason is not None:
            fail(reason, REFUSED)
    from rich.console import Console

    from lngrad.bench.cases import check_plot
    from lngrad.bench.runner import why_not
    from lngrad.cli.bench_report import run_and_print

    chosen = _bench_of(device)
    try:
        settings = settings_of(chosen, scopes, cases, dtypes, peers, threads, rounds, quick)
        if plot is not None:
            check_plot(settings, chosen.drawn, lambda name: why_not(chosen, name))
    except ValueError as error:
        fail(str(error), REFUSED)
    console = Console()
    deadline = None if time_limit is None else start + time_limit
    lines, left = run_and_print(chosen, settings, console, json, resume, deadline, only_idle)
    if left:
        fail(f"{left} more to time; the same command with --resume goes on", UNFINISHED)
    if plot is not None:
        from lngrad.bench.plots import plot as draw

        draw([lines], plot, chosen.drawn)
        console.print(f"picture written to {plot}")


def _bench_of(device: str) -> Bench:
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
        ValueError: A name, shape or number cannot be used; the text names the option and what it
            takes.
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
        return f"device: expected a CUDA device for --device cuda, got none: {state}"
    if import_module("lngrad.gpu.kernels").INTERPRETED:
        return "device: expected compiled kernels for --device cuda, got TRITON_INTERPRET=1: unset it"
    return None
