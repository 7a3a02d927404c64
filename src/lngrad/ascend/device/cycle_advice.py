"""What would make a kernel faster: each advice is the same record, changed as the advice says, and scheduled again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from lngrad.ascend.device import cycle_figures as figures
from lngrad.ascend.device.cycle_figures import TIMINGS, Machine
from lngrad.ascend.device.cycles import COPY, IN_ORDER, SET, VECTOR, WAIT, Cost, Event, Run, Share, Trace, run_cores
from lngrad.ascend.device.descriptors import BLOCK_BYTES, MASK
from lngrad.ascend.device.pipes import MTE2, MTE3, PIPE_NAMES, V
from lngrad.ascend.device.planning import MAX_REPEATS, PlannedInstruction
from lngrad.ascend.device.report import Advice, Site, site_text

WORTH = 0.01  # of a block's cycles
OFTEN = 4  # times that something must happen to be worth a rule
SHOWN = 3  # lines of an advice
Changed = tuple[str, str, Trace]  # the kind of advice, what to do, what would run then


def advise(trace: Trace, run: Run, share: Share, at: Machine, blocks: Sequence[float], free_bytes: int) -> list[Advice]:
    """Return what would save a hundredth of the slowest block's cycles or more, the most first.

    Args:
        trace, run: Of the slowest block.
        blocks: Cycles of all blocks.
        free_bytes: Of the Unified Buffer.
    """
    alone = run_cores([trace], share, at)[0].cycles
    found = []
    for rule in RULES:
        for kind, text, changed in rule(trace, free_bytes):
            saved = alone - run_cores([changed], share, at)[0].cycles
            if saved >= WORTH * run.cycles:
                found.append(Advice(kind, text, saved, saved / at.clock * 1e6))
    even = sum(blocks) / len(blocks)
    if len(blocks) > 1 and max(blocks) >= 1.5 * even:
        place, saved = blocks.index(max(blocks)), max(blocks) - even
        text = f"block {place} works {max(blocks) / even:.1f} times as long as the mean: give all blocks alike"
        found.append(Advice("tail", text, saved, saved / at.clock * 1e6))
    return sorted(found, key=lambda one: -one.cycles)


def _changed(trace: Trace, changes: dict[int, Event | None]) -> Trace:
    """The record with events replaced; a SET's number is its place, so that one that goes leaves an empty event."""
    other = Trace()
    for number, event in enumerate(trace):
        new = changes.get(number, event)
        other.append((SET, 0) if new is None else new)
    return other


def _two_buffers(trace: Trace, free_bytes: int) -> Iterator[Changed]:
    """A unit that waits until another has done with the one buffer: with two it waits for the use before that one."""
    uses: dict[tuple[int, Site], list[tuple[list[int], int]]] = defaultdict(list)  # a copy's waits, and its buffer
    sizes: dict[tuple[int, Site], tuple[int, Site]] = {}  # bytes, and who uses them
    setter: dict[int, Event] = {}  # what came last on a flag's pipe
    last: dict[int, Event] = {}
    pending: list[int] = []
    user: Site | None = None  # of the buffer that was waited for last
    for number, event in enumerate(trace):
        if event[0] == SET:
            if event[1] in last:
                setter[number] = last[event[1]]
        elif event[0] == WAIT and event[2] in setter:
            before = setter[event[2]]
            if event[1] == MTE2 and trace[event[2]][1] == V:
                pending.append(number)
            elif event[1] == V and trace[event[2]][1] == MTE3:
                key = MTE3, before[-1][3]
                uses[key].append(([number], before[3]))
                sizes[key] = before[1] * before[2], before[-1][3]
        elif event[0] == COPY and event[-1][1] == MTE2:
            key = MTE2, event[-1][3]
            if pending:
                user = setter[trace[pending[0]][2]][-1][3]
            if pending or user is not None:
                sizes[key] = event[1] * event[2], user or key[1]
            uses[key].append((pending, event[3]))
            pending = []
        if event[0] in (VECTOR, IN_ORDER, COPY):
            last[event[-1][1]] = event
    single = {
        key: found for key, found in uses.items()
        if key in sizes and len(found) > 2 and len({place for _, place in found}) == 1
    }  # fmt: skip
    needed = sum(sizes[key][0] for key in single)
    if not single or needed > free_bytes:
        return
    changes: dict[int, Event | None] = {}
    for found in single.values():
        changes |= dict.fromkeys(found[0][0])
        for (before_waits, _), (waits, _) in pairwise(found):
            for place, number in enumerate(waits):
                earlier = before_waits[place] if place < len(before_waits) else None
                changes[number] = None if earlier is None else (*trace[number][:2], trace[earlier][2])
    where = "; ".join(
        f"{PIPE_NAMES[pipe]} at {site_text(site)} waits for V at {site_text(sizes[pipe, site][1])}"
        if pipe == MTE2
        else f"V waits for MTE3 at {site_text(site)}"
        for pipe, site in single
    )
    yield (
        "buffers",
        f"{where}: one buffer; two fit ({needed:,} of {free_bytes:,} free bytes) and would hide",
        _changed(trace, changes),
    )


