"""Arithmetic on a slice of the columns: what a rank can do alone before and after it asks the others.

x, dy: (M, n). mean, rstd and the row means: (M,) in the accumulator's dtype. gamma, beta: (n,) or None, in it too. CPU tensors
go to compiled kernels; those on other devices, and slices of fewer than 8 columns, to the same formulas in torch's operators.
Source: docs/math.md.
"""

from __future__ import annotations

from typing import Any

import torch

from lngrad.core.threads import use_parallel_for
from lngrad.core.torch_threads import parallel_for, thread_count
from lngrad.cpu.plan import MIN_COLUMNS, run_slices
from lngrad.torch.calls import accumulator_of

_PLAIN = (torch.Tensor, torch.nn.Parameter)  # what has an address


def moments(x: Any) -> Any:
    """(3, M) of each row's slice: a centre near its mean, its mean less the centre, the sum of squares around its mean.

    All are 0 where the slice is empty.
    """
    result = torch.zeros((3, x.shape[0]), dtype=accumulator_of(x), device=x.device)
    n = x.shape[1]
    if _kernel("slice_moments", x, row_numbers=result) or n == 0:
        return result
    wide = x.to(result.dtype)
    result[0] = wide.sum(1) / n
    centred = wide - result[0, :, None]
    result[1] = centred.sum(1) / n
    result[2] = (centred - result[1, :, None]).square_().sum(1)
    return result


def normalized(x: Any, mean: Any, rstd: Any, gamma: Any, beta: Any) -> Any:
    """y (M, n) in x's dtype."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if _kernel("slice_forward", x, result=y, mean=mean, rstd=rstd, gamma=gamma, beta=beta):
        return y
    result = (x.to(mean.dtype) - mean[:, None]) * rstd[:, None]
    if gamma is not None:
        result *= gamma
    if beta is not None:
        result += beta
    return y.copy_(result)


def row_sums(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any) -> Any:
    """(2, M): the sums of dxhat and of dxhat·xhat over each row's slice."""
    result = mean.new_zeros((2, x.shape[0]))
    if not _kernel("slice_row_sums", x, dy, mean=mean, rstd=rstd, gamma=gamma, row_numbers=result):
        dxhat, xhat = _terms(dy, x, mean, rstd, gamma)
        result[0], result[1] = dxhat.sum(1), (dxhat * xhat).sum(1)
    return result


def input_gradient(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, means: Any) -> Any:
    """dx (M, n) in x's dtype, given mean_dxhat and mean_dxhat_xhat of whole rows as (2, M)."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if _kernel("slice_dx", x, dy, result=dx, mean=mean, rstd=rstd, gamma=gamma, row_numbers=means):
        return dx
    dxhat, xhat = _terms(dy, x, mean, rstd, gamma)
    return dx.copy_(((dxhat - means[0, :, None]) - xhat * means[1, :, None]) * rstd[:, None])


def _terms(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any) -> tuple[Any, Any]:
    dxhat = dy.to(mean.dtype)
    if gamma is not None:
        dxhat = dxhat * gamma
    return dxhat, (x.to(mean.dtype) - mean[:, None]) * rstd[:, None]


def _kernel(task: str, x: Any, dy: Any = None, **arrays: Any) -> bool:
    """Run a compiled task, if it takes these tensors; whether it did."""
    M, n = x.shape
    given = [tensor for tensor in (x, dy, *arrays.values()) if tensor is not None]
    if x.device.type != "cpu" or M == 0 or any(type(tensor) not in _PLAIN for tensor in given):
        return False
    if n < MIN_COLUMNS:
        return False
    x, dy = (tensor if tensor is None or tensor.stride(1) == 1 else tensor.contiguous() for tensor in (x, dy))
    ready = {name: array.contiguous() for name, array in arrays.items() if array is not None}
    with use_parallel_for(parallel_for()):
        run_slices(
            task, str(x.dtype).removeprefix("torch."), M, n, x=_rows(x), dy=(0, 0) if dy is None else _rows(dy),
            threads=thread_count(),
            **{name: array.data_ptr() for name, array in ready.items()},
        )  # fmt: skip
    return True


def _rows(tensor: Any) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.stride(0) * tensor.element_size()
