"""LayerNormGrad and LayerNormGradBeta on 2002 and 2201, instruction by instruction, and on 3510, in registers of 64 floats.

The order of operations is that of layernormgrad_common_impl.h, layernormgradbeta_common_impl.h, layernormgrad_3510_impl.h
and layernormgradbeta_3510_impl.h; docs/ascend-tile.md, "The numbers", has the formulas. The caller has checked the arguments:
all are half or all float, and everything between the inputs and the outputs is float. On 2002 and 2201 a chunk of rows
goes at a time, each intermediate at the place of the temporary buffer that the tiling names. Loops over rows that the
published code writes out are one NumPy call each here: they give the values of the loop and count its instructions. On
3510 rows do not depend on each other unless operands share memory, so that all are computed in one go where they do not.
The order in which the lanes of a register are added up is not documented; neighbours first, as elsewhere, is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from lngrad.typing import Array
from lngrad_ascend.device.local_tensor import LocalTensor
from lngrad_ascend.device.numerics import REPEAT_BYTES, REPEAT_FLOATS, RoundMode, lane_sums, repeat_sums
from lngrad_ascend.device.vector import Add, Adds, Cast, Duplicate, Mul, Muls, Sqrt, Sub
from lngrad_ascend.faults import BoundsFault, OverlapFault
from lngrad_ascend.tiling.host_functions import align_up
from lngrad_ascend.tiling.structs import LayerNormGradBetaTiling, LayerNormGradTiling, float_from_bits

BLOCK_FLOATS = 8
MAX_REPEATS = 255
BRCB_ROWS = 8


def refuse_partial_overlap(api: str, dst: LocalTensor, role: str, src: LocalTensor, count: int) -> None:
    """Refuse operands that are shifted against each other: the unit reads some elements before, some after the write."""
    ends = (dst.start + count * dst.dtype.itemsize, src.start + count * src.dtype.itemsize)
    if dst.start != src.start and dst.core is src.core and dst.start < ends[1] and src.start < ends[0]:
        raise OverlapFault(
            f"{api}: dst ({dst.describe()}) and {role} ({src.describe()}) overlap {abs(dst.start - src.start)} bytes "
            f"apart; they must be the same memory or none of each other's, count is {count}"
        )


def count_instructions(tensor: LocalTensor, times: int, instructions: dict[str, int]) -> None:
    """Count instructions that a NumPy call stands for, of a repeat each."""
    for name, count in instructions.items():
        tensor.core.looped(name, times * count, REPEAT_BYTES)


def row_sums(dst: LocalTensor, src: LocalTensor, rows: int, H: int) -> None:
    """dst[i] = sum of row i of src: WholeReduceSum over repeats of 64 floats, then over the partial sums, not kept in dst."""
    values = src.read("WholeReduceSum", "src", rows * H).reshape(rows, H)
    left, rounds = H, 0
    while left > 1:
        full, rest = divmod(left, REPEAT_FLOATS)
        rounds += -(-full // MAX_REPEATS) + (rest > 0)
        left = -(-left // REPEAT_FLOATS)
    src.core.looped("WholeReduceSum", rounds * rows, -(-H * 4 // rounds) if rounds else 0)
    dst.write("WholeReduceSum", "dst", rows)[:] = repeat_sums(values, REPEAT_FLOATS)


def broadcast_rows(dst: LocalTensor, src: LocalTensor, rows: int, H: int) -> None:
    """Fill row i of dst with src[i]: Brcb for every 8 rows (not on 2002), Duplicate for the rest."""
    refuse_partial_overlap("Brcb", dst, "src", src, rows)
    values = src.read("Brcb", "src", rows)
    whole = rows // BRCB_ROWS if dst.core.soc.arch != 2002 else 0
    brcbs = H // BLOCK_FLOATS * -(-whole // MAX_REPEATS)
    dst.core.looped("Brcb", brcbs, min(whole, MAX_REPEATS) * REPEAT_BYTES)
    dst.core.looped("Duplicate", rows - whole * BRCB_ROWS, H * 4)
    dst.write("Brcb", "dst", rows * H).reshape(rows, H)[:] = values.reshape(rows, 1)


def _each_row(
    api: str, arithmetic: np.ufunc, dst: LocalTensor, src: LocalTensor, row: LocalTensor, rows: int, H: int
) -> None:
    """Combine every row of src with ``row``: one instruction a row."""
    refuse_partial_overlap(api, dst, "src0", src, rows * H)
    matrix, other = src.read(api, "src0", rows * H).reshape(rows, H), row.read(api, "src1", H)
    dst.core.looped(api, rows, H * 4)
    arithmetic(matrix, other, out=dst.write(api, "dst", rows * H).reshape(rows, H))


multiply_rows = partial(_each_row, "Mul", np.multiply)
add_to_rows = partial(_each_row, "Add", np.add)


def clear_columns(dst: LocalTensor, rows: int, H: int, first: int) -> None:
    """Set the columns from ``first`` on of every row to 0: one masked Duplicate a row."""
    dst.core.looped("Duplicate", rows, H * 4)
    dst.write("Duplicate", "dst", rows * H).reshape(rows, H)[:, first:] = 0


def reciprocal(dst: LocalTensor, ones: LocalTensor, src: LocalTensor, count: int) -> None:
    """dst = 1 / src: Duplicate fills one block of ``ones``, and Div reads that block again and again."""
    Duplicate(ones, 1.0, BLOCK_FLOATS)
    refuse_partial_overlap("Div", dst, "src1", src, count)
    values = src.read("Div", "src1", count)
    src.core.looped("Div", 1, count * 4)
    np.divide(np.float32(1), values, out=dst.write("Div", "dst", count))


def accumulate_rows(dst: LocalTensor, src: LocalTensor, rows: int, width: int, clear: bool) -> None:
    """Add rows of ``width`` elements to dst, one Add after the other; ``clear`` starts with the first row plus 0."""
    total = dst.write("Adds", "dst", width) if clear else dst.read("Add", "dst", width)
    matrix = src.read("Add", "src0", rows * width).reshape(rows, width)
    if rows > 1:
        src[width:].read("Add", "src0", 0)  # one row past the first: every row must start on a block
    dst.core.looped("Add", rows - clear, width * 4, chained=True)
    dst.core.looped("Adds", int(clear), width * 4)
    if clear:
        np.add(matrix[0], np.float32(0), out=total)
    for row in matrix[int(clear) :]:
        np.add(row, total, out=total)


FLOAT = np.dtype(np.float32)
NONE = RoundMode.CAST_NONE


@dataclass(frozen=True)
class GradTensors:
    """The tensors of one LayerNormGrad call: dy, x, dx, xhat (B·S, H); variance, mean (B·S,); gamma (H,); temp bytes."""

    dx: LocalTensor
    xhat: LocalTensor
    dy: LocalTensor
    x: LocalTensor
    variance: LocalTensor
    mean: LocalTensor
    gamma: LocalTensor
    temp: LocalTensor


@dataclass(frozen=True)
class BetaTensors:
    """The tensors of one LayerNormGradBeta call: xhat, dy (B·S, H); dgamma, dbeta (H,); temp bytes."""

    dgamma: LocalTensor
    dbeta: LocalTensor
    xhat: LocalTensor
    dy: LocalTensor
    temp: LocalTensor


def grad_common(t: GradTensors, epsilon: float, tiling: LayerNormGradTiling, reuse: bool, exact: bool) -> None:
    """Compute dx and xhat chunk by chunk. Padded columns are cleared when ``exact``."""
    stack = t.temp.ReinterpretCast(FLOAT)
    touched, room = stack_bytes_touched(tiling), stack.GetSize() * FLOAT.itemsize
    if touched > room:  # on a device the chunk buffers overwrite what lies behind it
        raise BoundsFault(
            f"LayerNormGrad: with this tiling the kernel reaches byte {touched} of the temporary buffer, which has "
            f"{room}: {touched - room} bytes too few. Rows are rounded up after the buffer was divided, so that the "
            "published minimum is often too small; lint says which sizes are safe"
        )
    H, M = tiling.hLength, tiling.bLength * tiling.sLength
    for first in range(0, M, tiling.nohCalSize):
        at = first * H
        chunk = replace(
            t, dx=t.dx[at:], xhat=t.xhat[at:], dy=t.dy[at:], x=t.x[at:],
            variance=t.variance[first:], mean=t.mean[first:],
        )  # fmt: skip
        _grad_chunk(chunk, stack, min(tiling.nohCalSize, M - first), epsilon, tiling, reuse, exact)


def stack_bytes_touched(tiling: LayerNormGradTiling) -> int:
    """Return how far into the temporary buffer the kernel reaches: the last chunk buffer, as far as the rows go."""
    last = max(value for name, value in vars(tiling).items() if name.endswith("Pos"))
    rows = min(tiling.nohCalSize, tiling.bLength * tiling.sLength)
    return int(last + rows * tiling.hLength) * FLOAT.itemsize


def _grad_chunk(
    t: GradTensors, stack: LocalTensor, rows: int, epsilon: float, tiling: LayerNormGradTiling, reuse: bool, exact: bool
) -> None:
    """Compute the first ``rows`` rows, each intermediate in a tensor that has room for (rows, H)."""
    H, n, half = tiling.hLength, rows * tiling.hLength, t.dx.dtype != FLOAT
    inverse_H, twice_inverse_H = map(float_from_bits, (tiling.lastDimValueBack, tiling.lastDimValueBackMulTwo))
    wide, x3 = stack[tiling.tmpTensorBSHPos :], stack[tiling.x3TensorPos :]
    var, mean_grad = stack[tiling.pdVarTensorPos :], stack[tiling.pdMeanTensorPos :]
    x1, x2 = (t.dy, t.x) if reuse else (stack[tiling.x1TensorPos :], stack[tiling.x2TensorPos :])
    # Float uses its output as the narrow scratch: what shares memory with it is gone by then.
    narrow = stack[tiling.tmpTensorPos :] if half else t.dx
    dy, x, variance, mean, gamma, xhat = t.dy, t.x, t.variance, t.mean, t.gamma, t.xhat
    if half:
        # Two buffers take one input after the other.
        dy = x = variance = stack[tiling.tmpTensor1Pos :]
        gamma = mean = xhat = stack[tiling.tmpTensor2Pos :]
        Cast(dy, t.dy, NONE, n)
        Cast(gamma, t.gamma, NONE, H)

    # x1 = dy · gamma, x2 = x - mean.
    multiply_rows(x1, dy, gamma, rows, H)
    if half:
        Cast(x, t.x, NONE, n)
        Cast(mean, t.mean, NONE, rows)
    broadcast_rows(wide, mean, rows, H)
    Sub(x2, x, wide, n)
    if half:
        Cast(variance, t.variance, NONE, rows)
    if exact:
        clear_columns(x1, rows, H, tiling.originalHLength)
        clear_columns(x2, rows, H, tiling.originalHLength)

    # var = Σ -0.5 · x1 · x2 · (variance + eps)^-1.5, the power as 1 / sqrt(t · t · t).
    Adds(narrow, variance, epsilon, rows)
    Mul(wide, narrow, narrow, rows)
    Mul(narrow, wide, narrow, rows)
    Sqrt(narrow, narrow, rows)
    reciprocal(narrow, wide, narrow, rows)
    broadcast_rows(wide, narrow, rows, H)
    Mul(wide, x2, wide, n)
    Mul(wide, x1, wide, n)
    Muls(wide, wide, -0.5, n)
    row_sums(var, wide, rows, H)

    # mean_grad = Σ -x1 · rstd + var · (1/H) · Σ -2 · x2; on the way xhat = x2 · rstd and x3 = x1 · rstd.
    Adds(narrow, variance, epsilon, rows)
    Sqrt(narrow, narrow, rows)
    reciprocal(narrow, wide, narrow, rows)
    broadcast_rows(wide, narrow, rows, H)
    Mul(xhat, x2, wide, n)
    Mul(x3, x1, wide, n)
    Muls(wide, x3, -1.0, n)
    row_sums(mean_grad, wide, rows, H)
    Muls(wide, x2, -2.0, n)
    row_sums(narrow, wide, rows, H)
    Muls(narrow, narrow, inverse_H, rows)
    Mul(narrow, var, narrow, rows)
    Add(mean_grad, mean_grad, narrow, rows)

    # dx = (var · (2/H) · x2 + mean_grad · (1/H)) + x3.
    Muls(var, var, twice_inverse_H, rows)
    broadcast_rows(wide, var, rows, H)
    Mul(x1, wide, x2, n)
    Muls(mean_grad, mean_grad, inverse_H, rows)
    broadcast_rows(wide, mean_grad, rows, H)
    Add(x1, x1, wide, n)
    Add(narrow, x1, x3, n)
    if exact:
        clear_columns(narrow, rows, H, tiling.originalHLength)
    if half:
        Cast(t.dx, narrow, NONE, n)
        Cast(t.xhat, xhat, NONE, n)


def beta_common(t: BetaTensors, tiling: LayerNormGradBetaTiling, reuse: bool, exact: bool) -> None:
    """Compute dgamma and dbeta, adding row after row to float accumulators.

    As published the columns and the distance of rows are originalHLength; ``exact`` takes hLength.
    """
    stack = t.temp.ReinterpretCast(FLOAT)
    width = tiling.hLength if exact else tiling.originalHLength
    chunk, half = tiling.oneCalSize, t.dy.dtype != FLOAT
    for start in range(0, tiling.bshLength, chunk):
        n = min(chunk, tiling.bshLength - start)
        rows, clear = n // tiling.hLength, start == 0
        xhat, dy = t.xhat[start:], t.dy[start:]
        if half:
            dgamma, dbeta = stack[tiling.gammaTempTensorPos :], stack[tiling.betaTempTensorPos :]
            dy_float, products = stack[tiling.inputDyTmpTensorPos :], stack[tiling.resForGammaTmpTensorPos :]
            Cast(dy_float, dy, NONE, n)
            Cast(products, xhat, NONE, n)
            Mul(products, dy_float, products, n)
            accumulate_rows(dgamma, products, rows, width, clear)
            accumulate_rows(dbeta, dy_float, rows, width, clear)
            Cast(t.dgamma, dgamma, NONE, width)
            Cast(t.dbeta, dbeta, NONE, width)
        else:
            products = xhat if reuse else stack[tiling.resForGammaTmpTensorPos :]
            Mul(products, dy, xhat, n)
            accumulate_rows(t.dgamma, products, rows, width, clear)
            accumulate_rows(t.dbeta, dy, rows, width, clear)
    if exact and not half:
        for result in (t.dgamma, t.dbeta):
            clear_columns(result, 1, tiling.hLength, tiling.originalHLength)


API, BETA = "LayerNormGrad", "LayerNormGradBeta"
# Instructions of the register code for each vector of a row, and for each row once.
PER_VECTOR = {"Mul": 8, "Sub": 1, "Adds": 2, "Sqrt": 2, "Div": 2, "Duplicate": 6, "Muls": 3, "Add": 5, "Select": 3}
PER_ROW = {"ReduceSum": 3, "Muls": 3, "Mul": 1, "Add": 1}


def grad_3510(t: GradTensors, epsilon: float, tiling: LayerNormGradTiling, reuse: bool, exact: bool) -> None:
    """Compute dx and xhat row by row. Padded columns are cleared when ``exact``.

    Half is stored to nearest even, too large becomes infinity.
    """
    H, M = tiling.hLength, tiling.bLength * tiling.sLength
    if reuse:
        scratch = (t.dy, t.x)  # the first row of each, for every row
    else:
        stack = t.temp.ReinterpretCast(FLOAT)
        second = align_up(H, 8)
        if second + H > stack.GetSize():
            raise BoundsFault(
                f"{API}: two rows of {H} floats do not fit the temporary buffer: it has {stack.GetSize()} floats, "
                f"{second + H} are needed"
            )
        scratch = (stack, stack[second:])
    outputs, inputs = (t.dx, t.xhat), (t.dy, t.x, t.variance, t.mean, t.gamma, t.temp)
    together = not any(o.overlaps(i) for o in outputs for i in inputs)
    inverse_H, twice_inverse_H = (
        np.float32(float_from_bits(bits)) for bits in (tiling.lastDimValueBack, tiling.lastDimValueBackMulTwo)
    )
    padding = slice(tiling.originalHLength, H) if exact else slice(H, H)

    def load(tensor: LocalTensor, role: str, start: int, size: int) -> Array:
        return tensor[start:].read(API, role, size, aligned=False).astype(FLOAT)

    def keep(slot: LocalTensor, rows: Array) -> Array:
        """Store the scratch row, which every row overwrites, and return what a later load finds."""
        slot.write(API, "scratch row", H)[:] = rows[-1]
        return rows if together else slot.read(API, "scratch row", H).reshape(1, H).copy()

    count = M if together else 1  # with shared memory a row at a time, and every load comes from memory
    for first in range(0, M, count):
        at, n = first * H, count * H
        dy, x = load(t.dy, "inputDy", at, n).reshape(count, H), load(t.x, "inputX", at, n).reshape(count, H)
        gamma = load(t.gamma, "inputGamma", 0, H)
        mean = load(t.mean, "inputMean", first, count)[:, None]
        shifted = load(t.variance, "inputVariance", first, count)[:, None] + np.float32(epsilon)

        x1, x2 = dy * gamma, x - mean
        x1[:, padding] = 0
        x2[:, padding] = 0
        power = np.float32(1) / np.sqrt((shifted * shifted) * shifted)
        var = lane_sums((x1 * (x2 * power)) * np.float32(-0.5))[:, None]
        x1, x2 = keep(scratch[0], x1), keep(scratch[1], x2)

        rstd = np.float32(1) / np.sqrt(shifted)
        xhat = x2 * rstd
        x1 = keep(scratch[0], x1 * rstd)
        mean_grad = lane_sums(x1 * np.float32(-1))[:, None]
        mean_grad = mean_grad + var * (lane_sums(x2 * np.float32(-2))[:, None] * inverse_H)
        t.xhat[at:].write(API, "resForGamma", n).reshape(count, H)[:] = xhat

        if not together:
            x1, x2 = (slot.read(API, "scratch row", H).reshape(1, H) for slot in scratch)
        dx = ((var * twice_inverse_H) * x2 + mean_grad * inverse_H) + x1
        dx[:, padding] = 0
        t.dx[at:].write(API, "outputPdX", n).reshape(count, H)[:] = dx
    count_instructions(t.dx, M * -(-H // REPEAT_FLOATS), PER_VECTOR)
    count_instructions(t.dx, M, PER_ROW)


def beta_3510(t: BetaTensors, tiling: LayerNormGradBetaTiling) -> None:
    """Compute dgamma and dbeta, 64 columns at a time, row after row in registers.

    Half is stored to nearest even, too large becomes 65504.
    """
    H, M = tiling.hLength, tiling.bLength * tiling.sLength
    dy = t.dy.read(BETA, "inputDy", M * H).reshape(M, H)
    xhat = t.xhat.read(BETA, "resForGamma", M * H).reshape(M, H)
    limit = np.float32(np.finfo(t.dgamma.dtype).max)
    for start in range(0, H, REPEAT_FLOATS):
        columns = slice(start, min(start + REPEAT_FLOATS, H))
        width = columns.stop - start
        dgamma, dbeta = np.zeros(width, FLOAT), np.zeros(width, FLOAT)
        for row in range(M):
            gradient = dy[row, columns].astype(FLOAT)
            dgamma += gradient * xhat[row, columns].astype(FLOAT)
            dbeta += gradient
        for result, role, total in ((t.dgamma, "outputPdGamma", dgamma), (t.dbeta, "outputPdBeta", dbeta)):
            if result.dtype != FLOAT:
                total = np.clip(total, -limit, limit)
            result[start:].write(BETA, role, width)[:] = total
    count_instructions(t.dy, M * -(-H // REPEAT_FLOATS), {"Mul": 1, "Add": 2})
