"""Inputs of a case by its ranges, from a seed or from files, some rows at a time.

Values are uniform and come from PCG64's integers by one multiplication and one addition in float64: the same bits on every
machine (NumPy's normal distribution calls the machine's logarithm). Rows are drawn in chunks, each with a generator of its
own, so that a block of rows in the middle of a large case has the values that it has in the whole.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lngrad.check.case import ADDED, INPUTS, PARAMETERS, CheckCase
from lngrad.core import reference
from lngrad.core.problem import Grads
from lngrad.errors import FileFormatError
from lngrad.files.boundary import inside
from lngrad.files.reading import read_tensor, read_tensors
from lngrad.support.dtypes import accumulator_for, numpy_dtype
from lngrad.testing import Inputs

TENSORS = ("dy", "x", *ADDED)  # of x's shape
ZERO_COLUMN = 5
CHUNK_ELEMENTS = 1 << 16
FLOAT64_COPIES = 24  # that the reference, the scales and the comparison of a block hold at once, at most


@dataclass(frozen=True)
class DrawnInputs:
    """Arguments of a block of rows.

    Attributes:
        inputs: What an implementation that takes rstd is given.
        exact: The same with rstd in float64 where the case gives a variance: what the truth is computed from.
        variance: As given; from rstd where the case gives that; without the eps that `eps` says.
        eps: What is added to the variance: the case's, but 0 where it came from an rstd that is not x's.
        start, stop: Which rows of the case these are.
    """

    inputs: Inputs
    exact: Inputs
    variance: Any
    eps: float
    start: int
    stop: int


def true_grads(inputs: Inputs) -> Grads:
    """The reference in float64, quiet about the infinities that a case forces."""
    with np.errstate(all="ignore"):
        return reference.layer_norm_backward(  # type: ignore[no-any-return]
            inputs.dy, inputs.total, inputs.mean, inputs.rstd, inputs.gamma, normalized=inputs.normalized,
            normalization=inputs.normalization, dtotal=inputs.dtotal, gate=inputs.gate,
        )  # fmt: skip


def chunk_rows(N: int) -> int:
    return max(1, CHUNK_ELEMENTS // max(N, 1))


def block_rows(case: CheckCase, block_bytes: int) -> int:
    """How many rows are computed at a time: whole chunks, at least one, or all of them where they fit."""
    most = block_bytes // (8 * FLOAT64_COPIES * max(case.N, 1))
    if most >= case.M:
        return case.M
    chunk = chunk_rows(case.N)
    return max(chunk, most // chunk * chunk)


def draw(case: CheckCase, seed: int, start: int, stop: int, max_bytes: int) -> DrawnInputs:
    """The inputs of rows [start, stop); x has the shape (*lead, *normalized) if these are all, else (rows, *normalized).

    Raises:
        FileFormatError: A file that the case names is missing or does not fit.
    """
    lead = case.lead if (start, stop) == (0, case.M) else (stop - start,)
    wide = numpy_dtype(accumulator_for(case.dtype))
    dtypes = dict(zip(INPUTS, (case.dtype, case.dtype, *[case.statistics_dtype] * 2, case.gamma_dtype), strict=True))
    pairs = zip(ADDED, (case.residual, case.residual, case.gated), strict=True)
    dtypes |= {name: case.dtype if is_there else None for name, is_there in pairs}
    dtypes |= {"beta": case.gamma_dtype if case.beta and case.normalization.has_beta else None}
    arrays: dict[str, Any] = dict.fromkeys(dtypes)
    for name, dtype in dtypes.items():
        if dtype is not None and name in case.files:
            arrays[name] = _from_file(case, name, dtype, start, stop, max_bytes)
        elif dtype is not None and (range_ := case.range_of(name)) is not None:
            arrays[name] = _uniform(case, name, range_, seed, start, stop).astype(numpy_dtype(dtype))
            if name in case.zeros:
                arrays[name][:, ::ZERO_COLUMN] = 0
    normalized = len(case.normalized)
    x = arrays["x"].reshape(*lead, *case.normalized)
    dy = arrays["dy"].reshape(x.shape)
    dy, x = (np.broadcast_to(array[:1], array.shape) if case.layouts.get(name) == "shared" else array
             for name, array in (("dy", dy), ("x", x)))  # fmt: skip
    gamma, beta = (None if arrays[name] is None else arrays[name].reshape(case.parameters) for name in PARAMETERS)
    residual, dtotal, gate = (None if arrays[name] is None else arrays[name].reshape(x.shape) for name in ADDED)
    inputs = Inputs(dy, x, None, None, gamma, beta, normalized, case.normalization, residual, dtotal, gate)
    if arrays["mean"] is None or arrays["statistic"] is None:
        _statistics_of(inputs, case, arrays)
    mean, statistic = (arrays[name].reshape(*lead, *(1,) * normalized) for name in ("mean", "statistic"))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if case.third == "variance":
            variance, eps = statistic, case.eps
            exact = 1 / np.sqrt(variance.astype(np.float64) + eps)
            rstd = exact.astype(wide)
        else:
            rstd = exact = statistic
            eps = case.eps if case.takes_statistics_of_x else 0.0
            variance = (1 / statistic.astype(np.float64) ** 2 - eps).astype(wide)
            variance = np.maximum(variance, wide.type(0)) if eps else variance
    inputs = replace(inputs, mean=mean, rstd=rstd)
    return DrawnInputs(inputs, replace(inputs, rstd=exact), variance, eps, start, stop)


def with_other_values(case: CheckCase, drawn: DrawnInputs) -> DrawnInputs:
    """All rows once more with other values, in turn of dy, of x with its statistics, or of all and gamma; the first are kept.

    So a result that was kept for a shape, for some of the inputs or for their first elements is wrong here.
    """
    key = zlib.crc32(case.name.encode())
    rng, inputs = np.random.default_rng([key, 1]), drawn.inputs
    count, kind = max(1, case.M), key % 3 or 2 * (not case.has_gradients)
    rolls = (
        bool(kind) and count >= 3 and inputs.x.size > 0 and case.layouts.get("x") != "shared"
    )  # its rows are all alike

    def scaled(array: Any) -> Any:
        factors = rng.choice([-1.0, -0.5, 0.5], array.size)
        factors[: min(8, array.size // 2)] = 1
        with np.errstate(all="ignore"):
            return (array * factors.reshape(array.shape)).astype(array.dtype)

    def rolled(array: Any) -> Any:
        rows = np.array(array).reshape(count, -1)
        rows[1:] = np.roll(rows[1:], 1, axis=0)
        return rows.reshape(array.shape)

    changed: dict[str, Any] = {}
    if kind != 1 or not rolls:
        shared = case.layouts.get("dy") == "shared"
        changed["dy"] = np.broadcast_to(scaled(inputs.dy[:1]), inputs.dy.shape) if shared else scaled(inputs.dy)
    if kind == 2:
        parameters = ((name, getattr(inputs, name)) for name in PARAMETERS)
        changed |= {name: scaled(array) for name, array in parameters if array is not None}
    variance, exact = drawn.variance, drawn.exact.rstd
    if rolls:
        names = "x", "mean", "rstd", *ADDED
        changed |= {name: rolled(getattr(inputs, name)) for name in names if getattr(inputs, name) is not None}
        variance, exact = rolled(variance), changed["rstd"] if exact is inputs.rstd else rolled(exact)
    else:
        exact = inputs.rstd if exact is inputs.rstd else exact
    inputs = replace(inputs, **changed)
    return replace(drawn, inputs=inputs, exact=replace(inputs, rstd=exact), variance=variance)


def with_own_statistics(exact: Inputs, eps: float) -> Inputs:
    """The same with mean and rstd of x itself, in float64: what a kernel computes that takes neither."""
    with np.errstate(all="ignore"):
        forward = reference.layer_norm(
            exact.total, normalized=exact.normalized, eps=eps, normalization=exact.normalization, gate=exact.gate
        )
    return replace(exact, mean=forward.mean, rstd=forward.rstd)


def _statistics_of(inputs: Inputs, case: CheckCase, arrays: dict[str, Any]) -> None:
    x = inputs.total
    rows = math.prod(x.shape[: x.ndim - len(case.normalized)])
    mean, rstd = np.zeros(rows), np.ones(rows)
    with np.errstate(all="ignore"):
        if x.size:
            own = with_own_statistics(inputs, case.eps)
            mean, rstd = own.mean, own.rstd
        found = {"mean": mean, "statistic": rstd if case.third == "rstd" else np.maximum(1 / rstd**2 - case.eps, 0)}
        for name, statistic in found.items():
            if arrays[name] is None:
                arrays[name] = statistic.astype(numpy_dtype(case.statistics_dtype))


def _uniform(case: CheckCase, name: str, range_: tuple[float, ...], seed: int, start: int, stop: int) -> Any:
    """Rows [start, stop) of an input, or gamma, in float64 (rows, elements per row)."""
    low, high, *special = range_
    per_row = case.N if name in TENSORS else 1
    total = case.M
    if name in PARAMETERS:
        start, per_row, stop = 0, case.N, math.prod(case.parameters) // max(case.N, 1)
        total = stop
    values = np.empty((stop - start, per_row))
    if low == high:
        values[...] = low
    else:
        chunk = chunk_rows(case.N) if name not in PARAMETERS or total > 1 else 1
        key = [seed, zlib.crc32(case.name.encode()), (*INPUTS, *ADDED, "beta").index(name)]
        for first in range(start // chunk * chunk, stop, chunk):
            rng = np.random.default_rng([*key, first // chunk])
            drawn = rng.random((min(chunk, total - first), per_row)) * (high - low) + low
            begin, end = max(first, start), min(first + chunk, stop)
            values[begin - start : end - start] = drawn[begin - first : end - first]
    size = total * per_row
    for place, value in enumerate(special):
        at = (place + 1) * size // (len(special) + 1) if size else 0
        if start * per_row <= at < stop * per_row:
            values.reshape(-1)[at - start * per_row] = value
    return values


def _from_file(case: CheckCase, name: str, dtype: str, start: int, stop: int, max_bytes: int) -> Any:
    path, _, member = case.files[name].partition("::")
    folder = Path(case.source.file)
    full = inside(folder if folder.is_dir() else folder.parent, path)
    per_row = case.N if name in TENSORS else 1
    shape = (math.prod(case.parameters) // max(case.N, 1), case.N) if name == "gamma" else (case.M, per_row)
    if member:
        found = read_tensors(full, (member,), max_bytes)
        if member not in found.arrays:
            raise FileFormatError(f"{full}: expected an array {member[:80]!r}, got {', '.join(found.others)[:200]}")
        array = found.arrays[member]
        if array.dtype != numpy_dtype(dtype) or array.size != math.prod(shape):
            raise FileFormatError(f"{full}: {member}: expected {dtype} {shape}, got {array.dtype} {array.shape}")
        array = array.reshape(shape)
    else:
        array = read_tensor(full, dtype, shape, max_bytes)
    return np.asarray(array if name == "gamma" else array[start:stop])
