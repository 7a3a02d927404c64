"""The arithmetic of rows that are in the cache, a pass over their columns at a time.

Backward: the two sums of a row, then dx and the share in dgamma and dbeta of one to four rows. Forward: the sums, means and
variances of up to sixteen rows, whose partial sums lie in eight lanes each; eight such vectors are added up at once, and from
there on lane r is row r, so one division and one root serve eight rows.

A row is summed by segments of SEGMENT columns, each in four vectors of eight lanes, segments left to right. The order is a
function of N alone: a row's dx has the same bits whatever row loop calls the pass and whatever rows are around it.

Rows have N >= 8 columns. Addresses point to a row's first element; `storage` is the dtype of dy, x, dx and y, `acc` that of
gamma, beta and sums. Source: docs/math.md, equations 1 to 3 and 7 to 9.
"""

import math

from lngrad.cpu.jobs import GROUP, LANES, MAX_ROWS, SEGMENT
from lngrad.cpu.kernels.arithmetic import (
    fma,
    in_order,
    inverse_root,
    mask_below,
    scalar,
    splat,
    splat_group,
    spread,
    total,
    totals,
    vector_of,
    where_below,
    zeros,
    zeros_group,
)
from lngrad.cpu.kernels.functions import inlined, plain
from lngrad.cpu.kernels.simd import WIDE, fetch_group, load, load_group, load_mixed, load_scalar, size_of, store, stream


@inlined
def segment_lanes(storage, acc, dy, x, x_next, gamma, n, mean, rstd):
    """Eight lanes whose total is the sum of dxhat over n >= 8 columns, and the same of dxhat·xhat; mean and rstd are lanes.

    x_next: where x of a later row lies, which is fetched meanwhile, so that the memory is busy in this visit too: 2048×5120
    float16 0.65 → 0.78 of the roofline, float32 0.72 → 0.79 (2 threads, AMD EPYC 9005). None where nobody knows.
    """
    a, b = zeros_group(acc), zeros_group(acc)
    means, rstds = spread(mean), spread(rstd)
    j = 0
    while j + GROUP <= n:
        if x_next is not None:
            fetch_group(storage, x_next, j)
        dxhat = load_group(storage, dy, j) * load_group(acc, gamma, j)
        b = fma(dxhat, (load_group(storage, x, j) - means) * rstds, b)
        a = a + dxhat
        j += GROUP
    a0, a1, a2, a3 = vector_of(a, 0), vector_of(a, 1), vector_of(a, 2), vector_of(a, 3)
    b0, b1, b2, b3 = vector_of(b, 0), vector_of(b, 1), vector_of(b, 2), vector_of(b, 3)
    while j + LANES <= n:
        d0 = load(storage, dy, j) * load(acc, gamma, j)
        b0 = fma(d0, (load(storage, x, j) - mean) * rstd, b0)
        a0 = a0 + d0
        j += LANES
    if j < n:  # the last eight columns, without those that are in already
        summed = LANES - (n - j)
        j = n - LANES
        d3 = mask_below(load(storage, dy, j) * load(acc, gamma, j), summed)
        b3 = fma(d3, mask_below((load(storage, x, j) - mean) * rstd, summed), b3)
        a3 = a3 + d3
    return (a0 + a1) + (a2 + a3), (b0 + b1) + (b2 + b3)


@inlined
def segment_sums(storage, acc, dy, x, x_next, gamma, n, mean, rstd):
    """Sum of dxhat and of dxhat·xhat over n >= 8 columns; mean and rstd are lanes."""
    a, b = segment_lanes(storage, acc, dy, x, x_next, gamma, n, mean, rstd)
    return total(a), total(b)


