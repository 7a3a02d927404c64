"""A patched model where torch's own works: torch.fx, TorchScript, ONNX, checkpoints."""

from __future__ import annotations

import io

import pytest

torch = pytest.importorskip("torch")

import lngrad.torch as door  # noqa: E402  # torch may be missing
from lngrad.testing import check_same_bits  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:`torch.jit:DeprecationWarning")


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
    assert door.patch(model) == 1
    return model


def same(model, other):
    """Values and gradients."""
    x = torch.randn(5, 8)
    results = []
    for one in (model, other):
        y = one(x)
        results.append((y.detach(), *torch.autograd.grad(y.pow(3).sum(), list(one.parameters()))))
    check_same_bits(*results)


def test_fx_traces_it_as_one_call(model):
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"] == [door.layer_norm]
    same(model, traced)


def test_fx_traces_the_function():
    traced = torch.fx.symbolic_trace(lambda x, w: door.layer_norm(x, 8, w) + 1)
    x, w = torch.randn(3, 8), torch.randn(8)
    check_same_bits(traced(x, w), door.layer_norm(x, 8, w) + 1)


def test_features_are_extracted_by_fx(model):
    """As torchvision's create_feature_extractor does: a traced graph cut at a node, and printed as Python."""
    traced = torch.fx.symbolic_trace(model)
    node = next(node for node in traced.graph.nodes if node.target is door.layer_norm)
    next(node for node in traced.graph.nodes if node.op == "output").replace_input_with(node, node.args[0])
    traced.recompile()
    assert traced(torch.randn(3, 8)).shape == (3, 8)


@pytest.mark.parametrize("way", ["trace", "script"])
def test_torchscript(model, way):
    made = torch.jit.trace(model, (torch.randn(3, 8),)) if way == "trace" else torch.jit.script(model)
    assert "lngrad::layer_norm" in str(made.inlined_graph)
    same(model, made)
    file = io.BytesIO()
    torch.jit.save(made, file)
    file.seek(0)
    same(model, torch.jit.load(file))


@pytest.mark.parametrize("dynamo", [False, True], ids=["old", "new"])
@pytest.mark.filterwarnings("ignore")  # of the exporters
def test_onnx_has_its_own_layer_normalization(model, dynamo):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    if dynamo:
        graph = torch.onnx.export(model, (torch.randn(3, 8),), dynamo=True, verbose=False).model_proto.graph
    else:
        file = io.BytesIO()
        torch.onnx.export(model, (torch.randn(3, 8),), file, dynamo=False)
        graph = onnx.load_from_string(file.getvalue()).graph
    assert [node.op_type for node in graph.node] == ["Gemm", "LayerNormalization"]


def test_checkpoints_are_torchs(model):
    """The state dict loads with weights_only, into torch's own model and back."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    theirs = Model()
    theirs.load_state_dict(torch.load(file, weights_only=True))
    assert door.patch(theirs) == 1
    same(model, theirs)


def test_a_whole_module_loads_where_its_class_is_allowed_as_torchs_own():
    """torch refuses whole modules by default, its own too; both load once their class is named as safe."""
    for kind in (torch.nn.LayerNorm, door.LayerNorm):
        file = io.BytesIO()
        torch.save(kind(8), file)
        file.seek(0)
        with torch.serialization.safe_globals([kind]):
            loaded = torch.load(file, weights_only=True)
        assert type(loaded) is kind
