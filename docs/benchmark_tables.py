"""Records as Markdown: the tables of the README and of docs/performance.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import geometric_mean

from lngrad.bench.plots import PEER_NAMES
from lngrad.bench.records import Case, Record, best, newest, threads_of

SCOPES = ("kernel", "forward", "call", "override", "autograd", "jax")  # in the order of the documents
TINY = 64  # rows of fewer elements are counted by themselves


Ratio = tuple[str, float]  # a peer, and its time divided by ours


def thread_counts(lines: Iterable[Record], scope: str) -> list[int]:
    """The numbers of threads of a scope's records, largest first."""
    return sorted({threads_of(line) for line in lines if line["scope"] == scope}, reverse=True)


def overview(machines: dict[str, list[Record]], headings: tuple[str, ...]) -> str:
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
    return "\n".join(rows)


def ratios_table(machines: dict[str, list[Record]], scope: str) -> str:
    """Shapes by machines and dtypes: how many times faster than the best peer, and which one that is.

    Args:
        machines: Records by a short name.
        scope: Whose records with the most threads are shown.
    """
    chosen = {name: newest(lines, scope) for name, lines in machines.items()}
    columns = [(name, dtype) for name, found in chosen.items() for dtype in _dtypes(found)]
    shapes = dict.fromkeys(case[:2] for found in chosen.values() for case in found)
    rows = [
        f"| rows × columns | {' | '.join(f'{name}, {dtype}' for name, dtype in columns)} |",
        f"|---|{'---|' * len(columns)}",
    ]
    for M, N in shapes:
        lines = [chosen[name].get((M, N, dtype)) for name, dtype in columns]
        rows.append(f"| {M} × {N} | {' | '.join('–' if line is None else _ratio(best(line)) for line in lines)} |")
    return "\n".join(rows)


def times_table(lines: list[Record], scope: str, threads: int) -> str:
    """Shapes by dtypes of one machine: our median time, and the ratio to the best peer."""
    chosen = newest(lines, scope, threads)
    dtypes = _dtypes(chosen)
    rows = [f"| rows × columns | {' | '.join(dtypes)} |", f"|---|{'---|' * len(dtypes)}"]
    for M, N in dict.fromkeys(case[:2] for case in chosen):
        cells = [_time(chosen.get((M, N, dtype))) for dtype in dtypes]
        rows.append(f"| {M} × {N} | {' | '.join(cells)} |")
    return "\n".join(rows)


def family_table(lines: list[Record], scope: str, threads: int) -> str:
    """A line a case of one norm: our median time, and how many times as long each of the others takes."""
    chosen = newest(lines, scope, threads)
    peers = list(dict.fromkeys(peer for line in chosen.values() for peer in line["ratio"]))
    rows = [f"| rows × columns | lngrad | {' | '.join(map(_peer, peers))} |", f"|---|---|{'---|' * len(peers)}"]
    for (M, N, dtype), line in chosen.items():
        cells = [_ratio((" ", line["ratio"][peer])).strip() if peer in line["ratio"] else "–" for peer in peers]
        rows.append(f"| {M} × {N} {dtype} | {_median(line)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def summary(machines: dict[str, list[Record]], *, every: bool) -> str:
    """One line a machine, scope and number of threads: cases won, and geometric means of the ratios.

    Args:
        machines: Records by name.
        every: Also fewer threads than the most, and each peer alone.
    """
    rows = [
        "| machine | scope | threads | against | won | rows of ≥ 64, float32 | rows of ≥ 64, 16 bits | tiny rows | least |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for scope in SCOPES:
        for name, lines in machines.items():
            for threads in thread_counts(lines, scope)[: None if every else 1]:
                found = newest(lines, scope, threads)
                start = f"| {name} | {scope} | {threads} |"
                rows += [f"{start} {cells}" for cells in _summaries(found, every)]
    return "\n".join(rows)


def _summaries(found: dict[Case, Record], every: bool) -> Iterable[str]:
    """The other cells of a line: against the best peer, and against each of them."""
    peers = list(dict.fromkeys(peer for line in found.values() for peer in line["ratio"]))
    if not peers:
        return
    against = {"the best of " * (len(peers) > 1) + ", ".join(map(_peer, peers)): {c: best(f) for c, f in found.items()}}
    if every and len(peers) > 1:
        for peer in peers:
            against[_peer(peer)] = {c: (peer, f["ratio"][peer]) for c, f in found.items() if peer in f["ratio"]}
    for whom, ratios in against.items():
        won = sum(ratio >= 1 for _, ratio in ratios.values())
        least = min(ratios, key=lambda case: ratios[case][1])
        means = (
            _mean(ratios, lambda case: case[1] >= TINY and case[2] == "float32"),
            _mean(ratios, lambda case: case[1] >= TINY and case[2] != "float32"),
            _mean(ratios, lambda case: case[1] < TINY),
        )
        M, N, dtype = least
        yield (
            f"{whom} | {won} of {len(ratios)} | {' | '.join(means)} | "
            f"{ratios[least][1]:.2f}× ({M} × {N} {dtype}, {_peer(ratios[least][0])}) |"
        )


def _mean(ratios: dict[Case, Ratio], chosen: Callable[[Case], bool]) -> str:
    values = [ratio for case, (_, ratio) in ratios.items() if chosen(case)]
    return f"{geometric_mean(values):.2f}×" if values else "–"


def _dtypes(found: Iterable[Case]) -> list[str]:
    return list(dict.fromkeys(dtype for _, _, dtype in found))


def _peer(name: str) -> str:
    return PEER_NAMES.get(name, name)


def _ratio(ratio: Ratio) -> str:
    """Bold where it is won."""
    name, value = ratio
    text = f"{value:.1f}×" if value >= 10 else f"{value:.2f}×"
    return f"{f'**{text}**' if value >= 1 else text} {_peer(name)}"


def _time(line: Record | None) -> str:
    if line is None:
        return "–"
    return f"{_median(line)}, {_ratio(best(line))}"


def _median(line: Record) -> str:
    time = line["time_us"]["lngrad"]["median"]
    return f"{time:.0f} µs" if time < 1000 else f"{time / 1000:.2f} ms"
