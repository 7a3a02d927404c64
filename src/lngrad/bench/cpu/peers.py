"""Peers on the CPU. Each has the same memory as lngrad, and computes what its own users get."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np

from lngrad.arrays import as_numpy
from lngrad.bench import aten
from lngrad.bench.arguments import Arguments, as_tensors
from lngrad.bench.cases import Job
from lngrad.bench.measure import Call
from lngrad.bench.trial import Peer, PeerMissing

__all__ = ["PEERS", "jax_layer_norm"]


def _torch(job: Job, a: Arguments) -> Call:
    return aten.eager(job, as_tensors(a))


def _compile(job: Job, a: Arguments) -> Call:
    return aten.compiled(job, as_tensors(a))


def _no_compiler() -> str | None:
    """torch.compile writes C++ for a CPU."""
    return None if any(map(shutil.which, ("g++", "clang++"))) else "a C++ compiler, and there is none"


def jax_layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
    """What people write in JAX: statistics in float32, centred."""
    import jax.numpy as jnp

    import jax

    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    y = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return (y * gamma + beta).astype(x.dtype)


def _jax(job: Job, a: Arguments) -> Call:
    import jax.numpy as jnp

    import jax

    dy, x, gamma, beta = (jnp.asarray(as_numpy(array)) for array in (a.dy, a.x, a.gamma, a.beta))
    if job.op == "forward":
        forward = jax.jit(jax_layer_norm)
        return lambda: forward(x, gamma, beta).block_until_ready()
    _, pullback = jax.vjp(jax_layer_norm, x, gamma, beta)
    # What the forward saved is an argument, so that XLA does not take it for constants.
    backward = jax.jit(lambda pullback, dy: pullback(dy))
    return lambda: jax.block_until_ready(backward(pullback, dy))


def _mindspore(job: Job, a: Arguments) -> Call:
    import mindspore
    from mindspore.ops.operations._grad_ops import LayerNormGrad

    if job.op != "backward" or job.dtype == "bfloat16":
        raise PeerMissing("mindspore: its CPU LayerNormGrad is compared for the backward in float32 and float16")
    variance = (1 / np.square(as_numpy(a.rstd).astype(np.float64)) - 1e-5).astype(np.float32)
    arrays = [as_numpy(array) for array in (a.x, a.dy, variance, a.mean, a.gamma)]
    x, dy, variance, mean, gamma = map(mindspore.Tensor, arrays)
    operation = LayerNormGrad(1, 1)
    return lambda: [result.asnumpy() for result in operation(x, dy, variance, mean, gamma)]


PEERS = {
    "torch": Peer("torch", _torch),
    "compile": Peer("torch", _compile, missing=_no_compiler),
    "jax": Peer("jax", _jax),
    "mindspore": Peer("mindspore", _mindspore),
}
