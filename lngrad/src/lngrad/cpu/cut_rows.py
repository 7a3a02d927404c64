"""Sums of whole rows from those of their slices, with the bits of rows in one piece; and what a kernel makes of them.

A row is summed by segments of 512 columns and the binary tree of their number (decision 31). Where no slice begins inside a
segment, each one has whole subtrees: their lanes are sent, and everybody adds up the rest of the tree (decision 33).
Statistics are closed step by step as the kernels do. Arrays are NumPy's, or torch's where `xp` is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lngrad.core.column_tree import ColumnTree, subtrees
from lngrad.cpu.jobs import COMPENSATED_FROM, LANES, SEGMENT


def segment_borders(N: int) -> range:
    """The columns at which rows of N elements can be cut among processes so that results have the bits of one process."""
    return range(SEGMENT, max(1, N // SEGMENT) * SEGMENT, SEGMENT)


def subtrees_of_slices(N: int, starts: Sequence[int], counts: Sequence[int]) -> list[list[tuple[int, int, int]]] | None:
    """The whole subtrees that each slice has, as (level, first column, columns); None if a segment is cut."""
    if N < LANES:
        return None
    segments = max(1, N // SEGMENT)
    trees = []
    for start, count in zip(starts, counts, strict=True):
        first, stop = start // SEGMENT, segments if start + count == N else (start + count) // SEGMENT
        if count == 0:
            first = stop = 0
        elif first * SEGMENT != start or (stop < segments and stop * SEGMENT != start + count) or first >= stop:
            return None
        borders = [index << level for level, index in subtrees(first, stop)] + [stop]
        ends = [N if border == segments else border * SEGMENT for border in borders[1:]]
        trees.append(
            [
                (level, border * SEGMENT, end - border * SEGMENT)
                for (level, _), border, end in zip(subtrees(first, stop), borders, ends, strict=False)
            ]
        )
    return trees


def sums_of_rows(parts: Iterable[tuple[Any, int]], nothing: Any) -> Any:
    """(sums, M) over whole rows, from lanes (M, sums, LANES) over subtrees and their levels in the order of the columns."""
    tree = ColumnTree()
    for lanes, level in parts:
        tree.add(lanes, level)
    return totals(tree.total(nothing))


def totals(lanes: Any) -> Any:
    """(sums, M): the lanes added up, by halves, as a kernel does."""
    for half in (4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0].T


def centred_statistics(centre: Any, sums: Any, N: int, eps: float) -> tuple[Any, Any, Any]:
    """Mean, what its rounding left, and rstd, from the sums of x - centre and of its squares; all (M,)."""
    shift, variance = sums / sums.dtype.type(N)
    with np.errstate(all="ignore"):
        variance = np.where(variance < np.inf, variance - shift * shift, variance + (shift - shift))
    variance[variance < 0] = 0  # rounding; a NaN passes
    mean = centre + shift
    added = mean - centre
    return mean, (centre - (mean - added)) + (shift - added), rstd_of(variance, eps)  # Knuth's sum


def rstd_of(variance: Any, eps: float) -> Any:
    """1/sqrt(variance + eps) in float64, rounded once, by the root of the processor: MKL's, which torch may take, differs."""
    with np.errstate(all="ignore"):
        return (1 / np.sqrt(variance.astype(np.float64) + eps)).astype(variance.dtype)


def shows_rest(mean: Any, rstd: Any) -> Any:
    """Whether the mean of a row is so large that xhat shows its rounding."""
    ratio = mean * rstd
    return ~(ratio * ratio < COMPENSATED_FROM**2)


def lost_of(mean: Any, rest: Any, rstd: Any, xp: Any = np) -> Any:
    """The error of xhat = (x - mean)·rstd where `rest` was rounded off the mean; -0.0, a neutral summand, where small."""
    return xp.where(shows_rest(mean, rstd), rest * -1.0 * rstd, xp.full_like(rstd, -0.0))


def means_of_rows(sums: Any, mean: Any, rstd: Any, n: Any, xp: Any = np) -> tuple[Any, Any]:
    """(mean_dxhat, mean_dxhat_xhat) of rows, and what xhat lost with the mean, None where it lost nothing.

    Args:
        sums: Of dxhat, of dxhat·xhat and, where a mean may have lost something, of x - mean: (M,) each; of rows that are not
            centred that of dxhat·xhat alone.
        mean, rstd: (M,); mean None where rows are not centred.
        n: The elements of a row, in the dtype of the sums.
        xp: numpy or torch.
    """
    if mean is None:
        return (xp.zeros_like(sums[0]), sums[0] / n), None
    mean_dxhat, mean_dxhat_xhat = sums[0] / n, sums[1] / n
    if len(sums) == 2:
        return (mean_dxhat, mean_dxhat_xhat + -0.0 * mean_dxhat), None  # as in the kernel, for the sign of a zero
    rest, last_place = sums[2] / n, mean * xp.finfo(mean.dtype).eps
    rest = xp.where(rest * rest < last_place * last_place, rest, xp.zeros_like(rest))
    lost = lost_of(mean, rest, rstd, xp)
    return (mean_dxhat, mean_dxhat_xhat + lost * mean_dxhat), lost
