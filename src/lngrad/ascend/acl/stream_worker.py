"""A stream: a queue of tasks, and the thread that runs them in order while the host goes on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from weakref import WeakSet

from lngrad.ascend.acl.device import on_release
from lngrad.ascend.acl.handles import Handle, check_handle
from lngrad.ascend.acl.refusals import Refused
from lngrad.ascend.acl.status import aclError

Task = Callable[[], None]

# Waking a thread, and giving the interpreter's lock to it, costs the host some 100 µs (two-core
# x86-64), several times what a small problem takes. So a stream that was used a moment ago is not
# woken: its thread looks for tasks once a millisecond and falls asleep after PATIENCE looks in
# vain. A host that synchronizes before runs the tasks itself.
LOOK_SECONDS = 1e-3
PATIENCE = 20


class aclrtStream(Handle):
    """A queue of tasks and the thread that runs them. None in its place means the default
    stream.
    """

    __slots__ = ("_asleep", "_error", "_running", "_submitted", "_tasks", "_wake", "_worker")

    def __init__(self) -> None:
        super().__init__()
        self._tasks: deque[Task] = deque()
        self._submitted = 0
        self._running = threading.Lock()  # whoever runs tasks has it, so that their order is kept
        self._asleep = False
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._worker: threading.Thread | None = None
        self._error: Refused | None = None
        all_streams.add(self)

    @property
    def idle(self) -> bool:
        """Whether everything that was submitted has run."""
        return not self._tasks and not self._running.locked()

    def submit(self, task: Task) -> None:
        """Have a task run after those before it."""
        self._tasks.append(task)
        self._submitted += 1
        if self._worker is None:
            self._worker = threading.Thread(target=self._serve, name="lngrad-stream", daemon=True)
            self._worker.start()
        self._rouse()

    def drain(self) -> None:
        """Run, or wait for, every task submitted so far.

        Raises:
            Refused: The first error since the last call.
        """
        with self._running:
            self._run_tasks()
            error, self._error = self._error, None
        if error is not None:
            raise error

    def discard(self) -> None:
        """Drop the tasks that have not begun, and their errors."""
        self._tasks.clear()
        with self._running:
            self._error = None

    def close(self) -> None:
        """Let the thread end after the last task."""
        self.alive = False
        self._rouse()

    def _rouse(self) -> None:
        if self._asleep:
            self._asleep = False
            self._wake.put(None)

    def _serve(self) -> None:
        """The thread's life."""
        seen, in_vain = 0, 0
        while self.alive or self._tasks:
            with self._running:
                self._run_tasks()
            in_vain = in_vain + 1 if seen == self._submitted else 0
            seen = self._submitted
            if in_vain < PATIENCE:
                time.sleep(LOOK_SECONDS)
                continue
            self._asleep = True
            if self.alive and not self._tasks:  # else one came between the look and the mark
                self._wake.get()
            self._asleep = False

    def _run_tasks(self) -> None:
        """Run what waits. The caller has ``_running``."""
        while self._tasks:
            task = self._tasks.popleft()
            try:
                task()
            except Refused as refusal:
                self._error = self._error or refusal
            except Exception as reason:
                text = f"stream: a task failed: {type(reason).__name__}: {reason}"
                self._error = self._error or Refused(aclError.ACL_ERROR_RT_FAILURE, text)


all_streams: WeakSet[aclrtStream] = WeakSet()
_default = aclrtStream()


def _release_streams() -> None:
    """Finish everything; the default stream lives on."""
    for stream in list(all_streams):
        with suppress(Refused):  # nobody can ask for it any more
            stream.drain()
        if stream is not _default:
            stream.close()


on_release("streams", _release_streams)


def stream_of(stream: object) -> aclrtStream:
    """The stream that an argument names; None names the default one.

    Raises:
        Refused: It is no stream, or destroyed.
    """
    return _default if stream is None else check_handle(stream, aclrtStream, "stream")


def submit(stream: object, task: Task) -> None:
    """Have a task run on a stream, None for the default one.

    Raises:
        Refused: It is no stream, or destroyed.
    """
    stream_of(stream).submit(task)
