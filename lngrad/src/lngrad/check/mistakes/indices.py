"""Known mistakes of indices: what is read, summed or written in another place, and masks and tiles that end elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lngrad.check.inputs import true_grads
from lngrad.check.mistakes.changes import FEW_COLUMNS, Changes, ExactCase
from lngrad.check.mistakes.terms import Terms, row_sum, wide
from lngrad.core.problem import Grads
from lngrad.support.dtypes import numpy_dtype
from lngrad.typing import Array


def by_rows(call: ExactCase, name: str, step: int) -> Changes:
    """The dy or the mean of the row `step` rows further on."""
    array = wide(getattr(call.inputs, name))
    rows = call.inputs.x.size // max(1, int(np.prod(call.inputs.normalized_shape)))
    return None if rows < 2 else {name: np.roll(array.reshape(rows, -1), -step, axis=0).reshape(array.shape)}


def gamma_transposed(call: ExactCase, back: bool) -> Changes:
    """gamma's elements in the order of its transposed dimensions, or from that order."""
    shape = call.inputs.normalized_shape
    if call.inputs.gamma is None or sum(size > 1 for size in shape) < 2:
        return None
    return {"gamma": wide(call.inputs.gamma).reshape(shape if back else shape[::-1]).T.reshape(shape)}


def last_column_off(call: ExactCase, x: float | None) -> Changes:
    """dy of the last column is 0, and so is x, or xhat with None."""
    t, shape = call.terms, call.inputs.x.shape
    dy, other = t.dy.copy(), t.x.copy()
    if t.N < 2:
        return None
    dy[:, -1], other[:, -1] = 0.0, t.mean[:, 0] if x is None else x
    return {"dy": dy.reshape(shape), "x": other.reshape(shape)}


def last_column_unwritten(call: ExactCase) -> Changes:
    """NaN stands for what memory held."""
    changed = last_column_off(call, 0.0)
    if changed is None:
        return None
    grads = true_grads(replace(call.inputs, **changed))._asdict()
    for array in grads.values():
        array.reshape(-1, call.case.N)[:, -1] = np.nan
    return grads


def _places(t: Terms, bits: int, kind: str) -> Array | None:
    """Where each element lies by a row offset that wraps; None where none does."""
    if 1 << bits >= t.M * t.N:
        return None
    starts = (np.arange(t.M) * t.N).astype(kind).astype(np.int64)
    return np.asarray((starts[:, None] + np.arange(t.N)) % (t.M * t.N))


def wrapped(call: ExactCase, bits: int, kind: str) -> Changes:
    """Rows of dy and x from a row offset that wraps."""
    t, shape, places = call.terms, call.inputs.x.shape, _places(call.terms, bits, kind)
    if places is None:
        return None
    return {name: getattr(t, name).reshape(-1)[places].reshape(shape) for name in ("dy", "x")}


def wrapped_stores(call: ExactCase, bits: int, kind: str) -> Changes:
    """The same, and dx stored there: NaN stands for what memory held."""
    t, changed, places = call.terms, wrapped(call, bits, kind), _places(call.terms, bits, kind)
    if changed is None or places is None:
        return None
    grads = true_grads(replace(call.inputs, **changed))._asdict()
    dx = np.full(t.M * t.N, np.nan)
    dx[places] = grads["dx"].reshape(t.M, t.N)
    return grads | {"dx": dx}


def gamma_broadcast(call: ExactCase, **along: int) -> Changes:
    """gamma's first elements along some of its axes, in place of all."""
    gamma, shape, axes = call.inputs.gamma, call.inputs.normalized_shape, along.values()
    if gamma is None or max(axes) >= len(shape) or len(axes) == len(shape) or min(shape[axis] for axis in axes) < 2:
        return None
    index = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(len(shape)))
    return {"gamma": np.broadcast_to(wide(gamma)[index], shape)}


def statistics_by_column(call: ExactCase, *names: str) -> Changes:
    """Where there are as many rows as columns: mean and rstd, or one of them, of the column's index."""
    t = call.terms
    if t.M != t.N or t.M < 2 or (names == ("mean",) and not call.centred):
        return None
    mean, rstd = (array.T if name in names else array for name, array in (("mean", t.mean), ("rstd", t.rstd)))
    return t.with_xhat((t.x - mean) * rstd, rstd)


def statistics_transposed(call: ExactCase) -> Changes:
    lead = call.inputs.x.shape[: call.inputs.x.ndim - call.inputs.normalized]
    if sum(size > 1 for size in lead) < 2:
        return None
    return {name: wide(getattr(call.inputs, name)).reshape(lead).T.reshape(-1) for name in ("mean", "rstd")}


def gamma_by_row(call: ExactCase) -> Changes:
    t = call.terms
    if call.inputs.gamma is None or t.M < 2:
        return None
    return {"dx": t.of_norm(t.dy * t.gamma[0, np.arange(t.M) % t.N][:, None], t.xhat, t.rstd) + t.dtotal}


def _weighted(t: Terms, weight: Array) -> dict[str, Any]:
    """The column sums of rows that are counted so often."""
    return {"dgamma": (t.dy * t.xhat * weight[:, None]).sum(0), "dbeta": (t.dy * weight[:, None]).sum(0)}


def last_rows(call: ExactCase, factor: float, rows: int) -> Changes:
    """The last `rows`, or what remains after whole parts, counted `factor` times."""
    t = call.terms
    tail = t.M % rows or rows
    if tail >= t.M:
        return None
    return _weighted(t, np.where(np.arange(t.M) < t.M - tail, 1.0, factor))


