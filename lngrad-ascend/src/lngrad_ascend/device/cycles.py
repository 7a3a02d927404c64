"""When each instruction of a block would run: what a launch records for it, and the schedule that follows from that.

The scalar unit issues calls in program order; each of the other units takes its own in turn. A vector instruction gives its
unit free after its repeats and its result later: who needs that, by address, flag or barrier, waits. Copies of a unit run one
behind the other, and share what the core has of the memory's rate.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from lngrad_ascend.device import cycle_figures as figures
from lngrad_ascend.device.cycle_figures import GUESS, LIBRARY, TIMINGS, Machine, Timing
from lngrad_ascend.device.descriptors import BLOCK_BYTES, COUNT, COUNTER, MASK, Descriptor, types_of
from lngrad_ascend.device.numerics import DTYPES, REPEAT_BYTES
from lngrad_ascend.device.operations import OPERATIONS, Operands
from lngrad_ascend.device.pipes import ALL_PIPES, COPY, IN_ORDER, SCALAR, SET, TURN, VECTOR, WAIT, S, V
from lngrad_ascend.device.planning import PlannedInstruction
from lngrad_ascend.device.report import NOBODY, Instruction

WINDOW = 2000  # events of a block, the first ones, that stand for all where all would take long to look at
LEAST, TAIL = 8, 4  # turns of a loop that may be left out at least, and the last ones, which never are
SHOWN, FAR, MANY = 64, 4096, 65536  # events that come again, at most so far away; how many are looked at together
ALIKE = 1e-6  # cycles
Event = tuple[Any, ...]  # a kind of `pipes`, what belongs to it, and, where there is one, an instruction


class Cost(NamedTuple):
    """What a vector instruction takes, in cycles, and what it touches.

    Attributes:
        repeats: Cycles in which no other can start, ``conflicts`` of them because of banks.
        start: From its last repeat to its result.
        issue: Of the scalar unit, to set a mask of its own included.
        touched: What it writes, and then what it reads: first byte, byte behind the last.
    """

    repeats: float
    start: float
    issue: float = figures.ISSUE
    touched: tuple[tuple[int, int], ...] = ((0, 0),)
    conflicts: float = 0.0


class Priced(NamedTuple):
    """What stands in an event for a planned instruction: what its cost is."""

    cost: Cost
    descriptor: Descriptor | None = None


class Trace(list[Event]):
    """What one block did, in program order. Equal events are one object, unless they are to be ``apart`` for a picture.

    Attributes:
        kind: Of the next vector instruction: VECTOR, or IN_ORDER in a tile API, which has a barrier behind each.
        bytes, cached_bytes: Moved to and from global memory; without what passes the L2 cache by.
        last: What the core has recorded last, such as a barrier.
        guessed: What takes as long as somebody has guessed.
    """

    def __init__(self, events: Iterable[Event] = (), apart: bool = False) -> None:
        super().__init__(events)
        self.kind, self._apart = VECTOR, apart
        self._known: dict[object, Event] = {}
        self.bytes = self.cached_bytes = 0
        self.last: Instruction = NOBODY
        self.guessed: set[str] = set()

    def issued(self, plan: PlannedInstruction, instruction: Instruction) -> None:
        """Note a planned instruction."""
        event = self._known.get(id(plan))
        if event is None or event[2][3] != instruction[3] or event[0] != self.kind or self._apart:
            event, key = (self.kind, plan, instruction), (self.kind, id(plan), instruction)
            self._known[id(plan)] = event = event if self._apart else self._known.setdefault(key, event)
        self.append(event)

    def note(self, *event: Any) -> None:
        """Note what is not a planned instruction."""
        self.append(event if self._apart else self._known.setdefault(event, event))

    def copied(self, instruction: Instruction, start: int, blocks: int, nbytes: int, bypass: bool) -> None:
        """Note a copy of ``blocks`` blocks of ``nbytes``, to or from byte ``start`` of the Unified Buffer."""
        self.bytes += blocks * nbytes
        self.cached_bytes += blocks * nbytes * (not bypass)
        self.note(COPY, blocks, nbytes, start, bypass, 1.0, instruction)

    def accessed(self, instruction: Instruction, in_memory: bool = False) -> None:
        """Note an access of the scalar unit, to the Unified Buffer or to global memory."""
        self.note(SCALAR, figures.GLOBAL_SCALAR if in_memory else figures.SCALAR_ACCESS, instruction)
        if in_memory:
            self.guessed.add(f"{instruction[0]} of global memory")

    def looped(self, name: str, calls: int, nbytes: int, chained: bool, instruction: Instruction) -> None:
        """Note ``calls`` vector instructions of one name that touch ``nbytes`` each; chained: each needs the one before."""
        timing = timing_of(name)
        each = max(timing.wide * max(1, -(-nbytes // REPEAT_BYTES)) + timing.start * chained, figures.ISSUE)
        if calls > 0:
            self.note(IN_ORDER, Priced(Cost(calls * each, timing.start, calls * figures.ISSUE)), instruction)


def timing_of(name: str) -> Timing:
    """Return the figures of an instruction by name."""
    simple = any(one.name == name and not one.operands.mathematical for one in OPERATIONS)
    return TIMINGS.get(name) or (GUESS if simple else LIBRARY)


def _fullest(blocks: Iterable[int], groups: int) -> int:
    """How many of these blocks the fullest bank group has: a cycle reads or writes one of each."""
    return max(Counter(block % groups for block in set(blocks)).values(), default=1)


def _bank_factor(d: Descriptor, sizes: Sequence[int], groups: int) -> float:
    """By how much bank conflicts lengthen a repeat: the mean of the first two."""
    if not groups:
        return 1.0
    widest, total, close = max(sizes), 0, d.form in (COUNT, COUNTER)
    count = min(8, -(-d.n * widest // BLOCK_BYTES)) if d.form == MASK else 8
    for repeat in (0, 1):
        written, *read = (
            [start // BLOCK_BYTES + repeat * (8 * size // widest if close else step) + (1 if close else block) * place
             for place in range(max(1, count * size // widest))]
            for start, block, step, size in zip(d[12:18:2], d[6:9], d[9:12], sizes, strict=False)  # dst, src0, src1
        )  # fmt: skip
        total += max(_fullest(chain(*read), groups), _fullest(written, groups))
    return total / 2


def cost_of(plan: PlannedInstruction, machine: Machine) -> Cost:
    """Return what a planned instruction takes, and keep it in the plan."""
    d, operation = plan.descriptor, OPERATIONS[plan.op]
    sizes = [DTYPES[code].itemsize for code in types_of(d.types)[: 1 + len(operation.operands.sources)]]
    # Compare's dst, Select's mask and Gather's offsets are beside what the unit steps through.
    plain = operation.operands.elementwise
    size = max(sizes) if plain else sizes[0] if operation.operands is Operands.GATHER else sizes[-1]
    timing, touched = (
        timing_of(operation.name),
        [(x.runs[0][0], x.runs[-1][1]) for x in (plan.write, *plan.reads) if x.runs],
    )
    left = [-(-d.n * size // REPEAT_BYTES) if d.form in (COUNT, COUNTER) else d.repeat]
    while operation.operands is Operands.REDUCE and left[-1] > 1:  # repeats, then what these leave, until one is left
        left.append(-(-left[-1] * size // REPEAT_BYTES))
    clean = max(1.0, sum(left) * (timing.wide if size >= 4 else timing.narrow))
    factor = _bank_factor(d, sizes, machine.groups) if plain else 1.0
    in_place = factor == 1 and any(access.runs == plan.write.runs for access in plan.reads)
    cost = plan.cost = Cost(
        clean * factor + figures.IN_PLACE * left[0] * in_place, timing.start * len(left),
        figures.ISSUE + figures.MASK * (d.form in (COUNT, MASK)), tuple(touched or [(0, 0)]), clean * (factor - 1),
    )  # fmt: skip
    return cost


class Share(NamedTuple):
    """What one core has of global memory and of the L2 cache, in bytes a cycle; whether what is moved stays in the cache."""

    memory: float
    cache: float
    fits: bool


class Channel:
    """When a core's share of a memory is in use. Copies come in program order, and may use what a later one leaves free."""

    def __init__(self) -> None:
        self.end = 0.0
        self._gaps: deque[tuple[float, float]] = deque(maxlen=4)

    def move(self, cycles: float) -> None:
        """Let all be so much later."""
        self.end += cycles
        self._gaps = deque(((start + cycles, stop + cycles) for start, stop in self._gaps), maxlen=4)

    def take(self, begin: float, cycles: float) -> float:
        """Take the first free ``cycles`` from ``begin`` on, and return when they end."""
        end = begin
        for place, (start, stop) in enumerate(self._gaps):
            first = max(start, begin)
            taken = max(0.0, min(cycles, stop - first))
            if taken:
                self._gaps[place], cycles, end = (first + taken, stop), cycles - taken, first + taken
        if cycles > 0:
            first = max(self.end, begin)
            self._gaps.append((self.end, first))
            self.end = end = first + cycles
        return end


