"""The places of instructions in a kernel, for faults and warnings; and the report of a launch: instructions, bytes and
peaks by block, as a table, as JSON, as a picture.

A picture has one row a pipe, in issue order, arrows for flags, red where nothing orders two instructions.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from html import escape
from pathlib import Path
from types import CodeType, FrameType
from typing import Union

from lngrad.errors import printable
from lngrad_ascend.device.pipes import PIPE_NAMES

# A place in Python code, to be turned into a line only when a fault needs it, or a file and a line.
Site = Union[tuple[CodeType, int], tuple[str, int]]  # noqa: UP007  # an alias is evaluated, on Python 3.10 too

# (name, pipe, core, site): what a fault says of an instruction. A plain tuple, as every instruction makes one.
Instruction = tuple[str, int, int, Site]
NOBODY: Instruction = ("nothing", 0, 0, ("", 0))

_INSIDE = (*(f"{Path(__file__).parents[1] / folder}" for folder in ("device", "tile")), contextlib.__file__)


def kernel_frame() -> FrameType:
    """Return the innermost frame that does not belong to the simulator: the line of the kernel."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if not frame.f_code.co_filename.startswith(_INSIDE):
            return frame
        frame = frame.f_back
    return frame


def caller(depth: int = 2) -> Site:
    """Return where the caller of the function that calls this stands: the line of a kernel."""
    frame = sys._getframe(depth)
    return frame.f_code, frame.f_lasti


def kernel_site() -> Site:
    """Return where ``kernel_frame`` stands."""
    frame = kernel_frame()
    return frame.f_code, frame.f_lasti


@lru_cache(1024)
def site_text(site: Site) -> str:
    """Return ``file:line`` of a site."""
    where, place = site
    if isinstance(where, str):
        return f"{os.path.basename(where)}:{place}" if where else "unknown place"
    line = next(
        (line for start, stop, line in where.co_lines() if start <= place < stop and line), where.co_firstlineno
    )
    return f"{Path(where.co_filename).name}:{line}"


STEP, ROW, LEFT, TOP, BOX, LONG, SCALED = 48, 44, 110, 40, 26, 42, 1400
COLOURS = ("#b8a9d9", "#8fc28f", "#7fa7d6", "#e0b36a")
SHOWN = 6  # instructions of a race's picture
WIDE, TALL = 136, 34  # a box with an instruction's name and line
Arrows = Iterable[tuple[Instruction, Instruction]]  # pairs of a set flag and the wait for it


def race_svg(log: Iterable[Instruction], arrows: Arrows, first: Instruction, second: Instruction, missing: str) -> str:
    """Return the last instructions of a block, by name and line, with the two of a race in red.

    Args:
        log: What the block has issued.
        first, second: The earlier access, and the later one, which was not executed.
        missing: What would order the two.
    """
    log = list(log)
    since = next((place for place, entry in enumerate(log) if entry is first), 0)
    issued = [entry for entry in log if entry is not first]
    left_out = max(0, len(issued) - since - (SHOWN - 2))
    later = issued[since + left_out :][-(SHOWN - 2) :]
    shown = [*log[max(0, since - (SHOWN - 2 - len(later))) : since], first, *later, second]
    pipes = [pipe for pipe in range(len(PIPE_NAMES)) if any(entry[1] == pipe for entry in shown)]
    left, step, row, top = 56, WIDE + 14, TALL + 34, 34
    width, height = max(760, left + step * len(shown)), top + row * len(pipes) + 34
    places: dict[int, tuple[float, float]] = {}
    parts = []
    for number, pipe in enumerate(pipes):
        y = top + number * row + TALL / 2
        parts.append(f'<text x="8" y="{y + 4}" font-weight="bold">{PIPE_NAMES[pipe]}</text>')
        parts.append(f'<line x1="{left - 8}" y1="{y}" x2="{width - 8}" y2="{y}" stroke="#ccc"/>')
    for index, entry in enumerate(shown):
        x, y = left + index * step, top + pipes.index(entry[1]) * row
        places[id(entry)] = x + WIDE / 2, y + TALL / 2
        colour, edge = ("#f4b0a8", "#c00") if entry is first or entry is second else (COLOURS[entry[1]], "#777")
        name, line = escape(printable(entry[0])), escape(printable(site_text(entry[3])))
        parts.append(
            f'<rect x="{x}" y="{y}" width="{WIDE}" height="{TALL}" rx="4" fill="{colour}" stroke="{edge}"/>'
            f'<text x="{x + WIDE / 2}" y="{y + 14}" text-anchor="middle">{name}</text>'
            f'<text x="{x + WIDE / 2}" y="{y + 27}" text-anchor="middle" font-size="10">{line}</text>'
        )
    parts += _arrows(arrows, places, TALL / 2)
    (x1, y1), (x2, y2) = places[id(first)], places[id(second)]
    path = f"M{x1},{y1 - TALL / 2} C{x1},{top - 26} {x2},{top - 26} {x2},{y2 - TALL / 2}"
    parts.append(f'<path d="{path}" fill="none" stroke="#c00" stroke-width="2" stroke-dasharray="5 3"/>')
    middle = min(max((x1 + x2) / 2, 290), width - 290)
    parts.append(f'<text x="{middle}" y="12" text-anchor="middle" fill="#c00">missing: {escape(missing)}</text>')
    between = f"; {left_out} instructions behind the first are left out" if left_out else ""
    legend = (
        f"red: the same bytes, and nothing orders the two; arrow: a flag, set and waited for; a row a pipe{between}"
    )
    parts.append(f'<text x="8" y="{height - 10}" fill="#555">{legend}</text>')
    return svg(width, height, parts)


