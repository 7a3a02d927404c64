"""What the demonstration shows: a table, a picture, and the same as JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from lngrad.cli.demo_checks import Check
from lngrad.cli.demo_digits import Training
from lngrad.core.machine import versions

PASS_ACCURACY = 0.95

# Colours that hold up in print and for colour-blind readers (after Okabe and Ito).
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8A8A8A"
LEAST, MOST = -4, 2  # of the histograms: powers of ten of the tolerance


def table(checks: list[Check]) -> Table:
    """One row a dtype: largest errors in tolerances, best times as called, and their ratio."""
    shown = Table(title="Gradients of the trained network's LayerNorm layers, against float64")
    shown.add_column("dtype")
    for heading in ("lngrad: max error", "torch: max error", "lngrad: best µs", "torch: best µs", "torch ÷ lngrad"):
        shown.add_column(heading, justify="right")
    for check in checks:
        cells = [check.dtype, _error(check.lngrad.worst), "–", f"{check.lngrad.time_us:.0f}", "–", "–"]
        if check.torch is not None:
            cells[2], cells[4] = _error(check.torch.worst), f"{check.torch.time_us:.0f}"
            cells[5] = f"{check.torch.time_us / check.lngrad.time_us:.1f}×"
        shown.add_row(*cells)
    shown.caption = "max error: 1 is the tolerance" + ("" if _has_torch(checks) else "; torch is not installed")
    return shown


def _error(share: float) -> str:
    return f"{share:.2f}" if share < 10 else f"{share:.0f}"


def _has_torch(checks: list[Check]) -> bool:
    return any(check.torch is not None for check in checks)


def summary(training: Training, checks: list[Check], seed: int) -> dict[str, Any]:
    """Everything that the table and the picture say, in numbers."""
    return {
        "passed": training.accuracies[-1] >= PASS_ACCURACY and all(check.passed for check in checks),
        "accuracy": training.accuracies[-1],
        "epochs": len(training.accuracies),
        "seed": seed,
        "loss_by_step": [round(loss, 6) for loss in training.losses],
        "accuracy_by_epoch": [round(share, 6) for share in training.accuracies],
        "checks": [
            {
                "dtype": check.dtype,
                "passed": check.passed,
                **{
                    name: {"max_error_in_tolerances": side.worst, "best_time_us": side.time_us}
                    for name, side in (("lngrad", check.lngrad), ("torch", check.torch))
                    if side is not None
                },
            }
            for check in checks
        ],
        "versions": versions(),
    }


def write_json(path: Path, results: dict[str, Any]) -> None:
    _write_whole(path, (json.dumps(results, indent=1) + "\n").encode())


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file that Ctrl-C leaves as it was or finds finished."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def draw(path: Path, training: Training, checks: list[Check]) -> None:
    """Loss and accuracy above, the distribution of errors for each dtype below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    halves = figure.subfigures(2, 1, squeeze=False, hspace=0.06)
    _draw_training(halves[0, 0], training)
    _draw_errors(halves[1, 0], checks)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150)
    _write_whole(path, picture.getvalue())


def _draw_training(figure: Any, training: Training) -> None:
    figure.suptitle(
        "A 64–128–128–10 network with LayerNorm learns digits: NumPy, lngrad's gradients, no autograd",
        fontsize=12,
        fontweight="bold",
    )
    loss, read = figure.subplots(1, 2)
    epochs = np.arange(1, len(training.accuracies) + 1)
    steps = np.arange(1, len(training.losses) + 1) * epochs[-1] / len(training.losses)
    by_epoch = [chunk.mean() for chunk in np.array_split(np.asarray(training.losses), len(epochs))]
    loss.semilogy(steps, training.losses, color=BLUE, alpha=0.25, linewidth=0.8, label="each batch")
    loss.semilogy(epochs - 0.5, by_epoch, color=BLUE, linewidth=2, label="mean of an epoch")
    loss.set(xlabel="epoch", ylabel="training loss (cross-entropy)", xlim=(0, epochs[-1]))
    loss.legend(frameon=False)

    read.plot(epochs, 100 * np.asarray(training.accuracies), color=BLUE, linewidth=2, marker="o", markersize=3)
    read.axhline(100 * PASS_ACCURACY, color=GREY, linestyle="--", linewidth=1)
    read.text(epochs[-1], 100 * PASS_ACCURACY - 0.3, "asked for: 95 %", color=GREY, ha="right", va="top")
    last = 100 * training.accuracies[-1]
    read.annotate(f"{last:.1f} %", (epochs[-1], last), (-4, 7), textcoords="offset points", ha="right", color=BLUE)
    read.set(xlabel="epoch", ylabel="test accuracy (%)", ylim=(min(90, 100 * min(training.accuracies)) - 1, 100.5))
    _tidy(loss, read)


def _draw_errors(figure: Any, checks: list[Check]) -> None:
    figure.suptitle(
        "Errors of dx, dgamma and dbeta for the trained network's activations, against float64",
        fontsize=12,
        fontweight="bold",
    )
    axes = figure.subplots(1, len(checks), sharex=True, sharey=True, squeeze=False)[0]
    bins = np.linspace(LEAST, MOST, 8 * (MOST - LEAST) + 1)
    for axis, check in zip(axes, checks, strict=True):
        for name, side, color in (("lngrad", check.lngrad, BLUE), ("torch", check.torch, ORANGE)):
            if side is None:
                continue
            powers = np.log10(np.clip(side.errors, 10.0**LEAST, 10.0**MOST))
            weights = np.full(powers.size, 1 / powers.size)
            label = f"{name} (max {_error(side.worst)})"
            style = {"color": color, "alpha": 0.55} if name == "lngrad" else {"color": color, "linewidth": 1.3}
            kind = "stepfilled" if name == "lngrad" else "step"
            axis.hist(powers, bins, weights=weights, histtype=kind, label=label, **style)
        axis.axvline(0, color="black", linewidth=1)
        axis.set(title=check.dtype, yscale="log", xlim=(LEAST, MOST), ylim=(1e-6, 20))
        axis.set_xticks(range(LEAST, MOST + 1, 2), [f"≤ {_power(LEAST)}", *map(_power, range(LEAST + 2, MOST + 1, 2))])
        axis.set_xlabel("error in units of the tolerance")
        axis.legend(frameon=False, loc="upper left")
    axes[0].set_ylabel("share of all elements")
    axes[0].set_yticks(10.0 ** np.arange(-6, 1))
    axes[0].minorticks_off()
    axes[0].text(0.08, 1.5e-6, "tolerance", rotation=90, va="bottom", fontsize=9)
    _tidy(*axes)


def _power(exponent: int) -> str:
    return "1" if exponent == 0 else f"10$^{{{exponent}}}$"


def _tidy(*axes: Any) -> None:
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(True, which="major", color="#E4E4E4", linewidth=0.6)
        axis.set_axisbelow(True)
