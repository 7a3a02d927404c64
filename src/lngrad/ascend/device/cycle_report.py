"""What the schedules of a launch say: time, shares of the pipes, dear lines and what they wait for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from lngrad.ascend import soc as socs
from lngrad.ascend.device.cycle_advice import advise
from lngrad.ascend.device.cycle_figures import machine
from lngrad.ascend.device.cycles import WINDOW, Run, Share, Trace, run_cores, timing_of
from lngrad.ascend.device.pipes import PIPE_NAMES
from lngrad.ascend.device.report import Cycles, LaunchReport, LineCycles, Site, site_text

DEAREST, WAITS = 5, 2
WAIT_SHOWN = 0.01  # of all cycles


def analyse(
    report: LaunchReport, soc: socs.Soc, traces: Sequence[Trace], cores: int | None, array_bytes: int
) -> tuple[Cycles, list[Run]]:
    """Compute the cycles of a launch, and the schedule of each block.

    Args:
        report, traces: Of the launch, and of each of its blocks.
        cores: As if so many cores did what these blocks did; None: those that the launch has.
        array_bytes: Of all arrays.
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
    guessed = set().union(*(trace.guessed for trace in traces), () if at.sourced else ("the SoC's figures",))
    guessed |= {name for name in report.instructions() if not timing_of(name).sourced}
    work, free = max(cycles * working, 1), report.ub_bytes - max(block.peak_ub_bytes for block in report.blocks)
    found = Cycles(
        report.kernel, soc.name, working, cycles, (cycles / at.clock + launch) * 1e6, launch * 1e6, blocks, shares,
        tuple(_dearest(run)), tuple(advise(traces[slowest], run, share, at, blocks, free)),
        _roofline(moved * times / work, sum(run.repeats for run in runs) * times / work, share), tuple(sorted(guessed)),
    )  # fmt: skip
    return found, runs


def critical_path(run: Run) -> list[tuple[Site, float]]:
    """Return the cycles of each line, by what the block's end depends on: they add up to all."""
    found: dict[int, float] = defaultdict(float)
    placed, begins, lets, whys = run.placed, run.begins, run.lets, run.whys
    upper, index = run.cycles, max(range(len(run.placed)), key=run.ends.__getitem__, default=-1)
    skips, since, times = run.skips.copy(), 0, 0
    while index >= 0:
        while skips and index < skips[-1][0]:  # the turn before those that are left out stands for them
            place, count, turns, cycles = skips.pop()
            if upper > run.ends[place - 1] + cycles / 2:  # else it waited for what is ahead of the loop
                upper, since, times = upper - cycles, place - count, turns
        lower = begins[index] if begins[index] < lets[index] else lets[index]
        found[id(placed[index])] += (upper - lower) * (1 + times * (index >= since))
        upper, index = lower, whys[index]
    sites = {id(one): one[3] for one in placed}
    return [(sites[one], cycles) for one, cycles in found.items()]


def _dearest(run: Run) -> Iterator[LineCycles]:
    path: dict[str, float] = defaultdict(float)
    for site, cycles in critical_path(run):
        path[site_text(site)] += cycles
    names: dict[str, Counter[str]] = defaultdict(Counter)
    waits: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    ends, later = [0.0] * len(PIPE_NAMES), {place: cycles for place, _, _, cycles in run.skips}
    more_turns = {index: turns for place, count, turns, _ in run.skips for index in range(place - count, place)}
    for index, ((name, pipe, _, site), begin, end, why) in enumerate(
        zip(run.placed[:WINDOW], run.begins, run.ends, run.whys, strict=False)
    ):
        line, times = site_text(site), 1 + more_turns.get(index, 0)
        ends = [end + later[index] for end in ends] if index in later else ends
        names[line][name] += times
        other = run.placed[why]
        if why >= 0 and begin > ends[pipe] and other[1] != pipe:
            waits[line][f"{PIPE_NAMES[other[1]]} at {site_text(other[3])}"] += times * (begin - ends[pipe])
        ends[pipe] = max(ends[pipe], end)
    more = run.cycles / max(max(ends), 1)  # what the first instructions wait, all do
    for line in sorted(path, key=lambda line: -path[line])[:DEAREST]:
        longest = sorted(waits[line].items(), key=lambda wait: -wait[1])[:WAITS]
        told = tuple((what, more * cycles) for what, cycles in longest if more * cycles > WAIT_SHOWN * run.cycles)
        yield LineCycles(line, names[line].most_common(1)[0][0] if names[line] else "", path[line], told)


def _roofline(moved: float, vector: float, share: Share) -> str:
    """The kernel's traffic and its vector work: both by cores and by cycles, beside what there could be."""
    rate, where = (share.cache, "L2 cache") if share.fits else (share.memory, "global memory")
    memory = moved / rate
    bound = "waiting" if max(memory, vector) < 0.5 else f"the {where}" if memory > vector else "the vector unit"
    return f"roofline: {100 * memory:.0f} % of the {where}'s rate, {100 * vector:.0f} % of the vector unit's: bound by {bound}"
