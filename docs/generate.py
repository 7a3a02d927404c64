"""Write the measured tables and the picture into the documents, from benchmarks/results.

Run by `make docs`. Text between `<!-- bench:begin -->` and `<!-- bench:end -->` is replaced.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from lngrad.bench.plots import plot
from lngrad.bench.records import newest, read
from lngrad.bench.tables import summary, table

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks" / "results" / "amd-epyc-7003-2-cores.jsonl"
PICTURE = ROOT / "docs" / "bench.svg"


def main() -> int:
    lines = read(RECORDS)
    first = next(iter(newest(lines, "kernel", "torch").values()))
    machine, versions = first["machine"], first["versions"]
    about = (
        f"Backward (dx, dgamma, dbeta) on {machine['cpu']}, {machine['cores']} threads, {machine['cache']}: our median "
        f"time and how many times faster than torch {versions['torch']}, outputs given, rounds interleaved."
    )
    readme = "\n\n".join(
        [about, table(lines, "kernel"), "![Ratios to torch and shares of the roofline](docs/bench.svg)"]
    )
    _replace(ROOT / "README.md", f"{readme}\n\n{summary(lines)}")
    details = [summary(lines)]
    for scope, title in (
        ("override", "A torch.nn.LayerNorm forward and backward, under override() against aten's own kernels"),
        ("autograd", "lngrad.torch.LayerNorm forward and backward, against torch.nn.LayerNorm"),
        ("jax", "lngrad.jax.layer_norm forward and backward in one jitted program, against the jitted formula"),
        ("call", "As called, outputs of 64 MB and more"),
        ("forward", "Forward"),
        ("kernel", "Backward"),
    ):
        details.append(f"### {title}\n\n{table(lines, scope)}")
    _replace(ROOT / "docs" / "performance.md", "\n\n".join(details))
    plot(lines, PICTURE)
    return 0


def _replace(path: Path, text: str) -> None:
    """Put generated text between the markers of a document."""
    whole = path.read_text(encoding="utf-8")
    pattern = re.compile(r"(<!-- bench:begin -->).*?(<!-- bench:end -->)", re.DOTALL)
    if not pattern.search(whole):
        raise SystemExit(f"{path}: expected the markers bench:begin and bench:end")
    path.write_text(pattern.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", whole), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
