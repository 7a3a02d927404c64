"""The arithmetic of up to sixteen rows backward that are in the cache: their means, then dx and their share of the column sums.

The sums of eight rows lie in eight lanes each; they are added up at once, and from there on lane r is row r, so one division
serves eight rows. Source: docs/math.md, equations 7 to 9.
"""

from collections import namedtuple

from lngrad.cpu.jobs import BACKWARD_ROWS, GROUP, LANES
from lngrad.cpu.kernels.arithmetic import (
    fma,
    mask_below,
    plus,
    scalar,
    splat,
    splat_at,
    splat_group_at,
    subtract_mean,
    totals,
    where_below,
    xhat_of,
    zeros,
)
from lngrad.cpu.kernels.functions import inlined, plain, unless_none
from lngrad.cpu.kernels.row_sums import (
    COMPENSATED_SQUARE,
    PARTIALS,
    lanes_of_rows,
    lost_xhat,
    row_lanes,
    vector_at,
    where_finite,
)
from lngrad.cpu.kernels.simd import (
    LONG,
    SHORT,
    fetch_group,
    fetch_group_to_write,
    gather,
    load,
    load_columns,
    load_scalar,
    long_step,
    size_of,
    stack_vectors,
    step_of,
    store,
    store_columns,
    stream_columns,
)

