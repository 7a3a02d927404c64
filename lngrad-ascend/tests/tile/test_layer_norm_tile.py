from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from lngrad.errors import DtypeError
from lngrad_ascend import tiling
from lngrad_ascend.ascendc import LayerNormConfig, LayerNormPara
from lngrad_ascend.faults import AscendWarning, BoundsFault, TilingError
from tile_harness import SOCS, allowed_error, check_close, check_same_bits, run_forward

EPSILON = 1e-3


def inputs(shape, dtype, seed, width=None):
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=shape) * 3 + rng.normal(size=(*shape[:-1], 1))).astype(dtype)
    gamma, beta = rng.uniform(0.5, 2, shape[-1]).astype(dtype), rng.normal(size=shape[-1]).astype(dtype)
    if width is not None:
        for array in (x, gamma, beta):
            array[..., width:] = 0
    return x, gamma, beta


def formula(x, gamma, beta, width, dtype):
    """Return y, mean and variance in float64, and the size of y's terms.

    The mean's own terms are the row's |x|: where they cancel, |mean| says nothing about its rounding.
    """
    x, gamma, beta = (np.asarray(a, np.float64)[..., :width] for a in (x, gamma, beta))
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    rstd = (variance + float(np.dtype(dtype).type(EPSILON))) ** -0.5
    size = (np.abs(x) + np.abs(x).mean(-1, keepdims=True)) * rstd * np.abs(gamma) + np.abs(beta)
    return (x - mean) * rstd * gamma + beta, size, mean.ravel(), variance.ravel()


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 12),
    st.sampled_from([("f4", False), ("f4", True), ("f2", False)]),
    st.sampled_from(SOCS),
    st.integers(0, 1),
)
def test_the_form_with_variance(S, blocks, kind, soc, which):
    dtype, reuse = kind
    H = blocks * (8 if dtype == "f4" else 16)
    x, gamma, beta = inputs((2, S, H), dtype, seed=S)
    size = np.dtype(dtype).itemsize
    stack = tiling.GetLayerNormMaxMinTmpSize((2, S, H, H), size, reuse, soc=soc)[which]
    info = tiling.GetLayerNormNDTilingInfo((2, S, H, H), stack, size, reuse, soc=soc)
    y, mean, variance = run_forward(x, gamma, beta, EPSILON, info, soc, reuse=reuse)
    want, terms, want_mean, want_variance = formula(x, gamma, beta, H, dtype)
    check_close("y", y, want, allowed_error(want, terms, dtype, 16))
    largest = np.abs(x.astype(float)).max()
    check_close("mean", mean, want_mean, allowed_error(want_mean, largest, dtype, 16))
    check_close("variance", variance, want_variance, allowed_error(want_variance, 4 * largest**2, dtype, 16))


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 300),
    st.sampled_from(["f4", "f2"]),
    st.sampled_from(SOCS),
    st.booleans(),
    st.booleans(),
)
@example(4, 169, "f4", "Ascend950", False, True)  # row 1's mean is 3,600 times smaller than its elements
def test_the_form_with_rstd(A, R, dtype, soc, no_gamma, no_beta):
    size = np.dtype(dtype).itemsize
    lanes = 32 // size
    row = -(-R // lanes) * lanes
    x, gamma, beta = inputs((A, row), dtype, seed=R, width=R)
    stack = tiling.GetLayerNormMaxMinTmpSize((A, R), size, False, True, soc=soc)[1]
    info = tiling.GetLayerNormNDTilingInfo((A, R), stack, size, False, True, soc=soc)
    config = LayerNormConfig(isNoGamma=no_gamma, isNoBeta=no_beta)
    para = LayerNormPara(A, R, row)
    y, mean, rstd = run_forward(x, gamma, beta, EPSILON, info, soc, para=para, config=config)
    gamma, beta = (np.ones_like(gamma) if no_gamma else gamma), (np.zeros_like(beta) if no_beta else beta)
    want, terms, want_mean, want_variance = formula(x, gamma, beta, R, "f4")
    check_close("y", y[:, :R], want, allowed_error(want, terms, dtype, 24))
    check_close("mean", mean, want_mean, 16 * 2.0**-24 * np.abs(x.astype(float)).max() * np.ones(A))
    want_rstd = (want_variance + EPSILON) ** -0.5
    check_close("rstd", rstd, want_rstd, 2.0**-20 * want_rstd)
    assert not y[:, R:].any()


def test_950_can_return_the_variance_and_others_cannot():
    x, gamma, beta = inputs((4, 64), "f4", seed=1)
    config, para = LayerNormConfig(isOutputRstd=False), LayerNormPara(4, 64, 64)
    info = tiling.GetLayerNormNDTilingInfo((4, 64), 2048, 4, False, False, soc="Ascend950")
    variance = run_forward(x, gamma, beta, EPSILON, info, "Ascend950", para=para, config=config)[2]
    check_close("variance", variance, x.astype(float).var(-1), 1e-5 * np.ones(4))
    info = tiling.GetLayerNormNDTilingInfo((4, 64), 4096, 4, False, True)
    with pytest.raises(TilingError, match="isOutputRstd=false needs a SoC of architecture 3510"):
        run_forward(x, gamma, beta, EPSILON, info, "Ascend910B1", para=para, config=config)


def test_its_variance_is_what_layer_norm_grad_takes():
    x, gamma, beta = inputs((2, 8, 32), "f4", seed=2)
    stack = tiling.GetLayerNormMaxMinTmpSize((2, 8, 32, 32), 4, False)[1]
    info = tiling.GetLayerNormNDTilingInfo((2, 8, 32, 32), stack, 4, False)
    _, mean, variance = run_forward(x, gamma, beta, EPSILON, info, "Ascend910B1")
    assert mean.shape == variance.shape == (16,)
    check_close("variance", variance, x.astype(float).var(-1).ravel(), 1e-5 * np.ones(16))


@pytest.mark.parametrize("soc", SOCS)
def test_padding_enters_the_variance_unless_told_otherwise(soc):
    x, gamma, beta = inputs((1, 6, 24), "f4", seed=3, width=20)
    x[..., :20] += 5
    shape = (1, 6, 24, 20)
    info = tiling.GetLayerNormNDTilingInfo(shape, tiling.GetLayerNormMaxMinTmpSize(shape, 4, False)[1], 4, False)
    want, terms, want_mean, want_variance = formula(x, gamma, beta, 20, "f4")
    with pytest.warns(AscendWarning, match="LayerNorm: 4 padded columns of 24 enter the"):
        _, _, variance = run_forward(x, gamma, beta, EPSILON, info, soc)
    assert (np.abs(variance - want_variance) > 1e-3).all()
    y, mean, variance = run_forward(x, gamma, beta, EPSILON, info, soc, exact=True)
    check_close("y", y[..., :20], want, allowed_error(want, terms, "f4", 16))
    check_close("mean", mean, want_mean, 1e-5 * np.ones(6))
    check_close("variance", variance, want_variance, 1e-4 * np.ones(6))


def test_chunks_do_not_change_a_bit():
    x, gamma, beta = inputs((2, 8, 40), "f4", seed=4)
    shape = (2, 8, 40, 40)
    results = []
    for stack in tiling.GetLayerNormMaxMinTmpSize(shape, 4, False):
        info = tiling.GetLayerNormNDTilingInfo(shape, stack, 4, False)
        results.append(run_forward(x, gamma, beta, EPSILON, info, "Ascend910B1"))
    for name, large, small in zip(("y", "mean", "variance"), *results, strict=True):
        check_same_bits(name, small, large)


class TestDoor:
    """The checks of the rstd form, broken once."""

    info = tiling.GetLayerNormNDTilingInfo((4, 64), 4096, 4, False, True, soc="Ascend910B1")

    def call(self, dtype="f4", **change):
        x, gamma, beta = inputs((4, 64), dtype, seed=5)
        arguments = {"para": LayerNormPara(4, 64, 64), "config": None, "info": self.info, "gamma": gamma} | change
        run_forward(
            x, arguments["gamma"], beta, EPSILON, arguments["info"], "Ascend910B1",
            para=arguments["para"], config=arguments["config"],
        )  # fmt: skip

    def test_the_call_itself_is_right(self):
        self.call()

    def test_sizes_of_another_tiling(self):
        with pytest.raises(TilingError, match=r"para \[5, 64\] does not fit the tiling, made for \[4, 64\]"):
            self.call(para=LayerNormPara(5, 64, 64))

    def test_no_sizes(self):
        with pytest.raises(TilingError, match="needs para"):
            self.call(para=None)

    def test_only_output(self):
        with pytest.raises(TilingError, match="isOnlyOutput=true is not supported"):
            self.call(config=LayerNormConfig(isOnlyOutput=True))

    def test_gamma_of_another_type(self):
        with pytest.raises(DtypeError, match="gamma and beta must both be float32"):
            self.call(gamma=np.ones(64, np.float16))

    def test_a_tiling_for_a_larger_buffer(self):
        large = tiling.GetLayerNormNDTilingInfo((4, 64), 4096, 4, False, True)
        large.tmpBufSize = 64
        large.secondTmpStartPos = 1 << 20
        with pytest.raises(BoundsFault, match="the tiling uses the temporary buffer up to float"):
            self.call(info=large)
