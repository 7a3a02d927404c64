"""Rows that lie beside each other, as in images with channels first: the bits of rows that lie one after the other.

They are turned or computed a tile at a time, so sizes are drawn around those of tiles; rows begin anywhere. Whether rows are
lanes is the machine's choice, so here it is made for it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import lngrad
import lngrad.cpu.plan as cpu_plan
from lngrad.core import calls
from lngrad.core.problem import Problem
from lngrad.cpu.jobs import FUNCTION
from lngrad.cpu.policy import this_machine
from lngrad.testing import Case, check_same_bits, make_inputs
from norms import NORMS, RMS, backward, forward

TENSORS = ("dy", "x", "residual", "dtotal")


@pytest.fixture(params=["turned", "lanes"])
def chosen(request, monkeypatch):
    """How rows are computed, whatever the machine is; and no plan that was made otherwise."""
    calls.forget()
    monkeypatch.setattr(cpu_plan, "lanes_are_rows", lambda *_: request.param == "lanes")
    yield request.param
    calls.forget()


def beside(array):
    """The same numbers with the first column of all of an image's rows first, then the second, and so on."""
    return None if array is None else np.ascontiguousarray(np.moveaxis(array, -1, 1))


def misaligned(array, elements):
    """A copy that begins so many elements behind a cache line's beginning, or close to that."""
    if array is None:
        return None
    memory = np.zeros(array.size + elements, array.dtype)
    copy = memory[elements:].reshape(array.shape)
    copy[...] = array
    return copy


def drawn(seed):
    """Inputs of images with as many rows and columns as tiles have, or some more or less, and how they are called."""
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([1, 3, 8, 15, 16, 17, 31, 32, 33, 49, 64, 100, 130, 529]))
    columns = int(rng.choice([2, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 63, 64, 96, 101, 200, 511, 700, 1024, 1100]))
    if rows * columns > 60_000:
        rows = 33
    lead = int(rng.integers(1, 4)), rows
    dtype = str(rng.choice(["float32", "bfloat16", "float16", "float64"]))
    norm = list(NORMS)[int(rng.integers(len(NORMS)))]
    inputs = make_inputs(Case(lead, (columns,)), dtype, seed=seed, **NORMS[norm])
    if rng.random() < 0.2:
        inputs.x[0, rows // 2, columns // 2] = [np.nan, np.inf, 1e30 if dtype in ("float32", "bfloat16") else 0][
            seed % 3
        ]
    if rng.random() < 0.3:
        inputs = replace(inputs, gamma=None, beta=None)
    return rng, inputs


def alike(tensors, like):
    """Results with one row after the other, of results with rows beside each other."""
    return type(like)(
        *(part if part is None or part.ndim < 3 else np.ascontiguousarray(np.moveaxis(part, 1, -1)) for part in tensors)
    )


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("seed", range(60))
def test_the_bits_of_rows_one_after_the_other(seed):
    rng, inputs = drawn(seed)
    shift = int(rng.integers(0, 20))
    turned = replace(inputs, **{name: misaligned(beside(getattr(inputs, name)), shift) for name in TENSORS})
    lngrad.set_num_threads(int(rng.integers(1, 4)))
    options = {"normalized_shape": None, "axis": 1, "backend": "numba_cpu"}
    with np.errstate(all="ignore"):
        expected, plain = forward(inputs, backend="numba_cpu"), backward(inputs, backend="numba_cpu")
        for _ in range(2):  # a call that was seen before goes another way
            check_same_bits(alike(forward(turned, **options), expected), expected)
            check_same_bits(alike(backward(turned, **options), plain), plain)
        out = type(expected)(*(None if part is None else misaligned(beside(part), shift) for part in expected))
        check_same_bits(alike(forward(turned, out=out, **options), expected), expected)
        in_place = expected._replace(**dict.fromkeys(expected._fields))._replace(y=turned.x)
        check_same_bits(alike(forward(turned, out=in_place, **options), expected), expected)


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_more_rows_than_one_block_of_scratch(dtype):
    inputs = make_inputs(Case((2, 1300), (72,)), dtype)
    turned = replace(inputs, **{name: beside(getattr(inputs, name)) for name in TENSORS})
    options = {"normalized_shape": None, "axis": 1, "backend": "numba_cpu"}
    expected, plain = forward(inputs, backend="numba_cpu"), backward(inputs, backend="numba_cpu")
    check_same_bits(alike(forward(turned, **options), expected), expected)
    check_same_bits(alike(backward(turned, **options), plain), plain)


