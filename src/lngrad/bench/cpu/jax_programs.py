"""The scope "jax": a jitted lngrad.jax.layer_norm, forward and backward, against the formula.

Both are one XLA program that gives y, dx, dgamma and dbeta; results are XLA's own memory, and fresh
pages count for both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import lngrad
from lngrad.bench.arguments import Arguments
from lngrad.bench.cases import Job
from lngrad.bench.cpu.peers import all_of_jax, jax_layer_norm
from lngrad.bench.measure import Call, Context
from lngrad.testing import Inputs, check_forward, check_grads, check_same_bits


def jitted(job: Job, a: Arguments, checked: Inputs) -> tuple[dict[str, Call], dict[str, Context]]:
    """lngrad.jax.layer_norm against the formula that people write.

    Args:
        job: What is timed.
        a: Its arguments, NumPy's.
        checked: Those of its rows that are compared with the reference.

    Returns:
        Contestants, and the contexts of their turns: none.

    Raises:
        GradientError: Our results are wrong.
        PeerMissing: JAX has more threads than are timed.
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
    _check(a, checked, tuple(np.asarray(result) for result in ours()))
    return {"lngrad": ours, "jax": call(jax_layer_norm)}, {}


def _check(a: Arguments, checked: Inputs, results: tuple[Any, ...]) -> None:
    """Refuse to time a wrong program.

    Some rows of the core are compared with the reference, and the whole program with the core.
    """
    check_forward(lngrad.layer_norm(checked.x, gamma=a.gamma, beta=a.beta), checked)
    check_grads(lngrad.layer_norm_backward(checked.dy, checked.x, checked.mean, checked.rstd, a.gamma), checked)
    y = lngrad.layer_norm(a.x, gamma=a.gamma, beta=a.beta).y
    check_same_bits(results, (y, *lngrad.layer_norm_backward(a.dy, a.x, a.mean, a.rstd, a.gamma)))
