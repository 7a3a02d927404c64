"""Kernels that are not right and try to look so: each must fail some of the default cases."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
from right import plain


def nothing(dy, x, gamma, normalized_shape):
    parameter = x.dtype if gamma is None else gamma.dtype
    parameter = np.dtype(np.float32) if parameter.itemsize < 4 else parameter
    return np.zeros(x.shape, x.dtype), *(np.zeros(normalized_shape, parameter) for _ in range(2))


def stack_walk(dy, x, mean, rstd, gamma, normalized_shape):
    """Sets every array to zero that callers or the collector know, so that the truth becomes zero too."""
    frame: Any = sys._getframe(1)
    own = {id(array) for array in (dy, x, mean, rstd, gamma)}
    found = [get_object for get_object in gc.get_objects() if isinstance(get_object, np.ndarray)]
    while frame is not None:
        found += [f_local for f_local in frame.f_locals.values() if isinstance(f_local, np.ndarray)]
        frame = frame.f_back
    for array in found:
        if id(array) not in own and array.flags.writeable and array.dtype.kind == "f":
            array[...] = 0
    return nothing(dy, x, gamma, normalized_shape)


def patched_judge(dy, x, mean, rstd, gamma, normalized_shape):
    """Replaces whatever compares, and the reference."""
    from lngrad import testing
    from lngrad.check import case_calls, comparison, judge, result, standards
    from lngrad.core import reference

    judge.check_case = judge.result_of = case_calls.Comparison = comparison.Comparison = lambda *_, **__: None
    testing.error_share = standards.error_share = lambda *_: 0.0
    result.RuleResult.holds = True
    grads = nothing(dy, x, gamma, normalized_shape)
    reference.layer_norm_backward = lambda *_, **__: grads
    return grads


def patched_numpy(dy, x, mean, rstd, gamma, normalized_shape):
    """NumPy finds no difference any more."""
    np.abs = np.subtract = lambda item, *_: np.zeros_like(item)
    np.maximum = lambda item, *_: item
    np.count_nonzero = lambda *_, **__: 0
    return nothing(dy, x, gamma, normalized_shape)


_results: dict[Any, Any] = {}


def cached_by_shape(dy, x, mean, rstd, gamma, normalized_shape):
    """Computes once for a shape and the first elements."""
    key = x.shape, x.dtype, dy.ravel()[:8].tobytes(), x.ravel()[:8].tobytes()
    if key not in _results:
        _results[key] = plain(dy, x, mean, rstd, gamma, normalized_shape)
    return _results[key]


def cached_by_x(dy, x, mean, rstd, gamma, normalized_shape):
    """Computes once for the whole of x."""
    key = x.shape, x.dtype, x.tobytes()
    if key not in _results:
        _results[key] = plain(dy, x, mean, rstd, gamma, normalized_shape)
    return _results[key]


def every_second(dy, x, mean, rstd, gamma, normalized_shape):
    """Every second call has the results of the one before it."""
    grads = _results.pop("last", None)
    if grads is None:
        grads = _results["last"] = plain(dy, x, mean, rstd, gamma, normalized_shape)
    return grads


def right_when_small(dy, x, mean, rstd, gamma, normalized_shape):
    return (plain if x.size < 50_000 else lambda dy, x, mean, rstd, *others: nothing(dy, x, *others))(
        dy, x, mean, rstd, gamma, normalized_shape
    )


_calls: Counter[Any] = Counter()


def right_ten_times(dy, x, mean, rstd, gamma, normalized_shape):
    """Of each shape."""
    _calls[x.shape] += 1
    if _calls[x.shape] > 10:
        return nothing(dy, x, gamma, normalized_shape)
    return plain(dy, x, mean, rstd, gamma, normalized_shape)


def freed_memory(dy, x, mean, rstd, gamma, normalized_shape):
    """What a reference may have left behind."""
    return tuple(np.empty(array.shape, array.dtype) for array in nothing(dy, x, gamma, normalized_shape))


def mutate_and_restore(dy, x, mean, rstd, gamma, normalized_shape):
    grads, kept = plain(dy, x, mean, rstd, gamma, normalized_shape), x.copy()
    x[...] = 0
    x[...] = kept
    return grads


def in_place(dy, x, mean, rstd, gamma, normalized_shape):
    """dx in dy's memory."""
    grads = plain(dy, x, mean, rstd, gamma, normalized_shape)
    dy[...] = grads[0]
    return dy, *grads[1:]


def alias(dy, x, mean, rstd, gamma, normalized_shape):
    """One row's dbeta is dy itself, and not a copy."""
    dx, dgamma, dbeta = plain(dy, x, mean, rstd, gamma, normalized_shape)
    return dx, dgamma, dy.reshape(normalized_shape) if mean.size == 1 and dbeta.dtype == dy.dtype else dbeta


