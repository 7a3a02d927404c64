"""Records: what is done already, which peer counts, and the tables that are made of them."""

from __future__ import annotations

import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lngrad.bench import plots, records, runner
from lngrad.bench.cases import Job, Settings
from lngrad.bench.measure import Timing
from lngrad.bench.records import best, finished, key_of, newest
from lngrad.bench.runner import Contest, record
from lngrad.cli import bench

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "docs"))

import benchmark_tables as tables  # noqa: E402


def line(M: int, N: int, dtype: str, scope: str = "kernel", threads: int = 2, **ratio: float) -> dict[str, Any]:
    """A record of 100 µs; keyword arguments are ratios to peers."""
    machine = {"cpu": "Intel(R) Xeon(R) Processor (family 6, model 207), 2 logical cores", "cores": 2}
    return {
        "date": "2026-01-01T00:00Z", "scope": scope, "M": M, "N": N, "dtype": dtype, "op": "backward",
        "threads": threads, "rounds": 15, "ratio": ratio, "time_us": {"lngrad": {"median": 100.0, "p90": 120.0}},
        "of_roofline": 0.5, "commit": "abc", "versions": {"torch": "2.13"},
        "machine": machine | {"instruction_sets": ["avx2", "avx512f"], "cache": "L3"},
    }  # fmt: skip


LINES = [
    line(64, 128, "float32", torch=2.0, onednn=0.5),
    line(64, 128, "bfloat16", torch=4.0, onednn=2.0),
    line(64, 13, "float32", torch=8.0, onednn=9.0),
    line(64, 128, "float32", threads=1, torch=3.0),
]


def test_a_case_is_won_against_the_best_peer() -> None:
    assert best(LINES[0]) == ("onednn", 0.5)
    assert best(LINES[2]) == ("torch", 8.0)
    assert tables.ranges({"here": LINES}).splitlines()[2:] == [
        "| kernel | torch, oneDNN | 2 of 3 | 0.50× | 2.00× | 8.00× | 0.50× (64 × 128 float32, oneDNN, here) |"
    ]


def test_a_line_spans_the_machines() -> None:
    there = [line(64, 128, "float32", torch=3.0, onednn=0.996)]
    row = tables.ranges({"here": LINES, "there": there}).splitlines()[2]
    assert row.startswith("| kernel | torch, oneDNN | 2 of 4 | 0.50× to 1.00× | 2.00× | 8.00× | 0.50× ")


def test_the_tables_of_a_gpu_have_its_large_calls() -> None:
    large = [
        line(1 << 16, 1 << 10, dtype, scope, torch=2.0, liger=1.5)
        for scope in ("call", "forward")
        for dtype in ("float32", "bfloat16")
    ]
    lines = [each | {"machine": {"device": "a GPU"}} for each in [*large, line(64, 64, "float32", "call", torch=0.2)]]
    assert tables.gpu_row(lines) == "| a GPU | 1.50× | 1.50× | 1.50× | 1.50× | 4 / 5 | – | – |"
    assert tables.gpu_table(lines).splitlines()[2:] == ["| 1024 | 0.50, 2.0× | 0.50, 2.0× | 0.50, 2.0× | 0.50, 2.0× |"]


def test_newest_takes_the_most_threads_and_the_last_record() -> None:
    later = line(64, 128, "float32", torch=5.0)
    alone = line(64, 128, "float32", mindspore=50.0)
    found = newest([*LINES, later, alone], "kernel")
    assert found[64, 128, "float32"] == later
    assert newest(LINES, "kernel", 1) == {(64, 128, "float32"): LINES[3]}


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
def test_the_name_of_a_machine(cpu: str, sets: list[str] | None, name: str) -> None:
    machine = {"cpu": cpu} if sets is None else {"cpu": cpu, "instruction_sets": sets}
    assert plots.machine_name({"machine": machine}) == name


def test_what_need_not_be_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "commit", lambda: "abc")
    monkeypatch.setattr(records, "machine", lambda: LINES[0]["machine"])
    both = {key_of(each) for each in LINES[:3]}
    assert set(finished(LINES, ("torch", "onednn"), 15)) == both
    assert set(finished(LINES, ("torch",), 15)) == {*both, key_of(LINES[3])}
    assert not finished(LINES, ("torch",), 16)
    passed_over = LINES[3] | {"passed_over": ["onednn"]}
    assert key_of(passed_over) in finished([passed_over], ("torch", "onednn"), 15)
    monkeypatch.setattr(records, "commit", lambda: "abd")
    assert not finished(LINES, ("torch",), 15)


