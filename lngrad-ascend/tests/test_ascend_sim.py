from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lngrad
from lngrad.api import execute
from lngrad.core import reference
from lngrad.core.plan import backends, make_plan
from lngrad.core.problem import Problem
from lngrad.errors import BackendUnavailable
from lngrad.testing import CASES, Case, check_grads, check_same_bits, make_inputs
from lngrad_ascend import simulated_backend as ascend_sim
from lngrad_ascend import soc
from lngrad_ascend.graph import LayerNormGrad

SOCS = ("Ascend310P", "Ascend910B1", "Ascend950")
# Rows that fit all three SoCs, and a mean that float32 holds well: the tile formula keeps a term for what it does not.
FITTING = [case for case in CASES if np.prod(case.normalized) <= 1000 and case.offset < 100]


def backward(inputs, **more):
    return lngrad.layer_norm_backward(
        inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, normalized_shape=inputs.normalized_shape,
        backend="ascend_sim", **more,
    )  # fmt: skip


def graph_op(inputs):
    variance = (1 / inputs.rstd.astype(np.float64) ** 2).astype(np.float32)
    with soc.use("Ascend950"):  # the product of its page
        return LayerNormGrad(inputs.dy, inputs.x, variance, inputs.mean, inputs.gamma, epsilon=0.0)


def plan_of(inputs):
    problem, arrays = Problem.backward(
        inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, inputs.normalized_shape
    )
    return make_plan(problem, "ascend_sim"), arrays


@pytest.mark.parametrize("name", SOCS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", FITTING[::2], ids=str)
def test_within_the_tolerance_of_every_backend(case, dtype, name):
    inputs = make_inputs(case, dtype)
    with soc.use(name):
        check_grads(backward(inputs), inputs)


def test_another_mean_keeps_the_tile_formula_s_term_which_the_graph_op_has_not():
    inputs = make_inputs(Case((6,), (48,)), "float32")
    mean = (inputs.mean + np.float32(0.25)).astype(np.float32)
    other = replace(inputs, mean=mean)
    rstd, centred = inputs.rstd.astype(float), inputs.x.astype(float) - mean
    x1 = inputs.dy.astype(float) * inputs.gamma
    term = np.sum(-0.5 * x1 * centred * rstd**3, -1, keepdims=True) / 48 * np.sum(-2 * centred, -1, keepdims=True) / 48
    assert np.max(np.abs(term)) > 1e-3
    plain = reference.layer_norm_backward(inputs.dy, inputs.x, mean, inputs.rstd, inputs.gamma).dx
    for without in (plain, graph_op(other).pd_x):
        assert np.max(np.abs(backward(other).dx.astype(float) - (without + term))) < 1e-5


def test_only_half_inputs_run_in_half():
    case = Case((9, 7), (48,), gamma_dtype="float16", statistics_dtype="float16")
    inputs = make_inputs(case, "float16")
    plan, _ = plan_of(inputs)
    assert plan.steps.dtype == np.float16
    got = backward(inputs)
    want = reference.layer_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
    for name, result, truth in zip(got._fields, got, want, strict=True):
        assert result.dtype == np.float16
        assert np.max(np.abs(result - truth)) < 5e-3 * np.max(np.abs(truth)), name
    assert plan_of(make_inputs(Case((9, 7), (48,)), "float16"))[0].steps.dtype == np.float32


@pytest.mark.parametrize("name", SOCS)
def test_a_row_s_dx_depends_on_that_row_alone_and_runs_repeat(name):
    inputs = make_inputs(Case((101,), (72,)), "float32")
    with soc.use(name):
        whole = backward(inputs)
        check_same_bits(tuple(backward(inputs)), tuple(whole))
        few = lngrad.layer_norm_backward(
            inputs.dy[:5], inputs.x[:5], inputs.mean[:5], inputs.rstd[:5], inputs.gamma, backend="ascend_sim"
        )
    check_same_bits(few.dx, whole.dx[:5].copy())


def test_masks_strides_missing_gamma_and_results_in_place():
    inputs = make_inputs(Case((4, 6), (3, 8), gamma=False), "float32")
    check_grads(backward(inputs), inputs)
    for mask in ((True, False, True), (False, True, False), (False, False, True)):
        check_grads(backward(inputs, output_mask=mask), inputs, output_mask=mask)
    strided = np.empty((6, 4, 3, 8), np.float32).transpose(1, 0, 2, 3)
    strided[...] = inputs.x
    got = lngrad.layer_norm_backward(
        inputs.dy, strided, inputs.mean, inputs.rstd, None, normalized_shape=(3, 8), backend="ascend_sim",
        out=lngrad.Grads(strided, None, None),
    )  # fmt: skip
    assert got.dx is strided
    check_grads(got, inputs)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8)])
