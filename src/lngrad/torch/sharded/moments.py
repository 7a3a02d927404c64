"""Row statistics and row sums of a tensor whose rows are cut among ranks: what each rank sends, and how all of it adds up.

Partial results of a row are combined in float64, in rank order: P numbers a row are few, and every rank does the same.
"""

from __future__ import annotations

from typing import Any

import torch

from lngrad.errors import ShapeError
from lngrad.torch.sharded.collectives import all_gather


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
