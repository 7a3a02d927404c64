"""Figures that stand on more than one page are equal, and are those of the records, tables or code that they come from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from statistics import geometric_mean

import pytest

import lngrad
from lngrad.bench.records import newest, read
from lngrad.check.formats.reading import shipped
from packages import ROOT

RECORDS = sorted((ROOT / "benchmarks" / "results").glob("*-cores.jsonl"))


def text_of(page):
    return " ".join((ROOT / page).read_text("utf-8").split())


def results(name):
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text("utf-8"))


def spans(shape):
    """The least and the largest ratio to torch of override(), of all dtypes and machines."""
    found = [newest(read(path), "override") for path in RECORDS]
    ratios = [record["ratio"]["torch"] for cases in found for case, record in cases.items() if case[:2] == shape]
    return f"{min(ratios):.1f}", f"{max(ratios):.1f}"


def on_the_h200(model):
    """An eager step with patch() over one with torch's norms."""
    steps = {
        record["norms"]: record["ms"]
        for record in results("nvidia-h200-model.json")
        if record["model"] == model and not record["compiled"]
    }
    return steps["patch"] / steps["torch"]


def llama(column, own):
    """By how many percent a step of the small Llama is shorter than one of another column of docs/torch.md."""
    rows = re.findall(
        r"(?m)^\| (?:float32|bfloat16) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$",
        (ROOT / "docs/torch.md").read_text("utf-8"),
    )
    shares = [100 * (1 - int(row[column]) / int(row[own])) for row in rows]
    assert len(shares) == 2
    return f"{min(shares):.0f}", f"{max(shares):.0f}"


def newest_peers():
    """Cases in which lngrad is ahead, all cases, and the least ratio to the best peer."""
    best = [min(record["ratio"].values()) for record in results("amd-epyc-9005-newest-peers.json")]
    return str(sum(ratio >= 1 for ratio in best)), str(len(best)), f"{min(best):.2f}"


def on_the_gpu():
    ahead = re.search(r"NVIDIA H200 \|.*\| (\d+) / (\d+) \|", text_of("README.md"))  # generated from the records
    return ahead.groups()


def error_of_torch():
    found = re.search(r"float32 weights \| ([\d.]+) \|", text_of("docs/precision.md"))
    return (f"{100 * float(found[1]):.0f}",)


