"""benchmarks/gpu_bands.py: its predictions, and its timed part with a fake clock, our kernels under the interpreter; and the
session that runs it.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

pytest.importorskip("triton", minversion="3.9")
torch = pytest.importorskip("torch")

from typer.testing import CliRunner  # noqa: E402

import bench as command  # noqa: E402
import gpu_bands  # noqa: E402
import gpu_session  # noqa: E402
from lngrad.cli import bench as cli  # noqa: E402
from lngrad.gpu import policy  # noqa: E402
from peer_libraries import cuda  # noqa: E402


def test_every_band_has_cuts_for_every_architecture():
    rows = list(gpu_bands.predictions())
    for direction, dtype, N, _ in gpu_bands.BANDS:
        for sm in gpu_bands.CARDS:
            first, *others = [
                row
                for row in rows
                if (row["direction"], row["dtype"], row["N"], row["sm"]) == (direction, dtype, N, sm)
            ]
            assert first["today"]
            assert others or (N, sm) == (16384, 100)  # no cut has much more on its way there
            assert len({(row["cut"], row["block"]) for row in (first, *others)}) == 1 + len(others)
            assert not any(row["today"] or row["out"] for row in others)
    json.dumps(rows)


@pytest.mark.parametrize(("N", "dtype"), [(256, "bfloat16"), (5120, "bfloat16"), (12288, "float32")])
def test_a_row_is_that_of_the_policy(N, dtype):
    """The policy makes the cut again of the band that is printed, where its blocks are merged as the policy's are."""
    for cut in gpu_bands.chosen("backward", dtype, N, gpu_bands.CARDS[90])[:5]:
        band = eval(gpu_bands.as_row("backward", N, cut), vars(policy))  # noqa: S307  # our own text
        assert band.elements * band.slabs // (1 << (N - 1).bit_length()) == cut.rows
        assert band[2:] == (cut.slabs, cut.warps, cut.most_parts, cut.stages)


def test_what_was_measured_is_predicted_in_order():
    """bfloat16's backward on an H200: more bytes on their way, more speed."""
    covered = [
        gpu_bands.predict(
            "backward", "bfloat16", N, gpu_bands.today("backward", "bfloat16", N), gpu_bands.CARDS[90]
        ).covered
        for N in (2304, 6144, 8192)
    ]
    assert covered == sorted(covered)
    assert covered[-1] == pytest.approx(1.0)


def test_timed_with_a_fake_clock(monkeypatch):
    seconds = itertools.cycle((1e-3, 2e-3, 3e-3))

    def clock(call: Any, repeats: int) -> float:
        call()
        return next(seconds)

    monkeypatch.setattr(gpu_bands, "ELEMENTS", 9 * 96)
    monkeypatch.setattr(gpu_bands, "MOST", 2)
    monkeypatch.setattr(gpu_bands, "ROUNDS", 1)
    monkeypatch.setattr(cuda, "WARM_CALLS", 1)
    bench, before = cuda.OnDevice(clock, "cpu", 1 << 20), (policy.backward, policy.forward, policy._FEW_ROWS)
    bands = (("backward", "bfloat16", 96, 0.9), ("forward", "float32", 96, 0.9))
    rows = list(gpu_bands.timed(bench, time.monotonic() + 600, bands))
    for direction in ("backward", "forward"):
        assert [row["today"] for row in rows if row["direction"] == direction].count(True) == 1
    assert len(rows) == 6
    assert all(row["share"] > 0 for row in rows)
    assert next(row for row in rows if row["today"])["same bits"]
    few = list(gpu_bands.few_rows(bench, time.monotonic() + 600, ((3, 64),)))
    assert [set(row["us"]) for row in few] == [{"one launch", "two"}]
    assert list(gpu_bands.timed(bench, time.monotonic() - 1, bands)) == []
    assert (policy.backward, policy.forward, policy._FEW_ROWS) == before


