"""What "device" lets run and "checked" refuses, and the names of the public checker in the
texts."""

from __future__ import annotations

import numpy as np
import pytest

from device_harness import E, F, P, bind, buffer, buffers, flag, queue
from lngrad.errors import DtypeError, ShapeError
from lngrad_ascend import ascendc as asc
from lngrad_ascend.faults import AlignmentFault, AscendWarning, BoundsFault, DeviceFault, RaceFault, TilingError

N = 64


def use_after_free(source):
    que = queue()
    out, local = buffer(pipe=asc.GetTPipePtr()), que.AllocTensor(F)
    asc.DataCopy(local, bind(source), N)
    que.EnQue(local)
    local = que.DeQue()
    que.FreeTensor(local)
    asc.Add(out, local, local, N)


def content_survives(source):
    que = queue(P.VECOUT)
    local = que.AllocTensor(F)
    asc.Duplicate(local, 3.0, N)
    que.FreeTensor(local)
    local = que.AllocTensor(F)
    asc.Adds(local, local, 1.0, N)
    que.EnQue(local)
    asc.DataCopy(bind(source), que.DeQue(), N)
    que.FreeTensor(local)


def never_freed(source):
    queue().AllocTensor(F)


def without_the_queue(source):
    local = queue().AllocTensor(F)
    asc.DataCopy(local, bind(source), N)
    flag(E.MTE2_V)
    asc.Adds(local, local, 1.0, N)
    flag(E.V_MTE3)
    asc.PipeBarrier(asc.PIPE_ALL)
    asc.DataCopy(bind(source), local, N)


@pytest.mark.parametrize(
    ("kernel", "code"),
    [
        (use_after_free, "ErrorRead1"),
        (content_survives, "ErrorRead2"),
        (never_freed, "ErrorLeak"),
        (without_the_queue, "ErrorLeak"),  # its place is a remark
    ],
)
def test_what_the_hardware_runs(kernel, code):
    with pytest.raises(DeviceFault, match=rf"\[{code}\]"):
        asc.launch(kernel, 1, np.ones(N, F))
    memory = np.ones(N, F)
    asc.launch(kernel, 1, memory, strictness="device")
    expected = {content_survives: 4.0, without_the_queue: 2.0}.get(kernel, 1.0)
    assert (memory == expected).all()


def test_a_device_copies_whole_blocks_of_a_count():
    """Three copies of a block and a half, in, within and out; and one of half a block, which moves nothing."""

    def kernel(x, y):
        first, second = buffers(2, 64)
        for tensor in (first, second):
            asc.Duplicate(tensor, 5.0, 16)
        asc.PipeBarrier(asc.PIPE_ALL)
        asc.DataCopy(first, bind(x), 12)
        asc.PipeBarrier(asc.PIPE_ALL)
        asc.DataCopy(second, first, 12)
        asc.PipeBarrier(asc.PIPE_ALL)
        asc.DataCopy(bind(y), first[8:], 4)
        asc.DataCopy(bind(y)[8], second, 12)

    x, y = np.arange(16, dtype=F), np.full(24, 9, F)
    report = asc.launch(kernel, 1, x, y, strictness="device")
    assert y.tolist() == [9] * 8 + list(range(8)) + [9] * 8
    assert (
        sum("the length must be a multiple of 32 bytes, got 12 * 4 = 48" in remark for remark in report.remarks()) == 3
    )
    with pytest.raises(AlignmentFault, match=r"got 12 . 4 = 48"):
        asc.launch(kernel, 1, x, y)


def test_a_device_reads_what_was_never_written():
    def kernel():
        local = buffer()
        asc.Adds(local, local, 1.0, N)
        local.GetValue(0)

    with pytest.warns(AscendWarning, match="4 of the 4 bytes read hold no value"):
        asc.launch(kernel, 1, strictness="device")


def test_races_are_found_on_a_device_too():
    def kernel(source):
        local = queue().AllocTensor(F)
        asc.DataCopy(local, bind(source), N)
        asc.Adds(local, local, 1.0, N)

    with pytest.raises(RaceFault, match="MTE2_V"):
        asc.launch(kernel, 1, np.ones(N, F), strictness="device")
    asc.launch(kernel, 1, np.ones(N, F), strictness="device", ordering=False)


