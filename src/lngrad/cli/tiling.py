"""The command `lngrad tiling`."""

from __future__ import annotations

from typing import Annotated

import typer

from lngrad.cli.app import FAILED, REFUSED, fail


def tiling(
    api: Annotated[str, typer.Option(help="LayerNorm, LayerNormGrad or LayerNormGradBeta.")] = "LayerNormGrad",
    shape: Annotated[
        str | None, typer.Option(help="B,S,H or B,S,storageHLength,originHLength.", show_default=False)
    ] = None,
    dtype: Annotated[str, typer.Option(help="half or float.")] = "float",
    soc: Annotated[str | None, typer.Option(help="A SoC's name.", show_default="Ascend910B1")] = None,
    stack: Annotated[str, typer.Option(help="The temporary buffer: min, max or bytes.")] = "min",
    reuse_source: Annotated[bool, typer.Option("--reuse-source", help="isReuseSource = true.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    sweep: Annotated[bool, typer.Option("--sweep", help="Count, over 7,040 shapes, what the sizes lead to.")] = False,
) -> None:
    """Say whether a temporary buffer suffices for an Ascend C tile API, and what would be safe.

    Prints the tiling struct, draws the buffers and states what a kernel would touch. Ends with 1 if
    that is more than the buffer has, which a device does not notice.

    Example: lngrad tiling --shape 2,32,16 --soc Ascend910B1
    """
    from rich.console import Console

    from lngrad.ascend.tiling.lint import lint
    from lngrad.ascend.tiling.lint import sweep as count
    from lngrad.cli import tiling_report

    if sweep:
        tiling_report.render_sweep(count(soc or "Ascend910B1"), Console())
        return
    if shape is None or not all(size.strip().isdigit() for size in shape.split(",")):
        fail(f"--shape: expected B,S,H, for example 2,32,16, got {shape!r}", REFUSED)
    report = lint(api, [int(size) for size in shape.split(",")], dtype, soc, stack, reuse_source)
    if json:
        typer.echo(report.to_json())
    else:
        tiling_report.render(report, Console())
    if report.verdict in ("overrun", "assert"):
        raise typer.Exit(FAILED)
