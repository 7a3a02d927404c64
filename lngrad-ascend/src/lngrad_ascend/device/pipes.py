"""The units of a vector core that run side by side (pipes), the events between them, and what each knows to be
   finished.

Every pipe has an epoch, which goes up when something may wait for what the pipe has done so far. An access carries
the pipe and the epoch it was issued in. It is ordered before an instruction of pipe p if p knows that epoch of the
other pipe to be finished: ``epoch <= known[p][other]``.
"""

from __future__ import annotations

import enum
from typing import Any

# As plain numbers, because every instruction indexes with them. pipe_t has the same values.
S, V, MTE2, MTE3 = range(4)
ALL_PIPES = (S, V, MTE2, MTE3)
PIPE_NAMES = ("S", "V", "MTE2", "MTE3")
PIPE_WORDS = ("the scalar unit", "the vector unit", "the copy from global memory", "the copy to global memory")

READ_V, WRITE_V, WRITE_MTE2, READ_MTE3 = 1, 2, 4, 8  # one bit for each unit and direction


class pipe_t(enum.IntEnum):
    """The pipes as kernels name them. M, MTE1 and FIX belong to the cube, which is not simulated.

    The numbers are this package's; CANN's are in headers that are not published.
    """

    PIPE_S = 0
    PIPE_V = 1
    PIPE_MTE2 = 2
    PIPE_MTE3 = 3
    PIPE_M = 4
    PIPE_MTE1 = 5
    PIPE_FIX = 6
    PIPE_ALL = 7


class HardEvent(enum.IntEnum):
    """The two pipes of a flag: ``MTE2_V`` is set on MTE2 and waited for on V."""

    MTE2_MTE1, MTE1_MTE2, MTE1_M, M_MTE1, MTE2_V, V_MTE2, MTE3_V, V_MTE3 = range(8)
    M_V, V_M, V_V, MTE3_MTE1, MTE1_MTE3, MTE1_V, MTE2_M, M_MTE2 = range(8, 16)
    V_MTE1, M_FIX, FIX_M, MTE3_MTE2, MTE2_MTE3, S_V, V_S, S_MTE2 = range(16, 24)
    MTE2_S, S_MTE3, MTE3_S, MTE2_FIX, FIX_MTE2, FIX_S, M_S, FIX_MTE3 = range(24, 32)
    MTE1_FIX, FIX_MTE1, FIX_FIX = range(32, 35)


# The two pipes of every event that a vector core has.
EVENT_PIPES: dict[int, tuple[int, int]] = {
    int(event): (PIPE_NAMES.index(source), PIPE_NAMES.index(target))
    for event in HardEvent
    for source, target in [event.name.split("_")]
    if source != target and {source, target} <= set(PIPE_NAMES)
}

ALWAYS = 1 << 62  # later than every epoch: in order without a barrier
Snapshot = list[int]  # by pipe: the epoch that is finished; in a trace, then the number of the event that took it
# The kinds of a trace's events: instructions, those inside a tile API, copies; flags that are set and waited for (by a pipe, or
# -1 for all); accesses of the scalar unit; barriers between blocks; and, in a schedule, the end of a loop's turn.
VECTOR, IN_ORDER, COPY, SET, WAIT, SCALAR, ALL_CORES, TURN = range(8)
SETS = {pipe: (SET, pipe) for pipe in (-1, *ALL_PIPES)}


