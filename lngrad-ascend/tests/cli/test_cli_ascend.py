"""Commands of lngrad-ascend: tiling, and what ends quietly; and `lngrad run` on the simulated NPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from lngrad.cli.commands import app
from lngrad.core.problem import Grads
from lngrad.testing import Case, check_grads, make_inputs

KERNEL = r"""
#include "kernel_operator.h"
#include <cstdio>
extern "C" __global__ __aicore__ void k(GM_ADDR x, GM_ADDR y) {
    AscendC::GlobalTensor<float>().SetGlobalBuffer((__gm__ float*)x);
#ifdef ENDLESS
    for (;;) puts("a line");
#endif
}
"""
KERNEL_RUN = "kernel run k.cpp --kernel k --arg x=x.npy --arg y=empty:float32:2,32"
SLOW = ["kernel test library/norm/twice --gtest gtest --mode device", "sdk toolkit", "sdk --run lines.c"]


def lngrad(*arguments):
    command = [sys.executable, "-m", "lngrad", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
@pytest.mark.parametrize(
    "words",
    [
        "tiling --shape 2,32,16",
        f"{KERNEL_RUN} --report",
        f"{KERNEL_RUN} -D ENDLESS",
        *(pytest.param(words, marks=pytest.mark.slow) for words in SLOW),
    ],
)
def test_a_reader_that_has_gone_ends_the_command_quietly(words, tmp_path, request):
    if not words.startswith("tiling") and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("no C++ compiler")
    np.save(tmp_path / "x.npy", np.ones((2, 32), np.float32))
    (tmp_path / "k.cpp").write_text(KERNEL)
    if words.startswith("kernel test"):
        (tmp_path / "gtest").symlink_to(request.getfixturevalue("operator").gtest)
    (tmp_path / "lines.c").write_text('#include <stdio.h>\nint main() { for (;;) puts("a line"); }\n')
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "lngrad", *words.split()]
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    os.close(writing)
    assert (result.returncode, result.stderr) == (141, "")


def test_tiling_prints_the_struct_and_the_verdict():
    result = lngrad("tiling", "--shape", "2,32,16", "--soc", "Ascend910B1")
    assert result.returncode == 0, result.stderr
    for expected in ("oneCalSize", "nohCalSize", "pdVarTensorPos", "ok: the kernel touches 6,144 of 6,144 bytes"):
        assert expected in result.stdout


def test_tiling_ends_with_1_where_the_published_minimum_is_too_small():
    result = lngrad("tiling", "--shape", "1,2,16", "--dtype", "half", "--json", "-")
    assert result.returncode == 1
    report = json.loads(result.stdout)
    assert (report["stack_bytes"], report["touched_bytes"], report["verdict"]) == (576, 8320, "overrun")


def test_tiling_ends_with_1_where_the_call_does_not_fit():
    result = CliRunner().invoke(app, ["tiling", "--shape", "64,64,1024", "--stack", "max"])
    assert (result.exit_code, "but it does not fit" in result.output) == (1, True)


def test_tiling_sweep_reproduces_the_counts():
    result = lngrad("tiling", "--sweep")
    assert result.returncode == 0
    assert "244 0 396 64" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "shape: expected B,S,H, for example --shape 2,32,16, or --sweep, got neither"),
        (("--shape", "2,2"), "shape: expected [B, S, H]"),
        (("--shape", "2,32,16", "--soc", "Ascend1"), "soc: expected one of Ascend310P"),
        (("--shape", "2,32,16", "--stack", "much"), "stack: expected 'min', 'max' or a number of bytes, got 'much'"),
        (("--shape", "2,32,16", "--dtype", "bf16"), "dtype: expected one of"),
    ],
)
def test_tiling_refuses_in_one_line(arguments, text):
    result = CliRunner().invoke(app, ["tiling", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"lngrad: --{text}")


def test_run_on_the_simulated_npu(tmp_path):
    inputs = make_inputs(Case((20,), (64,)), "float32")
    names = ("dy", "x", "mean", "rstd", "gamma")
    np.savez(tmp_path / "in.npz", **{name: getattr(inputs, name) for name in names})
    result = lngrad(
        "run", tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--backend", "ascend_sim", "--soc", "Ascend950"
    )
    assert result.returncode == 0, result.stderr
    with np.load(tmp_path / "out.npz") as file:
        check_grads(Grads(file["dx"], file["dgamma"], file["dbeta"]), inputs)
    result = lngrad("run", tmp_path / "in.npz", "-o", tmp_path / "other.npz", "--soc", "Ascend950")
    assert result.returncode == 2
    assert "--soc: expected --backend ascend_sim beside it" in result.stderr
