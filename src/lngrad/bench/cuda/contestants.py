"""Contestants on a CUDA device and their arguments. All but the clock runs on a CPU, for tests."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

import torch

import lngrad
from lngrad.bench import aten
from lngrad.bench.arguments import Arguments
from lngrad.bench.cases import Job
from lngrad.bench.trial import Peer, PeerMissing
from lngrad.testing import Case, Inputs, make_inputs
from lngrad.typing import Array, Tensor

CHECKED_ELEMENTS = 1 << 18  # the reference computes in float64 on the CPU


def tensors(job: Job, device: str) -> Arguments:
    """Random arguments, made on the device."""
    dtype = getattr(torch, job.dtype)
    accumulator = torch.float64 if job.dtype == "float64" else torch.float32
    generator = torch.Generator(device).manual_seed(job.M + job.N)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype, generator=generator)

    x, dy, gamma, beta = noise(job.M, job.N), noise(job.M, job.N), noise(job.N), noise(job.N)
    mean = x.mean(1, keepdim=True, dtype=accumulator)
    rstd = (x.var(1, correction=0, keepdim=True).to(accumulator) + 1e-5).rsqrt()
    return Arguments(dy, x, gamma, beta, mean, rstd)


def checked_tensors(job: Job, device: str) -> tuple[Inputs, Arguments]:
    """Arguments with the same N and few rows: in NumPy, for lngrad.testing, and on the device."""
    rows = min(job.M, max(4, CHECKED_ELEMENTS // job.N))
    inputs = make_inputs(Case((rows,), (job.N,)), job.dtype)

    def tensor(array: Array) -> Tensor:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view("u2")).view(torch.bfloat16).to(device)
        return torch.from_numpy(array).to(device)

    arrays = inputs.dy, inputs.x, inputs.gamma, inputs.beta, inputs.mean, inputs.rstd
    return inputs, Arguments(*map(tensor, arrays))


def ours(job: Job, t: Arguments) -> Callable[[], tuple[Any, ...]]:
    """The public functions, as a user calls them."""
    if job.op == "forward":
        return lambda: tuple(lngrad.layer_norm(t.x, gamma=t.gamma, beta=t.beta))
    return lambda: tuple(lngrad.layer_norm_backward(t.dy, t.x, t.mean, t.rstd, t.gamma))


def _autograd(
    job: Job, t: Arguments, norm: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Callable[[], tuple[Any, ...]]:
    """A peer known by its forward: one graph, walked back again and again."""
    if job.op == "forward":
        return lambda: (norm(t.x, t.gamma, t.beta),)
    leaves = [tensor.detach().requires_grad_() for tensor in (t.x, t.gamma, t.beta)]
    output = norm(*leaves)
    return lambda: tuple(torch.autograd.grad(output, leaves, t.dy, retain_graph=True))


def _liger(job: Job, t: Arguments) -> Callable[[], tuple[Any, ...]]:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return _autograd(job, t, lambda x, gamma, beta: LigerLayerNormFunction.apply(x, gamma, beta, 1e-5))


def _quack(job: Job, t: Arguments) -> Callable[[], tuple[Any, ...]]:
    """Gamma and beta are float32 there. Its releases have a forward, and some have a backward."""
    rmsnorm = import_module("quack.rmsnorm")  # the package has a function of that name
    gamma, beta = t.gamma.float(), t.beta.float()
    if job.op == "forward":
        forward = rmsnorm.layernorm_fwd

        def call() -> tuple[Any, ...]:
            y, rstd, mean = forward(t.x, gamma, beta, eps=1e-5, return_rstd=True, return_mean=True)
            return y, mean, rstd

        return call
    names = [name for name in ("layernorm_bwd", "layernorm_backward") if hasattr(rmsnorm, name)]
    if not names:
        raise PeerMissing(f"quack: quack-kernels {version('quack-kernels')} has no backward of layer normalization")
    backward = getattr(rmsnorm, names[0])
    rstd, mean = t.rstd.ravel(), t.mean.ravel()
    return lambda: tuple(backward(t.x, gamma, t.dy, rstd, mean)[:3])


CUDA_PEERS = {
    "torch": Peer("torch", aten.eager),
    "compile": Peer("torch", aten.compiled),
    "liger": Peer("liger_kernel", _liger, "liger-kernel"),
    "quack": Peer("quack", _quack, "quack-kernels"),
}
