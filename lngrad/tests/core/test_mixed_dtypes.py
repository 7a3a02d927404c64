"""Any dtype of gamma, beta and the statistics with any of x: converted exactly, and the results as if they had been wide."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import lngrad
from lngrad.core.problem import Forward, Grads
from lngrad.support.dtypes import DTYPES, accumulator_for, numpy_dtype, rounded, to_torch
from lngrad.testing import Case, check_forward, check_grads, check_same_bits, make_inputs
from norms import backward, forward

PAIRS = list(product(DTYPES, DTYPES))
CASES = [Case((5,), (7,)), Case((130,), (300,))]
NARROW = ("float16", "bfloat16", "float32")


def wide(inputs):
    """The same numbers, statistics and parameters in the dtype that the call is computed in."""
    dtype = numpy_dtype(accumulator_for(inputs.x.dtype.name, inputs.gamma.dtype.name))
    parts = {name: getattr(inputs, name) for name in ("mean", "rstd", "gamma", "beta")}
    return replace(inputs, **{name: None if part is None else part.astype(dtype) for name, part in parts.items()})


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("x", "gamma"), PAIRS, ids="-".join)
def test_every_pair_has_the_bits_of_exactly_converted_parameters(x, gamma, case, norm, backend):
    inputs = make_inputs(replace(case, gamma_dtype=gamma), x, **norm)
    exact = wide(inputs)
    got = forward(inputs, backend=backend)
    check_same_bits(got, forward(exact, backend=backend))
    check_forward(got, inputs)
    grads = backward(inputs, backend=backend)
    assert [grad.dtype.name for grad in grads] == [x, gamma, gamma][: len(grads)]
    check_grads(grads, inputs)
    check_same_bits(grads.dx, backward(exact, backend=backend).dx)


@pytest.mark.parametrize("statistics", DTYPES)
@pytest.mark.parametrize("x", DTYPES)
def test_statistics_of_any_dtype(x, statistics, norm, backend):
    inputs = make_inputs(Case((70,), (48,), statistics_dtype=statistics), x, **norm)
    if statistics == "float64" and x != "float64":
        inputs = replace(inputs, mean=inputs.mean.astype("f4").astype("f8"), rstd=inputs.rstd.astype("f4").astype("f8"))
    grads = backward(inputs, backend=backend)
    check_grads(grads, inputs)
    check_same_bits(tuple(grads), tuple(backward(replace(inputs, mean=wide(inputs).mean, rstd=wide(inputs).rstd),
                                                 backend=backend)))  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics_are_rounded_once_to_the_dtype_of_the_given_arrays(dtype, backend):
    x = make_inputs(Case((9,), (48,)), "float32").x
    out = Forward(None, np.empty((9, 1), numpy_dtype(dtype)), np.empty((9, 1), numpy_dtype(dtype)))
    got, plain = lngrad.layer_norm(x, out=out, backend=backend), lngrad.layer_norm(x, backend=backend)
    check_same_bits(got, Forward(plain.y, plain.mean.astype(out.mean.dtype), plain.rstd.astype(out.rstd.dtype)))


def test_a_given_dgamma_of_another_dtype_is_rounded_once(backend):
    inputs = make_inputs(Case((40,), (9,), gamma_dtype="float16"), "float32")
    out = Grads(None, np.empty(9, numpy_dtype("bfloat16")), np.empty(9, np.float64))
    check_grads(backward(inputs, out=out, backend=backend), inputs)


@pytest.mark.parametrize(
    "case", [Case((5,), (3,)), Case((70,), (48,)), Case((3, 50), (300,)), Case((2,), (9000,))], ids=str
)
@pytest.mark.parametrize("x", NARROW)
def test_a_float64_parameter_has_the_call_computed_in_float64(x, case, norm, backend):
    """As if x and dy had been converted first, and y and dx rounded behind; beside it float32 is a million times coarser."""
    inputs = make_inputs(replace(case, gamma_dtype="float64"), x, **norm)
    assert inputs.mean.dtype == np.float64
    got = forward(inputs, backend=backend)
    total = inputs.x if inputs.residual is None else got.total  # which is rounded to x's dtype before it is normalized
    dtotal = None if inputs.dtotal is None else inputs.dtotal.astype("f8")
    exact = replace(inputs, x=total.astype("f8"), dy=inputs.dy.astype("f8"), residual=None, dtotal=dtotal)
    expected = forward(replace(exact, normalization=exact.normalization._replace(alpha=1.0)), backend=backend)
    check_same_bits(got.y, rounded(expected.y, inputs.x.dtype))
    check_same_bits(got.rstd, expected.rstd)
    assert "mean" not in got._fields or check_same_bits(got.mean, expected.mean) is None
    inputs = replace(inputs, x=total, residual=None)
    grads, expected = backward(inputs, backend=backend), backward(exact, backend=backend)
    check_same_bits(grads, expected._replace(dx=rounded(expected.dx, inputs.x.dtype)))
    check_grads(grads, inputs)
    turned = [np.ascontiguousarray(array.T).T for array in (inputs.dy, inputs.x)]  # the rows lie next to each other
    dx = np.empty_like(turned[1])
    out = (dx, None, None)[: len(grads)]
    check_same_bits(backward(replace(inputs, dy=turned[0], x=turned[1]), out=out, backend=backend), grads)


@pytest.mark.parametrize("x", NARROW)
def test_beta_alone_in_float64(x, backend):
    inputs = make_inputs(Case((9,), (48,), gamma_dtype=x), x)
    inputs = replace(inputs, beta=inputs.beta.astype("f8") / 3)
    got = lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, backend=backend)
    assert got.mean.dtype == np.float64
    check_forward(got, inputs)


@pytest.mark.parametrize(("dtype", "half"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
@pytest.mark.parametrize("N", [3, 9])
def test_float64_is_rounded_to_16_bits_once(dtype, half, N, backend):
    """Just above the middle of two: rounded to float32 first, it would be the middle itself, and go to even."""
    rows = np.repeat([[1.0], [half], [2.0**-40]], N, axis=1)
    out = Grads(None, None, np.empty(N, numpy_dtype(dtype)))
    dbeta = lngrad.layer_norm_backward(rows, rows, np.zeros(3), np.ones(3), out=out, backend=backend).dbeta
    check_same_bits(dbeta, np.full(N, 1 + 2 * half).astype(dbeta.dtype))


@pytest.mark.parametrize(("x", "gamma"), PAIRS, ids="-".join)
@pytest.mark.parametrize("rows", [5, 300])
def test_torch(x, gamma, rows):
    """Forward and gradients through autograd have the core's bits; each parameter's gradient has its dtype, rounded once."""
    torch = pytest.importorskip("torch")
    from lngrad.torch import layer_norm

    inputs = make_inputs(Case((rows,), (20,), gamma_dtype=gamma), x)
    beta = inputs.beta.astype(numpy_dtype("bfloat16"))
    leaves = [to_torch(array.copy()).requires_grad_() for array in (inputs.x, inputs.gamma, beta)]
    y = layer_norm(leaves[0], 20, leaves[1], leaves[2])
    known = lngrad.layer_norm(inputs.x, inputs.gamma, beta)
    check_same_bits(y.detach(), known.y)
    dx, dgamma, dbeta = torch.autograd.grad(y, leaves, to_torch(inputs.dy))
    exact = backward(replace(wide(inputs), mean=known.mean, rstd=known.rstd))
    check_same_bits(dx, exact.dx)
    check_same_bits(dgamma, exact.dgamma.astype(inputs.gamma.dtype))
    check_same_bits(dbeta, rounded(exact.dbeta, beta.dtype))


@pytest.mark.parametrize("x", NARROW)
def test_torch_with_beta_alone_in_float64(x):
    """Its gradient is summed in float64, and dx is the same whether it is wanted or not."""
    torch = pytest.importorskip("torch")
    from lngrad.torch import layer_norm

    inputs = make_inputs(Case((300,), (20,), gamma_dtype=x), x)
    leaves = [to_torch(array.copy()).requires_grad_() for array in (inputs.x, inputs.gamma, inputs.beta.astype("f8"))]
    y = layer_norm(leaves[0], 20, leaves[1], leaves[2])
    known = lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta.astype("f8"))
    check_same_bits(y.detach(), known.y)
    exact = replace(inputs, gamma=inputs.gamma.astype("f8"), mean=known.mean, rstd=known.rstd)
    grads = torch.autograd.grad(y, leaves, to_torch(inputs.dy), retain_graph=True)
    expected = backward(exact)
    check_same_bits(grads[0], expected.dx)
    check_same_bits(grads[2], expected.dbeta)
    check_same_bits(torch.autograd.grad(y, leaves[0], to_torch(inputs.dy))[0], expected.dx)
