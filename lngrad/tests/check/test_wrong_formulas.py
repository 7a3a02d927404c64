"""Forty wrong backwards of layer normalization and RMSNorm, written without a look at the catalogue: one failing case each.

Each is told from the formulas of a kernel; what a kernel does to memory, threads and strides is in test_kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lngrad.check.mistakes.sum_weights import describe_weights
from lngrad.check.mistakes.terms import Terms

RMS = {"norm": "rms_norm"}
LARGE = {"lead": (65,), "normalized": (64,)}
FLAT = {"ranges": {"mean": None, "statistic": None, "x": (-0.006, 0.006)}}


def average(array: Any) -> Any:
    return array.sum(1, keepdims=True) / array.shape[1]


def backward(
    t: Terms, g: Any = None, xhat: Any = None, rstd: Any = None, dy: Any = None, **means: Any
) -> dict[str, Any]:
    """A backward of its own, with what is given in the place of what is right."""
    g, xhat, rstd, dy = (
        right if item is None else item
        for item, right in zip((g, xhat, rstd, dy), (t.gamma, t.xhat, t.rstd, t.dy), strict=True)
    )
    w = dy * g
    first = means.get("first", average(w) if t.normalization.centred else 0.0)
    second = means.get("second", average(w * xhat))
    return {"dx": rstd * (w - first - xhat * second), "dgamma": (dy * xhat).sum(0), "dbeta": dy.sum(0)}


def of_rstd(t: Terms, rstd: Any, **means: Any) -> dict[str, Any]:
    return backward(t, xhat=(t.x - t.mean) * rstd, rstd=rstd, **means)


def columns(t: Terms, keep: Any) -> dict[str, Any]:
    """Sums over some rows alone."""
    return {"dgamma": (t.dy * t.xhat)[keep].sum(0), "dbeta": t.dy[keep].sum(0)}


def torch_std(t: Terms) -> dict[str, Any]:
    root = np.sqrt((1 / t.rstd**2 - 1e-5) * t.N / (t.N - 1))
    xhat, rstd = (t.x - t.mean) / (root + 1e-5), 1 / (root + 1e-5)
    w = t.dy * t.gamma
    second = (w * xhat).sum(1, keepdims=True) / (t.N - 1) / (root * rstd)
    return {"dx": rstd * (w - average(w) - xhat * second), "dgamma": (t.dy * xhat).sum(0)}


def quake(t: Terms) -> Any:
    value = (1 / t.rstd**2).astype(np.float32)
    near = (0x5F3759DF - (value.view(np.int32) >> 1)).astype(np.int32).view(np.float32)
    return (near * (1.5 - 0.5 * value * near * near)).astype(np.float64)


def blocks(t: Terms, size: int) -> Any:
    """Padded lanes with 1 in dy and gamma, and 0 in x."""
    lanes, xhat = size - t.N, -t.mean * t.rstd
    w = t.dy * t.gamma
    first = (w.sum(1, keepdims=True) + lanes) / t.N
    return {"dx": t.rstd * (w - first - t.xhat * ((w * t.xhat).sum(1, keepdims=True) + lanes * xhat) / t.N)}


def without_last_column(t: Terms) -> dict[str, Any]:
    keep = np.arange(t.N) < t.N - 1
    return backward(t, dy=t.dy * keep, xhat=t.xhat * keep)


FORTY: dict[str, tuple[str | None, dict[str, Any], Callable[[Terms], dict[str, Any]]]] = {
    "dy is overwritten by dy·gamma": ("gamma in the column sums", {}, lambda t: {
        "dgamma": (t.dxhat * t.xhat).sum(0), "dbeta": t.dxhat.sum(0)}),
    "x is not centred": ("mean ignored", {}, lambda t: backward(t, xhat=t.x * t.rstd)),
    "the deviation for its inverse": ("√variance for rstd", {}, lambda t: {"dx": t.dx() / t.rstd**2}),
    "the 2 of a square is forgotten": ("mean of dxhat·xhat 1/2 times", {}, lambda t: backward(
        t, second=average(t.dxhat * t.xhat) / 2)),
    "statistics are constants": ("mean and rstd detached", {}, lambda t: backward(
        t, first=0.0, second=0.0)),
    "means over the batch": ("means over rows", {}, lambda t: backward(
        t, first=t.dxhat.mean(0), second=(t.dxhat * t.xhat).mean(0))),
    "another eps on top": ("eps 0.001", FLAT, lambda t: of_rstd(t, 1 / np.sqrt(1 / t.rstd**2 - 1e-5 + 1e-3))),
    "gradients are averaged over rows": ("dgamma 1/M times; dbeta 1/M times", {}, lambda t: {
        "dgamma": (t.dy * t.xhat).mean(0), "dbeta": t.dy.mean(0)}),
    "a variance over N - 1": ("variance over N - 1", {}, lambda t: of_rstd(
        t, 1 / np.sqrt((1 / t.rstd**2 - 1e-5) * t.N / (t.N - 1) + 1e-5))),
    "the sign of the second term": ("mean of dxhat·xhat −1 times", {}, lambda t: backward(
        t, second=-average(t.dxhat * t.xhat))),
    "whole chunks of 16 rows": ("last part of 16 rows lost", {"lead": (76,)}, lambda t: columns(
        t, np.arange(t.M) < t.M // 16 * 16)),
    "no chunk is whole": ("dgamma and dbeta never written", {"lead": (9,)}, lambda t: columns(t, np.arange(t.M) < 0)),
    "a gradient is clipped": ("dx clipped", {}, lambda t: {"dx": np.clip(t.dx(), -1, 1)}),
    "layer normalization's dx in an RMSNorm": ("mean of dxhat subtracted", RMS, lambda t: backward(t, first=average(t.dxhat))),
    "gamma is forgotten in one mean": ("xhat·mean(dy·xhat) for the mean of dxhat·xhat", RMS, lambda t: backward(
        t, second=average(t.dy * t.xhat))),
    "rstd² for rstd³": ("x·mean_dxhat_xhat for the mean of dxhat·xhat", RMS, lambda t: {
        "dx": t.rstd * t.dxhat - t.x * t.rstd**2 * average(t.dxhat * t.x)}),
    "a sum for a mean": ("sums for means", RMS, lambda t: backward(t, second=t.N * average(t.dxhat * t.xhat))),
    "1 + gamma for gamma": ("dy·(1+γ) for dxhat", RMS, lambda t: backward(t, g=1 + t.gamma)),
    "dgamma from x": ("dy·x for dy·xhat in dgamma", RMS, lambda t: {"dgamma": (t.dy * t.x).sum(0)}),
    "torch.std and eps outside": ("variance over N - 1 and eps outside the root, in its derivative too", FLAT, torch_std),
    "products in bfloat16": ("dy·xhat rounded to bfloat16", {}, lambda t: {
        "dgamma": (t.dy * t.xhat).astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64).sum(0)}),
    "a mean over the sequence": ("dgamma 1/x.shape[1] times", {**RMS, "lead": (4, 7)}, lambda t: {
        "dgamma": (t.dy * t.xhat).sum(0) / 7}),
    "eps outside the root of an RMSNorm": ("eps outside the root", RMS | FLAT, lambda t: of_rstd(
        t, 1 / (np.sqrt(np.maximum(1 / t.rstd**2 - 1e-5, 0)) + 1e-5))),
    "a sum of squares": ("sum of squares for their mean", RMS, lambda t: backward(
        t, xhat=t.x * t.rstd / 8, rstd=t.rstd / 8, second=t.N * average(t.dxhat * t.xhat) / 8)),
    "the variance is detached": ("mean of dxhat·xhat missing", {}, lambda t: backward(t, second=0.0)),
    "rstd in the transposed order": ("statistics transposed", {**RMS, "lead": (5, 13)}, lambda t: of_rstd(
        t, t.rstd.reshape(t.lead).T.reshape(t.M, 1))),
    "divided by the block": ("two row means over a padded N", {"normalized": (100,)}, lambda t: backward(
        t, first=average(t.dxhat) * 100 / 128, second=average(t.dxhat * t.xhat) * 100 / 128)),
    "columns past 512": ("columns of dx never written", {"lead": (9,), "normalized": (600,)}, lambda t: {
        "dx": np.where(np.arange(t.N) < 512, t.dx(), -1.69e38)}),
    "gamma of the next column": ("another gamma in part of the columns: gamma of the column 1 after", RMS, lambda t: {
        "dx": backward(t, g=t.gamma[:, np.minimum(np.arange(t.N) + 1, t.N - 1)])["dx"]}),
    "the last column is not loaded": ("last column masked off, xhat too", {}, without_last_column),
    "padded lanes of ones": (None, {"normalized": (100,)}, lambda t: blocks(t, 128)),
    "no rstd": ("rstd missing in dx", RMS, lambda t: {"dx": t.dx() / t.rstd}),
    "a grid that is rounded down": ("rows of dx never written; last part of 8 rows lost", {
        **RMS, "lead": (66,)}, lambda t: {
        "dx": np.where(np.arange(t.M)[:, None] < 64, t.dx(), -1.69e38),
        "dgamma": (t.dy * t.xhat)[:64].sum(0)}),
    "rstd of the row before": ("rstd of other rows", {}, lambda t: of_rstd(
        t, t.rstd[np.maximum(np.arange(t.M) - 1, 0)])),
    "a fast inverse root": ("another rstd", RMS, lambda t: of_rstd(t, quake(t))),
    "a loop of eight columns without its tail": ("part of the columns in the mean of dxhat·xhat", {
        **RMS, "normalized": (61,)}, lambda t: backward(t, second=(t.dxhat * t.xhat)[:, :56].sum(1, keepdims=True) / t.N)),
    "the same with one column behind": ("part of the columns in the mean of dxhat·xhat", {
        **RMS, "lead": (17,), "normalized": (1025,)}, lambda t: backward(
        t, second=(t.dxhat * t.xhat)[:, :1024].sum(1, keepdims=True) / t.N)),
    "gamma of a tile of 64": ("another gamma in part of the columns: gamma of the column 64 before", {
        **RMS, "normalized": (100,)}, lambda t: {"dx": backward(t, g=t.gamma[:, np.arange(t.N) % 64])["dx"]}),
    "dgamma and dbeta are exchanged": ("dgamma and dbeta swapped", {}, lambda t: {
        "dgamma": t.dy.sum(0), "dbeta": (t.dy * t.xhat).sum(0)}),
}  # fmt: skip


@pytest.mark.parametrize("story", FORTY)
def test_a_mistake_is_named(diagnosed, story):
    name, facts, wrong = FORTY[story]
    found = diagnosed(wrong, **LARGE | facts)
    assert found.mistake == name, found


def test_a_dx_that_is_only_rounded_otherwise_is_given_no_name_beside_a_wrong_dgamma(diagnosed):
    def wrong(t: Terms) -> dict[str, Any]:
        cut = (t.dx().astype(np.float32).view(np.int32) & -65536).view(np.float32)
        return {"dx": cut, "dgamma": (t.dy * t.xhat).sum(0) - 1.69e38}

    found = diagnosed(wrong, "bfloat16", **RMS | LARGE)
    assert found.mistake == "a constant subtracted from dgamma", found


def test_rows_that_a_count_of_16_bits_leaves_are_told_from_a_prefix():
    sentence = [describe_weights((np.arange(70001) < rows).astype(float), "row") for rows in (4465, 4464)]
    assert (
        sentence[0] == "only the first 4465 rows of 70001 are counted, which is 70001 modulo 65536: a count of 16 bits"
    )
    assert sentence[1] == "only the first 4464 rows of 70001 are counted"
