"""Calls with NumPy arrays that come again: the results, errors and memory of a first call."""

from __future__ import annotations

import gc
import math
import operator
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest

import lngrad
from frames import second_and_third
from lngrad.core import calls
from lngrad.cpu import workers
from lngrad.cpu.jobs import PAUSES, SLOT_BYTES
from lngrad.errors import NumberError, OverlapError, ShapeError
from lngrad.support.dtypes import numpy_dtype
from lngrad.testing import Case, Normalization, check_forward, check_grads, check_same_bits, make_inputs
from norms import NORMS, backward, everything, forward

CASE = Case((64,), (64,))


@pytest.fixture(autouse=True)
def nothing_known():
    """Every test begins with first calls."""
    calls.forget()
    yield
    calls.forget()


@pytest.mark.parametrize("outs", ["no out", "out"])
def test_a_second_call_is_not_described_again(outs, norm, monkeypatch):
    inputs = make_inputs(CASE, "float32", **norm)
    right, right_grads = forward(inputs), backward(inputs)
    out, out_grads = (forward(inputs), backward(inputs)) if outs == "out" else (None, None)
    forward(inputs, out=out), backward(inputs, out=out_grads)
    for array in (*(out or ()), *(out_grads or ())):
        if array is not None:
            array[:] = np.nan
    monkeypatch.setattr("lngrad.api.describe", None)
    results, grads = forward(inputs, out=out), backward(inputs, out=out_grads)
    check_same_bits(results, right)
    check_same_bits(grads, right_grads)
    assert outs == "no out" or all(map(operator.is_, (*results, *grads), (*out, *out_grads)))


def test_a_second_call_with_tensors_is_not_described_again(monkeypatch):
    torch = pytest.importorskip("torch")
    inputs = make_inputs(CASE, "float32")
    arrays = [torch.from_numpy(array) for array in inputs.arguments]
    right, out = backward(inputs), lngrad.layer_norm_backward(*arrays)
    lngrad.layer_norm_backward(*arrays, out=out)
    for tensor in out:
        tensor.fill_(torch.nan)
    monkeypatch.setattr("lngrad.api.describe", None)
    for results in (lngrad.layer_norm_backward(*arrays), lngrad.layer_norm_backward(*arrays, out=out)):
        check_same_bits(results, right)
    assert all(map(operator.is_, results, out))


@pytest.mark.parametrize("outs", ["all", "not all"])
def test_a_known_out_is_checked_wherever_it_lies(outs, norm):
    inputs = make_inputs(CASE, "float32", **norm)
    for _ in range(4):
        out, grads = forward(inputs), backward(inputs)
        if outs == "not all":
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
    arrays = inputs.arguments
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

    with ThreadPoolExecutor(len(variants)) as pool:
        list(pool.map(repeat, variants, expected))


@pytest.mark.parametrize("form", [int, lambda size: (size,)])
@pytest.mark.parametrize("shape", [64.0, [64.0], (64.0,), (32,), ()])
def test_a_shape_that_is_only_equal_to_a_known_one_is_checked(shape, form):
    x = np.ones((4, 64), np.float32)
    outcomes = []
    for known in (False, True):
        calls.forget()
        for _ in range(4 * known):
            lngrad.layer_norm(x, normalized_shape=form(x.shape[-1]))
        try:
            outcomes.append(lngrad.layer_norm(x, normalized_shape=shape).y.shape)
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
        lngrad.layer_norm(Nowhere(), inputs.gamma, inputs.beta, normalized_shape=64)


def test_plain_functions_let_torchs_threads_work(monkeypatch):
    torch = pytest.importorskip("torch")
    from lngrad.core import threads

    if threads.torch_parallel_for() is None or torch.get_num_threads() < 2 or lngrad.get_num_threads() < 2:
        pytest.skip("torch has no threads to lend")
    lent = []
    theirs = threads.torch_parallel_for()
    monkeypatch.setattr(calls, "torch_parallel_for", lambda: lambda *job: lent.append(job) or theirs(*job))
    inputs = make_inputs(Case((2048,), (256,)), "float32")
    arrays = [torch.from_numpy(array) for array in inputs.arguments]
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


