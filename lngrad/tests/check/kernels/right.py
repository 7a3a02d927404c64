"""Right backwards in the styles that people write: each must pass the default cases."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

np.seterr(all="ignore")


def parts(dy, x, mean, rstd, gamma, normalized_shape):
    """dy, xhat, dxhat as matrices, rstd as a column, in float32 or float64; and how to give results back."""
    N, M = math.prod(normalized_shape), mean.size
    wide = np.float64 if x.dtype == np.float64 else np.float32
    dy, flat = (array.reshape(M, N).astype(wide) for array in (dy, x))
    mean, rstd = (array.reshape(M, 1).astype(wide) for array in (mean, rstd))
    scale = np.ones(N, wide) if gamma is None else gamma.reshape(N).astype(wide)
    parameter = x.dtype if gamma is None else gamma.dtype

    def back(dx, dgamma, dbeta):
        return (dx.reshape(x.shape).astype(x.dtype), wide_as(dgamma), wide_as(dbeta))

    def wide_as(sums):
        # float32 where a case may want it; what is wider than a case declares is rounded to it.
        return sums.reshape(normalized_shape).astype(np.float32 if parameter.itemsize < 4 else parameter)

    return dy, (flat - mean) * rstd, dy * scale, rstd, max(N, 1), back


def plain(dy, x, mean, rstd, gamma, normalized_shape):
    dy, xhat, dxhat, rstd, N, back = parts(dy, x, mean, rstd, gamma, normalized_shape)
    m1, m2 = dxhat.sum(1, keepdims=True) / N, (dxhat * xhat).sum(1, keepdims=True) / N
    return back(rstd * (dxhat - m1 - xhat * m2), (dy * xhat).sum(0), dy.sum(0))


def masked(dy, x, mean, rstd, gamma, normalized_shape, output_mask):
    grads = plain(dy, x, mean, rstd, gamma, normalized_shape)
    return tuple(grad if wanted else None for grad, wanted in zip(grads, output_mask, strict=True))


def recomputed(dy, x, gamma, normalized_shape, eps):
    """mean and rstd of its own, in two passes."""
    N = math.prod(normalized_shape)
    flat = x.reshape(-1, N).astype(np.float64 if x.dtype == np.float64 else np.float32) if x.size else np.zeros((0, N))
    if not x.size:
        M = x.size // N if N else math.prod(x.shape[: x.ndim - len(normalized_shape)])
        return plain(dy, x, np.zeros(M, np.float32), np.ones(M, np.float32), gamma, normalized_shape)
    mean = flat.mean(1, keepdims=True)
    rstd = 1 / np.sqrt(np.square(flat - mean).mean(1, keepdims=True) + flat.dtype.type(eps))
    return plain(dy, x, mean, rstd, gamma, normalized_shape)


def ignoring(dy, x, mean, rstd, gamma, normalized_shape):
    """The same behind a signature that has mean and rstd."""
    return recomputed(dy, x, gamma, normalized_shape, 1e-5)


def from_variance(dy, x, mean, variance, gamma, normalized_shape, eps):
    wide = np.float64 if x.dtype == np.float64 else np.float32
    rstd = 1 / np.sqrt(variance.astype(wide) + wide(eps))
    return plain(dy, x, mean, rstd, gamma, normalized_shape)


def tree(terms):
    """A sum over the first axis by halves."""
    if not len(terms):
        return np.zeros(terms.shape[1:], terms.dtype)
    while len(terms) > 1:
        half = len(terms) // 2
        rest = terms[2 * half :]
        terms = np.concatenate([terms[:half] + terms[half : 2 * half], rest])
    return terms[0]


def trees(dy, x, mean, rstd, gamma, normalized_shape):
    dy, xhat, dxhat, rstd, N, back = parts(dy, x, mean, rstd, gamma, normalized_shape)
    m1, m2 = tree(dxhat.T)[:, None] / N, tree((dxhat * xhat).T)[:, None] / N
    return back(rstd * (dxhat - (m1 + xhat * m2)), tree(dy * xhat), tree(dy))


def compensated(terms):
    total, lost = np.zeros(terms.shape[1:], terms.dtype), np.zeros(terms.shape[1:], terms.dtype)
    for row in terms:
        term = row - lost
        new = total + term
        lost = (new - total) - term
        total = new
    return total


def kahan(dy, x, mean, rstd, gamma, normalized_shape):
    """Kahan's sums of rows; those that take too long in Python are left to NumPy."""
    dy, xhat, dxhat, rstd, N, back = parts(dy, x, mean, rstd, gamma, normalized_shape)
    add = compensated if dy.shape[0] < 2000 else partial(np.sum, axis=0)
    m1, m2 = dxhat.sum(1, keepdims=True) / N, (dxhat * xhat).sum(1, keepdims=True) / N
    return back(rstd * (dxhat - m1 - xhat * m2), add(dy * xhat), add(dy))


def blocks(dy, x, mean, rstd, gamma, normalized_shape):
    """64 rows at a time, with a buffer of partial sums."""
    dy, xhat, dxhat, rstd, N, back = parts(dy, x, mean, rstd, gamma, normalized_shape)
    dx, starts = np.empty_like(dy), range(0, len(dy), 64)
    partial_sums = np.zeros((2, len(starts), dy.shape[1]), dy.dtype)
    for number, start in enumerate(starts):
        rows = slice(start, start + 64)
        m1 = dxhat[rows].sum(1, keepdims=True) / N
        m2 = (dxhat[rows] * xhat[rows]).sum(1, keepdims=True) / N
        dx[rows] = rstd[rows] * (dxhat[rows] - m1 - xhat[rows] * m2)
        partial_sums[:, number] = (dy[rows] * xhat[rows]).sum(0), dy[rows].sum(0)
    return back(dx, *partial_sums.sum(1))


