"""Arrays with canaries: memory that tells whether anything but an array's own elements was written."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from lngrad.typing import Array, Shape

CANARY = 0xA5
MARGIN = 64  # bytes before and behind


class Guarded:
    """An array in the middle of memory that is filled with canaries, and in the gaps of which there are more.

    Args:
        values: What the array begins with, which must be there after a call; None for an output.
    """

    def __init__(self, shape: Shape, dtype: np.dtype[np.generic], layout: str, values: Array | None = None):
        self.memory, self.array = _place(shape, dtype, layout)
        if values is not None:
            self.array[...] = values
        self._before = self.memory.tobytes()

    def unchanged(self) -> bool:
        """Whether every byte is as it was."""
        return self.memory.tobytes() == self._before

    def gaps_unchanged(self) -> bool:
        """Whether every byte that is none of the array's elements is as it was."""
        if not self.array.size:
            return self.unchanged()
        now, before = self.memory.copy(), np.frombuffer(self._before, np.uint8)
        offset = self.array.__array_interface__["data"][0] - self.memory.__array_interface__["data"][0]
        shadow, was = (
            np.ndarray(self.array.shape, self.array.dtype, memory, offset, self.array.strides)
            for memory in (now, before)
        )
        shadow[...] = was
        return now.tobytes() == self._before


def _place(shape: Shape, dtype: np.dtype[np.generic], layout: str) -> tuple[Array, Array]:
    item = dtype.itemsize
    big = tuple(2 * size for size in shape) if layout == "every second" else shape
    if layout == "shared" and shape:
        big = (min(1, shape[0]), *shape[1:])
    memory = np.empty(prod(big) * item + 2 * MARGIN + 1, np.uint8)
    memory.fill(CANARY)
    start = MARGIN + (1 if layout == "odd bytes" else 0)
    order = big[::-1] if layout == "reversed axes" else big
    array: Array = np.ndarray(order, dtype, memory, start)
    if layout == "reversed axes":
        array = array.transpose()
    elif layout in ("every second", "backwards"):
        step = slice(None, None, 2 if layout == "every second" else -1)
        every: tuple[Any, ...] = (..., *[step] * len(shape))  # the dots keep an array without dimensions one
        array = array[every]
    elif layout == "shared":
        array = np.broadcast_to(array, shape)
        array = np.ndarray(shape, dtype, memory, start, array.strides)  # writable, to be filled
    return memory, array
