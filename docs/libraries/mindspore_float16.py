"""MindSpore's LayerNorm on a CPU loses digits of float16 where the mean is large; beside it float64 and its own float32."""

import mindspore
import numpy as np

rng = np.random.default_rng(0)
for mean in (0, 10, 100, 1000):
    x = (rng.normal(size=(64, 64)) + mean).astype(np.float16)
    X = x.astype(np.float64)
    right = (X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 1e-5)
    best = np.abs(right.astype(np.float16) - right).max() / np.abs(right).max()
    off = []
    for dtype in (mindspore.float16, mindspore.float32):
        norm = mindspore.nn.LayerNorm((64,), epsilon=1e-5, dtype=dtype)
        y = norm(mindspore.Tensor(x).astype(dtype)).asnumpy()
        off.append(np.abs(y - right).max() / np.abs(right).max())
    print(f"mean {mean}: float16 off by {off[0]:.2%} (rounded once: {best:.2%}), float32 by {off[1]:.1g}")
