"""Streams: each runs its tasks in order, on a thread of its own, while the host goes on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from weakref import WeakSet

from lngrad.ascend.acl.codes import aclError
from lngrad.ascend.acl.device import on_release, require_device
from lngrad.ascend.acl.errors import Refused, report

__all__ = [
    "aclrtCreateStream",
    "aclrtDestroyStream",
    "aclrtStream",
    "aclrtSynchronizeDevice",
    "aclrtSynchronizeStream",
    "submit",
]


# Waking a thread, and handing the interpreter's lock to it, costs the host some 100 µs (two-core x86-64), several times
# what a small problem takes. So a stream that was used a moment ago is not woken: its thread looks for tasks once a
# millisecond and falls asleep after PATIENCE looks in vain. A host that synchronizes before runs the tasks itself.
LOOK_SECONDS = 1e-3
PATIENCE = 20


class aclrtStream:
    """A queue of tasks and the thread that runs them. None in its place means the default stream."""

    __slots__ = ("__weakref__", "_asleep", "_error", "_running", "_submitted", "_tasks", "_wake", "_worker", "alive")

    def __init__(self) -> None:
        self.alive = True
        self._tasks: deque[Callable[[], None]] = deque()
        self._submitted = 0
        self._running = threading.Lock()  # held by whoever runs tasks, so that their order is kept
        self._asleep = False
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._worker: threading.Thread | None = None
        self._error: Refused | None = None
        _streams.add(self)

    def submit(self, task: Callable[[], None]) -> None:
        """Have a task run after those before it."""
        self._tasks.append(task)
        self._submitted += 1
        if self._worker is None:
            self._worker = threading.Thread(target=self._serve, name="lngrad-stream", daemon=True)
            self._worker.start()
        self._rouse()

    def drain(self) -> Refused | None:
        """Run, or wait for, every task submitted so far. Returns the first error since the last call."""
        with self._running:
            self._run_tasks()
            error, self._error = self._error, None
        return error

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
        """Run what waits. The caller holds ``_running``."""
        while self._tasks:
            task = self._tasks.popleft()
            try:
                task()
            except Refused as refusal:
                self._error = self._error or refusal
            except Exception as reason:
                text = f"stream: a task failed: {type(reason).__name__}: {reason}"
                self._error = self._error or Refused(aclError.ACL_ERROR_RT_FAILURE, text)


_streams: WeakSet[aclrtStream] = WeakSet()
_default = aclrtStream()


def _release_streams() -> None:
    """Finish everything; the default stream lives on."""
    for stream in list(_streams):
        stream.drain()
        if stream is not _default:
            stream.close()


on_release("streams", _release_streams)


def submit(stream: object, task: Callable[[], None]) -> None:
    """Have a task run on a stream, None for the default one.

    Raises:
        Refused: with ACL_ERROR_INVALID_PARAM; it is no stream, or destroyed.
    """
    _living(stream).submit(task)


def _living(stream: object) -> aclrtStream:
    if stream is None:
        return _default
    if not isinstance(stream, aclrtStream):
        raise Refused(aclError.ACL_ERROR_INVALID_PARAM, f"stream: expected an aclrtStream, got {type(stream).__name__}")
    if not stream.alive:
        raise Refused(aclError.ACL_ERROR_INVALID_PARAM, "stream: expected a living aclrtStream, got a destroyed one")
    return stream


def aclrtCreateStream() -> tuple[aclrtStream | None, aclError]:
    """Create a stream. Returns (stream, ret).

    C: ``aclError aclrtCreateStream(aclrtStream *stream)``
    """
    try:
        require_device("aclrtCreateStream")
    except Refused as refusal:
        return None, report(aclError(refusal.code), refusal.text)
    return aclrtStream(), aclError.ACL_SUCCESS


def aclrtDestroyStream(stream: aclrtStream) -> aclError:
    """Finish a stream's tasks and destroy it. An error among them is returned as aclrtSynchronizeStream would.

    C: ``aclError aclrtDestroyStream(aclrtStream stream)``
    """
    try:
        if stream is None:
            raise Refused(aclError.ACL_ERROR_INVALID_PARAM, "stream: expected an aclrtStream, got a null pointer")
        living = _living(stream)
    except Refused as refusal:
        return report(aclError(refusal.code), refusal.text)
    error = living.drain()
    living.close()
    return _told(error)


def aclrtSynchronizeStream(stream: aclrtStream | None) -> aclError:
    """Wait until a stream has run everything. An error of a task surfaces here, once, with its text.

    C: ``aclError aclrtSynchronizeStream(aclrtStream stream)``
    """
    try:
        living = _living(stream)
    except Refused as refusal:
        return report(aclError(refusal.code), refusal.text)
    return _told(living.drain())


def aclrtSynchronizeDevice() -> aclError:
    """Wait for all streams; the first error among them surfaces.

    C: ``aclError aclrtSynchronizeDevice()``
    """
    try:
        require_device("aclrtSynchronizeDevice")
    except Refused as refusal:
        return report(aclError(refusal.code), refusal.text)
    errors = [error for error in [stream.drain() for stream in list(_streams)] if error is not None]
    return _told(errors[0] if errors else None)


def _told(error: Refused | None) -> aclError:
    return aclError.ACL_SUCCESS if error is None else report(aclError(error.code), error.text)
