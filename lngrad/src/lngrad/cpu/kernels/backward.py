"""Backward tasks: chunks of rows, or columns of wide rows, and the sums over chunks.

Which thread runs a task never shows in a result, because a task writes only what is its own and every sum has an order
that depends on the shape alone: a column is summed over chunks of CHUNK rows, top to bottom inside a chunk, chunks by the
binary tree of their index. The row loops (up to sixteen rows at a time, rows shorter than a vector in
lanes, columns of wide rows, dbeta by itself) share these orders, so a choice among them is a choice of speed only.
"""

from lngrad.core.column_tree import CHUNK
from lngrad.cpu.jobs import (
    BLOCK_SEGMENTS,
    DBETA,
    DGAMMA,
    DX,
    GROUP,
    LANES,
    SEGMENT,
    Backward,
    Combine,
)
from lngrad.cpu.kernels.arithmetic import fma, in_order, scalar, splat, splat_at, subtract_mean, total, xhat_of, zeros
from lngrad.cpu.kernels.backward_rows import (
    LOST,
    MEAN_DXHAT_XHAT,
    MEANS_VECTORS,
    ClosedRows,
    Rows,
    close_means,
    close_rests,
    dx_of,
    found_lost,
    means_of_rows,
    rest_lanes,
    row_pass,
    store_lanes_of_row,
)
from lngrad.cpu.kernels.functions import inlined, plain
from lngrad.cpu.kernels.gated import Span, gate_rows
from lngrad.cpu.kernels.pool import copies_of, copy_rows, packed_rows, place_of, read, word
from lngrad.cpu.kernels.row_sums import (
    PARTIALS,
    block_columns,
    block_count,
    merge_sums,
    mixed_from,
    row_lanes,
    vector_at,
)
from lngrad.cpu.kernels.simd import (
    PAIRS,
    gather,
    load,
    load_group,
    load_scalar,
    mixed_of,
    offset,
    or_none,
    scatter_rows,
    size_of,
    stack_vectors,
    store,
    store_scalar,
)


@plain
def blocks_of_rows(storage, acc, gamma, dgamma, dbeta, rows, count, b):
    """Up to BACKWARD_ROWS rows at a time: their two sums, then dx and the column sums of all while they are in the cache."""
    N, mixed, memory = b.N, mixed_of(storage, b.mixed), stack_vectors(acc, MEANS_VECTORS)
    for i in range(0, count, b.rows_at_once):
        together, at = min(b.rows_at_once, count - i), i * size_of(acc)
        dy, x, dx = rows.dy + i * rows.dy_stride, rows.x + i * rows.x_stride, rows.dx + i * rows.dx_stride
        dtotal = rows.dtotal + i * rows.dtotal_stride
        mean, rstd = offset(rows.mean, at), rows.rstd + at
        summed = dy, x, mean, rstd, rows.dy_stride, rows.x_stride
        means_of_rows(storage, acc, memory, gamma, summed, together, N, mixed, b.ahead, b.completes)
        mean_dxhat = or_none(gamma, or_none(mean, memory))
        mean_dxhat_xhat = or_none(gamma, vector_at(acc, memory, MEAN_DXHAT_XHAT))
        lost = or_none(mean, vector_at(acc, memory, LOST) if b.lost == 0 else b.lost + (rstd - b.rstd))
        closed = ClosedRows(
            dy, x, dtotal, dx, mean, rstd, mean_dxhat, mean_dxhat_xhat, lost,
            rows.dy_stride, rows.x_stride, rows.dtotal_stride, rows.dx_stride,
        )  # fmt: skip
        to_result = together * b.fetches_result
        row_pass(storage, acc, gamma, dgamma, dbeta, closed, together, N, mixed, b.ahead, to_result, b.streaming)


@plain
def sum_dy(storage, acc, gamma, dgamma, dbeta, rows, count, b):
    """All that remains to do where dbeta alone is wanted; x is not read."""
    N = b.N
    for i in range(count):
        row = rows.dy + i * rows.dy_stride
        for j in range(0, N - N % LANES, LANES):
            store(acc, dbeta, j, load(acc, dbeta, j) + load(storage, row, j))
        for j in range(N - N % LANES, N):
            store_scalar(acc, dbeta, j, load_scalar(acc, dbeta, j) + load_scalar(storage, row, j))


