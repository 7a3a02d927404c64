"""The same bits with any number of threads, in any batch, by any walk, run after run."""

from __future__ import annotations

import numpy as np
import pytest

import lngrad
from lngrad.api import execute
from lngrad.core.plan import make_plan
from lngrad.core.problem import Problem
from lngrad.cpu import plan as numba_cpu
from lngrad.cpu.policy import Machine
from lngrad.testing import CASES, Case, check_same_bits, make_inputs
from norms import backward as gradients
from norms import forward, of_rows

DTYPES = ("float32", "bfloat16", "float64")
LARGER = (*CASES, Case((1500,), (40,)), Case((700,), (129,)), Case((400,), (1000,)), Case((200,), (8200,)))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", LARGER, ids=str)
def test_threads_do_not_show(case, dtype, norm):
    inputs = make_inputs(case, dtype, **norm)
    results = []
    for n in (
        (1, 3, 64) if norm else (1, 2, 3, 7, 64)
    ):  # a norm's switches are in its rows, and threads share whole ones
        lngrad.set_num_threads(n)
        results.append((*gradients(inputs), *forward(inputs)))
    for other in results[1:]:
        check_same_bits(other, results[0])


@pytest.mark.parametrize("case", LARGER, ids=str)
def test_runs_do_not_show(case, norm):
    inputs = make_inputs(case, "float32", **norm)
    first = tuple(gradients(inputs))
    for _ in range(5):
        check_same_bits(tuple(gradients(inputs)), first)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("N", [5, 40, 300, 5003, 8200])
def test_the_walk_does_not_show(N, dtype, monkeypatch):
    """The same problem cut in other ways: more and fewer tasks, wide rows or whole ones, streamed or not, for any caches."""
    inputs = make_inputs(Case((333,), (N,)), dtype)
    arguments = inputs.arguments
    problem, arrays = Problem.backward(*arguments)
    results = []
    for threads in (1, 4, 64):
        for changes in (
            {},
            {"TASK_ELEMENTS": 1},
            {"this_machine": lambda: Machine(1 << 15, 1 << 19, last_level=0)},
            {"this_machine": lambda: Machine(1, 0, 1 << 40)},
            {"this_machine": lambda: Machine(1 << 30, 1 << 40, 1 << 40)},
            {"group_bytes": lambda threads, machine: 1},
        ):
            with monkeypatch.context() as patch:
                for name, value in changes.items():
                    patch.setattr(numba_cpu, name, value)
                results.append(execute(numba_cpu.plan(problem, threads), arrays))
    for other in results[1:]:
        check_same_bits(other, results[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("N", [1, 7, 8, 13, 64, 257, 4096, 9000])
def test_a_row_does_not_see_its_batch(N, dtype, norm):
    inputs = make_inputs(Case((77,), (N,)), dtype, **norm)
    dx, y = gradients(inputs).dx, forward(inputs).y
    for rows in (slice(0, 1), slice(3, 12), slice(60, 77), slice(76, 77)):
        part = of_rows(inputs, rows)
        check_same_bits(gradients(part).dx, dx[rows])
        check_same_bits(forward(part).y, y[rows])


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, True), (False, False, True), (True, True, False)])
@pytest.mark.parametrize("N", [5, 40, 300, 8200])
def test_masks_do_not_show(N, mask, norm):
    inputs = make_inputs(Case((200,), (N,)), "float32", **norm)
    whole = gradients(inputs)
    mask = mask[: len(whole)]
    part = gradients(inputs, output_mask=mask)
    check_same_bits(tuple(part), tuple(grad if wanted else None for grad, wanted in zip(whole, mask, strict=True)))


def test_the_plan_knows_the_number_of_threads(threads):
    inputs = make_inputs(Case((3000,), (40,)), "float32")
    problem, _ = Problem.backward(*inputs.arguments)
    lngrad.set_num_threads(1)
    plan = make_plan(problem)
    lngrad.set_num_threads(2)
    assert make_plan(problem) is not plan
    lngrad.set_num_threads(1)
    assert make_plan(problem) is plan


def test_memory_that_was_used_before_does_not_show():
    inputs = make_inputs(Case((200,), (40,)), "float32")
    problem, arrays = Problem.backward(*inputs.arguments)
    plan = make_plan(problem, "numba_cpu")
    results = []
    for filler in (0, 0x7F, 0xFF):
        out = tuple(np.full(array.shape, np.nan, np.float32) for array in (inputs.x, inputs.gamma, inputs.gamma))
        results.append(execute(plan, arrays, out, np.full(plan.workspace_bytes, filler, np.uint8)))
    for other in results[1:]:
        check_same_bits(other, results[0])
