"""The formula that a wrong result obeys is found, the difference marked, and the rows or columns that entered a sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lngrad.check.mistakes.sum_weights import describe_weights, recover_weights, runs_of
from lngrad.check.mistakes.terms import Terms

DTYPES = ("float32", "bfloat16", "float16", "float64")


def dx(t: Terms, a: float = 1, b: float = 1, c: float = 1, **other: Any) -> Any:
    D = other.get("D", t.dxhat)
    first, second = (array.mean(1, keepdims=True) for array in (other.get("D1", D), other.get("D2", D) * t.xhat))
    return other.get("scale", t.rstd) * (a * D - b * first - c * other.get("X", t.xhat) * second)


FORMULAS = {
    "**2**·rstd·(dxhat − mean_dxhat − xhat·mean_dxhat_xhat)": lambda t: 2 * dx(t),
    "**−1**·rstd·(dxhat − mean_dxhat − xhat·mean_dxhat_xhat)": lambda t: -dx(t),
    "rstd·(dxhat − **2**·mean_dxhat − xhat·mean_dxhat_xhat)": lambda t: dx(t, b=2),
    "rstd·(dxhat − mean_dxhat − **1/2**·xhat·mean_dxhat_xhat)": lambda t: dx(t, c=0.5),
    "rstd·(dxhat − mean_dxhat − **N/(N−1)**·xhat·mean_dxhat_xhat)": lambda t: dx(t, c=t.N / (t.N - 1)),
    "rstd·(dxhat − **1/N**·mean_dxhat − xhat·mean_dxhat_xhat)": lambda t: dx(t, b=1 / t.N),
    "rstd·(dxhat + **1**·mean_dxhat − xhat·mean_dxhat_xhat)": lambda t: dx(t, b=-1),
    "rstd·(dxhat − mean_dxhat − **γ·xhat·mean_dxhat_xhat**)": lambda t: dx(t, X=t.xhat * t.gamma),
    "rstd·(dxhat − mean_dxhat − **xhat·mean(dy·xhat)**)": lambda t: dx(t, D2=t.dy),
    "rstd·(dxhat − **mean(dy)** − xhat·mean_dxhat_xhat)": lambda t: dx(t, D1=t.dy),
    "rstd·(dxhat − mean_dxhat − **(x−mean)·mean_dxhat_xhat**)": lambda t: dx(t, X=t.xhat / t.rstd),
    "**rstd²**·(dxhat − mean_dxhat − xhat·mean_dxhat_xhat)": lambda t: dx(t, scale=t.rstd**2),
    "**rstd³**·(dxhat − **2**·mean_dxhat − xhat·mean_dxhat_xhat)": lambda t: dx(t, b=2, scale=t.rstd**3),
    "rstd·(**dy·(1+γ)** − **mean(dy·(1+γ))** − **xhat·mean(dy·(1+γ)·xhat)**)": lambda t: dx(t, D=t.dy * (1 + t.gamma)),
    "rstd·(**dy·γ²** − **mean(dy·γ²)** − **xhat·mean(dy·γ²·xhat)**)": lambda t: dx(t, D=t.dxhat * t.gamma),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("formula", FORMULAS)
def test_the_formula_of_a_wrong_dx_is_found_with_the_difference_marked(diagnosed, formula, dtype):
    # x apart from (-2, 2), so that rstd is not near 1 and its powers differ.
    ranges = {"mean": None, "statistic": None, "x": (-6.0, 6.0)}
    found = diagnosed(lambda t: {"dx": FORMULAS[formula](t)}, dtype, ranges=ranges)
    assert [item.text for item in found.formulas] == [f"dx = {formula}"], found


def test_different_mistakes_in_different_outputs_are_both_named(diagnosed):
    found = diagnosed(lambda t: {"dx": dx(t, b=2), "dgamma": (t.dy * t.x).sum(0)})
    assert found.mistake == "mean of dxhat 2 times; dy·x for dy·xhat in dgamma"
    assert [formula.text for formula in found.formulas] == [
        "dx = rstd·(dxhat − **2**·mean_dxhat − xhat·mean_dxhat_xhat)", "dgamma = Σ_rows **dy·x**",
    ]  # fmt: skip


def test_a_mistake_in_the_inputs_and_one_in_the_formula_are_both_named(diagnosed):
    def wrong(t: Terms) -> dict[str, Any]:
        xhat = (t.x - np.roll(t.mean, 1, axis=0)) * t.rstd
        second = (t.dxhat * xhat).mean(1, keepdims=True)
        changed = t.rstd * (t.dxhat - 2 * t.dxhat.mean(1, keepdims=True) - xhat * second)
        return {"dx": changed, "dgamma": (t.dy * xhat).sum(0)}

    found = diagnosed(wrong)
    assert found.mistake == "mean of the previous row; mean of dxhat 2 times"


def weighted(weights: Any) -> Any:
    def wrong(t: Terms) -> dict[str, Any]:
        w = np.asarray(weights(t.M), np.float64)[:, None]
        return {"dgamma": (t.dy * t.xhat * w).sum(0), "dbeta": (t.dy * w).sum(0)}

    return wrong


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (lambda M: np.arange(M) < 7, "only the first 7 rows of 77 are counted, as many as x.shape[0]"),
        (lambda M: np.arange(M) < 50, "the last 27 rows (from 50 on) of 77 are missing"),
        (lambda M: np.arange(M) >= 5, "the first 5 rows of 77 are missing"),
        (
            lambda M: 1 + (np.arange(M) // 8 % 2),
            "every 2nd block of 8 rows, from row 8 on: 37 rows of 77 are counted twice",
        ),
        (lambda M: np.arange(M) % 4 != 1, "every 4th row, from row 1 on: 19 rows of 77 are missing"),
    ],
)
def test_which_rows_entered_the_column_sums(diagnosed, weights, text):
    found = diagnosed(weighted(weights))
    assert found.mistake == "part of the rows in the column sums"
    assert found.weights[0].text.startswith(text)


def test_any_rows_are_recovered_where_there_are_more_columns(diagnosed):
    lost = np.random.default_rng(1).random(40) < 0.4
    found = diagnosed(weighted(lambda M: ~lost), lead=(40,), normalized=(96,))
    assert found.weights[0].runs == runs_of(np.where(lost, 0.0, 1.0))


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_which_columns_entered_a_row_mean(diagnosed, first, second):
    def wrong(t: Terms) -> dict[str, Any]:
        w = (np.arange(t.N) >= 64).astype(float)
        means = [(item * (w if part else 1)).sum(1, keepdims=True) / t.N
                 for item, part in ((t.dxhat, first), (t.dxhat * t.xhat, second))]  # fmt: skip
        return {"dx": t.rstd * (t.dxhat - means[0] - t.xhat * means[1])}

    found = diagnosed(wrong, lead=(120,), normalized=(80,))
    assert found.weights[0].text == "only the last 16 columns (from 64 on) of 80 are counted"
    label = {(True, False): "mean of dxhat", (False, True): "mean of dxhat·xhat", (True, True): "means"}[first, second]
    assert found.mistake == f"part of the columns in the {label}"


@pytest.mark.parametrize(
    ("N", "size", "why"), [(100, 104, "a multiple of 8"), (60, 64, "a multiple of 8"), (70, 128, "a multiple of 64")]
)
def test_a_mean_over_a_padded_row_is_named_with_its_size(diagnosed, N, size, why):
    def wrong(t: Terms) -> dict[str, Any]:
        return {"dx": dx(t, b=N / size, c=N / size)}

    found = diagnosed(wrong, lead=(50,), normalized=(N,))
    assert found.mistake == "two row means over a padded N"
    assert f"divided by {size}, which is N = {N} rounded up to {why}" in found.sentence


def test_both_means_over_one_less_are_one_mistake(diagnosed):
    found = diagnosed(lambda t: {"dx": dx(t, b=t.N / (t.N - 1), c=t.N / (t.N - 1))})
    assert (found.mistake, found.sentence) == (
        "two row means over N − 1",
        "the two row means are divided by N − 1: divide by N.",
    )


@pytest.mark.parametrize(("changed", "whose", "where"), [
    (lambda gamma: np.roll(gamma, -1), "gamma of the column 1 after", "the last 8 columns (from 72 on) of 80"),
    (lambda gamma: np.roll(gamma, 16), "gamma of the column 16 before", "the last 8 columns (from 72 on) of 80"),
    (np.ones_like, "1 for gamma", "the last 8 columns (from 72 on) of 80"),
])  # fmt: skip
def test_another_gamma_in_some_columns_is_recovered(diagnosed, changed, whose, where):
    def wrong(t: Terms) -> dict[str, Any]:
        gamma = t.gamma.copy()
        gamma[0, 72:] = changed(t.gamma[0])[72:]
        return {"dx": dx(t, D=t.dy * gamma)}

    found = diagnosed(wrong, lead=(30,), normalized=(80,))
    assert found.mistake == f"another gamma in part of the columns: {whose}"
    assert f"{whose} in {where}" in found.sentence


@pytest.mark.parametrize(("source", "used"), [
    (lambda rows: rows - 16, "of the row 16 before"), (lambda rows: 0 * rows + 63, "of row 63"),
])  # fmt: skip
def test_statistics_of_other_rows_in_the_last_tile(diagnosed, source, used):
    def wrong(t: Terms) -> dict[str, Any]:
        whose = np.arange(t.M)
        whose[64:] = source(whose[64:])
        xhat = (t.x - t.mean[whose]) * t.rstd[whose]
        second = (t.dxhat * xhat).mean(1, keepdims=True)
        changed = t.rstd[whose] * (t.dxhat - t.dxhat.mean(1, keepdims=True) - xhat * second)
        return {"dx": changed, "dgamma": (t.dy * xhat).sum(0)}

    found = diagnosed(wrong, lead=(77,), normalized=(40,))
    assert found.mistake == "statistics of other rows"
    assert f"the last 13 rows (from 64 on) use the mean and rstd {used}" in found.sentence


def test_rows_that_are_lost_in_some_columns_only(diagnosed):
    def wrong(t: Terms) -> dict[str, Any]:
        w = np.ones_like(t.dy)
        w[16:32, 1::2] = 0
        return {"dgamma": (t.dy * t.xhat * w).sum(0), "dbeta": (t.dy * w).sum(0)}

    found = diagnosed(wrong, lead=(77,), normalized=(200,))
    assert found.mistake == "part of the rows in the column sums"
    assert "rows 16 to 31 of 77 are missing in every 2nd column, from column 1 on" in found.sentence


def test_row_means_of_no_known_kind_are_told_with_their_values(diagnosed):
    def wrong(t: Terms) -> dict[str, Any]:
        further = np.roll(t.dxhat, -1, axis=0)[:, :8].sum(1, keepdims=True)  # a load without its mask
        first = (t.dxhat.sum(1, keepdims=True) + further) / t.N
        return {"dx": t.rstd * (t.dxhat - first - t.xhat * (t.dxhat * t.xhat).mean(1, keepdims=True))}

    found = diagnosed(wrong)
    assert found.mistake is None
    assert "dx: the formula is right, but for the mean of dxhat (in row " in found.sentence
    assert "mean of dxhat·xhat" not in found.sentence


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_noise_is_given_no_formula(diagnosed, seed):
    noise = np.random.default_rng(seed)
    found = diagnosed(lambda t: {"dx": noise.standard_normal(t.dy.shape)})
    assert found.mistake is None
    assert found.formulas == found.weights == ()


def test_weights_in_words():
    weights = np.ones(40)
    weights[39] = 0
    assert describe_weights(weights, "row") == "the last row 39 of 40 is missing"
    weights[:] = 1
    weights[3] = 2
    assert describe_weights(weights, "row") == "row 3 of 40 is counted twice"
    assert runs_of(weights) == ((0, 3, 1.0), (3, 1, 2.0), (4, 36, 1.0))


def test_no_weights_are_made_up_for_noise():
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((200, 64)), rng.standard_normal(200)
    assert recover_weights(A, b, lambda w: bool(np.abs(A @ w - b).max() < 1e-3)) is None
