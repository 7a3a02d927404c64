"""The Hugging Face hub's rmsnorm on a CPU with AVX-512 BF16. Argument: the folder rmsnorm_cpu of a checkout, compiled here."""

import sys

import torch
from torch.utils.cpp_extension import load_inline

flags = ["-O2", "-fopenmp", "-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512vl", "-mavx512bf16"]
sources = [f'#include "{sys.argv[1]}/rmsnorm_{part}.cpp"' for part in ("cpu_torch", "cpu", "avx2", "avx512")]
hub = load_inline("hub", sources, functions="rmsnorm_cpu_backward", extra_cflags=flags, extra_ldflags=["-fopenmp"])
x, dy, ones = torch.randn(16384, 512).bfloat16(), torch.randn(16384, 512).bfloat16(), torch.ones(16384, 512).bfloat16()
right = (dy.double() * x.double() * (x.double().square().mean(1, keepdim=True) + 1e-5).rsqrt()).sum(0)
got, of_ones = hub.rmsnorm_cpu_backward(dy, x, ones[0], 1e-5)[1], hub.rmsnorm_cpu_backward(ones, ones, ones[0], 0.0)[1]
off, best = ((result.double() - right).norm() / right.norm() for result in (got, right.bfloat16()))
print(f"gradient of weight: off by {off:.1%}, rounded once by {best:.1%}; 16384 ones add up to {of_ones[0].item()}")
try:
    hub.rmsnorm_cpu_backward(ones[:1, :1].expand(16384, 512), x, ones[0], 1e-5)
except RuntimeError as error:
    print("dy as .sum() gives it:", error)
hub.rmsnorm_cpu_backward(*[torch.ones(3, 0)] * 2, torch.ones(0), 1e-5)  # no columns: it ends the process
