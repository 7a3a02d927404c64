"""Kernels are compiled by steps of our own, and other users of Numba in the process by Numba's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lngrad.cpu import compiling
from lngrad.cpu.kernels import pool
from lngrad.cpu.processors import CHOICE

# A function that calls max of a tuple and raises: what our kernels call too, and what they have no place for.
PROGRAM = """
import re
import numba
from numba import njit
from lngrad.cpu.compiling import compile_kernel

@njit
def inner(a, b):
    if a > 100:
        raise ValueError("too large")
    return max((a, b))

@njit
def outer(a, b):
    return inner(a, b) + 1

{before}
code = compile_kernel("merge", "combine", "float32", "float32")
assert outer(3, 5) == 6 and outer.overloads and inner(7, 2) == 7
try:
    outer(200, 1)
except ValueError as error:
    assert str(error) == "too large"
else:
    raise AssertionError
codegen = numba.core.registry.cpu_target.target_context.codegen()
asked = re.findall(rb"\\0(_?Py\\w+|numba\\w+|NRT_\\w+)", code)
print(sorted(set(vars(codegen)) & {{"_library_class", "set_env"}}), b"\\0merge\\0" in code, asked)
"""


def test_others_compile_as_ever():
    """Before and after ours; and our machine code asks nothing of Numba's and Python's."""
    for before in ("", "outer(1, 2)"):
        command = [sys.executable, "-c", PROGRAM.format(before=before)]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.stdout == "[] True []\n", result.stderr


def test_functions_of_the_kernels_are_known_as_ours():
    """By Numba's name of their package; those of others would be optimized and emitted each by itself."""
    compiling.compile_kernel("again", "begin", "", "")
    assert all(compiled.library._is_ours for compiled in pool.begin.overloads.values())


# Prints the assembly's streamed stores. They are kept as kernels are, by all that the machine code depends on.
STREAMED = """
import re
from lngrad.cpu import cache
from lngrad.support.cache_folder import keep, kept

def stores(kernel):
    from lngrad.cpu import compiling
    module = compiling.lower(kernel, "float16", "float32")
    machine = compiling._machine(compiling.PROCESSOR, compiling.FEATURES)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    compiling._optimize(module, machine)
    return " ".join(found[0] for found in re.findall(r"vmovnt\\w+\\s+%([xyz])mm", machine.emit_assembly(module)))

for kernel in ("rows", "forward_rows"):
    file = cache.path(f"stores.{kernel}_float16_float32", kernel, ".txt")
    found = kept(file) if file else None
    if found is None:
        found = stores(kernel).encode()
        if file:
            keep(file, found)
    print(kernel, found.decode())
"""


@pytest.mark.slow  # it compiles for other processors: 45 s
@pytest.mark.parametrize(("processor", "widest"), [("sapphirerapids", "z"), ("znver3", "y")])
def test_halves_are_streamed_in_the_widest_stores(processor, widest):
    """LLVM made one store of a streamed and a stored one, into the caches; with AVX512_FP16 it streamed no halves at all, and
    with AVX2 sixteen bytes at a time. What is narrower is the end of a row."""
    done = subprocess.run(
        [sys.executable, "-c", STREAMED],
        capture_output=True,
        text=True,
        env={**os.environ, CHOICE: processor},
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        _, *widths = line.split()
        assert widths.count(widest) >= 1
        assert len(widths) - widths.count(widest) <= 2, line
    assert len(done.stdout.splitlines()) == 2


DISABLED = """
import numpy as np
import numba
import lngrad

rng = np.random.default_rng(3)
x = rng.standard_normal((5, 3), dtype=np.float32)  # the smallest forward: the rest of a kernel compiles alike
gamma = rng.standard_normal(3, dtype=np.float32)
y = lngrad.rms_norm(x, gamma=gamma, eps=1e-5, backend="numba_cpu").y
wide = x.astype(np.float64)
expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * gamma
assert abs(y - expected).max() < 1e-5
assert numba.config.DISABLE_JIT and not hasattr(numba.njit(lambda a: a), "py_func")
print("right")
"""


def test_kernels_are_compiled_where_numbas_jit_is_disabled(tmp_path):
    """NUMBA_DISABLE_JIT lets somebody debug functions of their own; an empty cache, so that ours are compiled."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "XDG_CACHE_HOME": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", DISABLED], capture_output=True, text=True, env=environment)
    assert (result.returncode, result.stdout) == (0, "right\n"), result.stderr
