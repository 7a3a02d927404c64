"""The simulator needs neither a compiler for Python nor a framework: kernels run where none of them can be imported."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest

from lngrad.testing import Case, check_grads, make_inputs

ABSENT = ("numba", "llvmlite", "torch", "jax", "triton")
ROWS = Path(__file__).parents[2] / "examples" / "cpp" / "rows_backward.cpp"
SOURCE = Path(__file__).parents[2] / "src"
M, N, BLOCKS = 20, 64, 4

BLOCKER = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}: a test has blocked it", name=name)

sys.meta_path.insert(0, Blocked())
"""

PROGRAM = """
import struct, sys
from pathlib import Path

import numpy as np

import lngrad_ascend as ascend
from lngrad_ascend import acl, aclnn, ascendc, graph, soc, tiling

folder, source, M, N, blocks = Path(sys.argv[1]), *sys.argv[2:3], *map(int, sys.argv[3:])
arrays = [np.load(folder / f"{name}.npy") for name in ("dy", "x", "mean", "rstd", "gamma")]
results = [np.zeros((M, N), np.float32), np.zeros(N, np.float32), np.zeros(N, np.float32)]
kernel = ascendc.compile(source, "rows_backward", define={"COLUMN_SUMS": 1})
tiled = struct.pack("<3I", M, N, -(-M // blocks))
(folder / "tiling.bin").write_bytes(tiled)
ascendc.launch(kernel, blocks, *arrays, *results, workspace=2 * N * 4 * blocks, tiling=tiled)
for name, result in zip(("dx", "dgamma", "dbeta"), results):
    np.save(folder / f"{name}.npy", result)
print(sorted(name for name in %s if name in sys.modules))
"""


def _needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """The distributions that come with one, apart from extras and those that are absent."""
    if name not in found and name not in ABSENT:
        with suppress(PackageNotFoundError):  # one for another system
            found[name] = distribution(name)
            for line in found[name].requires or ():
                if "extra" not in line:
                    _needed(re.match(r"[\w.-]+", line)[0], found)
    return found


@pytest.fixture(params=["blocked", "environment"])
def python(request, tmp_path, monkeypatch):
    """A Python that finds none of them: an import hook refuses, or an environment lacks them."""
    if request.param == "blocked":
        (tmp_path / "hook").mkdir()
        (tmp_path / "hook" / "sitecustomize.py").write_text(BLOCKER)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hook"), prepend=os.pathsep)
        return sys.executable
    venv.create(tmp_path / "env", symlinks=True, with_pip=False)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "source.pth").write_text(str(SOURCE))
    needed = _needed("lngrad", {})
    del needed["lngrad"]
    for one in needed.values():
        for file in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            (site / file).symlink_to(one.locate_file(file))
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
        assert (
            "No module named" in subprocess.run([python, "-c", f"import {name}"], capture_output=True, text=True).stderr
        )

    assert run(python, "-c", PROGRAM % (ABSENT,), tmp_path, ROWS, M, N, BLOCKS) == "[]\n"
    check_grads(tuple(np.load(tmp_path / f"{name}.npy") for name in ("dx", "dgamma", "dbeta")), inputs)

    empty = {"dx": f"{M},{N}", "dgamma": str(N), "dbeta": str(N)}
    given = [f"--arg={name}={tmp_path / name}.npy" for name in arrays]
    made = [f"--arg={name}=empty:float32:{shape}" for name, shape in empty.items()]
    saved = [f"--save={name}={tmp_path / name}_again.npy" for name in empty]
    run(
        python, "-m", "lngrad", "kernel", "run", ROWS, "--kernel", "rows_backward", "-D", "COLUMN_SUMS=1", "--blocks", BLOCKS,
        "--workspace", 2 * N * 4 * BLOCKS, "--tiling", tmp_path / "tiling.bin", *given, *made, *saved,
    )  # fmt: skip
    check_grads(tuple(np.load(tmp_path / f"{name}_again.npy") for name in empty), inputs)