def test_an_unknown_strictness():
    with pytest.raises(ShapeError, match="strictness: expected 'checked' or 'device', got 'lax'"):
        asc.launch(never_freed, 1, np.ones(N, F), strictness="lax")


def test_codes_of_the_other_rules():
    que = queue()
    local = que.AllocTensor(F)
    cases = {
        "ErrorRead3, ErrorWrite2": lambda: asc.DataCopy(local, bind(np.ones(N, F)), 2 * N),
        "ErrorRead4, ErrorWrite4": lambda: asc.DataCopy(local[1:], bind(np.ones(N, F)), 8),
        "ErrorBuffer0": lambda: asc.TBuf().Get(F),
        "ErrorBuffer2": lambda: que.EnQue(local) and que.EnQue(local),
        "ErrorBuffer3": lambda: queue().EnQue(local),
    }
    for code, call in cases.items():
        with pytest.raises(DeviceFault, match=rf"\[{code}\]"):
            call()
    que.DeQue()
    que.FreeTensor(local)
    with pytest.raises(DeviceFault, match=r"\[ErrorFree\]"):
        que.FreeTensor(local)


class TestElementTypes:
    def test_python_s_float_is_c_s(self):
        que = queue()
        assert que.AllocTensor(float).dtype == F
        buf = asc.TBuf()
        asc.TPipe().InitBuffer(buf, 64)
        assert buf.Get(int).dtype == np.int32
        assert asc.GlobalTensor(float).dtype == F
        assert buf.Get(asc.uint16).dtype == np.uint16

    @pytest.mark.parametrize("T", [np.float64, "f8", complex, bool])
    def test_types_that_do_not_exist(self, T):
        with pytest.raises(DtypeError, match="AllocTensor: T must be one of half, float, bfloat16_t"):
            queue().AllocTensor(T)

    def test_scalars_have_the_type_of_their_tensor(self):
        buf = asc.TBuf()
        asc.TPipe().InitBuffer(buf, 64)
        for T in (asc.half, asc.float32, asc.bfloat16_t):
            local = buf.Get(T)
            local.SetValue(1, 1.1)
            value = local.GetValue(1)
            assert type(value) is T
            assert type(value * value) is T
            assert value == T(1.1)
        assert type(asc.ToFloat(asc.bfloat16_t(1.1))) is F
        assert asc.ToBfloat16(F(1.1)) == asc.bfloat16_t(1.1)


class TestBuffers:
    def test_parts_of_a_tbuf(self):
        pipe, buf = asc.TPipe(), asc.TBuf(name="buf")
        assert pipe.InitBuffer(buf, 256) is True
        assert buf.Get(F, 10).GetSize() == 10
        part = buf.GetWithOffset(asc.half, 16, 32)
        assert (part.GetSize(), part.GetPhyAddr(), part.GetPhyAddr(3)) == (16, 32, 38)
        with pytest.raises(DeviceFault, match="buf has 256 bytes, 64 elements from byte 32 on reach byte 288"):
            buf.GetWithOffset(F, 64, 32)

    def test_queues_say_what_they_did(self):
        que = queue()
        assert que.HasIdleBuffer()
        local = que.AllocTensor(F)
        assert not que.HasIdleBuffer()
        assert que.EnQue(local) is True

    def test_reset_starts_again_at_address_0(self):
        pipe, buf = asc.TPipe(), asc.TBuf()
        pipe.InitBuffer(buf, 256)
        que = asc.TQue(P.VECIN, 1)
        pipe.InitBuffer(que, 1, 64)
        pipe.Reset()
        pipe.InitBuffer(que, 1, 32)
        assert que.AllocTensor(F).GetPhyAddr() == 0
        with pytest.raises(DeviceFault, match="no memory"):
            buf.Get(F)

    def test_the_pipe_of_the_block(self):
        def kernel():
            with pytest.raises(DeviceFault, match="has made no TPipe yet"):
                asc.GetTPipePtr()
            pipe = asc.TPipe()
            assert asc.GetTPipePtr().core is pipe.core

        asc.launch(kernel, 1)


