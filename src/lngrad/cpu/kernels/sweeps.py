"""The arithmetic of one to four rows: their two sums, then dx and their share of dgamma and dbeta.

A row is summed by segments of SEGMENT columns, each in four vectors of eight lanes, segments left to right. The order is a
function of N alone: a row's dx has the same bits whatever walks over it and whatever rows are around it.

Rows here have N >= 8 columns. Addresses point to a row's first element; dy and x are told by `tag`, gamma and sums are in
the accumulator's dtype, told by `acc`. Source: docs/math.md, equations 7 to 9.
"""

from lngrad.cpu.jobs import GROUP, LANES, SEGMENT
from lngrad.cpu.kernels.arithmetic import fma, only, scalar, splat, spread, total, vector_of, zeros, zeros_group
from lngrad.cpu.kernels.functions import inlined, plain
from lngrad.cpu.kernels.simd import fetch_group, load, load_group, size_of, store, stream


@inlined
def segment_lanes(tag, acc, dy, x, x_next, gamma, n, mean, rstd):
    """Eight lanes whose total is the sum of dxhat over n >= 8 columns, and the same of dxhat·xhat; mean and rstd are lanes.

    x_next: where x of a later row lies, which is fetched meanwhile, so that the memory is busy in this visit too: 2048×5120
    float16 0.65 → 0.78 of the roofline, float32 0.72 → 0.79 (2 threads, AMD EPYC 9005). None where nobody knows.
    """
    a, b = zeros_group(acc), zeros_group(acc)
    means, rstds = spread(mean), spread(rstd)
    j = 0
    while j + GROUP <= n:
        if x_next is not None:
            fetch_group(tag, x_next, j)
        dxhat = load_group(tag, dy, j) * load_group(acc, gamma, j)
        b = fma(dxhat, (load_group(tag, x, j) - means) * rstds, b)
        a = a + dxhat
        j += GROUP
    a0, a1, a2, a3 = vector_of(a, 0), vector_of(a, 1), vector_of(a, 2), vector_of(a, 3)
    b0, b1, b2, b3 = vector_of(b, 0), vector_of(b, 1), vector_of(b, 2), vector_of(b, 3)
    while j + LANES <= n:
        d0 = load(tag, dy, j) * load(acc, gamma, j)
        b0 = fma(d0, (load(tag, x, j) - mean) * rstd, b0)
        a0 = a0 + d0
        j += LANES
    if j < n:  # the last eight columns, less those that are in already
        summed = LANES - (n - j)
        j = n - LANES
        d3 = only(load(tag, dy, j) * load(acc, gamma, j), summed)
        b3 = fma(d3, only((load(tag, x, j) - mean) * rstd, summed), b3)
        a3 = a3 + d3
    return (a0 + a1) + (a2 + a3), (b0 + b1) + (b2 + b3)


@inlined
def segment_sums(tag, acc, dy, x, x_next, gamma, n, mean, rstd):
    """Sum of dxhat and of dxhat·xhat over n >= 8 columns; mean and rstd are lanes."""
    a, b = segment_lanes(tag, acc, dy, x, x_next, gamma, n, mean, rstd)
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
def row_sums(tag, acc, dy, x, x_next, gamma, N, mean, rstd):
    """Sum of dxhat and of dxhat·xhat over one row of N >= 8 columns."""
    sum_dxhat, sum_dxhat_xhat = segment_sums(tag, acc, dy, x, x_next, gamma, segment_columns(N, 0), mean, rstd)
    for segment in range(1, segment_count(N)):
        at, at_gamma = segment * SEGMENT * size_of(tag), segment * SEGMENT * size_of(acc)
        next_at = None if x_next is None else x_next + at
        n = segment_columns(N, segment)
        a, b = segment_sums(tag, acc, dy + at, x + at, next_at, gamma + at_gamma, n, mean, rstd)
        sum_dxhat += a
        sum_dxhat_xhat += b
    return sum_dxhat, sum_dxhat_xhat


@inlined
def row_means(tag, acc, dy, x, x_next, gamma, N, mean, rstd):
    """mean_dxhat and mean_dxhat_xhat of one row of N >= 8 columns."""
    sum_dxhat, sum_dxhat_xhat = row_sums(tag, acc, dy, x, x_next, gamma, N, mean, rstd)
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
def load_if_given(acc, address, j):
    if address is None:
        return zeros(acc)
    return load(acc, address, j)


@inlined
def visit(tag, row, j, gamma, g, sums, dgamma, dbeta, streaming):
    """Eight elements of one row: write dx if gamma is given, add to dgamma and dbeta if sums is."""
    if row is None:
        return dgamma, dbeta
    dy, x, dx, mean, rstd, mean_dxhat, mean_dxhat_xhat = row
    d = load(tag, dy, j)
    xhat = (load(tag, x, j) - mean) * rstd
    if gamma is not None:
        result = dx_of(d, xhat, g, rstd, mean_dxhat, mean_dxhat_xhat)
        if streaming:
            stream(tag, dx, j, result)
        else:
            store(tag, dx, j, result)
    if sums is None:
        return dgamma, dbeta
    return fma(d, xhat, dgamma), dbeta + d


@inlined
def peek(tag, acc, row, j):
    """dy and xhat of eight elements."""
    if row is None:
        return zeros(acc), zeros(acc)
    dy, x, dx, mean, rstd, mean_dxhat, mean_dxhat_xhat = row
    return load(tag, dy, j), (load(tag, x, j) - mean) * rstd


