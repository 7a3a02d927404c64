"""Loops over rows that the published tile code writes out, as one NumPy call each.

They give the values of the loop and count its instructions.
"""

from __future__ import annotations

import numpy as np

from lngrad.ascend.device.local_tensor import LocalTensor
from lngrad.ascend.device.summation import REPEAT_BYTES, repeat_sums
from lngrad.ascend.device.vector import Duplicate
from lngrad.ascend.faults import OverlapFault

BLOCK_FLOATS = 8
REPEAT_FLOATS = REPEAT_BYTES // 4
MAX_REPEATS = 255
BRCB_ROWS = 8


def refuse_partial_overlap(api: str, dst: LocalTensor, role: str, src: LocalTensor, count: int) -> None:
    """Refuse operands that are shifted against each other: the unit reads some elements before,
    some after the write.

    Raises:
        OverlapFault: They share some bytes and do not start together.
    """
    ends = (dst.start + count * dst.dtype.itemsize, src.start + count * src.dtype.itemsize)
    if dst.start != src.start and dst.core is src.core and dst.start < ends[1] and src.start < ends[0]:
        raise OverlapFault(
            f"{api}: dst ({dst.describe()}) and {role} ({src.describe()}) overlap {abs(dst.start - src.start)} bytes "
            f"apart; they must be the same memory or none of each other's, count is {count}"
        )


def row_sums(dst: LocalTensor, src: LocalTensor, rows: int, H: int) -> None:
    """dst[i] = sum of row i of src: WholeReduceSum over repeats of 64 floats, then over the partial
    sums.

    The published loop keeps its partial sums where row i starts in dst; they are dead afterwards
    and not kept here.
    """
    values = src.read("WholeReduceSum", "src", rows * H).reshape(rows, H)
    left, rounds = H, 0
    while left > 1:
        full, rest = divmod(left, REPEAT_FLOATS)
        rounds += -(-full // MAX_REPEATS) + (rest > 0)
        left = -(-left // REPEAT_FLOATS)
    src.core.tally.instructions["WholeReduceSum"] += rounds * rows
    dst.write("WholeReduceSum", "dst", rows)[:] = repeat_sums(values, REPEAT_FLOATS)


def broadcast_rows(dst: LocalTensor, src: LocalTensor, rows: int, H: int) -> None:
    """Fill row i of dst with src[i]: Brcb for every 8 rows (not on 2002), Duplicate for the
    rest."""
    refuse_partial_overlap("Brcb", dst, "src", src, rows)
    values = src.read("Brcb", "src", rows)
    whole = rows // BRCB_ROWS if dst.core.soc.arch != 2002 else 0
    brcbs = H // BLOCK_FLOATS * -(-whole // MAX_REPEATS)
    dst.core.tally.instructions["Brcb"] += brcbs
    dst.core.tally.instructions["Duplicate"] += rows - whole * BRCB_ROWS
    dst.write("Brcb", "dst", rows * H).reshape(rows, H)[:] = values.reshape(rows, 1)


def multiply_rows(dst: LocalTensor, src: LocalTensor, row: LocalTensor, rows: int, H: int) -> None:
    """Multiply every row of src by ``row``: one Mul a row."""
    refuse_partial_overlap("Mul", dst, "src0", src, rows * H)
    matrix = src.read("Mul", "src0", rows * H).reshape(rows, H)
    factors = row.read("Mul", "src1", H)
    dst.core.tally.instructions["Mul"] += rows
    np.multiply(matrix, factors, out=dst.write("Mul", "dst", rows * H).reshape(rows, H))


def add_to_rows(dst: LocalTensor, src: LocalTensor, row: LocalTensor, rows: int, H: int) -> None:
    """Add ``row`` to every row of src: one Add a row."""
    refuse_partial_overlap("Add", dst, "src0", src, rows * H)
    matrix = src.read("Add", "src0", rows * H).reshape(rows, H)
    summands = row.read("Add", "src1", H)
    dst.core.tally.instructions["Add"] += rows
    np.add(matrix, summands, out=dst.write("Add", "dst", rows * H).reshape(rows, H))


def clear_columns(dst: LocalTensor, rows: int, H: int, first: int) -> None:
    """Set the columns from ``first`` on of every row to 0: one masked Duplicate a row."""
    dst.core.tally.instructions["Duplicate"] += rows
    dst.write("Duplicate", "dst", rows * H).reshape(rows, H)[:, first:] = 0


def reciprocal(dst: LocalTensor, ones: LocalTensor, src: LocalTensor, count: int) -> None:
    """dst = 1 / src: Duplicate fills one block of ``ones``, and Div reads that block again and
    again."""
    Duplicate(ones, 1.0, BLOCK_FLOATS)
    refuse_partial_overlap("Div", dst, "src1", src, count)
    values = src.read("Div", "src1", count)
    src.core.tally.instructions["Div"] += 1
    np.divide(np.float32(1), values, out=dst.write("Div", "dst", count))


def accumulate_rows(dst: LocalTensor, src: LocalTensor, rows: int, width: int, clear: bool) -> None:
    """Add rows of ``width`` elements to dst, one Add after the other; ``clear`` starts with the
    first row plus 0."""
    total = dst.write("Adds", "dst", width) if clear else dst.read("Add", "dst", width)
    matrix = src.read("Add", "src0", rows * width).reshape(rows, width)
    if rows > 1:
        src[width:].read("Add", "src0", 0)  # one row past the first: every row must start on a block
    dst.core.tally.instructions["Add"] += rows - clear
    dst.core.tally.instructions["Adds"] += clear
    if clear:
        np.add(matrix[0], np.float32(0), out=total)
    for row in matrix[int(clear) :]:
        np.add(row, total, out=total)
