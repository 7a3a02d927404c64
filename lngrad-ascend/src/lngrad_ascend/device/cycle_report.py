"""The report on a launch's schedules: time, shares of the pipes, expensive lines and what they wait for, advice.

Each advice is the same record, changed as the advice says, and scheduled again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from lngrad_ascend import soc as socs
from lngrad_ascend.device import cycle_figures as figures
from lngrad_ascend.device.cycle_figures import TIMINGS, Machine, machine
from lngrad_ascend.device.cycles import WINDOW, Cost, Event, Priced, Run, Share, Trace, run_cores, timing_of
from lngrad_ascend.device.descriptors import BLOCK_BYTES, COUNT, MASK, Descriptor
from lngrad_ascend.device.numerics import CPP_NAMES, REPEAT_FLOATS
from lngrad_ascend.device.pipes import COPY, IN_ORDER, MTE2, MTE3, PIPE_NAMES, SET, VECTOR, WAIT, V
from lngrad_ascend.device.planning import MAX_REPEATS
from lngrad_ascend.device.report import Advice, Cycles, LaunchReport, LineCycles, Site, site_text

DEAREST, WAITS = 5, 2
WAIT_SHOWN = 0.01  # of all cycles
WORTH = 0.01  # of a block's cycles
OFTEN = 4  # times that something must happen to be worth a rule
SHOWN = 3  # lines of an advice
Changes = dict[int, Event]
Proposed = tuple[str, Changes]  # what to do, and the events that would be others


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
    shares = {name: sum(run.busy[pipe] for run in runs) / max(sum(blocks), 1) for pipe, name in enumerate(PIPE_NAMES)}
    guessed = set().union(*(trace.guessed for trace in traces), () if at.sourced else ("the SoC's figures",))
    guessed |= {name for name in report.instructions() if not timing_of(name).sourced}
    work, free = max(cycles * working, 1), report.ub_bytes - max(block.peak_ub_bytes for block in report.blocks)
    model = Cycles(
        report.kernel, soc.name, working, cycles, (cycles / at.clock + launch) * 1e6, launch * 1e6, blocks, shares,
        tuple(_dearest(run)), tuple(advise(traces[slowest], run, share, at, blocks, free)),
        _roofline(moved * times / work, sum(run.repeats for run in runs) * times / work, share), tuple(sorted(guessed)),
    )  # fmt: skip
    return model, runs


def critical_path(run: Run) -> list[tuple[Site, float]]:
    """Return the cycles of each line, by what the block's end depends on: they add up to all."""
    spent: dict[int, float] = defaultdict(float)
    placed, begins, lets, whys = run.placed, run.begins, run.lets, run.whys
    upper, index = run.cycles, max(range(len(run.placed)), key=run.ends.__getitem__, default=-1)
    skips, since, times = run.skips.copy(), 0, 0
    while index >= 0:
        while skips and index < skips[-1][0]:  # the turn before those that are left out stands for them
            place, count, turns, cycles = skips.pop()
            if upper > run.ends[place - 1] + cycles / 2:  # else it waited for what is ahead of the loop
                upper, since, times = upper - cycles, place - count, turns
        lower = begins[index] if begins[index] < lets[index] else lets[index]
        spent[id(placed[index])] += (upper - lower) * (1 + times * (index >= since))
        upper, index = lower, whys[index]
    sites = {id(instruction): instruction[3] for instruction in placed}
    return [(sites[identity], cycles) for identity, cycles in spent.items()]


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
        longest_waits = tuple(
            (cause, more * cycles) for cause, cycles in longest if more * cycles > WAIT_SHOWN * run.cycles
        )
        yield LineCycles(line, names[line].most_common(1)[0][0] if names[line] else "", path[line], longest_waits)


def _roofline(moved: float, vector: float, share: Share) -> str:
    """Return the share of the memory's rate and of the vector unit's that the kernel uses: both by cores and cycles."""
    rate, where = (share.cache, "L2 cache") if share.fits else (share.memory, "global memory")
    memory = moved / rate
    bound = "waiting" if max(memory, vector) < 0.5 else f"the {where}" if memory > vector else "the vector unit"
    return f"roofline: {100 * memory:.0f} % of the {where}'s rate, {100 * vector:.0f} % of the vector unit's: bound by {bound}"


def advise(trace: Trace, run: Run, share: Share, at: Machine, blocks: Sequence[float], free_bytes: int) -> list[Advice]:
    """Return what would save a hundredth of the slowest block's cycles or more, the most first; ``blocks`` has those of all."""
    begun, proposals = Trace(trace[:WINDOW]), []
    alone = run_cores([begun], share, at)[0].cycles
    for kind, rule in RULES.items():
        text, changes = rule(begun, free_bytes)
        if changes:
            changed = Trace(changes.get(number, event) for number, event in enumerate(begun))
            part = 1 - run_cores([changed], share, at)[0].cycles / alone
            proposals.append((kind, f"{text} would save", part * run.cycles))
    mean, most = sum(blocks) / len(blocks), max(blocks)
    if 0 < 1.5 * mean <= most:
        text = f"block {blocks.index(most)} works {most / mean:.1f} times as long as the mean: blocks of one size would save"
        proposals.append(("tail", text, most - mean))
    worth = [Advice(*saving, saving[2] / at.clock * 1e6) for saving in proposals if saving[2] >= WORTH * run.cycles]
    return sorted(worth, key=lambda advice: -advice.cycles)


