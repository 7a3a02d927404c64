"""What a launch reports: instructions, bytes and peaks by block, as a table, as JSON, as a
picture."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from lngrad.ascend.device.core import Core
from lngrad.ascend.device.spans import Instruction
from lngrad.ascend.device.timeline import timeline_svg

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

    @classmethod
    def of(cls, core: Core) -> BlockReport:
        """Return the report of a core that has ended."""
        tally = core.tally
        return cls(
            core.index,
            core.ub.peak,
            tally.bytes_in,
            tally.bytes_out,
            dict(tally.tile_apis),
            dict(core.instructions().most_common()),
            dict(tally.api_instructions),
        )


@dataclass(frozen=True)
class Timeline:
    """What each block issued, in order, and the pairs of set flags and waits."""

    blocks: tuple[tuple[str, Sequence[Instruction]], ...]
    arrows: tuple[tuple[Instruction, Instruction], ...]


@dataclass(frozen=True)
class LaunchReport:
    """What a launch did, block by block."""

    kernel: str
    soc: str
    ub_bytes: int
    blocks: tuple[BlockReport, ...]
    timeline: Timeline | None = field(default=None, repr=False, compare=False)

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
        return timeline_svg(self.timeline.blocks, self.timeline.arrows)

    def table(self) -> str:
        """Return the report as a table of text, one line a block."""
        lines = [HEAD]
        for block in self.blocks:
            calls = sorted(block.tile_apis.items())
            apis = "; ".join(f"{name}: {count}, {block.api_instructions[name]:,}" for name, count in calls) or "-"
            lines.append(
                (
                    str(block.block),
                    f"{block.peak_ub_bytes:,}",
                    f"{100 * block.peak_ub_bytes / self.ub_bytes:.1f} %",
                    f"{block.bytes_in:,}",
                    f"{block.bytes_out:,}",
                    f"{sum(block.instructions.values()):,}",
                    apis,
                )
            )
        widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
        rows = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([f"{self.kernel} on {self.soc}, {len(self.blocks)} blocks", *rows])

    __str__ = table


def timeline_of(cores: Sequence[Core]) -> Timeline:
    """Return the timeline of cores that have ended and kept one."""
    return Timeline(
        tuple((f"block {core.index}", tuple(core.log)) for core in cores),
        tuple(arrow for core in cores for arrow in core.arrows),
    )
