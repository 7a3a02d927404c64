"""What the trial of patch claims, and what goes to the forward that a module had: forms, arguments, ranks, dtypes, contexts."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")

from torch_classes import BOTH, LEFT, TURNED, Llama, Same, form  # noqa: E402

import lngrad.torch as lngrad_torch  # noqa: E402  # torch may be missing
from lngrad.core import fallbacks  # noqa: E402
from lngrad.testing import check_same_bits  # noqa: E402

F = torch.nn.functional
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def drawn(module):
    torch.manual_seed(0)
    for tensor in (*module.parameters(), *module.buffers()):
        torch.nn.init.normal_(tensor)
    return module


def patched(module):
    ours = copy.deepcopy(module)
    assert lngrad_torch.patch(ours) == 1
    return ours


def same(theirs, ours, *inputs, tolerance=1e-5):
    """The same error, or shape, dtype, values and gradients, within a tolerance beyond what float64 differs by."""
    results = []
    for module in (theirs, ours):
        try:
            leaves = [array.detach().requires_grad_() for array in inputs]
            y, of = module(*leaves), [*leaves, *module.parameters()]
            dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
            results.append((y.detach(), *torch.autograd.grad(y, of, dy, allow_unused=True)))
        except Exception as error:  # theirs may refuse a dtype
            results.append(type(error))
    if isinstance(results[0], type):
        assert results[1] is results[0]
        return
    for expected, got in zip(*results, strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            assert got.dtype is expected.dtype
            torch.testing.assert_close(
                got, expected, rtol=tolerance, atol=tolerance * max([1.0, *expected.abs().flatten().tolist()])
            )


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("name", TURNED)
def test_forms_that_are_turned(name, capsys):
    """In every pair of dtypes, with autocast, in training and in evaluation, as it was; float32 and float64 to rounding."""
    make, shape = TURNED[name]
    theirs = drawn(make())
    ours = copy.deepcopy(theirs)
    assert lngrad_torch.patch(ours, verbose=True) == 1
    assert "  yes" in capsys.readouterr().out
    for of_x, of_tensors, autocast, training in itertools.product(DTYPES, DTYPES, (False, True), (False, True)):
        modules = [copy.deepcopy(module).to(of_tensors).train(training) for module in (theirs, ours)]
        narrow = {of_x, of_tensors} & {torch.bfloat16, torch.float16}
        with torch.autocast("cpu", enabled=autocast):
            same(*modules, torch.randn(shape).to(of_x), tolerance=0.1 if narrow else 1e-4)
    fallbacks._counts.clear()
    same(theirs, ours, torch.randn(shape))
    assert not lngrad_torch.fallbacks()
    check_same_bits(copy.deepcopy(ours)(torch.ones(shape)).detach(), ours(torch.ones(shape)).detach())


@pytest.mark.parametrize("name", TURNED)
def test_ranks_are_those_that_it_takes(name):
    """Whatever the rank, the right value or theirs' own error."""
    make, shape = TURNED[name]
    theirs = drawn(make())
    ours = patched(theirs)
    for sizes in (
        (8,),
        (3, 8),
        (8, 8),
        (2, 3, 8),
        (8, 8, 8),
        (2, 8, 3),
        (2, 2, 3, 8),
        (2, 8, 3, 8),
        (2, 8, 8, 8),
        (8,) * 5,
        (1,) * 9 + (8,),
    ):
        same(theirs, ours, torch.randn(sizes), tolerance=1e-4)
    same(theirs, ours, torch.randn(*shape[:-1], 1))
    same(theirs, ours, torch.randn(shape)[:0])


@pytest.mark.parametrize("name", LEFT)
def test_forms_that_are_left_have_a_reason(name, capsys):
    make, reason = LEFT[name]
    assert lngrad_torch.patch(torch.nn.Sequential(make()), verbose=True) == 0
    assert capsys.readouterr().out.splitlines()[1].split(maxsplit=2)[2].partition(" (line ")[0] == f"no: {reason}"


