"""Layer normalizations as vision and language models have them in classes of their own."""

from __future__ import annotations

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
        weight, bias = (None if p is None else p.float() for p in (self.weight, self.bias))
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
