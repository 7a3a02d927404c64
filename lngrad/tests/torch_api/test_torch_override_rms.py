"""override() and F.rms_norm: ours in eager code, torch's own for what takes it in pieces."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402  # torch may be missing

import lngrad.torch as lngrad_torch  # noqa: E402
from lngrad.core import fallbacks  # noqa: E402
from lngrad.testing import check_same_bits  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("way"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning"),
]
F = torch.nn.functional


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    counts = fallbacks.Counter({"a test": 1})  # not empty: nothing is left for the next process
    monkeypatch.setattr(fallbacks, "_counts", counts)
    return lambda: {reason: n for reason, n in counts.items() if reason.startswith("rms_norm")}


def draw(dtype=torch.float32, weight=None, rows=33):
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(rows, 70, generator=generator), torch.randn(70, generator=generator)
    return x.to(dtype).requires_grad_(), w.to(weight or dtype).requires_grad_()


def step(x, w, rms_norm=F.rms_norm):
    y = rms_norm(x, (70,), w)
    return y, *torch.autograd.grad(y.float().pow(2).sum(), (x, w))


@pytest.mark.parametrize("weight", [None, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_eager_code_gets_our_kernels_and_their_bits(dtype, weight, counted):
    x, w = draw(dtype, weight)
    theirs = step(x, w)
    with lngrad_torch.override():
        mine = step(x, w)
        with torch.no_grad():
            check_same_bits(F.rms_norm(x, (70,), w), mine[0].detach())
        with torch.inference_mode():
            check_same_bits(torch.nn.RMSNorm(70, dtype=dtype)(x.detach()), lngrad_torch.rms_norm(x.detach(), 70))
    check_same_bits(tuple(mine), tuple(step(x, w, lngrad_torch.rms_norm)))
    for ours, other in zip(mine, theirs, strict=True):
        assert ours.dtype is other.dtype
        assert (ours - other).abs().max() <= 16 * torch.finfo(ours.dtype).eps * other.abs().max()
    assert counted() == {}
    assert not type(F.rms_norm(x, (70,), w).grad_fn).__name__.startswith("_Forward")  # torch's own is back


def test_second_derivatives_and_forward_mode():
    x, w = draw(torch.float64, rows=3)

    def both():
        (dx,) = torch.autograd.grad(F.rms_norm(x, (70,), w).pow(3).sum(), x, create_graph=True)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x.cos())
            tangent = torch.autograd.forward_ad.unpack_dual(F.rms_norm(dual, (70,), w)).tangent
        return *torch.autograd.grad(dx.pow(2).sum(), (x, w)), tangent.detach()

    expected = both()
    with lngrad_torch.override():
        torch.testing.assert_close(both(), expected)


class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return operator(*args, **(kwargs or {}))


PIECES = {
    "vmap": lambda x, w: torch.func.vmap(lambda x: F.rms_norm(x, (70,), w))(x),
    "grad": lambda x, w: torch.func.grad(lambda x: F.rms_norm(x, (70,), w).pow(3).sum())(x),
    "jacfwd of grad": lambda x, w: torch.func.jacfwd(
        torch.func.grad(lambda w: F.rms_norm(x[:2], (70,), w).pow(3).sum())
    )(w),
    "compile": lambda x, w: torch.compile(
        lambda x, w: F.rms_norm(x * 1, x.shape[-1:], w), backend="aot_eager", fullgraph=True, dynamic=True
    )(x, w),
    "export": lambda x, w: torch.export.export(torch.nn.RMSNorm(70), (x.detach(),)).module()(x.detach()),
    "a mode": lambda x, w: in_a_mode(x, w),
}


def in_a_mode(x, w):
    with Seen():
        return F.rms_norm(x, (70,), w)


@pytest.mark.parametrize("name", PIECES)
def test_what_takes_rms_norm_in_pieces_gets_torchs_own(name, counted):
    x, w = draw()
    torch.compiler.reset()
    expected = PIECES[name](x, w)
    torch.compiler.reset()
    with lngrad_torch.override():
        torch.testing.assert_close(PIECES[name](x, w), expected)
    assert set(counted()) <= {"rms_norm: a trace, a transform, a mode or a subclass takes it in pieces"}


def test_errors_are_torchs_and_counted(counted):
    def errors():
        found = []
        for shape, weight in (((9,), None), ((70,), torch.ones(3)), ((), None)):
            with pytest.raises((RuntimeError, IndexError)) as raised:
                F.rms_norm(torch.ones(2, 70), shape, weight)
            found.append((raised.type, str(raised.value)))
        return found

    expected = errors()
    with lngrad_torch.override():
        assert errors() == expected
        assert F.rms_norm(torch.ones(0, 70), (70,)).shape == (0, 70)
    assert sum(counted().values()) == 3


def test_freed_memory_is_refused():
    x = torch.ones(2, 70)
    x.untyped_storage().resize_(0)
    with lngrad_torch.override(), pytest.raises(ValueError, match="expected"):
        F.rms_norm(x, (70,))
