"""How an array lies in memory, by a word: whole, with gaps, padded, backwards, transposed, misaligned, or one row repeated."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from lngrad.typing import Array, Bytes, Shape

# "odd bytes" begins a byte, "offset" an element past a cache line;
# "corner" is cut out of an array that is larger along every axis, so that rows and all above them are further apart;
# "shared" repeats one row with stride 0, as what torch expands has; it is for inputs alone.
LAYOUTS = ("plain", "reversed axes", "every second", "backwards", "odd bytes", "offset", "corner", "shared")
MARGIN = 64  # bytes before and behind an array
_CANARY = 0xA5


def room(shape: Shape, itemsize: int, layout: str) -> int:
    """Bytes of memory that an array takes, with its margins."""
    return prod(_held(shape, layout)) * itemsize + 2 * MARGIN + {"odd bytes": 1, "offset": itemsize}.get(layout, 0)


def laid_out(memory: Bytes, start: int, shape: Shape, dtype: np.dtype[Any], layout: str) -> Array:
    """An array whose room begins at a byte of some memory; it is writable also where elements share memory."""
    held, start = _held(shape, layout), start + MARGIN + {"odd bytes": 1, "offset": dtype.itemsize}.get(layout, 0)
    order = held[::-1] if layout == "reversed axes" else held
    array: Array = np.ndarray(order, dtype, memory, start)
    if layout == "reversed axes":
        array = array.transpose()
    elif layout in ("every second", "backwards"):
        step = slice(None, None, 2 if layout == "every second" else -1)
        every: tuple[Any, ...] = (..., *[step] * len(shape))  # the dots keep an array without dimensions one
        array = array[every]
    elif layout == "corner":
        inside: tuple[Any, ...] = (..., *map(slice, shape))
        array = array[inside]
    elif layout == "shared":
        array = np.ndarray(shape, dtype, memory, start, np.broadcast_to(array, shape).strides)
    return array


def _held(shape: Shape, layout: str) -> Shape:
    if layout == "every second":
        return tuple(2 * size for size in shape)
    if layout == "corner":
        return tuple(size + 1 for size in shape)
    return (min(1, shape[0]), *shape[1:]) if layout == "shared" and shape else shape


class Guarded:
    """An array in the middle of memory that is filled with canaries, and in the gaps of which there are more.

    Args:
        values: What the array begins with, which must be there after a call; None for an output.
    """

    def __init__(self, shape: Shape, dtype: np.dtype[np.generic], layout: str, values: Array | None = None):
        self.memory = np.full(room(shape, dtype.itemsize, layout), _CANARY, np.uint8)
        self.array = laid_out(self.memory, 0, shape, dtype, layout)
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
        array = self.array
        shadow, was = (np.ndarray(array.shape, array.dtype, memory, offset, array.strides) for memory in (now, before))
        shadow[...] = was
        return now.tobytes() == self._before
