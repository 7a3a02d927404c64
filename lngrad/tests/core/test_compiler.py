"""Which compilers are the user's: one answer for every entry point that compiles."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lngrad.support.compilers import c_compiler, cxx_compiler


def test_a_chosen_compiler_may_have_options(monkeypatch):
    monkeypatch.setenv("CXX", f"{sys.executable} -m 'two words'")
    assert cxx_compiler() == [sys.executable, "-m", "two words"]


def test_a_chosen_compiler_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(FileNotFoundError, match=r"^CXX: expected a C\+\+ compiler, got 'no-such-compiler', which"):
        cxx_compiler()


def test_none_is_told_with_the_names(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(FileNotFoundError, match=r"^expected a C compiler \(cc, gcc, clang, or \$CC\), found none$"):
        c_compiler()


PROGRAM = """
import sys
from lngrad.support.compilers import run_compiler
run_compiler(sys.argv[1:])
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_no_compiler_outlives_the_process_that_asked_for_it(tmp_path):
    """Nor do the compilers that a compiler's driver starts."""
    driver, busy = tmp_path / "driver", tmp_path / "busy"
    driver.write_text(f"#!/bin/sh\nsleep 300 &\necho $! > {busy}.draft && mv {busy}.draft {busy}\nwait\n")
    driver.chmod(0o755)
    asking = subprocess.Popen([sys.executable, "-c", PROGRAM, str(driver)])
    wait_until(busy.exists)
    asking.kill()
    asking.wait()
    wait_until(lambda: not is_running(int(busy.read_text())))


def wait_until(done):
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
