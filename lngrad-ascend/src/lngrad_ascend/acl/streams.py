"""Streams and events: queues of tasks, the threads that run them in order while the host goes on, and marks in them."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from weakref import WeakSet

from lngrad_ascend.acl.device import on_release, require_device
from lngrad_ascend.acl.enums import aclError, aclrtStreamStatus
from lngrad_ascend.acl.interface import (
    Handle,
    StatusError,
    check_handle,
    invalid_param,
    returns_aclError,
    returns_value,
)

Task = Callable[[], object]

# Waking a thread, and giving the interpreter's lock to it, costs the host some 100 µs (two-core x86-64), several times
# what a small problem takes. So a stream that was used a moment ago is not woken: its thread looks for tasks once a
# millisecond and falls asleep after IDLE_LOOKS looks in vain. A host that synchronizes before runs the tasks itself.
LOOK_SECONDS = 1e-3
IDLE_LOOKS = 20
LOWEST_PRIORITY = 7


class aclrtStream(Handle):
    """A queue of tasks and the thread that runs them. None in its place means the default stream."""

    __slots__ = ("_asleep", "_at_work", "_error", "_running", "_submitted", "_tasks", "_wake", "_worker")

    def __init__(self) -> None:
        super().__init__()
        self._tasks: deque[Task] = deque()
        self._submitted = 0
        self._error: StatusError | None = None
        self.forget_worker()
        all_streams.add(self)

    def forget_worker(self) -> None:
        """Begin without a thread: a new stream, or one in a forked process, which has no threads but its own."""
        self._running = threading.RLock()  # whoever runs tasks has it, so that their order is kept
        self._at_work = False
        self._asleep = False
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._worker: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether everything that was submitted has run."""
        return not self._tasks and not self._at_work

    def submit(self, task: Task) -> None:
        """Have a task run after those before it."""
        self._tasks.append(task)
        self._submitted += 1
        if self._worker is None:
            worker = threading.Thread(target=self._run_worker, name="lngrad-stream", daemon=True)
            try:
                worker.start()
                self._worker = worker
            except RuntimeError:  # a limit on threads: the host runs the task now
                with self._running:
                    self._run_tasks()
        if self._asleep:
            self._wake_worker()

    def drain(self) -> None:
        """Run, or wait for, every task submitted so far. Raises the first StatusError since the last call."""
        with self._running:
            # A finalizer, a signal handler or a host function, in the midst of one, would wait for itself.
            if self._at_work:
                raise StatusError(
                    aclError.ACL_ERROR_RT_FAILURE,
                    "stream: expected a call from outside of its tasks, got one from within",
                )
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
        self._wake_worker()

    def _wake_worker(self) -> None:
        """Let the thread look for tasks, if it is asleep."""
        if self._asleep:
            self._asleep = False
            self._wake.put(None)

    def _run_worker(self) -> None:
        """The thread's life."""
        seen, in_vain = 0, 0
        while self.alive or self._tasks:
            with self._running:
                self._run_tasks()
            in_vain = in_vain + 1 if seen == self._submitted else 0
            seen = self._submitted
            if in_vain < IDLE_LOOKS:
                time.sleep(LOOK_SECONDS)
                continue
            self._asleep = True
            if self.alive and not self._tasks:  # else one came between the look and the mark
                self._wake.get()
            self._asleep = False

    def _run_tasks(self) -> None:
        """Run what waits, unless one runs that asks for it. The caller has ``_running``."""
        if self._at_work:
            return
        self._at_work = True
        try:
            while self._tasks:
                task = self._tasks.popleft()
                try:
                    task()
                except StatusError as error:
                    self._error = self._error or error
                except Exception as reason:
                    text = f"stream: a task failed: {type(reason).__name__}: {reason}"
                    self._error = self._error or StatusError(aclError.ACL_ERROR_RT_FAILURE, text)
        finally:
            self._at_work = False


all_streams: WeakSet[aclrtStream] = WeakSet()
_default = aclrtStream()


def _after_fork() -> None:
    """The child's streams run with threads of its own. A task that the parent was running is not in the child."""
    for stream in list(all_streams):
        stream.forget_worker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _release_streams() -> None:
    """Finish everything; the default stream lives on."""
    for stream in list(all_streams):
        with suppress(StatusError):  # nobody can ask for it any more
            stream.drain()
        if stream is not _default:
            stream.close()


on_release("streams", _release_streams)


def stream_of(stream: object) -> aclrtStream:
    """The stream that an argument names, None the default one. Raises StatusError where there is none."""
    return _default if stream is None else check_handle(stream, aclrtStream, "stream")


def submit(stream: object, task: Task) -> None:
    """Have a task run on a stream; as stream_of."""
    stream_of(stream).submit(task)


@returns_value(aclError, None)
def aclrtCreateStream() -> aclrtStream:
    """Create a stream. Returns (stream, ret)."""
    require_device("aclrtCreateStream")
    return aclrtStream()


