"""Models of libraries, where these are installed: which modules patch turns, and that the models compute the same."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import lngrad.torch as lngrad_torch  # noqa: E402  # torch may be missing

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


def same(model, x, turned):
    """Values and gradients of torch's own and of the patched model, in float64 and so without dropout."""
    theirs = model.double().eval()
    ours = copy.deepcopy(theirs)
    assert lngrad_torch.patch(ours) == turned
    results = []
    for model in (theirs, ours):
        y = model(x.double())
        y = y if isinstance(y, torch.Tensor) else y[0]
        y.square().sum().backward()
        results.append(
            (y.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None))
        )
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
    lngrad_torch.patch(timm.create_model("poolformerv2_s12", pretrained=False), verbose=True)
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.partition("\n\n")[0].splitlines()[1:]]
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


LLAMA_LIKE = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 97, "pad_token_id": 0,
}  # fmt: skip
HEADS = {"head_dim": 8}
ENCODER = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 97,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
T5 = {
    "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 97, "decoder_start_token_id": 0,
    "dropout_rate": 0.0,
}  # fmt: skip
TWICE, ONE_PLUS = "yes: RMS, xhat rounded before weight", "yes: RMS, 1 + weight"
# The model and its settings, and how many of its modules are turned, and as what.
TRANSFORMERS = {
    "LlamaForCausalLM": (LLAMA_LIKE, 5, TWICE),
    "MistralForCausalLM": (LLAMA_LIKE, 5, TWICE),
    "Qwen3ForCausalLM": (LLAMA_LIKE | HEADS, 9, TWICE),
    "GemmaForCausalLM": (LLAMA_LIKE | HEADS, 5, ONE_PLUS),
    "Gemma3ForCausalLM": (LLAMA_LIKE | HEADS, 13, ONE_PLUS),
    "Olmo2ForCausalLM": (LLAMA_LIKE, 9, "yes: RMS"),
    "T5ForConditionalGeneration": (T5, 12, TWICE),
    "BertForMaskedLM": (ENCODER, 6, "yes"),
}


def of_transformers(name):
    """The model with random weights, those of its norms included."""
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**TRANSFORMERS[name][0]))
    for parameter in model.parameters():
        if parameter.ndim == 1:  # of norms, where all ones or all zeros would hide a mistake
            torch.nn.init.normal_(parameter, parameter.mean().item(), 0.2)
    return model.train()


def losses(model, steps=3):
    """Of some steps of training on one batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    tokens, found = torch.randint(0, 97, (4, 12), generator=torch.Generator().manual_seed(1)), []
    for _ in range(steps):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def operators_of(model):
    """The names of what torch's dispatcher runs in a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        losses(model, 1)
    return {event.name for event in profile.events()}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in TRANSFORMERS]
    + [(name, torch.bfloat16) for name in ("LlamaForCausalLM", "GemmaForCausalLM", "T5ForConditionalGeneration")],
    ids=str,
)
def test_a_model_of_transformers_trains_with_patch(name, dtype, capsys):
    """Losses equal within rounding, and no normalization left that torch computes in pieces."""
    _, turned, variant = TRANSFORMERS[name]
    theirs = of_transformers(name).to(dtype)
    ours = copy.deepcopy(theirs)
    assert lngrad_torch.patch(ours, verbose=True) == turned
    rows = [line.split(maxsplit=2)[2] for line in capsys.readouterr().out.partition("\n\n")[0].splitlines()[1:]]
    assert rows == [variant] * turned
    expected, got = losses(theirs), losses(ours)
    assert expected[-1] < expected[0]
    assert got == pytest.approx(expected, rel=1e-5 if dtype is torch.float32 else 0.02)
    ran = operators_of(ours)
    assert not {"aten::rsqrt", "aten::native_layer_norm"} & ran
    assert any(event.startswith("lngrad::") or event == "_Forward" for event in ran)


def test_a_llama_of_torchs_own_norms_trains_with_override():
    """override() reaches torch.nn.RMSNorm, and not the formula that transformers' own class writes out."""
    model = of_transformers("LlamaForCausalLM")
    before = operators_of(copy.deepcopy(model))
    with lngrad_torch.override():
        assert operators_of(copy.deepcopy(model)) == before
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "LlamaRMSNorm":
            norm = torch.nn.RMSNorm(module.weight.shape, module.variance_epsilon)
            norm.weight = module.weight
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, norm)
    expected = losses(copy.deepcopy(model))
    with lngrad_torch.override():
        got, ran = losses(copy.deepcopy(model)), operators_of(copy.deepcopy(model))
    assert got == pytest.approx(expected, rel=1e-5)
    assert "aten::rsqrt" in before
    assert "aten::rsqrt" not in ran


def test_the_rms_normalization_of_diffusers(capsys):
    normalization = pytest.importorskip("diffusers.models.normalization")
    model = torch.nn.Sequential(normalization.RMSNorm(8, 1e-6), normalization.FP32LayerNorm(8))
    assert lngrad_torch.patch(model, verbose=True) == 2
    assert [line.split(maxsplit=2)[2] for line in capsys.readouterr().out.partition("\n\n")[0].splitlines()[1:]] == [
        TWICE,
        "yes",
    ]


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
        assert bool(patched and lngrad_torch.patch(model)) == patched
        extractor = create_feature_extractor(model, [module])
        assert any(node.target is lngrad_torch.layer_norm for node in extractor.graph.nodes) == patched
        found.append(extractor(x)[module])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
