"""Launching: on the tensor's device, without waiting for it, and with what was compiled before. Fakes stand for the device."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("triton", minversion="3.9")
torch = pytest.importorskip("torch")

from lngrad.core import calls  # noqa: E402
from lngrad.core.problem import FORWARD, Problem  # noqa: E402
from lngrad.errors import ShapeError  # noqa: E402
from lngrad.gpu import kernels  # noqa: E402
from lngrad.gpu import plan as triton_gpu  # noqa: E402
from lngrad.gpu import policy as triton_policy  # noqa: E402
from lngrad.gpu import run as triton_run  # noqa: E402
from lngrad.support.bounded_cache import BoundedCache  # noqa: E402

KERNELS = (
    "forward_tiles", "forward_chunks", "forward_sums", "forward_columns", "backward_tiles", "sum_chunks", "backward_columns",
    "backward_at_once", "finalize",
)  # fmt: skip


class FakeKernel:
    """Counts how it was launched, by itself and by what it compiled."""

    def __init__(self, kernel):
        self.arg_names = kernel.arg_names
        self.bound: list[Any] = []
        self.direct: list[Any] = []

    def __getitem__(self, grid):
        def run(*arguments, **constants):
            self.bound.append((grid, arguments, constants))
            return FakeCompiled(self.direct)

        return run


class FakeCompiled:
    def __init__(self, launches):
        self.launches = launches

    def __getitem__(self, grid):
        return lambda *arguments: self.launches.append((grid, arguments))


@pytest.fixture
def kernel(monkeypatch):
    """In the place of forward_tiles, as on a device: not interpreted, and nothing compiled yet."""
    fake = FakeKernel(kernels.forward_tiles)
    monkeypatch.setattr(kernels, "forward_tiles", fake)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(triton_run, "_compiled", BoundedCache(9))
    return fake


def run(x, gamma, monkeypatch, eps=1e-5):
    """A forward of tensors on the CPU as if they were on a device."""
    problem, arrays = Problem.forward(x, gamma, None)
    plan = triton_gpu.plan(problem, 1)
    outputs = tuple(torch.empty(output.shape, dtype=getattr(torch, output.dtype)) for output in problem.outputs())
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "INTERPRETED", False)
        plan.run(plan, (*arrays, eps), outputs, torch.empty(plan.workspace_bytes, dtype=torch.uint8))
    return plan


def test_a_second_launch_binds_nothing(kernel, monkeypatch):
    """M and eps are not compiled in; addresses go in the place of tensors."""
    gamma = torch.zeros(64)
    for M, eps in ((30, 1e-5), (60, 1e-5), (1, 0.0), (160, 1.0)):
        x = torch.zeros(M, 64)
        plan = run(x, gamma, monkeypatch, eps)
        assert plan.steps.launches[0].programs == -(-M // 32)
    assert len(kernel.bound) == 1
    grid, arguments, constants = kernel.bound[0]
    assert grid == (1,)
    assert isinstance(arguments[0], torch.Tensor)
    assert (constants["ROWS"], constants["BLOCK"], constants["HAS_GAMMA"], constants["HAS_BETA"]) == (
        32,
        64,
        True,
        False,
    )
    assert (constants["num_warps"], constants["enable_fp_fusion"]) == (4, True)
    monkeypatch.setattr(triton_policy, "ORDERED", True)  # whose sums and products are fused where it is written
    run(torch.zeros(30, 96), gamma.repeat(2)[:96], monkeypatch)
    assert kernel.bound.pop()[2]["enable_fp_fusion"] is False
    assert [grid for grid, _ in kernel.direct] == [(2, 1, 1), (1, 1, 1), (5, 1, 1)]
    named = dict(zip(kernel.arg_names, kernel.direct[-1][1], strict=True))
    assert (named["x"], named["gamma"], named["beta"]) == (x.data_ptr(), gamma.data_ptr(), None)
    assert (named["M"], named["N"], named["x_inner"], named["eps"], named["ROWS"]) == (160, 64, 64, 1.0, 32)


def test_what_triton_specializes_on_compiles_again(kernel, monkeypatch):
    x, long = torch.zeros(8, 64), torch.zeros(8 * 64 + 1)
    calls = [
        (x, None),
        (long[1:].view(8, 64), None),  # not on 16 bytes
        (x.double(), None),
        (x, x[0]),
        (x[:, :32].contiguous(), None),
        (x[:, :60].contiguous(), None),  # its last columns are masked, and its loads no vectors
        (torch.zeros(8, 300), None),  # other warps
    ]
    assert calls[0][0].data_ptr() % 16 == 0
    for each, gamma in calls * 2:
        run(each, gamma, monkeypatch)
    assert len(kernel.bound) == len(kernel.direct) == len(calls)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    run(x, None, monkeypatch)
    assert len(kernel.bound) == len(calls) + 1


def test_on_rocm_triton_chooses_what_it_compiled(kernel, monkeypatch):
    """There it depends on the size of a tensor's storage too, which is not in our key."""
    monkeypatch.setattr(torch.version, "hip", "6.4")
    for _ in range(3):
        run(torch.zeros(8, 64), None, monkeypatch)
    assert len(kernel.bound) == 3
    assert not kernel.direct


