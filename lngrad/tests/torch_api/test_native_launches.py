"""The native code with launches in the place of jobs: the bits, the errors and the memory of the way through Python.

launches.py has a device that interprets what is launched. CUDA tensors are made by fake_cuda.cpp, in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from launches import STREAM, Device  # noqa: E402
from native_ways import python_alone  # noqa: E402
from test_native_operators import MASKS, MEMBERS, Call, check_as_python  # noqa: E402

import interpreted  # noqa: E402, F401  # torch or Triton may be missing
import lngrad.torch as lngrad_torch  # noqa: E402
from lngrad.errors import ShapeError  # noqa: E402
from lngrad.gpu import policy  # noqa: E402
from lngrad.gpu import run as triton_run  # noqa: E402
from lngrad.support.compilers import cxx_compiler  # noqa: E402
from lngrad.testing import Case, GradientError, check_same_bits  # noqa: E402
from lngrad.torch import native  # noqa: E402
from lngrad.torch.native import building  # noqa: E402

DTYPES = ["float16", "bfloat16", "float32", "float64"]


@pytest.fixture
def device(native_code, monkeypatch):
    """Calls of CPU tensors are planned for a GPU, and launched on one that is none."""
    yield Device(monkeypatch)
    monkeypatch.undo()
    Device.use()


@pytest.fixture
def long_rows(monkeypatch):
    """Rows of 200 columns are cut as those of a hundred thousand are, on a device of 6 multiprocessors."""
    for bands in ("_BANDS", "_FORWARD_BANDS"):
        band = policy.Band(64, 64, 1, 4, 4, 2) if bands == "_BANDS" else policy.ForwardBand(64, 64, 4)
        monkeypatch.setattr(policy, bands, {2: (band,), 4: (band,)})
    for chunk in ("_FORWARD_CHUNK", "_SUMS_CHUNK"):
        monkeypatch.setattr(policy, chunk, {4: (64, 4, 2)})
    monkeypatch.setattr(policy, "_MULTIPROCESSORS", 6)


@pytest.mark.parametrize(("M", "backward"), [(19, ["backward_at_once"]), (70, ["backward_tiles", "finalize"])], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MEMBERS)
def test_the_bits_of_the_family(device, name, dtype, M, backward):
    call = Call(Case((2, M), (72,)), dtype, residual=MEMBERS[name].residual)
    check_as_python(call.member, name)
    # Twice through the native code: a forward of one kernel, and a backward of one for few rows, or two.
    assert [launch[0] for launch in device.launches] == ["forward_tiles", *backward] * 2


@pytest.mark.parametrize("M", [33, 140])
@pytest.mark.parametrize("mask", MASKS[:-1], ids=str)
def test_results_that_are_not_wanted(device, mask, M):
    call = Call(Case((M,), (64,)), "float32")
    check_as_python(call.all, mask)
    names = [launch[0] for launch in device.launches]
    assert names.count("finalize") == 2 * (M > 128 and (mask[1] or mask[2]))


@pytest.mark.parametrize("M", [3, 9])
@pytest.mark.parametrize("name", ["layer_norm", "add_rms_norm"])
def test_long_rows(device, long_rows, name, M):
    check_as_python(Call(Case((M,), (200,)), "float32", residual=MEMBERS[name].residual).member, name)
    forward = ["forward_sums", "forward_columns"] if M == 3 else ["forward_chunks"]
    assert [launch[0] for launch in device.launches] == [*forward, "sum_chunks", "backward_columns"] * 2


def step(x, gamma, beta):
    leaves = [leaf.detach().requires_grad_() for leaf in (x, gamma, beta)]
    y = lngrad_torch.layer_norm(leaves[0], x.shape[1:], *leaves[1:])
    return (y.detach(), *torch.autograd.grad(y, leaves, x.flip(0).contiguous()))


def tensors(M=40, N=72):
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(shape, generator=generator) for shape in ((M, N), N, N))


def test_a_step_through_autograd(device, seen):
    arrays = tensors()
    first, again = step(*arrays), step(*arrays)
    assert seen == ["prepare_forward", "prepare_backward"]
    with python_alone():
        expected = step(*arrays)
    check_same_bits(first, expected)
    check_same_bits(again, expected)
    (name, programs, threads, shared, stream, arguments), *_ = device.launches
    assert (name, programs, threads, shared, stream) == ("forward_tiles", 5, 64, 1024, STREAM)
    assert (arguments["x"], arguments["M"], arguments["N"]) == (arrays[0].data_ptr(), 40, 72)


def test_addresses_that_are_not_on_16_bytes_go_through_python(device):
    x, gamma, beta = tensors()
    for odd in range(3):
        arrays = [x, gamma, beta]
        arrays[odd] = torch.cat([torch.zeros(1), arrays[odd].flatten()])[1:].view(arrays[odd].shape)
        with python_alone():
            expected = step(*arrays)
        check_same_bits(step(*arrays), expected)
        assert not any(launch[0] == "forward_tiles" for launch in device.launches)


def test_a_launch_that_fails_is_an_error(device):
    arrays = tensors()
    device.error = 700
    with pytest.raises(RuntimeError, match="cuLaunchKernel: expected 0, got CUDA's error 700"):
        lngrad_torch.layer_norm(arrays[0], 72, *arrays[1:])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda compiled: compiled.asm.update(ptx=compiled.asm["ptx"].replace("\n)", ",\n.param .u64 m )")), "parameters of"),
        (lambda compiled: compiled.asm.update(ptx=compiled.asm["ptx"].replace(".u32", ".u64")), "expected parameters of"),
        (lambda compiled: compiled.asm.clear(), r"bits, got \[\]"),
        (lambda compiled: setattr(compiled.metadata, "num_ctas", 2), r"got \{'num_ctas': 2\}"),
        (lambda compiled: setattr(compiled.metadata, "global_scratch_size", 64), r"got \{'global_scratch_size': 64\}"),
        (lambda compiled: delattr(compiled.metadata, "profile_scratch_size"), r"got \{'profile_scratch_size': None\}"),
        (lambda compiled: setattr(compiled, "function", None), "expected the handle of a function, got None"),
    ],
)  # fmt: skip
def test_a_kernel_of_another_triton_is_launched_by_python(device, monkeypatch, change, text):
    kernel, arrays = device.kernels["forward_tiles"], tensors()
    warmup = kernel.warmup

    def other(*arguments, **options):
        compiled = warmup(*arguments, **options)
        change(compiled)
        return compiled

    monkeypatch.setattr(kernel, "warmup", other)
    with pytest.warns(
        UserWarning, match=f"kernels are launched by Python, which takes longer: forward_tiles: .*{text}"
    ):
        y = lngrad_torch.layer_norm(arrays[0], 72, *arrays[1:])
    with python_alone():
        check_same_bits((y,), (lngrad_torch.layer_norm(arrays[0], 72, *arrays[1:]),))
    check_same_bits((lngrad_torch.layer_norm(arrays[0], 72, *arrays[1:]),), (y,))  # and says so once
    assert not device.launches


@pytest.mark.parametrize("swapped", [("gamma", "beta"), ("mean", "rstd"), ("x_inner", "y_outer")])
def test_a_word_in_anothers_place_is_noticed(device, monkeypatch, swapped):
    """What the tests above would see of a row that is wrong."""
    arrays = tensors()
    with python_alone():
        expected = lngrad_torch.operators.layer_norm(arrays[0], [72], *arrays[1:], 1e-5)
    pack = triton_run.pack

    def wrong(plan):
        (launch,) = plan.steps.launches
        places = [launch.kernel.arg_names.index(name) for name in swapped]

        def pick(values):
            picked = list(launch.pick(values))
            picked[places[0]], picked[places[1]] = (picked[place] for place in reversed(places))
            return picked

        return pack(replace(plan, steps=replace(plan.steps, launches=(replace(launch, pick=pick),))))

    monkeypatch.setattr("lngrad.gpu.plan.pack", wrong)
    Device.use(*device.functions)
    with pytest.raises(GradientError):
        check_same_bits(lngrad_torch.operators.layer_norm(arrays[0], [72], *arrays[1:], 1e-5), expected)


def test_memory_that_was_freed_is_refused(device):
    x, gamma, beta = tensors()
    lngrad_torch.layer_norm(x, 72, gamma, beta)
    launched = len(device.launches)
    x.untyped_storage().resize_(0)
    with pytest.raises(ShapeError, match="x: expected 11520 bytes of storage, got 0"):
        lngrad_torch.layer_norm(x, 72, gamma, beta)
    assert len(device.launches) == launched


def test_many_threads_at_once(device):
    arrays = tensors(9, 33)
    expected, failed = step(*arrays), []

    def repeat():
        try:
            for _ in range(5):
                check_same_bits(step(*arrays), expected)
        except BaseException as reason:
            failed.append(reason)

    crew = [threading.Thread(target=repeat) for _ in range(3)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    assert not failed
    assert {launch[4] for launch in device.launches} == {STREAM}


ON_TWO_DEVICES = """
import sys
import torch
torch.ops.load_library(sys.argv[1])
import pytest
import interpreted
from launches import Device
import lngrad.torch as lngrad_torch
from lngrad.testing import check_same_bits
from lngrad.torch import native

