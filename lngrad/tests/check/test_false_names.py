"""Errors of no known kind, in the cases that gave them names: noise beside infinite terms, infinities, and zeros."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lngrad.check.calls.kernel import Here
from lngrad.check.case import Options
from lngrad.check.formats.reading import shipped
from lngrad.check.implementations import Implementation, find
from lngrad.check.implementations.implementation import unprepared
from lngrad.check.inputs import draw, true_grads
from lngrad.check.judge import check_case
from lngrad.check.mistakes.terms import Terms, terms_of
from lngrad.check.result import CaseResult, settled
from lngrad.core.problem import Grads
from lngrad.support.addresses import as_numpy

CASES = {case.name: case for case in shipped()}


@pytest.mark.parametrize("size", [0.02, 1.0])
@pytest.mark.parametrize("name", ["float16 tail", "x constant", "large values"])
def test_noise_in_dx_has_no_name(judged, name, size):
    """A term whose mistake makes NaN there explains nothing: gamma's bytes, a variance of 0, a statistic beyond float16."""
    case = CASES[name]
    drawn = draw(case, 0, 0, case.M, 1 << 30)
    true = true_grads(drawn.exact)
    noise = size * max(1.0, float(np.std(true.dx))) * np.random.default_rng(1).standard_normal(true.dx.shape)
    found = judged(case, drawn, true._replace(dx=true.dx + noise)._asdict())
    assert found.mistake is None, found


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_column_sums_that_are_not_finite_are_no_sums_over_gamma_s_last_size(diagnosed, value):
    found = diagnosed(lambda t: {"dgamma": np.full(t.N, value), "dbeta": np.full(t.N, value)}, normalized=(4, 12))
    assert found.mistake is None, found


def zeros(t: Terms) -> dict[str, Any]:
    return {"dx": 0 * t.dy, "dgamma": np.zeros(t.N), "dbeta": np.zeros(t.N)}


