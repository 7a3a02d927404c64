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


def test_bench_writes_records_and_a_picture(tmp_path, bench):
    records, picture = tmp_path / "records.jsonl", tmp_path / "picture.svg"
    result = bench("--quick", "--rounds", 2, "--cases", "70x300,64x40", "--scopes", "kernel,forward,overhead",
        "--dtypes", "float32", "--json", records, "--plot", picture,
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
    assert picture.read_text().startswith("<?xml")
    assert "70 × 300" in result.stdout


def test_bench_times_the_family_beside_what_people_write(tmp_path, bench):
    records = tmp_path / "records.jsonl"
    result = bench("--norm", "add_rms_norm", "--quick", "--cases", "70x300", "--dtypes", "bfloat16", "--json", records,
        "--peers", "separate,torch,llama",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [(line["scope"], line["op"], line["norm"]) for line in lines] == [
        ("forward", "forward", "add_rms_norm"),
        ("autograd", "both", "add_rms_norm"),
    ]
    assert all(set(line["ratio"]) == {"separate", "torch", "llama"} for line in lines)
    refused = bench("--norm", "deep_norm")
    assert refused.returncode == 2
    assert "--norm: expected one of layer_norm, rms_norm, " in refused.stderr


def test_bench_times_gated_and_modulated_norms(tmp_path, bench):
    for norm in ("gated_rms_norm", "rms_norm_of_gated", "modulated_layer_norm"):
        records = tmp_path / norm
        result = bench("--norm", norm, "--quick", "--cases", "64x72", "--dtypes", "bfloat16", "--json", records,
            "--peers", "layer_norm,separate,torch,override,llama",
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        lines = [json.loads(line) for line in records.read_text().splitlines()]
        assert [(line["scope"], line["norm"]) for line in lines] == [("forward", norm), ("autograd", norm)]
        apart = ["layer_norm", *["separate"] * norm.startswith("modulated")]  # nothing is separate there
        assert all(set(line["ratio"]) == {"separate", "torch", "override", "llama"} - {*apart} for line in lines)
        assert all(line["passed_over"] == apart for line in lines)
        assert "layer_norm: it has neither a gate nor scales of samples" in " ".join(result.stdout.split())


def test_bench_times_modules_forward_and_backward(tmp_path, bench):
    records = tmp_path / "records.jsonl"
    result = bench("--quick", "--cases", "70x300", "--scopes", "override,autograd,model", "--dtypes", "float32,bfloat16",
        "--json", records,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [(line["scope"], line["dtype"], line["op"]) for line in lines] == [
        ("override", "float32", "both"),
        ("override", "bfloat16", "both"),
        ("autograd", "float32", "both"),
        ("autograd", "bfloat16", "both"),
        ("model", "float32", "step"),
        ("model", "bfloat16", "step"),
    ]
    for line in lines:
        norms = 9 if line["scope"] == "model" else 1
        assert line["bytes"] == norms * 5 * 70 * 300 * (4 if line["dtype"] == "float32" else 2)
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
        assert {"torch", "onednn"} <= {*line["ratio"], *line.get("passed_over", ("onednn",))}
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
            "scopes: expected some of call, override, autograd, jax, model, kernel, forward, overhead, first_call,",
        ),
        (("--threads", "2,none"), "threads: expected positive numbers, for example 1,2, got 'none'"),
        (("--resume",), "resume: needs --json FILE, which has the records so far"),
        (("--dtypes", "int8"), "dtypes: expected some of float32, bfloat16, float16, got 'int8'"),
        (("--scopes", "forward", "--plot", "none.svg"), "plot: expected kernel among the scopes, since it is what is"),
        (
            ("--peers", "nobody"),
            "peers: expected some of torch, onednn, compile, jax, mindspore, onnxruntime, got 'nobody'",
        ),
    ],
)
def test_bench_refuses_in_one_line(arguments, text):
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"lngrad: --{text}")
    assert result.stderr.count("\n") == 1


def test_bench_of_a_jitted_program(tmp_path):
    pytest.importorskip("jax")
    records = tmp_path / "records.jsonl"
    arguments = "--quick", "--cases", "70x300", "--dtypes", "float32,bfloat16", "--scopes", "jax", "--json", records
    result = lngrad("bench", *arguments)
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [(line["scope"], line["op"], line["dtype"], line["bytes"]) for line in lines] == [
        ("jax", "both", "float32", 5 * 4 * 70 * 300),
        ("jax", "both", "bfloat16", 5 * 2 * 70 * 300),
    ]
    for line in lines:
        assert line["ratio"]["jax"] > 0
        assert set(line["versions"]) >= {"jax"}
