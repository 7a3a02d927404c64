"""lngrad.core.formulas with jax.numpy: what runs where our kernels do not, and what JAX differentiates by itself."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from lngrad.core import formulas
from lngrad.core.dtypes import accumulator_for, numpy_dtype
from lngrad.typing import Dtype


def accumulator(x: jax.Array, *parameters: jax.Array | None) -> Dtype:
    """The dtype in which a call with this x and these parameters is computed, statistics and sums too."""
    return numpy_dtype(accumulator_for(x.dtype.name, *(one.dtype.name for one in parameters if one is not None)))


_JAX = formulas.Namespace(lambda array, dtype: array.astype(dtype), jnp.sqrt, jnp.zeros_like, accumulator)

forward = partial(formulas.forward, _JAX)
backward = partial(formulas.backward, _JAX)
statistics_gradient = partial(formulas.statistics_gradient, _JAX)
forward_tangents = partial(formulas.forward_tangents, _JAX)
