"""The bench for CUDA devices, with a fake clock: everything but the time runs here, our kernels under the interpreter."""

from __future__ import annotations

import itertools
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from lngrad.api import execute  # noqa: E402
from lngrad.backend.triton_gpu import plan as triton_gpu  # noqa: E402
from lngrad.bench.cases import Job  # noqa: E402
from lngrad.bench.cuda import checks as cuda_checks  # noqa: E402
from lngrad.bench.cuda import command as cuda_command  # noqa: E402
from lngrad.bench.cuda import contestants as cuda  # noqa: E402
from lngrad.bench.cuda import runner as cuda_runner  # noqa: E402
from lngrad.bench.peers import PeerMissing  # noqa: E402
from lngrad.cli.app import app  # noqa: E402
from lngrad.problem import Problem  # noqa: E402
from lngrad.testing import GradientError  # noqa: E402


def interpreted(job: Job, t: cuda.Tensors) -> Any:
    """Our kernels on the CPU, which the public functions do not offer."""
    if job.op == "forward":
        problem, arrays = Problem.forward(t.x, t.gamma, t.beta)
        arrays = (*arrays, 1e-5)
    else:
        problem, arrays = Problem.backward(t.dy, t.x, t.mean, t.rstd, t.gamma)
    return lambda: execute(triton_gpu.plan(problem, 1), arrays)


class FakeClock:
    """Calls once, and says how often it was asked."""

    def __init__(self) -> None:
        self.turns: list[int] = []
        self.seconds = itertools.cycle((1e-3, 2e-3, 3e-3))

    def __call__(self, call: Any, repeats: int) -> float:
        call()
        self.turns.append(repeats)
        return next(self.seconds)


def test_the_whole_bench(tmp_path: Path) -> None:
    clock, records, picture = FakeClock(), tmp_path / "gpu.jsonl", tmp_path / "gpu.svg"
    lines = cuda_command.cuda_bench(
        "call,forward", "6x40,3x96", "float32", "torch", 2, False, records, picture, Console(quiet=True),
        clock=clock, device="cpu", mine=interpreted, copy_bytes=1 << 20,
    )  # fmt: skip
    assert [json.loads(line) for line in records.read_text().splitlines()] == lines
    assert len(lines) == 4
    for line in lines:
        assert line["backend"] == "triton_gpu"
        assert line["machine"]["device"] == "cpu"
        assert set(line["time_us"]) == {"lngrad", "torch"}
        assert line["roofline"] > 0
        assert set(line["error"]) == {"lngrad", "torch"}
        expected = {"y"} if line["op"] == "forward" else {"dx", "dgamma", "dbeta"}
        assert set(line["error"]["torch"]) == expected
        assert max(line["error"]["lngrad"].values()) <= 1
    assert picture.read_text().startswith("<?xml")
    # In turns: ours, the copy, torch; small jobs twenty at a time, the copy once.
    assert clock.turns[:6] == [cuda_runner.REPEATS, 1, cuda_runner.REPEATS] * 2


def test_a_wrong_result_is_not_timed() -> None:
    def wrong(job: Job, t: cuda.Tensors) -> Any:
        dx, dgamma, dbeta = interpreted(job, t)()
        return lambda: (dx, dgamma, 2 * dbeta)

    clock = FakeClock()
    run = cuda_runner.cuda_run(
        [Job(6, 40, "float32")], (), 1, print, clock=clock, device="cpu", mine=wrong, copy_bytes=1 << 20
    )
    with pytest.raises(GradientError, match="dbeta"):
        list(run)
    assert not clock.turns


def test_a_peer_that_fails_is_said_and_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(job: Job, t: cuda.Tensors) -> Any:
        raise RuntimeError("feature dim too large")

    monkeypatch.setitem(cuda.CUDA_PEERS, "compile", ("torch", failing))
    said: list[str] = []
    peers = ("liger", "quack", "compile", "torch")
    options: dict[str, Any] = {"clock": FakeClock(), "device": "cpu", "mine": interpreted, "copy_bytes": 1 << 20}
    (line,) = cuda_runner.cuda_run([Job(3, 20, "float32")], peers, 1, said.append, **options)
    assert set(line["ratio"]) == {"torch"}
    assert any("feature dim too large" in text for text in said)
    assert any("not installed" in text for text in said)


def test_the_cases_are_those_that_were_asked_for() -> None:
    jobs, peers, rounds = cuda_command.cuda_settings("call", "", "", "torch", 15, False)
    assert {job.dtype for job in jobs} == {"bfloat16", "float32"}
    large = [job for job in jobs if job.M * job.N >= 1 << 26]
    assert len(large) >= 30
    assert {64, 768, 1536, 5120, 7168, 12288, 131072} <= {job.N for job in large}
    assert len(jobs) > len(large)  # and some for latency
    assert (peers, rounds) == (("torch",), 15)
    quick, _, rounds = cuda_command.cuda_settings("", "", "", "", 15, True)
    assert len(quick) <= 12
    assert {job.op for job in quick} == {"backward", "forward"}
    assert rounds == 5
    with pytest.raises(ValueError, match="peers: expected some of torch, compile, liger, quack"):
        cuda_command.cuda_settings("call", "", "float32", "jax", 1, True)
    every = "float32,bfloat16,float16"
    asked, _, _ = cuda_command.cuda_settings("call", "6x40", every, "torch", 1, True)
    assert ",".join(job.dtype for job in asked) == every


