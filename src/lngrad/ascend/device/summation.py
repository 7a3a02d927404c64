"""The orders in which the vector unit adds up many numbers."""

from __future__ import annotations

import numpy as np

from lngrad.typing import Array

REPEAT_BYTES = 256  # what the vector unit takes at a time
REPEAT_FLOATS = REPEAT_BYTES // 4


def pairwise_sum(values: Array) -> Array:
    """Return the sums over the last axis, adding neighbours and then their sums.

    Shapes: (…, n) to (…); n is padded with zeros to a power of two.
    """
    lanes = values.shape[-1]
    width = 1 << (lanes - 1).bit_length()
    if width != lanes:
        values = np.concatenate([values, np.zeros((*values.shape[:-1], width - lanes), values.dtype)], axis=-1)
    while values.shape[-1] > 1:
        values = values[..., 0::2] + values[..., 1::2]
    return values[..., 0]


def partial_sums(rows: Array, lanes: int) -> Array:
    """Return the sum of every ``lanes`` elements: (M, n) to (M, ceil(n / lanes))."""
    M, n = rows.shape
    whole = n // lanes * lanes
    sums = pairwise_sum(rows[:, :whole].reshape(M, -1, lanes))
    if whole < n:
        sums = np.concatenate([sums, pairwise_sum(rows[:, whole:])[:, None]], axis=1)
    return sums


def repeat_sums(rows: Array, lanes: int) -> Array:
    """Return the sum of every row: (M, n) to (M,), one round of partial sums after the other."""
    while rows.shape[1] > 1:
        rows = partial_sums(rows, lanes)
    return rows[:, 0]


def lane_sums(rows: Array) -> Array:
    """Return the sum of every row: 64-float pieces are added lane by lane in order, then
    neighbours.

    Shapes: (M, n) to (M,).
    """
    n = rows.shape[1]
    total = rows[:, :REPEAT_FLOATS].copy()
    for start in range(REPEAT_FLOATS, n, REPEAT_FLOATS):
        piece = rows[:, start : start + REPEAT_FLOATS]
        total[:, : piece.shape[1]] += piece
    return pairwise_sum(total)


def reduce_sum(values: Array, arch: int) -> Array:
    """Return the sum of all elements in the order of ReduceSum's count form.

    Shapes: (n,) to (1,).

    2201 (A2, A3) adds up each repeat as a tree and the repeats one after another. 3510 adds up
    whole repeats lane by lane first where the data take 256 to 1024 bytes. The others, and longer
    data there, are trees of trees. Source: ReduceSum's page of the Ascend C manual.
    """
    lanes = REPEAT_BYTES // values.dtype.itemsize
    if arch == 2201:
        total = np.zeros(1, values.dtype)
        partials = partial_sums(values[None], lanes)[0]
        total[0] = partials[0]
        for partial in partials[1:]:
            total += partial
        return total
    if arch == 3510 and REPEAT_BYTES <= values.nbytes <= 4 * REPEAT_BYTES:
        lanewise = np.zeros(lanes, values.dtype)
        for start in range(0, values.size, lanes):
            piece = values[start : start + lanes]
            lanewise[: piece.size] += piece
        return pairwise_sum(lanewise[None])
    return repeat_sums(values[None], lanes)
