"""A workspace: what lies where in it, and the small arrays and tables that are put there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lngrad.arrays import address_of, as_numpy
from lngrad.dtypes import numpy_dtype
from lngrad.problem import Problem

__all__ = ["Copy", "Layout", "Places"]

LINE = 64  # bytes of a cache line


class Layout:
    """Places in a workspace, each on a cache line of its own; one line more lets the workspace begin anywhere."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.nbytes = LINE

    def add(self, name: str, nbytes: int) -> None:
        """Reserve a place."""
        self.places[name] = self.nbytes - LINE
        self.nbytes += -(-nbytes // LINE) * LINE


@dataclass(frozen=True)
class Copy:
    """A small array that passes through the workspace: its dtype there, and what it holds if the caller gave none."""

    name: str
    elements: int
    dtype: str
    default: float = 0.0


class Places:
    """The workspace of one run. `start`, the first whole cache line, is the address that offsets count from."""

    def __init__(self, workspace: np.ndarray[Any, Any], places: dict[str, int]):
        address = address_of(workspace)
        self._offset = -address % LINE
        self.start = address + self._offset
        self._workspace, self._places = workspace, places

    def of(self, name: str) -> int:
        """The address of a place, 0 if the plan has none of this name."""
        at = self._places.get(name)
        return 0 if at is None else self.start + at

    def _view(self, name: str, elements: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        at = self._offset + self._places[name]
        return self._workspace[at : at + elements * dtype.itemsize].view(dtype)

    def fill(self, copy: Copy, array: Any) -> int:
        """Convert an array, or the default, into its place; the address."""
        view = self._view(copy.name, copy.elements, numpy_dtype(copy.dtype))
        if array is None:
            view[...] = copy.default
        else:
            np.copyto(view.reshape(array.shape), as_numpy(array), casting="same_kind")
        return self.of(copy.name)

    def deliver(self, copy: Copy, array: Any) -> None:
        """Convert what a kernel left in a place to the output that it stood in for."""
        view = self._view(copy.name, copy.elements, numpy_dtype(copy.dtype))
        np.copyto(as_numpy(array), view.reshape(array.shape), casting="same_kind")

    def table(self, name: str, array: Any, problem: Problem) -> int:
        """The address of a tensor's table of row and column offsets, 0 if it has a plain row stride."""
        if array is None or f"{name}_table" not in self._places:
            return 0
        table = self._view(f"{name}_table", problem.M + problem.N, np.dtype(np.int64))
        strides, lead = as_numpy(array).strides, len(problem.lead)
        _fill_offsets(table[: problem.M], problem.lead, strides[:lead])
        _fill_offsets(table[problem.M :], problem.normalized_shape, strides[lead:])
        return self.of(f"{name}_table")


def _fill_offsets(table: np.ndarray[Any, Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Offsets in bytes of all elements of a shape, in C order."""
    table[...] = 0
    grid = table.reshape(shape)
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = np.arange(size, dtype=np.int64) * stride
        grid += steps.reshape((size,) + (1,) * (len(shape) - axis - 1))
