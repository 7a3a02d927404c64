"""The arithmetic of rows that are in the cache, a pass over their columns at a time.

Backward: the two sums of a row, then dx and the share in dgamma and dbeta of up to sixteen rows. Forward: the sums, means and
variances of up to thirty-two rows, whose partial sums lie in eight lanes each; eight such vectors are added up at once, and
from there on lane r is row r, so one division and one root serve eight rows.

A row is summed by segments of SEGMENT columns, each in four vectors of eight lanes, and segments by the binary tree of their
number, lane by lane; the lanes are added up last. The order is a function of N alone: a row's dx has the same bits whatever row
loop calls the pass and whatever rows are around it, and whoever has whole subtrees of a row has partial sums of it.

Rows have N >= 8 columns. Addresses point to a row's first element; `storage` is the dtype of dy, x, dx and y, `acc` that of
gamma, beta and sums. A row that is not centred (RMSNorm) has None in place of its mean. Source: docs/math.md, equations 1 to 3
and 7 to 9.
"""

import math

from lngrad.cpu.jobs import BACKWARD_ROWS, BLOCK_SEGMENTS, COMPENSATED_FROM, FORWARD_ROWS, GROUP, LANES, SEGMENT
from lngrad.cpu.kernels.arithmetic import (
    all_below,
    fma,
    in_order,
    inverse_root,
    mask_below,
    plus,
    scalar,
    splat,
    splat_at,
    splat_group,
    splat_group_at,
    spread,
    subtract_mean,
    totals,
    vector_of,
    where_below,
    xhat_of,
    zeros,
    zeros_group,
)
from lngrad.cpu.kernels.functions import inlined, plain, unless_none
from lngrad.cpu.kernels.simd import (
    LONG,
    PAIRED,
    SHORT,
    WIDE,
    fetch_group,
    fetch_group_to_write,
    gather,
    load,
    load_columns,
    load_group,
    load_mixed,
    load_scalar,
    long_step,
    or_none,
    size_of,
    stack_vectors,
    step_of,
    store,
    store_columns,
    stream_columns,
)

