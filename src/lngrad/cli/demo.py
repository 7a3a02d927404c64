"""The command `lngrad demo`: a network with a LayerNorm learns digits with lngrad's gradients, which are then checked on it.

64 pixels → 128 → LayerNorm → ReLU → 10 digits, in float32; NumPy, no autograd. examples/train_digits.py is the program to read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from time import sleep
from timeit import repeat
from typing import Annotated, Any, NamedTuple

import numpy as np
from typer import Option

import lngrad
from lngrad.cli.terminal import BUSY, FAILED, fail, need, new_table, say
from lngrad.core.problem import Grads
from lngrad.support.addresses import as_numpy
from lngrad.support.dtypes import numpy_dtype
from lngrad.typing import Array

HIDDEN, BATCH = 128, 64
PASS_ACCURACY = 0.95
DTYPES = ("float32", "bfloat16", "float16")
FIRST_CALLS = [(dtype, backward) for dtype in DTYPES for backward in (False, True)]  # a few seconds each
ATTEMPTS, ROUNDS, CALLS = 3, 5, 20  # of timing while others are quiet; the libraries take turns, some calls at a time
PAUSE_S = 0.005  # between turns: both keep their threads waiting for a while, at the other's cost
COLOURS = {"lngrad": "#0072B2", "torch": "#D55E00"}  # for print and colour-blind readers (after Okabe and Ito)
NEXT = """
Next:
  lngrad check --impl MODULE:FUNCTION    is a kernel of yours right?
  lngrad bench --quick                   how fast is this machine, next to torch?
  lngrad info                            what else can be installed, and what for"""


def demo(
    output: Annotated[Path, Option("--output", "-o", help="A folder for the picture and the results.")] = Path(
        "lngrad-demo"
    ),
    seed: Annotated[int, Option(min=0, help="Of the data's split, the weights and the batches.")] = 0,
    epochs: Annotated[int, Option(min=1, help="How often every image is seen.")] = 30,
) -> None:
    """Train a network with LayerNorm on digits with lngrad's gradients, and check them.

    NumPy and these gradients alone, no autograd. Then the gradients of the trained network's
    activations are compared with float64 and, where torch is installed, with torch's. Ends with 1
    if the network reads less than 95 % of the test images, or if a gradient is out of tolerance.

    Example: lngrad demo --epochs 8
    """
    need("demo", scikit_learn="sklearn", matplotlib="matplotlib")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from lngrad.core.machine import versions
    from lngrad.cpu import prebuilt

    output.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        calls, what = first_calls(), "Compiling, once per machine" if prebuilt.why_not() else "Loading kernels"
        list(progress.track(islice(calls, 2), 2, description=what))
        training = train(progress.track(range(epochs), description="Training"), seed)
        list(progress.track(calls, len(FIRST_CALLS) - 2, description=f"{what}: 16 bits"))
        checks = [check_dtype(dtype, training.layer) for dtype in progress.track(DTYPES, description="Checking")]
    (alone, added), accuracy = family_errors(training.layer), training.accuracies[-1]
    passed = accuracy >= PASS_ACCURACY and all(check.worst["lngrad"] <= 1 for check in checks)

    print_table(checks)
    say(f"Test accuracy {accuracy:.1%} after {epochs} epochs; at least {PASS_ACCURACY:.0%} is asked for.")
    say(f"As RMSNorm: max error {alone:.2f}; as a residual added, then RMSNorm: {added:.2f} (float32, in NumPy).")
    draw(output / "demo.png", training, checks)
    results = {
        "passed": passed, "accuracy": accuracy, "epochs": epochs, "seed": seed, "versions": versions(),
        "loss_by_step": training.losses, "accuracy_by_epoch": training.accuracies,
        "family": {"rms_norm": alone, "add_rms_norm": added},
        "checks": [{"dtype": one.dtype, "max_error_in_tolerances": one.worst, "best_time_us": one.best_us, "busy": one.busy}
                   for one in checks],
    }  # fmt: skip
    (output / "results.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    say(f"Picture and numbers: {output / 'demo.png'}, {output / 'results.json'}")
    if not passed:
        fail("the demonstration failed; see above", FAILED)
    say(NEXT)


Layer = tuple[Array, Array, Array, Array]  # the LayerNorm's dy and x (M, 128), gamma and beta (128,)


class Training(NamedTuple):
    """The loss of every step, the test accuracy after every epoch, and the trained LayerNorm over all training images."""

    losses: list[float]
    accuracies: list[float]
    layer: Layer


def first_calls() -> Iterator[None]:
    """Make FIRST_CALLS. What must be compiled for the later ones is compiled by other processes meanwhile."""
    from lngrad.cpu import cache, prebuilt
    from lngrad.cpu.entries import compile_elsewhere

    folder = cache.FOLDER if prebuilt.why_not() and cache.why_not() is None and find_spec("numba") else None
    kept = {one: f"{'rows' if one[1] else 'forward_rows'}_{one[0]}_float32-*" for one in FIRST_CALLS}
    elsewhere = [one for one in FIRST_CALLS if folder and not list(folder.glob(kept[one]))]
    compiled = compile_elsewhere(f"from lngrad.cli.demo import first_call\nfirst_call{one}" for one in elsewhere)
    for one in FIRST_CALLS:
        if one in elsewhere:
            next(compiled)
        first_call(*one)
        yield


def first_call(dtype: str, backward: bool) -> None:
    """Calls with the network's columns, for one thread and for several; kernels that are not kept yet are compiled.

    Twice each: what finds known calls is compiled with the second.
    """
    for M in (BATCH, 2048) * 2:
        x, rows = np.ones((M, HIDDEN), numpy_dtype(dtype)), np.ones(M, np.float32)
        if backward:
            lngrad.layer_norm_backward(x, x, rows, rows, x[0])
        else:
            lngrad.layer_norm(x)


def new_parameters(rng: np.random.Generator) -> list[Array]:
    """Random weights (He et al., 2015), and a LayerNorm that does nothing yet: w1, gamma, beta, w2."""
    w1, w2 = rng.standard_normal((64, HIDDEN)) / np.sqrt(32), rng.standard_normal((HIDDEN, 10)) / np.sqrt(HIDDEN / 2)
    return [one.astype(np.float32) for one in (w1, np.ones(HIDDEN), np.zeros(HIDDEN), w2)]


def loss_and_gradients(
    parameters: list[Array], images: Array, labels: Array
) -> tuple[float, list[Array], Layer, Array]:
    """Mean cross-entropy of images (M, 64), the parameters' gradients, the LayerNorm's arrays, and the digits read."""
    w1, gamma, beta, w2 = parameters
    x = images @ w1
    y, mean, rstd = lngrad.layer_norm(x, gamma=gamma, beta=beta)
    hidden = np.maximum(y, 0)
    logits = hidden @ w2
    shifted = logits - logits.max(1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    right = np.arange(len(labels)), labels
    dlogits = np.exp(log_probabilities)
    dlogits[right] -= 1
    dlogits /= len(labels)
    dy = (dlogits @ w2.T) * (y > 0)
    dx, dgamma, dbeta = lngrad.layer_norm_backward(dy, x, mean, rstd, gamma)
    gradients = [images.T @ dx, dgamma, dbeta, hidden.T @ dlogits]
    return -float(log_probabilities[right].mean()), gradients, (dy, x, gamma, beta), logits.argmax(1)


def train(epochs: Iterable[int], seed: int) -> Training:
    """Train a new network on scikit-learn's 1,797 digits but for a random quarter; equal seeds give equal networks.

    dy of the result is scaled by a power of two until its largest element lies between 0.5 and 1, the usual care that
    float16 takes: the loss of a trained network hardly has a gradient left.
    """
    from sklearn.datasets import load_digits
    from threadpoolctl import threadpool_limits  # scikit-learn's

    rng, digits = np.random.default_rng(seed), load_digits()
    images, labels = (digits.data / 16 - 0.5).astype(np.float32), digits.target
    test, chosen = np.split(rng.permutation(len(images)), [len(images) // 4])
    parameters, losses, accuracies = new_parameters(rng), list[float](), list[float]()
    velocities = [np.zeros_like(one) for one in parameters]
    # Products of 64 columns are too small for two threads: on 2 busy cores of an AMD EPYC 9005 OpenBLAS's threads
    # waited for each other, and 30 epochs took 3 to 18 s in place of less than one.
    with threadpool_limits(1, user_api="blas"):
        for _ in epochs:
            for batch in np.array_split(rng.permutation(chosen), -(-len(chosen) // BATCH)):
                loss, gradients, _, _ = loss_and_gradients(parameters, images[batch], labels[batch])
                losses.append(loss)
                for parameter, velocity, gradient in zip(parameters, velocities, gradients, strict=True):
                    velocity += -0.1 * velocity - 0.05 * gradient  # gradient descent with momentum
                    parameter += velocity
            read = loss_and_gradients(parameters, images[test], labels[test])[3]
            accuracies.append(float((read == labels[test]).mean()))
        dy, x, gamma, beta = loss_and_gradients(parameters, images[chosen], labels[chosen])[2]
    scaled = dy * np.float32(2.0 ** -np.frexp(np.abs(dy).max())[1])
    return Training(losses, accuracies, (scaled, x, gamma, beta))


class Check(NamedTuple):
    """What was found for a dtype, by library: the error of every element in units of the tolerance, a call's best time."""

    dtype: str
    errors: dict[str, Array]
    best_us: dict[str, float]
    busy: bool = False  # other programs used the machine in every attempt: times are not compared

    @property
    def worst(self) -> dict[str, float]:
        """The largest error by library; above 1 it is out of tolerance."""
        return {name: float(errors.max()) for name, errors in self.errors.items()}


