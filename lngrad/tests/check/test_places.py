"""A known mistake at one place alone: in one result, in one term of dx, in some rows or columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lngrad.check.mistakes.terms import Terms

FROM_X = {"mean": None, "statistic": None}
LARGE = {"lead": (65,), "normalized": (64,)}
SMALL = {**LARGE, "ranges": {**FROM_X, "x": (-0.006, 0.006)}}
STREAM = {**LARGE, "norm": "add_layer_norm"}
RMS_STREAM = {**LARGE, "norm": "add_rms_norm"}


def average(array: Any) -> Any:
    return array.mean(1, keepdims=True)


def dx_of(t: Terms, first: Any = None, **of_second: Any) -> Any:
    """dx with another first mean, or other numbers in its last term."""
    before, inside, rstd = (of_second.get(name, t.xhat) for name in ("before", "inside", "rstd"))
    rstd = of_second.get("rstd", t.rstd)
    first = average(t.dxhat) if first is None else first
    if not t.normalization.centred:
        first = 0.0
    return rstd * (t.dxhat - first - before * average(t.dxhat * inside)) + t.dtotal


def without_eps(t: Terms) -> Any:
    return 1 / np.sqrt(1 / t.rstd**2 - 1e-5)


def narrow(array: Any) -> Any:
    return array.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def rows(t: Terms, start: int) -> Any:
    return np.arange(t.M)[:, None] >= start


def cancelled(t: Terms) -> Any:
    """rstd of E[x²] − E[x]², summed from the last column on."""
    x = t.x[:, ::-1].astype(np.float32)
    squares, mean = (np.add.accumulate(array, 1)[:, -1:] / np.float32(t.N) for array in (x * x, x))
    return 1 / np.sqrt(np.maximum(squares - mean * mean, 0).astype(np.float64) + 1e-5)


def mixed(t: Terms, start: int, dy: Any, xhat: Any) -> Any:
    """dgamma with other terms from a row on."""
    return (np.where(rows(t, start), dy, t.dy) * np.where(rows(t, start), xhat, t.xhat)).sum(0)


PLACES: dict[str, tuple[dict[str, Any], Callable[[Terms], dict[str, Any]]]] = {
    # In one result.
    "mean and rstd swapped in dgamma alone": (LARGE, lambda t: {"dgamma": (t.dy * (t.x - t.rstd) * t.mean).sum(0)}),
    "dy of other rows in dgamma": (LARGE, lambda t: {"dgamma": (np.roll(t.dy, -1, 0) * t.xhat).sum(0)}),
    "statistics rounded to bfloat16 in dx alone": (LARGE, lambda t: {
        "dx": t.of_norm(t.dxhat, (t.x - narrow(t.mean)) * narrow(t.rstd), narrow(t.rstd))}),
    # In one term of dx.
    "eps missing in the last term of dx alone": (SMALL, lambda t: {
        "dx": dx_of(t, before=t.xhat / t.rstd * without_eps(t), inside=t.xhat / t.rstd * without_eps(t))}),
    "eps missing in the factor before the bracket alone": (SMALL, lambda t: {"dx": dx_of(t, rstd=without_eps(t))}),
    "dy of the previous row in the first term of dx alone": (LARGE, lambda t: {
        "dx": t.rstd * (np.roll(t.dxhat, 1, 0) - average(t.dxhat) - t.xhat * average(t.dxhat * t.xhat))}),
    "mean ignored in the mean of dxhat·xhat alone": (LARGE, lambda t: {"dx": dx_of(t, inside=t.x * t.rstd)}),
    "mean ignored in the xhat before its mean alone": (LARGE, lambda t: {"dx": dx_of(t, before=t.x * t.rstd)}),
    # In some rows or columns.
    "dtotal forgotten in part of the rows": (RMS_STREAM, lambda t: {"dx": dx_of(t) - t.dtotal * rows(t, 48)}),
    "gamma forgotten in part of the rows": (STREAM, lambda t: {
        "dx": np.where(rows(t, 61), t.of_norm(t.dy, t.xhat, t.rstd), t.of_norm(t.dxhat, t.xhat, t.rstd)) + t.dtotal}),
    "eps missing in part of the rows": (SMALL, lambda t: {
        "dx": np.where(rows(t, 32), t.of_norm(t.dxhat, t.xhat / t.rstd * without_eps(t), without_eps(t)), dx_of(t)),
        "dgamma": mixed(t, 32, t.dy, t.xhat / t.rstd * without_eps(t))}),
    "mean of dxhat missing in part of the rows": (LARGE, lambda t: {
        "dx": np.where(rows(t, 60), dx_of(t, first=0.0), dx_of(t))}),
    "mean of dxhat 2 times in part of the rows": (LARGE, lambda t: {
        "dx": np.where(rows(t, 60), dx_of(t, first=2 * average(t.dxhat)), dx_of(t))}),
    "gamma forgotten in part of the columns": (LARGE, lambda t: {
        "dx": np.where(np.arange(t.N) >= 56, t.of_norm(t.dy, t.xhat, t.rstd), dx_of(t))}),
    "mean ignored in part of the rows of dgamma": (LARGE, lambda t: {"dgamma": mixed(t, 48, t.dy, t.x * t.rstd)}),
    "dy of the previous row in part of the rows of dgamma": (LARGE, lambda t: {
        "dgamma": mixed(t, 32, np.roll(t.dy, 1, 0), t.xhat)}),
    "mean of the column's index": ({**LARGE, "lead": (64,)}, lambda t: {
        "dx": t.of_norm(t.dxhat, (t.x - t.mean.T) * t.rstd, t.rstd), "dgamma": (t.dy * (t.x - t.mean.T) * t.rstd).sum(0)}),
    "mean rounded to bfloat16": (LARGE, lambda t: {
        "dx": t.of_norm(t.dxhat, (t.x - narrow(t.mean)) * t.rstd, t.rstd),
        "dgamma": (t.dy * (t.x - narrow(t.mean)) * t.rstd).sum(0)}),
    "row means divided by the last size alone": ({"lead": (9,), "normalized": (6, 7)}, lambda t: {
        "dx": t.rstd * (t.dxhat - 6 * average(t.dxhat) - t.xhat * 6 * average(t.dxhat * t.xhat))}),
    "unweighted means of chunks": ({"lead": (5,), "normalized": (4097,)}, lambda t: {
        "dx": t.dx(*(np.stack([item[:, :4096].mean(1), item[:, 4096]]).mean(0)[:, None] for item in t.averaged))}),
    "mean of dxhat·xhat over M": ({"lead": (40,), "normalized": (64,)}, lambda t: {
        "dx": t.dx(second=1.6 * average(t.dxhat * t.xhat))}),
    "dtotal added to dxhat in the mean of dxhat·xhat alone": (STREAM, lambda t: {
        "dx": t.dx(second=average((t.dxhat + t.dtotal) * t.xhat))}),
    "dtotal of other rows": (STREAM, lambda t: {"dx": dx_of(t) - t.dtotal + np.asarray(t.dtotal)[np.arange(65) % 32]}),
    "dy·(x−mean) for dy·xhat in dgamma": ({**LARGE, "lead": (1,)}, lambda t: {"dgamma": (t.dy * (t.x - t.mean)).sum(0)}),
    "part of the rows in the column sums": ({"lead": (300,), "normalized": (16,)}, lambda t: {
        "dgamma": (t.dy * t.xhat).sum(0) + (t.dy * t.xhat)[172:256].sum(0)}),
    "variance by cancellation": ({**LARGE, "ranges": {**FROM_X, "x": (1000.0, 1004.0)}}, lambda t: {
        "dx": t.of_norm(t.dxhat, (t.x - t.mean) * cancelled(t), cancelled(t)),
        "dgamma": (t.dy * (t.x - t.mean) * cancelled(t)).sum(0)}),
}  # fmt: skip
SAID = {
    "dtotal of other rows": "all rows use the dtotal of the row modulo 32: ",
    "part of the rows in the column sums": "dgamma: not every row is counted once: rows 172 to 255 of 300 are counted twice",
    "dtotal forgotten in part of the rows": "In the last 17 rows (from 48 on) of 65 alone: dx lacks dtotal",
    "gamma forgotten in part of the columns": "In the last 8 columns (from 56 on) of 64 alone: dx is computed without gamma",
    "mean ignored in part of the rows of dgamma": "In the last 17 rows (from 48 on) of 65, of dgamma: mean is not subtracted",
}


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PLACES)
def test_a_known_mistake_is_named_at_its_place(diagnosed, name, dtype):
    facts, wrong = PLACES[name]
    found = diagnosed(wrong, dtype, **facts)
    assert found.mistake == name, found
    assert found.sentence.startswith(SAID.get(name, "")), found


def test_of_two_values_of_eps_the_nearer_is_named(diagnosed):
    """Both are within some tolerances where x is of the size of 1."""

    def with_eps(t: Terms, eps: float) -> dict[str, Any]:
        rstd = 1 / np.sqrt(1 / t.rstd**2 - 1e-5 + eps)
        xhat = (t.x - t.mean) * rstd
        return {"dx": t.of_norm(t.dxhat, xhat, rstd), "dgamma": (t.dy * xhat).sum(0)}

    facts = {"lead": (64,), "normalized": (64,), "ranges": {**FROM_X, "x": (-0.5, 0.5)}}
    found = diagnosed(lambda t: with_eps(t, 1e-6), **facts)
    assert found.mistake == "eps 1e-06", found
    assert diagnosed(lambda t: with_eps(t, 0.0), **facts).mistake == "eps missing"


def test_a_number_that_a_case_leaves_open_has_alternatives(diagnosed):
    """After whole parts of 8 rows of 67 remain as many as after whole parts of 16."""
    found = diagnosed(lambda t: {"dgamma": (t.dy * t.xhat)[:64].sum(0), "dbeta": t.dy[:64].sum(0)}, lead=(67,))
    assert found.mistake == "last part of 8 rows lost"
    assert {f"last part of {rows} rows lost" for rows in (16, 32, 64)} <= {name for name, _ in found.alternatives}


def test_a_row_of_nan_is_of_no_mistake_in_this_row(diagnosed):
    """As memory that was never written: float32 gamma read as float16 would give NaN too."""
    found = diagnosed(
        lambda t: {"dx": np.where(rows(t, t.M - 1), np.nan, t.dx())}, "float16", gamma_dtype="float32", **LARGE
    )
    assert found.mistake is None, found


def test_few_numbers_are_of_no_place(diagnosed):
    """Of one element, and of three columns, some combination of mistake and place may give what is there."""
    for facts in ({"lead": (1,), "normalized": (1,)}, {"lead": (1,), "normalized": (3,)}):
        found = diagnosed(lambda t: {"dx": t.rstd * (t.dy * (1 + t.gamma) - 0.3 * t.xhat)}, **facts)
        assert found.mistake is None or not found.mistake.endswith("alone"), found


def test_one_row_that_is_off_among_thousands_is_explained_by_nothing_that_leaves_it_off(diagnosed):
    def wrong(t: Terms) -> dict[str, Any]:
        noise = np.random.default_rng(0).standard_normal(t.dy.shape)
        return {"dx": np.where(rows(t, t.M - 1), noise, t.dx())}

    found = diagnosed(wrong, lead=(5000,), normalized=(12,))
    assert found.mistake is None, found


def test_float64_that_is_computed_in_float32_is_named(diagnosed):
    def wrong(t: Terms) -> dict[str, Any]:
        dy, xhat, dxhat, rstd = (array.astype(np.float32) for array in (t.dy, t.xhat, t.dxhat, t.rstd))
        dx = rstd * (dxhat - average(dxhat) - xhat * average(dxhat * xhat))
        return {"dx": dx, "dgamma": (dy * xhat).sum(0), "dbeta": dy.sum(0)}

    assert diagnosed(wrong, "float64", **LARGE).mistake == "computed in float32"
