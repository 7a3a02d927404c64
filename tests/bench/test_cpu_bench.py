"""The CPU's side of the benchmark."""

from __future__ import annotations

import ctypes

import pytest

import lngrad
from lngrad.bench import cpu
from lngrad.bench.cases import Job
from lngrad.bench.peers import CPU_PEERS
from lngrad.bench.runner import first_rows, random_arguments
from lngrad.core.problem import Forward
from lngrad.cpu.jobs import THREADS, TRIAD_BLOCK
from lngrad.testing import check_forward


@pytest.mark.usefixtures("threads")
def test_the_roofline_has_as_many_threads_as_there_are_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is prepared once, for all numbers of threads."""
    ran = []

    def watched(chain: int, threads: int) -> None:
        ran.append(min(threads, ctypes.c_int64.from_address(chain + 8 * THREADS).value))

    monkeypatch.setattr(cpu, "FLOATS", 64 * TRIAD_BLOCK)
    monkeypatch.setattr(cpu, "run_chain", watched)
    bench = cpu.CpuBench()
    for threads in (1, 2, 3, 1):
        lngrad.set_num_threads(threads)
        bench._roofline()
    assert ran == [1, 2, 3, 1]


def test_onnx_runtime_is_called_right() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    given = random_arguments(Job(64, 96, "float32", "forward"))
    forward = CPU_PEERS["onnxruntime"].forward
    assert forward is not None
    rows = first_rows(given)
    check_forward(Forward(*(result[: len(rows.x)] for result in forward(given)())), rows, eps=given.eps)
