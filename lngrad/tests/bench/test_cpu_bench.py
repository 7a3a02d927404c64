"""The CPU's side of the benchmark."""

from __future__ import annotations

import ctypes

import pytest

import lngrad
from lngrad.bench import cpu
from lngrad.bench.cases import Job
from lngrad.bench.runner import first_rows, random_arguments
from lngrad.core.arrays import empty
from lngrad.core.problem import Forward, Grads
from lngrad.cpu.jobs import THREADS, TRIAD_BLOCK
from lngrad.testing import check_forward, check_grads


@pytest.mark.usefixtures("threads")
def test_the_roofline_has_as_many_threads_as_there_are_each_time(monkeypatch):
    """It is prepared once, for all numbers of threads."""
    ran = []

    def watched(chain, threads):
        ran.append(min(threads, ctypes.c_int64.from_address(chain + 8 * THREADS).value))

    monkeypatch.setattr(cpu, "FLOATS", 64 * TRIAD_BLOCK)
    monkeypatch.setattr(cpu, "run_chain", watched)
    bench = cpu.CpuBench()
    for threads in (1, 2, 3, 1):
        lngrad.set_num_threads(threads)
        bench._roofline()
    assert ran == [1, 2, 3, 1]


@pytest.mark.parametrize("op", ["forward", "backward"])
def test_what_is_timed_of_ours_computes_the_norm(op, monkeypatch):
    """The plan's results, in the memory that it was given."""
    memory = []
    monkeypatch.setattr(cpu, "empty", lambda kind, output: memory.append(empty(kind, output)) or memory[-1])
    job = Job(64, 96, "float32", op)
    arguments = random_arguments(job)
    cpu._ours("kernel", job, arguments)()
    rows = first_rows(arguments)
    if op == "backward":
        check_grads(Grads(*memory), rows)
    else:
        check_forward(Forward(*memory), rows)
