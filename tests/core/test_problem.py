"""Every rule of a call, each with its text, for both operations."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pytest

import lngrad
from lngrad.api import execute
from lngrad.core import numpy_backend, reference
from lngrad.core.arrays import ArraySpec, spec_of
from lngrad.core.plan import make_plan
from lngrad.core.problem import Normalization, Operator, Problem, describe
from lngrad.errors import BackendUnavailable, DtypeError, ShapeError, WorkspaceError
from lngrad.testing import Case, error_share, make_inputs


def call(**changes):
    """A backward of x (2, 3, 4) over (4,), with some arguments changed."""
    inputs = make_inputs(Case((2, 3), (4,)), "float32")
    arguments = {"dy": inputs.dy, "x": inputs.x, "mean": inputs.mean, "rstd": inputs.rstd, "gamma": inputs.gamma}
    return lngrad.layer_norm_backward(**{**arguments, **changes})


F32, F64, F16 = np.float32, np.float64, np.float16

RULES = [
    (ShapeError, "x: expected 1 to 8 dimensions, got 0", {"x": np.ones((), F32), "dy": np.ones((), F32)}),
    (ShapeError, "x: expected 1 to 8 dimensions, got 9", {"x": np.ones((1,) * 9, F32), "dy": np.ones((1,) * 9, F32)}),
    (ShapeError, "normalized_shape: expected at least 1 dimension, got ()", {"normalized_shape": ()}),
    (
        ShapeError,
        "normalized_shape: expected the last dimensions of x, whose shape is (2, 3, 4), got (3,)",
        {"normalized_shape": 3},
    ),
    (
        ShapeError,
        "normalized_shape: expected the last dimensions of x, whose shape is (2, 3, 4), got (1, 2, 3, 4)",
        {"normalized_shape": [1, 2, 3, 4], "gamma": None},
    ),
    (ShapeError, "dy: expected the shape of x, (2, 3, 4), got (3, 2, 4)", {"dy": np.ones((3, 2, 4), F32)}),
    (DtypeError, "dy: expected the dtype of x, float32, got float64", {"dy": np.ones((2, 3, 4), F64)}),
    (
        ShapeError,
        "mean: expected 6 elements, one per row of x (2, 3, 4) normalized over (4,), got shape (2, 4)",
        {"mean": np.ones((2, 4), F32)},
    ),
    (
        ShapeError,
        "rstd: expected 6 elements, one per row of x (2, 3, 4) normalized over (4,), got shape (5,)",
        {"rstd": np.ones(5, F32)},
    ),
    (
        DtypeError,
        "mean: expected float16, bfloat16, float32 or float64, got int64",
        {"mean": np.ones(6, np.int64)},
    ),
    (
        ShapeError,
        "gamma: expected the normalized shape (4,), got (2, 2)",
        {"gamma": np.ones((2, 2), F32), "normalized_shape": 4},
    ),
    (DtypeError, "x: expected float16, bfloat16, float32 or float64, got int32", {"x": np.ones((2, 3, 4), np.int32)}),
    (DtypeError, "x: expected float16, bfloat16, float32 or float64, got >f4", {"x": np.ones((2, 3, 4), ">f4")}),
    (
        DtypeError,
        "mean: expected an array (NumPy, torch, __array_interface__ or DLPack), got list",
        {"mean": [1.0] * 6},
    ),
    (DtypeError, "rstd: expected an array (NumPy, torch, __array_interface__ or DLPack), got NoneType", {"rstd": None}),
    (ShapeError, "output_mask: expected 3 booleans for dx, dgamma, dbeta, got 2", {"output_mask": [True, False]}),
    (ShapeError, "out: expected a Grads of three arrays or None, got list", {"out": [None] * 3}),
    (
        ShapeError,
        "out.dx: expected shape (2, 3, 4), got (6, 4)",
        {"out": lngrad.Grads(np.ones((6, 4), F32), None, None)},
    ),
    (
        DtypeError,
        "out.dx: expected the dtype of x, float32, got float64",
        {"out": lngrad.Grads(np.ones((2, 3, 4)), None, None)},
    ),
    (
        ShapeError,
        "out.dgamma: expected shape (4,), got (1, 4)",
        {"out": lngrad.Grads(None, np.ones((1, 4), F32), None)},
    ),
    (
        DtypeError,
        "out.dbeta: expected float16, bfloat16, float32 or float64, got int64",
        {"out": lngrad.Grads(None, None, np.ones(4, np.int64))},
    ),
    (
        ShapeError,
        "out.dx: expected a place of its own for every element, got strides (0, 16, 4)",
        {"out": lngrad.Grads(np.broadcast_to(np.ones((1, 3, 4), F32), (2, 3, 4)), None, None)},
    ),
    (BackendUnavailable, "backend: expected one of numba_cpu, numpy_cpu, ", {"backend": "cuda"}),
]


@pytest.mark.parametrize(("error", "text", "changes"), RULES, ids=[text[:60] for _, text, _ in RULES])
def test_backward_rules(error, text, changes):
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        call(**changes)


FORWARD_RULES = [
    (ShapeError, "beta: expected the normalized shape (4,), got (3,)", {"beta": np.ones(3, F32)}),
    (ShapeError, "out.mean: expected shape (2, 3, 1), got (6,)", {"out": lngrad.Forward(None, np.ones(6, F32), None)}),
    (
        DtypeError,
        "out.rstd: expected float16, bfloat16, float32 or float64, got int64",
        {"out": lngrad.Forward(None, None, np.ones((2, 3, 1), np.int64))},
    ),
    (ShapeError, "out: expected a Forward of three arrays or None, got int", {"out": 3}),
]


@pytest.mark.parametrize(("error", "text", "changes"), FORWARD_RULES, ids=[text[:60] for _, text, _ in FORWARD_RULES])
def test_forward_rules(error, text, changes):
    inputs = make_inputs(Case((2, 3), (4,)), "float32")
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        lngrad.layer_norm(inputs.x, gamma=inputs.gamma, **changes)


def test_checks_come_before_anything_is_written():
    out = lngrad.Grads(np.full((2, 3, 4), 7, F32), np.full(4, 7, F32), np.full(3, 7, F32))
    with pytest.raises(ShapeError, match=r"out\.dbeta"):
        call(out=out)
    assert all((array == 7).all() for array in out)


def test_masked_off_outputs_are_not_looked_at():
    wrong = np.full((9, 9), 7, np.int64)
    grads = call(output_mask=(True, False, False), out=lngrad.Grads(None, wrong, wrong))
    assert grads.dgamma is None
    assert grads.dbeta is None
    assert (wrong == 7).all()


def test_statistics_may_have_any_shape_with_one_element_a_row():
    inputs = make_inputs(Case((2, 3), (4,)), "float32")
    expected = call()
    for shape in ((6,), (2, 3), (3, 2, 1), (1, 6)):
        grads = call(mean=inputs.mean.reshape(shape), rstd=inputs.rstd.reshape(shape))
        lngrad.testing.check_same_bits(tuple(grads), tuple(expected))


def test_equal_facts_are_one_problem_and_one_plan():
    inputs = make_inputs(Case((2, 3), (4,)), "float32")
    arguments = inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma
    one, _ = Problem.backward(*arguments)
    other, _ = Problem.backward(*(array.copy() for array in arguments))
    assert one is other
    assert make_plan(one) is make_plan(other)
    transposed, _ = Problem.backward(inputs.dy, np.asfortranarray(inputs.x), *arguments[2:])
    assert transposed is not one


def test_outputs_are_known_before_they_exist():
    inputs = make_inputs(Case((2, 3), (4,), gamma_dtype="float32"), "float16")
    problem, _ = Problem.backward(
        inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, None, (True, False, True)
    )
    dx, dgamma, dbeta = problem.outputs()
    assert (dx.shape, dx.dtype, dx.nbytes) == ((2, 3, 4), "float16", 48)
    assert dgamma is None
    assert (dbeta.shape, dbeta.dtype) == ((4,), "float32")


def test_facts_stand_for_arrays_that_do_not_exist_yet():
    inputs = make_inputs(Case((6,), (5,), gamma_dtype="float32"), "bfloat16")
    arrays = inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma
    described = Problem.backward(*(spec_of("", array) for array in arrays))[0]
    assert described.outputs() == Problem.backward(*arrays)[0].outputs()
    with pytest.raises(DtypeError, match="x: expected float16, bfloat16, float32 or float64, got int32"):
        Problem.forward(ArraySpec((6, 5), "int32", (20, 4), "cpu", "numpy"), None, None)


def test_a_short_workspace_is_refused(backend):
    inputs = make_inputs(Case((200,), (40,)), "float32")
    problem, arrays = Problem.backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
    plan = make_plan(problem, backend)
    if plan.workspace_bytes == 0:
        pytest.skip("this backend's temporaries are NumPy's own")
    text = f"workspace: expected at least {plan.workspace_bytes} bytes, got {plan.workspace_bytes - 1}"
    with pytest.raises(WorkspaceError, match=text):
        lngrad.api.execute(plan, arrays, None, np.empty(plan.workspace_bytes - 1, np.uint8))


def test_backends_are_listed():
    listed = lngrad.backends()
    assert next(iter(listed)) == "numba_cpu"
    assert {listed[name] for name in ("numba_cpu", "numpy_cpu", "ascend_sim")} == {"available"}


class RmsForward(NamedTuple):
    y: Any
    rstd: Any


class RmsGrads(NamedTuple):
    dx: Any
    dgamma: Any


def test_another_operator_is_a_row_and_a_normalization():
    """Checks, outputs, masks, reference and backend follow from its names and switches."""
    forward = Operator("forward", ("x", "gamma"), ("eps",), RmsForward)
    backward = Operator("backward", ("dy", "x", "rstd", "gamma"), (), RmsGrads)
    rms = Normalization(centred=False, offset=1.0)
    inputs = make_inputs(Case((70,), (13,)), "float32")
    problem, arrays = describe(forward, (inputs.x, inputs.gamma), None, (True, True), None, rms)
    y, rstd = execute(numpy_backend.plan(problem, 1), (*arrays, 1e-6))
    x = inputs.x.astype(np.float64)
    true_rstd = 1 / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6)
    true = reference.layer_norm(x, inputs.gamma, eps=1e-6, normalization=rms)
    assert error_share(rstd, true_rstd, true_rstd, "float32").max() <= 1
    assert error_share(y, x * true_rstd * (1.0 + inputs.gamma), 10, "float32").max() <= 1
    assert error_share(y, true.y, 10, "float32").max() <= 1
    problem, arrays = describe(backward, (inputs.dy, inputs.x, rstd, inputs.gamma), None, (True, True), None, rms)
    assert problem is not describe(backward, arrays, None, (True, True), None)[0]
    dx, dgamma = execute(numpy_backend.plan(problem, 1), arrays)
    expected = reference.layer_norm_backward(inputs.dy, x, np.zeros(70), rstd, inputs.gamma, normalization=rms)
    assert error_share(dx, expected.dx, 10, "float32").max() <= 1
    assert error_share(dgamma, expected.dgamma, 70, "float32").max() <= 1
    with pytest.raises(ShapeError, match=r"^output_mask: expected 2 booleans for dx, dgamma, got 3$"):
        describe(backward, arrays, None, (True, True, True), None, rms)
    with pytest.raises(ShapeError, match=r"^out: expected a RmsGrads of two arrays or None, got tuple$"):
        describe(backward, arrays, None, (True, True), (None,), rms)
