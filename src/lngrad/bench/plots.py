"""Pictures of records: how many times faster than the best peer, and how close to the roofline."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from lngrad.bench.records import Case, Record, best, newest, threads_of

_COLOURS = {"float32": "#4269d0", "bfloat16": "#efb118", "float16": "#3ca951"}
_INK, _GRID = "#2b2b2b", "#d9d9d9"

PEER_NAMES = {"torch": "torch", "onednn": "oneDNN", "compile": "torch.compile", "jax": "JAX", "mindspore": "MindSpore"}

# The processors of records that were made before records had instruction sets.
_AVX2 = ("family 25, model 1",)


def machine_name(line: Record) -> str:
    """A record's processor and its widest vectors, such as "AMD EPYC (family 25, model 1), AVX2"."""
    machine = line["machine"]
    name = re.sub(r", \d+ logical cores$", "", machine["cpu"])
    name = " ".join(re.sub(r"\((R|TM)\)|\bProcessor\b|\bCPU\b", "", name).split())
    known = machine.get("instruction_sets", ["avx2"] if any(part in name for part in _AVX2) else [])
    widest = "AVX-512" if "avx512f" in known else "AVX2" if "avx2" in known else None
    return f"{name}, {widest}" if widest else name


def plot(machines: list[list[Record]], path: Path, scope: str = "kernel") -> None:
    """Draw ratios to the best peer and shares of the roofline, of the newest record of each case.

    Args:
        machines: Records, a list a machine; each machine has a column of its own.
        path: Where to write; .svg or .png.
        scope: One whose records are backwards and have a roofline: kernel, or call of a CUDA
            device.

    Raises:
        ValueError: No record of this scope has a peer.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = [found for found in (newest(lines, scope) for lines in machines) if found]
    if not chosen:
        raise ValueError(f"plot: expected {scope} records with a peer, got none")
    with pyplot.rc_context({"svg.hashsalt": "lngrad", "font.size": 9, "text.color": _INK, "axes.labelcolor": _INK}):
        size = (9.5 if len(chosen) == 1 else 7.5 * len(chosen), 6.2)
        figure, axes = pyplot.subplots(
            2, len(chosen), figsize=size, height_ratios=(3, 2), sharex="col", sharey="row", squeeze=False
        )
        for number, found in enumerate(chosen):
            _column(axes[0, number], axes[1, number], found)
        axes[0, 0].set_ylabel("times faster than the best peer")
        axes[0, 0].legend(frameon=False, ncols=3, loc="upper left")
        axes[1, 0].set_ylabel("share of the roofline")
        figure.suptitle("LayerNorm backward (dx, dgamma, dbeta)", x=0.01, ha="left")
        figure.text(0.01, 0.01, "medians of interleaved rounds; the roofline is a pass through memory", fontsize=7)
        figure.tight_layout(rect=(0, 0.02, 1, 1))
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=160)
        pyplot.close(figure)


def _column(upper: Any, lower: Any, found: dict[Case, Record]) -> None:
    """One machine: ratios above, roofline below."""
    shapes = list(dict.fromkeys(case[:2] for case in found))
    dtypes = [dtype for dtype in _COLOURS if any(case[2] == dtype for case in found)]
    width = 0.8 / len(dtypes)
    for number, dtype in enumerate(dtypes):
        records = [found.get((*shape, dtype)) for shape in shapes]
        places = [place - 0.4 + (number + 0.5) * width for place in range(len(shapes))]
        ratios = [best(record)[1] if record else 0 for record in records]
        heights = [ratio - 1 if ratio else 0 for ratio in ratios]  # losses hang below the line
        upper.bar(places, heights, width * 0.92, 1, color=_COLOURS[dtype], label=dtype)
        for place, ratio in zip(places, ratios, strict=True):
            above = {"textcoords": "offset points", "ha": "center", "fontsize": 6.5}
            upper.annotate(f"{ratio:.1f}", (place, ratio), (0, 2), **above)
        shares = [record.get("of_roofline", 0) if record else 0 for record in records]
        lower.bar(places, shares, width * 0.92, color=_COLOURS[dtype])
    upper.set_title(_about(next(iter(found.values()))), loc="left", fontsize=8)
    upper.set_yscale("log", base=2)
    upper.set_yticks([0.5, 1, 2, 4, 8, 16], ["½×", "1×", "2×", "4×", "8×", "16×"])
    labels = [f"{M}×{N}" for M, N in shapes]
    lower.set_xticks(range(len(shapes)), labels, rotation=30, ha="right")
    for axes in (upper, lower):
        axes.axhline(1, color=_INK, linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=_GRID, linewidth=0.6)
        axes.set_axisbelow(True)


def _about(line: Record) -> str:
    """Where a record was made, and against whom."""
    versions = line["versions"]
    peers = ", ".join(f"{PEER_NAMES.get(peer, peer)} {versions.get(peer, '')}".strip() for peer in line["ratio"])
    machine = line["machine"]
    where = machine.get("device") or f"{machine_name(line)}, {threads_of(line)} threads, {machine['cache']}"
    return f"{where}\nagainst {peers}"
