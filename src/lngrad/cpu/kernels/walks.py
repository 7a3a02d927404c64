"""How rows are walked over backward: one at a time, four at a time, or eight across, and dbeta by itself.

All walks share the orders of sums that backward.py tells, so a choice among them is a choice of speed only.
"""

import numpy as np
from numba.core import types
from numba.extending import overload

from lngrad.cpu.jobs import DBETA, DGAMMA, DX, LANES, SEGMENT
from lngrad.cpu.kernels.arithmetic import fma, scalar, splat, totals, zeros
from lngrad.cpu.kernels.functions import inlined, plain
from lngrad.cpu.kernels.simd import gather, load, load_scalar, room, scatter_rows, size_of, store, store_scalar
from lngrad.cpu.kernels.sweeps import (
    dx_of,
    row_means,
    segment_columns,
    segment_count,
    segment_lanes,
    sweep,
    vector_at,
)

FOUR_FROM = 128  # columns from which on eight rows crowd the first-level cache before they are swept
WORK = 2 + 2 * LANES  # vectors that the means of eight rows take: the results, then what they are added up from


@inlined
def row_of(tag, acc, gamma, dy, x, dx, mean, rstd, N, i, ahead, dy_stride, x_stride, dx_stride):
    """What sweep needs to know of row i; without gamma no means, since dx is not wanted."""
    dy, x, dx = dy + i * dy_stride, x + i * x_stride, dx + i * dx_stride
    m, r = splat(load_scalar(acc, mean, i)), splat(load_scalar(acc, rstd, i))
    if gamma is None:
        return dy, x, dx, m, r, m, m
    mean_dxhat, mean_dxhat_xhat = row_means(tag, acc, dy, x, x + ahead * x_stride, gamma, N, m, r)
    return dy, x, dx, m, r, mean_dxhat, mean_dxhat_xhat


@plain
def long_rows(tag, acc, gamma, sums, dy, x, dx, mean, rstd, rows, dy_stride, x_stride, dx_stride, b):
    """One row at a time: both its visits while it is in the cache, and dx as one stream.

    Four at a time saved the column sums' traffic but lost more: four interleaved streams of dx broke the write combining
    (4.4 GB/s against 20.6, 16384×1024 float32, 2-core AMD EPYC 7003), and rows 4 KB apart compete for one cache set.
    """
    for i in range(rows):
        row = row_of(tag, acc, gamma, dy, x, dx, mean, rstd, b.N, i, b.ahead, dy_stride, x_stride, dx_stride)
        x_ahead = b.ahead * x_stride if gamma is None else None  # else row_means has fetched it
        sweep(tag, acc, row, None, None, None, b.ahead * dy_stride, x_ahead, gamma, sums, b.N, b.N, b.streaming)


@plain
def means_of_rows(tag, acc, memory, gamma, dy, x, mean, rstd, rows, N, dy_stride, x_stride, ahead):
    """Leave mean_dxhat and mean_dxhat_xhat of up to eight rows in memory, with room for WORK vectors: lane r is row r.

    Eight rows' lanes are added up at once and divided at once.
    """
    of_dxhat, of_dxhat_xhat = vector_at(acc, memory, 2), vector_at(acc, memory, 2 + LANES)
    for r in range(rows, LANES):
        store(acc, of_dxhat, r * LANES, zeros(acc))
        store(acc, of_dxhat_xhat, r * LANES, zeros(acc))
    for segment in range(segment_count(N)):
        at, at_gamma = segment * SEGMENT * size_of(tag), segment * SEGMENT * size_of(acc)
        for r in range(rows):
            dy_r, x_r = dy + r * dy_stride + at, x + r * x_stride + at
            m, s = splat(load_scalar(acc, mean, r)), splat(load_scalar(acc, rstd, r))
            x_next = x_r + ahead * x_stride
            lanes = segment_lanes(tag, acc, dy_r, x_r, x_next, gamma + at_gamma, segment_columns(N, segment), m, s)
            store(acc, of_dxhat, r * LANES, lanes[0])
            store(acc, of_dxhat_xhat, r * LANES, lanes[1])
        sums = totals(acc, of_dxhat), totals(acc, of_dxhat_xhat)
        if segment > 0:
            sums = load(acc, memory, 0) + sums[0], load(acc, memory, LANES) + sums[1]
        store(acc, memory, 0, sums[0])
        store(acc, memory, LANES, sums[1])
    n = splat(scalar(acc, N))
    store(acc, memory, 0, load(acc, memory, 0) / n)
    store(acc, memory, LANES, load(acc, memory, LANES) / n)


@inlined
def known_row(acc, memory, dy, x, dx, mean, rstd, r, dy_stride, x_stride, dx_stride):
    """What sweep needs to know of row r, whose means lie in memory."""
    return (
        dy + r * dy_stride, x + r * x_stride, dx + r * dx_stride,
        splat(load_scalar(acc, mean, r)), splat(load_scalar(acc, rstd, r)),
        splat(load_scalar(acc, memory, r)), splat(load_scalar(acc, memory, LANES + r)),
    )  # fmt: skip


