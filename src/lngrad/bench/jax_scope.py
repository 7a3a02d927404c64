"""The scope "jax": forward and backward of a jitted lngrad.jax.layer_norm against the jitted formula, as a user meets them.

Both are one XLA program that gives y, dx, dgamma and dbeta; results are XLA's own memory, and fresh pages count for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

import lngrad
from lngrad.bench.cases import Job
from lngrad.bench.measure import interleave
from lngrad.bench.peers import Arrays
from lngrad.bench.records import record
from lngrad.testing import Inputs, check_forward, check_grads, check_same_bits

__all__ = ["jax_records"]

CHECKED_ROWS = 256  # are compared with the reference; all rows with the core, bit by bit


def jax_records(
    jobs: list[Job], make_arrays: Callable[[Job], Arrays], rounds: int, said: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Time jobs; yields records with the peer "jax", or says why there are none."""
    if not find_spec("jax"):
        said("jax: needs jax, which is not installed")
        return
    versions = {package: version(package) for package in ("jax", "jaxlib")}
    for job in jobs:
        timings = interleave(_calls(make_arrays(job)), rounds)
        yield record("jax", job, timings, None, 0, versions)


def _calls(arrays: Arrays) -> dict[str, Callable[[], object]]:
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
    _check(arrays, tuple(np.asarray(result) for result in ours()))
    return {"lngrad": ours, "jax": call(_formula)}


def _formula(x: Any, gamma: Any, beta: Any) -> Any:
    """What people write: statistics in float32, centred."""
    import jax
    import jax.numpy as jnp

    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    y = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return (y * gamma + beta).astype(x.dtype)


def _check(a: Arrays, results: tuple[Any, ...]) -> None:
    """Refuse to time a wrong program."""
    rows = slice(0, min(len(a.x), CHECKED_ROWS))
    inputs = Inputs(a.dy[rows], a.x[rows], a.mean[rows], a.rstd[rows], a.gamma, a.beta, 1)
    check_forward(lngrad.layer_norm(inputs.x, gamma=a.gamma, beta=a.beta), inputs)
    check_grads(lngrad.layer_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, a.gamma), inputs)
    y = lngrad.layer_norm(a.x, gamma=a.gamma, beta=a.beta).y
    check_same_bits(results, (y, *lngrad.layer_norm_backward(a.dy, a.x, a.mean, a.rstd, a.gamma)))
