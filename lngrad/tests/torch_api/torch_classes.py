"""Layer normalizations as vision and language models have them in classes of their own."""

from __future__ import annotations

from types import SimpleNamespace

import torch

F = torch.nn.functional


class Same(torch.nn.LayerNorm):
    """timm's LayerNorm: the class is another, the arithmetic is not."""

    def __init__(self, channels, eps=1e-6):
        super().__init__(channels, eps=eps)
        self._fast_norm = False

    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class Fp32(torch.nn.LayerNorm):
    """timm's LayerNormFp32: computed in float32, returned in x's dtype."""

    def forward(self, x):
        weight = None if self.weight is None else self.weight.float()
        bias = None if self.bias is None else self.bias.float()
        return F.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps).to(x.dtype)


class Channels(torch.nn.LayerNorm):
    """timm's LayerNorm2d."""

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps).permute(0, 3, 1, 2)


class ByHand(torch.nn.Module):
    """ConvNeXt's own, with the axis among its settings and the mean and variance written out."""

    def __init__(self, channels, eps=1e-6, data_format="channels_first"):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(channels))
        self.bias = torch.nn.Parameter(torch.zeros(channels))
        self.eps, self.data_format = eps, data_format

    def forward(self, x):
        if self.data_format == "channels_last":
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class Bert(torch.nn.Module):
    """With other names."""

    def __init__(self, hidden):
        super().__init__()
        self.gamma = torch.nn.Parameter(torch.ones(hidden))
        self.beta = torch.nn.Parameter(torch.zeros(hidden))
        self.variance_epsilon = 1e-12

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return (
            self.gamma * (centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))
            + self.beta
        )


ALIKE = {
    "subclass": (lambda: Same(8), (3, 8)),
    "float32 inside": (lambda: Fp32(8), (3, 8)),
    "no bias": (lambda: Fp32(8, bias=False), (3, 8)),
    "no parameters": (lambda: Fp32(8, elementwise_affine=False), (3, 8)),
    "two dimensions": (lambda: Fp32((2, 4)), (3, 2, 4)),
    "channels first": (lambda: Channels(8), (2, 8, 3, 5)),
    "by hand": (lambda: ByHand(8), (2, 8, 3, 5)),
    "by hand, channels last": (lambda: ByHand(8, data_format="channels_last"), (2, 3, 5, 8)),
    "other names": (lambda: Bert(8), (3, 8)),
}


class Llama(torch.nn.Module):
    """LlamaRMSNorm, also of Qwen and Mistral: float32 inside, xhat rounded to x's dtype before it is multiplied with weight."""

    def __init__(self, hidden, eps=1e-6):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden))
        self.variance_epsilon = eps

    def forward(self, x):
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x.to(dtype)


class T5(Llama):
    """T5LayerNorm: weight's dtype decides."""

    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.variance_epsilon)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            x = x.to(self.weight.dtype)
        return self.weight * x


class Gemma(torch.nn.Module):
    """GemmaRMSNorm: weight is stored around zero."""

    def __init__(self, hidden, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.zeros(hidden))

    def forward(self, x):
        wide = x.float()
        xhat = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (xhat * (1.0 + self.weight.float())).type_as(x)


# Norms as people write them: tensors by the names that they have, "p" for a parameter and "b" for a buffer, and settings.


class _Norm(torch.nn.Module):
    def __init__(self, size, **attributes):
        super().__init__()
        for name, value in attributes.items():
            if value == "p":
                setattr(self, name, torch.nn.Parameter(torch.ones(size)))
            elif value == "b":
                self.register_buffer(name, torch.zeros(size))
            else:
                setattr(self, name, value)


def form(forward, size=8, **attributes):
    """A module of a class with this forward."""
    return type("Norm", (_Norm,), {"forward": forward})(size, **attributes)


def rms(x, eps, axis=-1):
    return x * torch.rsqrt(x.pow(2).mean(axis, keepdim=True) + eps)


