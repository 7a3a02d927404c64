"""The first call of a process: with an empty kernel cache, and with a full one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from lngrad.bench.measure import Timing

__all__ = ["first_calls"]

# Import and first backward of a small problem, as a fresh process meets them; prints seconds.
_PROGRAM = """
import time
start = time.perf_counter()
import lngrad
imported = time.perf_counter() - start
import numpy as np
from lngrad.dtypes import numpy_dtype
x = np.random.default_rng(0).standard_normal((70, 300)).astype(numpy_dtype({dtype!r}))
statistics = np.ones(70, np.float32)
start = time.perf_counter()
lngrad.layer_norm_backward(x[::-1].copy(), x, statistics, statistics, x[0].copy())
print(imported + time.perf_counter() - start)
"""


def first_calls(dtype: str, rounds: int) -> dict[str, Timing]:
    """Seconds from `import lngrad` to the first gradient: `cold` compiles, `lngrad` finds its kernels on disk."""
    seconds: dict[str, list[float]] = {"lngrad": [], "cold": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("cold", "lngrad"):
                seconds[name].append(_run(dtype, folder))
    return {name: Timing.of(times) for name, times in seconds.items()}


def _run(dtype: str, folder: str) -> float:
    command = [sys.executable, "-c", _PROGRAM.format(dtype=dtype)]
    environment = {**os.environ, "XDG_CACHE_HOME": folder}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)
