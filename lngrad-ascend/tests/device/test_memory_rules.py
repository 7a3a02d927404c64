"""Every rule of the simulated memory, broken once."""

from __future__ import annotations

import numpy as np
import pytest

from device_harness import F, bind, buffer, content, queue
from lngrad.errors import DtypeError, ShapeError
from lngrad_ascend import soc
from lngrad_ascend.ascendc import (
    CMPMODE,
    SELMODE,
    Add,
    Compare,
    DataCopy,
    DataCopyExtParams,
    DataCopyPad,
    DataCopyPadExtParams,
    Duplicate,
    GlobalAddress,
    GlobalTensor,
    PipeBarrier,
    Select,
    TBuf,
    TPipe,
    TPosition,
    TQue,
    launch,
    pipe_t,
)
from lngrad_ascend.device.core import Core, Rules
from lngrad_ascend.device.library import call_library
from lngrad_ascend.device.local_tensor import LocalTensor
from lngrad_ascend.faults import (
    AlignmentFault,
    BoundsFault,
    CapacityFault,
    DeviceFault,
    LeakFault,
    LifetimeFault,
    OverlapFault,
    PoisonFault,
    PositionFault,
    QueueFault,
    RaceFault,
)


def global_tensor(count=64, dtype=F):
    return bind(np.arange(count).astype(dtype), dtype=dtype)


@pytest.fixture
def pipe():
    return TPipe()


def arrived(pipe, que=None):
    """Return a VECIN tensor of 64 floats that was copied, put in and taken out, and its queue."""
    que = que or queue(pipe=pipe)
    local = que.AllocTensor(F)
    DataCopy(local, global_tensor(), 64)
    que.EnQue(local)
    return que.DeQue(F), que


def computed(pipe, value=1.0):
    """Return a VECOUT tensor of 64 floats that was filled, put in and taken out."""
    que = queue(TPosition.VECOUT, pipe=pipe)
    local = que.AllocTensor(F)
    Duplicate(local, value, 64)
    que.EnQue(local)
    return que.DeQue(F), que


def padded(pipe, source, parameters, *padding, nbytes=256):
    """Return a VECIN tensor that DataCopyPad has filled."""
    que = queue(nbytes=nbytes, pipe=pipe)
    local = que.AllocTensor(F)
    DataCopyPad(local, source, parameters, *padding)
    que.EnQue(local)
    return que.DeQue(F)


class TestCapacity:
    def test_the_unified_buffer_is_as_large_as_the_soc_s(self, pipe):
        size = soc.current().soc.ub_bytes
        buffer(size - 64, "first", pipe=pipe)
        with pytest.raises(
            CapacityFault, match=rf"second: 96 bytes do not fit.*has {size} bytes and {size - 64} .*first {size - 64}"
        ):
            buffer(65, "second", pipe=pipe)

    def test_lengths_are_rounded_up_to_blocks(self, pipe):
        assert buffer(33, pipe=pipe).GetSize() == 16
        assert pipe.ub.next_free == 64

    def test_a_kernel_has_64_buffers(self, pipe):
        queue(num=60, nbytes=32, pipe=pipe)
        with pytest.raises(CapacityFault, match="may have 64 buffers in all, q would be number 65"):
            queue(num=5, nbytes=32, pipe=pipe)

    @pytest.mark.parametrize(("name", "limit"), [("Ascend910B1", 8), ("Ascend910A", 4)])
    def test_a_position_has_so_many_tensors_at_a_time(self, name, limit):
        with soc.use(name):
            pipe = TPipe()
        que = queue(num=limit + 1, nbytes=32, pipe=pipe)
        for _ in range(limit):
            que.AllocTensor(F)
        with pytest.raises(QueueFault, match=rf"queues of VECIN may have {limit} tensors at a time on {name}"):
            que.AllocTensor(F)


