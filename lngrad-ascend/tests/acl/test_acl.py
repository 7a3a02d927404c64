from __future__ import annotations

import inspect
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aclnn_harness import refused
from lngrad.testing import check_same_bits
from lngrad_ascend import acl, aclnn, soc
from lngrad_ascend.acl.streams import submit

INVALID, UNINITIALIZED = acl.ACL_ERROR_INVALID_PARAM, acl.ACL_ERROR_UNINITIALIZE
ACLNN_INVALID = acl.ACLNN_ERR_PARAM_INVALID


def recent_error_has(text):
    """The last error's text contains `text`."""
    assert text in acl.aclGetRecentErrMsg()


NUMBERS = {
    "ACLNN_SUCCESS": 0, "ACLNN_ERR_PARAM_NULLPTR": 161001, "ACLNN_ERR_PARAM_INVALID": 161002,
    "ACLNN_ERR_RUNTIME_ERROR": 361001, "ACLNN_ERR_INNER": 561000, "ACLNN_ERR_INNER_INFERSHAPE_ERROR": 561001,
    "ACLNN_ERR_INNER_TILING_ERROR": 561002, "ACLNN_ERR_INNER_FIND_KERNEL_ERROR": 561003,
    "ACLNN_ERR_INNER_CREATE_EXECUTOR": 561101, "ACLNN_ERR_INNER_NULLPTR": 561103,
    "ACLNN_ERR_INNER_KEY_CONFLICT": 561105, "ACLNN_ERR_INNER_KEY_CONFILICT": 561105,
    "ACLNN_ERR_INNER_STATIC_BLOCK_DIM_INVALID": 561119,
    "ACL_SUCCESS": 0, "ACL_ERROR_INVALID_PARAM": 100000, "ACL_ERROR_UNINITIALIZE": 100001,
    "ACL_ERROR_REPEAT_INITIALIZE": 100002, "ACL_ERROR_REPEAT_FINALIZE": 100037, "ACL_ERROR_BAD_ALLOC": 200000,
    "ACL_ERROR_API_NOT_SUPPORT": 200001, "ACL_ERROR_INVALID_DEVICE": 200002, "ACL_ERROR_INTERNAL_ERROR": 500000,
    "ACL_ERROR_FAILURE": 500001, "ACL_ERROR_RT_FAILURE": 500003,
    "ACL_DT_UNDEFINED": -1, "ACL_FLOAT": 0, "ACL_FLOAT16": 1, "ACL_INT64": 9, "ACL_DOUBLE": 11, "ACL_BF16": 27,
    "ACL_INT4": 29, "ACL_FORMAT_UNDEFINED": -1, "ACL_FORMAT_ND": 2, "ACL_FORMAT_NCL": 47,
    "ACL_MEM_MALLOC_HUGE_FIRST": 0, "ACL_MEM_MALLOC_NORMAL_ONLY": 2, "ACL_MEMCPY_HOST_TO_HOST": 0,
    "ACL_MEMCPY_HOST_TO_DEVICE": 1, "ACL_MEMCPY_DEVICE_TO_HOST": 2, "ACL_MEMCPY_DEVICE_TO_DEVICE": 3,
    "ACL_RT_OVERFLOW_MODE_SATURATION": 0, "ACL_RT_OVERFLOW_MODE_INFNAN": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_every_enumerator_has_its_number(name):
    assert getattr(acl, name) == NUMBERS[name]
    assert name in acl.__all__


def test_initialising_and_finalising_once_each():
    acl.aclFinalize()
    assert acl.aclInit() == 0
    refused(acl.aclInit(), acl.ACL_ERROR_REPEAT_INITIALIZE, "called before")
    assert acl.aclFinalize() == 0
    refused(acl.aclFinalize(), acl.ACL_ERROR_REPEAT_FINALIZE, "one call")


def test_a_device_may_be_set_without_aclInit():
    acl.aclFinalize()
    assert acl.aclrtSetDevice(0) == 0
    address, ret = acl.aclrtMalloc(8, 0)
    assert (ret, acl.aclrtFree(address), acl.aclrtResetDevice(0)) == (0, 0, 0)
    assert acl.aclFinalize() in (UNINITIALIZED, acl.ACL_ERROR_REPEAT_FINALIZE)


def test_nothing_of_the_device_works_before_it_is_set():
    acl.aclFinalize()
    acl.aclInit()
    try:
        refused(acl.aclrtMalloc(8, 0)[1], UNINITIALIZED, "aclrtSetDevice")
        refused(acl.aclrtFree(8), UNINITIALIZED, "aclrtSetDevice")
        refused(acl.aclrtMemcpy(8, 8, 8, 8, 3), UNINITIALIZED, "aclrtSetDevice")
        refused(acl.aclrtCreateStream()[1], UNINITIALIZED, "aclrtSetDevice")
        refused(acl.aclrtSynchronizeDevice(), UNINITIALIZED, "aclrtSetDevice")
        refused(acl.aclrtGetDevice()[1], UNINITIALIZED, "aclrtSetDevice")
        refused(acl.aclrtResetDevice(0), UNINITIALIZED, "aclrtSetDevice")
    finally:
        acl.aclFinalize()


@pytest.mark.parametrize("number", [-1, 1, 0.0, "0", None])
def test_there_is_one_device(device, number):
    refused(acl.aclrtSetDevice(number), acl.ACL_ERROR_INVALID_DEVICE, "deviceId: expected 0 to 0")
    refused(acl.aclrtResetDevice(number), acl.ACL_ERROR_INVALID_DEVICE, "deviceId")
    assert acl.aclrtGetDevice() == (0, 0)
    assert acl.aclrtGetDeviceCount() == (1, 0)


def test_the_soc_name_is_this_threads(device):
    with soc.use("Ascend950"):
        assert acl.aclrtGetSocName() == "Ascend950"


def test_memory_goes_to_the_device_and_back(device):
    source, back = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    first, _ = acl.aclrtMalloc(400, acl.ACL_MEM_MALLOC_HUGE_FIRST)
    second, _ = acl.aclrtMalloc(400, acl.ACL_MEM_MALLOC_NORMAL_ONLY)
    assert first % 64 == second % 64 == 0
    assert acl.aclrtMemcpy(first, 400, source, 400, acl.ACL_MEMCPY_HOST_TO_DEVICE) == 0
    assert acl.aclrtMemcpy(second + 40, 360, first + 40, 360, acl.ACL_MEMCPY_DEVICE_TO_DEVICE) == 0
    assert acl.aclrtMemcpy(second, 40, source.tobytes(), 40, acl.ACL_MEMCPY_HOST_TO_DEVICE) == 0
    assert acl.aclrtMemcpy(back, 400, second, 400, acl.ACL_MEMCPY_DEVICE_TO_HOST) == 0
    check_same_bits(back, source)
    whole = bytearray(400)
    assert acl.aclrtMemcpy(whole, 400, back, 400, acl.ACL_MEMCPY_HOST_TO_HOST) == 0
    assert bytes(whole) == source.tobytes()


def test_torch_memory_is_a_host_buffer(device):
    torch = pytest.importorskip("torch")
    address, _ = acl.aclrtMalloc(16)
    source, target = torch.arange(8, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.bfloat16)
    assert acl.aclrtMemcpy(address, 16, source, 16, acl.ACL_MEMCPY_HOST_TO_DEVICE) == 0
    assert acl.aclrtMemcpy(target, 16, address, 16, acl.ACL_MEMCPY_DEVICE_TO_HOST) == 0
    check_same_bits(target, source)


@pytest.mark.parametrize(
    ("size", "policy", "code", "text"),
    [
        (0, 0, INVALID, "at least 1 byte"),
        (-8, 0, INVALID, "at least 1 byte"),
        (1.5, 0, INVALID, "size"),
        (8, 99, INVALID, "policy: expected one of aclrtMemMallocPolicy"),
        (1 << 62, 0, acl.ACL_ERROR_BAD_ALLOC, "can't be allocated"),
        (1 << 70, 0, acl.ACL_ERROR_BAD_ALLOC, "can't be allocated"),
    ],
)
def test_malloc_refuses(device, size, policy, code, text):
    address, ret = acl.aclrtMalloc(size, policy)
    assert address is None
    refused(ret, code, text)


def test_a_freed_address_is_dead_for_good(device):
    address, _ = acl.aclrtMalloc(64)
    assert acl.aclrtFree(address) == 0
    refused(acl.aclrtFree(address), INVALID, "not yet freed")
    younger, _ = acl.aclrtMalloc(64)
    assert younger != address
    refused(acl.aclrtMemcpy(address, 8, bytes(8), 8, 1), INVALID, "dst: expected an address inside")


@pytest.mark.parametrize("address", [None, 0, 5, "x", 2.0])
def test_free_refuses_what_malloc_never_gave(device, address):
    refused(acl.aclrtFree(address), INVALID, "devPtr")


def test_free_refuses_the_middle_of_a_block(device):
    address, _ = acl.aclrtMalloc(64)
    refused(acl.aclrtFree(address + 8), INVALID, "devPtr")
    assert acl.aclrtFree(address) == 0


def host(nbytes=8):
    return np.zeros(nbytes, np.uint8)


@pytest.mark.parametrize(
    ("dst", "dst_max", "src", "count", "kind", "text"),
    [
        ("block", 8, host(), 9, 1, "count: expected at most destMax"),
        ("block", 65, host(99), 65, 1, "destMax: expected at most the 64 bytes"),
        ("block", 8, host(4), 8, 1, "count: expected at most the 4 bytes"),
        ("block", -1, host(), 0, 1, "numbers of bytes"),
        ("block", 8, host(), "8", 1, "numbers of bytes"),
        ("block", 8, host(), 8, 8, "kind: expected 0 to 7"),
        ("block", 8, host(), 8, 0, "dst: expected host memory"),
        ("block", 8, host(), 8, 3, "src: expected device memory"),
        (host(), 8, "block", 8, 1, "dst: expected device memory"),
        (bytes(8), 8, "block", 8, 2, "writable"),
        (host(), 8, None, 8, 0, "src: expected a device address or a contiguous host buffer"),
        (np.zeros((4, 4))[:, ::2], 8, host(), 8, 0, "contiguous"),
        (object(), 8, host(), 8, 0, "dst"),
    ],
)
def test_memcpy_refuses(device, dst, dst_max, src, count, kind, text):
    block, _ = acl.aclrtMalloc(64)
    dst, src = (block if isinstance(side, str) else side for side in (dst, src))
    refused(acl.aclrtMemcpy(dst, dst_max, src, count, kind), INVALID, text)


def test_resetting_the_device_frees_everything(device):
    address, _ = acl.aclrtMalloc(64)
    stream, _ = acl.aclrtCreateStream()
    assert acl.aclrtResetDevice(0) == 0
    acl.aclrtSetDevice(0)
    refused(acl.aclrtFree(address), INVALID, "devPtr")
    refused(acl.aclrtSynchronizeStream(stream), INVALID, "destroyed")


def make(dims=(2, 3), dtype=acl.ACL_FLOAT, strides=None, offset=0, form=acl.ACL_FORMAT_ND, storage=(2, 3), data=...):
    data = np.arange(6, dtype=np.float32) if data is ... else data
    return acl.aclCreateTensor(dims, dtype, strides, offset, form, storage, data)


def test_a_tensor_tells_what_it_was_made_of():
    data = np.arange(12, dtype=np.float32)
    tensor = make((2, 2), acl.ACL_FLOAT, (4, 2), 1, acl.ACL_FORMAT_NCHW, (3, 4), data)
    assert acl.aclGetViewShape(tensor) == ((2, 2), 0)
    assert acl.aclGetStorageShape(tensor) == ((3, 4), 0)
    assert acl.aclGetViewStrides(tensor) == ((4, 2), 0)
    assert acl.aclGetViewOffset(tensor) == (1, 0)
    assert acl.aclGetFormat(tensor) == (acl.ACL_FORMAT_NCHW, 0)
    assert acl.aclGetDataType(tensor) == (acl.ACL_FLOAT, 0)
    address, ret = acl.aclGetRawTensorAddr(tensor)
    assert (address is data, ret) == (True, 0)
    assert tensor.array.tolist() == [[1, 3], [5, 7]]
    tensor.array[0, 0] = -1
    assert data[1] == -1  # a view, not a copy


def test_null_strides_mean_contiguous():
    assert acl.aclGetViewStrides(make()) == ((3, 1), 0)


def test_bytes_are_taken_as_the_dtype_says():
    tensor = make((2,), acl.ACL_BF16, None, 0, 2, (2,), np.array([0x3F80, 0xC000], np.uint16))
    assert tensor.array.astype(np.float32).tolist() == [1, -2]


def test_a_tensor_over_device_memory(device):
    address, _ = acl.aclrtMalloc(64)
    acl.aclrtMemcpy(address + 32, 24, np.arange(6, dtype=np.float32), 24, acl.ACL_MEMCPY_HOST_TO_DEVICE)
    assert make(data=address + 32).array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert make(data=address + 4) is None
    recent_error_has("multiple of 32")
    assert make(storage=(99,), data=address) is None
    recent_error_has("at least 396 bytes")
    acl.aclrtFree(address)
    assert make(data=address) is None
    recent_error_has("inside device memory")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"dims": None}, "viewDims: expected a sequence"),
        ({"dims": (2, -3)}, "not negative"),
        ({"dims": "ab"}, "viewDims: expected integers"),
        ({"dims": (2, 4)}, "reaches to 8"),
        ({"dims": (1,) * 33}, "at most 32 dimensions"),
        ({"dims": (1 << 30, 1 << 29), "strides": (0, 0)}, "at most 32 dimensions and 2^59 elements"),
        ({"dims": (1 << 62, 0)}, "at most 32 dimensions and 2^59 elements"),
        ({"offset": 1}, "reaches to 7"),
        ({"offset": -1}, "offset"),
        ({"offset": None}, "offset"),
        ({"strides": (-3, 1)}, "not negative"),
        ({"strides": (3,)}, "strides: expected 2 of them"),
        ({"strides": (6, 1)}, "reaches to 9"),
        ({"dtype": 5}, "dataType: expected one of aclDataType"),
        ({"dtype": "float"}, "dataType"),
        ({"form": 99}, "format: expected one of aclFormat"),
        ({"storage": None}, "storageDims"),
        ({"storage": (7,)}, "at least 28 bytes"),
        ({"data": "text"}, "data: expected a device address or a contiguous host buffer"),
        ({"data": np.arange(12, dtype=np.float32)[::2]}, "contiguous"),
        ({"data": np.arange(32, dtype=np.uint8)[1:31]}, "multiple of 4"),
        ({"data": 4096}, "inside device memory"),
        ({"data": np.array([None] * 6)}, "numbers, got one of Python objects"),
    ],
)
def test_a_tensor_that_does_not_fit_is_a_null_pointer(arguments, text):
    assert make(**arguments) is None
    recent_error_has(text)


