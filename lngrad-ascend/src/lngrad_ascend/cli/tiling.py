"""The command `lngrad tiling`: struct, temporary buffer, verdict and a safe size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from lngrad.cli.terminal import FAILED, REFUSED, choice, fail, in_table, new_table, working
from lngrad_ascend.cli.options import Json, SocName, write_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lngrad_ascend.tiling.lint import Buffer, SweepRow, TilingReport

BAR_CELLS, LEAST_CELLS = 32, 16  # of a bar: on a usual terminal, and on the narrowest
PAIR, BESIDE_BAR = 28, 48  # characters that a field with its value takes, and the columns beside a bar
COLOURS = {"ok": "green", "reserve": "yellow", "overrun": "red", "assert": "red", "unfit": "red"}


def tiling(
    api: Annotated[
        str,
        choice(
            "LayerNorm, LayerNormGrad or LayerNormGradBeta.", partial(in_table, "lngrad_ascend.tiling.lint", "APIS")
        ),
    ] = "LayerNormGrad",
    shape: Annotated[str | None, Option(help="B,S,H or B,S,storageHLength,originHLength.", show_default=False)] = None,
    dtype: Annotated[str, choice("half or float.", lambda: ("half", "float"))] = "float",
    soc: SocName = None,
    stack: Annotated[str, Option(help="The temporary buffer: min, max or bytes.")] = "min",
    reuse_source: Annotated[bool, Option("--reuse-source", help="isReuseSource = true.")] = False,
    json: Json = None,
    sweep: Annotated[bool, Option("--sweep", help="Count, over 7,040 shapes, what the sizes lead to.")] = False,
) -> None:
    """Say whether a temporary buffer suffices for an Ascend C tile API, and what would be safe.

    Prints the tiling struct, draws the buffers and states what a kernel would touch. Ends with 1 if
    that is more than the buffer has, which a device does not notice, or if the kernel refuses the call.

    Example: lngrad tiling --shape 2,32,16 --soc Ascend910B1
    """
    from rich.console import Console

    from lngrad_ascend.tiling.lint import lint
    from lngrad_ascend.tiling.lint import sweep as count

    if sweep:
        with working("counting over 7,040 shapes"):
            rows = count(soc or "Ascend910B1")
        render_sweep(rows, Console())
        return
    if shape is None:
        fail("--shape: expected B,S,H, for example --shape 2,32,16, or --sweep, got neither", REFUSED)
    if not all(size.strip().isdigit() for size in shape.split(",")):
        fail(f"--shape: expected B,S,H, for example 2,32,16, got {shape!r}", REFUSED)
    report = lint(api, [int(size) for size in shape.split(",")], dtype, soc, stack, reuse_source)
    if json is not None:
        write_json(report.to_json(), json)
    if json != "-":
        render(report, Console())
    if report.verdict in ("overrun", "assert", "unfit") or not report.fits_ub:
        raise typer.Exit(FAILED)


def render(report: TilingReport, console: Console) -> None:
    """Print a lint report to ``console``."""
    H, originH = report.shape[2:]
    padded = "" if originH == H else f" (of which {originH} count)"
    console.print(
        f"[bold]{report.api}[/bold] [{report.shape[0]}, {report.shape[1]}, {H}]{padded} {report.dtype} on "
        f"{report.soc}" + (", isReuseSource" if report.reuse_source else ""),
        highlight=False,
    )
    console.print(
        f"temporary buffer: {report.stack_bytes:,} bytes given; the published minimum is {report.min_bytes:,}, "
        f"the maximum {report.max_bytes:,}",
        highlight=False,
    )
    if report.tiling is not None:
        console.print(_struct_table(report, console.width))
    if report.buffers:
        console.print(_bars(report, console.width))
    console.print(_verdict(report))


def _struct_table(report: TilingReport, width: int) -> Table:
    """The struct as a table of up to three (field, value) pairs a line: 30 words fit a screen."""
    fields = list(vars(report.tiling).items())
    columns = min(3, max(1, width // PAIR))
    table = new_table(type(report.tiling).__name__, title_justify="left", box=None, pad_edge=False)
    for _ in range(columns):
        table.add_column("field", overflow="fold")
        table.add_column("value", justify="right", no_wrap=True)
    lines = -(-len(fields) // columns)
    for line in range(lines):
        table.add_row(*(cell for name, value in fields[line::lines] for cell in (name, str(value))))
    return table


def _bars(report: TilingReport, width: int) -> Table:
    """One bar a buffer on a common scale; red past the end of the temporary buffer."""
    title = "temporary buffer, bytes\n#: touched, -: reserved only, |: end of the buffer given"
    table = new_table(title, title_justify="left", box=None, pad_edge=False)
    table.add_column("part", no_wrap=True)
    for heading in ("from", "touched to", "reserved to"):
        table.add_column(heading, justify="right", min_width=len(f"{report.reserved_bytes:,}"))
    table.add_column("", no_wrap=True)
    cells = min(BAR_CELLS, max(LEAST_CELLS, width - BESIDE_BAR))
    whole = max(report.reserved_bytes, report.stack_bytes, 1)
    for part in report.buffers:
        places = (part.start, part.start + part.touched, part.start + part.reserved)
        table.add_row(part.name, *(f"{at:,}" for at in places), _bar(part, report.stack_bytes, whole, cells))
    return table


def _bar(part: Buffer, end: int, whole: int, cells: int) -> Text:
    from rich.text import Text

    bar = Text()
    for cell in range(cells):
        start, stop = cell * whole / cells, (cell + 1) * whole / cells
        if start <= end < stop:
            bar.append("|", style="bold")
        if start < part.start + part.touched and part.start < stop:
            bar.append("#", style="red" if start >= end else "green")
        elif start < part.start + part.reserved and part.start < stop:
            bar.append("-", style="red" if start >= end else "dim")
        else:
            bar.append(" ")
    return bar if end < whole else bar.append("|", style="bold")


def _verdict(report: TilingReport) -> Text:
    from rich.text import Text

    texts = {
        "ok": f"ok: the kernel touches {report.touched_bytes:,} of {report.stack_bytes:,} bytes.",
        "reserve": f"ok for this shape: the kernel touches {report.touched_bytes:,} of {report.stack_bytes:,} bytes; "
        f"the struct reserves {report.reserved_bytes:,}.",
        "overrun": f"too small: the kernel touches {report.touched_bytes:,} bytes, {report.overrun_bytes:,} past the "
        f"end of {report.stack_bytes:,}. No check of the device notices.",
        "assert": f"refused: the tiling function needs more than {report.stack_bytes:,} bytes for one row.",
        "unfit": "not a supported call.",
    }
    fits = (
        f"it fits: with {report.operand_bytes:,} bytes of operands, {report.ub_bytes:,} bytes of Unified Buffer"
        if report.fits_ub
        else f"but it does not fit: {report.operand_bytes:,} bytes of operands beside it exceed the "
        f"{report.ub_bytes:,} bytes of Unified Buffer; call with fewer rows"
    )
    lines = [texts[report.verdict], *(f"- {doubt}" for doubt in report.doubts)]
    text = Text("\n".join(lines), style=COLOURS[report.verdict])
    # A buffer of exactly what is touched gives the same chunks, and is enough for them.
    more = report.verdict == "overrun" and report.touched_bytes != report.safe_bytes
    above = f"; above the size given, the next safe one is {report.touched_bytes:,} bytes" if more else ""
    return text.append(f"\nsafe size: {report.safe_bytes:,} bytes; {fits}{above}.", style="none")


def render_sweep(rows: Sequence[SweepRow], console: Console) -> None:
    """Print the counts of ``sweep`` to ``console``."""
    title, counts = "LayerNormGrad with its own temporary-buffer sizes", ("ok", "reserve", "overrun", "refused")
    headings = "ok", "reserves past the end", "touches past the end", "refused"
    table = new_table(title, "dtype", "isReuseSource", "size", right=headings, title_justify="left", box=None)
    for row in rows:
        table.add_row(
            row.dtype, str(row.reuse_source).lower(), row.stack, *(str(getattr(row, name)) for name in counts)
        )
    console.print(table)