class TestQueues:
    def test_alloc_beyond_num(self, pipe):
        que = queue(num=2, pipe=pipe)
        que.AllocTensor(F)
        que.AllocTensor(F)
        with pytest.raises(QueueFault, match="all 2 buffers of q are in use; a device would wait for ever"):
            que.AllocTensor(F)

    def test_enque_beyond_depth(self, pipe):
        que = queue(num=2, depth=1, pipe=pipe)
        que.EnQue(que.AllocTensor(F))
        with pytest.raises(QueueFault, match="q has depth 1, and 1 tensors wait in it already"):
            que.EnQue(que.AllocTensor(F))

    def test_tensors_leave_in_the_order_they_came(self, pipe):
        que = queue(num=2, depth=2, pipe=pipe)
        first, second = que.AllocTensor(F), que.AllocTensor(F)
        que.EnQue(second)
        que.EnQue(first)
        assert que.GetTensorCountInQue() == 2
        assert not que.VacantInQue()
        assert que.DeQue() is second
        assert que.DeQue() is first
        assert not que.HasTensorInQue()

    def test_deque_of_an_empty_queue(self, pipe):
        with pytest.raises(QueueFault, match="nothing waits in q; EnQue comes first"):
            queue(pipe=pipe).DeQue(F)

    def test_enque_twice(self, pipe):
        que = queue(depth=2, pipe=pipe)
        local = que.AllocTensor(F)
        que.EnQue(local)
        with pytest.raises(QueueFault, match="buffer 0 of q at byte 0 waits in its queue already"):
            que.EnQue(local)

    def test_enque_into_another_queue(self, pipe):
        local = queue(name="one", pipe=pipe).AllocTensor(F)
        with pytest.raises(QueueFault, match="buffer 0 of one at byte 0 does not come from two"):
            queue(name="two", pipe=pipe).EnQue(local)

    def test_free_while_waiting(self, pipe):
        que = queue(pipe=pipe)
        local = que.AllocTensor(F)
        que.EnQue(local)
        with pytest.raises(QueueFault, match="waits in its queue, DeQue it first"):
            que.FreeTensor(local)

    def test_free_twice(self, pipe):
        local, que = arrived(pipe)
        que.FreeTensor(local)
        with pytest.raises(LifetimeFault, match="FreeTensor: buffer 0 of q at byte 0 was freed before"):
            que.FreeTensor(local)

    def test_a_queue_without_memory(self):
        with pytest.raises(QueueFault, match=r"q has no memory; TPipe\.InitBuffer comes first"):
            TQue(TPosition.VECIN, 1, name="q").AllocTensor(F)
        with pytest.raises(QueueFault, match="buf has no memory"):
            TBuf(name="buf").Get(F)

    def test_memory_twice(self, pipe):
        que = queue(pipe=pipe)
        with pytest.raises(QueueFault, match="q has memory already"):
            pipe.InitBuffer(que, 1, 32)

    def test_a_buffer_of_0_bytes_may_be_there_and_not_be_used(self):
        def kernel(x, use):
            pipe, none, empty = TPipe(), TQue(TPosition.VECIN, 2, name="none"), TBuf(name="empty")
            pipe.InitBuffer(none, 2, 0)
            pipe.InitBuffer(empty, 0)
            behind = buffer(pipe=pipe)
            local, rest = none.AllocTensor(F), empty.Get(F)
            assert (local.GetSize(), rest.GetSize()) == (0, 0)
            memory = bind(x)
            if use:
                [lambda: DataCopy(local, memory, 8), lambda: Add(behind, rest, behind, 8), lambda: rest.GetValue(0)][
                    use - 1
                ]()
            none.FreeTensor(local)

        for mode in ("checked", "device"):
            report = launch(lambda x: kernel(x, 0), 1, np.ones(8, F), strictness=mode)
            assert [f"{name} gets 0 bytes" in str(report.remarks()) for name in ("none", "empty")] == [True, True]
            for use, api in enumerate(("DataCopy: dst", "Add: src0", "GetValue: this"), 1):
                with pytest.raises(BoundsFault, match=rf"{api} .* ends at byte 0, the access reaches byte"):
                    launch(lambda x, use=use: kernel(x, use), 1, np.ones(8, F), strictness=mode)

    @pytest.mark.parametrize("sizes", [(0, 32), (1, -1), (1,), (1, 2, 3)])
    def test_wrong_sizes(self, pipe, sizes):
        with pytest.raises(QueueFault, match="InitBuffer: "):
            pipe.InitBuffer(TQue(TPosition.VECIN), *sizes)

    def test_depth_below_one(self):
        with pytest.raises(QueueFault, match="depth must be at least 1, got 0"):
            TQue(TPosition.VECIN, 0)


