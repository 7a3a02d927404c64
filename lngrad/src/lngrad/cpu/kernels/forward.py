"""Forward tasks: mean, rstd and y of whole rows; before that the sum of two tensors, where the rows are such a sum.

The mean is taken twice: the first one centres the row, and the mean of what is left corrects it. So a large offset costs
no accuracy, and the variance is never a difference of two large numbers. Rows that are not centred (RMSNorm) have no mean: one
pass adds up their squares. Source: docs/math.md, equations 1 to 4.
"""

from lngrad.cpu.jobs import FORWARD_ROWS, GROUP, LANES, Forward
from lngrad.cpu.kernels.arithmetic import (
    fma,
    from_bits,
    mask_below,
    scalar,
    splat,
    splat_at,
    splat_group,
    spread,
    subtract_mean,
    total,
    totals,
    xhat_of,
    zeros,
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
    Row,
    centre_rows,
    centred_sums,
    clear_absent,
    columns_to_line,
    scaled,
    statistics,
    sums_of_squares,
    write_measured_rows,
    write_rows,
)
from lngrad.cpu.kernels.functions import NO, YES, inlined, plain, unless_none
from lngrad.cpu.kernels.gated import Span, gate_rows
from lngrad.cpu.kernels.pool import copies_of, copy_rows, packed_rows, place_of, read, word
from lngrad.cpu.kernels.row_sums import lanes_of_rows, vector_at
from lngrad.cpu.kernels.simd import (
    fetch_group,
    gather,
    load,
    load_group,
    load_scalar,
    mixed_of,
    offset,
    or_none,
    scatter_rows,
    size_of,
    stack_vectors,
    store,
)


@inlined
def close_rows(acc, N, eps, centres, deviations, squares, mean, rstd, rows):
    """statistics of up to eight rows, written to the addresses mean and rstd; without a mean the centres are 0."""
    means, rstds, losts = statistics(acc, N, centres, deviations, squares, from_bits(eps))
    if mean is not None:
        scatter_rows(acc, mean, 0, 1, rows, means)
    scatter_rows(acc, rstd, 0, 1, rows, rstds)
    return means, rstds, or_none(mean, losts)


@inlined
def or_zeros(acc, lanes):
    """Lanes; zeros for None."""
    if lanes is None:
        return zeros(acc)
    return lanes


@plain
def measure_rows(storage, acc, f, memory, x, x_stride, mean, rstd, rows):
    """mean and rstd of up to FORWARD_ROWS rows of N >= 16 columns; left in memory as well, with what xhat lost."""
    if mean is not None:
        centre_rows(storage, acc, memory, x, x_stride, rows, f.N)
        centred_sums(storage, acc, memory, x, x_stride, f.ahead * x_stride, rows, f.N)
    else:
        sums_of_squares(storage, acc, memory, x, x_stride, f.ahead * x_stride, rows, f.N)
    means, rstds = vector_at(acc, memory, MEANS), vector_at(acc, memory, RSTDS)
    centres, deviations = or_none(mean, vector_at(acc, memory, CENTRES)), or_none(mean, means)
    for r in range(0, rows, LANES):
        sums = or_zeros(acc, load(acc, centres, r)), or_zeros(acc, load(acc, deviations, r)), load(acc, rstds, r)
        at = r * size_of(acc)
        m, s, lost = close_rows(acc, f.N, f.eps, *sums, offset(mean, at), rstd + at, rows - r)
        store(acc, means, r, m)
        store(acc, rstds, r, s)
        store(acc, vector_at(acc, memory, LOSTS), r, lost)


@unless_none(0)
def splat_total(lanes):
    """The total of eight lanes in all of them; None for None."""
    return splat(total(lanes))


@unless_none(2)
def centre_of_row(storage, acc, mean, x, N):
    """A number close to the mean of a row, in eight lanes; None without a mean."""
    lanes = lanes_of_rows(storage, acc, ((x, None), None, None, None), None, N, 1, None)[0]
    return splat_total(lanes[0]) / splat(scalar(acc, N))


