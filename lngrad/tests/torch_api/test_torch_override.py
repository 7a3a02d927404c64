"""aten's own kernels replaced: torch's samples and errors, dtypes and layouts to the letter, and a clean way back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import warnings
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import lngrad.torch as lngrad_torch  # noqa: E402  # torch may be missing
import norms  # noqa: E402
from lngrad.core import reference  # noqa: E402
from lngrad.core.problem import Grads  # noqa: E402
from lngrad.support.addresses import as_numpy  # noqa: E402
from lngrad.testing import CASES, Case, check_grads, check_same_bits, make_inputs  # noqa: E402
from lngrad.torch import aten  # noqa: E402

forward = torch.ops.aten.native_layer_norm.default
backward = torch.ops.aten.native_layer_norm_backward.default
DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}
ALL = [True, True, True]
pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture(autouse=True)
def clean():
    """Every test finds and leaves aten's own kernels."""
    assert not ours()
    yield
    assert not ours()


def ours():
    """Whether ours are in place: a refused call is counted only then."""
    before = sum(lngrad_torch.fallbacks().values())
    forward(torch.empty(0, 3), [3], None, None, 1e-5)
    return sum(lngrad_torch.fallbacks().values()) > before


def tensor(array):
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("uint16").copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def grads_of(inputs, mask=ALL):
    gamma = None if inputs.gamma is None else tensor(inputs.gamma)
    dy, x, mean, rstd = (tensor(array) for array in (inputs.dy, inputs.x, inputs.mean, inputs.rstd))
    return Grads(*backward(dy, x, list(inputs.normalized_shape), mean, rstd, gamma, gamma, mask))


# --- Values ---------------------------------------------------------------------------------------------------------