class Run(NamedTuple):
    """One block's schedule.

    Attributes:
        placed, begins, ends: Its instructions in program order, and their cycles.
        whys, lets: The place of the one that each waited for, -1 for none, and when that let it go: from then to its begin the
            scalar unit worked.
        cycles, repeats: Of all, and of the vector instructions' repeats.
        busy: By pipe, the cycles in which it works.
        skips: Turns of loops that the lists leave out: the place, the instructions of the turn before it, how many like it are
            left out, and their cycles, by which all behind is later.
    """

    placed: list[Instruction]
    begins: list[float]
    ends: list[float]
    whys: list[int]
    lets: list[float]
    cycles: float
    repeats: float
    busy: list[float]
    skips: list[tuple[int, int, int, float]]


def _in_turns(trace: Trace, skip: list[int]) -> Iterator[tuple[int, Event]]:
    """The events with their numbers. Behind a turn of a loop a TURN: its events, how many turns follow; ``skip`` those."""
    codes, at = np.fromiter(map(id, trace), np.int64, len(trace)), 0
    raw, size = codes.tobytes(), codes.itemsize
    while at < len(codes):
        turn = raw.find(raw[size * at : size * (at + SHOWN)], size * (at + 1), size * (at + SHOWN + FAR)) // size - at
        alike = np.append(codes[at + turn :][:MANY] == codes[at:-turn][:MANY], False) if turn > 0 else codes[:1] < 0
        same = int(alike.argmin())
        turn *= -(-SHOWN // max(turn, 1))  # short turns together
        for left in range(same // max(turn, 1) - TAIL, LEAST, -1):
            at += turn
            yield from enumerate(trace[at - turn : at], at - turn)
            yield at, (TURN, turn, left)
            if skip:
                at += turn * skip.pop()
                break
        yield from enumerate(trace[at : at + SHOWN], at)
        at += SHOWN


def _steady(turns: Sequence[Sequence[float]], *times: Sequence[float]) -> float:
    """The cycles of a turn where the last two went alike, so that all further ones will; else 0.

    A state ends with how often others waited for the scalar unit and how many instructions there were; ``times`` are their
    begins, their ends, and what they waited for.
    """
    count = int(turns[-1][-1] - turns[-2][-1]) if len(turns) == 3 else 0
    if not count or any(abs(a - 2 * b + c) > ALIKE for a, b, c in zip(*turns, strict=True)):
        return 0.0
    step, now, led = times[0][-1] - times[0][-1 - count], turns[2][0] - turns[1][0], turns[2][-2] - turns[1][-2]
    moved = np.diff([(each[-2 * count : -count], each[-count:]) for each in times], axis=1)
    alike = (abs(moved[:2] - step) < ALIKE).all() and np.isin(moved[2], (0, count)).all()
    return step if alike and (abs(now - step) < ALIKE or (now < step and not led)) else 0.0


def run_cores(traces: Sequence[Trace], share: Share, machine: Machine) -> list[Run]:
    """Schedule blocks, which wait for each other where they did."""
    cores = [_run(trace, share, machine) for trace in traces]
    runs: dict[int, Run] = {}
    waiting: dict[int, float | None] = dict.fromkeys(range(len(cores)))
    until = None
    while waiting:
        for index in list(waiting):
            try:
                waiting[index] = cores[index].send(until)
            except StopIteration as end:
                runs[index] = end.value
                del waiting[index]
        until = max((one for one in waiting.values() if one is not None), default=0.0) + figures.SYNC_ALL
    return [runs[index] for index in range(len(cores))]


def _once_written(
    flying: Iterable[tuple[float, int, int, int]], touched: Sequence[tuple[int, int]], begin: tuple[float, int, float]
) -> tuple[float, int, float]:
    """When an instruction may begin that touches these bytes, by whom, until when: not before they are written."""
    for when, first, behind, whose in flying:
        if when > begin[0] and any(first < stop and at < behind for at, stop in touched):
            begin = when, whose, when
    return begin


def _run(trace: Trace, share: Share, machine: Machine) -> Generator[float, float | None, Run]:
    now, by, since = 0.0, -1, 0.0  # of the scalar unit: the time, what it last waited for, until when
    ready, end, busy, work, idle = [0.0] * 4, [0.0] * 4, [0.0] * 4, 0.0, 0.0
    placed, begins, ends, whys, lets = list[Instruction](), list[float](), list[float](), list[int](), list[float]()
    cause, last = [-1] * 4, [-1] * 4  # by pipe: what made it ready, and what ends last on it
    memory, cache = Channel(), Channel()
    tokens: dict[int, tuple[float, int]] = {}
    flying: deque[tuple[float, int, int, int]] = deque()  # results to come: when, from and to which byte, whose
    led, skip = 0, list[int]()  # how often the scalar unit was what others waited for
    turns, skips = deque[tuple[float, ...]](maxlen=3), list[tuple[int, int, int, float]]()
    for number, event in _in_turns(trace, skip):
        kind = event[0]
        if kind <= IN_ORDER:
            _, plan, instruction = event
            repeats, start, issue, touched, _ = plan.cost or cost_of(plan, machine)
            now += issue
            work += repeats
            begin = ready[V]
            why, until, ended = cause[V], begin, end[V]
            if now > begin:
                begin, why, until, led = now, by, since, led + 1
            if ended > begin:
                if kind == IN_ORDER:
                    begin, why, until = ended, last[V], ended
                    flying.clear()
                while flying and flying[0][0] <= begin:
                    flying.popleft()
                begin, why, until = _once_written(flying, touched, (begin, why, until))
            else:
                flying.clear()
            here = len(placed)
            free = begin + repeats if begin - ended <= figures.IDLE and placed else begin + repeats + figures.WAKE
            finish = free + start
            ready[V], cause[V] = free, here
            flying.append((finish, *touched[0], here))
            if finish > ended:
                busy[V] += finish - (begin if begin > ended else ended)
                end[V], last[V] = finish, here
        elif kind == SET:
            pipe, now = event[1], now + 1
            if pipe < 0:
                pipe = max(ALL_PIPES, key=end.__getitem__)
            tokens[number] = (now, by) if pipe == S else (max(end[pipe], ready[pipe]), last[pipe])
            led += pipe == S
            continue
        elif kind == WAIT:
            pipe, (when, whose), now = event[1], tokens[number - event[2]], now + 1
            if pipe == S and when > now:
                idle, now, by, since = idle + when - now, when, whose, when
            elif when > ready[pipe]:
                ready[pipe], cause[pipe] = when, whose
            continue
        elif kind == COPY:
            _, blocks, nbytes, _, bypass, starts, instruction = event
            pipe, fast = instruction[1], share.fits and not bypass
            now += figures.ISSUE
            begin, why, until = (now, by, since) if now > ready[pipe] else (ready[pipe], cause[pipe], ready[pipe])
            led += now > ready[pipe]
            data = max(blocks * nbytes / figures.COPY_RATE[pipe], blocks * figures.COPY_BLOCK)
            shared = (cache if fast else memory).take(begin, blocks * nbytes / (share.cache if fast else share.memory))
            ready[pipe] = end[pipe] = finish = max(begin + starts * figures.COPY_START[pipe] + data, shared)
            cause[pipe] = last[pipe] = len(placed)
            busy[pipe] += finish - begin
        elif kind == SCALAR:
            instruction, begin, why, until = event[-1], now, by, since
            now, led = now + event[1], led + 1
            finish = now
        elif kind == TURN:
            state = (now, since, idle, work, memory.end, cache.end, *ready, *end, *busy, led, len(placed))
            turns.append(state)
            (_, turn, left), step = event, _steady(turns, begins, ends, whys)
            if not step:
                continue
            later, grown = left * step, [a + left * (a - b) for a, b in zip(state, turns[1], strict=True)]
            now, since, idle, work, *_ = grown
            ready, end, busy = grown[6:10], grown[10:14], grown[14:18]
            memory.move(grown[4] - memory.end)
            cache.move(grown[5] - cache.end)
            flying = deque((when + later, *others) for when, *others in flying)
            recent = ((one, tokens[one]) for one in range(number - FAR, number) if one in tokens)
            tokens |= {one + left * turn: (when + later, whose) for one, (when, whose) in recent}
            skips.append((len(placed), len(placed) - int(turns[1][-1]), left, later))
            skip.append(left)
            continue
        else:
            top = max(ALL_PIPES, key=end.__getitem__)
            begin, instruction, why = max(now, end[top]), event[-1], last[top]
            finish, until = (yield begin) or begin, begin
            idle, now, by, since = idle + finish - now, finish, len(placed), finish
            ready, cause = [max(one, now) for one in ready], [by] * 4
        placed.append(instruction)
        begins.append(begin)
        ends.append(finish)
        whys.append(why)
        lets.append(until)
    busy[S] = now - idle
    return Run(placed, begins, ends, whys, lets, max(now, *end), work, busy, skips)
