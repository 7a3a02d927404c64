"""Tensors and programs that torch takes, and lngrad in its place; and errors of one line where there is nothing to do."""

import numpy as np
import pytest

import lngrad
from lngrad.errors import DtypeError, NumberError
from lngrad.testing import check_same_bits

torch = pytest.importorskip("torch")

from torch_classes import ByHand, Channels, Llama  # noqa: E402

import lngrad.torch as lngrad_torch  # noqa: E402

F = torch.nn.functional
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("way", "kind"),
    [*(("patch", kind) for kind in (torch.nn.LayerNorm, torch.nn.RMSNorm, Llama)), ("override", Llama), ("gated", Llama),
     ("modulated", Llama)],
)  # fmt: skip
def test_features_computed_in_inference_mode_train_a_norm(way, kind):
    module, weight = torch.nn.Sequential(kind(8)), torch.ones(4, 8, requires_grad=True)
    with torch.inference_mode():
        features = X.clone()
    calls = {
        "patch": lambda x: module(x),
        "override": lambda x: F.rms_norm(x, (8,), weight[0]),
        "gated": lambda x: lngrad_torch.gated_rms_norm(x, x, weight[0]),
        "modulated": lambda x: lngrad_torch.modulated_layer_norm(x, weight),
    }
    lngrad_torch.patch(module)
    leaves = [*module.parameters()] if way == "patch" else [weight]
    with lngrad_torch.override():
        grads = [torch.autograd.grad(calls[way](x).pow(2).sum(), leaves) for x in (features, features.clone())]
    check_same_bits(*grads)


def test_a_jagged_tensor_is_left_where_the_compiled_code_has_our_operators():
    inductor = pytest.importorskip("lngrad.torch.inductor", exc_type=ImportError)
    for x in (torch.nested.nested_tensor([X, X[:3]], layout=torch.jagged), X):
        graph = torch.fx.Graph()
        place = graph.placeholder("x")
        place.meta["example_value"] = x
        graph.output(graph.call_function(F.layer_norm, (place, (8,))))
        inductor._ToOperator()(graph)
        assert any(node.target is F.layer_norm for node in graph.nodes) == x.is_nested


def test_override_inside_of_compiled_code_changes_nothing():
    def function(x):
        with lngrad_torch.override():
            return F.layer_norm(x, (8,))

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(X), function(X))


@pytest.mark.filterwarnings("ignore")  # torch.ao's, of its end
def test_a_patched_model_is_quantized_as_the_original():
    from torch.ao import quantization as ao

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = ao.QuantStub(), torch.nn.LayerNorm(8), ao.DeQuantStub()

        def forward(self, x):
            return self.last(self.norm(self.first(x)))

    results = []
    for patched in (False, True):
        model = Model().eval()
        assert not patched or lngrad_torch.patch(model) == 1
        model.qconfig = ao.default_qconfig
        ao.prepare(model, inplace=True)(X)
        results.append(ao.convert(model)(X))
    torch.testing.assert_close(*results)


def test_sizes_of_numpy_are_sizes():
    for size in (np.int64(8), [np.int32(8)]):
        check_same_bits(lngrad_torch.layer_norm(X, size), lngrad_torch.layer_norm(X, 8))
        check_same_bits(lngrad.layer_norm(X, normalized_shape=size), lngrad.layer_norm(X, normalized_shape=8))


@pytest.mark.parametrize("eps", [-1e-5, float("nan"), float("inf"), "small"])
def test_an_eps_that_no_variance_takes(eps):
    for call in (
        lambda: lngrad_torch.layer_norm(X, 8, eps=eps),
        lambda: lngrad_torch.rms_norm(X, 8, eps=eps),
        lambda: lngrad_torch.add_rms_norm(X, X, 8, eps=eps),
        lambda: lngrad_torch.gated_rms_norm(X, X, eps=eps),
    ):
        with pytest.raises(NumberError, match=r"^eps: expected a number"):
            call()


@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, torch.Tensor.to_mkldnn], ids=["sparse", "mkldnn"])
def test_tensors_without_rows(make):
    """torch's errors where it has a function, ours where it has none."""
    x = make(X)
    for name in ("layer_norm", "rms_norm"):
        with pytest.raises(RuntimeError) as theirs:
            getattr(F, name)(x, (8,))
        with lngrad_torch.override(), pytest.raises(theirs.type) as under_override:
            getattr(F, name)(x, (8,))
        with pytest.raises(theirs.type):
            getattr(lngrad_torch, name)(x, (8,))
        assert str(under_override.value) == str(theirs.value)
    for call in (lambda: lngrad_torch.add_rms_norm(x, x, 8), lambda: lngrad_torch.gated_rms_norm(x, x)):
        with pytest.raises(
            DtypeError, match=r"^input: expected a dense tensor of floats, got layout torch.\w+, torch.fl"
        ):
            call()


def test_switches_that_are_none():
    for call in (lambda: lngrad_torch.enable(compiled="yes"), lambda: lngrad_torch.override(compiled=1)):
        with pytest.raises(TypeError, match=r"^compiled: expected True or False, got "):
            call()


@pytest.mark.parametrize("kind", [Channels, ByHand])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_patched_norm_of_channels_first_has_the_strides_of_theirs(kind, memory_format):
    images = torch.randn(2, 8, 5, 6).contiguous(memory_format=memory_format)
    model = torch.nn.Sequential(kind(8))
    expected = model(images)
    assert lngrad_torch.patch(model) == 1
    assert model(images).stride() == expected.stride()
    torch.testing.assert_close(model(images), expected)
