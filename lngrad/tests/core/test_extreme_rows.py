"""Rows of any finite size: right wherever rstd is a normal number, by every backend; docs/precision.md has the promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lngrad
import norms
from lngrad.core import reference
from lngrad.core.problem import LAYER_NORM, RMS_NORM, Forward, Grads, Problem, RmsForward
from lngrad.support.dtypes import accumulator_for, numpy_dtype
from lngrad.testing import Case, check_forward, check_grads, check_same_bits, make_inputs
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
def check_both(inputs, eps, backend, complete_mean=False):
    """Forward and backward, from its statistics or from completed means; the worst share of the tolerance."""
    if backend == "triton_gpu":
        from test_special_values import on_tensors

        got = Forward(*on_tensors(Problem.forward, (inputs.x, inputs.gamma, inputs.beta), eps))
        inputs = replace(inputs, mean=got.mean, rstd=got.rstd)
        check_grads(Grads(*on_tensors(Problem.backward, inputs.arguments)), inputs)
    else:
        got = norms.forward(inputs, eps=eps, backend=backend)
        named = got._asdict()
        given = replace(inputs, rstd=named["rstd"], mean=named.get("mean", inputs.mean))
        options = {"complete_mean": True} if complete_mean else {}
        grads = norms.backward(given, backend=backend, **options)
        if complete_mean:
            truth = reference.layer_norm(inputs.x, eps=eps)
            given = replace(given, mean=truth.mean, rstd=truth.rstd)
        check_grads(grads, given)
    return check_forward(got, inputs, eps=eps)


@pytest.mark.parametrize("eps", [0.0, 1e-5, 1e-45])
@pytest.mark.parametrize("dtype", EXPONENTS)
@pytest.mark.parametrize("N", [3, 9, 40, 1200])
@pytest.mark.parametrize("normalization", [LAYER_NORM, RMS_NORM], ids=["layer_norm", "rms_norm"])
def test_rows_of_any_size(normalization, N, dtype, eps, backend):
    check_both(rows_of_any_size(70, N, dtype, eps, normalization=normalization), eps, backend)


@pytest.mark.parametrize("N", [3, 9, 40, 1200])
def test_completed_means(N, backend):
    check_both(rows_of_any_size(70, N, "float32", 1e-45), 1e-45, backend, complete_mean=True)


@pytest.mark.parametrize("shape", [(30, 5), (30, 300), (2, 33000)], ids=str)
@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_triton(shape, eps):
    pytest.importorskip("triton")
    check_both(rows_of_any_size(*shape, "float32", eps), eps, "triton_gpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("norm", [norm for norm in NORMS.values() if norm.keys() & {"residual", "gated"}], ids=str)
def test_the_family(norm, dtype, backend):
    """A residual as large as x, and a gate whose product with x does not overflow."""
    inputs = rows_of_any_size(70, 40, dtype, 1e-5, **norm)
    with np.errstate(all="ignore"):
        far = np.abs(inputs.x).max(1, keepdims=True) > numpy_dtype(dtype).type(2.0**120)
        x = np.where(far, np.sign(inputs.x), inputs.x)
    inputs = replace(inputs, x=x.astype(numpy_dtype(dtype)))
    if inputs.residual is not None:
        inputs = replace(inputs, residual=inputs.x[:, ::-1].copy())
    check_both(inputs, 1e-5, backend)


@pytest.mark.parametrize("dtype", EXPONENTS)
@pytest.mark.parametrize("N", [5, 13, 40, 1200, 9000])
@pytest.mark.parametrize("normalization", [LAYER_NORM, RMS_NORM], ids=["layer_norm", "rms_norm"])
def test_a_power_of_two_changes_no_bit(normalization, N, dtype):
    """Of y, in one place or another; without eps the compiled kernels give rows of any size the bits of rows around 1."""
    inputs = make_inputs(Case((24,), (N,)), dtype, normalization=normalization)
    exponents = np.linspace(EXPONENTS[dtype][0] + 60, EXPONENTS[dtype][1] - 6, 24).astype(int)[:, None]
    x = np.ldexp(inputs.x.astype(np.float64), exponents).astype(inputs.x.dtype)
    near, far = (norms.forward(replace(inputs, x=part), eps=0.0, backend="numba_cpu") for part in (inputs.x, x))
    check_same_bits(far.y, near.y)
    check_same_bits(np.ldexp(far.rstd, exponents), near.rstd)
    beside = norms.forward(replace(inputs, x=np.asfortranarray(x)), eps=0.0, backend="numba_cpu")
    check_same_bits(beside.y, near.y)
    switches = {"offset": normalization.offset, "eps": 0.0, "gamma": inputs.gamma}
    if normalization.centred:
        lngrad.layer_norm(x, beta=inputs.beta, out=Forward(x, None, None), **switches)
    else:
        lngrad.rms_norm(x, out=RmsForward(x, None), **switches)
    check_same_bits(x, near.y)


def test_rows_of_images(backend):
    """Channels first: the forward has a row in each lane."""
    inputs = rows_of_any_size(256, 64, "bfloat16", 1e-5)
    x = np.resize(inputs.x, (256, 64)).reshape(4, 8, 8, 64)
    images = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, -1, 1)), 1, -1)
    expected = lngrad.layer_norm(x, gamma=inputs.gamma, beta=inputs.beta, backend=backend)
    got = lngrad.layer_norm(images, gamma=inputs.gamma, beta=inputs.beta, backend=backend)
    check_same_bits(tuple(got), tuple(expected))


@pytest.mark.slow
@pytest.mark.parametrize("normalization", [LAYER_NORM, RMS_NORM], ids=["layer_norm", "rms_norm"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_million_rows(dtype, normalization, backend):
    """A quarter of 10⁶ with each parameter: every exponent some thousand times."""
    shapes = [(100_000, 3), (60_000, 12), (60_000, 32), (25_000, 100), (4_000, 768), (1_000, 2500)]
    for seed, (rows, N) in enumerate(shapes):
        for eps in (0.0, 1e-5, 1e-45):
            check_both(rows_of_any_size(rows // 3, N, dtype, eps, seed, normalization=normalization), eps, backend)
