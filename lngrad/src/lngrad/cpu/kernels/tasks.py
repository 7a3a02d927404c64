"""The task functions: for every name what compiles it for elements of a storage and sums of another.

A choice must be a constant when Numba compiles it: each task is a function of its own. The short tasks are here too: slices of
rows, conversion of statistics and parameters, and the memory's own speed. A slice has N >= 8 columns of longer rows; its
arithmetic and the order of its sums are those of whole rows.
"""

from inspect import signature

from lngrad.cpu.jobs import FORWARD_ROWS, GATED, GROUP, LANES, LAYER, RMS, TRIAD_BLOCK, Convert, Slice, Triad
from lngrad.cpu.kernels.arithmetic import from_bits, mixed_order, scalar, splat, splat_at, splat_group
from lngrad.cpu.kernels.backward import (
    backward_columns,
    backward_row_sums,
    backward_rows,
    blocks_of_rows,
    combine,
    sum_dy,
    tiny_rows,
)
from lngrad.cpu.kernels.backward_rows import ClosedRows, rest_lanes, row_pass
from lngrad.cpu.kernels.forward import forward_rows
from lngrad.cpu.kernels.forward_rows import (
    CENTRES,
    MEANS,
    RSTDS,
    SCRATCH_VECTORS,
    SQUARES,
    SUMS,
    Outputs,
    centre_rows,
    centred_sums,
    sum_rows,
    write_measured_rows,
)
from lngrad.cpu.kernels.functions import NO, YES, plain
from lngrad.cpu.kernels.pool import read
from lngrad.cpu.kernels.row_sums import PARTIALS, row_lanes, vector_at
from lngrad.cpu.kernels.rows_in_lanes import forward_in_lanes
from lngrad.cpu.kernels.simd import (
    load,
    load_group,
    load_scalar,
    or_none,
    size_of,
    stack_vectors,
    store,
    store_scalar,
    stream_columns,
)
from lngrad.cpu.kernels.strided import move_rows


@plain
def slice_moments(storage, acc, arguments, task, thread):
    """One task: centre, rest of the mean and squares around the mean of each row, to row_numbers (3, M)."""
    s = read(Slice, arguments)
    memory = stack_vectors(acc, SCRATCH_VECTORS)
    for i in range(task * s.rows_per_task, min(s.M, (task + 1) * s.rows_per_task)):
        x = s.x + i * s.x_stride
        centre_rows(storage, acc, memory, x, s.x_stride, 1, s.N)
        centred_sums(storage, acc, memory, x, s.x_stride, None, 1, s.N)
        centre = load_scalar(acc, vector_at(acc, memory, CENTRES), 0)
        deviations = load_scalar(acc, vector_at(acc, memory, MEANS), 0)
        squares = load_scalar(acc, vector_at(acc, memory, RSTDS), 0)
        rest = deviations / scalar(acc, s.N)
        squares -= deviations * rest
        if squares < 0:  # rounding; a NaN passes
            squares = scalar(acc, 0)
        store_scalar(acc, s.row_numbers, i, centre)
        store_scalar(acc, s.row_numbers, s.M + i, rest)
        store_scalar(acc, s.row_numbers, 2 * s.M + i, squares)


@plain
def slice_lanes(storage, acc, has_centres, wants_sums, wants_squares, arguments, task, thread):
    """One task: eight lanes a row whose total is its sum, and eight for its squares, of those that are wanted, to row_numbers
    (M, sums, LANES); with centres of x minus a number a row, which lies in place of the mean.
    """
    s, memory = read(Slice, arguments), stack_vectors(acc, SCRATCH_VECTORS)
    to, stop = s.row_numbers, min(s.M, (task + 1) * s.rows_per_task)
    sums = 2 if wants_sums is not None and wants_squares is not None else 1
    for i in range(task * s.rows_per_task, stop, FORWARD_ROWS):
        rows = min(FORWARD_ROWS, stop - i)
        if has_centres is not None:
            for r in range(rows):
                store_scalar(acc, vector_at(acc, memory, CENTRES), r, load_scalar(acc, s.mean, i + r))
        x = s.x + i * s.x_stride
        sum_rows(storage, acc, memory, has_centres, wants_sums, wants_squares, x, s.x_stride, None, rows, s.N)
        for r in range(rows):
            if wants_sums is not None:
                store(acc, to, sums * (i + r) * LANES, load(acc, vector_at(acc, memory, SUMS + r), 0))
            if wants_squares is not None:
                store(acc, to, (sums * (i + r + 1) - 1) * LANES, load(acc, vector_at(acc, memory, SQUARES + r), 0))


