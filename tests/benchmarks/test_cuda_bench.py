"""The bench for CUDA devices, with a fake clock: everything but the time runs here, our kernels under the interpreter."""

from __future__ import annotations

import itertools
import json
import sys
import types
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("triton", minversion="3.9")
torch = pytest.importorskip("torch")

import typer  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

import bench as command  # noqa: E402
import lngrad.torch  # noqa: E402
from lngrad.api import execute  # noqa: E402
from lngrad.bench.cases import Job, Settings  # noqa: E402
from lngrad.bench.runner import plan_of, prepared, run  # noqa: E402
from lngrad.check.implementations import Arguments, Implementation, NotApplicable  # noqa: E402
from lngrad.cli import bench as cli  # noqa: E402
from lngrad.core.problem import Problem  # noqa: E402
from lngrad.gpu import plan as triton_gpu  # noqa: E402
from lngrad.support.dtypes import bytes_of  # noqa: E402
from lngrad.testing import GradientError  # noqa: E402
from lngrad.torch import patch  # noqa: E402
from peer_libraries import cuda, family, rows  # noqa: E402


def interpreted(job: Job, t: Arguments) -> Any:
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


def faked(clock: FakeClock, prepare: Any = interpreted) -> cuda.CudaBench:
    """The bench of a CUDA device on this CPU."""
    return cuda.CudaBench(clock, "cpu", prepare, 1 << 20)


SMALL = Settings(("call",), (), ("float32",), ((6, 40),), rounds=1)


def test_the_whole_bench(tmp_path, monkeypatch):
    clock, records, picture = FakeClock(), tmp_path / "gpu.jsonl", tmp_path / "gpu.svg"
    bench = faked(clock)
    monkeypatch.setattr(cuda, "CudaBench", lambda: bench)
    monkeypatch.setattr(command, "why_no_device", lambda: None)
    monkeypatch.setattr(command, "BUSY", 9)
    monkeypatch.setattr(cli, "BUSY", 9)
    arguments = ["--device", "cuda", "--scopes", "call,forward", "--cases", "6x40,3x96", "--dtypes", "float32"]
    result = CliRunner().invoke(
        command.app, [*arguments, "--rounds", "2", "--json", str(records), "--plot", str(picture)]
    )
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in records.read_text().splitlines()]
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
    assert [sorted(clock.turns[start : start + 3]) for start in (0, 3)] == [[1, cuda.REPEATS, cuda.REPEATS]] * 2


def test_a_wrong_result_is_not_timed():
    def wrong(job: Job, t: Arguments) -> Any:
        dx, dgamma, dbeta = interpreted(job, t)()
        return lambda: (dx, dgamma, 2 * dbeta)

    clock = FakeClock()
    with pytest.raises(GradientError, match="dbeta"):
        list(run(faked(clock, wrong), SMALL, print))
    assert not clock.turns


def test_a_peer_that_fails_is_said_and_passed_over():
    def failing(t: Arguments) -> Any:
        raise RuntimeError("feature dim too large")

    bench, sentences = faked(FakeClock()), []
    bench.known_peers = {**rows.CUDA_PEERS, "compile": Implementation("compile", failing, needs="torch")}
    settings = Settings(("call",), ("liger", "quack", "compile", "torch"), ("float32",), ((3, 20),), rounds=1)
    (line,) = run(bench, settings, sentences.append)
    assert set(line["ratio"]) == {"torch"}
    assert any("feature dim too large" in text for text in sentences)
    assert any("not installed" in text for text in sentences)


def settings_of(scopes: str, cases: str, dtypes: str, peers: str, quick: bool) -> Settings:
    options = command.PeersOptions(scopes=scopes, cases=cases, dtypes=dtypes, quick=quick)
    return cli.settings_of(cuda.CudaBench, options, peers)


@pytest.fixture
def refused(capsys):
    """Ends as the command does, with a line that has the text."""

    def check(text: str, *options: Any) -> None:
        with pytest.raises(typer.Exit):
            settings_of(*options)
        assert text in capsys.readouterr().err

    return check


