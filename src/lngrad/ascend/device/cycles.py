"""When each instruction of a block would run: what a launch records for it, and the schedule that is computed from that.

The scalar unit issues calls in program order; each of the other units takes its own in turn. A vector instruction gives its unit
free after its repeats and its result later; who needs that result, by address, flag or barrier, waits. Copies of a unit run one
behind the other, and share what the core has of the memory's rate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from lngrad.ascend.device import cycle_figures as figures
from lngrad.ascend.device.cycle_figures import GUESS, LIBRARY, TIMINGS, Machine, Timing
from lngrad.ascend.device.descriptors import BLOCK_BYTES, COUNT, COUNTER, MASK, Descriptor, types_of
from lngrad.ascend.device.numerics import DTYPES, REPEAT_BYTES
from lngrad.ascend.device.operations import OPERATIONS, Operands
from lngrad.ascend.device.pipes import ALL_PIPES, PipeClock, S, Snapshot, V
from lngrad.ascend.device.planning import PlannedInstruction
from lngrad.ascend.device.report import NOBODY, Instruction

# The kinds of events: (kind, …); an instruction, where there is one, comes last.
VECTOR, IN_ORDER, LOOP, COPY, SET, WAIT, SCALAR, ALL_CORES = range(8)
Event = tuple[Any, ...]
Placed = tuple[int, float, float, int, float, Instruction, int]
"""Pipe, begin, end, the placed one that it waited for (-1: none), until when, the instruction, its event."""


class Stamp(list[int]):
    """A snapshot of a clock with the number of the event that took it."""

    token = 0


class Trace(list[Event]):
    """What one block did, in program order.

    Attributes:
        vector: The kind of the next vector instruction: VECTOR, or IN_ORDER inside a tile API, which has a barrier behind each.
        cached_bytes: Moved to and from global memory, without what passes the L2 cache by.
        bytes: All of them.
        last: What the core has recorded last, such as a barrier.
    """

    def __init__(self) -> None:
        super().__init__()
        self.vector = VECTOR
        self.last: Instruction = NOBODY
        self.cached_bytes = self.bytes = 0

    def copied(self, instruction: Instruction, start: int, blocks: int, nbytes: int, bypass: bool) -> None:
        """Note a copy of ``blocks`` blocks of ``nbytes``, to or from byte ``start`` of the Unified Buffer."""
        self.bytes += blocks * nbytes
        self.cached_bytes += blocks * nbytes * (not bypass)
        self.append((COPY, blocks, nbytes, start, bypass, 1.0, instruction))

    def looped(self, name: str, calls: int, nbytes: int, instruction: Instruction) -> None:
        """Note ``calls`` vector instructions of one name that touch ``nbytes`` each."""
        if calls > 0:
            self.append((LOOP, name, calls, max(1, -(-nbytes // REPEAT_BYTES)), instruction))


class TracedClock(PipeClock):
    """A clock that notes who waits for whom."""

    trace: Trace

    def _stamped(self, snapshot: Snapshot, pipe: int) -> Snapshot:
        stamp = Stamp(snapshot)
        stamp.token = len(self.trace)
        self.trace.append((SET, pipe))
        return stamp

    def release(self, pipe: int) -> Snapshot:
        """As the clock's; the event's number is in the snapshot."""
        return self._stamped(super().release(pipe), pipe)

    def release_all(self) -> Snapshot:
        """As the clock's, of all pipes (-1)."""
        return self._stamped(super().release_all(), -1)

    def acquire(self, pipe: int, snapshot: Snapshot) -> None:
        """As the clock's."""
        if isinstance(snapshot, Stamp):
            self.trace.append((WAIT, pipe, snapshot.token))
        super().acquire(pipe, snapshot)

    def learn_others(self, others: list[Snapshot]) -> None:
        """As the clock's: a barrier between blocks."""
        self.trace.append((ALL_CORES, self.trace.last))
        super().learn_others(others)


