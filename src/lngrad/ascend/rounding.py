"""bfloat16 as Atlas A2 and A3 round it: to nearest, ties away from zero (their kernels' CAST_ROUND)."""

from __future__ import annotations

import numpy as np

from lngrad.ascend.soc import Target
from lngrad.typing import Array

BLOCK = 1 << 14  # elements at a time, so that the mask of NaNs is never of size
HALF, KEPT = np.uint32(0x8000), np.uint32(0xFFFF0000)
MAGNITUDE, INFINITY = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)


def rounds_half_away(target: Target) -> bool:
    """Whether bfloat16 results are to be rounded so. Ascend 950 rounds ties to even, as does everything by default."""
    return target.rounding == "device" and target.soc.arch == 2201


def round_half_away(values: Array) -> None:
    """Round float32 values in place to those that bfloat16 has, ties away from zero. NaN stays as it is.

    Args:
        values: contiguous, any shape. Their cast to bfloat16 is exact afterwards.
    """
    # Sign and magnitude lie side by side, so adding half of the last kept bit rounds a tie outwards
    # for either sign; a carry out of the largest finite value gives infinity, as it should.
    words = values.reshape(-1).view(np.uint32)
    for start in range(0, words.size, BLOCK):
        block = words[start : start + BLOCK]
        number = (block & MAGNITUDE) <= INFINITY
        np.add(block, HALF, out=block, where=number)
        np.bitwise_and(block, KEPT, out=block, where=number)
