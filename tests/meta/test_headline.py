"""The speed that README's first screen claims over torch is what the records say."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import geometric_mean

import pytest

from lngrad.bench.records import newest, read

ROOT = Path(__file__).parents[2]
RECORDS = sorted((ROOT / "benchmarks" / "results").glob("*-cores.jsonl"))


@pytest.mark.parametrize(
    ("page", "claim"),
    [
        ("README.md", r"LayerNorm is ([\d.]+) to ([\d.]+) times as fast as torch's"),
        ("README.zh-CN.md", r"LayerNorm 的速度是 torch 的 ([\d.]+) 到 ([\d.]+) 倍"),
    ],
)
def test_the_first_screen_has_the_figures_of_the_records(page, claim):
    means = []
    for path in RECORDS:
        found = newest(read(path), "override")
        for sixteen in (False, True):
            means.append(
                geometric_mean(
                    record["ratio"]["torch"] for case, record in found.items() if (case[2] != "float32") == sixteen
                )
            )
    claimed = re.search(claim, " ".join((ROOT / page).read_text("utf-8").split()))
    assert claimed is not None
    assert [float(number) for number in claimed.groups()] == [round(min(means), 1), round(max(means), 1)]
