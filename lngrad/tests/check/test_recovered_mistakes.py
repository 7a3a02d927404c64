"""Wrong kernels that were written without a look at the list: each is named by a rule, in three dtypes, or described."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lngrad.check.mistakes.terms import Terms

FROM_X = {"mean": None, "statistic": None}
APART = {"ranges": {**FROM_X, "x": (-6.0, 6.0)}}  # rstd is not near 1
SMALL = {"ranges": {**FROM_X, "x": (-0.006, 0.006)}}  # eps shows
TILES = {"lead": (40,), "normalized": (96,)}
ROWS = {"lead": (5, 8), "normalized": (40,)}


def dx(t: Terms, **other: Any) -> Any:
    rstd, xhat, D = (other.get(name, getattr(t, name)) for name in ("rstd", "xhat", "dxhat"))
    first = other.get("first", D.mean(1, keepdims=True))
    return rstd * (D - first - xhat * other.get("second", (D * xhat).mean(1, keepdims=True)))


def from_rstd(t: Terms, rstd: Any, mean: Any = None) -> dict[str, Any]:
    xhat = (t.x - (t.mean if mean is None else mean)) * rstd
    return {"dx": dx(t, xhat=xhat, rstd=rstd), "dgamma": (t.dy * xhat).sum(0)}


def means(t: Terms, of: Callable[[Any], Any]) -> dict[str, Any]:
    return {"dx": dx(t, first=of(t.dxhat), second=of(t.dxhat * t.xhat))}


def tiles(array: Any, width: int = 32) -> Any:
    return array.reshape(len(array), -1, width).sum(2)


def across(t: Terms, array: Any) -> Any:
    """Rows in the order of the transposed leading dimensions."""
    return array.reshape(*t.lead, -1).swapaxes(0, 1).reshape(array.shape)


def fast_root(t: Terms) -> Any:
    variance = (1 / t.rstd**2).astype(np.float32)
    near = (0x5F3759DF - (variance.view(np.int32) >> 1)).astype(np.int32).view(np.float32)
    return (near * (1.5 - 0.5 * variance * near * near)).astype(np.float64)


def whose(t: Terms, block: int) -> Any:
    return np.arange(t.M) // block * block


def of_last_size(t: Terms, array: Any) -> Any:
    sums = np.zeros(t.N)
    sums[: t.normalized[-1]] = array.sum(0).reshape(-1, t.normalized[-1]).sum(0)
    return sums


def float16_dots(t: Terms) -> Any:
    with np.errstate(all="ignore"):
        return {"dx": dx(t, second=(t.dxhat * t.xhat).sum(1, keepdims=True).astype(np.float16) / np.float64(t.N))}


FRESH: dict[str, tuple[str, dict[str, Any], Callable[[Terms], dict[str, Any]]]] = {
    "dx is added to what lies in dy's memory": ("dy added to dx", {}, lambda t: {"dx": dx(t) + t.dy}),
    "column sums start from 1": ("1 added to dgamma; 1 added to dbeta", {},
                                 lambda t: {"dgamma": (t.dy * t.xhat).sum(0) + 1, "dbeta": t.dy.sum(0) + 1}),
    "a weight decay": ("0.1·γ added to dgamma", {}, lambda t: {"dgamma": (t.dy * t.xhat).sum(0) + 0.1 * t.gamma[0]}),
    "dgamma of the dx that overwrote dy": ("dx·xhat for dy·xhat in dgamma; dx for dy in dbeta", {},
                                           lambda t: {"dgamma": (dx(t) * t.xhat).sum(0), "dbeta": dx(t).sum(0)}),
    "statistics of the first row of a tile of 4": ("statistics of other rows", {},
                                                   lambda t: from_rstd(t, t.rstd[whose(t, 4)], t.mean[whose(t, 4)])),
    "rstd of the row before": ("rstd of other rows", {}, lambda t: from_rstd(t, np.roll(t.rstd, 1, axis=0))),
    "rstd of a tile's first row before the bracket": ("dx times a factor a row: rstd of another row", {},
                                                      lambda t: {"dx": dx(t, rstd=t.rstd[whose(t, 8)])}),
    "sums over the wrong axis of a square": ("dgamma over the columns; dbeta over the columns",
                                             {"lead": (48,), "normalized": (48,)},
                                             lambda t: {"dgamma": (t.dy * t.xhat).sum(1), "dbeta": t.dy.sum(1)}),
    "gamma missing in both means": ("dy for dxhat in the row means", {}, lambda t: {
        "dx": dx(t, first=t.dy.mean(1, keepdims=True), second=(t.dy * t.xhat).mean(1, keepdims=True))}),
    "gamma missing in the first mean": ("mean(dy) for the mean of dxhat", {},
                                        lambda t: {"dx": dx(t, first=t.dy.mean(1, keepdims=True))}),
    "eps added to the deviation": ("eps outside the root", SMALL, lambda t: from_rstd(t, 1 / (1 / t.rstd + 1e-3))),
    "another eps": ("another eps", SMALL, lambda t: from_rstd(t, 1 / np.sqrt(1 / t.rstd**2 + 7e-6))),
    "a fast inverse root": ("another rstd", {}, lambda t: from_rstd(t, fast_root(t))),
    "means of a tile": ("means of each tile", TILES, lambda t: means(t, lambda item: np.repeat(tiles(item) / 32, 32, 1))),
    "sums of a tile, divided by N": ("sums of a tile for the row's", TILES,
                                     lambda t: means(t, lambda item: np.repeat(tiles(item) / t.N, 32, 1))),
    "dx before the sums are complete": ("sums up to the tile", TILES, lambda t: means(
        t, lambda item: np.repeat(np.cumsum(tiles(item), 1) / t.N, 32, 1))),
    "gamma by the row": ("gamma of the row's index", TILES, lambda t: {
        "dx": dx(t, dxhat=t.dy * t.gamma[0, np.arange(t.M) % t.N][:, None])}),
    "gamma's dimensions transposed": ("gamma transposed", {"normalized": (6, 16)}, lambda t: {
        "dx": dx(t, dxhat=t.dy * t.gamma.reshape(6, 16).T.reshape(1, -1))}),
    "RMSNorm's backward": ("mean ignored; mean of dxhat missing", {}, lambda t: {
        "dx": dx(t, xhat=t.x * t.rstd, first=0), "dgamma": (t.dy * t.x * t.rstd).sum(0)}),
    "gamma once more behind the bracket": ("dx times a factor a column: gamma", {}, lambda t: {"dx": dx(t) * t.gamma}),
    "an offset of rows that wraps": ("rows of dx in other places", {"lead": (100,), "normalized": (40,)},
                                     lambda t: {"dx": dx(t)[np.arange(t.M) % 64]}),
    "dx in the order of [S, B] for [B, S]": ("rows of dx in other places", ROWS, lambda t: {"dx": across(t, dx(t))}),
    "dy in the order of [S, B] for [B, S]": ("dy of other rows", ROWS, lambda t: {
        "dx": dx(t, dxhat=across(t, t.dy) * t.gamma), "dgamma": (across(t, t.dy) * t.xhat).sum(0),
        "dbeta": t.dy.sum(0)}),
    "sums stored one column early": ("columns of dgamma in other places; columns of dbeta in other places", {}, lambda t: {
        "dgamma": np.roll((t.dy * t.xhat).sum(0), -1), "dbeta": np.roll(t.dy.sum(0), -1)}),
    "dropout's factor": ("all gradients 1.11 times", {}, lambda t: {
        "dx": dx(t) / 0.9, "dgamma": (t.dy * t.xhat).sum(0) / 0.9, "dbeta": t.dy.sum(0) / 0.9}),
    "the loss scale is left in": ("all gradients 1024 times", {}, lambda t: {
        "dx": dx(t) * 1024, "dgamma": (t.dy * t.xhat).sum(0) * 1024, "dbeta": t.dy.sum(0) * 1024}),
    "rstd once more in the second term": ("rstd·xhat·mean_dxhat_xhat for the mean of dxhat·xhat", APART,
                                          lambda t: {"dx": dx(t, second=t.rstd * (t.dxhat * t.xhat).mean(1, keepdims=True))}),
    "rstd missing in the first term": ("1/rstd·dxhat for dxhat in the first term", APART,
                                       lambda t: {"dx": dx(t) - t.rstd * t.dxhat + t.dxhat}),
    "the first row's mean in all": ("mean of dxhat of other rows", TILES, lambda t: {
        "dx": dx(t, first=t.dxhat.mean(1, keepdims=True)[:1])}),
    "a mean that is off": ("mean off by a constant", TILES, lambda t: from_rstd(t, t.rstd, t.mean + 0.02)),
    "gamma from the end": ("another gamma in part of the columns: gamma of the column counted from the end", TILES,
                           lambda t: {"dx": dx(t, dxhat=t.dy * t.gamma[:, ::-1])}),
    "gamma with a stride": ("another gamma in part of the columns: gamma of the column at 2 times its index", TILES,
                            lambda t: {"dx": dx(t, dxhat=t.dy * t.gamma[:, np.arange(t.N) * 2 % t.N])}),
    "the last tile begins too early": ("part of the rows in the column sums", {"lead": (60,), "normalized": (40,)}, lambda t: {
        "dgamma": (t.dy * t.xhat).sum(0) + (t.dy * t.xhat)[44:48].sum(0), "dbeta": t.dy.sum(0) + t.dy[44:48].sum(0)}),
    "the last tile has the opposite sign": ("dx times a factor a column: −1", TILES,
                                            lambda t: {"dx": dx(t) * np.where(np.arange(t.N) < 64, 1, -1)}),
    "a lock's count that is never set": ("part of the rows in the column sums", {"lead": (100,), "normalized": (40,)},
                                         lambda t: {"dgamma": (t.dy * t.xhat)[-16:].sum(0), "dbeta": t.dy[-16:].sum(0)}),
    "gamma.size(-1) columns": ("dgamma over gamma's last size; dbeta over gamma's last size", {"normalized": (4, 12)},
                               lambda t: {
        "dgamma": of_last_size(t, t.dy * t.xhat), "dbeta": of_last_size(t, t.dy)}),
    "columns that are never stored": ("columns of dx never written; columns of dgamma never written", TILES, lambda t: {
        "dx": np.where(np.arange(t.N) < 64, dx(t), np.nan),
        "dgamma": np.where(np.arange(t.N) < 64, (t.dy * t.xhat).sum(0), 7.5)}),
    "rows that are never stored": ("rows of dx never written", TILES,
                                   lambda t: {"dx": np.where(np.arange(t.M)[:, None] < 32, dx(t), np.nan)}),
    "dot products in float16": ("row sums overflow float16", {"ranges": {**FROM_X, "dy": (-9e3, 9e3)}} | TILES, float16_dots),
    "rstd is hardly too large": ("rstd 1.0", TILES, lambda t: from_rstd(t, t.rstd * 1.01)),
    "rstd has an upper limit": ("rstd clamped", SMALL, lambda t: from_rstd(t, np.minimum(t.rstd, 240))),
    "rstd has an upper limit where x is constant": ("dx or rstd 0.316 times", {
        "ranges": {**FROM_X, "x": (1.5, 1.5)}}, lambda t: from_rstd(t, np.minimum(t.rstd, 100))),
    "eps outside the root where x is constant": ("eps outside the root", {
        "ranges": {**FROM_X, "x": (1.5, 1.5)}}, lambda t: {"dx": dx(t) * 0.00316227766 / 1e-5}),
    "averages of chunks": ("unweighted means of chunks", {"normalized": (100,)}, lambda t: means(
        t, lambda item: np.stack([item[:, :64].mean(1), item[:, 64:].mean(1)]).mean(0)[:, None])),
    "three rows that are lost": ("part of the rows in the column sums", {"lead": (300,), "normalized": (40,)}, lambda t: {
        "dgamma": np.delete(t.dy * t.xhat, [3, 170, 200], 0).sum(0), "dbeta": np.delete(t.dy, [3, 170, 200], 0).sum(0)}),
    "a tangent": ("gradients through tanh in dx alone", {}, lambda t: {"dx": np.tanh(dx(t))}),
    "the last tile is added to itself": ("rows of dx counted twice", {"lead": (64,), "normalized": (40,)},
                                         lambda t: {"dx": np.concatenate([dx(t)[:48], 2 * dx(t)[48:]])}),
}  # fmt: skip


DTYPES = ("float32", "bfloat16", "float16")
# Every story in one dtype, the next story in the next dtype; all dtypes, and another seed, where it is slow.
TURNS = [
    pytest.param(story, dtype, seed, marks=[pytest.mark.slow] if seed or place % len(DTYPES) != turn else [])
    for place, story in enumerate(FRESH)
    for turn, dtype in enumerate(DTYPES)
    for seed in (0, 1)
]


@pytest.mark.parametrize(("story", "dtype", "seed"), TURNS)
def test_a_fresh_mistake_is_named(diagnosed, story, dtype, seed):
    name, facts, wrong = FRESH[story]
    found = diagnosed(wrong, dtype, seed, **facts)
    if dtype == "bfloat16" and story in ("a fast inverse root", "a weight decay"):  # below its rounding
        assert found.mistake in (name, None), found
    else:
        assert (found.mistake or found.sentence).startswith(name), found


def test_additions_lost_element_by_element_are_named_in_float32(diagnosed):
    found = diagnosed(lambda t: {"dgamma": (t.dy * t.xhat * ~share_of(t, 0.01)).sum(0)}, lead=(65,), normalized=(64,))
    assert found.mistake == "additions lost"


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
def test_one_output_in_another_dtype_is_named(diagnosed, narrow):
    kind = ml_dtypes.bfloat16 if narrow == "bfloat16" else np.float16
    found = diagnosed(lambda t: {"dgamma": (t.dy * t.xhat).sum(0).astype(np.float32).astype(kind)})
    assert found.mistake == f"dgamma rounded to {narrow}"


def test_a_factor_of_some_columns_is_said_with_them(diagnosed):
    found = diagnosed(lambda t: {"dx": dx(t) * np.where(np.arange(t.N) < 64, 1, 1.3)}, **TILES)
    assert found.mistake == "dx times a factor a column"
    assert found.sentence == "dx is the right one times 1.3 in the last 32 columns (from 64 on) of 96."


@pytest.mark.parametrize("name", ["dy", "x", "gamma"])
def test_an_input_that_is_rounded_first_is_named(diagnosed, name):
    def wrong(t: Terms) -> dict[str, Any]:
        def narrow(which: str) -> Any:
            array = getattr(t, which)
            return array.astype(ml_dtypes.bfloat16).astype(np.float64) if which == name else array

        dy, xhat = narrow("dy"), (narrow("x") - t.mean) * t.rstd
        return {"dx": dx(t, dxhat=dy * narrow("gamma"), xhat=xhat), "dgamma": (dy * xhat).sum(0), "dbeta": dy.sum(0)}

    assert diagnosed(wrong).mistake == f"{name} rounded to bfloat16"


def share_of(t: Terms, share: float) -> Any:
    return np.random.default_rng(5).random(t.dy.shape) < share


# Of no known kind: an error that a rule "explains" here is explained by its free numbers.
STRANGE: dict[str, Callable[[Terms], dict[str, Any]]] = {
    "noise": lambda t: {"dx": dx(t) + 0.02 * np.random.default_rng(1).standard_normal(t.dy.shape)},
    "noise in a column sum": lambda t: {"dgamma": (t.dy * t.xhat).sum(0) + np.random.default_rng(1).standard_normal(t.N)},
    "some elements are lost": lambda t: {"dx": dx(t) * ~share_of(t, 0.05)},
    "dropout without its mask": lambda t: {"dx": dx(t, dxhat=t.dxhat * ~share_of(t, 0.1) / 0.9)},
    "a rectifier": lambda t: {"dx": dx(t) * (t.x > 0)},
    "xhat without its sign": lambda t: from_rstd(t, t.rstd) | {"dx": dx(t, xhat=np.abs(t.xhat))},
    "a median": lambda t: {"dx": dx(t, first=np.median(t.dxhat, axis=1, keepdims=True))},
    "random rows at the end": lambda t: {
        "dx": np.concatenate([dx(t)[:64], np.random.default_rng(2).standard_normal(dx(t)[64:].shape)])},
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("story", STRANGE)
def test_what_is_of_no_known_kind_is_described_and_not_named(diagnosed, story, dtype):
    found = diagnosed(STRANGE[story], dtype)
    assert found.mistake is None, found
    assert found.formulas == found.weights == ()
    assert found.sentence.startswith("no known mistake explains it. ")


def test_a_clipped_gradient_is_named(diagnosed):
    found = diagnosed(lambda t: {"dx": np.clip(dx(t), -0.5, 0.5)})
    assert found.mistake == "dx clipped"
    assert "dx is never larger than 0.5, where up to " in found.sentence


def test_one_wrong_column_sum_is_not_taken_for_one_that_was_never_written(diagnosed):
    def wrong(t: Terms, value: float) -> dict[str, Any]:
        return {"dbeta": np.where(np.arange(t.N) == 5, value, t.dy.sum(0))}

    assert diagnosed(lambda t: wrong(t, -7.0), **TILES).mistake is None
    assert diagnosed(lambda t: wrong(t, -1.69e38), **TILES).mistake == "columns of dbeta never written"


# What may be named where a right formula is rounded to 16 bits on the way: nothing, or where and to what it is rounded.
ROUNDED = ("rounded to", " sums", "kept in", "rstd in", "another rstd")


def rounded_is_not_misnamed(diagnosed: Any, dtype: str, seeds: range) -> None:
    """A right formula, rounded at random places, as kernels do that compute in x's dtype."""
    narrow = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    for seed in seeds:
        rng = np.random.default_rng(seed)
        odd = rng.random(12) < rng.choice([0.15, 0.5, 1.0])

        def step(place: int, array: Any, odd: Any = odd) -> Any:
            array = np.asarray(array, np.float32)
            return array.astype(narrow).astype(np.float32) if odd[place] else array

        def wrong(t: Terms, step: Any = step) -> dict[str, Any]:
            mean, rstd = step(0, t.mean), step(1, t.rstd)
            xhat, dxhat = step(3, step(2, t.x - mean) * rstd), step(4, t.dxhat)
            first, second = step(5, dxhat.mean(1, keepdims=True)), step(6, step(7, dxhat * xhat).mean(1, keepdims=True))
            changed = rstd * step(10, step(8, dxhat - first) - step(9, xhat * second))
            return {"dx": changed, "dgamma": step(11, t.dy * xhat).sum(0)}

        lead, N = (int(rng.integers(2, 150)),), int(rng.integers(6, 300))
        ranges = {"mean": (-1.0, 1.0), "statistic": (0.3, 2.0)} if seed % 3 == 0 else FROM_X
        found = diagnosed(wrong, dtype, seed, lead=lead, normalized=(N,), ranges=ranges)
        assert found.mistake is None or any(word in found.mistake for word in ROUNDED), (seed, found)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_right_formula_in_16_bits_is_given_no_name_of_another_mistake(diagnosed, dtype):
    rounded_is_not_misnamed(diagnosed, dtype, range(5))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_five_hundred_right_formulas_in_16_bits_are_given_no_name_of_another_mistake(diagnosed, dtype):
    rounded_is_not_misnamed(diagnosed, dtype, range(5, 255))
