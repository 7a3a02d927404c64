"""What the cycles of a launch say: time, shares of the pipes, dear lines and what they wait for, advice, a picture to scale."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from html import escape

from lngrad.ascend import soc as socs
from lngrad.ascend.device.cycle_advice import advise
from lngrad.ascend.device.cycle_figures import GLOBAL_SCALAR, Machine, machine
from lngrad.ascend.device.cycles import (
    ALL_CORES,
    IN_ORDER,
    LOOP,
    SCALAR,
    Event,
    Placed,
    Run,
    Share,
    Trace,
    run_cores,
    share_of,
    timing_of,
)
from lngrad.ascend.device.pipes import MTE3, PIPE_NAMES
from lngrad.ascend.device.report import COLOURS, Cycles, LineCycles, Site, site_text, svg
from lngrad.errors import printable

DEAREST, WAITS, DRAWN = 5, 2, 3000
WAIT_SHOWN = 0.01  # of all cycles


def analyse(
    kernel: str, soc: socs.Soc, traces: Sequence[Trace], cores: int | None, array_bytes: int, free_bytes: int
) -> Cycles:
    """Compute the cycles of a launch.

    Args:
        traces: Of each block.
        cores: As if so many cores did what these blocks did; None: those that the launch has.
        array_bytes: Of all arrays.
        free_bytes: What the fullest block leaves of its Unified Buffer.
    """
    at = machine(soc)
    working = cores or min(len(traces), soc.vector_cores)
    share = share_of(traces, working, cores / len(traces) if cores else 1.0, at, array_bytes)
    runs = run_cores(traces, share, at)
    blocks = tuple(run.cycles for run in runs)
    cycles = _in_turns(blocks, working)
    slowest = max(range(len(runs)), key=lambda index: blocks[index])
    run, trace = runs[slowest], traces[slowest]
    launch = at.launch + at.launch_core * working
    shares = {
        name: sum(one.busy[pipe] / one.cycles for one in runs if one.cycles) / len(runs)
        for pipe, name in enumerate(PIPE_NAMES)
    }
    return Cycles(
        kernel, soc.name, working, cycles, (cycles / at.clock + launch) * 1e6, launch * 1e6, blocks, shares,
        tuple(_dearest(run)), tuple(advise(trace, run, share, at, blocks, free_bytes)),
        _roofline(traces, working, share, at, cycles), _guesses(traces, at), _picture(kernel, run),
    )  # fmt: skip


def _in_turns(blocks: Sequence[float], cores: int) -> float:
    """When the last block ends, if each begins on the core that is free first."""
    ends = [0.0] * cores
    for cycles in blocks:
        first = min(range(cores), key=ends.__getitem__)
        ends[first] += cycles
    return max(ends)


def critical_path(run: Run) -> Iterator[tuple[Placed, float, float]]:
    """Yield what the block's end depends on, backwards: an instruction, its part of the cycles, the scalar unit's before it."""
    upper, index = run.cycles, max(range(len(run.placed)), key=lambda i: run.placed[i][2], default=-1)
    while index >= 0:
        one = run.placed[index]
        _, begin, _, index, until, _, _ = one
        yield one, upper - begin, max(0.0, begin - until)
        upper = min(begin, until)


def _dearest(run: Run) -> Iterator[LineCycles]:
    texts: dict[Site, str] = {}

    def line_of(one: Placed) -> str:
        site = one[5][3]
        return texts.get(site) or texts.setdefault(site, site_text(site))

    path: dict[str, float] = defaultdict(float)
    for one, cycles, scalar in critical_path(run):
        path[line_of(one)] += cycles + scalar
    names: dict[str, Counter[str]] = defaultdict(Counter)
    waits: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    ends = [0.0] * len(PIPE_NAMES)
    for one in run.placed:
        pipe, begin, end, why, *_ = one
        names[line_of(one)][one[5][0]] += 1
        if why >= 0 and run.placed[why][0] != pipe and begin > ends[pipe]:
            other = run.placed[why]
            waits[line_of(one)][f"{PIPE_NAMES[other[0]]} at {line_of(other)}"] += begin - ends[pipe]
        ends[pipe] = max(ends[pipe], end)
    for line in sorted(path, key=lambda line: -path[line])[:DEAREST]:
        longest = sorted(waits[line].items(), key=lambda wait: -wait[1])[:WAITS]
        told = tuple((what, cycles) for what, cycles in longest if cycles > WAIT_SHOWN * run.cycles)
        yield LineCycles(line, names[line].most_common(1)[0][0], path[line], told)


def _roofline(traces: Sequence[Trace], cores: int, share: Share, at: Machine, cycles: float) -> str:
    """The kernel's traffic and its vector work, each beside what the cores could do in that time."""
    moved = sum(trace.bytes for trace in traces) * cores / min(len(traces), cores)
    work = sum(_repeats(event, at) for trace in traces for event in trace) / min(len(traces), cores)
    rate = (share.cache if share.fits else share.memory) * cores
    memory, vector = moved / rate / max(cycles, 1), work / max(cycles, 1)
    where = "L2 cache" if share.fits else "global memory"
    bound = (
        "neither: what waits decides" if max(memory, vector) < 0.6 else where if memory > vector else "the vector unit"
    )
    return (
        f"roofline: {moved / 1e6:,.1f} MB at {100 * memory:.0f} % of the rate of the {where} ({rate * at.clock / 1e12:.1f} TB/s), "
        f"vector work at {100 * vector:.0f} % of the unit; bound by {bound}"
    )


