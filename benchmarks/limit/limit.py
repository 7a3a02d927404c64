"""How far the library is from plain C loops on one core of this machine.

    python benchmarks/limit/limit.py [backward|forward] [layer_norm|rms_norm|add_layer_norm|add_rms_norm]
        [float32|bfloat16|float16] [--rounded] [ROWSxCOLUMNS ...]

rows.c is a yardstick, not a library: sums in registers, no tails, no tree, its own rounding, or with --rounded the
library's work, which is checked: its results have the library's bits. It is compiled for the machine and taken at its
best of R rows at a time, once with the result stored and once with the result streamed past the caches, which whoever
reads it next pays for. Contestants take turns, 25 rounds in 25 orders; each is called eight times in a row, and the
last four are timed. Nanoseconds an element: median (least).
"""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
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
FLAGS = ["-O3", "-march=native", "-mprefer-vector-width=512", "-fno-math-errno", "-shared", "-fPIC"]
DTYPES = {
    "float32": (np.float32, []),
    "bfloat16": (ml_dtypes.bfloat16, ["-DBFLOAT16"]),
    "float16": (np.float16, ["-DFLOAT16"]),
}
NORMS = {
    "layer_norm": [],
    "rms_norm": ["-DRMS"],
    "add_layer_norm": ["-DRESIDUAL"],
    "add_rms_norm": ["-DRMS", "-DRESIDUAL"],
}
ROUNDED = ["-DROUNDED", "-ffp-contract=off"]
ROUNDS = 25
WARM, TIMED = 4, 4  # calls in a row: after one who streams, whoever stores finds the result outside of the caches
Contestants = dict[str, Callable[[], object]]


class Arrays(NamedTuple):
    """What a call reads, and where its results go: `result` is dx or y, `total` x + residual."""

    x: Any
    dy: Any
    residual: Any
    result: Any
    total: Any
    gamma: Any
    beta: Any
    dgamma: Any
    dbeta: Any
    mean: Any
    rstd: Any


def library(flags: list[str]) -> Any:
    """rows.c, compiled for this machine."""
    target = Path(tempfile.mkdtemp()) / "rows.so"
    subprocess.run(["gcc", *FLAGS, *flags, Path(__file__).with_name("rows.c"), "-o", target], check=True)
    return ctypes.CDLL(str(target))


def on_a_page(M: int, N: int, dtype: Any) -> Any:
    """Random numbers that begin on a page."""
    nbytes = M * N * np.dtype(dtype).itemsize
    block = np.zeros(nbytes + 4096, np.uint8)
    start = -block.ctypes.data % 4096
    array = block[start : start + nbytes].view(dtype).reshape(M, N)
    array[:] = np.random.default_rng(M).standard_normal((M, N), np.float32)
    return array


def random_arrays(M: int, N: int, dtype: Any) -> Arrays:
    """Of a call on M rows of N columns; mean and rstd are those of x."""
    x, dy, residual, result, total = (on_a_page(M, N, dtype) for _ in range(5))
    gamma, beta, dgamma, dbeta = np.random.default_rng(N).standard_normal((4, N), np.float32)
    _, mean, rstd = lngrad.layer_norm(x, gamma=gamma, beta=beta)
    return Arrays(x, dy, residual, result, total, gamma, beta, dgamma, dbeta, mean, rstd)


