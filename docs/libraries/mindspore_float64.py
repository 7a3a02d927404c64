"""MindSpore's LayerNorm on a CPU computes float64 in float32, and returns float64; beside it the formulas in NumPy."""

import mindspore
import numpy as np

rng = np.random.default_rng(0)
X, DY = rng.normal(size=(2, 8, 64))
centred = X - X.mean(1, keepdims=True)
rstd = 1 / np.sqrt(np.square(centred).mean(1, keepdims=True) + 1e-5)
xhat = centred * rstd
dx = rstd * (DY - DY.mean(1, keepdims=True) - xhat * (DY * xhat).mean(1, keepdims=True))
norm = mindspore.nn.LayerNorm((64,), epsilon=1e-5, dtype=mindspore.float64)
y, pull = mindspore.ops.vjp(norm, mindspore.Tensor(X))
for name, got, right in (("y", y, xhat), ("gradient of x", pull(mindspore.Tensor(DY))[0], dx)):
    print(f"{name}: {got.dtype}, off by {np.abs(got.asnumpy() - right).max():.1g}")
