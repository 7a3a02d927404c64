"""The task functions, compiled for a dtype at first use: name and dtype in, machine address out.

Each factory closes over tags alone, so that Numba finds the machine code of an earlier process on disk.
"""

from functools import cache
from threading import Lock

from numba import cfunc

from lngrad.kernels.numba_cpu.backward import (
    ACROSS,
    DBETA_ONLY,
    FOUR_BY_FOUR,
    ONE_BY_ONE,
    backward_columns,
    backward_rows,
    backward_segment_sums,
    combine,
)
from lngrad.kernels.numba_cpu.cache import OPTIONS
from lngrad.kernels.numba_cpu.convert import convert
from lngrad.kernels.numba_cpu.forward import forward_rows
from lngrad.kernels.numba_cpu.simd import TAGS
from lngrad.kernels.numba_cpu.slices import slice_dx, slice_forward, slice_moments, slice_row_sums
from lngrad.kernels.numba_cpu.strided import gather_rows, scatter_rows

TASK = "void(int64, int64, int64)"  # arguments, task, thread
COPY = "void(int64, int64, int64, int64, int64, int64)"  # base, table, first, rows, N, packed

_compiling = Lock()


def _rows(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def rows_task(arguments, task, thread):
        backward_rows(tag, acc, ONE_BY_ONE, 1, 1, arguments, task, thread)

    return rows_task


def _rows_dx(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def rows_dx_task(arguments, task, thread):
        backward_rows(tag, acc, ONE_BY_ONE, 1, None, arguments, task, thread)

    return rows_dx_task


def _rows_sums(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def rows_sums_task(arguments, task, thread):
        backward_rows(tag, acc, ONE_BY_ONE, None, 1, arguments, task, thread)

    return rows_sums_task


def _rows_dbeta(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def rows_dbeta_task(arguments, task, thread):
        backward_rows(tag, acc, DBETA_ONLY, None, 1, arguments, task, thread)

    return rows_dbeta_task


def _short_rows(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def short_rows_task(arguments, task, thread):
        backward_rows(tag, acc, FOUR_BY_FOUR, 1, 1, arguments, task, thread)

    return short_rows_task


def _tiny_rows(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def tiny_rows_task(arguments, task, thread):
        backward_rows(tag, acc, ACROSS, 1, 1, arguments, task, thread)

    return tiny_rows_task


def _segment_sums(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def segment_sums_task(arguments, task, thread):
        backward_segment_sums(tag, acc, arguments, task, thread)

    return segment_sums_task


def _columns(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def columns_task(arguments, task, thread):
        backward_columns(tag, acc, 1, arguments, task, thread)

    return columns_task


def _columns_dx(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def columns_dx_task(arguments, task, thread):
        backward_columns(tag, acc, None, arguments, task, thread)

    return columns_dx_task


def _combine(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def combine_task(arguments, task, thread):
        combine(acc, tag, arguments, task, thread)

    return combine_task


def _forward_rows(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def forward_rows_task(arguments, task, thread):
        forward_rows(tag, acc, arguments, task, thread)

    return forward_rows_task


def _widen(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def widen_task(arguments, task, thread):
        convert(tag, acc, arguments, task, thread)

    return widen_task


def _narrow(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def narrow_task(arguments, task, thread):
        convert(acc, tag, arguments, task, thread)

    return narrow_task


def _slice_moments(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def slice_moments_task(arguments, task, thread):
        slice_moments(tag, acc, arguments, task, thread)

    return slice_moments_task


def _slice_forward(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def slice_forward_task(arguments, task, thread):
        slice_forward(tag, acc, arguments, task, thread)

    return slice_forward_task


def _slice_row_sums(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def slice_row_sums_task(arguments, task, thread):
        slice_row_sums(tag, acc, arguments, task, thread)

    return slice_row_sums_task


def _slice_dx(tag, acc):
    @cfunc(TASK, **OPTIONS)
    def slice_dx_task(arguments, task, thread):
        slice_dx(tag, acc, arguments, task, thread)

    return slice_dx_task


def _gather(outer, inner):
    @cfunc(COPY, **OPTIONS)
    def gather_copy(base, table, first, rows, N, packed):
        gather_rows(outer, inner, base, table, first, rows, N, packed)

    return gather_copy


def _scatter(outer, inner):
    @cfunc(COPY, **OPTIONS)
    def scatter_copy(base, table, first, rows, N, packed):
        scatter_rows(outer, inner, base, table, first, rows, N, packed)

    return scatter_copy


COPY_FUNCTIONS = {"gather": _gather, "scatter": _scatter}

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


@cache
def _compiled(name, dtype, other):
    with _compiling:
        return (TASK_FUNCTIONS | COPY_FUNCTIONS)[name](TAGS[dtype], TAGS[other])


def task_function(name: str, dtype: str, accumulator: str) -> int:
    """The address of a task function for elements of dtype; `accumulator` is float32 or float64."""
    return int(_compiled(name, dtype, accumulator).address)


def copy_function(name: str, outer: str, inner: str) -> int:
    """The address of "gather" or "scatter", for rows that are stored in one dtype and computed as if stored in another."""
    return int(_compiled(name, outer, inner).address)