@pytest.mark.parametrize(
    "facts", [{}, {"gamma_dtype": None}, {"lead": (600,), "normalized": (70,)}, {"normalized": (1,)}]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_zeros_are_named_once(diagnosed, dtype, facts):
    found = diagnosed(zeros, dtype, **facts)
    assert (found.mistake, found.formulas) == ("never written", ())
    assert found.sentence.startswith("all zeros in dx, dgamma and dbeta: never written")


def test_zeros_in_dx_alone_are_named_once(diagnosed):
    assert diagnosed(lambda t: {"dx": 0 * t.dy}).mistake == "dx never written"


def test_columns_that_share_a_place_were_written(diagnosed):
    """Two columns with each other's sum were memory that nobody wrote, or a third column's."""

    def shared(t: Terms) -> dict[str, Any]:
        dgamma = (t.dy * t.xhat).sum(0)
        dgamma[[0, -1]] = dgamma[0] + dgamma[-1]
        return {"dgamma": dgamma}

    for dtype in ("float32", "float16"):
        found = diagnosed(shared, dtype, lead=(4,), normalized=(4097,))
        assert found.mistake == "column sums modulo 4096 in dgamma alone", found


def test_infinity_in_a_row_of_one_sign_is_memory_that_nobody_wrote(diagnosed):
    def unwritten(t: Terms) -> dict[str, Any]:
        dx = t.dx()
        dx[-1] = -np.inf
        return {"dx": dx}

    assert diagnosed(unwritten, "float16", lead=(65,), normalized=(255,)).mistake == "rows of dx never written"


@pytest.mark.parametrize(("lead", "x"), [((1,), (-2.0, 2.0)), ((2,), (9.0, 11.0))])
def test_one_row_does_not_take_rstd_for_a_number(diagnosed, lead, x):
    """x·m is xhat·m/rstd: with one rstd, rstd·dxhat, 1.2 times, is as near."""
    ranges = {"mean": None, "statistic": None, "x": x}
    found = diagnosed(
        lambda t: {"dx": t.rstd * (t.dxhat - t.x * t.means[1])},
        norm="rms_norm",
        lead=lead,
        normalized=(64,),
        ranges=ranges,
    )
    assert found.mistake == "x·mean_dxhat_xhat for the mean of dxhat·xhat", found


def test_a_term_of_a_norm_with_an_offset_is_said_with_it(diagnosed):
    def forgotten(t: Terms) -> dict[str, Any]:
        return {"dx": t.rstd * (t.dy * (t.gamma - 1) - t.xhat * t.means[1])}

    found = diagnosed(forgotten, norm="gemma_rms_norm")
    assert found.mistake == "dy·γ for dxhat in the first term", found
    assert found.sentence == "the first term of dx is dy·γ: it takes dxhat = dy·(offset + gamma)."


@pytest.mark.parametrize("only", [False, True])
def test_products_that_a_matrix_unit_cuts_off_have_a_name(diagnosed, only):
    def cut(t: Terms) -> dict[str, Any]:
        def tf32(array: Any) -> Any:
            return (array.astype("f4").view("u4") & np.uint32(0xFFFFE000)).view("f4").astype(float)

        return {"dgamma": tf32(t.dy * t.xhat).sum(0)} | ({} if only else {"dbeta": tf32(t.dy).sum(0)})

    found = diagnosed(cut, lead=(64,), normalized=(48,))
    what = "dy·xhat" if only else "terms of the column sums"
    assert found.mistake == f"{what} rounded to tf32 towards zero", found


def test_a_failure_of_all_elements_together_is_no_case_that_is_too_large(make_case):
    """Each element is within its tolerance, and their mean error is not."""

    def nearly(a: Any) -> Grads:
        grads = Grads(*map(as_numpy, find("numpy_cpu").backward(a)()))
        return grads._replace(dx=grads.dx * np.float32(1 + 3 * 2.0**-13))

    case = make_case(lead=(33,), normalized=(1000,), standard="stat")
    result = check_case(case, Options(), lambda name: Here(Implementation("nearly", unprepared(nearly))))
    assert result.status == "failed"
    assert (
        result.sentence == "no known mistake explains it. no element is beyond its tolerance: all of them together are"
    )


def test_what_is_flushed_on_the_way_is_named_and_an_error_among_subnormal_numbers_is_not(judged):
    case, least = CASES["subnormal"], float(np.finfo(np.float32).tiny)
    drawn = draw(case, 0, 0, case.M, 1 << 30)

    def flushed(item: Any) -> Any:
        return np.where(np.abs(item) < least, 0.0, item)

    t = terms_of(drawn.exact)
    dy, dxhat = flushed(t.dy), flushed(flushed(t.dy) * t.gamma)
    second = flushed(dxhat * t.xhat).mean(1, keepdims=True)
    dx = flushed(t.rstd * flushed(dxhat - dxhat.mean(1, keepdims=True) - t.xhat * second))
    results = {"dx": dx, "dgamma": flushed(flushed(dy * t.xhat).sum(0)), "dbeta": flushed(dy.sum(0))}
    assert judged(case, drawn, results).mistake == "flushed to zero"
    noise = 1 + 0.2 * np.random.default_rng(2).standard_normal(t.dy.shape)
    found = judged(case, drawn, true_grads(drawn.exact)._asdict() | {"dx": t.dx() * noise})
    assert found.mistake is None, found


def tiled(t: Terms, tile: int, of: tuple[bool, bool] = (True, True)) -> dict[str, Any]:
    """The last tile has N % tile columns, which are none where N is a multiple."""
    whole = t.N // tile * tile - tile * (t.N % tile == 0)
    taken = np.arange(t.N) < (whole if t.N % tile == 0 else t.N)
    both = ((item * taken).sum(1, keepdims=True) / t.N for item in t.averaged)
    return {"dx": t.dx(*(item if arrays else None for item, arrays in zip(both, of, strict=True)))}


@pytest.mark.parametrize(
    ("of", "what"), [((True, True), "means"), ((True, False), "mean of dxhat"), ((False, True), "mean of dxhat·xhat")]
)
def test_a_sum_that_takes_nothing_is_one_kind_with_sums_that_take_too_little(diagnosed, of, what):
    name = f"part of the columns in the {what}"
    found = [diagnosed(lambda t: tiled(t, 64, of), lead=(24,), normalized=(N,)) for N in (64, 128, 256)]
    assert name in (label for label, _ in found[0].alternatives), found[0]
    results = [CaseResult(str(number), "", "failed", "", "", "", **item._asdict()) for number, item in enumerate(found)]
    assert {result.mistake for result in settled(results)} == {name}
    alone = settled(results[:1])[0].mistake
    assert alone == {"means": "mean and rstd detached"}.get(what, f"{what} missing")


@pytest.mark.parametrize("apart", [6e-8, -4e-7, 3e-6])
def test_a_variance_that_is_a_little_off_where_x_is_constant_is_one_number(diagnosed, apart):
    """Any other name would be one of several for the same number: all are said, and other cases choose."""

    def off(t: Terms) -> dict[str, Any]:
        return {"dx": t.dx() / t.rstd / np.sqrt(1e-5 + apart)}

    found = diagnosed(off, lead=(12,), normalized=(24,), ranges={"mean": None, "statistic": None, "x": (1.5, 1.5)})
    assert re.fullmatch(r"dx or rstd (0.997|1.02|0.877) times", found.mistake or ""), found
    assert {"another eps", "variance by cancellation"} <= {label for label, _ in found.alternatives}


def test_a_variance_by_cancellation_far_from_zero_is_named_where_the_mean_is_rounded_too(diagnosed):
    def cancelled(t: Terms) -> dict[str, Any]:
        mean = t.mean.astype("f4").astype(float)
        variance = (t.x**2).mean(1, keepdims=True).astype("f4") - (mean**2).astype("f4")
        rstd = 1 / np.sqrt(variance.astype(float) + 1e-5)
        return t.with_xhat((t.x - mean) * rstd, rstd)

    ranges = {"mean": None, "statistic": None, "x": (1000.0, 1004.0)}
    assert diagnosed(cancelled, lead=(64,), normalized=(96,), ranges=ranges).mistake == "variance by cancellation"


def test_a_mistake_in_few_of_many_elements_is_named(diagnosed):
    def tail(t: Terms) -> dict[str, Any]:
        first = np.where(np.arange(t.N) < 56, t.dxhat, t.dy)
        return {"dx": t.rstd * (first - t.means[0] - t.xhat * t.means[1])}

    found = diagnosed(tail, lead=(400,), normalized=(63,))
    assert found.mistake == "dy for dxhat in the first term in part of the columns", found


@pytest.mark.parametrize("name", ["column sums in bfloat16", "column sums in float16"])
def test_first_values_that_hide_a_mistake_are_no_results_of_an_earlier_call(name):
    """Here no process is started anew: what has a name in the second call is that mistake."""
    case = replace(CASES[name], norm="zero_centred_layer_norm")
    result = check_case(case, Options(), lambda _: Here(find("mutant:offset forgotten")))
    assert (result.status, result.mistake) == ("failed", "offset forgotten"), result
