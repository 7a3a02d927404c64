"""Calls with NumPy arrays that come again: the results, errors and memory of a first call."""

from __future__ import annotations

import operator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import lngrad
from lngrad.core import calls, numpy_backend, plan
from lngrad.errors import OverlapError, ShapeError
from lngrad.support.dtypes import numpy_dtype
from lngrad.testing import Case, Normalization, check_forward, check_grads, check_same_bits, make_inputs
from norms import NORMS, backward, everything, forward

CASE = Case((64,), (64,))


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    """Every test begins with first calls. A NumPy plan is bound, too: it computes norms that the kernels may lack."""
    calls.forget()
    plan._plans.clear()
    bare = numpy_backend.plan
    bind = plan._run_on_views
    monkeypatch.setattr(numpy_backend, "plan", lambda *facts: replace(bare(*facts), bind=bind))
    yield
    plan._plans.clear()


@pytest.mark.parametrize("given", ["no out", "out"])
def test_a_second_call_is_not_described_again(given, norm, monkeypatch):
    inputs = make_inputs(CASE, "float32", **norm)
    right, right_grads = forward(inputs), backward(inputs)
    out, out_grads = (forward(inputs), backward(inputs)) if given == "out" else (None, None)
    forward(inputs, out=out), backward(inputs, out=out_grads)
    for array in (*(out or ()), *(out_grads or ())):
        if array is not None:
            array[:] = np.nan
    monkeypatch.setattr("lngrad.api.describe", None)
    results, grads = forward(inputs, out=out), backward(inputs, out=out_grads)
    check_same_bits(results, right)
    check_same_bits(grads, right_grads)
    assert given == "no out" or all(map(operator.is_, (*results, *grads), (*out, *out_grads)))


def test_a_second_call_with_tensors_is_not_described_again(monkeypatch):
    torch = pytest.importorskip("torch")
    inputs = make_inputs(CASE, "float32")
    arrays = [torch.from_numpy(array) for array in (inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)]
    right, out = backward(inputs), lngrad.layer_norm_backward(*arrays)
    lngrad.layer_norm_backward(*arrays, out=out)
    for tensor in out:
        tensor.fill_(torch.nan)
    monkeypatch.setattr("lngrad.api.describe", None)
    for results in (lngrad.layer_norm_backward(*arrays), lngrad.layer_norm_backward(*arrays, out=out)):
        check_same_bits(results, right)
    assert all(map(operator.is_, results, out))


@pytest.mark.parametrize("given", ["all", "not all"])
def test_a_known_out_is_checked_wherever_it_lies(given, norm):
    inputs = make_inputs(CASE, "float32", **norm)
    for _ in range(4):
        out, grads = forward(inputs), backward(inputs)
        if given == "not all":
            out, grads = (result._replace(**{result._fields[1]: None}) for result in (out, grads))
        check_forward(forward(inputs, out=out), inputs)
        check_grads(backward(inputs, out=grads), inputs)
        room = np.zeros((64, 64), np.float32)
        with pytest.raises(OverlapError, match=r"out.y: shares memory with gamma"):
            forward(replace(inputs, gamma=room[3]), out=out._replace(y=room))
        room.flags.writeable = False
        with pytest.raises(OverlapError, match=r"out.dx: expected a writable array"):
            backward(inputs, out=grads._replace(dx=room))
        check_grads(backward(replace(inputs, x=inputs.x.copy()), out=grads._replace(dx=inputs.dy.copy())), inputs)


def test_a_known_out_of_a_result_that_is_not_wanted_is_left_alone():
    inputs = make_inputs(CASE, "float32")
    arrays = inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma
    right, out = backward(inputs), backward(inputs)
    for _ in range(4):
        for array in out:
            array[:] = np.nan
        dx, dgamma, dbeta = lngrad.layer_norm_backward(*arrays, output_mask=(True, False, True), out=out)
        check_same_bits((dx, dbeta), (right.dx, right.dbeta))
        assert dgamma is None
        assert np.isnan(out.dgamma).all()