def xhat_from_output(call: ExactCase, tile: int) -> Changes:
    """xhat as (y − beta)/gamma, with the gamma of the row's place in a tile in place of the column's."""
    t = call.terms
    if call.inputs.gamma is None or t.N < 2:
        return None
    other = t.gamma[0, (np.arange(t.M) % tile) % t.N][:, None]
    return {"dgamma": (t.dy * t.xhat * t.gamma / other).sum(0)}


def columns_lost(call: ExactCase, width: int) -> Changes:
    """All that comes after the last whole tile of `width` columns stays zero; width 0: the last column of dx."""
    N = call.terms.N
    tail = N % width if width else 1
    if width and (not tail or tail == N):
        return None
    names = Grads._fields if width else ("dx",)
    results = {name: np.array(getattr(call.true, name)).reshape(-1, N) for name in names}
    for result in results.values():
        result[:, -tail:] = 0
    return results


def read_as(call: ExactCase, *names: str, dtype: str = "") -> Changes:
    """Bytes taken for those of another dtype, or of x's where that is narrower: the first element's halves, and so on."""
    changed, narrow = {}, numpy_dtype(dtype or np.asarray(call.raw.x).dtype.name)
    for name in names:
        whole = np.ascontiguousarray(getattr(call.inputs, name))
        if whole.dtype != narrow and whole.dtype.kind != "O" and whole.dtype.itemsize > narrow.itemsize * (not dtype):
            changed[name] = wide(whole.reshape(-1).view(narrow)[: whole.size]).reshape(whole.shape)
    return changed or None


def modulo(call: ExactCase, name: str, size: int) -> Changes:
    """gamma or dtotal from a buffer of so many elements, in which the column's index begins anew, or of each tile's first."""
    array, N = getattr(call.inputs, name), call.terms.N
    recovered = FEW_COLUMNS if name == "gamma" else 0  # a gamma of so many is found from dx, whatever it is
    if array is None or size >= N or recovered >= N:
        return None
    return {name: wide(array).reshape(-1, N)[:, np.arange(N) % size].reshape(np.shape(array))}


def rows_in_uint16(call: ExactCase, stores: bool) -> Changes:
    """Row r is row r modulo 65536: of the loads alone, or of the stores too. NaN stands for what memory held."""
    t = call.terms
    if t.M <= 1 << 16:
        return None
    rows = np.arange(t.M) % (1 << 16)
    dx = call.true.dx.reshape(t.dy.shape)
    dx = np.where(np.arange(t.M)[:, None] < 1 << 16, dx, np.nan) if stores else dx[rows]
    return {"dx": dx, **_weighted(t, np.bincount(rows, minlength=t.M).astype(np.float64))}


def columns_more(call: ExactCase, gamma: bool, after: bool, x: bool = True, tile: int = 0) -> Changes:
    """Row sums that take the first element of the next row too, or the last of the one before, where there is one.

    With a tile, they go on to its end with the next row's; without x, this is 0 there.
    """
    t, more = call.terms, -call.terms.N % tile if tile else 1
    if t.M < 2 or not 0 < more <= t.N:
        return None
    beside, none = slice(0, more) if after else slice(-more, None), np.zeros((1, more))
    dy, other = (
        np.concatenate([array[1:, beside], none] if after else [none, array[:-1, beside]]) for array in (t.dy, t.x)
    )
    dxhat = dy * (t.gamma[:, beside] if gamma else 1.0)
    sums = dxhat * t.normalization.centred, dxhat * ((other if x else 0.0) - t.mean) * t.rstd
    return {"dx": t.dx(*(mean + row_sum(extra) / t.N for mean, extra in zip(t.means, sums, strict=True)))}


def sums_modulo(call: ExactCase, size: int) -> Changes:
    """Column sums that are gathered in a buffer of so many columns."""
    t, index = call.terms, np.arange(call.terms.N) % size
    if size >= t.N:
        return None
    return {name: np.bincount(index, t.summed(name).sum(0), size)[index] for name in ("dgamma", "dbeta")}


def tiles_transposed(call: ExactCase, tile: int) -> Changes:
    """Whole square tiles of dx, each with rows for columns."""
    t, dx = call.terms, call.true.dx.reshape(call.terms.dy.shape).copy()
    M, N = (size // tile * tile for size in (t.M, t.N))
    if not M * N:
        return None
    tiles = dx[:M, :N].reshape(M // tile, tile, N // tile, tile)
    dx[:M, :N] = tiles.transpose(0, 3, 2, 1).reshape(M, N)
    return {"dx": dx}


def lost_in_a_tree(call: ExactCase, neighbours: bool, rows: int) -> Changes:
    """Partial sums of blocks of rows, added in a tree that leaves out the last of an odd number."""
    t = call.terms
    sums = [[row] for row in range(-(-t.M // rows))]
    if len(sums) < 3:
        return None
    while len(sums) > 1:
        half = len(sums) // 2
        pairs = ((2 * index, 2 * index + 1) if neighbours else (index, index + half) for index in range(half))
        sums = [sums[name] + sums[other] for name, other in pairs]
    kept = np.zeros(-(-t.M // rows))
    kept[sums[0]] = 1.0
    if kept.all():
        return None
    return _weighted(t, np.repeat(kept, rows)[: t.M])
