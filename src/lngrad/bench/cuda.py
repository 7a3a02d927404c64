"""Timing on a CUDA device: events, buffers rotated past L2, rounds in turns, a copy in the same rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from lngrad.api import layer_norm, layer_norm_backward
from lngrad.bench.cases import Job
from lngrad.bench.measure import Timing
from lngrad.problem import Grads

__all__ = ["CUDA_PEERS", "QUICK_CUDA", "SHAPES_CUDA", "copy_bytes", "time_job", "why_not_cuda"]

# M·N of 2^26 elements and more, for the bandwidth; common widths that are no power of two among them.
SHAPES_CUDA = tuple(
    (max(512, (1 << 26) // N), N)
    for N in (64, 256, 768, 1024, 1536, 2048, 4096, 5120, 7168, 8192, 12288, 16384, 32768, 65536, 131072)
)
QUICK_CUDA = ((1 << 16, 1024), (16384, 5120), (512, 131072))

ROTATED_BYTES = 256 << 20  # of inputs and outputs together: several times any L2, so that no call finds its data there
COPY_BYTES = 512 << 20

Call = Callable[[int], object]


def why_not_cuda(name: str) -> str | None:
    """Why a peer can't be compared with on a GPU, or None."""
    if name not in CUDA_PEERS:
        return f"peers: expected some of {', '.join(CUDA_PEERS)}, got {name!r}"
    package = CUDA_PEERS[name][0]
    return None if find_spec(package) else f"peers: {name} needs {package}, which is not installed"


class _Buffers:
    """Copies of a job's arguments; call number i takes the set i modulo their number."""

    def __init__(self, job: Job):
        dtype = getattr(torch, job.dtype)
        count = max(2, -(-ROTATED_BYTES // job.nbytes))
        torch.manual_seed(0)
        self.gamma = torch.randn(job.N, device="cuda", dtype=dtype)
        self.beta = torch.randn(job.N, device="cuda", dtype=dtype)
        self.sets = []
        for _ in range(count):
            x, dy = (torch.randn(job.M, job.N, device="cuda", dtype=dtype) for _ in range(2))
            _, mean, rstd = layer_norm(x, None, self.gamma, self.beta)
            self.sets.append((dy, x, mean, rstd, torch.empty_like(x)))
        self.dgamma, self.dbeta = torch.empty_like(self.gamma), torch.empty_like(self.gamma)

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        return self.sets[number % len(self.sets)]


def _ours(job: Job, buffers: _Buffers) -> Call:
    def call(number: int) -> object:
        dy, x, mean, rstd, dx = buffers[number]
        return layer_norm_backward(dy, x, mean, rstd, buffers.gamma, out=Grads(dx, buffers.dgamma, buffers.dbeta))

    return call


def _torch(job: Job, buffers: _Buffers) -> Call:
    backward = torch.ops.aten.native_layer_norm_backward

    def call(number: int) -> object:
        dy, x, mean, rstd, _ = buffers[number]
        return backward(dy, x, [job.N], mean, rstd, buffers.gamma, buffers.beta, [True, True, True])

    return call


def _compile(job: Job, buffers: _Buffers) -> Call:
    backward = torch.ops.aten.native_layer_norm_backward
    mask = [True, True, True]
    compiled = torch.compile(lambda dy, x, mean, rstd, w, b: backward(dy, x, [job.N], mean, rstd, w, b, mask))

    def call(number: int) -> object:
        return compiled(*buffers[number][:4], buffers.gamma, buffers.beta)

    return call


def _autograd(buffers: _Buffers, norm: Callable[[Any, Any, Any], Any]) -> Call:
    """A peer known by its forward: one graph a set of buffers, walked back again and again."""
    gamma, beta = (p.detach().requires_grad_() for p in (buffers.gamma, buffers.beta))
    inputs = [x.detach().requires_grad_() for _, x, _, _, _ in buffers.sets]
    outputs = [norm(x, gamma, beta) for x in inputs]

    def call(number: int) -> object:
        at = number % len(inputs)
        return torch.autograd.grad(outputs[at], (inputs[at], gamma, beta), buffers[number][0], retain_graph=True)

    return call


def _liger(job: Job, buffers: _Buffers) -> Call:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return _autograd(buffers, lambda x, gamma, beta: LigerLayerNormFunction.apply(x, gamma, beta, 1e-5))


def _quack(job: Job, buffers: _Buffers) -> Call:
    from quack import layernorm

    return _autograd(buffers, lambda x, gamma, beta: layernorm(x, gamma, beta))


CUDA_PEERS: dict[str, tuple[str, Callable[[Job, _Buffers], Call]]] = {
    "torch": ("torch", _torch),
    "compile": ("torch", _compile),
    "liger": ("liger_kernel", _liger),
    "quack": ("quack", _quack),
}


def copy_bytes() -> int:
    """Bytes that the copy moves: read and written."""
    return 2 * COPY_BYTES


def _copy() -> Call:
    source, target = (torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    return lambda number: target.copy_(source)


def time_job(job: Job, peers: tuple[str, ...] = (), rounds: int = 20) -> dict[str, Timing]:
    """Time our backward, peers and the copy in turns; after a check of ours against float64 on the device.

    Args:
        job: A backward.
        peers: Names from CUDA_PEERS that are installed.
        rounds: Each times one call of everybody, in turns.

    Returns:
        Seconds by name, "lngrad" and "copy" among them: records.record takes it, with the copy as roofline.

    Raises:
        ValueError: Our result is wrong, so there is nothing to time.
    """
    buffers = _Buffers(job)
    _check(job, buffers)
    calls = {"lngrad": _ours(job, buffers), "copy": _copy()}
    calls |= {name: CUDA_PEERS[name][1](job, buffers) for name in peers}
    for call in calls.values():
        for number in range(3):  # compiles, and fills the allocator's cache
            call(number)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name, call in calls.items():
            samples[name].append(_once(call, number))
    return {name: _timing(sorted(times)) for name, times in samples.items()}


def _once(call: Call, number: int) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000)  # 0.1 ms of device time: the host is ahead, so its launches are not what is timed
    start.record()
    call(number)
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3


def _timing(times: list[float]) -> Timing:
    return Timing(len(times), times[0], statistics.median(times), times[min(len(times) - 1, int(0.9 * len(times)))])


def _check(job: Job, buffers: _Buffers) -> None:
    dy, x, mean, rstd, dx = buffers[0]
    _ours(job, buffers)(0)
    rows = slice(0, 64)
    wide = [array[rows].double() for array in (dy, x, mean, rstd)]
    xhat = (wide[1] - wide[2]) * wide[3]
    dxhat = wide[0] * buffers.gamma.double()
    expected = wide[3] * (dxhat - dxhat.mean(-1, keepdim=True) - xhat * (dxhat * xhat).mean(-1, keepdim=True))
    limit = {"float16": 2.0**-9, "bfloat16": 2.0**-6, "float32": 2.0**-18, "float64": 2.0**-45}[job.dtype]
    dbeta = sum(part.double().sum(0) for part in dy.split(1 << 14))
    for name, got, truth in (("dx", dx[rows], expected), ("dbeta", buffers.dbeta, dbeta)):
        error = float((got.double() - truth).abs().max() / truth.abs().max())
        if not error <= limit:
            raise ValueError(f"{name}: expected it within {limit:.1e} of its largest element, got {error:.1e}")
