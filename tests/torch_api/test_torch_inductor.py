"""override(compiled=True): code that Inductor makes calls our operator too, while it lasts and no longer."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch._inductor import config  # noqa: E402  # torch may be missing
from torch._inductor.utils import run_and_get_code  # noqa: E402

import lngrad.torch as door  # noqa: E402
from lngrad.core.dtypes import to_torch  # noqa: E402
from lngrad.core.problem import Grads  # noqa: E402
from lngrad.testing import Case, Normalization, check_grads, check_same_bits, make_inputs  # noqa: E402

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


def calls_ours(call, *given):
    """Whether the code that Inductor makes calls our operator."""
    _, code = run_and_get_code(call, *given)
    return any("lngrad.layer_norm" in one or "lngrad.norm" in one for one in code)


def tensors(inputs):
    return [to_torch(array.copy()).requires_grad_() for array in (inputs.x, inputs.gamma, inputs.beta)]


def grads_of(call, inputs):
    given = tensors(inputs)
    y = call(*given)
    return y.detach(), Grads(*torch.autograd.grad(y, given, to_torch(inputs.dy)))


def test_a_training_step_with_any_number_of_rows():
    """One compilation, the bits of eager code, and so float64's gradients in the suite's tolerance."""
    compiled = torch.compile(normalized, fullgraph=True, dynamic=True)
    with door.override(compiled=True), torch._dynamo.config.patch(error_on_recompile=True):
        assert calls_ours(compiled, *tensors(make_inputs(Case((9,), (24,)), "float32")))
        for rows in (33, 300):
            inputs = make_inputs(Case((rows,), (24,)), "float32")
            y, grads = grads_of(compiled, inputs)
            plain = grads_of(lambda x, w, b: door.layer_norm(x, 24, w, b), inputs)
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
        torch.compile(one, fullgraph=True, dynamic=True)
        for one in (function, lambda x, w: door.rms_norm(x, w.shape, w, eps), llama)
    )

    def grads(call, inputs, *more):
        x, w, _ = tensors(inputs)
        y = call(x, w, *more)
        return y.detach(), *torch.autograd.grad(y, (x, w), to_torch(inputs.dy))

    for rows in (9, 300):
        inputs = make_inputs(Case((rows,), (24,)), "float32", normalization=Normalization(centred=False))
        inputs = replace(inputs, beta=inputs.gamma)  # for tensors
        with door.override(compiled=True):
            assert calls_ours(compiled, *tensors(inputs)[:2])
            got = grads(compiled, inputs)
        check_same_bits(got, grads(lambda x, w: door.rms_norm(x, 24, w, eps), inputs))
    check_same_bits(grads(mine, inputs), got)
    for one, other in zip(
        grads(formula, inputs, torch.finfo(torch.float32).eps if eps is None else eps), got, strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_nests_and_ends_with_the_last():
    x, w, b = torch.randn(4, 8), torch.ones(8), torch.zeros(8)
    compiled = torch.compile(normalized, fullgraph=True)
    assert not calls_ours(compiled, x, w, b)
    with door.override(compiled=True):
        assert calls_ours(compiled, x, w, b)  # although it was compiled before
        with door.override(), door.override(compiled=True):
            compiled(x, w, b)
        door.enable()
        door.disable()
        torch.compiler.reset()
        assert calls_ours(compiled, x, w, b)
    with door.override():
        assert not calls_ours(compiled, x, w, b)


def test_a_pass_of_somebody_else_stays():
    seen = []
    with config.patch(pre_grad_custom_pass=seen.append, fx_graph_cache=False):
        with door.override(compiled=True):
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
    with door.override(compiled=True):
        assert calls_ours(compiled, x)
        compiled(x).square().sum().backward()
    got = tuple(parameter.grad for parameter in model[3].parameters())
    model.zero_grad()
    assert door.patch(model) == 2
    model(x).square().sum().backward()
    check_same_bits(got, tuple(parameter.grad for parameter in model[3].parameters()))