def test_sums_are_timed_by_two_processes(monkeypatch, capsys):
    """Here by this one, twice."""
    switches = []

    class Process:
        def __init__(self, command: list[str], env: dict[str, str], **pipes: Any) -> None:
            switches.append(env["LNGRAD_GPU_ORDERED"])
            monkeypatch.setattr(sys, "stdin", ["\n"] * gpu_bands.ROUNDS)
            gpu_bands.serve(json.loads(command[3]), command[5])
            self.stdin, self.stdout = io.StringIO(), io.StringIO(capsys.readouterr().out)

        def communicate(self) -> None:
            assert self.stdin.getvalue() == "\n" * gpu_bands.ROUNDS
            assert not self.stdout.read()

    monkeypatch.setattr(subprocess, "Popen", Process)
    jobs = (("backward", "bfloat16", 3, 64), ("forward", "float32", 3, 64))
    rows = list(gpu_bands.sums(jobs, "cpu"))
    assert switches == ["0", "1"]
    assert [(row["direction"], row["dtype"], row["M"], row["N"]) for row in rows] == list(jobs)
    assert all(row["us"] > 0 and row["ordered us"] > 0 for row in rows)


def test_the_session_has_time_for_all(tmp_path, monkeypatch, capsys):
    """Two commands of ten minutes; a part that fails, or takes too long, ends no other, and what it printed is kept."""
    known = gpu_session.parts(tmp_path)
    for half, most in ((1, 9.5), (2, 6.5)):
        assert 0 < sum(part.minutes for part in known.values() if part.half == half) <= most
    assert sum(part.expected for part in known.values()) <= 60 * 13
    assert all(part.expected < 60 * part.minutes for part in known.values())
    program = [sys.executable, "-c"]
    parts = {
        "wrong": gpu_session.Part(1, 1.0, 1, [*program, "raise SystemExit('no')"]),
        "slow": gpu_session.Part(1, 0.01, 1, [*program, "import time; time.sleep(60)"]),
        "right": gpu_session.Part(1, 1.0, 1, [*program, "print('yes')"]),
        "of the second half": gpu_session.Part(2, 1.0, 1, [*program, "print('later')"]),
    }
    monkeypatch.setattr(gpu_session, "parts", lambda folder: parts)
    gpu_session.main(tmp_path / "made", ["1"])
    output = capsys.readouterr().out.splitlines()
    assert [line.split(" after")[0] for line in output] == [
        "wrong: exit code 1",
        "slow: out of time",
        "right: exit code 0",
    ]
    gpu_session.main(tmp_path / "made", ["of the second half"])
    output = (tmp_path / "made" / "said.txt").read_text()
    assert output == "=== wrong\nno\n=== slow\n=== right\nyes\n=== of the second half\nlater\n"


def test_the_session_s_commands_are_understood(tmp_path, monkeypatch):
    """Every option, scope, peer and shape of its parts, as far as there is no device; the scripts take their arguments."""
    asked = []

    def run(bench: Any, settings: Any, *others: Any) -> tuple[list[Any], int]:
        asked.append((bench, settings))
        return [], 0

    monkeypatch.setattr(cli, "run_and_print", run)
    monkeypatch.setattr(command, "why_no_device", lambda: None)
    monkeypatch.setattr(cuda, "EventClock", lambda: None)
    for kind in (cuda.CudaBench, cuda.CudaFamilyBench):
        before = kind.__init__
        monkeypatch.setattr(
            kind,
            "__init__",
            lambda self, *arguments, before=before: before(self, *arguments, device="cpu", copy_bytes=1 << 20),
        )
    known = gpu_session.parts(tmp_path)
    for part in known.values():
        words = part.command[1:]
        if words[0].endswith("bench.py"):
            result = CliRunner().invoke(command.app, words[1:])
            assert result.exit_code == 0, result.output
        elif words[0].endswith(".py"):
            command_line = [sys.executable, *words, "--help"]
            subprocess.run(
                command_line, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"TRITON_INTERPRET": "1"}
            )
    assert len(asked) == sum(part.command[1].endswith("bench.py") for part in known.values()) == 6
    for bench, settings in asked:
        assert all(bench.jobs(settings, scope) for scope in settings.scopes)