class TestOrder:
    """EnQue and DeQue are what makes one unit wait for another."""

    def test_computing_on_a_copy_that_may_still_run(self, pipe):
        que = queue(pipe=pipe)
        local = que.AllocTensor(F)
        DataCopy(local, global_tensor(), 64)
        with pytest.raises(RaceFault, match=r"Missing between them: SetFlag<HardEvent::MTE2_V> .*or EnQue and DeQue"):
            Add(buffer(pipe=pipe), local, local, 64)

    def test_copying_over_what_may_still_be_read(self, pipe):
        local, _ = arrived(pipe)
        Add(buffer(pipe=pipe), local, local, 64)
        with pytest.raises(RaceFault, match="SetFlag<HardEvent::V_MTE2>"):
            DataCopy(local, global_tensor(), 64)

    def test_copying_out_what_may_still_be_computed(self, pipe):
        local = queue(TPosition.VECOUT, pipe=pipe).AllocTensor(F)
        Duplicate(local, 1.0, 64)
        with pytest.raises(RaceFault, match="SetFlag<HardEvent::V_MTE3>"):
            DataCopy(global_tensor(), local, 64)

    def test_computing_over_what_may_still_be_copied_out(self, pipe):
        local, que = computed(pipe)
        Duplicate(local, 2.0, 64)  # nothing copies it out yet: no harm, and worth a remark
        (remark,) = pipe.core.remarks
        assert (
            "Duplicate: dst (buffer 0 of q at byte 0) is taken from the queue, the vector unit must not use it"
            in remark
        )
        que.EnQue(local)
        DataCopy(global_tensor(), que.DeQue(F), 64)
        with pytest.raises(RaceFault, match="SetFlag<HardEvent::MTE3_V>"):
            Duplicate(local, 2.0, 64)

    def test_without_the_search_for_races_the_states_are_the_rule(self):
        pipe = TPipe(Core(soc.get(), rules=Rules(ordering=False)))
        local = queue(pipe=pipe).AllocTensor(F)
        DataCopy(local, global_tensor(), 64)
        with pytest.raises(QueueFault, match="is allocated, the vector unit must not use it: EnQue and DeQue it"):
            Add(buffer(pipe=pipe), local, local, 64)


class TestLifetime:
    def test_use_after_free(self, pipe):
        local, que = arrived(pipe)
        que.FreeTensor(local)
        with pytest.raises(LifetimeFault, match=r"Add: src0 \(buffer 0 of q at byte 0\) was freed"):
            Add(buffer(pipe=pipe), local, local, 64)

    def test_use_of_an_earlier_tensor_of_the_same_buffer(self, pipe):
        local, que = arrived(pipe)
        que.FreeTensor(local)
        arrived(pipe, que)
        with pytest.raises(LifetimeFault, match="was freed"):
            Add(buffer(pipe=pipe), local, local, 64)

    def test_use_while_waiting(self, pipe):
        que = queue(TPosition.VECOUT, pipe=pipe)
        local = que.AllocTensor(F)
        que.EnQue(local)
        Duplicate(local, 0.0, 8)
        (remark,) = pipe.core.remarks
        assert "waits in its queue, DeQue it first" in remark

    def test_a_slice_dies_with_its_tensor(self, pipe):
        local, que = arrived(pipe)
        part = local[8:16]
        que.FreeTensor(local)
        with pytest.raises(LifetimeFault, match="was freed"):
            part.GetValue(0)

    def test_leaks_are_named(self, pipe):
        queue(name="kept", pipe=pipe).AllocTensor(F)
        waiting = queue(name="waiting", pipe=pipe)
        waiting.EnQue(waiting.AllocTensor(F))
        text = r"2 tensors were not freed: buffer 0 of kept \(allocated\), buffer 0 of waiting \(in the queue\)"
        with pytest.raises(LeakFault, match=text):
            pipe.core.check_leaks()
        with pytest.raises(LeakFault, match=text):
            pipe.Reset()

    def test_reset_takes_everything_back(self, pipe):
        local = buffer(pipe=pipe)
        Duplicate(local, 1.0, 8)
        pipe.Reset()
        assert pipe.ub.next_free == 0
        with pytest.raises(LifetimeFault, match="was freed"):
            Duplicate(local, 1.0, 8)


