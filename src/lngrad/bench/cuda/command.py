"""`lngrad bench --device cuda`: run, print as it goes, keep records, draw."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from lngrad.bench.cases import Job
from lngrad.bench.command import drawn_peer, settings_of
from lngrad.bench.records import append
from lngrad.plan import backends

__all__ = ["cuda_bench", "cuda_settings", "why_no_device"]

_DTYPES = "bfloat16,float32"
_OPS = {"call": "backward", "forward": "forward"}  # by scope; both are the public functions, as a user calls them


def why_no_device() -> str | None:
    """Why nothing can be timed on a GPU here, or None."""
    state = backends()["triton_gpu"]
    if state != "available":
        return f"device: expected a CUDA device for --device cuda, got none: {state}"
    if import_module("lngrad.kernels.triton_gpu").INTERPRETED:
        return "device: expected compiled kernels for --device cuda, got TRITON_INTERPRET=1: unset it"
    return None


def cuda_settings(
    scopes: str, cases: str, dtypes: str, peers: str, rounds: int, quick: bool
) -> tuple[list[Job], tuple[str, ...], int]:
    """Jobs, peers and rounds from comma-separated options.

    Raises:
        ValueError: A name or shape is none that exists, or none for a CUDA device.
    """
    from lngrad.bench.cuda.contestants import CUDA_PEERS, cuda_jobs, why_not

    chosen = settings_of(scopes or ",".join(_OPS), cases, dtypes or _DTYPES, peers, rounds, quick)
    for scope in chosen.scopes:
        if scope not in _OPS:
            raise ValueError(f"scopes: expected some of {', '.join(_OPS)} with --device cuda, got {scope!r}")
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
    """Time everything; print a line a job, append records to `json`, draw `plot`. `injected` goes to cuda_run, for tests.

    Raises:
        ValueError: An option is wrong, or there will be nothing to draw; nothing was timed.
    """
    from lngrad.bench.cuda.contestants import why_not

    jobs, names, rounds = cuda_settings(scopes, cases, dtypes, peers, rounds, quick)
    timed = tuple(scope for scope, op in _OPS.items() if any(job.op == op for job in jobs))
    drawn = drawn_peer(timed, "call", names, why_not) if plot is not None else ""
    cuda_run = import_module("lngrad.bench.cuda.runner").cuda_run
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

        draw(lines, plot, drawn, "call")
        console.print(f"picture written to {plot}")
    return lines