def check_dtype(dtype: str, layer: Layer) -> Check:
    """Round the layer's arrays to a dtype, compute, compare and time, with torch in turns where it is installed."""
    from lngrad.bench.measure import Others
    from lngrad.check.implementations import IMPLEMENTATIONS, Arguments
    from lngrad.testing import Inputs, error_shares

    dy, x, gamma, beta = (array.astype(numpy_dtype(dtype)) for array in layer)
    _, mean, rstd = lngrad.layer_norm(x, gamma=gamma, beta=beta)
    calls: dict[str, Callable[[], Any]] = {"lngrad": lambda: lngrad.layer_norm_backward(dy, x, mean, rstd, gamma)}
    statistics = {"lngrad": (mean, rstd)}  # each library is judged with those of its own forward
    if find_spec("torch") is not None:
        given, torch = Arguments(dy, x, None, None, gamma, beta, gamma.shape), IMPLEMENTATIONS["torch"]
        assert torch.forward is not None  # its row has one
        mean_, rstd_ = map(as_numpy, torch.forward(given)()[1:])
        statistics["torch"], calls["torch"] = (mean_, rstd_), torch.backward(replace(given, mean=mean_, rstd=rstd_))
    errors = {}
    for name, call in calls.items():
        shares = error_shares(Grads(*call()), Inputs(dy, x, *statistics[name], gamma, beta, 1))
        errors[name] = np.concatenate([share.ravel() for share in shares])
    best = dict.fromkeys(calls, float("inf"))  # on a busy machine the best time varies less than the median
    for _ in range(ATTEMPTS):
        others = Others()
        for name in list(calls) * ROUNDS:
            sleep(PAUSE_S)
            best[name] = min(best[name], *repeat(calls[name], number=1, repeat=CALLS))
        if not (busy := others.share() > BUSY):
            break
        sleep(100 * PAUSE_S)
    return Check(dtype, errors, {name: 1e6 * seconds for name, seconds in best.items()}, busy)


