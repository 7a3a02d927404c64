"""What is timed on a CUDA device, and against whom. Everything but the clock runs on a CPU too, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import lngrad
import torch
from lngrad.bench.cases import Job
from lngrad.bench.peers import PeerMissing
from lngrad.testing import Case, make_inputs

__all__ = [
    "CUDA_PEERS",
    "LATENCY",
    "QUICK_CUDA",
    "SHAPES_CUDA",
    "Ours",
    "Tensors",
    "cuda_jobs",
    "peer",
    "tensors",
    "why_not",
]

# M·N of 2^26 elements and more, for the bandwidth; common widths that are no power of two among them.
_WIDTHS = (64, 128, 256, 512, 768, 1024, 1536, 2048, 2304, 3072, 4096, 5120, 6144, 7168, 8192, 12288, 16384)
SHAPES_CUDA = tuple((-(-(1 << 26) // N), N) for N in (*_WIDTHS, 32768, 65536, 131072))
# Where launching takes as long as the work.
LATENCY = ((64, 768), (512, 1024), (512, 4096), (2048, 2048), (16, 16384), (4, 131072))
QUICK_CUDA = ((1 << 16, 1024), (16384, 5120), (512, 131072))

Ours = Callable[[Job, "Tensors"], Callable[[], tuple[Any, ...]]]


@dataclass(frozen=True)
class Tensors:
    """Arguments of a job: dy and x (M, N); gamma, beta (N,) in x's dtype; mean, rstd (M,) in the accumulator's."""

    dy: Any
    x: Any
    mean: Any
    rstd: Any
    gamma: Any
    beta: Any


def cuda_jobs(
    shapes: tuple[tuple[int, int], ...] | None, dtypes: tuple[str, ...], ops: tuple[str, ...], quick: bool
) -> list[Job]:
    """The jobs of a run; shapes None: all of ours, or the quick ones."""
    chosen = shapes or (QUICK_CUDA if quick else (*SHAPES_CUDA, *LATENCY))
    return [Job(M, N, dtype, op) for op in ops for M, N in chosen for dtype in dtypes]


def tensors(job: Job, device: str) -> Tensors:
    """Random arguments, made on the device."""
    dtype = getattr(torch, job.dtype)
    accumulator = torch.float64 if job.dtype == "float64" else torch.float32
    generator = torch.Generator(device).manual_seed(job.M + job.N)

    def noise(*shape: int) -> Any:
        return torch.randn(*shape, device=device, dtype=dtype, generator=generator)

    x, dy, gamma, beta = noise(job.M, job.N), noise(job.M, job.N), noise(job.N), noise(job.N)
    mean = x.mean(1, dtype=accumulator)
    rstd = (x.var(1, correction=0).to(accumulator) + 1e-5).rsqrt()
    return Tensors(dy, x, mean, rstd, gamma, beta)


def checked_tensors(job: Job, device: str) -> tuple[Any, Tensors]:
    """Inputs that lngrad.testing can judge by, NumPy's, and the same on the device: the same N, and as many rows as 2^18
    elements make, since the reference computes in float64 on the CPU."""
    rows = min(job.M, max(4, (1 << 18) // job.N))
    inputs = make_inputs(Case((rows,), (job.N,)), job.dtype)

    def tensor(array: Any) -> Any:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view("u2")).view(torch.bfloat16).to(device)
        return torch.from_numpy(array).to(device)

    arrays = inputs.dy, inputs.x, inputs.mean.reshape(-1), inputs.rstd.reshape(-1), inputs.gamma, inputs.beta
    return inputs, Tensors(*map(tensor, arrays))


# --- Who is timed ---------------------------------------------------------------------------------------------------


def ours(job: Job, t: Tensors) -> Callable[[], tuple[Any, ...]]:
    """The public functions, as a user calls them."""
    if job.op == "forward":
        return lambda: tuple(lngrad.layer_norm(t.x, gamma=t.gamma, beta=t.beta))
    return lambda: tuple(lngrad.layer_norm_backward(t.dy, t.x, t.mean, t.rstd, t.gamma))


def _torch(job: Job, t: Tensors) -> Callable[[], tuple[Any, ...]]:
    if job.op == "forward":
        forward = torch.ops.aten.native_layer_norm
        return lambda: tuple(forward(t.x, [job.N], t.gamma, t.beta, 1e-5))
    backward, mean, rstd = torch.ops.aten.native_layer_norm_backward, t.mean[:, None], t.rstd[:, None]
    return lambda: tuple(backward(t.dy, t.x, [job.N], mean, rstd, t.gamma, t.beta, [True, True, True]))


def _compile(job: Job, t: Tensors) -> Callable[[], tuple[Any, ...]]:
    # One code object may be compiled for eight shapes; for the ninth torch takes eager code, and says nothing.
    torch._dynamo.reset()
    if job.op == "forward":
        norm = torch.ops.aten.native_layer_norm
        forward = torch.compile(lambda x, w, b: norm(x, [job.N], w, b, 1e-5), dynamic=False)
        return lambda: tuple(forward(t.x, t.gamma, t.beta))
    mask, mean, rstd = [True, True, True], t.mean[:, None], t.rstd[:, None]
    gradients = torch.ops.aten.native_layer_norm_backward
    backward = torch.compile(lambda dy, x, m, r, w, b: gradients(dy, x, [job.N], m, r, w, b, mask), dynamic=False)
    return lambda: tuple(backward(t.dy, t.x, mean, rstd, t.gamma, t.beta))


def _autograd(job: Job, t: Tensors, norm: Callable[[Any, Any, Any], Any]) -> Callable[[], tuple[Any, ...]]:
    """A peer known by its forward: one graph, walked back again and again."""
    if job.op == "forward":
        return lambda: (norm(t.x, t.gamma, t.beta),)
    leaves = [tensor.detach().requires_grad_() for tensor in (t.x, t.gamma, t.beta)]
    output = norm(*leaves)
    return lambda: tuple(torch.autograd.grad(output, leaves, t.dy, retain_graph=True))


def _liger(job: Job, t: Tensors) -> Callable[[], tuple[Any, ...]]:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return _autograd(job, t, lambda x, gamma, beta: LigerLayerNormFunction.apply(x, gamma, beta, 1e-5))


def _quack(job: Job, t: Tensors) -> Callable[[], tuple[Any, ...]]:
    """Gamma and beta are float32 there. Its releases have a forward; a backward is taken from those that have one."""
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
    return lambda: tuple(backward(t.x, gamma, t.dy, t.rstd, t.mean)[:3])


CUDA_PEERS: dict[str, tuple[str, Ours]] = {
    "torch": ("torch", _torch),
    "compile": ("torch", _compile),
    "liger": ("liger_kernel", _liger),
    "quack": ("quack", _quack),
}


def why_not(name: str) -> str | None:
    """Why a peer can't be compared with on a GPU, or None."""
    if name not in CUDA_PEERS:
        return f"peers: expected some of {', '.join(CUDA_PEERS)} with --device cuda, got {name!r}"
    package = CUDA_PEERS[name][0]
    return None if find_spec(package) else f"peers: {name} needs {package}, which is not installed"


def peer(name: str, job: Job, t: Tensors) -> Callable[[], tuple[Any, ...]]:
    """A call by which an installed peer does a job; it returns dx, dgamma, dbeta, or y and what else there is."""
    return CUDA_PEERS[name][1](job, t)
