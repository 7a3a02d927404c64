"""The command `lngrad demo`: a network learns digits with lngrad's gradients, which are then checked on its activations.

64 pixels → 128 → LayerNorm → ReLU → 128 → LayerNorm → ReLU → 10 digits, in float32, by Adam; NumPy, no autograd.
examples/train_digits.py is the shorter one to read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from typer import Option

import lngrad
from lngrad.cli.terminal import FAILED, fail, need, new_table, say
from lngrad.core.dtypes import numpy_dtype
from lngrad.typing import Array

if TYPE_CHECKING:
    from rich.table import Table

    from lngrad.testing import Inputs

HIDDEN, BATCH = 128, 64
RATE = 2e-3  # Adam's, at the start; it falls to 0 along half a cosine
PASS_ACCURACY = 0.95
DTYPES = ("float32", "bfloat16", "float16")
FIRST_CALLS = [(dtype, backward) for dtype in DTYPES for backward in (False, True)]  # a few seconds each
ROUNDS, CALLS = 5, 20  # of timing: the libraries take turns, some calls at a time
MANY = 2048  # rows, which several threads share
TURN_S = 0.05  # at most; on busy cores torch's threads waited 12 ms for each other in every call
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

    from lngrad.cpu import prebuilt

    output.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        if prebuilt.why_not():
            for dtype, backward in progress.track(FIRST_CALLS, description="Compiling, once per machine"):
                first_call(dtype, backward)
        bar = progress.add_task("Training", total=epochs)
        training = train(epochs, seed, advance=lambda: progress.advance(bar))
        layers = layer_inputs(training)
        checks = [check_dtype(dtype, layers) for dtype in progress.track(DTYPES, description="Checking")]

    results = {**summary(training, checks, seed), "family": family_errors(layers[0])}
    Console().print(table(checks))
    accuracy = f"Test accuracy {results['accuracy']:.1%} after {epochs} epochs"
    say(f"{accuracy}; at least {PASS_ACCURACY:.0%} is asked for.")
    alone, added = map(_short, results["family"].values())
    say(f"As RMSNorm: max error {alone}; as a residual added, then RMSNorm: {added} (float32, in NumPy).")
    draw(output / "demo.png", training, checks)
    (output / "results.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    say(f"Picture and numbers: {output / 'demo.png'}, {output / 'results.json'}")
    if not results["passed"]:
        fail("the demonstration failed; see above", FAILED)
    say(NEXT)


# The network. Its parameters: weight, bias, gamma and beta of either hidden layer, weight and bias of the last.


class Hidden(NamedTuple):
    """What the backward of a hidden layer needs of its forward."""

    inputs: Array
    x: Array  # of the LayerNorm
    mean: Array
    rstd: Array
    passed: Array  # by the ReLU


def new_parameters(rng: np.random.Generator) -> list[Array]:
    """Random weights (He et al., 2015), and LayerNorms that do nothing yet."""
    parameters = []
    for inputs, outputs in ((64, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 10)):
        parameters += [rng.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs), np.zeros(outputs)]
        parameters += [np.ones(outputs), np.zeros(outputs)] if outputs == HIDDEN else []
    return [parameter.astype(np.float32) for parameter in parameters]


def forward(parameters: list[Array], images: Array) -> tuple[Array, list[Hidden], Array]:
    """Logits (M, 10) of images (M, 64), and for the backward both hidden layers and what the last layer reads."""
    hidden, inputs = [], images
    for weight, bias, gamma, beta in (parameters[:4], parameters[4:8]):
        x = inputs @ weight + bias
        y, mean, rstd = lngrad.layer_norm(x, gamma=gamma, beta=beta)
        hidden.append(Hidden(inputs, x, mean, rstd, y > 0))
        inputs = y * (y > 0)
    return inputs @ parameters[8] + parameters[9], hidden, inputs


def backward(
    parameters: list[Array], hidden: list[Hidden], last: Array, dlogits: Array
) -> tuple[list[Array], list[Array]]:
    """Every parameter's gradient from that of the logits, and the dy that either LayerNorm got."""
    gradients, dys = [last.T @ dlogits, dlogits.sum(0)], list[Array]()
    dinputs = dlogits @ parameters[8].T
    for layer, (weight, _, gamma, _) in zip(hidden[::-1], (parameters[4:8], parameters[:4]), strict=True):
        dy = dinputs * layer.passed
        dx, dgamma, dbeta = lngrad.layer_norm_backward(dy, layer.x, layer.mean, layer.rstd, gamma)
        gradients = [layer.inputs.T @ dx, dx.sum(0), dgamma, dbeta, *gradients]
        dys = [dy, *dys]
        dinputs = dx @ weight.T
    return gradients, dys


