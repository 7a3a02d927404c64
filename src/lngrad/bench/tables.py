"""Records as Markdown: what the README and docs/performance.md show."""

from __future__ import annotations

import math

from lngrad.bench.records import Record, newest

__all__ = ["SHOWN", "geometric_mean", "summary", "table"]

# Scopes in the order of the documents, and the peer of each.
SHOWN = {
    "kernel": "torch",
    "call": "torch",
    "forward": "torch",
    "override": "torch",
    "autograd": "torch",
    "jax": "jax",
}


def geometric_mean(values: list[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def table(lines: list[Record], scope: str) -> str:
    """Rows are shapes, columns dtypes: our median time and the ratio to the scope's peer."""
    peer = SHOWN[scope]
    chosen = newest(lines, scope, peer)
    dtypes = list(dict.fromkeys(dtype for _, dtype in chosen))
    rows = [f"| rows × columns | {' | '.join(dtypes)} |", f"|---|{'---|' * len(dtypes)}"]
    for shape in dict.fromkeys(shape for shape, _ in chosen):
        cells = [_cell(chosen.get((shape, dtype)), peer) for dtype in dtypes]
        rows.append(f"| {shape.replace('x', ' × ')} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(record: Record | None, peer: str) -> str:
    if record is None:
        return "–"
    time = record["time_us"]["lngrad"]["median"]
    text = f"{time:.0f} µs" if time < 1000 else f"{time / 1000:.2f} ms"
    return f"{text}, **{record['ratio'][peer]:.1f}×**"


def summary(lines: list[Record]) -> str:
    """One line a scope: the peer, cases, geometric mean and least ratio."""
    rows = ["| scope | against | cases | geometric mean | least |", "|---|---|---|---|---|"]
    for scope, peer in SHOWN.items():
        chosen = newest(lines, scope, peer)
        if chosen:
            ratios = {key: record["ratio"][peer] for key, record in chosen.items()}
            least = min(ratios, key=ratios.__getitem__)
            name = f"{least[0].replace('x', ' × ')} {least[1]}"
            mean = geometric_mean(list(ratios.values()))
            rows.append(f"| {scope} | {peer} | {len(ratios)} | {mean:.2f}× | {ratios[least]:.2f}× ({name}) |")
    return "\n".join(rows)