PARTIALS = 2 * 24  # vectors of one row: two sums of each subtree of segments that is complete; 2^31 columns have 22
# What the two sums of up to BACKWARD_ROWS rows come to: their means, and what xhat lost with the mean; then three sums' lanes.
MEAN_DXHAT, MEAN_DXHAT_XHAT, LOST, SUM_LANES = (number * BACKWARD_ROWS // LANES for number in range(4))
MEANS_VECTORS = SUM_LANES + 3 * BACKWARD_ROWS
COMPENSATED_SQUARE = COMPENSATED_FROM**2
PEEKED_VECTORS = 3 * BACKWARD_ROWS  # of their last columns: dy, xhat, dtotal


@inlined
def vector_at(acc, memory, number):
    """The address of a vector in memory that holds vectors."""
    return memory + number * LANES * size_of(acc)


@inlined
def segment_columns(N, j):
    """How many columns the segment has that begins at column j: the last one is the longest, up to 2·SEGMENT - 1."""
    return SEGMENT if N - j >= 2 * SEGMENT else N - j


@inlined
def block_count(N):
    """Blocks of BLOCK_SEGMENTS segments of a row, the last one shorter."""
    return (N // SEGMENT + BLOCK_SEGMENTS - 1) // BLOCK_SEGMENTS


@inlined
def block_columns(N, block):
    """How many columns a block has: it is a subtree of its row, so its sums are partial sums of the row."""
    start = block * BLOCK_SEGMENTS * SEGMENT
    return N - start if block == block_count(N) - 1 else BLOCK_SEGMENTS * SEGMENT


@inlined
def merge_segment(acc, partials, k, sums):
    """Add the sums of segment k to those of the subtrees that it completes, and keep what they make."""
    a, b = sums
    level = 0
    while (k >> level) & 1:
        a = plus(a, load(acc, partials, 2 * level * LANES))
        b = plus(b, load(acc, partials, (2 * level + 1) * LANES))
        level += 1
    store(acc, partials, 2 * level * LANES, a)
    store(acc, partials, (2 * level + 1) * LANES, b)


@inlined
def merge_last(acc, partials, k, sums):
    """The sums of a row from those of its last segment, k, and all subtrees before it."""
    a, b = sums
    level = 0
    while k > 0:
        if k & 1:
            a = plus(a, load(acc, partials, 2 * level * LANES))
            b = plus(b, load(acc, partials, (2 * level + 1) * LANES))
        level += 1
        k >>= 1
    return a, b


@inlined
def load_in(storage, paired, address, j):
    """GROUP columns, in the order of load_mixed if `paired` is PAIRED."""
    if paired is None:
        return load_group(storage, address, j)
    return load_mixed(storage, address, j)


@inlined
def add_dxhat(storage, acc, paired, dy, x, x_next, gamma, j, means, rstds, a, b):
    """a and b of segment_lanes with GROUP columns more, in gamma's order. Those of a later row are asked for, unless x_next is
    None or x itself."""
    if x_next is not None and x_next != x:
        fetch_group(storage, x_next, j)
    dxhat = load_in(storage, paired, dy, j) * load_group(acc, gamma, j)
    return a + dxhat, fma(dxhat, subtract_mean(load_in(storage, paired, x, j), means) * rstds, b)


@unless_none(0)
def mixed_from(mixed, j, n):
    """How many of the n columns from column j on are mixed."""
    return min(max(mixed - j, 0), n)


@inlined
def segment_lanes(storage, acc, dy, x, x_next, gamma, n, mixed, mean, rstd):
    """Eight lanes whose total is the sum of dxhat over n >= 8 columns (None without a mean), and the same of dxhat·xhat.

    mean, rstd: in all lanes. x_next: where x of a later row lies, which is fetched meanwhile, so that the memory is busy in
    this pass too: 2048×5120 float16 0.65 → 0.78 of the roofline, float32 0.72 → 0.79 (2 threads, AMD EPYC 9005). None where
    nobody knows. mixed: so many columns of gamma are in the order of load_mixed; None: none are, and no code is there for it.
    """
    a, b = zeros_group(acc), zeros_group(acc)
    means, rstds = spread(mean), spread(rstd)
    j = 0
    if mixed is not None:
        while j + GROUP <= mixed:
            a, b = add_dxhat(storage, acc, PAIRED, dy, x, x_next, gamma, j, means, rstds, a, b)
            j += GROUP
        a, b = in_order(storage, a), in_order(storage, b)
    while j + GROUP <= n:
        a, b = add_dxhat(storage, acc, None, dy, x, x_next, gamma, j, means, rstds, a, b)
        j += GROUP
    a0, a3, b0, b3 = vector_of(a, 0), vector_of(a, 3), vector_of(b, 0), vector_of(b, 3)
    while j + LANES <= n:
        d0 = load(storage, dy, j) * load(acc, gamma, j)
        b0 = fma(d0, subtract_mean(load(storage, x, j), mean) * rstd, b0)
        a0 = a0 + d0
        j += LANES
    if j < n:  # the last eight columns, without those that are in already
        summed = LANES - (n - j)
        j = n - LANES
        d3 = mask_below(load(storage, dy, j) * load(acc, gamma, j), summed)
        b3 = fma(d3, mask_below(subtract_mean(load(storage, x, j), mean) * rstd, summed), b3)
        a3 = a3 + d3
    sum_dxhat = (a0 + vector_of(a, 1)) + (vector_of(a, 2) + a3)
    return or_none(mean, sum_dxhat), (b0 + vector_of(b, 1)) + (vector_of(b, 2) + b3)


@inlined
def merge_sums(acc, partials, k, last, sums):
    """Add the sums of segment k to those of the subtrees that it completes: kept, or the row's where it is the last."""
    if last:
        return merge_last(acc, partials, k, sums)
    merge_segment(acc, partials, k, sums)
    return sums


@inlined
def row_lanes(storage, acc, partials, dy, x, x_next, gamma, N, mixed, mean, rstd):
    """segment_lanes of a whole row, or of a block of it."""
    k, j, last = 0, 0, False
    sums = or_none(mean, zeros(acc)), zeros(acc)
    while not last:
        at, next_at, n = (
            j * size_of(storage),
            None if x_next is None else x_next + j * size_of(storage),
            segment_columns(N, j),
        )
        last = j + n == N
        mixed_n = mixed_from(mixed, j, n)
        sums = segment_lanes(storage, acc, dy + at, x + at, next_at, gamma + j * size_of(acc), n, mixed_n, mean, rstd)
        sums = merge_sums(acc, partials, k, last, sums)
        k, j = k + 1, j + n
    return sums


@inlined
def where_finite(acc, value, otherwise):
    """Lane by lane the value, or `otherwise` where it is infinite or a NaN: a correction adds none that was not there."""
    return where_below(value - value, splat(scalar(acc, 1.0)), value, otherwise)


@inlined
def lost_xhat(acc, mean, rest, rstd):
    """What xhat = (x - mean)·rstd lacks where `rest` was rounded off the mean; -0.0, which adds nothing, where it is small.

    Where it is small in all rows nothing waits for rstd: 8 to 15 columns forward took 1.18 times as long as without a rest.
    """
    ratio, nothing, limit = mean * rstd, splat(scalar(acc, -0.0)), splat(scalar(acc, COMPENSATED_SQUARE))
    if all_below(ratio * ratio, limit):
        return nothing
    lost = where_finite(acc, rest * splat(scalar(acc, -1.0)) * rstd, nothing)
    return where_below(ratio * ratio, limit, nothing, lost)


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
    """What the xhat of rows lost with their mean; and with gamma mean_dxhat_xhat, which lacks as much."""
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
    dy, x, _, _, mean, rstd, _, _, lost, dy_stride, x_stride, _, _ = rows
    centred = subtract_mean(load_columns(storage, wide, x + r * x_stride, j), splat_at(acc, wide, mean, r))
    xhat = xhat_of(centred, splat_at(acc, wide, rstd, r), splat_at(acc, wide, lost, r))
    return load_columns(storage, wide, dy + r * dy_stride, j), xhat


@inlined
def row_dx(acc, wide, rows, r, d, xhat, g):
    """dx of some columns of row r, without what comes from elsewhere (dtotal)."""
    _, _, _, _, _, rstd, mean_dxhat, mean_dxhat_xhat, _, _, _, _, _ = rows
    numbers = splat_at(acc, wide, mean_dxhat, r), splat_at(acc, wide, mean_dxhat_xhat, r)
    return dx_of(d, xhat, g, splat_at(acc, wide, rstd, r), numbers[0], numbers[1])


@unless_none(0)
def write_dx(g, storage, acc, wide, rows, r, j, d, xhat, streaming):
    """dx of some columns of row r, if gamma is given."""
    _, _, dtotal, dx, _, _, _, _, _, _, _, dtotal_stride, dx_stride = rows
    result = row_dx(acc, wide, rows, r, d, xhat, g)
    if dtotal != 0:
        result = result + load_columns(storage, wide, dtotal + r * dtotal_stride, j)
    if streaming is not None:
        stream_columns(storage, wide, dx + r * dx_stride, j, result)
    else:
        store_columns(storage, wide, dx + r * dx_stride, j, result)


@unless_none(0)
def write_last_dx(g, storage, acc, rows, r, j, d, xhat, peeked_dtotal):
    """write_dx of eight columns whose share of dtotal has been read already, to this address."""
    _, _, dtotal, dx, _, _, _, _, _, _, _, _, dx_stride = rows
    result = row_dx(acc, None, rows, r, d, xhat, g)
    if dtotal != 0:
        result = result + load(acc, peeked_dtotal, 0)
    store(storage, dx + r * dx_stride, j, result)


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
    dy, x, dtotal, dx, _, _, _, mean_dxhat_xhat, _, dy_stride, x_stride, dtotal_stride, dx_stride = rows
    fetch_group(storage, dy + (r + ahead) * dy_stride, j)
    if mean_dxhat_xhat is None:
        fetch_group(storage, x + (r + ahead) * x_stride, j)
    if dtotal != 0:
        fetch_group(storage, dtotal + (r + ahead) * dtotal_stride, j)
    if to_result != 0:
        fetch_group_to_write(storage, dx + (r + to_result) * dx_stride, j)


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
    """How many of n columns long steps may take."""
    return n if mixed is None else mixed


@plain
def row_pass(storage, acc, gamma, dgamma_at, dbeta_at, rows, count, n, mixed, ahead, to_result, streaming):
    """dx of n >= 8 columns of up to BACKWARD_ROWS rows, and their share of the column sums, in registers from row to row.

    The sums are read and written once for all rows: for every row, that cost as much as everything else (AMD EPYC 9004).
    Later rows are fetched while these are computed, so that reading and writing overlap: 35 GB/s of a roofline of 42 in place
    of 25 (16384×1024 float32, 2-core AMD EPYC 7003).

    Args:
        gamma: None where dx is not wanted.
        dgamma_at, dbeta_at: Addresses of the column sums, None where they are not wanted.
        rows: Addresses of dy, x, dtotal (0: there is none) and dx, of mean, rstd, mean_dxhat, mean_dxhat_xhat and what xhat
            lost by row, and bytes from row to row of the four tensors.
        count: How many rows.
        mixed: So many columns of gamma and of the column sums are in the order of load_mixed, and n is a multiple of LANES if
            any are; None: none are.
        ahead: How many rows on those lie that are fetched; None or 0: nothing is.
        to_result: Beside them, how many rows on the lines of dx lie that are fetched to be written; 0: none are.
        streaming: Whether dx goes past the caches.
    """
    tail, last = n % LANES, n - LANES
    peeked = stack_vectors(acc, PEEKED_VECTORS)
    dy, x, dtotal, dx, mean, rstd, mean_dxhat, mean_dxhat_xhat, lost, dy_stride, x_stride, dtotal_stride, dx_stride = (
        rows
    )
    if (
        tail > 0
    ):  # read before dx is written: where dx takes the memory of an input, the last full vector overwrites some
        for r in range(count):
            d, xhat = peek(storage, acc, None, rows, r, last)
            store(acc, peeked, 3 * r * LANES, d)
            store(acc, peeked, (3 * r + 1) * LANES, xhat)
            if dtotal != 0:
                store(acc, peeked, (3 * r + 2) * LANES, load(storage, dtotal + r * dtotal_stride, last))
    sums, j = (gamma, dgamma_at, dbeta_at), 0
    long, long_n = long_step(mixed), long_columns(mixed, n)
    has_long = mixed is not None or step_of(acc, long) > step_of(acc, SHORT)
    # Most calls by themselves, without tests for what they have not: 0.88 to 0.95 of the time in the cache (AMD EPYC 9005).
    alone = dy, x, 0, dx, mean, rstd, mean_dxhat, mean_dxhat_xhat, lost, dy_stride, x_stride, 0, dx_stride
    # Whether dx is streamed is a constant in each loop: of the two stores LLVM made one in float16, which went to the caches.
    if gamma is not None and streaming:
        if has_long:
            j = steps_of_rows(storage, acc, long, sums, rows, count, j, long_n, ahead, 0, 1)
        j = steps_of_rows(storage, acc, SHORT, sums, rows, count, j, n, ahead, 0, 1)
        steps_of_rows(storage, acc, None, sums, rows, count, j, n, None, 0, 1)
    else:
        if in_cache(ahead, dtotal):
            j = steps_of_rows(storage, acc, long, sums, alone, count, j, long_n, None, 0, None)
            if mixed is not None:  # small calls, and rows that end in a part of a vector
                j = steps_of_rows(storage, acc, LONG, sums, alone, count, j, n, None, 0, None)
        elif dtotal == 0:
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


# The scratch memory of some rows, in vectors: the lanes of their sums and of their squares, then a lane a row of three
# numbers, and what xhat lost. The sums around the centre lie where the mean and rstd will be.
SUMS, SQUARES, CENTRES = 0, FORWARD_ROWS, 2 * FORWARD_ROWS
MEANS = CENTRES + FORWARD_ROWS // LANES
RSTDS = MEANS + FORWARD_ROWS // LANES
LOSTS = RSTDS + FORWARD_ROWS // LANES
SCRATCH_VECTORS = LOSTS + FORWARD_ROWS // LANES
SIDE_BY_SIDE = 4 * PARTIALS  # of four rows


@inlined
def subtract_center(lanes, centre):
    """Eight lanes minus a row's centre, where it has one already."""
    if centre is None:
        return lanes
    return lanes - vector_of(centre, 0)


@inlined
def add_both(sums, d):
    """Sums and squares with d added."""
    return sums[0] + d, fma(d, d, sums[1])


@inlined
def add_group(storage, row, j, sums):
    """A row's sums and squares, with GROUP columns minus its centre added."""
    if row is None:
        return sums
    x, centre = row
    return add_both(sums, subtract_mean(load_mixed(storage, x, j), centre))


@inlined
def add_groups(storage, rows, j, sums):
    """add_group of four rows."""
    s0, s1 = add_group(storage, rows[0], j, sums[0]), add_group(storage, rows[1], j, sums[1])
    return s0, s1, add_group(storage, rows[2], j, sums[2]), add_group(storage, rows[3], j, sums[3])


@inlined
def add_vector(storage, row, j, sums):
    """add_group for eight columns."""
    if row is None:
        return sums
    x, centre = row
    return add_both(sums, subtract_center(load(storage, x, j), centre))


@inlined
def add_last(storage, row, n, sums):
    """add_group for the last eight of n columns, without those that are in already."""
    if row is None:
        return sums
    x, centre = row
    return add_both(sums, mask_below(subtract_center(load(storage, x, n - LANES), centre), LANES - n % LANES))


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
def fetch_row(storage, row, j, ahead):
    """Ask for GROUP columns so many bytes behind a row's address."""
    if row is not None:
        fetch_group(storage, row[0] + ahead, j)


@inlined
def fetch_rows(storage, rows, j, ahead):
    """fetch_row of four rows, unless `ahead` is None or 0."""
    if ahead is not None and ahead != 0:
        fetch_row(storage, rows[0], j, ahead)
        fetch_row(storage, rows[1], j, ahead)
        fetch_row(storage, rows[2], j, ahead)
        fetch_row(storage, rows[3], j, ahead)


@inlined
def lanes_of_segment(storage, acc, row0, row1, row2, row3, ahead, n):
    """For each of one to four rows (None: absent) eight lanes whose total is the sum of its n >= 8 columns minus its centre,
    and eight whose total is the sum of their squares. Rows go side by side, since the additions of one wait for each other.

    ahead: how many bytes on the rows lie of which every second group is fetched meanwhile; None or 0 for none. The others are
    fetched when y is written, so that the memory is busy in both passes: 16384×1024 bfloat16 27 → 35 GB/s, 1 thread, AMD EPYC
    9005.
    """
    rows, none_yet = (row0, row1, row2, row3), (zeros_group(acc), zeros_group(acc))
    sums = none_yet, none_yet, none_yet, none_yet
    for j in range(0, n - n % (2 * GROUP), 2 * GROUP):  # a test in each group was a fifth of AVX2's instructions
        fetch_rows(storage, rows, j, ahead)
        sums = add_groups(storage, rows, j + GROUP, add_groups(storage, rows, j, sums))
    if n % (2 * GROUP) >= GROUP:
        fetch_rows(storage, rows, n - n % (2 * GROUP), ahead)
        sums = add_groups(storage, rows, n - n % (2 * GROUP), sums)
    s0, s1, s2, s3 = sums
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


@unless_none(1)
def row_from(storage, row, j):
    """A row from column j on."""
    return row[0] + j * size_of(storage), row[1]


@inlined
def chosen_sums(sums, wants_sums, wants_squares):
    """None in place of what is not wanted."""
    return or_none(wants_sums, sums[0]), or_none(wants_squares, sums[1])


@inlined
def lanes_of_rows(storage, acc, rows, ahead, N, wants_sums, wants_squares):
    """lanes_of_segment of whole rows, four of which `rows` names; None in place of the sums or squares that are not wanted."""
    row0, row1, row2, row3 = rows
    partials = stack_vectors(acc, SIDE_BY_SIDE)
    p1, p2, p3 = (
        vector_at(acc, partials, PARTIALS),
        vector_at(acc, partials, 2 * PARTIALS),
        vector_at(acc, partials, 3 * PARTIALS),
    )
    k, j, last = 0, 0, False
    t0 = t1 = t2 = t3 = chosen_sums((zeros(acc), zeros(acc)), wants_sums, wants_squares)
    while not last:
        n = segment_columns(N, j)
        last = j + n == N
        r0, r1, r2, r3 = (
            row_from(storage, row0, j),
            row_from(storage, row1, j),
            row_from(storage, row2, j),
            row_from(storage, row3, j),
        )
        s0, s1, s2, s3 = lanes_of_segment(storage, acc, r0, r1, r2, r3, ahead, n)
        t0 = merge_sums(acc, partials, k, last, chosen_sums(s0, wants_sums, wants_squares))
        if row1 is not None:
            t1 = merge_sums(acc, p1, k, last, chosen_sums(s1, wants_sums, wants_squares))
        if row2 is not None:
            t2 = merge_sums(acc, p2, k, last, chosen_sums(s2, wants_sums, wants_squares))
            t3 = merge_sums(acc, p3, k, last, chosen_sums(s3, wants_sums, wants_squares))
        k, j = k + 1, j + n
    return t0, t1, t2, t3


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