class TestPoison:
    def test_reading_what_was_never_written(self, pipe):
        local = buffer(pipe=pipe)
        Duplicate(local, 1.0, 60)
        out = buffer(name="out", pipe=pipe)
        Add(out, local, local, 64)  # computing with it is no fault
        assert out.GetValue(59) == 2.0
        with pytest.raises(
            PoisonFault, match=r"never written .*, 4 of the 4 bytes .*; the first to read .* was Add at"
        ):
            out.GetValue(60)

    @pytest.mark.parametrize("by_register", [False, True])
    def test_a_bit_without_a_value_spoils_its_own_element_alone(self, pipe, by_register):
        x, bits, out, ones = (buffer(name=name, pipe=pipe) for name in ("x", "bits", "out", "one"))
        Duplicate(x, 1.0, 60)  # Compare packs elements 56 to 63 into one byte
        Duplicate(ones, 1.0, 64)
        piece = pipe.ub.compared
        kept = LocalTensor(pipe.core, piece, np.dtype(np.uint8), piece.start, piece.size)
        if by_register:
            Compare(kept, x, ones, CMPMODE.EQ, 64, 1)
            Select(out, kept, ones, x, SELMODE.VSEL_CMPMASK_SPR, 64, 1)
        else:
            kept = bits.ReinterpretCast(np.uint8)
            Compare(kept, x, ones, CMPMODE.EQ, 64)
            Select(out, kept, ones, ones, SELMODE.VSEL_TENSOR_TENSOR_MODE, 64)
        assert out.GetValue(59) == 1.0
        for local, at in ((out, 60), (kept, 7)):
            with pytest.raises(PoisonFault, match="was never written"):
                local.GetValue(at)

    def test_a_mask_byte_without_a_value_spoils_its_own_element_alone(self, pipe):
        x, out, mask = buffer(name="x", pipe=pipe), buffer(name="out", pipe=pipe), buffer(name="mask", pipe=pipe)
        Duplicate(x, 1.0, 64)
        Duplicate(mask.ReinterpretCast(np.uint16), 0, 30)
        call_library("Select", [out, x, mask.ReinterpretCast(np.uint8)], (1, 64, 64, 1), 7.0)
        assert out.GetValue(59) == 1.0
        with pytest.raises(PoisonFault, match="was never written"):
            out.GetValue(60)

    def test_a_new_tensor_holds_nothing_of_the_last_one(self, pipe):
        que = queue(TPosition.VECOUT, pipe=pipe)
        local = que.AllocTensor(F)
        Duplicate(local, 1.0, 64)
        que.FreeTensor(local)
        with pytest.raises(PoisonFault, match=r"was not written since AllocTensor at .* at byte 0"):
            que.AllocTensor(F).GetValue(0)

    def test_copying_out_what_was_never_written(self, pipe):
        que = queue(TPosition.VECOUT, pipe=pipe)
        que.EnQue(que.AllocTensor(F))
        with pytest.raises(PoisonFault, match="DataCopy: src"):
            DataCopy(global_tensor(), que.DeQue(F), 64)


