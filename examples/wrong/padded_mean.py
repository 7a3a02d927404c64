"""A Triton kernel with the commonest mistake: its row means are divided by BLOCK, which is N only where N is a power of two.

    lngrad check --impl triton:examples.wrong.padded_mean:backward --filter '=tail'

Everything else of it is as in ../triton_kernel.py.
"""

from __future__ import annotations

import os
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import triton
import triton.language as tl


@triton.jit
def backward_row(dy, x, mean, rstd, gamma, dx, dgamma, dbeta, N, BLOCK: tl.constexpr):
    """dx of a row, and its part of the column sums."""
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    inside = cols < N
    here = row.to(tl.int64) * N + cols
    dy_row = tl.load(dy + here, inside, other=0.0).to(tl.float32)
    x_row = tl.load(x + here, inside, other=0.0).to(tl.float32)
    scale = tl.load(gamma + cols, inside, other=0.0).to(tl.float32)
    rstd_row = tl.load(rstd + row)
    xhat = tl.where(inside, (x_row - tl.load(mean + row)) * rstd_row, 0.0)
    dxhat = dy_row * scale
    mean_dxhat, mean_dxhat_xhat = tl.sum(dxhat) / BLOCK, tl.sum(dxhat * xhat) / BLOCK  # wrong: a row has N columns
    tl.store(dx + here, rstd_row * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat), inside)
    tl.atomic_add(dgamma + cols, dy_row * xhat, inside)
    tl.atomic_add(dbeta + cols, dy_row, inside)


def backward(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, normalized_shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The host side: what the kernel does not take is refused, and such a case is skipped."""
    if gamma is None or len(normalized_shape) > 1 or x.dtype == torch.float64 or not x.numel():
        raise NotImplementedError("the kernel takes one normalized axis, a gamma, up to float32, and no empty tensor")
    dy, x, mean, rstd, gamma = (array.contiguous() for array in (dy, x, mean, rstd, gamma))  # it takes no strides
    N = normalized_shape[0]
    dx = torch.empty_like(x)
    dgamma = torch.zeros(N, dtype=torch.float32, device=x.device)
    dbeta = torch.zeros_like(dgamma)
    rows = x.numel() // N
    backward_row[(rows,)](
        dy, x, mean.float(), rstd.float(), gamma, dx, dgamma, dbeta, N, BLOCK=triton.next_power_of_2(N)
    )
    return dx, dgamma, dbeta
