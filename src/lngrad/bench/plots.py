"""Pictures of records: how many times faster than a peer, and how close to the roofline."""

from __future__ import annotations

from pathlib import Path

from lngrad.bench.records import Record, newest, threads_of

__all__ = ["plot"]

_COLOURS = {"float32": "#4269d0", "bfloat16": "#efb118", "float16": "#3ca951"}
_INK, _GRID = "#2b2b2b", "#d9d9d9"


def plot(lines: list[Record], path: Path, peer: str = "torch", scope: str = "kernel") -> None:
    """Draw ratios to a peer and shares of the roofline, of the newest record of each case.

    Args:
        lines: Records.
        path: Where to write; .svg or .png.
        peer: Whose ratio.
        scope: One whose records are backwards and have a roofline: kernel, or call of a CUDA
            device.

    Raises:
        ValueError: No record of this scope has this peer.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = newest(lines, scope, peer)
    if not chosen:
        raise ValueError(f"plot: expected {scope} records with {peer}, got none")
    shapes = list(dict.fromkeys(shape for shape, _ in chosen))
    dtypes = [dtype for dtype in _COLOURS if any(key[1] == dtype for key in chosen)]
    with pyplot.rc_context({"svg.hashsalt": "lngrad", "font.size": 9, "text.color": _INK, "axes.labelcolor": _INK}):
        figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(9.5, 6.2), height_ratios=(3, 2), sharex=True)
        width = 0.8 / len(dtypes)
        for number, dtype in enumerate(dtypes):
            records = [chosen.get((shape, dtype)) for shape in shapes]
            places = [k - 0.4 + (number + 0.5) * width for k in range(len(shapes))]
            ratios = [record["ratio"][peer] if record else 0 for record in records]
            upper.bar(places, ratios, width * 0.92, color=_COLOURS[dtype], label=dtype)
            for x, ratio in zip(places, ratios, strict=True):
                upper.annotate(
                    f"{ratio:.1f}", (x, ratio), (0, 2), textcoords="offset points", ha="center", fontsize=6.5
                )
            lower.bar(
                places,
                [record["of_roofline"] if record else 0 for record in records],
                width * 0.92,
                color=_COLOURS[dtype],
            )
        upper.set_yscale("log", base=2)
        upper.set_yticks([1, 2, 4, 8, 16], ["1×", "2×", "4×", "8×", "16×"])
        upper.axhline(1, color=_INK, linewidth=0.8)
        upper.set_ylabel(f"times faster than {peer}")
        upper.legend(frameon=False, ncols=3, loc="upper left")
        lower.axhline(1, color=_INK, linewidth=0.8)
        lower.set_ylabel("share of the roofline")
        lower.set_xticks(range(len(shapes)), [shape.replace("x", "×") for shape in shapes], rotation=30, ha="right")
        for axes in (upper, lower):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color=_GRID, linewidth=0.6)
            axes.set_axisbelow(True)
        first = next(iter(chosen.values()))
        machine, versions = first["machine"], first["versions"]
        against = f"{peer} {versions.get(peer, '')}".strip()
        where = machine.get("device", f"{threads_of(first)} threads")
        below = "roofline: a device copy" if "device" in machine else f"{machine['cpu']}, {machine['cache']}"
        figure.suptitle(f"LayerNorm backward (dx, dgamma, dbeta) against {against}, {where}", x=0.01, ha="left")
        figure.text(0.01, 0.01, f"{below}; medians of interleaved rounds", fontsize=7)
        figure.tight_layout(rect=(0, 0.02, 1, 1))
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=160)
        pyplot.close(figure)
