"""The Triton kernels by name; what they share is in triton_rows.py."""

from lngrad.kernels.triton_gpu.backward import backward_columns, backward_tiles, finalize, sum_chunks
from lngrad.kernels.triton_gpu.forward import forward_chunks, forward_columns, forward_sums, forward_tiles
from lngrad.kernels.triton_gpu.rows import INTERPRETED

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
