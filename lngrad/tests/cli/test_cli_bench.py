"""The command bench, by subprocess."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner

from lngrad.cli.commands import app

QUIET = (
    "from lngrad.cli import bench; bench.BUSY = 9; from lngrad.cli.main import main; main()"  # whatever runs beside it
)
# Commands that come a line each, in one process, which imports torch once.
COMMANDS = """
import json, sys
from typer.testing import CliRunner
from lngrad.cli import bench
from lngrad.cli.commands import app
bench.BUSY = 9
for line in sys.stdin:
    done = CliRunner().invoke(app, json.loads(line))
    print(json.dumps([done.exit_code, done.stdout, done.stderr]), flush=True)
"""


def lngrad(*arguments, timeout=240):
    command = [sys.executable, "-c", QUIET, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def bench() -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """`lngrad bench` with these arguments."""
    pytest.importorskip("torch")
    command = [sys.executable, "-c", COMMANDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def run(*arguments: object) -> subprocess.CompletedProcess[str]:
            process.stdin.write(json.dumps(["bench", *map(str, arguments)]) + "\n")
            process.stdin.flush()
            return subprocess.CompletedProcess(arguments, *json.loads(process.stdout.readline()))

        yield run
        process.stdin.close()


def test_bench_writes_records(tmp_path, bench):
    records = tmp_path / "records.jsonl"
    result = bench("--quick", "--rounds", 2, "--cases", "70x300,64x40", "--scopes", "kernel,forward,overhead",
        "--dtypes", "float32", "--json", records,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [(line["scope"], line["M"], line["N"]) for line in lines] == [
        ("kernel", 70, 300),
        ("kernel", 64, 40),
        ("forward", 70, 300),
        ("forward", 64, 40),
        ("overhead", 64, 64),
    ]
    for line in lines:
        assert line["time_us"]["lngrad"]["minimum"] > 0
        assert line["ratio"]["torch"] > 0
        assert line["versions"]["torch"].startswith("2.13")
    assert "70 × 300" in result.stdout


def test_bench_times_modules_forward_and_backward(tmp_path, bench):
    records = tmp_path / "records.jsonl"
    result = bench("--quick", "--cases", "70x300", "--scopes", "override,autograd", "--dtypes", "float32,bfloat16",
        "--json", records,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [(line["scope"], line["dtype"], line["op"]) for line in lines] == [
        ("override", "float32", "both"),
        ("override", "bfloat16", "both"),
        ("autograd", "float32", "both"),
        ("autograd", "bfloat16", "both"),
    ]
    for line in lines:
        assert line["bytes"] == 5 * 70 * 300 * (4 if line["dtype"] == "float32" else 2)
        assert set(line["time_us"]) == {"lngrad", "torch"}


def test_bench_goes_on_where_it_stopped(tmp_path):
    """Two numbers of threads, in parts; what is recorded is not timed again."""
    pytest.importorskip("torch")  # without it the time is enough for all parts
    records = tmp_path / "records.jsonl"
    arguments = [
        "bench", "--quick", "--cases", "70x300", "--scopes", "kernel,forward", "--dtypes", "float32", "--threads", "1,2",
        "--json", records, "--resume",
    ]  # fmt: skip
    first = lngrad(*arguments, "--time-limit", 1)
    assert first.returncode == 3, first.stderr
    assert "more to time; the same command with --resume goes on" in first.stderr
    begun = records.read_text()
    assert begun.count("\n") < 4
    assert lngrad(*arguments).returncode == 0
    assert records.read_text().startswith(begun)
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [(line["scope"], line["threads"]) for line in lines] == [
        ("kernel", 1),
        ("kernel", 2),
        ("forward", 1),
        ("forward", 2),
    ]
    for line in lines:
        assert "torch" in line["ratio"]
        assert line["machine"]["instruction_sets"] or sys.platform != "linux"
    last = lngrad(*arguments)
    assert last.returncode == 0, last.stderr
    assert last.stdout.count("70 × 300") == 4
    assert len(records.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--cases", "3y4"), "cases: expected ROWSxCOLUMNS, for example 4096x768, got '3y4'"),
        (("--cases", "0x4"), "cases: expected ROWSxCOLUMNS"),
        (
            ("--scopes", "all"),
            "scopes: expected some of call, override, autograd, kernel, forward, overhead, first_call,",
        ),
        (("--threads", "2,none"), "threads: expected positive numbers, for example 1,2, got 'none'"),
        (("--resume",), "resume: needs --json FILE, which has the records so far"),
        (("--dtypes", "int8"), "dtypes: expected some of float32, bfloat16, float16, got 'int8'"),
    ],
)
def test_bench_refuses_in_one_line(arguments, text):
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"lngrad: --{text}")
    assert result.stderr.count("\n") == 1
