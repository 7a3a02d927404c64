"""What the schedules of a launch say: time, shares of the pipes, dear lines and what they wait for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache

from lngrad.ascend import soc as socs
from lngrad.ascend.device.cycle_advice import advise
from lngrad.ascend.device.cycle_figures import GLOBAL_SCALAR, Machine, machine
from lngrad.ascend.device.cycles import Placed, Run, Share, Trace, run_cores, timing_of
from lngrad.ascend.device.pipes import ALL_CORES, IN_ORDER, PIPE_NAMES, SCALAR
from lngrad.ascend.device.report import Cycles, LineCycles, site_text

DEAREST, WAITS = 5, 2
WAIT_SHOWN = 0.01  # of all cycles


def analyse(
    kernel: str, soc: socs.Soc, traces: Sequence[Trace], cores: int | None, array_bytes: int, free_bytes: int
) -> tuple[Cycles, list[Run]]:
    """Compute the cycles of a launch, and the schedule of each block.

    Args:
        traces: Of each block.
        cores: As if so many cores did what these blocks did; None: those that the launch has.
        array_bytes: Of all arrays.
        free_bytes: What the fullest block leaves of its Unified Buffer.
    """
    at, times = machine(soc), cores / len(traces) if cores else 1.0
    working = cores or min(len(traces), soc.vector_cores)
    moved, cached = sum(trace.bytes for trace in traces), sum(trace.cached_bytes for trace in traces)
    if moved == cached:  # what is read again is in the cache once
        cached = min(cached, array_bytes or cached)
    each = working * at.clock
    share = Share(at.memory_rate / each, at.cache_rate / each, cached * times <= at.cache_bytes)
    runs = run_cores(traces, share, at)
    blocks, ends = tuple(run.cycles for run in runs), [0.0] * working
    for cycles in blocks:  # each begins on the core that is free first
        ends[ends.index(min(ends))] += cycles
    slowest, cycles = blocks.index(max(blocks)), max(ends)
    run, launch = runs[slowest], at.launch + at.launch_core * working
    shares = {name: sum(one.busy[pipe] for one in runs) / max(sum(blocks), 1) for pipe, name in enumerate(PIPE_NAMES)}
    found = Cycles(
        kernel, soc.name, working, cycles, (cycles / at.clock + launch) * 1e6, launch * 1e6, blocks, shares,
        tuple(_dearest(run)), tuple(advise(traces[slowest], run, share, at, blocks, free_bytes)),
        _roofline(traces, moved * times, share, at, cycles * working), _guesses(traces, at),
    )  # fmt: skip
    return found, runs


def critical_path(run: Run) -> Iterator[tuple[Placed, float]]:
    """Yield what the block's end depends on, backwards: an instruction, and its part of the cycles."""
    upper, index = run.cycles, max(range(len(run.placed)), key=lambda i: run.placed[i].end, default=-1)
    while index >= 0:
        one = run.placed[index]
        lower, index = min(one.begin, one.until), one.why
        yield one, upper - lower
        upper = lower


def _dearest(run: Run) -> Iterator[LineCycles]:
    line_of = cache(site_text)
    path: dict[str, float] = defaultdict(float)
    for one, cycles in critical_path(run):
        path[line_of(one.instruction[3])] += cycles
    names: dict[str, Counter[str]] = defaultdict(Counter)
    waits: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    ends = [0.0] * len(PIPE_NAMES)
    for one in run.placed:
        line = line_of(one.instruction[3])
        names[line][one.instruction[0]] += 1
        other = run.placed[one.why] if one.why >= 0 else one
        if other.pipe != one.pipe and one.begin > ends[one.pipe]:
            what = f"{PIPE_NAMES[other.pipe]} at {line_of(other.instruction[3])}"
            waits[line][what] += one.begin - ends[one.pipe]
        ends[one.pipe] = max(ends[one.pipe], one.end)
    for line in sorted(path, key=lambda line: -path[line])[:DEAREST]:
        longest = sorted(waits[line].items(), key=lambda wait: -wait[1])[:WAITS]
        told = tuple(wait for wait in longest if wait[1] > WAIT_SHOWN * run.cycles)
        yield LineCycles(line, names[line].most_common(1)[0][0], path[line], told)


def _roofline(traces: Sequence[Trace], moved: float, share: Share, at: Machine, cycles: float) -> str:
    """The kernel's traffic and its vector work, each beside what the cores could do in that time."""
    costs = (event[1].cost for trace in traces for event in trace if event[0] <= IN_ORDER)
    vector = sum(cost.repeats - cost.conflicts for cost in costs) / max(cycles, 1)
    rate, where = (share.cache, "L2 cache") if share.fits else (share.memory, "global memory")
    memory = moved / rate / max(cycles, 1)
    bound = "waiting" if max(memory, vector) < 0.5 else f"the {where}" if memory > vector else "the vector unit"
    return (
        f"roofline: {moved / 1e6:,.1f} MB at {100 * memory:.0f} % of the rate of the {where}, vector work at "
        f"{100 * vector:.0f} % of the unit: bound by {bound}"
    )


def _guesses(traces: Sequence[Trace], at: Machine) -> tuple[str, ...]:
    found = {"the SoC's figures"} if not at.sourced else set[str]()
    for event in (event for trace in traces for event in trace):
        if event[0] == SCALAR and event[1] == GLOBAL_SCALAR:
            found.add(f"{event[-1][0]} of global memory")
        elif event[0] == ALL_CORES or (event[0] <= IN_ORDER and not timing_of(event[-1][0]).sourced):
            found.add(event[-1][0])
    return tuple(sorted(found))