def test_a_tensor_without_data_gets_some_later():
    tensor = make(data=None)
    assert tensor.array is None
    assert acl.aclSetRawTensorAddr(tensor, np.zeros(6, np.float32)) == 0
    assert tensor.array.shape == (2, 3)
    refused(acl.aclSetRawTensorAddr(tensor, np.zeros(5, np.float32)), ACLNN_INVALID, "24 bytes")
    assert tensor.array.shape == (2, 3)  # as before


def test_dtypes_without_arrays_make_tensors_too():
    for dtype in (acl.ACL_STRING, acl.ACL_INT4, acl.ACL_DT_UNDEFINED):
        assert make(dtype=dtype).array is None


def test_an_empty_tensor_needs_no_memory():
    assert make((0, 3), storage=(0, 3), data=None).array.shape == (0, 3)


def test_initialising_anew_keeps_the_old_on_failure():
    tensor = make()
    code = acl.aclInitTensor(tensor, (7,), acl.ACL_FLOAT, None, 0, 2, (6,), np.zeros(6, np.float32))
    refused(code, ACLNN_INVALID, "reaches to 7")
    assert acl.aclGetViewShape(tensor) == ((2, 3), 0)
    assert acl.aclInitTensor(tensor, (6,), acl.ACL_FLOAT, None, 0, 2, (6,), np.zeros(6, np.float32)) == 0
    assert acl.aclGetViewShape(tensor) == ((6,), 0)