def loss_and_gradient(logits: Array, labels: Array) -> tuple[float, Array]:
    """Mean cross-entropy of logits (M, 10), and its gradient with respect to them."""
    shifted = logits - logits.max(1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    rows = np.arange(len(labels))
    gradient = np.exp(log_probabilities)
    gradient[rows, labels] -= 1
    return -float(log_probabilities[rows, labels].mean()), gradient / np.float32(len(labels))


@dataclass
class Training:
    """A trained network, its training data, the loss of every step and the test accuracy after every epoch."""

    parameters: list[Array]
    images: Array
    labels: Array
    losses: list[float]
    accuracies: list[float]


def train(epochs: int, seed: int, advance: Callable[[], None] = lambda: None) -> Training:
    """Train a new network on scikit-learn's 1,797 digits but for a random quarter; equal seeds give equal networks.

    Args:
        epochs: How often every image is seen.
        seed: Of the split, the weights and the batches.
        advance: Called after every epoch.
    """
    from sklearn.datasets import load_digits
    from threadpoolctl import threadpool_limits  # scikit-learn's

    rng = np.random.default_rng(seed)
    digits = load_digits()
    images = (digits.data / 16 - 0.5).astype(np.float32)
    test, chosen = np.split(rng.permutation(len(images)), [len(images) // 4])
    parameters = new_parameters(rng)
    training = Training(parameters, images[chosen], digits.target[chosen], [], [])
    mean, square = np.zeros((2, sum(p.size for p in parameters)), np.float32)
    ends = np.cumsum([p.size for p in parameters])[:-1]
    batches = -(-len(chosen) // BATCH)
    # Products of 64 columns are too small for two threads: on 2 busy cores of an AMD EPYC 9005 OpenBLAS's threads
    # waited for each other, and 30 epochs took 3 to 18 s in place of less than one.
    with threadpool_limits(1, user_api="blas"):
        for _ in range(epochs):
            for batch in np.array_split(rng.permutation(len(chosen)), batches):
                logits, hidden, last = forward(parameters, training.images[batch])
                loss, dlogits = loss_and_gradient(logits, training.labels[batch])
                gradients, _ = backward(parameters, hidden, last, dlogits)
                rate = RATE * 0.5 * (1 + np.cos(np.pi * len(training.losses) / (epochs * batches)))
                training.losses.append(loss)
                # Adam (Kingma and Ba, 2015) with its usual constants.
                mean_scale, square_scale = (1 / (1 - decay ** len(training.losses)) for decay in (0.9, 0.999))
                gradient = np.concatenate([g.ravel() for g in gradients])
                mean += np.float32(0.1) * (gradient - mean)
                square += np.float32(0.001) * (gradient * gradient - square)
                step = np.float32(rate) * (mean * mean_scale) / (np.sqrt(square * square_scale) + np.float32(1e-8))
                for p, change in zip(parameters, np.split(step, ends), strict=True):
                    p -= change.reshape(p.shape)
            read = forward(parameters, images[test])[0].argmax(1)
            training.accuracies.append(float((read == digits.target[test]).mean()))
            advance()
    return training


# The check: gradients of the trained network's own activations, against float64 and, if installed, torch.

Layer = tuple[Array, Array, Array, Array]  # dy, x, gamma, beta


@dataclass
class Check:
    """What was found for one dtype over both LayerNorms, by library: lngrad, and torch if it is installed."""

    dtype: str
    errors: dict[str, Array]  # of every element, in units of the tolerance
    times_us: dict[str, float]  # a call's best

    @property
    def worst(self) -> dict[str, float]:
        """The largest error by library; above 1 it is out of tolerance."""
        return {name: float(errors.max()) for name, errors in self.errors.items()}

    @property
    def passed(self) -> bool:
        return self.worst["lngrad"] <= 1


def first_call(dtype: str, backward: bool) -> None:
    """Calls with the network's columns; where their kernels are not kept yet, this compiles them.

    Twice each: what finds known calls is compiled with the second.
    """
    for M in (BATCH, MANY) * 2:
        x, rows = np.ones((M, HIDDEN), numpy_dtype(dtype)), np.ones(M, np.float32)
        if backward:
            lngrad.layer_norm_backward(x, x, rows, rows, x[0])
        else:
            lngrad.layer_norm(x)


def layer_inputs(training: Training) -> list[Layer]:
    """Inputs of either LayerNorm's backward, over all training images at once.

    dy is scaled by a power of two so that its largest element lies between 0.5 and 1, which is the
    usual care that float16 takes: the loss of a trained network hardly has a gradient left.
    """
    parameters = training.parameters
    logits, hidden, last = forward(parameters, training.images)
    _, dys = backward(parameters, hidden, last, loss_and_gradient(logits, training.labels)[1])
    return [
        (dy * np.float32(2.0 ** -np.frexp(np.abs(dy).max())[1]), layer.x, gamma, beta)
        for dy, layer, gamma, beta in zip(dys, hidden, parameters[2:8:4], parameters[3:8:4], strict=True)
    ]


def check_dtype(dtype: str, layers: list[Layer]) -> Check:
    """Round either layer's inputs to a dtype, compute, compare and time."""
    from lngrad.core.problem import Grads
    from lngrad.testing import error_shares

    rounded = [tuple(array.astype(numpy_dtype(dtype)) for array in layer) for layer in layers]
    libraries = [name for name in COLOURS if find_spec(name) is not None]
    calls = {name: [backward_call(name, *layer) for layer in rounded] for name in libraries}
    errors = {
        name: np.concatenate([share.ravel() for call, inputs in some for share in error_shares(Grads(*call()), inputs)])
        for name, some in calls.items()
    }
    best = dict.fromkeys(calls, float("inf"))  # on a busy machine the best time varies less than the median
    for _ in range(ROUNDS):
        for name, some in calls.items():
            sleep(PAUSE_S)
            until = perf_counter() + TURN_S
            for call, _ in some * CALLS:
                start = perf_counter()
                call()
                best[name] = min(best[name], 1e6 * (perf_counter() - start))
                if start > until:
                    break
    return Check(dtype, errors, best)


def family_errors(layer: Layer) -> dict[str, float]:
    """Largest errors of a layer's gradients were it an RMSNorm, and one of a sum; in NumPy, for which nothing is compiled.

    Raises:
        GradientError: One is out of tolerance.
    """
    from lngrad.testing import Inputs, Normalization, check_grads

    dy, x, gamma, _ = layer
    found = {}
    for name, residual in (("rms_norm", None), ("add_rms_norm", dy)):
        _, rstd, total = lngrad.rms_norm(x, gamma=gamma, residual=residual, backend="numpy_cpu")
        normalized = x if residual is None else total
        grads = lngrad.rms_norm_backward(dy, normalized, rstd, gamma, dtotal=residual, backend="numpy_cpu")
        norm = Normalization(centred=False)
        found[name] = check_grads(grads, Inputs(dy, x, 0 * rstd, rstd, gamma, None, 1, norm, residual, residual))
    return found


def backward_call(library: str, dy: Array, x: Array, gamma: Array, beta: Array) -> tuple[Callable[[], Any], Inputs]:
    """A library's backward, and what it is judged by: its inputs, with the mean and rstd of the library's own forward."""
    from lngrad.check.implementations import IMPLEMENTATIONS, Arguments
    from lngrad.core.arrays import as_numpy
    from lngrad.testing import Inputs

    if library == "lngrad":
        _, mean, rstd = lngrad.layer_norm(x, gamma=gamma, beta=beta)
        return lambda: lngrad.layer_norm_backward(dy, x, mean, rstd, gamma), Inputs(dy, x, mean, rstd, gamma, beta, 1)
    given, torch = Arguments(dy, x, None, None, gamma, beta, gamma.shape), IMPLEMENTATIONS["torch"]
    assert torch.forward is not None  # its row has one
    mean, rstd = map(as_numpy, torch.forward(given)()[1:])
    return torch.backward(replace(given, mean=mean, rstd=rstd)), Inputs(dy, x, mean, rstd, gamma, beta, 1)


# The report: a table, a picture, and the same as JSON.


def table(checks: list[Check]) -> Table:
    """One row a dtype: largest errors in tolerances, best times as called, and their ratio."""
    headings = "lngrad: max error", "torch: max error", "lngrad: best µs", "torch: best µs", "torch ÷ lngrad"
    shown = new_table("Gradients of the trained network's LayerNorm layers, against float64", "dtype", right=headings)
    for check in checks:
        errors = (_short(check.worst[name]) if name in check.worst else "–" for name in COLOURS)
        times = (f"{check.times_us[name]:.0f}" if name in check.times_us else "–" for name in COLOURS)
        both = "torch" in check.times_us
        ratio = f"{check.times_us['torch'] / check.times_us['lngrad']:.1f}×" if both else "–"
        shown.add_row(check.dtype, *errors, *times, ratio)
    has_torch = all("torch" in check.errors for check in checks)
    shown.caption = "max error: 1 is the tolerance" + ("" if has_torch else "; torch is not installed")
    return shown


def _short(error: float) -> str:
    return f"{error:.2f}" if error < 10 else f"{error:.0f}"


def summary(training: Training, checks: list[Check], seed: int) -> dict[str, Any]:
    """Everything that the table and the picture say, in numbers."""
    from lngrad.core.machine import versions

    found = [
        {"dtype": check.dtype, "passed": check.passed}
        | {
            name: {"max_error_in_tolerances": e, "best_time_us": check.times_us[name]}
            for name, e in check.worst.items()
        }
        for check in checks
    ]
    return {
        "passed": training.accuracies[-1] >= PASS_ACCURACY and all(check.passed for check in checks),
        "accuracy": training.accuracies[-1],
        "epochs": len(training.accuracies),
        "seed": seed,
        "loss_by_step": [round(loss, 6) for loss in training.losses],
        "accuracy_by_epoch": [round(share, 6) for share in training.accuracies],
        "checks": found,
        "versions": versions(),
    }


def draw(path: Path, training: Training, checks: list[Check]) -> None:
    """Loss and accuracy above, the distribution of errors for each dtype below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    ((above,), (below,)) = figure.subfigures(2, 1, squeeze=False, hspace=0.06)
    above.suptitle("A 64–128–128–10 network with LayerNorm learns digits: NumPy, lngrad's gradients, no autograd")
    loss, read = above.subplots(1, 2)
    epochs = np.arange(1, len(training.accuracies) + 1)
    steps = np.arange(1, len(training.losses) + 1) * epochs[-1] / len(training.losses)
    by_epoch = [chunk.mean() for chunk in np.array_split(np.asarray(training.losses), len(epochs))]
    loss.semilogy(steps, training.losses, color=COLOURS["lngrad"], alpha=0.25, linewidth=0.8, label="each batch")
    loss.semilogy(epochs - 0.5, by_epoch, color=COLOURS["lngrad"], linewidth=2, label="mean of an epoch")
    loss.set(xlabel="epoch", ylabel="training loss (cross-entropy)", xlim=(0, epochs[-1]))
    loss.legend(frameon=False)
    percent = 100 * np.asarray(training.accuracies)
    read.plot(
        epochs, percent, color=COLOURS["lngrad"], marker="o", markersize=3, label=f"at the end {percent[-1]:.1f} %"
    )
    read.axhline(100 * PASS_ACCURACY, color="grey", linestyle="--", linewidth=1, label="asked for: 95 %")
    read.set(xlabel="epoch", ylabel="test accuracy (%)", ylim=(min(90, percent.min()) - 1, 100.5))
    read.legend(frameon=False, loc="lower right")

    below.suptitle(
        "Errors of dx, dgamma and dbeta for the trained network's activations, against float64.\n"
        "In 16 bits a right result, rounded once, comes up to 1"
    )
    axes = below.subplots(1, len(checks), sharex=True, sharey=True, squeeze=False)[0]
    bins = np.logspace(-4, 2, 49)
    for axis, check in zip(axes, checks, strict=True):
        for name, errors in check.errors.items():
            shares = np.full(errors.size, 1 / errors.size)
            kind = "stepfilled" if name == "lngrad" else "step"
            label, colour = f"{name} (max {_short(check.worst[name])})", COLOURS[name]
            axis.hist(errors.clip(1e-4, 1e2), bins, weights=shares, histtype=kind, color=colour, alpha=0.6, label=label)
        axis.axvline(1, color="black", linewidth=1, label="tolerance")
        axis.set(
            title=check.dtype, xscale="log", yscale="log", ylim=(1e-6, 20), xlabel="error in units of the tolerance"
        )
        axis.legend(frameon=False, loc="upper left")
    axes[0].set_ylabel("share of all elements")
    figure.savefig(path, dpi=150)
