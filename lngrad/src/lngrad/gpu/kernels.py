"""The Triton kernels: arithmetic on memory that is already right. Which runs, and how large, is not theirs to say.

M, N and strides are run-time values; compile-time are dtypes, block sizes, what is wanted, and whether N and all strides
are multiples of 16 elements (ALIGNED), without which loads can't be vectors.

Rows are addressed by two levels of strides, so that a tensor whose last axis is contiguous needs no copy: row r begins at
(r // inner)·outer_stride + (r % inner)·inner_stride. Offsets are 64-bit from the row up. 16-bit values are widened as they are
loaded.

A row of N columns is PIECES blocks of BLOCK columns, of which the last alone may be ragged: a block is a power of two, and
a row need not be. Which blocks a row's sums are made of, and their order, is a function of N and the dtype. Inside a block
tl.sum adds as the elements lie in registers; that the compiler chooses, by ALIGNED and the alignment of pointers too. With
LNGRAD_GPU_ORDERED=1 in the environment the order is written, and what is rounded once is said by tl.fma, and not fused by
the compiler: then bits depend on the shape alone, and Triton's interpreter has those of a GPU.
In the forward, long rows are taken in chunks whose statistics are merged in order, by one program or by two kernels alike: y,
mean and rstd of a row are the same bits either way. Source of the formulas: docs/math.md.

The whole family is computed here; its switches are compile-time. CENTRED: mean is that of the row, else 0, and neither read nor
written. OFFSET is added to gamma. HAS_RESIDUAL: total = ALPHA·x + residual is rounded to x's dtype, written, and normalized in
place of x. HAS_DTOTAL: the gradient of a total is added to dx.
"""

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from lngrad.gpu import policy

# --- What all share -------------------------------------------------------------------------------------------------


