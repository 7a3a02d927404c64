"""What a call may write to, and that it writes nowhere else."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import lngrad
import norms
from lngrad import api
from lngrad.core.plan import make_plan
from lngrad.core.problem import LAYER_NORM, Problem, check_memory
from lngrad.errors import OverlapError
from lngrad.support.dtypes import DTYPES, numpy_dtype
from lngrad.testing import CASES, Case, Inputs, check_grads, check_same_bits, make_inputs

GUARD = 4096


def guarded(nbytes):
    buffer = np.full(nbytes + 2 * GUARD, 0xA5, np.uint8)
    return buffer, buffer[GUARD : GUARD + nbytes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_written_outside_outputs_and_workspace(case, dtype):
    inputs = make_inputs(case, dtype)
    arguments = inputs.arguments
    for mask in itertools.product((True, False), repeat=3):
        out, buffers = [], []
        for shape in (inputs.x.shape, case.normalized, case.normalized):
            buffer, inside = guarded(int(np.prod(shape)) * numpy_dtype(dtype).itemsize)
            out.append(inside.view(numpy_dtype(dtype)).reshape(shape))
            buffers.append(buffer)
        problem, arrays = Problem.backward(*arguments, case.normalized, mask, lngrad.Grads(*out))
        plan = make_plan(problem, "numba_cpu")
        buffer, workspace = guarded(plan.workspace_bytes)
        results = api.execute(plan, arrays, out, workspace)
        check_grads(lngrad.Grads(*results), inputs, output_mask=mask)
        for written in (*buffers, buffer):
            assert (written[:GUARD] == 0xA5).all()
            assert (written[-GUARD:] == 0xA5).all()
        for buffer, wanted in zip(buffers, mask, strict=True):
            assert wanted or (buffer == 0xA5).all()


@pytest.mark.parametrize("name", ["dy", "x", "dtotal"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("N", [1, 5, 13, 40, 300, 5003, 8200])
def test_dx_may_take_the_place_of_any_tensor(N, dtype, name, norm, backend):
    inputs = make_inputs(Case((70,), (N,)), dtype, **norm)
    inputs = replace(inputs, x=inputs.total, residual=None)  # as a backward has it
    place = getattr(inputs, name)
    if place is None:
        pytest.skip("there is no gradient of a total")
    expected = norms.backward(inputs, backend=backend)
    place = place.copy()
    out = (place, *(None,) * (len(expected) - 1))
    got = norms.backward(replace(inputs, **{name: place}), out=out, backend=backend)
    assert got.dx is place
    check_same_bits(tuple(got), tuple(expected))


PLACES = [{"y": "x"}, {"y": "residual"}, {"total": "x"}, {"total": "residual"}, {"y": "x", "total": "residual"},
          {"y": "residual", "total": "x"}]  # fmt: skip


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("N", [5, 13, 300, 8200])
def test_y_and_the_total_may_take_the_places_of_what_is_added(N, places, norm, backend):
    inputs = make_inputs(Case((70,), (N,)), "float32", **norm)
    if inputs.residual is None and places != {"y": "x"}:
        pytest.skip("nothing is added")
    expected = norms.forward(inputs, backend=backend)
    inputs = replace(inputs, **{name: getattr(inputs, name).copy() for name in places.values()})
    out = {name: getattr(inputs, places[name]) if name in places else None for name in expected._fields}
    got = norms.forward(inputs, out=type(expected)(**out), backend=backend)
    for name, place in places.items():
        assert getattr(got, name) is getattr(inputs, place)
    check_same_bits(tuple(got), tuple(expected))


def test_y_and_the_total_have_places_of_their_own():
    x = np.ones((4, 8), np.float32)
    with pytest.raises(OverlapError, match=r"^out\.total: shares memory with out\.y"):
        lngrad.rms_norm(x, residual=x.copy(), out=lngrad.RmsForward(x, None, x))


def test_in_place_works_for_any_layout(norm, backend):
    inputs = make_inputs(Case((5, 31), (48,)), "float32", **norm)
    expected = norms.backward(inputs, backend=backend)
    dy = np.ascontiguousarray(inputs.dy.transpose()).transpose()
    out = (dy, *(None,) * (len(expected) - 1))
    check_same_bits(tuple(norms.backward(replace(inputs, dy=dy), out=out, backend=backend)), tuple(expected))


def test_overlaps_are_refused_by_name():
    inputs = make_inputs(Case((9,), (40,)), "float32")
    arguments = inputs.arguments
    buffer = np.zeros((10, 40), np.float32)

    def refused(text, *changed, **out):
        with pytest.raises(OverlapError, match=text):
            lngrad.layer_norm_backward(*changed, out=lngrad.Grads(out.get("dx"), out.get("dgamma"), out.get("dbeta")))

    refused(
        r"out\.dx: shares memory with x; .*\(out\.dx: dy or x\)", inputs.dy, buffer[:9], *arguments[2:], dx=buffer[1:]
    )
    refused(r"out\.dx: shares memory with x", inputs.dy, buffer[:9], *arguments[2:], dx=buffer[8::-1])
    refused(r"out\.dgamma: shares memory with gamma; .*\(out\.dgamma: none\)", *arguments, dgamma=inputs.gamma)
    refused(r"out\.dbeta: shares memory with dy", *arguments, dbeta=inputs.dy[3])
    both = np.zeros(40, np.float32)
    refused(r"out\.dbeta: shares memory with out\.dgamma", *arguments, dgamma=both, dbeta=both)
    fixed = np.zeros(40, np.float32)
    fixed.flags.writeable = False
    refused(r"out\.dgamma: expected a writable array, got a read-only one", *arguments, dgamma=fixed)


def test_neighbours_in_one_buffer_are_not_an_overlap(backend):
    inputs = make_inputs(Case((9,), (40,)), "float32")
    buffer = np.zeros((9, 80), np.float32)
    buffer[:, :40] = inputs.x
    got = lngrad.layer_norm_backward(
        inputs.dy,
        buffer[:, :40],
        inputs.mean,
        inputs.rstd,
        inputs.gamma,
        out=lngrad.Grads(buffer[:, 40:], None, None),
        backend=backend,
    )
    check_grads(got, inputs)


@pytest.mark.parametrize(("at", "name"), [(0, "dx"), (1, "dgamma"), (3, "workspace")])
def test_a_failed_allocation_leaves_given_outputs_alone(at, name, monkeypatch):
    inputs = make_inputs(Case((200 + at,), (40,)), "float32")  # no memory is kept of a call with other rows
    arguments = inputs.arguments
    place = np.full(40, 7, np.float32)
    real, calls = np.empty, itertools.count()

    def failing(*arguments, **options):
        if next(calls) >= min(at, 2):  # and the second try, after memory that is kept was given back
            raise MemoryError(name)
        return real(*arguments, **options)

    monkeypatch.setattr(np, "empty", failing)
    with pytest.raises(MemoryError):
        lngrad.layer_norm_backward(*arguments, out=lngrad.Grads(None, None, place), backend="numba_cpu")
    assert (place == 7).all()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 0, 4)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_empty_inputs_of_the_family(shape, dtype, norm, backend):
    x = np.zeros(shape, numpy_dtype(dtype))
    inputs = Inputs(
        x,
        x,
        np.zeros((*shape[:-1], 1)),
        np.zeros((*shape[:-1], 1)),
        None,
        None,
        1,
        norm.get("normalization", LAYER_NORM),
    )
    inputs = replace(inputs, residual=x, dtotal=x) if "residual" in norm else inputs
    forward, grads = norms.forward(inputs, backend=backend), norms.backward(inputs, backend=backend)
    assert forward.y.shape == grads.dx.shape == shape
    assert forward.rstd.shape == (*shape[:-1], 1)
    assert np.isnan(forward.rstd).all()
    assert not grads.dgamma.astype(np.float32).any()
    assert "residual" not in norm or forward.total.shape == shape


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 0, 4)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_empty_inputs_give_what_torch_gives(shape, dtype, backend):
    x = np.zeros(shape, numpy_dtype(dtype))
    statistics = np.zeros((*shape[:-1], 1), np.float32)
    gamma = np.ones(shape[-1:], numpy_dtype(dtype))
    grads = lngrad.layer_norm_backward(x, x, statistics, statistics, gamma, backend=backend)
    assert grads.dx.shape == shape
    assert grads.dgamma.shape == grads.dbeta.shape == shape[-1:]
    assert not grads.dgamma.astype(np.float32).any()
    assert not grads.dbeta.astype(np.float32).any()
    forward = lngrad.layer_norm(x, gamma, backend=backend)
    assert forward.y.shape == shape
    assert forward.mean.shape == (*shape[:-1], 1)
    if forward.mean.size:
        assert (forward.mean == 0).all()
        assert np.isnan(forward.rstd).all()
    place = np.full(shape[-1:], 7, np.float32)
    lngrad.layer_norm_backward(
        x, x, statistics, statistics, gamma, out=lngrad.Grads(None, place, None), backend=backend
    )
    assert (place == 0).all()


def test_overlaps_on_another_device_are_told_by_addresses_alone():
    """No device is here: CPU tensors whose problem says that they are elsewhere, so that nothing may look into them."""
    torch = pytest.importorskip("torch")
    buffer = torch.zeros(4, 20)
    x, neighbour, gamma, statistics = buffer[:, :10], buffer[:, 10:], torch.ones(10), torch.ones(4)
    problem, inputs = Problem.backward(x, x, statistics, statistics, gamma)
    elsewhere = replace(problem, device="cuda:0")
    check_memory(elsewhere, inputs, (neighbour, None, None))  # between the rows of x, and in no row
    check_memory(elsewhere, inputs, (x, None, None))  # in place
    with pytest.raises(OverlapError, match=r"out\.dx: shares memory with dy"):
        check_memory(elsewhere, inputs, (buffer[:, 1:11], None, None))
    with pytest.raises(OverlapError, match=r"out\.dgamma: shares memory with gamma"):
        check_memory(elsewhere, inputs, (None, gamma, None))
    with pytest.raises(OverlapError, match=r"out\.dbeta: shares memory with out\.dgamma"):
        check_memory(elsewhere, inputs, (None, neighbour[0], neighbour[0]))
