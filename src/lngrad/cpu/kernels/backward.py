"""Backward tasks: chunks of rows, or columns of wide rows, and the sums over chunks.

Which thread runs a task never shows in a result, because a task writes only what is its own and every sum has an order
that depends on the shape alone: a column is summed over chunks of CHUNK rows, top to bottom inside a chunk, chunks by the
binary tree of their index. The row loops (one row at a time, eight or four short rows at a time, rows shorter than a vector
in lanes, columns of wide rows, dbeta by itself) share these orders, so a choice among them is a choice of speed only.
"""

import numpy as np
from numba.core import types
from numba.extending import overload

from lngrad.core.column_tree import CHUNK
from lngrad.cpu.jobs import DBETA, DGAMMA, DX, LANES, SEGMENT, Backward, Combine
from lngrad.cpu.kernels.arithmetic import fma, scalar, splat, total, totals, zeros
from lngrad.cpu.kernels.functions import inlined, plain
from lngrad.cpu.kernels.pool import copy_rows, read
from lngrad.cpu.kernels.row_passes import (
    dx_of,
    row_means,
    row_pass,
    segment_columns,
    segment_count,
    segment_lanes,
    segment_sums,
    vector_at,
)
from lngrad.cpu.kernels.simd import (
    gather,
    load,
    load_scalar,
    or_none,
    scatter_rows,
    size_of,
    stack_vectors,
    store,
    store_scalar,
)

FOUR_FROM = 128  # columns from which on eight rows no longer fit the first-level cache until their second pass
MEANS_VECTORS = (
    2 + 2 * LANES
)  # vectors that the means of eight rows take: the results, then what they are added up from


@inlined
def row_of(storage, acc, gamma, dy, x, dx, mean, rstd, N, i, ahead, dy_stride, x_stride, dx_stride):
    """Row i as row_pass takes it; without gamma no means, since dx is not wanted."""
    dy, x, dx = dy + i * dy_stride, x + i * x_stride, dx + i * dx_stride
    m, r = splat(load_scalar(acc, mean, i)), splat(load_scalar(acc, rstd, i))
    if gamma is None:
        return dy, x, dx, m, r, m, m
    mean_dxhat, mean_dxhat_xhat = row_means(storage, acc, dy, x, x + ahead * x_stride, gamma, N, m, r)
    return dy, x, dx, m, r, mean_dxhat, mean_dxhat_xhat


@plain
def long_rows(storage, acc, gamma, sums, dy, x, dx, mean, rstd, rows, dy_stride, x_stride, dx_stride, b):
    """One row at a time: both its visits while it is in the cache, and dx as one stream.

    Four at a time saved the column sums' traffic but lost more: four interleaved streams of dx broke the write combining
    (4.4 GB/s against 20.6, 16384×1024 float32, 2-core AMD EPYC 7003), and rows 4 KB apart compete for one cache set.
    """
    for i in range(rows):
        row = row_of(storage, acc, gamma, dy, x, dx, mean, rstd, b.N, i, b.ahead, dy_stride, x_stride, dx_stride)
        x_ahead = b.ahead * x_stride if gamma is None else None  # else row_means has fetched it
        row_pass(storage, acc, row, None, None, None, b.ahead * dy_stride, x_ahead, gamma, sums, b.N, b.N, b.streaming)


