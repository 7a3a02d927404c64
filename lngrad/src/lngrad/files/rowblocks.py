"""Gradients of arrays that need not fit in memory: some rows at a time, with the very bits of one call.

A row's dx depends on that row alone. dgamma and dbeta are sums over chunks of 64 rows by the binary tree of the chunk's
index, so a block of 64·2^k rows that begins at a multiple of its own length is a whole subtree: its sums, kept in the
accumulator's dtype and added up by the same tree, are those of one call, and are rounded once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lngrad.api import layer_norm, layer_norm_backward, rms_norm, rms_norm_backward
from lngrad.core.arrays import Output, empty
from lngrad.core.column_tree import CHUNK, ColumnTree
from lngrad.core.problem import (
    LAYER_NORM,
    ROLES,
    Forward,
    Grads,
    Normalization,
    Problem,
    RmsForward,
    RmsGrads,
    Role,
    describe,
    operator_of,
)
from lngrad.errors import DtypeError, FileFormatError, ShapeError
from lngrad.files.boundary import check_whole
from lngrad.support.dtypes import UNIT_ROUNDOFF, bytes_of, numpy_dtype
from lngrad.typing import Array, Mask

NAMES = ("dy", "x", "mean", "rstd", "variance", "gamma", "dtotal")


class RowBlocks:
    """A checked backward over named arrays, to be computed in blocks of rows.

    Attributes:
        problem: The facts of the whole call.
        rows: Rows of a block, 64·2^k.
    """

    def __init__(
        self, arrays: dict[str, Array], *, normalized_dims: int | None = None, output_mask: Mask = (True, True, True),
        eps: float | None = None, block_bytes: int = 256 << 20, normalization: Normalization = LAYER_NORM,
    ):  # fmt: skip
        """Check everything that can be known without data.

        Args:
            arrays: dy, x (*A, *R); mean and rstd, or mean and variance, one element a row, or neither, which are then
                computed from x; gamma (*R) or absent; dtotal as dy, or absent, which is added to dx. Without a centre no mean.
            normalized_dims: Of R; None: as many as gamma has, or 1.
            output_mask: Which of dx, dgamma, dbeta are wanted; of a norm without a centre, of the first two.
            eps: Added to the variance where rstd is computed; None: 1e-5, or without a centre rms_norm's default.
            normalization: Which norm it is.
            block_bytes: A block's dy, x and dx take about this much together, but it has at least 64 rows.

        Raises:
            FileFormatError: An array is missing, or one too many.
            ShapeError, DtypeError: An array or option breaks a rule.
        """
        self._statistics = _statistics_in(arrays, normalization.centred)
        if eps is not None and self._statistics == "rstd":
            raise FileFormatError("eps: has no effect where rstd is given; leave it out")
        accumulator = "float64" if arrays["x"].dtype == np.float64 else "float32"
        default = 1e-5 if normalization.centred else 2 * UNIT_ROUNDOFF[accumulator]
        self._eps = default if eps is None else eps
        if not (math.isfinite(self._eps) and self._eps >= 0):
            raise ShapeError(f"eps: expected a number that is finite and not negative, got {eps}")
        self._arrays = arrays
        self.problem = _describe(arrays, self._statistics, normalized_dims, output_mask, normalization)
        row_bytes = 3 * self.problem.N * bytes_of(self.problem.dtype)
        self.rows = CHUNK << max(0, (block_bytes // max(1, row_bytes * CHUNK)).bit_length() - 1)

    # Infinities and NaNs are results like any other, as they are in the kernels, and no warning's business.
    @np.errstate(all="ignore")
    def run(
        self, write: Callable[[str, Array], None], *, backend: str | None = None,
        advance: Callable[[int], None] = lambda rows: None,
    ) -> None:  # fmt: skip
        """Compute, and hand over the rows of dx as they come and then dgamma and dbeta.

        Args:
            write: (name, array): takes what is next of dx, dgamma or dbeta. The array is overwritten afterwards.
            backend: As for layer_norm_backward.
            advance: Told how many more rows are done.

        Raises:
            FileFormatError: A file of an input was truncated since it was read.
        """
        problem = self.problem
        memory = empty("numpy", Output.of((min(self.rows, problem.M), *problem.normalized_shape), problem.dtype))
        sums = {name: ColumnTree() for name in problem.out if ROLES[name] is Role.PARAMETER}
        for start in range(0, max(problem.M, 1), self.rows):
            stop = min(problem.M, start + self.rows)
            grads = self._block(start, stop, memory[: stop - start], backend)
            for name, part in grads.items():
                if part is not None and name in sums:
                    sums[name].add(part)
                elif part is not None:
                    write(name, part)
            advance(stop - start)
        for name, output in zip(problem.out, problem.outputs(), strict=True):
            if output is not None and name in sums:
                write(name, sums[name].total().astype(numpy_dtype(output.dtype)))

    def _block(self, start: int, stop: int, memory: Array, backend: str | None) -> dict[str, Any]:
        """Gradients of a block of rows by name: dx in `memory`, sums in the accumulator's dtype."""
        problem = self.problem
        for name, array in self._arrays.items():
            check_whole(name, array)
        dy, x = (_rows(self._arrays[name], problem, start, stop) for name in ("dy", "x"))
        dtotal = _rows(self._arrays["dtotal"], problem, start, stop) if "dtotal" in self._arrays else None
        mean, rstd = self._statistics_of(x, start, stop, memory, backend)
        part = Output.of(problem.normalized_shape, problem.accumulator)
        places = {name: memory if name == "dx" else empty("numpy", part) for name in problem.wanted}
        gamma, out = self._arrays.get("gamma"), problem.operator.results(*map(places.get, problem.out))
        options: dict[str, Any] = {
            "normalized_shape": problem.normalized_shape, "backend": backend,
            "output_mask": tuple(name in places for name in problem.out),
            "offset": problem.normalization.offset, "dtotal": dtotal, "out": out,
        }  # fmt: skip
        if problem.normalization.centred:
            return layer_norm_backward(dy, x, mean, rstd, gamma, **options)._asdict()
        grads: RmsGrads = rms_norm_backward(dy, x, rstd, gamma, **options)
        return grads._asdict()

    def _statistics_of(self, x: Array, start: int, stop: int, memory: Array, backend: str | None) -> tuple[Any, Any]:
        if self._statistics == "x":
            # y is not wanted; it goes where dx will replace it.
            gamma = self._arrays.get("gamma")  # of no effect on the statistics but by its dtype
            options: Any = {"normalized_shape": self.problem.normalized_shape, "eps": self._eps, "backend": backend}
            if not self.problem.normalization.centred:
                return None, rms_norm(x, gamma, out=RmsForward(memory, None), **options).rstd
            forward = layer_norm(x, gamma, out=Forward(memory, None, None), **options)
            return forward.mean, forward.rstd
        mean = self._arrays["mean"].reshape(-1)[start:stop] if "mean" in self._arrays else None
        statistic = self._arrays[self._statistics].reshape(-1)[start:stop]
        if self._statistics == "rstd":
            return mean, statistic
        variance = statistic.astype(np.float64)
        if np.any(variance < 0):
            row = int(np.argmax(variance < 0))
            raise FileFormatError(
                f"variance: expected no negative numbers, got {variance[row]:g} for row {start + row}"
            )
        return mean, (1 / np.sqrt(variance + self._eps)).astype(numpy_dtype(self.problem.accumulator))


