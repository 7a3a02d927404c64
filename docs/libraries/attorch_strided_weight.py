"""attorch reads a weight with gaps as if it had none. Argument: the folder attorch of a checkout; no GPU is needed."""

import os
import sys
import types

os.environ["TRITON_INTERPRET"] = "1"
import torch
import triton

tune, package = triton.autotune, types.ModuleType("attorch")  # its __init__ asks for a GPU, as tuning does
triton.autotune = lambda configs, **more: tune(configs[:1], **more)
package.__path__, sys.modules["attorch"] = sys.argv[1:], package
from attorch.layer_norm_layer import LayerNormAutoGrad  # noqa: E402

torch.manual_seed(0)
x, weight, bias = torch.randn(6, 48), torch.randn(96)[::2], torch.randn(48)
for name, gamma in (("with gaps", weight), ("contiguous", weight.contiguous())):
    right = torch.nn.functional.layer_norm(x.double(), (48,), weight.double(), bias.double())
    print(f"weight {name}: y is off by {(LayerNormAutoGrad.apply(x, gamma, bias, 1e-5) - right).abs().max():.2g}")