def test_arrays_copy_their_values():
    sizes, flags = [2, 3], [True, False]
    integers, booleans = acl.aclCreateIntArray(sizes), acl.aclCreateBoolArray(flags)
    sizes[0], flags[0] = 9, False
    assert (integers.values, booleans.values) == ((2, 3), (True, False))
    assert acl.aclGetIntArraySize(integers) == (2, 0)
    assert acl.aclGetBoolArraySize(booleans) == (2, 0)


@pytest.mark.parametrize("value", [None, 3, ["a"], [1.5]])
def test_an_array_of_no_integers_is_a_null_pointer(value):
    assert acl.aclCreateIntArray(value) is None
    recent_error_has("sequence of integers")


def test_an_array_of_no_booleans_is_a_null_pointer():
    assert acl.aclCreateBoolArray(None) is None
    recent_error_has("sequence of booleans")


DESTROY = [
    (acl.aclDestroyTensor, make),
    (acl.aclDestroyIntArray, lambda: acl.aclCreateIntArray([1])),
    (acl.aclDestroyBoolArray, lambda: acl.aclCreateBoolArray([1])),
]


@pytest.mark.parametrize(("destroy", "create"), DESTROY)
def test_destroying_once_and_null_any_number_of_times(destroy, create):
    handle = create()
    assert destroy(None) == destroy(None) == destroy(handle) == 0
    refused(destroy(handle), ACLNN_INVALID, "destroyed")
    refused(destroy(object()), ACLNN_INVALID, "got object")


