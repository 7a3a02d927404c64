"""MLX on a CPU computes fast.layer_norm and fast.rms_norm of float64 arrays in float32, and returns float64."""

import mlx.core as mx
import numpy as np

X = np.random.default_rng(0).normal(size=(8, 64))
xhat = (X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 1e-5)
root = X / np.sqrt(np.square(X).mean(1, keepdims=True) + 1e-5)
with mx.stream(mx.cpu):
    x, weight, bias = (mx.array(one, dtype=mx.float64) for one in (X, np.ones(64), np.zeros(64)))
    for name, y, right in (
        ("layer_norm", mx.fast.layer_norm(x, weight, bias, 1e-5), xhat),
        ("rms_norm", mx.fast.rms_norm(x, weight, 1e-5), root),
        ("mean", mx.mean(x, axis=1), X.mean(1)),
    ):
        print(f"{name}: {y.dtype}, off by {np.abs(np.array(y) - right).max():.1g}")