@inlined
def finish(tag, row, peeked, j, summed, gamma, g, sums, dgamma, dbeta):
    """visit for the last eight elements, of which the first `summed` are in the sums already."""
    if row is None:
        return dgamma, dbeta
    dy, x, dx, mean, rstd, mean_dxhat, mean_dxhat_xhat = row
    d, xhat = peeked
    if gamma is not None:
        store(tag, dx, j, dx_of(d, xhat, g, rstd, mean_dxhat, mean_dxhat_xhat))
    if sums is None:
        return dgamma, dbeta
    return fma(only(d, summed), only(xhat, summed), dgamma), dbeta + only(d, summed)


@inlined
def load_group_if_given(acc, address, j):
    if address is None:
        return zeros_group(acc)
    return load_group(acc, address, j)


@inlined
def fetch_row(tag, row, j, first_ahead, second_ahead):
    """Ask for GROUP columns so many bytes on from a row's first address, and from its second; None: not from that."""
    if row is None:
        return
    if first_ahead is not None:
        fetch_group(tag, row[0] + first_ahead, j)
    if second_ahead is not None:
        fetch_group(tag, row[1] + second_ahead, j)


@inlined
def visit_group(tag, row, j, gamma, g, sums, dgamma, dbeta, streaming):
    """visit for GROUP elements of one row."""
    if row is None:
        return dgamma, dbeta
    dy, x, dx, mean, rstd, mean_dxhat, mean_dxhat_xhat = row
    rstds = spread(rstd)
    d = load_group(tag, dy, j)
    xhat = (load_group(tag, x, j) - spread(mean)) * rstds
    if gamma is not None:
        result = dx_of(d, xhat, g, rstds, spread(mean_dxhat), spread(mean_dxhat_xhat))
        if streaming:
            stream(tag, dx, j, result)
        else:
            store(tag, dx, j, result)
    if sums is None:
        return dgamma, dbeta
    return fma(d, xhat, dgamma), dbeta + d


@plain
def sweep(tag, acc, row0, row1, row2, row3, dy_ahead, x_ahead, gamma, sums, dbeta_at, n, streaming):
    """Visit n >= 8 columns of one to four rows (None: absent), reading and writing the column sums once for all.

    dy_ahead, x_ahead: how many bytes on later rows lie, None where they are fetched elsewhere. They are fetched while these are
    computed, so that reading and writing overlap: 35 GB/s of a roofline of 42 in place of 25 (16384×1024 float32, 2-core AMD
    EPYC 7003).
    gamma None: dx is not wanted. sums None: dgamma and dbeta are not wanted; dbeta_at is how far dbeta lies behind dgamma.
    """
    tail = n % LANES
    last = n - LANES
    # Read before dx is written: where dx takes dy's or x's own memory, the last full vector overwrites some of these.
    peeked0, peeked1 = peek(tag, acc, row0, last), peek(tag, acc, row1, last)
    peeked2, peeked3 = peek(tag, acc, row2, last), peek(tag, acc, row3, last)
    grouped = n - n % GROUP
    for j in range(0, grouped, GROUP):
        fetch_row(tag, row0, j, dy_ahead, x_ahead)
        fetch_row(tag, row1, j, dy_ahead, x_ahead)
        fetch_row(tag, row2, j, dy_ahead, x_ahead)
        fetch_row(tag, row3, j, dy_ahead, x_ahead)
        g = load_group_if_given(acc, gamma, j)
        dgamma, dbeta = load_group_if_given(acc, sums, j), load_group_if_given(acc, sums, j + dbeta_at)
        dgamma, dbeta = visit_group(tag, row0, j, gamma, g, sums, dgamma, dbeta, streaming)
        dgamma, dbeta = visit_group(tag, row1, j, gamma, g, sums, dgamma, dbeta, streaming)
        dgamma, dbeta = visit_group(tag, row2, j, gamma, g, sums, dgamma, dbeta, streaming)
        dgamma, dbeta = visit_group(tag, row3, j, gamma, g, sums, dgamma, dbeta, streaming)
        if sums is not None:
            store(acc, sums, j, dgamma)
            store(acc, sums, j + dbeta_at, dbeta)
    for j in range(grouped, n - tail, LANES):
        g = load_if_given(acc, gamma, j)
        dgamma, dbeta = load_if_given(acc, sums, j), load_if_given(acc, sums, j + dbeta_at)
        dgamma, dbeta = visit(tag, row0, j, gamma, g, sums, dgamma, dbeta, streaming)
        dgamma, dbeta = visit(tag, row1, j, gamma, g, sums, dgamma, dbeta, streaming)
        dgamma, dbeta = visit(tag, row2, j, gamma, g, sums, dgamma, dbeta, streaming)
        dgamma, dbeta = visit(tag, row3, j, gamma, g, sums, dgamma, dbeta, streaming)
        if sums is not None:
            store(acc, sums, j, dgamma)
            store(acc, sums, j + dbeta_at, dbeta)
    if tail > 0:
        summed = LANES - tail
        g = load_if_given(acc, gamma, last)
        dgamma, dbeta = load_if_given(acc, sums, last), load_if_given(acc, sums, last + dbeta_at)
        dgamma, dbeta = finish(tag, row0, peeked0, last, summed, gamma, g, sums, dgamma, dbeta)
        dgamma, dbeta = finish(tag, row1, peeked1, last, summed, gamma, g, sums, dgamma, dbeta)
        dgamma, dbeta = finish(tag, row2, peeked2, last, summed, gamma, g, sums, dgamma, dbeta)
        dgamma, dbeta = finish(tag, row3, peeked3, last, summed, gamma, g, sums, dgamma, dbeta)
        if sums is not None:
            store(acc, sums, last, dgamma)
            store(acc, sums, last + dbeta_at, dbeta)