def family_errors(layer: Layer) -> list[float]:
    """Largest errors of a layer's gradients were it an RMSNorm, and one of a sum; in NumPy, for which nothing is compiled.

    Raises:
        GradientError: One is out of tolerance.
    """
    from lngrad.testing import Inputs, Normalization, check_grads

    (dy, x, gamma, _), found = layer, []
    for residual in (None, dy):
        _, rstd, total = lngrad.rms_norm(x, gamma=gamma, residual=residual, backend="numpy_cpu")
        given = (dy, x if residual is None else total, rstd, gamma)
        grads = lngrad.rms_norm_backward(*given, dtotal=residual, backend="numpy_cpu")
        norm = Normalization(centred=False)
        found.append(check_grads(grads, Inputs(dy, x, 0 * rstd, rstd, gamma, None, 1, norm, residual, residual)))
    return found


def print_table(checks: list[Check]) -> None:
    """One row a dtype: largest errors in tolerances, best times as called, and their ratio."""
    from rich.console import Console

    headings = "lngrad: max error", "torch: max error", "lngrad: best µs", "torch: best µs", "torch ÷ lngrad"
    table = new_table("Gradients of the trained network's LayerNorm, against float64", "dtype", right=headings)
    for check in checks:
        ours, torch = check.best_us["lngrad"], check.best_us.get("torch")
        theirs = ("–", f"{ours:.0f}", "–", "–") if torch is None else (
            _short(check.worst["torch"]), f"{ours:.0f}", f"{torch:.0f}",
            "busy" if check.busy else f"{torch / ours:.1f}×")  # fmt: skip
        table.add_row(check.dtype, _short(check.worst["lngrad"]), *theirs)
    busy = "; busy: not measured, other programs use the machine" if any(one.busy for one in checks) else ""
    table.caption = "max error: 1 is the tolerance" + (busy if torch else "; torch is not installed")
    Console().print(table)


