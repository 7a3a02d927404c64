"""Gradients of a trained network's own activations, against float64 and, if installed, torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from time import perf_counter, sleep
from typing import Any

import numpy as np

import lngrad
from lngrad.cli.demo_digits import BATCH, HIDDEN, LayerNorm, Training, loss_and_gradient
from lngrad.core.arrays import as_numpy
from lngrad.core.dtypes import numpy_dtype, to_torch
from lngrad.core.problem import Grads
from lngrad.testing import Inputs, error_shares

DTYPES = ("float32", "bfloat16", "float16")
ROUNDS, CALLS = 5, 20  # of timing: the libraries take turns, some calls at a time
MANY = 2048  # rows, which several threads share
PAUSE_S = 0.005  # between turns: both keep their threads waiting for a while, at the other's cost


@dataclass
class Side:
    """One library's gradients: errors in units of the tolerance, and a call's best time."""

    errors: np.ndarray[Any, np.dtype[np.float64]]
    time_us: float

    @property
    def worst(self) -> float:
        """The largest error; above 1 it is out of tolerance."""
        return float(self.errors.max())


@dataclass
class Check:
    """What was found for one dtype, over all LayerNorm layers; torch is None if not installed."""

    dtype: str
    lngrad: Side
    torch: Side | None

    @property
    def passed(self) -> bool:
        return self.lngrad.worst <= 1


def _first_forward(dtype: str) -> None:
    """A forward of a layer as the network has it; where its kernels are not kept yet, this compiles them."""
    for M in BATCH, MANY:
        lngrad.layer_norm(np.ones((M, HIDDEN), numpy_dtype(dtype)))


def _first_backward(dtype: str) -> None:
    for M in BATCH, MANY:
        x, rows = np.ones((M, HIDDEN), numpy_dtype(dtype)), np.ones(M, np.float32)
        lngrad.layer_norm_backward(x, x, rows, rows, x[0])


# All that the demonstration compiles, a few seconds each.
FIRST_CALLS = [partial(call, dtype) for dtype in DTYPES for call in (_first_forward, _first_backward)]


def layer_inputs(training: Training) -> list[tuple[Any, Any, Any, Any]]:
    """(dy, x, gamma, beta) of every LayerNorm layer, over all training images at once.

    dy is scaled by a power of two so that its largest element lies between 0.5 and 1, which is the
    usual care that float16 takes: the loss of a trained network hardly has a gradient left.
    """
    network, data = training.network, training.data
    _, gradient = loss_and_gradient(network.forward(data.train_images), data.train_labels)
    network.backward(gradient)
    inputs = []
    for layer in network.layers:
        if isinstance(layer, LayerNorm):
            scale = 2.0 ** -np.frexp(np.abs(layer.dy).max())[1]
            gamma, beta = layer.parameters
            inputs.append((layer.dy * np.float32(scale), layer.x, gamma, beta))
    return inputs


def check_dtype(dtype: str, layers: list[tuple[Any, Any, Any, Any]]) -> Check:
    """Round every layer's inputs to a dtype, compute, compare and time."""
    rounded = [tuple(array.astype(numpy_dtype(dtype)) for array in layer) for layer in layers]
    sides = {"lngrad": [_lngrad_call(*layer) for layer in rounded]}
    if find_spec("torch") is not None:
        sides["torch"] = [_torch_call(*layer) for layer in rounded]
    errors = {name: np.concatenate([_errors(*call) for call in calls]) for name, calls in sides.items()}
    times = _times({name: [call for call, _ in calls] for name, calls in sides.items()})
    found = {name: Side(errors[name], times[name]) for name in sides}
    return Check(dtype, found["lngrad"], found.get("torch"))


Call = tuple[Callable[[], Grads], Inputs]  # a backward, and what its result is judged by


def _lngrad_call(dy: Any, x: Any, gamma: Any, beta: Any) -> Call:
    _, mean, rstd = lngrad.layer_norm(x, gamma=gamma, beta=beta)
    return lambda: lngrad.layer_norm_backward(dy, x, mean, rstd, gamma), Inputs(dy, x, mean, rstd, gamma, beta, 1)


def _torch_call(dy: Any, x: Any, gamma: Any, beta: Any) -> Call:
    """torch's backward after its forward, judged by the mean and rstd that its forward computed."""
    import torch

    tensors, shape = [to_torch(array) for array in (dy, x, gamma, beta)], list(gamma.shape)
    _, mean, rstd = torch.native_layer_norm(tensors[1], shape, tensors[2], tensors[3], 1e-5)
    inputs = Inputs(dy, x, as_numpy(mean), as_numpy(rstd), gamma, beta, 1)

    def call() -> Grads:
        arguments = (tensors[0], tensors[1], shape, mean, rstd, tensors[2], tensors[3], [True, True, True])
        return Grads(*torch.ops.aten.native_layer_norm_backward(*arguments))

    return call, inputs


def _errors(call: Callable[[], Grads], inputs: Inputs) -> Any:
    return np.concatenate([share.ravel() for share in error_shares(call(), inputs)])


def _times(sides: dict[str, list[Callable[[], Grads]]]) -> dict[str, float]:
    """The best time of a call in µs, by side: on a busy machine it varies less than the median."""
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(ROUNDS):
        for name, calls in sides.items():
            sleep(PAUSE_S)
            for call in calls * CALLS:
                start = perf_counter()
                call()
                best[name] = min(best[name], 1e6 * (perf_counter() - start))
    return best
