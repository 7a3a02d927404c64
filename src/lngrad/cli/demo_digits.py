"""A small network that learns handwritten digits: NumPy, lngrad's gradients, no autograd.

64 pixels → 128 → LayerNorm → ReLU → 128 → LayerNorm → ReLU → 10 digits, in float32, by Adam.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

import lngrad
from lngrad.typing import Array

HIDDEN = 128
BATCH = 64
RATE = 2e-3  # Adam's, at the start; it falls to 0 along half a cosine


class Data(NamedTuple):
    """Images (M, 64) in float32 from -0.5 to 0.5, labels (M,) from 0 to 9."""

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array


def load_data(rng: np.random.Generator) -> Data:
    """scikit-learn's 1,797 bundled digits, a random quarter of them for testing."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.data / 16 - 0.5).astype(np.float32)
    order = rng.permutation(len(images))
    test, training = np.split(order, [len(images) // 4])
    return Data(images[training], digits.target[training], images[test], digits.target[test])


class Layer(Protocol):
    """A link of the chain."""

    parameters: list[Array]
    gradients: list[Array]

    def forward(self, x: Array) -> Array:
        """y of x."""

    def backward(self, dy: Array) -> Array:
        """dx of dy, for the x of the last forward."""


class Linear:
    """y = x·W + b."""

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int):
        weight = rng.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)
        self.parameters = [weight.astype(np.float32), np.zeros(outputs, np.float32)]
        self.gradients: list[Array] = []

    def forward(self, x: Array) -> Array:
        self.x = x
        weight, bias = self.parameters
        y: Array = x @ weight + bias  # (M, inputs) -> (M, outputs)
        return y

    def backward(self, dy: Array) -> Array:
        self.gradients = [self.x.T @ dy, dy.sum(0)]
        dx: Array = dy @ self.parameters[0].T
        return dx


class LayerNorm:
    """What this package is for: one call forward, one call back."""

    def __init__(self, size: int):
        self.parameters = [np.ones(size, np.float32), np.zeros(size, np.float32)]
        self.gradients: list[Array] = []

    def forward(self, x: Array) -> Array:
        gamma, beta = self.parameters
        self.x = x
        y: Array
        y, self.mean, self.rstd = lngrad.layer_norm(x, gamma=gamma, beta=beta)
        return y

    def backward(self, dy: Array) -> Array:
        self.dy = dy
        dx: Array
        dx, dgamma, dbeta = lngrad.layer_norm_backward(dy, self.x, self.mean, self.rstd, self.parameters[0])
        self.gradients = [dgamma, dbeta]
        return dx


class ReLU:
    """y = max(x, 0)."""

    def __init__(self) -> None:
        self.parameters: list[Array] = []
        self.gradients: list[Array] = []

    def forward(self, x: Array) -> Array:
        self.passed = x > 0
        return x * self.passed

    def backward(self, dy: Array) -> Array:
        return dy * self.passed


class Network:
    """Layers behind each other."""

    def __init__(self, rng: np.random.Generator):
        self.layers: list[Layer] = [
            Linear(rng, 64, HIDDEN),
            LayerNorm(HIDDEN),
            ReLU(),
            Linear(rng, HIDDEN, HIDDEN),
            LayerNorm(HIDDEN),
            ReLU(),
            Linear(rng, HIDDEN, 10),
        ]

    def forward(self, images: Array) -> Array:
        """Logits (M, 10) of images (M, 64)."""
        for layer in self.layers:
            images = layer.forward(images)
        return images

    def backward(self, dy: Array) -> None:
        """Leave every parameter's gradient in its layer, from that of the logits."""
        for layer in reversed(self.layers):
            dy = layer.backward(dy)

    def parameters(self) -> list[Array]:
        return [parameter for layer in self.layers for parameter in layer.parameters]

    def gradients(self) -> list[Array]:
        return [gradient for layer in self.layers for gradient in layer.gradients]


def loss_and_gradient(logits: Array, labels: Array) -> tuple[float, Array]:
    """Mean cross-entropy of logits (M, 10), and its gradient with respect to them."""
    shifted = logits - logits.max(1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    rows = np.arange(len(labels))
    gradient = np.exp(log_probabilities)
    gradient[rows, labels] -= 1
    return -float(log_probabilities[rows, labels].mean()), gradient / np.float32(len(labels))


def accuracy(network: Network, images: Array, labels: Array) -> float:
    """The share of images that are read right."""
    return float((network.forward(images).argmax(1) == labels).mean())


class Adam:
    """Kingma and Ba, 2015, with its usual constants."""

    def __init__(self, parameters: list[Array]):
        self._parameters = parameters
        self._means = [np.zeros_like(p) for p in parameters]
        self._squares = [np.zeros_like(p) for p in parameters]
        self._steps = 0

    def step(self, gradients: list[Array], rate: float) -> None:
        """Change the parameters in place."""
        self._steps += 1
        mean_scale, square_scale = 1 / (1 - 0.9**self._steps), 1 / (1 - 0.999**self._steps)
        for p, g, mean, square in zip(self._parameters, gradients, self._means, self._squares, strict=True):
            mean += np.float32(0.1) * (g - mean)
            square += np.float32(0.001) * (g * g - square)
            p -= np.float32(rate) * (mean * mean_scale) / (np.sqrt(square * square_scale) + np.float32(1e-8))


@dataclass
class Training:
    """A trained network, the loss of every step and the test accuracy after every epoch."""

    network: Network
    data: Data
    losses: list[float]
    accuracies: list[float]


def train(epochs: int, seed: int, advance: Callable[[], None] = lambda: None) -> Training:
    """Train a new network; equal seeds give equal networks.

    Args:
        epochs: How often every image is seen.
        seed: Of the split, the weights and the batches.
        advance: Called after every epoch.
    """
    from threadpoolctl import threadpool_limits  # scikit-learn's

    rng = np.random.default_rng(seed)
    data, network = load_data(rng), Network(rng)
    adam = Adam(network.parameters())
    training = Training(network, data, [], [])
    batches = -(-len(data.train_images) // BATCH)
    # Products of 64 columns are too small for two threads: on 2 busy cores of an AMD EPYC (Zen 5) OpenBLAS's threads
    # waited for each other, and 30 epochs took 3 to 18 s in place of less than one.
    with threadpool_limits(1, user_api="blas"):
        for _ in range(epochs):
            for batch in np.array_split(rng.permutation(len(data.train_images)), batches):
                loss, gradient = loss_and_gradient(network.forward(data.train_images[batch]), data.train_labels[batch])
                network.backward(gradient)
                rate = RATE * 0.5 * (1 + np.cos(np.pi * len(training.losses) / (epochs * batches)))
                adam.step(network.gradients(), rate)
                training.losses.append(loss)
            training.accuracies.append(accuracy(network, data.test_images, data.test_labels))
            advance()
    return training
