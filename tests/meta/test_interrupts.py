"""Tests that send Ctrl-C pass also if the suite was started with SIGINT ignored: by nohup, or in the background."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# A test up to its signal; SIGKILL can't be ignored.
SENDS = re.compile(r"^def (test_\w+)(?:(?!^def ).)*?\.send_signal\((?!signal\.SIGKILL)", re.MULTILINE | re.DOTALL)


def senders() -> list[str]:
    """The tests that send a signal which can be ignored, as pytest names them."""
    return [
        f"{path}::{name}"
        for path in sorted(TESTS.rglob("test_*.py"))
        if path != Path(__file__)
        for name in SENDS.findall(path.read_text("utf-8"))
    ]


def test_the_search_finds_them():
    names = [one.rpartition("::")[2] for one in senders()]
    assert {"test_ctrl_c_interrupts_a_long_call", "test_ctrl_c_keeps_what_is_done"} <= set(names)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_they_pass_with_sigint_ignored():
    pytest_alone = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *senders()]
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *pytest_alone]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=TESTS.parent)
    assert result.returncode == 0, result.stdout + result.stderr
    passed = re.search(r"^(\d+) passed", result.stdout, re.MULTILINE)
    assert passed is not None, result.stdout
    assert int(passed[1]) >= len(senders())


def test_the_test_can_fail():
    """Without our handler a child of such a process ignores Ctrl-C."""
    child = f"{sys.executable} -c 'import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)'"
    for trap, expected in (("trap '' INT; ", "True\n"), ("", "False\n")):
        result = subprocess.run(["sh", "-c", trap + child], capture_output=True, text=True, check=True)
        assert result.stdout == expected