def timeline_svg(
    blocks: Sequence[tuple[str, Sequence[Instruction]]],
    arrows: Arrows,
    spans: Mapping[int, tuple[float, float]] | None = None,
) -> str:
    """Return an SVG with one group of four rows for every block, a title with its instructions in issue order.

    ``spans`` has the cycles at which instructions begin and end, by ``id``: what has them is drawn, to scale.
    """
    places: dict[int, tuple[float, float]] = {}
    parts: list[str] = []
    longest = max((len(log) for _, log in blocks), default=0) * STEP
    scale = SCALED / max((end for _, end in spans.values()), default=1) if spans else 1.0
    width, height = LEFT + (SCALED if spans else longest + STEP) + 20, TOP + len(blocks) * (4 * ROW + 30)
    for number, (title, log) in enumerate(blocks):
        top = TOP + number * (4 * ROW + 30)
        parts.append(f'<text x="8" y="{top - 8}" font-weight="bold">{escape(printable(title))}</text>')
        for pipe, name in enumerate(PIPE_NAMES):
            y = top + pipe * ROW + BOX / 2
            parts.append(f'<text x="8" y="{y + 4}">{name}</text>')
            parts.append(f'<line x1="{LEFT - 30}" y1="{y}" x2="{width - 10}" y2="{y}" stroke="#ccc"/>')
        for index, entry in enumerate(log):
            begin, end = spans.get(id(entry), (0, 0)) if spans else (index * STEP, index * STEP + LONG)
            if end > begin:
                x, y = LEFT + begin * scale, top + entry[1] * ROW
                places[id(entry)] = (x + LONG / 2, y + BOX / 2)
                parts.append(
                    _box(entry, x, y, (end - begin) * scale, f": cycles {begin:,.0f} to {end:,.0f}" * bool(spans))
                )
    return svg(width, height, [*parts, *_arrows(arrows, places, 0)])


def _arrows(arrows: Arrows, places: dict[int, tuple[float, float]], margin: float) -> Iterator[str]:
    """Return the arrows between instructions that have a place, from edge to edge of boxes, which are `margin` away."""
    for source, target in arrows:
        if id(source) in places and id(target) in places:
            (x1, y1), (x2, y2) = places[id(source)], places[id(target)]
            side = margin if y2 > y1 else -margin
            ends = f'x1="{x1}" y1="{y1 + side}" x2="{x2}" y2="{y2 - side}"'
            yield f'<line {ends} stroke="#555" marker-end="url(#head)"/>'


