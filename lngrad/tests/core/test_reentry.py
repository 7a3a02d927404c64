"""Signal handlers and finalizers call in anywhere, also where a lock is taken: nothing waits for itself, and all is right.

A lock that is not re-entrant waits for ever, and signals do not end that: the time limit ends the process.
"""

from __future__ import annotations

import threading
from functools import partial

import pytest

import lngrad
from at_every_line import at_every_line
from lngrad.core import memory
from lngrad.cpu import entries, workers
from lngrad.testing import Case, check_same_bits, make_inputs

pytestmark = pytest.mark.timeout(120, method="thread")


def gradients(inputs):
    return tuple(lngrad.layer_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma))


@pytest.mark.usefixtures("threads")
def test_a_call_inside_the_workers(monkeypatch):
    outer, inner = (make_inputs(Case((rows,), (384,)), "float32", seed=rows) for rows in (600, 500))
    lngrad.set_num_threads(3)
    expected, beside = gradients(outer), gradients(inner)
    pool = workers._Workers()
    monkeypatch.setattr(workers, "_workers", pool)
    calls = []

    def inside():
        if everywhere or pool._starting.locked():  # else the first of them would start all workers
            check_same_bits(gradients(inner), beside)
            calls.append(1)

    everywhere = False
    with at_every_line(workers, inside):
        check_same_bits(gradients(outer), expected)
        everywhere = True
        check_same_bits(gradients(outer), expected)
    assert len(calls) > 30
    assert [worker._number for worker in pool._all] == [0, 1]  # no slot has two


def test_a_call_inside_the_loading_of_kernels(monkeypatch):
    monkeypatch.setattr(entries, "_addresses", {})
    beside = make_inputs(Case((5,), (33,)), "float64", seed=1)
    with at_every_line(entries, lambda: entries.kernel_address("rows", "float64", "float64")) as lines:
        entries.kernel_address("rows", "float32", "float32")
    assert len(lines) > 15
    assert len(set(entries._addresses.values())) == 2
    gradients(beside)


def test_a_result_inside_a_result_of_numpy(monkeypatch):
    monkeypatch.setattr(memory, "KEPT_BYTES", 3 << 20)
    held = []

    def inside():
        held.append(memory.pooled_bytes(1 << 20))
        if len(held) % 3 == 0:
            memory.empty_cache()

    with at_every_line(memory, inside) as lines:
        for _ in range(4):
            held.append(memory.pooled_bytes(1 << 20))
        del held[: len(held) // 2]
        held.append(memory.pooled_bytes(1 << 20))
    assert len(lines) > 15
    addresses = [block.ctypes.data for block in held]
    assert len(set(addresses)) == len(addresses) > 20


def test_global_memory_of_a_program_inside_itself():
    from lngrad_ascend.cpp import bridge
    from lngrad_ascend.cpp.protocol import Op

    def inside():
        bridge._handle_host(Op.GM_FREE, (bridge._handle_host(Op.GM_ALLOC, (64,)),))

    with at_every_line(bridge, inside) as lines:
        inside()
    assert len(lines) > 8
    assert not bridge._memory


def test_device_memory_inside_device_memory():
    from lngrad_ascend.acl import memory as device_memory

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
    from lngrad_ascend import acl
    from lngrad_ascend.acl import streams

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
    from lngrad_ascend import acl
    from lngrad_ascend.acl import streams

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


def test_override_inside_override():
    torch = pytest.importorskip("torch")
    import lngrad.torch
    from lngrad.torch import aten

    x, w = torch.randn(9, 33), torch.randn(33)
    norm = torch.nn.functional.layer_norm
    with lngrad.torch.override():
        expected = norm(x, (33,), w)

    def inside():
        with lngrad.torch.override():
            torch.testing.assert_close(norm(x, (33,), w), expected)  # aten's or ours: between two lines

    with at_every_line(aten, inside) as lines:
        with lngrad.torch.override():
            check_same_bits(norm(x, (33,), w), expected)
            norm(x[:0], (33,), w)  # aten's own kernel, which has not become ours
        assert not aten._users
    assert len(lines) > 25
    assert not aten._libraries
    with pytest.raises(RuntimeError, match=r"disable: expected an enable\(\) before it"):
        lngrad.torch.disable()
