"""Wrong kernels whose mistakes are rare: precision at one place, memory, counts of rows. One failing case each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lngrad.check.case import CheckCase
from lngrad.check.inputs import draw
from lngrad.check.mistakes.diagnosis import diagnose
from lngrad.check.mistakes.terms import Terms
from lngrad.core.problem import Grads

FROM_X = {"mean": None, "statistic": None}
LARGE = {"lead": (65,), "normalized": (64,)}
STREAM = {**LARGE, "norm": "add_layer_norm"}
RMS = {"norm": "rms_norm"}


def average(array: Any) -> Any:
    return array.mean(1, keepdims=True)


def narrow(item: Any, dtype: Any = ml_dtypes.bfloat16) -> Any:
    with np.errstate(over="ignore"):
        return np.asarray(item).astype(np.float32).astype(dtype).astype(np.float64)


def means(t: Terms, first: Any, second: Any) -> dict[str, Any]:
    return {"dx": t.rstd * (t.dxhat - first - t.xhat * second) + t.dtotal}


def float32_sums(t: Terms) -> dict[str, Any]:
    def of(array: Any) -> Any:
        return np.cumsum(array.astype(np.float32), axis=1, dtype=np.float32)[:, -1:].astype(np.float64) / t.N

    return means(t, of(t.dxhat), of(t.dxhat * t.xhat))


def counted(t: Terms, columns: Any) -> dict[str, Any]:
    return means(
        t, (t.dxhat * columns).sum(1, keepdims=True) / t.N, (t.dxhat * t.xhat * columns).sum(1, keepdims=True) / t.N
    )


def many_times(t: Terms, row: int, times: int) -> dict[str, Any]:
    weight = np.where(np.arange(t.M)[:, None] == row, times, 1)
    return {"dgamma": (t.dy * t.xhat * weight).sum(0), "dbeta": (t.dy * weight).sum(0)}


def cancelled(t: Terms) -> dict[str, Any]:
    """Another order of sums than the catalogue's."""
    x = t.x.astype(np.float32)
    mean = np.cumsum(x, 1, dtype=np.float32)[:, -1:] / np.float32(t.N)
    variance = np.cumsum(x * x, 1, dtype=np.float32)[:, -1:] / np.float32(t.N) - mean * mean
    rstd = 1 / np.sqrt(np.maximum(variance.astype(np.float64), 0) + 1e-5)
    xhat = (t.x - t.mean) * rstd
    return {"dx": t.of_norm(t.dxhat, xhat, rstd), "dgamma": (t.dy * xhat).sum(0)}


def of_infinite(t: Terms, dxhat: Any) -> Any:
    with np.errstate(all="ignore"):
        return t.of_norm(dxhat, t.xhat, t.rstd)


def index(t: Terms) -> Any:
    return np.arange(t.N)


