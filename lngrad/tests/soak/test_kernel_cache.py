"""Compiled kernels on disk: whatever happens to them, a call gives the right bits and no traceback."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from lngrad.cpu.jobs import ENTRIES
from lngrad.support.cache_folder import cache_folder

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals, limits"),
    pytest.mark.timeout(600),
]

PROGRAM = """
import hashlib, resource, sys
import numpy as np
import lngrad
if "full" in sys.argv:  # every write to a file fails, as on a full disk
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))  # less than any kernel
x = np.random.default_rng(0).standard_normal((70, 300)).astype(sys.argv[1])
y = lngrad.layer_norm(x, backend="numba_cpu").y
from lngrad.cpu import cache
print(cache.why_not() is None, hashlib.sha256(y.tobytes()).hexdigest())
"""


def start(folder, *arguments, **environment):
    variables = {**os.environ, "XDG_CACHE_HOME": str(folder), **environment}
    variables = {name: value for name, value in variables.items() if value is not None}
    command = [sys.executable, "-c", PROGRAM, *(arguments or ("f4",))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)


def outcome(process):
    output, errors = process.communicate(timeout=500)
    answer = re.sub(r"lngrad: compiling kernels for .* ahead\n", "", errors)  # after two seconds
    assert (process.returncode, answer) == (0, "")
    return output.split()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder with the kernels of one call, and what it printed."""
    folder = tmp_path_factory.mktemp("kernels")
    return folder, outcome(start(folder))


def files(folder):
    return sorted((folder / "lngrad").glob("*.so"))


@pytest.mark.slow
def test_files_that_are_cut_off_empty_or_noise_are_compiled_again(compiled):
    folder, printed = compiled
    changes = (
        lambda content: content[: len(content) // 2],
        lambda _: b"",
        lambda content: os.urandom(len(content)),
    )
    whole = files(folder)
    assert len(whole) >= 2
    for first in range(0, len(changes), len(whole)):  # as often as each change has a file
        for number, path in enumerate(whole, first):
            path.write_bytes(changes[number % len(changes)](path.read_bytes()))
        broken = {path: path.read_bytes() for path in whole}
        assert outcome(start(folder)) == printed
        assert files(folder) == whole
        assert all(path.read_bytes() != broken[path] for path in whole)


def test_a_single_wrong_bit_is_noticed(tmp_path):
    """In the machine code it would be a crash, or a wrong number. In functions that compile in a moment."""
    printed = outcome(start(cache_folder().parent))
    shutil.copytree(cache_folder(), tmp_path / "lngrad", ignore=shutil.ignore_patterns("ascendc-*", "torch-*"))
    small = [path for path in files(tmp_path) if path.name.startswith(tuple(ENTRIES))]
    broken = {}
    for path in small:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        broken[path] = bytes(content)
    assert outcome(start(tmp_path)) == printed
    assert any(path.read_bytes() != content for path, content in broken.items())


@pytest.mark.slow
def test_kernels_of_another_cpu_are_not_used(compiled):
    folder, printed = compiled
    before = set(files(folder))
    assert outcome(start(folder, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES=""))[0] == "True"
    assert set(files(folder)) > before  # compiled for it, and kept with the others
    assert outcome(start(folder)) == printed


@pytest.mark.slow
def test_a_process_killed_at_any_time_leaves_nothing_that_hurts(tmp_path, compiled):
    _, printed = compiled
    for seconds in (1.5, 3.0, 5.0):
        process = start(tmp_path)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert outcome(start(tmp_path)) == printed


@pytest.mark.slow
def test_eight_processes_compile_at_once(tmp_path, compiled):
    """Different dtypes too, whose kernels have one name: none may take the code of another."""
    dtypes = ["f4", "f8", "f2"]
    alone = {"f4": compiled[1][1]}
    processes = [start(tmp_path, dtypes[k % 3]) for k in range(8)]
    printed = [outcome(process)[1] for process in processes]
    for k, bits in enumerate(printed):
        assert alone.setdefault(dtypes[k % 3], bits) == bits
    assert [outcome(start(tmp_path, dtype))[1] for dtype in dtypes] == [alone[dtype] for dtype in dtypes]


@pytest.mark.slow
def test_a_full_disk(tmp_path, compiled):
    assert outcome(start(tmp_path, "f4", "full"))[1] == compiled[1][1]
    assert files(tmp_path) == []


@pytest.mark.slow
def test_no_home(tmp_path, compiled):
    """Nowhere to keep anything: kernels are compiled in every process."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    process = start(tmp_path, HOME=str(blocked), XDG_CACHE_HOME="")
    assert outcome(process) == ["False", compiled[1][1]]
