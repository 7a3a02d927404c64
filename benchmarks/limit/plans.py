"""Plans of a call in turns: how many rows go together, how far ahead others are fetched, and where the result goes.

    python benchmarks/limit/plans.py [backward|forward] [float32|bfloat16|float16] ROWSxCOLUMNS ... PLAN ...

A plan is TOGETHER.AHEAD, with .stored or .streamed behind it if that is not as the library decides. So the tables of
src/lngrad/cpu/makes.py are made. Each plan has two times in that of the library's own: in a loop of one call; and as in
a model, where everything else was evicted, dy and x were just written, the memory of the result is in no cache, and a
pass over the result belongs to the call. Medians of 15 turns, with 1 thread and with all.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from limit import DTYPES, on_a_page

import lngrad
from lngrad.core import plan as core_plan
from lngrad.core.arrays import address_of
from lngrad.core.problem import Problem
from lngrad.cpu import plan as cpu_plan

ROUNDS = 15
WARM, TIMED = 3, 4  # calls in a row, in the loop
EVICTING = 12_000_000  # floats, twice
OWN = "own"


class Call(NamedTuple):
    """A call of which every plan has the same arrays.

    Attributes:
        run: Computes it.
        tensors: dy and x, or x.
        result: dx or y.
    """

    run: Callable[[], object]
    tensors: list[Any]
    result: Any


def calls(direction: str, dtype: Any, M: int, N: int, plans: list[str]) -> dict[str, Call]:
    """The same call by the library's own plan and by others, written as on the command line."""
    x, dy, result = (on_a_page(M, N, dtype) for _ in range(3))
    gamma, beta, dgamma, dbeta = np.random.default_rng(N).standard_normal((4, N), np.float32)
    _, mean, rstd = lngrad.layer_norm(x, gamma=gamma, beta=beta)
    if direction == "backward":
        problem, inputs = Problem.backward(dy, x, mean, rstd, gamma)
        tensors, results, numbers = [dy, x], [result, dgamma, dbeta], ()
    else:
        problem, inputs = Problem.forward(x, gamma, beta)
        tensors, results, numbers = [x], [result, mean, rstd], (1e-5,)
    arrays = [*inputs, *results]
    addresses = [address_of(array) for array in arrays]
    rows_of, result_streams = cpu_plan.rows_of, cpu_plan.result_streams
    found = {}
    for name in (OWN, *plans):
        core_plan._plans.clear()
        if name != OWN:
            together, ahead, *where = name.split(".")
            cpu_plan.rows_of = lambda *_, rows=(int(together), int(ahead)): rows
            if where:
                cpu_plan.result_streams = lambda *_, streamed=where == ["streamed"]: streamed
        on_addresses = core_plan.make_plan(problem, "numba_cpu").on_addresses
        cpu_plan.rows_of, cpu_plan.result_streams = rows_of, result_streams

        def run(of: Any = on_addresses, keep: object = arrays) -> None:
            of(*addresses, *numbers)

        found[name] = Call(run, tensors, result)
    core_plan._plans.clear()
    return found


def in_a_loop(call: Call) -> float:
    """Seconds of a call after others of its own."""
    for _ in range(WARM):
        call.run()
    start = time.perf_counter()
    for _ in range(TIMED):
        call.run()
    return (time.perf_counter() - start) / TIMED


def as_in_a_model(call: Call, floats: tuple[Any, Any], again: list[Any]) -> float:
    """Seconds of a call and of a reader of its result, after a pass over other arrays and one that writes the tensors."""
    np.add(floats[0], 1, out=floats[1])
    for tensor, values in zip(call.tensors, again, strict=True):
        np.copyto(tensor, values)
    words = call.result.reshape(-1).view(np.uint32)
    start = time.perf_counter()
    call.run()
    np.bitwise_xor.reduce(words)
    return time.perf_counter() - start


def ratios(found: dict[str, Call]) -> dict[str, tuple[float, float]]:
    """Of each plan the median of its turns over that of the library's own: in a loop, and as in a model."""
    floats = np.ones(EVICTING, np.float32), np.ones(EVICTING, np.float32)
    again = [tensor.copy() for tensor in found[OWN].tensors]
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in found}
    for number in range(ROUNDS):
        order = random.Random(number).sample(list(found), len(found))
        for name in order:
            times[name][0].append(in_a_loop(found[name]))
        for name in order:
            times[name][1].append(as_in_a_model(found[name], floats, again))
    medians = {name: [float(np.median(each)) for each in pair] for name, pair in times.items()}
    own = medians[OWN]
    return {name: (loop / own[0], model / own[1]) for name, (loop, model) in medians.items()}


def main() -> None:
    words = sys.argv[1:]
    direction = "forward" if "forward" in words else "backward"
    dtype, _ = DTYPES[next((name for name in DTYPES if name in words), "float32")]
    plans = [word for word in words if word[0].isdigit() and "." in word]
    threads = lngrad.get_num_threads()
    for shape in [word for word in words if word[0].isdigit() and "x" in word]:
        M, N = map(int, shape.split("x"))
        for number in sorted({1, threads}):
            lngrad.set_num_threads(number)
            said = ratios(calls(direction, dtype, M, N, plans))
            told = "   ".join(f"{name} {said[name][0]:.2f}, {said[name][1]:.2f}" for name in plans)
            print(f"{shape:>12}, {number} thread{'s' * (number > 1)}: {told}", flush=True)


if __name__ == "__main__":
    main()
