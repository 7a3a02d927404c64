"""The arithmetic of up to thirty-two rows forward that are in the cache: their sums and statistics, then y.

The partial sums of a row lie in eight lanes; eight such vectors are added up at once, and from there on lane r is row r, so one
division and one root serve eight rows. Source: docs/math.md, equations 1 to 4.
"""

import math
from collections import namedtuple

from lngrad.cpu.jobs import FORWARD_ROWS, GROUP, LANES
from lngrad.cpu.kernels.arithmetic import (
    first_vector,
    fma,
    inverse_root,
    scalar,
    splat,
    splat_group,
    splat_group_at,
    subtract_mean,
    totals,
    where_below,
    xhat_of,
    zeros,
)
from lngrad.cpu.kernels.functions import inlined, plain
from lngrad.cpu.kernels.row_sums import lanes_of_rows, load_in, lost_xhat, vector_at
from lngrad.cpu.kernels.simd import (
    LINE_BYTES,
    PAIRED,
    WIDE,
    fetch_group,
    fetch_group_to_write,
    load,
    load_group,
    load_scalar,
    size_of,
    store,
    store_columns,
    stream_columns,
)

# The scratch memory of some rows, in vectors: the lanes of their sums and of their squares, then a lane a row of three
# numbers, and what xhat lost. The sums around the centre lie where the mean and rstd will be.
SUMS, SQUARES, CENTRES = 0, FORWARD_ROWS, 2 * FORWARD_ROWS
MEANS = CENTRES + FORWARD_ROWS // LANES
RSTDS = MEANS + FORWARD_ROWS // LANES
LOSTS = RSTDS + FORWARD_ROWS // LANES
SCRATCH_VECTORS = LOSTS + FORWARD_ROWS // LANES
ALIGNED = 4 * GROUP  # columns from which on a row's stores begin on cache lines


# Rows whose statistics are known: addresses of x and y, of mean, rstd and what xhat lost by row (mean and lost None: not
# centred), and bytes from row to row. A Row is one of them, with its mean, rstd and what xhat lost in all lanes of a group.
Outputs = namedtuple("Outputs", "x y mean rstd lost x_stride y_stride")
Row = namedtuple("Row", Outputs._fields[:5])


@inlined
def row_at(acc, memory, centred, x, r):
    """Row r as lanes_of_rows takes it: its address x, and its centre if it has one in memory."""
    if centred is None:
        return x, None
    return x, splat_group(load_scalar(acc, vector_at(acc, memory, CENTRES), r))


@inlined
def store_lanes(acc, row_memory, lanes):
    """Write what lanes_of_rows returns for a row to its memory."""
    store(acc, vector_at(acc, row_memory, SUMS), 0, lanes[0])
    store(acc, vector_at(acc, row_memory, SQUARES), 0, lanes[1])


@inlined
def sum_rows(storage, acc, memory, centred, wants_sums, wants_squares, x, x_stride, ahead, rows, N):
    """Write the lanes of the rows' sums and squares, as far as wanted, to memory; if centred, of x minus their centres.

    As many rows go side by side as the processor has registers for.
    """
    r, here = 0, memory
    if WIDE and centred is None:
        while r + 4 <= rows:
            row0, row1 = row_at(acc, memory, centred, x, r), row_at(acc, memory, centred, x + x_stride, r + 1)
            x += 2 * x_stride
            row2, row3 = row_at(acc, memory, centred, x, r + 2), row_at(acc, memory, centred, x + x_stride, r + 3)
            x += 2 * x_stride
            lanes = lanes_of_rows(storage, acc, (row0, row1, row2, row3), ahead, N, wants_sums, wants_squares)
            store_lanes(acc, here, lanes[0])
            store_lanes(acc, vector_at(acc, here, 1), lanes[1])
            store_lanes(acc, vector_at(acc, here, 2), lanes[2])
            store_lanes(acc, vector_at(acc, here, 3), lanes[3])
            r, here = r + 4, vector_at(acc, here, 4)
    if WIDE or centred is None:
        while r + 2 <= rows:
            row0, row1 = row_at(acc, memory, centred, x, r), row_at(acc, memory, centred, x + x_stride, r + 1)
            x += 2 * x_stride
            lanes = lanes_of_rows(storage, acc, (row0, row1, None, None), ahead, N, wants_sums, wants_squares)
            store_lanes(acc, here, lanes[0])
            store_lanes(acc, vector_at(acc, here, 1), lanes[1])
            r, here = r + 2, vector_at(acc, here, 2)
    while r < rows:
        row0 = row_at(acc, memory, centred, x, r)
        lanes = lanes_of_rows(storage, acc, (row0, None, None, None), ahead, N, wants_sums, wants_squares)
        store_lanes(acc, here, lanes[0])
        x, r, here = x + x_stride, r + 1, vector_at(acc, here, 1)


@inlined
def clear_absent(acc, memory, rows):
    """Zero where the sums of further rows would lie, where the last eight are fewer."""
    for r in range(rows, rows + -rows % LANES):
        store(acc, vector_at(acc, memory, SUMS + r), 0, zeros(acc))
        store(acc, vector_at(acc, memory, SQUARES + r), 0, zeros(acc))


