"""Rows of any finite size by NumPy's backend: right wherever rstd is a normal number, as docs/precision.md promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import norms
from lngrad.core import reference
from lngrad.core.problem import LAYER_NORM, RMS_NORM
from lngrad.support.dtypes import accumulator_for, numpy_dtype
from lngrad.testing import Case, check_forward, check_grads, make_inputs
from norms import NORMS

EXPONENTS = {"float32": (-126, 128), "bfloat16": (-126, 128), "float64": (-1000, 1010)}
# Rows below 1, which are then multiplied by powers of two.
KINDS = {
    "noise": lambda noise: noise / 8,
    "equal": lambda noise: np.zeros_like(noise) + noise[:, :1] / 8,
    "an outlier": lambda noise: np.where(np.arange(noise.shape[1]) == noise.shape[1] // 2, -0.9, 0.9),
    "a ramp": lambda noise: np.linspace(-0.9, 0.9, noise.shape[1]),
    "far from 0": lambda noise: 0.5 + noise * 2.0**-12,
    "signs": lambda noise: np.where(noise < 0, -0.9, 0.9),
    "large and small": lambda noise: np.where(noise < 0, 2.0**-60, 0.9) * np.sign(noise),
}


def rows_of_any_size(rows, N, dtype, eps=0.0, seed=0, **norm):
    """Inputs with rows of every kind and exponent, as many as have a normal rstd; mean and rstd as a forward gives them."""
    rng, low_high = np.random.default_rng(seed), EXPONENTS[dtype]
    noise = rng.standard_normal((rows, N)).clip(-4, 4)
    rows_of = [kind(noise) for name, kind in KINDS.items() if name != "equal" or (eps and dtype != "float64")]
    kinds = np.resize(np.arange(len(rows_of)), (rows, 1))
    x = np.choose(kinds, [np.broadcast_to(part, noise.shape) for part in rows_of])
    x = np.ldexp(x, rng.integers(*low_high, (rows, 1))).astype(numpy_dtype(dtype))
    switches = {"normalization": norm.get("normalization", LAYER_NORM)}
    limits = np.finfo(accumulator_for(dtype))
    with np.errstate(all="ignore"):
        rstd = reference.layer_norm(x, eps=eps, **switches).rstd
    x = x[((rstd >= limits.tiny) & (rstd <= limits.max / 2))[:, 0]]
    return replace(make_inputs(Case(x.shape[:1], (N,)), dtype, seed=seed, **norm), x=x)


@np.errstate(all="ignore")
def check_both(inputs, eps, complete_mean=False):
    """Forward and backward, from its statistics or from completed means."""
    got = norms.forward(inputs, eps=eps, backend="numpy_cpu")
    named = got._asdict()
    of_backward = replace(inputs, rstd=named["rstd"], mean=named.get("mean", inputs.mean))
    options = {"complete_mean": True} if complete_mean else {}
    grads = norms.backward(of_backward, backend="numpy_cpu", **options)
    if complete_mean:
        truth = reference.layer_norm(inputs.x, eps=eps)
        of_backward = replace(of_backward, mean=truth.mean, rstd=truth.rstd)
    check_grads(grads, of_backward)
    check_forward(got, inputs, eps=eps)


@pytest.mark.parametrize("eps", [0.0, 1e-5, 1e-45])
@pytest.mark.parametrize("dtype", EXPONENTS)
@pytest.mark.parametrize("N", [3, 40])
@pytest.mark.parametrize("normalization", [LAYER_NORM, RMS_NORM], ids=["layer_norm", "rms_norm"])
def test_rows_of_any_size(normalization, N, dtype, eps):
    check_both(rows_of_any_size(70, N, dtype, eps, normalization=normalization), eps)


@pytest.mark.parametrize("N", [3, 1200])
def test_completed_means(N):
    check_both(rows_of_any_size(70, N, "float32", 1e-45), 1e-45, complete_mean=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("norm", [norm for norm in NORMS.values() if norm.keys() & {"residual", "gated"}], ids=str)
def test_the_family(norm, dtype):
    """A residual as large as x, and a gate whose product with x does not overflow."""
    inputs = rows_of_any_size(70, 40, dtype, 1e-5, **norm)
    with np.errstate(all="ignore"):
        far = np.abs(inputs.x).max(1, keepdims=True) > numpy_dtype(dtype).type(2.0**120)
        x = np.where(far, np.sign(inputs.x), inputs.x)
    inputs = replace(inputs, x=x.astype(numpy_dtype(dtype)))
    if inputs.residual is not None:
        inputs = replace(inputs, residual=inputs.x[:, ::-1].copy())
    check_both(inputs, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("normalization", [LAYER_NORM, RMS_NORM], ids=["layer_norm", "rms_norm"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_million_rows(dtype, normalization):
    """A quarter of 10⁶ with each parameter: every exponent some thousand times."""
    shapes = [(100_000, 3), (60_000, 12), (60_000, 32), (25_000, 100), (4_000, 768), (1_000, 2500)]
    for seed, (rows, N) in enumerate(shapes):
        for eps in (0.0, 1e-5, 1e-45):
            check_both(rows_of_any_size(rows // 3, N, dtype, eps, seed, normalization=normalization), eps)
