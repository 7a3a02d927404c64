"""Pictures of records: how many times faster than the best peer, and how close to memory's speed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lngrad.bench.cases import Settings
from lngrad.bench.records import Case, Record, best, newest, threads_of

_COLOURS = {"float32": "#4269d0", "bfloat16": "#efb118", "float16": "#3ca951"}
Cases = dict[Case, Record]  # a machine's newest records
_INK, _GRID = "#2b2b2b", "#d9d9d9"

PEER_NAMES = {
    "layer_norm": "our layer_norm", "separate": "add, then ours", "llama": "Llama's formula",
    "compile_llama": "the formula compiled", "torch": "torch", "onednn": "oneDNN", "compile": "torch.compile", "jax": "JAX",
    "mindspore": "MindSpore",
}  # fmt: skip

# What a processor that a virtual machine does not name is sold as, by family and model.
_SOLD_AS = {
    "AMD EPYC (family 25, model 1)": "AMD EPYC 7003",
    "AMD EPYC (family 25, model 17)": "AMD EPYC 9004",
    "AMD EPYC (family 26, model 2)": "AMD EPYC 9005",
    "Intel Xeon (family 6, model 143)": "Intel Xeon, 4th generation",
    "Intel Xeon (family 6, model 167)": "Intel Xeon with AMX",
    "Intel Xeon (family 6, model 207)": "Intel Xeon, 5th generation",
}
_AVX2 = ("AMD EPYC 7003",)  # of records that were made before records had instruction sets


def processor_name(name: str) -> str:
    """A processor as pages name it, such as "AMD EPYC 7003"."""
    name = " ".join(re.sub(r"\((R|TM)\)|\bProcessor\b|\bCPU\b", "", name).split())
    return _SOLD_AS.get(name, name)


def machine_name(line: Record) -> str:
    """A record's processor and its widest vectors, such as "AMD EPYC 7003, AVX2"."""
    machine = line["machine"]
    name = processor_name(re.sub(r", \d+ logical cores$", "", machine["cpu"]))
    known = machine.get("instruction_sets", ["avx2"] if name in _AVX2 else [])
    widest = "AVX-512" if "avx512f" in known else "AVX2" if "avx2" in known else None
    return f"{name}, {widest}" if widest else name


def check_plot(settings: Settings, drawn: str, reason: Callable[[str], str | None]) -> None:
    """Refuse a picture without bars before a run, which may take long.

    Args:
        settings: Of the run.
        drawn: The scope that is drawn.
        reason: Why a peer cannot be compared with, or None.

    Raises:
        ValueError: There will be nothing to draw.
    """
    scopes = ",".join(settings.scopes)
    if drawn not in settings.scopes:
        raise ValueError(f"plot: expected {drawn} among the scopes, since it is what is drawn, got {scopes}")
    reasons = {name: reason(name) for name in settings.peers}
    if None not in reasons.values():
        got = ", ".join(f"{name} ({why})" for name, why in reasons.items()) or "none"
        raise ValueError(f"plot: expected a peer that can be compared with, got {got}")


def plot(machines: list[list[Record]], path: Path, scope: str = "kernel") -> None:
    """Draw ratios to the best peer, and of one machine alone shares of the roofline, of the newest record of each case.

    Args:
        machines: Records, a list a machine; each machine has a panel of its own.
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
        with_shares = scope != "override" and len(chosen) == 1
        panels = len(chosen) + with_shares
        shapes = sorted({case[:2] for found in chosen for case in found}, key=lambda shape: shape[0] * shape[1])
        size = 5 if len(shapes) < 14 else 7.8, 1.3 + 1.7 * panels  # inches: a phone shows the width as five
        figure, axes = pyplot.subplots(panels, 1, figsize=size, sharex=True, squeeze=False)
        for number, found in enumerate(chosen):
            _ratios(axes[number, 0], found, shapes)
        if with_shares:
            _shares(axes[-1, 0], chosen[0], shapes)
        for panel in axes[:, 0]:
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(axis="y", color=_GRID, linewidth=0.6)
            panel.set_axisbelow(True)
        axes[-1, 0].set_xticks(range(len(shapes)), [f"{M}×{N}" for M, N in shapes], rotation=45, ha="right")
        what = "under override(), torch = 1" if scope == "override" else "backward, the best peer = 1"
        figure.suptitle(f"Speed of LayerNorm {what}", x=0.01, y=0.995, ha="left", fontsize=10)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(0, 1 - 0.2 / size[1]))
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.4 / size[1]))
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=160)
        pyplot.close(figure)


def _ratios(panel: Any, found: Cases, shapes: list[Any]) -> None:
    """One machine: a bar a case, above the line at 1 where it is won."""
    panel.axhline(1, color=_INK, linewidth=0.8)
    _bars(panel, found, shapes, lambda record: best(record)[1], 1)
    line = next(iter(found.values()))
    machine, versions = line["machine"], line["versions"]
    peers = ", ".join(f"{PEER_NAMES.get(peer, peer)} {versions.get(peer, '')}".strip() for peer in line["ratio"])
    where = machine.get("device") or f"{machine_name(line)}, {threads_of(line)} threads"
    panel.set_title(f"{where}, against {peers}", loc="left", fontsize=8)
    panel.set_yscale("log", base=2)
    ticks = [1 << power for power in range(6) if 1 << power < 2 * panel.get_ylim()[1]]
    panel.set_yticks(ticks, [f"{tick}×" for tick in ticks])


def _shares(panel: Any, found: Cases, shapes: list[Any]) -> None:
    panel.axhline(1, color=_INK, linewidth=0.8)
    _bars(panel, found, shapes, lambda record: record.get("of_roofline"), 0)
    panel.set_title(
        "share of the roofline, a pass through memory: above 1 a case fits the cache", loc="left", fontsize=8
    )


def _bars(
    panel: Any,
    found: Cases,
    shapes: list[Any],
    value: Callable[[Record], Any],
    bottom: int,
) -> None:
    for number, (dtype, colour) in enumerate(_COLOURS.items()):
        points = [
            (place + 0.26 * (number - 1), height - bottom)
            for place, shape in enumerate(shapes)
            if (record := found.get((*shape, dtype))) is not None and (height := value(record)) is not None
        ]
        if points:
            panel.bar(*zip(*points, strict=True), width=0.24, bottom=bottom, color=colour, label=dtype)
