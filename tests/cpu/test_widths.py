"""The same bits from vectors of another width: kernels compiled as for a processor without AVX-512."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NARROW = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+64bit,+avx,+avx2,+bmi,+bmi2,+cmov,+cx16,+f16c,+fma,+lzcnt,+movbe,+popcnt,+sse4.2",
}
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from golden_cases import CASES, FILE, OUTPUTS, hashes
from lngrad.cpu.kernels import simd
golden = json.loads(FILE.read_text())
chosen = [
    case for case in CASES
    if case.name.startswith("numba_cpu") and "bfloat16" in case.name and ("rows" in case.name or "in x" in case.name)
]
wrong = []
for case in chosen:
    got = hashes(case)
    wrong += [(case.name, name) for name in OUTPUTS if got.get(name) != golden[case.name].get(name)]
print(simd.WIDE, len(chosen) > 10, wrong)
"""


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="another instruction set")
def test_narrow_vectors_give_the_golden_bits(tmp_path):
    """In a process of its own, with kernels of its own: a machine with AVX-512 shows that eight lanes give its bits too."""
    environment = {**os.environ, **NARROW, "XDG_CACHE_HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(TESTS)], capture_output=True, text=True, env=environment
    )
    assert result.stdout == "False True []\n", result.stdout[-2000:] + result.stderr[-2000:]