def test_the_cases_are_those_of_the_options(refused):
    bench = faked(FakeClock())
    settings = settings_of("call", "", "", "", False)
    jobs = bench.jobs(settings, "call")
    assert {job.dtype for job in jobs} == {"bfloat16", "float32"}
    large = [job for job in jobs if job.M * job.N >= 1 << 26]
    assert len(large) >= 30
    assert {64, 768, 1536, 5120, 7168, 12288, 131072} <= {job.N for job in large}
    assert len(jobs) > len(large)  # and some for latency
    assert settings.peers == ("torch",)
    quick = plan_of(bench, settings_of("", "", "", "", True))
    assert len(quick) <= 18
    assert {job.op for _, _, job in quick} == {"backward", "forward", "step"}
    refused("--peers: expected some of torch, compile, liger, quack", "call", "", "float32", "jax", True)
    every = "float32,bfloat16,float16"
    chosen = bench.jobs(settings_of("call", "6x40", every, "torch", True), "call")
    assert ",".join(job.dtype for job in chosen) == every


def test_a_scope_without_a_meaning_there_is_refused(refused):
    text = "--scopes: expected some of call, forward, overhead, model, got 'kernel'"
    refused(text, "call,kernel", "", "", "torch", True)


@pytest.mark.parametrize(
    ("scopes", "peers", "text"),
    [
        ("forward", "torch", "plot: expected call among the scopes, since it is what is drawn, got forward"),
        ("call", "liger", "plot: expected a peer that can be compared with, got liger"),
    ],
)
def test_what_can_not_be_drawn_is_refused_before_the_run(scopes, peers, text, tmp_path, monkeypatch):
    clock = FakeClock()
    bench = faked(clock)
    monkeypatch.setattr(cuda, "CudaBench", lambda: bench)
    monkeypatch.setattr(command, "why_no_device", lambda: None)
    options = {"scopes": scopes, "peers": peers, "cases": "6x40", "plot": tmp_path / "gpu.svg"}
    arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    result = CliRunner().invoke(command.app, ["--device", "cuda", *arguments])
    assert result.exit_code == 2
    assert text in result.output
    assert not clock.turns


def test_interpreted_kernels_are_not_timed(monkeypatch):
    monkeypatch.setattr(command, "backends", lambda: {"triton_gpu": "available"})
    assert "got TRITON_INTERPRET=1: unset it" in str(command.why_no_device())


def test_the_timed_job_itself_is_checked():
    """What is wrong in its last rows, or in sums over all."""
    job = Job(9000, 40, "float32")
    t = cuda.tensors(job, "cpu")
    right = torch.ops.aten.native_layer_norm_backward(
        t.dy, t.x, [40], t.mean, t.rstd, t.gamma, t.beta, [True, True, True]
    )
    assert max(cuda.errors_of(job, t, right, strict=True).values()) <= 1
    dx, dgamma, dbeta = right
    lost = t.dy[4000:4032].sum(0)
    last = torch.cat((dx[:-1], dx[:1]))
    for wrong, name in (((dx, dgamma, dbeta - lost), "dbeta"), ((last, dgamma, dbeta), "dx")):
        with pytest.raises(GradientError, match=name):
            cuda.errors_of(job, t, wrong, strict=True)
    y, mean, rstd = torch.ops.aten.native_layer_norm(t.x, [40], t.gamma, t.beta, 1e-5)
    job = Job(9000, 40, "float32", "forward")
    assert cuda.errors_of(job, t, (y, mean, rstd), strict=True)["y"] <= 1
    with pytest.raises(GradientError, match="rstd"):
        cuda.errors_of(job, t, (y, mean, rstd.roll(1)), strict=True)


