"""flash-linear-attention's backward of no rows raises, where the forward returns. No GPU is needed."""

import os

os.environ["TRITON_INTERPRET"] = "1"
import torch
import triton

tune = triton.autotune
triton.autotune = lambda configs, **more: tune(configs[:1], **more)  # tuning asks for a GPU
from fla.modules.norm.layernorm import rms_norm  # noqa: E402

for rows in (2, 0):
    x, weight = torch.randn(rows, 64, requires_grad=True), torch.randn(64, requires_grad=True)
    right = torch.nn.functional.rms_norm(x.double(), (64,), weight.double(), 1e-5)
    y = rms_norm(x, weight, None, eps=1e-5)
    print(f"{rows} rows: y is off by {(y - right).abs().sum():.1g}", end="; ")
    off = [torch.autograd.grad(result, weight, torch.ones_like(result))[0] for result in (right, y)]
    print(f"the gradient of weight by {(off[1] - off[0]).abs().max():.1g}")