def test_no_rows(shape):
    empty = np.empty(shape, np.float32)
    statistics = np.empty(shape[:-1], np.float32)
    got = lngrad.layer_norm_backward(empty, empty, statistics, statistics, np.ones(8, np.float32), backend="ascend_sim")
    assert got.dx.shape == shape
    assert not got.dgamma.any()
    assert not got.dbeta.any()


@pytest.mark.parametrize(
    ("name", "half", "floats", "reuse"), [("Ascend910B1", 352, 976, 1440), ("Ascend310P", 480, 1304, 1920)]
)
def test_rows_that_do_not_fit_are_refused_with_the_largest_that_do(name, half, floats, reuse):
    text = f"largest row is {half} for half, {floats} for float, {reuse} for float with isReuseSource"
    with soc.use(name):
        fitting = make_inputs(Case((3,), (reuse,)), "float32")
        assert plan_of(fitting)[0].steps.tiling.reuse_source == 1
        check_grads(backward(fitting), fitting)
        with pytest.raises(BackendUnavailable, match=rf"one row of {reuse + 1} in float32 .* of {name}, .*{text}"):
            backward(make_inputs(Case((3,), (reuse + 1,)), "float32"))


def test_the_soc_of_the_plan_is_the_one_that_runs():
    inputs = make_inputs(Case((100,), (64,)), "float32")
    with soc.use("Ascend950"):
        plan, arrays = plan_of(inputs)
    outputs = tuple(np.empty(shape, np.float32) for shape in ((100, 64), (64,), (64,)))
    reports = ascend_sim.simulate(plan, arrays, outputs)
    assert [report.soc for report in reports] == ["Ascend950"] * 2
    assert [len(report.blocks) for report in reports] == [50, 1]
    assert reports[0].blocks[0].tile_apis == {"LayerNormGrad": 1, "LayerNormGradBeta": 1}
    assert plan_of(inputs)[0].steps.soc.name == "Ascend910B1"
    check_grads(lngrad.Grads(*execute(plan, arrays)), inputs)


def test_what_it_does_not_take():
    x = np.ones((2, 8), np.float32)
    with pytest.raises(BackendUnavailable, match="ascend_sim does not compute the forward of x, gamma, beta"):
        lngrad.layer_norm(x, backend="ascend_sim")
    for dtype in ("bfloat16", "float64"):
        with pytest.raises(BackendUnavailable, match=f"takes x in float16 or float32, got {dtype}"):
            backward(make_inputs(Case((2,), (8,)), dtype))
    with pytest.raises(BackendUnavailable, match="ascend_sim computes in float32 at most"):
        backward(make_inputs(Case((3,), (8,), gamma_dtype="float64"), "float32"))
    with soc.use("Ascend910A"), pytest.raises(BackendUnavailable, match=r"Ascend910A .* has no LayerNormGrad tile API"):
        backward(make_inputs(Case((2,), (8,)), "float32"))


def test_it_is_never_chosen_by_default():
    inputs = make_inputs(Case((2,), (8,)), "float32")
    problem, _ = Problem.backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, inputs.normalized_shape)
    assert make_plan(problem).backend != "ascend_sim"
    assert backends()["ascend_sim"] == "available"


@pytest.mark.parametrize("name", SOCS)
@pytest.mark.parametrize("case", [Case((9,), (16,)), Case((70,), (48,)), Case((33,), (200,))], ids=str)
def test_the_tile_level_equals_the_graph_op_where_the_mean_is_the_rows_own(case, name):
    """Two surfaces, one truth: both within the tolerance table of the same inputs."""
    inputs = make_inputs(case, "float32")
    check_grads(lngrad.Grads(*graph_op(inputs)), inputs)
    with soc.use(name):
        check_grads(backward(inputs), inputs)


def test_reports_attribute_instructions_to_the_tile_apis():
    inputs = make_inputs(Case((70,), (48,)), "float32")
    plan, arrays = plan_of(inputs)
    outputs = tuple(np.empty(spec.shape, np.float32) for spec in plan.problem.outputs())
    report = ascend_sim.simulate(plan, arrays, outputs)[0]
    for block in report.blocks:
        assert set(block.api_instructions) == set(block.tile_apis) == {"LayerNormGrad", "LayerNormGradBeta"}
        assert 0 < sum(block.api_instructions.values()) <= sum(block.instructions.values())
    assert "LayerNormGrad: 1, " in report.table()
