"""Kernels on disk: found again without Numba, stale when what they depend on changes, no error where none can be written."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from lngrad.cpu import cache

PROGRAM = """
import hashlib, sys
import numpy as np, lngrad
exec(sys.argv[1])
x = np.random.default_rng(0).standard_normal((512, 300)).astype(np.float32)
f = lngrad.layer_norm(x)
g = lngrad.layer_norm_backward(x[::-1].copy(), x, f.mean, f.rstd)
lngrad.set_num_threads(1)
h = lngrad.layer_norm_backward(x[::-1].copy(), x, f.mean, f.rstd)
from lngrad.cpu import cache
bits = hashlib.sha256(b"".join(a.tobytes() for a in (f.y, g.dx, g.dgamma, g.dbeta, h.dx, h.dgamma))).hexdigest()
print(bits, cache.ENABLED, "numba" in sys.modules, "llvmlite" in sys.modules)
"""
# The smallest function: what a folder or a processor does to it, it does to all.
SMALL = """
import sys
exec(sys.argv[1])
import numpy as np
from lngrad.cpu import cache
from lngrad.cpu.entries import pool_function
from lngrad.cpu.jobs import ARGUMENTS, TICKETS
job = np.full(ARGUMENTS, 7)
pool_function("begin")(job.ctypes.data, 1)
print(job[TICKETS], cache.ENABLED, "numba" in sys.modules, "llvmlite" in sys.modules)
"""
WITHOUT_HOME = "from pathlib import Path\ndef none(): raise RuntimeError\nPath.home = none"
BY_LLVM = """
from lngrad.cpu import entries
from lngrad.cpu.machine_code import NotLinked
def refuse(code, name): raise NotLinked("as on another system")
entries.link = refuse
"""
OTHER_PROCESSOR = "from lngrad.core import machine\nmachine.processor_identity = lambda: 'another'"


def run(folder, setting="", program=PROGRAM):
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, "-c", program, setting]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.stderr == ""
    return result.stdout.split()


def files(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / "lngrad").iterdir()}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder with the kernels of two calls, and their bits."""
    folder = tmp_path_factory.mktemp("kernels")
    bits, *others = run(folder)
    assert others == ["True", "True", "True"]
    return folder, bits


def test_a_second_process_compiles_nothing(compiled):
    """Nor does it import what could; its bits are those of the process that compiled."""
    folder, bits = compiled
    written = files(folder)
    assert len(written) >= 4
    assert run(folder) == [bits, "True", "False", "False"]
    assert files(folder) == written


def test_llvm_loads_what_is_not_of_a_known_system(compiled):
    folder, bits = compiled
    written = files(folder)
    assert run(folder, BY_LLVM) == [bits, "True", "True", "True"]
    assert files(folder) == written


def test_kernels_of_another_processor_are_not_used(tmp_path):
    assert run(tmp_path, program=SMALL) == ["0", "True", "True", "True"]
    written = files(tmp_path)
    assert run(tmp_path, OTHER_PROCESSOR, SMALL) == ["0", "True", "True", "True"]
    assert files(tmp_path).items() > written.items()
    assert run(tmp_path, program=SMALL) == ["0", "True", "False", "False"]


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert run(blocked, program=SMALL) == ["0", "False", "True", "True"]


def test_no_home_directory_is_no_error():
    assert run("", WITHOUT_HOME, SMALL) == ["0", "False", "True", "True"]


def test_the_stamp_covers_every_kernel_source(monkeypatch, tmp_path):
    copies = [tmp_path / source.name for source in cache._SOURCES]
    for source, copy in zip(cache._SOURCES, copies, strict=True):
        copy.write_bytes(source.read_bytes())
    monkeypatch.setattr(cache, "_SOURCES", copies)
    same = cache._stamp()
    assert same == cache.STAMP
    for name in ("simd.py", "sweeps.py", "pool.py", "compiling.py"):
        (tmp_path / name).write_text((tmp_path / name).read_text() + "\n# changed\n")
        assert cache._stamp() != same
        same = cache._stamp()


def test_the_stamp_covers_the_compilers(monkeypatch):
    found = cache._versions()
    assert [name.split("-")[0] for name in found[1:]] == ["numba", "llvmlite"]
    monkeypatch.setattr(cache, "_versions", lambda: [*found[:-1], "llvmlite-1000.dist-info"])
    assert cache._stamp() != cache.STAMP


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "FOLDER", tmp_path)
    monkeypatch.setattr(cache, "ENABLED", True)
    return tmp_path


def test_what_is_not_whole_is_not_there(folder):
    cache.save("kernel", b"machine code")
    assert cache.load("kernel") == b"machine code"
    (file,) = folder.iterdir()
    content = file.read_bytes()
    assert content == hashlib.sha256(b"machine code").digest() + b"machine code"
    for broken in (b"", content[:20], content[:-1], content[:40] + b"!" + content[41:]):
        file.write_bytes(broken)
        assert cache.load("kernel") is None
    file.unlink()
    assert cache.load("kernel") is None


def test_saving_removes_what_is_stale(folder, monkeypatch):
    """Files of one kernel from other sources, and what a killed process was writing; nothing of other kernels."""
    cache.save("kernel", b"1")
    cache.save("kernel_too", b"2")
    cache.path("kernel").with_suffix(".12345").write_bytes(b"half of it")
    monkeypatch.setattr(cache, "TARGET", "another processor")
    cache.save("kernel", b"3")
    assert sorted(cache.read(file) for file in folder.iterdir()) == [b"1", b"2", b"3"]
    monkeypatch.setattr(cache, "STAMP", "0" * 64)
    cache.save("kernel", b"4")
    assert sorted(cache.read(file) for file in folder.iterdir()) == [b"2", b"4"]
