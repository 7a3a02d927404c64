"""The graph op LayerNorm: y, mean and variance against float64, the pages' example, and its rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lngrad.core.problem import Forward, Grads
from lngrad.errors import DtypeError, ShapeError
from lngrad.testing import CASES, Case, check_forward, check_grads, check_same_bits, make_inputs
from lngrad_ascend import soc
from lngrad_ascend.graph import LayerNorm, LayerNormGrad, LayerNormOutputs


def call(inputs, epsilon=1e-7, **changed):
    axes = {"begin_norm_axis": -inputs.normalized, "begin_params_axis": inputs.x.ndim - inputs.normalized}
    arrays = {"x": inputs.x, "gamma": inputs.gamma, "beta": inputs.beta}
    return LayerNorm(**(arrays | axes | {"epsilon": epsilon} | changed))


def rstd_of(variance, epsilon):
    return (1 / np.sqrt(variance.astype(np.float64) + epsilon)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES[2:9], ids=str)
def test_its_results_and_the_gradients_from_them(case, dtype):
    inputs = make_inputs(replace(case, gamma_dtype="float32"), dtype)
    got = call(inputs)
    rstd = rstd_of(got.variance, 1e-7)
    check_forward(Forward(got.y, got.mean, rstd), inputs, eps=1e-7)
    with soc.use("Ascend950"):
        grads = LayerNormGrad(inputs.dy, inputs.x, got.variance, got.mean, inputs.gamma, epsilon=1e-7)
    check_grads(Grads(*grads), replace(inputs, mean=got.mean, rstd=rstd))


def test_16_bit_parameters_have_16_bit_statistics():
    inputs = make_inputs(Case((5,), (16,)), "float16")
    wide = call(inputs, gamma=inputs.gamma.astype(np.float32), beta=inputs.beta.astype(np.float32))
    check_same_bits(tuple(call(inputs)), (wide.y, wide.mean.astype(np.float16), wide.variance.astype(np.float16)))


def test_a_variance_below_the_epsilon_keeps_its_digits():
    inputs = make_inputs(Case((9,), (64,), offset=0.0, spread=1e-6), "float32")
    got = call(inputs)
    check_same_bits(got.variance, call(inputs, 0.0).variance)
    check_forward(Forward(call(inputs, 0.0).y, got.mean, rstd_of(got.variance, 0.0)), inputs, eps=0.0)
    assert not call(inputs, x=np.ones_like(inputs.x)).variance.any()


def test_the_page_s_example_exactly():
    x = np.broadcast_to(np.float32([1, 1, 3, 3]), (2, 3, 4)).copy()
    got = LayerNorm(x, np.full(4, 2, "f4"), np.full(4, 3, "f4"), begin_norm_axis=2, begin_params_axis=2, epsilon=3.0)
    rows = np.ones((2, 3, 1), np.float32)
    check_same_bits(tuple(got), (x + 1, 2 * rows, rows))


def test_tensors_of_torch_stay_such():
    torch = pytest.importorskip("torch")
    inputs = make_inputs(Case((3, 4), (16,)), "float32")
    arrays = {name: torch.from_numpy(getattr(inputs, name)) for name in ("x", "gamma", "beta")}
    check_same_bits(tuple(map(torch.Tensor.numpy, call(inputs, **arrays))), tuple(call(inputs)))


@pytest.mark.parametrize(
    ("shapes", "axis", "expected"),
    [
        (((3, 4, 5), (4, 5), (4, 5)), 1, ((3, 4, 5), (3, 1, 1), (3, 1, 1))),
        (((-1, 4, -1), (-1,), (5,)), -1, ((-1, 4, -1), (-1, 4, 1), (-1, 4, 1))),
        (((-2,), (5,), (-2,)), 7, ((-2,),) * 3),
        (((3, 5), (3, 5), (-2,)), 0, ((3, 5), (1, 1), (1, 1))),
    ],
)
def test_shapes_before_there_are_data(shapes, axis, expected):
    got = LayerNorm.infer_shape(*shapes, begin_norm_axis=axis, begin_params_axis=axis)
    assert got == LayerNormOutputs(*expected)


RULES = {
    "axis": ({"begin_norm_axis": 3}, ShapeError, r"begin_norm_axis: expected an axis of x \(3, 4, 5\), got 3"),
    "axis no integer": ({"begin_norm_axis": None}, ShapeError, "begin_norm_axis: expected an axis of x .*, got None"),
    "other axis": ({"begin_params_axis": 1}, ShapeError, "begin_params_axis: expected begin_norm_axis, 2, got 1"),
    "gamma": (
        {"gamma": np.zeros(6, "f2")},
        ShapeError,
        r"gamma: expected the last dimensions of x, \(5,\), got \(6,\)",
    ),
    "beta": ({"beta": np.zeros((4, 5), "f2")}, ShapeError, "beta: expected the last dimensions of x"),
    "empty": ({"x": np.zeros((0, 5), "f2")}, ShapeError, "x: expected dimensions of at least 1"),
    "dims": ({"x": np.zeros((1,) * 8 + (5,), "f2")}, ShapeError, "x: expected at most 8 dimensions, got 9"),
    "x dtype": (
        {"x": np.zeros((4, 5))},
        DtypeError,
        "x: expected one of float32, float16, bfloat16 on .*, got float64",
    ),
    "gamma dtype": ({"gamma": np.zeros(5)}, DtypeError, "gamma: expected float32 or the dtype of x, float16"),
    "beta dtype": ({"beta": np.zeros(5, "f4")}, DtypeError, "beta: expected the dtype of gamma, float16, got float32"),
}


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule):
    changed, kind, text = RULES[rule]
    with pytest.raises(kind, match=text):
        call(make_inputs(Case((3, 4), (5,)), "float16"), **changed)


def test_bfloat16_where_the_product_has_it():
    with soc.use("Ascend310P"), pytest.raises(DtypeError, match="x: expected one of float32, float16 on Ascend310P"):
        LayerNorm.infer_dtype("bfloat16", "float32", "float32")
    with soc.use("Ascend310P", mode="compat"):
        assert LayerNorm.infer_dtype("bfloat16", "float32", "float32") == ("bfloat16", "float32", "float32")
    with pytest.raises(TypeError, match="LayerNorm: expected 3, for x, gamma, beta, got 1"):
        LayerNorm.infer_dtype("float32")