@inlined
def segment_count(N):
    """Segments of a row; the last one is the longest, up to 2·SEGMENT - 1 columns."""
    return max(1, N // SEGMENT)


@inlined
def segment_columns(N, segment):
    """How many columns a segment has."""
    return N - segment * SEGMENT if segment == segment_count(N) - 1 else SEGMENT


@inlined
def row_sums(storage, acc, dy, x, x_next, gamma, N, mean, rstd):
    """Sum of dxhat and of dxhat·xhat over one row of N >= 8 columns."""
    sum_dxhat, sum_dxhat_xhat = segment_sums(storage, acc, dy, x, x_next, gamma, segment_columns(N, 0), mean, rstd)
    for segment in range(1, segment_count(N)):
        at, at_gamma = segment * SEGMENT * size_of(storage), segment * SEGMENT * size_of(acc)
        next_at = None if x_next is None else x_next + at
        n = segment_columns(N, segment)
        a, b = segment_sums(storage, acc, dy + at, x + at, next_at, gamma + at_gamma, n, mean, rstd)
        sum_dxhat += a
        sum_dxhat_xhat += b
    return sum_dxhat, sum_dxhat_xhat


@inlined
def row_means(storage, acc, dy, x, x_next, gamma, N, mean, rstd):
    """mean_dxhat and mean_dxhat_xhat of one row of N >= 8 columns."""
    sum_dxhat, sum_dxhat_xhat = row_sums(storage, acc, dy, x, x_next, gamma, N, mean, rstd)
    return splat(sum_dxhat / scalar(acc, N)), splat(sum_dxhat_xhat / scalar(acc, N))


@inlined
def dx_of(d, xhat, g, rstd, mean_dxhat, mean_dxhat_xhat):
    """dx of eight elements. The product d·g is rounded before the subtraction, so that N = 1 gives exactly zero."""
    return ((d * g - mean_dxhat) - xhat * mean_dxhat_xhat) * rstd


@inlined
def vector_at(acc, memory, number):
    """The address of a vector in memory that holds vectors."""
    return memory + number * LANES * size_of(acc)


@inlined
def load_or_zeros(acc, address, j):
    if address is None:
        return zeros(acc)
    return load(acc, address, j)


@inlined
def visit(storage, row, j, gamma, g, sums, dgamma, dbeta, streaming):
    """Eight elements of one row: write dx if gamma is given, add to dgamma and dbeta if sums is."""
    if row is None:
        return dgamma, dbeta
    dy, x, dx, mean, rstd, mean_dxhat, mean_dxhat_xhat = row
    d = load(storage, dy, j)
    xhat = (load(storage, x, j) - mean) * rstd
    if gamma is not None:
        result = dx_of(d, xhat, g, rstd, mean_dxhat, mean_dxhat_xhat)
        if streaming:
            stream(storage, dx, j, result)
        else:
            store(storage, dx, j, result)
    if sums is None:
        return dgamma, dbeta
    return fma(d, xhat, dgamma), dbeta + d


@inlined
def peek(storage, acc, row, j):
    """dy and xhat of eight elements."""
    if row is None:
        return zeros(acc), zeros(acc)
    dy, x, dx, mean, rstd, mean_dxhat, mean_dxhat_xhat = row
    return load(storage, dy, j), (load(storage, x, j) - mean) * rstd


@inlined
def finish(storage, row, peeked, j, summed, gamma, g, sums, dgamma, dbeta):
    """visit for the last eight elements, of which the first `summed` are in the sums already."""
    if row is None:
        return dgamma, dbeta
    dy, x, dx, mean, rstd, mean_dxhat, mean_dxhat_xhat = row
    d, xhat = peeked
    if gamma is not None:
        store(storage, dx, j, dx_of(d, xhat, g, rstd, mean_dxhat, mean_dxhat_xhat))
    if sums is None:
        return dgamma, dbeta
    return fma(mask_below(d, summed), mask_below(xhat, summed), dgamma), dbeta + mask_below(d, summed)


@inlined
def load_group_or_zeros(acc, address, j):
    if address is None:
        return zeros_group(acc)
    return load_group(acc, address, j)


@inlined
def fetch_row(storage, row, j, first_ahead, second_ahead):
    """Ask for GROUP columns so many bytes on from a row's first address, and from its second; None: not from that."""
    if row is None:
        return
    if first_ahead is not None:
        fetch_group(storage, row[0] + first_ahead, j)
    if second_ahead is not None:
        fetch_group(storage, row[1] + second_ahead, j)


@inlined
def visit_group(storage, row, j, gamma, g, sums, dgamma, dbeta, streaming):
    """visit for GROUP elements of one row."""
    if row is None:
        return dgamma, dbeta
    dy, x, dx, mean, rstd, mean_dxhat, mean_dxhat_xhat = row
    rstds = spread(rstd)
    d = load_group(storage, dy, j)
    xhat = (load_group(storage, x, j) - spread(mean)) * rstds
    if gamma is not None:
        result = dx_of(d, xhat, g, rstds, spread(mean_dxhat), spread(mean_dxhat_xhat))
        if streaming:
            stream(storage, dx, j, result)
        else:
            store(storage, dx, j, result)
    if sums is None:
        return dgamma, dbeta
    return fma(d, xhat, dgamma), dbeta + d


@plain
def row_pass(storage, acc, row0, row1, row2, row3, dy_ahead, x_ahead, gamma, sums, dbeta_at, n, streaming):
    """Visit n >= 8 columns of one to four rows (None: absent), reading and writing the column sums once for all.

    dy_ahead, x_ahead: how many bytes on later rows lie, None where they are fetched elsewhere. They are fetched while these are
    computed, so that reading and writing overlap: 35 GB/s of a roofline of 42 in place of 25 (16384×1024 float32, 2-core AMD
    EPYC 7003).
    gamma None: dx is not wanted. sums None: dgamma and dbeta are not wanted; dbeta_at is how far dbeta lies behind dgamma.
    """
    tail = n % LANES
    last = n - LANES
    # Read before dx is written: where dx takes dy's or x's own memory, the last full vector overwrites some of these.
    peeked0, peeked1 = peek(storage, acc, row0, last), peek(storage, acc, row1, last)
    peeked2, peeked3 = peek(storage, acc, row2, last), peek(storage, acc, row3, last)
    grouped = n - n % GROUP
    for j in range(0, grouped, GROUP):
        fetch_row(storage, row0, j, dy_ahead, x_ahead)
        fetch_row(storage, row1, j, dy_ahead, x_ahead)
        fetch_row(storage, row2, j, dy_ahead, x_ahead)
        fetch_row(storage, row3, j, dy_ahead, x_ahead)
        g = load_group_or_zeros(acc, gamma, j)
        dgamma, dbeta = load_group_or_zeros(acc, sums, j), load_group_or_zeros(acc, sums, j + dbeta_at)
        dgamma, dbeta = visit_group(storage, row0, j, gamma, g, sums, dgamma, dbeta, streaming)
        dgamma, dbeta = visit_group(storage, row1, j, gamma, g, sums, dgamma, dbeta, streaming)
        dgamma, dbeta = visit_group(storage, row2, j, gamma, g, sums, dgamma, dbeta, streaming)
        dgamma, dbeta = visit_group(storage, row3, j, gamma, g, sums, dgamma, dbeta, streaming)
        if sums is not None:
            store(acc, sums, j, dgamma)
            store(acc, sums, j + dbeta_at, dbeta)
    for j in range(grouped, n - tail, LANES):
        g = load_or_zeros(acc, gamma, j)
        dgamma, dbeta = load_or_zeros(acc, sums, j), load_or_zeros(acc, sums, j + dbeta_at)
        dgamma, dbeta = visit(storage, row0, j, gamma, g, sums, dgamma, dbeta, streaming)
        dgamma, dbeta = visit(storage, row1, j, gamma, g, sums, dgamma, dbeta, streaming)
        dgamma, dbeta = visit(storage, row2, j, gamma, g, sums, dgamma, dbeta, streaming)
        dgamma, dbeta = visit(storage, row3, j, gamma, g, sums, dgamma, dbeta, streaming)
        if sums is not None:
            store(acc, sums, j, dgamma)
            store(acc, sums, j + dbeta_at, dbeta)
    if tail > 0:
        summed = LANES - tail
        g = load_or_zeros(acc, gamma, last)
        dgamma, dbeta = load_or_zeros(acc, sums, last), load_or_zeros(acc, sums, last + dbeta_at)
        dgamma, dbeta = finish(storage, row0, peeked0, last, summed, gamma, g, sums, dgamma, dbeta)
        dgamma, dbeta = finish(storage, row1, peeked1, last, summed, gamma, g, sums, dgamma, dbeta)
        dgamma, dbeta = finish(storage, row2, peeked2, last, summed, gamma, g, sums, dgamma, dbeta)
        dgamma, dbeta = finish(storage, row3, peeked3, last, summed, gamma, g, sums, dgamma, dbeta)
        if sums is not None:
            store(acc, sums, last, dgamma)
            store(acc, sums, last + dbeta_at, dbeta)


# The scratch memory of some rows, in vectors: the lanes of their sums and of their squares, then a lane a row of three
# numbers. The sums around the centre lie where the mean and rstd will be.
SUMS, SQUARES, CENTRES = 0, MAX_ROWS, 2 * MAX_ROWS
MEANS, RSTDS, SCRATCH_VECTORS = (
    CENTRES + MAX_ROWS // LANES,
    CENTRES + 2 * MAX_ROWS // LANES,
    CENTRES + 3 * MAX_ROWS // LANES,
)


@inlined
def subtract_center(lanes, centre):
    """Eight lanes minus a row's centre, where it has one already."""
    if centre is None:
        return lanes
    return lanes - vector_of(centre, 0)


@inlined
def subtract_center_of_group(group, centre):
    """subtract_center for GROUP lanes."""
    if centre is None:
        return group
    return group - centre


@inlined
def plus(sums, d):
    """Sums and squares with d added."""
    return sums[0] + d, fma(d, d, sums[1])


@inlined
def add_group(storage, row, j, sums):
    """A row's sums and squares, with GROUP columns minus its centre added."""
    if row is None:
        return sums
    x, centre = row
    return plus(sums, subtract_center_of_group(load_mixed(storage, x, j), centre))


@inlined
def add_vector(storage, row, j, sums):
    """add_group for eight columns."""
    if row is None:
        return sums
    x, centre = row
    return plus(sums, subtract_center(load(storage, x, j), centre))


@inlined
def add_last(storage, row, n, sums):
    """add_group for the last eight of n columns, without those that are in already."""
    if row is None:
        return sums
    x, centre = row
    return plus(sums, mask_below(subtract_center(load(storage, x, n - LANES), centre), LANES - n % LANES))


@inlined
def in_columns_order(storage, sums):
    return in_order(storage, sums[0]), in_order(storage, sums[1])


@inlined
def ends_of(sums):
    """The first and the last vector of the sums, and of the squares."""
    a, b = sums
    return (vector_of(a, 0), vector_of(b, 0)), (vector_of(a, 3), vector_of(b, 3))


@inlined
def merge_ends(sums, first, last):
    """Eight lanes of a group's sums, and of its squares, of which the first and the last vector have changed."""
    a, b = sums
    total_a = (first[0] + vector_of(a, 1)) + (vector_of(a, 2) + last[0])
    return total_a, (first[1] + vector_of(b, 1)) + (vector_of(b, 2) + last[1])


@inlined
def lanes_of(storage, acc, row0, row1, row2, row3, ahead, n):
    """For each of one to four rows (None: absent) eight lanes whose total is the sum of its n >= 8 columns minus its centre,
    and eight whose total is the sum of their squares. Rows go side by side, since the additions of one wait for each other.

    ahead: how many bytes on the rows lie of which every second group is fetched meanwhile; None for none. The others are
    fetched when y is written, so that the memory is busy in both visits: 16384×1024 bfloat16 27 → 35 GB/s, 1 thread, AMD EPYC
    9005.
    """
    s0 = s1 = s2 = s3 = zeros_group(acc), zeros_group(acc)
    for j in range(0, n - n % GROUP, GROUP):
        if ahead is not None and j & GROUP == 0:
            fetch_row(storage, row0, j, ahead, None)
            fetch_row(storage, row1, j, ahead, None)
            fetch_row(storage, row2, j, ahead, None)
            fetch_row(storage, row3, j, ahead, None)
        s0, s1 = add_group(storage, row0, j, s0), add_group(storage, row1, j, s1)
        s2, s3 = add_group(storage, row2, j, s2), add_group(storage, row3, j, s3)
    s0, s1 = in_columns_order(storage, s0), in_columns_order(storage, s1)
    s2, s3 = in_columns_order(storage, s2), in_columns_order(storage, s3)
    (first0, last0), (first1, last1) = ends_of(s0), ends_of(s1)
    (first2, last2), (first3, last3) = ends_of(s2), ends_of(s3)
    for j in range(n - n % GROUP, n - n % LANES, LANES):
        first0, first1 = add_vector(storage, row0, j, first0), add_vector(storage, row1, j, first1)
        first2, first3 = add_vector(storage, row2, j, first2), add_vector(storage, row3, j, first3)
    if n % LANES > 0:
        last0, last1 = add_last(storage, row0, n, last0), add_last(storage, row1, n, last1)
        last2, last3 = add_last(storage, row2, n, last2), add_last(storage, row3, n, last3)
    return (
        merge_ends(s0, first0, last0),
        merge_ends(s1, first1, last1),
        merge_ends(s2, first2, last2),
        merge_ends(s3, first3, last3),
    )


@inlined
def row_at(acc, memory, centred, x, r):
    """Row r as lanes_of takes it: its address x, and its centre if it has one in memory."""
    if centred is None:
        return x, None
    return x, splat_group(load_scalar(acc, vector_at(acc, memory, CENTRES), r))


@inlined
def leave_lanes(acc, row_memory, centred, lanes):
    """Write what lanes_of returns for a row to its memory."""
    store(acc, vector_at(acc, row_memory, SUMS), 0, lanes[0])
    if centred is not None:
        store(acc, vector_at(acc, row_memory, SQUARES), 0, lanes[1])


@inlined
def visit_rows(storage, acc, memory, centred, x, x_stride, ahead, rows, n):
    """Write the lanes of the rows' sums to memory; if centred, minus their centres, and of their squares too.

    As many rows go side by side as the processor has registers for.
    """
    r, here = 0, memory
    if WIDE and centred is None:
        while r + 4 <= rows:
            row0, row1 = row_at(acc, memory, centred, x, r), row_at(acc, memory, centred, x + x_stride, r + 1)
            x += 2 * x_stride
            row2, row3 = row_at(acc, memory, centred, x, r + 2), row_at(acc, memory, centred, x + x_stride, r + 3)
            x += 2 * x_stride
            lanes0, lanes1, lanes2, lanes3 = lanes_of(storage, acc, row0, row1, row2, row3, ahead, n)
            leave_lanes(acc, here, centred, lanes0)
            leave_lanes(acc, vector_at(acc, here, 1), centred, lanes1)
            leave_lanes(acc, vector_at(acc, here, 2), centred, lanes2)
            leave_lanes(acc, vector_at(acc, here, 3), centred, lanes3)
            r, here = r + 4, vector_at(acc, here, 4)
    if WIDE or centred is None:
        while r + 2 <= rows:
            row0, row1 = row_at(acc, memory, centred, x, r), row_at(acc, memory, centred, x + x_stride, r + 1)
            x += 2 * x_stride
            lanes0, lanes1, _, _ = lanes_of(storage, acc, row0, row1, None, None, ahead, n)
            leave_lanes(acc, here, centred, lanes0)
            leave_lanes(acc, vector_at(acc, here, 1), centred, lanes1)
            r, here = r + 2, vector_at(acc, here, 2)
    while r < rows:
        lanes0, _, _, _ = lanes_of(storage, acc, row_at(acc, memory, centred, x, r), None, None, None, ahead, n)
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
    """Add up the lanes of each row, and add that to what lies at totals_at."""
    for r in range(0, rows, LANES):
        at = vector_at(acc, memory, totals_at)
        store(acc, at, r, load(acc, at, r) + totals(acc, vector_at(acc, memory, lanes_at + r)))


@inlined
def clear_totals(acc, memory, totals_at, rows):
    for r in range(0, rows, LANES):
        store(acc, vector_at(acc, memory, totals_at), r, zeros(acc))


@plain
def centre_rows(storage, acc, memory, x, x_stride, rows, N):
    """Write a centre, close to the mean, of each row of N >= 8 columns to memory: lane r is row r."""
    clear_absent(acc, memory, rows)
    clear_totals(acc, memory, CENTRES, rows)
    for segment in range(segment_count(N)):
        at = x + segment * SEGMENT * size_of(storage)
        visit_rows(storage, acc, memory, None, at, x_stride, None, rows, segment_columns(N, segment))
        add_totals(acc, memory, SUMS, CENTRES, rows)
    centres = vector_at(acc, memory, CENTRES)
    for r in range(0, rows, LANES):
        store(acc, centres, r, load(acc, centres, r) / splat(scalar(acc, N)))


@plain
def centred_sums(storage, acc, memory, x, x_stride, ahead, rows, N):
    """Write the sums of x minus its centre from centre_rows, and of the squares, where MEANS and RSTDS will be."""
    clear_totals(acc, memory, MEANS, rows)
    clear_totals(acc, memory, RSTDS, rows)
    for segment in range(segment_count(N)):
        at = x + segment * SEGMENT * size_of(storage)
        visit_rows(storage, acc, memory, 1, at, x_stride, ahead, rows, segment_columns(N, segment))
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