@plain
def slice_forward(storage, acc, has_mean, has_beta, arguments, task, thread):
    """One task: y of some rows, from their statistics."""
    s = read(Slice, arguments)
    beta, stop = or_none(has_beta, s.beta), min(s.M, (task + 1) * s.rows_per_task)
    for i in range(task * s.rows_per_task, stop, s.rows_at_once):
        count, at = min(s.rows_at_once, stop - i), i * size_of(acc)
        mean, rstd, lost = or_none(has_mean, s.mean + at), s.rstd + at, or_none(has_mean, s.lost + at)
        x, y = s.x + i * s.x_stride, s.result + i * s.result_stride
        rows = Outputs(x, y, mean, rstd, lost, s.x_stride, s.result_stride)
        if s.streaming:
            write_measured_rows(storage, acc, rows, count, 1, 0, s.gamma, beta, s.N, None, YES)
        else:
            write_measured_rows(storage, acc, rows, count, 1, 0, s.gamma, beta, s.N, None, NO)


@plain
def slice_row_sums(storage, acc, has_mean, arguments, task, thread):
    """One task: lanes of the sums of dxhat, of dxhat·xhat and of x - mean of each row, to row_numbers (M, 3, LANES)."""
    s, partials = read(Slice, arguments), stack_vectors(acc, PARTIALS)
    for i in range(task * s.rows_per_task, min(s.M, (task + 1) * s.rows_per_task)):
        m, r = splat_at(acc, None, or_none(has_mean, s.mean), i), splat(load_scalar(acc, s.rstd, i))
        x, to = s.x + i * s.x_stride, vector_at(acc, s.row_numbers, 3 * i)
        sums = row_lanes(storage, acc, partials, s.dy + i * s.dy_stride, x, None, s.gamma, s.N, None, m, r)
        store(acc, to, 0, sums[0])
        store(acc, to, LANES, sums[1])
        store(acc, to, 2 * LANES, rest_lanes(storage, acc, x, or_none(has_mean, s.mean), s.rstd, i, s.N, 1))


@plain
def slice_dx(storage, acc, has_mean, arguments, task, thread):
    """One task: dx of some rows, from mean_dxhat and mean_dxhat_xhat of whole rows in row_numbers (2, M)."""
    s, size = read(Slice, arguments), size_of(acc)
    stop = min(s.M, (task + 1) * s.rows_per_task)
    for i in range(task * s.rows_per_task, stop, s.rows_at_once):
        dy, x, dx = s.dy + i * s.dy_stride, s.x + i * s.x_stride, s.result + i * s.result_stride
        dtotal = 0 if s.dtotal == 0 else s.dtotal + i * s.dtotal_stride
        mean_dxhat, mean_dxhat_xhat = or_none(has_mean, s.row_numbers + i * size), s.row_numbers + (s.M + i) * size
        rows = ClosedRows(
            dy, x, dtotal, dx, or_none(has_mean, s.mean + i * size), s.rstd + i * size,
            mean_dxhat, mean_dxhat_xhat, or_none(has_mean, s.lost + i * size),
            s.dy_stride, s.x_stride, s.dtotal_stride, s.result_stride,
        )  # fmt: skip
        count = min(s.rows_at_once, stop - i)
        row_pass(storage, acc, s.gamma, None, None, rows, count, s.N, None, None, 0, s.streaming)


RECORD_BYTES = 8 * len(Convert._fields)


@plain
def convert(source_storage, target_storage, arguments, task, thread):
    """One task: one array, described by the task-th record."""
    c = read(Convert, arguments + RECORD_BYTES * task)
    whole = c.elements - c.elements % LANES
    for j in range(0, whole, LANES):
        store(target_storage, c.target, j, load(source_storage, c.source, j))
    for j in range(whole, c.elements):
        store_scalar(target_storage, c.target, j, load_scalar(source_storage, c.source, j))