def statistics_like_aten(inputs):
    """mean and rstd in gamma's dtype, as aten's forward would have left them."""
    dtype = (inputs.x if inputs.gamma is None else inputs.gamma).dtype
    return replace(inputs, mean=inputs.mean.astype(dtype), rstd=inputs.rstd.astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", norms.light(case for case in CASES if case.gamma), ids=str)
def test_gradients_are_right(case, dtype):
    inputs = statistics_like_aten(make_inputs(case, dtype))
    own = dtype in ("float32", "float64")  # 16 bits hold no mean that is completed
    if own:
        inputs = replace(inputs, mean=norms.forward(inputs).mean)  # rounded once
    before = lngrad_torch.fallbacks()
    with lngrad_torch.override():
        grads = grads_of(inputs)
    check_grads(grads, norms.with_own_means(inputs) if own else inputs)
    assert lngrad_torch.fallbacks() == before


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_mixed_gradients_are_right(dtype):
    inputs = make_inputs(Case((130,), (37,), gamma_dtype="float32"), dtype)
    with lngrad_torch.override():
        grads = grads_of(inputs)
    assert [grad.dtype for grad in grads] == [DTYPES[dtype], torch.float32, torch.float32]
    check_grads(grads, inputs)


def test_bfloat16_sums_do_not_saturate():
    """aten adds a column of ones up to 256 and no further."""
    x, dy, w = torch.randn(1024, 8).bfloat16(), torch.ones(1024, 8).bfloat16(), torch.ones(8).bfloat16()
    _, mean, rstd = forward(x, [8], w, w, 1e-5)
    assert backward(dy, x, [8], mean, rstd, w, w, ALL)[2].float().max() < 1024
    with lngrad_torch.override():
        assert (backward(dy, x, [8], mean, rstd, w, w, ALL)[2] == 1024).all()


# --- aten's conduct -------------------------------------------------------------------------------------------------


def conduct(call):
    """What a call shows besides its values: layouts and dtypes, or the type and text of its error."""
    try:
        results = call()
    except Exception as error:
        return type(error), str(error)
    return [None if r is None else (r.shape, r.stride(), r.dtype, r.requires_grad) for r in results]


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


half, wide = torch.bfloat16, torch.float64
x, w = random(4, 8), random(8)
last = random(2, 3, 4, 5).to(memory_format=torch.channels_last)
CALLS = {
    "plain": lambda: forward(x, [8], w, w, 1e-5),
    "no weight": lambda: forward(x, [8], None, None, 1e-5),
    "bias alone": lambda: forward(x, [8], None, w, 1e-5),
    "16 bits": lambda: forward(x.to(half), [8], w.to(half), w.to(half), 1e-5),
    "16 bits, no weight": lambda: forward(x.to(half), [8], None, None, 1e-5),
    "mixed": lambda: forward(x.to(half), [8], w, w, 1e-5),
    "mixed, bias alone": lambda: forward(x.to(half), [8], None, w, 1e-5),
    "weight and bias differ": lambda: forward(x.to(half), [8], w.to(half), w, 1e-5),
    "wide weight": lambda: forward(x, [8], w.to(wide), w.to(wide), 1e-5),
    "narrow weight": lambda: forward(x, [8], w.to(half), w.to(half), 1e-5),
    "float64": lambda: forward(x.to(wide), [8], w.to(wide), None, 1e-5),
    "channels last": lambda: forward(last, [5], None, None, 1e-5),
    "channels last, three dimensions": lambda: forward(last, [3, 4, 5], None, None, 1e-5),
    "transposed": lambda: forward(x.t(), [4], None, None, 1e-5),
    "odd stride of a single element": lambda: forward(x.as_strided((4, 1, 8), (8, 3, 1)), [8], w, w, 1e-5),
    "backward, odd stride of a single element": lambda: backward(
        x.as_strided((4, 1, 8), (8, 3, 1)), x.as_strided((4, 1, 8), (8, 3, 1)), [8], random(4), random(4), w, w, ALL
    ),
    "expanded": lambda: forward(x[:1].expand(6, 8), [8], w, w, 1e-5),
    "strided weight": lambda: forward(x, [8], random(16)[::2], w, 1e-5),
    "all normalized": lambda: forward(x, [4, 8], None, None, 1e-5),
    "no rows": lambda: forward(random(0, 8), [8], w, w, 1e-5),
    "no columns": lambda: forward(random(4, 0), [0], None, None, 1e-5),
    "integers": lambda: forward(torch.ones(4, 8, dtype=torch.int64), [8], None, None, 1e-5),
    "complex": lambda: forward(x.to(torch.complex64), [8], None, None, 1e-5),
    "wrong shape": lambda: forward(x, [7], None, None, 1e-5),
    "wrong middle": lambda: forward(random(2, 3, 8), [4, 8], None, None, 1e-5),
    "wrong weight": lambda: forward(x, [8], random(7), None, 1e-5),
    "wrong bias": lambda: forward(x, [8], w, random(7), 1e-5),
    "nine dimensions": lambda: forward(random(*(1,) * 8, 4), [4], None, None, 1e-5),
    "backward": lambda: backward(x, x, [8], random(4, 1), random(4, 1), w, w, ALL),
    "backward, flat statistics": lambda: backward(x, x, [8], random(4), random(4), w, w, ALL),
    "backward, dx alone": lambda: backward(x, x, [8], random(4, 1), random(4, 1), None, None, [True, False, False]),
    "backward, dgamma alone": lambda: backward(x, x, [8], random(4, 1), random(4, 1), w, None, [False, True, False]),
    "backward, nothing": lambda: backward(x, x, [8], random(4, 1), random(4, 1), w, w, [False] * 3),
    "backward, absent weight": lambda: backward(x, x, [8], random(4, 1), random(4, 1), None, None, ALL),
    "backward, bias alone": lambda: backward(x, x, [8], random(4, 1), random(4, 1), None, w, [True, False, True]),
    "backward, mixed": lambda: backward(x.to(half), x.to(half), [8], random(4, 1), random(4, 1), w, w, ALL),
    "backward, mixed statistics": lambda: backward(
        x.to(half), x.to(half), [8], random(4, 1).to(half), random(4, 1).to(half), w, w, ALL
    ),
    "backward, wide statistics": lambda: backward(
        x.to(half), x.to(half), [8], random(4, 1), random(4, 1), w.to(half), w.to(half), ALL
    ),
    "backward, dy of another dtype": lambda: backward(x, x.to(half), [8], random(4, 1), random(4, 1), w, w, ALL),
    "backward, channels last": lambda: backward(
        last, last, [5], random(2, 3, 4, 1), random(2, 3, 4, 1), None, None, [True, False, False]
    ),
    "backward, no rows": lambda: backward(random(0, 8), random(0, 8), [8], random(0, 1), random(0, 1), w, w, ALL),
}


@pytest.mark.parametrize("name", CALLS)
def test_layouts_dtypes_and_errors_are_atens(name):
    expected = conduct(CALLS[name])
    with lngrad_torch.override():
        assert conduct(CALLS[name]) == expected
        assert conduct(CALLS[name]) == expected  # the second call finds what the first has remembered


def test_what_is_not_taken_is_counted_with_its_reason():
    before = lngrad_torch.fallbacks().get("native_layer_norm: x is empty", 0)
    with lngrad_torch.override():
        forward(random(0, 8), [8], None, None, 1e-5)
    assert lngrad_torch.fallbacks()["native_layer_norm: x is empty"] == before + 1


def test_large_results_can_be_resized_like_torchs_own():
    with lngrad_torch.override():
        y = forward(torch.randn(1025, 1024), [1024], None, None, 1e-5)[0]
    assert y.untyped_storage().resizable()


# --- torch's own samples --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def samples():
    """torch's OpInfo entries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {op.name: op for op in op_db if op.name in ("nn.functional.layer_norm", "native_layer_norm")}


def outputs_and_gradients(op, sample, dtype):
    def leaf(value):
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().to(dtype).requires_grad_(value.requires_grad)

    arguments = [leaf(value) for value in (sample.input, *sample.args)]
    results = op(*arguments, **sample.kwargs)
    results = results if isinstance(results, tuple) else (results,)
    roots = [r for r in results if r.requires_grad]  # mean and rstd of aten's operator have no derivative
    weights = [torch.linspace(0.5, 1.5, r.numel(), dtype=torch.float64).reshape(r.shape).to(r.dtype) for r in roots]
    leaves = [value for value in arguments if isinstance(value, torch.Tensor) and value.requires_grad]
    return [*(r.detach() for r in results), *torch.autograd.grad(roots, leaves, weights)]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("name", ["nn.functional.layer_norm", "native_layer_norm"])
def test_samples_of_torch(samples, name, dtype):
    """As torch has it to its own tolerance, or else no further from float64 than torch, or than one rounding of the largest."""
    op, count = samples[name], 0
    for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
        expected, exact = outputs_and_gradients(op, sample, dtype), outputs_and_gradients(op, sample, torch.float64)
        with lngrad_torch.override():
            got = outputs_and_gradients(op, sample, dtype)
        for ours, other, truth in zip(got, expected, exact, strict=True):
            assert ours.stride() == other.stride()
            assert ours.dtype == other.dtype
            count += 1
            error, theirs = ((t.double() - truth).abs() for t in (ours, other))
            assert (ours.isnan() == other.isnan()).all()
            least = torch.finfo(dtype).eps * truth.abs().max() if truth.numel() else 0
            rtol, atol = torch.testing._comparison.default_tolerances(dtype)
            alike = torch.isclose(ours, other, rtol, atol, equal_nan=True)
            assert (alike | (error <= theirs.clamp(min=least))).all()
    assert count > 20


@pytest.mark.parametrize("name", ["native_layer_norm"])
def test_error_inputs_of_torch(samples, name):
    inputs = list(samples[name].error_inputs("cpu"))
    assert len(inputs) >= 4
    with lngrad_torch.override():
        for error in inputs:
            with pytest.raises(error.error_type, match=error.error_regex):
                samples[name](error.sample_input.input, *error.sample_input.args, **error.sample_input.kwargs)


def test_gradients_of_gradients():
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 5), (5,), (5,))]
    with lngrad_torch.override():
        assert torch.autograd.gradcheck(lambda x, w, b: torch.nn.functional.layer_norm(x, (5,), w, b), leaves)
        assert torch.autograd.gradgradcheck(lambda x, w, b: torch.nn.functional.layer_norm(x, (5,), w, b), leaves)


# --- On and off -----------------------------------------------------------------------------------------------------


def test_nests_and_ends_with_the_last():
    with lngrad_torch.override():
        with lngrad_torch.override():
            assert ours()
        assert ours()
    assert not ours()


def test_enable_and_disable_are_counted():
    lngrad_torch.enable()
    lngrad_torch.enable()
    lngrad_torch.disable()
    assert ours()
    lngrad_torch.disable()


def test_disable_without_enable():
    with pytest.raises(RuntimeError, match=r"disable: expected an enable\(\) before it, got none"):
        lngrad_torch.disable()


def test_a_torch_too_old_for_compiled_code_is_refused_there_alone(monkeypatch):
    passes = pytest.importorskip("torch._inductor.custom_graph_pass")
    monkeypatch.delattr(passes, "get_custom_graph_passes", raising=False)
    monkeypatch.delitem(sys.modules, "lngrad.torch.inductor", raising=False)
    with pytest.raises(ImportError, match=r"^override\(compiled=True\): expected torch 2.13 or later, got 2\."):
        lngrad_torch.enable(compiled=True)
    assert not aten._users
    assert not aten._libraries
    with lngrad_torch.override():
        assert aten._libraries


def test_an_exception_leaves_it_clean():
    with pytest.raises(ZeroDivisionError), lngrad_torch.override():
        raise ZeroDivisionError


def interrupt(*_):
    raise KeyboardInterrupt


def test_interrupts_leave_it_whole(monkeypatch):
    """As Ctrl-C comes at any instruction of entering and leaving: nothing stays installed, and the next one works."""
    monkeypatch.setattr(sys, "unraisablehook", lambda reason: None)
    interrupts, before = 0, signal.signal(signal.SIGALRM, interrupt)
    try:
        for turn in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, 5e-6 + turn % 80 * 5e-6)
                with lngrad_torch.override():
                    pass
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert not ours()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts > 50
    with lngrad_torch.override():
        assert ours()
    assert not ours()


def test_an_interrupted_end_is_made_up_for():
    """A handler's exception ahead of the first line of __exit__: the object goes, and what it wanted with it."""
    entered = lngrad_torch.override()
    entered.__enter__()
    assert ours()
    del entered
    assert not ours()


def test_a_failed_installation_leaves_nothing_behind(monkeypatch):
    def broken(*_):
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(torch.ops.aten.rms_norm.default, "py_impl", broken)
        with pytest.raises(MemoryError, match="no room"), lngrad_torch.override():
            pass
    assert not ours()
    with lngrad_torch.override():
        assert ours()


def test_threads_switch_and_compute_at_once():
    """Bits do not depend on who computes, hence on which kernel: both are checked, each against its own."""
    x, w = torch.randn(64, 64), torch.randn(64)
    theirs = as_numpy(torch.nn.functional.layer_norm(x, (64,), w))
    with lngrad_torch.override():
        expected = as_numpy(torch.nn.functional.layer_norm(x, (64,), w))
    wrong = []

    def switch_and_compute():
        for _ in range(100):
            with lngrad_torch.override():
                got = as_numpy(torch.nn.functional.layer_norm(x, (64,), w))
            if (got != expected).any() and (got != theirs).any():
                wrong.append(got)

    threads = [threading.Thread(target=switch_and_compute) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Python's: the process has threads
def test_a_child_forked_while_another_thread_enables():
    entered, leave = threading.Event(), threading.Event()

    def enable_slowly():
        with aten._lock:
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=enable_slowly)
    thread.start()
    entered.wait(60)
    threading.Timer(0.5, leave.set).start()
    child = os.fork()
    if not child:
        signal.alarm(30)
        code = 1
        try:
            with lngrad_torch.override():
                code = 0
        finally:
            os._exit(code)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    with lngrad_torch.override():
        pass


def test_no_warning_of_torch_is_shown():
    """In a process of its own, as torch says it once only."""
    program = "import torch, lngrad.torch as t\nwith t.override(): print(torch.nn.LayerNorm(3)(torch.ones(2, 3)).sum().item())"
    result = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "0.0\n", "")


def test_same_bits_with_any_number_of_threads(threads):
    import lngrad

    inputs = make_inputs(Case((3000,), (129,)), "float32")
    results = []
    with lngrad_torch.override():
        for count in (1, 3):
            lngrad.set_num_threads(count)
            results.append(tuple(grads_of(inputs)))
    check_same_bits(*results)


def test_bfloat16_module_against_float64():
    """A whole step of a bfloat16 module: parameters' gradients as float64 would have them, up to what bfloat16 inputs cost."""
    torch.manual_seed(0)
    module, x, dy = (
        torch.nn.LayerNorm(32).bfloat16(),
        torch.randn(8192, 32).bfloat16(),
        torch.randn(8192, 32).bfloat16(),
    )
    exact = reference.layer_norm(as_numpy(x).astype("float64"))
    truth = reference.layer_norm_backward(as_numpy(dy), as_numpy(x), exact.mean, exact.rstd).dgamma

    def error():
        module.zero_grad()
        module(x).backward(dy)
        return abs(as_numpy(module.weight.grad).astype("float64") - truth).max() / abs(truth).max()

    theirs = error()
    with lngrad_torch.override():
        mine = error()
    assert mine < 0.01 < theirs