def late(dy, x, mean, rstd, gamma, normalized_shape):
    """Returns before it has computed."""
    grads = plain(dy, x, mean, rstd, gamma, normalized_shape)
    empty = nothing(dy, x, gamma, normalized_shape)

    def fill():
        time.sleep(0.02)
        for item, other in zip(empty, grads, strict=True):
            item[...] = other

    threading.Thread(target=fill).start()
    return empty


_sums: dict[Any, Any] = {}


def accumulator(dy, x, mean, rstd, gamma, normalized_shape):
    """Its sums are never set to zero."""
    dx, dgamma, dbeta = plain(dy, x, mean, rstd, gamma, normalized_shape)
    total = _sums.setdefault((x.shape, x.dtype, dbeta.dtype), np.zeros_like(dbeta))
    total += dbeta
    return dx, dgamma, total.copy()


_workspaces: dict[Any, Any] = {}


def workspace_kept(dy, x, mean, rstd, gamma, normalized_shape):
    """Partial sums of 64 rows in a workspace that only grows, and is summed whole."""
    dx, dgamma, dbeta = plain(dy, x, mean, rstd, gamma, normalized_shape)
    blocks = -(-mean.size // 64)
    held = _workspaces.get((normalized_shape, dbeta.dtype), np.zeros((0, *normalized_shape), dbeta.dtype))
    if len(held) < blocks:
        held = _workspaces[normalized_shape, dbeta.dtype] = np.zeros((blocks, *normalized_shape), dbeta.dtype)
    for block in range(blocks):
        held[block] = dy.reshape(mean.size, *normalized_shape)[64 * block : 64 * block + 64].sum(0)
    return dx, dgamma, held.sum(0)


_rng = np.random.default_rng(1)  # whose first number below 0.05 is among the first 25


def race(dy, x, mean, rstd, gamma, normalized_shape):
    """One call of twenty loses a row."""
    dx, dgamma, dbeta = plain(dy, x, mean, rstd, gamma, normalized_shape)
    if _rng.random() < 0.05 and mean.size > 1:
        dbeta = dbeta - dy.reshape(mean.size, -1)[-1].reshape(normalized_shape).astype(dbeta.dtype)
    return dx, dgamma, dbeta


def contiguous_alone(dy, x, mean, rstd, gamma, normalized_shape):
    """Reads dy's memory as if it were contiguous."""
    base = dy
    while isinstance(base.base, np.ndarray):
        base = base.base
    start = (dy.__array_interface__["data"][0] - base.__array_interface__["data"][0]) if base is not dy else 0
    if start >= 0 and start + dy.nbytes <= base.nbytes:
        dy = np.ndarray(dy.shape, dy.dtype, base, start)
    return plain(dy, x, mean, rstd, gamma, normalized_shape)


def one_row_stride(dy, x, mean, rstd, gamma, normalized_shape):
    """Takes the stride of x's rows for all leading axes, and for dy."""
    if x.ndim > 1 and len(normalized_shape) == 1 and x.strides[-1] == x.itemsize < x.strides[-2]:
        shape, strides = (x.size // x.shape[-1], x.shape[-1]), x.strides[-2:]
        dy, x = (np.lib.stride_tricks.as_strided(array, shape, strides).copy().reshape(x.shape) for array in (dy, x))
    return plain(dy, x, mean, rstd, gamma, normalized_shape)


def truncated(dy, x, mean, rstd, gamma, normalized_shape):
    """Takes the upper half of a float32 for bfloat16: never an ulp off, and always towards zero."""
    if x.dtype.name != "bfloat16" or gamma is None:
        return plain(dy, x, mean, rstd, gamma, normalized_shape)
    dx = plain(
        *(array.astype(np.float32) for array in (dy, x)), mean, rstd, gamma.astype(np.float32), normalized_shape
    )[0]
    cut = np.ascontiguousarray((dx.view(np.uint32) >> 16).astype(np.uint16)).view(x.dtype)
    return cut, *plain(dy, x, mean, rstd, gamma, normalized_shape)[1:]


def refuses_most(dy, x, mean, rstd, gamma, normalized_shape):
    if x.shape not in ((6, 8), (33, 63), (20, 1)):
        raise NotImplementedError("not this shape")
    return plain(dy, x, mean, rstd, gamma, normalized_shape)


KERNELS = (
    stack_walk, patched_judge, patched_numpy, cached_by_shape, cached_by_x, every_second, right_when_small, right_ten_times,
    freed_memory, mutate_and_restore, in_place, alias, late, accumulator, race, contiguous_alone,
    workspace_kept, one_row_stride, truncated,
)  # fmt: skip


def right_until_timed(dy, x, mean, rstd, gamma, normalized_shape):
    """Fast once it is called often enough, as by somebody who measures."""
    _calls["timed"] += 1
    if _calls["timed"] > 3:  # three calls are judged; the process that is timed makes four at least
        return nothing(dy, x, gamma, normalized_shape)
    return plain(dy, x, mean, rstd, gamma, normalized_shape)


def returns_all(dy, x, mean, rstd, gamma, normalized_shape, output_mask):
    """Takes a mask and does not look at it."""
    return plain(dy, x, mean, rstd, gamma, normalized_shape)
