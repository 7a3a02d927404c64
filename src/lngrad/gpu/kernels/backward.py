"""Triton kernels of the backward: arithmetic on memory that is already right. Which runs, and how large, is not theirs to say.

M, N and strides are run-time values; compile-time are dtypes, block sizes, what is wanted, and whether N and all strides
are multiples of 16 elements (ALIGNED), without which loads can't be vectors.

A row of N columns is PIECES blocks of BLOCK columns, of which the last alone may be ragged: a block is a power of two, and
a row need not be. Which blocks a row's sums are made of, and their order, is a function of N and the dtype. Inside a block
tl.sum adds as the elements lie in registers; that the compiler chooses, by ALIGNED and the alignment of pointers too.
Source of the formulas: docs/math.md.
"""

import triton
import triton.language as tl

from lngrad.gpu.kernels.rows import columns, inverse_of, round_to, row_start, terms, zeros

# A value of 1 or a multiple of 16 would compile once more for each of these.
_VALUES = ["M", "N", "inner", "dy_outer", "dy_inner", "x_outer", "x_inner", "dx_outer", "dx_inner", "span", "slots"]


@triton.jit(do_not_specialize=_VALUES)
def backward_tiles(
    dy, x, mean, rstd, gamma, dx, dgamma_parts, dbeta_parts, M: tl.int64, N: tl.int32, inner: tl.int64,
    dy_outer: tl.int64, dy_inner: tl.int64, x_outer: tl.int64, x_inner: tl.int64, dx_outer: tl.int64, dx_inner: tl.int64,
    WANT_DX: tl.constexpr, WANT_DGAMMA: tl.constexpr, WANT_DBETA: tl.constexpr, HAS_GAMMA: tl.constexpr,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr, SLABS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write dx, and one row of partial sums a program, where a whole row, or half a row, fits into registers.

    SLABS 2: a pair of programs shares its rows. Both sum the whole row, and each finishes its half of the columns; the half
    that one of them loads from memory, the other finds in L2.

    Shapes: dy, x, dx M rows of N; mean, rstd (M,); gamma (N,); dgamma_parts, dbeta_parts (programs / SLABS, N), written whole.
    Caller: (PIECES - 1)·SLABS·BLOCK < N <= PIECES·SLABS·BLOCK; a multiple of SLABS programs. dx may be dy or x if SLABS is 1.
    Source: docs/math.md, backward.
    """
    program, programs = tl.program_id(0) // SLABS, tl.num_programs(0) // SLABS
    if ALIGNED:
        N = N // 16 * 16
    inverse = inverse_of(N, True, ACC)
    block = tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
    slab = (tl.program_id(0) % SLABS) * (PIECES * BLOCK)  # its first column
    other_slab = PIECES * BLOCK - slab
    scales = ()
    if SLABS == 1:  # registers are for gamma too
        for i in tl.static_range(PIECES):
            scales = scales + (columns(gamma, i * BLOCK + block, N, 1.0, HAS_GAMMA, ACC),)
    # Tiles of sums, not rows: adding to them takes no exchange between threads. They are folded once, at the end.
    dgamma_sums = zeros(ROWS, BLOCK, PIECES, ACC)
    dbeta_sums = zeros(ROWS, BLOCK, PIECES, ACC)
    for tile in tl.range(program, tl.cdiv(M, ROWS), programs, num_stages=STAGES):
        rows = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        inside = rows < M
        mean_row = tl.load(mean + rows, inside, other=0.0).to(ACC)
        rstd_row = tl.load(rstd + rows, inside, other=0.0).to(ACC)
        dy_start = dy + row_start(rows, inner, dy_outer, dy_inner, SPLIT, ALIGNED)
        x_start = x + row_start(rows, inner, x_outer, x_inner, SPLIT, ALIGNED)
        dxhats, xhats = (), ()
        new_dgamma_sums, new_dbeta_sums = (), ()
        # Blocks are added element by element, which takes no exchange either: a row has two sums, whatever its N.
        dxhat_sum = tl.zeros([ROWS, BLOCK], ACC)
        dxhat_xhat_sum = tl.zeros([ROWS, BLOCK], ACC)
        for i in tl.static_range(PIECES):
            cols = slab + i * BLOCK + block
            dy_tile, xhat = terms(dy_start, x_start, cols, N, inside, mean_row, rstd_row, i >= PIECES - SLABS, ACC)
            new_dgamma_sums = new_dgamma_sums + (dgamma_sums[i] + dy_tile * xhat,)
            new_dbeta_sums = new_dbeta_sums + (dbeta_sums[i] + dy_tile,)
            if SLABS == 1:
                dxhat = dy_tile * scales[i]
            else:
                dxhat = dy_tile * columns(gamma, cols, N, 1.0, HAS_GAMMA, ACC)
            dxhats, xhats = dxhats + (dxhat,), xhats + (xhat,)
            dxhat_sum += dxhat
            dxhat_xhat_sum += dxhat * xhat
        if WANT_DGAMMA:
            dgamma_sums = new_dgamma_sums
        if WANT_DBETA:
            dbeta_sums = new_dbeta_sums
        if WANT_DX:
            if SLABS == 2:
                other_sum = tl.zeros([ROWS, BLOCK], ACC)
                other_xhat_sum = tl.zeros([ROWS, BLOCK], ACC)
                for i in tl.static_range(PIECES):
                    cols = other_slab + i * BLOCK + block
                    dy_tile, xhat = terms(dy_start, x_start, cols, N, inside, mean_row, rstd_row, i >= PIECES - 2, ACC)
                    dxhat = dy_tile * columns(gamma, cols, N, 1.0, HAS_GAMMA, ACC)
                    other_sum += dxhat
                    other_xhat_sum += dxhat * xhat
                dxhat_sum += other_sum  # a sum of two, the same bits whichever comes first
                dxhat_xhat_sum += other_xhat_sum
            mean_dxhat = tl.sum(dxhat_sum, 1, keep_dims=True) * inverse  # (ROWS, BLOCK) -> (ROWS, 1)
            mean_dxhat_xhat = tl.sum(dxhat_xhat_sum, 1, keep_dims=True) * inverse
            dx_start = dx + row_start(rows, inner, dx_outer, dx_inner, SPLIT, ALIGNED)
            for i in tl.static_range(PIECES):
                cols = slab + i * BLOCK + block
                result = rstd_row * (dxhats[i] - mean_dxhat - xhats[i] * mean_dxhat_xhat)
                tl.store(dx_start + cols, round_to(result, dx), inside & (cols < N))
    for i in tl.static_range(PIECES):
        cols = slab + i * BLOCK + tl.arange(0, BLOCK)
        part = tl.cast(program, tl.int64) * N + cols
        if WANT_DGAMMA:
            tl.store(dgamma_parts + part, tl.sum(dgamma_sums[i], 0), cols < N)
        if WANT_DBETA:
            tl.store(dbeta_parts + part, tl.sum(dbeta_sums[i], 0), cols < N)


@triton.jit(do_not_specialize=_VALUES)
def sum_chunks(
    dy, x, mean, rstd, gamma, sums, M: tl.int64, N: tl.int32, inner: tl.int64,
    dy_outer: tl.int64, dy_inner: tl.int64, x_outer: tl.int64, x_inner: tl.int64, span: tl.int32, slots: tl.int32,
    HAS_GAMMA: tl.constexpr, SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """For long rows: the two row sums of `span` chunks of BLOCK columns, added in order: one chunk a program, or all.

    Shapes: sums (2, slots, M). Caller: M·slots programs; span·slots chunks reach N; span or slots is 1.
    Source: docs/math.md, backward.
    """
    if ALIGNED:
        N = N // 16 * 16
    slot = tl.program_id(0) % slots
    row = tl.cast(tl.program_id(0) // slots, tl.int64)
    mean_row = tl.load(mean + row).to(ACC)
    rstd_row = tl.load(rstd + row).to(ACC)
    dy_start = dy + row_start(row, inner, dy_outer, dy_inner, SPLIT, ALIGNED)
    x_start = x + row_start(row, inner, x_outer, x_inner, SPLIT, ALIGNED)
    dxhat_sum = tl.zeros([1], ACC)
    dxhat_xhat_sum = tl.zeros([1], ACC)
    for chunk in tl.range(slot * span, slot * span + span, num_stages=STAGES):
        cols = chunk * BLOCK + tl.arange(0, BLOCK)
        dy_tile, xhat = terms(dy_start, x_start, cols, N, cols < N, mean_row, rstd_row, True, ACC)
        dxhat = dy_tile * columns(gamma, cols, N, 1.0, HAS_GAMMA, ACC)
        dxhat_sum += tl.sum(dxhat, 0)
        dxhat_xhat_sum += tl.sum(dxhat * xhat, 0)
    at = tl.cast(slot, tl.int64) * M + row + tl.arange(0, 1)
    tl.store(sums + at, dxhat_sum)
    tl.store(sums + tl.cast(slots, tl.int64) * M + at, dxhat_xhat_sum)


@triton.jit(do_not_specialize=_VALUES)
def backward_columns(
    dy, x, mean, rstd, gamma, sums, dx, dgamma, dbeta, M: tl.int64, N: tl.int32, inner: tl.int64,
    dy_outer: tl.int64, dy_inner: tl.int64, x_outer: tl.int64, x_inner: tl.int64, dx_outer: tl.int64, dx_inner: tl.int64,
    slots: tl.int32,
    WANT_DX: tl.constexpr, WANT_DGAMMA: tl.constexpr, WANT_DBETA: tl.constexpr, HAS_GAMMA: tl.constexpr,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Behind sum_chunks: BLOCK columns of all rows a program, dgamma and dbeta of which it finishes alone.

    Shapes: sums (2, slots, M); dgamma, dbeta (N,) in their final dtype.
    Caller: cdiv(N, BLOCK) programs. dx may be dy or x.
    Source: docs/math.md, backward.
    """
    if ALIGNED:
        N = N // 16 * 16
    inverse = inverse_of(N, True, ACC)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
    scale = columns(gamma, cols, N, 1.0, HAS_GAMMA, ACC)
    dgamma_sum = tl.zeros([ROWS, BLOCK], ACC)
    dbeta_sum = tl.zeros([ROWS, BLOCK], ACC)
    for tile in tl.range(0, tl.cdiv(M, ROWS), num_stages=STAGES):
        rows = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        inside = rows < M
        mean_row = tl.load(mean + rows, inside, other=0.0).to(ACC)
        rstd_row = tl.load(rstd + rows, inside, other=0.0).to(ACC)
        dy_start = dy + row_start(rows, inner, dy_outer, dy_inner, SPLIT, ALIGNED)
        x_start = x + row_start(rows, inner, x_outer, x_inner, SPLIT, ALIGNED)
        dy_tile, xhat = terms(dy_start, x_start, cols, N, inside, mean_row, rstd_row, True, ACC)
        if WANT_DGAMMA:
            dgamma_sum += dy_tile * xhat
        if WANT_DBETA:
            dbeta_sum += dy_tile
        if WANT_DX:
            mean_dxhat = tl.zeros([ROWS, 1], ACC)
            mean_dxhat_xhat = tl.zeros([ROWS, 1], ACC)
            for slot in range(slots):
                at = sums + tl.cast(slot, tl.int64) * M + rows
                mean_dxhat += tl.load(at, inside, other=0.0)
                mean_dxhat_xhat += tl.load(at + tl.cast(slots, tl.int64) * M, inside, other=0.0)
            dxhat = dy_tile * scale
            result = rstd_row * (dxhat - mean_dxhat * inverse - xhat * (mean_dxhat_xhat * inverse))
            dx_at = dx + row_start(rows, inner, dx_outer, dx_inner, SPLIT, ALIGNED) + cols
            tl.store(dx_at, round_to(result, dx), inside & (cols < N))
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if WANT_DGAMMA:
        tl.store(dgamma + at, round_to(tl.sum(dgamma_sum, 0), dgamma), at < N)
    if WANT_DBETA:
        tl.store(dbeta + at, round_to(tl.sum(dbeta_sum, 0), dbeta), at < N)


@triton.jit(do_not_specialize=["P", "N"])
def finalize(
    dgamma_parts, dbeta_parts, dgamma, dbeta, P: tl.int32, N: tl.int32,
    WANT_DGAMMA: tl.constexpr, WANT_DBETA: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add P rows of partial sums up, dgamma and dbeta in one launch, and round once to their final dtype.

    Shapes: dgamma_parts, dbeta_parts (P, N); dgamma, dbeta (N,). Caller: cdiv(N, BLOCK) programs.
    """
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
    dgamma_sum = tl.zeros([ROWS, BLOCK], ACC)
    dbeta_sum = tl.zeros([ROWS, BLOCK], ACC)
    for first in range(0, P, ROWS):
        parts = first + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        at = parts.to(tl.int64) * N + cols
        valid = (parts < P) & (cols < N)
        if WANT_DGAMMA:
            dgamma_sum += tl.load(dgamma_parts + at, valid, other=0.0)
        if WANT_DBETA:
            dbeta_sum += tl.load(dbeta_parts + at, valid, other=0.0)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if WANT_DGAMMA:
        tl.store(dgamma + at, round_to(tl.sum(dgamma_sum, 0), dgamma), at < N)
    if WANT_DBETA:
        tl.store(dbeta + at, round_to(tl.sum(dbeta_sum, 0), dbeta), at < N)
