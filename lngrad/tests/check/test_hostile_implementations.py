"""Implementations that exit, hang, crash, return nonsense, print or change their inputs: one failed case each, with why."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lngrad
from lngrad.check import comparison, trial
from lngrad.check.calls.process import KernelProcesses
from lngrad.check.case import CheckCase
from lngrad.check.implementations import find
from lngrad.check.judge import Options, check_case, run_cases
from lngrad.check.result import CaseResult
from lngrad.errors import BackendUnavailable

HOSTILE = """
import os, sys, time
import numpy as np
import lngrad

def right(dy, x, mean, rstd, gamma):
    return lngrad.layer_norm_backward(dy, x, mean, rstd, gamma, backend="numpy_cpu")

def exits(dy, x, mean, rstd, gamma):
    sys.exit(3)

def ends(dy, x, mean, rstd, gamma):
    os._exit(0)

def hangs(dy, x, mean, rstd, gamma):
    time.sleep(600)

def crashes(dy, x, mean, rstd, gamma):
    os.abort()

def text(dy, x, mean, rstd, gamma):
    return "dx", "dgamma", "dbeta"

def numbers(dy, x, mean, rstd, gamma):
    return 1.0, 2.0, 3.0

def integers(dy, x, mean, rstd, gamma):
    return tuple(np.zeros(one.shape, np.int64) for one in right(dy, x, mean, rstd, gamma))

def two(dy, x, mean, rstd, gamma):
    return right(dy, x, mean, rstd, gamma)[:2]

def prints(dy, x, mean, rstd, gamma):
    os.write(1, b"{'status': 'passed'}\\n" * 10000)
    print("a word", flush=True)
    return right(dy, x, mean, rstd, gamma)

def changes(dy, x, mean, rstd, gamma):
    grads = right(dy, x, mean, rstd, gamma)
    x *= 0
    return grads

def wrong(dy, x, mean, rstd, gamma):
    grads = right(dy, x, mean, rstd, gamma)
    return grads._replace(dx=2 * grads.dx)

def raises(dy, x, mean, rstd, gamma):
    raise ValueError("not today")

def refuses(dy, x, mean, rstd, gamma):
    raise NotImplementedError("one normalized axis only")
"""


@pytest.fixture
def module(tmp_path, monkeypatch) -> Path:
    (tmp_path / "hostile.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{Path(lngrad.__file__).parents[1]}{os.pathsep}{tmp_path}")
    return tmp_path


def result_of(case: CheckCase, impl: str, limit: float = 3.0) -> CaseResult:
    found: list[CaseResult] = []
    run_cases([case], Options(impl=impl), 1, limit, found.append)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("function", "status", "text"),
    [
        ("exits", "failed", "crashed (exit code 3)"),
        ("ends", "failed", "crashed (exit code 0)"),
        ("hangs", "failed", "not done within 1 s"),
        ("crashes", "failed", "crashed (SIGABRT)"),
        ("text", "failed", "DtypeError: dx: "),
        ("numbers", "failed", "dx: "),
        ("integers", "failed", "int64"),
        ("two", "failed", "expected to return dx, dgamma, dbeta"),
        ("prints", "passed", ""),
        ("changes", "failed", "it changed its input x"),
        ("raises", "failed", "ValueError: not today"),
        ("refuses", "skipped", "one normalized axis only"),
    ],
)
def test_a_hostile_function_is_one_result_with_the_reason(module, make_case, function, status, text):
    result = result_of(make_case(), f"hostile:{function}", 1.0 if function == "hangs" else 3.0)
    assert result.status == status, result
    assert text in result.reason, result.reason


def test_a_function_that_takes_no_mask_may_return_all_three(module, make_case):
    case = make_case(wanted=("dx",))
    assert result_of(case, "hostile:right").status == "passed"


PROGRAM = """#!{python}
import json, sys
from pathlib import Path
import numpy as np
place, out = Path(sys.argv[1]), Path(sys.argv[2])
facts = json.loads((place / "case.json").read_text())
def read(name):
    about = facts["inputs"][name]
    return np.fromfile(place / (name + ".bin"), about["dtype"]).reshape(about["shape"]).astype(np.float64)