@inlined
def statistics_of_row(storage, acc, f, x, ahead, mean, rstd):
    """The mean, the rstd and what xhat lost of one row of N >= 16 columns, as a Row has them.

    mean and rstd are written too.
    """
    N, centre = f.N, centre_of_row(storage, acc, mean, x, f.N)
    lanes = lanes_of_rows(storage, acc, ((x, spread(centre)), None, None, None), ahead, N, or_none(mean, 1), 1)[0]
    sums = or_zeros(acc, centre), or_zeros(acc, splat_total(lanes[0])), splat_total(lanes[1])
    m, s, lost = close_rows(acc, N, f.eps, *sums, mean, rstd, 1)
    return spread(or_none(mean, m)), spread(s), spread(lost)


@plain
def single_rows(storage, acc, f, gamma, beta, x, x_stride, y, y_stride, mean, rstd, rows):
    """some_rows one by one, any number of them: what is known of a row stays in registers from visit to visit.

    When the sums went through memory and were totalled as eight rows, seven of them empty, a row took 30 ns more.
    """
    N, ahead, mixed = f.N, f.ahead * x_stride, mixed_of(storage, f.mixed)
    to_result = 4 * f.fetches_result * y_stride
    for r in range(rows):
        at = r * size_of(acc)
        m, s, lost = statistics_of_row(storage, acc, f, x, ahead, offset(mean, at), rstd + at)
        row = Row(x, y, m, s, lost)
        if f.streaming:
            write_rows(storage, acc, row, None, None, None, ahead, 0, gamma, beta, N, mixed, 0, YES)
        else:
            skipped = columns_to_line(storage, x, y, N, mixed, None)
            write_rows(storage, acc, row, None, None, None, ahead, to_result, gamma, beta, N, mixed, skipped, NO)
        x, y = x + x_stride, y + y_stride


@plain
def some_rows(storage, acc, f, gamma, beta, x, x_stride, y, y_stride, mean, rstd, rows):
    """Rows of N >= 16 columns: up to thirty-two have their statistics side by side, and then their y.

    In several vectors, so that the divisions and roots of one are under way while the others have work.
    """
    memory = stack_vectors(acc, SCRATCH_VECTORS)
    measure_rows(storage, acc, f, memory, x, x_stride, mean, rstd, rows)
    means, rstds = or_none(mean, vector_at(acc, memory, MEANS)), vector_at(acc, memory, RSTDS)
    losts = or_none(mean, vector_at(acc, memory, LOSTS))
    outputs = Outputs(x, y, means, rstds, losts, x_stride, y_stride)
    mixed = mixed_of(storage, f.mixed)
    if f.streaming:
        write_measured_rows(storage, acc, outputs, rows, f.ahead, 0, gamma, beta, f.N, mixed, YES)
    else:
        write_measured_rows(storage, acc, outputs, rows, f.ahead, 4 * f.fetches_result, gamma, beta, f.N, mixed, NO)


@plain
def thin_rows(storage, acc, f, gamma, beta, x, x_stride, y, y_stride, mean, rstd, rows):
    """some_rows of 8 to 15 columns: the first eight and the last eight, without a loop over columns. Same sums."""
    N, memory = f.N, stack_vectors(acc, SCRATCH_VECTORS)
    last, summed = N - LANES, 2 * LANES - N
    clear_absent(acc, memory, rows)
    centres = zeros(acc)
    if mean is not None:
        for r in range(rows):
            at = x + r * x_stride
            lanes = load(storage, at, 0) + mask_below(load(storage, at, last), summed)
            store(acc, vector_at(acc, memory, SUMS + r), 0, lanes)
        centres = (zeros(acc) + totals(acc, vector_at(acc, memory, SUMS))) / splat(scalar(acc, N))
        store(acc, vector_at(acc, memory, CENTRES), 0, centres)
    for r in range(rows):
        at, centre = x + r * x_stride, splat_at(acc, None, or_none(mean, vector_at(acc, memory, CENTRES)), r)
        d0 = subtract_mean(load(storage, at, 0), centre)
        d1 = mask_below(subtract_mean(load(storage, at, last), centre), summed)
        store(acc, vector_at(acc, memory, SUMS + r), 0, d0 + d1)
        store(acc, vector_at(acc, memory, SQUARES + r), 0, d0 * d0 + d1 * d1)
    deviations = zeros(acc)
    if mean is not None:
        deviations = zeros(acc) + totals(acc, vector_at(acc, memory, SUMS))
    squares = totals(acc, vector_at(acc, memory, SQUARES))
    means, rstds, losts = close_rows(acc, N, f.eps, centres, deviations, squares, mean, rstd, rows)
    store(acc, vector_at(acc, memory, MEANS), 0, means)
    store(acc, vector_at(acc, memory, RSTDS), 0, rstds)
    store(acc, vector_at(acc, memory, LOSTS), 0, losts)
    g0, g1 = load(acc, gamma, 0), load(acc, gamma, last)
    b0, b1 = load(acc, beta, 0), load(acc, beta, last)
    for r in range(rows):
        m = splat_at(acc, None, or_none(mean, vector_at(acc, memory, MEANS)), r)
        s = splat_at(acc, None, vector_at(acc, memory, RSTDS), r)
        lost = splat_at(acc, None, or_none(mean, vector_at(acc, memory, LOSTS)), r)
        at, to = x + r * x_stride, y + r * y_stride
        y0 = scaled(xhat_of(subtract_mean(load(storage, at, 0), m), s, lost), g0, b0)
        y1 = scaled(xhat_of(subtract_mean(load(storage, at, last), m), s, lost), g1, b1)
        store(storage, to, 0, y0)
        store(storage, to, last, y1)