@plain
def shift(storage, acc, arguments, task, thread):
    """One task: a sample's gamma or beta plus an offset, in the accumulator's dtype, the first elements in the order of
    load_mixed."""
    c = read(Convert, arguments)
    number = scalar(acc, from_bits(c.offset))
    source, target = c.source + task * c.stride, c.target + task * c.elements * size_of(acc)
    for j in range(0, c.mixed, GROUP):
        store(acc, target, j, mixed_order(load_group(storage, source, j) + splat_group(number)))
    for j in range(c.mixed, c.elements):
        store_scalar(acc, target, j, load_scalar(storage, source, j) + number)


@plain
def triad(storage, streaming, arguments, task, thread):
    """result = a + b for one block, whole vectors only: what a backward must read and write at the least."""
    t = read(Triad, arguments)
    for j in range(task * TRIAD_BLOCK, min(t.elements, (task + 1) * TRIAD_BLOCK), LANES):
        total = load(storage, t.a, j) + load(storage, t.b, j)
        if streaming is None:
            store(storage, t.result, j, total)
        else:
            stream_columns(storage, None, t.result, j, total)


# By the number of choices, each of which Numba must find by a name of its own: it knows constants so, and not in a tuple.
_CALLS = {
    2: lambda call, a, b: lambda arguments, task, thread: call(a, b, arguments, task, thread),
    3: lambda call, a, b, c: lambda arguments, task, thread: call(a, b, c, arguments, task, thread),
    4: lambda call, a, b, c, d: lambda arguments, task, thread: call(a, b, c, d, arguments, task, thread),
    5: lambda call, a, b, c, d, e: lambda arguments, task, thread: call(a, b, c, d, e, arguments, task, thread),
    8: lambda call, a, b, c, d, e, f, g, h: (
        lambda arguments, task, thread: call(a, b, c, d, e, f, g, h, arguments, task, thread)
    ),
}


def task(function, *types, **choices):
    """The task function of a function that takes types, choices and (arguments, task, thread).

    Types and choices are constants when it is compiled.
    """
    ordered = [choices[name] for name in signature(function.py_func).parameters if name in choices]
    return plain(_CALLS[len(types) + len(ordered)](function, *types, *ordered))


def choice(has):
    """YES or NO."""
    return YES if has else NO


def backward(storage, acc, row_loop, kind, has_dx=YES, has_dgamma=YES):
    """backward_rows for operators of a kind, as far as something is wanted."""
    return task(
        backward_rows, storage, acc, row_loop=row_loop, has_mean=choice(kind.mean), has_dx=has_dx, has_dgamma=has_dgamma,
        has_dbeta=choice(kind.beta and has_dgamma), has_gate=choice(kind.gate),
    )  # fmt: skip


def row_sums(storage, acc, kind):
    """backward_row_sums for operators of a kind."""
    return task(backward_row_sums, storage, acc, has_mean=choice(kind.mean))


def columns(storage, acc, kind, has_dgamma=YES):
    """backward_columns for operators of a kind."""
    has_dbeta = choice(kind.beta and has_dgamma)
    return task(backward_columns, storage, acc, has_mean=choice(kind.mean), has_dgamma=has_dgamma, has_dbeta=has_dbeta)


def forward(storage, acc, kind):
    """forward_rows for operators of a kind."""
    has = {"has_mean": choice(kind.mean), "has_beta": choice(kind.beta), "has_gate": choice(kind.gate)}
    return task(forward_rows, storage, acc, **has)


def in_lanes(storage, acc, kind):
    """forward_in_lanes for operators of a kind."""
    return task(forward_in_lanes, storage, acc, has_mean=choice(kind.mean), has_beta=choice(kind.beta))