class Cost(NamedTuple):
    """What one vector instruction takes, in cycles, and what it touches.

    Attributes:
        repeats: Cycles in which no other can start, ``conflicts`` of them because of banks.
        start: From its last repeat to its result.
        issue: Of the scalar unit.
        write: From its first to its last byte.
        reads: The same of each source.
    """

    repeats: float
    start: float
    issue: float
    write: tuple[int, int]
    reads: tuple[tuple[int, int], ...]
    conflicts: float = 0.0
    masks: bool = False


def _blocks_of(start: int, stride: int, blocks: int) -> set[int]:
    return {start // BLOCK_BYTES + stride * place for place in range(blocks)}


def _most_in_a_group(blocks: set[int], groups: int) -> int:
    """How many of these blocks the fullest bank group has: a cycle reads or writes one of each."""
    counts = [0] * groups
    for block in blocks:
        counts[block % groups] += 1
    return max(counts, default=1) or 1


def bank_factor(d: Descriptor, sizes: Sequence[int], groups: int) -> float:
    """Return by how much bank conflicts lengthen a repeat: the mean of the first two."""
    if not groups or d.op >= len(OPERATIONS) or not OPERATIONS[d.op].operands.elementwise:
        return 1.0
    widest, total = max(sizes), 0.0
    count = 8 if d.form == COUNT else min(8, max(1, -(-(d.n if d.form == MASK else 1 << 30) * widest // BLOCK_BYTES)))
    operands = (
        (d.dst, d.dst_block, d.dst_repeat),
        (d.src0, d.src0_block, d.src0_repeat),
        (d.src1, d.src1_block, d.src1_repeat),
    )
    for repeat in (0, 1):
        touched = []
        for (start, block, step), size in zip(operands, sizes, strict=False):
            stride, jump = (1, 8 * size // widest) if d.form in (COUNT, COUNTER) else (block, step)
            touched.append(_blocks_of(start + repeat * jump * BLOCK_BYTES, stride, max(1, count * size // widest)))
        read = set().union(*touched[1:]) if len(touched) > 1 else set[int]()
        total += max(_most_in_a_group(read, groups), _most_in_a_group(touched[0], groups))
    return total / 2


def cost_of(plan: PlannedInstruction, machine: Machine) -> Cost:
    """Return what a planned instruction takes."""
    d, operation = plan.descriptor, OPERATIONS[plan.op]
    codes = types_of(d.types)[: 1 + len(operation.operands.sources)]
    sizes = [DTYPES[code].itemsize for code in codes]
    # Compare's dst, Select's mask and Gather's offsets are beside what the unit steps through.
    stepped = (
        sizes if operation.operands.elementwise else [sizes[0] if operation.operands is Operands.GATHER else sizes[-1]]
    )
    size = max(stepped)
    timing = timing_of(operation.name)
    if operation.operands is Operands.REDUCE:
        return _reduction(plan, size, machine)
    elements = d.n if d.form in (COUNT, COUNTER) else REPEAT_BYTES // size * d.repeat
    repeats = -(-elements * size // REPEAT_BYTES) if d.form in (COUNT, COUNTER) else d.repeat
    factor = bank_factor(d, sizes, machine.groups)
    rate = timing.wide if size >= 4 else timing.narrow
    extra = figures.IN_PLACE * repeats if any(a.runs == plan.write.runs for a in plan.reads) and factor == 1 else 0.0
    masks = d.form in (COUNT, MASK)
    clean = max(1.0, repeats * rate)
    return Cost(
        clean * factor + extra, timing.start, figures.ISSUE + figures.MASK * masks, *_touched(plan),
        clean * (factor - 1), masks,
    )  # fmt: skip


def _touched(plan: PlannedInstruction) -> tuple[tuple[int, int], tuple[tuple[int, int], ...]]:
    runs = plan.write.runs
    reads = tuple((access.runs[0][0], access.runs[-1][1]) for access in plan.reads if access.runs)
    return (runs[0][0], runs[-1][1]) if runs else (0, 0), reads


def _reduction(plan: PlannedInstruction, size: int, machine: Machine) -> Cost:
    """ReduceSum, ReduceMax, ReduceMin: whole repeats, then what these left, until one is left."""
    whole, d = TIMINGS["WholeReduceSum"], plan.descriptor
    left = -(-d.n * size // REPEAT_BYTES) if d.form == COUNT else d.repeat
    busy, start = whole.wide * left, whole.start
    while left > 1:
        left = -(-left * size // REPEAT_BYTES)
        busy, start = busy + whole.wide * left, start + whole.start
    return Cost(max(1.0, busy), start, figures.ISSUE + figures.MASK, *_touched(plan), 0.0, True)


def timing_of(name: str) -> Timing:
    """Return the figures of an instruction by name."""
    found = TIMINGS.get(name)
    if found is None:
        found = GUESS if any(o.name == name and not o.operands.mathematical for o in OPERATIONS) else LIBRARY
    return found


class Share(NamedTuple):
    """What one core has of global memory and of the L2 cache, in bytes a cycle."""

    memory: float
    cache: float
    fits: bool  # whether what is moved stays in the cache


def share_of(traces: Sequence[Trace], cores: int, times: float, machine: Machine, array_bytes: int) -> Share:
    """Divide the rates among ``cores`` cores, where what ``traces`` moved is moved ``times`` times."""
    moved, cached = sum(trace.bytes for trace in traces), sum(trace.cached_bytes for trace in traces)
    if moved == cached:  # what is read again is in the cache once
        cached = min(cached, array_bytes or cached)
    of_one = 1 / (cores * machine.clock)
    return Share(machine.memory_rate * of_one, machine.cache_rate * of_one, cached * times <= machine.cache_bytes)


class Channel:
    """When a core's share of a memory is in use. Copies come in program order, and may use what a later one leaves free."""

    def __init__(self) -> None:
        self._end = 0.0
        self._gaps: deque[tuple[float, float]] = deque(maxlen=4)

    def take(self, begin: float, cycles: float) -> float:
        """Take the first free ``cycles`` from ``begin`` on, and return when they end."""
        end = begin
        for place, (start, stop) in enumerate(self._gaps):
            first = max(start, begin)
            taken = min(cycles, stop - first)
            if taken > 0:
                self._gaps[place] = (first + taken, stop)
                cycles -= taken
                end = first + taken
        if cycles > 0:
            first = max(self._end, begin)
            if first > self._end:
                self._gaps.append((self._end, first))
            self._end = end = first + cycles
        return end


class Run(NamedTuple):
    """One block's schedule: its instructions in order, the cycles in all, those in which each pipe works."""

    placed: list[Placed]
    cycles: float
    busy: list[float]


def run_cores(traces: Sequence[Trace], share: Share, machine: Machine) -> list[Run]:
    """Schedule blocks, which wait for each other where they did."""
    cores = [_run(trace, share, machine) for trace in traces]
    runs: dict[int, Run] = {}
    waiting: dict[int, float] = {}

    def advance(index: int, until: float | None) -> None:
        try:
            waiting[index] = cores[index].send(until)  # type: ignore[arg-type]  # a generator starts with None
        except StopIteration as end:
            runs[index] = end.value
            waiting.pop(index, None)

    for index in range(len(cores)):
        advance(index, None)
    while waiting:
        until = max(waiting.values()) + figures.SYNC_ALL
        for index in list(waiting):
            advance(index, until)
    return [runs[index] for index in range(len(cores))]


def _run(trace: Trace, share: Share, machine: Machine) -> Generator[float, float, Run]:
    now, by = 0.0, -1  # of the scalar unit: the time, and what it last waited for
    since = 0.0  # from when on it has not waited
    ready, end, busy = [0.0] * 4, [0.0] * 4, [0.0] * 4
    cause, last = [-1] * 4, [-1] * 4  # what made a pipe ready; what ends last on it
    memory, cache = Channel(), Channel()
    tokens: dict[int, tuple[float, int]] = {}
    flying: deque[tuple[float, tuple[int, int], int]] = deque()  # results that are not there yet: when, where, whose
    placed: list[Placed] = []
    for number, event in enumerate(trace):
        kind = event[0]
        if kind <= IN_ORDER:
            plan = event[1]
            cost = plan.cost or _keep(plan, machine)
            busy[S] += cost.issue
            now += cost.issue
            begin, why, until = ready[V], cause[V], ready[V]
            if kind == IN_ORDER and end[V] > begin:
                begin = until = end[V]
                why = last[V]
            if now > begin:
                begin, why, until = now, by, since
            if flying:
                while flying and flying[0][0] <= begin:
                    flying.popleft()
                for when, (low, high), whose in flying:
                    if when > begin and _meets(low, high, cost):
                        begin, why, until = when, whose, when
            starts = begin + figures.WAKE if begin - end[V] > figures.IDLE or not placed else begin
            ready[V] = starts + cost.repeats
            finish = ready[V] + cost.start
            flying.append((finish, cost.write, len(placed)))
            cause[V] = len(placed)
            busy[V] += finish - max(begin, min(end[V], finish))
            if finish > end[V]:
                end[V], last[V] = finish, len(placed)
            placed.append((V, begin, finish, why, until, event[-1], number))
        elif kind == SET:
            pipe = event[1]
            if pipe == S:
                tokens[number] = now, by
            elif pipe < 0:
                top = max(ALL_PIPES, key=end.__getitem__)
                tokens[number] = max(end[top], now), last[top]
            else:
                tokens[number] = max(end[pipe], ready[pipe]), last[pipe]
            now += 1
        elif kind == WAIT:
            pipe, (when, whose) = event[1], tokens[event[2]]
            now += 1
            if pipe == S:
                if when > now:
                    now, by, since = when, whose, when
            elif when > ready[pipe]:
                ready[pipe], cause[pipe] = when, whose
        elif kind == COPY:
            _, blocks, nbytes, _, bypass, starts, instruction = event
            pipe = instruction[1]
            now += figures.ISSUE
            busy[S] += figures.ISSUE
            begin, why, until = ready[pipe], cause[pipe], ready[pipe]
            if now > begin:
                begin, why, until = now, by, since
            whole = blocks * nbytes
            fast = share.fits and not bypass
            data = max(whole / figures.COPY_RATE[pipe], blocks * figures.COPY_BLOCK)
            shared = (cache if fast else memory).take(begin, whole / (share.cache if fast else share.memory))
            finish = max(begin + starts * figures.COPY_START[pipe] + data, shared)
            ready[pipe] = end[pipe] = finish
            cause[pipe] = last[pipe] = len(placed)
            busy[pipe] += finish - begin
            placed.append((pipe, begin, finish, why, until, instruction, number))
        elif kind == LOOP:
            _, name, calls, repeats, instruction = event
            timing = timing_of(name)
            begin, why, until = max(ready[V], end[V]), last[V], end[V]
            now += figures.ISSUE
            if now > begin:
                begin, why, until = now, by, since
            starts = begin + figures.WAKE if begin - end[V] > figures.IDLE or not placed else begin
            finish = starts + calls * max(repeats * timing.wide, figures.ISSUE) + timing.start
            now = max(now, starts) + calls * figures.ISSUE
            ready[V] = end[V] = finish
            cause[V] = last[V] = len(placed)
            busy[V] += finish - begin
            placed.append((V, begin, finish, why, until, instruction, number))
        elif kind == SCALAR:
            cycles, instruction = event[1], event[2]
            placed.append((S, now, now + cycles, by, since, instruction, number))
            now += cycles
            busy[S] += cycles
        else:
            top = max(ALL_PIPES, key=end.__getitem__)
            here = max(now, end[top])
            now = yield here
            placed.append((S, here, now, last[top], here, event[-1], number))
            by, since = len(placed) - 1, now
            ready = [max(one, now) for one in ready]
            cause = [by] * 4
    return Run(placed, max(now, *end), busy)


def _meets(low: int, high: int, cost: Cost) -> bool:
    """Whether an instruction reads or writes bytes that another one is about to write."""
    start, stop = cost.write
    return (low < stop and start < high) or any(low < stop and start < high for start, stop in cost.reads)


def _keep(plan: PlannedInstruction, machine: Machine) -> Cost:
    plan.cost = cost = cost_of(plan, machine)
    return cost
