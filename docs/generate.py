"""Write the measured tables and pictures into the documents, from benchmarks/results.

Run by `make docs`. Text between `<!-- bench:begin -->` and `<!-- bench:end -->` is replaced.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from benchmark_page import page
from benchmark_tables import ratios_table, summary, thread_counts, times_table

from lngrad.bench.plots import machine_name, plot
from lngrad.bench.records import Record, newest, read

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "bench.svg"

SCOPES = {
    "kernel": "Backward",
    "forward": "Forward",
    "call": "As called, outputs of 64 MB and more",
    "override": "A torch.nn.LayerNorm forward and backward, under override() against aten's own kernels",
    "autograd": "lngrad.torch.LayerNorm forward and backward, against torch.nn.LayerNorm",
    "jax": "lngrad.jax.layer_norm forward and backward in one jitted program, against the jitted formula",
}


def main() -> int:
    """Rewrite README.md, docs/performance.md, docs/benchmarks.html and docs/bench.svg."""
    machines = machines_in(RESULTS)
    _replace(ROOT / "README.md", readme(machines))
    _replace(ROOT / "docs" / "performance.md", performance(machines))
    (ROOT / "docs" / "benchmarks.html").write_text(page(machines), encoding="utf-8")
    plot(list(machines.values()), PICTURE)
    return 0


def machines_in(folder: Path) -> dict[str, list[Record]]:
    """The records of every CPU, by its name; newest machine first."""
    files = [read(path) for path in sorted(folder.glob("*.jsonl"))]
    found = [lines for lines in files if lines and "scope" in lines[0] and newest(lines, "kernel")]
    found.sort(key=lambda lines: str(lines[-1]["date"]), reverse=True)
    return {machine_name(lines[-1]): lines for lines in found}


def readme(machines: dict[str, list[Record]]) -> str:
    """The table of the backward on every machine, the picture and the summary."""
    about = [f"{name}, {_threads(lines)}" for name, lines in machines.items()]
    text = (
        f"Backward (dx, dgamma, dbeta) on {'; on '.join(about)}: how many times faster than the best peer, "
        "results given, medians of interleaved rounds. 1× is as fast; a case below is lost."
    )
    short = {_short(name): lines for name, lines in machines.items()}
    every = "Every record, with its history: [docs/benchmarks.html](docs/benchmarks.html)."
    picture = "![Ratios to the best peer and shares of the roofline](docs/bench.svg)"
    return "\n\n".join(
        [textwrap.fill(text, 100), ratios_table(short, "kernel"), picture, summary(short, every=False), every]
    )


def performance(machines: dict[str, list[Record]]) -> str:
    """The whole summary, and our times by machine, scope and number of threads."""
    short = {_short(name): lines for name, lines in machines.items()}
    parts = [summary(short, every=True)]
    for name, lines in machines.items():
        parts.append(f"### {name}")
        for scope, title in SCOPES.items():
            for threads in thread_counts(lines, scope):
                parts.append(f"#### {title}, {_count(threads)}\n\n{times_table(lines, scope, threads)}")
    return "\n\n".join(parts)


def _threads(lines: list[Record]) -> str:
    machine = lines[-1]["machine"]
    return f"{_count(thread_counts(lines, 'kernel')[0])}, {machine['cache']}"


def _count(threads: int) -> str:
    return f"{threads} thread{'s' * (threads > 1)}"


def _short(name: str) -> str:
    """The maker and the vectors: "AMD AVX2"."""
    return f"{name.split()[0]} {name.rsplit(', ', 1)[-1]}"


def _replace(path: Path, text: str) -> None:
    """Put generated text between the markers of a document."""
    whole = path.read_text(encoding="utf-8")
    pattern = re.compile(r"(<!-- bench:begin -->).*?(<!-- bench:end -->)", re.DOTALL)
    if not pattern.search(whole):
        raise SystemExit(f"{path}: expected the markers bench:begin and bench:end")
    path.write_text(pattern.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", whole), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
