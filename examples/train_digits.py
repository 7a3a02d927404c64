"""How to train with these gradients: a network with one LayerNorm learns handwritten digits, by hand.

    pip install 'lngrad[demo]'
    python examples/train_digits.py

NumPy and two calls of lngrad a step, no autograd. `lngrad demo` does the same, and checks the gradients.
"""

import numpy as np
from sklearn.datasets import load_digits

import lngrad

rng = np.random.default_rng(0)
digits = load_digits()
images = (digits.data / 16 - 0.5).astype(np.float32)  # (1797, 64)
order = rng.permutation(len(images))
test, train = np.split(order, [len(order) // 4])

parameters = {
    "w1": (rng.standard_normal((64, 128)) / 8).astype(np.float32),
    "gamma": np.ones(128, np.float32),
    "beta": np.zeros(128, np.float32),
    "w2": (rng.standard_normal((128, 10)) / 11).astype(np.float32),
}
velocity = {name: np.zeros_like(value) for name, value in parameters.items()}

for _ in range(20):
    for batch in np.array_split(rng.permutation(train), 21):
        w1, gamma, beta, w2 = parameters.values()
        x0, labels = images[batch], digits.target[batch]

        # Forward; mean and rstd of every row are kept for the way back.
        x1 = x0 @ w1
        y1, mean, rstd = lngrad.layer_norm(x1, gamma, beta)
        hidden = np.maximum(y1, 0)
        logits = hidden @ w2

        # Backward, from the gradient of the mean cross-entropy.
        probabilities = np.exp(logits - logits.max(1, keepdims=True))
        probabilities /= probabilities.sum(1, keepdims=True)
        dlogits = (probabilities - np.eye(10, dtype=np.float32)[labels]) / len(batch)
        dy1 = (dlogits @ w2.T) * (y1 > 0)
        dx1, dgamma, dbeta = lngrad.layer_norm_backward(dy1, x1, mean, rstd, gamma)
        gradients = {"w1": x0.T @ dx1, "gamma": dgamma, "beta": dbeta, "w2": hidden.T @ dlogits}

        # Gradient descent with momentum.
        for name, gradient in gradients.items():
            velocity[name] = 0.9 * velocity[name] - 0.05 * gradient
            parameters[name] += velocity[name]

w1, gamma, beta, w2 = parameters.values()
y1 = lngrad.layer_norm(images[test] @ w1, gamma, beta).y
accuracy = (np.argmax(np.maximum(y1, 0) @ w2, 1) == digits.target[test]).mean()
print(f"test accuracy {accuracy:.1%}")
assert accuracy >= 0.95