class PipeClock:
    """The order inside one core.

    Args:
        ordering: False: everything counts as ordered.
        auto_sync: Whether the compiler inserts barriers between vector instructions, and flags around scalar accesses.
        vector_in_order: Whether one vector instruction finishes before the next one starts in any case (3510).
        index: Of the core.

    Attributes:
        now: By pipe, the epoch of what is issued next.
        known: ``known[p][q]``: up to which epoch pipe p knows pipe q to be finished. The lists stay the same objects;
            instructions keep references to them.
        others: By core and pipe, up to which epoch this core knows other cores to be finished; None: it has waited
            for no one.
        trace: Where who waits for whom is noted (``cycles.Trace``), or None.
    """

    def __init__(self, ordering: bool, auto_sync: bool, vector_in_order: bool = False, index: int = 0) -> None:
        self.index, self._auto_sync = index, auto_sync
        self.ordering = ordering
        self.now = [0, 0, 0, 0]
        start = -1 if ordering else ALWAYS
        self.known: list[list[int]] = [[start] * 4 for _ in ALL_PIPES]
        self.known[S][S] = ALWAYS
        if auto_sync or vector_in_order:
            self.known[V][V] = ALWAYS
        self.others: list[Snapshot] | None = None
        self.trace: Any = None

    def _noted(self, snapshot: Snapshot, pipe: int) -> Snapshot:
        if self.trace is not None:
            snapshot.append(len(self.trace))
            self.trace.append(SETS[pipe])
        return snapshot

    def release(self, pipe: int) -> Snapshot:
        """Return what is finished when everything issued on ``pipe`` so far has finished."""
        snapshot = self.known[pipe].copy()
        snapshot[pipe] = self.now[pipe]
        self.now[pipe] += 1
        return snapshot if self.trace is None else self._noted(snapshot, pipe)

    def acquire(self, pipe: int, snapshot: Snapshot) -> None:
        """Let later instructions of ``pipe`` know what ``snapshot`` says; of all pipes, where the scalar unit waits."""
        if self.trace is not None and len(snapshot) > len(ALL_PIPES):
            self.trace.note(WAIT, pipe, len(self.trace) - snapshot[-1])
        for known in self.known if pipe == S else (self.known[pipe],):
            for other in ALL_PIPES:
                if snapshot[other] > known[other]:
                    known[other] = snapshot[other]

    def barrier(self, pipe: int) -> None:
        """Let later instructions of ``pipe`` know all earlier ones of it to be finished."""
        self.acquire(pipe, self.release(pipe))

    def release_all(self) -> Snapshot:
        """Return what is finished when everything issued on the core so far has finished."""
        snapshot = self.now.copy()
        for pipe in ALL_PIPES:
            self.now[pipe] += 1
        return self._noted(snapshot, -1)

    def barrier_all(self) -> None:
        """Let all pipes know everything issued so far to be finished."""
        self.acquire(S, self.release_all())

    def before_scalar_access(self) -> None:
        """Order an access of the scalar unit behind the other pipes, as the flags of auto_sync do."""
        known = self.known[S]
        for pipe in (V, MTE2, MTE3) if self._auto_sync else ():
            if self.now[pipe] > known[pipe]:
                known[pipe] = self.now[pipe]
                self.now[pipe] += 1

    def after_scalar_access(self) -> None:
        """Order the other pipes behind an access of the scalar unit, as the flags of auto_sync do."""
        if not self._auto_sync:
            return
        epoch = self.now[S]
        self.now[S] += 1
        for known in self.known[V:]:
            if epoch > known[S]:
                known[S] = epoch

    def knows(self, pipe: int, core: int, other: int, epoch: int) -> bool:
        """Return whether what a core did on its pipe ``other`` in an epoch has finished before ``pipe`` goes on."""
        if not self.ordering:
            return True
        if core == self.index:
            return epoch <= self.known[pipe][other]
        return self.others is not None and epoch <= self.others[core][other]

    def learn_others(self, others: list[Snapshot]) -> None:
        """Take over what other cores have finished, after a barrier with them."""
        if self.trace is not None:
            self.trace.append((ALL_CORES, self.trace.last))
            self.trace.guessed.add(self.trace.last[0])
        if self.others is None:
            self.others = [snapshot.copy() for snapshot in others]
            return
        for mine, theirs in zip(self.others, others, strict=True):
            mine[:] = map(max, mine, theirs)
