"""The C++ compiler that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

__all__ = ["COMPILERS", "compiler_version", "find_compiler"]

COMPILERS = ("c++", "g++", "clang++")


def find_compiler() -> str | None:
    """``$CXX``, else the first of COMPILERS that is installed; None without one."""
    chosen = os.environ.get("CXX")
    return next((name for name in ([chosen] if chosen else COMPILERS) if shutil.which(name)), None)


@cache
def compiler_version(compiler: str) -> str:
    """All that a compiler says of its version."""
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
