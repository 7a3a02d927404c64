"""Blocks that wait for each other: barriers, workspaces, atomic adds, deadlocks."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from device_harness import E, F, bind, buffer, flag
from lngrad.errors import DtypeError
from lngrad_ascend import ascendc as asc
from lngrad_ascend import soc as socs
from lngrad_ascend.device import schedule
from lngrad_ascend.device.sync import IBSet, IBWait
from lngrad_ascend.device.system import SetAtomicMax, SetAtomicMin, SetPadValue
from lngrad_ascend.faults import DeadlockFault, RaceFault, SyncFault
from tile_harness import check_same_bits

N = 8


def put(memory, tensor, value):
    """Write ``value`` to the start of ``memory``."""
    asc.Duplicate(tensor, value, N)
    flag(E.V_MTE3)
    asc.DataCopy(memory, tensor, N)


def sum_by_workspace(result, workspace, barrier="all"):
    """Every block leaves its number; block 0 adds them up."""
    tensor, index = buffer(), asc.GetBlockIdx()
    put(bind(workspace)[index * N], tensor, index + 1.0)
    if barrier == "all":
        asc.SyncAll()
    elif barrier == "flag":
        asc.CrossCoreSetFlag(3)
        asc.CrossCoreWaitFlag(3)
    if index:
        return
    other = buffer(name="other")
    asc.PipeBarrier(asc.PIPE_ALL)
    asc.Duplicate(tensor, 0.0, N)
    for block in range(asc.GetBlockNum()):
        asc.DataCopy(other, bind(workspace)[block * N], N)
        flag(E.MTE2_V)
        asc.Add(tensor, tensor, other, N)
        flag(E.V_MTE2)
    flag(E.V_MTE3)
    asc.DataCopy(bind(result), tensor, N)


@pytest.mark.parametrize("barrier", ["all", "flag"])
def test_a_barrier_lets_one_block_read_what_others_wrote(barrier):
    result = np.zeros(N, F)
    asc.launch(lambda r, w: sum_by_workspace(r, w, barrier), 6, result, workspace=6 * 4 * N)
    assert (result == 21).all()


def test_without_a_barrier_it_is_a_race():
    with pytest.raises(RaceFault, match=r"blocks \d and 0 write and read|blocks 0 and \d write and read") as caught:
        asc.launch(sum_without, 3, np.zeros(N, F), workspace=3 * 4 * N)
    assert "SyncAll" in str(caught.value)


def sum_without(result, workspace):
    """Block 1 reads what block 0 wrote."""
    tensor, index = buffer(), asc.GetBlockIdx()
    if index == 0:
        put(bind(workspace), tensor, 1.0)
    else:
        asc.DataCopy(tensor, bind(workspace), N)


def test_a_barrier_covers_its_pipe_only():
    def kernel(workspace):
        tensor = buffer()
        put(bind(workspace)[asc.GetBlockIdx() * N], tensor, 1.0)
        asc.CrossCoreSetFlag(0, 0, asc.PIPE_V)  # not the copy
        asc.CrossCoreWaitFlag(0)
        asc.PipeBarrier(asc.PIPE_ALL)
        asc.DataCopy(tensor, bind(workspace)[(1 - asc.GetBlockIdx()) * N], N)

    with pytest.raises(RaceFault, match=r"blocks . and . write and read the same 32 bytes of workspace"):
        asc.launch(kernel, 2, workspace=2 * 4 * N)


def test_blocks_may_write_one_place_in_turn():
    def kernel(memory, ordered):
        tensor = buffer()
        for turn in range(asc.GetBlockNum()):
            if turn == asc.GetBlockIdx():
                put(bind(memory), tensor, turn)
            if ordered:
                asc.SyncAll()

    memory = np.zeros(N, F)
    asc.launch(lambda m: kernel(m, True), 4, memory)
    assert (memory == 3).all()
    with pytest.raises(RaceFault, match="blocks 0 and 1 both write the same 32 bytes"):
        asc.launch(lambda m: kernel(m, False), 4, memory)


class TestAtomics:
    @staticmethod
    def kernel(total, barrier=True, atomic=True):
        tensor, memory = buffer(), bind(total)
        if asc.GetBlockIdx() == 0:
            asc.InitOutput(memory, N, 0.5)
        asc.CrossCoreSetFlag(1)
        if barrier:
            asc.CrossCoreWaitFlag(1)
        asc.PipeBarrier(asc.PIPE_MTE3)  # block 0's own fill
        asc.Duplicate(tensor, 0.1 + asc.GetBlockIdx(), N)
        flag(E.V_MTE3)
        if atomic:
            asc.SetAtomicAdd(F)
        asc.DataCopy(memory, tensor, N)
        asc.SetAtomicNone()

    def test_sums_come_out_the_same_every_time(self):
        results = []
        for _ in range(3):
            total = np.full(N, np.nan, F)
            asc.launch(self.kernel, 8, total)
            results.append(total)
        expected = F(0.5)
        for block in range(8):
            expected += F(0.1 + block)
        assert (results[0] == expected).all()
        for other in results[1:]:
            check_same_bits("total", other, results[0])

    def test_the_fill_must_come_first(self):
        with pytest.raises(RaceFault, match="both write the same 32 bytes of arrays"):
            asc.launch(lambda t: self.kernel(t, barrier=False), 3, np.zeros(N, F))

    def test_plain_stores_race(self):
        with pytest.raises(RaceFault, match="SetAtomicAdd for sums"):
            asc.launch(lambda t: self.kernel(t, atomic=False), 3, np.zeros(N, F))

    def test_types(self):
        def kernel(total):
            tensor = buffer()
            asc.Duplicate(tensor, 1.0, N)
            flag(E.V_MTE3)
            asc.SetAtomicAdd(asc.half)
            asc.DataCopy(bind(total), tensor, N)

        with pytest.raises(DtypeError, match="SetAtomicAdd: was set for float16, the copy is of float32"):
            asc.launch(kernel, 1, np.zeros(N, F))
        with pytest.raises(DtypeError, match="SetAtomicAdd: T must be one of"):
            asc.launch(lambda: asc.SetAtomicAdd(np.int64), 1)


class TestDeadlocks:
    def test_a_block_that_ends_without_the_barrier(self):
        def kernel():
            if asc.GetBlockIdx() != 2:
                asc.SyncAll()

        with pytest.raises(DeadlockFault) as caught:
            asc.launch(kernel, 4)
        text = str(caught.value)
        for block in (0, 1, 3):
            assert f"block {block} waits in SyncAll at test_blocks.py:" in text
        assert "ended: 2" in text

    def test_blocks_that_wait_for_different_things(self):
        def kernel():
            if asc.GetBlockIdx() == 1:
                asc.CrossCoreWaitFlag(5)
            asc.SyncAll()

        with pytest.raises(DeadlockFault, match=r"block 0 waits in SyncAll.*block 1 waits in CrossCoreWaitFlag\(5\)"):
            asc.launch(kernel, 2)

    def test_more_blocks_than_cores(self):
        cores = socs.get("Ascend310P").vector_cores
        asc.launch(asc.SyncAll, cores, soc="Ascend310P")
        with pytest.raises(DeadlockFault, match=f"{cores + 1} blocks wait for each other, and Ascend310P runs {cores}"):
            asc.launch(asc.SyncAll, cores + 1, soc="Ascend310P")

    def test_a_fault_in_one_block_ends_the_others(self):
        before = threading.active_count()
        unwound = []

        def kernel():
            try:
                if asc.GetBlockIdx() == 3:
                    raise KeyError("from block 3")
                asc.SyncAll()
            finally:
                unwound.append(asc.GetBlockIdx())

        with pytest.raises(KeyError, match="from block 3"):
            asc.launch(kernel, 4)
        assert sorted(unwound) == [0, 1, 2, 3]
        assert threading.active_count() == before


def test_threads_see_the_soc_of_the_caller():
    seen = []

    def kernel():
        asc.SyncAll()
        seen.append(socs.current().soc.name)

    with socs.use("Ascend950"):
        asc.launch(kernel, 3)
    assert seen == ["Ascend950"] * 3


def test_many_barriers_in_a_row():
    def kernel(memory):
        tensor = buffer()
        for turn in range(20):
            if turn % asc.GetBlockNum() == asc.GetBlockIdx():
                asc.DataCopy(tensor, bind(memory), N)
                flag(E.MTE2_V)
                asc.Adds(tensor, tensor, 1.0, N)
                flag(E.V_MTE3)
                asc.DataCopy(bind(memory), tensor, N)
            asc.SyncAll()

    memory = np.zeros(N, F)
    report = asc.launch(kernel, 5, memory)
    assert (memory == 20).all()
    assert [block.block for block in report.blocks] == list(range(5))


def test_what_cross_core_flags_refuse():
    with pytest.raises(SyncFault, match="modeId 0"):
        asc.launch(lambda: asc.CrossCoreSetFlag(0, 2), 1)
    with pytest.raises(SyncFault, match="pipe must be V, MTE2 or MTE3, got PIPE_S"):
        asc.launch(lambda: asc.CrossCoreSetFlag(0, 0, asc.PIPE_S), 1)


def handed_on(rows, waits):
    """Each block adds 1 to what the block before it has written; block 2 knows of block 0 by way of block 1."""
    memory, tensor, index = bind(rows), buffer(), asc.GetBlockIdx()
    if index and waits:
        IBWait(index - 1, 5)
    asc.DataCopy(tensor, memory[max(index - 1, 0) * N], N)
    flag(E.MTE2_V)
    asc.Adds(tensor, tensor, 1.0, N)
    flag(E.V_MTE3)
    asc.DataCopy(memory[index * N], tensor, N)
    if index == 2:
        asc.PipeBarrier(asc.PIPE_ALL)
        asc.DataCopy(tensor, memory, N)
    IBSet(index, 5)


def test_a_signal_orders_two_blocks_and_what_the_first_one_knew():
    rows = np.zeros((3, N), F)
    asc.launch(lambda r: handed_on(r, True), 3, rows)
    assert (rows == [[1], [2], [3]]).all()
    with pytest.raises(RaceFault):
        asc.launch(lambda r: handed_on(r, False), 3, rows)
    with pytest.raises(DeadlockFault, match=r"block 0 waits in IBWait\(7, 1\)"):
        asc.launch(lambda r: IBWait(7, 1), 2, rows)


@pytest.mark.parametrize(("start", "wanted"), [(SetAtomicMax, 3.0), (SetAtomicMin, 1.0)])
def test_atomic_extremes(start, wanted):
    def kernel(result):
        tensor = buffer()
        start(F)
        put(bind(result), tensor, asc.GetBlockIdx() + 1.0)
        asc.SetAtomicNone()

    result = np.full(N, 2, F)
    asc.launch(kernel, 3, result)
    assert (result == (wanted if wanted > 2 else 1.0)).all()


def test_the_pad_value_fills_what_no_padding_value_does():
    def kernel(x, y):
        tensor = buffer(64)
        SetPadValue(9.0)
        asc.DataCopyPad(tensor, bind(x), asc.DataCopyExtParams(1, 12), asc.DataCopyPadExtParams(False, 0, 5, 1.0))
        flag(E.MTE2_MTE3)
        asc.DataCopy(bind(y), tensor, N)

    x, y = np.arange(N, dtype=F), np.zeros(N, F)
    asc.launch(kernel, 1, x, y)
    assert y.tolist() == [0, 1, 2, 9, 9, 9, 9, 9]


@pytest.mark.parametrize("scalar", [False, True])
def test_a_block_may_read_until_another_one_has_written(scalar):
    def kernel(result, flags):
        tensor, index = buffer(), asc.GetBlockIdx()
        memory = bind(flags)
        if index == 0:
            while (memory.GetValue(N) if scalar else loaded(memory[N], tensor)) != 7:
                pass
            put(bind(result), tensor, 3.0)
        else:
            put(memory[N * index], tensor, 7.0)

    def loaded(memory, tensor):
        flag(E.S_MTE2)
        asc.DataCopy(tensor, memory, N)
        flag(E.MTE2_S)
        return tensor.GetValue(0)

    result, flags = np.zeros(N, F), np.zeros(3 * N, F)
    asc.launch(kernel, 3, result, flags, strictness="device", ordering=False)
    assert (result == 3).all()
    assert flags.reshape(3, N)[:, 0].tolist() == [0, 7, 7]
    with pytest.raises(RaceFault, match="nothing orders the two"):
        asc.launch(kernel, 3, result, np.zeros(3 * N, F))


@pytest.mark.parametrize("places", [2, 7, 40])
def test_a_block_may_wait_for_several_others_by_turns(places):
    def kernel(flags):
        tensor, index, memory = buffer(), asc.GetBlockIdx(), bind(flags)
        if index:
            put(memory[N * index], tensor, 7.0)
        for _ in range(1000 if index == 0 else 0):
            if sum(memory.GetValue(N * other) for other in range(1, places + 1)) == 7 * places:
                return
        assert index

    flags = np.zeros((places + 1) * N, F)
    asc.launch(kernel, places + 1, flags, strictness="device", ordering=False, soc="Ascend910B1")


def test_a_block_that_has_read_much_before_gives_way_too():
    def kernel(memory):
        flags, index = bind(memory), asc.GetBlockIdx()
        for place in range(200 if index == 0 else 0):
            flags.GetValue(place)
        if index:
            put(flags[N * index], buffer(), 7.0)
        for _ in range(200 if index == 0 else 0):
            if flags.GetValue(N) == flags.GetValue(2 * N) == 7:
                return
        assert index

    asc.launch(kernel, 3, np.zeros(200, F), strictness="device", ordering=False)


class TestPollingForEver:
    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch):
        monkeypatch.setattr(schedule, "STILL", 1 << 14)

    @pytest.mark.parametrize("places", [1, 6])
    def test_a_flag_that_nobody_raises(self, places):
        def kernel(flags):
            memory, index = bind(flags), asc.GetBlockIdx()
            while index != 1 and not all(memory.GetValue(place) for place in range(places)):
                pass

        with pytest.raises(DeadlockFault) as caught:
            asc.launch(kernel, 3, np.zeros(N, F))
        text = str(caught.value)
        for block in (0, 2):
            assert f"block {block} waits in a loop that reads global memory at test_blocks.py:" in text
        assert "block 1" not in text.replace("block 1: ", "")
        assert "ended: 1" in text

    def test_more_blocks_than_cores(self):
        """The last block would raise the flag; no core is left for it."""

        def kernel(flags):
            memory, index = bind(flags), asc.GetBlockIdx()
            if index == asc.GetBlockNum() - 1:
                put(memory, buffer(), 7.0)
            while index < asc.GetBlockNum() - 1 and memory.GetValue(0) != 7:
                pass

        cores = socs.get("Ascend310P").vector_cores
        asc.launch(kernel, cores, np.zeros(N, F), soc="Ascend310P", strictness="device", ordering=False)
        with pytest.raises(
            DeadlockFault,
            match=f"block {cores - 1} waits in a loop.*; never started: {cores} and later, Ascend310P runs {cores} at a time",
        ):
            asc.launch(kernel, cores + 2, np.zeros(N, F), soc="Ascend310P", ordering=False)

    def test_one_that_waits_for_the_others_barrier(self):
        def kernel(flags):
            if asc.GetBlockIdx():
                asc.SyncAll()
            while bind(flags).GetValue(0) == 0:
                pass

        with pytest.raises(DeadlockFault, match=r"block 0 waits in a loop.*block 1 waits in SyncAll"):
            asc.launch(kernel, 2, np.zeros(N, F))

    def test_an_exchange_that_never_succeeds(self):
        def kernel(lock):
            while asc.AtomicCas(bind(lock, dtype=np.int32), 0, 1) != 0:
                pass

        with pytest.raises(DeadlockFault, match="block 1 waits in a loop"):
            asc.launch(kernel, 2, np.zeros(N, np.int32))

    def test_what_changes_is_no_deadlock(self):
        """A block counts up in memory, for longer than the limit; the others wait for the last number."""
        turns = schedule.STILL // 8

        def kernel(memory):
            flags, index = bind(memory, dtype=np.int32), asc.GetBlockIdx()
            for turn in range(turns if index == 0 else 0):
                flags.SetValue(0, turn + 1)
                asc.DataCacheCleanAndInvalid(flags)
                for _ in range(9):
                    flags.GetValue(0)
            while index and flags.GetValue(0) < turns:
                pass

        asc.launch(kernel, 3, np.zeros(N, np.int32), strictness="device", ordering=False)


def test_a_block_may_wait_by_atomics():
    def kernel(flags):
        memory = bind(flags)
        asc.AtomicAdd(memory, 1.0)
        for _ in range(1000):
            if asc.AtomicAdd(memory, 0.0) == 3:
                return
        raise AssertionError("the others never had their turn")

    asc.launch(kernel, 3, np.zeros(N, F))


def test_no_more_blocks_run_at_a_time_than_there_are_cores():
    live, most = set(), []

    def kernel(memory):
        live.add(asc.GetBlockIdx())
        for _ in range(20):
            bind(memory).GetValue(0)
            most.append(len(live))
        live.remove(asc.GetBlockIdx())

    asc.launch(kernel, 300, np.zeros(N, F), soc="Ascend910B1")
    assert max(most) == socs.get("Ascend910B1").vector_cores
