"""Launching: on the tensor's device, without waiting for it, and with what was compiled before. Fakes stand for the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("triton", minversion="3.9")
torch = pytest.importorskip("torch")

from lngrad.core.bounded_cache import BoundedCache  # noqa: E402
from lngrad.core.problem import Problem  # noqa: E402
from lngrad.gpu import kernels  # noqa: E402
from lngrad.gpu import plan as triton_gpu  # noqa: E402
from lngrad.gpu import policy as triton_policy  # noqa: E402
from lngrad.gpu import run as triton_run  # noqa: E402


class FakeKernel:
    """Counts how it was launched, by itself and by what it compiled."""

    arg_names = ("x", "M", "gamma", "BLOCK", "ROWS")

    def __init__(self) -> None:
        self.bound: list[Any] = []
        self.direct: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*arguments: Any, **constants: Any) -> Any:
            self.bound.append((grid, arguments, constants))
            return FakeCompiled(self.direct)

        return run


class FakeCompiled:
    def __init__(self, launches: list[Any]) -> None:
        self.launches = launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments: self.launches.append((grid, arguments))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a device: not interpreted, and nothing compiled yet."""
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(triton_run, "_compiled", BoundedCache(9))
    return


def test_a_second_launch_binds_nothing(compiled: None) -> None:
    kernel, x = FakeKernel(), torch.zeros(64)
    for M, programs in ((3, 7), (1, 8), (16, 9)):
        triton_run.launch(kernel, programs, {"x": x, "M": M, "gamma": None, "other": 3}, 4, ROWS=2, BLOCK=64, UNKNOWN=1)
    assert len(kernel.bound) == 1
    grid, _, constants = kernel.bound[0]
    assert grid == (7,)
    assert constants == {"BLOCK": 64, "ROWS": 2, "num_warps": 4, "enable_fp_fusion": True}
    assert [launch[0] for launch in kernel.direct] == [(8, 1, 1), (9, 1, 1)]
    assert [launch[1][1:] for launch in kernel.direct] == [(1, None, 64, 2), (16, None, 64, 2)]


