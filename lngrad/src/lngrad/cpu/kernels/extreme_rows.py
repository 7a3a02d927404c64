"""Rows whose squares overflow or vanish, or whose distances from the mean do: by themselves, times a power of two.

A segment at a time is scaled into memory of the caller's stack, from where the passes of all other rows take it, and add in
their order. No other row comes here: a row is known by its rstd. Source: docs/precision.md, rows of any size.
"""

from lngrad.cpu.jobs import LANES, SEGMENT
from lngrad.cpu.kernels.arithmetic import (
    FAR_BELOW,
    ORDINARY_BELOW,
    all_below,
    from_bits,
    inverse_root,
    none_far,
    scalar,
    splat,
    total,
    where_below,
    zeros,
)
from lngrad.cpu.kernels.backward_rows import (
    MEAN_DXHAT_XHAT,
    MEANS_VECTORS,
    ClosedRows,
    close_means,
    close_rests,
    lanes_of_row,
    means_of_rows,
    row_pass,
    store_lanes_of_row,
)
from lngrad.cpu.kernels.forward_rows import (
    CENTRES,
    LOSTS,
    MEANS,
    RSTDS,
    SCRATCH_VECTORS,
    SQUARES,
    SUMS,
    Outputs,
    centred_sums,
    clear_absent,
    statistics,
    sums_of_squares,
    write_measured_rows,
)
from lngrad.cpu.kernels.functions import NO, inlined, plain, unless_none
from lngrad.cpu.kernels.row_sums import PARTIALS, merge_sums, mixed_from, segment_columns, vector_at
from lngrad.cpu.kernels.simd import (
    gather,
    is_half,
    load,
    load_scalar,
    mixed_of,
    offset,
    or_none,
    scatter_rows,
    size_of,
    stack_vectors,
    store,
    store_scalar,
)

# Powers of two, in float32 and in float64. Squares of rows that overflow are taken of HIGH·x, all else of READ·x, which loses
# no x that a result could show; rows whose squares vanish are multiplied by LOW for both. A row with a rstd above LARGEST_RSTD
# may be such a one if its mean is below NEAR_ZERO: any farther from 0, its distances from the mean have squares.
HIGH, LOW, READ = (2.0**-80, 2.0**-560), (2.0**86, 2.0**600), (2.0**-34, 2.0**-34)
LARGEST_RSTD, NEAR_ZERO = tuple(2.0**e for e in ORDINARY_BELOW), (2.0**-20, 2.0**-380)
FAR_RSTD = tuple(2.0**e for e in FAR_BELOW)
NOUGHT, UNIT, LARGEST = (0.0, 0.0), (1.0, 1.0), (2.0**128 - 2.0**104, 2.0**1023 * (2 - 2.0**-52))
SEGMENT_VECTORS = 2 * SEGMENT // LANES  # of the longest segment


@inlined
def in_lanes(acc, pair):
    """The number of the accumulator's dtype in all lanes."""
    return splat(scalar(acc, pair[0] if size_of(acc) == 4 else pair[1]))


@inlined
def by_size(acc, means, rstds, high, low, otherwise):
    """Lane by lane: `high` where squares overflow, whose rstd is 0 or a NaN, `low` where they vanish, or `otherwise`."""
    limit = in_lanes(acc, NEAR_ZERO)
    vanished = where_below(means * means, limit * limit, in_lanes(acc, low), in_lanes(acc, otherwise))
    small = where_below(in_lanes(acc, LARGEST_RSTD), rstds, vanished, in_lanes(acc, otherwise))
    return where_below(zeros(acc), rstds, small, in_lanes(acc, high))


@inlined
def row_number(acc, numbers, r):
    """A row's number in all lanes; 0 where there are none."""
    if numbers is None:
        return zeros(acc)
    return splat(load_scalar(acc, numbers, r))


@plain
def rows_before_extreme(storage, acc, mean, rstd, rows):
    """How many rows forward come before the first extreme one; float16 has none."""
    if is_half(storage):
        return rows
    for r in range(rows):
        m, s = row_number(acc, mean, r), row_number(acc, rstd, r)
        if not all_below(zeros(acc), by_size(acc, m, s, NOUGHT, NOUGHT, UNIT)):
            return r
    return rows


@inlined
def close_extremes(acc, N, eps, means, rstds, centres, deviations, squares):
    """The means and rstds of eight rows from the sums of scaled ones; then the factor of x, the mean and rstd to go with it,
    and what xhat lost.

    means, rstds: What the rows' own sums gave, which says how they were scaled.
    """
    scale = by_size(acc, means, rstds, HIGH, LOW, UNIT)
    factor = by_size(acc, means, rstds, READ, LOW, UNIT)
    m, s, losts = statistics(acc, N, centres, deviations, squares, eps, scale)
    unit, largest = in_lanes(acc, UNIT), in_lanes(acc, LARGEST)
    own = inverse_root(zeros(acc), eps, None)  # of a row without a spread, whose scaled eps vanished
    whole_s, read_s = (
        where_below(largest, s, own, s * scale),
        where_below(largest, s, own / factor, s * (scale / factor)),
    )
    return m * (unit / scale), whole_s, factor, m * (factor / scale), read_s, losts


