"""Kernels on disk: found again, stale when a source changes, and no error where the folder can't be written."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import numpy as np, lngrad
x = np.random.default_rng(0).standard_normal((70, 300)).astype(np.float32)
f = lngrad.layer_norm(x)
g = lngrad.layer_norm_backward(x[::-1].copy(), x, f.mean, f.rstd)
from lngrad.kernels.numba_cpu import cache
print(cache.ENABLED, float(np.abs(g.dx).sum()) > 0)
"""


def run(folder):
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), "NUMBA_OPT": "0"}  # quick to compile
    return subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)


def test_a_second_process_compiles_nothing(tmp_path):
    assert run(tmp_path).stdout == "True True\n"
    written = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "lngrad").iterdir()}
    assert written
    assert run(tmp_path).stdout == "True True\n"
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "lngrad").iterdir()} == written


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    result = run(blocked)
    assert result.stdout == "False True\n", result.stderr
    assert result.stderr == ""


def test_the_stamp_covers_every_kernel_source(monkeypatch, tmp_path):
    from lngrad.kernels.numba_cpu import cache

    for source in cache._SOURCES.glob("*.py"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(cache, "_SOURCES", tmp_path)
    same = cache._stamp()
    assert same == cache.STAMP
    for name in ("simd.py", "sweeps.py", "pool.py"):
        changed = (tmp_path / name).read_text() + "\n# changed\n"
        (tmp_path / name).write_text(changed)
        assert cache._stamp() != same
        same = cache._stamp()