dy, x, mean, rstd, gamma = map(read, ("dy", "x", "mean", "rstd", "gamma"))
axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
rows = tuple(range(x.ndim - gamma.ndim))
xhat, dxhat = (x - mean) * rstd, dy * gamma
dx = rstd * (dxhat - FACTOR * dxhat.mean(axes, keepdims=True) - xhat * (dxhat * xhat).mean(axes, keepdims=True))
dx.astype(np.float32).tofile(out / "dx.bin")
np.save(out / "dgamma.npy", (dy * xhat).sum(rows).astype(np.float32))
dy.sum(rows).astype(np.float32).tofile(out / "dbeta.bin")
"""


def program(folder: Path, factor: str) -> str:
    path = folder / "program.py"
    path.write_text(PROGRAM.replace("{python}", sys.executable).replace("FACTOR", factor))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"cmd:{path} {{in}} {{out}}"


def test_a_program_reads_and_writes_files(tmp_path, make_case):
    result = check_case(make_case(), Options(impl=program(tmp_path, "1"), standard="exact"))
    assert result.status == "passed", result
    wrong = check_case(make_case(), Options(impl=program(tmp_path, "2") + " again"))
    assert wrong.mistake == "mean of dxhat 2 times"


def test_a_program_that_fails_is_a_failed_case(tmp_path, make_case):
    result = check_case(make_case(), Options(impl=program(tmp_path, "nonsense")))
    assert result.status == "failed"
    assert "ended with 1" in result.reason
    assert "nonsense" in result.reason
    silent = check_case(make_case(), Options(impl=f"cmd:{sys.executable} -c pass {{in}} {{out}}"))
    assert "expected dx.bin or dx.npy in {out}, found neither" in silent.reason


@pytest.mark.parametrize(
    ("compiler", "name", "refusal"),
    [
        (["cc"], "check_my_program.c", "this program takes float32 alone"),
        (["c++", "-std=c++17"], "check_my_program.cpp", "float32 with a gamma alone"),
    ],
)
def test_a_program_passes_and_skips_what_it_does_not_take(tmp_path, make_case, compiler, name, refusal):
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no {compiler[0]}")
    built = tmp_path / "my_program"
    source = Path(__file__).parents[3] / "examples" / "c" / name
    subprocess.run([*compiler, "-O1", "-Wall", "-Werror", str(source), "-lm", "-o", str(built)], check=True)
    options = Options(impl=f"cmd:{built} {{in}} {{out}}", standard="exact")
    result = check_case(make_case(), options)
    assert result.status == "passed", result
    narrow = make_case(dtype="bfloat16", output_dtypes={"dx": "bfloat16", "dgamma": "float32", "dbeta": "float32"})
    result = check_case(narrow, options)
    assert (result.status, result.reason) == ("skipped", refusal)


def test_the_time_limit_counts_the_implementation_alone(module, make_case, monkeypatch):
    """The truth and the diagnosis take longer than the limit here."""

    def slowly(item):
        return lambda *arguments: (time.sleep(1.5), item(*arguments))[1]

    monkeypatch.setattr(trial, "diagnose", slowly(trial.diagnose))
    monkeypatch.setattr(comparison, "truth_of", slowly(comparison.truth_of))
    monkeypatch.syspath_prepend(module)
    kernels = KernelProcesses(1, 1.0)
    result = check_case(make_case(), Options(impl="hostile:wrong"), kernels)
    kernels.end()
    assert (result.status, result.mistake) == ("failed", "dx 2 times"), result


@pytest.mark.parametrize("template", ["", "./program", "./program {in}"])
def test_a_program_without_its_folders_is_refused(template):
    with pytest.raises(BackendUnavailable, match=r"cmd: expected a program with \{in\} and \{out\}"):
        find(f"cmd:{template}")


@pytest.mark.parametrize("impl", ["jax", "torch", "mindspore"])
def test_other_libraries_are_checked_by_name(make_case, impl):
    pytest.importorskip(impl)
    result = check_case(make_case(), Options(impl=impl))
    assert result.status == "passed", result


TRITON = """
import torch
import triton
import triton.language as tl

@triton.jit
def add(dy, out, rows, columns: tl.constexpr, width: tl.constexpr):
    places = tl.arange(0, width)
    total = tl.zeros((width,), tl.float32)
    for row in range(rows):
        total += tl.load(dy + row * columns + places, mask=places < columns, other=0.0)
    tl.store(out + places, total, mask=places < columns)

def backward(dy, x, mean, rstd, gamma):
    dxhat, xhat = dy * gamma, (x - mean) * rstd
    dx = rstd * (dxhat - dxhat.mean(-1, keepdim=True) - xhat * (dxhat * xhat).mean(-1, keepdim=True))
    dbeta = torch.empty_like(gamma)
    add[(1,)](dy, dbeta, dy.shape[0], dy.shape[1], triton.next_power_of_2(dy.shape[1]))
    return dx, (dy * xhat).sum(0), dbeta
"""


def test_a_host_function_of_triton_kernels_gets_tensors(tmp_path, monkeypatch, make_case):
    pytest.importorskip("triton", minversion="3.9")
    pytest.importorskip("torch")
    (tmp_path / "some_triton_kernel.py").write_text(TRITON)
    monkeypatch.chdir(tmp_path)
    result = check_case(make_case(lead=(20,), normalized=(24,)), Options(impl="triton:some_triton_kernel:backward"))
    assert result.status == "passed", result
