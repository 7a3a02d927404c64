"""The bits of the simulated NPU and of aclnn are those of golden_bits.json, on any machine: ascend_golden_cases.py."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from ascend_golden_cases import CASES, FILE
from golden_cases import RSTD_DENOMINATOR, RSTD_NUMERATORS, X86_LEVELS, check_bits, check_names

GOLDEN = json.loads(FILE.read_text())


def test_the_file_has_these_cases_and_no_others():
    check_names(CASES, GOLDEN)
    assert len(CASES) >= 124


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_golden_bits(case):
    check_bits(case, GOLDEN)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="another instruction set")
@pytest.mark.parametrize("level", X86_LEVELS)
def test_every_level_of_x86_64_gives_the_golden_bits(level):
    if level == "x86-64-v4" and "avx512vl" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("a processor without AVX-512 can't run its code")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "test_golden_bits"]
    variables = {"NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": X86_LEVELS[level]}
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    assert f"{len(CASES)} passed" in result.stdout, result.stdout[-2000:]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_variances_of_the_simulated_npu_are_far_from_ties(dtype):
    """ascend_sim takes rstd⁻² from NumPy's float64 pow. An error of 500 ulp in it would not change what is kept of it."""
    for numerator in RSTD_NUMERATORS:
        variance = Fraction(RSTD_DENOMINATOR, numerator) ** 2
        error = variance / (1 << 43)
        exact = np.float64(RSTD_DENOMINATOR**2) / np.float64(numerator**2)
        kept = dtype(exact)
        for other in (np.nextafter(kept, dtype(0)), np.nextafter(kept, dtype(4))):
            tie = (Fraction(float(kept)) + Fraction(float(other))) / 2
            assert abs(tie - variance) > error, numerator
