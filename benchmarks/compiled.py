"""What override(compiled=True) and patch gain in code of torch.compile: training steps with and without them, in turns.

    python benchmarks/compiled.py                        the table of docs/torch.md
    python benchmarks/compiled.py float32 --threads 1    one dtype, one thread

Each way has a process of its own, since switching resets torch.compile. Both are warm before the first turn; a row gives the
median of each and the median of the ratios of neighbours. It writes no record.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.connection import Connection
from typing import Any

Case = tuple[str, int, int]  # what, rows and columns
CASES: list[Case] = [
    *(("LayerNorm", M, N) for M, N in ((64, 64), (1024, 256), (4096, 768), (16384, 1024))),
    ("x + MLP(LayerNorm(x))", 512, 768),
    ("GELU(LayerNorm(x) + r)", 4096, 768),
    *(("RMSNorm", M, N) for M, N in ((64, 64), (512, 768), (4096, 768), (16384, 1024))),
    *(("Llama's formula", M, N) for M, N in ((512, 768), (4096, 768), (16384, 1024))),  # which patch turns
]
ROUNDS, SECONDS = 15, 0.1  # turns, and how long one is at least


def model_of(case: Case) -> Any:
    """A module, or a function with one in its midst: Inductor fuses its own loops with what is around them."""
    import torch

    what, _, N = case
    if what == "RMSNorm":
        return torch.nn.RMSNorm(N, eps=1e-6)
    if what == "Llama's formula":

        class LlamaRMSNorm(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight, self.eps = torch.nn.Parameter(torch.ones(N)), 1e-6

            def forward(self, x: Any) -> Any:
                wide = x.float()
                return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)

        return LlamaRMSNorm()
    norm = torch.nn.LayerNorm(N)
    if what == "LayerNorm":
        return norm
    if what.startswith("GELU"):

        class Block(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm = norm

            def forward(self, x: Any) -> Any:
                return torch.nn.functional.gelu(self.norm(x) + x)

        return Block()

    class Residual(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch = torch.nn.Sequential(
                norm, torch.nn.Linear(N, 4 * N), torch.nn.GELU(), torch.nn.Linear(4 * N, N)
            )

        def forward(self, x: Any) -> Any:
            return x + self.branch(x)

    return Residual()


def step_of(case: Case, dtype: str, ours: bool) -> Callable[[], Any]:
    """Forward and backward with all gradients."""
    import torch

    from lngrad.torch import patch

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    model = model_of(case).to(kind)
    if ours and case[0] == "Llama's formula":
        patch(model)
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    x, dy = torch.randn(case[1], case[2], dtype=kind, requires_grad=True), torch.randn(case[1], case[2], dtype=kind)
    wanted = [x, *model.parameters()]
    return lambda: torch.autograd.grad(compiled(x), wanted, dy)


def work(pipe: Connection, ours: bool, dtype: str, threads: int) -> None:
    """Compile a case when told its number, then one turn for each message; None ends it."""
    import torch

    from lngrad.torch import override

    torch.set_num_threads(threads)
    with override(compiled=True) if ours else nullcontext():
        step: Callable[[], Any] = lambda: None  # noqa: E731  # until the first case comes
        calls = 1
        while (message := pipe.recv()) is not None:
            if message == "turn":
                time.sleep(0.01)  # OpenMP's threads in the other process spin for a while after their work
                start = time.perf_counter()
                for _ in range(calls):
                    step()
                pipe.send((time.perf_counter() - start) / calls)
                continue
            step = step_of(CASES[message], dtype, ours)
            step()
            start = time.perf_counter()
            for _ in range(3):
                step()
            calls = max(1, round(SECONDS * 3 / (time.perf_counter() - start)))
            pipe.send(calls)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="training steps of compiled modules, with and without override(compiled=True)"
    )
    parser.add_argument("dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cases", default=",".join(map(str, range(len(CASES)))), help="numbers, from 0")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    print(
        "| compiled, forward + backward | rows × columns | dtype | threads | Inductor, ms | lngrad, ms | times as fast |"
    )
    print("|---|---|---|---|---|---|---|")
    for dtype in given.dtypes:
        ends = [context.Pipe() for _ in range(2)]
        workers = [
            context.Process(target=work, args=(end, ours, dtype, given.threads)) for ours, (_, end) in enumerate(ends)
        ]
        for worker in workers:
            worker.start()
        pipes = [pipe for pipe, _ in ends]
        for number in map(int, given.cases.split(",")):
            for pipe in pipes:
                pipe.send(number)
                pipe.recv()  # one compiles after the other
            taken: tuple[list[float], list[float]] = ([], [])
            for _ in range(ROUNDS):
                for pipe, times in zip(pipes, taken, strict=True):
                    pipe.send("turn")
                    times.append(pipe.recv())
            ratio = statistics.median(theirs / ours for theirs, ours in zip(*taken, strict=True))
            what, M, N = CASES[number]
            theirs, ours = (statistics.median(times) * 1e3 for times in taken)
            print(
                f"| {what} | {M} × {N} | {dtype} | {given.threads} | {theirs:.3f} | {ours:.3f} | {ratio:.2f} |",
                flush=True,
            )
        for pipe in pipes:
            pipe.send(None)
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main()