@pytest.mark.parametrize("columns", [64, 96, 72])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_past_the_caches(columns, dtype, chosen, monkeypatch):
    """Also with room between rows that begin on cache lines and end anywhere."""
    monkeypatch.setattr(cpu_plan, "this_machine", lambda: this_machine()._replace(last_level=0))
    inputs = make_inputs(Case((3, 130), (columns,)), dtype)
    expected = lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, backend="numba_cpu")
    memory = np.zeros(3 * 130 * 128 + 64, inputs.x.dtype)
    rows = memory[-memory.ctypes.data % 64 // memory.itemsize :][: 3 * 130 * 128].reshape(3, 130, 128)
    out = np.moveaxis(rows[..., :columns], -1, 1)
    lngrad.layer_norm(beside(inputs.x), inputs.gamma, inputs.beta, axis=1, backend="numba_cpu", out=(out, None, None))
    check_same_bits((np.ascontiguousarray(rows[..., :columns]),), (expected.y,))
    assert not rows[..., columns:].any()


@pytest.mark.parametrize(
    "shape", [(2, 64, 8, 8), (2, 64, 5, 6), (2, 31, 8, 8), (2, 1023, 8, 8), (2, 1024, 8, 8), (1, 64, 1, 1)]
)
def test_which_rows_may_be_lanes(shape, chosen):
    x = np.zeros(shape, "f4")
    problem, _ = Problem.forward(np.moveaxis(x, 1, -1), None, None)
    fits = shape[2] * shape[3] >= 32 and 32 <= shape[1] < 1024
    named = cpu_plan.kernel_address("forward_in_lanes", "float32", "float32")
    assert (cpu_plan.plan(problem, 1).steps.words[FUNCTION] == named) == (fits and chosen == "lanes")


@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("norm_before_gate", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [13, 40, 96])
def test_beside_a_gate(columns, dtype, norm_before_gate):
    inputs = make_inputs(Case((3, 100), (columns,)), dtype, normalization=RMS, gated=True)
    options = {"gamma": inputs.gamma, "norm_before_gate": norm_before_gate, "backend": "numba_cpu"}
    expected = lngrad.rms_norm(inputs.x, gate=inputs.gate, **options)
    for x, gate in ((beside(inputs.x), beside(inputs.gate)), (beside(inputs.x), np.moveaxis(inputs.gate, -1, 1))):
        check_same_bits(alike(lngrad.rms_norm(x, gate=gate, axis=1, **options), expected), expected)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [33, 128])
def test_windows_that_overlap(columns, dtype, threads, chosen):
    """Their table has whole columns beside each other: few rows are packed at a time, and lanes take more memory than those."""
    lngrad.set_num_threads(threads)
    inputs = make_inputs(Case((4,), (1000,)), dtype)
    x = np.lib.stride_tricks.sliding_window_view(inputs.x, columns, axis=1)
    gamma, beta = inputs.gamma[:columns], inputs.beta[:columns]
    call = partial(lngrad.layer_norm, gamma=gamma, beta=beta, normalized_shape=(columns,), backend="numba_cpu")
    check_same_bits(tuple(call(x)), tuple(call(np.ascontiguousarray(x))))
    problem, _ = Problem.forward(x, gamma, beta)
    steps = cpu_plan.plan(problem, threads).steps
    vector = 64 // inputs.x.itemsize * 4  # bytes of a line's rows in float32
    assert chosen == "turned" or steps.words[steps.main.word("thread_bytes")] >= vector * (22 + 3 * columns)