def test_a_record_says_what_it_was_made_with() -> None:
    timing = Timing(3, 1e-4, 2e-4, 3e-4)
    timings = {"lngrad": timing, "torch": Timing(3, 2e-4, 4e-4, 5e-4), "roofline": Timing(3, 1e-3, 1e-3, 1e-3)}
    contest = Contest(
        {}, lambda name, call: 0.0, 3, {"torch": "2.13"}, roofline_bytes=10**7, facts={"backend": "numba_cpu"}
    )
    made = record("kernel", Job(100, 100, "float32"), timings, contest, ["onednn"])
    assert made["ratio"] == {"torch": 2.0}
    assert made["roofline"] == 10.0
    assert made["of_roofline"] == round(120_000 / 2e-4 / 1e9 / 10, 3)
    assert made["passed_over"] == ["onednn"]
    assert set(made["machine"]) == {"cpu", "instruction_sets", "cores", "cache", "system"}
    assert made["threads"] >= 1


def test_the_documents_are_made_from_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_table_of_peers_tells_releases_apart() -> None:
    """A column a norm and pass, a row a peer and release."""
    made = [
        line(9, 64, "float32", torch=ratio, hub=0.5) | {"norm": "rms_norm", "op": "forward"} | {"versions": versions}
        for ratio, versions in (
            (2.0, {"torch": "2.15.0", "kernels-community/rmsnorm": "8a7"}),
            (4.0, {"torch": "2.13.0+cpu", "kernels-community/rmsnorm": "8a7"}),
        )
    ]
    rows = tables.peers_table(made).splitlines()
    assert rows[0] == "| times ours, least | rms_norm forward | slower than |"
    assert rows[2:] == [
        "| torch 2.15.0 | 2.00, 2.00 | 0 of 1 |",
        "| hub 8a7 | 0.50, 0.50 | 2 of 2 |",
        "| torch 2.13.0 | 4.00, 4.00 | 0 of 1 |",
    ]


def test_what_was_timed_on_a_busy_machine_can_be_dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is then left for the next part."""
    loads = {300: 0.5, 40: 0.01}
    planned = [("kernel", 2, Job(9, N, "float32", "backward")) for N in loads]
    made = [line(9, N, "float32", torch=2.0) | {"others": load, "bandwidth": 1.0} for N, load in loads.items()]
    monkeypatch.setattr(runner, "plan_of", lambda bench, settings: planned)
    monkeypatch.setattr(runner, "run", lambda bench, settings, say, done: iter(made))
    file = tmp_path / "records.jsonl"
    settings = Settings(("kernel",), ("torch",))
    arguments: Any = (None, settings, Console(quiet=True), file, False, None)
    assert [each["N"] for each in bench.run_and_print(*arguments, only_idle=True)[0]] == [40]
    assert bench.run_and_print(*arguments, only_idle=True)[1] == 1
    assert bench.run_and_print(*arguments, only_idle=False)[1] == 0
    assert [each["N"] for each in records.read(file)] == [40, 40, 300, 40]


def test_a_busy_machine_prints_no_ratio() -> None:
    """Neither to a peer nor to the roofline nor in a mean; the times stay."""
    quiet = line(9, 40, "float32", torch=2.0) | {"others": 0.01, "bandwidth": 1.0, "of_roofline": 0.5}
    busy = line(9, 300, "float32", torch=1012.92) | {"others": 0.5, "bandwidth": 1.0, "of_roofline": 2.78}
    console = Console(width=200, record=True, file=StringIO())
    bench._print_tables(console, [quiet, busy])
    said = console.export_text()
    assert "2.00×" in said
    assert "geometric mean 2.00×, least 2.00×, 1 of 1 won" in said
    assert "1012" not in said
    assert "278" not in said
    assert said.count("busy") == 3
    assert "1 of 2 jobs not measured: the machine is busy (others used up to 50% of it" in said