def contestants(C: Any, direction: str, norm: str, dtype: Any, M: int, N: int) -> Contestants:
    """What is timed: the library, and the loop in C for every number of rows and kind of store.

    A backward reads `residual` as the gradient of the sum.
    """
    x, dy, residual, result, total, gamma, beta, dgamma, dbeta, mean, rstd = random_arrays(M, N, dtype)
    adds, centred = norm.startswith("add"), norm.endswith("layer_norm")
    if direction == "backward":
        arrays = [dy, x, residual, result, gamma, dgamma, dbeta, mean, rstd]
        dtotal = residual if adds else None
        if centred:
            grads = lngrad.Grads(result, dgamma, dbeta)
            call = partial(lngrad.layer_norm_backward, dy, x, mean, rstd, gamma, dtotal=dtotal, out=grads)
        else:
            call = partial(
                lngrad.rms_norm_backward, dy, x, rstd, gamma, dtotal=dtotal, out=lngrad.RmsGrads(result, dgamma)
            )
    else:
        arrays = [x, residual, total, result, gamma, beta, mean, rstd]
        outputs = {"y": result, "mean": mean, "rstd": rstd, "total": total}
        kind = {"layer_norm": lngrad.Forward, "add_layer_norm": lngrad.ForwardWithTotal}.get(norm, lngrad.RmsForward)
        out = kind(**{name: outputs[name] if adds or name != "total" else None for name in kind._fields})
        of_norm = {"beta": beta} if centred else {"eps": 1e-5}
        call = partial(
            lngrad.layer_norm if centred else lngrad.rms_norm,
            x,
            gamma=gamma,
            residual=residual if adds else None,
            out=out,
            **of_norm,
        )
    addresses = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
    found: Contestants = {"lngrad": call}
    for rows in (1, 2, 4, 8):
        for streaming in (0, 1):
            loop = C[f"{direction}_{rows}_{streaming}"]
            found[f"C, {rows} rows, {'streamed' if streaming else 'stored'}"] = partial(loop, M, N, *addresses)
    return found


def check_same_bits(calls: Contestants) -> None:
    """Let no contestant win by doing less."""
    call_of_library: Any = calls["lngrad"]
    results, found = [each for each in call_of_library.keywords["out"] if each is not None], {}
    for name, call in calls.items():
        for each in results:
            each.view(np.uint8)[...] = 255
        call()
        found[name] = [each.tobytes() for each in results]
    others = [name for name, each in found.items() if each != found["lngrad"]]
    assert not others, f"other bits than the library's: {others}"


def in_a_loop(call: Callable[[], object]) -> float:
    """Seconds of a call after others of its own."""
    for _ in range(WARM):
        call()
    start = time.perf_counter()
    for _ in range(TIMED):
        call()
    return (time.perf_counter() - start) / TIMED


def timed(
    calls: Contestants, turn: Callable[[Callable[[], object]], float] = in_a_loop
) -> dict[str, tuple[float, float]]:
    """Seconds of each contestant: the median of its turns, and the least."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS):
        for name in random.Random(number).sample(list(calls), len(calls)):
            times[name].append(turn(calls[name]))
    return {name: (float(np.median(each)), min(each)) for name, each in times.items()}


def main() -> None:
    words = sys.argv[1:]
    direction = "forward" if "forward" in words else "backward"
    norm = next((name for name in NORMS if name in words), "layer_norm")
    dtype, flags = DTYPES[next((name for name in DTYPES if name in words), "float32")]
    C = library(flags + NORMS[norm] + ROUNDED * ("--rounded" in words))
    lngrad.set_num_threads(1)
    for shape in [word for word in words if word[0].isdigit()] or SHAPES:
        M, N = map(int, shape.split("x"))
        M -= M % 8
        calls = contestants(C, direction, norm, dtype, M, N)
        if "--rounded" in words:
            check_same_bits(calls)
        found = timed(calls)
        figures = {name: (median / M / N * 1e9, least / M / N * 1e9) for name, (median, least) in found.items()}
        ours = figures.pop("lngrad")
        line = f"lngrad {ours[0]:.3f} ({ours[1]:.3f})"
        for kind in ("stored", "streamed"):
            best = min((name for name in figures if name.endswith(kind)), key=lambda name: figures[name][0])
            median, least = figures[best]
            line += f"   {best:<19} {median:.3f} ({least:.3f}), {median / ours[0]:.2f} of lngrad's"
        print(f"{shape:>12}: {line}", flush=True)


if __name__ == "__main__":
    main()
