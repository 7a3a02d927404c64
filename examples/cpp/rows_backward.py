"""The host side of rows_backward.cpp, for `lngrad check --impl ascendc:examples/cpp/rows_backward.cpp:rows_backward`."""

from __future__ import annotations

import struct
from typing import Any

BLOCKS = 4


def host(M: int, N: int, dtype: str, gamma_dtype: str | None) -> dict[str, Any]:
    """Return how the kernel is launched for M rows of N elements."""
    if (dtype, gamma_dtype) != ("float32", "float32"):
        raise NotImplementedError("rows_backward takes float32, with a gamma")
    if N % 8:
        raise NotImplementedError(f"rows_backward copies whole blocks of 8 elements, and N is {N}")
    if not M * N:
        raise NotImplementedError("rows_backward takes no empty arrays")
    return {
        "blocks": BLOCKS,
        "workspace": 2 * N * 4 * BLOCKS,
        "tiling": struct.pack("<3I", M, N, -(-M // BLOCKS)),
        "define": {"COLUMN_SUMS": 1},
    }
