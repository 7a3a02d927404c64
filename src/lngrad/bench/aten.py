"""torch's own kernels, eager and compiled, on the tensors of any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lngrad.bench.arguments import Arguments
from lngrad.bench.cases import Job

EPS = 1e-5


def eager(job: Job, t: Arguments) -> Callable[[], tuple[Any, ...]]:
    """The operators behind torch.nn.LayerNorm: y, mean and rstd; or dx, dgamma and dbeta."""
    import torch

    if job.op == "forward":
        forward = torch.ops.aten.native_layer_norm
        return lambda: tuple(forward(t.x, [job.N], t.gamma, t.beta, EPS))
    backward = torch.ops.aten.native_layer_norm_backward
    return lambda: tuple(backward(t.dy, t.x, [job.N], t.mean, t.rstd, t.gamma, t.beta, [True, True, True]))


def compiled(job: Job, t: Arguments) -> Callable[[], tuple[Any, ...]]:
    """The same operators under torch.compile, for static shapes."""
    import torch

    # One code object is compiled for at most eight shapes; then torch silently takes eager code.
    torch._dynamo.reset()
    if job.op == "forward":
        norm = torch.ops.aten.native_layer_norm
        forward = torch.compile(lambda x, w, b: norm(x, [job.N], w, b, EPS), dynamic=False)
        return lambda: tuple(forward(t.x, t.gamma, t.beta))
    mask, gradients = [True, True, True], torch.ops.aten.native_layer_norm_backward
    backward = torch.compile(lambda dy, x, m, r, w, b: gradients(dy, x, [job.N], m, r, w, b, mask), dynamic=False)
    return lambda: tuple(backward(t.dy, t.x, t.mean, t.rstd, t.gamma, t.beta))