@pytest.mark.parametrize("rows", [64, 1024])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_call_that_comes_again_has_the_same_bits(rows, dtype, norm):
    inputs = make_inputs(Case((rows,), (96,)), dtype, **norm)
    right, right_grads = forward(inputs), backward(inputs)
    out, out_grads = forward(inputs), backward(inputs)
    part = out._replace(y=None)
    for _ in range(3):
        for array in (*out, *out_grads):
            if array is not None:
                array[:] = np.nan
        check_same_bits(forward(inputs), right)
        check_same_bits(backward(inputs), right_grads)
        check_same_bits(forward(inputs, out=out), right)
        check_same_bits(backward(inputs, out=out_grads), right_grads)
        check_same_bits(out, right)
        check_same_bits(out_grads, right_grads)
        partly = forward(inputs, out=part)
        check_same_bits(partly, right)
        assert partly.y is not None
        assert partly.rstd is part.rstd


def test_every_option_makes_another_call():
    inputs = make_inputs(CASE, "float32")
    x, gamma, beta = inputs.x, inputs.gamma, inputs.beta
    readonly = x.copy()
    readonly.flags.writeable = False
    others = [
        (x, {}), (x[:32], {}), (x[::2], {}), (x.reshape(8, 8, 64), {}), (readonly, {}), (x[::-1], {}), (x, {"gamma": None}),
        (x, {"beta": None}), (x, {"gamma": gamma.astype(np.float64)}), (x, {"eps": 1e-3}), (x, {"eps": 1}),
        (x, {"eps": np.float32(1e-3)}), (x, {"offset": 0.5}), (x, {"offset": 1}), (x, {"offset": True}),
        (x, {"offset": np.float32(0.5)}), (x, {"alpha": 2.0, "residual": inputs.dy}), (x, {"residual": inputs.dy}),
        (x, {"axis": 0}), (x, {"axis": -1}), (x, {"normalized_shape": 64}), (x, {"normalized_shape": (64,)}),
        (x, {"normalized_shape": [64]}), (x, {"backend": "numba_cpu"}), (x, {"backend": "numpy_cpu"}),
        (x.view(type("Mine", (np.ndarray,), {})), {}),
    ]  # fmt: skip
    expected = []
    for other, options in others:
        calls.forget()
        expected.append(lngrad.layer_norm(other, **{"gamma": gamma, "beta": beta, **options}))
    calls.forget()
    for _ in range(4):
        for (other, options), results in zip(others, expected, strict=True):
            check_same_bits(lngrad.layer_norm(other, **{"gamma": gamma, "beta": beta, **options}), results)


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_is_a_fact():
    inputs = make_inputs(Case((600,), (384,)), "float32")
    lngrad.set_num_threads(1)
    right = backward(inputs)
    for number in (2, 1, 3):
        lngrad.set_num_threads(number)
        for _ in range(4):
            check_same_bits(backward(inputs), right)
        assert {call.plan.steps.threads for call in calls.kept.values() if call.plan.steps} >= {number}


def test_what_is_refused_is_refused_each_time():
    inputs = make_inputs(CASE, "float32")
    out, grads = forward(inputs), backward(inputs)
    room = np.zeros((65, 64), np.float32)
    room[:64] = inputs.x
    for _ in range(3):
        forward(inputs, out=out), backward(inputs, out=grads)
        with pytest.raises(OverlapError, match=r"out.y: shares memory with x"):
            forward(replace(inputs, x=room[:64]), out=out._replace(y=room[1:]))
        with pytest.raises(OverlapError, match=r"out.rstd: shares memory with out.mean"):
            forward(inputs, out=out._replace(mean=out.rstd))
        with pytest.raises(ShapeError, match="out"):
            forward(inputs, out=())
        for offset in (Decimal(0), math.nan, "0"):  # a Decimal of 0 is equal to 0.0, and has its hash
            with pytest.raises(NumberError, match="offset: expected a finite number"):
                lngrad.layer_norm(inputs.x, normalized_shape=64, offset=offset)
        for shape in (64 + (1 << 30), -64, (64, 64), (1 << 40,) * 20, True):
            with pytest.raises(ShapeError, match="normalized"):
                lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, normalized_shape=shape)
    out.y.flags.writeable = False
    with pytest.raises(OverlapError, match=r"out.y: expected a writable array"):
        forward(inputs, out=out)


