"""Triton kernels of the forward: y, mean and rstd. See triton_backward.py for what is a run-time value and what is not.

Long rows are taken in chunks whose statistics are merged in order, by one program or by two kernels alike: y, mean and rstd
of a row are the same bits either way. Source of the formulas: docs/math.md.
"""

import triton
import triton.language as tl

from lngrad.gpu.kernels.rows import columns, inverse_of, load, merge, round_to, row_start, rstd_of

_VALUES = ["M", "N", "inner", "x_outer", "x_inner", "y_outer", "y_inner", "eps", "chunks"]


@triton.jit(do_not_specialize=_VALUES)
def forward_tiles(
    x, gamma, beta, y, mean, rstd, M: tl.int64, N: tl.int32, inner: tl.int64,
    x_outer: tl.int64, x_inner: tl.int64, y_outer: tl.int64, y_inner: tl.int64, eps: tl.float64,
    HAS_GAMMA: tl.constexpr, HAS_BETA: tl.constexpr, SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """y, mean and rstd of ROWS whole rows, x read once.

    Shapes: x, y M rows of N; gamma, beta (N,); mean, rstd (M,).
    Caller: (PIECES - 1)·BLOCK < N <= PIECES·BLOCK; cdiv(M, ROWS) programs. y may be x.
    Source: docs/math.md, forward.
    """
    if ALIGNED:
        N = N // 16 * 16
    inverse = inverse_of(N, False, ACC)
    rows = tl.cast(tl.program_id(0), tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
    inside = rows < M
    block = tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
    x_start = x + row_start(rows, inner, x_outer, x_inner, SPLIT, ALIGNED)
    tiles = ()
    total = tl.zeros([ROWS, BLOCK], ACC)
    for i in tl.static_range(PIECES):
        x_tile, valid = load(x_start, i * BLOCK + block, N, inside, i == PIECES - 1, ACC)
        tiles = tiles + (x_tile,)
        total += x_tile
    centre = tl.sum(total, 1, keep_dims=True) * inverse  # (ROWS, BLOCK) -> (ROWS, 1)
    # The mean was rounded; what is left of it matters where the offset is large beside the spread.
    rest = tl.zeros([ROWS, BLOCK], ACC)
    for i in tl.static_range(PIECES):
        rest += tl.where(inside & (i * BLOCK + block < N), tiles[i] - centre, 0.0)
    shift = tl.sum(rest, 1, keep_dims=True) * inverse
    squares = tl.zeros([ROWS, BLOCK], ACC)
    for i in tl.static_range(PIECES):
        centred = tl.where(inside & (i * BLOCK + block < N), tiles[i] - centre - shift, 0.0)
        squares += centred * centred
    rstd_row = rstd_of(tl.sum(squares, 1, keep_dims=True) * inverse, eps, ACC)
    y_start = y + row_start(rows, inner, y_outer, y_inner, SPLIT, ALIGNED)
    for i in tl.static_range(PIECES):
        cols = i * BLOCK + block
        result = (tiles[i] - centre - shift) * rstd_row * columns(gamma, cols, N, 1.0, HAS_GAMMA, ACC)
        result += columns(beta, cols, N, 0.0, HAS_BETA, ACC)
        tl.store(y_start + cols, round_to(result, y), inside & (cols < N))
    tl.store(mean + rows, (centre + shift).to(mean.dtype.element_ty), inside)
    tl.store(rstd + rows, rstd_row.to(rstd.dtype.element_ty), inside)


@triton.jit
def _chunk_statistics(x_start, chunk, N, BLOCK: tl.constexpr, ACC: tl.constexpr):
    """How many columns a chunk has, their mean, and the sum of the squares of what is left."""
    cols = chunk * BLOCK + tl.arange(0, BLOCK)
    x_tile, valid = load(x_start, cols, N, cols < N, True, ACC)
    count = tl.minimum(N - chunk * BLOCK, BLOCK).to(ACC)
    inverse = 1.0 / count
    centre = tl.sum(x_tile, 0) * inverse
    centred = tl.where(valid, x_tile - centre, 0.0)
    shift = tl.sum(centred, 0) * inverse
    centred = tl.where(valid, centred - shift, 0.0)
    return count, centre + shift, tl.sum(centred * centred, 0)


@triton.jit
def _write_chunk(
    x_start, y_start, gamma, beta, y, chunk, N, mean_row, rstd_row,
    HAS_GAMMA: tl.constexpr, HAS_BETA: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """y of a chunk of columns of one row."""
    cols = chunk * BLOCK + tl.arange(0, BLOCK)
    x_tile, valid = load(x_start, cols, N, cols < N, True, ACC)
    result = (x_tile - mean_row) * rstd_row * columns(gamma, cols, N, 1.0, HAS_GAMMA, ACC)
    result += columns(beta, cols, N, 0.0, HAS_BETA, ACC)
    tl.store(y_start + cols, round_to(result, y), valid)


@triton.jit(do_not_specialize=_VALUES)
def forward_chunks(
    x, gamma, beta, y, mean, rstd, M: tl.int64, N: tl.int32, inner: tl.int64,
    x_outer: tl.int64, x_inner: tl.int64, y_outer: tl.int64, y_inner: tl.int64, eps: tl.float64, chunks: tl.int32,
    HAS_GAMMA: tl.constexpr, HAS_BETA: tl.constexpr, SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As forward_tiles, for rows that do not fit: one sweep for the statistics, one for y, whose x lies in L2 by then.

    Shapes: see forward_tiles. Caller: chunks·BLOCK columns reach N; M programs.
    Source: docs/math.md, forward.
    """
    if ALIGNED:
        N = N // 16 * 16
    inverse = inverse_of(N, False, ACC)
    row = tl.cast(tl.program_id(0), tl.int64)
    x_start = x + row_start(row, inner, x_outer, x_inner, SPLIT, ALIGNED)
    y_start = y + row_start(row, inner, y_outer, y_inner, SPLIT, ALIGNED)
    count, mean_row, squares = _chunk_statistics(x_start, 0, N, BLOCK, ACC)
    for chunk in tl.range(1, chunks, num_stages=STAGES):
        more, block_mean, block_squares = _chunk_statistics(x_start, chunk, N, BLOCK, ACC)
        count, mean_row, squares = merge(count, mean_row, squares, more, block_mean, block_squares)
    rstd_row = rstd_of(squares * inverse, eps, ACC)
    for chunk in tl.range(0, chunks, num_stages=STAGES):
        _write_chunk(x_start, y_start, gamma, beta, y, chunk, N, mean_row, rstd_row, HAS_GAMMA, HAS_BETA, BLOCK, ACC)
    tl.store(mean + row, mean_row.to(mean.dtype.element_ty))
    tl.store(rstd + row, rstd_row.to(rstd.dtype.element_ty))


@triton.jit(do_not_specialize=_VALUES)
def forward_sums(
    x, sums, M: tl.int64, N: tl.int32, inner: tl.int64, x_outer: tl.int64, x_inner: tl.int64, chunks: tl.int32,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For few long rows: the statistics of every chunk, a program each, as forward_chunks takes them.

    Shapes: sums (2, chunks, M): means and centred squares. Caller: M·chunks programs.
    """
    if ALIGNED:
        N = N // 16 * 16
    chunk = tl.program_id(0) % chunks
    row = tl.cast(tl.program_id(0) // chunks, tl.int64)
    x_start = x + row_start(row, inner, x_outer, x_inner, SPLIT, ALIGNED)
    count, block_mean, block_squares = _chunk_statistics(x_start, chunk, N, BLOCK, ACC)
    at = tl.cast(chunk, tl.int64) * M + row
    tl.store(sums + at, block_mean)
    tl.store(sums + tl.cast(chunks, tl.int64) * M + at, block_squares)


@triton.jit(do_not_specialize=_VALUES)
def forward_columns(
    x, gamma, beta, sums, y, mean, rstd, M: tl.int64, N: tl.int32, inner: tl.int64,
    x_outer: tl.int64, x_inner: tl.int64, y_outer: tl.int64, y_inner: tl.int64, eps: tl.float64, chunks: tl.int32,
    HAS_GAMMA: tl.constexpr, HAS_BETA: tl.constexpr, SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Behind forward_sums: y of a chunk a program, which merges the statistics of its whole row for itself.

    Shapes: sums (2, chunks, M); the others as in forward_tiles. Caller: M·chunks programs.
    Source: docs/math.md, forward.
    """
    if ALIGNED:
        N = N // 16 * 16
    inverse = inverse_of(N, False, ACC)
    chunk = tl.program_id(0) % chunks
    row = tl.cast(tl.program_id(0) // chunks, tl.int64)
    x_start = x + row_start(row, inner, x_outer, x_inner, SPLIT, ALIGNED)
    y_start = y + row_start(row, inner, y_outer, y_inner, SPLIT, ALIGNED)
    behind = tl.cast(chunks, tl.int64) * M
    count = tl.minimum(N, BLOCK).to(ACC)
    mean_row, squares = tl.load(sums + row), tl.load(sums + behind + row)
    for other in range(1, chunks):
        at = sums + tl.cast(other, tl.int64) * M + row
        more = tl.minimum(N - other * BLOCK, BLOCK).to(ACC)
        count, mean_row, squares = merge(count, mean_row, squares, more, tl.load(at), tl.load(at + behind))
    rstd_row = rstd_of(squares * inverse, eps, ACC)
    _write_chunk(x_start, y_start, gamma, beta, y, chunk, N, mean_row, rstd_row, HAS_GAMMA, HAS_BETA, BLOCK, ACC)
    if chunk == 0:
        tl.store(mean + row, mean_row.to(mean.dtype.element_ty))
        tl.store(rstd + row, rstd_row.to(rstd.dtype.element_ty))
