"""The blocks of one launch take turns: each runs until it ends or waits for a flag that is not up."""

from __future__ import annotations

import contextvars
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from lngrad_ascend import soc as socs
from lngrad_ascend.device.pipes import PipeClock, S, Snapshot
from lngrad_ascend.faults import DeadlockFault

NEW, RUNNING, WAITING, ENDED = "has not started", "runs", "waits", "has ended"
Barrier = tuple[object, int]  # a flag, and how often it has been used before
_READY: Barrier = ("is always up", 0)
LOOK_AGAIN_S = 0.1
STILL = 1 << 19  # reads of blocks that poll memory, without a change in between: more than kernels that go on make


class Signal(NamedTuple):
    """A flag that one block raises for another one: its place in the flags of the soft synchronisation."""

    block: int
    event: int


class _Abandoned(BaseException):
    """Unwinds a waiting block when another one has failed."""


class BlockSchedule:
    """The blocks of one launch, which take turns.

    Args:
        count: How many.
        soc: Where they run.
        run: Runs the kernel on the block of that index, to its end; makes the core when it starts.
    """

    def __init__(self, count: int, soc: socs.Soc, run: Callable[[int], None]) -> None:
        self._soc = soc
        self._run = run
        self._states = [NEW] * count
        self._gates = defaultdict[int, threading.Semaphore](lambda: threading.Semaphore(0))
        self._threads: list[threading.Thread] = []
        self._sets: Counter[tuple[object, int]] = Counter()  # (flag, block) -> how often set
        self._waits: Counter[tuple[object, int]] = Counter()  # (flag, block) -> how often waited for
        self._snapshots = defaultdict[Barrier, dict[int, Snapshot]](dict)  # what each block had finished
        self._signals: dict[Barrier, list[Snapshot]] = {_READY: []}  # what the block that raised it knew, by core
        self._passed: Counter[Barrier] = Counter()
        self._reasons: dict[int, tuple[Barrier, str]] = {}  # what a waiting block waits for
        self._failure: BaseException | None = None
        self.still = 0  # reads of blocks that poll memory, since something has changed

    def run_all(self) -> None:
        """Run every block to its end. Raises what a kernel raised first, or DeadlockFault if no block can go on."""
        try:
            self._drive(0)
        except BaseException as error:  # an interrupt between blocks
            self._fail(error)
        while running := [thread for thread in self._threads if thread.is_alive()]:
            try:
                running[0].join()
            except BaseException as error:
                self._fail(error)
        if self._failure is not None:
            raise self._failure

    def set(self, index: int, flag: object, snapshot: Snapshot) -> None:
        """Note that a block has set a flag, and what it had finished; the flag is up when all have."""
        number = self._sets[flag, index]
        self._sets[flag, index] += 1
        self._snapshots[flag, number][index] = snapshot

    def signal(self, clock: PipeClock, flag: Signal) -> None:
        """Note that a block has raised a flag for another one, and what it knows to be finished."""
        number = self._sets[flag, -1]
        self._sets[flag, -1] += 1
        finished = clock.others or [[-1] * len(clock.now) for _ in self._states]
        finished = [snapshot.copy() for snapshot in finished]
        finished[clock.index] = clock.release_all()
        self._signals[flag, number] = finished

    def _is_up(self, barrier: Barrier) -> bool:
        return barrier in self._signals or len(self._snapshots.get(barrier, ())) == len(self._states)

    def wait(self, clock: PipeClock, flag: object, call: str) -> None:
        """Wait until a flag is up; other blocks run meanwhile. Raises DeadlockFault if it will never be."""
        if self._failure is not None:
            raise _Abandoned
        index, count = clock.index, len(self._states)
        if count > self._soc.vector_cores:
            raise DeadlockFault(
                f"{call}: {count} blocks wait for each other, and {self._soc.name} runs {self._soc.vector_cores} at a "
                "time: a device would hang"
            )
        barrier = (flag, self._waits[flag, index])
        self._waits[flag, index] += 1
        if not self._is_up(barrier):
            self._states[index], self._reasons[index] = WAITING, (barrier, call)
            following = self._next(index)
            if following is None:
                self._states[index] = RUNNING
                raise self._deadlock(index)
            self._switch(index, following)
        if isinstance(flag, Signal):
            clock.learn_others(self._signals[barrier])
            return
        snapshots = self._snapshots[barrier]
        clock.acquire(S, snapshots[index])
        clock.learn_others([snapshots[other] for other in range(count)])
        self._passed[barrier] += 1
        if self._passed[barrier] == count:
            del self._passed[barrier], self._snapshots[barrier]

    def give_way(self, index: int, call: str, reads: int, computes: bool) -> None:
        """Let others run, for a block that reads the same bytes again and again: it may wait for what they write there.

        Raises DeadlockFault if all blocks that run do so, none of them computes, and nothing has changed for long.
        """
        self._states[index], self._reasons[index] = WAITING, (_READY, call)
        live = sum(state not in (NEW, ENDED) for state in self._states)  # no more than cores: a device would hang
        following = self._next(index, starting=live < self._soc.vector_cores)
        self.still = 0 if computes else self.still + reads
        if self.still > max(STILL, STILL // 16 * live):
            raise self._deadlock(index)
        if following not in (index, None):
            self._switch(index, following)
        self._states[index] = RUNNING

    def _switch(self, index: int, following: int) -> None:
        """Let another block run until this one is to go on."""
        if self._states[following] is NEW:
            target, context = socs.current(), contextvars.copy_context()

            def work() -> None:
                socs.use(target.soc.name, cann=target.cann, mode=target.mode, rounding=target.rounding)
                context.run(self._drive, following)

            thread = threading.Thread(target=work, name=f"block {following}", daemon=True)
            self._states[following] = RUNNING
            self._threads.append(thread)
            try:
                thread.start()
            except RuntimeError as reason:
                if reason.__context__ is not None:  # an interrupt inside a lock of threading's
                    raise reason.__context__ from None
                # A limit on threads.
                raise RuntimeError(f"launch: expected a thread for block {following}, got: {reason}") from None
        else:
            self._gates[following].release()
        # An interrupted block fails while this one runs, and may not see that it waits.
        while not self._gates[index].acquire(timeout=LOOK_AGAIN_S) and self._failure is None:
            pass
        if self._failure is not None:
            raise _Abandoned
        self._states[index] = RUNNING

    def _next(self, after: int, starting: bool = True) -> int | None:
        """Return the next block in turn that can run, or None. ``starting``: whether it may be one that is new."""
        for index in chain(range(after + 1, len(self._states)), range(after + 1)):
            state = self._states[index]
            if (state is NEW and starting) or (state is WAITING and self._is_up(self._reasons[index][0])):
                return index
        return None

    def _drive(self, index: int) -> None:
        """Run a block to its end, and then others that have not started, or let one that waits go on."""
        while True:
            self._states[index], self.still = RUNNING, 0
            try:
                if self._failure is None:  # else this thread has begun late
                    self._run(index)
            except BaseException as error:
                self._fail(error)
            self._states[index] = ENDED
            if self._failure is not None:
                return
            following = self._next(index)
            if following is None:
                if WAITING in self._states:
                    self._fail(self._deadlock(index))
                return
            if self._states[following] is WAITING:
                self._gates[following].release()
                return
            index = following

    def _fail(self, error: BaseException) -> None:
        """Keep the first failure, and let every waiting block unwind."""
        if isinstance(error, _Abandoned):
            return
        if self._failure is None:
            self._failure = error
            for index, state in enumerate(self._states):
                if state is WAITING:
                    self._gates[index].release()

    def _deadlock(self, index: int) -> DeadlockFault:
        waiting = [
            f"block {block} waits in {call}"
            for block, (_, call) in sorted(self._reasons.items())
            if self._states[block] is WAITING or (block == index and self._states[block] is RUNNING)
        ]
        ended = ", ".join(str(block) for block, state in enumerate(self._states) if state is ENDED)
        tail = f"; ended: {ended}" if ended else ""
        if NEW in self._states:
            first, cores = self._states.index(NEW), self._soc.vector_cores
            tail += f"; never started: {first} and later, {self._soc.name} runs {cores} at a time"
        return DeadlockFault(f"deadlock: {'; '.join(waiting)}{tail}. A device would wait for ever [ErrorSync3]")