@plain
def tiny_rows(storage, acc, gamma, dgamma, dbeta, rows, count, b):
    """Rows shorter than a vector: lane l takes row i + l, and each lane adds its columns left to right.

    The column sums are eight lanes a column until the chunk is done: row r adds to lane r mod 8, whatever rows are beside it.
    """
    N, wants, size = b.N, b.wants, size_of(storage)
    mean, dy_step, x_step = rows.mean, rows.dy_stride // size, rows.x_stride // size
    dtotal_step, dx_step = rows.dtotal_stride // size, rows.dx_stride // size
    for i in range(0, count, LANES):
        beside = min(LANES, count - i)
        dy, x, dx = rows.dy + i * rows.dy_stride, rows.x + i * rows.x_stride, rows.dx + i * rows.dx_stride
        dtotal = rows.dtotal + i * rows.dtotal_stride
        m, r = gather(acc, mean, i, 1, beside), gather(acc, rows.rstd, i, 1, beside)
        mean_dxhat, mean_dxhat_xhat, lost = zeros(acc), zeros(acc), or_none(mean, splat(scalar(acc, -0.0)))
        if b.lost != 0:
            lost = or_none(mean, gather(acc, b.lost + (rows.rstd - b.rstd), i, 1, beside))
        if b.completes != 0:
            rests = zeros(acc)
            for j in range(N):
                rests = rests + subtract_mean(gather(storage, x, j, x_step, beside), m)
            lost = found_lost(acc, m, rests, r, N)
        if wants & DX:
            for j in range(N):
                dxhat = gather(storage, dy, j, dy_step, beside) * splat(load_scalar(acc, gamma, j))
                xhat = xhat_of(subtract_mean(gather(storage, x, j, x_step, beside), m), r, lost)
                if mean is not None:
                    mean_dxhat = mean_dxhat + dxhat
                mean_dxhat_xhat = fma(dxhat, xhat, mean_dxhat_xhat)
            mean_dxhat = mean_dxhat / splat(scalar(acc, N))
            mean_dxhat_xhat = mean_dxhat_xhat / splat(scalar(acc, N))
        for j in range(N):
            d = gather(storage, dy, j, dy_step, beside)
            xhat = xhat_of(subtract_mean(gather(storage, x, j, x_step, beside), m), r, lost)
            if wants & DX:
                result = dx_of(d, xhat, splat(load_scalar(acc, gamma, j)), r, mean_dxhat, mean_dxhat_xhat)
                if rows.dtotal != 0:
                    result = result + gather(storage, dtotal, j, dtotal_step, beside)
                scatter_rows(storage, dx, j, dx_step, beside, result)
            at = j * LANES
            if wants & (DGAMMA | DBETA):
                store(acc, dgamma, at, fma(d, xhat, load(acc, dgamma, at)))
                if dbeta is not None:
                    store(acc, dbeta, at, load(acc, dbeta, at) + d)


@plain
def gated_rows(storage, acc, row_loop, gamma, dgamma, rows, gate, dgate, count, b, products):
    """A row loop on rows with a gate.

    It takes products from the scratch at `products`, and all else in the accumulator's dtype; what is multiplied after it
    writes to the scratch.
    """
    n, dy, x, dx = b.N * size_of(acc), rows.dy, rows.x, rows.dx
    d, spare = products + b.slot_bytes, products + 2 * b.slot_bytes
    x_stride, dx_stride, dgate_stride = b.x_stride, b.dx_stride * (dx != 0), b.dgate_stride * (dgate != 0)
    if b.norm_before_gate == 0:
        span = Span(count, b.ahead, x_stride, b.gate_stride, n, 0, 0)
        gate_rows(storage, storage, acc, acc, x, gate, products, None, None, spare, None, None, span, b.N)
        ungated = Rows(dy, products, 0, d, rows.mean, rows.rstd, b.dy_stride, n, 0, n)
        row_loop(acc, acc, gamma, dgamma, None, ungated, count, b)
        span = Span(count, 0, n, b.gate_stride, dx_stride, x_stride, dgate_stride)
        gate_rows(acc, storage, storage, acc, d, gate, dx, x, dgate, spare, None, None, span, b.N)
    else:
        if dgate == x:  # whose memory it takes
            for r in range(count):
                for j in range(b.N):
                    store_scalar(acc, spare + r * n, j, load_scalar(acc, x + r * x_stride, j))
            x, x_stride = spare, n
        if dx == 0:
            dx, dx_stride = d, n
        span = Span(count, b.ahead, b.dy_stride, b.gate_stride, n, x_stride, dgate_stride)
        gate_rows(storage, storage, acc, acc, dy, gate, products, x, dgate, None, gamma, rows.rstd, span, b.N)
        ungated = Rows(products, x, 0, dx, rows.mean, rows.rstd, n, x_stride, 0, dx_stride)
        row_loop(acc, acc, gamma, dgamma, None, ungated, count, b)