def _short(error: float) -> str:
    return f"{error:.2f}" if error < 10 else f"{error:.0f}"


def draw(path: Path, training: Training, checks: list[Check]) -> None:
    """Loss and accuracy above, the distribution of errors for each dtype below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    below = [one.dtype for one in checks for _ in range(6 // len(checks))]
    axes: dict[str, Any] = figure.subplot_mosaic([["loss"] * 3 + ["accuracy"] * 3, below])
    figure.suptitle("A 64–128–10 network with LayerNorm learns digits: NumPy, lngrad's gradients, no autograd")
    loss, accuracy, colour = axes["loss"], axes["accuracy"], COLOURS["lngrad"]
    epochs, percent = len(training.accuracies), 100 * np.asarray(training.accuracies)
    loss.semilogy(np.linspace(0, epochs, len(training.losses)), training.losses, color=colour, linewidth=0.8)
    loss.set(xlabel="epoch", ylabel="training loss of each batch", xlim=(0, epochs))
    accuracy.plot(range(1, epochs + 1), percent, color=colour, marker="o", label=f"at the end {percent[-1]:.1f} %")
    accuracy.axhline(100 * PASS_ACCURACY, color="grey", linestyle="--", label=f"asked for: {PASS_ACCURACY:.0%}")
    accuracy.set(xlabel="epoch", ylabel="test accuracy (%)", ylim=(min(90, percent.min()) - 1, 100.5))
    accuracy.legend(frameon=False, loc="lower right")
    for check in checks:
        axis = axes[check.dtype]
        for name, errors in check.errors.items():
            label, shares = f"{name} (max {_short(check.worst[name])})", np.full(errors.size, 1 / errors.size)
            axis.hist(errors.clip(1e-4, 1e2), np.logspace(-4, 2, 49), weights=shares, alpha=0.6, label=label,
                      histtype="stepfilled" if name == "lngrad" else "step", color=COLOURS[name])  # fmt: skip
        axis.axvline(1, color="black", linewidth=1, label="tolerance")
        axis.set(title=check.dtype, xscale="log", yscale="log", ylim=(1e-6, 20),
                 xlabel="error of dx, dgamma and dbeta, in tolerances", ylabel="share of all elements")  # fmt: skip
        axis.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=150)
