"""Backward tasks: chunks of rows, or columns of wide rows, and the sums over chunks.

Which thread runs a task never shows in a result, because a task writes only what is its own and every sum has an order
that depends on the shape alone: a column is summed over chunks of CHUNK rows, top to bottom inside a chunk, chunks by the
binary tree of their index. The walks (one row at a time, four short rows at a time, columns of wide rows) share these
orders, so a choice among them is a choice of speed only.
"""

from lngrad.core.column_tree import CHUNK
from lngrad.cpu.jobs import DX, LANES, SEGMENT, Backward, Combine
from lngrad.cpu.kernels.arithmetic import scalar, splat, total
from lngrad.cpu.kernels.functions import inlined, plain
from lngrad.cpu.kernels.pool import read
from lngrad.cpu.kernels.simd import given, load, load_scalar, size_of, store, store_scalar
from lngrad.cpu.kernels.sweeps import segment_columns, segment_count, segment_sums, sweep
from lngrad.cpu.kernels.tiles import copy_rows
from lngrad.cpu.kernels.walks import walk_rows


@plain
def walk_chunk(tag, acc, walk, gamma, sums, b, first, stop, task_first, task_stop, thread):
    """Rows first … stop-1, of a task's; tensors that are not used where they lie pass through this thread's scratch.

    There block_rows rows lie at a time, a part of a chunk or several: a column of so many that lie next to each other is one
    stream of memory, and 512 rows are copied nearly four times as fast as 64 (8×96×56×56 float32, channels first, 2-core AMD
    EPYC 7003).
    """
    size = size_of(tag)
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
        walk_rows(
            walk, tag, acc, gamma, sums, dy, x, dx, mean, rstd, rows, dy_stride, x_stride, dx_stride, b
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
def backward_rows(tag, acc, walk, with_dx, with_sums, arguments, task, thread):
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
        gamma, sums = given(with_dx, b.gamma), given(with_sums, slot)
        walk_chunk(tag, acc, walk, gamma, sums, b, start, stop, task_first, task_stop, thread)
        if with_sums is not None:
            if b.N < LANES:
                collapse(acc, slot, b.N)
            merge_after(acc, slots, slot_bytes, 0, k, k == count - 1, 2 * b.N)


@plain
def backward_segment_sums(tag, acc, arguments, task, thread):
    """One task: the share of segment task mod S in the row sums of one of the rows first_row … stop_row-1."""
    b = read(Backward, arguments)
    segments = segment_count(b.N)
    i, segment = b.first_row + task // segments, task % segments
    at, at_gamma = segment * SEGMENT * size_of(tag), segment * SEGMENT * size_of(acc)
    m, r = splat(load_scalar(acc, b.mean, i)), splat(load_scalar(acc, b.rstd, i))
    dy, x = b.dy + i * b.dy_stride + at, b.x + i * b.x_stride + at
    sum_dxhat, sum_dxhat_xhat = segment_sums(
        tag, acc, dy, x, None, b.gamma + at_gamma, segment_columns(b.N, segment), m, r
    )
    store_scalar(acc, b.row_sums, 2 * task, sum_dxhat)
    store_scalar(acc, b.row_sums, 2 * task + 1, sum_dxhat_xhat)


@plain
def backward_columns(tag, acc, with_sums, arguments, task, thread):
    """One task: segment `task` of the rows first_row … stop_row-1, which lie in one chunk and have their row sums."""
    b = read(Backward, arguments)
    segments, start, n = segment_count(b.N), task * SEGMENT, segment_columns(b.N, task)
    slot_bytes = slot_elements(b.N) * size_of(acc)
    k = b.first_row // CHUNK
    at, at_acc, at_dbeta = start * size_of(tag), start * size_of(acc), (b.N + start) * size_of(acc)
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
        sweep(
            tag,
            acc,
            row,
            None,
            None,
            None,
            None,
            None,
            b.gamma + at_acc,
            given(with_sums, slot + at_acc),
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
