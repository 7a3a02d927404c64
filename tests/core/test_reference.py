"""The oracle itself, against finite differences and against a foreign autograd that shares no code with it."""

from __future__ import annotations

import numpy as np
import pytest

from lngrad.core import reference
from lngrad.testing import CASES, Case, check_forward, check_grads, make_inputs


def worst(got, expected):
    return float(np.max(np.abs(got - expected) / (1 + np.abs(expected))))


@pytest.mark.parametrize("case", [Case((3, 2), (5,)), Case((4,), (2, 3)), Case((2,), (7,), gamma=False)], ids=str)
def test_gradients_against_finite_differences(case):
    inputs = make_inputs(case, "float64")
    k = inputs.normalized
    gamma = np.ones(case.normalized) if inputs.gamma is None else inputs.gamma
    beta = np.zeros(case.normalized)

    def loss(x, gamma, beta):
        return float((reference.layer_norm(x, gamma, beta, normalized=k).y * inputs.dy).sum())

    def slope(position, array):
        result, step = np.empty_like(array), 1e-6
        for index in np.ndindex(array.shape):
            arguments = [inputs.x, gamma, beta]
            values = []
            for sign in (1, -1):
                moved = array.copy()
                moved[index] += sign * step
                arguments[position] = moved
                values.append(loss(*arguments))
            result[index] = (values[0] - values[1]) / (2 * step)
        return result

    forward = reference.layer_norm(inputs.x, normalized=k)
    grads = reference.layer_norm_backward(inputs.dy, inputs.x, forward.mean, forward.rstd, inputs.gamma, normalized=k)
    assert worst(grads.dx, slope(0, inputs.x)) < 1e-8
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


def test_the_reference_passes_its_own_comparators():
    inputs = make_inputs(Case((9, 2), (40,)), "float64")
    grads = reference.layer_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
    assert check_grads(grads, inputs) == 0
    assert check_forward(reference.layer_norm(inputs.x, inputs.gamma, inputs.beta), inputs) == 0