@plain
def means_of_rows(storage, acc, memory, gamma, dy, x, mean, rstd, rows, N, dy_stride, x_stride, ahead):
    """Write mean_dxhat and mean_dxhat_xhat of up to eight rows to memory of MEANS_VECTORS vectors: lane r is row r.

    Eight rows' lanes are added up at once and divided at once.
    """
    of_dxhat, of_dxhat_xhat = vector_at(acc, memory, 2), vector_at(acc, memory, 2 + LANES)
    for r in range(rows, LANES):
        store(acc, of_dxhat, r * LANES, zeros(acc))
        store(acc, of_dxhat_xhat, r * LANES, zeros(acc))
    for segment in range(segment_count(N)):
        at, at_gamma = segment * SEGMENT * size_of(storage), segment * SEGMENT * size_of(acc)
        for r in range(rows):
            dy_r, x_r = dy + r * dy_stride + at, x + r * x_stride + at
            m, s = splat(load_scalar(acc, mean, r)), splat(load_scalar(acc, rstd, r))
            x_next = x_r + ahead * x_stride
            lanes = segment_lanes(storage, acc, dy_r, x_r, x_next, gamma + at_gamma, segment_columns(N, segment), m, s)
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
    """Row r as row_pass takes it, whose means lie in memory."""
    return (
        dy + r * dy_stride, x + r * x_stride, dx + r * dx_stride,
        splat(load_scalar(acc, mean, r)), splat(load_scalar(acc, rstd, r)),
        splat(load_scalar(acc, memory, r)), splat(load_scalar(acc, memory, LANES + r)),
    )  # fmt: skip


@plain
def short_rows(storage, acc, gamma, sums, dy, x, dx, mean, rstd, rows, dy_stride, x_stride, dx_stride, b):
    """Eight rows, or four, have their sums together, and four read and write the column sums together."""
    N, memory, size = b.N, stack_vectors(acc, MEANS_VECTORS), size_of(acc)
    together = LANES if N < FOUR_FROM else 4
    for i in range(0, rows, together):
        count = min(together, rows - i)
        dy_i, x_i, dx_i = dy + i * dy_stride, x + i * x_stride, dx + i * dx_stride
        m, s = mean + i * size, rstd + i * size
        means_of_rows(storage, acc, memory, gamma, dy_i, x_i, m, s, count, N, dy_stride, x_stride, b.ahead)
        whole = count - count % 4
        for r in range(0, whole, 4):
            row0 = known_row(acc, memory, dy_i, x_i, dx_i, m, s, r, dy_stride, x_stride, dx_stride)
            row1 = known_row(acc, memory, dy_i, x_i, dx_i, m, s, r + 1, dy_stride, x_stride, dx_stride)
            row2 = known_row(acc, memory, dy_i, x_i, dx_i, m, s, r + 2, dy_stride, x_stride, dx_stride)
            row3 = known_row(acc, memory, dy_i, x_i, dx_i, m, s, r + 3, dy_stride, x_stride, dx_stride)
            row_pass(storage, acc, row0, row1, row2, row3, b.ahead * dy_stride, None, gamma, sums, N, N, b.streaming)
        for r in range(whole, count):
            row = known_row(acc, memory, dy_i, x_i, dx_i, m, s, r, dy_stride, x_stride, dx_stride)
            row_pass(storage, acc, row, None, None, None, b.ahead * dy_stride, None, gamma, sums, N, N, b.streaming)


@plain
def sum_dy(storage, acc, gamma, sums, dy, x, dx, mean, rstd, rows, dy_stride, x_stride, dx_stride, b):
    """All that remains to do where dbeta alone is wanted; x is not read."""
    N = b.N
    for i in range(rows):
        row, dbeta = dy + i * dy_stride, sums + N * size_of(acc)
        for j in range(0, N - N % LANES, LANES):
            store(acc, dbeta, j, load(acc, dbeta, j) + load(storage, row, j))
        for j in range(N - N % LANES, N):
            store_scalar(acc, dbeta, j, load_scalar(acc, dbeta, j) + load_scalar(storage, row, j))