def test_what_triton_specializes_on_compiles_again(compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x = FakeKernel(), torch.zeros(64)
    assert x.data_ptr() % 16 == 0
    launches = [
        (x, None, 64, 4),
        (x[1:], None, 64, 4),  # not on 16 bytes
        (x.double(), None, 64, 4),
        (x, x, 64, 4),
        (x, None, 32, 4),
        (x, None, 64, 8),
    ]
    for tensor, gamma, block, warps in launches * 2:
        triton_run.launch(kernel, 1, {"x": tensor, "M": 5, "gamma": gamma}, warps, ROWS=1, BLOCK=block)
    assert len(kernel.bound) == len(launches)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    triton_run.launch(kernel, 1, {"x": x, "M": 5, "gamma": None}, 4, ROWS=1, BLOCK=64)
    assert len(kernel.bound) == len(launches) + 1


def test_on_rocm_triton_chooses_what_it_compiled(compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """There it depends on the size of a tensor's storage too, which is not in our key."""
    monkeypatch.setattr(torch.version, "hip", "6.4")
    kernel, x = FakeKernel(), torch.zeros(64)
    for _ in range(3):
        triton_run.launch(kernel, 1, {"x": x, "M": 5, "gamma": None}, 4, ROWS=1, BLOCK=64)
    assert len(kernel.bound) == 3
    assert not kernel.direct


def test_a_kernel_without_an_argument_is_refused(compiled: None) -> None:
    with pytest.raises(KeyError, match="ROWS"):
        triton_run.launch(FakeKernel(), 1, {"x": torch.zeros(4), "M": 5, "gamma": None}, 4, BLOCK=64)


class Waited(Exception):
    pass


@pytest.mark.parametrize("columns", [24, 200])
def test_launches_lie_inside_the_device_and_nothing_waits(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[bool] = []

    class Guard:
        def __enter__(self) -> None:
            inside.append(True)

        def __exit__(self, *_: object) -> None:
            inside.pop()

    def waits(*_: object, **__: object) -> None:
        raise Waited

    launches: list[bool] = []
    monkeypatch.setattr(triton_run, "launch", lambda kernel, *_, **__: launches.append(inside == [True]))
    monkeypatch.setattr(triton_run, "on_device", lambda tensor: Guard())
    band = triton_policy.Band(64, 64, 1, 4, 4, 2)
    monkeypatch.setattr(triton_policy, "_BANDS", {4: (band,)})  # 200 columns are a long row
    monkeypatch.setattr(triton_policy, "_FORWARD_BANDS", {4: (triton_policy.ForwardBand(64, 64, 4),)})
    for chunk in ("_FORWARD_CHUNK", "_SUMS_CHUNK"):
        monkeypatch.setattr(triton_policy, chunk, {4: (64, 4, 2)})
    x, gamma, statistics = torch.randn(5, columns), torch.randn(columns), torch.randn(5)
    forward, forward_inputs = Problem.forward(x, gamma, gamma)
    backward, backward_inputs = Problem.backward(x, x, statistics, statistics, gamma)
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__"):
        monkeypatch.setattr(torch.Tensor, name, waits)
    monkeypatch.setattr(torch.cuda, "synchronize", waits)
    with pytest.raises(Waited):
        x.sum().item()  # the spies do catch it
    for problem, inputs, most in ((forward, (*forward_inputs, 1e-5), 2), (backward, backward_inputs, 2)):
        launches.clear()
        plan = triton_gpu.plan(problem, 1)
        outputs = tuple(torch.empty(output.shape) for output in problem.outputs())
        plan.run(plan, inputs, outputs, torch.empty(plan.workspace_bytes, dtype=torch.uint8))
        assert 1 <= len(launches) <= most
        assert all(launches)


# --- On a device ----------------------------------------------------------------------------------------------------


@pytest.fixture
def arguments() -> tuple[Any, ...]:
    """dy, x, mean, rstd and gamma on the device."""
    from lngrad.testing import Case, make_inputs

    assert not kernels.INTERPRETED
    inputs = make_inputs(Case((300,), (768,)), "float32")
    return tuple(torch.from_numpy(a).cuda() for a in (inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma))


def on_the_host(results: Any) -> tuple[Any, ...]:
    return tuple(result.cpu() for result in results)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [768, 12288, 20000])
def test_graph_capture(columns: int) -> None:
    import lngrad
    from lngrad.testing import check_same_bits

    dy, x = torch.randn(50, columns, device="cuda"), torch.randn(50, columns, device="cuda")
    gamma = torch.randn(columns, device="cuda")
    _, mean, rstd = lngrad.layer_norm(x, gamma=gamma)
    lngrad.layer_norm_backward(dy, x, mean, rstd, gamma)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = lngrad.layer_norm_backward(dy, x, mean, rstd, gamma)
    dy.copy_(torch.randn_like(dy))
    expected = on_the_host(lngrad.layer_norm_backward(dy, x, mean, rstd, gamma))
    for result in captured:
        result.zero_()
    graph.replay()
    check_same_bits(on_the_host(captured), expected)


@pytest.mark.gpu
def test_two_streams(arguments: tuple[Any, ...]) -> None:
    import lngrad
    from lngrad.testing import check_same_bits

    expected = on_the_host(lngrad.layer_norm_backward(*arguments))
    torch.cuda.synchronize()
    results = []
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in range(10):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(lngrad.layer_norm_backward(*arguments))
    torch.cuda.synchronize()
    for result in results:
        check_same_bits(on_the_host(result), expected)


@pytest.mark.gpu
def test_a_second_device(arguments: tuple[Any, ...]) -> None:
    import lngrad
    from lngrad.testing import check_same_bits

    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    expected = on_the_host(lngrad.layer_norm_backward(*arguments))
    assert torch.cuda.current_device() == 0
    there = lngrad.layer_norm_backward(*(argument.to("cuda:1") for argument in arguments))
    assert there.dx.device.index == 1
    check_same_bits(on_the_host(there), expected)


@pytest.mark.gpu
def test_under_compile(arguments: tuple[Any, ...]) -> None:
    from lngrad.testing import check_same_bits
    from lngrad.torch import layer_norm

    _, x, _, _, gamma = arguments

    def gradients(function: Any) -> tuple[Any, ...]:
        leaves = [tensor.detach().clone().requires_grad_() for tensor in (x, gamma, gamma)]
        result = function(leaves[0], (768,), leaves[1], leaves[2])
        (result * arguments[0]).sum().backward()
        return on_the_host(leaf.grad for leaf in leaves)

    check_same_bits(gradients(torch.compile(layer_norm, fullgraph=True)), gradients(layer_norm))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_device(arguments: tuple[Any, ...]) -> None:
    import lngrad

    lngrad.layer_norm_backward(*arguments)
    try:
        torch.cuda.set_sync_debug_mode("error")
        lngrad.layer_norm_backward(*arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")