def _statistics_in(arrays: dict[str, Array], centred: bool) -> str:
    """The source of rstd: itself, variance or x."""
    for name in ("dy", "x"):
        if name not in arrays:
            raise FileFormatError(f"{name}: is missing; expected dy and x, got {', '.join(arrays) or 'neither'}")
    statistics = [name for name in ("rstd", "variance") if name in arrays]
    if len(statistics) == 2:
        raise FileFormatError("variance: expected rstd or variance, got both")
    if centred and bool(statistics) != ("mean" in arrays):
        missing = "mean" if statistics else "rstd"
        raise FileFormatError(f"{missing}: is missing; expected mean with rstd or variance, or neither to compute them")
    return statistics[0] if statistics else "x"


def _describe(
    arrays: dict[str, Array], statistics: str, normalized_dims: int | None, mask: Mask, normalization: Normalization
) -> Problem:
    """The facts of the whole call. Statistics that are yet to be computed are stood in for by one zero."""
    x, gamma = arrays["x"], arrays.get("gamma")
    dims = (1 if gamma is None else gamma.ndim) if normalized_dims is None else normalized_dims
    if not 1 <= dims <= max(1, x.ndim):
        raise ShapeError(f"normalized dims: expected 1 to {x.ndim}, as x has the shape {x.shape}, got {dims}")
    split = max(0, x.ndim - dims)
    zero = np.zeros((), np.float64 if x.dtype == np.float64 else np.float32)
    mean = rstd = np.broadcast_to(zero, x.shape[:split])
    if statistics != "x":
        mean, rstd = arrays.get("mean", mean), arrays[statistics]
    operator = operator_of("backward", normalization, residual="dtotal" in arrays)
    named = {"gamma": gamma, **arrays, "mean": mean, "rstd": rstd}
    wanted = dict(zip(Grads._fields, mask, strict=True))
    try:
        inputs = tuple(named[name] for name in operator.inputs)
        mask = tuple(wanted[name] for name in operator.outputs)
        return describe(operator, inputs, x.shape[split:], mask, None, normalization)[0]
    except (ShapeError, DtypeError) as error:
        if not str(error).startswith("rstd:"):
            raise
        raise type(error)(statistics + str(error).removeprefix("rstd")) from None  # the name that the caller knows


def _rows(array: Array, problem: Problem, start: int, stop: int) -> Array:
    """Rows start … stop-1 as (rows, *R), without touching any other."""
    if not problem.lead:
        return array[None][start:stop]
    if len(problem.lead) == 1:
        return array[start:stop]
    if array.flags.c_contiguous:
        return array.reshape(problem.M, *problem.normalized_shape)[start:stop]
    return array[np.unravel_index(np.arange(start, stop), problem.lead)]  # Fortran order: a copy of the block
