"""Models of libraries, where these are installed: which modules patch turns, and that the models compute the same."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import lngrad.torch as door  # noqa: E402  # torch may be missing

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


def same(model, x, turned):
    """Values and gradients of torch's own and of the patched model, in float64 and so without dropout."""
    theirs = model.double().eval()
    ours = copy.deepcopy(theirs)
    assert door.patch(ours) == turned
    results = []
    for one in (theirs, ours):
        y = one(x.double())
        y = y if isinstance(y, torch.Tensor) else y[0]
        y.square().sum().backward()
        results.append((y.detach(), *(parameter.grad for parameter in one.parameters() if parameter.grad is not None)))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9 * max(1.0, float(expected.abs().max())))


TIMM = {  # small ones: their options, the size of an image, and how many modules are turned
    "deit3_small_patch16_224": ({"img_size": 32, "depth": 2}, 32, 5),
    "eva02_tiny_patch14_224": ({"img_size": 28, "depth": 2}, 28, 5),
    "poolformerv2_s12": ({}, 64, 5),
    "caformer_s18": ({}, 64, 42),
    "coatnet_nano_rw_224": ({"img_size": 64}, 64, 19),
    "convnext_atto": ({"depths": (1, 1, 1, 1)}, 64, 9),
}


@pytest.mark.parametrize("name", TIMM)
def test_timm(name):
    timm = pytest.importorskip("timm")
    options, size, turned = TIMM[name]
    torch.manual_seed(0)
    same(timm.create_model(name, pretrained=False, **options), torch.randn(2, 3, size, size), turned)


def test_timms_group_normalizations_stay(capsys):
    """Over channels and positions together: something else, and so reported."""
    timm = pytest.importorskip("timm")
    door.patch(timm.create_model("poolformerv2_s12", pretrained=False), verbose=True)
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()[1:]]
    assert {kind.rpartition(".")[2]: turned[:3] for _, kind, turned in rows} == {
        "LayerNorm2dNoBias": "yes",
        "LayerNorm2d": "yes",
        "GroupNorm1NoBias": "no:",
    }


def test_convnext_of_transformers():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    settings = transformers.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1])
    same(transformers.ConvNextModel(settings), torch.randn(2, 3, 64, 64), 9)


@pytest.mark.parametrize(
    ("name", "module", "size"),
    [("swin_t", "features.1.0.norm1", 64), ("convnext_tiny", "features.2.0", 64), ("vit_b_32", "encoder.ln", 224)],
)
def test_torchvision_extracts_features(name, module, size):
    """By the names of modules, as of torch's own."""
    models = pytest.importorskip("torchvision.models")
    from torchvision.models.feature_extraction import create_feature_extractor

    torch.manual_seed(0)
    model, x, found = getattr(models, name)(weights=None).eval(), torch.randn(1, 3, size, size), []
    for patched in (False, True):
        assert bool(patched and door.patch(model)) == patched
        extractor = create_feature_extractor(model, [module])
        assert any(node.target is door.layer_norm for node in extractor.graph.nodes) == patched
        found.append(extractor(x)[module])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
