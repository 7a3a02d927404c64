"""Normalization over one axis that is not the last: the bits of the last axis, in views."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lngrad
from lngrad.core.problem import Forward, Grads
from lngrad.errors import ShapeError
from lngrad.testing import Case, check_same_bits, make_inputs
from norms import NORMS, backward, forward


def moved(array, axis):
    return np.ascontiguousarray(np.moveaxis(array, -1, axis))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -3])
def test_the_bits_of_the_last_axis(axis, dtype, norm, backend):
    inputs = make_inputs(Case((2, 5, 7), (24,)), dtype, **norm)
    tensors = {name: getattr(inputs, name) for name in ("dy", "x", "residual", "dtotal")}
    turned = replace(inputs, **{name: None if part is None else moved(part, axis) for name, part in tensors.items()})
    options = {"normalized_shape": None, "axis": axis, "backend": backend}
    expected, got = forward(inputs, backend=backend), forward(turned, **options)
    check_same_bits(got, type(expected)(*(None if part is None else moved(part, axis) for part in expected)))
    plain, grads = backward(inputs, backend=backend), backward(turned, **options)
    check_same_bits(grads, plain._replace(dx=moved(plain.dx, axis)))


@pytest.mark.parametrize("norm", [NORMS["add_rms_norm"]], ids=["add_rms_norm"])
def test_the_total_and_dx_of_another_axis_go_to_given_arrays(norm, backend):
    inputs = make_inputs(Case((2, 5), (9,)), "float32", **norm)
    x, residual, dy, dtotal = (moved(part, 1) for part in (inputs.x, inputs.residual, inputs.dy, inputs.dtotal))
    expected = lngrad.rms_norm(x, inputs.gamma, residual=residual, axis=1, backend=backend)
    out = lngrad.RmsForward(np.empty_like(x), np.empty((2, 1, 5), "f4"), residual)
    got = lngrad.rms_norm(x, inputs.gamma, residual=residual, axis=1, out=out, backend=backend)
    check_same_bits(tuple(got), tuple(expected))
    check_same_bits(residual, expected.total)
    arguments = dy, residual, got.rstd, inputs.gamma
    plain = lngrad.rms_norm_backward(*arguments, dtotal=dtotal, axis=1, backend=backend)
    in_place = lngrad.RmsGrads(dtotal, None)
    check_same_bits(lngrad.rms_norm_backward(*arguments, dtotal=dtotal, axis=1, out=in_place, backend=backend), plain)
    check_same_bits(dtotal, plain.dx)


def test_results_go_to_given_arrays(backend):
    inputs = make_inputs(Case((2, 5), (9,)), "float32")
    x, dy = moved(inputs.x, 1), moved(inputs.dy, 1)
    out = Forward(np.empty_like(x), np.empty((2, 1, 5), "f4"), np.empty((2, 1, 5), "f4"))
    lngrad.layer_norm(x, inputs.gamma, axis=1, out=out, backend=backend)
    check_same_bits(out, lngrad.layer_norm(x, inputs.gamma, axis=1, backend=backend))
    grads = Grads(np.empty_like(x), None, None)
    arguments = dy, x, out.mean, out.rstd, inputs.gamma
    lngrad.layer_norm_backward(*arguments, axis=1, out=grads, backend=backend)
    check_same_bits(grads.dx, lngrad.layer_norm_backward(*arguments, axis=1, backend=backend).dx)
    in_place = lngrad.layer_norm_backward(*arguments, axis=1, out=Grads(dy, None, None), backend=backend)
    check_same_bits(in_place.dx, grads.dx)


def test_torch_tensors_in_every_memory_format(backend):
    torch = pytest.importorskip("torch")
    inputs = make_inputs(Case((2, 5, 7), (24,)), "float32")
    expected = moved(lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, backend=backend).y, 1)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = torch.from_numpy(moved(inputs.x, 1)).contiguous(memory_format=memory_format)
        gamma, beta = torch.from_numpy(inputs.gamma), torch.from_numpy(inputs.beta)
        y = lngrad.layer_norm(x, gamma, beta, axis=1, backend=backend).y
        assert isinstance(y, torch.Tensor)
        check_same_bits(y, expected)
        assert y.is_contiguous(memory_format=torch.channels_last)


# Positions that lie next to each other are turned eight by eight: whole tiles, rests of both kinds, runs cut by chunks of 64
# rows, images of fewer than eight positions, channels fewer than eight, and more than fit the scratch at once.
PLANES = [
    ((2,), (8, 8), 8),
    ((3,), (7, 7), 96),
    ((2,), (3, 5), 13),
    ((4,), (2, 3), 24),
    ((2,), (10, 10), 3),
    ((1,), (20,), 9000),
]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("lead", "plane", "channels"), PLANES, ids=str)
def test_images_with_channels_first(lead, plane, channels, dtype, backend):
    inputs = make_inputs(Case((*lead, *plane), (channels,)), dtype)
    x, dy = moved(inputs.x, 1), moved(inputs.dy, 1)
    out = Forward(np.empty_like(x), None, None)
    forward = lngrad.layer_norm(x, inputs.gamma, inputs.beta, axis=1, out=out, backend=backend)
    expected = lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, backend=backend)
    check_same_bits(forward, Forward(*(moved(part, 1) for part in expected)))
    arguments = dy, x, forward.mean, forward.rstd, inputs.gamma
    plain = lngrad.layer_norm_backward(inputs.dy, inputs.x, *expected[1:], inputs.gamma, backend=backend)
    for place in (np.empty_like(x), None, dy):  # last in place of dy
        out = Grads(place, None, None)
        grads = lngrad.layer_norm_backward(*arguments, axis=1, out=out, backend=backend)
        check_same_bits(grads, Grads(moved(plain.dx, 1), plain.dgamma, plain.dbeta))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("axis: expected one of x's 3 axes, got 3", {"axis": 3}),
        ("axis: expected one of x's 3 axes, got -4", {"axis": -4}),
        (r"axis: expected no normalized_shape with it, got \(4,\)", {"axis": 1, "normalized_shape": (4,)}),
        (r"gamma: expected the normalized shape \(3,\), got \(4,\)", {"axis": 1, "gamma": np.ones(4, "f4")}),
        (r"out.y: expected shape", {"axis": 1, "out": Forward(np.ones((2, 3), "f4"), None, None)}),
    ],
)
def test_rules(text, options):
    with pytest.raises(ShapeError, match=f"^{text}"):
        lngrad.layer_norm(np.ones((2, 3, 4), np.float32), **options)
