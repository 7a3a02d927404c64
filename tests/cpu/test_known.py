"""Calls that compiled code finds and runs: only those that are the same in all facts, and with every error of a first call."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lngrad
from lngrad import api
from lngrad.core import calls
from lngrad.core.problem import FORWARD, Forward
from lngrad.cpu import known, workers
from lngrad.cpu.known import KnownCalls, known_calls, objects_of
from lngrad.errors import OverlapError, ShapeError
from lngrad.testing import Case, Inputs, check_forward, check_grads, check_same_bits, make_inputs
from norms import backward, forward

CASE = Case((64,), (64,))
FUNCTIONS = api._forward, api._backward, api._rms_forward, api._rms_backward

if objects_of() is None:
    pytest.skip("this Python's objects lie otherwise", allow_module_level=True)


@pytest.fixture(autouse=True)
def nothing_known(threads: None) -> Iterator[None]:
    lngrad.set_num_threads(2)  # memory that is kept has a bound, and each thread needs some
    calls.forget()
    yield
    calls.forget()


def tables() -> list[KnownCalls]:
    return [function._known for function in FUNCTIONS if function._known is not None]  # type: ignore[misc]


def count() -> int:
    return sum(len(table._calls) for table in tables())


def become_known(call: Callable[[], object]) -> None:
    """The first call is described, the second looked up and added."""
    before = count()
    call(), call()
    assert count() == before + 1


@pytest.fixture
def only_known(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on every call must be a known one."""

    def no_other(*arguments: object, **options: object) -> object:
        raise AssertionError("the call went another way")

    return lambda: monkeypatch.setattr(api, "_call", no_other)


@pytest.mark.parametrize("rows", [64, 1024])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_known_calls_have_the_same_bits(
    rows: int, dtype: str, norm: dict[str, Any], only_known: Callable[[], None]
) -> None:
    inputs = make_inputs(Case((rows,), (96,)), dtype, **norm)
    right, right_grads = forward(inputs), backward(inputs)
    out, out_grads = forward(inputs), backward(inputs)
    part = out._replace(y=None)
    for _ in range(2):
        (
            forward(inputs),
            backward(inputs),
            forward(inputs, out=out),
            backward(inputs, out=out_grads),
            forward(inputs, out=part),
        )
    only_known()
    check_same_bits(forward(inputs), right)
    check_same_bits(backward(inputs), right_grads)
    for array in (*out, *out_grads):
        if array is not None:
            array[:] = np.nan
    assert forward(inputs, out=out) is out
    assert backward(inputs, out=out_grads) is out_grads
    check_same_bits(out, right)
    check_same_bits(out_grads, right_grads)
    partly = forward(inputs, out=part)
    check_same_bits(partly, right)
    assert partly.y is not None
    assert partly.rstd is part.rstd


def test_every_fact_counts() -> None:
    """Calls that differ from a known one in a single fact are other calls, and right."""
    inputs = make_inputs(CASE, "float32")
    x, gamma, beta = inputs.x, inputs.gamma, inputs.beta

    def right(x: Any, gamma: Any = gamma, beta: Any = beta, **options: Any) -> tuple[Any, ...]:
        calls.forget()
        return tuple(lngrad.layer_norm(x, gamma=gamma, beta=beta, **options))

    readonly = x.copy()
    readonly.flags.writeable = False
    others: list[tuple[Any, dict[str, Any]]] = [
        (x, {}),
        (x[:32], {}),
        (np.asfortranarray(x), {}),
        (x[::2], {}),
        (x.reshape(8, 8, 64), {}),
        (x.astype(np.float64), {}),
        (x.view(np.int32).view(np.float32).astype(np.float16), {}),
        (readonly, {}),
        (x[::-1], {}),
        (x, {"gamma": None}),
        (x, {"beta": None}),
        (x, {"gamma": gamma.astype(np.float64)}),
        (x, {"eps": 1e-3}),
        (x, {"eps": 1}),
        (x, {"eps": np.float32(1e-3)}),
        (x, {"offset": 0.5}),
        (x, {"alpha": 2.0, "residual": inputs.dy}),
        (x, {"residual": inputs.dy}),
        (x, {"axis": 0}),
        (x, {"axis": -1}),
        (x, {"normalized_shape": 64}),
        (x, {"normalized_shape": (64,)}),
        (x, {"backend": "numba_cpu"}),
        (x, {"backend": "numpy_cpu"}),
    ]
    expected = [right(x, **options) for x, options in others]
    calls.forget()
    for _ in range(4):
        for (other, options), results in zip(others, expected, strict=True):
            got = lngrad.layer_norm(other, **{"gamma": gamma, "beta": beta, **options})
            check_same_bits(tuple(got), results)
    assert count() >= 16