@triton.jit
def row_start(rows, inner, outer_stride, inner_stride, SPLIT: tl.constexpr, ALIGNED: tl.constexpr):
    """Offset of the first element of each row. SPLIT False: inner_stride is the one row stride."""
    if ALIGNED:
        outer_stride = outer_stride // 16 * 16  # says so to the compiler, which loses hints on arguments of a callee
        inner_stride = inner_stride // 16 * 16
    if SPLIT:
        start = (rows // inner) * outer_stride + (rows % inner) * inner_stride
    else:
        start = rows * inner_stride
    return start


INTERPRETED = isinstance(row_start, InterpretedFunction)  # decided by TRITON_INTERPRET when this file was imported
_INTERPRETED = tl.constexpr(INTERPRETED)
_ORDERED = tl.constexpr(policy.ORDERED)


@triton.jit
def multiply_add(factor, other, value):
    """one·other + value; if ORDERED, rounded once."""
    return tl.fma(factor, other, value) if _ORDERED else value + factor * other


@triton.jit
def inverse_of(count, CALLED: tl.constexpr, ACC: tl.constexpr):
    """1/count: a product with it gives the total itself where count is 1.

    CALLED: by a rounded division, for which the assembler calls its slow path. In front of a loop that is the better: a loop
    over pairs of 16384 columns in bfloat16 on sm_80 spilled 16 bytes without. Beside a tile that is alive the call puts
    registers aside; there it is the GPU's approximation and one step of Newton's; if ORDERED, an integer's and four.
    """
    if tl.float32 != ACC:
        inverse = 1.0 / count.to(ACC)
    elif CALLED:
        inverse = tl.div_rn(1.0, count.to(tl.float32))
    else:
        count = count.to(tl.float32)
        near = 0x7EF311C7 - count.to(tl.int32, bitcast=True)
        inverse = near.to(tl.float32, bitcast=True) if _ORDERED else 1.0 / count
        for _ in tl.static_range(4 if _ORDERED else 1):
            inverse = tl.fma(inverse, tl.fma(-inverse, count, 1.0), inverse)
    return inverse


@triton.jit
def share_of(part, count):
    """part / count; if ORDERED, rounded to nearest."""
    return tl.div_rn(part, count) if _ORDERED and tl.float32 == count.dtype else part / count


@triton.jit
def rstd_of(variance, eps, ACC: tl.constexpr):
    """1/sqrt(variance + eps). In float32, unless ORDERED, the GPU's approximation and one step of Newton's, as above."""
    shifted = (variance + eps).to(ACC)  # eps is 64-bit
    if tl.float32 == ACC and _ORDERED:
        rstd = tl.div_rn(1.0, tl.sqrt_rn(shifted))
    elif tl.float32 == ACC:
        near = tl.rsqrt(shifted)
        better = tl.fma(0.5 * near, tl.fma(-(shifted * near), near, 1.0), near)
        rstd = tl.where(better == better, better, near)  # where shifted is 0, infinite or no number, so is near
    else:
        rstd = 1.0 / tl.sqrt(shifted)
    return rstd


@triton.jit
def round_to(values, target):
    """Values in the dtype that target points to, to nearest even."""
    if _INTERPRETED and target.dtype.element_ty == tl.bfloat16:
        # The interpreter cuts off what bfloat16 can't hold: round first, so that nothing is left to be cut off.
        values = values.to(tl.float32)
        bits = values.to(tl.uint32, bitcast=True)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
        values = tl.where(values == values, nearest.to(tl.float32, bitcast=True), values)
    return values.to(target.dtype.element_ty)


@triton.jit
def zeros(ROWS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr, ACC: tl.constexpr):
    """A tile of zeros for each piece of a row."""
    tiles = ()
    for _ in tl.static_range(PIECES):
        tiles = tiles + (tl.zeros([ROWS, BLOCK], ACC),)
    return tiles


@triton.jit
def row_sum(values, PIECES: tl.constexpr):
    """(ROWS, BLOCK) -> (ROWS, 1), or a scalar where there is one row. If ORDERED, sums of two neighbours, then of two of
    these: a sum of two terms has no order. The layout that comes out must not spread to tiles, or each thread would have all.
    """
    if _ORDERED:
        BLOCK: tl.constexpr = values.shape[-1]
        ROWS: tl.constexpr = values.numel // BLOCK
        for i in tl.static_range(31):
            if (BLOCK >> i) > 1:
                values = tl.sum(tl.reshape(values, (ROWS, BLOCK >> (i + 1), 2)), 2)
        if ROWS == 1:
            values = tl.sum(values)
        elif PIECES > 1:
            values = tl.gather(values, tl.zeros([ROWS, 1], tl.int32), 1)
    else:
        values = tl.sum(values, len(values.shape) - 1, keep_dims=len(values.shape) == 2)
    return values


@triton.jit
def column_sum(values):
    """(ROWS, BLOCK) -> (BLOCK,); if ORDERED, the second half of the rows is added to the first, and so on."""
    if _ORDERED:
        ROWS: tl.constexpr = values.shape[0]
        BLOCK: tl.constexpr = values.shape[1]
        for i in tl.static_range(31):
            if (ROWS >> i) > 1:
                values = tl.sum(tl.reshape(values, (2, ROWS >> (i + 1), BLOCK)), 0)
        values = tl.reshape(values, (BLOCK,))
    else:
        values = tl.sum(values, 0)
    return values


@triton.jit
def columns(values, cols, N, default, HAS: tl.constexpr, ACC: tl.constexpr):
    """gamma or beta at some columns, or its default if there is none."""
    if HAS:
        result = tl.load(values + cols, cols < N, other=0.0).to(ACC)
    else:
        result = tl.full(cols.shape, default, ACC)
    return result


@triton.jit
def scale_of(gamma, cols, N, OFFSET: tl.constexpr, HAS: tl.constexpr, ACC: tl.constexpr):
    """offset + gamma at some columns, or offset + 1 if there is none."""
    scale = columns(gamma, cols, N, 1.0, HAS, ACC)
    if OFFSET != 0.0:  # or -0.0 would become 0.0
        scale += tl.full(cols.shape, OFFSET, ACC)
    return scale


@triton.jit
def statistic(values, rows, inside, HAS: tl.constexpr, ACC: tl.constexpr):
    """mean or rstd of some rows; 0 in rows that do not exist, and for a mean that there is not."""
    if HAS:
        result = tl.load(values + rows, inside, other=0.0).to(ACC)
    else:
        result = (rows * 0).to(ACC)
    return result


@triton.jit
def load(start, cols, N, inside, RAGGED: tl.constexpr, ACC: tl.constexpr):
    """A tile of x and where it is valid; 0 elsewhere. RAGGED False: all its columns are below N, and need no mask."""
    if RAGGED:
        valid = inside & (cols < N)
    else:
        valid = inside
    return tl.load(start + cols, valid, other=0.0).to(ACC), valid


@triton.jit
def load_total(
    x_start, residual_start, total_start, total, cols, N, inside,
    HAS_RESIDUAL: tl.constexpr, ALPHA: tl.constexpr, RAGGED: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """A tile of what is normalized and where it is valid: x as load gives it, or the total, which is written too."""
    tile, valid = load(x_start, cols, N, inside, RAGGED, ACC)
    if HAS_RESIDUAL:
        residual, valid = load(residual_start, cols, N, inside, RAGGED, ACC)
        if ALPHA != 1.0:
            tile = multiply_add(tile, tl.full(tile.shape, ALPHA, ACC), residual)
        else:
            tile += residual
        rounded = round_to(tile, total)
        tl.store(total_start + cols, rounded, valid)
        tile = rounded.to(ACC)
    return tile, valid


@triton.jit
def terms(dy_start, x_start, cols, N, inside, mean, rstd, RAGGED: tl.constexpr, ACC: tl.constexpr):
    """dy and xhat of a tile, both 0 outside of it."""
    dy, valid = load(dy_start, cols, N, inside, RAGGED, ACC)
    x, valid = load(x_start, cols, N, inside, RAGGED, ACC)
    xhat = (x - mean) * rstd  # 0 in rows that do not exist, whose rstd is loaded as 0
    if RAGGED:
        xhat = tl.where(valid, xhat, 0.0)
    return dy, xhat


@triton.jit
def merge(count, mean, squares, block_count, block_mean, block_squares):
    """Count, mean and centred squares of a row, with one more block of its columns (Chan, Golub and LeVeque 1979)."""
    total = count + block_count
    share = share_of(block_count, total)
    apart = block_mean - mean
    mean, squares = multiply_add(apart, share, mean), squares + block_squares
    return total, mean, multiply_add(apart * apart, count * share, squares)


# A value of 1 or a multiple of 16 would compile once more for each of these.
_VALUES = [
    "M", "N", "inner", "dy_outer", "dy_inner", "x_outer", "x_inner", "dx_outer", "dx_inner", "y_outer", "y_inner",
    "residual_outer", "residual_inner", "total_outer", "total_inner", "dtotal_outer", "dtotal_inner", "eps",
    "chunks", "span", "slots", "first",
]  # fmt: skip


# --- Forward --------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=_VALUES)
def forward_tiles(
    x, gamma, beta, residual, y, mean, rstd, total, M: tl.int64, N: tl.int32, inner: tl.int64,
    x_outer: tl.int64, x_inner: tl.int64, y_outer: tl.int64, y_inner: tl.int64,
    residual_outer: tl.int64, residual_inner: tl.int64, total_outer: tl.int64, total_inner: tl.int64, eps: tl.float64,
    HAS_GAMMA: tl.constexpr, HAS_BETA: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    CENTRED: tl.constexpr, OFFSET: tl.constexpr, ALPHA: tl.constexpr,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """y, mean, rstd and the total of ROWS whole rows, x and residual read once.

    Shapes: x, residual, y, total M rows of N; gamma, beta (N,); mean, rstd (M,).
    Caller: (PIECES - 1)·BLOCK < N <= PIECES·BLOCK; cdiv(M, ROWS) programs. y and total may be x and residual.
    Source: docs/math.md, forward.
    """
    if ALIGNED:
        N = N // 16 * 16
    inverse = inverse_of(N, False, ACC)
    rows = tl.cast(tl.program_id(0), tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
    inside = rows < M
    block = tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
    x_start = x + row_start(rows, inner, x_outer, x_inner, SPLIT, ALIGNED)
    residual_start, total_start = x_start, x_start  # of which nothing is read and written without a residual
    if HAS_RESIDUAL:
        residual_start = residual + row_start(rows, inner, residual_outer, residual_inner, SPLIT, ALIGNED)
        total_start = total + row_start(rows, inner, total_outer, total_inner, SPLIT, ALIGNED)
    tiles = ()
    added = tl.zeros([ROWS, BLOCK], ACC)
    for i in tl.static_range(PIECES):
        x_tile, valid = load_total(
            x_start, residual_start, total_start, total, i * BLOCK + block, N, inside,
            HAS_RESIDUAL, ALPHA, i == PIECES - 1, ACC,
        )  # fmt: skip
        tiles = tiles + (x_tile,)
        added += x_tile
    if CENTRED:
        centre = row_sum(added, PIECES) * inverse  # (ROWS, BLOCK) -> (ROWS, 1)
        # The mean was rounded; what is left of it matters where the offset is large beside the spread.
        rest = tl.zeros([ROWS, BLOCK], ACC)
        for i in tl.static_range(PIECES):
            rest += tl.where(inside & (i * BLOCK + block < N), tiles[i] - centre, 0.0)
        shift = row_sum(rest, PIECES) * inverse
    else:
        centre, shift = tl.zeros([ROWS, 1], ACC), tl.zeros([ROWS, 1], ACC)
    squares = tl.zeros([ROWS, BLOCK], ACC)
    for i in tl.static_range(PIECES):
        centred = tl.where(inside & (i * BLOCK + block < N), tiles[i] - centre - shift, 0.0)
        squares = multiply_add(centred, centred, squares)
    rstd_row = rstd_of(row_sum(squares, PIECES) * inverse, eps, ACC)
    y_start = y + row_start(rows, inner, y_outer, y_inner, SPLIT, ALIGNED)
    for i in tl.static_range(PIECES):
        cols = i * BLOCK + block
        xhat, scale = (tiles[i] - centre - shift) * rstd_row, scale_of(gamma, cols, N, OFFSET, HAS_GAMMA, ACC)
        result = multiply_add(xhat, scale, columns(beta, cols, N, 0.0, HAS_BETA, ACC))
        tl.store(y_start + cols, round_to(result, y), inside & (cols < N))
    if CENTRED:
        tl.store(mean + rows, (centre + shift).to(mean.dtype.element_ty), inside)
    tl.store(rstd + rows, rstd_row.to(rstd.dtype.element_ty), inside)


@triton.jit
def _chunk_statistics(
    x_start, residual_start, total_start, total, chunk, N, HAS_RESIDUAL: tl.constexpr, ALPHA: tl.constexpr,
    CENTRED: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """How many columns a chunk has, their mean, and the sum of the squares of what is left; their total is written."""
    cols = chunk * BLOCK + tl.arange(0, BLOCK)
    x_tile, valid = load_total(
        x_start, residual_start, total_start, total, cols, N, cols < N, HAS_RESIDUAL, ALPHA, True, ACC
    )
    count = tl.minimum(N - chunk * BLOCK, BLOCK).to(ACC)
    if CENTRED:
        inverse = share_of(1.0, count)
        centre = row_sum(x_tile, 1) * inverse
        centred = tl.where(valid, x_tile - centre, 0.0)
        shift = row_sum(centred, 1) * inverse
        centred = tl.where(valid, centred - shift, 0.0)
        mean = centre + shift
    else:
        centred, mean = x_tile, count * 0.0
    return count, mean, row_sum(centred * centred, 1)


@triton.jit
def _write_chunk(
    x_start, y_start, gamma, beta, y, chunk, N, mean_row, rstd_row,
    HAS_GAMMA: tl.constexpr, HAS_BETA: tl.constexpr, OFFSET: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """y of a chunk of columns of one row, of the total where there is one."""
    cols = chunk * BLOCK + tl.arange(0, BLOCK)
    x_tile, valid = load(x_start, cols, N, cols < N, True, ACC)
    xhat, scale = (x_tile - mean_row) * rstd_row, scale_of(gamma, cols, N, OFFSET, HAS_GAMMA, ACC)
    result = multiply_add(xhat, scale, columns(beta, cols, N, 0.0, HAS_BETA, ACC))
    tl.store(y_start + cols, round_to(result, y), valid)


@triton.jit(do_not_specialize=_VALUES)
def forward_chunks(
    x, gamma, beta, residual, y, mean, rstd, total, M: tl.int64, N: tl.int32, inner: tl.int64,
    x_outer: tl.int64, x_inner: tl.int64, y_outer: tl.int64, y_inner: tl.int64,
    residual_outer: tl.int64, residual_inner: tl.int64, total_outer: tl.int64, total_inner: tl.int64, eps: tl.float64,
    chunks: tl.int32,
    HAS_GAMMA: tl.constexpr, HAS_BETA: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    CENTRED: tl.constexpr, OFFSET: tl.constexpr, ALPHA: tl.constexpr,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As forward_tiles, for rows that do not fit: one sweep for the statistics and the total, one for y, whose x or total lies
    in L2 by then.

    Shapes: see forward_tiles. Caller: chunks·BLOCK columns reach N; M programs.
    Source: docs/math.md, forward.
    """
    if ALIGNED:
        N = N // 16 * 16
    inverse = inverse_of(N, False, ACC)
    row = tl.cast(tl.program_id(0), tl.int64)
    x_start = x + row_start(row, inner, x_outer, x_inner, SPLIT, ALIGNED)
    y_start = y + row_start(row, inner, y_outer, y_inner, SPLIT, ALIGNED)
    residual_start, total_start = x_start, x_start
    if HAS_RESIDUAL:
        residual_start = residual + row_start(row, inner, residual_outer, residual_inner, SPLIT, ALIGNED)
        total_start = total + row_start(row, inner, total_outer, total_inner, SPLIT, ALIGNED)
    count, mean_row, squares = _chunk_statistics(
        x_start, residual_start, total_start, total, 0, N, HAS_RESIDUAL, ALPHA, CENTRED, BLOCK, ACC
    )
    for chunk in tl.range(1, chunks, num_stages=STAGES):
        more, block_mean, block_squares = _chunk_statistics(
            x_start, residual_start, total_start, total, chunk, N, HAS_RESIDUAL, ALPHA, CENTRED, BLOCK, ACC
        )
        count, mean_row, squares = merge(count, mean_row, squares, more, block_mean, block_squares)
    rstd_row = rstd_of(squares * inverse, eps, ACC)
    if HAS_RESIDUAL:
        tl.debug_barrier()  # what a thread reads of the total may be what another has written
    for chunk in tl.range(0, chunks, num_stages=STAGES):
        _write_chunk(
            total_start, y_start, gamma, beta, y, chunk, N, mean_row, rstd_row, HAS_GAMMA, HAS_BETA, OFFSET, BLOCK, ACC
        )
    if CENTRED:
        tl.store(mean + row, mean_row.to(mean.dtype.element_ty))
    tl.store(rstd + row, rstd_row.to(rstd.dtype.element_ty))


@triton.jit(do_not_specialize=_VALUES)
def forward_sums(
    x, residual, sums, total, M: tl.int64, N: tl.int32, inner: tl.int64, x_outer: tl.int64, x_inner: tl.int64,
    residual_outer: tl.int64, residual_inner: tl.int64, total_outer: tl.int64, total_inner: tl.int64, chunks: tl.int32,
    HAS_RESIDUAL: tl.constexpr, CENTRED: tl.constexpr, ALPHA: tl.constexpr,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For few long rows: the total and the statistics of every chunk, a program each, as forward_chunks takes them.

    Shapes: sums (2, chunks, M): means and centred squares. Caller: M·chunks programs.
    """
    if ALIGNED:
        N = N // 16 * 16
    chunk = tl.program_id(0) % chunks
    row = tl.cast(tl.program_id(0) // chunks, tl.int64)
    x_start = x + row_start(row, inner, x_outer, x_inner, SPLIT, ALIGNED)
    residual_start, total_start = x_start, x_start
    if HAS_RESIDUAL:
        residual_start = residual + row_start(row, inner, residual_outer, residual_inner, SPLIT, ALIGNED)
        total_start = total + row_start(row, inner, total_outer, total_inner, SPLIT, ALIGNED)
    count, block_mean, block_squares = _chunk_statistics(
        x_start, residual_start, total_start, total, chunk, N, HAS_RESIDUAL, ALPHA, CENTRED, BLOCK, ACC
    )
    at = tl.cast(chunk, tl.int64) * M + row
    tl.store(sums + at, block_mean)
    tl.store(sums + tl.cast(chunks, tl.int64) * M + at, block_squares)


@triton.jit(do_not_specialize=_VALUES)
def forward_columns(
    x, gamma, beta, sums, y, mean, rstd, M: tl.int64, N: tl.int32, inner: tl.int64,
    x_outer: tl.int64, x_inner: tl.int64, y_outer: tl.int64, y_inner: tl.int64, eps: tl.float64, chunks: tl.int32,
    HAS_GAMMA: tl.constexpr, HAS_BETA: tl.constexpr, CENTRED: tl.constexpr, OFFSET: tl.constexpr,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Behind forward_sums: y of a chunk a program, which merges the statistics of its whole row for itself.

    Shapes: sums (2, chunks, M); the others as in forward_tiles. Caller: M·chunks programs; x is the total where there is one.
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
    _write_chunk(
        x_start, y_start, gamma, beta, y, chunk, N, mean_row, rstd_row, HAS_GAMMA, HAS_BETA, OFFSET, BLOCK, ACC
    )
    if chunk == 0:
        if CENTRED:
            tl.store(mean + row, mean_row.to(mean.dtype.element_ty))
        tl.store(rstd + row, rstd_row.to(rstd.dtype.element_ty))


# --- Backward -------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=_VALUES)
def backward_tiles(
    dy, x, mean, rstd, gamma, dtotal, dx, dgamma_parts, dbeta_parts, M: tl.int64, N: tl.int32, inner: tl.int64,
    dy_outer: tl.int64, dy_inner: tl.int64, x_outer: tl.int64, x_inner: tl.int64,
    dtotal_outer: tl.int64, dtotal_inner: tl.int64, dx_outer: tl.int64, dx_inner: tl.int64,
    WANT_DX: tl.constexpr, WANT_DGAMMA: tl.constexpr, WANT_DBETA: tl.constexpr, HAS_GAMMA: tl.constexpr,
    HAS_DTOTAL: tl.constexpr, CENTRED: tl.constexpr, OFFSET: tl.constexpr,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr, SLABS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write dx, and one row of partial sums a program, where a whole row, or half a row, fits into registers.

    SLABS 2: a pair of programs shares its rows. Both sum the whole row, and each finishes its half of the columns; the half
    that one of them loads from memory, the other finds in L2.

    Shapes: dy, x, dtotal, dx M rows of N; mean, rstd (M,); gamma (N,); dgamma_parts, dbeta_parts (programs / SLABS, N), written
    whole.
    Caller: (PIECES - 1)·SLABS·BLOCK < N <= PIECES·SLABS·BLOCK; a multiple of SLABS programs. dx may be dtotal, and dy or x if
    SLABS is 1.
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
            scales = scales + (scale_of(gamma, i * BLOCK + block, N, OFFSET, HAS_GAMMA, ACC),)
    # Tiles of sums, not rows: adding to them takes no exchange between threads. They are folded once, at the end.
    dgamma_sums = zeros(ROWS, BLOCK, PIECES, ACC)
    dbeta_sums = zeros(ROWS, BLOCK, PIECES, ACC)
    for tile in tl.range(program, tl.cdiv(M, ROWS), programs, num_stages=STAGES):
        rows = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        inside = rows < M
        mean_row = statistic(mean, rows, inside, CENTRED, ACC)
        rstd_row = statistic(rstd, rows, inside, True, ACC)
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
            new_dgamma_sums = new_dgamma_sums + (multiply_add(dy_tile, xhat, dgamma_sums[i]),)
            new_dbeta_sums = new_dbeta_sums + (dbeta_sums[i] + dy_tile,)
            if SLABS == 1:
                dxhat = dy_tile * scales[i]
            else:
                dxhat = dy_tile * scale_of(gamma, cols, N, OFFSET, HAS_GAMMA, ACC)
            dxhats, xhats = dxhats + (dxhat,), xhats + (xhat,)
            dxhat_sum += dxhat
            dxhat_xhat_sum = multiply_add(dxhat, xhat, dxhat_xhat_sum)
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
                    dxhat = dy_tile * scale_of(gamma, cols, N, OFFSET, HAS_GAMMA, ACC)
                    other_sum += dxhat
                    other_xhat_sum = multiply_add(dxhat, xhat, other_xhat_sum)
                dxhat_sum += other_sum  # a sum of two, the same bits whichever comes first
                dxhat_xhat_sum += other_xhat_sum
            mean_dxhat = tl.zeros([ROWS, 1], ACC)
            if CENTRED:
                mean_dxhat = row_sum(dxhat_sum, PIECES) * inverse  # (ROWS, BLOCK) -> (ROWS, 1)
            mean_dxhat_xhat = row_sum(dxhat_xhat_sum, PIECES) * inverse
            dx_start = dx + row_start(rows, inner, dx_outer, dx_inner, SPLIT, ALIGNED)
            if HAS_DTOTAL:
                dtotal_start = dtotal + row_start(rows, inner, dtotal_outer, dtotal_inner, SPLIT, ALIGNED)
            for i in tl.static_range(PIECES):
                cols = slab + i * BLOCK + block
                result, other = dxhats[i] - mean_dxhat, mean_dxhat_xhat
                result = tl.fma(xhats[i], -other, result) if _ORDERED else result - xhats[i] * other
                if HAS_DTOTAL:
                    more, valid = load(dtotal_start, cols, N, inside, i >= PIECES - SLABS, ACC)
                    result = multiply_add(rstd_row, result, more)
                else:
                    result = rstd_row * result
                tl.store(dx_start + cols, round_to(result, dx), inside & (cols < N))
    for i in tl.static_range(PIECES):
        cols = slab + i * BLOCK + tl.arange(0, BLOCK)
        part = tl.cast(program, tl.int64) * N + cols
        if WANT_DGAMMA:
            tl.store(dgamma_parts + part, column_sum(dgamma_sums[i]), cols < N)
        if WANT_DBETA:
            tl.store(dbeta_parts + part, column_sum(dbeta_sums[i]), cols < N)


@triton.jit(do_not_specialize=_VALUES)
def sum_chunks(
    dy, x, mean, rstd, gamma, sums, M: tl.int64, N: tl.int32, inner: tl.int64,
    dy_outer: tl.int64, dy_inner: tl.int64, x_outer: tl.int64, x_inner: tl.int64, span: tl.int32, slots: tl.int32,
    HAS_GAMMA: tl.constexpr, CENTRED: tl.constexpr, OFFSET: tl.constexpr,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """For long rows: the two row sums of `span` chunks of BLOCK columns, added in order: one chunk a program, or all.

    Shapes: sums (2, slots, M). Caller: M·slots programs; span·slots chunks reach N; span or slots is 1.
    Source: docs/math.md, backward.
    """
    if ALIGNED:
        N = N // 16 * 16
    slot = tl.program_id(0) % slots
    row = tl.cast(tl.program_id(0) // slots, tl.int64)
    mean_row = statistic(mean, row, True, CENTRED, ACC)
    rstd_row = statistic(rstd, row, True, True, ACC)
    dy_start = dy + row_start(row, inner, dy_outer, dy_inner, SPLIT, ALIGNED)
    x_start = x + row_start(row, inner, x_outer, x_inner, SPLIT, ALIGNED)
    dxhat_sum = tl.zeros([1], ACC)
    dxhat_xhat_sum = tl.zeros([1], ACC)
    for chunk in tl.range(slot * span, slot * span + span, num_stages=STAGES):
        cols = chunk * BLOCK + tl.arange(0, BLOCK)
        dy_tile, xhat = terms(dy_start, x_start, cols, N, cols < N, mean_row, rstd_row, True, ACC)
        dxhat = dy_tile * scale_of(gamma, cols, N, OFFSET, HAS_GAMMA, ACC)
        if CENTRED:
            dxhat_sum += row_sum(dxhat, 1)
        dxhat_xhat_sum += row_sum(dxhat * xhat, 1)
    at = tl.cast(slot, tl.int64) * M + row + tl.arange(0, 1)
    tl.store(sums + at, dxhat_sum)
    tl.store(sums + tl.cast(slots, tl.int64) * M + at, dxhat_xhat_sum)


@triton.jit(do_not_specialize=_VALUES)
def backward_columns(
    dy, x, mean, rstd, gamma, dtotal, sums, dx, dgamma, dbeta, M: tl.int64, N: tl.int32, inner: tl.int64,
    dy_outer: tl.int64, dy_inner: tl.int64, x_outer: tl.int64, x_inner: tl.int64,
    dtotal_outer: tl.int64, dtotal_inner: tl.int64, dx_outer: tl.int64, dx_inner: tl.int64, slots: tl.int32, first: tl.int32,
    WANT_DX: tl.constexpr, WANT_DGAMMA: tl.constexpr, WANT_DBETA: tl.constexpr, HAS_GAMMA: tl.constexpr,
    HAS_DTOTAL: tl.constexpr, CENTRED: tl.constexpr, OFFSET: tl.constexpr,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Behind sum_chunks: BLOCK columns of all rows a program, dgamma and dbeta of which it finishes alone.

    Shapes: sums (2, slots, M); dgamma, dbeta (N,) in their final dtype.
    Caller: cdiv(N, BLOCK) programs from the first on. dx may be dy, x or dtotal.
    Source: docs/math.md, backward.
    """
    if ALIGNED:
        N = N // 16 * 16
    inverse = inverse_of(N, True, ACC)
    program = tl.program_id(0) - first
    cols = program * BLOCK + tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
    scale = scale_of(gamma, cols, N, OFFSET, HAS_GAMMA, ACC)
    dgamma_sum = tl.zeros([ROWS, BLOCK], ACC)
    dbeta_sum = tl.zeros([ROWS, BLOCK], ACC)
    for tile in tl.range(0, tl.cdiv(M, ROWS), num_stages=STAGES):
        rows = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        inside = rows < M
        mean_row = statistic(mean, rows, inside, CENTRED, ACC)
        rstd_row = statistic(rstd, rows, inside, True, ACC)
        dy_start = dy + row_start(rows, inner, dy_outer, dy_inner, SPLIT, ALIGNED)
        x_start = x + row_start(rows, inner, x_outer, x_inner, SPLIT, ALIGNED)
        dy_tile, xhat = terms(dy_start, x_start, cols, N, inside, mean_row, rstd_row, True, ACC)
        if WANT_DGAMMA:
            dgamma_sum = multiply_add(dy_tile, xhat, dgamma_sum)
        if WANT_DBETA:
            dbeta_sum += dy_tile
        if WANT_DX:
            mean_dxhat = tl.zeros([ROWS, 1], ACC)
            mean_dxhat_xhat = tl.zeros([ROWS, 1], ACC)
            for slot in range(slots):
                at = sums + tl.cast(slot, tl.int64) * M + rows
                if CENTRED:
                    mean_dxhat += tl.load(at, inside, other=0.0)
                mean_dxhat_xhat += tl.load(at + tl.cast(slots, tl.int64) * M, inside, other=0.0)
            dxhat = dy_tile * scale
            result, other = dxhat - mean_dxhat * inverse, mean_dxhat_xhat * inverse
            result = tl.fma(xhat, -other, result) if _ORDERED else result - xhat * other
            if HAS_DTOTAL:
                dtotal_start = dtotal + row_start(rows, inner, dtotal_outer, dtotal_inner, SPLIT, ALIGNED)
                more, valid = load(dtotal_start, cols, N, inside, True, ACC)
                result = multiply_add(rstd_row, result, more)
            else:
                result = rstd_row * result
            dx_at = dx + row_start(rows, inner, dx_outer, dx_inner, SPLIT, ALIGNED) + cols
            tl.store(dx_at, round_to(result, dx), inside & (cols < N))
    at = program * BLOCK + tl.arange(0, BLOCK)
    if WANT_DGAMMA:
        tl.store(dgamma + at, round_to(column_sum(dgamma_sum), dgamma), at < N)
    if WANT_DBETA:
        tl.store(dbeta + at, round_to(column_sum(dbeta_sum), dbeta), at < N)


@triton.jit(do_not_specialize=_VALUES)
def backward_at_once(
    dy, x, mean, rstd, gamma, dtotal, dx, dgamma, dbeta, M: tl.int64, N: tl.int32, inner: tl.int64,
    dy_outer: tl.int64, dy_inner: tl.int64, x_outer: tl.int64, x_inner: tl.int64,
    dtotal_outer: tl.int64, dtotal_inner: tl.int64, dx_outer: tl.int64, dx_inner: tl.int64, first: tl.int32,
    WANT_DX: tl.constexpr, WANT_DGAMMA: tl.constexpr, WANT_DBETA: tl.constexpr, HAS_GAMMA: tl.constexpr,
    HAS_DTOTAL: tl.constexpr, CENTRED: tl.constexpr, OFFSET: tl.constexpr,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    COLUMN_ROWS: tl.constexpr, COLUMN_BLOCK: tl.constexpr, COLUMN_STAGES: tl.constexpr,
):  # fmt: skip
    """For few rows, one launch: some programs write dx of a tile of rows each, others dgamma and dbeta of some columns of all
    rows, which they find in L2.

    Shapes: see backward_tiles; dgamma, dbeta (N,) in their final dtype.
    Caller: `first` = cdiv(M, ROWS) programs, 0 if dx is not wanted, and cdiv(N, COLUMN_BLOCK) behind them. dx may be dtotal.
    Source: docs/math.md, backward.
    """
    if tl.program_id(0) < first:
        backward_tiles(
            dy, x, mean, rstd, gamma, dtotal, dx, None, None, M, N, inner, dy_outer, dy_inner, x_outer, x_inner,
            dtotal_outer, dtotal_inner, dx_outer, dx_inner,
            WANT_DX, False, False, HAS_GAMMA, HAS_DTOTAL, CENTRED, OFFSET, SPLIT, ALIGNED, ACC, ROWS, BLOCK, PIECES, 1, 1,
        )  # fmt: skip
    else:
        backward_columns(
            dy, x, mean, rstd, gamma, None, None, None, dgamma, dbeta, M, N, inner, dy_outer, dy_inner, x_outer, x_inner,
            0, 0, 0, 0, 0, first,
            False, WANT_DGAMMA, WANT_DBETA, HAS_GAMMA, False, CENTRED, OFFSET, SPLIT, ALIGNED, ACC,
            COLUMN_ROWS, COLUMN_BLOCK, COLUMN_STAGES,
        )  # fmt: skip


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
        tl.store(dgamma + at, round_to(column_sum(dgamma_sum), dgamma), at < N)
    if WANT_DBETA:
        tl.store(dbeta + at, round_to(column_sum(dbeta_sum), dbeta), at < N)