def gated(self, hidden_states, gate=None, *, scale=1.0):
    if gate is not None:
        hidden_states = hidden_states * F.silu(gate)
    return F.rms_norm(hidden_states, (8,), self.weight, self.eps) * scale


def test_a_forward_keeps_its_arguments():
    """What the trial did not give goes to the old forward."""
    theirs = drawn(form(gated, weight="p", eps=1e-6))
    ours = patched(theirs)
    assert list(inspect.signature(ours.forward).parameters) == ["hidden_states", "gate", "scale"]
    x, gate = torch.randn(2, 3, 8)
    fallbacks._counts.clear()
    torch.testing.assert_close(ours(hidden_states=x), theirs(x))
    torch.testing.assert_close(ours(x, None), theirs(x))
    assert not lngrad_torch.fallbacks()
    torch.testing.assert_close(ours(x, gate), theirs(x, gate))
    torch.testing.assert_close(ours(gate=gate, hidden_states=x), theirs(x, gate))
    assert lngrad_torch.fallbacks() == {"Norm.forward: another argument": 2}
    for options in ({"hidden_states": x, "scale": 2.0}, {"hidden_states": x, "gate": gate, "scale": 2.0}):
        check_same_bits(ours(**options), theirs(**options))
    with pytest.raises(TypeError, match="unexpected keyword"):
        ours(x, mask=gate)
    compiled = torch.compile(ours, backend="eager", fullgraph=True)
    check_same_bits(compiled(x, gate).detach(), ours(x, gate).detach())
    assert torch.equal(compiled(x, gate, scale=2.0), theirs(x, gate, scale=2.0))


def test_a_class_with_an_axis_for_each_rank():
    def forward(self, x):
        if x.ndim == 4:
            return F.layer_norm(x.movedim(1, -1), (8,), self.weight, self.bias, self.eps).movedim(-1, 1)
        return F.layer_norm(x, (8,), self.weight, self.bias, self.eps)

    theirs = drawn(form(forward, **BOTH, eps=1e-5))
    ours = patched(theirs)
    for shape in ((8, 8), (2, 8, 8), (8, 8, 8, 8), (2, 8, 3, 8), (2, 2, 2, 2, 8)):
        same(theirs, ours, torch.randn(shape))


def hooked(module):
    """As dispatch hooks and offloading set a forward on an instance."""

    def new_forward(module, *args, **kwargs):
        return module._old_forward(*args, **kwargs) + 1

    module._old_forward = module.forward
    module.forward = functools.update_wrapper(functools.partial(new_forward, module), module._old_forward)
    return module


@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, torch.nn.RMSNorm, Llama, Same])
def test_a_forward_that_hooks_set_on_the_instance(kind):
    module, x = drawn(kind(8)), torch.randn(3, 8)
    expected = module(x) + 1
    for patch_first in (True, False):
        patched = copy.deepcopy(module)
        if patch_first:
            assert lngrad_torch.patch(patched) == 1
        hooked(patched)
        if not patch_first:
            assert lngrad_torch.patch(patched) == 1
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            torch.testing.assert_close(patched(x), expected)
        assert not {"aten::rsqrt", "aten::native_layer_norm"} & {event.name for event in profile.events()}
        assert lngrad_torch.unpatch(patched) == 1
        check_same_bits(patched(x), expected)


def test_a_forward_that_is_set_on_the_instance_and_calls_something_else_is_reported(capsys):
    model = torch.nn.Sequential(torch.nn.LayerNorm(8), Llama(8))
    for module in model:
        module.forward = types.MethodType(lambda self, x: x, module)
    assert lngrad_torch.patch(model, verbose=True) == 0
    rows = [line.split(maxsplit=2)[2] for line in capsys.readouterr().out.partition("\n\n")[0].splitlines()[1:]]
    assert rows == ["no: its forward is set on the instance"] * 2


def fake_mode():
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


