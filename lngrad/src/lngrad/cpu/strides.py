"""How the rows of a tensor lie: their step, if they have one, else a table of steps and column offsets."""

from __future__ import annotations

import math

import numpy as np

from lngrad.core.arrays import ArraySpec
from lngrad.support.dtypes import bytes_of
from lngrad.typing import Shape, Words


def table_of(spec: ArraySpec, lead: int, functions: tuple[int, int] = (0, 0)) -> Words:
    """How rows and columns of a tensor with `lead` leading dimensions lie, as cpu.kernels.strided reads it; then the addresses
    of the functions that gather and scatter its rows, and whether its columns follow each other."""
    dims = merged(spec.shape[:lead], spec.strides[:lead])
    head = [len(dims), *(word for dim in dims for word in dim)]
    offsets = np.zeros(spec.shape[lead:], np.int64)
    for axis, (size, stride) in enumerate(zip(offsets.shape, spec.strides[lead:], strict=True)):
        steps = np.arange(size, dtype=np.int64) * stride
        offsets += steps.reshape((size,) + (1,) * (offsets.ndim - axis - 1))
    columns = offsets.ravel()
    is_plain = bool((columns == np.arange(len(columns)) * bytes_of(spec.dtype)).all())
    return np.concatenate([np.asarray(head, np.int64), columns, np.asarray((*functions, is_plain), np.int64)])


def merged(shape: Shape, strides: Shape) -> list[tuple[int, int]]:
    """Dimensions as (size, step), innermost first; those of size 1 left out, and those walked as one made one."""
    dims: list[tuple[int, int]] = []
    for size, step in reversed([dim for dim in zip(shape, strides, strict=True) if dim[0] != 1]):
        if dims and step == dims[-1][0] * dims[-1][1]:
            dims[-1] = size * dims[-1][0], dims[-1][1]
        else:
            dims.append((size, step))
    return dims


def row_stride(spec: ArraySpec, normalized: int) -> int | None:
    """Bytes from row to row of a tensor whose last `normalized` dimensions are contiguous, or None if it has no one step."""
    itemsize = bytes_of(spec.dtype)
    dims = list(zip(spec.shape, spec.strides, strict=True))
    lead, last = dims[: len(dims) - normalized], dims[len(dims) - normalized :]
    if _common_step(last, itemsize) != itemsize:
        return None
    step = _common_step(lead, math.prod(size for size, _ in last) * itemsize)
    return step if step is not None and step % itemsize == 0 else None


def is_contiguous(spec: ArraySpec) -> bool:
    """Whether an array's elements follow each other in C order."""
    itemsize = bytes_of(spec.dtype)
    return _common_step(list(zip(spec.shape, spec.strides, strict=True)), itemsize) == itemsize


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