def _lines(sites: Counter[Site]) -> str:
    """Return the lines where something happens, the most frequent first."""
    return ", ".join(list(dict.fromkeys(site_text(site) for site, _ in sites.most_common()))[:SHOWN])


FLOAT = CPP_NAMES.index("float")
NOTHING: Event = (SET, 0)  # an event that takes a cycle; the numbers of the others stay


Buffer = tuple[int, Site]  # the unit and the line that use it


@dataclass
class Uses:
    """The uses of a buffer: the events that wait for each and where it lies; and its bytes and its other user, if known."""

    waits: list[list[int]] = field(default_factory=list)
    places: set[int] = field(default_factory=set)
    nbytes: int = 0
    user: Site | None = None


def _uses(trace: Trace) -> dict[Buffer, Uses]:
    """Return the uses of the buffers that copies go to (by MTE2) and come from (by MTE3)."""
    uses: dict[Buffer, Uses] = defaultdict(Uses)
    setter: dict[int, Event] = {}  # what came last on a flag's pipe
    last: dict[int, Event] = {}
    pending: list[int] = []
    user: Site | None = None  # of the buffer that was waited for last
    for number, event in enumerate(trace):
        if event[0] == SET and event[1] in last:
            setter[number] = last[event[1]]
        elif event[0] == WAIT and number - event[2] in setter:
            before, source = setter[number - event[2]], trace[number - event[2]][1]
            site = before[-1][3]
            if (source, event[1]) == (V, MTE2):
                pending.append(number)
                user = site
            elif (source, event[1]) == (MTE3, V):
                use = uses[MTE3, site]
                use.waits.append([number])
                use.places.add(before[3])
                use.nbytes, use.user = before[1] * before[2], site
        elif event[0] == COPY and event[-1][1] == MTE2:
            use = uses[MTE2, event[-1][3]]
            use.waits.append(pending)
            use.places.add(event[3])
            if user is not None:
                use.nbytes, use.user = event[1] * event[2], user
            pending = []
        if event[0] in (VECTOR, IN_ORDER, COPY):
            last[event[-1][1]] = event
    return uses


def _two_buffers(trace: Trace, free_bytes: int) -> Proposed:
    """Advise a second buffer where a unit waits for another one's use of its only buffer."""
    single = {
        key: use for key, use in _uses(trace).items() if use.user and len(use.waits) >= OFTEN and len(use.places) == 1
    }
    needed = sum(use.nbytes for use in single.values())
    changes: Changes = {}
    for use in single.values() if needed <= free_bytes else ():
        changes |= dict.fromkeys(use.waits[0], NOTHING)
        for earlier, waits in pairwise(use.waits):
            changes |= dict.fromkeys(waits, NOTHING)
            for number, before in zip(waits, earlier, strict=False):
                changes[number] = (*trace[number][:2], number - before + trace[before][2])
    where = dict.fromkeys(
        f"{PIPE_NAMES[MTE2]} at {site_text(site)} waits for V at {site_text(use.user or site)}" if pipe == MTE2
        else f"V waits for MTE3 at {site_text(site)}" for (pipe, site), use in single.items()
    )  # fmt: skip
    return f"{'; '.join(where)}: one buffer; a second one ({needed:,} of {free_bytes:,} free bytes)", changes