def test_a_result_may_replace_its_input():
    inputs = make_inputs(CASE, "float32")
    right, grads = forward(inputs), backward(inputs)
    out, out_grads = forward(inputs), backward(inputs)
    for _ in range(4):
        forward(inputs, out=out), backward(inputs, out=out_grads)
        x, dy = inputs.x.copy(), inputs.dy.copy()
        check_same_bits(forward(replace(inputs, x=x), out=out._replace(y=x)), right)
        check_same_bits(backward(replace(inputs, dy=dy), out=out_grads._replace(dx=dy)), grads)


def test_an_array_that_is_changed_in_place_is_another():
    x = np.random.default_rng(0).standard_normal((40, 64), np.float32)
    for _ in range(3):
        lngrad.layer_norm(x, normalized_shape=64)
    wide = x.astype(np.float64)
    right = [lngrad.layer_norm(array.copy()) for array in (x.reshape(80, 32), x.view(np.float64), wide[:20])]
    x.shape = 80, 32
    with pytest.raises(ShapeError):
        lngrad.layer_norm(x, normalized_shape=64)
    check_same_bits(lngrad.layer_norm(x), right[0])
    x.shape = 40, 64
    x.dtype = np.float64
    check_same_bits(lngrad.layer_norm(x), right[1])
    lngrad.layer_norm(wide)
    wide.resize((20, 64), refcheck=False)
    check_same_bits(lngrad.layer_norm(wide), right[2])


def test_an_axis_and_a_mask_come_again():
    inputs = make_inputs(Case((4, 5), (48,)), "float32")
    x, dy = (np.ascontiguousarray(np.moveaxis(array, -1, 1)) for array in (inputs.x, inputs.dy))
    of_rows = lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, normalized_shape=48)
    right = lngrad.layer_norm(x, inputs.gamma, inputs.beta, axis=1)
    right_grads = lngrad.layer_norm_backward(dy, x, right.mean, right.rstd, inputs.gamma, axis=1)
    check_same_bits(tuple(np.moveaxis(array, 1, -1) for array in right), tuple(of_rows))
    part, mask = right._replace(y=None), (True, False, True)
    out, grads = (type(results)(*map(np.zeros_like, results)) for results in (right, right_grads))
    for _ in range(4):
        mixed = lngrad.layer_norm(x, inputs.gamma, inputs.beta, axis=1, out=part)
        assert (mixed.y.shape, mixed.mean.shape) == ((4, 48, 5), (4, 1, 5))
        check_same_bits(tuple(mixed), tuple(right))
        again = lngrad.layer_norm(x, inputs.gamma, inputs.beta, axis=1, out=out)
        grads_again = lngrad.layer_norm_backward(dy, x, right.mean, right.rstd, inputs.gamma, axis=1, out=grads)
        check_same_bits((*again, *grads_again), (*right, *right_grads))
        check_same_bits((*out, *grads), (*right, *right_grads))
        for result in (*out, *grads):
            result[...] = 0
        check_grads(backward(inputs, output_mask=mask), inputs, output_mask=mask)


def test_arrays_are_not_held():
    inputs = make_inputs(CASE, "float32")
    x, out = inputs.x.copy(), forward(inputs)
    for _ in range(4):
        lngrad.layer_norm(x, inputs.gamma, inputs.beta, normalized_shape=64, out=out)
    held = weakref.ref(x), weakref.ref(out.y)
    del x, out
    gc.collect()
    assert [reference() for reference in held] == [None, None]