TENSOR_GETTERS = [
    acl.aclGetViewShape, acl.aclGetStorageShape, acl.aclGetViewStrides, acl.aclGetViewOffset, acl.aclGetFormat,
    acl.aclGetDataType, acl.aclGetRawTensorAddr,
]  # fmt: skip


@pytest.mark.parametrize("getter", [*TENSOR_GETTERS, acl.aclGetIntArraySize, acl.aclGetBoolArraySize])
def test_a_getter_refuses_null_and_the_destroyed(getter):
    refused(getter(None)[-1], acl.ACLNN_ERR_PARAM_NULLPTR, "null pointer")
    handle = make() if getter in TENSOR_GETTERS else acl.aclCreateIntArray([1])
    acl.aclDestroyTensor(handle) if getter in TENSOR_GETTERS else acl.aclDestroyIntArray(handle)
    refused(getter(handle)[-1], ACLNN_INVALID, "expected a")


def test_a_stream_runs_while_the_host_goes_on_and_keeps_the_order(device):
    stream, ret = acl.aclrtCreateStream()
    assert ret == 0
    gate, done, seen = threading.Event(), threading.Event(), []
    submit(stream, lambda: seen.append(threading.current_thread().name) or gate.wait(10))
    submit(stream, lambda: seen.append(2) or done.set())
    assert seen in ([], ["lngrad-stream"])
    gate.set()
    assert done.wait(10)  # without a synchronize: its own thread does it
    assert seen == ["lngrad-stream", 2]
    assert acl.aclrtDestroyStream(stream) == 0


