"""How to train with JAX: a residual network with LayerNorm learns handwritten digits, with lngrad and with plain jax.numpy.

    pip install 'lngrad[demo,jax]'
    python examples/jax_digits.py

Both start alike and see the same batches. One step is one jitted program: gradients through jax.lax.scan over the layers.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from lngrad.jax import layer_norm

WIDTH, LAYERS = 64, 3


def plain(x, gamma, beta):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gamma + beta


def logits(norm, parameters, images):
    def layer(x, these):
        gamma, beta, weight = these
        return x + jax.nn.relu(norm(x, gamma, beta)) @ weight, None

    x, _ = jax.lax.scan(layer, images, parameters["layers"])  # (batch, WIDTH)
    return norm(x, *parameters["norm"]) @ parameters["head"]


def loss(norm, parameters, images, labels):
    log_probabilities = jax.nn.log_softmax(logits(norm, parameters, images))
    return -jnp.take_along_axis(log_probabilities, labels[:, None], 1).mean()


@partial(jax.jit, static_argnums=0)
def step(norm, parameters, velocity, images, labels):
    value, gradients = jax.value_and_grad(partial(loss, norm))(parameters, images, labels)
    velocity = jax.tree.map(lambda v, g: 0.9 * v - 0.05 * g, velocity, gradients)
    return jax.tree.map(jnp.add, parameters, velocity), velocity, value


rng = np.random.default_rng(0)
digits = load_digits()
images = (digits.data / 16 - 0.5).astype(np.float32)  # (1797, 64)
order = rng.permutation(len(images))
test, train = np.split(order, [len(order) // 4])
batches = [batch for _ in range(15) for batch in np.array_split(rng.permutation(train)[:1344], 21)]

start = {
    "layers": (
        np.ones((LAYERS, WIDTH), np.float32),
        np.zeros((LAYERS, WIDTH), np.float32),
        (rng.standard_normal((LAYERS, WIDTH, WIDTH)) / 12).astype(np.float32),
    ),
    "norm": (np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)),
    "head": (rng.standard_normal((WIDTH, 10)) / 8).astype(np.float32),
}

losses, gradients = {}, {}
for name, norm in (("lngrad", layer_norm), ("plain", plain)):
    parameters, velocity = start, jax.tree.map(jnp.zeros_like, start)
    first = batches[0]
    gradients[name] = jax.tree.leaves(jax.grad(partial(loss, norm))(start, images[first], digits.target[first]))
    losses[name] = []
    for batch in batches:
        parameters, velocity, value = step(norm, parameters, velocity, images[batch], digits.target[batch])
        losses[name].append(float(value))
    found = jnp.argmax(logits(norm, parameters, images[test]), 1)
    accuracy = (np.asarray(found) == digits.target[test]).mean()
    print(f"{name:8} loss {losses[name][0]:.3f} to {losses[name][-1]:.4f}, test accuracy {accuracy:.1%}")
    assert accuracy >= 0.95

worst = max(
    float(abs(a - b).max() / abs(b).max()) for a, b in zip(gradients["lngrad"], gradients["plain"], strict=True)
)
apart = max(abs(a - b) for a, b in zip(losses["lngrad"][:21], losses["plain"][:21], strict=True))
print(f"first gradients differ by {worst:.1e} of their largest element, losses of the first epoch by {apart:.1e}")
assert worst < 1e-5
assert apart < 1e-3
