"""override(compiled=True): code that Inductor makes calls our operator too, while it lasts and no longer."""

from __future__ import annotations

import re
import shutil
from contextlib import nullcontext
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from native_ways import python_alone  # noqa: E402  # torch may be missing
from torch._inductor import config  # noqa: E402
from torch._inductor.utils import run_and_get_code  # noqa: E402

import lngrad.torch as lngrad_torch  # noqa: E402
from lngrad.core.problem import Grads  # noqa: E402
from lngrad.support.dtypes import to_torch  # noqa: E402
from lngrad.testing import Case, Normalization, check_grads, check_same_bits, make_inputs  # noqa: E402
from lngrad.torch import operators  # noqa: E402

try:
    from lngrad.torch import inductor
except ImportError as reason:  # the door needs a newer torch than the package
    pytest.skip(str(reason), allow_module_level=True)

pytestmark = [
    pytest.mark.slow,  # Inductor compiles C++ for ten seconds and more
    pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler"),
]


@pytest.fixture(autouse=True)
def clean():
    """Every test finds and leaves torch.compile as it was."""
    assert config.pre_grad_custom_pass is None
    yield
    assert config.pre_grad_custom_pass is None
    torch.compiler.reset()


def normalized(x, w, b):
    """As a model has it: the function in the midst of others, and the module's call of it."""
    return torch.nn.functional.layer_norm(x * 1, (x.shape[-1],), w, bias=b) * 1


def calls_ours(call, *arrays):
    """Whether the code that Inductor makes calls our operator."""
    _, code = run_and_get_code(call, *arrays)
    return any("lngrad.layer_norm" in text or "lngrad.norm" in text for text in code)


def tensors(inputs):
    return [to_torch(array.copy()).requires_grad_() for array in (inputs.x, inputs.gamma, inputs.beta)]


def grads_of(call, inputs):
    arrays = tensors(inputs)
    y = call(*arrays)
    return y.detach(), Grads(*torch.autograd.grad(y, arrays, to_torch(inputs.dy)))


def test_a_training_step_with_any_number_of_rows():
    """One compilation, the bits of eager code, and so float64's gradients in the suite's tolerance."""
    compiled = torch.compile(normalized, fullgraph=True, dynamic=True)
    with lngrad_torch.override(compiled=True), torch._dynamo.config.patch(error_on_recompile=True):
        assert calls_ours(compiled, *tensors(make_inputs(Case((9,), (24,)), "float32")))
        for rows in (33, 300):
            inputs = make_inputs(Case((rows,), (24,)), "float32")
            y, grads = grads_of(compiled, inputs)
            plain = grads_of(lambda x, w, b: lngrad_torch.layer_norm(x, 24, w, b), inputs)
            check_same_bits((y, *grads), (plain[0], *plain[1]))
            check_grads(grads, inputs)


def llama(x, w, eps):
    """The formula of transformers' LlamaRMSNorm."""
    wide = x.float()
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


RMS = {  # by eps as the caller gives it; torch's None is the machine epsilon
    "the function": (lambda x, w: torch.nn.functional.rms_norm(x * 1, (x.shape[-1],), w) * 1, None),
    "by keywords": (lambda x, w: torch.rms_norm(x, normalized_shape=x.shape[-1:], eps=0.1, weight=w), 0.1),
}


@pytest.mark.parametrize("name", RMS)
def test_a_training_step_of_rms_norm(name):
    """The bits of eager code for any number of rows; compiled without ours, Llama's formula agrees."""
    function, eps = RMS[name]
    compiled, mine, formula = (
        torch.compile(norm, fullgraph=True, dynamic=True)
        for norm in (function, lambda x, w: lngrad_torch.rms_norm(x, w.shape, w, eps), llama)
    )

    def grads(call, inputs, *more):
        x, w, _ = tensors(inputs)
        y = call(x, w, *more)
        return y.detach(), *torch.autograd.grad(y, (x, w), to_torch(inputs.dy))

    for rows in (9, 300):
        inputs = make_inputs(Case((rows,), (24,)), "float32", normalization=Normalization(centred=False))
        inputs = replace(inputs, beta=inputs.gamma)  # for tensors
        with lngrad_torch.override(compiled=True):
            assert calls_ours(compiled, *tensors(inputs)[:2])
            got = grads(compiled, inputs)
        check_same_bits(got, grads(lambda x, w: lngrad_torch.rms_norm(x, 24, w, eps), inputs))
    check_same_bits(grads(mine, inputs), got)
    for grad, other in zip(
        grads(formula, inputs, torch.finfo(torch.float32).eps if eps is None else eps), got, strict=True
    ):
        torch.testing.assert_close(grad, other, rtol=1e-4, atol=1e-4)


