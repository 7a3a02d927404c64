"""The sums of a row, a pass over its columns: of dxhat and dxhat·xhat backward, of x and its squares forward.

A row is summed by segments of SEGMENT columns, each in four vectors of eight lanes, and segments by the binary tree of their
number, lane by lane; the lanes are added up last. The order is a function of N alone: a row's dx has the same bits whatever row
loop calls the pass and whatever rows are around it, and whoever has whole subtrees of a row has partial sums of it.

Rows have N >= 8 columns. Addresses point to a row's first element; `storage` is the dtype of dy, x, dx and y, `acc` that of
gamma, beta and sums. A row that is not centred (RMSNorm) has None in place of its mean. Source: docs/math.md, equations 1 to 3
and 7 to 9.
"""

from lngrad.cpu.jobs import BLOCK_SEGMENTS, COMPENSATED_FROM, GROUP, LANES, SEGMENT
from lngrad.cpu.kernels.arithmetic import (
    all_below,
    fma,
    in_order,
    mask_below,
    plus,
    scalar,
    splat,
    spread,
    subtract_mean,
    vector_of,
    where_below,
    zeros,
    zeros_group,
)
from lngrad.cpu.kernels.functions import inlined, unless_none
from lngrad.cpu.kernels.simd import (
    PAIRED,
    fetch_group,
    load,
    load_group,
    load_mixed,
    or_none,
    size_of,
    stack_vectors,
    store,
)

PARTIALS = 2 * 24  # vectors of one row: two sums of each subtree of segments that is complete; 2^31 columns have 22
SIDE_BY_SIDE = 4 * PARTIALS  # of four rows
COMPENSATED_SQUARE = COMPENSATED_FROM**2


@inlined
def vector_at(acc, memory, number):
    """The address of a vector in memory that holds vectors."""
    return memory + number * LANES * size_of(acc)


@inlined
def segment_columns(N, j):
    """The number of columns of the segment that begins at column j: the last one is the longest, up to 2·SEGMENT - 1."""
    return SEGMENT if N - j >= 2 * SEGMENT else N - j


@inlined
def block_count(N):
    """Blocks of BLOCK_SEGMENTS segments of a row, the last one shorter."""
    return (N // SEGMENT + BLOCK_SEGMENTS - 1) // BLOCK_SEGMENTS


@inlined
def block_columns(N, block):
    """The number of columns of a block: it is a subtree of its row, so its sums are partial sums of the row."""
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
def merge_sums(acc, partials, k, last, sums):
    """Add the sums of segment k to those of the subtrees that it completes: kept, or the row's where it is the last."""
    if last:
        return merge_last(acc, partials, k, sums)
    merge_segment(acc, partials, k, sums)
    return sums


@inlined
def load_in(storage, paired, address, j):
    """GROUP columns, in the order of load_mixed if `paired` is PAIRED."""
    if paired is None:
        return load_group(storage, address, j)
    return load_mixed(storage, address, j)


@unless_none(0)
def mixed_from(mixed, j, n):
    """The number of mixed columns among the n from column j on."""
    return min(max(mixed - j, 0), n)


@inlined
def add_dxhat(storage, acc, paired, dy, x, x_next, gamma, j, means, rstds, a, b):
    """a and b of segment_lanes with GROUP columns more, in gamma's order. Those of a later row are asked for, unless x_next is
    None or x itself."""
    if x_next is not None and x_next != x:
        fetch_group(storage, x_next, j)
    dxhat = load_in(storage, paired, dy, j) * load_group(acc, gamma, j)
    return a + dxhat, fma(dxhat, subtract_mean(load_in(storage, paired, x, j), means) * rstds, b)


@inlined
def segment_lanes(storage, acc, dy, x, x_next, gamma, n, mixed, mean, rstd):
    """Eight lanes whose total is the sum of dxhat over n >= 8 columns (None without a mean), and the same of dxhat·xhat.

    mean, rstd: in all lanes. x_next: where x of a later row lies, which is fetched meanwhile, so that the memory is busy in
    this pass too; None where nobody knows. mixed: so many columns of gamma are in the order of load_mixed; None: none are.
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
    fetched when y is written, so that the memory is busy in both passes.
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
    """The sums that are wanted, None in place of the others."""
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
