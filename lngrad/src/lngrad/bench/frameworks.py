"""Forward and backward through torch, as its users call them: lngrad's norm and torch's own, checked before they are timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from lngrad.bench.measure import Context
from lngrad.bench.runner import LNGRAD, first_rows
from lngrad.check.implementations import Arguments, PreparedCall
from lngrad.core.threads import get_num_threads
from lngrad.support.addresses import as_numpy
from lngrad.support.dtypes import to_torch
from lngrad.testing import check_grads
from lngrad.typing import Array, Tensor

EPS = 1e-5

Results: TypeAlias = "tuple[Tensor, ...]"  # y, and the total where there is a residual
Norm: TypeAlias = Callable[..., Results]  # of x, weight, bias, and residual or gate, the last two perhaps None
Contestants: TypeAlias = "tuple[dict[str, PreparedCall], dict[str, Context]]"
"""Calls by contestant, and contexts of some contestants' turns."""


def step(norm: Norm, a: Arguments, rows: int, forward: bool = False, device: str = "cpu") -> PreparedCall:
    """A forward without derivatives of the first rows, or forward and backward with all gradients."""
    import torch

    torch.set_num_threads(get_num_threads())

    def tensor(array: Array) -> Tensor:
        return to_torch(array).to(device)

    beta = a.beta if a.normalization.has_beta else None
    added = a.residual if a.gate is None else a.gate
    arrays = (a.x[..., :rows, :], a.gamma, beta, None if added is None else added[..., :rows, :])
    leaves = [None if array is None else tensor(array).requires_grad_(not forward) for array in arrays]
    wanted = [leaf for leaf in leaves if leaf is not None]
    into = [tensor(array[..., :rows, :]) for array in (a.dy, a.dtotal) if array is not None]
    if not forward:
        return lambda: torch.autograd.grad(norm(*leaves), wanted, into)

    def call() -> Results:
        with torch.no_grad():
            return norm(*leaves)

    return call


def checked(norm: Norm, a: Arguments, device: str = "cpu", aten: Callable[..., Any] | None = None) -> Norm:
    """A norm of ours, whose gradients of the first rows are right, by statistics of aten's forward or by ours.

    Raises:
        GradientError: They are wrong.
    """
    inputs = first_rows(a)
    if aten is not None:
        x, gamma, beta = map(to_torch, (inputs.x, a.gamma, a.beta))
        mean, rstd = map(as_numpy, aten(x, a.normalized_shape, gamma, beta, EPS)[1:])
        inputs = replace(inputs, mean=mean, rstd=rstd)
    grads = [grad.cpu() for grad in step(norm, a, inputs.x.shape[-2], device=device)()]
    check_grads(a.masked(**dict(zip(a.operator.outputs, grads, strict=False))), inputs)  # a residual's is the last
    return norm


def overridden(a: Arguments) -> Contestants:
    """torch.nn.functional's norm, in turns with lngrad's kernels behind aten and with aten's own; raises as checked."""
    import torch

    from lngrad.torch import override

    with override():
        call = step(checked(_torch(a), a, aten=torch.native_layer_norm), a, a.M)
    return {LNGRAD: call, "torch": call}, {LNGRAD: override}


def autograd(a: Arguments) -> Contestants:
    """lngrad.torch's layer_norm and torch.nn.functional's; raises as checked."""
    from lngrad.torch import layer_norm

    def ours(x: Tensor, weight: Tensor, bias: Tensor, _: None) -> Results:
        return (layer_norm(x, a.normalized_shape, weight, bias, EPS),)

    return {LNGRAD: step(checked(ours, a), a, a.M), "torch": step(_torch(a), a, a.M)}, {}


def _torch(a: Arguments) -> Norm:
    from torch.nn.functional import layer_norm

    return lambda x, weight, bias, _: (layer_norm(x, a.normalized_shape, weight, bias, EPS),)