def _larger_copies(trace: Trace, free_bytes: int) -> Proposed:
    """Advise copies of 16 KB where smaller ones could be joined."""
    copies: dict[Site, list[int]] = defaultdict(list)
    for number in (number for number, event in enumerate(trace) if event[0] == COPY):
        copies[trace[number][-1][3]].append(number)
    changes, sites, moved = dict[int, Event](), Counter[Site](), 0
    for site, numbers in copies.items():
        total = sum(trace[n][1] * trace[n][2] for n in numbers)
        together = min(len(numbers), figures.FULL_RATE_BYTES * len(numbers) // total)
        if len(numbers) >= OFTEN and together > 1 and free_bytes >= figures.FULL_RATE_BYTES:
            changes |= {n: (*trace[n][:5], 1 / together, trace[n][-1]) for n in numbers}
            sites[site], moved = len(numbers), moved + total
    return f"copies of {moved // max(len(changes), 1):,} bytes at {_lines(sites)}: copies of 16 KB", changes


def _repeats(trace: Trace, free_bytes: int) -> Proposed:
    """Advise one instruction with repeats where a line issues instructions of one repeat at even steps."""
    open_runs: dict[tuple[Site, int], list[int]] = {}
    runs: list[list[int]] = []
    for number, event in enumerate(trace):
        if event[0] == COPY:  # what comes behind it may need it
            open_runs = {}
        elif event[0] == VECTOR and event[1].cost.repeats <= 8:  # a repeat; of a reduction 7 cycles
            run = open_runs.setdefault((event[-1][3], event[1].op), [])
            places = [trace[n][1].descriptor for n in (*run[-2:], number)]
            steps = {_step(a, b) for a, b in pairwise(places)}
            if len(run) == MAX_REPEATS or len(steps) > 1 or None in steps:
                run = open_runs[event[-1][3], event[1].op] = []
            if not run:
                runs.append(run)
            run.append(number)
    changes, sites = dict[int, Event](), Counter[Site]()
    for run in runs:
        if len(run) >= OFTEN:
            kind, plan, instruction = trace[run[0]]
            changes |= dict.fromkeys(run, NOTHING)
            repeats = sum(trace[n][1].cost.repeats for n in run)
            changes[run[0]] = (kind, Priced(plan.cost._replace(repeats=repeats)), instruction)
            sites[instruction[3]] += len(run)
    return f"instructions of one repeat at {_lines(sites)}: one with repeatTime", changes


def _step(before: Descriptor, after: Descriptor) -> tuple[int, ...] | None:
    """Return the distances from one instruction's operands to the next's, where repeat strides can express them."""
    steps = after.dst - before.dst, after.src0 - before.src0, after.src1 - before.src1
    expressible = all(step % BLOCK_BYTES == 0 and 0 <= step <= 255 * BLOCK_BYTES for step in steps)
    return steps if expressible and before[2:6] == after[2:6] else None


def _recosted(trace: Trace, wanted: Callable[[Event], bool], change: Callable[[Cost], Cost]) -> tuple[str, Changes]:
    """Return the lines and events of the wanted instructions, with their changed costs."""
    kept, changes, sites = dict[int, Priced](), dict[int, Event](), Counter[Site]()
    for number, event in enumerate(trace):
        if event[0] <= IN_ORDER and event[1].descriptor is not None and wanted(event):
            plan = event[1]
            new = kept.get(id(plan)) or kept.setdefault(id(plan), Priced(change(plan.cost), plan.descriptor))
            changes[number] = (event[0], new, event[-1])
            sites[event[-1][3]] += 1
    return _lines(sites), changes


def _masks(trace: Trace, free_bytes: int) -> Proposed:
    """Advise SetVectorMask once where instructions set the same mask again."""
    before = None

    def again(event: Event) -> bool:
        nonlocal before
        mask = event[1].descriptor[2:5] if event[1].descriptor.form in (COUNT, MASK) else None
        same, before = mask is not None and mask == before, mask
        return same

    where, changes = _recosted(trace, again, lambda cost: cost._replace(issue=figures.ISSUE))
    return f"the same mask is set again at {where}: SetVectorMask once, and isSetMask = false,", changes


def _reductions(trace: Trace, free_bytes: int) -> Proposed:
    """Advise BlockReduceSum twice for sums of whole repeats of float: it is shorter from a few repeats on."""
    whole, block = TIMINGS["WholeReduceSum"], TIMINGS["BlockReduceSum"]

    def shorter(cost: Cost) -> Cost:
        repeats = cost.repeats / whole.wide * block.wide * (1 + BLOCK_BYTES / 256)
        return cost._replace(repeats=repeats, start=2 * block.start, issue=2 * cost.issue)

    def wanted(event: Event) -> bool:
        cost, d = event[1].cost, event[1].descriptor
        better = shorter(cost)
        full = event[-1][0] == "WholeReduceSum" and (d.form, d.n) == (MASK, REPEAT_FLOATS) and d.types & 255 == FLOAT
        return full and better.repeats + better.start < cost.repeats + cost.start

    where, changes = _recosted(trace, wanted, shorter)
    return f"WholeReduceSum at {where}: BlockReduceSum twice", changes


def _banks(trace: Trace, free_bytes: int) -> Proposed:
    """Advise other places for operands whose blocks lie in the same bank groups."""
    where, changes = _recosted(
        trace, lambda event: event[1].cost.conflicts > 0,
        lambda cost: cost._replace(repeats=cost.repeats - cost.conflicts, conflicts=0.0),
    )  # fmt: skip
    return f"bank conflicts at {where}: operands 256 bytes further on, or another stride,", changes


RULES: dict[str, Callable[[Trace, int], Proposed]] = {
    "buffers": _two_buffers, "copies": _larger_copies, "repeats": _repeats, "masks": _masks,
    "reductions": _reductions, "banks": _banks,
}  # fmt: skip