@plain
def tiny_rows(storage, acc, gamma, sums, dy, x, dx, mean, rstd, rows, dy_stride, x_stride, dx_stride, b):
    """Rows shorter than a vector: lane l takes row i + l, and each lane adds its columns left to right.

    sums holds eight lanes a column until the chunk is done: row r adds to lane r mod 8, whatever rows are beside it.
    """
    N, wants = b.N, b.wants
    dy_step, x_step, dx_step = (
        dy_stride // size_of(storage),
        x_stride // size_of(storage),
        dx_stride // size_of(storage),
    )
    for i in range(0, rows, LANES):
        count = min(LANES, rows - i)
        dy_i, x_i, dx_i = dy + i * dy_stride, x + i * x_stride, dx + i * dx_stride
        m, r = gather(acc, mean, i, 1, count), gather(acc, rstd, i, 1, count)
        mean_dxhat, mean_dxhat_xhat = zeros(acc), zeros(acc)
        if wants & DX:
            for j in range(N):
                dxhat = gather(storage, dy_i, j, dy_step, count) * splat(load_scalar(acc, gamma, j))
                xhat = (gather(storage, x_i, j, x_step, count) - m) * r
                mean_dxhat = mean_dxhat + dxhat
                mean_dxhat_xhat = fma(dxhat, xhat, mean_dxhat_xhat)
            mean_dxhat = mean_dxhat / splat(scalar(acc, N))
            mean_dxhat_xhat = mean_dxhat_xhat / splat(scalar(acc, N))
        for j in range(N):
            d = gather(storage, dy_i, j, dy_step, count)
            xhat = (gather(storage, x_i, j, x_step, count) - m) * r
            if wants & DX:
                g = splat(load_scalar(acc, gamma, j))
                scatter_rows(storage, dx_i, j, dx_step, count, dx_of(d, xhat, g, r, mean_dxhat, mean_dxhat_xhat))
            if wants & (DGAMMA | DBETA):
                at, at_dbeta = j * LANES, (N + j) * LANES
                store(acc, sums, at, fma(d, xhat, load(acc, sums, at)))
                store(acc, sums, at_dbeta, load(acc, sums, at_dbeta) + d)


# A row loop is named by the type of a zero, as storage is: the choice is made when the kernel is compiled.
ONE_BY_ONE, FOUR_BY_FOUR, ACROSS, DBETA_ONLY = np.int8(0), np.int16(0), np.int32(0), np.int64(0)


def run_row_loop(row_loop, *arguments):
    """Call the row loop that `row_loop` names."""
    raise NotImplementedError("compiled code only")


@overload(run_row_loop)
def _run_row_loop(row_loop, *arguments):
    row_loops = {types.int8: long_rows, types.int16: short_rows, types.int32: tiny_rows, types.int64: sum_dy}
    chosen = row_loops[row_loop]

    def call(row_loop, *arguments):
        chosen(*arguments)

    return call


@plain
def run_chunk(storage, acc, row_loop, gamma, sums, b, first, stop, task_first, task_stop, thread):
    """Rows first … stop-1, of a task's; tensors that are not used where they lie pass through this thread's scratch.

    There block_rows rows lie at a time, a part of a chunk or several: a column of so many that lie next to each other is one
    stream of memory, and 512 rows are copied nearly four times as fast as 64 (8×96×56×56 float32, channels first, 2-core AMD
    EPYC 7003).
    """
    size = size_of(storage)
    packed = b.block_rows * b.N * size
    step = min(b.block_rows, CHUNK) if (b.dy_table | b.x_table | b.dx_table) != 0 else CHUNK
    for start in range(first, stop, step):
        rows = min(step, stop - start)
        place = (start - task_first) % b.block_rows  # of these rows in the scratch
        block, filled = min(b.block_rows, task_stop - start), place + rows
        scratch = b.scratch + thread * 3 * packed + place * b.N * size
        dy, dy_stride = b.dy + start * b.dy_stride, b.dy_stride
        x, x_stride = b.x + start * b.x_stride, b.x_stride
        dx, dx_stride = b.dx + start * b.dx_stride, b.dx_stride
        if b.dy_table != 0:
            dy, dy_stride = scratch, b.N * size
            if place == 0:
                copy_rows(b.gather, b.dy, b.dy_table, start, block, b.N, dy)
        if b.x_table != 0:
            x, x_stride = scratch + packed, b.N * size
            if place == 0:
                copy_rows(b.gather, b.x, b.x_table, start, block, b.N, x)
        if b.dx_table != 0:
            dx, dx_stride = scratch + 2 * packed, b.N * size
        mean, rstd = b.mean + start * size_of(acc), b.rstd + start * size_of(acc)
        run_row_loop(
            row_loop, storage, acc, gamma, sums, dy, x, dx, mean, rstd, rows, dy_stride, x_stride, dx_stride, b
        )  # fmt: skip
        if b.dx_table != 0 and b.wants & DX and (filled == b.block_rows or start + rows == task_stop):
            copy_rows(b.scatter, b.dx, b.dx_table, start - place, filled, b.N, dx - place * b.N * size)


