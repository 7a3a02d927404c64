"""The bits of every entry point are those of golden_bits.json, on any machine: golden_cases.py says which ones."""

from __future__ import annotations

import json

import pytest

from golden_cases import CASES, FILE, check_bits, check_names

GOLDEN = json.loads(FILE.read_text())


def test_the_file_has_these_cases_and_no_others():
    check_names(CASES, GOLDEN)
    assert len(CASES) >= 300


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_golden_bits(case):
    check_bits(case, GOLDEN)
