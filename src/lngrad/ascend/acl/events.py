"""Events: marks in a stream that the host, or another stream, can wait for."""

from __future__ import annotations

import threading
import time

from lngrad.ascend.acl.device import require_device
from lngrad.ascend.acl.handles import Handle, check_handle
from lngrad.ascend.acl.refusals import invalid_param, returns_status, returns_value
from lngrad.ascend.acl.status import aclError
from lngrad.ascend.acl.stream_worker import aclrtStream, submit


class _Mark:
    """One record of an event: whether the stream has come to it, and when."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.seconds = 0.0

    def reach(self) -> None:
        self.seconds = time.perf_counter()
        self.reached.set()

    def wait(self) -> None:
        self.reached.wait()


class aclrtEvent(Handle):
    """An event.

    Attributes:
        mark: Of its last record; None before the first.
    """

    __slots__ = ("mark",)

    def __init__(self) -> None:
        super().__init__()
        self.mark: _Mark | None = None


@returns_value(aclError, otherwise=None)
def aclrtCreateEvent() -> aclrtEvent:
    """Create an event. Returns (event, ret).

    C: ``aclError aclrtCreateEvent(aclrtEvent *event)``
    """
    require_device("aclrtCreateEvent")
    return aclrtEvent()


@returns_status(aclError)
def aclrtDestroyEvent(event: aclrtEvent) -> None:
    """Destroy an event; who waits for it goes on waiting.

    C: ``aclError aclrtDestroyEvent(aclrtEvent event)``
    """
    check_handle(event, aclrtEvent, "event").alive = False


@returns_status(aclError)
def aclrtRecordEvent(event: aclrtEvent, stream: aclrtStream | None) -> None:
    """Mark the place that a stream has come to by now. A later record takes the place of an earlier
    one.

    C: ``aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream)``
    """
    known, mark = check_handle(event, aclrtEvent, "event"), _Mark()
    submit(stream, mark.reach)
    known.mark = mark


@returns_status(aclError)
def aclrtSynchronizeEvent(event: aclrtEvent) -> None:
    """Wait until the stream has come to the event's mark. An event that was never recorded is not
    waited for.

    C: ``aclError aclrtSynchronizeEvent(aclrtEvent event)``
    """
    mark = check_handle(event, aclrtEvent, "event").mark
    if mark is not None:
        mark.wait()


@returns_status(aclError)
def aclrtStreamWaitEvent(stream: aclrtStream | None, event: aclrtEvent) -> None:
    """Have a stream wait for an event's mark before it goes on.

    C: ``aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event)``
    """
    mark = check_handle(event, aclrtEvent, "event").mark
    if mark is not None:
        submit(stream, mark.wait)


def _seconds(name: str, event: aclrtEvent) -> float:
    mark = check_handle(event, aclrtEvent, name).mark
    if mark is None or not mark.reached.is_set():
        raise invalid_param(f"{name}: expected an event that was recorded and that its stream has come to")
    return mark.seconds


@returns_value(aclError, otherwise=0.0)
def aclrtEventElapsedTime(startEvent: aclrtEvent, endEvent: aclrtEvent) -> float:
    """Return (milliseconds between two events, ret): the host's time, not a device's.

    C: ``aclError aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent)``
    """
    return 1000 * (_seconds("endEvent", endEvent) - _seconds("startEvent", startEvent))
