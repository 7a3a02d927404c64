"""What example programs call besides memory copies and streams: events, contexts, host memory, lists, timeouts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from aclnn_harness import refused
from lngrad.testing import check_same_bits
from lngrad_ascend import acl, soc
from lngrad_ascend.acl.memory import heap
from lngrad_ascend.acl.streams import submit

INVALID, UNINITIALIZED = acl.ACL_ERROR_INVALID_PARAM, acl.ACL_ERROR_UNINITIALIZE
ACLNN_INVALID = acl.ACLNN_ERR_PARAM_INVALID


def test_aclInit_may_be_repeated_and_is_counted_down():
    acl.aclFinalize()
    assert acl.aclInit() == 0
    refused(acl.aclInit(), acl.ACL_ERROR_REPEAT_INITIALIZE, "called before")
    acl.aclrtSetDevice(0)
    assert acl.aclFinalizeReference() == (1, 0)
    assert acl.aclrtGetDevice() == (0, 0)  # still there
    assert acl.aclFinalizeReference() == (0, 0)
    refused(acl.aclrtGetDevice()[1], UNINITIALIZED, "aclrtSetDevice")
    count, ret = acl.aclFinalizeReference()
    assert count == 0
    refused(ret, acl.ACL_ERROR_REPEAT_FINALIZE, "one call")
    acl.aclInit()
    acl.aclInit()
    assert acl.aclFinalize() == 0  # whatever the count


def test_a_device_is_reset_as_often_as_it_was_set(device):
    acl.aclrtSetDevice(0)
    address, _ = acl.aclrtMalloc(64)
    assert acl.aclrtResetDevice(0) == 0
    assert acl.aclrtFree(address) == 0
    address, _ = acl.aclrtMalloc(64)
    acl.aclrtSetDevice(0)
    assert acl.aclrtResetDeviceForce(0) == 0
    refused(acl.aclrtFree(address), UNINITIALIZED, "aclrtSetDevice")
    refused(acl.aclrtResetDeviceForce(0), UNINITIALIZED, "aclrtSetDevice")


def test_facts_of_the_host(device):
    assert acl.aclrtGetRunMode() == (acl.ACL_HOST, 0)
    assert acl.aclrtGetVersion() == (1, 17, 0, 0)
    free, total, ret = acl.aclrtGetMemInfo(acl.ACL_HBM_MEM)
    assert ret == 0
    assert 0 < free <= total
    acl.aclrtMalloc(1 << 20)
    assert acl.aclrtGetMemInfo(acl.ACL_MEM_NORMAL)[0] < free
    refused(acl.aclrtGetMemInfo(99)[2], INVALID, "attr")


@pytest.mark.parametrize(
    ("name", "malloc", "reserved"),
    [
        ("Ascend910B1", acl.aclrtMalloc, 160),
        ("Ascend310P", acl.aclrtMalloc, 160),
        ("Ascend950", acl.aclrtMalloc, 128),
        ("Ascend910B1", acl.aclrtMallocCached, 160),
        ("Ascend910B1", acl.aclrtMallocAlign32, 128),
    ],
)
def test_sizes_are_rounded_as_the_soc_s_runtime_does(device, name, malloc, reserved):
    with soc.use(name):
        address, ret = malloc(100, acl.ACL_MEM_MALLOC_HUGE_FIRST)
    assert (ret, address % 64, heap.allocated) == (0, 0, reserved)
    refused(acl.aclrtMemset(address, 128, 0, 101), INVALID, "maxCount: expected at most the 100")
    assert acl.aclrtFree(address) == 0
    assert heap.allocated == 0


def test_policies_may_carry_flags(device):
    policy = acl.ACL_MEM_MALLOC_NORMAL_ONLY | acl.ACL_MEM_TYPE_HIGH_BAND_WIDTH
    assert acl.aclrtMalloc(8, policy)[1] == 0
    refused(acl.aclrtMalloc(8, 8)[1], INVALID, "policy")


def test_host_memory(device):
    buffer, ret = acl.aclrtMallocHost(100)
    assert (ret, buffer.nbytes, buffer.ctypes.data % 64) == (0, 100, 0)
    other, _ = acl.aclrtMallocHost(100)
    assert acl.aclrtFreeHost(buffer) == 0
    assert acl.aclrtFreeHost(other.ctypes.data) == 0  # by its address
    for gone in (buffer, 5, None, "x"):
        refused(acl.aclrtFreeHost(gone), INVALID, "hostPtr: expected memory from aclrtMallocHost")
    refused(acl.aclrtMallocHost(0)[1], INVALID, "at least 1 byte")
    refused(acl.aclrtMallocHost(1 << 62)[1], acl.ACL_ERROR_BAD_ALLOC, "can't be allocated")


def test_filling_memory(device):
    address, _ = acl.aclrtMalloc(8)
    back = np.zeros(8, np.uint8)
    assert acl.aclrtMemset(address, 8, 0, 8) == acl.aclrtMemset(address + 2, 6, 0x1FF, 3) == 0
    acl.aclrtMemcpy(back, 8, address, 8, acl.ACL_MEMCPY_DEVICE_TO_HOST)
    assert back.tolist() == [0, 0, 255, 255, 255, 0, 0, 0]
    refused(acl.aclrtMemset(address, 8, 0, 9), INVALID, "count: expected at most maxCount")
    refused(acl.aclrtMemset(address, 8, "0", 8), INVALID, "value")
    refused(acl.aclrtMemset(bytes(8), 8, 0, 8), INVALID, "writable")


def test_the_kind_of_a_copy_may_be_left_to_the_addresses(device):
    address, _ = acl.aclrtMalloc(8)
    back = np.zeros(8, np.uint8)
    assert acl.aclrtMemcpy(address, 8, b"abcdefgh", 8, acl.ACL_MEMCPY_DEFAULT) == 0
    assert acl.aclrtMemcpy(back, 8, address, 8, acl.ACL_MEMCPY_DEFAULT) == 0
    assert back.tobytes() == b"abcdefgh"
    refused(
        acl.aclrtMemcpy(address, 8, back, 8, acl.ACL_MEMCPY_INNER_DEVICE_TO_DEVICE),
        INVALID,
        "src: expected device memory for ACL_MEMCPY_INNER_DEVICE_TO_DEVICE",
    )


def test_copies_on_a_stream_keep_their_order(busy_stream):
    stream, gate = busy_stream
    address, _ = acl.aclrtMalloc(8)
    back = np.zeros(8, np.uint8)
    assert acl.aclrtMemsetAsync(address, 8, 1, 8, stream) == 0
    assert acl.aclrtMemcpyAsync(back, 8, address, 4, acl.ACL_MEMCPY_DEVICE_TO_HOST, stream) == 0
    assert acl.aclrtMemsetAsync(address, 8, 2, 8, stream) == 0
    check_same_bits(back, np.zeros(8, np.uint8))
    gate.set()
    assert acl.aclrtSynchronizeStream(stream) == 0
    assert back.tolist() == [1] * 4 + [0] * 4


def test_memory_freed_before_a_copy_ran_surfaces_at_synchronize(busy_stream):
    stream, gate = busy_stream
    address, _ = acl.aclrtMalloc(8)
    acl.aclrtMemcpyAsync(address, 8, bytes(8), 8, acl.ACL_MEMCPY_HOST_TO_DEVICE, stream)
    acl.aclrtMemsetAsync(address, 8, 0, 8, stream)
    acl.aclrtFree(address)
    gate.set()
    refused(acl.aclrtSynchronizeStream(stream), acl.ACL_ERROR_RT_FAILURE, "aclrtMemcpyAsync: device memory")


def test_asking_a_stream_and_waiting_for_a_while(busy_stream):
    stream, gate = busy_stream
    assert acl.aclrtStreamQuery(stream) == (acl.ACL_STREAM_STATUS_NOT_READY, 0)
    ret = acl.aclrtSynchronizeStreamWithTimeout(stream, 5)
    refused(ret, acl.ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "within 5 ms")
    gate.set()
    assert acl.aclrtSynchronizeStreamWithTimeout(stream, -1) == 0
    assert acl.aclrtSynchronizeStreamWithTimeout(stream, 1000) == 0
    assert acl.aclrtStreamQuery(stream) == (acl.ACL_STREAM_STATUS_COMPLETE, 0)
    refused(acl.aclrtSynchronizeStreamWithTimeout(stream, -2), INVALID, "timeout")
    refused(acl.aclrtStreamQuery("stream")[1], INVALID, "got str")


def test_a_timed_wait_reports_a_task_s_error(device):
    stream, _ = acl.aclrtCreateStream()
    submit(stream, lambda: 1 / 0)
    ret = acl.aclrtSynchronizeStreamWithTimeout(stream, 10_000)
    refused(ret, acl.ACL_ERROR_RT_FAILURE, "ZeroDivisionError")


def test_destroying_a_stream_by_force_drops_what_waits(busy_stream):
    stream, gate = busy_stream
    seen = []
    submit(stream, lambda: seen.append(1))
    threading.Timer(0.05, gate.set).start()
    assert acl.aclrtDestroyStreamForce(stream) == 0
    refused(acl.aclrtSynchronizeStream(stream), INVALID, "destroyed")
    assert seen == []


def test_streams_with_a_configuration(device):
    stream, ret = acl.aclrtCreateStreamWithConfig(7, 1)
    assert ret == 0
    assert acl.aclrtDestroyStream(stream) == 0
    refused(acl.aclrtCreateStreamWithConfig(8, 0)[1], INVALID, "priority: expected 0 to 7")
    refused(acl.aclrtCreateStreamWithConfig(0, -1)[1], INVALID, "flag")


def test_an_event_is_reached_when_its_stream_comes_to_it(busy_stream):
    stream, gate = busy_stream
    start, _ = acl.aclrtCreateEvent()
    end, ret = acl.aclrtCreateEvent()
    assert ret == 0
    assert acl.aclrtSynchronizeEvent(end) == 0  # never recorded
    seen = []
    assert acl.aclrtRecordEvent(start, stream) == 0
    submit(stream, lambda: time.sleep(0.01))
    assert acl.aclrtRecordEvent(end, stream) == 0
    refused(acl.aclrtEventElapsedTime(start, end)[1], INVALID, "endEvent: expected an event")
    other, _ = acl.aclrtCreateStream()
    assert acl.aclrtStreamWaitEvent(other, end) == 0
    submit(other, lambda: seen.append(end.mark.is_set()))
    gate.set()
    assert acl.aclrtSynchronizeEvent(end) == 0
    milliseconds, ret = acl.aclrtEventElapsedTime(start, end)
    assert ret == 0
    assert milliseconds >= 10
    assert acl.aclrtSynchronizeStream(other) == 0
    assert seen == [True]
    assert acl.aclrtDestroyEvent(end) == 0
    for call in (acl.aclrtDestroyEvent, acl.aclrtSynchronizeEvent):
        refused(call(end), INVALID, "event: expected a living aclrtEvent")
        refused(call(None), INVALID, "null pointer")


def test_contexts_are_current_per_thread(device):
    default, ret = acl.aclrtGetCurrentContext()
    assert ret == 0
    assert acl.aclrtGetCurrentContext()[0] is default
    created, ret = acl.aclrtCreateContext(0)
    assert ret == 0
    seen = []
    thread = threading.Thread(target=lambda: seen.append(acl.aclrtGetCurrentContext()[0]))
    thread.start()
    thread.join()
    assert acl.aclrtGetCurrentContext()[0] is created
    assert seen == [default]
    assert acl.aclrtSetCurrentContext(default) == 0
    assert acl.aclrtGetCurrentContext()[0] is default
    assert acl.aclrtDestroyContext(created) == 0
    refused(acl.aclrtSetCurrentContext(created), INVALID, "destroyed")
    refused(acl.aclrtSetCurrentContext(None), INVALID, "null pointer")
    refused(acl.aclrtCreateContext(1)[1], acl.ACL_ERROR_INVALID_DEVICE, "deviceId")
    acl.aclrtResetDeviceForce(0)
    refused(acl.aclrtGetCurrentContext()[1], acl.ACL_ERROR_RT_CONTEXT_NULL, "aclrtSetDevice")
    refused(acl.aclrtSetCurrentContext(default), INVALID, "destroyed")


def test_switches_of_the_process_and_of_a_context(device):
    refused(
        acl.aclrtGetSysParamOpt(acl.ACL_OPT_DETERMINISTIC)[1], acl.ACL_ERROR_RT_SYSPARAMOPT_NOT_SET, "to be set before"
    )
    assert acl.aclrtSetSysParamOpt(acl.ACL_OPT_DETERMINISTIC, 3) == 0
    assert acl.aclrtGetSysParamOpt(acl.ACL_OPT_DETERMINISTIC) == (3, 0)
    assert acl.aclrtCtxSetSysParamOpt(acl.ACL_OPT_STRONG_CONSISTENCY, 1) == 0
    assert acl.aclrtCtxGetSysParamOpt(acl.ACL_OPT_STRONG_CONSISTENCY) == (1, 0)
    acl.aclrtCreateContext(0)
    refused(
        acl.aclrtCtxGetSysParamOpt(acl.ACL_OPT_STRONG_CONSISTENCY)[1], acl.ACL_ERROR_RT_SYSPARAMOPT_NOT_SET, "STRONG"
    )
    refused(acl.aclrtSetSysParamOpt(9, 1), INVALID, "opt: expected one of aclSysParamOpt")
    refused(acl.aclrtSetSysParamOpt(1, 2), INVALID, "value: expected 0 to 1")


def test_scalars_and_lists_and_what_their_destruction_destroys():
    scalars = [acl.aclCreateScalar(1.5, acl.ACL_FLOAT), acl.aclCreateScalar(True, acl.ACL_BOOL)]
    assert (scalars[0].value, scalars[0].dtype) == (1.5, acl.ACL_FLOAT)
    scalar_list = acl.aclCreateScalarList(scalars)
    assert acl.aclGetScalarListSize(scalar_list) == (2, 0)
    tensors = [acl.aclCreateTensor((2,), acl.ACL_FLOAT, None, 0, 2, (2,), np.zeros(2, np.float32)) for _ in range(3)]
    tensor_list = acl.aclCreateTensorList(tensors)
    assert acl.aclGetTensorListSize(tensor_list) == (3, 0)
    floats = acl.aclCreateFloatArray([1, 2.5])
    assert (floats.values, acl.aclGetFloatArraySize(floats)) == ((1.0, 2.5), (2, 0))
    for destroy, handle in (
        (acl.aclDestroyScalarList, scalar_list),
        (acl.aclDestroyTensorList, tensor_list),
        (acl.aclDestroyFloatArray, floats),
    ):
        assert destroy(None) == destroy(handle) == 0
        refused(destroy(handle), ACLNN_INVALID, "destroyed")
    refused(acl.aclDestroyTensor(tensors[0]), ACLNN_INVALID, "destroyed")
    refused(acl.aclDestroyScalar(scalars[1]), ACLNN_INVALID, "destroyed")


@pytest.mark.parametrize(
    ("create", "text"),
    [
        (lambda: acl.aclCreateScalar(None, 0), "null pointer"),
        (lambda: acl.aclCreateScalar("1", 0), "value: expected a number"),
        (lambda: acl.aclCreateScalar(1, 5), "dataType: expected one of aclDataType"),
        (lambda: acl.aclCreateFloatArray(["x"]), "sequence of numbers"),
        (lambda: acl.aclCreateFloatArray(None), "null pointer"),
        (lambda: acl.aclCreateTensorList([None]), "value: expected an aclTensor, got a null pointer"),
        (lambda: acl.aclCreateTensorList(3), "sequence of aclTensor"),
        (lambda: acl.aclCreateScalarList([3]), "value: expected an aclScalar, got int"),
    ],
)
def test_what_can_t_be_made_is_a_null_pointer(create, text):
    assert create() is None
    assert text in acl.aclGetRecentErrMsg()


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("ACL_FLOAT", 4), ("ACL_BF16", 2), ("ACL_FLOAT8_E4M3FN", 1), ("ACL_COMPLEX128", 16), ("ACL_FLOAT4_E2M1", 0),
     ("ACL_STRING", 0), ("ACL_DT_UNDEFINED", 0)],
)  # fmt: skip
def test_bytes_of_a_type(dtype, size):
    assert acl.aclDataTypeSize(getattr(acl, dtype)) == size


def test_float16_values_one_by_one():
    for number, bits in ((1.0, 0x3C00), (-2.0, 0xC000), (65504.0, 0x7BFF), (1e6, 0x7C00), (2**-24, 1)):
        assert acl.aclFloatToFloat16(number) == bits
    assert acl.aclFloat16ToFloat(0x3C00) == 1.0
    assert acl.aclFloat16ToFloat(0x7C00) == float("inf")
    assert acl.aclFloatToFloat16(10**400) == 0x7C00
    assert np.isnan(acl.aclFloat16ToFloat(1 << 16))
    assert np.isnan(acl.aclFloat16ToFloat(acl.aclFloatToFloat16("x")))


def test_what_is_not_supported_says_so():
    refused(acl.aclDumpOpTensors("op", "name", None, 0, 0, None), acl.ACL_ERROR_API_NOT_SUPPORT, "aclDumpOpTensors")
    refused(acl.not_supported("aclmdlLoadFromFile"), acl.ACL_ERROR_API_NOT_SUPPORT, "aclmdlLoadFromFile: expected")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("program", ["fork_beside_streams.py", "fork_beside_locks.py"])
def test_a_forked_child(program):
    """In a process of its own."""
    command = [sys.executable, Path(__file__).parent / "programs" / program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.stdout == "ok\n", result.stderr
