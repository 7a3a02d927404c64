"""Ahead-of-time compilation without a GPU, and the committed table of what the kernels take."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", minversion="3.9")

SCRIPTS = Path(__file__).parents[3] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from triton_resources import SHAPE, jobs  # noqa: E402

from lngrad.gpu import policy  # noqa: E402

TABLE = Path(__file__).parents[3] / "benchmarks" / "results" / "triton-resources.jsonl"

# In a process of its own, since the tests beside this one run with the interpreter on.
PROGRAM = """
import json, sys
sys.path.insert(0, {scripts!r})
from triton_resources import jobs, measure
wanted = {norm!r}, {kernel!r}, {columns}, "bfloat16", {architecture}
job = next(job for job in jobs() if (job.norm, job.kernel, job.N, job.dtype, job.architecture) == wanted)
print(json.dumps(measure(job)))
"""


@pytest.mark.parametrize(
    ("norm", "columns", "architecture"),
    [("layer_norm", 2048, 80), ("layer_norm", 2048, 90), ("layer_norm", 2048, 100), ("add_rms_norm", 4096, 90)],
)
def test_compiles_without_a_device(norm, columns, architecture, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    program = PROGRAM.format(
        norm=norm, kernel="backward_tiles", columns=columns, architecture=architecture, scripts=str(SCRIPTS)
    )
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    line = json.loads(found.stdout)
    assert line["spill_bytes"] == 0
    assert line["registers"] <= 255
    assert line["vector_bits"] >= 64  # a warp reads 256 bytes at a time


def test_ordered_sums_leave_the_compiler_no_choice(tmp_path):
    """With the switch every operation rounds once, to nearest; and Triton's cache tells both ways apart."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "LNGRAD_GPU_ORDERED": "1"}
    program = PROGRAM.format(
        norm="layer_norm", kernel="forward_tiles", columns=2304, architecture=90, scripts=str(SCRIPTS)
    )
    program += (
        "from lngrad.gpu import kernels; assert '_ORDERED' in dict(kernels.forward_tiles.used_global_vals.keys())"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    line = json.loads(found.stdout)
    assert line["spill_bytes"] == 0
    assert line["instructions"] < 1200  # where a layout of few sums spreads to tiles, there are ten times as many
    (ptx,) = tmp_path.rglob("*.ptx")
    floats = set(re.findall(r"\b(\w+)\.(\S*f(?:32|64))\s", ptx.read_text(encoding="utf-8")))
    arithmetic = {kind for name, kind in floats if name in ("add", "sub", "mul", "fma", "div", "sqrt", "rsqrt", "rcp")}
    assert arithmetic == {"rn.f32", "rn.f64"}


def lines():
    return [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]


def test_the_table_is_complete():
    """Every norm, kernel, width, dtype and architecture, with the launch policy as it is now."""
    expected = {
        (
            job.norm,
            job.kernel,
            job.N,
            job.dtype,
            job.architecture,
            job.warps,
            *(job.constants.get(name) for name in SHAPE),
        )
        for job in jobs()
    }
    keys = ("norm", "kernel", "N", "dtype", "sm", "warps", *map(str.lower, SHAPE))
    assert {tuple(line.get(key) for key in keys) for line in lines()} == expected


def test_no_default_spills():
    assert [line for line in lines() if line["spill_bytes"]] == []


def test_registers_leave_room_for_the_programs_that_run_at_once():
    """64 Ki registers a multiprocessor: all of a backward's programs, half of them in float64; one forward of a long row.

    Three of four are enough where a third tensor is read, dtotal: as many bytes are on their way.
    """
    for line in lines():
        programs = 1 if line["kernel"] in ("forward_tiles", "backward_at_once") else 512 // (32 * line["warps"])
        if line["kernel"] == "backward_tiles":
            programs = policy.backward(4096, line["N"], line["dtype"]).most_parts // 132
            programs = max(1, programs // (2 if line["dtype"] == "float64" else 1))
            programs -= line["norm"] == "add_layer_norm" and programs == 4
        assert line["registers"] * 32 * line["warps"] * programs <= 65536, line


@pytest.mark.parametrize("norm", ["layer_norm", "add_layer_norm"])  # without a mean the fixed part is too large a share
def test_a_row_between_powers_of_two_costs_its_share(norm):
    """5120 columns are five of the eight eighths of 8192; the loop has a fixed part beside."""
    for dtype in ("bfloat16", "float16", "float32"):
        for sm in (80, 90, 100):
            loops = {
                line["N"]: line["loop_instructions"]
                for line in lines()
                if (line["norm"], line["kernel"], line["dtype"], line["sm"]) == (norm, "backward_tiles", dtype, sm)
            }
            assert loops[5120] < 0.88 * loops[8192], (dtype, sm)
            assert loops.get(6144, 0) < 0.88 * loops[8192], (dtype, sm)
