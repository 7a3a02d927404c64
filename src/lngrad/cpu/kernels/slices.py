"""Tasks on rows of which only a slice is here: what a slice tells of its rows, and what is done when the rest is known.

A slice has N >= 8 columns. Arithmetic and the order of sums are those of whole rows.
"""

from lngrad.cpu.jobs import Slice
from lngrad.cpu.kernels.arithmetic import scalar, splat, splat_group
from lngrad.cpu.kernels.forward import write_row
from lngrad.cpu.kernels.functions import plain
from lngrad.cpu.kernels.moments import CENTRES, MEANS, ROOM, RSTDS, centre_rows, centred_sums
from lngrad.cpu.kernels.pool import read
from lngrad.cpu.kernels.simd import load_scalar, room, store_scalar
from lngrad.cpu.kernels.sweeps import row_sums, sweep, vector_at


@plain
def slice_moments(tag, acc, arguments, task, thread):
    """One task: centre, rest of the mean and squares around the mean of each row, to row_numbers (3, M)."""
    s = read(Slice, arguments)
    memory = room(acc, ROOM)
    for i in range(task * s.rows_per_task, min(s.M, (task + 1) * s.rows_per_task)):
        x = s.x + i * s.x_stride
        centre_rows(tag, acc, memory, x, s.x_stride, 1, s.N)
        centred_sums(tag, acc, memory, x, s.x_stride, None, 1, s.N)
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
def slice_forward(tag, acc, arguments, task, thread):
    """One task: y of some rows, from their mean and rstd."""
    s = read(Slice, arguments)
    for i in range(task * s.rows_per_task, min(s.M, (task + 1) * s.rows_per_task)):
        row_mean, row_rstd = splat_group(load_scalar(acc, s.mean, i)), splat_group(load_scalar(acc, s.rstd, i))
        row = s.x + i * s.x_stride, s.result + i * s.result_stride, row_mean, row_rstd
        if s.streaming:
            write_row(tag, acc, row, s.x_stride, s.gamma, s.beta, s.N, 1)
        else:
            write_row(tag, acc, row, s.x_stride, s.gamma, s.beta, s.N, None)


@plain
def slice_row_sums(tag, acc, arguments, task, thread):
    """One task: sum of dxhat and of dxhat·xhat of each row, to row_numbers (2, M)."""
    s = read(Slice, arguments)
    for i in range(task * s.rows_per_task, min(s.M, (task + 1) * s.rows_per_task)):
        m, r = splat(load_scalar(acc, s.mean, i)), splat(load_scalar(acc, s.rstd, i))
        sums = row_sums(tag, acc, s.dy + i * s.dy_stride, s.x + i * s.x_stride, None, s.gamma, s.N, m, r)
        store_scalar(acc, s.row_numbers, i, sums[0])
        store_scalar(acc, s.row_numbers, s.M + i, sums[1])


@plain
def slice_dx(tag, acc, arguments, task, thread):
    """One task: dx of some rows, from mean_dxhat and mean_dxhat_xhat of whole rows in row_numbers (2, M)."""
    s = read(Slice, arguments)
    for i in range(task * s.rows_per_task, min(s.M, (task + 1) * s.rows_per_task)):
        dy, x, dx = s.dy + i * s.dy_stride, s.x + i * s.x_stride, s.result + i * s.result_stride
        m, r = splat(load_scalar(acc, s.mean, i)), splat(load_scalar(acc, s.rstd, i))
        mean_dxhat = splat(load_scalar(acc, s.row_numbers, i))
        mean_dxhat_xhat = splat(load_scalar(acc, s.row_numbers, s.M + i))
        row = dy, x, dx, m, r, mean_dxhat, mean_dxhat_xhat
        sweep(tag, acc, row, None, None, None, s.dy_stride, s.x_stride, s.gamma, None, s.N, s.N, s.streaming)
