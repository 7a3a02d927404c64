"""What patch reads in a forward: classes made to deceive it, none of which is turned and then something else."""

from __future__ import annotations

import collections
import copy
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch_classes import form, rms  # noqa: E402

import lngrad.torch as lngrad_torch  # noqa: E402  # torch may be missing
from lngrad.core import fallbacks  # noqa: E402
from lngrad.testing import check_same_bits  # noqa: E402

F = torch.nn.functional
GAIN = 1.0


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, dy):
        return dy / 2


def unbiased(x, eps):
    return x * torch.rsqrt(x.var(-1, keepdim=True) + eps)


def logged(self, x):
    self.seen.append(float(x.abs().max()))
    return rms(x, self.eps) * self.weight


def kept(self, x):
    self.amax.copy_(torch.maximum(self.amax, x.detach().abs().max()))
    return rms(x, self.eps) * self.weight


def counted(self, x):
    self.table["calls"] += 1
    return rms(x, self.eps) * self.weight


def in_place(self, x):
    x *= torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
    return x * self.weight


def hooked(self, x):
    y = rms(x, self.eps)
    y.register_hook(lambda dy: 2 * dy)
    return y * self.weight


# A forward, attributes besides, and what the reason begins with.
STAY = {
    "a detach in training": (
        lambda s, x: x * (rms(x, s.eps) / x).detach() if s.training else rms(x, s.eps), {}, "self.training",
    ),
    "a constant weight": (lambda s, x: rms(x, s.eps) * s.weight.detach(), {}, "calls detach"),
    "weight's data": (lambda s, x: rms(x, s.eps) * s.weight.data, {}, "calls data"),
    "a scaled gradient": (lambda s, x: Halved.apply(rms(x, s.eps)) * s.weight, {}, "reads test_torch_patch_reading.Halved"),
    "a hook": (hooked, {}, "calls register_hook"),
    "a limited rstd": (
        lambda s, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + s.eps).clamp(max=100) * s.weight, {}, "calls clamp",
    ),
    "quiet rows": (lambda s, x: torch.where(x.square().mean(-1, keepdim=True) < 1e-3, x, rms(x, s.eps)), {}, "a branch"),
    "a long sequence": (lambda s, x: (x if x.shape[1] > 256 else rms(x, s.eps)) * s.weight, {}, "a branch on data, sizes"),
    "strides": (lambda s, x: (rms(x, s.eps) if x.is_contiguous() else x) * s.weight, {}, "calls is_contiguous"),
    "a length as factor": (lambda s, x: rms(x, s.eps) * s.weight * x.shape[0], {}, "arithmetic of a size"),
    "a device": (lambda s, x: (x if x.device.type == "cuda" else rms(x, s.eps)) * s.weight, {}, "a branch on data, sizes"),
    "a deque": (logged, {"seen": collections.deque()}, "reads self.seen.append"),
    "the largest so far": (kept, {"amax": torch.zeros(())}, "self.amax is a tensor"),
    "a count in a dict": (counted, {"table": {"calls": 0}}, "a change in place"),
    "x in place": (in_place, {}, "a change in place"),
    "unbiased": (lambda s, x: unbiased(x - x.mean(-1, keepdim=True), s.eps) * s.weight, {}, "computes something else"),
    "no gradients": (torch.no_grad()(lambda s, x: rms(x, s.eps) * s.weight), {}, "<lambda> is decorated"),
}  # fmt: skip


@pytest.mark.parametrize("name", STAY)
def test_what_is_not_read_stays_and_says_where(name, capsys):
    forward, more, reason = STAY[name]
    module = form(forward, weight="p", eps=1e-6, **more)
    before = copy.deepcopy(vars(module))
    assert lngrad_torch.patch(torch.nn.Sequential(module), verbose=True) == 0
    row = capsys.readouterr().out.splitlines()[1].split(maxsplit=2)[2]
    assert row.startswith(f"no: {reason}")
    assert ("(line " in row) == (reason[0] not in "<c" or reason.startswith("calls"))
    assert {name: vars(module)[name] for name in more} == {name: before[name] for name in more}


def settled(self, x):
    y = F.layer_norm(x, (8,), self.weight, self.bias, self.of.eps) * self.table["gain"] * GAIN
    y = y if self.condition is None else y * (1 + self.condition)
    return self.post(self.finish(y)) * self.kind


class Settled(torch.nn.Module):
    kind = 1.0
    forward = settled

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8))
        self.register_parameter("bias", None)
        self.condition, self.table, self.of = None, {"gain": 1.0}, SimpleNamespace(eps=1e-5)
        self.post = as_it_is

    def finish(self, y):
        return y


def as_it_is(y):
    return y


def twice(*arguments):
    return 2 * arguments[-1]


