"""FlagGems' RMSNorm over two axes returns a flat gradient of weight. Set TRITON_INTERPRET=1; no GPU is needed."""

import importlib.util
import sys
from unittest.mock import MagicMock

import torch
import triton

(folder,) = importlib.util.find_spec("flag_gems").submodule_search_locations  # its __init__ asks for a GPU
fake = MagicMock(libentry=lambda: lambda function: function, triton_lang_extension=triton.language)
fake.runtime.get_tuned_config.return_value = [triton.Config({})]
sys.modules |= dict.fromkeys(("flag_gems", "flag_gems.runtime", "flag_gems.utils"), fake)
spec = importlib.util.spec_from_file_location("rms_norm", f"{folder}/ops/rms_norm.py")
spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
for shape in ((24,), (4, 6)):
    x, weight, dy = torch.randn(8, *shape), torch.randn(shape, requires_grad=True), torch.randn(8, *shape)
    right = torch.nn.functional.rms_norm(x.double(), shape, weight.double(), 1e-5)
    right, got = (torch.autograd.grad(y, weight, dy)[0] for y in (right, module.rms_norm(x, shape, weight, 1e-5)))
    print(f"over {shape}: the gradient of weight is off by {(got - right).abs().max():.1g}")