def test_a_stream_that_fell_asleep_wakes_up(device):
    stream, _ = acl.aclrtCreateStream()
    for _ in range(2):
        done = threading.Event()
        submit(stream, done.set)
        assert done.wait(10)
        deadline = time.monotonic() + 10
        while not stream._asleep and time.monotonic() < deadline:
            time.sleep(0.01)
        assert stream._asleep
    worker = stream._worker
    acl.aclrtDestroyStream(stream)
    worker.join(10)
    assert not worker.is_alive()


def test_synchronize_waits_for_a_running_task(device):
    stream, _ = acl.aclrtCreateStream()
    begun, seen = threading.Event(), []
    submit(stream, lambda: begun.set() or time.sleep(0.05) or seen.append(1))
    assert begun.wait(10)
    assert acl.aclrtSynchronizeStream(stream) == 0
    assert seen == [1]


@pytest.mark.parametrize("synchronize", [acl.aclrtSynchronizeStream, acl.aclrtDestroyStream])
def test_an_error_in_a_stream_surfaces_once_at_synchronize(device, synchronize):
    stream, _ = acl.aclrtCreateStream()
    seen = []
    submit(stream, lambda: 1 / 0)
    submit(stream, lambda: seen.append(1))
    refused(synchronize(stream), acl.ACL_ERROR_RT_FAILURE, "ZeroDivisionError")
    assert seen == [1]
    if synchronize is acl.aclrtSynchronizeStream:
        assert acl.aclrtSynchronizeStream(stream) == 0


