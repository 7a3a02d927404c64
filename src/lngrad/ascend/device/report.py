"""What a launch reports: instructions, bytes and peaks by block, as a table, as JSON, as a picture.

A picture has one row a pipe, in issue order, arrows for flags, red where nothing orders two instructions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from html import escape

from lngrad.ascend.device.pipes import PIPE_NAMES
from lngrad.ascend.device.running import Instruction, site_text

STEP, ROW, LEFT, TOP, BOX = 26, 44, 110, 40, 22
COLOURS = ("#b8a9d9", "#8fc28f", "#7fa7d6", "#e0b36a")
SHOWN = 60  # instructions around a race
Arrows = Iterable[tuple[Instruction, Instruction]]


def race_svg(log: Iterable[Instruction], arrows: Arrows, first: Instruction, second: Instruction) -> str:
    """Return the last instructions of a block with the two of a race in red.

    Args:
        log: What the block has issued.
        arrows: Pairs of a set flag and the wait for it.
        first: The earlier access; drawn in front where it is no longer in the log.
        second: The later one, which was not executed.
    """
    shown = [*list(log)[-SHOWN:], second]
    if not any(entry is first for entry in shown):
        shown.insert(0, first)
    return timeline_svg([("the race", shown)], arrows, (first, second))


def timeline_svg(
    blocks: Sequence[tuple[str, Sequence[Instruction]]],
    arrows: Arrows,
    red: tuple[Instruction, Instruction] | None = None,
) -> str:
    """Return an SVG with one group of four rows for every block.

    Args:
        blocks: (title, instructions in issue order).
        arrows: Pairs of a set flag and the wait for it.
        red: Two instructions that nothing orders.
    """
    places: dict[int, tuple[float, float]] = {}
    parts: list[str] = []
    longest = max((len(log) for _, log in blocks), default=0)
    width, height = LEFT + STEP * (longest + 1) + 20, TOP + len(blocks) * (4 * ROW + 30)
    for number, (title, log) in enumerate(blocks):
        top = TOP + number * (4 * ROW + 30)
        parts.append(f'<text x="8" y="{top - 8}" font-weight="bold">{escape(title)}</text>')
        for pipe, name in enumerate(PIPE_NAMES):
            y = top + pipe * ROW + BOX / 2
            parts.append(f'<text x="8" y="{y + 4}">{name}</text>')
            parts.append(f'<line x1="{LEFT - 30}" y1="{y}" x2="{width - 10}" y2="{y}" stroke="#ccc"/>')
        for index, entry in enumerate(log):
            x, y = LEFT + index * STEP, top + entry[1] * ROW
            places[id(entry)] = (x + BOX / 2, y + BOX / 2)
            parts.append(_box(entry, x, y, red is not None and any(entry is one for one in red)))
    for source, target in arrows:
        if id(source) in places and id(target) in places:
            (x1, y1), (x2, y2) = places[id(source)], places[id(target)]
            parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#555" marker-end="url(#head)"/>')
    if red is not None and all(id(one) in places for one in red):
        (x1, y1), (x2, y2) = (places[id(one)] for one in red)
        parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#c00" stroke-width="2" stroke-dasharray="5 3"/>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">\n<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" '
        'refY="3" orient="auto"><path d="M0,0 L7,3 L0,6 z" fill="#555"/></marker></defs>\n'
        '<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _box(entry: Instruction, x: float, y: float, red: bool) -> str:
    name, pipe, core, site = entry
    colour, edge = ("#f4b0a8", "#c00") if red else (COLOURS[pipe], "#777")
    label = f"block {core}: {name} at {site_text(site)}"
    return (
        f'<g><title>{escape(label)}</title><rect x="{x}" y="{y}" width="{BOX}" height="{BOX}" rx="3" '
        f'fill="{colour}" stroke="{edge}"/><text x="{x + BOX / 2}" y="{y + 15}" text-anchor="middle" font-size="8">'
        f"{escape(name[:4])}</text></g>"
    )


HEAD = ("block", "peak UB bytes", "of UB", "bytes in", "bytes out", "instructions", "tile APIs: calls, instructions")


@dataclass(frozen=True)
class BlockReport:
    """What one block did.

    Attributes:
        peak_ub_bytes: The highest byte of the Unified Buffer that was reserved or written.
        bytes_in: From global memory.
        bytes_out: To global memory.
        tile_apis: Calls by name.
        instructions: Vector and copy instructions by name, those inside the tile APIs included.
        api_instructions: How many of these each tile API issued.
    """

    block: int
    peak_ub_bytes: int
    bytes_in: int
    bytes_out: int
    tile_apis: dict[str, int]
    instructions: dict[str, int]
    api_instructions: dict[str, int]


@dataclass(frozen=True)
class LaunchReport:
    """What a launch did, block by block."""

    kernel: str
    soc: str
    ub_bytes: int
    blocks: tuple[BlockReport, ...]
    timeline: str | None = field(default=None, repr=False, compare=False)

    def instructions(self) -> dict[str, int]:
        """Return the instructions of all blocks by name, most frequent first."""
        total: Counter[str] = Counter()
        for block in self.blocks:
            total.update(block.instructions)
        return dict(total.most_common())

    def to_json(self) -> str:
        """Return the report as JSON text."""
        facts = {"kernel": self.kernel, "soc": self.soc, "ub_bytes": self.ub_bytes}
        return json.dumps({**facts, "blocks": [asdict(block) for block in self.blocks]}, indent=2)

    def timeline_svg(self) -> str:
        """Return a picture of every instruction: one row a block and pipe, arrows for flags.

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
