"""Liger Kernel's RMSNorm takes float64, and its backward raises KeyError. Set TRITON_INTERPRET=1; no GPU is needed."""

import torch
import triton
from liger_kernel.ops import rms_norm


class Float(float):
    def to(self, dtype):  # the interpreter hands floats to kernels as they are
        return self


rms_norm.rsqrt = lambda x: triton.language.rsqrt(x)  # libdevice's is for a GPU
for dtype in (torch.float32, torch.float64):
    x, weight = torch.randn(8, 64, dtype=dtype, requires_grad=True), torch.randn(64, dtype=dtype, requires_grad=True)
    right = torch.nn.functional.rms_norm(x.double(), (64,), weight.double(), 1e-5)
    y = rms_norm.LigerRMSNormFunction.apply(x, weight, Float(1e-5), Float(0.0), "llama", False)
    print(f"{y.dtype}: y is off by {(y - right).abs().max():.1g}", end="; ")
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    print(f"the gradient of x by {(dx - torch.autograd.grad(right, x, torch.ones_like(right))[0]).abs().max():.1g}")
