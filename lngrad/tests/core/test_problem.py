"""Every rule of a call, each with its text, for both operations."""

from __future__ import annotations

import re
import sys
from collections import namedtuple
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import lngrad
from lngrad.core import calls, plan
from lngrad.core.arrays import ArraySpec, spec_of
from lngrad.core.plan import BACKENDS, Backend, Serves, make_plan
from lngrad.core.problem import BACKWARD, FORWARD, Grads, Normalization, Operator, Problem
from lngrad.errors import BackendUnavailable, DtypeError, NumberError, OverlapError, ShapeError, WorkspaceError
from lngrad.testing import Case, make_inputs


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
    *(
        (
            ShapeError,
            f"out.dx: expected a place of its own for every element, got strides {strides}",
            {"out": lngrad.Grads(np.lib.stride_tricks.as_strided(np.ones(64, F32), (2, 3, 4), strides), None, None)},
        )
        for strides in ((48, 12, 4), (4, 4, 4), (48, 16, 2), (16, 48, 8), (-48, 8, 4), (24, 8, 4))
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
        lngrad.layer_norm(inputs.x, inputs.gamma, **changes)


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
    arguments = inputs.arguments
    problem, _ = Problem.backward(*arguments)
    other, _ = Problem.backward(*(array.copy() for array in arguments))
    assert problem is other
    assert make_plan(problem) is make_plan(other)
    transposed, _ = Problem.backward(inputs.dy, np.asfortranarray(inputs.x), *arguments[2:])
    assert transposed is not problem


def test_outputs_are_known_before_they_exist():
    inputs = make_inputs(Case((2, 3), (4,), gamma_dtype="float32"), "float16")
    problem, _ = Problem.backward(*inputs.arguments, None, (True, False, True))
    dx, dgamma, dbeta = problem.outputs()
    assert (dx.shape, dx.dtype, dx.nbytes) == ((2, 3, 4), "float16", 48)
    assert dgamma is None
    assert (dbeta.shape, dbeta.dtype) == ((4,), "float32")


def test_facts_stand_for_arrays_that_do_not_exist_yet():
    inputs = make_inputs(Case((6,), (5,), gamma_dtype="float32"), "bfloat16")
    arrays = inputs.arguments
    described = Problem.backward(*(spec_of("", array) for array in arrays))[0]
    assert described.outputs() == Problem.backward(*arrays)[0].outputs()
    with pytest.raises(DtypeError, match="x: expected float16, bfloat16, float32 or float64, got int32"):
        Problem.forward(ArraySpec((6, 5), "int32", (20, 4), "cpu", "numpy"), None, None)


def test_a_short_workspace_is_refused(backend):
    inputs = make_inputs(Case((200,), (40,)), "float32")
    problem, arrays = Problem.backward(*inputs.arguments)
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


NAN, INF = float("nan"), float("inf")
X = np.ones((2, 3, 4), F32)
OTHER = np.ones((2, 3, 4), F64)
ROWS = np.ones(6, F32)

# What the family adds, each rule in a call of rms_norm's, where layer_norm's two have it too.
FAMILY_RULES = [
    (ShapeError, "residual: expected the shape of x, (2, 3, 4), got (3, 4)", {"residual": X[0]}),
    (DtypeError, "residual: expected the dtype of x, float32, got float64", {"residual": OTHER}),
    (DtypeError, "residual: expected an array (NumPy, torch, __array_interface__ or DLPack), got int", {"residual": 1}),
    (NumberError, "offset: expected a finite number, got nan", {"offset": NAN}),
    (NumberError, "offset: expected a finite number, got '1'", {"offset": "1"}),
    (NumberError, "offset: expected a finite number, got None", {"offset": None}),
    (NumberError, "alpha: expected a finite number, got -inf", {"residual": X, "alpha": -INF}),
    (NumberError, "alpha: expected 1 without a residual, got 2.0", {"alpha": 2.0}),
]
RMS_RULES = [
    *FAMILY_RULES,
    (ShapeError, "gamma: expected the normalized shape (4,), got (3,)", {"gamma": np.ones(3, F32), "normalized_shape": 4}),
    (ShapeError, "out: expected a RmsForward of three arrays or None, got tuple", {"out": (None, None)}),
    (ShapeError, "out.rstd: expected shape (2, 3, 1), got (6,)", {"out": lngrad.RmsForward(None, ROWS)}),
    (DtypeError, "out.total: expected the dtype of x, float32, got float64",
     {"residual": X, "out": lngrad.RmsForward(None, None, OTHER)}),
    (OverlapError, "out.total: shares memory with x; an output may take the place of an input only as a whole, with the same "
     "strides (out.total: x or residual)", {"x": X[:, ::-1], "residual": X.copy(), "out": lngrad.RmsForward(None, None, X)}),
]  # fmt: skip
RMS_BACKWARD_RULES = [
    (ShapeError, "dtotal: expected the shape of x, (2, 3, 4), got (4,)", {"dtotal": X[0, 0]}),
    (DtypeError, "dtotal: expected the dtype of x, float32, got float64", {"dtotal": OTHER}),
    (NumberError, "offset: expected a finite number, got inf", {"offset": INF}),
    (ShapeError, "rstd: expected 6 elements, one per row of x (2, 3, 4) normalized over (4,), got shape (5,)",
     {"rstd": ROWS[:5]}),
    (ShapeError, "output_mask: expected 2 booleans for dx, dgamma, got 3", {"output_mask": (True,) * 3}),
    (ShapeError, "out: expected a RmsGrads of two arrays or None, got int", {"out": 3}),
    (ShapeError, "out.dgamma: expected shape (4,), got (2, 3, 4)", {"out": lngrad.RmsGrads(None, X)}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "text", "changes"), RMS_RULES, ids=[text[:60] for _, text, _ in RMS_RULES])
def test_rms_norm_rules(error, text, changes):
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        lngrad.rms_norm(**{"x": X, **changes})


@pytest.mark.parametrize(("error", "text", "changes"), FAMILY_RULES, ids=[text[:60] for _, text, _ in FAMILY_RULES])
def test_layer_norm_has_the_rules_of_the_family(error, text, changes):
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        lngrad.layer_norm(**{"x": X, **changes})


@pytest.mark.parametrize(
    ("error", "text", "changes"), RMS_BACKWARD_RULES, ids=[text[:60] for _, text, _ in RMS_BACKWARD_RULES]
)
def test_rms_norm_backward_rules(error, text, changes):
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        lngrad.rms_norm_backward(**{"dy": X, "x": X, "rstd": ROWS, **changes})
    if "tot" in text or "offset" in text:
        with pytest.raises(error, match=f"^{re.escape(text)}"):
            lngrad.layer_norm_backward(X, X, ROWS, ROWS, **changes)


def test_a_residual_makes_a_result_of_four():
    for out in (lngrad.Forward(None, None, None), lngrad.RmsForward(None, None)):
        with pytest.raises(ShapeError, match=r"^out: expected a ForwardWithTotal of four arrays or None, got"):
            lngrad.layer_norm(X, residual=X.copy(), out=out)
    assert lngrad.layer_norm(X, residual=X)._fields == ("y", "mean", "rstd", "total")
    assert lngrad.rms_norm(X).total is None


def test_a_backend_that_lacks_a_norm_is_passed_over_and_refuses_by_name(monkeypatch):
    lacking, whole = Backend("nowhere", (), ("cpu",)), BACKENDS["numpy_cpu"]
    monkeypatch.setitem(sys.modules, "nowhere", SimpleNamespace(SERVES=Serves(frozenset((FORWARD, BACKWARD)))))
    monkeypatch.setattr("lngrad.core.plan.BACKENDS", {"lacking": lacking, "numpy_cpu": whole})
    for reason, call in (
        ("forward of x, gamma to y, rstd, total", lambda **options: lngrad.rms_norm(X, **options)),
        ("backward of dy, x, rstd, gamma to dx, dgamma", lambda **options: lngrad.rms_norm_backward(X, X, ROWS, **options)),
        ("forward of x, gamma, beta to y, mean, rstd with offset=1.0",
         lambda **options: lngrad.layer_norm(X, offset=1.0, **options)),
        ("forward of x, gamma, beta, residual to y, mean, rstd, total",
         lambda **options: lngrad.layer_norm(X, residual=X, **options)),
        ("backward of dy, x, mean, rstd, gamma, dtotal to dx, dgamma, dbeta",
         lambda **options: lngrad.layer_norm_backward(X, X, ROWS, ROWS, dtotal=X, **options)),
    ):  # fmt: skip
        calls.forget()
        call()
        with pytest.raises(
            BackendUnavailable, match=f"^backend: lacking does not compute the {reason}; numpy_cpu does$"
        ):
            call(backend="lacking")
    monkeypatch.setattr("lngrad.core.plan.BACKENDS", {"lacking": lacking})
    calls.forget()
    with pytest.raises(
        BackendUnavailable, match=r"^backend: no backend for arrays on cpu \(lacking: does not compute the forward"
    ):
        lngrad.rms_norm(np.ones((3, 17), np.float32))  # of facts that no test has used before
    calls.forget()


@pytest.mark.parametrize("name", BACKENDS)
def test_what_is_added_to_the_core_alone_is_refused_by_every_backend(name):
    """An operator, a switch and a dtype that its kernels have not: each is named, and nothing is computed."""
    row = BACKENDS[name]
    if reason := plan._missing(name):
        pytest.skip(reason)
    problem, _ = Problem.backward(X, X, ROWS, ROWS, None)
    biased = Operator("backward", ("dy", "x", "rstd", "gamma"), (), Grads)
    inputs = {**problem.inputs, "dy": problem.inputs["dy"]._replace(dtype="float8_e5m2")}
    for added, text in (
        ({"operator": biased}, "does not compute the backward of dy, x, rstd, gamma to dx, dgamma, dbeta"),
        ({"inputs": inputs}, "does not compute with float8_e5m2, which dy has"),
    ):
        unknown = replace(problem, device=row.devices[0], **added)
        with pytest.raises(BackendUnavailable, match=f"^backend: {name} {text}; no backend here does$"):
            make_plan(unknown, name)
        with pytest.raises(BackendUnavailable, match="^backend: no backend for arrays on .*" + text):
            make_plan(unknown)
    switched = namedtuple("Switched", (*Normalization._fields, "rotated"), defaults=(*Normalization(), False))
    with pytest.raises(BackendUnavailable, match=f"^backend: {name} .* with rotated=True; no backend here does$"):
        make_plan(replace(problem, device=row.devices[0], normalization=switched(rotated=True)), name)


@pytest.mark.parametrize("gamma", [np.ones(768, np.float32), np.ones(2, np.int64), np.ones((3, 4))], ids=str)
@pytest.mark.parametrize("of_torch", [False, True])
def test_an_array_for_a_normalized_shape_is_named_in_one_line(gamma, of_torch):
    if of_torch:
        gamma = pytest.importorskip("torch").from_numpy(gamma)
    text = (
        rf"^normalized_shape: got an array of shape {re.escape(str(tuple(gamma.shape)))}, \S+; did you mean gamma=\?$"
    )
    x, rows = np.ones((2, 768), np.float32), np.ones(2, np.float32)
    for call in (
        lambda: lngrad.layer_norm(x, normalized_shape=gamma),
        lambda: lngrad.rms_norm(x, normalized_shape=gamma),
        lambda: lngrad.layer_norm_backward(x, x, rows, rows, normalized_shape=gamma),
        lambda: lngrad.rms_norm_backward(x, x, rows, normalized_shape=gamma),
    ):
        with pytest.raises(ShapeError, match=text):
            call()


def test_an_operator_without_a_mean_takes_no_centred_normalization():
    from lngrad.core.problem import RMS_BACKWARD, describe

    with pytest.raises(ValueError, match=r"^normalization: expected one that is not centred for an operator without"):
        describe(RMS_BACKWARD, (X, X, ROWS, None), None, RMS_BACKWARD.everything, None)


@pytest.mark.parametrize("eps", [-1e-5, np.float32(-1), float("nan"), float("inf"), "small"])
@pytest.mark.parametrize("function", [lngrad.layer_norm, lngrad.rms_norm])
def test_an_eps_that_no_variance_takes(function, eps):
    with pytest.raises(NumberError, match="eps: expected a number"):
        function(np.ones((2, 3), F32), eps=eps)