# A figure, where it comes from (None: the pages alone have it), and the pages that have it: a group for each part of it.
FIGURES: dict[str, tuple[Callable[[], tuple[str, ...]] | None, dict[str, str]]] = {
    "version": (
        lambda: (lngrad.__version__,),
        {
            "README.md": r"Alpha, version ([\d.]+\d)",
            "CHANGELOG.md": r"`main` is ([\d.]+\d)",
            "docs/first-minute.md": r"lngrad-([\d.]+\d)-py3",
        },
    ),
    "oldest torch": (
        lambda: re.search(r'"torch>=(\d\.\d+)', (ROOT / "lngrad" / "pyproject.toml").read_text("utf-8")).groups(),
        {
            "docs/torch.md": r"needs torch (\d\.\d+) or later",
            "docs/versions.md": r"torch needs (\d\.\d+) or later",
            "docs/first-minute.md": r"expected torch (\d\.\d+) or later",
            "docs/reference/torch.md": r"For PyTorch (\d\.\d+) and later",
        },
    ),
    "torch of compiled wheels": (
        None,
        {
            "docs/torch.md": r"C\+\+ for torch (\d\.\d+) to (\d\.\d+)",
            "docs/versions.md": r"takes torch (\d\.\d+) to (\d\.\d+)",
        },
    ),
    "torch of override(compiled=True)": (
        None,
        {
            "docs/torch.md": r"`override\(compiled=True\)` needs (\d\.\d+)",
            "docs/versions.md": r"`override\(compiled=True\)` needs (\d\.\d+)",
        },
    ),
    "Triton": (
        None,
        {
            "docs/torch.md": r"kernels that Triton (\d\.\d) to (\d\.\d) compiled",
            "docs/gpu.md": r"from (\d\.\d) \(torch 2\.10\) to (\d\.\d) \(2\.15\)",
            "docs/versions.md": r"pin Triton (\d\.\d) to (\d\.\d)",
        },
    ),
    "Liger Kernel": (
        None,
        {
            "README.md": r"Liger (\d\.\d\.\d)",
            "docs/gpu.md": r"Liger-Kernel (\d\.\d\.\d)",
            "docs/libraries.md": r"Liger Kernel (\d\.\d\.\d)",
            "docs/precision.md": r"Liger (\d\.\d\.\d)",
        },
    ),
    "oneDNN": (
        None,
        {
            "README.md": r"torch 2\.13 and oneDNN (\d\.\d)",
            "docs/libraries.md": r"contains oneDNN (\d\.\d)",
            "docs/certificates.md": r"oneDNN (\d\.\d)\.0",
        },
    ),
    "torch on the H200": (
        None,
        {"README.md": r"with torch (\d\.\d+), when Python", "docs/gpu.md": r"driver 580, torch (\d\.\d+)"},
    ),
    "large calls on a GPU": (
        None,
        {"README.md": r"for calls of (2²⁶) elements", "docs/gpu.md": r"has calls of (2²⁶) elements"},
    ),
    "small calls on a GPU": (
        None,
        {"README.md": r"below (2²²) elements", "docs/gpu.md": r"calls of (2²²) elements and"},
    ),
    "cases won on a GPU": (
        lambda: on_the_gpu()[::-1],
        {"docs/gpu.md": r"than torch's in \d+ of (\d+) cases.*?faster than both in (\d+)"},
    ),
    "an eager Llama's step on the H200": (
        lambda: (f"{100 * (1 - on_the_h200('llama 8x1024x2048')):.0f}",),
        {"README.md": r"Llama step (\d+) % shorter", "docs/gpu.md": r"Llama step got (\d+) % shorter"},
    ),
    "GPT-2's step on the H200": (
        lambda: (f"{on_the_h200('gpt2 8x1024x768'):.2f}", f"{on_the_h200('gpt2 1x128x768'):.0f}"),
        {
            "README.md": r"GPT-2 step took ([\d.]+) to (\d+) times",
            "docs/gpu.md": r"GPT-2 step took ([\d.]+) to (\d+) times",
            "docs/performance.md": r"lost time \(([\d.]+) to (\d+) times",
        },
    ),
    "small LayerNorms": (
        lambda: spans((64, 64)),
        {
            "README.md": r"([\d.]+) to ([\d.]+) times at 64 × 64",
            "docs/performance.md": r"([\d.]+) to ([\d.]+) times at 64 × 64",
        },
    ),
    "large LayerNorms": (
        lambda: spans((16384, 1024)),
        {
            "README.md": r"([\d.]+) to ([\d.]+) at 16384 × 1024",
            "docs/performance.md": r"([\d.]+) to ([\d.]+) at 16384 × 1024",
        },
    ),
    "LayerNorm's share of a step": (
        None,
        {
            "docs/torch.md": r"takes ([\d.]+) to ([\d.]+) % of a small Transformer's",
            "docs/performance.md": r"takes ([\d.]+) to ([\d.]+) % of a small Transformer's",
        },
    ),
    "its share in bfloat16": (
        None,
        {"README.md": r"up to ([\d.]+) % in bfloat16", "docs/torch.md": r"to ([\d.]+) % in bfloat16"},
    ),
    "patch() on a small Llama": (lambda: llama(1, 0), {"README.md": r"Llama's step (\d) to (\d) % shorter"}),
    "override() on a small Llama": (lambda: llama(3, 2), {"README.md": r"made it (\d) to (\d) % shorter"}),
    "torch's error of dgamma": (
        error_of_torch,
        {"README.md": r"\*\*(\d+) % off\*\*", "docs/libraries.md": r"\[(\d+) % with float32 weights\]"},
    ),
    "where a sum of ones stops": (
        None,
        {
            "README.md": r"torch on 2 threads gives (\d+)",
            "docs/torch.md": r"so 2 threads give (\d+)",
            "docs/precision.md": r"16,384 rows: dbeta \| (\d+) \(2 threads",
            "docs/libraries.md": r"on 2 threads 16384 ones add up to (\d+)",
        },
    ),
    "today's peers": (
        newest_peers,
        {
            "README.md": r"ahead in (\d+) of (\d+) cases, by ([\d.]+)",
            "docs/performance.md": r"ahead in (\d+) of (\d+) cases, by ([\d.]+)",
        },
    ),
    "processors of a wheel": (
        None,
        {
            "CHANGELOG.md": r"compiled kernels for (\d+) processors",
            "CONTRIBUTING.md": r"All (\d+) processors",
            "docs/decisions/0034-wheels.md": r"one for each of (\d+) processors",
        },
    ),
    "minutes of make test": (
        None,
        {"README.md": r"its tests take (\d+) minutes", "CONTRIBUTING.md": r"pytest \((\d+) minutes"},
    ),
    "CANN's examples that run": (
        None,
        {"docs/upstream.md": r"host examples (\d+) run", "docs/ascend-sdk.md": r"(\d+) examples of CANN's ops-nn"},
    ),
    "columns of a segment": (
        None,
        {
            "docs/distributed.md": r"multiple of (\d+) columns does not change",
            "docs/jax.md": r"multiple of (\d+) columns, all",
            "docs/precision.md": r"segments of (\d+) columns",
        },
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_the_same_on_all_pages(name):
    source, pages = FIGURES[name]
    found = {}
    for page, pattern in pages.items():
        every = [match.groups() for match in re.finditer(pattern, text_of(page))]
        assert every, f"{page} has no {pattern}"
        found[page] = every
    if source is not None:
        found["source"] = [tuple(source())]
    assert len({value for every in found.values() for value in every}) == 1, found


@pytest.mark.parametrize("wrong", ["Llama step 18 % shorter", "Llama step"])
def test_another_figure_is_noticed(monkeypatch, wrong):
    pages = text_of
    monkeypatch.setitem(globals(), "text_of", lambda page: pages(page).replace("Llama step 17 % shorter", wrong))
    with pytest.raises(AssertionError, match=r"18|README"):
        test_a_figure_is_the_same_on_all_pages("an eager Llama's step on the H200")


@pytest.mark.parametrize(
    ("page", "claim"),
    [
        ("README.md", r"torch's LayerNorm ([\d.]+) to ([\d.]+) times as fast"),
        ("README.zh-CN.md", r"LayerNorm 快到 ([\d.]+) 到 ([\d.]+) 倍"),
        ("docs/torch.md", r"LayerNorm ([\d.]+) to ([\d.]+) times as fast, RMSNorm"),
        ("docs/performance.md", r"forward and backward ([\d.]+) to ([\d.]+) times as fast"),
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
    ("page", "claim"),
    [
        ("README.md", r"RMSNorm is ([\d.]+) to ([\d.]+) times as fast from 4096 × 768 on"),
        ("README.zh-CN.md", r"RMSNorm 是 ([\d.]+) 到 ([\d.]+) 倍"),
    ],
)
def test_rms_norm_on_the_first_screen_is_the_table_of_its_page(page, claim):
    rows = re.findall(r"(?m)^\| [\d×  ]+ (?:float32|bfloat16) \|(.*)\|$", (ROOT / "docs/torch.md").read_text("utf-8"))
    times = [[float(cell) for cell in row.split("|")] for row in rows]
    ratios = [theirs / ours for theirs, _, _, ours in times]
    assert len(ratios) == 4
    claimed = re.search(claim, " ".join((ROOT / page).read_text("utf-8").split()))
    assert claimed is not None
    assert [int(number) for number in claimed.groups()] == [round(min(ratios)), round(max(ratios))]


def test_counts_on_pages_are_those_of_the_files():
    golden = [
        json.loads((ROOT / package / "tests" / "golden_bits.json").read_text())
        for package in ("lngrad", "lngrad-ascend")
    ]
    cases, bits = str(len(shipped("default"))), str(sum(map(len, golden)))
    family = sum(case.norm == "rms_norm" for case in shipped("family"))
    assert f"none for LayerNorm, {family} for RMSNorm" in text_of("docs/check.md")
    assert cases in re.findall(r"\d+", text_of("docs/check.md"))
    assert bits in re.findall(r"\d+", text_of("docs/precision.md"))