@plain
def scale_columns(storage, acc, x, to, n, factor):
    """n >= 8 elements times the factor of eight lanes."""
    for j in range(0, n - n % LANES, LANES):
        store(storage, to, j, load(storage, x, j) * factor)
    store(storage, to, n - LANES, load(storage, x, n - LANES) * factor)


@plain
def scaled_sums(storage, acc, memory, mean, x, N, factor, centre):
    """The sums of a scaled row minus its centre, and of their squares; of a row that is not centred, that of the squares."""
    partials, buffer = stack_vectors(acc, PARTIALS), stack_vectors(acc, SEGMENT_VECTORS)
    k, j, last, sums = 0, 0, False, (zeros(acc), zeros(acc))
    while not last:
        n = segment_columns(N, j)
        last = j + n == N
        scale_columns(storage, acc, x + j * size_of(storage), buffer, n, factor)
        if mean is None:
            sums_of_squares(storage, acc, memory, buffer, 0, 0, 1, n)
        else:
            store(acc, vector_at(acc, memory, CENTRES), 0, centre)
            centred_sums(storage, acc, memory, buffer, 0, 0, 1, n)
        lanes = load(acc, vector_at(acc, memory, SUMS), 0), load(acc, vector_at(acc, memory, SQUARES), 0)
        sums = merge_sums(acc, partials, k, last, lanes)
        k, j = k + 1, j + n
    return splat(total(sums[0])), splat(total(sums[1]))


@plain
def extreme_row(storage, acc, f, gamma, beta, x, y, mean, rstd):
    """mean, rstd and y of a row of N >= 8 columns, whose mean and rstd by themselves were not its own."""
    N, eps, mixed = f.N, from_bits(f.eps), mixed_of(storage, f.mixed)
    memory, buffer = stack_vectors(acc, SCRATCH_VECTORS), stack_vectors(acc, SEGMENT_VECTORS)
    m, s = row_number(acc, mean, 0), row_number(acc, rstd, 0)
    scale, centre, deviations = by_size(acc, m, s, HIGH, LOW, UNIT), zeros(acc), zeros(acc)
    clear_absent(acc, memory, 1)
    if mean is not None:
        centre = scaled_sums(storage, acc, memory, mean, x, N, scale, centre)[0] / splat(scalar(acc, N))
    sums = scaled_sums(storage, acc, memory, mean, x, N, scale, centre)
    if mean is not None:
        deviations = sums[0]
    whole_m, whole_s, factor, m, s, lost = close_extremes(acc, N, eps, m, s, centre, deviations, sums[1])
    if mean is not None:
        scatter_rows(acc, mean, 0, 1, 1, whole_m)
    scatter_rows(acc, rstd, 0, 1, 1, whole_s)
    means, rstds, losts = (
        vector_at(acc, memory, MEANS),
        vector_at(acc, memory, RSTDS),
        vector_at(acc, memory, LOSTS),
    )
    store(acc, means, 0, m)
    store(acc, rstds, 0, s)
    store(acc, losts, 0, lost)
    j = 0
    while j < N:
        n, at = segment_columns(N, j), j * size_of(acc)
        scale_columns(storage, acc, x + j * size_of(storage), buffer, n, factor)
        to = y + j * size_of(storage)
        outputs = Outputs(buffer, to, or_none(mean, means), rstds, or_none(mean, losts), 0, 0)
        mixed_n = mixed_from(mixed, j, n)
        write_measured_rows(storage, acc, outputs, 1, 0, 0, gamma + at, offset(beta, at), n, mixed_n, NO)
        j += n


@inlined
def is_far(acc, rstd, r):
    """Whether a row backward is read scaled."""
    s = load_scalar(acc, rstd, r)
    return s > 0 and s < scalar(acc, FAR_RSTD[0] if size_of(acc) == 4 else FAR_RSTD[1])


@plain
def rows_before_far(storage, acc, mean, rstd, rows):
    """How many rows backward come before the first that is read scaled; without a mean, or in float16, all do."""
    if mean is None or is_half(storage):
        return rows
    for first in range(0, rows, LANES):
        if not none_far(gather(acc, rstd, first, 1, rows - first)):
            for r in range(first, min(rows, first + LANES)):
                if is_far(acc, rstd, r):
                    return r
    return rows


@inlined
def read_scaled(acc, means, rstds):
    """The factor of x of eight rows, READ of those that are read scaled, 1 of all others; the mean and rstd to go with it."""
    if means is None:
        return None, means, rstds
    factor = where_below(rstds, in_lanes(acc, FAR_RSTD), in_lanes(acc, READ), in_lanes(acc, UNIT))
    return factor, means * factor, rstds / factor


