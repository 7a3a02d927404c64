"""patch: torch's own class, and others that compute the same, found by a trial and never by name."""

from __future__ import annotations

import copy
import pickle
import re
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch_classes import ALIKE, T5, Gemma, Llama, Same  # noqa: E402

import lngrad.torch as lngrad_torch  # noqa: E402  # torch may be missing
from lngrad.testing import check_same_bits  # noqa: E402
from lngrad.torch import patching  # noqa: E402
from lngrad.torch.functions import left_to_inductor  # noqa: E402

F = torch.nn.functional


@pytest.mark.parametrize("name", ALIKE)
def test_others_that_compute_the_same_are_turned(name):
    make, shape = ALIKE[name]
    torch.manual_seed(0)
    module = make()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    model = torch.nn.Sequential(module)
    kind, state = type(module), {key: value.clone() for key, value in model.state_dict().items()}
    x, dy = torch.randn(2, *shape)
    before, grads = run(model, x, dy)
    assert lngrad_torch.patch(model) == 1
    assert isinstance(module, kind)
    assert type(module) is not kind
    pickled = pickle.loads(pickle.dumps(model))  # noqa: S301  # our own bytes
    assert type(pickled[0]) is type(copy.copy(module)) is kind
    assert type(copy.deepcopy(model)[0]) is type(module)
    for twin in (model, copy.deepcopy(model), pickled):
        after, new_grads = run(twin, x, dy)
        torch.testing.assert_close(after, before)
        torch.testing.assert_close(new_grads, grads, rtol=1e-4, atol=1e-5)
        assert list(twin.state_dict()) == list(state)
    assert lngrad_torch.patch(model) == 0
    assert lngrad_torch.unpatch(model) == 1
    assert type(module) is kind
    check_same_bits(run(model, x, dy)[0], before)


def run(model, x, dy):
    x = x.clone().requires_grad_()
    y = model(x)
    return y.detach(), torch.autograd.grad(y, [x, *model.parameters()], dy)


class TrainsOtherwise(torch.nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) * (2 if self.training else 1)


class LayerNorm(torch.nn.LayerNorm):
    """By its name it would be one."""

    def forward(self, x):
        return super().forward(x) + x.abs()


class Conditioned(torch.nn.LayerNorm):
    def forward(self, x, scale):
        return super().forward(x) * scale


class GroupNorm(torch.nn.GroupNorm):
    def __init__(self, channels):
        super().__init__(1, channels)


UNLIKE = {
    LayerNorm: "calls abs (line ",
    TrainsOtherwise: "self.training (line ",
    Conditioned: "forward needs other arguments",
    GroupNorm: "calls group_norm (line ",
}


@pytest.mark.parametrize("kind", UNLIKE, ids=lambda kind: kind.__name__)
def test_what_computes_something_else_stays_and_says_why(kind, capsys):
    model = torch.nn.Sequential(kind(8))
    before = copy.deepcopy(dict(vars(model[0])))
    assert lngrad_torch.patch(model, verbose=True) == 0
    assert type(model[0]) is kind
    row = capsys.readouterr().out.splitlines()[1].split(maxsplit=2)
    assert row[1].endswith(kind.__qualname__)
    assert row[2].startswith(f"no: {UNLIKE[kind]}")
    assert vars(model[0]).keys() == before.keys()
    assert model[0].eps == before["eps"]


RMS = {
    torch.nn.RMSNorm: "",
    Llama: ": RMS, xhat rounded before weight",
    T5: ": RMS, xhat rounded before weight",
    Gemma: ": RMS, 1 + weight",
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", RMS, ids=lambda kind: kind.__name__)
def test_rms_normalizations_are_turned_and_their_variant_is_named(kind, capsys):
    torch.manual_seed(0)
    model = torch.nn.Sequential(kind(8))
    torch.nn.init.normal_(model[0].weight)
    twin = copy.deepcopy(model)
    assert lngrad_torch.patch(model, verbose=True) == 1
    assert capsys.readouterr().out.splitlines()[1].endswith(f"  yes{RMS[kind]}")
    assert isinstance(model[0], kind)
    x, dy = torch.randn(2, 5, 8)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        (y, grads), (expected, theirs) = (run(module.to(dtype), x.to(dtype), dy.to(dtype)) for module in (model, twin))
        assert y.dtype is expected.dtype
        for result, other in zip((y, *grads), (expected, *theirs), strict=True):
            torch.testing.assert_close(result, other, atol=tolerance, rtol=tolerance)
    for other in (torch.jit.script(model), torch.fx.symbolic_trace(model)):
        torch.testing.assert_close(other(x.bfloat16()), model(x.bfloat16()))
    assert lngrad_torch.patch(model) == 0
    assert lngrad_torch.unpatch(model) == 1
    assert type(model[0]) is kind


def test_no_hook_hears_of_the_trial_and_all_hear_of_calls():
    model, calls = torch.nn.Sequential(Same(8)), []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    assert lngrad_torch.patch(model) == 1
    assert not calls
    model(torch.randn(3, 8))
    assert len(calls) == 1


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_table_of_the_modules(share, monkeypatch, capsys):
    monkeypatch.setattr("lngrad.core.machine.Others.share", lambda self: share)
    model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), Same(8), Conditioned(8))
    assert lngrad_torch.patch(model, verbose=True) == 2
    table, measured = capsys.readouterr().out.split("\n\n")
    lines = [line.split() for line in table.splitlines()]
    assert lines[0] == ["module", "class", "replaced"]
    assert [line[0] for line in lines[1:]] == ["0", "2", "3"]
    assert [line[2] for line in lines[1:]] == ["yes", "yes", "no:"]
    ratio = r"\d+\.\d\d( \(slower\))?"
    found = "not measured: the machine is busy" if share else f"128 rows {ratio}, 8192 rows {ratio}"
    step = f"float32 on cpu: time of a step over that by its own forward: {found}"
    for line, kind in zip(measured.splitlines(), ("LayerNorm", "Same"), strict=True):
        assert re.fullmatch(rf"{kind} \(8,\), {step}", line)
    assert lngrad_torch.patch(torch.nn.Linear(3, 3), verbose=True) == 0
    assert "no layer normalization found" in capsys.readouterr().out


