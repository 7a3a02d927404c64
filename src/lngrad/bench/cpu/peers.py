"""Peers on the CPU. Each has the same memory as lngrad, and computes what its own users get."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import Any

import numpy as np

from lngrad.bench import aten
from lngrad.bench.arguments import Arguments, as_tensors
from lngrad.bench.cases import Job
from lngrad.bench.measure import Call
from lngrad.bench.trial import Peer, PeerMissing
from lngrad.check.implementations import onednn
from lngrad.core.arrays import Output, as_numpy, empty
from lngrad.core.threads import get_num_threads

EPS = 1e-5


def _torch(job: Job, a: Arguments) -> Call:
    return aten.eager(job, as_tensors(a))


def _compile(job: Job, a: Arguments) -> Call:
    return aten.compiled(job, as_tensors(a))


def _no_compiler() -> str | None:
    """torch.compile writes C++ for a CPU."""
    if find_spec("torch") is None:
        return "torch is not installed"
    return None if any(map(shutil.which, ("g++", "clang++"))) else "there is no C++ compiler"


def _onednn(job: Job, a: Arguments) -> Call:
    """oneDNN takes gamma and beta in float32 and the variance for rstd, and gives float32 column sums."""
    onednn.set_num_threads(get_num_threads())
    gamma, beta = (np.asarray(array, np.float32) for array in (a.gamma, a.beta))
    mean = np.ascontiguousarray(a.mean).reshape(-1)
    variance = (1 / np.square(np.asarray(a.rstd, np.float64)) - EPS).astype(np.float32).reshape(-1)
    result = empty("numpy", Output.of((job.M, job.N), job.dtype))
    try:
        if job.op == "forward":
            return onednn.forward(a.x, gamma, beta, result, mean.copy(), variance, EPS)
        dgamma, dbeta = np.empty_like(gamma), np.empty_like(beta)
        return onednn.backward(a.dy, a.x, mean, variance, gamma, result, dgamma, dbeta, EPS)
    except onednn.OneDnnError as reason:
        raise PeerMissing(f"onednn: {job.op} {job.dtype}: {reason}") from None


def jax_layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
    """What people write in JAX: statistics in float32, centred."""
    import jax
    import jax.numpy as jnp

    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    y = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return (y * gamma + beta).astype(x.dtype)


def all_of_jax() -> None:
    """XLA's threads are as many as the processors of this process, and cannot be changed.

    Raises:
        PeerMissing: Fewer threads are timed.
    """
    if get_num_threads() < len(os.sched_getaffinity(0)):
        raise PeerMissing("jax: its threads cannot be limited; it is compared with all processors only")


def _jax(job: Job, a: Arguments) -> Call:
    all_of_jax()
    import jax
    import jax.numpy as jnp

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
    variance = (1 / np.square(as_numpy(a.rstd).astype(np.float64)) - EPS).astype(np.float32)
    arrays = [as_numpy(array) for array in (a.x, a.dy, variance, a.mean, a.gamma)]
    x, dy, variance, mean, gamma = map(mindspore.Tensor, arrays)
    operation = LayerNormGrad(1, 1)
    return lambda: [result.asnumpy() for result in operation(x, dy, variance, mean, gamma)]


GIVEN = ("kernel", "forward")  # the scopes in which results have their memory

PEERS = {
    "torch": Peer("torch", _torch),
    "onednn": Peer("", _onednn, "onednn", onednn.why_not, GIVEN, onednn.version),
    "compile": Peer("torch", _compile, missing=_no_compiler),
    "jax": Peer("jax", _jax),
    "mindspore": Peer("mindspore", _mindspore),
}
