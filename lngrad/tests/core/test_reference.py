"""The oracle itself, against finite differences and against a foreign autograd that shares no code with it."""

from __future__ import annotations

import numpy as np
import pytest

import lngrad
from lngrad.core import reference
from lngrad.support.dtypes import UNIT_ROUNDOFF
from lngrad.testing import CASES, Case, check_forward, check_grads, make_inputs
from norms import RMS


def worst(got, expected):
    return float(np.max(np.abs(got - expected) / (1 + np.abs(expected))))


@pytest.mark.parametrize("case", [Case((3, 2), (5,)), Case((4,), (2, 3)), Case((2,), (7,), gamma=False)], ids=str)
def test_gradients_against_finite_differences(case, norm):
    inputs = make_inputs(case, "float64", **norm)
    k, switches = inputs.normalized, {"normalization": inputs.normalization}
    residual = np.zeros_like(inputs.x) if inputs.residual is None else inputs.residual
    dtotal = 0.0 if inputs.dtotal is None else inputs.dtotal
    gamma = np.ones(case.normalized) if inputs.gamma is None else inputs.gamma
    beta = np.zeros(case.normalized)

    def loss(x, gamma, beta, residual):
        total = reference.total(x, residual, **switches)
        y = reference.layer_norm(total, gamma, beta, normalized=k, **switches).y
        return float((y * inputs.dy + total * dtotal).sum())  # the total is used besides

    def slope(position, array):
        result, step = np.empty_like(array), 1e-6
        for index in np.ndindex(array.shape):
            arguments = [inputs.x, gamma, beta, residual]
            values = []
            for sign in (1, -1):
                moved = array.copy()
                moved[index] += sign * step
                arguments[position] = moved
                values.append(loss(*arguments))
            result[index] = (values[0] - values[1]) / (2 * step)
        return result

    forward = reference.layer_norm(inputs.total, normalized=k, **switches)
    grads = reference.layer_norm_backward(
        inputs.dy, inputs.total, *forward[1:], inputs.gamma, normalized=k, dtotal=inputs.dtotal, **switches
    )
    assert worst(inputs.normalization.alpha * grads.dx, slope(0, inputs.x)) < 1e-8
    assert worst(grads.dx, slope(3, residual)) < 1e-8
    assert worst(grads.dgamma, slope(1, gamma)) < 1e-8
    assert worst(grads.dbeta, slope(2, beta)) < 1e-8


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_against_torch_float64(case):
    torch = pytest.importorskip("torch")
    inputs = make_inputs(case, "float64")
    gamma = np.ones(case.normalized) if inputs.gamma is None else inputs.gamma
    beta = np.zeros(case.normalized) if inputs.beta is None else inputs.beta
    x, g, b = (torch.tensor(array, requires_grad=True) for array in (inputs.x, gamma, beta))
    y = torch.nn.functional.layer_norm(x, case.normalized, g, b)
    y.backward(torch.tensor(inputs.dy))
    forward = reference.layer_norm(inputs.x, inputs.gamma, inputs.beta, normalized=inputs.normalized)
    assert worst(forward.y, y.detach().numpy()) < 1e-10
    grads = reference.layer_norm_backward(
        inputs.dy, inputs.x, forward.mean, forward.rstd, inputs.gamma, normalized=inputs.normalized
    )
    for got, expected in zip(grads, (x.grad, g.grad, b.grad), strict=True):
        assert worst(got, expected.numpy()) < 1e-8


@pytest.mark.parametrize("eps", [None, 1e-6])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rms_norm_against_torch_float64(case, eps):
    torch = pytest.importorskip("torch")
    if not hasattr(torch.nn.functional, "rms_norm"):
        pytest.skip("rms_norm came with torch 2.4")
    inputs = make_inputs(case, "float64", normalization=RMS)
    gamma = np.ones(case.normalized) if inputs.gamma is None else inputs.gamma
    x, g = (torch.tensor(array, requires_grad=True) for array in (inputs.x, gamma))
    y = torch.nn.functional.rms_norm(x, case.normalized, g, eps)
    y.backward(torch.tensor(inputs.dy))
    got = lngrad.rms_norm(inputs.x, inputs.gamma, normalized_shape=case.normalized, eps=eps)
    assert worst(got.y, y.detach().numpy()) < 1e-12
    grads = lngrad.rms_norm_backward(inputs.dy, inputs.x, got.rstd, gamma)
    for ours, expected in zip(grads, (x.grad, g.grad), strict=True):
        assert worst(ours, expected.numpy()) < 1e-8


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rms_norm_without_eps_takes_torchs(dtype):
    """Of rows so small that eps counts, by torch's own result."""
    torch = pytest.importorskip("torch")
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
        pytest.skip("torch took the epsilon of x's own dtype before 2.7")
    x = (1e-3 * torch.randn(5, 48, generator=torch.Generator().manual_seed(0))).to(getattr(torch, dtype))
    expected = torch.nn.functional.rms_norm(x, (48,)).double().numpy()
    assert worst(lngrad.rms_norm(x).y.double().numpy(), expected) <= UNIT_ROUNDOFF[dtype] * 4


def test_the_reference_passes_its_own_comparators():
    inputs = make_inputs(Case((9, 2), (40,)), "float64")
    grads = reference.layer_norm_backward(*inputs.arguments)
    assert check_grads(grads, inputs) == 0
    assert check_forward(reference.layer_norm(inputs.x, inputs.gamma, inputs.beta), inputs) == 0
