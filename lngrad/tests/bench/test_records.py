"""Records: what is done already, which peer counts, and the tables that are made of them."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from bench_records import LINES, line
from lngrad.bench import records, runner
from lngrad.bench.cases import Job, Settings
from lngrad.bench.measure import Timing
from lngrad.bench.records import finished, key_of, newest
from lngrad.bench.runner import Contest, record
from lngrad.cli import bench


def test_newest_takes_the_most_threads_and_the_last_record():
    later = line(64, 128, "float32", torch=5.0)
    alone = line(64, 128, "float32", mindspore=50.0)
    found = newest([*LINES, later, alone], "kernel")
    assert found[64, 128, "float32"] == later
    assert newest(LINES, "kernel", 1) == {(64, 128, "float32"): LINES[3]}


def test_what_need_not_be_timed_again(monkeypatch):
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


def test_a_record_says_what_it_was_made_with():
    timing = Timing(3, 1e-4, 2e-4, 3e-4)
    timings = {"lngrad": timing, "torch": Timing(3, 2e-4, 4e-4, 5e-4), "roofline": Timing(3, 1e-3, 1e-3, 1e-3)}
    contest = Contest(
        {}, lambda name, call: 0.0, 3, {"torch": "2.13"}, roofline_bytes=10**7, facts={"backend": "numba_cpu"}
    )
    row = record("kernel", Job(100, 100, "float32"), timings, contest, ["onednn"])
    assert row["ratio"] == {"torch": 2.0}
    assert row["roofline"] == 10.0
    assert row["of_roofline"] == round(120_000 / 2e-4 / 1e9 / 10, 3)
    assert row["passed_over"] == ["onednn"]
    assert set(row["machine"]) == {"cpu", "instruction_sets", "cores", "cache", "system"}
    assert row["threads"] >= 1


def test_what_was_timed_on_a_busy_machine_can_be_dropped(monkeypatch, tmp_path):
    """It is then left for the next part."""
    loads = {300: 0.5, 40: 0.01}
    planned = [("kernel", 2, Job(9, N, "float32", "backward")) for N in loads]
    timed = [line(9, N, "float32", torch=2.0) | {"others": load, "bandwidth": 1.0} for N, load in loads.items()]
    monkeypatch.setattr(runner, "plan_of", lambda bench, settings: planned)
    monkeypatch.setattr(runner, "run", lambda bench, settings, say, done: iter(timed))
    file = tmp_path / "records.jsonl"
    settings = Settings(("kernel",), ("torch",))
    arguments = (None, settings, Console(quiet=True), file, False, None)
    assert [each["N"] for each in bench.run_and_print(*arguments, only_idle=True)[0]] == [40]
    assert bench.run_and_print(*arguments, only_idle=True)[1] == 1
    assert bench.run_and_print(*arguments, only_idle=False)[1] == 0
    assert [each["N"] for each in records.read(file)] == [40, 40, 300, 40]


def test_a_busy_machine_prints_no_ratio():
    """Neither to a peer nor to the roofline nor in a mean; the times stay."""
    quiet = line(9, 40, "float32", torch=2.0) | {"others": 0.01, "bandwidth": 1.0, "of_roofline": 0.5}
    busy = line(9, 300, "float32", torch=1012.92) | {"others": 0.5, "bandwidth": 1.0, "of_roofline": 2.78}
    console = Console(width=200, record=True, file=StringIO())
    bench._print_tables(console, [quiet, busy])
    text = console.export_text()
    assert "2.00×" in text
    assert "geometric mean 2.00×, least 2.00×, 1 of 1 won" in text
    assert "1012" not in text
    assert "278" not in text
    assert text.count("busy") == 3
    assert "1 of 2 jobs not measured: the machine is busy (others used up to 50% of it" in text
