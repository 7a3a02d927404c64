"""The scope "jax": forward and backward of a jitted lngrad.jax.layer_norm against the jitted formula, as a user meets them.

Both are one XLA program that gives y, dx, dgamma and dbeta; results are XLA's own memory, and fresh pages count for both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import lngrad
from lngrad.bench.cases import Job
from lngrad.bench.measure import Contestants
from lngrad.bench.peers import Arrays, jax_layer_norm
from lngrad.testing import Inputs, check_forward, check_grads, check_same_bits

__all__ = ["jitted"]


def jitted(job: Job, arrays: Arrays, checked: Inputs) -> Contestants:
    """lngrad.jax.layer_norm against the formula that people write."""
    import jax
    from lngrad.jax import layer_norm

    given = tuple(jax.numpy.asarray(array) for array in (arrays.x, arrays.gamma, arrays.beta, arrays.dy))

    def call(function: Callable[..., Any]) -> Callable[[], Any]:
        def both(x: Any, gamma: Any, beta: Any, dy: Any) -> Any:
            y, pullback = jax.vjp(function, x, gamma, beta)
            return y, *pullback(dy)

        program = jax.jit(both)
        return lambda: jax.block_until_ready(program(*given))

    ours = call(layer_norm)
    _check(arrays, checked, tuple(np.asarray(result) for result in ours()))
    return {"lngrad": ours, "jax": call(jax_layer_norm)}, {}


def _check(a: Arrays, checked: Inputs, results: tuple[Any, ...]) -> None:
    """Refuse to time a wrong program: some rows of the core against the reference, all of the program against the core."""
    check_forward(lngrad.layer_norm(checked.x, gamma=a.gamma, beta=a.beta), checked)
    check_grads(lngrad.layer_norm_backward(checked.dy, checked.x, checked.mean, checked.rstd, a.gamma), checked)
    y = lngrad.layer_norm(a.x, gamma=a.gamma, beta=a.beta).y
    check_same_bits(results, (y, *lngrad.layer_norm_backward(a.dy, a.x, a.mean, a.rstd, a.gamma)))
