"""Jobs are packed by the names of their records' fields."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import namedtuple

import numpy as np
import pytest

import lngrad
from lngrad.core.plan import make_plan
from lngrad.core.problem import BACKWARD, describe
from lngrad.cpu import jobs
from lngrad.cpu.jobs import (
    ARGUMENTS,
    BATCH,
    BATCH_ELEMENTS,
    FUNCTION,
    NEXT,
    SERIAL_ELEMENTS,
    TASKS,
    THREADS,
    WAKES,
    WAKING_ELEMENTS,
    Chain,
    new_job,
    writer,
)
from lngrad.testing import check_same_bits

Record = namedtuple("Record", "one two three", defaults=(0, 0, 0))
RECORDS = [
    value for value in vars(jobs).values()
    if isinstance(value, type) and hasattr(value, "_fields") and value not in (jobs.Entry, jobs.Kind)
]  # fmt: skip


def test_a_chain_says_where_its_fields_lie():
    chain = Chain(2)
    first = chain.add(11, 2, 100, Record(one=1, three=3), Record(two=5))
    second = chain.add(12, 1, 10, Record(one=7))
    words = chain.words()
    assert [words[first.word(name)] for name in Record._fields] == [1, 0, 3]
    assert words[first.word("two", 1)] == 5
    assert words[second.word("one")] == 7
    assert (words[first.start + FUNCTION], words[first.start + TASKS]) == (11, 2)
    assert words[first.start + NEXT] == second.start
    assert words[second.start + NEXT] == 0
    assert not any(chain.words(linked=False)[job.start + NEXT] for job in (first, second))


@pytest.mark.parametrize("order", [(20, 21, 22), (22, 20, 21), (20, None, 25), (None, None, None), (7, 30, 3)])
def test_a_writer_puts_each_value_where_it_belongs(order):
    words = np.full(40, -1, np.int64)
    expected = words.copy()
    values = (5, 6, 7)
    for word, value in zip(order, values, strict=True):
        if word is not None:
            expected[word] = value
    writer(order, "qqq")(memoryview(words).cast("B"), values)
    assert (words == expected).all()


def test_a_writer_writes_floats_too():
    words = np.zeros(4, np.int64)
    writer((1, 2), "qd")(memoryview(words).cast("B"), (3, 0.5))
    assert (words == [0, 3, np.float64(0.5).view(np.int64), 0]).all()


def test_a_job_has_all_of_its_arguments():
    job = new_job(3, 4, 100, 2, Record(1, 2, 3))
    assert (job[[FUNCTION, TASKS]] == [3, 4]).all()
    assert (job[ARGUMENTS:] == [1, 2, 3]).all()


@pytest.mark.parametrize(
    ("tasks", "elements", "threads", "wakes", "batch"),
    [
        (8, SERIAL_ELEMENTS - 1, 1, 0, None),
        (8, SERIAL_ELEMENTS, 4, 0, None),
        (3, WAKING_ELEMENTS, 3, 1, None),
        (8, 4 * BATCH_ELEMENTS, 4, 1, 1),
        (80, 4 * BATCH_ELEMENTS, 4, 1, 19),
    ],
)
def test_how_much_help_a_job_is_worth(tasks, elements, threads, wakes, batch):
    job = new_job(3, tasks, elements, 4, Record())
    assert (job[[THREADS, WAKES]] == [threads, wakes]).all()
    assert job[BATCH] >= tasks if batch is None else job[BATCH] == batch


WITH_ANOTHER_FIELD = """
from collections import namedtuple
import lngrad
from lngrad.core.plan import make_plan
from lngrad.core.problem import BACKWARD, describe
from lngrad.cpu import jobs
for name, value in list(vars(jobs).items()):
    if hasattr(value, "_fields"):
        fields = list(value._fields)
        fields.insert(1, "inserted")
        setattr(jobs, name, namedtuple(name, fields, defaults=(0,) * len(fields)))
import numpy as np, lngrad
from lngrad.testing import Case, check_forward, check_grads, make_inputs
lngrad.set_num_threads(2)
for shape in ((70, 37), (5, 8200)):
    i = make_inputs(Case(shape[:1], shape[1:], statistics_dtype="bfloat16"), "bfloat16")
    check_grads(lngrad.layer_norm_backward(np.asfortranarray(i.dy), i.x, i.mean, i.rstd, i.gamma), i)
    check_grads(lngrad.layer_norm_backward(*i.arguments), i)
    check_forward(lngrad.layer_norm(i.x, None, i.gamma, i.beta), i)
print("ok")
"""


@pytest.mark.slow
def test_a_field_can_be_inserted_without_any_other_edit():
    """In a process of its own, every record gets one field more; kernels and host find their fields all the same."""
    environment = {**os.environ, "XDG_CACHE_HOME": "/proc/nowhere"}  # such kernels are not for keeping
    result = subprocess.run(
        [sys.executable, "-c", WITH_ANOTHER_FIELD],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert result.stdout == "ok\n", result.stderr


def test_no_record_is_without_defaults():
    assert len(RECORDS) >= 6
    for record in RECORDS:
        assert record() == (0,) * len(record._fields)


def backward_steps(M, N, threads):
    rng = np.random.default_rng(5)
    dy, x = rng.standard_normal((2, M, N), dtype=np.float32)
    _, mean, rstd = lngrad.layer_norm(x)
    gamma = rng.standard_normal(N, dtype=np.float32)
    problem, _ = describe(BACKWARD, (dy, x, mean, rstd, gamma), None, (True,) * 3, None)
    return make_plan(problem, "numba_cpu", threads).steps


def test_few_long_rows_are_cut_so_that_most_threads_work():
    """By columns there are four tasks for 16,384, by chunks of 64 rows as many as chunks."""
    assert backward_steps(64, 16384, 16).main.threads == 4
    assert backward_steps(640, 16384, 16).main.threads == 10


def test_many_threads_share_the_last_sum():
    few, many = backward_steps(4096, 768, 2), backward_steps(4096, 768, 32)
    assert few.jobs[-1].tasks == 2
    assert many.jobs[-1].tasks == 6


@pytest.mark.usefixtures("threads")
def test_both_cuts_have_the_same_bits():
    rng = np.random.default_rng(6)
    dy, x = rng.standard_normal((2, 200, 8192), dtype=np.float32)
    gamma = rng.standard_normal(8192, dtype=np.float32)
    results = []
    for threads in (1, 2, 3, 16, 64):
        lngrad.set_num_threads(threads)
        _, mean, rstd = lngrad.layer_norm(x, gamma)
        results.append(lngrad.layer_norm_backward(dy, x, mean, rstd, gamma))
    for result in results[1:]:
        check_same_bits(result, results[0])
