"""The schedule of a block's instructions, and the record of a launch from which it follows.

The scalar unit issues calls in program order; each of the other units takes its own in turn. A vector instruction gives its
unit free after its repeats and its result later: who needs that, by address, flag or barrier, waits. Copies of a unit run one
behind the other, and share what the core has of the memory's rate.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from lngrad_ascend.device import cycle_figures as figures
from lngrad_ascend.device.cycle_figures import GUESS, LIBRARY, TIMINGS, Machine, Timing
from lngrad_ascend.device.descriptors import BLOCK_BYTES, COUNT, COUNTER, MASK, Descriptor
from lngrad_ascend.device.numerics import DTYPES, REPEAT_BYTES
from lngrad_ascend.device.operations import OPERATIONS, Operands
from lngrad_ascend.device.pipes import ALL_CORES, ALL_PIPES, COPY, IN_ORDER, SCALAR, SET, TURN, VECTOR, WAIT, S, V
from lngrad_ascend.device.planning import PlannedInstruction
from lngrad_ascend.device.report import NOBODY, Instruction

WINDOW = 2000  # events of a block, the first ones, that stand for all where all would take long to look at
LEAST, TAIL = 8, 4  # turns of a loop that may be left out at least, and the last ones, which never are
SHOWN, FAR, MANY = 64, 4096, 65536  # events that come again, at most so far away; how many are looked at together
ALIKE = 1e-6  # cycles
Event = tuple[Any, ...]  # a kind of `pipes`, what belongs to it, and, where there is one, an instruction


class Cost(NamedTuple):
    """The cycles of a vector instruction, and the bytes that it touches.

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
    """A cost that stands in an event for a planned instruction."""

    cost: Cost
    descriptor: Descriptor | None = None


class Trace(list[Event]):
    """The events of a block in program order. Equal events are one object, unless they are ``apart`` for a picture.

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
    simple = any(row.name == name and not row.operands.mathematical for row in OPERATIONS)
    return TIMINGS.get(name) or (GUESS if simple else LIBRARY)


def _fullest(blocks: Iterable[int], groups: int) -> int:
    """Return the count of blocks in the fullest bank group: a cycle reads or writes one block of each group."""
    return max(Counter(block % groups for block in set(blocks)).values(), default=1)


def _bank_factor(d: Descriptor, sizes: Sequence[int], groups: int) -> float:
    """Return the factor by which bank conflicts lengthen a repeat: the mean of the first two repeats."""
    if not groups:
        return 1.0
    widest, total, close = max(sizes), 0, d.form in (COUNT, COUNTER)
    count = min(8, -(-d.n * widest // BLOCK_BYTES)) if d.form == MASK else 8
    for repeat in (0, 1):
        written, *read = (
            [x.start // BLOCK_BYTES + repeat * (8 * size // widest if close else x.repeat) + (1 if close else x.block) * place
             for place in range(max(1, count * size // widest))]
            for x, size in zip(d.operands, sizes, strict=False)
        )  # fmt: skip
        total += max(_fullest(chain(*read), groups), _fullest(written, groups))
    return total / 2


def cost_of(plan: PlannedInstruction, machine: Machine) -> Cost:
    """Return what a planned instruction takes, and keep it in the plan."""
    d, operation = plan.descriptor, OPERATIONS[plan.op]
    sizes = [DTYPES[code].itemsize for code in d.codes[: 1 + len(operation.operands.sources)]]
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
    """A core's rates of global memory and of the L2 cache, in bytes a cycle; whether the data fit the cache."""

    memory: float
    cache: float
    fits: bool


class Channel:
    """The times at which a core uses its share of a memory. Copies come in program order, and may fill earlier gaps."""

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
    """The schedule of a block.

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
    """Return events with their numbers, and a TURN behind a turn of a loop: its events, and how many like it follow.

    ``skip`` takes how many of these to leave out."""
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


class Clock(NamedTuple):
    """The scalar unit's times, and the cycles in which it waited and in which the vector unit worked, at a ``Moment``."""

    now: float
    since: float
    idle: float
    work: float


class Moment(NamedTuple):
    """The end of a loop's turn: times, which a steady turn moves on, and two counts.

    Attributes:
        channels: The ends of both memories' shares.
        pipes: By pipe: ready, end, busy.
        led: How often others have waited for the scalar unit.
        placed: Instructions so far.
    """

    clock: Clock
    channels: tuple[float, ...]
    pipes: tuple[tuple[float, ...], ...]
    led: int
    placed: int


def _steady(turns: Sequence[Moment], run: Run) -> float:
    """Return the cycles of a turn where the last two were alike, so that all further ones will be; else 0."""
    count = turns[-1].placed - turns[-2].placed if len(turns) == 3 else 0
    flat = (chain(at.clock, at.channels, *at.pipes, (at.led, at.placed)) for at in turns)
    if not count or any(abs(a - 2 * b + c) > ALIKE for a, b, c in zip(*flat, strict=True)):
        return 0.0
    step, now = run.begins[-1] - run.begins[-1 - count], turns[2].clock.now - turns[1].clock.now
    lists = (run.begins, run.ends, run.whys)
    moved = np.diff([(numbers[-2 * count : -count], numbers[-count:]) for numbers in lists], axis=1)
    alike = (abs(moved[:2] - step) < ALIKE).all() and np.isin(moved[2], (0, count)).all()
    return step if alike and (abs(now - step) < ALIKE or (now < step and turns[2].led == turns[1].led)) else 0.0