@inlined
def total_lanes(acc, memory, lanes_at, totals_at, rows):
    """Add up the lanes of each row, to where totals_at says."""
    for r in range(0, rows, LANES):
        store(acc, vector_at(acc, memory, totals_at), r, totals(acc, vector_at(acc, memory, lanes_at + r)))


@plain
def centre_rows(storage, acc, memory, x, x_stride, rows, N):
    """Write a centre, close to the mean, of each row of N >= 8 columns to memory: lane r is row r."""
    clear_absent(acc, memory, rows)
    sum_rows(storage, acc, memory, None, 1, None, x, x_stride, None, rows, N)
    total_lanes(acc, memory, SUMS, CENTRES, rows)
    centres = vector_at(acc, memory, CENTRES)
    for r in range(0, rows, LANES):
        store(acc, centres, r, load(acc, centres, r) / splat(scalar(acc, N)))


@plain
def centred_sums(storage, acc, memory, x, x_stride, ahead, rows, N):
    """Write the sums of x minus its centre from centre_rows, and of the squares, where MEANS and RSTDS will be."""
    sum_rows(storage, acc, memory, 1, 1, 1, x, x_stride, ahead, rows, N)
    total_lanes(acc, memory, SUMS, MEANS, rows)
    total_lanes(acc, memory, SQUARES, RSTDS, rows)


@plain
def sums_of_squares(storage, acc, memory, x, x_stride, ahead, rows, N):
    """Write the sums of the squares of x, which is not centred, where RSTDS will be."""
    clear_absent(acc, memory, rows)
    sum_rows(storage, acc, memory, None, None, 1, x, x_stride, ahead, rows, N)
    total_lanes(acc, memory, SQUARES, RSTDS, rows)


@inlined
def statistics(acc, N, centre, deviations, squares, eps):
    """The mean and rstd of eight rows, and what xhat lost with the mean, from the sums around a centre close to the mean."""
    n = splat(scalar(acc, N))
    shift, variance = deviations / n, squares / n
    # Overflow: rstd is 0; where the mean overflows too, or is a NaN, so is rstd.
    overflown = variance + (shift - shift)
    variance = where_below(variance, splat(scalar(acc, math.inf)), variance - shift * shift, overflown)
    variance = where_below(variance, zeros(acc), zeros(acc), variance)  # rounding; a NaN passes
    mean, rstd = centre + shift, inverse_root(variance, eps)
    added = mean - centre
    rest = (centre - (mean - added)) + (shift - added)  # what the sum was rounded by, exactly (Knuth's two-sum)
    return mean, rstd, lost_xhat(acc, mean, rest, rstd)


@inlined
def scaled(xhat, g, b):
    """y; without beta the product."""
    if b is None:
        return xhat * g
    return fma(xhat, g, b)


@inlined
def row_of(acc, rows, x, y, r):
    """Row r of Outputs, as write_rows takes it."""
    mean, rstd = splat_group_at(acc, rows.mean, r), splat_group_at(acc, rows.rstd, r)
    return Row(x, y, mean, rstd, splat_group_at(acc, rows.lost, r))


@inlined
def y_of(storage, acc, row, gamma, beta, j):
    """y of eight columns."""
    if row is None:
        return zeros(acc)
    centred = subtract_mean(load(storage, row.x, j), first_vector(row.mean))
    xhat = xhat_of(centred, first_vector(row.rstd), first_vector(row.lost))
    return scaled(xhat, load(acc, gamma, j), load(acc, beta, j))


@inlined
def put(storage, row, j, lanes):
    if row is not None:
        store(storage, row.y, j, lanes)


@inlined
def write_group(storage, paired, row, j, g, b, ahead, streaming):
    """y of GROUP columns of one row, g and b being in the order of load_in.

    ahead: how many bytes on a row lies that is fetched meanwhile; 0: none is.
    """
    if row is None:
        return
    if ahead != 0 and j & GROUP != 0:  # the other groups have been fetched with the sums
        fetch_group(storage, row.x + ahead, j)
    centred = subtract_mean(load_in(storage, paired, row.x, j), row.mean)
    result = scaled(xhat_of(centred, row.rstd, row.lost), g, b)
    if streaming is None:
        store_columns(storage, paired, row.y, j, result)
    else:
        stream_columns(storage, paired, row.y, j, result)


@inlined
def fetch_result(storage, row, j, to_result):
    """Ask for GROUP columns of a later row's y, so many bytes on, to write to them."""
    if row is not None:
        fetch_group_to_write(storage, row.y + to_result, j)


