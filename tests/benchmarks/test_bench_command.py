"""`python benchmarks/bench.py`, in one process, which imports torch once."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import bench as command
from lngrad.cli import bench as cli


@pytest.fixture
def bench(monkeypatch):
    """The command with these arguments, whatever else runs on the machine."""
    pytest.importorskip("torch")
    for module in (command, cli):
        monkeypatch.setattr(module, "BUSY", 9)
    return lambda *arguments: CliRunner().invoke(command.app, list(map(str, arguments)))


def test_a_step_of_a_model_and_a_picture(tmp_path, bench):
    records, picture = tmp_path / "records.jsonl", tmp_path / "picture.svg"
    result = bench("--quick", "--rounds", 2, "--cases", "70x300", "--scopes", "kernel,model", "--dtypes", "float32,bfloat16",
        "--peers", "torch", "--json", records, "--plot", picture,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [(line["scope"], line["dtype"], line["op"]) for line in lines] == [
        ("model", "float32", "step"),
        ("model", "bfloat16", "step"),
        ("kernel", "float32", "backward"),
        ("kernel", "bfloat16", "backward"),
    ]
    for line in lines[:2]:
        assert line["bytes"] == 9 * 5 * 70 * 300 * (4 if line["dtype"] == "float32" else 2)
        assert set(line["time_us"]) == {"lngrad", "torch"}
    assert picture.read_text().startswith("<?xml")


def test_onednn_is_timed_or_passed_over(tmp_path, bench):
    records = tmp_path / "records.jsonl"
    arguments = "--quick", "--cases", "70x300", "--scopes", "kernel,forward", "--dtypes", "float32", "--json", records
    assert bench(*arguments).exit_code == 0
    for line in map(json.loads, records.read_text().splitlines()):
        assert {"torch", "onednn"} <= {*line["ratio"], *line.get("passed_over", ("onednn",))}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--scopes", "forward", "--plot", "none.svg"), "plot: expected kernel among the scopes, since it is what is"),
        (
            ("--peers", "nobody"),
            "peers: expected some of torch, onednn, compile, jax, mindspore, onnxruntime, got 'nobody'",
        ),
        (
            ("--scopes", "all"),
            "scopes: expected some of call, override, autograd, jax, model, kernel, forward, overhead, first_call,",
        ),
    ],
)
def test_it_refuses_in_one_line(arguments, text):
    result = CliRunner().invoke(command.app, [*arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"lngrad: --{text}")
    assert result.stderr.count("\n") == 1


def test_bench_times_the_family_beside_what_people_write(tmp_path, bench):
    records = tmp_path / "records.jsonl"
    result = bench("--norm", "add_rms_norm", "--quick", "--cases", "70x300", "--dtypes", "bfloat16", "--json", records,
        "--peers", "separate,torch,llama",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [(line["scope"], line["op"], line["norm"]) for line in lines] == [
        ("forward", "forward", "add_rms_norm"),
        ("autograd", "both", "add_rms_norm"),
    ]
    assert all(set(line["ratio"]) == {"separate", "torch", "llama"} for line in lines)
    refused = bench("--norm", "deep_norm")
    assert refused.exit_code == 2
    assert "--norm: expected one of layer_norm, rms_norm, " in refused.stderr


def test_bench_times_gated_and_modulated_norms(tmp_path, bench):
    for norm in ("gated_rms_norm", "rms_norm_of_gated", "modulated_layer_norm"):
        records = tmp_path / norm
        result = bench("--norm", norm, "--quick", "--cases", "64x72", "--dtypes", "bfloat16", "--json", records,
            "--peers", "layer_norm,separate,torch,override,llama",
        )  # fmt: skip
        assert result.exit_code == 0, result.stderr
        lines = [json.loads(line) for line in records.read_text().splitlines()]
        assert [(line["scope"], line["norm"]) for line in lines] == [("forward", norm), ("autograd", norm)]
        apart = ["layer_norm", *["separate"] * norm.startswith("modulated")]  # nothing is separate there
        assert all(set(line["ratio"]) == {"separate", "torch", "override", "llama"} - {*apart} for line in lines)
        assert all(line["passed_over"] == apart for line in lines)
        assert "layer_norm: it has neither a gate nor scales of samples" in " ".join(result.stdout.split())


def test_bench_of_a_jitted_program(tmp_path, bench):
    pytest.importorskip("jax")
    records = tmp_path / "records.jsonl"
    arguments = "--quick", "--cases", "70x300", "--dtypes", "float32,bfloat16", "--scopes", "jax", "--json", records
    result = bench(*arguments)
    assert result.exit_code == 0, result.stderr
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [(line["scope"], line["op"], line["dtype"], line["bytes"]) for line in lines] == [
        ("jax", "both", "float32", 5 * 4 * 70 * 300),
        ("jax", "both", "bfloat16", 5 * 2 * 70 * 300),
    ]
    for line in lines:
        assert line["ratio"]["jax"] > 0
        assert set(line["versions"]) >= {"jax"}