@plain
def tiny_rows(storage, acc, f, gamma, beta, x, x_stride, y, y_stride, mean, rstd, rows):
    """Up to eight rows shorter than a vector: lane l takes row l, and each lane adds its columns left to right."""
    N, memory = f.N, stack_vectors(acc, LANES)
    x_step, y_step = x_stride // size_of(storage), y_stride // size_of(storage)
    centres, deviations, squares = zeros(acc), zeros(acc), zeros(acc)
    for j in range(N):
        column = gather(storage, x, j, x_step, rows)
        store(acc, vector_at(acc, memory, j), 0, column)
        if mean is not None:
            centres = centres + column
    centres = centres / splat(scalar(acc, N))
    for j in range(N):
        d = load(acc, vector_at(acc, memory, j), 0) - centres
        if mean is not None:
            deviations = deviations + d
        squares = fma(d, d, squares)
    means, rstds, losts = close_rows(acc, N, f.eps, centres, deviations, squares, mean, rstd, rows)
    for j in range(N):
        xhat = xhat_of(load(acc, vector_at(acc, memory, j), 0) - means, rstds, losts)
        g = splat(load_scalar(acc, gamma, j))
        b = splat_at(acc, None, beta, j)
        scatter_rows(storage, y, j, y_step, rows, scaled(xhat, g, b))


@plain
def add_rows(storage, acc, f, x, x_stride, residual, residual_stride, total, total_stride, rows):
    """total = alpha·x + residual of some rows, rounded once. What follows takes the rounded sum, as a backward will."""
    N, alpha = f.N, scalar(acc, from_bits(f.alpha))
    for r in range(rows):
        x_r, residual_r, total_r = x + r * x_stride, residual + r * residual_stride, total + r * total_stride
        for j in range(0, N - N % GROUP, GROUP):
            fetch_group(storage, x_r + f.ahead * x_stride, j)
            fetch_group(storage, residual_r + f.ahead * residual_stride, j)
            sums = fma(splat_group(alpha), load_group(storage, x_r, j), load_group(storage, residual_r, j))
            store(storage, total_r, j, sums)
        for j in range(N - N % GROUP, N - N % LANES, LANES):
            store(storage, total_r, j, fma(splat(alpha), load(storage, x_r, j), load(storage, residual_r, j)))
        for j in range(N - N % LANES, N):
            last = fma(splat(alpha), gather(storage, x_r, j, 1, 1), gather(storage, residual_r, j, 1, 1))
            scatter_rows(storage, total_r, j, 1, 1, last)


