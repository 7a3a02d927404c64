"""The first call of a process: with an empty kernel cache, and with a full one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from lngrad.bench.measure import Call

# Import and first backward of a small problem, in a fresh process; prints seconds.
_PROGRAM = """
import time
start = time.perf_counter()
import lngrad
imported = time.perf_counter() - start
import numpy as np
from lngrad.core.dtypes import numpy_dtype
x = np.random.default_rng(0).standard_normal((70, 300)).astype(numpy_dtype({dtype!r}))
statistics = np.ones(70, np.float32)
start = time.perf_counter()
lngrad.layer_norm_backward(x[::-1].copy(), x, statistics, statistics, x[0].copy())
print(imported + time.perf_counter() - start)
"""


class FirstCalls:
    """Fresh processes from `import lngrad` to the first gradient; each call returns the seconds."""

    def __init__(self, dtype: str) -> None:
        self._program = _PROGRAM.format(dtype=dtype)
        self._folder = tempfile.TemporaryDirectory()

    def cold(self) -> float:
        """With an empty kernel cache: it compiles."""
        self._folder.cleanup()
        self._folder = tempfile.TemporaryDirectory()
        return self.warm()

    def warm(self) -> float:
        """With the kernel cache that the last call left."""
        environment = {**os.environ, "XDG_CACHE_HOME": self._folder.name}
        command = [sys.executable, "-c", self._program]
        return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def clock(name: str, call: Call) -> float:
    """The clock of calls that time themselves."""
    return float(call())
