"""MLX on a CPU: the sum of no elements over two axes is sometimes memory that nobody wrote, as is layer_norm's dbias."""

import mlx.core as mx
import numpy as np

totals = []
for number in range(500):
    before = [
        mx.array(np.full(16, number + 1.0, np.float32)) for _ in range(number % 5)
    ]  # other arrays, as a program has them
    empty = mx.array(np.zeros((3, 0, 16), np.float32))
    totals.append(np.array(mx.sum(empty, axis=(0, 1))))
wrong = [float(total[0]) for total in totals if total.any()]
print(f"{len(wrong)} of {len(totals)} sums are not 0, such as {wrong[:3]}")
