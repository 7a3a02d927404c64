"""The sums, means and variances of up to sixteen rows together.

Each row has its partial sums in eight lanes, eight such vectors are added up at once, and from there on lane r is row r. So
one division and one root serve eight rows, and nobody waits for them row by row. Source: docs/math.md, equations 1 to 3.
"""

import math

from lngrad.cpu.jobs import GROUP, LANES, MOST_ROWS, SEGMENT
from lngrad.cpu.kernels.arithmetic import (
    fma,
    in_order,
    inverse_root,
    only,
    scalar,
    splat,
    splat_group,
    totals,
    vector_of,
    where_below,
    zeros,
    zeros_group,
)
from lngrad.cpu.kernels.functions import inlined, plain
from lngrad.cpu.kernels.simd import WIDE, load, load_mixed, load_scalar, size_of, store
from lngrad.cpu.kernels.sweeps import fetch_row, segment_columns, segment_count, vector_at

# What lies in the room of some rows, in vectors: the lanes of their sums and of their squares, then a lane a row of three
# numbers. The sums around the centre lie where the mean and rstd will be.
SUMS, SQUARES, CENTRES = 0, MOST_ROWS, 2 * MOST_ROWS
MEANS, RSTDS, ROOM = CENTRES + MOST_ROWS // LANES, CENTRES + 2 * MOST_ROWS // LANES, CENTRES + 3 * MOST_ROWS // LANES


@inlined
def less(lanes, centre):
    """Eight lanes less a row's centre, where it has one already."""
    if centre is None:
        return lanes
    return lanes - vector_of(centre, 0)


@inlined
def group_less(group, centre):
    """less for GROUP lanes."""
    if centre is None:
        return group
    return group - centre


@inlined
def plus(sums, d):
    """Sums and squares with d added."""
    return sums[0] + d, fma(d, d, sums[1])


@inlined
def add_group(tag, row, j, sums):
    """A row's sums and squares, with GROUP columns less its centre added."""
    if row is None:
        return sums
    x, centre = row
    return plus(sums, group_less(load_mixed(tag, x, j), centre))


@inlined
def add_vector(tag, row, j, sums):
    """add_group for eight columns."""
    if row is None:
        return sums
    x, centre = row
    return plus(sums, less(load(tag, x, j), centre))


@inlined
def add_last(tag, row, n, sums):
    """add_group for the last eight of n columns, less those that are in already."""
    if row is None:
        return sums
    x, centre = row
    return plus(sums, only(less(load(tag, x, n - LANES), centre), LANES - n % LANES))


@inlined
def in_columns_order(tag, sums):
    return in_order(tag, sums[0]), in_order(tag, sums[1])


@inlined
def ends_of(sums):
    """The first and the last vector of the sums, and of the squares."""
    a, b = sums
    return (vector_of(a, 0), vector_of(b, 0)), (vector_of(a, 3), vector_of(b, 3))


@inlined
def joined(sums, first, last):
    """Eight lanes of a group's sums, and of its squares, of which the first and the last vector have changed."""
    a, b = sums
    total_a = (first[0] + vector_of(a, 1)) + (vector_of(a, 2) + last[0])
    return total_a, (first[1] + vector_of(b, 1)) + (vector_of(b, 2) + last[1])


@inlined
def lanes_of(tag, acc, row0, row1, row2, row3, ahead, n):
    """For each of one to four rows (None: absent) eight lanes whose total is the sum of its n >= 8 columns less its centre, and
    eight whose total is the sum of their squares. Rows go side by side, since the additions of one wait for each other.

    ahead: how many bytes on the rows lie of which every second group is fetched meanwhile; None for none. The others are
    fetched when y is written, so that the memory is busy in both visits: 16384×1024 bfloat16 27 → 35 GB/s, 1 thread, AMD EPYC
    9005.
    """
    s0 = s1 = s2 = s3 = zeros_group(acc), zeros_group(acc)
    for j in range(0, n - n % GROUP, GROUP):
        if ahead is not None and j & GROUP == 0:
            fetch_row(tag, row0, j, ahead, None)
            fetch_row(tag, row1, j, ahead, None)
            fetch_row(tag, row2, j, ahead, None)
            fetch_row(tag, row3, j, ahead, None)
        s0, s1 = add_group(tag, row0, j, s0), add_group(tag, row1, j, s1)
        s2, s3 = add_group(tag, row2, j, s2), add_group(tag, row3, j, s3)
    s0, s1 = in_columns_order(tag, s0), in_columns_order(tag, s1)
    s2, s3 = in_columns_order(tag, s2), in_columns_order(tag, s3)
    (first0, last0), (first1, last1) = ends_of(s0), ends_of(s1)
    (first2, last2), (first3, last3) = ends_of(s2), ends_of(s3)
    for j in range(n - n % GROUP, n - n % LANES, LANES):
        first0, first1 = add_vector(tag, row0, j, first0), add_vector(tag, row1, j, first1)
        first2, first3 = add_vector(tag, row2, j, first2), add_vector(tag, row3, j, first3)
    if n % LANES > 0:
        last0, last1 = add_last(tag, row0, n, last0), add_last(tag, row1, n, last1)
        last2, last3 = add_last(tag, row2, n, last2), add_last(tag, row3, n, last3)
    return joined(s0, first0, last0), joined(s1, first1, last1), joined(s2, first2, last2), joined(s3, first3, last3)


