"""A kernel that is certified: its backward and forward on NumPy arrays, and its own switch for threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from lngrad import __version__
from lngrad.api import layer_norm
from lngrad.arrays import as_numpy
from lngrad.check.case import CheckCase, Source
from lngrad.check.implementations import NotApplicable, find
from lngrad.check.inputs import Given
from lngrad.dtypes import ACCUMULATORS, to_torch
from lngrad.errors import BackendUnavailable
from lngrad.peers import onednn
from lngrad.plan import BACKENDS
from lngrad.problem import Forward, Grads
from lngrad.system.threads import set_num_threads
from lngrad.testing import Inputs
from lngrad.typing import Array

__all__ = ["Backward", "Subject", "subject_of"]

Backward = Callable[[Array, Array, Array, Array, Array], Grads]


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
        name, version: For people.
        backward: (dy, x, mean, rstd, gamma) of shapes (M, N), (M, N), (M,), (M,), (N,) → NumPy arrays.
        forward: (x, gamma, beta, eps) → y, mean, rstd, or None where there is none.
        set_threads: The implementation's own switch, or None.
    """

    name: str
    version: str
    backward: Backward
    forward: Callable[[Array, Array, Array, float], Forward] | None = None
    set_threads: Callable[[int], None] | None = None


def subject_of(name: str) -> Subject:
    """A backend of ours, torch, jax, onednn, or any other implementation that `lngrad check` knows.

    Raises:
        BackendUnavailable: There is none of this name, or it is not installed.
    """
    backward = _by_check(name)
    if name in BACKENDS:
        return Subject(name, f"lngrad {__version__}", backward, _ours_forward(name), set_num_threads)
    if name == "torch":
        import torch

        return Subject(name, f"torch {torch.__version__}", backward, _torch_forward, torch.set_num_threads)
    if name == "jax":
        return Subject(name, f"jax {version('jax')}", backward, _jax_forward)
    if name == "onednn":
        return Subject(name, f"oneDNN {onednn.version()}", backward, None, onednn.set_num_threads)
    return Subject(name, "", backward)


def _by_check(name: str) -> Backward:
    """The implementation of `lngrad check`, on plain matrices."""
    call = find(name)

    def backward(dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array) -> Grads:
        M, N = x.shape
        dtype, parameter = x.dtype.name, gamma.dtype.name
        case = CheckCase(
            name="certify", source=Source("certify"), lead=(M,), normalized=(N,), dtype=dtype, gamma_dtype=parameter,
            statistics_dtype=ACCUMULATORS[dtype], output_dtypes=(dtype, parameter, parameter),
        )  # fmt: skip
        inputs = Inputs(dy, x, mean.reshape(M, 1), rstd.reshape(M, 1), gamma, None, 1)
        with np.errstate(all="ignore"):
            variance = (1 / rstd.astype(np.float64) ** 2).astype(rstd.dtype)
        try:
            got = call(case, Given(inputs, inputs, variance.reshape(M, 1), 0.0, 0, M))
        except NotApplicable as reason:
            raise BackendUnavailable(f"{name}: {reason}") from None
        return Grads(*(None if one is None else as_numpy(one) for one in got))

    return backward


def _ours_forward(name: str) -> Callable[[Array, Array, Array, float], Forward]:
    def forward(x: Array, gamma: Array, beta: Array, eps: float) -> Forward:
        return Forward(*map(as_numpy, layer_norm(x, None, gamma, beta, eps=eps, backend=name)))

    return forward


def _torch_forward(x: Array, gamma: Array, beta: Array, eps: float) -> Forward:
    import torch

    tensors: list[Any] = [to_torch(np.ascontiguousarray(one)) for one in (x, gamma, beta)]
    y, mean, rstd = torch.native_layer_norm(tensors[0], [x.shape[1]], tensors[1], tensors[2], eps)
    return Forward(as_numpy(y), as_numpy(mean), as_numpy(rstd))


def _jax_forward(x: Array, gamma: Array, beta: Array, eps: float) -> Forward:
    import jax.numpy as jnp

    wide = jnp.asarray(x)
    mean = wide.mean(-1, keepdims=True)
    centred = wide - mean
    rstd = 1 / jnp.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
    return Forward(*(np.asarray(one) for one in (centred * rstd * gamma + beta, mean, rstd)))