def _larger_copies(trace: Trace, free_bytes: int) -> Iterator[Changed]:
    """Copies under 16 KB, as if so many of them were one."""
    copies: dict[Site, list[int]] = defaultdict(list)
    for number, event in enumerate(trace):
        if event[0] == COPY:
            copies[event[-1][3]].append(number)
    changes: dict[int, Event | None] = {}
    found: Counter[Site] = Counter()
    for site, numbers in copies.items():
        nbytes = sum(trace[n][1] * trace[n][2] for n in numbers) / len(numbers)
        if (
            len(numbers) >= OFTEN
            and nbytes <= figures.FULL_RATE_BYTES / 2
            and figures.FULL_RATE_BYTES - nbytes <= free_bytes
        ):
            together = min(len(numbers), int(figures.FULL_RATE_BYTES // nbytes))
            changes |= {n: (*trace[n][:5], 1 / together, trace[n][-1]) for n in numbers}
            found[site] += len(numbers)
    if changes:
        mean = sum(trace[n][1] * trace[n][2] for n in changes) / len(changes)
        text = f"copies of {mean:,.0f} bytes at {_lines(found)}: copies of 16 KB would save"
        yield "copies", text, _changed(trace, changes)


def _lines(found: Counter[Site]) -> str:
    """The lines where something happens, most often first, and how often."""
    by_line: Counter[str] = Counter()
    for site, count in found.items():
        by_line[site_text(site)] += count
    return ", ".join(f"{line} ({count:,})" for line, count in by_line.most_common(SHOWN))


def _recosted(plan: PlannedInstruction, change: Callable[[Cost], Cost], kept: dict[int, Any]) -> Any:
    if id(plan) not in kept:
        kept[id(plan)] = replace(plan, cost=change(plan.cost))
    return kept[id(plan)]


def _repeats(trace: Trace, free_bytes: int) -> Iterator[Changed]:
    """Instructions of one repeat that one line issues again and again, a step apart: one instruction with repeats."""
    runs: dict[tuple[Site, int], list[int]] = {}
    done: list[list[int]] = []
    for number, event in enumerate(trace):
        if event[0] > IN_ORDER:
            if event[0] == COPY:
                done += runs.values()
                runs = {}
            continue
        plan = event[1]
        if plan.cost.repeats > 8 or event[0] == IN_ORDER:  # more than a repeat
            continue
        key = event[-1][3], plan.op
        run = runs.setdefault(key, [])
        if len(run) > 1:
            steps = [_step(trace[a][1], trace[b][1]) for a, b in ((run[-2], run[-1]), (run[-1], number))]
            if steps[0] is None or steps[0] != steps[1] or len(run) == MAX_REPEATS:
                done.append(run)
                runs[key] = run = []
        run.append(number)
    changes: dict[int, Event | None] = {}
    found: Counter[Site] = Counter()
    for run in [*done, *runs.values()]:
        if len(run) >= OFTEN:
            first = trace[run[0]]
            cost = first[1].cost._replace(repeats=sum(trace[n][1].cost.repeats for n in run))
            changes |= dict.fromkeys(run[1:])
            changes[run[0]] = (first[0], replace(first[1], cost=cost), first[-1])
            found[first[-1][3]] += len(run)
    if changes:
        yield (
            "repeats",
            f"instructions of one repeat at {_lines(found)}: one with repeatTime would save",
            _changed(trace, changes),
        )


def _step(one: PlannedInstruction, other: PlannedInstruction) -> tuple[int, ...] | None:
    """How far operands move on, where repeat strides can say it."""
    a, b = one.descriptor, other.descriptor
    steps = b.dst - a.dst, b.src0 - a.src0, b.src1 - a.src1
    whole = all(step % BLOCK_BYTES == 0 and 0 <= step <= 255 * BLOCK_BYTES for step in steps)
    return steps if whole and (a.form, a.n, a.high) == (b.form, b.n, b.high) else None


def _masks(trace: Trace, free_bytes: int) -> Iterator[Changed]:
    """Instructions that set the mask that is set: SetVectorMask once, then isSetMask = false."""
    kept: dict[int, Any] = {}
    changes: dict[int, Event | None] = {}
    before, found = None, Counter[Site]()
    for number, event in enumerate(trace):
        if event[0] != VECTOR:
            continue
        d = event[1].descriptor
        mask = (d.form, d.n, d.high)
        if event[1].cost.masks and mask == before:
            plan = _recosted(event[1], lambda cost: cost._replace(issue=figures.ISSUE), kept)
            changes[number] = (VECTOR, plan, event[-1])
            found[event[-1][3]] += 1
        before = mask if d.form in (0, MASK) else None
    if len(changes) >= OFTEN:
        yield (
            "masks",
            f"the same mask is set again at {_lines(found)}: SetVectorMask once, and isSetMask = false, would save",
            _changed(trace, changes),
        )


def _reductions(trace: Trace, free_bytes: int) -> Iterator[Changed]:
    """Sums of whole repeats of float: the sums of blocks, and of these again, are shorter from a few repeats on."""
    block, kept = TIMINGS["BlockReduceSum"], dict[int, Any]()
    changes: dict[int, Event | None] = {}
    found: Counter[Site] = Counter()

    def shorter(cost: Cost) -> Cost:
        repeats = cost.repeats / TIMINGS["WholeReduceSum"].wide
        return cost._replace(repeats=repeats * 1.125 * block.wide, start=2 * block.start, issue=2 * cost.issue)

    for number, event in enumerate(trace):
        if (
            event[0] > IN_ORDER
            or event[-1][0] != "WholeReduceSum"
            or event[1].descriptor.types & 255 != event[1].descriptor.types >> 8 & 255
        ):
            continue
        cost = event[1].cost
        better = shorter(cost)
        full = event[1].descriptor.form == MASK and event[1].descriptor.n == 64
        if full and better.repeats + better.start < cost.repeats + cost.start:
            changes[number] = (event[0], _recosted(event[1], shorter, kept), event[-1])
            found[event[-1][3]] += 1
    if changes:
        yield (
            "reductions",
            f"WholeReduceSum at {_lines(found)}: BlockReduceSum twice would save",
            _changed(trace, changes),
        )


def _banks(trace: Trace, free_bytes: int) -> Iterator[Changed]:
    """Operands whose blocks lie in the same bank groups."""
    kept: dict[int, Any] = {}
    changes: dict[int, Event | None] = {}
    found: Counter[Site] = Counter()

    def apart(cost: Cost) -> Cost:
        return cost._replace(repeats=cost.repeats - cost.conflicts, conflicts=0.0)

    for number, event in enumerate(trace):
        if event[0] <= IN_ORDER and event[1].cost.conflicts:
            changes[number] = (event[0], _recosted(event[1], apart, kept), event[-1])
            found[event[-1][3]] += 1
    if changes:
        yield (
            "banks",
            f"bank conflicts at {_lines(found)}: operands 256 bytes further on, or another stride, would save",
            _changed(trace, changes),
        )


RULES: tuple[Callable[[Trace, int], Iterator[Changed]], ...] = (
    _two_buffers, _larger_copies, _repeats, _masks, _reductions, _banks,
)  # fmt: skip
