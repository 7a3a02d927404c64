"""A device that is set, and a stream that is busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from aclnn_harness import accepted
from lngrad_ascend import acl
from lngrad_ascend.acl.streams import submit


@pytest.fixture
def device() -> Iterator[None]:
    """Initialised, device 0 set; released afterwards, whatever the test did."""
    acl.aclFinalize()
    accepted(acl.aclInit())
    accepted(acl.aclrtSetDevice(0))
    yield
    acl.aclFinalize()
    acl.aclGetRecentErrMsg()


@pytest.fixture
def busy_stream(device: None) -> Iterator[tuple[acl.aclrtStream, threading.Event]]:
    """A stream that runs a task until the event is set."""
    stream, _ = acl.aclrtCreateStream()
    gate, begun = threading.Event(), threading.Event()
    submit(stream, lambda: begun.set() or gate.wait(10))
    assert begun.wait(10)
    yield stream, gate
    gate.set()