class TestBoundsAndAlignment:
    def test_an_instruction_past_the_end(self, pipe):
        with pytest.raises(BoundsFault, match=r"Duplicate: dst \(buf at byte 0\) ends at byte 256, .* 4 too far"):
            Duplicate(buffer(pipe=pipe), 1.0, 65)

    def test_a_slice_past_the_end(self, pipe):
        local = buffer(pipe=pipe)
        for index in (65, slice(0, 65), slice(8, 4), slice(-1, None)):
            with pytest.raises(BoundsFault, match="has 64 elements, got"):
                local[index]
        with pytest.raises(BoundsFault, match="step 1"):
            local[0:8:2]

    def test_set_size_past_the_end(self, pipe):
        local = buffer(pipe=pipe)
        local.SetSize(16)
        assert local.GetSize() == 16
        local.SetSize(64)
        with pytest.raises(BoundsFault, match=r"SetSize: this .* 4 too far"):
            local.SetSize(65)

    def test_an_address_inside_a_block(self, pipe):
        local = buffer(pipe=pipe)
        with pytest.raises(AlignmentFault, match="must be a multiple of 32 bytes, this one is 4 past it"):
            Duplicate(local[1:], 1.0, 8)

    def test_a_copy_of_part_of_a_block(self, pipe):
        local = queue(pipe=pipe).AllocTensor(F)
        with pytest.raises(AlignmentFault, match=r"multiple of 32 bytes, got 9 \* 4 = 36; DataCopyPad moves"):
            DataCopy(local, global_tensor(), 9)

    def test_a_copy_past_the_end_of_global_memory(self, pipe):
        local = queue(pipe=pipe).AllocTensor(F)
        with pytest.raises(BoundsFault, match="has 56 elements from here on, the access takes 64"):
            DataCopy(local, global_tensor()[8], 64)

    def test_a_copy_past_the_end_of_the_tensor(self, pipe):
        local = queue(nbytes=32, pipe=pipe).AllocTensor(F)
        with pytest.raises(BoundsFault, match="DataCopy: dst"):
            DataCopy(local, global_tensor(), 64)

    def test_shifted_operands(self, pipe):
        local = buffer(pipe=pipe)
        Duplicate(local, 1.0, 64)
        Add(local, local, local, 64)  # the same memory is fine
        with pytest.raises(OverlapFault, match="overlap 32 bytes apart"):
            Add(local[8:], local, local, 56)


class TestPositions:
    @pytest.mark.parametrize("position", [TPosition.A1, TPosition.CO1, TPosition.GM, TPosition.LCM])
    def test_queues_and_buffers_are_for_vectors(self, position):
        for kind in (TQue, TBuf):
            with pytest.raises(PositionFault, match="expected VECIN, VECOUT or VECCALC"):
                kind(position)

    def test_copies_at_other_places_are_remarks(self):
        """CANN's own examples copy out of VECIN: where the order is right, a device runs it."""

        def kernel(x, y):
            source, target = bind(x), bind(y)
            pipe = TPipe()
            for place in (TPosition.VECIN, TPosition.VECOUT):
                que = queue(place, pipe=pipe)
                local = que.AllocTensor(F)
                DataCopy(local, source, 64)
                que.EnQue(local)
                local = que.DeQue(F)
                PipeBarrier(pipe_t.PIPE_ALL)
                DataCopy(target, local, 64)
                que.FreeTensor(local)

        x, y = np.arange(64, dtype=F), np.zeros(64, F)
        remarks = " ".join(launch(kernel, 1, x, y).remarks())
        assert (x == y).all()
        for rule in ("must be at VECOUT or VECCALC, it is at VECIN", "must be at VECIN or VECCALC, it is at VECOUT"):
            assert rule in remarks

    def test_copies_at_other_places_are_faults_where_no_races_are_looked_for(self):
        pipe = TPipe(Core(soc.get("Ascend910B1"), rules=Rules(ordering=False)))
        local = queue(TPosition.VECOUT, pipe=pipe).AllocTensor(F)
        with pytest.raises(PositionFault, match="must be at VECIN or VECCALC, it is at VECOUT"):
            DataCopy(local, global_tensor(), 64)

    def test_one_side_is_local(self):
        with pytest.raises(PositionFault, match="both are global"):
            DataCopy(global_tensor(), global_tensor(), 64)