CONTEXTS = {
    "meta": lambda: torch.device("meta"),
    "fake": fake_mode,
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu"),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_model_is_patched_in_any_context(name):
    """As init_empty_weights and FSDP2 build models."""
    state = torch.random.get_rng_state()
    with CONTEXTS[name]():
        model = torch.nn.Sequential(torch.nn.LayerNorm(8), Llama(8), Same(8))
        assert lngrad_torch.patch(model) == 3
    assert torch.equal(torch.random.get_rng_state(), state)


NOT_OURS = {
    "jagged": lambda: torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], layout=torch.jagged),
    "10 dimensions": lambda: torch.randn((1,) * 9 + (8,)),
    "sparse": lambda: torch.randn(3, 8).to_sparse(),
}


def tried(function, *arguments):
    try:
        return function(*arguments)
    except (RuntimeError, NotImplementedError) as error:
        return type(error)


@pytest.mark.parametrize("name", NOT_OURS)
@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, torch.nn.RMSNorm, Llama], ids=lambda kind: kind.__name__)
def test_what_torch_alone_takes_goes_torchs_way(kind, name):
    theirs, x = drawn(kind(8)), NOT_OURS[name]()
    fallbacks._counts.clear()
    expected, got = tried(theirs, x), tried(patched(theirs), x)
    assert sum(lngrad_torch.fallbacks().values()) >= 1 or kind is Llama
    if isinstance(expected, type):
        assert got is expected
    elif expected.is_nested:
        for row, other in zip(got.unbind(), expected.unbind(), strict=True):
            torch.testing.assert_close(row, other)
    else:
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, torch.nn.RMSNorm, Llama], ids=lambda kind: kind.__name__)
def test_functionalize(kind):
    theirs, x = drawn(kind(8)), torch.randn(3, 8)
    torch.testing.assert_close(torch.func.functionalize(patched(theirs))(x), theirs(x))


def test_compiled_in_one_graph():
    """Ours where the trial has seen the call, the old forward elsewhere."""
    theirs = drawn(Llama(8))
    ours = patched(theirs)
    compiled = torch.compile(ours, backend="eager", fullgraph=True)
    for x in (torch.randn(3, 8), torch.randn(2, 3, 8).bfloat16(), torch.randn((1,) * 7 + (8,))):
        assert compiled(x).dtype is theirs(x).dtype
        check_same_bits(compiled(x), ours(x))


@pytest.mark.parametrize("inside", [*itertools.product((False, True), repeat=2)], ids=str)
def test_a_checkpoint_recomputes_with_what_its_forward_had(inside, way):
    module, x = (
        torch.nn.Sequential(drawn(torch.nn.RMSNorm(8)), drawn(torch.nn.LayerNorm(8))),
        torch.randn(3, 8, requires_grad=True),
    )
    dy = torch.randn(3, 8)
    (expected,) = torch.autograd.grad(module(x), x, dy)
    with lngrad_torch.override() if inside[0] else contextlib.nullcontext():
        y = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
    with lngrad_torch.override() if inside[1] else contextlib.nullcontext():
        (got,) = torch.autograd.grad(y, x, dy)
    torch.testing.assert_close(got, expected)


ANEW = """
import sys, torch
import lngrad.torch as before
x = torch.randn(4, 8, requires_grad=True)
expected = before.rms_norm(x, 8)
for name in [name for name in sys.modules if name.partition(".")[0] == "lngrad"]:
    del sys.modules[name]
import lngrad.torch as after
assert after is not before
assert torch.equal(after.rms_norm(x, 8), expected)
after.layer_norm(x, 8).sum().backward()
assert torch.equal(before.rms_norm(x, 8), expected)
with after.override():
    torch.nn.functional.rms_norm(x, (8,)).sum().backward()
del sys.modules["lngrad.torch.operators"]
import lngrad.torch.operators
torch.ops.lngrad.layer_norm(x, [8], None, None, 1e-5)[0].sum().backward()
after.layer_norm(x, 8).sum().backward()
del sys.modules["lngrad.torch.derivatives"]
try:
    import lngrad.torch.derivatives
except ImportError as refused:
    assert "import lngrad.torch.operators anew too" in str(refused)
else:
    raise AssertionError
"""


def test_modules_imported_anew():
    """As notebooks and test runners do: the operators of the modules before give way."""
    subprocess.run([sys.executable, "-c", ANEW], check=True, timeout=120)