def test_a_scope_without_a_meaning_there_is_refused() -> None:
    with pytest.raises(ValueError, match="scopes: expected some of call, forward with --device cuda, got 'kernel'"):
        cuda_command.cuda_settings("call,kernel", "", "", "torch", 1, True)


@pytest.mark.parametrize(
    ("scopes", "peers", "text"),
    [
        ("forward", "torch", "plot: expected call among the scopes, since it is what is drawn, got forward"),
        ("call", "liger", "plot: expected a peer that can be compared with, got liger"),
        ("call", "", "plot: expected a peer that can be compared with, got none"),
    ],
)
def test_what_can_not_be_drawn_is_refused_before_the_run(scopes: str, peers: str, text: str, tmp_path: Path) -> None:
    clock = FakeClock()
    with pytest.raises(ValueError, match=text):
        cuda_command.cuda_bench(
            scopes, "6x40", "float32", peers, 1, True, None, tmp_path / "gpu.svg", Console(quiet=True),
            clock=clock, device="cpu", mine=interpreted, copy_bytes=1 << 20,
        )  # fmt: skip
    assert not clock.turns


def test_interpreted_kernels_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_command, "backends", lambda: {"triton_gpu": "available"})
    assert "got TRITON_INTERPRET=1: unset it" in str(cuda_command.why_no_device())


def test_the_timed_job_itself_is_checked() -> None:
    """What is wrong in rows beyond those that the small check has."""
    job = Job(9000, 40, "float32")
    t = cuda.tensors(job, "cpu")
    right = torch.ops.aten.native_layer_norm_backward(
        t.dy, t.x, [40], t.mean[:, None], t.rstd[:, None], t.gamma, t.beta, [True, True, True]
    )
    assert max(cuda_checks.check_timed(job, t, right).values()) <= 1
    dx, dgamma, dbeta = right
    lost = t.dy[4000:4032].sum(0)
    last = torch.cat((dx[:-1], dx[:1]))
    for wrong, name in (((dx, dgamma, dbeta - lost), "dbeta"), ((last, dgamma, dbeta), "dx")):
        with pytest.raises(GradientError, match=name):
            cuda_checks.check_timed(job, t, wrong)
    y, mean, rstd = torch.ops.aten.native_layer_norm(t.x, [40], t.gamma, t.beta, 1e-5)
    job = Job(9000, 40, "float32", "forward")
    assert cuda_checks.check_timed(job, t, (y, mean, rstd))["y"] <= 1
    with pytest.raises(GradientError, match="rstd"):
        cuda_checks.check_timed(job, t, (y, mean, rstd.roll(1)))


def test_a_peer_of_many_shapes_is_compiled_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch takes eager code, silently, from the ninth shape of one function."""
    made: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: made.append(options) or function)
    monkeypatch.setattr(torch._dynamo, "reset", lambda: made.append("reset"))
    job = Job(3, 20, "float32")
    cuda.peer("compile", job, cuda.tensors(job, "cpu"))
    assert made == ["reset", {"dynamic": False}]


@pytest.mark.parametrize("has_backward", [False, True])
def test_quack(has_backward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its releases have it: float32 gamma and beta, rstd before mean, and mostly no backward."""
    module = types.ModuleType("quack.rmsnorm")

    def layernorm_fwd(x: Any, weight: Any, bias: Any, eps: float, return_rstd: bool, return_mean: bool) -> Any:
        assert weight.dtype == bias.dtype == torch.float32
        y, mean, rstd = torch.ops.aten.native_layer_norm(x.float(), [20], weight, bias, eps)
        return y.to(x.dtype), rstd.ravel(), mean.ravel()

    def layernorm_bwd(x: Any, weight: Any, dout: Any, rstd: Any, mean: Any) -> Any:
        shape = torch.ops.aten.native_layer_norm_backward
        every = [True, True, True]
        return shape(dout.float(), x.float(), [20], mean[:, None], rstd[:, None], weight, weight, every)

    module.layernorm_fwd = layernorm_fwd  # type: ignore[attr-defined]
    if has_backward:
        module.layernorm_bwd = layernorm_bwd  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "quack", types.ModuleType("quack"))
    monkeypatch.setitem(sys.modules, "quack.rmsnorm", module)
    monkeypatch.setattr(cuda, "version", lambda package: "0.5.0")
    job = Job(3, 20, "bfloat16", "forward")
    t = cuda.tensors(job, "cpu")
    assert cuda_checks.check_timed(job, t, cuda.peer("quack", job, t)())["y"] <= 1
    job = Job(3, 20, "bfloat16")
    if has_backward:
        assert set(cuda_checks.check_timed(job, t, cuda.peer("quack", job, t)())) == {"dx", "dgamma", "dbeta"}
    else:
        with pytest.raises(PeerMissing, match=r"quack-kernels 0\.5\.0 has no backward"):
            cuda.peer("quack", job, t)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_there_is_one_clear_error() -> None:
    import lngrad.cli.main  # noqa: F401  # registers the commands

    result = CliRunner().invoke(app, ["bench", "--device", "cuda", "--quick"])
    assert result.exit_code != 0
    assert "device: expected a CUDA device for --device cuda, got none" in " ".join(result.output.split())
    result = CliRunner().invoke(app, ["bench", "--device", "tpu"])
    assert "device: expected cpu or cuda, got 'tpu'" in " ".join(result.output.split())