def svg(width: float, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">\n<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" '
        'refY="3" orient="auto"><path d="M0,0 L7,3 L0,6 z" fill="#555"/></marker></defs>\n'
        '<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _box(entry: Instruction, x: float, y: float, width: float, when: str) -> str:
    name, pipe, core, site = entry
    place, copy = site_text(site), {"MTE2": "copy in", "MTE3": "copy out"}.get(PIPE_NAMES[pipe], "copy")
    line, word = place.rpartition(":")[2], name.partition("<")[0].removesuffix("Pad").replace("DataCopy", copy)
    middle = f'x="{x + width / 2}" text-anchor="middle" font-size="8"'
    label = f'<text y="{y + 11}" {middle}>{escape(word[:9])}</text><text y="{y + 21}" {middle}>:{line}</text>'
    return (
        f"<g><title>{escape(printable(f'block {core}: {name} at {place}{when}'))}</title>"
        f'<rect x="{x}" y="{y}" width="{width}" height="{BOX}" rx="{min(3, width / 4)}" fill="{COLOURS[pipe]}" stroke="#777"/>'
        f"{label * (width >= LONG)}</g>"
    )


HEAD = ("block", "peak UB bytes", "of UB", "bytes in", "bytes out", "instructions", "tile APIs: calls, instructions")


@dataclass(frozen=True)
class BlockReport:
    """The report of a block.

    Attributes:
        peak_ub_bytes: The highest byte of the Unified Buffer that was reserved or written.
        bytes_in: From global memory.
        bytes_out: To global memory.
        tile_apis: Calls by name.
        instructions: Vector and copy instructions by name, those inside the tile APIs included.
        api_instructions: How many of these each tile API issued.
        remarks: What is harmless here and worth a look, each with its line.
        warnings: What probably gives another result than is wanted.
    """

    block: int
    peak_ub_bytes: int
    bytes_in: int
    bytes_out: int
    tile_apis: dict[str, int]
    instructions: dict[str, int]
    api_instructions: dict[str, int]
    remarks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Advice:
    """A change that would save time.

    Attributes:
        kind: buffers, copies, repeats, masks, reductions, banks or tail.
        text: What to do, with the line.
        cycles: What the slowest block would save, by the model.
        time_us: The same in µs.
    """

    kind: str
    text: str
    cycles: float
    time_us: float


@dataclass(frozen=True)
class LineCycles:
    """A line of a kernel, in the slowest block.

    Attributes:
        line: ``file:line``.
        name: Of its instruction; the most frequent one.
        cycles: Its part of the critical path.
        waits: What it waits for, and how many cycles, the longest wait first.
    """

    line: str
    name: str
    cycles: float
    waits: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Cycles:
    """The time that a launch would take, by the model; docs/ascend-cycles.md says what is not modelled, and how far it errs.

    Attributes:
        kernel, soc: What ran, where.
        cores: Vector cores that work at a time.
        cycles: From the first block's begin to the last one's end.
        time_us: The same in µs, with the launch.
        launch_us: The launch alone.
        blocks: Cycles of each block.
        shares: By pipe, the part of a block's cycles in which it works: the mean of all blocks.
        lines: The dearest lines of the slowest block, by critical path.
        advice: What would save most, by the model.
        roofline: What bounds the kernel: a sentence.
        guesses: Whose figures are guesses.
    """

    kernel: str
    soc: str
    cores: int
    cycles: float
    time_us: float
    launch_us: float
    blocks: tuple[float, ...]
    shares: dict[str, float]
    lines: tuple[LineCycles, ...]
    advice: tuple[Advice, ...]
    roofline: str
    guesses: tuple[str, ...]

    def to_json(self) -> str:
        """Return it as JSON text."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    def table(self) -> str:
        """Return the cycles as text."""
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in self.shares.items())
        lines = [
            f"{self.kernel} on {self.soc}, {len(self.blocks)} blocks on {self.cores} cores: {self.time_us:,.2f} µs by the "
            f"model, of them {self.launch_us:.2f} µs to launch; {self.cycles:,.0f} cycles",
            f"busy: {shares}",
            self.roofline,
            f"{'cycles':>12}  {'':>5}  line",
        ]
        for line in self.lines:
            lines.append(
                f"{line.cycles:12,.0f}  {100 * line.cycles / max(self.cycles, 1):4.0f} %  {line.line} {line.name}"
            )
            lines += [f"{'':21}waits {cycles:,.0f} for {cause}" for cause, cycles in line.waits]
        lines += [
            f"advice: {advice.text}: {advice.cycles:,.0f} cycles, {advice.time_us:.2f} µs" for advice in self.advice
        ]
        if self.guesses:
            lines.append(f"guesses: {', '.join(self.guesses)}")
        return "\n".join(lines)

    __str__ = table


@dataclass(frozen=True)
class LaunchReport:
    """The report of a launch, block by block; ``cycles`` where they were asked for."""

    kernel: str
    soc: str
    ub_bytes: int
    blocks: tuple[BlockReport, ...]
    timeline: str | None = field(default=None, repr=False, compare=False)
    cycles: Cycles | None = field(default=None, repr=False, compare=False)
    padded: tuple[str, ...] = ()

    def instructions(self) -> dict[str, int]:
        """Return the instructions of all blocks by name, most frequent first."""
        total: Counter[str] = Counter()
        for block in self.blocks:
            total.update(block.instructions)
        return dict(total.most_common())

    def remarks(self) -> tuple[str, ...]:
        """Return the remarks of all blocks, each once."""
        return tuple(dict.fromkeys(remark for block in self.blocks for remark in block.remarks))

    def warnings(self) -> tuple[str, ...]:
        """Return what ran and probably gives another result than is wanted, each once."""
        return (*dict.fromkeys(warning for block in self.blocks for warning in block.warnings), *self.padded)

    def to_json(self) -> str:
        """Return the report as JSON text."""
        facts = {"kernel": self.kernel, "soc": self.soc, "ub_bytes": self.ub_bytes}
        return json.dumps({**facts, "blocks": [asdict(block) for block in self.blocks]}, indent=2)

    def timeline_svg(self) -> str:
        """Return a picture of every instruction: one row a block and pipe, arrows for flags; with ``cycles``, to scale.

        Raises:
            ValueError: The launch did not keep them; ``launch(..., timeline=True)`` does.
        """
        if self.timeline is None:
            raise ValueError("timeline_svg: the launch kept no timeline; launch(..., timeline=True) does")
        return self.timeline

    def table(self) -> str:
        """Return the report as a table of text, one line a block."""
        lines: list[tuple[str, ...]] = [HEAD]
        for block in self.blocks:
            calls = sorted(block.tile_apis.items())
            apis = "; ".join(f"{name}: {count}, {block.api_instructions[name]:,}" for name, count in calls) or "-"
            share = f"{100 * block.peak_ub_bytes / self.ub_bytes:.1f} %"
            moved = (f"{n:,}" for n in (block.bytes_in, block.bytes_out, sum(block.instructions.values())))
            lines.append((str(block.block), f"{block.peak_ub_bytes:,}", share, *moved, apis))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([f"{self.kernel} on {self.soc}, {len(self.blocks)} blocks", *rows])

    __str__ = table