@plain
def forward_rows(storage, acc, has_mean, has_beta, has_gate, arguments, task, thread):
    """One task: rows_per_task rows; tensors of other layouts are copied to this thread's scratch first.

    With a gate rows are normalized in the accumulator's dtype: x, or its product with the gate, and y has it too.
    """
    f = read(Forward, arguments)
    if has_gate is None:
        inner = storage
    else:
        inner = acc
    slot, scratch = f.slot_bytes, f.scratch + thread * f.thread_bytes
    stop = min(f.M, (task + 1) * f.rows_per_task)
    step = f.rows_per_task if slot == 0 else f.block_rows
    for start in range(task * f.rows_per_task, stop, step):
        rows = min(step, stop - start)
        x, x_stride = packed_rows(f, f.x, f.x_stride, f.x_table, start, rows, 0, scratch), f.x_stride
        y, products, product_stride = (
            place_of(f.y, f.y_stride, f.y_table, start, 0, scratch + slot),
            0,
            f.N * size_of(acc),
        )
        if has_gate is not None:
            products = scratch + 3 * slot
            gate = packed_rows(f, f.gate, f.gate_stride, f.gate_table, start, rows, 0, scratch + 2 * slot)
            if f.norm_before_gate == 0:
                span = Span(rows, f.ahead, x_stride, f.gate_stride, product_stride, 0, 0)
                gate_rows(storage, storage, acc, acc, x, gate, products, None, None, None, None, None, span, f.N)
                x, x_stride, products = products, product_stride, 0
        residual, total = 0, 0
        if f.residual != 0:
            at, to = scratch + 2 * slot, scratch + 3 * slot
            residual = packed_rows(f, f.residual, f.residual_stride, f.residual_table, start, rows, 0, at)
            total = place_of(f.total, f.total_stride, f.total_table, start, 0, to)
        mean, rstd = or_none(has_mean, f.mean + start * size_of(acc)), f.rstd + start * size_of(acc)
        if f.residual != 0 and f.total_table != 0:  # read again: what is rounded to the caller's dtype is normalized
            add_rows(storage, acc, f, x, x_stride, residual, f.residual_stride, total, f.total_stride, rows)
            copies = copies_of(f.total_table, f.N)
            copy_rows(word(copies, 1), f.total, f.total_table, start, rows, f.N, total)
            copy_rows(word(copies, 0), f.total, f.total_table, start, rows, f.N, total)
        single = f.rows_at_once == 1 and f.residual == 0 and f.N >= 2 * LANES
        together = rows if single else f.rows_at_once
        if products != 0:
            together = min(together, FORWARD_ROWS)  # as many as measure_rows has memory for
        i = 0
        while i < rows:
            sample = (start + i) // f.sample_rows
            count, at = min(together, rows - i, (sample + 1) * f.sample_rows - start - i), i * size_of(acc)
            of_sample = sample * f.N * size_of(acc)
            gamma, beta = f.gamma + of_sample, or_none(has_beta, f.beta + of_sample)
            h, h_stride = x + i * x_stride, x_stride
            if f.residual != 0:
                to = total + i * f.total_stride
                if f.total_table == 0:
                    addend = residual + i * f.residual_stride
                    add_rows(storage, acc, f, h, x_stride, addend, f.residual_stride, to, f.total_stride, count)
                h, h_stride = to, f.total_stride
            y_i, y_stride, m, s = y + i * f.y_stride, f.y_stride, offset(mean, at), rstd + at
            if products != 0:  # tiny and thin rows have y too, but not yet in its place
                y_i, y_stride = products, product_stride
            if f.N < LANES:
                tiny_rows(inner, acc, f, gamma, beta, h, h_stride, y_i, y_stride, m, s, count)
            elif f.N < 2 * LANES:
                thin_rows(inner, acc, f, gamma, beta, h, h_stride, y_i, y_stride, m, s, count)
            elif products != 0:
                measure_rows(inner, acc, f, stack_vectors(acc, SCRATCH_VECTORS), h, h_stride, m, s, count)
            elif single or count == 1:
                single_rows(inner, acc, f, gamma, beta, h, h_stride, y_i, y_stride, m, s, count)
            else:
                some_rows(inner, acc, f, gamma, beta, h, h_stride, y_i, y_stride, m, s, count)
            if has_gate is not None and products != 0:
                span = Span(count, f.ahead, h_stride, f.gate_stride, f.y_stride, 0, 0)
                z, to = gate + i * f.gate_stride, y + i * f.y_stride
                gate_rows(acc, storage, storage, acc, h, z, to, None, None, None, gamma, s, span, f.N)
            i += count
        if f.y_table != 0:
            copy_rows(word(copies_of(f.y_table, f.N), 1), f.y, f.y_table, start, rows, f.N, y)