def code_of(call, *arrays):
    """Forward and backward as Inductor writes them, comments apart."""

    def step():
        leaves = [array.detach().clone().requires_grad_() for array in arrays]
        return torch.autograd.grad(call(*leaves).sum(), leaves)

    with config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        grads, code = run_and_get_code(step)
    return grads, "\n".join(line for text in code for line in text.splitlines() if "#" not in line)


LINES = {  # in the code of a step, with direct calls and without
    True: ("lngrad_layer_norm(", "lngrad_layer_norm_backward(", "lngrad_norm(", "lngrad_norm_backward("),
    False: ("lngrad.layer_norm.", "lngrad.layer_norm_backward.", "lngrad.norm.", "lngrad.norm_backward."),
}


def both_norms(x, w, b):
    x = torch.nn.functional.layer_norm(x * 2, (8,), w, b)
    return torch.nn.functional.rms_norm(x * 2, (8,), w * 3)


def small():
    return torch.randn(6, 8), torch.randn(8), torch.randn(8)


@pytest.mark.parametrize("why_not", [None, "torch has no hook", "no native code", "a wrapper in C++"])
def test_generated_code_calls_the_native_code(why_not, native_code, monkeypatch):
    """Where it can; else the operators, with the same bits."""
    arrays = small()
    with lngrad_torch.override():
        leaves = [array.clone().requires_grad_() for array in arrays]
        expected = torch.autograd.grad(both_norms(*leaves).sum(), leaves)
    if why_not == "torch has no hook":
        for operator in operators.ALL.values():
            monkeypatch.delitem(inductor.CUSTOM_EXTERN_KERNEL_CODEGEN, f"torch.ops.{operator}")
    with (
        python_alone() if why_not == "no native code" else nullcontext(),
        config.patch(cpp_wrapper=why_not == "a wrapper in C++"),
        lngrad_torch.override(compiled=True),
    ):
        got, code = code_of(torch.compile(both_norms, fullgraph=True), *arrays)
    check_same_bits(got, expected)
    is_direct = why_not is None
    assert all(line in code for line in LINES[is_direct])
    assert not any(line in code for line in LINES[not is_direct])


@pytest.mark.parametrize(
    ("name", "dtype", "norm"),
    [
        ("gated_norm", torch.float32, lambda x, z, w: lngrad_torch.gated_rms_norm(x, z, w[0])),
        ("norm", torch.float32, lambda x, z, w: lngrad_torch.modulated_layer_norm(x, *w.repeat(1, 2).chunk(2, 1)) * z),
        ("norm", torch.bfloat16, lambda x, z, w: lngrad_torch.add_rms_norm(x, z, 8, w[0])[0]),
    ],
    ids=["gate", "samples", "float32 residual"],
)
def test_gates_samples_and_a_float32_residual(name, dtype, norm, native_code):
    arrays = torch.randn(2, 6, 8).to(dtype), torch.randn(2, 6, 8), torch.randn(2, 8)
    got, code = code_of(torch.compile(norm, fullgraph=True), *arrays)
    assert all(f"lngrad_{name}{direction}(" in code for direction in ("", "_backward"))
    leaves = [array.clone().requires_grad_() for array in arrays]
    check_same_bits(got, torch.autograd.grad(norm(*leaves).sum(), leaves))


def test_inputs_are_asserted_where_others_read_them(native_code):
    """What the native code checks needs no line of Inductor's, unless a loop depends on it too."""

    def asserted(call):
        with lngrad_torch.override(compiled=True):
            _, code = code_of(torch.compile(call, fullgraph=True, dynamic=False), *small())
        if "assert_size_stride_grouped" in code:
            pytest.skip("this torch asserts all inputs in one call")
        return re.findall(r"assert_size_stride\((\w+),", code)

    def plain(x, w, b):
        return torch.nn.functional.layer_norm(x, (8,), w, b)

    assert asserted(plain) == []
    assert asserted(lambda x, w, b: plain(x, w, b) * 2) == ["primals_1", "tangents_1"]  # of which loops have the size
    assert asserted(lambda x, w, b: plain(x, w, b) * w)[:2] == ["primals_1", "primals_2"]


def test_an_operator_that_is_called_by_names(native_code):
    def by_names(x, w, b):
        return torch.ops.lngrad.layer_norm(x=x, normalized_shape=[8], eps=1e-5, gamma=w, beta=b)[0]

    arrays = small()
    with lngrad_torch.override(compiled=True):
        got, code = code_of(torch.compile(by_names, fullgraph=True, dynamic=True), *arrays)
    assert LINES[True][0] in code
    leaves = [array.clone().requires_grad_() for array in arrays]
    check_same_bits(got, torch.autograd.grad(by_names(*leaves).sum(), leaves))


