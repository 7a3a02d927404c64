"""Prepared plans: the bits of an ordinary call, from addresses alone."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

import lngrad
from lngrad.arrays import address_of
from lngrad.backend.numba_cpu.prepared import prepare
from lngrad.plan import make_plan
from lngrad.problem import Forward, Grads, Problem
from lngrad.testing import Case, check_same_bits, make_inputs


def plan_of(inputs, mask=(True, True, True)):
    problem, _ = Problem.backward(
        inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, inputs.normalized_shape, mask
    )
    return make_plan(problem, "numba_cpu")


def empty_grads(inputs):
    R = inputs.normalized_shape
    return Grads(np.empty_like(inputs.x), np.empty(R, np.float32), np.empty(R, np.float32))


def run_backward(run, inputs, grads):
    arrays = (inputs.dy, inputs.x, grads.dx, inputs.mean, inputs.rstd, inputs.gamma, grads.dgamma, grads.dbeta)
    run(*(0 if array is None else address_of(array) for array in arrays))


@pytest.mark.parametrize("gamma", [True, False])
@pytest.mark.parametrize("shape", [(64, 64), (200, 37), (300, 7), (3, 4096)])
def test_backward_has_the_bits_of_a_call(shape, gamma):
    inputs = make_inputs(Case(shape[:1], shape[1:], gamma=gamma), "float32")
    run = prepare(plan_of(inputs))
    expected = lngrad.layer_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
    for _ in range(2):  # the second call takes the first one's memory
        grads = empty_grads(inputs)
        run_backward(run, inputs, grads)
        check_same_bits(tuple(grads), tuple(expected))


@pytest.mark.parametrize("gamma", [True, False])
def test_forward_has_the_bits_of_a_call(gamma):
    inputs = make_inputs(Case((70,), (33,), gamma=gamma), "float64")
    problem, arrays = Problem.forward(inputs.x, inputs.gamma, inputs.beta)
    run = prepare(make_plan(problem, "numba_cpu"))
    y, mean, rstd = np.empty_like(inputs.x), np.empty((70, 1)), np.empty((70, 1))
    x, gamma, beta = (0 if array is None else address_of(array) for array in arrays)
    run(x, address_of(y), address_of(mean), address_of(rstd), gamma, beta, 1e-3)
    check_same_bits((y, mean, rstd), tuple(lngrad.layer_norm(*arrays[:1], None, *arrays[1:], eps=1e-3)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("gamma", ["float32", "same", None])
def test_16_bit_statistics_and_parameters_are_converted_as_a_call_converts_them(dtype, gamma):
    gamma_dtype = dtype if gamma == "same" else gamma
    case = Case((61,), (43,), gamma=gamma is not None, gamma_dtype=gamma_dtype, statistics_dtype=dtype)
    inputs = make_inputs(case, dtype)
    expected = lngrad.layer_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
    problem, _ = Problem.backward(
        inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, inputs.normalized_shape, (True,) * 3, expected
    )
    run = prepare(make_plan(problem, "numba_cpu"))
    for _ in range(2):
        grads = Grads(*map(np.empty_like, expected))
        run_backward(run, inputs, grads)
        check_same_bits(tuple(grads), tuple(expected))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_statistics_are_written_as_a_call_writes_them(dtype):
    inputs = make_inputs(Case((61,), (43,)), dtype)
    empty = np.empty_like(inputs.x), *np.empty((2, 61, 1), inputs.x.dtype)
    expected = lngrad.layer_norm(inputs.x, None, inputs.gamma, inputs.beta, out=Forward(*map(np.empty_like, empty)))
    problem, arrays = Problem.forward(inputs.x, inputs.gamma, inputs.beta, out=Forward(*empty))
    run = prepare(make_plan(problem, "numba_cpu"))
    x, gamma, beta = map(address_of, arrays)
    run(x, *map(address_of, empty), gamma, beta, 1e-5)
    check_same_bits(empty, tuple(expected))


def test_threads_at_once_do_not_share_memory():
    given = [make_inputs(Case((100,), (50,)), "float32", seed) for seed in range(4)]
    run, wrong = prepare(plan_of(given[0])), []

    def work(inputs):
        expected = lngrad.layer_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
        try:
            for _ in range(200):
                grads = empty_grads(inputs)
                run_backward(run, inputs, grads)
                check_same_bits(tuple(grads), tuple(expected))
        except AssertionError as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(inputs,)) for inputs in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_cannot_be_prepared():
    large = make_inputs(Case((1024,), (64,)), "float32")
    apart = make_inputs(Case((64,), (64,)), "bfloat16")
    apart = replace(apart, gamma=np.repeat(apart.gamma, 2)[::2])
    empty = make_inputs(Case((0,), (4,)), "float32")
    assert prepare(plan_of(large)) is None
    assert prepare(plan_of(apart)) is None
    assert prepare(plan_of(empty)) is None
    strided = make_inputs(Case((64,), (64,)), "float32")
    problem, _ = Problem.backward(strided.dy.T, strided.x, strided.mean, strided.rstd, strided.gamma)
    assert prepare(make_plan(problem, "numba_cpu")) is None
    assert prepare(make_plan(problem, "numpy_cpu")) is None
