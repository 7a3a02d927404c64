from __future__ import annotations

import json

import numpy as np
import pytest

from lngrad.errors import DtypeError, ShapeError
from lngrad_ascend import ascendc as asc
from lngrad_ascend.faults import (
    BoundsFault,
    DeviceFault,
    LeakFault,
    PoisonFault,
    RaceFault,
    TilingError,
    UnknownSoc,
)

F = np.float32
LANES = 8


def doubled(source, target, count=LANES):
    """Copy in, double, copy out: ``count`` elements a block."""
    here = asc.GetBlockIdx() * count
    pipe = asc.TPipe()
    inward, outward = asc.TQue(asc.TPosition.VECIN, 1), asc.TQue(asc.TPosition.VECOUT, 1)
    pipe.InitBuffer(inward, 1, 4 * count)
    pipe.InitBuffer(outward, 1, 4 * count)
    src, dst = asc.GlobalTensor(F), asc.GlobalTensor(F)
    src.SetGlobalBuffer(source + here, count)
    dst.SetGlobalBuffer(target + here, count)
    local = inward.AllocTensor(F)
    asc.DataCopy(local, src, count)
    inward.EnQue(local)
    local, result = inward.DeQue(F), outward.AllocTensor(F)
    asc.Add(result, local, local, count)
    outward.EnQue(result)
    inward.FreeTensor(local)
    result = outward.DeQue(F)
    asc.DataCopy(dst, result, count)
    outward.FreeTensor(result)


def test_every_block_does_its_part_and_is_reported():
    source, target = np.arange(40, dtype=F), np.zeros(40, F)
    report = asc.launch(doubled, 5, source, target, soc="Ascend950")
    assert (target == 2 * source).all()
    assert [b.block for b in report.blocks] == list(range(5))
    for block in report.blocks:
        assert (block.peak_ub_bytes, block.bytes_in, block.bytes_out) == (64, 32, 32)
        assert block.instructions == {"DataCopy": 2, "Add": 1}
    assert report.instructions() == {"DataCopy": 10, "Add": 5}
    assert json.loads(report.to_json())["blocks"][4]["bytes_out"] == 32
    table = str(report).splitlines()
    assert table[0] == "doubled on Ascend950, 5 blocks"
    assert [head.strip() for head in table[1].split("  ") if head] == [
        "block", "peak UB bytes", "of UB", "bytes in", "bytes out", "instructions", "tile APIs: calls, instructions",
    ]  # fmt: skip
    assert len(table) == 7


def test_block_index_and_number():
    seen = []
    asc.launch(lambda: seen.append((asc.GetBlockIdx(), asc.GetBlockNum())), 3)
    assert seen == [(0, 3), (1, 3), (2, 3)]
    for function in (asc.GetBlockIdx, asc.GetBlockNum):
        with pytest.raises(DeviceFault, match="no kernel is running"):
            function()


def test_each_block_has_a_buffer_of_its_own():
    def kernel():
        pipe = asc.TPipe()
        assert pipe.ub.next_free == 0
        assert pipe.ub.peak == 0
        buffer = asc.TBuf()
        pipe.InitBuffer(buffer, 1024)
        with pytest.raises(PoisonFault):
            buffer.Get(F).GetValue(0)
        asc.Duplicate(buffer.Get(F), 1.0, 256)

    asc.launch(kernel, 2)


def test_workspace_and_tiling_come_last():
    def kernel(x, workspace, tiling):
        memory = asc.GlobalTensor(F)
        memory.SetGlobalBuffer(workspace)
        assert memory.GetSize() == 16
        assert np.isnan(memory.GetValue(0))
        data = asc.CopyTiling(asc.LayerNormGradTiling, tiling)
        assert data == asc.GET_TILING_DATA(asc.LayerNormGradTiling, tiling)
        memory.SetValue(0, data.hLength)

    x = np.zeros(8, F)
    asc.launch(kernel, 1, x, workspace=64, tiling=asc.LayerNormGradTiling(hLength=16))
    mine = np.full(64, 0xFF, np.uint8)
    asc.launch(kernel, 1, x, workspace=mine, tiling=asc.LayerNormGradTiling(hLength=16).to_bytes())
    assert mine.view(F)[0] == 16


def test_a_short_tiling_is_refused():
    with pytest.raises(TilingError, match="LayerNormGradTiling takes 120 bytes, got a buffer of 80 bytes"):
        asc.launch(lambda data: asc.CopyTiling(asc.LayerNormGradTiling, data), 1, tiling=asc.LayerNormGradBetaTiling())
    with pytest.raises(TilingError, match="expected the bytes that the kernel was given, got int"):
        asc.CopyTiling(asc.LayerNormGradTiling, 3)


def test_two_blocks_must_not_write_the_same_bytes():
    source, target = np.arange(40, dtype=F), np.zeros(40, F)

    def kernel(source, target):
        doubled(source, target + (-8 * asc.GetBlockIdx() if asc.GetBlockIdx() == 2 else 0))

    with pytest.raises(RaceFault, match=r"blocks 0 and 2 both write the same 32 bytes of arrays\[1\]"):
        asc.launch(kernel, 3, source, target + 0)


def test_a_fault_names_its_block():
    def kernel(source, target):
        doubled(source, target, count=LANES if asc.GetBlockIdx() == 0 else 16)

    with pytest.raises(BoundsFault, match=r"block 1: arrays\[0\]: has 8 elements from here on"):
        asc.launch(kernel, 2, np.zeros(24, F), np.zeros(24, F))


def test_a_leak_is_found_at_the_end_of_the_kernel():
    def kernel():
        pipe = asc.TPipe()
        queue = asc.TQue(asc.TPosition.VECIN, 1, name="lost")
        pipe.InitBuffer(queue, 1, 32)
        queue.AllocTensor(F)

    with pytest.raises(LeakFault, match=r"block 0: end of kernel: 1 tensors were not freed: buffer 0 of lost"):
        asc.launch(kernel, 1)


def test_what_launch_refuses():
    with pytest.raises(ShapeError, match="block_num: expected 1 to 65535, got 0"):
        asc.launch(doubled, 0)
    with pytest.raises(DtypeError, match=r"arrays\[0\]: expected a NumPy array or a number, got list"):
        asc.launch(doubled, 1, [1.0])
    with pytest.raises(ShapeError, match=r"arrays\[0\]: global memory must be contiguous"):
        asc.launch(doubled, 1, np.zeros((4, 4), F).T)
    with pytest.raises(UnknownSoc, match="soc: expected one of"):
        asc.launch(doubled, 1, soc="Ascend9")


def test_everything_the_door_names_exists():
    for name in asc.__all__:
        assert getattr(asc, name) is not None