def test_a_kernel_with_an_unknown_argument_is_refused(kernel):
    kernel.arg_names = (*kernel.arg_names, "UNKNOWN")
    with pytest.raises(KeyError, match="UNKNOWN"):
        triton_gpu.plan(Problem.forward(torch.zeros(8, 64), None, None)[0], 1)


class Waited(Exception):
    pass


@pytest.mark.parametrize("columns", [24, 200])
def test_launches_lie_inside_the_device_and_nothing_waits(columns, monkeypatch):
    inside = []

    class Guard:
        def __enter__(self):
            inside.append(True)

        def __exit__(self, *_):
            inside.pop()

    class Spy(FakeKernel):
        def __getitem__(self, grid):
            launches.append(inside == [True])
            return super().__getitem__(grid)

    def waits(*_, **__):
        raise Waited

    launches = []
    for name in KERNELS:
        monkeypatch.setattr(kernels, name, Spy(getattr(kernels, name)))
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


def test_a_call_that_comes_again_is_looked_up(kernel, monkeypatch):
    """Of a GPU's tensors too: checked for memory and overlap, and run on the arrays themselves."""
    x, gamma = torch.randn(40, 64), torch.randn(64)
    problem, arrays = Problem.forward(x, gamma, None)
    plan = triton_gpu.plan(problem, 1)
    key = calls.key_of_call(
        FORWARD, arrays, None, None, FORWARD.everything, None, calls.Switches(0.0, 1.0, False, True)
    )
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    devices = []

    def empty(kind, output, device):
        devices.append(device)
        return torch.empty(output.shape)

    monkeypatch.setattr(calls, "empty", empty)
    monkeypatch.setattr(calls, "scratch", lambda nbytes, device: torch.empty(nbytes, dtype=torch.uint8))
    elsewhere = replace(plan, problem=replace(problem, device="cuda:0"))
    calls.keep(key, elsewhere)
    call = calls.find(key)
    assert call is not None
    for _ in range(2):
        results = call.run(arrays, (1e-5,))
        assert [tuple(result.shape) for result in results] == [(40, 64), (40, 1), (40, 1)]
        assert devices == ["cuda:0"] * 3
        devices.clear()
    named = dict(zip(kernel.arg_names, kernel.direct[-1][1], strict=True))
    assert (named["x"], named["y"], named["rstd"]) == (x.data_ptr(), results[0].data_ptr(), results[2].data_ptr())
    x.untyped_storage().resize_(64)
    with pytest.raises(ShapeError, match="x: expected 10240 bytes of storage, got 64"):
        call.run(arrays, (1e-5,))
    calls.forget()