@inlined
def centred_of(x, mean, factor):
    """x times the factor minus the mean, or x where there is no mean."""
    if mean is None:
        return x
    return x * factor - mean


@inlined
def scale_statistics(acc, mean, rstd, to):
    """Write the mean and rstd of a row that is read scaled; they lie a vector apart."""
    store_scalar(acc, to, 0, load_scalar(acc, mean, 0) * scalar(acc, READ[0]))
    store_scalar(acc, to, LANES, load_scalar(acc, rstd, 0) / scalar(acc, READ[0]))


@plain
def far_lanes(storage, acc, memory, gamma, dy, x, numbers, N, mixed, completes):
    """The lanes of a row's sums, or of those of a block, where means_of_rows keeps those of its first row.

    numbers: From scale_statistics.
    """
    partials, rest_partials = stack_vectors(acc, PARTIALS), stack_vectors(acc, PARTIALS)
    buffer, rstd = stack_vectors(acc, SEGMENT_VECTORS), numbers + LANES * size_of(acc)
    k, j, last, sums, rests = 0, 0, False, (zeros(acc), zeros(acc)), (zeros(acc), None)
    for number in range(3):
        store_lanes_of_row(acc, memory, number, 0, zeros(acc))
    while not last:
        n, at, at_acc = segment_columns(N, j), j * size_of(storage), j * size_of(acc)
        last = j + n == N
        scale_columns(storage, acc, x + at, buffer, n, splat(scalar(acc, READ[0])))
        rows = dy + at, buffer, numbers, rstd, 0, 0
        means_of_rows(storage, acc, memory, offset(gamma, at_acc), rows, 1, n, mixed_from(mixed, j, n), 0, completes)
        sums = merge_sums(acc, partials, k, last, (lanes_of_row(acc, memory, 0), lanes_of_row(acc, memory, 1)))
        rests = merge_sums(acc, rest_partials, k, last, (lanes_of_row(acc, memory, 2), None))
        k, j = k + 1, j + n
    store_lanes_of_row(acc, memory, 0, 0, sums[0])
    store_lanes_of_row(acc, memory, 1, 0, sums[1])
    store_lanes_of_row(acc, memory, 2, 0, rests[0])


@unless_none(6)
def far_block(storage, acc, to, gamma, dy, x, mean, rstd, N, mixed, completes):
    """Write the three vectors of far_lanes of a block."""
    memory, numbers = stack_vectors(acc, MEANS_VECTORS), stack_vectors(acc, 2)
    scale_statistics(acc, mean, rstd, numbers)
    far_lanes(storage, acc, memory, gamma, dy, x, numbers, N, mixed, completes)
    for number in range(3):
        store(acc, to, number * LANES, lanes_of_row(acc, memory, number))


@inlined
def close_far(acc, mean, memory, numbers, N, completes, gamma):
    """The means of a row from its far_lanes."""
    if gamma is not None:
        close_means(acc, mean, memory, 1, N)
    close_rests(acc, or_none(mean, numbers), numbers + LANES * size_of(acc), memory, 1, N, completes, gamma)


@plain
def far_pass(storage, acc, memory, gamma, dgamma, dbeta, row, numbers, N, mixed, ahead):
    """row_pass of one row, or of a block of it, that is read scaled. row: its ClosedRows as it is, its means in memory.

    rstd, which xhat is multiplied with and then dx, goes with the scaled x: so gamma and the means are scaled for dx.
    """
    factor, buffer, gammas = (
        splat(scalar(acc, READ[0])),
        stack_vectors(acc, SEGMENT_VECTORS),
        stack_vectors(acc, SEGMENT_VECTORS),
    )
    mean_dxhat, mean_dxhat_xhat = memory, vector_at(acc, memory, MEAN_DXHAT_XHAT)
    if gamma is not None:
        store(acc, mean_dxhat, 0, load(acc, mean_dxhat, 0) * factor)
        store(acc, mean_dxhat_xhat, 0, load(acc, mean_dxhat_xhat, 0) * factor)
    j = 0
    while j < N:
        n, at, at_acc = segment_columns(N, j), j * size_of(storage), j * size_of(acc)
        scale_columns(storage, acc, row.x + at, buffer, n, factor)
        if gamma is not None:
            scale_columns(acc, acc, gamma + at_acc, gammas, n, factor)
        dtotal = 0 if row.dtotal == 0 else row.dtotal + at
        part = ClosedRows(
            row.dy + at, buffer, dtotal, row.dx + at, numbers, numbers + LANES * size_of(acc),
            or_none(gamma, mean_dxhat), or_none(gamma, mean_dxhat_xhat), row.lost, 0, 0, 0, 0,
        )  # fmt: skip
        sums = offset(dgamma, at_acc), offset(dbeta, at_acc)
        mixed_n = mixed_from(mixed, j, n)
        row_pass(storage, acc, or_none(gamma, gammas), sums[0], sums[1], part, 1, n, mixed_n, ahead, 0, 0)
        j += n