def threaded(dy, x, mean, rstd, gamma, normalized_shape, threads=2):
    """Rows shared by threads; sums are added as they come, so their order varies."""
    dy, xhat, dxhat, rstd, N, back = parts(dy, x, mean, rstd, gamma, normalized_shape)
    dx, sums, lock = np.empty_like(dy), np.zeros((2, dy.shape[1]), dy.dtype), threading.Lock()

    def work(rows):
        m1 = dxhat[rows].sum(1, keepdims=True) / N
        m2 = (dxhat[rows] * xhat[rows]).sum(1, keepdims=True) / N
        dx[rows] = rstd[rows] * (dxhat[rows] - m1 - xhat[rows] * m2)
        mine = (dy[rows] * xhat[rows]).sum(0), dy[rows].sum(0)
        with lock:
            sums[0] += mine[0]
            sums[1] += mine[1]

    step = -(-len(dy) // threads) or 1
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, [slice(start, start + step) for start in range(0, len(dy), step)]))
    return back(dx, *sums)


_buffers: dict[Any, Any] = {}


def kept_buffers(dy, x, mean, rstd, gamma, normalized_shape):
    """The same memory for the results of every call of a shape, and in-place arithmetic in it."""
    key = x.shape, x.dtype
    dy, xhat, dxhat, rstd, N, back = parts(dy, x, mean, rstd, gamma, normalized_shape)
    dx = _buffers.setdefault(key, np.empty(x.shape, x.dtype))
    m2 = (dxhat * xhat).sum(1, keepdims=True) / N
    dgamma, dbeta = (dy * xhat).sum(0), dy.sum(0)
    dxhat -= dxhat.sum(1, keepdims=True) / N
    xhat *= m2
    dxhat -= xhat
    dxhat *= rstd
    dx[...] = dxhat.reshape(dx.shape)
    return (dx, *back(dx, dgamma, dbeta)[1:])


def other_strides(dy, x, mean, rstd, gamma, normalized_shape):
    """Results that are not contiguous: transposed, reversed, every second."""
    dx, dgamma, dbeta = plain(dy, x, mean, rstd, gamma, normalized_shape)
    turned = np.asfortranarray(dx)
    wide = np.empty((2 * dgamma.shape[0], *dgamma.shape[1:]), dgamma.dtype)[::2]
    wide[...] = dgamma
    return turned, wide, dbeta[::-1].copy()[::-1]


def into_outputs(dy, x, mean, rstd, gamma, normalized_shape, dx, dgamma, dbeta):
    """Outputs are given, as to a kernel in C."""
    for out, item in zip((dx, dgamma, dbeta), plain(dy, x, mean, rstd, gamma, normalized_shape), strict=True):
        if out is not None:
            out[...] = item


def torch_autograd(dy, x, gamma, normalized_shape, eps):
    """torch's own derivative of its own forward."""
    import torch

    from lngrad.support.dtypes import from_torch, to_torch

    if x.dtype.itemsize == 2:
        raise NotImplementedError("torch sums columns in 16 bits")
    t, dy = to_torch(np.ascontiguousarray(x)).requires_grad_(), to_torch(np.ascontiguousarray(dy))
    weight, bias = (torch.full(normalized_shape, float(array), dtype=t.dtype, requires_grad=True) for array in (1, 0))
    if gamma is not None:
        weight = to_torch(np.ascontiguousarray(gamma)).requires_grad_()
    y = torch.nn.functional.layer_norm(t, normalized_shape, weight, bias, eps)
    return tuple(map(from_torch, torch.autograd.grad(y, (t, weight, bias), dy)))


def torch_formula(dy, x, mean, rstd, gamma, normalized_shape):
    """The formula on tensors, which lie where the arrays do."""
    import torch

    if x.dtype.itemsize == 2:
        raise NotImplementedError("32 and 64 bits")
    dy, x, mean, rstd = map(torch.from_numpy, (dy, x, mean, rstd))
    axes, rows = tuple(range(x.ndim - len(normalized_shape), x.ndim)), tuple(range(x.ndim - len(normalized_shape)))
    xhat = (x - mean) * rstd
    dxhat = dy if gamma is None else dy * torch.from_numpy(gamma)
    dx = rstd * (dxhat - dxhat.mean(axes, True) - xhat * (dxhat * xhat).mean(axes, True))
    total = (lambda item: item.sum(rows)) if rows else (lambda item: item.clone())
    return dx, total(dy * xhat), total(dy)


def with_torchs_names(grad_output, input, mean, invstd, weight, normalized_shape):
    return plain(grad_output, input, mean, invstd, weight, normalized_shape)


def with_llm_c_s_names(dout, inp, w, mu, rsigma, normalized_shape):
    return plain(dout, inp, mu, rsigma, w, normalized_shape)


KERNELS = (plain, with_torchs_names, with_llm_c_s_names,
           masked, recomputed, ignoring, from_variance, trees, kahan, blocks, threaded, kept_buffers, other_strides,
           into_outputs, torch_autograd, torch_formula)  # fmt: skip


def forward(x, weight, bias, eps):
    """A forward alone, over the last axis: y, mean and rstd."""
    wide = np.float64 if x.dtype == np.float64 else np.float32
    mean = x.mean(-1, keepdims=True, dtype=wide)
    rstd = 1 / np.sqrt(np.square(x - mean).mean(-1, keepdims=True) + eps)
    return ((x - mean) * rstd * weight.astype(wide) + bias.astype(wide)).astype(x.dtype), mean, rstd
