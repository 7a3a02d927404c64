"""A module of flax.linen with a mistake: its mean is a constant for JAX."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class WrongNorm(nn.Module):
    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        centred = x - jax.lax.stop_gradient(x.mean(-1, keepdims=True))
        return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + self.epsilon) * scale + bias