@plain
def clear(acc, address, n):
    for j in range(n):
        store_scalar(acc, address, j, scalar(acc, 0))


@plain
def add(acc, target, source, n):
    """target += source, n elements."""
    for j in range(0, n - n % LANES, LANES):
        store(acc, target, j, load(acc, target, j) + load(acc, source, j))
    for j in range(n - n % LANES, n):
        store_scalar(acc, target, j, load_scalar(acc, target, j) + load_scalar(acc, source, j))


@inlined
def slot_elements(N):
    """Elements of a slot: dgamma and dbeta of a chunk, in lanes where a row is shorter than a vector."""
    return 2 * N if N >= LANES else 2 * N * LANES


@plain
def collapse(acc, slot, N):
    """Add up the lanes that tiny_rows left, column by column; each write lies at or before what is yet to be read."""
    for j in range(2 * N):
        store_scalar(acc, slot, j, total(load(acc, slot, j * LANES)))


@inlined
def bits_set(k):
    count = 0
    while k > 0:
        count += k & 1
        k >>= 1
    return count


@plain
def merge_after(acc, slots, slot_bytes, at, k, last, n):
    """After chunk k has filled slot bits_set(k): add up every subtree that it completes; after the last, all.

    A chunk's slot is the number of ones in its index, as in a binary counter, so the tree over chunks is the same
    whichever of them share a task. Offsets `at` and n say which elements of a slot are meant.
    """
    depth = bits_set(k) + 1
    while depth > 1 and (k & 1 or last):
        depth -= 1
        add(acc, slots + (depth - 1) * slot_bytes + at, slots + depth * slot_bytes + at, n)
        k >>= 1


@plain
def backward_rows(storage, acc, row_loop, with_dx, with_sums, arguments, task, thread):
    """One task: chunks_per_task chunks (a power of two), their column sums left in the first of the task's slots.

    with_dx, with_sums: None where dx, or dgamma and dbeta, are not wanted, so that their code is not there either.
    """
    b = read(Backward, arguments)
    chunks = (b.M + CHUNK - 1) // CHUNK
    first = task * b.chunks_per_task
    count = min(b.chunks_per_task, chunks - first)
    slot_bytes = slot_elements(b.N) * size_of(acc)
    slots = b.slots + task * b.slots_per_task * slot_bytes
    for k in range(count):
        slot = slots + bits_set(k) * slot_bytes
        if with_sums is not None:
            clear(acc, slot, slot_elements(b.N))
        start, stop = (first + k) * CHUNK, min(b.M, (first + k + 1) * CHUNK)
        task_first, task_stop = first * CHUNK, min(b.M, (first + count) * CHUNK)
        gamma, sums = or_none(with_dx, b.gamma), or_none(with_sums, slot)
        run_chunk(storage, acc, row_loop, gamma, sums, b, start, stop, task_first, task_stop, thread)
        if with_sums is not None:
            if b.N < LANES:
                collapse(acc, slot, b.N)
            merge_after(acc, slots, slot_bytes, 0, k, k == count - 1, 2 * b.N)


