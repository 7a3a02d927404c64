"""Triton kernels: arithmetic on memory that is already right. Which of them runs, and how large, is the backend's choice.

Rows are addressed by two levels of strides, so that a tensor whose last axis is contiguous needs no copy: row r begins at
(r // inner)·outer_stride + (r % inner)·inner_stride. Offsets are 64-bit from the row up. M, N, strides and eps are
run-time values; compile-time are dtypes, block sizes, what is wanted, and whether N and all strides are multiples of 16
elements (ALIGNED), without which loads can't be vectors.

A row's sums are taken in blocks of a size that N alone decides, each by the compiler's fixed tree, and the blocks' sums are
added in order of their columns: every kernel that computes dx of a row follows this one order.

16-bit values are widened as they are loaded. Source of the formulas: docs/math.md.
"""

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

__all__ = [
    "INTERPRETED",
    "backward_chunks",
    "backward_columns",
    "backward_tiles",
    "finalize",
    "forward_chunks",
    "forward_tiles",
    "sum_chunks",
]

# A value of 1 or a multiple of 16 would compile once more for each of these.
_FORWARD_VALUES = ["M", "N", "inner", "x_outer", "x_inner", "y_outer", "y_inner", "eps"]
_BACKWARD_VALUES = ["M", "N", "inner", "dy_outer", "dy_inner", "x_outer", "x_inner", "dx_outer", "dx_inner", "chunks"]


