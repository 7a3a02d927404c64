"""A workspace: what lies where in it, and the small arrays and tables that are put there."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from lngrad.core.arrays import ArraySpec, address_of, array_at
from lngrad.core.dtypes import bytes_of, numpy_dtype
from lngrad.typing import Address, Array, Bytes, Shape, Words

LINE = 64  # bytes of a cache line


class Regions:
    """Offsets in a workspace by name, each on a cache line; one line more lets the workspace begin anywhere."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self.nbytes = LINE

    def add(self, name: str, elements: int, dtype: str) -> None:
        """Reserve a region."""
        self.offsets[name] = self.nbytes - LINE
        self.nbytes += -(-elements * bytes_of(dtype) // LINE) * LINE

    def add_table(self, name: str, entries: int) -> None:
        """Reserve a region for a table of offsets."""
        self.add(name, entries, "float64")  # as wide as an int64


class Workspace:
    """The memory of one run. `start`, its first whole cache line, is the address that offsets count from."""

    def __init__(self, memory: Bytes, offsets: Mapping[str, int]):
        address = address_of(memory)
        self._skipped = -address % LINE
        self.start = address + self._skipped
        self._memory, self._offsets = memory, offsets

    def address(self, name: str) -> Address:
        """Where a region begins."""
        return self.start + self._offsets[name]

    def content(self) -> Words:
        """A copy of all of it, from `start` on."""
        at = self._skipped
        return self._memory[at : at + (len(self._memory) - at) // 8 * 8].view(np.int64).copy()

    def _view(self, name: str, elements: int, dtype: np.dtype[np.generic]) -> Array:
        at = self._skipped + self._offsets[name]
        return self._memory[at : at + elements * dtype.itemsize].view(dtype)

    def fill(self, name: str, elements: int, dtype: str, value: float) -> None:
        """Fill a region with a number."""
        self._view(name, elements, numpy_dtype(dtype))[...] = value

    def copy_in(self, name: str, dtype: str, source: Address, facts: ArraySpec) -> None:
        """Convert an array into its region."""
        array = array_at(source, facts)
        with np.errstate(all="ignore"):  # a statistic beyond the range of its dtype is infinite
            np.copyto(self._view(name, array.size, numpy_dtype(dtype)).reshape(array.shape), array, casting="same_kind")

    def copy_out(self, name: str, dtype: str, target: Address, facts: ArraySpec) -> None:
        """Convert what a kernel left in a region into the output that it stood in for."""
        array = array_at(target, facts)
        with np.errstate(all="ignore"):
            np.copyto(array, self._view(name, array.size, numpy_dtype(dtype)).reshape(array.shape), casting="same_kind")

    def fill_table(self, name: str, facts: ArraySpec, lead: int) -> None:
        """Write how rows and columns of a tensor with `lead` leading dimensions lie, as kernels.numba_cpu.strided reads it."""
        dims = _merged(facts.shape[:lead], facts.strides[:lead])
        words = [len(dims), *(word for dim in dims for word in dim)]
        columns = facts.shape[lead:]
        table = self._view(name, len(words) + math.prod(columns), np.dtype(np.int64))
        table[: len(words)] = words
        _fill_offsets(table[len(words) :], columns, facts.strides[lead:])


def table_entries(shape: Shape, lead: int) -> int:
    """How many int64 fill_table writes at most."""
    return 1 + 2 * lead + math.prod(shape[lead:])


def _merged(shape: Shape, strides: Shape) -> list[tuple[int, int]]:
    """Dimensions as (size, step), innermost first; those of size 1 left out, and those walked as one made one."""
    dims: list[tuple[int, int]] = []
    for size, step in reversed([dim for dim in zip(shape, strides, strict=True) if dim[0] != 1]):
        if dims and step == dims[-1][0] * dims[-1][1]:
            dims[-1] = size * dims[-1][0], dims[-1][1]
        else:
            dims.append((size, step))
    return dims


def _fill_offsets(table: Array, shape: Shape, strides: Shape) -> None:
    """Offsets in bytes of all elements of a shape, in C order."""
    table[...] = 0
    grid = table.reshape(shape)
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = np.arange(size, dtype=np.int64) * stride
        grid += steps.reshape((size,) + (1,) * (len(shape) - axis - 1))