def test_the_number_of_threads_is_a_fact() -> None:
    inputs = make_inputs(Case((600,), (384,)), "float32")
    lngrad.set_num_threads(1)
    right = backward(inputs)
    for number in (2, 1, 3):
        lngrad.set_num_threads(number)
        for _ in range(4):
            check_same_bits(backward(inputs), right)
    assert count() == 3


def test_what_is_refused_is_refused_when_known(only_known: Callable[[], None]) -> None:
    inputs = make_inputs(CASE, "float32")
    out, grads = forward(inputs), backward(inputs)
    for _ in range(3):
        forward(inputs, out=out), backward(inputs, out=grads)
    room = np.zeros((65, 64), np.float32)
    room[:64] = inputs.x
    with pytest.raises(OverlapError, match=r"out.y: shares memory with x"):
        forward(replace(inputs, x=room[:64]), out=out._replace(y=room[1:]))
    with pytest.raises(OverlapError, match=r"out.rstd: shares memory with out.mean"):
        forward(inputs, out=out._replace(mean=out.rstd))
    out.y.flags.writeable = False
    with pytest.raises(OverlapError, match=r"out.y: expected a writable array"):
        forward(inputs, out=out)


def test_a_result_may_replace_its_input() -> None:
    """A known call leaves that to the other way, since memory is shared."""
    inputs = make_inputs(CASE, "float32")
    right, grads = forward(inputs), backward(inputs)
    out, out_grads = forward(inputs), backward(inputs)
    for _ in range(4):
        forward(inputs, out=out), backward(inputs, out=out_grads)
        x, dy = inputs.x.copy(), inputs.dy.copy()
        check_same_bits(forward(replace(inputs, x=x), out=out._replace(y=x)), right)
        check_same_bits(backward(replace(inputs, dy=dy), out=out_grads._replace(dx=dy)), grads)


def test_a_mask_and_channels_first_are_known(only_known: Callable[[], None]) -> None:
    inputs = make_inputs(Case((4, 5), (48,)), "float32")
    columns = np.ascontiguousarray(np.moveaxis(inputs.x, -1, 1))
    mask = (True, False, True)
    right = lngrad.layer_norm(inputs.x, 48, inputs.gamma, inputs.beta)
    become_known(lambda: lngrad.layer_norm(columns, None, inputs.gamma, inputs.beta, axis=1))
    become_known(lambda: backward(inputs, output_mask=mask))
    only_known()
    y, mean, rstd = lngrad.layer_norm(columns, None, inputs.gamma, inputs.beta, axis=1)
    assert (y.shape, mean.shape) == ((4, 48, 5), (4, 1, 5))
    check_same_bits((np.moveaxis(y, 1, -1), np.moveaxis(mean, 1, -1), np.moveaxis(rstd, 1, -1)), tuple(right))
    check_grads(backward(inputs, output_mask=mask), inputs, output_mask=mask)


def test_results_may_be_given_with_an_axis(only_known: Callable[[], None]) -> None:
    """All of them. With some alone the call is not known, and those that are made have the axis where it was asked for."""
    inputs = make_inputs(Case((4, 5), (48,)), "float32")
    x, dy = (np.ascontiguousarray(np.moveaxis(array, -1, 1)) for array in (inputs.x, inputs.dy))
    right = lngrad.layer_norm(x, gamma=inputs.gamma, beta=inputs.beta, axis=1)
    right_grads = lngrad.layer_norm_backward(dy, x, right.mean, right.rstd, inputs.gamma, axis=1)
    part = right._replace(y=None)
    for _ in range(4):
        some = lngrad.layer_norm(x, gamma=inputs.gamma, beta=inputs.beta, axis=1, out=part)
        assert some.y.shape == x.shape
        check_same_bits(tuple(some), tuple(right))
    assert count() == 0
    out, grads = (type(one)(*map(np.zeros_like, one)) for one in (right, right_grads))
    become_known(lambda: lngrad.layer_norm(x, gamma=inputs.gamma, beta=inputs.beta, axis=1, out=out))
    become_known(lambda: lngrad.layer_norm_backward(dy, x, right.mean, right.rstd, inputs.gamma, axis=1, out=grads))
    only_known()
    for result in (*out, *grads):
        result[...] = 0
    again = lngrad.layer_norm(x, gamma=inputs.gamma, beta=inputs.beta, axis=1, out=out)
    grads_again = lngrad.layer_norm_backward(dy, x, right.mean, right.rstd, inputs.gamma, axis=1, out=grads)
    assert all(one is given for one, given in zip((*again, *grads_again), (*out, *grads), strict=True))
    check_same_bits(tuple(out), tuple(right))
    check_same_bits(tuple(grads), tuple(right_grads))


