"""Blocks that wait for each other: one runs at a time, in a fixed order, so that every run gives
the same bits.

A block runs until it ends or waits for a flag that is not up; then the next one in order goes on.
Only while a block waits do others get threads of their own, so that kernels without barriers
between blocks run in the caller's thread.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

from lngrad.ascend import soc as socs
from lngrad.ascend.device.core import Core
from lngrad.ascend.device.pipes import S
from lngrad.ascend.faults import DeadlockFault

NEW, RUNNING, WAITING, ENDED = "has not started", "runs", "waits", "has ended"
Barrier = tuple[object, int]  # a flag, and how often it has been used before


class _Abandoned(BaseException):
    """Unwinds a waiting block when another one has failed."""


class Blocks:
    """The blocks of one launch.

    Args:
        count: How many.
        run: Runs the kernel on the block of that index, to its end; makes the core when it starts.
    """

    def __init__(self, count: int, run: Callable[[int], None]) -> None:
        self._run = run
        self._states = [NEW] * count
        self._gates: dict[int, threading.Semaphore] = {}
        self._threads: list[threading.Thread] = []
        self._sets: dict[tuple[object, int], int] = {}  # (flag, block) -> how often set
        self._waits: dict[tuple[object, int], int] = {}  # (flag, block) -> how often waited for
        self._snapshots: dict[Barrier, dict[int, list[int]]] = {}  # what each block had finished
        self._passed: dict[Barrier, int] = {}
        self._reasons: dict[int, tuple[Barrier, str]] = {}  # what a waiting block waits for
        self._failure: BaseException | None = None

    def run_all(self) -> None:
        """Run every block to its end.

        Raises:
            BaseException: The first one that a kernel raised.
            DeadlockFault: No block can go on.
        """
        self._drive(0)
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def set(self, core: Core, flag: object, snapshot: list[int]) -> None:
        """Note that a block has set a flag, and what it had finished; the flag is up when all
        have."""
        number = self._sets.get((flag, core.index), 0)
        self._sets[flag, core.index] = number + 1
        self._snapshots.setdefault((flag, number), {})[core.index] = snapshot

    def wait(self, core: Core, flag: object, what: str) -> None:
        """Wait until a flag is up; other blocks run meanwhile.

        Raises:
            DeadlockFault: It will never be.
        """
        if self._failure is not None:
            raise _Abandoned
        index, count = core.index, len(self._states)
        if count > core.soc.vector_cores:
            raise DeadlockFault(
                f"{what}: {count} blocks wait for each other, and {core.soc.name} runs {core.soc.vector_cores} at a "
                "time: a device would hang"
            )
        number = self._waits.get((flag, index), 0)
        self._waits[flag, index] = number + 1
        barrier = (flag, number)
        if not self._is_up(barrier):
            self._states[index], self._reasons[index] = WAITING, (barrier, what)
            self._gates.setdefault(index, threading.Semaphore(0))
            following = self._next(index)
            if following is None:
                self._states[index] = RUNNING
                raise self._deadlock(index)
            if self._states[following] is NEW:
                self._start_thread(following)
            else:
                self._gates[following].release()
            self._gates[index].acquire()
            if self._failure is not None:
                raise _Abandoned
            self._states[index] = RUNNING
        snapshots = self._snapshots[barrier]
        core.clock.acquire(S, snapshots[index])
        core.clock.learn_others([snapshots[other] for other in range(count)])
        self._passed[barrier] = self._passed.get(barrier, 0) + 1
        if self._passed[barrier] == count:
            del self._passed[barrier], self._snapshots[barrier]

    def _is_up(self, barrier: Barrier) -> bool:
        return len(self._snapshots.get(barrier, ())) == len(self._states)

    def _next(self, after: int) -> int | None:
        """Return the next block in turn that can run, or None."""
        count = len(self._states)
        for step in range(1, count + 1):
            index = (after + step) % count
            state = self._states[index]
            if state is NEW or (state is WAITING and self._is_up(self._reasons[index][0])):
                return index
        return None

    def _drive(self, index: int) -> None:
        """Run a block to its end, and then others that have not started, or let one that waits go
        on."""
        while True:
            self._states[index] = RUNNING
            try:
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

    def _start_thread(self, index: int) -> None:
        target, context = socs.current(), contextvars.copy_context()

        def work() -> None:
            socs.use(target.soc.name, cann=target.cann, mode=target.mode, rounding=target.rounding)
            context.run(self._drive, index)

        thread = threading.Thread(target=work, name=f"block {index}", daemon=True)
        self._states[index] = RUNNING
        self._threads.append(thread)
        thread.start()

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
            f"block {block} waits in {what}"
            for block, (_, what) in sorted(self._reasons.items())
            if self._states[block] is WAITING or (block == index and self._states[block] is RUNNING)
        ]
        ended = ", ".join(str(block) for block, state in enumerate(self._states) if state is ENDED)
        tail = f"; ended: {ended}" if ended else ""
        return DeadlockFault(f"deadlock: {'; '.join(waiting)}{tail}. A device would wait for ever [ErrorSync3]")
