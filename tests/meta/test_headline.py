"""The speed that README's first screen claims over torch is what the records say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import geometric_mean

import pytest

from lngrad.bench.records import newest, read
from lngrad.check.formats.reading import shipped

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


@pytest.mark.parametrize(
    ("page", "claim", "source"),
    [
        ("README.md", r"RMSNorm is ([\d.]+) to ([\d.]+) times as fast for 4096 × 768", "docs/torch.md"),
        ("README.zh-CN.md", r"RMSNorm 是 ([\d.]+) 到 ([\d.]+) 倍", "docs/torch.zh-CN.md"),
    ],
)
def test_rms_norm_on_the_first_screen_is_the_table_of_its_page(page, claim, source):
    rows = re.findall(r"(?m)^\| [\d×  ]+ (?:float32|bfloat16) \|(.*)\|$", (ROOT / source).read_text("utf-8"))
    times = [[float(cell) for cell in row.split("|")] for row in rows]
    ratios = [theirs / ours for theirs, _, _, ours in times]
    assert len(ratios) == 4
    claimed = re.search(claim, " ".join((ROOT / page).read_text("utf-8").split()))
    assert claimed is not None
    assert [int(number) for number in claimed.groups()] == [round(min(ratios)), round(max(ratios))]


def test_counts_on_pages_are_those_of_the_files():
    golden = json.loads((ROOT / "tests" / "golden_bits.json").read_text())
    cases, bits = str(len(shipped("default"))), str(len(golden))
    for page in ("docs/check.md", "docs/check.zh-CN.md"):
        assert cases in re.findall(r"\d+", (ROOT / page).read_text("utf-8")), page
    for page in ("docs/precision.md", "docs/precision.zh-CN.md"):
        assert bits in re.findall(r"\d+", (ROOT / page).read_text("utf-8")), page