def test_a_peer_of_many_shapes_is_compiled_for_each(monkeypatch):
    """torch takes eager code, silently, from the ninth shape of one function."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiled.append(options) or function)
    monkeypatch.setattr(torch._dynamo, "reset", lambda: compiled.append("reset"))
    job = Job(3, 20, "float32")
    rows.CUDA_PEERS["compile"].backward(cuda.tensors(job, "cpu"))
    assert compiled == ["reset", {"dynamic": False}]


@pytest.mark.parametrize("norm", ["rms_norm", "add_rms_norm", "add_layer_norm"])
def test_the_family(norm):
    clock, sentences = FakeClock(), []
    bench = cuda.CudaFamilyBench(norm, clock, "cpu", 1 << 20)
    bench.known_peers = {**bench.known_peers, "liger": replace(bench.known_peers["liger"], needs="torch")}
    settings = Settings(bench.scopes, ("torch", "llama", "liger"), ("float32",), ((6, 40),), rounds=1)
    lines = list(run(bench, settings, sentences.append))
    scopes = [("forward", 6), ("autograd", 6), ("overhead", 64), ("model", 6)][: 3 + (norm == "rms_norm")]
    assert [(line["scope"], line["M"]) for line in lines] == scopes
    if norm == "rms_norm":
        assert set(lines.pop()["ratio"]) == {"torch"}
    for line in lines:
        assert set(line["ratio"]) == {"torch", "llama"}
        assert line["norm"] == norm
        assert line["roofline"] > 0
    assert len(sentences) == 3
    assert all("liger" in text and "No module named" in text for text in sentences)
    # Ours and two peers; the copy once; the host's time many times.
    # A model's step is one; nobody else steps, and nothing is copied beside it.
    assert sorted(clock.turns) == [1] * (3 + 2 * (norm == "rms_norm")) + [cuda.REPEATS] * 6 + [cuda.HOST_REPEATS] * 3


@pytest.mark.parametrize(("dtype", "ours"), [("float32", 1.0), ("bfloat16", 1.0), ("float32", 1.1)])
def test_a_step_of_a_model(dtype, ours, monkeypatch):
    """With torch's norms, ours, and torch's compiled; what gives another loss is not timed."""
    events = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: events.append(options) or model)

    def patched(model: Any) -> int:
        with torch.no_grad():
            model.norm.weight *= ours
        return patch(model)

    monkeypatch.setattr(lngrad.torch, "patch", patched)
    clock, settings = FakeClock(), Settings(("model",), ("torch", "compile", "liger"), (dtype,), ((24, 128),), rounds=2)
    bench = faked(clock)
    bench.known_peers = {**bench.known_peers, "liger": replace(bench.known_peers["liger"], needs="torch")}
    if ours != 1:
        with pytest.raises(GradientError, match=r"^model: expected a loss of [\d.]+, got [\d.]+ with our norms$"):
            list(run(bench, settings, print))
        assert not clock.turns
        return
    (line,) = run(bench, settings, print)
    assert (line["scope"], line["op"], line["passed_over"]) == ("model", "step", ["liger"])
    assert set(line["ratio"]) == {"torch", "compile"}
    assert "roofline" not in line
    assert line["bytes"] == 45 * 24 * 128 * bytes_of(dtype)
    assert clock.turns == [1] * 6
    assert events == [{"dynamic": False}]
    monkeypatch.setattr(lngrad.torch, "patch", lambda model: 0)
    assert not list(run(bench, settings, events.append))
    assert events[1:] == ["model: patch() leaves LayerNorm"]
    assert not list(run(bench, replace(settings, dtypes=("float16",)), events.append))
    assert events[2:] == ["model: torch's products of float16 are slow on a CPU"]


def test_a_wrong_norm_of_the_family_is_not_timed(monkeypatch):
    right = family._ours
    monkeypatch.setattr(family, "_ours", lambda a: lambda x, w, b, r: (1.01 * right(a)(x, w, b, r)[0],))
    clock = FakeClock()
    settings = Settings(("autograd",), (), ("float32",), ((6, 40),), rounds=1)
    with pytest.raises(GradientError, match="dx"):
        list(run(cuda.CudaFamilyBench("rms_norm", clock, "cpu", 1 << 20), settings, print))
    assert not clock.turns


@pytest.mark.parametrize("has_backward", [False, True])
def test_quack(has_backward, monkeypatch):
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
    monkeypatch.setattr(rows, "version", lambda package: "0.5.0")
    job = Job(3, 20, "bfloat16", "forward")
    t = cuda.tensors(job, "cpu")
    assert cuda.errors_of(job, t, prepared(rows.CUDA_PEERS["quack"], job, t)(), strict=True)["y"] <= 1
    job = Job(3, 20, "bfloat16")
    if has_backward:
        assert set(cuda.errors_of(job, t, prepared(rows.CUDA_PEERS["quack"], job, t)(), strict=True)) == {
            "dx",
            "dgamma",
            "dbeta",
        }
    else:
        with pytest.raises(NotApplicable, match=r"quack-kernels 0\.5\.0 has no backward"):
            prepared(rows.CUDA_PEERS["quack"], job, t)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_there_is_one_clear_error():
    result = CliRunner().invoke(command.app, ["--device", "cuda", "--quick"])
    assert result.exit_code != 0
    assert "device: expected a CUDA device for --device cuda, got none" in " ".join(result.output.split())
    result = CliRunner().invoke(command.app, ["--device", "tpu"])
    assert "device: expected one of cpu, cuda, got 'tpu'" in " ".join(result.output.split())