# What the two sums of up to BACKWARD_ROWS rows come to: their means, and what xhat lost with the mean; then three sums' lanes.
MEAN_DXHAT, MEAN_DXHAT_XHAT, LOST, SUM_LANES = (number * BACKWARD_ROWS // LANES for number in range(4))
MEANS_VECTORS = SUM_LANES + 3 * BACKWARD_ROWS
PEEKED_VECTORS = 3 * BACKWARD_ROWS  # of their last columns: dy, xhat, dtotal


# Some rows: addresses of the first one's elements (dtotal 0: there is none) and of the statistics by row (mean None: rows are
# not centred), then bytes from row to row of the four tensors. ClosedRows have their means too, and what their xhat lost.
Rows = namedtuple("Rows", "dy x dtotal dx mean rstd dy_stride x_stride dtotal_stride dx_stride")
ClosedRows = namedtuple("ClosedRows", (*Rows._fields[:6], "mean_dxhat", "mean_dxhat_xhat", "lost", *Rows._fields[6:]))


@unless_none(1)
def found_lost(acc, mean, rests, rstd, N):
    """lost_xhat of given means, from the sums of x - mean over N columns.

    A mean is completed if it is the row's own as far as its dtype can tell; else it is taken as it is given.
    """
    rest = rests / splat(scalar(acc, N))
    last_place = mean * splat(scalar(acc, 2.0**-23 if size_of(acc) == 4 else 2.0**-52))
    return lost_xhat(acc, mean, where_below(rest * rest, last_place * last_place, rest, zeros(acc)), rstd)


@plain
def lanes_of_rest(storage, acc, x, mean, r, N):
    row = x, splat_group_at(acc, mean, r)
    return lanes_of_rows(storage, acc, (row, None, None, None), None, N, 1, None)[0][0]


@unless_none(3)
def rest_lanes(storage, acc, x, mean, rstd, r, N, completes):
    """Eight lanes whose total is the sum over N columns of row r minus its mean, where that is to be completed and large
    enough to show it; else zeros."""
    ratio = load_scalar(acc, mean, r) * load_scalar(acc, rstd, r)
    if completes == 0 or ratio * ratio < scalar(acc, COMPENSATED_SQUARE):
        return zeros(acc)
    return lanes_of_rest(storage, acc, x, mean, r, N)


@inlined
def store_lanes_of_row(acc, memory, number, r, lanes):
    """Keep the lanes of row r's sum of this number, None for one that it does not have, until they are closed."""
    store(acc, vector_at(acc, memory, SUM_LANES + number * BACKWARD_ROWS), r * LANES, lanes)


@inlined
def close_means(acc, mean, memory, count, N):
    """The means of rows from their lanes: lane r is row r. No mean_dxhat where there is no mean."""
    for r in range(count, count + -count % LANES):
        store_lanes_of_row(acc, memory, 0, r, zeros(acc))
        store_lanes_of_row(acc, memory, 1, r, zeros(acc))
    n = splat(scalar(acc, N))
    for r in range(0, count, LANES):
        if mean is not None:
            store(acc, vector_at(acc, memory, MEAN_DXHAT), r, totals(acc, vector_at(acc, memory, SUM_LANES + r)) / n)
        lanes = vector_at(acc, memory, SUM_LANES + BACKWARD_ROWS + r)
        store(acc, vector_at(acc, memory, MEAN_DXHAT_XHAT), r, totals(acc, lanes) / n)


@unless_none(1)
def close_rests(acc, mean, rstd, memory, count, N, completes, gamma):
    """The errors of the rows' xhat from rounding their mean; and with gamma mean_dxhat_xhat, which lacks as much."""
    losts = vector_at(acc, memory, LOST)
    if completes == 0:
        for r in range(0, count, LANES):
            store(acc, losts, r, splat(scalar(acc, -0.0)))
        return
    for r in range(count, count + -count % LANES):
        store_lanes_of_row(acc, memory, 2, r, zeros(acc))
    for r in range(0, count, LANES):
        sums = totals(acc, vector_at(acc, memory, SUM_LANES + 2 * BACKWARD_ROWS + r))
        means, rstds = gather(acc, mean, r, 1, count - r), gather(acc, rstd, r, 1, count - r)
        lost = found_lost(acc, means, sums, rstds, N)
        store(acc, losts, r, lost)
        if gamma is not None:
            mean_dxhat_xhat = vector_at(acc, memory, MEAN_DXHAT_XHAT)
            mean_dxhat = load(acc, vector_at(acc, memory, MEAN_DXHAT), r)
            lacking = where_finite(acc, lost * mean_dxhat, splat(scalar(acc, -0.0)))
            store(acc, mean_dxhat_xhat, r, load(acc, mean_dxhat_xhat, r) + lacking)


@plain
def means_of_rows(storage, acc, memory, gamma, rows, count, N, mixed, ahead, completes):
    """Write mean_dxhat and mean_dxhat_xhat of up to BACKWARD_ROWS rows, and what their xhat lost with the mean, to memory of
    MEANS_VECTORS vectors: lane r is row r.

    Eight rows' lanes are added up at once and divided at once. Rows without a mean have mean_dxhat_xhat alone; without gamma
    there is what was lost alone.
    """
    dy, x, mean, rstd, dy_stride, x_stride = rows
    partials = stack_vectors(acc, PARTIALS)
    for r in range(count):
        x_r = x + r * x_stride
        if gamma is not None:
            m, s = splat_at(acc, None, mean, r), splat(load_scalar(acc, rstd, r))
            sums = row_lanes(
                storage, acc, partials, dy + r * dy_stride, x_r, x_r + ahead * x_stride, gamma, N, mixed, m, s
            )
            store_lanes_of_row(acc, memory, 0, r, sums[0])
            store_lanes_of_row(acc, memory, 1, r, sums[1])
    if completes != 0:
        for r in range(count):
            rest = rest_lanes(storage, acc, x + r * x_stride, mean, rstd, r, N, completes)
            store_lanes_of_row(acc, memory, 2, r, rest)
    if gamma is not None:
        close_means(acc, mean, memory, count, N)
    close_rests(acc, mean, rstd, memory, count, N, completes, gamma)


@inlined
def dx_of(d, xhat, g, rstd, mean_dxhat, mean_dxhat_xhat):
    """dx of some columns. The product d·g is rounded before the subtraction, so that N = 1 gives exactly zero."""
    return (subtract_mean(d * g, mean_dxhat) - xhat * mean_dxhat_xhat) * rstd


@inlined
def peek(storage, acc, wide, rows, r, j):
    """dy and xhat of some columns of row r."""
    x = load_columns(storage, wide, rows.x + r * rows.x_stride, j)
    centred = subtract_mean(x, splat_at(acc, wide, rows.mean, r))
    xhat = xhat_of(centred, splat_at(acc, wide, rows.rstd, r), splat_at(acc, wide, rows.lost, r))
    return load_columns(storage, wide, rows.dy + r * rows.dy_stride, j), xhat


@inlined
def row_dx(acc, wide, rows, r, d, xhat, g):
    """dx of some columns of row r, without what comes from elsewhere (dtotal)."""
    mean_dxhat, mean_dxhat_xhat = splat_at(acc, wide, rows.mean_dxhat, r), splat_at(acc, wide, rows.mean_dxhat_xhat, r)
    return dx_of(d, xhat, g, splat_at(acc, wide, rows.rstd, r), mean_dxhat, mean_dxhat_xhat)


@unless_none(0)
def write_dx(g, storage, acc, wide, rows, r, j, d, xhat, streaming):
    """dx of some columns of row r, if gamma is given."""
    result = row_dx(acc, wide, rows, r, d, xhat, g)
    if rows.dtotal != 0:
        result = result + load_columns(storage, wide, rows.dtotal + r * rows.dtotal_stride, j)
    if streaming is not None:
        stream_columns(storage, wide, rows.dx + r * rows.dx_stride, j, result)
    else:
        store_columns(storage, wide, rows.dx + r * rows.dx_stride, j, result)


@unless_none(0)
def write_last_dx(g, storage, acc, rows, r, j, d, xhat, peeked_dtotal):
    """write_dx of eight columns whose share of dtotal has been read already, to this address."""
    result = row_dx(acc, None, rows, r, d, xhat, g)
    if rows.dtotal != 0:
        result = result + load(acc, peeked_dtotal, 0)
    store(storage, rows.dx + r * rows.dx_stride, j, result)


@inlined
def visit(storage, acc, wide, rows, r, j, g, dgamma, dbeta, streaming):
    """Some columns of row r: write dx if gamma is given, return what they make of the column sums that are given."""
    d, xhat = peek(storage, acc, wide, rows, r, j)
    write_dx(g, storage, acc, wide, rows, r, j, d, xhat, streaming)
    return fma(d, xhat, dgamma), plus(dbeta, d)


@inlined
def fetch_ahead(storage, rows, r, j, ahead, to_result):
    """Ask for GROUP columns of later rows: of dy, of dtotal, of x where means_of_rows has not asked for it, and of dx, to write
    to it, to_result rows on; 0: of no dx."""
    fetch_group(storage, rows.dy + (r + ahead) * rows.dy_stride, j)
    if rows.mean_dxhat_xhat is None:
        fetch_group(storage, rows.x + (r + ahead) * rows.x_stride, j)
    if rows.dtotal != 0:
        fetch_group(storage, rows.dtotal + (r + ahead) * rows.dtotal_stride, j)
    if to_result != 0:
        fetch_group_to_write(storage, rows.dx + (r + to_result) * rows.dx_stride, j)


@inlined
def steps_of_rows(storage, acc, wide, sums, rows, count, j, n, ahead, to_result, streaming):
    """row_pass of columns from j on, as many as make whole steps. Returns where the others begin."""
    gamma, dgamma_at, dbeta_at = sums
    step = step_of(acc, wide)
    while j + step <= n:
        g = load_columns(acc, wide, gamma, j)
        dgamma, dbeta = load_columns(acc, wide, dgamma_at, j), load_columns(acc, wide, dbeta_at, j)
        for r in range(count):
            if ahead is not None and ahead != 0 and j % GROUP == 0:
                fetch_ahead(storage, rows, r, j, ahead, to_result)
                if step > GROUP:
                    fetch_ahead(storage, rows, r, j + GROUP, ahead, to_result)
            dgamma, dbeta = visit(storage, acc, wide, rows, r, j, g, dgamma, dbeta, streaming)
        store(acc, dgamma_at, j, dgamma)
        store(acc, dbeta_at, j, dbeta)
        j += step
    return j


@inlined
def in_cache(ahead, dtotal):
    """Whether rows are computed and nothing else: none is fetched, none added."""
    return (ahead is None or ahead == 0) and dtotal == 0


@inlined
def long_columns(mixed, n):
    """The number of columns, of n, that long steps may take."""
    return n if mixed is None else mixed


@inlined
def without_dtotal(rows):
    return ClosedRows(
        rows.dy, rows.x, 0, rows.dx, rows.mean, rows.rstd, rows.mean_dxhat, rows.mean_dxhat_xhat, rows.lost,
        rows.dy_stride, rows.x_stride, 0, rows.dx_stride,
    )  # fmt: skip


@plain
def row_pass(storage, acc, gamma, dgamma_at, dbeta_at, rows, count, n, mixed, ahead, to_result, streaming):
    """dx of n >= 8 columns of up to BACKWARD_ROWS rows, and their share of the column sums, in registers from row to row.

    The sums are read and written once for all rows: for every row, that cost as much as everything else. Later rows are fetched
    while these are computed, so that reading and writing overlap.

    Args:
        gamma: None where dx is not wanted.
        dgamma_at, dbeta_at: Addresses of the column sums, None where they are not wanted.
        rows: ClosedRows.
        count: How many rows.
        mixed: So many columns of gamma and of the column sums are in the order of load_mixed, and n is a multiple of LANES if
            any are; None: none are.
        ahead: Prefetch distance in rows; None or 0: off.
        to_result: Prefetch-for-write distance of dx in rows; 0: off.
        streaming: Whether dx goes past the caches.
    """
    tail, last = n % LANES, n - LANES
    peeked = stack_vectors(acc, PEEKED_VECTORS)
    if (
        tail > 0
    ):  # before dx is written: where dx takes the memory of an input, the last full vector overwrites some of these
        for r in range(count):
            d, xhat = peek(storage, acc, None, rows, r, last)
            store(acc, peeked, 3 * r * LANES, d)
            store(acc, peeked, (3 * r + 1) * LANES, xhat)
            if rows.dtotal != 0:
                store(acc, peeked, (3 * r + 2) * LANES, load(storage, rows.dtotal + r * rows.dtotal_stride, last))
    sums, j = (gamma, dgamma_at, dbeta_at), 0
    long, long_n = long_step(mixed), long_columns(mixed, n)
    has_long = mixed is not None or step_of(acc, long) > step_of(acc, SHORT)
    # Most calls by themselves, without tests for what they have not: 0.88 to 0.95 of the time in the cache.
    alone = without_dtotal(rows)
    # Whether dx is streamed is a constant in each loop: of the two stores LLVM made one in float16, which went to the caches.
    if gamma is not None and streaming:
        if has_long:
            j = steps_of_rows(storage, acc, long, sums, rows, count, j, long_n, ahead, 0, 1)
        j = steps_of_rows(storage, acc, SHORT, sums, rows, count, j, n, ahead, 0, 1)
        steps_of_rows(storage, acc, None, sums, rows, count, j, n, None, 0, 1)
    else:
        if in_cache(ahead, rows.dtotal):
            j = steps_of_rows(storage, acc, long, sums, alone, count, j, long_n, None, 0, None)
            if mixed is not None:  # small calls, and rows that end in a part of a vector
                j = steps_of_rows(storage, acc, LONG, sums, alone, count, j, n, None, 0, None)
        elif rows.dtotal == 0:
            j = steps_of_rows(storage, acc, long, sums, alone, count, j, long_n, ahead, to_result, None)
        elif has_long:
            j = steps_of_rows(storage, acc, long, sums, rows, count, j, long_n, ahead, to_result, None)
        j = steps_of_rows(storage, acc, SHORT, sums, rows, count, j, n, ahead, to_result, None)
        steps_of_rows(storage, acc, None, sums, rows, count, j, n, None, 0, None)
    if tail > 0:  # the last eight columns, of which the first `summed` are in the sums already
        summed = LANES - tail
        g = load_columns(acc, None, gamma, last)
        dgamma, dbeta = load_columns(acc, None, dgamma_at, last), load_columns(acc, None, dbeta_at, last)
        for r in range(count):
            d, xhat = load(acc, peeked, 3 * r * LANES), load(acc, peeked, (3 * r + 1) * LANES)
            write_last_dx(g, storage, acc, rows, r, last, d, xhat, vector_at(acc, peeked, 3 * r + 2))
            dgamma = fma(mask_below(d, summed), mask_below(xhat, summed), dgamma)
            dbeta = plus(dbeta, mask_below(d, summed))
        store(acc, dgamma_at, last, dgamma)
        store(acc, dbeta_at, last, dbeta)