@plain
def backward_segment_sums(storage, acc, arguments, task, thread):
    """One task: the share of segment task mod S in the row sums of one of the rows first_row … stop_row-1."""
    b = read(Backward, arguments)
    segments = segment_count(b.N)
    i, segment = b.first_row + task // segments, task % segments
    at, at_gamma = segment * SEGMENT * size_of(storage), segment * SEGMENT * size_of(acc)
    m, r = splat(load_scalar(acc, b.mean, i)), splat(load_scalar(acc, b.rstd, i))
    dy, x = b.dy + i * b.dy_stride + at, b.x + i * b.x_stride + at
    sum_dxhat, sum_dxhat_xhat = segment_sums(
        storage, acc, dy, x, None, b.gamma + at_gamma, segment_columns(b.N, segment), m, r
    )
    store_scalar(acc, b.row_sums, 2 * task, sum_dxhat)
    store_scalar(acc, b.row_sums, 2 * task + 1, sum_dxhat_xhat)


@plain
def backward_columns(storage, acc, with_sums, arguments, task, thread):
    """One task: segment `task` of the rows first_row … stop_row-1, which lie in one chunk and have their row sums."""
    b = read(Backward, arguments)
    segments, start, n = segment_count(b.N), task * SEGMENT, segment_columns(b.N, task)
    slot_bytes = slot_elements(b.N) * size_of(acc)
    k = b.first_row // CHUNK
    at, at_acc, at_dbeta = start * size_of(storage), start * size_of(acc), (b.N + start) * size_of(acc)
    slot = b.slots + bits_set(k) * slot_bytes
    if with_sums is not None and b.first_row % CHUNK == 0:
        clear(acc, slot + at_acc, n)
        clear(acc, slot + at_dbeta, n)
    for i in range(b.first_row, b.stop_row):
        sum_dxhat, sum_dxhat_xhat = scalar(acc, 0), scalar(acc, 0)
        for segment in range(segments):
            place = 2 * ((i - b.first_row) * segments + segment)
            sum_dxhat += load_scalar(acc, b.row_sums, place)
            sum_dxhat_xhat += load_scalar(acc, b.row_sums, place + 1)
        dy, x, dx = b.dy + i * b.dy_stride + at, b.x + i * b.x_stride + at, b.dx + i * b.dx_stride + at
        m, r = splat(load_scalar(acc, b.mean, i)), splat(load_scalar(acc, b.rstd, i))
        mean_dxhat, mean_dxhat_xhat = splat(sum_dxhat / scalar(acc, b.N)), splat(sum_dxhat_xhat / scalar(acc, b.N))
        row = dy, x, dx, m, r, mean_dxhat, mean_dxhat_xhat
        row_pass(
            storage,
            acc,
            row,
            None,
            None,
            None,
            None,
            None,
            b.gamma + at_acc,
            or_none(with_sums, slot + at_acc),
            b.N,
            n,
            b.streaming,
        )
    if with_sums is not None and (b.stop_row % CHUNK == 0 or b.stop_row == b.M):
        merge_after(acc, b.slots, slot_bytes, at_acc, k, b.stop_row == b.M, n)
        merge_after(acc, b.slots, slot_bytes, at_dbeta, k, b.stop_row == b.M, n)


@plain
def combine(acc, out, arguments, task, thread):
    """One task: add up some columns of all tasks' first slots by the tree of their index, and round them to `out`.

    dgamma or dbeta is 0 where it is not wanted.
    """
    c = read(Combine, arguments)
    start = task * c.columns_per_task
    n = min(c.columns_per_task, c.N - start)
    for half in range(2):
        result = c.dbeta if half else c.dgamma
        if result == 0:
            continue
        sums = c.slots + (half * c.N + start) * size_of(acc)
        step = 1
        while step < c.parts:
            for part in range(0, c.parts - step, 2 * step):
                add(acc, sums + part * c.slot_stride, sums + (part + step) * c.slot_stride, n)
            step *= 2
        result += start * size_of(out)
        for j in range(0, n - n % LANES, LANES):
            store(out, result, j, load(acc, sums, j))
        for j in range(n - n % LANES, n):
            store_scalar(out, result, j, load_scalar(acc, sums, j))
