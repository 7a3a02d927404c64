"""Forward and backward as frameworks call them: a torch module with autograd and allocator, and a jitted JAX program.

In torch two ways to use lngrad are timed against torch's own module: its kernels replaced under it, and a module of ours.
In JAX both are one XLA program that gives y, dx, dgamma and dbeta; results are XLA's own memory, and fresh pages count for
both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import lngrad
from lngrad.bench.measure import Context
from lngrad.bench.peers import all_of_jax, jax_layer_norm
from lngrad.bench.runner import check_first_rows, first_rows
from lngrad.check.implementations import Arguments, PreparedCall
from lngrad.check.implementations.libraries import tensors
from lngrad.core.arrays import as_numpy
from lngrad.core.problem import Grads
from lngrad.core.threads import get_num_threads
from lngrad.testing import check_grads, check_same_bits
from lngrad.typing import Tensor

Contestants = tuple[dict[str, PreparedCall], dict[str, Context]]
"""Calls by contestant, and contexts of some contestants' turns."""


def overridden(a: Arguments) -> Contestants:
    """One torch.nn.LayerNorm, in turns with lngrad's kernels behind aten and with aten's own.

    Raises:
        GradientError: Our gradients are wrong.
    """
    import torch

    from lngrad.torch import override

    step = _step(torch.nn.LayerNorm, a)
    with override():
        _check(torch.nn.LayerNorm, torch.native_layer_norm, a)
    return {"lngrad": step, "torch": step}, {"lngrad": override}


def autograd(a: Arguments) -> Contestants:
    """lngrad.torch.LayerNorm against torch.nn.LayerNorm; see overridden."""
    import torch

    from lngrad.torch import LayerNorm

    _check(LayerNorm, torch.ops.lngrad.layer_norm, a)
    return {"lngrad": _step(LayerNorm, a), "torch": _step(torch.nn.LayerNorm, a)}, {}


def _module(kind: type[Any], gamma: Tensor, beta: Tensor) -> Any:
    module = kind(len(gamma), dtype=gamma.dtype)
    module.load_state_dict({"weight": gamma, "bias": beta})
    return module


def _step(kind: type[Any], a: Arguments) -> PreparedCall:
    """Forward and backward with all three gradients, which are dropped as a training step's are."""
    import torch

    torch.set_num_threads(get_num_threads())
    t = tensors(a)
    module, x, dy = _module(kind, t.gamma, t.beta), t.x.requires_grad_(), t.dy
    wanted, differentiate = (x, module.weight, module.bias), torch.autograd.grad
    return lambda: differentiate(module(x), wanted, dy)


def _check(kind: type[Any], forward: Callable[..., Any], a: Arguments) -> None:
    """Refuse to time a wrong module: compare its gradients, by its own forward's statistics."""
    import torch

    inputs = first_rows(a)
    t = tensors(replace(a, dy=inputs.dy, x=inputs.x, mean=inputs.mean, rstd=inputs.rstd))
    _, mean, rstd = forward(t.x, [t.x.shape[-1]], t.gamma, t.beta, 1e-5)
    module, x = _module(kind, t.gamma, t.beta), t.x.requires_grad_()
    grads = Grads(*torch.autograd.grad(module(x), (x, module.weight, module.bias), t.dy))
    check_grads(grads, replace(inputs, mean=as_numpy(mean), rstd=as_numpy(rstd)))


def jitted(a: Arguments) -> Contestants:
    """lngrad.jax.layer_norm against the formula that people write.

    Raises:
        GradientError: Our results are wrong.
        NotApplicable: JAX has more threads than are timed.
    """
    all_of_jax()
    import jax

    from lngrad.jax import layer_norm

    given = tuple(jax.numpy.asarray(array) for array in (a.x, a.gamma, a.beta, a.dy))

    def call(function: Callable[..., Any]) -> Callable[[], Any]:
        def both(x: Any, gamma: Any, beta: Any, dy: Any) -> Any:
            y, pullback = jax.vjp(function, x, gamma, beta)
            return y, *pullback(dy)

        program = jax.jit(both)
        return lambda: jax.block_until_ready(program(*given))

    ours = call(layer_norm)
    check_first_rows(a)  # some rows of the core with the reference, and the whole program with the core
    y = lngrad.layer_norm(a.x, gamma=a.gamma, beta=a.beta).y
    core = lngrad.layer_norm_backward(a.dy, a.x, a.mean, a.rstd, a.gamma)
    check_same_bits(tuple(np.asarray(result) for result in ours()), (y, *core))
    return {"lngrad": ours, "jax": call(jax_layer_norm)}, {}
