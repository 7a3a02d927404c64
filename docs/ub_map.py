"""Draw docs/ub-of-one-call.svg: the Unified Buffer of a block while the chain example runs.

``python docs/ub_map.py`` runs the kernel of examples/ascendc_chain.py on the simulated Ascend910B1 and draws what it
reserved, and inside the framework's temporary buffer what the tiling of LayerNormGrad lays out.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "examples"))

import ascendc_chain as chain  # noqa: E402  # the examples are not a package

from lngrad_ascend import tiling  # noqa: E402
from lngrad_ascend.ascendc import TPipe, launch  # noqa: E402

WIDTH, ROW, LEFT, RIGHT = 900, 22, 190, 20
COLOURS = {"VECIN": "#7fa7d6", "VECOUT": "#8fc28f", "VECCALC": "#d9c27a", "LCM": "#c9a0c9"}


def allocations() -> list[tuple[str, str, int, int]]:
    """Return (name, position, first byte, bytes) of every buffer of the chain's kernel, in order."""
    found = []

    class Watched(TPipe):
        def check_leaks(self) -> None:
            found.extend((a.name, a.position.value, a.start, a.size) for a in self.ub.allocations)
            super().check_leaks()

    shape = [chain.B, chain.S, chain.H, chain.H]
    info = chain.ChainTiling(
        tiling.GetLayerNormNDTilingInfo(shape, 6144, 4, False),
        tiling.GetLayerNormGradNDTilingInfo(shape, 6144, 4, False),
        tiling.GetLayerNormGradBetaNDTilingInfo(shape, 6144, 4, False),
        chain.EPSILON,
    )
    chain.TPipe = Watched
    rows, matrix, row = (np.ones(s, np.float32) for s in (shape[:2], shape[:3], shape[2:3]))
    x = np.random.default_rng(0).normal(size=matrix.shape).astype(np.float32)
    outputs = [np.empty_like(a) for a in (matrix, rows, rows, matrix, row, row)]
    launch(chain.layernorm_chain, 1, x, row, row, matrix, *outputs, tiling=info, soc="Ascend910B1")
    return found


def draw(buffers: list[tuple[str, str, int, int]]) -> str:
    """Return the SVG: one line a buffer, all on one scale."""
    taken = max(start + size for _, _, start, size in buffers)
    report = tiling.lint("LayerNormGrad", [chain.B, chain.S, chain.H], "float", "Ascend910B1", 6144)
    lines = [(name.removeprefix("buffer 0 of "), position, start, size) for name, position, start, size in buffers]
    lines += [(f"temporary: {part.name}", "LCM", taken + part.start, part.touched) for part in report.buffers]
    end = max(start + size for _, _, start, size in lines)
    scale = (WIDTH - LEFT - RIGHT - 90) / end
    height = ROW * (len(lines) + 3)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="16">Unified Buffer of Ascend910B1 (196,608 bytes), the first {end:,}: LayerNorm, '
        f"LayerNormGrad, LayerNormGradBeta at [{chain.B}, {chain.S}, {chain.H}] float</text>",
    ]
    for index, (name, position, start, size) in enumerate(lines):
        y = ROW * (index + 1) + 4
        parts.append(f'<text x="10" y="{y + 15}">{escape(name)}</text>')
        parts.append(
            f'<rect x="{LEFT + start * scale:.1f}" y="{y + 2}" width="{max(size * scale, 1.5):.1f}" '
            f'height="{ROW - 6}" fill="{COLOURS[position]}" stroke="#444" stroke-width="0.5"/>'
        )
        parts.append(
            f'<text x="{LEFT + (start + size) * scale + 5:.1f}" y="{y + 15}" fill="#555">{start:,} + {size:,}</text>'
        )
    legend_y = ROW * (len(lines) + 2)
    for index, (position, colour) in enumerate(COLOURS.items()):
        x = LEFT + 150 * index
        parts.append(f'<rect x="{x}" y="{legend_y}" width="14" height="14" fill="{colour}" stroke="#444"/>')
        label = "temporary (LCM)" if position == "LCM" else position
        parts.append(f'<text x="{x + 20}" y="{legend_y + 12}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    (DOCS / "ub-of-one-call.svg").write_text(draw(allocations()), encoding="utf-8")