@plain
def run_chunk(
    storage, acc, row_loop, has_mean, has_gate, gamma, dgamma, dbeta, b, first, stop, task_first, task_stop, thread
):
    """Rows first … stop-1 of a task; tensors of other layouts are copied to this thread's scratch first.

    There block_rows rows lie at a time, a part of a chunk or several: a column of so many that lie next to each other is one
    stream of memory.
    """
    step, slot = CHUNK if b.slot_bytes == 0 else min(b.block_rows, CHUNK), b.slot_bytes
    for start in range(first, stop, step):
        rows = min(step, stop - start)
        place = (start - task_first) % b.block_rows  # of these rows in the scratch
        block, filled = min(b.block_rows, task_stop - start), place + rows
        scratch, dtotal = b.scratch + thread * b.thread_bytes, 0
        dy = packed_rows(b, b.dy, b.dy_stride, b.dy_table, start, block, place, scratch)
        x = packed_rows(b, b.x, b.x_stride, b.x_table, start, block, place, scratch + slot)
        if b.dtotal != 0:
            at = scratch + 2 * slot
            dtotal = packed_rows(b, b.dtotal, b.dtotal_stride, b.dtotal_table, start, block, place, at)
        dx = place_of(b.dx, b.dx_stride, b.dx_table, start, place, scratch + 3 * slot)
        mean, rstd = or_none(has_mean, b.mean + start * size_of(acc)), b.rstd + start * size_of(acc)
        chunk = Rows(dy, x, dtotal, dx, mean, rstd, b.dy_stride, b.x_stride, b.dtotal_stride, b.dx_stride)
        is_filled = filled == b.block_rows or start + rows == task_stop
        if has_gate is None:
            row_loop(storage, acc, gamma, dgamma, dbeta, chunk, rows, b)
        else:
            gate = packed_rows(b, b.gate, b.gate_stride, b.gate_table, start, block, place, scratch + 2 * slot)
            dgate = place_of(b.dgate, b.dgate_stride, b.dgate_table, start, place, scratch + 4 * slot)
            gated_rows(storage, acc, row_loop, gamma, dgamma, chunk, gate, dgate, rows, b, scratch + 5 * slot)
            if b.dgate != 0 and b.dgate_table != 0 and is_filled:
                scatter = word(copies_of(b.dgate_table, b.N), 1)
                copy_rows(scatter, b.dgate, b.dgate_table, start - place, filled, b.N, scratch + 4 * slot)
        if b.dx_table != 0 and b.dx != 0 and is_filled:
            scatter = word(copies_of(b.dx_table, b.N), 1)
            copy_rows(scatter, b.dx, b.dx_table, start - place, filled, b.N, scratch + 3 * slot)


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
def sums_of_columns(has_dbeta):
    """The number of sums of a column: dgamma, and perhaps dbeta."""
    if has_dbeta is None:
        return 1
    return 2


@inlined
def slot_elements(has_dbeta, N):
    """Elements of a slot: the column sums of a chunk, in lanes where a row is shorter than a vector."""
    return sums_of_columns(has_dbeta) * (N if N >= LANES else N * LANES)


