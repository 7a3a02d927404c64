"""Tables and pictures of the documents, which records make."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import benchmark_tables as tables  # noqa: E402

from bench_records import LINES, line  # noqa: E402
from lngrad.bench.records import best  # noqa: E402
from peer_libraries import plots  # noqa: E402


def test_a_case_is_won_against_the_best_peer():
    assert best(LINES[0]) == ("onednn", 0.5)
    assert best(LINES[2]) == ("torch", 8.0)
    assert tables.ranges({"here": LINES}).splitlines()[2:] == [
        "| kernel | torch, oneDNN | 2 of 3 | 0.50× | 2.00× | 8.00× | 0.50× (64 × 128 float32, oneDNN, here) |"
    ]


def test_a_line_spans_the_machines():
    elsewhere = [line(64, 128, "float32", torch=3.0, onednn=0.996)]
    row = tables.ranges({"here": LINES, "there": elsewhere}).splitlines()[2]
    assert row.startswith("| kernel | torch, oneDNN | 2 of 4 | 0.50× to 1.00× | 2.00× | 8.00× | 0.50× ")


def test_the_tables_of_a_gpu_have_its_large_calls():
    large = [
        line(1 << 16, 1 << 10, dtype, scope, torch=2.0, liger=1.5)
        for scope in ("call", "forward")
        for dtype in ("float32", "bfloat16")
    ]
    lines = [each | {"machine": {"device": "a GPU"}} for each in [*large, line(64, 64, "float32", "call", torch=0.2)]]
    assert tables.gpu_row(lines) == "| a GPU | 1.50× | 1.50× | 1.50× | 1.50× | 4 / 5 | – | – |"
    assert tables.gpu_table(lines).splitlines()[2:] == ["| 1024 | 0.50, 2.0× | 0.50, 2.0× | 0.50, 2.0× | 0.50, 2.0× |"]


@pytest.mark.parametrize(
    ("cpu", "sets", "name"),
    [
        (
            "Intel(R) Xeon(R) Processor (family 6, model 207), 2 logical cores",
            ["avx2", "avx512f"],
            "Intel Xeon, 5th generation, AVX-512",
        ),
        ("AMD EPYC (family 25, model 1), 2 logical cores", None, "AMD EPYC 7003, AVX2"),
        ("Neoverse-V1, 4 logical cores", ["asimd"], "Neoverse-V1"),
    ],
)
def test_the_name_of_a_machine(cpu, sets, name):
    machine = {"cpu": cpu} if sets is None else {"cpu": cpu, "instruction_sets": sets}
    assert plots.machine_name({"machine": machine}) == name


def test_the_documents_are_made_from_the_records(monkeypatch):
    """As `make docs` does it: the tables in the repository are those of the records."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    sys.modules.pop("generate", None)
    import generate

    results = ROOT / "benchmarks" / "results"
    machines, device = generate.machines_in(results), generate.device_in(results)
    assert machines
    assert device
    for path, text in (
        *((name, generate.readme(machines, name, device)) for name in generate.READMES),
        ("docs/performance.md", generate.performance(machines)),
        ("docs/torch.md", generate.torch(machines)),
        ("docs/ascend-c-types.csv", generate.instructions()),
        ("docs/gpu.md", generate.gpu(device, results)),
        ("docs/benchmarks.html", generate.page(machines)),
    ):
        assert text in (ROOT / path).read_text(encoding="utf-8"), f"{path}: run make docs"
