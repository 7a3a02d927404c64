"""What all Triton kernels share: where a row lies, how values are loaded and rounded, what a row's statistics are.

Rows are addressed by two levels of strides, so that a tensor whose last axis is contiguous needs no copy: row r begins at
(r // inner)·outer_stride + (r % inner)·inner_stride. Offsets are 64-bit from the row up.

16-bit values are widened as they are loaded. Triton compiles these into the kernels that call them.
"""

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction


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


@triton.jit
def inverse_of(count, CALLED: tl.constexpr, ACC: tl.constexpr):
    """1/count: a product with it gives the total itself where count is 1.

    CALLED: by a rounded division, for which the assembler calls its slow path. In front of a loop that is the better: a loop
    over pairs of 16384 columns in bfloat16 on sm_80 spilled 16 bytes without. Beside a tile that is alive the call puts
    registers aside; there it is the GPU's approximation and one step of Newton's.
    """
    if tl.float32 != ACC:
        inverse = 1.0 / count.to(ACC)
    elif CALLED:
        inverse = tl.div_rn(1.0, count.to(tl.float32))
    else:
        near = 1.0 / count.to(tl.float32)
        inverse = tl.fma(near, tl.fma(-near, count.to(tl.float32), 1.0), near)
    return inverse


@triton.jit
def rstd_of(variance, eps, ACC: tl.constexpr):
    """1/sqrt(variance + eps). In float32 the GPU's approximation and one step of Newton's, for the reason above."""
    shifted = (variance + eps).to(ACC)  # eps is 64-bit
    if tl.float32 == ACC:
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
def columns(values, cols, N, default, HAS: tl.constexpr, ACC: tl.constexpr):
    """gamma or beta at some columns, or its default if there is none."""
    if HAS:
        result = tl.load(values + cols, cols < N, other=0.0).to(ACC)
    else:
        result = tl.full(cols.shape, default, ACC)
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
    share = block_count / total
    apart = block_mean - mean
    return total, mean + apart * share, squares + block_squares + apart * apart * (count * share)
