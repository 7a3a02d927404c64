"""Eager RMS normalization, and add and norm: forward and backward by torch, by Llama's formula and by lngrad, in turns.

    python benchmarks/family.py                             the tables of docs/torch.md
    python benchmarks/family.py bfloat16 --threads 1        one dtype, one thread

A row gives the median of each in milliseconds, and in brackets how many times as long as `lngrad` it takes, the median of the
ratios of neighbours. `override` is torch's function under lngrad.torch.override(). It writes no record.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from lngrad.torch import add_layer_norm, add_rms_norm, layer_norm, override, rms_norm

F = torch.nn.functional
SHAPES = [(8, 64), (512, 768), (4096, 768), (16384, 1024), (2048, 4096)]
ROUNDS, SECONDS, EPS = 15, 0.05, 1e-6  # turns, and how long one is at least


def llama(x: Any, w: Any) -> Any:
    """The formula of transformers' LlamaRMSNorm."""
    wide = x.float()
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


# Of x, residual, weight and bias; lngrad's first. With a residual y and the total are results.
TABLES: dict[str, dict[str, Callable[..., Any]]] = {
    "RMSNorm": {
        "lngrad": lambda x, r, w, b: rms_norm(x, w.shape, w, EPS),
        "override": lambda x, r, w, b: F.rms_norm(x, w.shape, w, EPS),
        "F.rms_norm": lambda x, r, w, b: F.rms_norm(x, w.shape, w, EPS),
        "Llama's formula": lambda x, r, w, b: llama(x, w),
        "lngrad's layer_norm": lambda x, r, w, b: layer_norm(x, w.shape, w, b),
    },
    "x + residual, then RMSNorm": {
        "lngrad": lambda x, r, w, b: add_rms_norm(x, r, w.shape, w, EPS),
        "add, then lngrad": lambda x, r, w, b: (rms_norm(total := x + r, w.shape, w, EPS), total),
        "add, then F.rms_norm": lambda x, r, w, b: (F.rms_norm(total := x + r, w.shape, w, EPS), total),
    },
    "x + residual, then LayerNorm": {
        "lngrad": lambda x, r, w, b: add_layer_norm(x, r, w.shape, w, b),
        "add, then lngrad": lambda x, r, w, b: (layer_norm(total := x + r, w.shape, w, b), total),
        "add, then F.layer_norm": lambda x, r, w, b: (F.layer_norm(total := x + r, w.shape, w, b), total),
    },
}


def step_of(function: Callable[..., Any], leaves: list[Any], dy: Any) -> Callable[[], Any]:
    """Forward and backward with all gradients that there are."""

    def step() -> Any:
        results = function(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        return torch.autograd.grad(results, leaves, (dy,) * len(results), allow_unused=True)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description="RMS normalization, and add and norm, in eager code")
    parser.add_argument("dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--shapes", default=",".join(map(str, range(len(SHAPES)))), help="numbers, from 0")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for title, ways in TABLES.items():
        print(f"\n| {title}: shape, dtype | " + " | ".join(ways) + " |\n|---|" + "---|" * len(ways))
        for M, N in (SHAPES[int(number)] for number in given.shapes.split(",")):
            for dtype in given.dtypes:
                generator = torch.Generator().manual_seed(0)
                shapes = (M, N), (M, N), (N,), (N,)
                kind = getattr(torch, dtype)
                leaves = [torch.randn(shape, generator=generator).to(kind).requires_grad_() for shape in shapes]
                dy = torch.randn(M, N, generator=generator).to(kind)
                steps = [step_of(function, leaves, dy) for function in ways.values()]
                calls = []
                for step in steps:
                    step()
                    start = time.perf_counter()
                    step()
                    calls.append(max(1, round(SECONDS / (time.perf_counter() - start))))
                taken: list[list[float]] = [[] for _ in steps]
                for _ in range(given.rounds):
                    for way, step, count, times in zip(ways, steps, calls, taken, strict=True):
                        with override() if way == "override" else nullcontext():
                            start = time.perf_counter()
                            for _ in range(count):
                                step()
                            times.append((time.perf_counter() - start) / count)
                cells = []
                for times in taken:
                    ratio = statistics.median(one / ours for one, ours in zip(times, taken[0], strict=True))
                    cells.append(f"{statistics.median(times) * 1e3:.3g} ({ratio:.2f})")
                print(f"| {M} × {N} {dtype} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
