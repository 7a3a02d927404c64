"""The functions of streams."""

from __future__ import annotations

import threading

from lngrad.ascend.acl.device import require_device
from lngrad.ascend.acl.enums import aclrtStreamStatus
from lngrad.ascend.acl.handles import check_handle
from lngrad.ascend.acl.refusals import Refused, invalid_param, returns_status, returns_value
from lngrad.ascend.acl.status import aclError
from lngrad.ascend.acl.stream_worker import aclrtStream, all_streams, stream_of

LOWEST_PRIORITY = 7


@returns_value(aclError, otherwise=None)
def aclrtCreateStream() -> aclrtStream:
    """Create a stream. Returns (stream, ret).

    C: ``aclError aclrtCreateStream(aclrtStream *stream)``
    """
    require_device("aclrtCreateStream")
    return aclrtStream()


@returns_value(aclError, otherwise=None)
def aclrtCreateStreamWithConfig(priority: int, flag: int) -> aclrtStream:
    """Create a stream. Returns (stream, ret).

    Args:
        priority: 0 to 7. It changes nothing here.
        flag: Bits that speed up launches on a device. They change nothing here.

    C: ``aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t
    flag)``
    """
    require_device("aclrtCreateStreamWithConfig")
    if type(priority) is not int or not 0 <= priority <= LOWEST_PRIORITY:
        raise invalid_param(f"priority: expected 0 to {LOWEST_PRIORITY}, got {priority!r}")
    if type(flag) is not int or not 0 <= flag < 1 << 32:
        raise invalid_param(f"flag: expected 32 bits, got {flag!r}")
    return aclrtStream()


@returns_status(aclError)
def aclrtDestroyStream(stream: aclrtStream) -> None:
    """Finish a stream's tasks and destroy it. An error among them is returned as
    aclrtSynchronizeStream would.

    C: ``aclError aclrtDestroyStream(aclrtStream stream)``
    """
    known = check_handle(stream, aclrtStream, "stream")
    try:
        known.drain()
    finally:
        known.close()


@returns_status(aclError)
def aclrtDestroyStreamForce(stream: aclrtStream) -> None:
    """Drop a stream's tasks that have not begun, and destroy it.

    C: ``aclError aclrtDestroyStreamForce(aclrtStream stream)``
    """
    known = check_handle(stream, aclrtStream, "stream")
    known.discard()
    known.close()


@returns_status(aclError)
def aclrtSynchronizeStream(stream: aclrtStream | None) -> None:
    """Wait until a stream has run everything. An error of a task surfaces here, once, with its
    text.

    C: ``aclError aclrtSynchronizeStream(aclrtStream stream)``
    """
    stream_of(stream).drain()


@returns_status(aclError)
def aclrtSynchronizeStreamWithTimeout(stream: aclrtStream | None, timeout: int) -> None:
    """Wait as aclrtSynchronizeStream does, for a while.

    Args:
        stream: None for the default stream.
        timeout: In milliseconds; -1 for ever.

    Returns:
        ACL_ERROR_RT_STREAM_SYNC_TIMEOUT if the stream has not run everything by then. It goes on.

    C: ``aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout)``
    """
    known = stream_of(stream)
    if type(timeout) is not int or not -1 <= timeout < 1 << 31:
        raise invalid_param(f"timeout: expected milliseconds, or -1 for ever, got {timeout!r}")
    if timeout >= 0 and not known.idle:
        done = threading.Event()
        known.submit(done.set)
        if not done.wait(timeout / 1000):
            raise Refused(
                aclError.ACL_ERROR_RT_STREAM_SYNC_TIMEOUT,
                f"stream: expected its tasks to be done within {timeout} ms, but they are not",
            )
    known.drain()


@returns_value(aclError, otherwise=aclrtStreamStatus.ACL_STREAM_STATUS_RESERVED)
def aclrtStreamQuery(stream: aclrtStream | None) -> aclrtStreamStatus:
    """Return (whether a stream has run everything, ret).

    C: ``aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status)``
    """
    idle = stream_of(stream).idle
    return aclrtStreamStatus.ACL_STREAM_STATUS_COMPLETE if idle else aclrtStreamStatus.ACL_STREAM_STATUS_NOT_READY


@returns_status(aclError)
def aclrtSynchronizeDevice() -> None:
    """Wait for all streams; the first error among them surfaces.

    C: ``aclError aclrtSynchronizeDevice()``
    """
    require_device("aclrtSynchronizeDevice")
    first: Refused | None = None
    for stream in list(all_streams):
        try:
            stream.drain()
        except Refused as refusal:
            first = first or refusal
    if first is not None:
        raise first
