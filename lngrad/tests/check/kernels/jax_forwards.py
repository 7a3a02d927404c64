"""The same in JAX."""

import jax
import jax.numpy as jnp


@jax.jit
def norm(x, scale, bias, eps):
    wide = x.astype(jnp.float32)
    wide -= wide.mean(-1, keepdims=True)
    return (wide / jnp.sqrt((wide**2).mean(-1, keepdims=True) + eps) * scale + bias).astype(x.dtype)


@jax.jit
def wrong_norm(x, scale, bias, eps):
    wide = x.astype(jnp.float32)
    mean = jax.lax.stop_gradient(wide.mean(-1, keepdims=True))
    return ((wide - mean) / jnp.sqrt(((wide - mean) ** 2).mean(-1, keepdims=True) + eps) * scale + bias).astype(x.dtype)


@jax.jit
def modulated_by_the_first_sample(x, scale, shift, eps):
    scale, shift = (array[:1] if array.ndim > 1 else array for array in (scale, shift))
    return norm(x.astype(jnp.float32), 1 + scale.astype(jnp.float32), shift, eps).astype(x.dtype)
