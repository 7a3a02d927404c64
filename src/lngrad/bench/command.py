"""`lngrad bench`: run, print as it goes, keep records, draw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lngrad.bench.cases import DTYPES, parse_shape
from lngrad.bench.peers import why_not
from lngrad.bench.records import append, machine
from lngrad.bench.runner import SCOPES, Settings, jobs, run
from lngrad.bench.tables import geometric_mean

__all__ = ["bench", "drawn_peer", "settings_of"]


def settings_of(scopes: str, cases: str, dtypes: str, peers: str, rounds: int, quick: bool) -> Settings:
    """Settings from comma-separated options.

    Raises:
        ValueError: A name or shape is none that exists; the text names the option and what it takes.
    """
    chosen_scopes = _names("scopes", scopes, SCOPES)
    chosen_dtypes = _names("dtypes", dtypes, DTYPES)
    shapes = tuple(parse_shape(text) for text in cases.split(",")) if cases else None
    if rounds < 1:
        raise ValueError(f"rounds: expected at least 1, got {rounds}")
    return Settings(chosen_scopes, shapes, chosen_dtypes, tuple(filter(None, peers.split(","))), rounds, quick)


def drawn_peer(
    scopes: tuple[str, ...], scope: str, peers: tuple[str, ...], reason: Callable[[str], str | None] = why_not
) -> str:
    """The first peer that can be compared with; asked before a run, which may take long.

    Args:
        scopes: That are timed.
        scope: That is drawn.
        peers: Names.
        reason: Why a peer can't be compared with, or None.

    Raises:
        ValueError: There will be nothing to draw.
    """
    if scope not in scopes:
        raise ValueError(f"plot: expected {scope} among the scopes, since it is what is drawn, got {','.join(scopes)}")
    for name in peers:
        if reason(name) is None:
            return name
    raise ValueError(f"plot: expected a peer that can be compared with, got {','.join(peers) or 'none'}")


def _names(option: str, text: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(filter(None, text.split(","))) or allowed
    for name in names:
        if name not in allowed:
            raise ValueError(f"{option}: expected some of {', '.join(allowed)}, got {name!r}")
    return names


def bench(settings: Settings, json: Path | None, plot: Path | None, console: Console) -> None:
    """Time everything in the settings; print a table a scope, append records to `json`, draw `plot`."""
    peer = drawn_peer(settings.scopes, "kernel", settings.peers) if plot is not None else ""
    about = machine()
    console.print(f"{about['cpu']}, {about['cores']} threads, {about['cache']}")
    lines: list[dict[str, Any]] = []
    total = sum(len(jobs(settings, scope)) for scope in settings.scopes)
    with console.status("") as status:
        for line in run(settings, lambda text: console.print(text, style="yellow")):
            lines.append(line)
            status.update(f"{len(lines)}/{total}  {line['scope']} {line['M']}×{line['N']} {line['dtype']}")
            if json is not None:
                append(json, [line])
    for scope in settings.scopes:
        chosen = [line for line in lines if line["scope"] == scope]
        if chosen:
            console.print(_table(scope, chosen))
    if json is not None:
        console.print(f"records appended to {json}")
    if plot is not None:
        from lngrad.bench.plots import plot as draw

        draw(lines, plot, peer)
        console.print(f"picture written to {plot}")


def _table(scope: str, lines: list[dict[str, Any]]) -> Table:
    peers = list(dict.fromkeys(name for line in lines for name in line["ratio"]))
    roofline = any("of_roofline" in line for line in lines)
    table = Table(title=scope, title_justify="left")
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
    for peer in peers:
        ratios = [line["ratio"][peer] for line in lines if peer in line["ratio"]]
        table.caption = (
            f"{peer}: geometric mean {geometric_mean(ratios):.2f}×, least {min(ratios):.2f}× of {len(ratios)}"
        )
    return table


def _time(microseconds: float) -> str:
    return f"{microseconds:.1f} µs" if microseconds < 1000 else f"{microseconds / 1000:.2f} ms"