@returns_value(aclError, None)
def aclrtCreateStreamWithConfig(priority: int, flag: int) -> aclrtStream:
    """Create a stream. Returns (stream, ret).

    Args:
        priority: 0 to 7. It changes nothing here.
        flag: Bits that speed up launches on a device. They change nothing here.
    """
    require_device("aclrtCreateStreamWithConfig")
    if type(priority) is not int or not 0 <= priority <= LOWEST_PRIORITY:
        raise invalid_param(f"priority: expected 0 to {LOWEST_PRIORITY}, got {priority!r}")
    if type(flag) is not int or not 0 <= flag < 1 << 32:
        raise invalid_param(f"flag: expected 32 bits, got {flag!r}")
    return aclrtStream()


@returns_aclError
def aclrtDestroyStream(stream: aclrtStream) -> None:
    """Finish a stream's tasks and destroy it. Errors among them: as of aclrtSynchronizeStream."""
    living = check_handle(stream, aclrtStream, "stream")
    try:
        living.drain()
    finally:
        living.close()


@returns_aclError
def aclrtDestroyStreamForce(stream: aclrtStream) -> None:
    """Drop a stream's tasks that have not begun, and destroy it."""
    living = check_handle(stream, aclrtStream, "stream")
    living.discard()
    living.close()


@returns_aclError
def aclrtSynchronizeStream(stream: aclrtStream | None) -> None:
    """Wait until a stream has run everything. A task's error surfaces here, once, with its text."""
    stream_of(stream).drain()


@returns_aclError
def aclrtSynchronizeStreamWithTimeout(stream: aclrtStream | None, timeout: int) -> None:
    """Wait as aclrtSynchronizeStream does, for a while.

    Args:
        stream: None for the default stream.
        timeout: In milliseconds; -1 for ever.

    Returns:
        ACL_ERROR_RT_STREAM_SYNC_TIMEOUT if the stream has not run everything by then. It goes on.
    """
    target = stream_of(stream)
    if type(timeout) is not int or not -1 <= timeout < 1 << 31:
        raise invalid_param(f"timeout: expected milliseconds, or -1 for ever, got {timeout!r}")
    if timeout >= 0 and not target.idle:
        done = threading.Event()
        target.submit(done.set)
        if not done.wait(timeout / 1000):
            raise StatusError(
                aclError.ACL_ERROR_RT_STREAM_SYNC_TIMEOUT,
                f"stream: expected its tasks to be done within {timeout} ms, but they are not",
            )
    target.drain()


@returns_value(aclError, aclrtStreamStatus.ACL_STREAM_STATUS_RESERVED)
def aclrtStreamQuery(stream: aclrtStream | None) -> aclrtStreamStatus:
    """Return (whether a stream has run everything, ret)."""
    idle = stream_of(stream).idle
    return aclrtStreamStatus.ACL_STREAM_STATUS_COMPLETE if idle else aclrtStreamStatus.ACL_STREAM_STATUS_NOT_READY


@returns_aclError
def aclrtSynchronizeDevice() -> None:
    """Wait for all streams; the first error among them surfaces."""
    require_device("aclrtSynchronizeDevice")
    first: StatusError | None = None
    for stream in list(all_streams):
        try:
            stream.drain()
        except StatusError as error:
            first = first or error
    if first is not None:
        raise first


class _Mark(threading.Event):
    """A record of an event: set when the stream has come to it."""

    def reach(self) -> None:
        self.seconds = time.perf_counter()
        self.set()


class aclrtEvent(Handle):
    """An event, with the mark of its last record; None before the first."""

    __slots__ = ("mark",)

    def __init__(self) -> None:
        super().__init__()
        self.mark: _Mark | None = None


def _living(event: object, name: str = "event") -> aclrtEvent:
    return check_handle(event, aclrtEvent, name)


@returns_value(aclError, None)
def aclrtCreateEvent() -> aclrtEvent:
    """Create an event. Returns (event, ret)."""
    require_device("aclrtCreateEvent")
    return aclrtEvent()


@returns_aclError
def aclrtDestroyEvent(event: aclrtEvent) -> None:
    """Destroy an event; who waits for it goes on waiting."""
    _living(event).alive = False


@returns_aclError
def aclrtRecordEvent(event: aclrtEvent, stream: aclrtStream | None) -> None:
    """Mark the place that a stream has come to by now; the last record counts."""
    living, mark = _living(event), _Mark()
    submit(stream, mark.reach)
    living.mark = mark


@returns_aclError
def aclrtSynchronizeEvent(event: aclrtEvent) -> None:
    """Wait until the stream has come to the event's mark, if it was ever recorded."""
    if (mark := _living(event).mark) is not None:
        mark.wait()


@returns_aclError
def aclrtStreamWaitEvent(stream: aclrtStream | None, event: aclrtEvent) -> None:
    """Have a stream wait for an event's mark before it goes on."""
    if (mark := _living(event).mark) is not None:
        submit(stream, mark.wait)


def _seconds(name: str, event: aclrtEvent) -> float:
    mark = _living(event, name).mark
    if mark is None or not mark.is_set():
        raise invalid_param(f"{name}: expected an event that was recorded and that its stream has come to")
    return mark.seconds


@returns_value(aclError, 0.0)
def aclrtEventElapsedTime(startEvent: aclrtEvent, endEvent: aclrtEvent) -> float:
    """Return (milliseconds between two events, ret): the host's time, not a device's."""
    return 1000 * (_seconds("endEvent", endEvent) - _seconds("startEvent", startEvent))
