"""The user's compilers: finding them, building the library, building a program."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lngrad.errors import LngradError

__all__ = ["c_compiler", "compile_library", "compile_program", "cxx_compiler"]

C_SUFFIXES = (".c",)
CXX_SUFFIXES = (".cpp", ".cc", ".cxx", ".C")


def c_compiler() -> list[str]:
    """Return the command of a C compiler: $CC, else the first of cc, gcc, clang.

    Raises:
        LngradError: there is none.
    """
    return _compiler("CC", "C", ("cc", "gcc", "clang"))


def cxx_compiler() -> list[str]:
    """Return the command of a C++ compiler: $CXX, else the first of c++, g++, clang++.

    Raises:
        LngradError: there is none.
    """
    return _compiler("CXX", "C++", ("c++", "g++", "clang++"))


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
        command = [*c_compiler(), "-std=gnu11"]
    else:
        command = [*cxx_compiler(), "-std=c++17"]
    _run([*command, "-O1", "-g", *flags, str(source), "-o", str(program), *libs, "-lm"], str(source))


def _compiler(variable: str, language: str, names: tuple[str, ...]) -> list[str]:
    chosen = shlex.split(os.environ.get(variable, ""))
    if chosen and shutil.which(chosen[0]):
        return chosen
    if chosen:
        raise LngradError(f"{variable}: expected a {language} compiler, got {chosen[0]!r}, which is not found")
    for name in names:
        if shutil.which(name):
            return [name]
    raise LngradError(f"expected a {language} compiler ({', '.join(names)}, or ${variable}), found none")


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise LngradError(f"{what}: {command[0]} failed with {done.returncode}:\n{done.stderr or done.stdout}".rstrip())