def test_a_known_call_of_a_tensor_whose_memory_is_freed_is_refused():
    torch = pytest.importorskip("torch")
    x = torch.randn(64, 64)
    lngrad.layer_norm(x), lngrad.layer_norm(x)
    x.untyped_storage().resize_(0)
    with pytest.raises(ShapeError, match="x: expected 16384 bytes of storage, got 0"):
        lngrad.layer_norm(x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("lead", [(64,), (700,), (3000,)])
def test_every_call_is_right(dtype, lead, norm):
    inputs = make_inputs(Case(lead, (96,)), dtype, **norm)
    for _ in range(4):
        check_forward(forward(inputs), inputs)
        check_grads(backward(inputs), inputs)


def test_each_fact_makes_another_call():
    inputs = make_inputs(CASE, "float32")
    others = [
        *(make_inputs(CASE, "float32", **norm) for norm in NORMS.values()),
        make_inputs(CASE, "float32", normalization=Normalization(centred=False, offset=0.5)),
        make_inputs(CASE, "float64"),
        make_inputs(CASE, "bfloat16"),
        make_inputs(Case((65,), (64,)), "float32"),
        make_inputs(Case((64,), (64,), gamma_dtype="bfloat16"), "float32"),
        make_inputs(Case((64,), (64,), gamma=False), "float32"),
        make_inputs(Case((64,), (64,), gamma=False), "float32", **NORMS["rms_norm"]),
        replace(inputs, x=np.asfortranarray(inputs.x)),
        replace(inputs, dy=inputs.dy[::-1]),
        replace(inputs, mean=np.repeat(inputs.mean, 2, axis=-1)[..., ::2]),
    ]
    for _ in range(4):
        for other in others:
            check_forward(forward(other), other)
            check_grads(backward(other), other)
            mask = (True, False, True)[: len(everything(other))]
            check_grads(backward(other, output_mask=mask), other, output_mask=mask)


def test_results_that_somebody_holds_are_left_alone():
    inputs = make_inputs(CASE, "float32")
    first = forward(inputs)
    kept = [array.copy() for array in first]
    view = forward(inputs).y[3:5]
    of_view = view.copy()
    for factor in range(2, 20):
        forward(replace(inputs, x=inputs.x * factor))
        backward(replace(inputs, dy=inputs.dy * factor))
    check_same_bits(tuple(first), tuple(kept))
    check_same_bits((view,), (of_view,))


def test_memory_is_used_again_once_nobody_holds_it():
    inputs = make_inputs(CASE, "float32")
    places = set()
    for _ in range(50):
        y = forward(inputs).y
        places.add(y.ctypes.data)
    assert len(places) <= 4
    assert all(place % 64 == 0 for place in places)


def test_threads_get_memory_of_their_own():
    inputs = make_inputs(CASE, "float32")
    variants = [replace(inputs, x=np.roll(inputs.x, k, axis=0)) for k in range(4)]
    expected = [forward(variant).y.copy() for variant in variants]

    def repeat(variant, right):
        for _ in range(300):
            y = forward(variant).y
            check_same_bits((y,), (right,))

    with ThreadPoolExecutor(len(variants)) as crew:
        list(crew.map(repeat, variants, expected))


@pytest.mark.parametrize("shape", [64.0, [64.0], (32,), ()])
def test_a_shape_that_is_only_equal_to_a_known_one_is_checked(shape):
    x = np.ones((4, 64), np.float32)
    outcomes = []
    for known in (False, True):
        calls.forget()
        for _ in range(4 * known):
            lngrad.layer_norm(x, x.shape[-1])
        try:
            outcomes.append(lngrad.layer_norm(x, shape).y.shape)
        except Exception as reason:
            outcomes.append((type(reason), str(reason)))
    assert outcomes[0] == outcomes[1]


def test_memory_at_address_0_is_refused_by_a_known_call_too():
    class Nowhere:
        __array_interface__ = {"version": 3, "shape": (64, 64), "typestr": "<f4", "data": (0, False)}  # noqa: RUF012

    inputs = make_inputs(CASE, "float32")
    for _ in range(4):
        forward(inputs)
    with pytest.raises(ShapeError, match="x: its __array_interface__ can't be read"):  # NumPy has no array at address 0
        lngrad.layer_norm(Nowhere(), 64, inputs.gamma, inputs.beta)


def test_plain_functions_let_torchs_threads_work(monkeypatch):
    torch = pytest.importorskip("torch")
    from lngrad import api
    from lngrad.core import threads

    if threads.torch_parallel_for() is None or torch.get_num_threads() < 2 or lngrad.get_num_threads() < 2:
        pytest.skip("torch has no threads to lend")
    lent = []
    theirs = threads.torch_parallel_for()
    for module in (api, calls):
        monkeypatch.setattr(module, "torch_parallel_for", lambda: lambda *job: lent.append(job) or theirs(*job))
    inputs = make_inputs(Case((2048,), (256,)), "float32")
    arrays = [torch.from_numpy(array) for array in (inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)]
    for _ in range(2):
        check_grads(lngrad.layer_norm_backward(*arrays), inputs)
        assert lent
        del lent[:]
    check_grads(backward(inputs), inputs)
    assert not lent


@pytest.mark.parametrize(
    ("dtype", "eps"), [("float16", 2.0**-23), ("bfloat16", 2.0**-23), ("float32", 2.0**-23), ("float64", 2.0**-52)]
)
def test_rms_norm_without_eps_takes_torchs(dtype, eps):
    """In a known call and in a first one."""
    x = make_inputs(Case((5,), (48,)), dtype).x * numpy_dtype(dtype).type(1e-3)
    expected = lngrad.rms_norm(x, eps=eps)
    for _ in range(2):
        check_same_bits(lngrad.rms_norm(x), expected)
