"""The command `lngrad demo`: 64 pixels → 128 → LayerNorm → ReLU → 10 digits, trained with lngrad's gradients; a check."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
from typer import Option

import lngrad
from lngrad.cli.terminal import FAILED, fail, need, new_table, say
from lngrad.support.addresses import as_numpy
from lngrad.support.dtypes import numpy_dtype
from lngrad.typing import Array

HIDDEN, BATCH, PASS_ACCURACY, DTYPES = 128, 64, 0.95, ("float32", "bfloat16", "float16")
KERNELS = ("rows", "forward_rows", "combine", "widen", "shift")  # what a call of a dtype may run
NEXT = """
Next:
  lngrad check --impl MODULE:FUNCTION    is a kernel of yours right?
  lngrad bench --quick                   how fast is this machine, next to torch?
  lngrad info                            what else can be installed, and what for"""


def demo(
    output: Annotated[Path, Option("--output", "-o", help="A folder for the results.")] = Path("lngrad-demo"),
    seed: Annotated[int, Option(min=0, help="Of the data's split, the weights and the batches.")] = 0,
    epochs: Annotated[int, Option(min=1, help="How often every image is seen.")] = 30,
) -> None:
    """Train a network with LayerNorm on digits with lngrad's gradients, and check them.

    NumPy and these gradients alone, no autograd. Then the gradients of the trained network's
    activations are compared with float64, and so are torch's where it is installed. Ends with 1
    if the network reads less than 95 % of the test images, or if a gradient is out of tolerance.

    Example: lngrad demo --epochs 8
    """
    need("demo", scikit_learn="sklearn")
    from rich.console import Console
    from rich.progress import track

    from lngrad.core.machine import versions
    from lngrad.cpu.entries import compile_elsewhere, programs_for
    from lngrad.cpu.jobs import ENTRIES

    output.mkdir(parents=True, exist_ok=True)
    what, bars = "Compiling, once per machine", Console(stderr=True)
    kernels = [
        [(name, dtype, "float32") for dtype in dtypes for name in KERNELS] for dtypes in (DTYPES[:1], DTYPES[1:])
    ]
    kernels[0] += [(name, "", "") for name, entry in ENTRIES.items() if entry.module == "pool"]
    float32, bits16 = programs_for(kernels[0], 7), programs_for(kernels[1], 3)
    list(track(compile_elsewhere(float32), what, len(float32), console=bars))
    losses, accuracies, layer = train(track(range(epochs), "Training", console=bars), seed)
    list(track(compile_elsewhere(bits16), f"{what}: 16 bits", len(bits16), console=bars))
    errors = {dtype: errors_of(dtype, *layer) for dtype in track(DTYPES, "Checking", console=bars)}
    table = new_table(
        "Elements by error ÷ tolerance (1 is the limit)", "dtype", "library", "ratio: 10⁻⁴ to 10²", right=["largest"]
    )
    for dtype, found in errors.items():
        for name, array in found.items():
            elements, _ = np.histogram(array.clip(1e-4, 99), np.logspace(-4, 2, 25))
            table.add_row(dtype, name, drawn(np.log1p(elements)), f"{array.max():.2f}")
    table.caption = None if "torch" in found else "torch is not installed"
    Console().print(table)
    say(f"Test accuracy {accuracies[-1]:.1%} after {epochs} epochs; at least {PASS_ACCURACY:.0%} is asked for.")
    worst = {dtype: {name: float(array.max()) for name, array in found.items()} for dtype, found in errors.items()}
    passed = accuracies[-1] >= PASS_ACCURACY and all(shares["lngrad"] <= 1 for shares in worst.values())
    results = {"passed": passed, "seed": seed, "versions": versions(), "accuracy": accuracies[-1], "loss_by_step": losses,
               "accuracy_by_epoch": accuracies, "max_error_in_tolerances": worst}  # fmt: skip
    (output / "results.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    say(f"Training loss {drawn(np.sqrt(losses[:: 1 + len(losses) // 24]))}, numbers: {output / 'results.json'}")
    if not passed:
        fail("the demonstration failed; see above", FAILED)
    say(NEXT)


def drawn(numbers: Array | list[float]) -> str:
    """Numbers from 0 up as a row of bars."""
    return "".join("▁▂▃▄▅▆▇█"[int(7.99 * number / max(numbers))] for number in numbers)


def loss_and_gradients(w: list[Array], images: Array, labels: Array) -> tuple[float, list[Array], list[Array], Array]:
    """Mean cross-entropy of images (M, 64), the parameters' gradients, the LayerNorm's arrays, and the digits read."""
    x = images @ w[0]
    y, mean, rstd = lngrad.layer_norm(x, w[1], w[2])
    hidden = np.maximum(y, 0)
    logits = hidden @ w[3]
    log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    right = np.eye(10, dtype=log_p.dtype)[labels]
    dlogits = (np.exp(log_p) - right) / len(labels)
    dy = (dlogits @ w[3].T) * (y > 0)
    dx, dgamma, dbeta = lngrad.layer_norm_backward(dy, x, mean, rstd, w[1])
    gradients = [images.T @ dx, dgamma, dbeta, hidden.T @ dlogits]
    return -float((right * log_p).sum() / len(labels)), gradients, [dy, x, w[1], w[2]], logits.argmax(1)


def train(epochs: Iterable[int], seed: int) -> tuple[list[float], list[float], list[Array]]:
    """The loss of every step, the test accuracy after every epoch; dy, x, gamma and beta of the trained LayerNorm.

    Equal seeds give equal networks. dy's largest element is scaled by a power of two to between 0.5 and 1, as for float16.
    """
    from sklearn.datasets import load_digits
    from threadpoolctl import threadpool_limits  # scikit-learn's

    rng, digits, losses, accuracies = np.random.default_rng(seed), load_digits(), list[float](), list[float]()
    images, labels = (digits.data / 16 - 0.5).astype(np.float32), digits.target
    test, chosen = np.split(rng.permutation(len(images)), [len(images) // 4])
    w1, w2 = rng.standard_normal((64, HIDDEN)) / 6, rng.standard_normal((HIDDEN, 10)) / 8
    parameters = [array.astype(np.float32) for array in (w1, np.ones(HIDDEN), np.zeros(HIDDEN), w2)]
    # Products of 64 columns are too small for two threads: OpenBLAS's waited for each other, 3 to 18 s in place of 1.
    with threadpool_limits(1, user_api="blas"):
        for _ in epochs:
            for batch in np.array_split(rng.permutation(chosen), -(-len(chosen) // BATCH)):
                loss, gradients, *_ = loss_and_gradients(parameters, images[batch], labels[batch])
                losses.append(loss)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter -= 0.3 * gradient
            read = loss_and_gradients(parameters, images[test], labels[test])[3]
            accuracies.append(float((read == labels[test]).mean()))
        dy, *others = loss_and_gradients(parameters, images[chosen], labels[chosen])[2]
    return losses, accuracies, [dy * np.float32(2.0 ** -np.frexp(np.abs(dy).max())[1]), *others]


def errors_of(dtype: str, *layer: Array) -> dict[str, Array]:
    """Errors in tolerances of lngrad's gradients, and of torch's where it is installed; layer: dy, x, gamma, beta."""
    from lngrad.check.implementations import IMPLEMENTATIONS, Arguments, find
    from lngrad.testing import Inputs, error_shares

    dy, x, gamma, beta = (array.astype(numpy_dtype(dtype)) for array in layer)
    arguments, found = Arguments(dy, x, None, None, gamma, beta, gamma.shape), dict[str, Array]()
    ours = find(next(name for name, state in lngrad.backends().items() if state == "available"))
    for name, implementation in {"lngrad": ours, "torch": IMPLEMENTATIONS["torch"]}.items():
        if implementation.forward is not None and (not implementation.needs or find_spec(implementation.needs)):
            mean, rstd = map(
                as_numpy, implementation.forward(arguments)()[1:]
            )  # each library is judged with those of its own forward
            grads = implementation.backward(replace(arguments, mean=mean, rstd=rstd))()
            shares = error_shares(lngrad.Grads(*grads), Inputs(dy, x, mean, rstd, gamma, beta, 1))
            found[name] = np.concatenate([share.ravel() for share in shares])
    return found