# Triton's compiler is the real one; what loads its binaries is not, since that takes a GPU.
PACKED = """
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from lngrad.core.plan import PackedKind
from lngrad.core.problem import Problem
from lngrad.gpu import kernels, plan, run

handles = iter(range(1000, 2000))
utils = SimpleNamespace(
    load_binary=lambda name, *rest: (1, next(handles), 32, 0, 1024), unload_module=lambda module: None,
    get_device_properties=lambda device: {"max_shared_mem": 163 << 10},
)
driver.set_active(SimpleNamespace(
    utils=utils, launcher_cls=lambda source, metadata: None, get_current_device=lambda: 0, get_current_stream=lambda device: 0,
    get_current_target=lambda: GPUTarget("cuda", int(sys.argv[1]), 32),
))
torch.cuda.current_device = lambda: 0
torch.cuda.get_device_properties = lambda device: SimpleNamespace(shared_memory_per_block_optin=163 << 10)
run._context_of = lambda device: nullcontext()
for M, N in ((8, 64), (200, 64), (8, 20000)):
    x, gamma, statistics = torch.zeros(M, N), torch.zeros(N), torch.zeros(M)
    calls = Problem.forward(x, gamma, gamma), Problem.backward(x, x, statistics, statistics, gamma)
    for problem, _ in calls:
        made = plan.plan(replace(problem, device="cuda:0"), 1)
        packed = run.pack(made)
        assert packed.kind == PackedKind.LAUNCHES and packed.workspace_bytes == made.workspace_bytes
        assert len(packed.regions) == 2 * len(made.steps.pieces)
        launches, image = packed.launches, packed.image
        for launch in made.steps.launches:
            function, programs, threads, shared, count, *_ = launches
            compiled = run._packed[function]
            assert (compiled.name, programs, threads) == (launch.kernel.fn.__name__, launch.programs, 32 * launch.warps)
            assert shared == compiled.metadata.shared and compiled.asm["ptx"].count(".param .u32") <= count
            words = launches[5 : 5 + count]
            assert words[-2:] == [len(image) - 1] * 2 and image[-1] == 0
            print(compiled.name)
            del launches[: 5 + count]
        assert not launches
"""


@pytest.mark.parametrize("architecture", [90, *(pytest.param(other, marks=pytest.mark.slow) for other in (80, 100))])
def test_kernels_as_triton_compiles_them_are_launched_by_compiled_code(architecture):
    """Their parameters are what pack takes them for: by another Triton's, a warning would say so."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "error::UserWarning:lngrad", "-c", PACKED, str(architecture)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "forward_tiles", "backward_at_once", "forward_tiles", "backward_tiles", "finalize",
        "forward_sums", "forward_columns", "sum_chunks", "backward_columns",
    ]  # fmt: skip


# --- On a device ----------------------------------------------------------------------------------------------------


@pytest.fixture
def arguments():
    """dy, x, mean, rstd and gamma on the device."""
    from lngrad.testing import Case, make_inputs

    assert not kernels.INTERPRETED
    inputs = make_inputs(Case((300,), (768,)), "float32")
    return tuple(torch.from_numpy(a).cuda() for a in inputs.arguments)


def on_the_host(results):
    return tuple(result.cpu() for result in results)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [768, 12288, 20000])
def test_graph_capture(columns):
    import lngrad
    from lngrad.testing import check_same_bits

    dy, x = torch.randn(50, columns, device="cuda"), torch.randn(50, columns, device="cuda")
    gamma = torch.randn(columns, device="cuda")
    _, mean, rstd = lngrad.layer_norm(x, gamma)
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
def test_two_streams(arguments):
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
def test_a_second_device(arguments):
    import lngrad
    from lngrad.testing import check_same_bits

    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    expected = on_the_host(lngrad.layer_norm_backward(*arguments))
    assert torch.cuda.current_device() == 0
    elsewhere = lngrad.layer_norm_backward(*(argument.to("cuda:1") for argument in arguments))
    assert elsewhere.dx.device.index == 1
    check_same_bits(on_the_host(elsewhere), expected)


@pytest.mark.gpu
def test_under_compile(arguments):
    from lngrad.testing import check_same_bits
    from lngrad.torch import layer_norm

    _, x, _, _, gamma = arguments

    def gradients(function):
        leaves = [tensor.detach().clone().requires_grad_() for tensor in (x, gamma, gamma)]
        result = function(leaves[0], (768,), leaves[1], leaves[2])
        (result * arguments[0]).sum().backward()
        return on_the_host(leaf.grad for leaf in leaves)

    check_same_bits(gradients(torch.compile(layer_norm, fullgraph=True)), gradients(layer_norm))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_device(arguments):
    import lngrad

    lngrad.layer_norm_backward(*arguments)
    try:
        torch.cuda.set_sync_debug_mode("error")
        lngrad.layer_norm_backward(*arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")
