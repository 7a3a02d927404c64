"""Real models with torch's LayerNorm and with lngrad's: losses, gradients against float64, modules turned, time.

Run it where transformers or timm are installed: `python examples/models_against_torch.py`. Models are built from small
configurations with random weights, so nothing is downloaded. Every row is one model in one precision.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator

import torch

from lngrad.torch import patch

ROUNDS = 5


def transformers_models() -> Iterator[tuple[str, Callable[[], torch.nn.Module]]]:
    """Name, and how to make it."""
    import transformers as t

    small = {"vocab_size": 128}
    layers = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    image = {"image_size": 32, "patch_size": 8}
    yield "gpt2", lambda: t.GPT2Model(t.GPT2Config(**small, n_embd=64, n_layer=2, n_head=4))
    yield "bert", lambda: t.BertModel(t.BertConfig(**small, **layers))
    yield "roberta", lambda: t.RobertaModel(t.RobertaConfig(**small, **layers, pad_token_id=1))
    yield "electra", lambda: t.ElectraModel(t.ElectraConfig(**small, **layers, embedding_size=32))
    yield (
        "opt",
        lambda: t.OPTModel(
            t.OPTConfig(
                **small, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=128, word_embed_proj_dim=64
            )
        ),
    )
    yield "vit", lambda: t.ViTModel(t.ViTConfig(**layers, **image))
    yield "deit", lambda: t.DeiTModel(t.DeiTConfig(**layers, **image))
    yield "beit", lambda: t.BeitModel(t.BeitConfig(**layers, **image))
    yield "convnext", lambda: t.ConvNextModel(t.ConvNextConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1]))


def timm_models() -> Iterator[tuple[str, Callable[[], torch.nn.Module]]]:
    import timm

    for name in (
        "deit3_small_patch16_224",
        "eva02_tiny_patch14_224",
        "poolformerv2_s12",
        "caformer_s18",
        "coatnet_nano_rw_224",
        "convnext_atto",
        "edgenext_xx_small",
        "swin_tiny_patch4_window7_224",
        "vit_tiny_patch16_224",
        "xcit_nano_12_p16_224",
    ):
        yield name, lambda name=name: timm.create_model(name, pretrained=False)


def sample(model: torch.nn.Module, name: str) -> torch.Tensor:
    """Tokens or images, as the model takes them."""
    generator = torch.Generator().manual_seed(1)
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "vocab_size") and not hasattr(config, "num_channels"):
        return torch.randint(3, config.vocab_size, (4, 24), generator=generator)
    size = getattr(config, "image_size", 64) if config is not None else model.default_cfg["input_size"][-1]
    return torch.randn(2, 3, size, size, generator=generator)


def step(model: torch.nn.Module, x: torch.Tensor, autocast: bool) -> float:
    """Loss of one training step; gradients stay in the model."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = model(x)
        y = y if isinstance(y, torch.Tensor) else y[0]
        loss = (y.double() * torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape)).mean()
    loss.backward()
    return loss.item()


def norm_gradients(model: torch.nn.Module, names: list[str]) -> torch.Tensor:
    """The gradients of all layer normalizations' parameters, one after the other."""
    parameters = dict(model.named_parameters())
    return torch.cat([parameters[name].grad.double().flatten() for name in names if parameters[name].grad is not None])


def compare(name: str, make: Callable[[], torch.nn.Module]) -> None:
    """Print three rows."""
    torch.manual_seed(0)
    exact = make().train().double()
    for module in exact.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for key in ("hidden_dropout_prob", "attention_probs_dropout_prob", "attn_pdrop", "dropout", "attention_dropout"):
        if hasattr(getattr(exact, "config", None), key):
            setattr(exact.config, key, 0.0)
    exact.eval()  # some dropouts are functions; gradients are the same
    x = sample(exact, name)
    twin = copy.deepcopy(exact)
    turned = patch(twin)
    names = [
        f"{prefix}.{parameter}" if prefix else parameter
        for (prefix, module), other in zip(twin.named_modules(), exact.modules(), strict=True)
        if type(module) is not type(other)
        for parameter, _ in module.named_parameters(recurse=False)
    ]
    wide = x.double() if x.is_floating_point() else x
    step(exact, wide, False)
    truth = norm_gradients(exact, names)
    for precision, dtype, autocast in (("float32", torch.float32, False), ("bfloat16", torch.bfloat16, False),
                                       ("autocast", torch.float32, True)):  # fmt: skip
        inputs = x.to(dtype) if x.is_floating_point() else x
        theirs, ours = copy.deepcopy(exact).to(dtype), copy.deepcopy(exact).to(dtype)
        patch(ours)
        losses = [step(model, inputs, autocast) for model in (theirs, ours)]
        errors = [((norm_gradients(m, names) - truth).norm() / truth.norm()).item() for m in (theirs, ours)]
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            for model, taken in zip((theirs, ours), times, strict=True):
                start = time.perf_counter()
                step(model, inputs, autocast)
                taken.append(time.perf_counter() - start)
        ratio = statistics.median(times[0]) / statistics.median(times[1])
        print(
            f"| {name} | {precision} | {turned} | {losses[0]:.6f} | {losses[1]:.6f} | {errors[0]:.1e} | {errors[1]:.1e} "
            f"| {ratio:.2f} |",
            flush=True,
        )


def main() -> None:
    print(
        "| model | precision | turned | loss, torch | loss, lngrad | error of norms' gradients, torch | lngrad | speed |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for library in (transformers_models, timm_models):
        try:
            for name, make in library():
                compare(name, make)
        except ImportError as reason:
            print(f"{library.__name__}: not installed ({reason})")


if __name__ == "__main__":
    main()