MORE: dict[str, tuple[str, str, dict[str, Any], Callable[[Terms], dict[str, Any]]]] = {
    "row sums of doubles in floats": ("row sums kept in float32", "float64", LARGE, float32_sums),
    "products summed in bfloat16": ("row sums added up in bfloat16", "float32", LARGE, lambda t: means(t, *(
        _running(array) / t.N for array in (t.dxhat, t.dxhat * t.xhat)))),
    "dtotal in dbeta": ("dy+dtotal for dy in dbeta", "float32", STREAM, lambda t: {"dbeta": (t.dy + t.dtotal).sum(0)}),
    "dtotal in dgamma": ("(dy+dtotal)·xhat for dy·xhat in dgamma", "float32", STREAM, lambda t: {
        "dgamma": ((t.dy + t.dtotal) * t.xhat).sum(0)}),
    "dbeta of dtotal where dy is zero": ("dy+dtotal for dy in dbeta", "float32", {
        **STREAM, "ranges": {**FROM_X, "dy": (0.0, 0.0)}}, lambda t: {"dbeta": t.dtotal.sum(0)}),
    "the last row fills its block": ("part of the rows in the column sums", "float32", {
        "lead": (300,), "normalized": (16,)}, lambda t: many_times(t, 299, 213)),
    "an overlapping last vector in one row": ("part of the columns in the means", "float32", {
        "lead": (1,), "normalized": (33,)}, lambda t: counted(t, 1 + ((index(t) >= 25) & (index(t) < 32)))),
    "three rows without the last columns": ("part of the columns in the means", "float32", {
        "lead": (3,), "normalized": (2500,)}, lambda t: counted(t, index(t) < 2048)),
    "the last block of columns alone": ("part of the columns in the mean of dxhat·xhat", "float32", {
        **RMS, "lead": (3,), "normalized": (2500,)}, lambda t: means(
        t, 0.0, (t.dxhat * t.xhat)[:, 2048:].sum(1, keepdims=True) / t.N)),
    "a variance that cancels, in another order": ("variance by cancellation", "float32", {
        "lead": (64,), "normalized": (96,), "ranges": {**FROM_X, "x": (1000.0, 1004.0)}}, cancelled),
    "gamma in a buffer of 4096": ("gamma modulo 4096", "float32", {"lead": (5,), "normalized": (4099,)}, lambda t: {
        "dx": t.of_norm(t.dy * t.gamma[:, index(t) % 4096], t.xhat, t.rstd)}),
    "dxhat beyond float16's range": ("dxhat rounded to float16 in dx", "float16", {
        **LARGE, "ranges": {**FROM_X, "dy": (-3.4e4, 3.4e4)}}, lambda t: {"dx": of_infinite(t, narrow(t.dxhat, np.float16))}),
    "subnormal results are zero": ("dx flushed to zero", "float16", {
        **LARGE, "ranges": {**FROM_X, "dy": (-9e-5, 9e-5)}}, lambda t: {"dx": np.where(np.abs(t.dx()) < 2.0**-14, 0, t.dx())}),
    "nothing is left of subnormal results": ("dx flushed to zero", "float16", {
        **LARGE, "ranges": {**FROM_X, "dy": (-4e-6, 4e-6)}}, lambda t: {"dx": 0 * t.dx()}),
    "dxhat of ones without gamma": ("dx zero without gamma", "float32", {**LARGE, "gamma_dtype": None}, lambda t: {
        "dx": t.of_norm(np.ones_like(t.dy), t.xhat, t.rstd)}),
    "xhat in bfloat16 for dgamma": ("xhat rounded to bfloat16 in dgamma", "float32", LARGE, lambda t: {
        "dgamma": (t.dy * narrow(t.xhat)).sum(0)}),
    "products and sums in bfloat16": ("products and row sums rounded to bfloat16", "float32", LARGE, lambda t: means(
        t, *(narrow(narrow(array).sum(1, keepdims=True)) / t.N for array in (t.dxhat, t.dxhat * t.xhat)))),
    "all products overflow": ("overflow in 16 bits", "float16", {
        "lead": (9,), "normalized": (64,), "ranges": {**FROM_X, "dy": (-6e4, 6e4)}}, lambda t: {
        "dx": of_infinite(t, narrow(2e4 * t.dxhat, np.float16))}),
    "statistics of the row in its tile, for dgamma": ("statistics of other rows in dgamma", "float32", {
        "lead": (300,), "normalized": (16,)}, lambda t: {"dgamma": (
            t.dy * (t.x - t.mean[np.arange(t.M) % 256]) * t.rstd[np.arange(t.M) % 256]).sum(0)}),
    "dy of the first row of a tile, for dbeta": ("dy of other rows in dbeta", "float32", {
        "lead": (50,), "normalized": (16,)}, lambda t: {"dbeta": t.dy[np.arange(t.M) // 16 * 16].sum(0)}),
    "x of the row before, for dgamma": ("x of other rows in dgamma", "bfloat16", {
        "lead": (70,), "normalized": (64,)}, lambda t: {"dgamma": (t.dy * (np.roll(t.x, 1, 0) - t.mean) * t.rstd).sum(0)}),
    "dtotal is added to bfloat16": ("norm's part rounded to bfloat16 before dtotal is added", "float32", STREAM, lambda t: {
        "dx": narrow(t.dx() - t.dtotal) + t.dtotal}),
}  # fmt: skip


def _running(item: Any) -> Any:
    total = np.zeros((len(item), 1))
    for column in narrow(item).T:
        total = narrow(total + column[:, None])
    return total


@pytest.mark.parametrize("story", MORE)
def test_a_mistake_is_named(diagnosed, story):
    name, dtype, facts, wrong = MORE[story]
    found = diagnosed(wrong, dtype, **facts)
    assert found.mistake == name, found


def test_row_sums_in_another_order_are_no_mistake_of_a_tile(diagnosed):
    """One row: two numbers say which of a hundred patterns it is, and none where they are of no pattern."""
    found = diagnosed(
        lambda t: means(t, 0.9 * average(t.dxhat), 1.2 * average(t.dxhat * t.xhat)), lead=(1,), normalized=(33,)
    )
    assert found.mistake is None or "part of the columns" not in found.mistake, found


def test_column_sums_of_no_rows_that_are_not_set(make_case: Callable[..., CheckCase]):
    case = make_case(lead=(0,), normalized=(16,))
    drawn = draw(case, 0, 0, 0, 1 << 30)
    got = Grads(np.zeros((0, 16), np.float32), np.full(16, 1.5e16, np.float32), np.full(16, np.nan, np.float32))
    found = diagnose(case, drawn, got, {"dgamma": np.full((1, 16), 9.0)})
    assert found.mistake == "column sums of no rows"
