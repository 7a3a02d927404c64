"""Plans of a call in turns: how many rows go together, how far ahead others are fetched, and where the result goes.

    python benchmarks/plans.py [backward|forward] [float32|bfloat16|float16] ROWSxCOLUMNS ... PLAN ...

A plan is TOGETHER.AHEAD, with .stored or .streamed behind it if that is not as the library decides. So the tables of
lngrad/src/lngrad/cpu/processor_tuning.py are made. Each plan has two times in that of the library's own: in a loop of one
call; and as in a model, where everything else was evicted, dy and x were just written, the memory of the result is in
no cache, and a pass over the result belongs to the call. Medians of 25 turns, with 1 thread and with all.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import lngrad
from lngrad.core import plan as core_plan
from lngrad.core.problem import Problem
from lngrad.cpu import plan as cpu_plan
from lngrad.support.addresses import address_of
from lngrad.support.dtypes import numpy_dtype

EVICTING = 12_000_000  # floats, twice
OWN = "own"
ROUNDS = 25
WARM, TIMED = 4, 4  # calls in a row: after one who streams, whoever stores finds the result outside of the caches
Contestants = dict[str, Callable[[], object]]
Turn = Callable[[Callable[[], object]], float]


class Arrays(NamedTuple):
    """What a call reads, and where its results go: `result` is dx or y."""

    x: Any
    dy: Any
    result: Any
    gamma: Any
    beta: Any
    dgamma: Any
    dbeta: Any
    mean: Any
    rstd: Any


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
    x, dy, result = (on_a_page(M, N, dtype) for _ in range(3))
    gamma, beta, dgamma, dbeta = np.random.default_rng(N).standard_normal((4, N), np.float32)
    _, mean, rstd = lngrad.layer_norm(x, gamma, beta)
    return Arrays(x, dy, result, gamma, beta, dgamma, dbeta, mean, rstd)


def contestants(direction: str, a: Arrays, plans: list[str]) -> Contestants:
    """The same call by the library's own plan and by others, written as on the command line."""
    if direction == "backward":
        problem, inputs = Problem.backward(a.dy, a.x, a.mean, a.rstd, a.gamma)
        arrays, numbers = [*inputs, a.result, a.dgamma, a.dbeta], ()
    else:
        problem, inputs = Problem.forward(a.x, a.gamma, a.beta)
        arrays, numbers = [*inputs, a.result, a.mean, a.rstd], (1e-5,)
    arguments = *map(address_of, arrays), *numbers
    rows_of, result_streams = cpu_plan.rows_of, cpu_plan.result_streams
    found: Contestants = {}
    for name in (OWN, *plans):
        problem.plans.clear()
        if name != OWN:
            together, ahead, *where = name.split(".")
            cpu_plan.rows_of = lambda *_, rows=(int(together), int(ahead)): rows
            if where:
                cpu_plan.result_streams = lambda *_, streamed=where == ["streamed"]: streamed
        on_addresses: Any = core_plan.make_plan(problem, "numba_cpu").on_addresses
        cpu_plan.rows_of, cpu_plan.result_streams = rows_of, result_streams
        found[name] = lambda run=on_addresses, keep=arrays: run(*arguments)
    problem.plans.clear()
    return found


def in_a_loop(call: Callable[[], object]) -> float:
    """Seconds of a call after others of its own."""
    for _ in range(WARM):
        call()
    start = time.perf_counter()
    for _ in range(TIMED):
        call()
    return (time.perf_counter() - start) / TIMED


def as_in_a_model(tensors: list[Any], result: Any) -> Turn:
    """A turn: a pass over other arrays and one that writes dy and x, or x; then the seconds of a call and of a reader."""
    evicting = np.ones(EVICTING, np.float32), np.ones(EVICTING, np.float32)
    values = [tensor.copy() for tensor in tensors]
    words = result.reshape(-1).view(np.uint32)

    def turn(call: Callable[[], object]) -> float:
        np.add(evicting[0], 1, out=evicting[1])
        for tensor, value in zip(tensors, values, strict=True):
            np.copyto(tensor, value)
        start = time.perf_counter()
        call()
        np.bitwise_xor.reduce(words)
        return time.perf_counter() - start

    return turn


def timed(calls: Contestants, turn: Turn = in_a_loop) -> dict[str, float]:
    """Seconds of each contestant: the median of its turns, each round in another order."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS):
        for name in random.Random(number).sample(list(calls), len(calls)):
            times[name].append(turn(calls[name]))
    return {name: float(np.median(taken)) for name, taken in times.items()}


def main() -> None:
    words = sys.argv[1:]
    direction = "forward" if "forward" in words else "backward"
    dtype = numpy_dtype(next((word for word in words if word in ("bfloat16", "float16")), "float32"))
    plans = [word for word in words if word[0].isdigit() and "." in word]
    threads = lngrad.get_num_threads()
    for shape in [word for word in words if word[0].isdigit() and "x" in word]:
        M, N = map(int, shape.split("x"))
        arrays = random_arrays(M, N, dtype)
        tensors = [arrays.dy, arrays.x] if direction == "backward" else [arrays.x]
        for number in sorted({1, threads}):
            lngrad.set_num_threads(number)
            calls = contestants(direction, arrays, plans)
            loop, model = timed(calls), timed(calls, as_in_a_model(tensors, arrays.result))
            ratios = "   ".join(
                f"{name} {loop[name] / loop[OWN]:.2f}, {model[name] / model[OWN]:.2f}" for name in plans
            )
            print(f"{shape:>12}, {number} thread{'s' * (number > 1)}: {ratios}", flush=True)


if __name__ == "__main__":
    main()
