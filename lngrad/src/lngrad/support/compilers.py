"""Compilers of C and C++: which there are, their versions, and running one that ends with this process."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from functools import cache

C_COMPILERS = ("cc", "gcc", "clang")
CXX_COMPILERS = ("c++", "g++", "clang++")


def c_compiler() -> list[str]:
    """Return the command of a C compiler: $CC, else the first of cc, gcc, clang.

    Raises:
        FileNotFoundError: there is none.
    """
    return _compiler("CC", "C", C_COMPILERS)


def cxx_compiler() -> list[str]:
    """Return the command of a C++ compiler: $CXX, else the first of c++, g++, clang++.

    Raises:
        FileNotFoundError: there is none.
    """
    return _compiler("CXX", "C++", CXX_COMPILERS)


def _compiler(variable: str, language: str, names: tuple[str, ...]) -> list[str]:
    chosen = shlex.split(os.environ.get(variable, ""))
    if chosen and shutil.which(chosen[0]):
        return chosen
    if chosen:
        raise FileNotFoundError(f"{variable}: expected a {language} compiler, got {chosen[0]!r}, which is not found")
    for name in names:
        if shutil.which(name):
            return [name]
    raise FileNotFoundError(f"expected a {language} compiler ({', '.join(names)}, or ${variable}), found none")


@cache
def compiler_version(*command: str) -> str:
    """All that a compiler says of its version."""
    return subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout


# Runs a command in a process group of its own, and ends that group when the process that asked for it is gone: a compiler
# driver's own children would work on for a minute, for nobody.
_ENDS_WITH_US = """
import os, signal, subprocess, sys
asked_by, *command = sys.argv[1:]
process = subprocess.Popen(command, start_new_session=True)
try:
    while process.poll() is None and os.getppid() == int(asked_by):
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            pass
finally:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
sys.exit(process.wait())
"""


def python(program: str, *arguments: str) -> list[str]:
    """Return the command that runs a program of Python, with the modules of this process: no file of the current folder is one.

    Python itself puts the current folder first where a program is given as text.
    """
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{program}", *arguments]


def run_compiler(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, or to that of this process.

    Args:
        command: The program and its arguments.
        environment: Variables to set beside those of this process.
    """
    return subprocess.run(
        [sys.executable, "-I", "-c", _ENDS_WITH_US, str(os.getpid()), *command],
        capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )  # fmt: skip
