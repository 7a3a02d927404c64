"""Print what the tiling lint found: struct, temporary buffer, verdict and a safe size."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lngrad.ascend.tiling.lint import Buffer, SweepRow, TilingReport

BAR_CELLS, LEAST_CELLS = 32, 16  # of a bar: on a usual terminal, and on the narrowest
PAIR, BESIDE_BAR = 28, 48  # characters that a field with its value takes, and the columns beside a bar
COLOURS = {"ok": "green", "reserve": "yellow", "overrun": "red", "assert": "red"}


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
    """Return the struct as a table of up to three (field, value) pairs a line: 30 words fit a screen."""
    fields = list(vars(report.tiling).items())
    columns = min(3, max(1, width // PAIR))
    table = Table(title=type(report.tiling).__name__, title_justify="left", box=None, pad_edge=False)
    for _ in range(columns):
        table.add_column("field", overflow="fold")
        table.add_column("value", justify="right", no_wrap=True)
    lines = -(-len(fields) // columns)
    for line in range(lines):
        cells: list[str] = []
        for name, value in fields[line::lines]:
            cells += [name, str(value)]
        table.add_row(*cells)
    return table


def _bars(report: TilingReport, width: int) -> Table:
    """Return one bar a buffer on a common scale; red past the end of the temporary buffer."""
    title = "temporary buffer, bytes\n#: touched, -: reserved only, |: end of the buffer given"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("part", no_wrap=True)
    for heading in ("from", "touched to", "reserved to"):
        table.add_column(heading, justify="right", min_width=len(f"{report.reserved_bytes:,}"))
    table.add_column("", no_wrap=True)
    cells = min(BAR_CELLS, max(LEAST_CELLS, width - BESIDE_BAR))
    whole = max(report.reserved_bytes, report.stack_bytes, 1)
    for part in report.buffers:
        table.add_row(
            part.name,
            f"{part.start:,}",
            f"{part.start + part.touched:,}",
            f"{part.start + part.reserved:,}",
            _bar(part, report.stack_bytes, whole, cells),
        )
    return table


def _bar(part: Buffer, end: int, whole: int, cells: int) -> Text:
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
    texts = {
        "ok": f"ok: the kernel touches {report.touched_bytes:,} of {report.stack_bytes:,} bytes.",
        "reserve": f"ok for this shape: the kernel touches {report.touched_bytes:,} of {report.stack_bytes:,} bytes; "
        f"the struct reserves {report.reserved_bytes:,}.",
        "overrun": f"too small: the kernel touches {report.touched_bytes:,} bytes, {report.overrun_bytes:,} past the "
        f"end of {report.stack_bytes:,}. No check of the device notices.",
        "assert": f"refused: the tiling function needs more than {report.stack_bytes:,} bytes for one row.",
    }
    fits = (
        f"it fits: with {report.operand_bytes:,} bytes of operands, {report.ub_bytes:,} bytes of Unified Buffer"
        if report.fits_ub
        else f"but it does not fit: {report.operand_bytes:,} bytes of operands beside it exceed the "
        f"{report.ub_bytes:,} bytes of Unified Buffer; call with fewer rows"
    )
    text = Text(texts[report.verdict], style=COLOURS[report.verdict])
    # A buffer of exactly what is touched gives the same chunks, and is enough for them.
    more = report.verdict == "overrun" and report.touched_bytes != report.safe_bytes
    above = f"; above the size given, the next safe one is {report.touched_bytes:,} bytes" if more else ""
    return text.append(f"\nsafe size: {report.safe_bytes:,} bytes; {fits}{above}.", style="none")


def render_sweep(rows: Sequence[SweepRow], console: Console) -> None:
    """Print the counts of ``sweep`` to ``console``."""
    table = Table(title="LayerNormGrad with its own temporary-buffer sizes", title_justify="left", box=None)
    table.add_column("dtype")
    table.add_column("isReuseSource")
    table.add_column("size")
    for name in ("ok", "reserves past the end", "touches past the end", "refused"):
        table.add_column(name, justify="right")
    for row in rows:
        counts = (row.ok, row.reserve, row.overrun, row.refused)
        table.add_row(row.dtype, str(row.reuse_source).lower(), row.stack, *map(str, counts))
    console.print(table)
