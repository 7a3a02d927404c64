"""error_bound holds on random problems, and is not far from what is seen."""

from __future__ import annotations

import error_bounds
import numpy as np
import pytest

import lngrad
from lngrad.core import error_bound as module
from lngrad.cpu.jobs import COMPENSATED_FROM, LANES, SEGMENT
from lngrad.errors import DtypeError, NumberError, ShapeError


def test_it_holds_on_random_problems_and_is_within_ten_times_of_what_is_seen():
    for kind, shares in error_bounds.shares(10 * len(error_bounds.KINDS), seed=5).items():
        most = np.array(shares).max(0)
        assert (most <= 1).all(), (kind, most)
        if kind.gamma_dtype == kind.dtype:  # sums of 16-bit dy in float32 are exact but for a few
            assert (most[: 3 if kind.norm == "layer_norm" else 2] >= 0.04).all(), (kind, most)  # ten problems of a kind


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_holds_on_a_hundred_thousand_problems_and_where_they_are_made_to_come_near():
    for kind, shares in error_bounds.shares(100_000, seed=7, rows=64, columns=256).items():
        assert (np.array(shares).max(0) <= 1).all(), kind
    for kind in error_bounds.KINDS:
        for result in range(3 if kind.norm == "layer_norm" else 2):
            high, draw = error_bounds.climb(kind, result, 200, seed=result)
            assert high <= 1, (kind, draw)


@pytest.mark.parametrize("offset", [10.0, 100.0, 1e4])
@pytest.mark.parametrize("structure", ["ones", "positive", "xhat", "ones and xhat"])
def test_it_holds_where_the_loss_of_a_mean_adds_up(structure, offset):
    """dx of structured dy was up to 50 times over a bound that took Σ dxhat for that of random dy."""
    kind = error_bounds.Kind("layer_norm", "float32", "float32", offset, False)
    for M, N in ((64, 4096), (4, 65536)):
        share = error_bounds.share(error_bounds.Draw(M, N, 3, structure, 2.0, False), kind)
        assert max(share) <= 1, (M, N, share)
        assert share.dx > 0.02, (M, N, share)  # it says something


def test_a_wrong_gradient_exceeds_it(monkeypatch):
    right = lngrad.layer_norm_backward

    def wrong(dy, x, mean, rstd, gamma, **options):
        return right(dy, x, mean * np.asarray(1 + 1e-6, mean.dtype), rstd, gamma, **options)

    monkeypatch.setattr(lngrad, "layer_norm_backward", wrong)
    kind = error_bounds.Kind("layer_norm", "float32", "float32", 100.0, True)
    share = error_bounds.share(error_bounds.Draw(100, 200, 0, "random", 2.0, False), kind)
    assert share.dgamma > 1


def test_what_it_grows_with():
    bound = lngrad.error_bound
    assert bound(64, 768, condition=1e4).xhat > 500 * bound(64, 768, condition=1e4, complete_mean=True).xhat
    assert bound(64, 768, condition=1e4, complete_mean=True) == bound(64, 768, condition=8.0, complete_mean=True)
    assert bound(64, 768, "bfloat16").dx > bound(64, 768, "float32").dx > bound(64, 768, "float64").dx
    assert bound(64, 768, "bfloat16", gamma_dtype="float32").dgamma < 1e-5 < bound(64, 768, "bfloat16").dgamma
    assert bound(1 << 20, 768).dbeta < 4 * bound(64, 768).dbeta


def test_its_numbers_are_those_of_the_kernels():
    assert (module.COMPENSATED_FROM, module._SEGMENT, module._LANES) == (COMPENSATED_FROM, SEGMENT, LANES)


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (ShapeError, "^M: expected at least 1, got 0", {"M": 0}),
        (ShapeError, "^N: expected at least 1, got 2.5", {"N": 2.5}),
        (DtypeError, "^dtype: expected one of .*, got 'int8'", {"dtype": "int8"}),
        (DtypeError, "^gamma_dtype: expected one of", {"gamma_dtype": "half"}),
        (NumberError, "^condition: expected a finite number of at least 0, got -1", {"condition": -1}),
    ],
)
def test_bad_arguments(error, text, arguments):
    with pytest.raises(error, match=text):
        lngrad.error_bound(**{"M": 4, "N": 8, **arguments})
