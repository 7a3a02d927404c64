"""How far the float32 backward is from a plain C loop on one core of this machine.

    python benchmarks/limit/limit.py [ROWSxCOLUMNS ...]

rows.c is a yardstick, not a library: column sums in registers, no tails, no tree, its own rounding. It is compiled for the
machine and taken at its best of R rows at a time, stored or streamed. Contestants take turns, 25 rounds; each is called three
times in a row, and the last two are timed. Nanoseconds an element: median (least).
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import lngrad

SHAPES = [
    "512x384",
    "1024x256",
    "4096x256",
    "1024x1024",
    "4096x768",
    "65536x256",
    "16384x1024",
    "2048x5120",
    "4096x4096",
    "100000x64",
]
FLAGS = ["-O3", "-march=native", "-mprefer-vector-width=512", "-shared", "-fPIC"]
ROUNDS = 25


def library() -> Any:
    """rows.c, compiled for this machine."""
    target = Path(tempfile.mkdtemp()) / "rows.so"
    subprocess.run(["gcc", *FLAGS, Path(__file__).with_name("rows.c"), "-o", target], check=True)
    return ctypes.CDLL(str(target))


def on_a_page(count: int) -> Any:
    """So many float32 that begin on a page."""
    block = np.zeros(count + 1024, np.float32)
    start = -block.ctypes.data % 4096 // 4
    return block[start : start + count]


def contestants(C: Any, M: int, N: int) -> dict[str, Callable[[], object]]:
    """What is timed: the library, and the loop in C for every number of rows and kind of store."""
    rng = np.random.default_rng(0)
    x, dy, dx = (on_a_page(M * N).reshape(M, N) for _ in range(3))
    x[:], dy[:] = rng.standard_normal((M, N)), rng.standard_normal((M, N))
    gamma, dgamma, dbeta = rng.standard_normal(N).astype(np.float32), np.zeros(N, np.float32), np.zeros(N, np.float32)
    _, mean, rstd = lngrad.layer_norm(x, gamma=gamma)
    out = lngrad.Grads(dx, dgamma, dbeta) if M * N > 1e6 else None  # a small call with out= takes a longer way
    addresses = [ctypes.c_void_p(array.ctypes.data) for array in (dy, x, dx, gamma, dgamma, dbeta)]
    found: dict[str, Callable[[], object]] = {
        "lngrad": lambda: lngrad.layer_norm_backward(dy, x, mean, rstd, gamma, out=out)
    }
    for rows in (1, 2, 4, 8):
        for streaming in (0, 1):
            loop = C[f"rows_{rows}_{streaming}"]
            found[f"C, {rows} rows, {'streamed' if streaming else 'stored'}"] = lambda f=loop: f(M, N, *addresses)
    return found


def main() -> None:
    C = library()
    lngrad.set_num_threads(1)
    for shape in sys.argv[1:] or SHAPES:
        M, N = map(int, shape.split("x"))
        M -= M % 8
        calls = contestants(C, M, N)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                call()
                start = time.perf_counter()
                call()
                call()
                times[name].append((time.perf_counter() - start) / 2 / (M * N) * 1e9)
        figures = {name: (float(np.median(each)), min(each)) for name, each in times.items()}
        ours = figures.pop("lngrad")
        best = min(figures, key=lambda name: figures[name][0])
        said = f"lngrad {ours[0]:.3f} ({ours[1]:.3f})   {best:<22} {figures[best][0]:.3f} ({figures[best][1]:.3f})"
        print(f"{shape:>12}: {said}   C is {ours[0] / figures[best][0]:.2f} times as fast", flush=True)


if __name__ == "__main__":
    main()
