"""The command `lngrad bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lngrad.cli.app import REFUSED, command, fail, need

__all__ = ["bench"]


@command
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
    peers: Annotated[str, typer.Option(help="Some of torch,compile,jax,mindspore.")] = "torch",
    rounds: Annotated[int, typer.Option(min=1, help="Turns that each of those compared gets.")] = 15,
    device: Annotated[str, typer.Option(help="cpu or cuda; there, peers are torch,compile,liger,quack.")] = "cpu",
    json: Annotated[Path | None, typer.Option(help="Append a record a line.", show_default="none")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw ratios and roofline, .svg or .png.", show_default="none")
    ] = None,
) -> None:
    """Time the kernels side by side with peers and with the memory's own speed, turn by turn.

    Every result is checked before it is timed. Other programs on the machine disturb everybody's turns, and peers with
    OpenMP threads most of all: quote nothing from a busy machine.
    """
    if plot is not None:
        need("plots", matplotlib="matplotlib")
    from rich.console import Console

    if device not in ("cpu", "cuda"):
        fail(f"device: expected cpu or cuda, got {device!r}", REFUSED)
    if device == "cuda":
        from lngrad.bench.cuda.command import cuda_bench, why_no_device

        reason = why_no_device()
        if reason is not None:
            fail(reason, REFUSED)
        try:
            cuda_bench(scopes, cases, dtypes, peers, rounds, quick, json, plot, Console())
        except ValueError as error:
            fail(str(error), REFUSED)
        return

    from lngrad.bench.command import bench as run_bench
    from lngrad.bench.command import drawn_peer, settings_of

    try:
        settings = settings_of(scopes, cases, dtypes, peers, rounds, quick)
        if plot is not None:
            drawn_peer(settings.scopes, "kernel", settings.peers)
    except ValueError as error:
        fail(str(error), REFUSED)
    run_bench(settings, json, plot, Console())
