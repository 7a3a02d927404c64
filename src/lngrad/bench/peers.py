"""Whom we are compared with. Each peer gets the same memory, and returns a call that does the same work.

A peer computes what its own users get: torch keeps mean and rstd in bfloat16 for bfloat16 inputs, so that is what it is
given. Results of a peer are never used.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from lngrad.arrays import as_numpy
from lngrad.bench.cases import Job
from lngrad.dtypes import to_torch
from lngrad.system.threads import get_num_threads
from lngrad.testing import Inputs

__all__ = ["PEERS", "Arrays", "PeerMissing", "jax_layer_norm", "peer_call", "peer_versions", "tensors", "why_not"]


class PeerMissing(RuntimeError):
    """A peer can't do a job; the text says which it can."""


class Arrays:
    """The inputs of a job: dy, x, gamma, beta (in x's dtype) and our forward's mean and rstd."""

    def __init__(self, dy: Any, x: Any, gamma: Any, beta: Any, mean: Any, rstd: Any):
        self.dy, self.x, self.gamma, self.beta, self.mean, self.rstd = dy, x, gamma, beta, mean, rstd


Call = Callable[[], object]


def tensors(arrays: Arrays | Inputs) -> Any:
    """torch, dy, x, mean, rstd (in x's dtype, as torch keeps them), gamma and beta, in the same memory as arrays."""
    import torch

    torch.set_num_threads(get_num_threads())

    def tensor(array: Any) -> Any:
        return to_torch(as_numpy(array))

    x = tensor(arrays.x)
    mean, rstd = tensor(arrays.mean).to(x.dtype), tensor(arrays.rstd).to(x.dtype)
    return torch, tensor(arrays.dy), x, mean, rstd, tensor(arrays.gamma), tensor(arrays.beta)


def _torch(job: Job, arrays: Arrays) -> Call:
    torch, dy, x, mean, rstd, gamma, beta = tensors(arrays)
    if job.op == "forward":
        forward = torch.ops.aten.native_layer_norm
        return lambda: forward(x, [job.N], gamma, beta, 1e-5)
    backward = torch.ops.aten.native_layer_norm_backward
    return lambda: backward(dy, x, [job.N], mean, rstd, gamma, beta, [True, True, True])


def _compile(job: Job, arrays: Arrays) -> Call:
    torch, dy, x, mean, rstd, gamma, beta = tensors(arrays)
    # One code object may be compiled for eight shapes; for the ninth torch takes eager code, and says nothing.
    torch._dynamo.reset()
    if job.op == "forward":
        forward = torch.nn.functional.layer_norm
        compiled = torch.compile(lambda x, gamma, beta: forward(x, [job.N], gamma, beta), dynamic=False)
        return lambda: compiled(x, gamma, beta)
    backward = torch.ops.aten.native_layer_norm_backward
    compiled = torch.compile(
        lambda *t: backward(t[0], t[1], [job.N], t[2], t[3], t[4], t[5], [True, True, True]), dynamic=False
    )
    return lambda: compiled(dy, x, mean, rstd, gamma, beta)


def jax_layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
    """What people write in JAX: statistics in float32, centred."""
    import jax.numpy as jnp

    import jax

    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    y = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return (y * gamma + beta).astype(x.dtype)


def _jax(job: Job, arrays: Arrays) -> Call:
    import jax.numpy as jnp

    import jax

    dy, x, gamma, beta = (jnp.asarray(as_numpy(a)) for a in (arrays.dy, arrays.x, arrays.gamma, arrays.beta))
    if job.op == "forward":
        forward = jax.jit(jax_layer_norm)
        return lambda: forward(x, gamma, beta).block_until_ready()
    _, pullback = jax.vjp(jax_layer_norm, x, gamma, beta)
    backward = jax.jit(pullback)
    return lambda: jax.block_until_ready(backward(dy))


def _mindspore(job: Job, arrays: Arrays) -> Call:
    import mindspore
    from mindspore.ops.operations._grad_ops import LayerNormGrad

    if job.op != "backward" or job.dtype == "bfloat16":
        raise PeerMissing("mindspore: its CPU LayerNormGrad is compared for the backward in float32 and float16")
    variance = (1 / np.square(as_numpy(arrays.rstd).astype(np.float64)) - 1e-5).astype(np.float32)
    tensors = [as_numpy(a) for a in (arrays.x, arrays.dy, variance, arrays.mean, arrays.gamma)]
    x, dy, variance, mean, gamma = (mindspore.Tensor(array) for array in tensors)
    operation = LayerNormGrad(1, 1)
    return lambda: [result.asnumpy() for result in operation(x, dy, variance, mean, gamma)]


PEERS: dict[str, tuple[str, Callable[[Job, Arrays], Call]]] = {
    "torch": ("torch", _torch),
    "compile": ("torch", _compile),
    "jax": ("jax", _jax),
    "mindspore": ("mindspore", _mindspore),
}


def why_not(name: str) -> str | None:
    """Why a peer can't be compared with here, or None."""
    if name not in PEERS:
        return f"peers: expected some of {', '.join(PEERS)}, got {name!r}"
    package = PEERS[name][0]
    return None if find_spec(package) else f"peers: {name} needs {package}, which is not installed"


def peer_call(name: str, job: Job, arrays: Arrays) -> Call:
    """A call by which an installed peer does a job.

    Raises:
        PeerMissing: It can't do this job.
    """
    return PEERS[name][1](job, arrays)


def peer_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of the packages behind some peers."""
    return {package: version(package) for package in dict.fromkeys(PEERS[name][0] for name in names)}
