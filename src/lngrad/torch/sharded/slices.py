"""Rows that are cut among ranks: what a rank computes of its slice of the columns, and how the slices of all ranks add up.

x, dy: (M, n). mean, rstd and the row means: (M,) in the accumulator's dtype. gamma, beta: (n,) or None, in it too. CPU
tensors go to compiled kernels; those on other devices, and slices of fewer than 8 columns, to the same formulas in torch's
operators. Source: docs/math.md.

The one collective is a gather, every rank's block to every rank; sums are then taken locally, in rank order and in float64:
P numbers a row are few. An all-reduce would leave the order of a sum to the transport. A gather moves bits only, so all
ranks add the same numbers in the same order and get the same bits, run after run. docs/distributed.md says what it costs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed

from lngrad.core.threads import torch_parallel_for, torch_thread_count, use_parallel_for
from lngrad.cpu.plan import MIN_COLUMNS, run_slices
from lngrad.errors import BackendUnavailable, PeerError, ShapeError
from lngrad.torch.calls import accumulator_of

_PLAIN = (torch.Tensor, torch.nn.Parameter)  # what has an address


# --- One rank's slice -----------------------------------------------------------------------------------------------


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
    with use_parallel_for(torch_parallel_for()):
        run_slices(
            task, str(x.dtype).removeprefix("torch."), M, n, x=_rows(x), dy=(0, 0) if dy is None else _rows(dy),
            threads=torch_thread_count(),
            **{name: array.data_ptr() for name, array in ready.items()},
        )  # fmt: skip
    return True


def _rows(tensor: Any) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.stride(0) * tensor.element_size()


# --- All ranks' slices ----------------------------------------------------------------------------------------------


def combined_statistics(moments: Any, columns: int, N: int, eps: float, groups: list[Any]) -> tuple[Any, Any]:
    """Mean and rstd of whole rows from those of their slices, by Chan's formula. One collective per group.

    Args:
        moments: (3, M) in the accumulator's dtype, of this rank's slice of each row: a centre near its mean, its mean less
            the centre, the sum of squares around its mean. A mean in one number would be too coarse: with an offset of
            1000 and a spread of 1 its rounding showed in rstd as 3 tolerances.
        columns: How many columns the slice has, which may be none.
        N: How many all slices have together.
        eps: Added to the variance.
        groups: The process groups along which rows are cut.

    Returns:
        mean, rstd: (M,) in the accumulator's dtype, the same bits on every rank.

    Raises:
        ShapeError: The slices do not make up rows of N columns.
        PeerError: A peer failed.
    """
    # One more row tells how many columns the slice has, so that a rank with another idea of the shape is found out.
    width = moments.new_tensor([[columns], [N], [0]])
    gathered = _gather(torch.cat([moments, width], 1), groups, "mean and centred squares").double()
    counts = gathered[:, 0, -1]
    if gathered.device.type == "cpu" and not torch.compiler.is_compiling():  # on a GPU a look would wait
        _check_counts(counts.tolist(), gathered[:, 1, -1].tolist(), N)
    # Means are counted from one slice's centre: differences of means are what Chan's formula squares, and a large offset
    # would take their last digits.
    (origin,) = gathered[:, 0, :-1].index_select(0, counts.argmax().reshape(1))
    mean, squares, summed = torch.zeros_like(origin), torch.zeros_like(origin), torch.zeros_like(counts[0])
    for count, (centre, shift, part) in zip(counts, gathered[:, :, :-1], strict=True):
        delta = (centre - origin) + shift - mean
        weight = count / (summed + count).clamp(min=1)
        mean = torch.where(count > 0, mean + delta * weight, mean)
        squares = torch.where(count > 0, squares + part + delta * delta * (weight * summed), squares)
        summed = summed + count
    mean = origin + mean
    rstd = torch.rsqrt(squares / N + eps)
    return mean.to(moments.dtype), rstd.to(moments.dtype)


def _check_counts(counts: list[float], totals: list[float], N: int) -> None:
    slack = N * 2.0**-23  # counts come as floats of the accumulator's dtype
    if abs(sum(counts) - N) > slack or any(abs(total - N) > slack for total in totals):
        raise ShapeError(
            f"x: expected local shards with {N} normalized elements together, got {[int(count) for count in counts]} "
            "(DTensor.from_local needs shape= and stride= for uneven shards)"
        )


def combined_sums(sums: Any, groups: list[Any]) -> Any:
    """Sums over whole rows from those over their slices. One collective per group.

    Args:
        sums: (2, M) in the accumulator's dtype: sums over this rank's slice of each row.
        groups: The process groups along which rows are cut.

    Returns:
        (2, M) in the accumulator's dtype, the same bits on every rank.
    """
    total = torch.zeros(sums.shape, dtype=torch.float64, device=sums.device)
    for part in _gather(sums, groups, "row sums"):
        total = total + part
    return total.to(sums.dtype)


def _gather(block: Any, groups: list[Any], what: str) -> Any:
    """(P, *block.shape), P the product of the groups' sizes."""
    blocks = block.unsqueeze(0)
    for group in groups:
        blocks = all_gather(blocks, group, what).flatten(0, 1)
    return blocks


def all_gather(block: Any, group: Any, what: str) -> Any:
    """The blocks of all ranks of a group, in rank order.

    Args:
        block: The same shape and dtype on every rank.
        group: A process group; None is the default one.
        what: The name of what is gathered, for the error.

    Returns:
        (P, *block.shape), the same bits on every rank.

    Raises:
        PeerError: A peer failed, or did not come before the group's timeout.
        BackendUnavailable: It is being traced by torch.compile.
    """
    size = torch.distributed.get_world_size(group)
    if size == 1:
        return block.unsqueeze(0)
    if torch.compiler.is_compiling():
        raise BackendUnavailable(
            "torch.compile: rows cut among processes are computed in eager code only; put torch.compiler.disable on the "
            "layer normalization, or cut its input by rows"
        )
    blocks = block.new_empty((size * block.numel(),))
    with peers(f"all_gather of {what}", size):
        torch.distributed.all_gather_single(blocks, block.reshape(-1), group=group)
    return blocks.reshape(size, *block.shape)


@contextmanager
def peers(collective: str, size: int) -> Iterator[None]:
    """Turn what a collective raises when a peer is gone, or never comes, into one clear error."""
    start = time.monotonic()
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as reason:  # torch.distributed.DistError is one too
        waited = time.monotonic() - start
        first = str(reason).strip().partition("\n")[0]
        raise PeerError(
            f"{collective}: expected all {size} processes of the group, got no answer from one of them within "
            f"{waited:.1f} s (the group's timeout is given to init_process_group or new_group): {first}"
        ) from reason