def test_a_full_table_begins_anew(monkeypatch):
    monkeypatch.setattr(calls.kept, "_most", 5)
    inputs = make_inputs(CASE, "float32")
    for rows in range(1, 30):
        part = inputs.x[:rows]
        right = lngrad.layer_norm(part, inputs.gamma, inputs.beta, normalized_shape=64)
        for _ in range(3):
            check_same_bits(lngrad.layer_norm(part, inputs.gamma, inputs.beta, normalized_shape=64), right)
        assert 0 < len(calls.kept) <= 5


@pytest.mark.usefixtures("threads")
def test_many_threads_call_at_once():
    lngrad.set_num_threads(2)
    variants = [make_inputs(Case((rows,), (128,)), "float32", seed=rows) for rows in (300, 301, 300, 40)]
    expected = [backward(variant) for variant in variants]

    def repeat(variant, right):
        for _ in range(200):
            check_same_bits(backward(variant), right)

    with ThreadPoolExecutor(len(variants)) as callers:
        list(callers.map(repeat, variants, expected))


def test_a_nested_call_of_the_same_kind(monkeypatch):
    """As a signal handler or a finalizer makes, while results are being made."""
    inputs = make_inputs(CASE, "float32")
    right, nested = forward(inputs), []
    (call,) = set(calls.kept.values())
    make_y, *others = call._makers

    def make_and_call():
        if not nested:
            nested.append(None)
            nested.append(forward(inputs))
        return make_y()

    monkeypatch.setattr(call, "_makers", (make_and_call, *others))
    check_same_bits(forward(inputs), right)
    check_same_bits(nested[1], right)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_is_right():
    inputs = make_inputs(CASE, "float32")
    right, grads = forward(inputs), backward(inputs)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for _ in range(4):
                check_same_bits(forward(inputs), right)
                check_same_bits(backward(inputs), grads)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- The path of a call that comes again ----------------------------------------------------------------------------


@pytest.mark.skipif("numba_cpu" not in lngrad.backends(), reason="needs the kernels")
@pytest.mark.parametrize("outs", ["no out", "out"])
@pytest.mark.parametrize("shape", [(16, 64), (64, 64), (512, 384)])
def test_a_second_call_is_the_third_and_crosses_six_files(shape, outs, norm):
    inputs = make_inputs(Case(shape[:1], shape[1:]), "float32", **norm)
    out, grads = (forward(inputs), backward(inputs)) if outs == "out" else (None, None)
    of_total = replace(inputs, x=inputs.total, residual=None)  # made once: a call with out knows memory by its place
    calls.forget()
    lngrad.empty_cache()  # or results may come from the pool, which other tests have filled
    for call in (lambda: forward(inputs, out=out), lambda: backward(of_total, out=grads)):
        files = [file for file, _ in second_and_third(call)]
        files = set(files[files.index("api.py") :])  # before it the test makes its arguments
        shared = {"workers.py", "threads.py"} if shape == (512, 384) else set()  # who takes part in it
        assert files - shared <= {"api.py", "calls.py", "addresses.py", "memory.py", "run.py", "jobs.py"}


@pytest.mark.skipif("numba_cpu" not in lngrad.backends(), reason="needs the kernels")
@pytest.mark.usefixtures("threads")
def test_a_helper_that_is_late_changes_neither_path_nor_bits():
    """Compiled code waits for so many pauses, then the host does: on a busy machine now and then, with no pauses often."""
    lngrad.set_num_threads(2)
    inputs = make_inputs(Case((512,), (384,)), "float32")
    right = forward(inputs)
    pauses = workers._workers.memory[PAUSES :: SLOT_BYTES // 8]
    before = pauses.copy()
    pauses[:] = 0
    try:
        for _ in range(50):
            second_and_third(lambda: forward(inputs))
            check_same_bits(forward(inputs), right)
    finally:
        pauses[:] = before