def test_options_that_are_new_objects_each_time_are_not_added_for_ever() -> None:
    inputs = make_inputs(CASE, "float32")
    kept = ["".join(["numba", "_cpu"]) for _ in range(50)]
    for backend in kept:
        lngrad.layer_norm(inputs.x, inputs.x.shape[-1:], inputs.gamma, inputs.beta, backend=backend)
    assert count() == calls._MOST_TIMES


def test_equal_shapes_are_the_same_call() -> None:
    inputs = make_inputs(Case((3,), (1000,)), "float32")
    for shape in ((1000,), 1000):
        before = count()
        kept = [int("1000") if shape == 1000 else tuple(map(int, ["1000"])) for _ in range(5)]
        for each in kept:
            lngrad.layer_norm(inputs.x, each, inputs.gamma, inputs.beta)
        assert count() == before + 1
    for other in (1000 + (1 << 30), -1000, (1000, 1000), (1 << 40,) * 20, True):
        with pytest.raises(ShapeError):
            lngrad.layer_norm(inputs.x, other, inputs.gamma, inputs.beta)


def test_what_may_change_is_never_known() -> None:
    inputs = make_inputs(CASE, "float32")
    shape = [64]
    for _ in range(4):
        lngrad.layer_norm(inputs.x, shape, inputs.gamma, inputs.beta)
        lngrad.layer_norm(inputs.x[::-1], 64, inputs.gamma, inputs.beta)
        lngrad.layer_norm(inputs.x.view(type("Mine", (np.ndarray,), {})), 64, inputs.gamma, inputs.beta)
    assert count() == 0


def test_arrays_are_not_held() -> None:
    inputs = make_inputs(CASE, "float32")
    x, out = inputs.x.copy(), forward(inputs)
    for _ in range(4):
        lngrad.layer_norm(x, 64, inputs.gamma, inputs.beta, out=out)
    assert count() == 1
    held = weakref.ref(x), weakref.ref(out.y)
    del x, out
    gc.collect()
    assert [one() for one in held] == [None, None]


@pytest.mark.parametrize(("limit", "most"), [("MOST", 5), ("MOST_BYTES", 4000)])
def test_a_full_table_begins_anew(limit: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, limit, most)
    inputs = make_inputs(CASE, "float32")
    for rows in range(1, 30):
        part = inputs.x[:rows]
        right = lngrad.layer_norm(part, 64, inputs.gamma, inputs.beta)
        for _ in range(3):
            check_same_bits(lngrad.layer_norm(part, 64, inputs.gamma, inputs.beta), right)
        (table,) = tables()
        assert 0 < count() <= 5 or limit == "MOST_BYTES"
        assert sum(call.memory.workspace._memory.nbytes for call in table._calls.values()) == table._nbytes <= 4000


