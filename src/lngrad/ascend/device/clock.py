"""What each pipe of a core knows to be finished: a vector clock a pipe.

Every pipe has an epoch, which goes up when something may wait for what the pipe has done so far.
An access carries the pipe and the epoch it was issued in. It is ordered before an instruction of
pipe p if p knows that epoch of the other pipe to be finished: ``epoch <= known[p][other]``.
"""

from __future__ import annotations

from lngrad.ascend.device.pipes import ALL_PIPES, MTE2, MTE3, S, V

ALWAYS = 1 << 62  # later than every epoch: in order without a barrier
Snapshot = list[int]  # by pipe: the epoch that is finished


class Clock:
    """The order inside one core.

    Args:
        ordering: False: everything counts as ordered.
        vector_in_order: Whether one vector instruction finishes before the next one starts: by the
            barriers that the compiler inserts (auto_sync), or by the hardware (3510).

    Attributes:
        now: By pipe, the epoch of what is issued next.
        known: ``known[p][q]``: up to which epoch pipe p knows pipe q to be finished. The lists
            stay the same objects; instructions keep references to them.
        others: By core and pipe, up to which epoch this core knows other cores to be finished;
            None: it has waited for no one.
    """

    def __init__(self, ordering: bool, vector_in_order: bool) -> None:
        self.ordering = ordering
        self.now = [0, 0, 0, 0]
        start = -1 if ordering else ALWAYS
        self.known: list[list[int]] = [[start] * 4 for _ in ALL_PIPES]
        self.known[S][S] = ALWAYS
        if vector_in_order:
            self.known[V][V] = ALWAYS
        self.others: list[Snapshot] | None = None

    def release(self, pipe: int) -> Snapshot:
        """Return what is finished when everything issued on ``pipe`` so far has finished."""
        snapshot = self.known[pipe].copy()
        snapshot[pipe] = self.now[pipe]
        self.now[pipe] += 1
        return snapshot

    def acquire(self, pipe: int, snapshot: Snapshot) -> None:
        """Let later instructions of ``pipe`` know what ``snapshot`` says.

        Where the scalar unit waits, nothing later is issued to any pipe: all of them know.
        """
        for waiting in ALL_PIPES if pipe == S else (pipe,):
            known = self.known[waiting]
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
        return snapshot

    def barrier_all(self) -> None:
        """Let all pipes know everything issued so far to be finished."""
        self.acquire(S, self.release_all())

    def before_scalar_access(self) -> None:
        """Order an access of the scalar unit behind the other pipes, as the flags of auto_sync
        do."""
        known = self.known[S]
        for pipe in (V, MTE2, MTE3):
            if self.now[pipe] > known[pipe]:
                known[pipe] = self.now[pipe]
                self.now[pipe] += 1

    def after_scalar_access(self) -> None:
        """Order the other pipes behind an access of the scalar unit, as the flags of auto_sync
        do."""
        epoch = self.now[S]
        self.now[S] += 1
        for pipe in (V, MTE2, MTE3):
            if epoch > self.known[pipe][S]:
                self.known[pipe][S] = epoch

    def learn_others(self, others: list[Snapshot]) -> None:
        """Take over what other cores have finished, after a barrier with them."""
        if self.others is None:
            self.others = [snapshot.copy() for snapshot in others]
            return
        for mine, theirs in zip(self.others, others, strict=True):
            mine[:] = map(max, mine, theirs)
