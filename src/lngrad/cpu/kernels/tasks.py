"""The task functions: for every name a factory, which compiles it for elements of a tag and sums of another."""

from lngrad.cpu.kernels.backward import backward_columns, backward_rows, backward_segment_sums, combine
from lngrad.cpu.kernels.convert import convert
from lngrad.cpu.kernels.forward import forward_rows
from lngrad.cpu.kernels.functions import plain
from lngrad.cpu.kernels.slices import slice_dx, slice_forward, slice_moments, slice_row_sums
from lngrad.cpu.kernels.strided import move_rows
from lngrad.cpu.kernels.walks import ACROSS, DBETA_ONLY, FOUR_BY_FOUR, ONE_BY_ONE


def _rows(tag, acc):
    @plain
    def rows_task(arguments, task, thread):
        backward_rows(tag, acc, ONE_BY_ONE, 1, 1, arguments, task, thread)

    return rows_task


def _rows_dx(tag, acc):
    @plain
    def rows_dx_task(arguments, task, thread):
        backward_rows(tag, acc, ONE_BY_ONE, 1, None, arguments, task, thread)

    return rows_dx_task


def _rows_sums(tag, acc):
    @plain
    def rows_sums_task(arguments, task, thread):
        backward_rows(tag, acc, ONE_BY_ONE, None, 1, arguments, task, thread)

    return rows_sums_task


def _rows_dbeta(tag, acc):
    @plain
    def rows_dbeta_task(arguments, task, thread):
        backward_rows(tag, acc, DBETA_ONLY, None, 1, arguments, task, thread)

    return rows_dbeta_task


def _short_rows(tag, acc):
    @plain
    def short_rows_task(arguments, task, thread):
        backward_rows(tag, acc, FOUR_BY_FOUR, 1, 1, arguments, task, thread)

    return short_rows_task


def _tiny_rows(tag, acc):
    @plain
    def tiny_rows_task(arguments, task, thread):
        backward_rows(tag, acc, ACROSS, 1, 1, arguments, task, thread)

    return tiny_rows_task


def _segment_sums(tag, acc):
    @plain
    def segment_sums_task(arguments, task, thread):
        backward_segment_sums(tag, acc, arguments, task, thread)

    return segment_sums_task


def _columns(tag, acc):
    @plain
    def columns_task(arguments, task, thread):
        backward_columns(tag, acc, 1, arguments, task, thread)

    return columns_task


def _columns_dx(tag, acc):
    @plain
    def columns_dx_task(arguments, task, thread):
        backward_columns(tag, acc, None, arguments, task, thread)

    return columns_dx_task


def _combine(tag, acc):
    @plain
    def combine_task(arguments, task, thread):
        combine(acc, tag, arguments, task, thread)

    return combine_task


def _forward_rows(tag, acc):
    @plain
    def forward_rows_task(arguments, task, thread):
        forward_rows(tag, acc, arguments, task, thread)

    return forward_rows_task


def _widen(tag, acc):
    @plain
    def widen_task(arguments, task, thread):
        convert(tag, acc, arguments, task, thread)

    return widen_task


def _narrow(tag, acc):
    @plain
    def narrow_task(arguments, task, thread):
        convert(acc, tag, arguments, task, thread)

    return narrow_task


def _slice_moments(tag, acc):
    @plain
    def slice_moments_task(arguments, task, thread):
        slice_moments(tag, acc, arguments, task, thread)

    return slice_moments_task


def _slice_forward(tag, acc):
    @plain
    def slice_forward_task(arguments, task, thread):
        slice_forward(tag, acc, arguments, task, thread)

    return slice_forward_task


def _slice_row_sums(tag, acc):
    @plain
    def slice_row_sums_task(arguments, task, thread):
        slice_row_sums(tag, acc, arguments, task, thread)

    return slice_row_sums_task


def _slice_dx(tag, acc):
    @plain
    def slice_dx_task(arguments, task, thread):
        slice_dx(tag, acc, arguments, task, thread)

    return slice_dx_task


def _gather(outer, inner):
    @plain
    def gather_copy(base, table, first, rows, N, packed):
        move_rows(outer, inner, None, base, table, first, rows, N, packed)

    return gather_copy


def _scatter(outer, inner):
    @plain
    def scatter_copy(base, table, first, rows, N, packed):
        move_rows(outer, inner, 1, base, table, first, rows, N, packed)

    return scatter_copy


COPY_FUNCTIONS = {"gather": _gather, "scatter": _scatter}  # from or to rows of one tag, as if they were of another

TASK_FUNCTIONS = {
    "rows": _rows,
    "rows_dx": _rows_dx,
    "rows_sums": _rows_sums,
    "rows_dbeta": _rows_dbeta,
    "short_rows": _short_rows,
    "tiny_rows": _tiny_rows,
    "segment_sums": _segment_sums,
    "columns": _columns,
    "columns_dx": _columns_dx,
    "combine": _combine,
    "forward_rows": _forward_rows,
    "slice_moments": _slice_moments,
    "slice_forward": _slice_forward,
    "slice_row_sums": _slice_row_sums,
    "slice_dx": _slice_dx,
    "widen": _widen,
    "narrow": _narrow,
}
