"""What the strides of a tensor allow: one step from row to row, and use as it is."""

from __future__ import annotations

import math

from lngrad.core.arrays import ArraySpec
from lngrad.core.dtypes import bytes_of


def row_stride(facts: ArraySpec, normalized: int) -> int | None:
    """Bytes from row to row of a tensor whose last `normalized` dimensions are contiguous, or None if it has no one step."""
    itemsize = bytes_of(facts.dtype)
    dims = list(zip(facts.shape, facts.strides, strict=True))
    lead, last = dims[: len(dims) - normalized], dims[len(dims) - normalized :]
    if _common_step(last, itemsize) != itemsize:
        return None
    step = _common_step(lead, math.prod(size for size, _ in last) * itemsize)
    return step if step is not None and step % itemsize == 0 else None


def is_contiguous(facts: ArraySpec) -> bool:
    """Whether an array's elements follow each other in C order."""
    itemsize = bytes_of(facts.dtype)
    return _common_step(list(zip(facts.shape, facts.strides, strict=True)), itemsize) == itemsize


def _common_step(dims: list[tuple[int, int]], default: int) -> int | None:
    """The step of dimensions (size, stride) walked as one, default where there is nothing to walk, None if uneven."""
    step: int | None = None
    extent = 0
    for size, stride in reversed([dim for dim in dims if dim[0] != 1]):
        if step is None:
            step = stride
        elif stride != extent:
            return None
        extent = stride * size
    return default if step is None else step
