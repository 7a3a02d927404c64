"""Plans of a call in turns: how many rows go together, how far ahead others are fetched, and where the result goes.

    python benchmarks/limit/plans.py [backward|forward] [float32|bfloat16|float16] ROWSxCOLUMNS ... PLAN ...

A plan is TOGETHER.AHEAD, with .stored or .streamed behind it if that is not as the library decides. So the tables of
lngrad/src/lngrad/cpu/processor_tuning.py are made. Each plan has two times in that of the library's own: in a loop of one
call; and as in a model, where everything else was evicted, dy and x were just written, the memory of the result is in
no cache, and a pass over the result belongs to the call. Medians of 25 turns, with 1 thread and with all.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import lngrad
from limit import DTYPES, Arrays, Contestants, random_arrays, timed
from lngrad.core import plan as core_plan
from lngrad.core.problem import Problem
from lngrad.cpu import plan as cpu_plan
from lngrad.support.addresses import address_of

EVICTING = 12_000_000  # floats, twice
OWN = "own"


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


def as_in_a_model(tensors: list[Any], result: Any) -> Callable[[Callable[[], object]], float]:
    """A turn: a pass over other arrays and one that writes dy and x, or x; then the seconds of a call and of a reader."""
    evicting = np.ones(EVICTING, np.float32), np.ones(EVICTING, np.float32)
    values = [tensor.copy() for tensor in tensors]
    words = result.reshape(-1).view(np.uint32)

    def turn(call: Callable[[], object]) -> float:
        np.add(evicting[0], 1, out=evicting[1])
        for tensor, each in zip(tensors, values, strict=True):
            np.copyto(tensor, each)
        start = time.perf_counter()
        call()
        np.bitwise_xor.reduce(words)
        return time.perf_counter() - start

    return turn


def main() -> None:
    words = sys.argv[1:]
    direction = "forward" if "forward" in words else "backward"
    dtype, _ = DTYPES[next((name for name in DTYPES if name in words), "float32")]
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
            own = loop[OWN][0], model[OWN][0]
            ratios = "   ".join(f"{name} {loop[name][0] / own[0]:.2f}, {model[name][0] / own[1]:.2f}" for name in plans)
            print(f"{shape:>12}, {number} thread{'s' * (number > 1)}: {ratios}", flush=True)


if __name__ == "__main__":
    main()
