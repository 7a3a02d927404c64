"""Records as Markdown: the tables of the README, of docs/performance.md, docs/torch.md and docs/gpu.md."""

from __future__ import annotations

from collections.abc import Callable
from statistics import geometric_mean
from typing import Any

from lngrad.bench.records import Case, Record, best, newest
from peer_libraries.plots import PEER_NAMES

SCOPES = ("kernel", "forward", "call", "override", "autograd", "jax")  # in the order of the documents
TINY = 64  # rows of fewer elements are counted by themselves
LEFT_OUT = 128, 1536, 2048, 6144, 8192, 65536  # lengths of rows that are as those beside them
LARGE = 1 << 26  # elements of a call from which a GPU's time is that of its kernels

Ratio = tuple[str, float]  # a peer, and its time divided by ours


def overview(machines: dict[str, list[Record]], headings: tuple[str, ...], device: list[Record]) -> str:
    """A line a machine: geometric means of the ratios to the best peer, and how many of the kernels' cases are won."""
    rows = [f"| {' | '.join(headings)} |", "|---|---|---|---|---|---|---|---|"]
    for name, lines in machines.items():
        cells, won, cases = [], 0, 0
        for scope in ("kernel", "forward", "override"):
            ratios = {case: best(line) for case, line in newest(lines, scope).items()}
            long = {case: ratio for case, ratio in ratios.items() if case[1] >= TINY}
            cells += [_mean(long, lambda case: case[2] == "float32"), _mean(long, lambda case: case[2] != "float32")]
            if scope != "override":
                won, cases = won + sum(ratio >= 1 for _, ratio in ratios.values()), cases + len(ratios)
        cells.insert(4, f"{won} / {cases}")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*rows, gpu_row(device)] if device else rows)


def ranges(machines: dict[str, list[Record]]) -> str:
    """A line a scope, with the most threads: cases won, the machines' least and largest geometric means, the least ratio."""
    rows = [
        "| timed | against | won | rows of ≥ 64: float32 | 16 bits | shorter rows | least |",
        "|---|---|---|---|---|---|---|",
    ]
    for scope in SCOPES:
        found = {name: newest(lines, scope) for name, lines in machines.items()}
        ratios = {(name, case): best(line) for name, lines in found.items() for case, line in lines.items()}
        if not ratios:
            continue
        peers = dict.fromkeys(peer for lines in found.values() for line in lines.values() for peer in line["ratio"])
        means = (
            _span(ratios, lambda case: case[1] >= TINY and case[2] == "float32"),
            _span(ratios, lambda case: case[1] >= TINY and case[2] != "float32"),
            _span(ratios, lambda case: case[1] < TINY),
        )
        name, (M, N, dtype) = least = min(ratios, key=lambda case: ratios[case][1])
        won = sum(ratio >= 1 for _, ratio in ratios.values())
        rows.append(
            f"| {scope} | {', '.join(map(_peer, peers))} | {won} of {len(ratios)} | "
            f"{' | '.join(means)} | {ratios[least][1]:.2f}× ({M} × {N} {dtype}, {_peer(ratios[least][0])}, {name}) |"
        )
    return "\n".join(rows)


def shapes_table(machines: dict[str, list[Record]], headings: tuple[str, ...]) -> str:
    """A line a shape: the least and the largest ratio to torch of all machines, of override() and of a module."""
    rows = [f"| {' | '.join(headings)} |", "|---|---|---|---|---|"]
    found: dict[tuple[int, int], dict[tuple[str, bool], list[float]]] = {}
    for lines in machines.values():
        for scope in ("override", "autograd"):
            for (M, N, dtype), line in newest(lines, scope).items():
                cells = found.setdefault((M, N), {})
                cells.setdefault((scope, dtype != "float32"), []).append(line["ratio"]["torch"])
    for (M, N), cells in sorted(found.items(), key=lambda item: (item[0][0] * item[0][1], item[0])):
        spans = (cells[scope, is_short] for scope in ("override", "autograd") for is_short in (False, True))
        rows.append(f"| {M} × {N} | {' | '.join(f'{min(span):.2f}–{max(span):.2f}' for span in spans)} |")
    return "\n".join(rows)


def gpu_row(lines: list[Record]) -> str:
    """A device's line of the overview: the ratios of its large jobs, and how many of all jobs are won."""
    all_jobs = {
        (scope, *case): best(line) for scope in ("call", "forward") for case, line in newest(lines, scope).items()
    }
    cells = [
        _mean(
            {case: ratio for case, ratio in all_jobs.items() if case[1] * case[2] >= LARGE and case[0] == scope}, which
        )
        for scope in ("call", "forward")
        for which in (lambda case: case[3] == "float32", lambda case: case[3] != "float32")
    ]
    won = sum(ratio >= 1 for _, ratio in all_jobs.values())
    return f"| {lines[-1]['machine']['device']} | {' | '.join(cells)} | {won} / {len(all_jobs)} | – | – |"


def gpu_table(lines: list[Record]) -> str:
    """A line a length of row of the large jobs, but LEFT_OUT: the share of a copy's speed, and the ratio to torch."""
    rows = [
        "| columns | backward bfloat16 | backward float32 | forward bfloat16 | forward float32 |",
        "|---|---|---|---|---|",
    ]
    found = {scope: newest(lines, scope) for scope in ("call", "forward")}
    for M, N in sorted({case[:2] for case in found["call"] if case[0] * case[1] >= LARGE}, key=lambda shape: shape[1]):
        if N in LEFT_OUT:
            continue
        chosen = [found[scope].get((M, N, dtype)) for scope in found for dtype in ("bfloat16", "float32")]
        cells = [
            "–" if line is None else f"{line['of_roofline']:.2f}, {line['ratio']['torch']:.1f}×" for line in chosen
        ]
        rows.append(f"| {N} | {' | '.join(cells)} |")
    return "\n".join(rows)


def quack_table(found: list[dict[str, Any]]) -> str:
    """A line a shape: shares of a copy's speed, ours and quack's, of both norms both ways."""
    rows = [
        "| rows × columns; lngrad, quack | LayerNorm backward | RMSNorm backward | LayerNorm forward | RMSNorm forward |",
        "|---|---|---|---|---|",
    ]
    for record in found:
        if record["N"] in LEFT_OUT:
            continue
        cells = (
            f"{record[f'ours {call}'][1]:.2f}, {record[f'quack {call}'][1]:.2f}"
            for call in ("ln b", "rms b", "ln f", "rms f")
        )
        rows.append(f"| {record['M']} × {record['N']} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _span(ratios: dict[tuple[str, Case], Ratio], chosen: Callable[[Case], bool]) -> str:
    """The least and the largest of the machines' means."""
    values: dict[str, list[float]] = {}
    for (name, case), (_, ratio) in ratios.items():
        if chosen(case):
            values.setdefault(name, []).append(ratio)
    means = sorted(map(geometric_mean, values.values()))
    return f"{means[0]:.2f}× to {means[-1]:.2f}×" if len(means) > 1 else f"{means[0]:.2f}×" if means else "–"


def _mean(ratios: dict[Any, Ratio], chosen: Callable[[Any], bool]) -> str:
    values = [ratio for case, (_, ratio) in ratios.items() if chosen(case)]
    return f"{geometric_mean(values):.2f}×" if values else "–"


def _peer(name: str) -> str:
    return PEER_NAMES.get(name, name)
