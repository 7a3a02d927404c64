"""LayerNormGrad and LayerNormGradBeta on the architecture 3510: registers of 64 floats, one row after the other.

The order of operations is that of layernormgrad_3510_impl.h and layernormgradbeta_3510_impl.h. Rows do not depend on
each other unless operands share memory, so that all rows are computed in one go where they do not. The order in which
the lanes of a register are added up is not documented; neighbours first, as the other architectures do, is assumed.
"""

from __future__ import annotations

import numpy as np

from lngrad.ascend.device.local_tensor import LocalTensor
from lngrad.ascend.device.numerics import lane_sums
from lngrad.ascend.faults import BoundsFault
from lngrad.ascend.tile.layernormgrad_2201 import BetaTensors, GradTensors, count_instructions
from lngrad.ascend.tiling.host_functions import align_up
from lngrad.ascend.tiling.structs import LayerNormGradBetaTiling, LayerNormGradTiling, float_from_bits
from lngrad.typing import Array

FLOAT = np.dtype(np.float32)
VECTOR_FLOATS = 64
API, BETA = "LayerNormGrad", "LayerNormGradBeta"
# Instructions of the register code for each vector of a row, and for each row once.
PER_VECTOR = {"Mul": 8, "Sub": 1, "Adds": 2, "Sqrt": 2, "Div": 2, "Duplicate": 6, "Muls": 3, "Add": 5, "Select": 3}
PER_ROW = {"ReduceSum": 3, "Muls": 3, "Mul": 1, "Add": 1}


def grad_3510(t: GradTensors, epsilon: float, tiling: LayerNormGradTiling, reuse: bool, exact: bool) -> None:
    """Compute dx and xhat row by row.

    Shapes: dy, x, dx, xhat (B·S, H); variance, mean (B·S,); gamma (H,); temp bytes.
    Dtypes: all half or all float; intermediates float. Half is stored to nearest even, too large becomes infinity.
    Caller: has checked shapes, positions and dtypes.
    Source: docs/ascend-tile.md, "The numbers"; deviations: padded columns are cleared when ``exact``.
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
    count_instructions(t.dx, M * -(-H // VECTOR_FLOATS), PER_VECTOR)
    count_instructions(t.dx, M, PER_ROW)


def beta_3510(t: BetaTensors, tiling: LayerNormGradBetaTiling) -> None:
    """Compute dgamma and dbeta, 64 columns at a time, row after row in registers.

    Shapes: xhat, dy (B·S, H); dgamma, dbeta (H,).
    Dtypes: all half or all float; sums in float. Half is stored to nearest even, too large becomes 65504.
    Caller: has checked shapes, positions and dtypes.
    Source: docs/ascend-tile.md, "The numbers".
    """
    H, M = tiling.hLength, tiling.bLength * tiling.sLength
    dy = t.dy.read(BETA, "inputDy", M * H).reshape(M, H)
    xhat = t.xhat.read(BETA, "resForGamma", M * H).reshape(M, H)
    limit = np.float32(np.finfo(t.dgamma.dtype).max)
    for start in range(0, H, VECTOR_FLOATS):
        columns = slice(start, min(start + VECTOR_FLOATS, H))
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
    count_instructions(t.dy, M * -(-H // VECTOR_FLOATS), {"Mul": 1, "Add": 2})
