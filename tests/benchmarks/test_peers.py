"""Peers of the CPU's benchmarks."""

from __future__ import annotations

import pytest

from lngrad.bench.cases import Job
from lngrad.bench.runner import first_rows, random_arguments
from lngrad.core.problem import Forward
from lngrad.testing import check_forward
from peer_libraries.rows import CPU_PEERS


def test_onnx_runtime_is_called_right():
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    arguments = random_arguments(Job(64, 96, "float32", "forward"))
    forward = CPU_PEERS["onnxruntime"].forward
    assert forward is not None
    results, rows = forward(arguments)(), first_rows(arguments)
    check_forward(Forward(*(result[: len(rows.x)] for result in results)), rows, eps=arguments.eps)
