"""Plans run on addresses: the bits of an ordinary call."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

import lngrad
from lngrad.api import execute
from lngrad.core.plan import make_plan
from lngrad.core.problem import Forward, Grads, Problem
from lngrad.support.addresses import address_of
from lngrad.testing import Case, check_same_bits, make_inputs


def plan_of(inputs, mask=(True, True, True), backend="numba_cpu"):
    problem, _ = Problem.backward(*inputs.arguments, inputs.normalized_shape, mask)
    return make_plan(problem, backend)


def empty_grads(inputs):
    R = inputs.normalized_shape
    return Grads(np.empty_like(inputs.x), np.empty(R, np.float32), np.empty(R, np.float32))


def run_backward(run, inputs, grads):
    arrays = (*inputs.arguments, *grads)
    run(*(0 if array is None else address_of(array) for array in arrays))


@pytest.mark.parametrize("gamma", [True, False])
@pytest.mark.parametrize("shape", [(64, 64), (200, 37), (300, 7), (3, 4096)])
def test_backward_has_the_bits_of_a_call(shape, gamma):
    inputs = make_inputs(Case(shape[:1], shape[1:], gamma=gamma), "float32")
    run = plan_of(inputs).on_addresses
    expected = lngrad.layer_norm_backward(*inputs.arguments)
    for _ in range(2):  # the second call takes the first one's memory
        grads = empty_grads(inputs)
        run_backward(run, inputs, grads)
        check_same_bits(tuple(grads), tuple(expected))


@pytest.mark.parametrize("gamma", [True, False])
def test_forward_has_the_bits_of_a_call(gamma):
    inputs = make_inputs(Case((70,), (33,), gamma=gamma), "float64")
    problem, arrays = Problem.forward(inputs.x, inputs.gamma, inputs.beta)
    run = make_plan(problem, "numba_cpu").on_addresses
    y, mean, rstd = np.empty_like(inputs.x), np.empty((70, 1)), np.empty((70, 1))
    x, gamma, beta = (0 if array is None else address_of(array) for array in arrays)
    run(x, gamma, beta, address_of(y), address_of(mean), address_of(rstd), 1e-3)
    check_same_bits((y, mean, rstd), tuple(lngrad.layer_norm(*arrays, eps=1e-3)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("gamma", ["float32", "same", None])
def test_16_bit_statistics_and_parameters_are_converted_as_a_call_converts_them(dtype, gamma):
    gamma_dtype = dtype if gamma == "same" else gamma
    case = Case((61,), (43,), gamma=gamma is not None, gamma_dtype=gamma_dtype, statistics_dtype=dtype)
    inputs = make_inputs(case, dtype)
    expected = lngrad.layer_norm_backward(*inputs.arguments)
    problem, _ = Problem.backward(*inputs.arguments, inputs.normalized_shape, (True,) * 3, expected)
    run = make_plan(problem, "numba_cpu").on_addresses
    for _ in range(2):
        grads = Grads(*map(np.empty_like, expected))
        run_backward(run, inputs, grads)
        check_same_bits(tuple(grads), tuple(expected))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_statistics_are_written_as_a_call_writes_them(dtype):
    inputs = make_inputs(Case((61,), (43,)), dtype)
    empty = np.empty_like(inputs.x), *np.empty((2, 61, 1), inputs.x.dtype)
    expected = lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, out=Forward(*map(np.empty_like, empty)))
    problem, arrays = Problem.forward(inputs.x, inputs.gamma, inputs.beta, out=Forward(*empty))
    run = make_plan(problem, "numba_cpu").on_addresses
    x, gamma, beta = map(address_of, arrays)
    run(x, gamma, beta, *map(address_of, empty), 1e-5)
    check_same_bits(empty, tuple(expected))


def test_threads_at_once_do_not_share_memory():
    drawn = [make_inputs(Case((100,), (50,)), "float32", seed) for seed in range(4)]
    run, wrong = plan_of(drawn[0]).on_addresses, []

    def work(inputs):
        expected = lngrad.layer_norm_backward(*inputs.arguments)
        try:
            for _ in range(200):
                grads = empty_grads(inputs)
                run_backward(run, inputs, grads)
                check_same_bits(tuple(grads), tuple(expected))
        except AssertionError as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(inputs,)) for inputs in drawn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("change", [lambda a: a, lambda a: np.asfortranarray(a), lambda a: np.repeat(a, 2, 0)[::2]])
def test_large_and_strided_arrays(change, backend):
    inputs = make_inputs(Case((700,), (64,)), "float32")
    inputs = replace(
        inputs,
        dy=change(inputs.dy),
        x=change(inputs.x),
        mean=change(inputs.mean),
        gamma=np.repeat(inputs.gamma, 2)[::2],
    )
    arrays = inputs.arguments
    grads = Grads(np.empty_like(inputs.x), *np.empty((2, 64, 2), np.float32)[..., 0])
    expected = lngrad.layer_norm_backward(*arrays, backend=backend)
    problem, _ = Problem.backward(*arrays, out=grads)
    execute(make_plan(problem, backend), arrays, grads)
    check_same_bits(tuple(grads), tuple(expected))


def test_nothing_to_add_up():
    inputs = make_inputs(Case((0,), (4,)), "float32")
    grads = Grads(inputs.x.copy(), np.ones(4, np.float32), np.ones(4, np.float32))
    execute(plan_of(inputs), inputs.arguments, grads)
    check_same_bits(tuple(grads), (inputs.x, np.zeros(4, np.float32), np.zeros(4, np.float32)))