def over_axis_1(self, x):
    return F.layer_norm(x.movedim(1, -1), self.weight.shape, self.weight, self.bias, self.eps).movedim(-1, 1)


BOTH = {"weight": "p", "bias": "p"}
# How it is made, and the shape of an x for it.
TURNED = {
    "eps in the call": (lambda: form(lambda s, x: F.layer_norm(x, (8,), s.weight, s.bias, 1e-6), **BOTH), (2, 3, 8)),
    "eps None": (lambda: form(lambda s, x: F.rms_norm(x, (8,), s.weight, s.eps), weight="p", eps=None), (2, 3, 8)),
    "no weight": (lambda: form(lambda s, x: rms(x.float(), s.eps).type_as(x), eps=1e-6), (2, 3, 5)),
    "no weight, no eps": (lambda: form(lambda s, x: F.layer_norm(x.float(), (8,)).to(x.dtype)), (2, 3, 8)),
    "RMS over channels": (
        lambda: form(lambda s, x: rms(x, s.eps, 1) * s.weight, (8, 1, 1), weight="p", eps=1e-6),
        (2, 8, 3, 5),
    ),
    "channels first in 3-D": (
        lambda: form(lambda s, x: rms(x, s.eps, 1) * s.weight[:, None], weight="p", eps=1e-6),
        (2, 8, 3),
    ),
    "channels first in 5-D": (lambda: form(over_axis_1, **BOTH, eps=1e-6), (2, 8, 3, 2, 2)),
    "1 + weight": (
        lambda: form(lambda s, x: F.layer_norm(x, (8,), 1 + s.weight, s.bias, s.eps), **BOTH, eps=1e-5),
        (2, 3, 8),
    ),
    "in bfloat16 at every step": (lambda: form(lambda s, x: s.weight * rms(x, s.eps), weight="p", eps=1e-6), (2, 3, 8)),
    "float32 whatever comes": (
        lambda: form(
            lambda s, x: F.layer_norm(x.float(), (8,), s.weight.float(), s.bias.float(), s.eps), **BOTH, eps=1e-5
        ),
        (2, 3, 8),
    ),
    "normalized over channels": (
        lambda: form(lambda s, x: F.normalize(x, dim=1) * 8**0.5 * s.gamma, (8, 1, 1), gamma="p"),
        (2, 8, 3, 5),
    ),
    "normalized": (
        lambda: form(lambda s, x: F.normalize(x, dim=-1) * s.scale * (s.g + 1), g="p", scale=8**0.5),
        (2, 3, 8),
    ),
    "eps of a configuration": (
        lambda: form(lambda s, x: rms(x, s.of.eps) * s.weight, weight="p", of=SimpleNamespace(eps=1e-5)),
        (2, 3, 8),
    ),
}
NOT_ADDED = "no eps that is added to the variance was found"
LEFT = {
    "a weight per head": (
        lambda: form(lambda s, x: rms(x, s.eps) * s.weight, (4, 8), weight="p", eps=1e-6),
        "its weight is per head",
    ),
    "RMS with a bias": (
        lambda: form(lambda s, x: rms(x, s.eps) * s.weight + s.bias, **BOTH, eps=1e-6),
        "is RMS normalization with a bias",
    ),
    "eps beside the root": (
        lambda: form(lambda s, x: x / (x.square().mean(-1, keepdim=True).sqrt() + s.eps) * s.g, g="p", eps=1e-6),
        NOT_ADDED,
    ),
    "one weight": (
        lambda: form(lambda s, x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5) * s.g, 1, g="p"),
        "its weight is one number",
    ),
    "N - 1": (
        lambda: form(
            lambda s, x: s.a * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + s.b, a="p", b="p"
        ),
        "computes something else",
    ),
    "three parameters": (lambda: form(lambda s, x: x, **BOTH, scale="p"), "has more parameters: weight, bias, scale"),
}
