"""Forward and backward of a torch module in a training script: with autograd and allocator.

Two ways to use lngrad are timed against torch's own module: its kernels replaced under it, and a
module of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lngrad.bench.arguments import Arguments, as_tensors
from lngrad.bench.cases import Job
from lngrad.bench.measure import Call, Context
from lngrad.core.arrays import as_numpy
from lngrad.core.problem import Grads
from lngrad.testing import Inputs, check_grads
from lngrad.typing import Tensor


def override(job: Job, a: Arguments, checked: Inputs) -> tuple[dict[str, Call], dict[str, Context]]:
    """One torch.nn.LayerNorm, in turns with lngrad's kernels behind aten and with aten's own.

    Args:
        job: What is timed.
        a: Its arguments, NumPy's.
        checked: Those of its rows that are compared with the reference.

    Returns:
        Contestants, and the contexts of their turns.

    Raises:
        GradientError: Our gradients are wrong.
    """
    import torch

    from lngrad.torch import override

    step = _step(torch.nn.LayerNorm, a)
    with override():
        _check(torch.nn.LayerNorm, torch.native_layer_norm, checked)
    return {"lngrad": step, "torch": step}, {"lngrad": override}


def autograd(job: Job, a: Arguments, checked: Inputs) -> tuple[dict[str, Call], dict[str, Context]]:
    """lngrad.torch.LayerNorm against torch.nn.LayerNorm; see override."""
    import torch

    from lngrad.torch import LayerNorm

    _check(LayerNorm, torch.ops.lngrad.layer_norm, checked)
    return {"lngrad": _step(LayerNorm, a), "torch": _step(torch.nn.LayerNorm, a)}, {}


def _module(kind: type[Any], gamma: Tensor, beta: Tensor) -> Any:
    module = kind(len(gamma), dtype=gamma.dtype)
    module.load_state_dict({"weight": gamma, "bias": beta})
    return module


def _step(kind: type[Any], a: Arguments) -> Call:
    """Forward and backward with all three gradients, which are dropped as a training step's are."""
    import torch

    t = as_tensors(a)
    module, x, dy = _module(kind, t.gamma, t.beta), t.x.requires_grad_(), t.dy
    wanted, differentiate = (x, module.weight, module.bias), torch.autograd.grad
    return lambda: differentiate(module(x), wanted, dy)


def _check(kind: type[Any], forward: Callable[..., Any], inputs: Inputs) -> None:
    """Refuse to time a wrong module: compare its gradients, by its own forward's statistics."""
    import torch

    t = as_tensors(inputs)
    _, mean, rstd = forward(t.x, [t.x.shape[-1]], t.gamma, t.beta, 1e-5)
    module, x = _module(kind, t.gamma, t.beta), t.x.requires_grad_()
    grads = Grads(*torch.autograd.grad(module(x), (x, module.weight, module.bias), t.dy))
    check_grads(grads, replace(inputs, mean=as_numpy(mean), rstd=as_numpy(rstd)))
