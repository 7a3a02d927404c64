"""What the user's compilers build: the library, and a program."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from lngrad.core.machine import c_compiler, cxx_compiler
from lngrad.errors import LngradError

C_SUFFIXES = (".c",)
CXX_SUFFIXES = (".cpp", ".cc", ".cxx", ".C")


def required(find: Callable[[], list[str]]) -> list[str]:
    """The command of a compiler.

    Raises:
        LngradError: there is none.
    """
    try:
        return find()
    except FileNotFoundError as reason:
        raise LngradError(str(reason)) from None


def compile_library(
    compiler: list[str], sources: Sequence[Path], library: Path, include: Sequence[Path], flags: Sequence[str]
) -> None:
    """Build a shared library from C files.

    Raises:
        LngradError: the compiler failed; with what it wrote.
    """
    command = [
        *compiler,
        "-std=gnu11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-fPIC",
        "-fvisibility=hidden",
        "-shared",
        "-pthread",
    ]
    command += [f"-Wl,-soname,{library.name}", *(f"-I{path}" for path in include), *flags]
    _run([*command, *map(str, sources), "-o", str(library), "-ldl"], "the toolkit's library")


def compile_program(source: Path, program: Path, flags: Sequence[str], libs: Sequence[str]) -> None:
    """Build a program from one C or C++ file.

    Raises:
        LngradError: it is neither, there is no compiler, or it failed; with what it wrote.
    """
    if source.suffix not in C_SUFFIXES + CXX_SUFFIXES:
        raise LngradError(f"{source}: expected a file that ends in {', '.join(C_SUFFIXES + CXX_SUFFIXES)}")
    if not source.is_file():
        raise LngradError(f"{source}: no such file")
    if source.suffix in C_SUFFIXES:
        command = [*required(c_compiler), "-std=gnu11"]
    else:
        command = [*required(cxx_compiler), "-std=c++17"]
    _run([*command, "-O1", "-g", *flags, str(source), "-o", str(program), *libs, "-lm"], str(source))


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise LngradError(f"{what}: {command[0]} failed with {done.returncode}:\n{done.stderr or done.stdout}".rstrip())