# By (storage of the elements, storage of the sums). The cache reads the names that a row has, to know what it is made of: a row
# is written out. KINDS has the prefixes; those with a gate have no other tasks.
TASK_FUNCTIONS = {
    "rows": lambda storage, acc: backward(storage, acc, blocks_of_rows, LAYER),
    "rows_dx": lambda storage, acc: backward(storage, acc, blocks_of_rows, LAYER, has_dgamma=NO),
    "rows_sums": lambda storage, acc: backward(storage, acc, blocks_of_rows, LAYER, has_dx=NO),
    "rows_dbeta": lambda storage, acc: backward(storage, acc, sum_dy, LAYER, has_dx=NO),
    "tiny_rows": lambda storage, acc: backward(storage, acc, tiny_rows, LAYER),
    "row_sums": lambda storage, acc: row_sums(storage, acc, LAYER),
    "columns": lambda storage, acc: columns(storage, acc, LAYER),
    "columns_dx": lambda storage, acc: columns(storage, acc, LAYER, has_dgamma=NO),
    "forward_rows": lambda storage, acc: forward(storage, acc, LAYER),
    "forward_in_lanes": lambda storage, acc: in_lanes(storage, acc, LAYER),
    "rms_rows": lambda storage, acc: backward(storage, acc, blocks_of_rows, RMS),
    "rms_rows_dx": lambda storage, acc: backward(storage, acc, blocks_of_rows, RMS, has_dgamma=NO),
    "rms_rows_sums": lambda storage, acc: backward(storage, acc, blocks_of_rows, RMS, has_dx=NO),
    "rms_tiny_rows": lambda storage, acc: backward(storage, acc, tiny_rows, RMS),
    "rms_row_sums": lambda storage, acc: row_sums(storage, acc, RMS),
    "rms_columns": lambda storage, acc: columns(storage, acc, RMS),
    "rms_columns_dx": lambda storage, acc: columns(storage, acc, RMS, has_dgamma=NO),
    "rms_forward_rows": lambda storage, acc: forward(storage, acc, RMS),
    "rms_forward_in_lanes": lambda storage, acc: in_lanes(storage, acc, RMS),
    "gated_rows": lambda storage, acc: backward(storage, acc, blocks_of_rows, GATED),
    "gated_tiny_rows": lambda storage, acc: backward(storage, acc, tiny_rows, GATED),
    "gated_forward_rows": lambda storage, acc: forward(storage, acc, GATED),
    "combine": lambda storage, acc: task(combine, acc, storage),
    "slice_moments": lambda storage, acc: task(slice_moments, storage, acc),
    "slice_sums": lambda storage, acc: task(
        slice_lanes, storage, acc, has_centres=NO, wants_sums=YES, wants_squares=NO
    ),
    "slice_centred_sums": lambda storage, acc: task(
        slice_lanes, storage, acc, has_centres=YES, wants_sums=YES, wants_squares=YES
    ),
    "rms_slice_sums": lambda storage, acc: task(
        slice_lanes, storage, acc, has_centres=NO, wants_sums=NO, wants_squares=YES
    ),
    "slice_forward": lambda storage, acc: task(slice_forward, storage, acc, has_mean=YES, has_beta=YES),
    "rms_slice_forward": lambda storage, acc: task(slice_forward, storage, acc, has_mean=NO, has_beta=NO),
    "slice_row_sums": lambda storage, acc: task(slice_row_sums, storage, acc, has_mean=YES),
    "rms_slice_row_sums": lambda storage, acc: task(slice_row_sums, storage, acc, has_mean=NO),
    "slice_dx": lambda storage, acc: task(slice_dx, storage, acc, has_mean=YES),
    "rms_slice_dx": lambda storage, acc: task(slice_dx, storage, acc, has_mean=NO),
    "widen": lambda storage, acc: task(convert, storage, acc),
    "shift": lambda storage, acc: task(shift, storage, acc),
    "narrow": lambda storage, acc: task(convert, acc, storage),
}

# Of float32, for measurements.
TRIADS = {
    "triad_streamed": lambda storage, acc: task(triad, storage, streaming=YES),
    "triad_stored": lambda storage, acc: task(triad, storage, streaming=NO),
}

# By (storage in which the rows lie, storage in which a kernel takes them).
COPY_FUNCTIONS = {
    "gather": lambda outer, inner: plain(
        lambda base, table, first, rows, N, packed: move_rows(outer, inner, NO, base, table, first, rows, N, packed)
    ),
    "scatter": lambda outer, inner: plain(
        lambda base, table, first, rows, N, packed: move_rows(outer, inner, YES, base, table, first, rows, N, packed)
    ),
}