def _ahead(now: Iterable[float], before: Iterable[float], turns: int) -> Iterator[float]:
    """Return the times after ``turns`` more turns like the one from ``before`` to ``now``."""
    return (a + turns * (a - b) for a, b in zip(now, before, strict=True))


def run_cores(traces: Sequence[Trace], share: Share, machine: Machine) -> list[Run]:
    """Schedule blocks, which wait for each other where they did."""
    cores = [State(trace, share, machine).schedule() for trace in traces]
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
        until = max((begin for begin in waiting.values() if begin is not None), default=0.0) + figures.SYNC_ALL
    return [runs[index] for index in range(len(cores))]


def _once_written(
    flying: Iterable[tuple[float, int, int, int]], touched: Sequence[tuple[int, int]], begin: tuple[float, int, float]
) -> tuple[float, int, float]:
    """Return when an instruction that touches these bytes may begin, the place of the writer it waits for, until when."""
    for when, first, behind, whose in flying:
        if when > begin[0] and any(first < stop and at < behind for at, stop in touched):
            begin = when, whose, when
    return begin


@dataclass(slots=True)
class Pipe:
    """A unit.

    Attributes:
        ready, cause: When it can take an instruction, and the place of the one that made it so.
        end, last: When its instructions are done, and the place of the one that is done last.
        busy: The cycles in which it has worked.
    """

    ready: float = 0.0
    end: float = 0.0
    busy: float = 0.0
    cause: int = -1
    last: int = -1