class TestGlobalMemory:
    def test_one_memory_as_two_types(self):
        memory = np.zeros(16, np.uint8)
        tensor = bind(memory)
        tensor.SetValue(1, 1.5)
        assert tensor.ReinterpretCast(asc.half).GetSize() == 8
        words = bind(tensor.GetPhyAddr(1).ReinterpretCast(np.uint32), dtype=np.uint32)
        assert (words.GetSize(), words.GetValue(0)) == (3, 0x3FC00000)
        assert type(tensor.GetValue(1)) is F
        with pytest.raises(DeviceFault, match="byte 2 is not the start of an element of float32"):
            (tensor.GetPhyAddr().ReinterpretCast(asc.half) + 1).ReinterpretCast(F)

    def test_scalars_are_ordered_with_copies(self):
        def kernel(memory):
            tensor, local = bind(memory), buffer()
            tensor.SetValue(0, 5.0)
            asc.DataCacheCleanAndInvalid(tensor)
            asc.DataCopy(local, tensor, 8)

        asc.launch(kernel, 1, np.zeros(8, F))
        with pytest.raises(RaceFault, match="S_MTE2"):
            asc.launch(kernel, 1, np.zeros(8, F), auto_sync=False)


class TestSystem:
    def test_tiling_keys(self):
        seen = []
        asc.launch(lambda: seen.append((asc.TILING_KEY_IS(101), asc.TILING_KEY_IS(102))), 1, tiling_key=101)
        assert seen == [(True, False)]

    def test_the_forms_of_get_tiling_data(self):
        data = asc.LayerNormGradTiling(hLength=16).to_bytes()
        assert asc.GET_TILING_DATA_WITH_STRUCT(asc.LayerNormGradTiling, data).hLength == 16
        assert asc.GET_TILING_DATA_MEMBER(asc.LayerNormGradTiling, "hLength", data) == 16
        with pytest.raises(TilingError, match="has no field 'h'"):
            asc.GET_TILING_DATA_MEMBER(asc.LayerNormGradTiling, "h", data)

    def test_fill_global_memory(self):
        def kernel(memory):
            asc.InitOutput(bind(memory), 5001, 2.5)
            assert asc.GetUserWorkspace(memory) is memory
            assert (asc.GetSubBlockIdx(), asc.GetSubBlockNum()) == (0, 1)

        memory = np.zeros(5010, F)
        asc.launch(kernel, 1, memory)
        assert (memory[:5001] == 2.5).all()
        assert not memory[5001:].any()

    def test_past_the_size_of_a_tensor_is_a_warning_inside_its_memory(self):
        def kernel(memory, scalar):
            tensor = bind(memory, 8)
            asc.DataCopy(buffer(), tensor, 16)
            scalar[0] = tensor.GetValue(15)

        found, memory = [0], np.arange(16, dtype=F)
        with pytest.warns(AscendWarning, match="has 8 elements from here on, the access takes 16; SetGlobalBuffer"):
            asc.launch(lambda address: kernel(address, found), 1, memory)
        assert found == [15]
        with pytest.raises(BoundsFault, match="has 8 elements from here on, the access takes 16 "):
            asc.launch(lambda address: kernel(address, found), 1, memory[:15])

    def test_past_the_size_of_a_tensor_is_one_warning_a_place_and_fills_all(self):
        def kernel(memory):
            tensor = bind(memory, 8)
            for index in range(100):
                tensor.GetValue(index)
            buffer(191 * 1024)  # what is left makes several copies of it
            asc.InitOutput(tensor, 5000, 2.5)

        memory = np.zeros(5001, F)
        with pytest.warns(AscendWarning) as warned:
            asc.launch(kernel, 1, memory)
        assert ["GetValue" in str(warning.message) for warning in warned] == [True, False]
        assert (memory[:5000] == 2.5).all()
        assert memory[5000] == 0

    def test_a_device_reads_memory_past_the_size_of_a_tensor(self):
        def kernel(memory, scalar):
            local = buffer()
            asc.DataCopy(local, bind(memory, 8), 16)
            flag(E.MTE2_S)
            scalar[:] = [local.GetValue(index) for index in range(15)]
            assert local.core.ub.poison[local.start :][:64].reshape(16, 4).any(axis=1).tolist() == [False] * 15 + [True]

        found = []
        asc.launch(lambda address: kernel(address, found), 1, np.arange(15, dtype=F), strictness="device")
        assert found == list(range(15))

    def test_filling_past_the_end_writes_nothing(self):
        memory = np.zeros(5010, F)
        with pytest.raises(BoundsFault, match=r"InitOutput: .* has 5010 elements from here on, the access takes 5011"):
            asc.launch(lambda address: asc.InitOutput(bind(address), 5011, 2.5), 1, memory)
        assert not memory.any()