native.module = native.module or native._loaded(sys.argv[2])
for name in lngrad_torch.operators.ALL:  # Python's way has nothing to launch with here
    native.module.register(name, None)
ops, moved = torch.ops.lngrad, torch.ops.fake_cuda.moved
generator = torch.Generator().manual_seed(1)
x, r, dy, gamma, beta = (torch.randn(shape, generator=generator) for shape in ((40, 72), (40, 72), (40, 72), 72, 72))


def calls(on, layer_norm, layer_norm_backward, norm, norm_backward):
    X, R, DY, G, B = map(on, (x, r, dy, gamma, beta))
    y, mean, rstd = layer_norm(X, [72], G, B, 1e-5)
    results = [y, mean, rstd, *layer_norm_backward(DY, X, [72], mean, rstd, G, [True, True, True])]
    y, _, rstd, total = norm(X, [72], G, None, 1e-5, R, False, 1.0)
    results += [y, rstd, total, *norm_backward(DY, total, [72], None, rstd, G, [True, True, False], DY, False, 1.0)[:2]]
    return tuple(results)


def back(tensors):
    return tuple(moved(one.detach(), -1) for one in tensors)


device = Device(pytest.MonkeyPatch())
names = "layer_norm", "layer_norm_backward", "norm", "norm_backward"
operators = [getattr(ops, name).default for name in names]
expected = calls(lambda one: one, *operators)  # on the CPU, by launches too
for index in (0, 1):
    on = lambda one: moved(one.detach(), index)
    for way in (operators, [getattr(native.module, f"direct_{name}") for name in names]):
        before = len(device.launches)
        results = calls(on, *way)
        assert {one.device for one in results} == {torch.device("cuda", index)}
        check_same_bits(back(results), expected)
        assert len(device.launches) - before == 4
    leaves = [on(one).requires_grad_() for one in (x, gamma, beta)]
    y = lngrad_torch.layer_norm(leaves[0], 72, *leaves[1:])
    assert y.requires_grad and y.grad_fn is not None
    check_same_bits(back([y]), expected[:1])
    none = ops.norm(on(x), [72], None, None, 1e-5, None, False, 0.0)
    assert [(one.numel(), one.device.index) for one in none[1::2]] == [(0, index)] * 2
    torch.set_autocast_enabled("cuda", True)
    y = lngrad_torch.layer_norm(on(x.bfloat16()), 72, on(gamma.bfloat16()), on(beta))
    torch.set_autocast_enabled("cuda", False)
    assert y.dtype is torch.float32
    there = ops.layer_norm(on(x.bfloat16().float()), [72], on(gamma.bfloat16().float()), on(beta), 1e-5)
    check_same_bits(back([y]), back(there[:1]))
    with torch.inference_mode():
        assert lngrad_torch.layer_norm(on(x), 72).is_inference()
try:
    ops.layer_norm(moved(x, 0), [72], moved(gamma, 1), None, 1e-5)
except Exception as error:
    print(type(error).__name__, error)
print(len({launch[5]["x"] for launch in device.launches if launch[0] == "forward_tiles"}) > 4)
"""


@pytest.mark.slow  # g++ takes a minute for torch's headers
@pytest.mark.timeout(900)
def test_cuda_tensors_of_two_devices(library, tmp_path):
    """All but autograd's engine and Python's way."""
    fake, folder = tmp_path / "fake_cuda.so", Path(__file__).parent
    command = building.command(cxx_compiler(), native.torch_folder(), folder, fake)
    subprocess.run([word.replace("torch.cpp", "fake_cuda.cpp") for word in command], check=True)
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join((str(folder), str(folder.parent))),
    }
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO_DEVICES, str(fake), str(library)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    refused = "DtypeError gamma: expected an array on the device of x, cuda:0, got one on cuda:1"
    assert done.stdout.splitlines() == [refused, "True"]
