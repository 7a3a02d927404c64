"""As lngrad's test_reentry.py, of the simulated device: calls inside calls, at every line of what keeps memory and streams."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from at_every_line import at_every_line
from lngrad_ascend import acl
from lngrad_ascend.acl import memory as device_memory
from lngrad_ascend.acl import streams
from lngrad_ascend.cpp import bridge
from lngrad_ascend.cpp.protocol import Op

pytestmark = pytest.mark.timeout(120, method="thread")


def test_global_memory_of_a_program_inside_itself():
    def inside():
        bridge._handle_host(Op.GM_FREE, (bridge._handle_host(Op.GM_ALLOC, (64,)),))

    with at_every_line(bridge, inside) as lines:
        inside()
    assert len(lines) > 8
    assert not bridge._memory


def test_device_memory_inside_device_memory():
    heap, held, calls = device_memory.Heap(), [], []

    def inside():
        mine = heap.allocate(64, 64)
        assert heap.find(mine + 63).address == mine
        calls.append(mine)
        if len(calls) % 2:
            held.append(mine)
        else:
            assert heap.free(mine)
        heap.blocks()

    with at_every_line(device_memory, inside) as lines:
        inside()
    assert len(lines) > 15
    assert [block.address for block in heap.blocks()] == sorted(held) == heap._starts
    assert heap.allocated == 64 * len(held)


def test_a_stream_that_is_synchronized_inside_itself():
    """From within a task it would wait for itself: that is refused. Between tasks it runs what waits."""
    acl.aclInit(None)
    acl.aclrtSetDevice(0)
    stream, _ = acl.aclrtCreateStream()
    ran, codes = [], []

    def inside():
        codes.append(acl.aclrtSynchronizeStream(stream))

    def task():
        ran.append(len(ran))
        inside()
        assert acl.aclGetRecentErrMsg().startswith("stream: expected a call from outside of its tasks")

    with at_every_line(streams, inside) as lines:
        for _ in range(3):
            streams.submit(stream, task)
        assert acl.aclrtSynchronizeStream(stream) == acl.aclError.ACL_SUCCESS
    assert len(lines) > 20
    assert ran == [0, 1, 2]
    assert set(codes) == {acl.aclError.ACL_SUCCESS, acl.aclError.ACL_ERROR_RT_FAILURE}
    acl.aclrtDestroyStream(stream)
    acl.aclrtResetDevice(0)
    acl.aclFinalize()


def test_streams_run_where_no_thread_can_be_started(monkeypatch):
    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    acl.aclInit(None)
    acl.aclrtSetDevice(0)
    stream, _ = acl.aclrtCreateStream()
    other, _ = acl.aclrtCreateStream()
    event, _ = acl.aclrtCreateEvent()
    ran = []
    streams.submit(stream, partial(ran.append, 1))
    assert acl.aclrtRecordEvent(event, stream) == acl.aclError.ACL_SUCCESS
    assert acl.aclrtStreamWaitEvent(other, event) == acl.aclError.ACL_SUCCESS
    streams.submit(other, partial(ran.append, 2))
    assert acl.aclrtSynchronizeEvent(event) == acl.aclrtSynchronizeDevice() == acl.aclError.ACL_SUCCESS
    assert ran == [1, 2]
    acl.aclrtResetDevice(0)
    acl.aclFinalize()
