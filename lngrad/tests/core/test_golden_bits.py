"""The bits of every entry point are those of tests/golden_bits.json, on any machine: golden_cases.py says which ones."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

import lngrad
from golden_cases import CASES, FILE, OUTPUTS, RSTD_DENOMINATOR, RSTD_NUMERATORS, hashes

GOLDEN = json.loads(FILE.read_text())


def test_the_file_has_these_cases_and_no_others():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 300
    assert list(GOLDEN) == names
    assert [golden["where"] for golden in GOLDEN.values()] == [case.where for case in CASES]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_golden_bits(case):
    golden = {name: digest for name, digest in GOLDEN[case.name].items() if name != "where"}
    for threads in case.threads:
        lngrad.set_num_threads(threads)
        got = hashes(case)
        wrong = [name for name in OUTPUTS if got.get(name) != golden.get(name)]
        assert not wrong, f"{case.name}, {threads} thread(s), bits promised {case.where}: {', '.join(wrong)} differ"


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
