"""`lngrad bench --device cuda`: run, print as it goes, keep records, draw."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from lngrad.bench.cases import Job
from lngrad.bench.command import settings_of
from lngrad.bench.records import append
from lngrad.plan import backends

__all__ = ["cuda_bench", "cuda_settings", "why_no_device"]

_CPU_DTYPES = "float32,bfloat16,float16"  # the command's default, which is meant for the CPU
_OPS = {"kernel": "backward", "forward": "forward"}


def why_no_device() -> str | None:
    """Why nothing can be timed on a GPU here, or None."""
    state = backends()["triton_gpu"]
    return None if state == "available" else f"device: expected a CUDA device for --device cuda, got none: {state}"


def cuda_settings(
    scopes: str, cases: str, dtypes: str, peers: str, rounds: int, quick: bool
) -> tuple[list[Job], tuple[str, ...], int]:
    """Jobs, peers and rounds from comma-separated options; see settings_of, which raises for what does not exist."""
    from lngrad.bench.cuda import CUDA_PEERS, cuda_jobs, why_not

    chosen = settings_of(scopes, cases, "bfloat16,float32" if dtypes == _CPU_DTYPES else dtypes, peers, rounds, quick)
    for name in chosen.peers:
        if name not in CUDA_PEERS:
            raise ValueError(why_not(name))
    ops = tuple(op for scope, op in _OPS.items() if scope in chosen.scopes)
    return cuda_jobs(chosen.shapes, chosen.dtypes, ops, quick), chosen.peers, 5 if quick else rounds


def cuda_bench(
    scopes: str,
    cases: str,
    dtypes: str,
    peers: str,
    rounds: int,
    quick: bool,
    json: Path | None,
    plot: Path | None,
    console: Console,
    **injected: Any,
) -> list[dict[str, Any]]:
    """Time everything; print a line a job, append records to `json`, draw `plot`. `injected` goes to cuda_run, for tests."""
    jobs, names, rounds = cuda_settings(scopes, cases, dtypes, peers, rounds, quick)
    cuda_run = import_module("lngrad.bench.cuda_runner").cuda_run
    lines: list[dict[str, Any]] = []
    for line in cuda_run(jobs, names, rounds, lambda text: console.print(text, style="yellow"), **injected):
        lines.append(line)
        ratios = ", ".join(f"{name} {ratio:.2f}×" for name, ratio in line["ratio"].items())
        time = line["time_us"]["lngrad"]["median"]
        console.print(
            f"{line['op']} {line['M']} × {line['N']} {line['dtype']}: {time:.1f} µs, {line['bandwidth']:.0f} GB/s, "
            f"{line['of_roofline']:.0%} of copy; {ratios}"
        )
        if json is not None:
            append(json, [line])
    if plot is not None:
        from lngrad.bench.plots import plot as draw

        draw(lines, plot, names[0] if names else "torch")
        console.print(f"picture written to {plot}")
    return lines