def test_calls_with_the_same_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots are taken one behind the other, and hashes are not trusted: tables of so many calls have both."""
    inputs = make_inputs(Case((200,), (32,)), "float32")
    expected = {}
    for _ in range(4):
        for rows in range(1, 200):
            got = lngrad.layer_norm(inputs.x[:rows], 32, inputs.gamma, inputs.beta)
            check_same_bits(got, expected.setdefault(rows, got))
    (table,) = tables()
    assert len(table._calls) == 199
    home = table._slots[:, 0] % len(table._slots)
    assert (home != np.arange(len(home)))[table._slots[:, 1] > 0].any()  # some are not where their hash would have them


def test_a_call_that_somebody_runs_goes_the_other_way() -> None:
    inputs = make_inputs(CASE, "float32")
    right = forward(inputs)
    become_known(lambda: forward(inputs))
    (table,) = tables()
    (call,) = table._calls.values()
    call.words[0] = 1
    check_same_bits(forward(inputs), right)
    assert call.words[0] == 1
    call.words[0] = 0
    check_same_bits(forward(inputs), right)
    assert call.words[0] == 0


def test_many_threads_call_at_once() -> None:
    variants = [make_inputs(Case((rows,), (128,)), "float32", seed=rows) for rows in (300, 301, 300, 40)]
    expected = [backward(variant) for variant in variants]

    def repeat(variant: Inputs, right: Any) -> None:
        for _ in range(200):
            check_same_bits(backward(variant), right)

    with ThreadPoolExecutor(len(variants)) as crew:
        list(crew.map(repeat, variants, expected))
    assert all(call.words[0] == 0 for table in tables() for call in table._calls.values())


@pytest.mark.parametrize("when", ["late workers", "interrupted"])
def test_a_job_that_is_left_is_finished_or_taken_back(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that compiled code can't wake leave the job to Python."""
    inputs = make_inputs(Case((600,), (384,)), "float32", seed=4)
    monkeypatch.setattr(workers, "_semaphores", lambda: None)
    pool = workers._Workers()
    monkeypatch.setattr(workers, "_workers", pool)
    right = backward(inputs)
    become_known(lambda: backward(inputs, normalized_shape=384))
    (table,) = tables()
    (call,) = [call for call in table._calls.values() if call.helpers]
    finished = []
    finish = workers.finish

    def watched(job: int, helpers: int) -> None:
        finished.append(job)
        if when == "interrupted" and job:
            raise KeyboardInterrupt
        finish(job, helpers)

    monkeypatch.setattr(workers, "finish", watched)
    for _ in range(3):
        deadline = threading.Event()
        while pool._slots[0] != 1 and not deadline.wait(0.01):
            pass
        if when == "interrupted":
            with pytest.raises(KeyboardInterrupt):
                backward(inputs, normalized_shape=384)
        else:
            check_same_bits(backward(inputs, normalized_shape=384), right)
        assert call.words[0] == 0
    assert finished


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_knows_nothing_and_is_right() -> None:
    inputs = make_inputs(CASE, "float32")
    right = forward(inputs)
    become_known(lambda: forward(inputs))
    (table,) = tables()
    for call in table._calls.values():
        call.words[0] = 1  # as if another thread ran it
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert not tables()
            for _ in range(4):
                check_same_bits(forward(inputs), right)
            assert count() == 1
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("field", ["type_at", "items_at", "data_at"])
def test_objects_that_lie_otherwise_are_not_looked_at(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = objects_of()
    assert real is not None
    array = np.zeros((5, 3), np.float16)[::2, 1:]
    assert known._lies_as_expected(array, real)
    if field == "data_at":
        assert not known._lies_as_expected(array, real._replace(data_at=real.data_at + 8))
    else:
        assert not known._lies_as_expected(array, real._replace(ndarray=id(object)))
    monkeypatch.setattr(known, "objects_of", lambda: None)
    assert known_calls((Forward, Forward)) is None
    inputs = make_inputs(CASE, "float32")
    for _ in range(4):
        check_forward(forward(inputs), inputs)
    assert count() == 0


def test_a_nested_call_of_the_same_kind() -> None:
    """As a signal handler or a finalizer makes, while results are being made."""
    inputs = make_inputs(CASE, "float32")
    right = forward(inputs)
    become_known(lambda: forward(inputs))
    (table,) = tables()
    (number,) = table._calls
    call = table._calls[number]
    make_y, *others = call.makers
    nested = []

    def make_and_call() -> Any:
        if not nested:
            nested.append(None)
            nested.append(forward(inputs))
        assert make_y is not None
        return make_y()

    table._calls[number] = call._replace(makers=(make_and_call, *others))
    check_same_bits(forward(inputs), right)
    check_same_bits(nested[1], right)


def test_the_operator_of_a_function_has_its_results() -> None:
    assert FORWARD.results is Forward


@pytest.mark.parametrize("what", ["threads", "shape"])
def test_what_changes_while_the_second_call_runs_makes_no_known_call(what: str) -> None:
    """As another thread may change it: then the facts are not those of the plan."""
    x = np.random.default_rng(0).standard_normal((40, 64), np.float32)
    lngrad.layer_norm(x, 64)
    keep = calls.Repeats.keep

    def late(function: Any, *arguments: Any) -> None:
        if what == "threads":
            lngrad.set_num_threads(1)
        else:
            x.shape = 80, 32
        keep(function, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls.Repeats, "keep", late)
        lngrad.layer_norm(x, 64)
    assert count() == 0
    if what == "shape":
        with pytest.raises(ShapeError):
            lngrad.layer_norm(x, 64)


def test_a_call_without_memory_to_keep_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(CASE, "float32")
    right = backward(inputs)

    def none(nbytes: int) -> Any:
        raise MemoryError

    monkeypatch.setattr(known, "allocated", none)
    for _ in range(4):
        check_same_bits(backward(inputs), right)
    assert count() == 0


def test_results_in_a_tuple_of_another_length_are_refused_each_time() -> None:
    inputs = make_inputs(CASE, "float32")
    for _ in range(4):
        forward(inputs)
        with pytest.raises(ShapeError, match="out"):
            forward(inputs, out=())


def test_a_second_interrupt_leaves_no_job_that_workers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """All jobs of a chain are joined, also if Ctrl-C comes again while the first is."""
    joined = []

    def join(job: int, slots: int, helpers: int, cancelling: bool = False) -> None:
        joined.append(job)
        if len(joined) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(workers, "_join", join)
    monkeypatch.setattr(workers, "_jobs", lambda chain: [(chain, None), (chain + 8, None)])
    with pytest.raises(KeyboardInterrupt):
        workers.abandon(1 << 20, 0)
    assert joined == [1 << 20, (1 << 20) + 8]
