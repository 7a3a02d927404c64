"""The same bits from vectors of another width: kernels compiled as for a processor without AVX-512."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from golden_cases import X86_LEVELS

TESTS = Path(__file__).parents[1]
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from golden_cases import CASES, FILE, OUTPUTS, hashes
from lngrad.cpu.kernels import functions, simd
golden = json.loads(FILE.read_text())
chosen = [
    case for case in CASES
    if case.name.startswith(("numba_cpu rows", "numba_cpu NaN in x")) and "bfloat16" in case.name
] if sys.argv[2] == "some" else [case for case in CASES if case.where == "everywhere"]
wrong = []
for case in chosen:
    got = hashes(case)
    wrong += [(case.name, name) for name in OUTPUTS if got.get(name) != golden[case.name].get(name)]
print(functions.PROCESSOR, simd.WIDE, len(chosen) > (10 if sys.argv[2] == "some" else 400), wrong)
"""


def of_level(level, cases):
    """What PROGRAM prints in a process of its own, with kernels of its own: kept beside this processor's, by their key."""
    variables = {"NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": X86_LEVELS[level]}
    program = [sys.executable, "-c", PROGRAM, str(TESTS), cases]
    result = subprocess.run(program, capture_output=True, text=True, env={**os.environ, **variables})
    return result.stdout or result.stderr[-2000:]


@pytest.mark.slow  # half a minute; test_every_level_of_x86_64 has all cases
@pytest.mark.skipif(not IS_X86, reason="another instruction set")
def test_narrow_vectors_give_the_golden_bits():
    """A machine with AVX-512 shows that eight lanes give its bits too. RMSNorm's row passes are the same."""
    assert of_level("x86-64-v3", "some") == "x86-64-v3 False True []\n"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not IS_X86, reason="another instruction set")
@pytest.mark.parametrize("level", X86_LEVELS)
def test_every_level_of_x86_64_gives_all_golden_bits(level):
    if level == "x86-64-v4" and "avx512vl" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("a processor without AVX-512 can't run its code")
    assert of_level(level, "all") == f"{level} {level == 'x86-64-v4'} True []\n"


HALVES = """
import numpy as np
from lngrad.support.addresses import address_of
from lngrad.cpu.entries import kernel_address
from lngrad.cpu.jobs import Convert, new_job
from lngrad.cpu.kernels import simd
from lngrad.cpu.workers import run_chain
def convert(name, source, target):
    job = new_job(kernel_address(name, "float16", "float32"), 1, source.size, 1,
                  Convert(address_of(source), address_of(target), source.size))
    run_chain(address_of(job), 1)
    return target
def same(a, b):
    return bool(((a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b)).all())
with np.errstate(all="ignore"):
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    wide = halves.astype(np.float32)
    near = [wide.view(np.uint32) + np.uint32(d) for d in (0, 1, 0xfff, 0x1000, 0x1001, 0x1fff)]  # ties, and beside them
    special = np.array([0x477fefff, 0x477ff000, 0x33000000, 0x33000001, 0x32ffffff, 1, 0x7f800001], np.uint32)
    drawn = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    floats = np.concatenate([*near, special, special | np.uint32(1 << 31), drawn]).view(np.float32)
    print(simd._CONVERTS_FLOAT16, same(convert("widen", halves, np.empty_like(wide)), wide),
          same(convert("narrow", floats, np.empty(floats.size, np.float16)), floats.astype(np.float16)))
"""


@pytest.mark.skipif(not IS_X86, reason="another instruction set")
@pytest.mark.parametrize(
    "variables", [{"NUMBA_CPU_NAME": "generic"}, {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": ""}]
)
def test_float16_on_processors_without_f16c(variables):
    """Where LLVM would call functions of a compiler's library that this process may not have."""
    program = [sys.executable, "-c", HALVES]
    result = subprocess.run(program, capture_output=True, text=True, env={**os.environ, **variables})
    assert result.stdout == "False True True\n", result.stderr[-2000:]