@plain
def short_rows(tag, acc, gamma, sums, dy, x, dx, mean, rstd, rows, dy_stride, x_stride, dx_stride, b):
    """Eight rows, or four, have their sums together, and four read and write the column sums together."""
    N, memory, size = b.N, room(acc, WORK), size_of(acc)
    together = LANES if N < FOUR_FROM else 4
    for i in range(0, rows, together):
        count = min(together, rows - i)
        dy_i, x_i, dx_i = dy + i * dy_stride, x + i * x_stride, dx + i * dx_stride
        m, s = mean + i * size, rstd + i * size
        means_of_rows(tag, acc, memory, gamma, dy_i, x_i, m, s, count, N, dy_stride, x_stride, b.ahead)
        whole = count - count % 4
        for r in range(0, whole, 4):
            row0 = known_row(acc, memory, dy_i, x_i, dx_i, m, s, r, dy_stride, x_stride, dx_stride)
            row1 = known_row(acc, memory, dy_i, x_i, dx_i, m, s, r + 1, dy_stride, x_stride, dx_stride)
            row2 = known_row(acc, memory, dy_i, x_i, dx_i, m, s, r + 2, dy_stride, x_stride, dx_stride)
            row3 = known_row(acc, memory, dy_i, x_i, dx_i, m, s, r + 3, dy_stride, x_stride, dx_stride)
            sweep(tag, acc, row0, row1, row2, row3, b.ahead * dy_stride, None, gamma, sums, N, N, b.streaming)
        for r in range(whole, count):
            row = known_row(acc, memory, dy_i, x_i, dx_i, m, s, r, dy_stride, x_stride, dx_stride)
            sweep(tag, acc, row, None, None, None, b.ahead * dy_stride, None, gamma, sums, N, N, b.streaming)


@plain
def sum_dy(tag, acc, gamma, sums, dy, x, dx, mean, rstd, rows, dy_stride, x_stride, dx_stride, b):
    """All that remains to do where dbeta alone is wanted; x is not read."""
    N = b.N
    for i in range(rows):
        row, dbeta = dy + i * dy_stride, sums + N * size_of(acc)
        for j in range(0, N - N % LANES, LANES):
            store(acc, dbeta, j, load(acc, dbeta, j) + load(tag, row, j))
        for j in range(N - N % LANES, N):
            store_scalar(acc, dbeta, j, load_scalar(acc, dbeta, j) + load_scalar(tag, row, j))


@plain
def tiny_rows(tag, acc, gamma, sums, dy, x, dx, mean, rstd, rows, dy_stride, x_stride, dx_stride, b):
    """Rows shorter than a vector: lane l takes row i + l, and each lane adds its columns left to right.

    sums holds eight lanes a column until the chunk is done: row r adds to lane r mod 8, whatever walks beside it.
    """
    N, wants = b.N, b.wants
    dy_step, x_step, dx_step = dy_stride // size_of(tag), x_stride // size_of(tag), dx_stride // size_of(tag)
    for i in range(0, rows, LANES):
        count = min(LANES, rows - i)
        dy_i, x_i, dx_i = dy + i * dy_stride, x + i * x_stride, dx + i * dx_stride
        m, r = gather(acc, mean, i, 1, count), gather(acc, rstd, i, 1, count)
        mean_dxhat, mean_dxhat_xhat = zeros(acc), zeros(acc)
        if wants & DX:
            for j in range(N):
                dxhat = gather(tag, dy_i, j, dy_step, count) * splat(load_scalar(acc, gamma, j))
                xhat = (gather(tag, x_i, j, x_step, count) - m) * r
                mean_dxhat = mean_dxhat + dxhat
                mean_dxhat_xhat = fma(dxhat, xhat, mean_dxhat_xhat)
            mean_dxhat = mean_dxhat / splat(scalar(acc, N))
            mean_dxhat_xhat = mean_dxhat_xhat / splat(scalar(acc, N))
        for j in range(N):
            d = gather(tag, dy_i, j, dy_step, count)
            xhat = (gather(tag, x_i, j, x_step, count) - m) * r
            if wants & DX:
                g = splat(load_scalar(acc, gamma, j))
                scatter_rows(tag, dx_i, j, dx_step, count, dx_of(d, xhat, g, r, mean_dxhat, mean_dxhat_xhat))
            if wants & (DGAMMA | DBETA):
                at, at_dbeta = j * LANES, (N + j) * LANES
                store(acc, sums, at, fma(d, xhat, load(acc, sums, at)))
                store(acc, sums, at_dbeta, load(acc, sums, at_dbeta) + d)


# A walk is named by the type of a zero, as storage is: the choice is made when the kernel is compiled.
ONE_BY_ONE, FOUR_BY_FOUR, ACROSS, DBETA_ONLY = np.int8(0), np.int16(0), np.int32(0), np.int64(0)


def walk_rows(walk, *arguments):
    """Call the walk that `walk` names."""
    raise NotImplementedError("compiled code only")


@overload(walk_rows)
def _walk_rows(walk, *arguments):
    walks = {types.int8: long_rows, types.int16: short_rows, types.int32: tiny_rows, types.int64: sum_dy}
    chosen = walks[walk]

    def call(walk, *arguments):
        chosen(*arguments)

    return call
