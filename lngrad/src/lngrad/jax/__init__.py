"""LayerNorm and RMSNorm for JAX: on the CPU lngrad's kernels, elsewhere a jax.numpy formula with the same numerics.

>>> from lngrad.jax import layer_norm                                                   # doctest: +SKIP
>>> loss = lambda x, gamma, beta: (layer_norm(x, gamma, beta) ** 2).sum()               # doctest: +SKIP
>>> dx, dgamma, dbeta = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(x, gamma, beta)      # doctest: +SKIP
"""

from lngrad.jax.functions import (
    add_layer_norm,
    add_rms_norm,
    gated_rms_norm,
    layer_norm,
    layer_norm_backward,
    layer_norm_forward,
    modulated_layer_norm,
    modulated_rms_norm,
    rms_norm,
    rms_norm_backward,
    rms_norm_forward,
)

__all__ = [
    "add_layer_norm", "add_rms_norm", "gated_rms_norm", "layer_norm", "layer_norm_backward", "layer_norm_forward",
    "modulated_layer_norm", "modulated_rms_norm", "rms_norm", "rms_norm_backward", "rms_norm_forward",
]  # fmt: skip
