"""unpatch where others have changed a module's class since patch: what they mixed in stays."""

import pytest

from lngrad.testing import check_same_bits

torch = pytest.importorskip("torch")

from torch_classes import Llama  # noqa: E402

import lngrad.torch as lngrad_torch  # noqa: E402

KINDS = [torch.nn.LayerNorm, torch.nn.RMSNorm, Llama]


class Exponential(torch.nn.Module):
    def forward(self, weight):
        return weight.exp()


class Sharded:
    """As FSDPModule: mixed in by a class that is made for each class."""

    def unshard(self):
        return "whole"


def parametrized(module):
    torch.nn.utils.parametrize.register_parametrization(module, "weight", Exponential())


def sharded(module):
    module.__class__ = type(f"Sharded{type(module).__name__}", (Sharded, type(module)), {})


@pytest.mark.parametrize("change", [parametrized, sharded])
@pytest.mark.parametrize("kind", KINDS)
def test_a_class_that_was_mixed_in_stays(kind, change):
    model = torch.nn.Sequential(kind(8), kind(8))
    x = torch.randn(3, 8)
    expected = torch.nn.Sequential(*(kind(8) for _ in range(2)))
    for module in expected:
        change(module)
    lngrad_torch.patch(model)
    for module in model:
        change(module)
    model(x)
    assert lngrad_torch.unpatch(model) == 2
    check_same_bits(model(x), expected(x))
    for module, other in zip(model, expected, strict=True):
        assert [base.__qualname__ for base in type(module).__mro__] == [
            base.__qualname__ for base in type(other).__mro__
        ]
        assert isinstance(module, kind)
    if change is sharded:
        assert model[0].unshard() == "whole"


def test_a_class_of_the_users_own_is_left():
    class Own(lngrad_torch.LayerNorm):
        pass

    assert lngrad_torch.unpatch(torch.nn.Sequential(Own(8))) == 0


@pytest.mark.parametrize("function", [lngrad_torch.patch, lngrad_torch.unpatch])
@pytest.mark.parametrize(("model", "hint"), [("x", ""), (torch.nn.LayerNorm, "; give it a module, not its class")])
def test_what_is_no_model(function, model, hint):
    with pytest.raises(TypeError, match=rf"^model: expected a torch.nn.Module, got .*{hint}$"):
        function(model)
