"""Loops over rows that the published tile code writes out, as one NumPy call each.

They give the values of the loop and count its instructions. The names in lower case are of this house; the
instructions are those of ``vector``.
"""

from __future__ import annotations

import numpy as np

from lngrad.ascend.device.local_tensor import LocalTensor
from lngrad.ascend.device.vector import (
    BRCB_ROWS,
    MAX_REPEATS,
    REPEAT_FLOATS,
    Duplicate,
    pairwise_sum,
    quiet,
    refuse_partial_overlap,
    repeat_sums,
)
from lngrad.typing import Array

__all__ = [
    "accumulate_rows",
    "add_to_rows",
    "broadcast_rows",
    "clear_columns",
    "lane_sums",
    "multiply_rows",
    "reciprocal",
    "row_sums",
]

BLOCK_FLOATS = 8


@quiet
def row_sums(dst: LocalTensor, src: LocalTensor, rows: int, H: int) -> None:
    """dst[i] = sum of row i of src: WholeReduceSum over repeats of 64 floats, then over the partial sums.

    The published loop keeps its partial sums where row i starts in dst; they are dead afterwards and not kept here.
    """
    values = src.read("WholeReduceSum", "src", rows * H).reshape(rows, H)
    left, rounds = H, 0
    while left > 1:
        full, rest = divmod(left, REPEAT_FLOATS)
        rounds += -(-full // MAX_REPEATS) + (rest > 0)
        left = -(-left // REPEAT_FLOATS)
    src.ub.tally.instructions["WholeReduceSum"] += rounds * rows
    dst.write("WholeReduceSum", "dst", rows)[:] = repeat_sums(values, REPEAT_FLOATS)


def broadcast_rows(dst: LocalTensor, src: LocalTensor, rows: int, H: int) -> None:
    """Fill row i of dst with src[i]: Brcb for every 8 rows (not on 2002), Duplicate for the rest."""
    refuse_partial_overlap("Brcb", dst, "src", src, rows)
    values = src.read("Brcb", "src", rows)
    whole = rows // BRCB_ROWS if dst.ub.soc.arch != 2002 else 0
    brcbs = H // BLOCK_FLOATS * -(-whole // MAX_REPEATS)
    dst.ub.tally.instructions["Brcb"] += brcbs
    dst.ub.tally.instructions["Duplicate"] += rows - whole * BRCB_ROWS
    dst.write("Brcb", "dst", rows * H).reshape(rows, H)[:] = values.reshape(rows, 1)


@quiet
def multiply_rows(dst: LocalTensor, src: LocalTensor, row: LocalTensor, rows: int, H: int) -> None:
    """Multiply every row of src by ``row``: one Mul a row."""
    refuse_partial_overlap("Mul", dst, "src0", src, rows * H)
    matrix = src.read("Mul", "src0", rows * H).reshape(rows, H)
    factors = row.read("Mul", "src1", H)
    dst.ub.tally.instructions["Mul"] += rows
    np.multiply(matrix, factors, out=dst.write("Mul", "dst", rows * H).reshape(rows, H))


@quiet
def add_to_rows(dst: LocalTensor, src: LocalTensor, row: LocalTensor, rows: int, H: int) -> None:
    """Add ``row`` to every row of src: one Add a row."""
    refuse_partial_overlap("Add", dst, "src0", src, rows * H)
    matrix = src.read("Add", "src0", rows * H).reshape(rows, H)
    summands = row.read("Add", "src1", H)
    dst.ub.tally.instructions["Add"] += rows
    np.add(matrix, summands, out=dst.write("Add", "dst", rows * H).reshape(rows, H))


def clear_columns(dst: LocalTensor, rows: int, H: int, first: int) -> None:
    """Set the columns from ``first`` on of every row to 0: one masked Duplicate a row."""
    dst.ub.tally.instructions["Duplicate"] += rows
    dst.write("Duplicate", "dst", rows * H).reshape(rows, H)[:, first:] = 0


@quiet
def reciprocal(dst: LocalTensor, ones: LocalTensor, src: LocalTensor, count: int) -> None:
    """dst = 1 / src: Duplicate fills one block of ``ones``, and Div reads that block again and again."""
    Duplicate(ones, 1.0, BLOCK_FLOATS)
    refuse_partial_overlap("Div", dst, "src1", src, count)
    values = src.read("Div", "src1", count)
    src.ub.tally.instructions["Div"] += 1
    np.divide(np.float32(1), values, out=dst.write("Div", "dst", count))


def lane_sums(rows: Array) -> Array:
    """Return the sum of every row: 64-float pieces are added lane by lane in order, then neighbours pairwise.

    Shapes: (M, n) to (M,).
    """
    n = rows.shape[1]
    total = rows[:, :REPEAT_FLOATS].copy()
    for start in range(REPEAT_FLOATS, n, REPEAT_FLOATS):
        piece = rows[:, start : start + REPEAT_FLOATS]
        total[:, : piece.shape[1]] += piece
    return pairwise_sum(total)


@quiet
def accumulate_rows(dst: LocalTensor, src: LocalTensor, rows: int, width: int, clear: bool) -> None:
    """Add rows of ``width`` elements to dst, one Add after the other; ``clear`` starts with the first row plus 0."""
    total = dst.write("Adds", "dst", width) if clear else dst.read("Add", "dst", width)
    matrix = src.read("Add", "src0", rows * width).reshape(rows, width)
    if rows > 1:
        src[width:].read("Add", "src0", 0)  # one row past the first: every row must start on a block
    dst.ub.tally.instructions["Add"] += rows - clear
    dst.ub.tally.instructions["Adds"] += clear
    if clear:
        np.add(matrix[0], np.float32(0), out=total)
    for row in matrix[int(clear) :]:
        np.add(row, total, out=total)