@inlined
def write_groups(storage, acc, paired, rows, ahead, to_result, gamma, beta, j, n, streaming):
    """y of the groups from column j on, up to column n. Returns where the next would begin."""
    while j + GROUP <= n:
        at = max(j, 0)
        g, b = load_group(acc, gamma, at), load_group(acc, beta, at)
        if streaming is None and to_result != 0:
            fetch_result(storage, rows[0], at, to_result)
            fetch_result(storage, rows[1], at, to_result)
            fetch_result(storage, rows[2], at, to_result)
            fetch_result(storage, rows[3], at, to_result)
        write_group(storage, paired, rows[0], at, g, b, ahead, streaming)
        write_group(storage, paired, rows[1], at, g, b, ahead, streaming)
        write_group(storage, paired, rows[2], at, g, b, ahead, streaming)
        write_group(storage, paired, rows[3], at, g, b, ahead, streaming)
        j += GROUP
    return j


@inlined
def write_rows(storage, acc, row0, row1, row2, row3, ahead, to_result, gamma, beta, N, mixed, skipped, streaming):
    """y of one to four rows (None: absent) of N >= 8 columns, reading gamma and beta once for all.

    Written out, not in a loop, which took 1.1 to 1.3 times as long. Part of its callers, so that their rows stay in registers.

    ahead: how many bytes on the rows lie that are fetched meanwhile; 0: none are. to_result: how many bytes on the lines of y
    lie that are fetched to be written, if y is stored; 0: none are. mixed: so many columns of gamma and beta are in the order
    of load_mixed; None: none are. skipped: so many columns a first group is written that the second one overlaps, so that it
    and all others begin on cache lines of y; 0 where columns are mixed. streaming: None, or 1 if y goes past the caches.
    """
    tail, last = (N - skipped) % LANES, N - LANES
    peeked0 = peeked1 = peeked2 = peeked3 = zeros(acc)
    # Read before y is written: where y takes x's own memory, the last full vector overwrites some of these.
    if tail > 0:
        peeked0, peeked1 = y_of(storage, acc, row0, gamma, beta, last), y_of(storage, acc, row1, gamma, beta, last)
        peeked2, peeked3 = y_of(storage, acc, row2, gamma, beta, last), y_of(storage, acc, row3, gamma, beta, last)
    j, rows = skipped - GROUP if skipped > 0 else 0, (row0, row1, row2, row3)
    if mixed is not None:
        j = write_groups(storage, acc, PAIRED, rows, ahead, to_result, gamma, beta, j, mixed, streaming)
    j = write_groups(storage, acc, None, rows, ahead, to_result, gamma, beta, j, N, streaming)
    while j + LANES <= N:
        put(storage, row0, j, y_of(storage, acc, row0, gamma, beta, j))
        put(storage, row1, j, y_of(storage, acc, row1, gamma, beta, j))
        put(storage, row2, j, y_of(storage, acc, row2, gamma, beta, j))
        put(storage, row3, j, y_of(storage, acc, row3, gamma, beta, j))
        j += LANES
    if tail > 0:
        put(storage, row0, last, peeked0)
        put(storage, row1, last, peeked1)
        put(storage, row2, last, peeked2)
        put(storage, row3, last, peeked3)


@inlined
def has_mixed(mixed):
    """Whether any columns are mixed."""
    return False if mixed is None else mixed > 0


@inlined
def columns_to_line(storage, x, y, N, mixed, streaming):
    """The number of columns of a row's y before its first cache line; 0 if they need not be treated apart.

    A store across two lines costs as much as two. Not in place, where the overlap would be read after it was written; nor where
    groups must begin where gamma's do.
    """
    if streaming is not None or N < ALIGNED or x == y or has_mixed(mixed):
        return 0
    return (-y & (LINE_BYTES - 1)) // size_of(storage)


@plain
def write_measured_rows(storage, acc, rows, count, ahead, to_result, gamma, beta, N, mixed, streaming):
    """y of any number of rows whose means and rstds are known, four at a time where their lines begin alike.

    rows: Outputs. ahead, to_result, mixed: as in write_rows, but the first two in rows.
    """
    x, y, x_stride, y_stride = rows.x, rows.y, rows.x_stride, rows.y_stride
    ahead, to_result, r = ahead * x_stride, to_result * y_stride, 0
    skipped = columns_to_line(storage, x, y, N, mixed, streaming)
    together = count if skipped == 0 or y_stride % LINE_BYTES == 0 else 0
    while r + 4 <= together:
        row0 = row_of(acc, rows, x, y, r)
        row1 = row_of(acc, rows, x + x_stride, y + y_stride, r + 1)
        x, y = x + 2 * x_stride, y + 2 * y_stride
        row2 = row_of(acc, rows, x, y, r + 2)
        row3 = row_of(acc, rows, x + x_stride, y + y_stride, r + 3)
        x, y, r = x + 2 * x_stride, y + 2 * y_stride, r + 4
        write_rows(storage, acc, row0, row1, row2, row3, ahead, to_result, gamma, beta, N, mixed, skipped, streaming)
    while r < count:
        row = row_of(acc, rows, x, y, r)
        skipped = columns_to_line(storage, x, y, N, mixed, streaming)
        write_rows(storage, acc, row, None, None, None, ahead, to_result, gamma, beta, N, mixed, skipped, streaming)
        x, y, r = x + x_stride, y + y_stride, r + 1