@pytest.mark.parametrize("used", [1, 3])
def test_a_result_that_there_is_not(used, native_code):
    """A graph that returns a result without elements has the operator, which makes one; no mean is saved for the backward."""

    def norm(x, w):
        results = torch.ops.lngrad.norm(x, [8], w, None, 1e-5, None, False, 0.0)
        return results[0], results[used]

    x, w, _ = small()
    with lngrad_torch.override(compiled=True):
        call = torch.compile(norm, fullgraph=True)
        _, code = run_and_get_code(call, x.requires_grad_(), w)
        got = call(x, w)
    assert LINES[False][2] in code[0]
    assert LINES[True][2] not in code[0]
    assert got[1].shape == (0,)
    check_same_bits(got, norm(x, w))
    with lngrad_torch.override(compiled=True):
        _, code = code_of(torch.compile(lambda x, w: norm(x, w)[0], fullgraph=True, dynamic=False), x, w)
    assert re.search(r"lngrad_norm_backward\(\w+, \w+, \[8\], None, ", code)


def test_norms_in_a_part_of_a_graph(native_code):
    """A region that is compiled once and called twice has its imports where the graph has them."""

    @torch.compiler.nested_compile_region
    def region(x, w, b):
        return torch.nn.functional.layer_norm(x, (8,), w, b)

    def both(x, w, b):
        return region(region(x, w, b) * 2, w, b)

    arrays = small()
    with lngrad_torch.override(compiled=True):
        got, code = code_of(torch.compile(both, fullgraph=True), *arrays)
    leaves = [array.clone().requires_grad_() for array in arrays]
    twice = lngrad_torch.layer_norm(lngrad_torch.layer_norm(leaves[0], 8, *leaves[1:]) * 2, 8, *leaves[1:])
    check_same_bits(got, torch.autograd.grad(twice.sum(), leaves))
    assert code.count("lngrad.torch.inductor.direct('layer_norm')") == 1


def test_nests_and_ends_with_the_last():
    x, w, b = torch.randn(4, 8), torch.ones(8), torch.zeros(8)
    compiled = torch.compile(normalized, fullgraph=True)
    assert not calls_ours(compiled, x, w, b)
    with lngrad_torch.override(compiled=True):
        assert calls_ours(compiled, x, w, b)  # although it was compiled before
        with lngrad_torch.override(), lngrad_torch.override(compiled=True):
            compiled(x, w, b)
        lngrad_torch.enable()
        lngrad_torch.disable()
        torch.compiler.reset()
        assert calls_ours(compiled, x, w, b)
    with lngrad_torch.override():
        assert not calls_ours(compiled, x, w, b)


def test_what_is_compiled_afterwards_has_torchs_own_derivative():
    """torch's tracers do not go on with a kernel that is gone: without a warning, and right."""
    x, w, _ = small()
    with lngrad_torch.override(compiled=True):
        code_of(torch.compile(lambda x, w: torch.nn.functional.rms_norm(x * 1, (8,), w)), x, w)

    def grads(call):
        leaves = [array.clone().requires_grad_() for array in (x, w)]
        return torch.autograd.grad(call(*leaves).square().sum(), leaves)

    def formula(x, w):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps) * w

    compiled = torch.compile(lambda x, w: torch.nn.functional.rms_norm(x * 1, (8,), w), backend="aot_eager")
    for grad, other in zip(grads(compiled), grads(formula), strict=True):
        torch.testing.assert_close(grad, other)


def test_a_pass_of_somebody_else_stays():
    seen = []
    with config.patch(pre_grad_custom_pass=seen.append, fx_graph_cache=False):
        with lngrad_torch.override(compiled=True):
            assert calls_ours(torch.compile(normalized), torch.randn(4, 8), torch.ones(8), torch.zeros(8))
        assert seen
        assert config.pre_grad_custom_pass == [seen.append]


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_a_model_in_other_dtypes(dtype):
    torch.manual_seed(0)
    wide = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    model = wide.to(getattr(torch, dtype))
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(70, 16).to(getattr(torch, dtype))
    with lngrad_torch.override(compiled=True):
        assert calls_ours(compiled, x)
        compiled(x).square().sum().backward()
    got = tuple(parameter.grad for parameter in model[3].parameters())
    model.zero_grad()
    assert lngrad_torch.patch(model) == 2
    model(x).square().sum().backward()
    check_same_bits(got, tuple(parameter.grad for parameter in model[3].parameters()))
