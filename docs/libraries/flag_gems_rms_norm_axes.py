"""FlagGems' RMSNorm over two axes has no gradient: autograd refuses the shape that its backward returns. No GPU is needed."""

import importlib.util
import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"
import torch
import triton

(folder,) = importlib.util.find_spec("flag_gems").submodule_search_locations  # its __init__ asks for a GPU
device = SimpleNamespace(device=lambda one: nullcontext())
runtime = SimpleNamespace(torch_device_fn=device, get_tuned_config=lambda name: [triton.Config({})])
utils = SimpleNamespace(libentry=lambda: lambda one: one, triton_lang_extension=triton.language)
sys.modules |= {"flag_gems": SimpleNamespace(runtime=runtime), "flag_gems.runtime": runtime, "flag_gems.utils": utils}
spec = importlib.util.spec_from_file_location("rms_norm", f"{folder}/ops/rms_norm.py")
spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
for shape in ((24,), (4, 6)):
    x, weight, dy = torch.randn(8, *shape), torch.randn(shape, requires_grad=True), torch.randn(8, *shape)
    right = torch.nn.functional.rms_norm(x.double(), shape, weight.double(), 1e-5)
    right, got = (torch.autograd.grad(y, weight, dy)[0] for y in (right, module.rms_norm(x, shape, weight, 1e-5)))
    print(f"over {shape}: the gradient of weight is off by {(got - right).abs().max():.1g}")