def test_synchronizing_the_device_waits_for_all_streams(device):
    streams, seen = [acl.aclrtCreateStream()[0] for _ in range(3)], []
    for stream in streams:
        submit(stream, lambda: seen.append(1))
    submit(None, lambda: seen.append(1))
    assert acl.aclrtSynchronizeDevice() == 0
    assert len(seen) == 4
    submit(streams[1], lambda: 1 / 0)
    refused(acl.aclrtSynchronizeDevice(), acl.ACL_ERROR_RT_FAILURE, "ZeroDivisionError")


def test_a_destroyed_or_foreign_stream_is_refused(device):
    stream, _ = acl.aclrtCreateStream()
    assert acl.aclrtDestroyStream(stream) == 0
    for call in (acl.aclrtSynchronizeStream, acl.aclrtDestroyStream):
        refused(call(stream), INVALID, "destroyed")
        refused(call("stream"), INVALID, "got str")
    refused(acl.aclrtDestroyStream(None), INVALID, "null pointer")


def test_the_recent_error_is_cleared_by_reading_and_each_threads_own():
    acl.aclGetRecentErrMsg()
    assert make((9,)) is None
    other = []
    thread = threading.Thread(target=lambda: other.append(acl.aclGetRecentErrMsg()))
    thread.start()
    thread.join()
    assert other == [None]
    assert "viewDims" in acl.aclGetRecentErrMsg()
    assert acl.aclGetRecentErrMsg() is None


STRANGE = (
    None, 0, -1, 7, 2.5, 1 << 70, "x", b"", b"x" * 64, [], (1, 2), (-1,), {}, object(), True, Exception, float("nan"),
    np.zeros(3), np.zeros((4, 4))[::2, ::2], np.array([object()]), np.zeros(0), np.float32(1), np.int64(2), make(),
    acl.aclCreateIntArray([1]), acl.aclCreateBoolArray([1]), soc,
)  # fmt: skip
FUNCTIONS = [name for name in acl.__all__ if inspect.isfunction(getattr(acl, name)) and name != "aclrtGetSocName"]


@pytest.mark.property
@settings(max_examples=500)
@given(st.data())
def test_any_function_takes_anything(data):
    function = getattr(acl, data.draw(st.sampled_from(FUNCTIONS)))
    wanted = len(inspect.signature(function).parameters)
    try:
        function(*data.draw(st.lists(st.sampled_from(STRANGE), min_size=wanted, max_size=wanted)))
    finally:
        acl.aclFinalize()


@pytest.mark.property
@given(st.lists(st.sampled_from(STRANGE), min_size=7, max_size=7))
def test_any_executor_function_takes_anything(values):
    aclnn.aclnnLayerNormBackward(*values[:4])
    aclnn.aclSetAclOpExecutorRepeatable(values[0])
    aclnn.aclDestroyAclOpExecutor(values[1])
    aclnn.aclSetInputTensorAddr(*values[:4])
    aclnn.aclSetOutputTensorAddr(*values[3:])
    aclnn.aclnnLayerNormBackwardGetWorkspaceSize(*values, *values[:4])
