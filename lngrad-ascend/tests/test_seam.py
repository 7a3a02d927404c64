"""lngrad-ascend needs lngrad, NumPy, ml_dtypes, typer and rich alone: no compiler for Python, and no framework."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution, files
from pathlib import Path

import numpy as np
import pytest

from lngrad.testing import Case, check_grads, make_inputs

ABSENT = ("numba", "llvmlite", "torch", "jax", "triton")
NEEDED = ("numpy", "ml_dtypes", "typer", "rich")
ROOT = Path(__file__).parents[2]
ROWS = ROOT / "examples" / "cpp" / "rows_backward.cpp"
BLOCKER = Path(__file__).with_name("cpp") / "programs" / "blocked_imports.py"
PROGRAM = Path(__file__).with_name("cpp") / "programs" / "kernel_without_frameworks.py"
METADATA = next(Path(str(file.locate())).parent for file in files("lngrad-ascend") if file.name == "METADATA")
SOURCES = [str(ROOT / package / "src") for package in ("lngrad", "lngrad-ascend")]
M, N, BLOCKS = 20, 64, 4


def _with_requirements(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """A distribution and all that it requires, apart from extras."""
    if name not in found:
        with suppress(PackageNotFoundError):  # one for another system
            found[name] = distribution(name)
            for line in found[name].requires or ():
                if "extra" not in line:
                    _with_requirements(re.match(r"[\w.-]+", line)[0], found)
    return found


@pytest.fixture(params=["blocked", "environment"])
def python(request, tmp_path, monkeypatch):
    """A Python that finds none of them: an import hook refuses, or an environment lacks them."""
    if request.param == "blocked":
        (tmp_path / "hook").mkdir()
        (tmp_path / "hook" / "sitecustomize.py").write_text(BLOCKER.read_text())
        monkeypatch.setenv("BLOCKED", ",".join(ABSENT))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hook"), prepend=os.pathsep)
        return sys.executable
    venv.create(tmp_path / "env", symlinks=True, with_pip=False)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "sources.pth").write_text("\n".join(SOURCES))
    needed: dict[str, Distribution] = {}
    for name in NEEDED:
        _with_requirements(name, needed)
    for package in needed.values():
        for file in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            (site / file).symlink_to(package.locate_file(file))
    (site / METADATA.name).symlink_to(METADATA)  # its entry points give lngrad the command `kernel`
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return str(tmp_path / "env" / "bin" / "python")


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_a_kernel_runs_without_compilers_for_python_and_frameworks(python, tmp_path):
    inputs = make_inputs(Case((M,), (N,)), "float32", 5)
    arrays = {"dy": inputs.dy, "x": inputs.x, "mean": inputs.mean, "rstd": inputs.rstd, "gamma": inputs.gamma}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    for name in ABSENT:
        absent = subprocess.run([python, "-c", f"import {name}"], capture_output=True, text=True)
        assert "No module named" in absent.stderr

    assert run(python, PROGRAM, tmp_path, ROWS, M, N, BLOCKS, ",".join(ABSENT)) == "[]\n"
    check_grads(tuple(np.load(tmp_path / f"{name}.npy") for name in ("dx", "dgamma", "dbeta")), inputs)

    empty = {"dx": f"{M},{N}", "dgamma": str(N), "dbeta": str(N)}
    read = [f"--arg={name}={tmp_path / name}.npy" for name in arrays]
    written = [f"--arg={name}=empty:float32:{shape}" for name, shape in empty.items()]
    saved = [f"--save={name}={tmp_path / name}_again.npy" for name in empty]
    run(
        python, "-m", "lngrad", "kernel", "run", ROWS, "--kernel", "rows_backward", "-D", "COLUMN_SUMS=1", "--blocks", BLOCKS,
        "--workspace", 2 * N * 4 * BLOCKS, "--tiling", tmp_path / "tiling.bin", *read, *written, *saved,
    )  # fmt: skip
    check_grads(tuple(np.load(tmp_path / f"{name}_again.npy") for name in empty), inputs)
