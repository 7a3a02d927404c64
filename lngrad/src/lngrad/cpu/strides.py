"""How the rows of a tensor lie: their step, if they have one, else a table of steps and column offsets."""

from __future__ import annotations

import math

import numpy as np

from lngrad.core.arrays import ArraySpec, merged
from lngrad.support.dtypes import bytes_of
from lngrad.typing import Shape, Words


def table_of(spec: ArraySpec, lead: int, functions: tuple[int, int] = (0, 0)) -> Words:
    """The steps of rows and columns of a tensor with `lead` leading dimensions, for cpu.kernels.strided; then the addresses of
    the functions that gather and scatter its rows, and whether its columns follow each other."""
    dims = merged(spec.shape[:lead], spec.strides[:lead])[::-1]
    head = [len(dims), *(word for size, (step,) in dims for word in (size, step))]
    offsets = np.zeros(spec.shape[lead:], np.int64)
    for axis, (size, stride) in enumerate(zip(offsets.shape, spec.strides[lead:], strict=True)):
        steps = np.arange(size, dtype=np.int64) * stride
        offsets += steps.reshape((size,) + (1,) * (offsets.ndim - axis - 1))
    columns = offsets.ravel()
    is_plain = bool((columns == np.arange(len(columns)) * bytes_of(spec.dtype)).all())
    return np.concatenate([np.asarray(head, np.int64), columns, np.asarray((*functions, is_plain), np.int64)])


def row_stride(spec: ArraySpec, normalized: int) -> int | None:
    """Bytes from row to row of a tensor whose last `normalized` dimensions are contiguous, or None if it has no one step."""
    itemsize, split = bytes_of(spec.dtype), len(spec.shape) - normalized
    if _step(spec.shape[split:], spec.strides[split:], itemsize) != itemsize:
        return None
    step = _step(spec.shape[:split], spec.strides[:split], math.prod(spec.shape[split:]) * itemsize)
    return step if step is not None and step % itemsize == 0 else None


def is_contiguous(spec: ArraySpec) -> bool:
    """Whether an array's elements follow each other in C order."""
    itemsize = bytes_of(spec.dtype)
    return _step(spec.shape, spec.strides, itemsize) == itemsize


def _step(shape: Shape, strides: Shape, default: int) -> int | None:
    """The step of dimensions walked as one, default where there is nothing to walk, None if uneven."""
    dims = merged(shape, strides)
    return default if not dims else dims[0][1][0] if len(dims) == 1 else None