class TestGlobalMemory:
    def test_types_must_agree(self, pipe):
        with pytest.raises(DtypeError, match="one type, got float32 and float16"):
            DataCopy(queue(pipe=pipe).AllocTensor(F), global_tensor(dtype=np.float16), 64)
        with pytest.raises(DtypeError, match="holds float16, the GlobalTensor is of float32"):
            bind(np.zeros(4, np.float16))

    def test_raw_bytes_become_any_type(self):
        tensor = bind(GlobalAddress(np.zeros(35, np.uint8), "workspace") + 3, 8)
        tensor.SetValue(7, 2.5)
        assert tensor[7].GetValue(0) == 2.5

    def test_size_and_strides(self):
        with pytest.raises(BoundsFault, match="has 4 elements from here on, SetGlobalBuffer got 5"):
            bind(np.zeros(4, F), 5)
        assert bind(np.zeros(4, F), 0).GetSize() == 4
        with pytest.raises(ShapeError, match="must be contiguous"):
            bind(np.zeros((4, 4), F).T)
        with pytest.raises(LifetimeFault, match="without SetGlobalBuffer"):
            GlobalTensor(F).GetSize()
        with pytest.raises(BoundsFault, match=r"has 4 elements, got \[5\]"):
            global_tensor(4)[5]

    def test_read_only_memory(self, pipe):
        local, _ = computed(pipe)
        frozen = np.zeros(64, F)
        frozen.flags.writeable = False
        target = bind(GlobalAddress(frozen, "frozen"))
        with pytest.raises(BoundsFault, match="frozen is read-only"):
            DataCopy(target, local, 64)
        target.SetGlobalBuffer(GlobalAddress(frozen, "frozen"), 32)  # less than the memory that goes on
        with pytest.raises(BoundsFault, match="frozen is read-only"):
            DataCopy(target, local, 64)
        with pytest.raises(BoundsFault, match="frozen is read-only"):
            target.SetValue(0, 1.0)


class TestDataCopyPad:
    def test_rows_that_do_not_fill_blocks(self, pipe):
        padding = DataCopyPadExtParams(True, 0, 6, -1.0)
        local = padded(pipe, global_tensor(30), DataCopyExtParams(3, 40, 0, 0), padding, nbytes=3 * 64)
        rows = content(local).reshape(3, 16).tolist()
        assert rows == [[10.0 * r + c for c in range(10)] + [-1.0] * 6 for r in range(3)]

    def test_without_padding_the_rest_of_a_block_is_its_first_element(self, pipe):
        local = padded(pipe, global_tensor()[5], DataCopyExtParams(2, 12), nbytes=64)
        assert content(local).tolist() == [5.0, 6.0, 7.0] + [5.0] * 5 + [8.0, 9.0, 10.0] + [8.0] * 5

    def test_padding_without_is_pad_is_undefined(self, pipe):
        local = padded(pipe, global_tensor(), DataCopyExtParams(1, 12), DataCopyPadExtParams(False, 1, 0))
        assert [local.GetValue(i) for i in (1, 2, 3)] == [0.0, 1.0, 2.0]
        for index in (0, 4):
            with pytest.raises(PoisonFault, match="padding that DataCopyPad leaves undefined"):
                local.GetValue(index)

    def test_out_again(self, pipe):
        memory = np.zeros(10, F)
        DataCopyPad(bind(memory), computed(pipe, 7.0)[0], DataCopyExtParams(2, 12, 0, 8))
        assert memory.tolist() == [7, 7, 7, 0, 0, 7, 7, 7, 0, 0]

    def test_what_it_refuses(self, pipe):
        local = queue(pipe=pipe).AllocTensor(F)
        with pytest.raises(AlignmentFault, match="whole elements of 4 bytes"):
            DataCopyPad(local, global_tensor(), DataCopyExtParams(1, 10))
        with pytest.raises(AlignmentFault, match="gap in global memory"):
            DataCopyPad(local, global_tensor(), DataCopyExtParams(2, 12, 2))
        with pytest.raises(DtypeError, match="one type"):
            DataCopyPad(local, global_tensor(dtype=np.float16), DataCopyExtParams(1, 12))
        with pytest.raises(PositionFault, match="must be a LocalTensor, both are global"):
            DataCopyPad(global_tensor(), global_tensor(), DataCopyExtParams(1, 12))
        with soc.use("Ascend310P"):
            old = queue(pipe=TPipe()).AllocTensor(F)
        with pytest.raises(DeviceFault, match="Ascend310P does not have it"):
            DataCopyPad(old, global_tensor(), DataCopyExtParams(1, 12))


def test_reinterpret_and_scalar_access(pipe):
    local = buffer(pipe=pipe)
    local.SetValue(3, 1.5)
    assert local.GetValue(3) == 1.5
    assert local.ReinterpretCast(np.float16).GetSize() == 128
    assert local[8:].GetPhyAddr() == 32
    assert local.GetPosition() is TPosition.VECCALC
    assert "buf at byte 0, 64 x float32" in repr(local)
