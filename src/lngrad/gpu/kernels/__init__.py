"""The Triton kernels by name; what they share is in triton_rows.py."""

from lngrad.gpu.kernels.backward import backward_columns, backward_tiles, finalize, sum_chunks
from lngrad.gpu.kernels.forward import forward_chunks, forward_columns, forward_sums, forward_tiles
from lngrad.gpu.kernels.rows import INTERPRETED

__all__ = [
    "INTERPRETED",
    "backward_columns",
    "backward_tiles",
    "finalize",
    "forward_chunks",
    "forward_columns",
    "forward_sums",
    "forward_tiles",
    "sum_chunks",
]
