"""Mistakes from public bug reports: each is failed by its users' standard and named on at least nine of ten random cases."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))  # for cases.regression_corpus, which is no part of the package
corpus = import_module("cases.regression_corpus.table")
BUG_REPORTS = corpus.BUG_REPORTS

LARGE = {"rows:rows_past_65536": 2}  # seconds a case


@pytest.mark.parametrize("cases", [1, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BUG_REPORTS)
def test_a_mistake_from_a_report_is_failed_and_named(name, cases):
    number = min(cases, LARGE.get(name, cases))
    results = [corpus.verdict(BUG_REPORTS[name], seed) for seed in range(number)]
    assert [status for status, _, _ in results] == ["failed"] * number
    named = [mistake for _, mistake, _ in results]
    assert sum(mistake.startswith(BUG_REPORTS[name].named) for mistake in named) >= 0.9 * number, named


def test_there_are_25_and_the_page_lists_them_all():
    assert len(BUG_REPORTS) >= 25
    page = (ROOT / "cases" / "regression_corpus" / "README.md").read_text("utf-8")
    missing = [
        difference.name
        for difference in BUG_REPORTS.values()
        if difference.report not in page or difference.story not in page
    ]
    assert not missing
