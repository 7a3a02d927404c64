"""Arrays with canaries: memory that tells whether anything but an array's own elements was written."""

from __future__ import annotations

import numpy as np

from lngrad.typing import Array, Shape

__all__ = ["Guarded"]

CANARY = 0xA5
MARGIN = 64  # bytes before and behind


class Guarded:
    """An array in the middle of memory that is filled with canaries, and in the gaps of which there are more."""

    def __init__(self, shape: Shape, dtype: np.dtype[np.generic], layout: str):
        self.memory, self.array = _place(shape, dtype, layout)
        self._before = self.memory.copy()

    def fill(self, values: Array) -> None:
        """Give the array its values; what is there now must be there after the call."""
        self.array[...] = values
        self._before = self.memory.copy()

    def unchanged(self) -> bool:
        """Whether every byte is as it was."""
        return bool((self.memory == self._before).all())

    def gaps_unchanged(self) -> bool:
        """Whether every byte that is none of the array's elements is as it was."""
        if not self.array.size:
            return self.unchanged()
        now = self.memory.copy()
        shadow = np.ndarray(self.array.shape, self.array.dtype, now, self._offset(), self.array.strides)
        was = np.ndarray(self.array.shape, self.array.dtype, self._before, self._offset(), self.array.strides)
        shadow[...] = was
        return bool((now == self._before).all())

    def _offset(self) -> int:
        return int(self.array.__array_interface__["data"][0] - self.memory.__array_interface__["data"][0])


def _place(shape: Shape, dtype: np.dtype[np.generic], layout: str) -> tuple[Array, Array]:
    item = dtype.itemsize
    big = tuple(2 * size for size in shape) if layout == "every second" else shape
    if layout == "shared" and shape:
        big = (min(1, shape[0]), *shape[1:])
    nbytes = int(np.prod(big, dtype=np.int64)) * item
    memory = np.full(nbytes + 2 * MARGIN + 1, CANARY, np.uint8)
    start = MARGIN + (1 if layout == "odd bytes" else 0)
    order = big[::-1] if layout == "reversed axes" else big
    array: Array = np.ndarray(order, dtype, memory, start)
    if layout == "reversed axes":
        array = array.transpose()
    elif layout == "every second":
        array = array[tuple(slice(None, None, 2) for _ in shape)]
    elif layout == "backwards":
        array = array[tuple(slice(None, None, -1) for _ in shape)]
    elif layout == "shared":
        array = np.broadcast_to(array, shape)
        array = np.ndarray(shape, dtype, memory, start, array.strides)  # writable, to be filled
    return memory, array
