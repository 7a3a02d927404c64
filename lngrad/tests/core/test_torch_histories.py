"""What torch keeps beside a tensor's elements: the functions that compute on addresses refuse it, or do as torch does."""

from dataclasses import replace

import numpy as np
import pytest

import lngrad
from lngrad.errors import DtypeError
from lngrad.testing import Case, Normalization, check_same_bits, make_inputs
from norms import backward, forward

torch = pytest.importorskip("torch")

FAMILY = [Normalization(), Normalization(centred=False)]


def mapped(inputs, function):
    arrays = {name: value for name, value in vars(inputs).items() if hasattr(value, "shape")}
    return replace(inputs, **{name: function(value) for name, value in arrays.items()})


def inputs_of(normalization):
    return mapped(make_inputs(Case((3,), (8,)), "float32", normalization=normalization), torch.from_numpy)


@pytest.mark.parametrize("normalization", FAMILY, ids=["layer_norm", "rms_norm"])
@pytest.mark.parametrize(("call", "names"), [(forward, "x gamma"), (backward, "dy x rstd gamma")])
def test_a_history_is_refused_where_torch_would_go_on_with_it(call, names, normalization):
    inputs = inputs_of(normalization)
    call(inputs)
    for name in names.split():
        tensor = getattr(inputs, name).requires_grad_()
        with pytest.raises(DtypeError, match=r"without history, got one that requires grad: lngrad.torch's"):
            call(inputs)
        with torch.no_grad():
            call(inputs)
        tensor.requires_grad_(False)


def test_a_function_of_torchs_may_call_it():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return lngrad.layer_norm(x).y

        @staticmethod
        def backward(ctx, dy):
            return 2 * dy

    x = torch.randn(3, 8, requires_grad=True)
    Doubled.apply(x).sum().backward()
    assert (x.grad == 2).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit.trace
def test_a_tangent_and_a_trace_are_refused():
    x = torch.randn(3, 8)
    with torch.autograd.forward_ad.dual_level():
        lngrad.layer_norm(x)
        with pytest.raises(DtypeError, match=r"^x: .*got one that has a tangent"):
            lngrad.layer_norm(torch.autograd.forward_ad.make_dual(x, x))
    with pytest.raises(DtypeError, match=r"^x: expected a tensor that is not traced"):
        torch.jit.trace(lambda x: lngrad.layer_norm(x).y, x)


def test_autograd_hears_of_what_is_written():
    written, weight = torch.randn(3, 8), torch.ones(8, requires_grad=True)
    out = lngrad.Forward(written, None, None)
    for _ in range(2):  # the second call is one that is known
        loss = (written * weight).sum()
        lngrad.layer_norm(torch.randn(3, 8), out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    with torch.inference_mode():
        lngrad.layer_norm(torch.randn(3, 8), out=lngrad.Forward(torch.empty(3, 8), None, None))


def test_a_leaf_is_no_place_for_results():
    for place in (torch.zeros(3, 8, requires_grad=True), torch.ones(8, 3, requires_grad=True).T * 2):
        with pytest.raises(DtypeError, match=r"^out.y: .*requires grad"):
            lngrad.layer_norm(torch.randn(3, 8), out=lngrad.Forward(place, None, None))


@pytest.mark.parametrize("normalization", FAMILY, ids=["layer_norm", "rms_norm"])
def test_the_negative_bit_is_a_sign(normalization):
    inputs = inputs_of(normalization)
    negative = mapped(inputs, lambda tensor: torch._neg_view(-tensor))
    for call in (forward, backward):
        got, expected = call(negative), call(inputs)
        check_same_bits(got[:2], expected[:2])
    with pytest.raises(DtypeError, match=r"^out.y: .*negative bit"):
        lngrad.layer_norm(inputs.x, out=lngrad.Forward(torch._neg_view(torch.ones(3, 8)), None, None))


class Frame:
    """As pandas': a method is named mask."""

    def mask(self): ...

    def to_numpy(self): ...


class Masked:
    @property
    def __array_interface__(self):
        return {**np.ones((2, 3)).__array_interface__, "mask": np.eye(2, 3)}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (lambda x: (Frame(),), r"^x: expected an array \(.*\), got Frame; pass its .to_numpy\(\)$"),
        (lambda x: (Masked(),), r"^x: expected an array of numbers alone, got Masked with a mask$"),
        (lambda x: (x, 8), r"^gamma: expected an array, got 8; did you mean normalized_shape=\?$"),
        (lambda x: (x, (8,)), r"^gamma: expected an array, got \(8,\); did you mean normalized_shape=\?$"),
        (lambda x: (torch.nested.nested_tensor([x, x]),), r"^x: expected a dense tensor, got a nested one; lngrad.torch"),
    ],
)  # fmt: skip
def test_what_comes_from_elsewhere_is_refused_in_a_line(arguments, text):
    with pytest.raises(DtypeError, match=text):
        lngrad.layer_norm(*arguments(torch.ones(3, 8)))
