"""Forward and backward of a torch module, as a training script meets them: autograd, allocator and all.

Two ways to bring lngrad in are timed against torch's own module: its kernels replaced under it, and a module of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lngrad.arrays import as_numpy
from lngrad.bench.cases import Job
from lngrad.bench.measure import Contestants
from lngrad.bench.peers import Arrays, tensors
from lngrad.problem import Grads
from lngrad.testing import Inputs, check_grads

__all__ = ["autograd", "override"]


def override(job: Job, arrays: Arrays, checked: Inputs) -> Contestants:
    """One torch.nn.LayerNorm, in turns with lngrad's kernels behind aten and with aten's own."""
    import torch
    from lngrad.torch import override

    step = _step(torch.nn.LayerNorm, job, arrays)
    with override():
        _check(torch.nn.LayerNorm, torch.native_layer_norm, checked)
    return {"lngrad": step, "torch": step}, {"lngrad": override}


def autograd(job: Job, arrays: Arrays, checked: Inputs) -> Contestants:
    """lngrad.torch.LayerNorm against torch.nn.LayerNorm."""
    import torch
    from lngrad.torch import LayerNorm

    _check(LayerNorm, torch.ops.lngrad.layer_norm, checked)
    return {"lngrad": _step(LayerNorm, job, arrays), "torch": _step(torch.nn.LayerNorm, job, arrays)}, {}


def _module(kind: Any, gamma: Any, beta: Any) -> Any:
    module = kind(len(gamma), dtype=gamma.dtype)
    module.load_state_dict({"weight": gamma, "bias": beta})
    return module


def _step(kind: Any, job: Job, arrays: Arrays) -> Callable[[], object]:
    """Forward and backward with all three gradients, which are dropped as a training step's are."""
    torch, dy, x, _, _, gamma, beta = tensors(arrays)
    module, x = _module(kind, gamma, beta), x.requires_grad_()
    wanted, differentiate = (x, module.weight, module.bias), torch.autograd.grad
    return lambda: differentiate(module(x), wanted, dy)


def _check(kind: Any, forward: Callable[..., Any], inputs: Inputs) -> None:
    """Refuse to time a wrong module: its gradients against the reference, by the statistics that its forward makes."""
    torch, dy, x, _, _, gamma, beta = tensors(inputs)
    _, mean, rstd = forward(x, [x.shape[-1]], gamma, beta, 1e-5)
    module, x = _module(kind, gamma, beta), x.requires_grad_()
    grads = Grads(*torch.autograd.grad(module(x), (x, module.weight, module.bias), dy))
    check_grads(grads, replace(inputs, mean=as_numpy(mean), rstd=as_numpy(rstd)))
