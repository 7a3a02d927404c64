"""Kernels are compiled by steps of our own, and other users of Numba in the process by Numba's."""

from __future__ import annotations

import subprocess
import sys

# A function that calls max of a tuple and raises: what our kernels call too, and what they have no place for.
PROGRAM = """
import numba
from numba import njit
from lngrad.cpu.compiling import compile_kernel
from lngrad.cpu import machine_code

@njit
def inner(a, b):
    if a > 100:
        raise ValueError("too large")
    return max((a, b))

@njit
def outer(a, b):
    return inner(a, b) + 1

{before}
code = machine_code._Object(compile_kernel("merge", "combine", "float32", "float32"))
assert outer(3, 5) == 6 and outer.overloads and inner(7, 2) == 7
try:
    outer(200, 1)
except ValueError as error:
    assert str(error) == "too large"
else:
    raise AssertionError
codegen = numba.core.registry.cpu_target.target_context.codegen()
asked = {{code._name(symbol) for symbol in code.symbols if symbol.name and not symbol.section}}
print(sorted(set(vars(codegen)) & {{"_library_class", "set_env"}}), asked - {{"memset", "memcpy"}})
"""


def test_others_compile_as_ever():
    """Before and after ours; and our machine code asks nothing of Numba's and Python's."""
    for before in ("", "outer(1, 2)"):
        command = [sys.executable, "-c", PROGRAM.format(before=before)]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.stdout == "[] set()\n", result.stderr
