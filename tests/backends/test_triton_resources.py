"""Ahead-of-time compilation without a GPU, and the committed table of what the kernels take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "triton-resources.jsonl"

# In a process of its own, since the tests beside this one run with the interpreter on.
PROGRAM = """
import json
from lngrad.bench.triton_resources import jobs, measure
job = next(job for job in jobs() if (job.kernel, job.N, job.dtype) == ("backward_tiles", 2048, "bfloat16"))
print(json.dumps(measure(job, {architecture})))
"""


@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_compiles_without_a_device(architecture: int, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    program = PROGRAM.format(architecture=architecture)
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    line = json.loads(found.stdout)
    assert line["spill_bytes"] == 0
    assert line["registers"] <= 128  # so that four programs of 128 threads fit on a multiprocessor
    assert line["vector_bits"] == 128


# Still to be cured: what these put aside, in bytes stored and loaded a thread.
KNOWN = {
    ("forward_chunks", 16384, "float32", 80): 16,
    ("forward_tiles", 8192, "bfloat16", 80): 16,
    ("forward_tiles", 8192, "float16", 80): 16,
    ("backward_tiles", 2048, "float64", 90): 32,
    ("backward_tiles", 2048, "float64", 100): 32,
}


def test_no_default_spills_but_the_known() -> None:
    lines = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
    assert {line["sm"] for line in lines} == {80, 90, 100}
    kernels = {"backward_tiles", "backward_chunks", "sum_chunks", "backward_columns", "finalize"}
    assert {line["kernel"] for line in lines} >= kernels | {"forward_tiles", "forward_chunks"}
    keys = ("kernel", "N", "dtype", "sm")
    spilling = {tuple(line[key] for key in keys): line["spill_bytes"] for line in lines if line["spill_bytes"]}
    assert spilling == KNOWN
