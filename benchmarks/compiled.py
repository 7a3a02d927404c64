"""What override(compiled=True) and patch gain in code of torch.compile: training steps with and without them, in turns.

    python benchmarks/compiled.py                        the table of docs/torch.md
    python benchmarks/compiled.py float32 --threads 1    one dtype, one thread

Both ways are compiled in one process and take short turns in random order, since one process differs from the next by some
percent of a small step. A row gives the median of each and the median of the ratios of neighbours. It writes no record.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

Case = tuple[str, int, int]  # what, rows and columns
CASES: list[Case] = [
    *(("LayerNorm", M, N) for M, N in ((64, 64), (1024, 256), (4096, 768), (16384, 1024))),
    ("x + MLP(LayerNorm(x))", 512, 768),
    ("GELU(LayerNorm(x) + r)", 4096, 768),
    *(("RMSNorm", M, N) for M, N in ((64, 64), (512, 768), (4096, 768), (16384, 1024))),
    *(("Llama's formula", M, N) for M, N in ((512, 768), (4096, 768), (16384, 1024))),  # which patch turns
]
SECONDS, TURN = 5.0, 0.004  # of a row, and of a turn at least
TURNS = 15  # at least


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
    """Forward and backward with all gradients; Inductor's own way without the pass that override() has put there."""
    import torch

    from lngrad.torch import patch

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    model = model_of(case).to(kind)
    if ours and case[0] == "Llama's formula":
        patch(model)
    options = None if ours else {"pre_grad_custom_pass": None}
    compiled = torch.compile(model, fullgraph=True, dynamic=False, options=options)
    x, dy = torch.randn(case[1], case[2], dtype=kind, requires_grad=True), torch.randn(case[1], case[2], dtype=kind)
    wanted = [x, *model.parameters()]
    return lambda: torch.autograd.grad(compiled(x), wanted, dy)


def turns_of(steps: list[Callable[[], Any]], seconds: float) -> list[list[float]]:
    """The mean time of a call, of each step and turn."""

    def turn(step: Callable[[], Any], calls: int) -> float:
        step()
        start = time.perf_counter()
        for _ in range(calls):
            step()
        return (time.perf_counter() - start) / calls

    calls = max(1, round(TURN / max(turn(step, 3) for step in steps)))
    taken: list[list[float]] = [[] for _ in steps]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken[0]) < TURNS:
        for way in random.sample(range(len(steps)), len(steps)):
            taken[way].append(turn(steps[way], calls))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description="training steps of compiled modules, with and without override(compiled=True)"
    )
    parser.add_argument("dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cases", default=",".join(map(str, range(len(CASES)))), help="numbers, from 0")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a row")
    options = parser.parse_args()
    import torch

    from lngrad.torch import override

    torch.set_num_threads(options.threads)
    print(
        "| compiled, forward + backward | rows × columns | dtype | threads | Inductor, ms | lngrad, ms | times as fast |"
    )
    print("|---|---|---|---|---|---|---|")
    for dtype in options.dtypes:
        for what, M, N in (CASES[number] for number in map(int, options.cases.split(","))):
            with override(compiled=True):
                theirs, ours = turns_of([step_of((what, M, N), dtype, ours) for ours in (False, True)], options.seconds)
            ratio = statistics.median(their / our for their, our in zip(theirs, ours, strict=True))
            their, our = (statistics.median(times) * 1e3 for times in (theirs, ours))
            print(
                f"| {what} | {M} × {N} | {dtype} | {options.threads} | {their:.3f} | {our:.3f} | {ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