class Scaled(torch.nn.Module):
    """A norm between two operations that Inductor fuses with its own."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return torch.nn.functional.gelu(self.norm(x * 2))


@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, torch.nn.RMSNorm, Same])
@pytest.mark.parametrize("compiled", [None, "lngrad", "torch"])
def test_what_turned_modules_are_in_compiled_code(kind, compiled):
    """Bits of eager code, or the formula that they had; eager code is ours, exports too."""
    torch.compiler.reset()
    graphs, x = [], torch.randn(6, 8)
    model = Scaled(kind(8))
    assert lngrad_torch.patch(model, compiled=compiled) == 1
    y = torch.compile(model, backend=lambda graph, inputs: graphs.append(str(graph.code)) or graph)(x)
    torch.testing.assert_close(y, model(x))
    assert ("torch.ops.lngrad" in graphs[0]) == (compiled != "torch")
    assert "lngrad" in str(torch.export.export(model, (x,)).graph)
    assert copy.deepcopy(model).norm.lngrad_compiled == compiled
    assert lngrad_torch.unpatch(model) == 1
    assert "lngrad_compiled" not in vars(model.norm)


def test_on_a_gpu_compiled_code_is_torchs_unless_ours_is_asked_for(monkeypatch):
    on_a_gpu = SimpleNamespace(is_cuda=True)
    own = lngrad_torch.LayerNorm(8)
    turned = {norm: torch.nn.LayerNorm(8) for norm in (None, "lngrad", "torch")}
    for compiled, module in turned.items():
        lngrad_torch.patch(module, compiled=compiled)
    modules = own, *turned.values()
    assert not any(left_to_inductor(module, on_a_gpu) for module in modules)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert [left_to_inductor(module, on_a_gpu) for module in modules] == [False, True, False, True]
    with pytest.raises(ValueError, match="compiled: expected 'lngrad', 'torch' or None, got 'inductor'"):
        lngrad_torch.patch(own, compiled="inductor")


def test_on_a_gpu_without_native_code_torchs_layer_normalization_stays(monkeypatch, capsys):
    """Its Python is slower than torch's; RMS normalization, which torch composes, and other classes are turned."""
    monkeypatch.setattr(patching, "_is_on_a_gpu", lambda module: True)
    monkeypatch.setattr(patching.native, "module", None)
    for compiled, expected in ((None, 2), ("lngrad", 3)):
        model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.RMSNorm(8), Same(8))
        assert lngrad_torch.patch(model, compiled=compiled, verbose=True) == expected
        assert ("no: slower on a GPU without native code" in capsys.readouterr().out) == (compiled is None)
        assert (type(model[0]) is torch.nn.LayerNorm) == (compiled is None)


def test_torchs_own_class_becomes_ours_and_back():
    model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Sequential(torch.nn.LayerNorm(8)))
    x = torch.randn(3, 8)
    before, parameters = model(x), list(model.parameters())
    assert lngrad_torch.patch(model) == 2
    assert [type(m) for m in (model[0], model[1][0])] == [lngrad_torch.LayerNorm] * 2
    assert all(parameter is other for parameter, other in zip(model.parameters(), parameters, strict=True))
    torch.testing.assert_close(copy.deepcopy(model)(x), before)
    assert lngrad_torch.patch(model) == 0
    assert lngrad_torch.unpatch(model) == 2
    check_same_bits(model(x).detach(), before.detach())
    assert lngrad_torch.patch(torch.nn.LayerNorm(8)) == 1