@dataclass(slots=True)
class State:
    """A block's schedule so far.

    Attributes:
        now, by, since: Of the scalar unit: the time, the place of what it last waited for, until when.
        idle, work: The cycles in which it waited, and those of the vector instructions' repeats.
        led: How often the scalar unit was what others waited for.
        tokens: By the number of the event that set a flag: when it is up, and the place of what comes before it.
        flying: Results to come: when, first byte, byte behind the last, the place of their instruction.
        turns, skip: The last ends of a loop's turns, and how many turns ``_in_turns`` is to leave out.
    """

    trace: Trace
    share: Share
    machine: Machine
    now: float = 0.0
    by: int = -1
    since: float = 0.0
    idle: float = 0.0
    work: float = 0.0
    led: int = 0
    pipes: tuple[Pipe, ...] = field(default_factory=lambda: tuple(Pipe() for _ in ALL_PIPES))
    memory: Channel = field(default_factory=Channel)
    cache: Channel = field(default_factory=Channel)
    tokens: dict[int, tuple[float, int]] = field(default_factory=dict)
    flying: deque[tuple[float, int, int, int]] = field(default_factory=deque)
    turns: deque[Moment] = field(default_factory=lambda: deque(maxlen=3))
    skip: list[int] = field(default_factory=list)
    run: Run = field(default_factory=lambda: Run([], [], [], [], [], 0.0, 0.0, [], []))

    def schedule(self) -> Generator[float, float | None, Run]:
        """Place all events: yield when the block comes to a barrier of all cores, take when they go on, return the schedule."""
        events = {
            VECTOR: self.vector, IN_ORDER: self.vector, COPY: self.copy, SET: self.set_flag, WAIT: self.wait_flag,
            SCALAR: self.access, TURN: self.turn,
        }  # fmt: skip
        for number, event in _in_turns(self.trace, self.skip):
            if event[0] == ALL_CORES:
                yield from self.all_cores(event)
            else:
                events[event[0]](number, event)
        self.pipes[S].busy = self.now - self.idle
        cycles = max(self.now, *(pipe.end for pipe in self.pipes))
        return self.run._replace(cycles=cycles, repeats=self.work, busy=[pipe.busy for pipe in self.pipes])

    def place(self, instruction: Instruction, begin: float, finish: float, why: int, until: float) -> None:
        """Append an instruction to the schedule."""
        run = self.run
        run.placed.append(instruction)
        run.begins.append(begin)
        run.ends.append(finish)
        run.whys.append(why)
        run.lets.append(until)

    def begin_on(self, pipe: Pipe) -> tuple[float, int, float]:
        """Return when a pipe begins the issued instruction, the place of the one it waited for, until when."""
        if self.now > pipe.ready:
            self.led += 1
            return self.now, self.by, self.since
        return pipe.ready, pipe.cause, pipe.ready

    def latest(self) -> Pipe:
        """Return the pipe that is done last."""
        return max(self.pipes, key=attrgetter("end"))

    def vector(self, number: int, event: Event) -> None:
        """Place a vector instruction behind the writers of its bytes; IN_ORDER: behind all before it."""
        kind, plan, instruction = event
        repeats, start, issue, touched, _ = plan.cost or cost_of(plan, self.machine)
        self.now += issue
        self.work += repeats
        pipe, flying, place = self.pipes[V], self.flying, len(self.run.placed)
        begin, why, until = self.begin_on(pipe)
        ended = pipe.end
        if ended > begin:
            if kind == IN_ORDER:
                begin, why, until = ended, pipe.last, ended
                flying.clear()
            while flying and flying[0][0] <= begin:
                flying.popleft()
            begin, why, until = _once_written(flying, touched, (begin, why, until))
        else:
            flying.clear()
        free = begin + repeats if begin - ended <= figures.IDLE and place else begin + repeats + figures.WAKE
        finish = free + start
        pipe.ready, pipe.cause = free, place
        flying.append((finish, *touched[0], place))
        if finish > ended:
            pipe.busy += finish - (begin if begin > ended else ended)
            pipe.end, pipe.last = finish, place
        self.place(instruction, begin, finish, why, until)

    def copy(self, number: int, event: Event) -> None:
        """Place a copy: it takes its pipe's time, or the memory's where that is in use."""
        _, blocks, nbytes, _, bypass, starts, instruction = event
        number, fast = instruction[1], self.share.fits and not bypass
        pipe, place = self.pipes[number], len(self.run.placed)
        self.now += figures.ISSUE
        begin, why, until = self.begin_on(pipe)
        data = max(blocks * nbytes / figures.COPY_RATE[number], blocks * figures.COPY_BLOCK)
        channel, rate = (self.cache, self.share.cache) if fast else (self.memory, self.share.memory)
        shared = channel.take(begin, blocks * nbytes / rate)
        pipe.ready = pipe.end = finish = max(begin + starts * figures.COPY_START[number] + data, shared)
        pipe.cause = pipe.last = place
        pipe.busy += finish - begin
        self.place(instruction, begin, finish, why, until)

    def set_flag(self, number: int, event: Event) -> None:
        """Set a flag, which is up when its pipe, or the latest of all, is done."""
        self.now += 1
        pipe = self.pipes[event[1]] if event[1] >= 0 else self.latest()
        if pipe is self.pipes[S]:
            self.tokens[number] = self.now, self.by
            self.led += 1
        else:
            self.tokens[number] = max(pipe.end, pipe.ready), pipe.last

    def wait_flag(self, number: int, event: Event) -> None:
        """Let a pipe, or the scalar unit itself, wait for a flag."""
        (when, place), pipe = self.tokens[number - event[2]], self.pipes[event[1]]
        self.now += 1
        if event[1] == S and when > self.now:
            self.wait_until(when, place)
        elif when > pipe.ready:
            pipe.ready, pipe.cause = when, place

    def wait_until(self, when: float, place: int) -> None:
        """Let the scalar unit wait."""
        self.idle, self.now, self.by, self.since = self.idle + when - self.now, when, place, when

    def access(self, number: int, event: Event) -> None:
        """Place an access of the scalar unit."""
        begin = self.now
        self.now += event[1]
        self.led += 1
        self.place(event[-1], begin, self.now, self.by, self.since)

    def all_cores(self, event: Event) -> Generator[float, float | None, None]:
        """Place a barrier of all cores, which all pipes wait for."""
        latest, place = self.latest(), len(self.run.placed)
        begin, why = max(self.now, latest.end), latest.last
        finish = (yield begin) or begin
        self.wait_until(finish, place)
        for pipe in self.pipes:
            pipe.ready, pipe.cause = max(pipe.ready, finish), place
        self.place(event[-1], begin, finish, why, begin)

    def turn(self, number: int, event: Event) -> None:
        """Leave out the turns of a loop that are left, where the last two were alike."""
        _, events, left = event
        channels, count = (self.memory, self.cache), len(self.run.placed)
        clock = Clock(self.now, self.since, self.idle, self.work)
        pipes = tuple((pipe.ready, pipe.end, pipe.busy) for pipe in self.pipes)
        now = Moment(clock, tuple(channel.end for channel in channels), pipes, self.led, count)
        self.turns.append(now)
        step = _steady(self.turns, self.run)
        if not step:
            return
        before = self.turns[1]
        self.now, self.since, self.idle, self.work = _ahead(now.clock, before.clock, left)
        for channel, end in zip(channels, _ahead(now.channels, before.channels, left), strict=True):
            channel.move(end - channel.end)
        for pipe, times, earlier in zip(self.pipes, now.pipes, before.pipes, strict=True):
            pipe.ready, pipe.end, pipe.busy = _ahead(times, earlier, left)
        later = left * step
        self.flying = deque((when + later, *rest) for when, *rest in self.flying)
        recent = ((flag, self.tokens[flag]) for flag in range(number - FAR, number) if flag in self.tokens)
        self.tokens |= {flag + left * events: (when + later, place) for flag, (when, place) in recent}
        self.run.skips.append((count, count - before.placed, left, later))
        self.skip.append(left)