@triton.jit
def _row_start(rows, inner, outer_stride, inner_stride, SPLIT: tl.constexpr, ALIGNED: tl.constexpr):
    """Offset of the first element of each row. SPLIT False: inner_stride is the one row stride."""
    if ALIGNED:
        outer_stride = outer_stride // 16 * 16  # says so to the compiler, which loses hints on arguments of a callee
        inner_stride = inner_stride // 16 * 16
    if SPLIT:
        start = (rows // inner) * outer_stride + (rows % inner) * inner_stride
    else:
        start = rows * inner_stride
    return start


@triton.jit
def _mean_of(total, N, ACC: tl.constexpr):
    """total / N, rounded correctly: N = 1 must give the total itself."""
    if tl.float32 == ACC:
        mean = tl.div_rn(total, N.to(tl.float32))
    else:
        mean = total / N.to(ACC)
    return mean


@triton.jit
def _rstd_of(variance, eps, ACC: tl.constexpr):
    """1/sqrt(variance + eps), correctly rounded in each step: the GPU's rsqrt is an approximation."""
    shifted = (variance + eps).to(ACC)
    if tl.float32 == ACC:
        rstd = tl.div_rn(tl.full(shifted.shape, 1.0, tl.float32), tl.sqrt_rn(shifted))
    else:
        rstd = 1.0 / tl.sqrt(shifted)
    return rstd


INTERPRETED = isinstance(_row_start, InterpretedFunction)  # decided by TRITON_INTERPRET when this file was imported
_INTERPRETED = tl.constexpr(INTERPRETED)


@triton.jit
def _round(values, target):
    """Values in the dtype that target points to, to nearest even."""
    if _INTERPRETED and target.dtype.element_ty == tl.bfloat16:
        # The interpreter cuts off what bfloat16 can't hold: round first, so that nothing is left to be cut off.
        bits = values.to(tl.uint32, bitcast=True)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
        values = tl.where(values == values, nearest.to(tl.float32, bitcast=True), values)
    return values.to(target.dtype.element_ty)


@triton.jit
def _columns(values, cols, N, default, HAS: tl.constexpr, ACC: tl.constexpr):
    """gamma or beta at some columns, or its default if there is none."""
    if HAS:
        result = tl.load(values + cols, cols < N, other=0.0).to(ACC)
    else:
        result = tl.full(cols.shape, default, ACC)
    return result


@triton.jit
def _terms(dy_at, x_at, valid, mean, rstd, ACC: tl.constexpr):
    """dy and xhat of a tile, both 0 outside of it."""
    dy = tl.load(dy_at, valid, other=0.0).to(ACC)
    x = tl.load(x_at, valid, other=0.0).to(ACC)
    return dy, tl.where(valid, (x - mean) * rstd, 0.0)


@triton.jit(do_not_specialize=_BACKWARD_VALUES)
def backward_tiles(
    dy, x, mean, rstd, gamma, dx, dgamma_parts, dbeta_parts, M: tl.int64, N: tl.int32, inner: tl.int64,
    dy_outer: tl.int64, dy_inner: tl.int64, x_outer: tl.int64, x_inner: tl.int64, dx_outer: tl.int64, dx_inner: tl.int64,
    WANT_DX: tl.constexpr, WANT_DGAMMA: tl.constexpr, WANT_DBETA: tl.constexpr, HAS_GAMMA: tl.constexpr,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write dx, and one row of partial sums a program, where a whole row fits into registers.

    Shapes: dy, x, dx M rows of N; mean, rstd (M,); gamma (N,); dgamma_parts, dbeta_parts (programs, N), written whole.
    Caller: BLOCK >= N; at least one program.
    Source: docs/math.md, backward.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    if ALIGNED:
        N = N // 16 * 16
    cols = tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
    scale = _columns(gamma, cols, N, 1.0, HAS_GAMMA, ACC)
    # A tile of sums, not a row: adding to it takes no exchange between threads. It is folded once, at the end.
    dgamma_sum = tl.zeros([ROWS, BLOCK], ACC)
    dbeta_sum = tl.zeros([ROWS, BLOCK], ACC)
    for tile in tl.range(program, tl.cdiv(M, ROWS), programs, num_stages=STAGES):
        rows = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        valid = (rows < M) & (cols < N)
        mean_row = tl.load(mean + rows, rows < M, other=0.0).to(ACC)
        rstd_row = tl.load(rstd + rows, rows < M, other=0.0).to(ACC)
        dy_at = dy + _row_start(rows, inner, dy_outer, dy_inner, SPLIT, ALIGNED) + cols
        x_at = x + _row_start(rows, inner, x_outer, x_inner, SPLIT, ALIGNED) + cols
        dy_tile, xhat = _terms(dy_at, x_at, valid, mean_row, rstd_row, ACC)
        if WANT_DGAMMA:
            dgamma_sum += dy_tile * xhat
        if WANT_DBETA:
            dbeta_sum += dy_tile
        if WANT_DX:
            dxhat = dy_tile * scale
            mean_dxhat = _mean_of(tl.sum(dxhat, 1, keep_dims=True), N, ACC)  # (ROWS, BLOCK) -> (ROWS, 1)
            mean_dxhat_xhat = _mean_of(tl.sum(dxhat * xhat, 1, keep_dims=True), N, ACC)
            result = rstd_row * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)
            dx_at = dx + _row_start(rows, inner, dx_outer, dx_inner, SPLIT, ALIGNED) + cols
            tl.store(dx_at, _round(result, dx), valid)
    part = tl.cast(program, tl.int64) * N + tl.arange(0, BLOCK)
    if WANT_DGAMMA:
        tl.store(dgamma_parts + part, tl.sum(dgamma_sum, 0), tl.arange(0, BLOCK) < N)
    if WANT_DBETA:
        tl.store(dbeta_parts + part, tl.sum(dbeta_sum, 0), tl.arange(0, BLOCK) < N)


@triton.jit
def _chunk_sums(dy_at, x_at, valid, mean, rstd, scale, ACC: tl.constexpr):
    """The two row sums of one chunk of columns: (ROWS, BLOCK) -> (ROWS, 1) twice."""
    dy, xhat = _terms(dy_at, x_at, valid, mean, rstd, ACC)
    dxhat = dy * scale
    return tl.sum(dxhat, 1, keep_dims=True), tl.sum(dxhat * xhat, 1, keep_dims=True)


@triton.jit(do_not_specialize=_BACKWARD_VALUES)
def backward_chunks(
    dy, x, mean, rstd, gamma, dx, dgamma_parts, dbeta_parts, M: tl.int64, N: tl.int32, inner: tl.int64,
    dy_outer: tl.int64, dy_inner: tl.int64, x_outer: tl.int64, x_inner: tl.int64, dx_outer: tl.int64, dx_inner: tl.int64,
    WANT_DX: tl.constexpr, WANT_DGAMMA: tl.constexpr, WANT_DBETA: tl.constexpr, HAS_GAMMA: tl.constexpr,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As backward_tiles, for rows longer than BLOCK: sums first, then a second sweep, whose dy and x still lie in L2.

    The partial sums stay in memory, in L2 too, and are added to once for ROWS rows, each element by the one program.
    Shapes: see backward_tiles. Caller: at least one program, and no more than there are tiles of ROWS rows.
    Source: docs/math.md, backward.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    if ALIGNED:
        N = N // 16 * 16
    part = tl.cast(program, tl.int64) * N
    for tile in range(program, tl.cdiv(M, ROWS), programs):
        rows = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        mean_row = tl.load(mean + rows, rows < M, other=0.0).to(ACC)
        rstd_row = tl.load(rstd + rows, rows < M, other=0.0).to(ACC)
        dy_start = dy + _row_start(rows, inner, dy_outer, dy_inner, SPLIT, ALIGNED)
        x_start = x + _row_start(rows, inner, x_outer, x_inner, SPLIT, ALIGNED)
        mean_dxhat = tl.zeros([ROWS, 1], ACC)
        mean_dxhat_xhat = tl.zeros([ROWS, 1], ACC)
        if WANT_DX:
            for column in tl.range(0, N, BLOCK, num_stages=STAGES):
                cols = column + tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
                valid = (rows < M) & (cols < N)
                scale = _columns(gamma, cols, N, 1.0, HAS_GAMMA, ACC)
                first, second = _chunk_sums(dy_start + cols, x_start + cols, valid, mean_row, rstd_row, scale, ACC)
                mean_dxhat += first
                mean_dxhat_xhat += second
            mean_dxhat = _mean_of(mean_dxhat, N, ACC)
            mean_dxhat_xhat = _mean_of(mean_dxhat_xhat, N, ACC)
        tl.debug_barrier()  # what this program added to its partial sums a tile ago is there for all its threads
        for column in range(0, N, BLOCK):
            cols = column + tl.arange(0, BLOCK)[None, :]
            valid = (rows < M) & (cols < N)
            dy_tile, xhat = _terms(dy_start + cols, x_start + cols, valid, mean_row, rstd_row, ACC)
            if WANT_DX:
                dxhat = dy_tile * _columns(gamma, cols, N, 1.0, HAS_GAMMA, ACC)
                result = rstd_row * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)
                dx_at = dx + _row_start(rows, inner, dx_outer, dx_inner, SPLIT, ALIGNED) + cols
                tl.store(dx_at, _round(result, dx), valid)
            at = column + tl.arange(0, BLOCK)
            added = (at < N) & (
                tl.zeros([BLOCK], tl.int64) + tile != program
            )  # the first tile finds no sums, and writes
            if WANT_DGAMMA:
                before = tl.load(dgamma_parts + part + at, added, other=0.0)
                tl.store(dgamma_parts + part + at, before + tl.sum(dy_tile * xhat, 0), at < N)
            if WANT_DBETA:
                before = tl.load(dbeta_parts + part + at, added, other=0.0)
                tl.store(dbeta_parts + part + at, before + tl.sum(dy_tile, 0), at < N)


@triton.jit(do_not_specialize=_BACKWARD_VALUES)
def sum_chunks(
    dy, x, mean, rstd, gamma, sums, M: tl.int64, N: tl.int32, inner: tl.int64,
    dy_outer: tl.int64, dy_inner: tl.int64, x_outer: tl.int64, x_inner: tl.int64, chunks: tl.int32,
    HAS_GAMMA: tl.constexpr, SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For few long rows: the two row sums of every chunk of columns, a program each, as backward_chunks takes them.

    Shapes: sums (2, chunks, M). Caller: (tiles of ROWS rows)·chunks programs.
    Source: docs/math.md, backward.
    """
    if ALIGNED:
        N = N // 16 * 16
    chunk = tl.program_id(0) % chunks
    rows = tl.cast(tl.program_id(0) // chunks, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
    cols = chunk * BLOCK + tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
    valid = (rows < M) & (cols < N)
    mean_row = tl.load(mean + rows, rows < M, other=0.0).to(ACC)
    rstd_row = tl.load(rstd + rows, rows < M, other=0.0).to(ACC)
    dy_at = dy + _row_start(rows, inner, dy_outer, dy_inner, SPLIT, ALIGNED) + cols
    x_at = x + _row_start(rows, inner, x_outer, x_inner, SPLIT, ALIGNED) + cols
    scale = _columns(gamma, cols, N, 1.0, HAS_GAMMA, ACC)
    first, second = _chunk_sums(dy_at, x_at, valid, mean_row, rstd_row, scale, ACC)
    at = tl.cast(chunk, tl.int64) * M + rows
    tl.store(sums + at, first, rows < M)
    tl.store(sums + tl.cast(chunks, tl.int64) * M + at, second, rows < M)


@triton.jit(do_not_specialize=_BACKWARD_VALUES)
def backward_columns(
    dy, x, mean, rstd, gamma, sums, dx, dgamma, dbeta, M: tl.int64, N: tl.int32, inner: tl.int64,
    dy_outer: tl.int64, dy_inner: tl.int64, x_outer: tl.int64, x_inner: tl.int64, dx_outer: tl.int64, dx_inner: tl.int64,
    chunks: tl.int32,
    WANT_DX: tl.constexpr, WANT_DGAMMA: tl.constexpr, WANT_DBETA: tl.constexpr, HAS_GAMMA: tl.constexpr,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Behind sum_chunks: BLOCK columns of all rows a program, dgamma and dbeta of which it finishes alone.

    Shapes: sums (2, chunks, M); dgamma, dbeta (N,) in their final dtype.
    Caller: cdiv(N, BLOCK) programs. dx may be dy or x.
    Source: docs/math.md, backward.
    """
    if ALIGNED:
        N = N // 16 * 16
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
    scale = _columns(gamma, cols, N, 1.0, HAS_GAMMA, ACC)
    dgamma_sum = tl.zeros([ROWS, BLOCK], ACC)
    dbeta_sum = tl.zeros([ROWS, BLOCK], ACC)
    for tile in range(tl.cdiv(M, ROWS)):
        rows = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        valid = (rows < M) & (cols < N)
        mean_row = tl.load(mean + rows, rows < M, other=0.0).to(ACC)
        rstd_row = tl.load(rstd + rows, rows < M, other=0.0).to(ACC)
        dy_at = dy + _row_start(rows, inner, dy_outer, dy_inner, SPLIT, ALIGNED) + cols
        x_at = x + _row_start(rows, inner, x_outer, x_inner, SPLIT, ALIGNED) + cols
        dy_tile, xhat = _terms(dy_at, x_at, valid, mean_row, rstd_row, ACC)
        if WANT_DGAMMA:
            dgamma_sum += dy_tile * xhat
        if WANT_DBETA:
            dbeta_sum += dy_tile
        if WANT_DX:
            mean_dxhat = tl.zeros([ROWS, 1], ACC)
            mean_dxhat_xhat = tl.zeros([ROWS, 1], ACC)
            for chunk in range(chunks):
                at = sums + tl.cast(chunk, tl.int64) * M + rows
                mean_dxhat += tl.load(at, rows < M, other=0.0)
                mean_dxhat_xhat += tl.load(at + tl.cast(chunks, tl.int64) * M, rows < M, other=0.0)
            dxhat = dy_tile * scale
            mean_dxhat = _mean_of(mean_dxhat, N, ACC)
            mean_dxhat_xhat = _mean_of(mean_dxhat_xhat, N, ACC)
            result = rstd_row * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)
            dx_at = dx + _row_start(rows, inner, dx_outer, dx_inner, SPLIT, ALIGNED) + cols
            tl.store(dx_at, _round(result, dx), valid)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if WANT_DGAMMA:
        tl.store(dgamma + at, _round(tl.sum(dgamma_sum, 0), dgamma), at < N)
    if WANT_DBETA:
        tl.store(dbeta + at, _round(tl.sum(dbeta_sum, 0), dbeta), at < N)


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
        tl.store(dgamma + at, _round(tl.sum(dgamma_sum, 0), dgamma), at < N)
    if WANT_DBETA:
        tl.store(dbeta + at, _round(tl.sum(dbeta_sum, 0), dbeta), at < N)


@triton.jit(do_not_specialize=_FORWARD_VALUES)
def forward_tiles(
    x, gamma, beta, y, mean, rstd, M: tl.int64, N: tl.int32, inner: tl.int64,
    x_outer: tl.int64, x_inner: tl.int64, y_outer: tl.int64, y_inner: tl.int64, eps: tl.float64,
    HAS_GAMMA: tl.constexpr, HAS_BETA: tl.constexpr,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y, mean and rstd of ROWS whole rows, x read once.

    Shapes: x, y M rows of N; gamma, beta (N,); mean, rstd (M,). Caller: BLOCK >= N; cdiv(M, ROWS) programs.
    Source: docs/math.md, forward.
    """
    if ALIGNED:
        N = N // 16 * 16
    rows = tl.cast(tl.program_id(0), tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
    cols = tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
    valid = (rows < M) & (cols < N)
    x_at = x + _row_start(rows, inner, x_outer, x_inner, SPLIT, ALIGNED) + cols
    x_tile = tl.load(x_at, valid, other=0.0).to(ACC)
    centre = _mean_of(tl.sum(x_tile, 1, keep_dims=True), N, ACC)  # (ROWS, BLOCK) -> (ROWS, 1)
    centred = tl.where(valid, x_tile - centre, 0.0)
    # The mean was rounded; what is left of it matters where the offset is large beside the spread.
    shift = _mean_of(tl.sum(centred, 1, keep_dims=True), N, ACC)
    centred = tl.where(valid, centred - shift, 0.0)
    rstd_row = _rstd_of(_mean_of(tl.sum(centred * centred, 1, keep_dims=True), N, ACC), eps, ACC)
    result = centred * rstd_row * _columns(gamma, cols, N, 1.0, HAS_GAMMA, ACC)
    result += _columns(beta, cols, N, 0.0, HAS_BETA, ACC)
    y_at = y + _row_start(rows, inner, y_outer, y_inner, SPLIT, ALIGNED) + cols
    tl.store(y_at, _round(result, y), valid)
    tl.store(mean + rows, (centre + shift).to(mean.dtype.element_ty), rows < M)
    tl.store(rstd + rows, rstd_row.to(rstd.dtype.element_ty), rows < M)


@triton.jit(do_not_specialize=_FORWARD_VALUES)
def forward_chunks(
    x, gamma, beta, y, mean, rstd, M: tl.int64, N: tl.int32, inner: tl.int64,
    x_outer: tl.int64, x_inner: tl.int64, y_outer: tl.int64, y_inner: tl.int64, eps: tl.float64,
    HAS_GAMMA: tl.constexpr, HAS_BETA: tl.constexpr,
    SPLIT: tl.constexpr, ALIGNED: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As forward_tiles, for rows longer than BLOCK: two more sweeps over x, which lies in L2 by then.

    Shapes and caller: see forward_tiles.
    Source: docs/math.md, forward.
    """
    if ALIGNED:
        N = N // 16 * 16
    rows = tl.cast(tl.program_id(0), tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
    x_start = x + _row_start(rows, inner, x_outer, x_inner, SPLIT, ALIGNED)
    y_start = y + _row_start(rows, inner, y_outer, y_inner, SPLIT, ALIGNED)
    total = tl.zeros([ROWS, 1], ACC)
    for column in range(0, N, BLOCK):
        cols = column + tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
        x_tile = tl.load(x_start + cols, (rows < M) & (cols < N), other=0.0).to(ACC)
        total += tl.sum(x_tile, 1, keep_dims=True)
    centre = _mean_of(total, N, ACC)
    rest = tl.zeros([ROWS, 1], ACC)
    squares = tl.zeros([ROWS, 1], ACC)
    for column in range(0, N, BLOCK):
        cols = column + tl.arange(0, BLOCK)[None, :]
        valid = (rows < M) & (cols < N)
        centred = tl.where(valid, tl.load(x_start + cols, valid, other=0.0).to(ACC) - centre, 0.0)
        rest += tl.sum(centred, 1, keep_dims=True)
        squares += tl.sum(centred * centred, 1, keep_dims=True)
    shift = _mean_of(rest, N, ACC)
    # shift is a rounding error of the mean: its square takes nothing of weight from the mean of the squares.
    variance = _mean_of(squares, N, ACC) - shift * shift
    rstd_row = _rstd_of(tl.where(variance < 0, 0.0, variance), eps, ACC)  # and not maximum, which would lose a NaN
    for column in range(0, N, BLOCK):
        cols = column + tl.arange(0, BLOCK)[None, :]
        valid = (rows < M) & (cols < N)
        centred = tl.load(x_start + cols, valid, other=0.0).to(ACC) - centre - shift
        result = centred * rstd_row * _columns(gamma, cols, N, 1.0, HAS_GAMMA, ACC)
        result += _columns(beta, cols, N, 0.0, HAS_BETA, ACC)
        tl.store(y_start + cols, _round(result, y), valid)
    tl.store(mean + rows, (centre + shift).to(mean.dtype.element_ty), rows < M)
    tl.store(rstd + rows, rstd_row.to(rstd.dtype.element_ty), rows < M)