@plain
def collapse(acc, slot, n):
    """Add up the lanes that tiny_rows left for n sums; each write lies at or before what is yet to be read."""
    for j in range(n):
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
def backward_rows(storage, acc, row_loop, has_mean, has_dx, has_dgamma, has_dbeta, has_gate, arguments, task, thread):
    """One task: chunks_per_task chunks (a power of two), their column sums left in the first of the task's slots.

    Args:
        storage, acc: Types of the elements and of the sums.
        row_loop: blocks_of_rows, sum_dy or tiny_rows, which take storage, acc; gamma, dgamma, dbeta: addresses, None where dx
            or the sum is not wanted; Rows; how many; and the job's record.
        has_mean, has_dx, has_dgamma, has_dbeta, has_gate: YES or NO. has_dgamma is YES where either sum is wanted.
        arguments, task, thread: As for all tasks.
    """
    b = read(Backward, arguments)
    sample, part = task // b.sample_tasks, task % b.sample_tasks
    begin, end = sample * b.sample_rows, (sample + 1) * b.sample_rows
    chunks = (b.sample_rows + CHUNK - 1) // CHUNK
    first = part * b.chunks_per_task
    count = min(b.chunks_per_task, chunks - first)
    elements = slot_elements(has_dbeta, b.N)
    slot_bytes = elements * size_of(acc)
    slots = b.slots + task * b.slots_per_task * slot_bytes
    for k in range(count):
        slot = slots + bits_set(k) * slot_bytes
        if has_dgamma is not None:
            clear(acc, slot, elements)
        start, stop = begin + (first + k) * CHUNK, min(end, begin + (first + k + 1) * CHUNK)
        task_first, task_stop = begin + first * CHUNK, min(end, begin + (first + count) * CHUNK)
        gamma, dgamma = or_none(has_dx, b.gamma + sample * b.N * size_of(acc)), or_none(has_dgamma, slot)
        dbeta = or_none(has_dbeta, slot + slot_bytes // 2)
        run_chunk(
            storage,
            acc,
            row_loop,
            has_mean,
            has_gate,
            gamma,
            dgamma,
            dbeta,
            b,
            start,
            stop,
            task_first,
            task_stop,
            thread,
        )
        if has_dgamma is not None:
            sums = sums_of_columns(has_dbeta) * b.N
            if b.N < LANES:
                collapse(acc, slot, sums)
            merge_after(acc, slots, slot_bytes, 0, k, k == count - 1, sums)


@plain
def backward_row_sums(storage, acc, has_mean, arguments, task, thread):
    """One task: the sums of one block of one of the rows first_row … stop_row-1, three vectors of lanes.

    A block's rows follow each other, so that a thread mostly has the columns in its cache that backward_columns gives it next.
    """
    b = read(Backward, arguments)
    rows = b.stop_row - b.first_row
    i, block = b.first_row + task % rows, task // rows
    start = block * BLOCK_SEGMENTS * SEGMENT
    m, r = splat_at(acc, None, or_none(has_mean, b.mean), i), splat(load_scalar(acc, b.rstd, i))
    dy, x = b.dy + i * b.dy_stride + start * size_of(storage), b.x + i * b.x_stride + start * size_of(storage)
    gamma, partials = b.gamma + start * size_of(acc), stack_vectors(acc, PARTIALS)
    n = block_columns(b.N, block)
    mixed = mixed_from(mixed_of(storage, b.mixed), start, n)
    sums = row_lanes(storage, acc, partials, dy, x, None, gamma, n, mixed, m, r)
    store(acc, b.row_sums, 3 * task * LANES, sums[0])
    store(acc, b.row_sums, (3 * task + 1) * LANES, sums[1])
    rest = rest_lanes(storage, acc, x, or_none(has_mean, b.mean), b.rstd, i, n, b.completes)
    store(acc, b.row_sums, (3 * task + 2) * LANES, rest)


@plain
def means_of_blocks(acc, b, mean, rstd, memory, first, count):
    """means_of_rows, from what backward_row_sums has left of the rows."""
    partials, rest_partials = stack_vectors(acc, PARTIALS), stack_vectors(acc, PARTIALS)
    blocks, rows = block_count(b.N), b.stop_row - b.first_row
    for r in range(count):
        sums, rests = (or_none(mean, zeros(acc)), zeros(acc)), (zeros(acc), None)
        for k in range(blocks):
            number, last = 3 * (k * rows + first + r), k == blocks - 1
            block = load(acc, or_none(mean, b.row_sums), number * LANES), load(acc, b.row_sums, (number + 1) * LANES)
            sums = merge_sums(acc, partials, k, last, block)
            if b.completes != 0:
                rest = load(acc, b.row_sums, (number + 2) * LANES), None
                rests = merge_sums(acc, rest_partials, k, last, rest)
        store_lanes_of_row(acc, memory, 0, r, sums[0])
        store_lanes_of_row(acc, memory, 1, r, sums[1])
        store_lanes_of_row(acc, memory, 2, r, rests[0])
    close_means(acc, mean, memory, count, b.N)
    close_rests(acc, mean, rstd, memory, count, b.N, b.completes, 1)


@plain
def backward_columns(storage, acc, has_mean, has_dgamma, has_dbeta, arguments, task, thread):
    """One task: block `task` of the rows first_row … stop_row-1, which lie in one chunk and have their row sums."""
    b = read(Backward, arguments)
    start, n = task * BLOCK_SEGMENTS * SEGMENT, block_columns(b.N, task)
    mixed = mixed_from(mixed_of(storage, b.mixed), start, n)
    slot_bytes = slot_elements(has_dbeta, b.N) * size_of(acc)
    k, memory = b.first_row // CHUNK, stack_vectors(acc, MEANS_VECTORS)
    at, at_acc, at_dbeta = start * size_of(storage), start * size_of(acc), (b.N + start) * size_of(acc)
    slot = b.slots + bits_set(k) * slot_bytes
    dgamma, dbeta = or_none(has_dgamma, slot + at_acc), or_none(has_dbeta, slot + at_dbeta)
    if has_dgamma is not None and b.first_row % CHUNK == 0:
        clear(acc, slot + at_acc, n)
        if has_dbeta is not None:
            clear(acc, slot + at_dbeta, n)
    for i in range(b.first_row, b.stop_row, b.rows_at_once):
        count = min(b.rows_at_once, b.stop_row - i)
        mean, rstd = or_none(has_mean, b.mean + i * size_of(acc)), b.rstd + i * size_of(acc)
        means_of_blocks(acc, b, mean, rstd, memory, i - b.first_row, count)
        dtotal = 0 if b.dtotal == 0 else b.dtotal + i * b.dtotal_stride + at
        rows = ClosedRows(
            b.dy + i * b.dy_stride + at, b.x + i * b.x_stride + at, dtotal, b.dx + i * b.dx_stride + at,
            mean, rstd, or_none(has_mean, memory), vector_at(acc, memory, MEAN_DXHAT_XHAT),
            or_none(has_mean, vector_at(acc, memory, LOST)),
            b.dy_stride, b.x_stride, b.dtotal_stride, b.dx_stride,
        )  # fmt: skip
        row_pass(storage, acc, b.gamma + at_acc, dgamma, dbeta, rows, count, n, mixed, None, 0, b.streaming)
    if has_dgamma is not None and (b.stop_row % CHUNK == 0 or b.stop_row == b.M):
        merge_after(acc, b.slots, slot_bytes, at_acc, k, b.stop_row == b.M, n)
        if has_dbeta is not None:
            merge_after(acc, b.slots, slot_bytes, at_dbeta, k, b.stop_row == b.M, n)


@plain
def combine(acc, out, arguments, task, thread):
    """One task: add up some columns of the first slots of a sample's tasks by the tree of their index, and round them to `out`.

    dgamma or dbeta is 0 where it is not wanted.
    """
    c = read(Combine, arguments)
    sample, start = task // c.sample_tasks, task % c.sample_tasks * c.columns_per_task
    n = min(c.columns_per_task, c.N - start)
    for half in range(2):
        result = c.dbeta if half else c.dgamma
        if result == 0:
            continue
        sums = c.slots + sample * c.parts * c.slot_stride + (half * c.N + start) * size_of(acc)
        step = 1
        while step < c.parts:
            for part in range(0, c.parts - step, 2 * step):
                add(acc, sums + part * c.slot_stride, sums + (part + step) * c.slot_stride, n)
            step *= 2
        result += (sample * c.N + start) * size_of(out)
        mixed = mixed_from(c.mixed, start, n)
        for j in range(0, mixed, GROUP):
            store(out, result, j, in_order(PAIRS, load_group(acc, sums, j)))
        for j in range(mixed, n - n % LANES, LANES):
            store(out, result, j, load(acc, sums, j))
        for j in range(n - n % LANES, n):
            store_scalar(out, result, j, load_scalar(acc, sums, j))
