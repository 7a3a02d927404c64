"""PyTorch on a CPU sums layer_norm's gradients of weight and bias in bfloat16; beside them the same in float64."""

import torch

torch.manual_seed(0)
M, N = 16384, 64
x, dy = torch.randn(M, N).bfloat16(), torch.randn(M, N).bfloat16()
weight, bias = (torch.ones(N, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
y = torch.nn.functional.layer_norm(x, (N,), weight, bias)
dweight, dbias = torch.autograd.grad(y, (weight, bias), dy, retain_graph=True)
wide = x.double() - x.double().mean(1, keepdim=True)
xhat = wide * (wide.square().mean(1, keepdim=True) + 1e-5).rsqrt()
for name, got, right in (("weight", dweight, (dy.double() * xhat).sum(0)), ("bias", dbias, dy.double().sum(0))):
    off, best = ((result.double() - right).norm() / right.norm() for result in (got, right.bfloat16()))
    print(f"gradient of {name}: off by {off:.1%}; rounded once it would be off by {best:.1%}")
print(f"{M} ones add up to", torch.autograd.grad(y, bias, torch.ones_like(y))[0][0].item())