CHANGES = {
    "a tensor": lambda m: setattr(m, "condition", torch.ones(8)),
    "a parameter": lambda m: setattr(m, "bias", torch.nn.Parameter(torch.ones(8))),
    "a parameter that was a setting": lambda m: setattr(m, "condition", torch.nn.Parameter(torch.ones(8))),
    "a value in a dict": lambda m: m.table.update(gain=2.0),
    "a shared configuration": lambda m: setattr(m.of, "eps", 0.5),
    "a function": lambda m: setattr(m, "post", twice),
    "a method": lambda m: setattr(m, "finish", twice),
    "by its dict": lambda m: vars(m).update(kind=3.0),
    "weight None": lambda m: setattr(m, "weight", None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_it_has_read_may_change(name):
    theirs, x = Settled(), torch.randn(3, 8)
    ours = copy.deepcopy(theirs)
    assert lngrad_torch.patch(ours) == 1
    fallbacks._counts.clear()
    torch.testing.assert_close(ours(x), theirs(x))
    assert not lngrad_torch.fallbacks()
    for module in (theirs, ours):
        CHANGES[name](module)
    check_same_bits(ours(x).detach(), theirs(x).detach())
    assert lngrad_torch.fallbacks()


@pytest.mark.parametrize("name", ["GAIN", "rms", "kind", "forward"])
def test_globals_and_classes_may_change(name, monkeypatch):
    kind = type("Norm", (Settled,), {})
    theirs, x = kind(), torch.randn(3, 8)
    ours = copy.deepcopy(theirs)
    if name == "rms":
        kind.forward = lambda s, x: rms(x, 1e-6) * s.weight
    assert lngrad_torch.patch(ours) == 1
    if name in globals():
        monkeypatch.setitem(globals(), name, 2.0 if name == "GAIN" else lambda x, eps: 2 * x)
    else:
        setattr(kind, name, 2.0 if name == "kind" else twice)
    check_same_bits(ours(x).detach(), theirs(x).detach())


class Root(torch.nn.Module):
    known: dict[str, type] = {}  # noqa: RUF012  # a registry

    def __init_subclass__(cls, key, **options):
        super().__init_subclass__(**options)
        Root.known[key] = cls


class Registered(Root, key="rms"):
    def __init__(self, offset=0.0):
        super().__init__()
        self.weight, self.eps, self.offset, self.formula = torch.nn.Parameter(torch.randn(8)), 1e-6, offset, "pre"

    def forward(self, x):
        return rms(x, self.eps) * (self.offset + self.weight)


def test_another_of_a_turned_class_is_the_users():
    """By its type or from a registry, whatever its settings."""
    first, x = Registered(), torch.randn(3, 8)
    assert lngrad_torch.patch(first) == 1
    assert Root.known == {"rms": Registered}
    second = type(first)(offset=1.0)
    assert type(second) is Registered
    check_same_bits(second(x).detach(), (rms(x, 1e-6) * (1.0 + second.weight)).detach())
    replica = type(first).__new__(type(first))  # as DataParallel makes them
    replica.__dict__ = {**vars(first), "offset": 1.0}
    torch.testing.assert_close(replica(x), rms(x, 1e-6) * (1.0 + first.weight))


class Compiled(torch.nn.Module):
    """A norm whose arithmetic has no source."""

    def __init__(self):
        super().__init__()
        self.scale, self.variance_epsilon = torch.nn.Parameter(torch.randn(8)), 1e-6

    def forward(self, x):
        return torch.ops.aten.rms_norm(x, [8], self.scale, self.variance_epsilon)


def test_a_formula_that_is_registered(monkeypatch):
    monkeypatch.setattr("lngrad.torch.patching._registered", {})
    theirs = Compiled()
    ours, x = copy.deepcopy(theirs), torch.randn(2, 3, 8)
    assert lngrad_torch.patch(ours) == 0
    lngrad_torch.register_norm(Compiled, lngrad_torch.Formula(weight="scale", eps="variance_epsilon"))
    assert lngrad_torch.patch(ours) == 1
    for module in (theirs, ours):
        module.variance_epsilon = 0.5
    torch.testing.assert_close(ours(x), theirs(x))
    with pytest.raises(TypeError, match="cls: expected a class of modules, got 3"):
        lngrad_torch.register_norm(3, lngrad_torch.Formula())
    with pytest.raises(TypeError, match="formula: expected a Formula, got 'rms'"):
        lngrad_torch.register_norm(Compiled, "rms")


def test_rows_of_zeros_of_what_was_normalized():
    """F.normalize divides by 1e-12 at least."""
    theirs = form(lambda s, x: F.normalize(x, dim=-1) * 8**0.5 * s.g, g="p")
    ours, results = copy.deepcopy(theirs), []
    assert lngrad_torch.patch(ours) == 1
    for module in (theirs, ours):
        x = (
            torch.randn(3, 8, generator=torch.Generator().manual_seed(0)) * torch.tensor([[0.0], [1.0], [1e-20]])
        ).requires_grad_()
        y = module(x)
        results.append((y.detach(), *torch.autograd.grad(y.sum(), x)))
    for got, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, expected)
