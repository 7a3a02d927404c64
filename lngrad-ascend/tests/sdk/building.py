"""Building and running small C and C++ programs against a toolkit folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lngrad_ascend.sdk import cflags, libs
from lngrad_ascend.sdk.program import compile_program

__all__ = ["EXAMPLES", "build", "needs_c", "needs_cxx", "run"]

EXAMPLES = Path(__file__).parents[3] / "examples"
needs_c = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
needs_cxx = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


def build(toolkit: Path, source: Path, folder: Path, *flags: str) -> Path:
    """Compile a program with every warning an error."""
    program = folder / source.stem
    strict = ["-Wall", "-Wextra", "-Werror", "-pthread", *flags]
    compile_program(source, program, [*cflags(toolkit), *strict], libs(toolkit))
    return program


def run(program: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a user does: from anywhere, with no variable that could help it find Python."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=inherited | environment)
