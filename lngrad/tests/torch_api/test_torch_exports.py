"""A patched model where torch's own works: torch.fx, TorchScript, ONNX, checkpoints."""

from __future__ import annotations

import copy
import io

import pytest

torch = pytest.importorskip("torch")

from torch_classes import ALIKE, Gemma, Llama, Same  # noqa: E402

import lngrad.torch as lngrad_torch  # noqa: E402  # torch may be missing
from lngrad.testing import check_same_bits  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:`torch.jit:FutureWarning")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.linear(x))


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Model()
    torch.nn.init.normal_(model.norm.weight)
    assert lngrad_torch.patch(model) == 1
    return model


def same(model, other):
    """Values and gradients."""
    x = torch.randn(5, 8)
    results = []
    for module in (model, other):
        y = module(x)
        results.append((y.detach(), *torch.autograd.grad(y.pow(3).sum(), list(module.parameters()))))
    check_same_bits(*results)


def test_fx_traces_it_as_one_call(model):
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"] == [lngrad_torch.layer_norm]
    same(model, traced)


def test_fx_traces_the_function():
    traced = torch.fx.symbolic_trace(lambda x, w: lngrad_torch.layer_norm(x, 8, w) + 1)
    x, w = torch.randn(3, 8), torch.randn(8)
    check_same_bits(traced(x, w), lngrad_torch.layer_norm(x, 8, w) + 1)


def test_features_are_extracted_by_fx(model):
    """As torchvision's create_feature_extractor does: a traced graph cut at a node, and printed as Python."""
    traced = torch.fx.symbolic_trace(model)
    node = next(node for node in traced.graph.nodes if node.target is lngrad_torch.layer_norm)
    next(node for node in traced.graph.nodes if node.op == "output").replace_input_with(node, node.args[0])
    traced.recompile()
    assert traced(torch.randn(3, 8)).shape == (3, 8)


@pytest.mark.filterwarnings("ignore")  # of torch.ao, which goes elsewhere
def test_fx_quantization_leaves_it_in_floating_point(model):
    """Weights of the linear layers around it become 8 bits, as in torch's own model."""
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    x = torch.randn(64, 8)
    theirs = copy.deepcopy(model)
    assert lngrad_torch.unpatch(theirs) == 1
    converted, exact = [], model(x)
    for module in (model, theirs):
        prepared = prepare_fx(module.eval(), get_default_qconfig_mapping("x86"), (x,))
        prepared(x)  # observers see what there is to quantize
        converted.append(convert_fx(prepared))
    assert [node.target for node in converted[0].graph.nodes].count(lngrad_torch.layer_norm) == 1
    assert type(converted[0].linear) is type(converted[1].linear) is not torch.nn.Linear
    error, of_theirs = ((module(x) - exact).norm() / exact.norm() for module in converted)
    assert error <= of_theirs * 1.5
    assert error < 0.05


@pytest.mark.parametrize("way", ["trace", "script"])
def test_torchscript(model, way):
    graph = torch.jit.trace(model, (torch.randn(3, 8),)) if way == "trace" else torch.jit.script(model)
    assert "lngrad::layer_norm" in str(graph.inlined_graph)
    same(model, graph)
    file = io.BytesIO()
    torch.jit.save(graph, file)
    file.seek(0)
    same(model, torch.jit.load(file))


GRAPHS = {
    "fx": lambda model, x: torch.fx.symbolic_trace(model),
    "trace": lambda model, x: torch.jit.trace(model, (x,)),
    "script": lambda model, x: torch.jit.script(model),
    "export": lambda model, x: torch.export.export(model, (x,)).module(),
}


@pytest.mark.parametrize("way", GRAPHS)
@pytest.mark.parametrize("name", ALIKE)
def test_turned_classes_of_others_go_where_torchs_own_goes(name, way):
    """Their shapes are those of tensors, and their attributes have names of their own."""
    make, shape = ALIKE[name]
    torch.manual_seed(0)
    model = torch.nn.Sequential(make())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    assert lngrad_torch.patch(model) == 1
    x = torch.randn(shape)
    graph = GRAPHS[way](model, x)
    if way == "script":  # which has their own forward
        torch.testing.assert_close(graph(x), model(x))
        return
    assert "layer_norm" in str(graph.inlined_graph if isinstance(graph, torch.jit.ScriptModule) else graph.graph)
    check_same_bits(graph(x).detach(), model(x).detach())


def sized(x, w):
    return lngrad_torch.layer_norm(x, x.shape[-1:], w) + lngrad_torch.layer_norm(x, x.shape[-1], w)


@pytest.mark.parametrize(
    ("call", "norms"), [(sized, 2), (lambda x, w: lngrad_torch.gated_rms_norm(x, x.sin(), w), 1)], ids=["sizes", "gate"]
)
def test_a_trace_takes_the_sizes_of_a_tensor(call, norms):
    arrays = torch.randn(3, 8), torch.randn(8)
    traced = torch.jit.trace(call, arrays)
    assert str(traced.graph).count("_norm(") == norms
    more = torch.randn(5, 8), torch.randn(8)
    check_same_bits(traced(*more), call(*more))


def operators(model, x, dynamo, **settings):
    """Of the exported graph."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    if dynamo:
        graph = torch.onnx.export(model, (x,), dynamo=True, verbose=False, **settings).model_proto.graph
    else:
        file = io.BytesIO()
        torch.onnx.export(model, (x,), file, dynamo=False)
        graph = onnx.load_from_string(file.getvalue()).graph
    return [node.op_type for node in graph.node]


@pytest.mark.parametrize("dynamo", [False, True], ids=["old", "new"])
@pytest.mark.filterwarnings("ignore")  # of the exporters
def test_onnx_has_its_own_layer_normalization(model, dynamo):
    assert operators(model, torch.randn(3, 8), dynamo) == ["Gemm", "LayerNormalization"]


@pytest.mark.parametrize("dynamo", [False, True], ids=["old", "new"])
@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.filterwarnings("ignore")  # of the exporters
def test_onnx_of_turned_classes_of_others(name, dynamo):
    make, shape = ALIKE[name]
    model = torch.nn.Sequential(make()).eval()
    assert lngrad_torch.patch(model) == 1
    found = operators(model, torch.randn(shape), dynamo)
    assert [kind for kind in found if kind not in ("Constant", "Transpose")] == ["LayerNormalization"]


RMS_IN_PIECES = ["Pow", "ReduceMean", "Add", "Sqrt", "Reciprocal", "Mul", "Mul"]


@pytest.mark.parametrize("kind", [torch.nn.RMSNorm, Llama, Gemma])
@pytest.mark.filterwarnings("ignore")  # of the exporters
def test_onnx_of_rms_normalization(kind):
    """Its own operator where the opset has it; elsewhere what torch's own becomes."""
    model = torch.nn.Sequential(kind(8)).eval()
    assert lngrad_torch.patch(model) == 1
    x = torch.randn(3, 8)
    assert operators(model, x, True, opset_version=23) == ["RMSNormalization"]
    assert operators(model, x, True) == RMS_IN_PIECES
    assert "Sqrt" in operators(model, x, False)
    assert operators(torch.nn.LayerNorm(8), x, True, opset_version=17) == ["LayerNormalization"]


@pytest.mark.filterwarnings("ignore")  # of the exporters
def test_override_leaves_exports_as_they_are():
    model, x = torch.nn.Sequential(torch.nn.RMSNorm(8), torch.nn.LayerNorm(8)), torch.randn(3, 8)

    def names(exported):
        return [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]

    exported = torch.export.export(model, (x,))
    whole, pieces = names(exported), names(exported.run_decompositions())
    with lngrad_torch.override():
        assert names(torch.export.export(model, (x,))) == whole
        assert names(exported.run_decompositions()) == pieces
        assert not any("rms_norm" in name for name in pieces)
        kept = torch.export.default_decompositions()
        kept.pop(torch.ops.aten.rms_norm.default)
        assert "aten.rms_norm.default" in names(exported.run_decompositions(kept))
    assert names(exported.run_decompositions()) == pieces
    with lngrad_torch.override():
        assert operators(model, x, True) == [*RMS_IN_PIECES, "LayerNormalization"]
        assert operators(model, x, True, opset_version=23) == ["RMSNormalization", "LayerNormalization"]


def test_checkpoints_are_torchs(model):
    """The state dict loads with weights_only, into torch's own model and back."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    theirs = Model()
    theirs.load_state_dict(torch.load(file, weights_only=True))
    assert lngrad_torch.patch(theirs) == 1
    same(model, theirs)


def test_a_whole_module_loads_where_its_class_is_allowed_as_torchs_own():
    """torch refuses whole modules by default, its own too; both load once their class is named as safe."""
    for kind in (torch.nn.LayerNorm, lngrad_torch.LayerNorm):
        file = io.BytesIO()
        torch.save(kind(8), file)
        file.seek(0)
        with torch.serialization.safe_globals([kind]):
            loaded = torch.load(file, weights_only=True)
        assert type(loaded) is kind


def test_a_whole_module_of_another_class_is_saved_after_unpatch():
    model, file = Same(8), io.BytesIO()
    assert lngrad_torch.patch(model) == 1
    assert lngrad_torch.unpatch(model) == 1
    torch.save(model, file)
    file.seek(0)
    with torch.serialization.safe_globals([Same]):
        loaded = torch.load(file, weights_only=True)
    assert type(loaded) is Same
    assert lngrad_torch.patch(loaded) == 1
