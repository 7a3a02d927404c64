"""The user's compilers: which they are, and what they say of themselves."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
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