@inlined
def row_at(acc, memory, centred, x, r):
    """What lanes_of needs to know of row r at x: its centre too, if it has one in the room."""
    if centred is None:
        return x, None
    return x, splat_group(load_scalar(acc, vector_at(acc, memory, CENTRES), r))


@inlined
def leave_lanes(acc, room_of_row, centred, lanes):
    """Leave what lanes_of tells of a row in the room."""
    store(acc, vector_at(acc, room_of_row, SUMS), 0, lanes[0])
    if centred is not None:
        store(acc, vector_at(acc, room_of_row, SQUARES), 0, lanes[1])


@inlined
def visit_rows(tag, acc, memory, centred, x, x_stride, ahead, rows, n):
    """Leave the lanes of the rows' sums in the room; if centred, less their centres, and their squares' too.

    As many rows go side by side as the processor has registers for.
    """
    r, here = 0, memory
    if WIDE and centred is None:
        while r + 4 <= rows:
            row0, row1 = row_at(acc, memory, centred, x, r), row_at(acc, memory, centred, x + x_stride, r + 1)
            x += 2 * x_stride
            row2, row3 = row_at(acc, memory, centred, x, r + 2), row_at(acc, memory, centred, x + x_stride, r + 3)
            x += 2 * x_stride
            lanes0, lanes1, lanes2, lanes3 = lanes_of(tag, acc, row0, row1, row2, row3, ahead, n)
            leave_lanes(acc, here, centred, lanes0)
            leave_lanes(acc, vector_at(acc, here, 1), centred, lanes1)
            leave_lanes(acc, vector_at(acc, here, 2), centred, lanes2)
            leave_lanes(acc, vector_at(acc, here, 3), centred, lanes3)
            r, here = r + 4, vector_at(acc, here, 4)
    if WIDE or centred is None:
        while r + 2 <= rows:
            row0, row1 = row_at(acc, memory, centred, x, r), row_at(acc, memory, centred, x + x_stride, r + 1)
            x += 2 * x_stride
            lanes0, lanes1, _, _ = lanes_of(tag, acc, row0, row1, None, None, ahead, n)
            leave_lanes(acc, here, centred, lanes0)
            leave_lanes(acc, vector_at(acc, here, 1), centred, lanes1)
            r, here = r + 2, vector_at(acc, here, 2)
    while r < rows:
        lanes0, _, _, _ = lanes_of(tag, acc, row_at(acc, memory, centred, x, r), None, None, None, ahead, n)
        leave_lanes(acc, here, centred, lanes0)
        x, r, here = x + x_stride, r + 1, vector_at(acc, here, 1)


@inlined
def clear_absent(acc, memory, rows):
    """Zero where the sums of further rows would lie, where the last eight are fewer."""
    for r in range(rows, rows + -rows % LANES):
        store(acc, vector_at(acc, memory, SUMS + r), 0, zeros(acc))
        store(acc, vector_at(acc, memory, SQUARES + r), 0, zeros(acc))


@inlined
def add_totals(acc, memory, lanes_at, totals_at, rows):
    """Add up the lanes of each row, and add that to what totals_at has of it in the room."""
    for r in range(0, rows, LANES):
        at = vector_at(acc, memory, totals_at)
        store(acc, at, r, load(acc, at, r) + totals(acc, vector_at(acc, memory, lanes_at + r)))


@inlined
def clear_totals(acc, memory, totals_at, rows):
    for r in range(0, rows, LANES):
        store(acc, vector_at(acc, memory, totals_at), r, zeros(acc))


@plain
def centre_rows(tag, acc, memory, x, x_stride, rows, N):
    """Leave a centre close to its mean of each row of N >= 8 columns in the room: lane r is row r."""
    clear_absent(acc, memory, rows)
    clear_totals(acc, memory, CENTRES, rows)
    for segment in range(segment_count(N)):
        at = x + segment * SEGMENT * size_of(tag)
        visit_rows(tag, acc, memory, None, at, x_stride, None, rows, segment_columns(N, segment))
        add_totals(acc, memory, SUMS, CENTRES, rows)
    centres = vector_at(acc, memory, CENTRES)
    for r in range(0, rows, LANES):
        store(acc, centres, r, load(acc, centres, r) / splat(scalar(acc, N)))


@plain
def centred_sums(tag, acc, memory, x, x_stride, ahead, rows, N):
    """Leave the sums of x less the centre that centre_rows has left, and of its square, where MEANS and RSTDS will be."""
    clear_totals(acc, memory, MEANS, rows)
    clear_totals(acc, memory, RSTDS, rows)
    for segment in range(segment_count(N)):
        at = x + segment * SEGMENT * size_of(tag)
        visit_rows(tag, acc, memory, 1, at, x_stride, ahead, rows, segment_columns(N, segment))
        add_totals(acc, memory, SUMS, MEANS, rows)
        add_totals(acc, memory, SQUARES, RSTDS, rows)


@inlined
def statistics(acc, N, centre, deviations, squares, eps):
    """The mean and rstd of eight rows, from the sums around a centre close to the mean."""
    n = splat(scalar(acc, N))
    shift, variance = deviations / n, squares / n
    # Overflow: rstd is 0; where the mean overflows too, or is a NaN, so is rstd.
    overflown = variance + (shift - shift)
    variance = where_below(variance, splat(scalar(acc, math.inf)), variance - shift * shift, overflown)
    variance = where_below(variance, zeros(acc), zeros(acc), variance)  # rounding; a NaN passes
    return centre + shift, inverse_root(variance, eps)
