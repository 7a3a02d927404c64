"""PyTorch on a CPU keeps layer_norm's mean and rstd in bfloat16 for the backward; beside its gradients the same in float64."""

import torch

torch.manual_seed(0)
N = 64
x, dy = (torch.randn(32, N) + 100).bfloat16(), torch.randn(32, N).bfloat16()  # a mean of a hundred deviations
leaves = [x, torch.ones(N, dtype=torch.bfloat16), torch.zeros(N, dtype=torch.bfloat16)]


def gradients(leaves, dy):
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    return torch.autograd.grad(torch.nn.functional.layer_norm(leaves[0], (N,), *leaves[1:]), leaves, dy)


print("mean and rstd:", [result.dtype for result in torch.native_layer_norm(x, (N,), *leaves[1:], 1e-5)[1:]])
exact = gradients([leaf.double() for leaf in leaves], dy.double())
for name, got, right in zip(("x", "weight", "bias"), gradients(leaves, dy), exact, strict=True):
    off, best = ((result.double() - right).norm() / right.norm() for result in (got, right.bfloat16()))
    print(f"gradient of {name}: off by {off:.1%}; rounded once it would be off by {best:.1%}")