def _repeats(event: Event, at: Machine) -> float:
    if event[0] == LOOP:
        return float(event[2] * event[3] * timing_of(event[1]).wide)
    return float(event[1].cost.repeats - event[1].cost.conflicts) if event[0] <= IN_ORDER else 0.0


def _guesses(traces: Sequence[Trace], at: Machine) -> tuple[str, ...]:
    found = {"the SoC's figures"} if not at.sourced else set[str]()
    for event in (event for trace in traces for event in trace):
        if event[0] == ALL_CORES or (event[0] == SCALAR and event[1] == GLOBAL_SCALAR):
            found.add(event[-1][0] if event[0] == ALL_CORES else f"{event[-1][0]} of global memory")
        elif (event[0] <= IN_ORDER or event[0] == LOOP) and not timing_of(event[-1][0]).sourced:
            found.add(event[-1][0])
    return tuple(sorted(found))


def _picture(kernel: str, run: Run) -> str:
    shown = run.placed[:DRAWN]
    last = max((end for _, _, end, *_ in shown), default=1.0)
    left, width, lane = 60, 1400, 40
    scale = (width - left - 10) / last
    parts = [
        f'<text x="8" y="16" font-weight="bold">{escape(printable(kernel))}: {last:,.0f} of {run.cycles:,.0f} cycles</text>'
    ]
    for pipe, name in enumerate(PIPE_NAMES):
        y = 28 + pipe * lane
        parts.append(
            f'<text x="8" y="{y + 18}">{name}</text><line x1="{left}" y1="{y + 28}" x2="{width}" y2="{y + 28}" stroke="#ccc"/>'
        )
    for pipe, begin, end, why, _, (name, _, _, site), _ in shown:
        told = f"{name} at {site_text(site)}: cycles {begin:,.0f} to {end:,.0f}"
        if why >= 0:
            told += f", behind {shown[why][5][0]} at {site_text(shown[why][5][3])}"
        parts.append(
            f'<rect x="{left + begin * scale:.2f}" y="{28 + pipe * lane}" width="{max((end - begin) * scale, 0.5):.2f}" height="26" '
            f'fill="{COLOURS[pipe]}" fill-opacity="0.8" stroke="#777" stroke-width="0.3"><title>{escape(printable(told))}</title></rect>'
        )
    step = 10 ** (len(str(int(last))) - 1)
    for mark in range(0, int(last) + 1, step):
        parts.append(f'<text x="{left + mark * scale:.1f}" y="{28 + 4 * lane + 14}" font-size="9">{mark:,}</text>')
    return svg(width, 28 + (MTE3 + 1) * lane + 24, parts)
