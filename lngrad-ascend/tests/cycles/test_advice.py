"""Each advice is followed, and the model measures again: it saves about what was foretold, and the advice is gone."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lngrad_ascend import ascendc
from lngrad_ascend.ascendc import (
    Adds,
    BlockReduceSum,
    DataCopy,
    GetBlockIdx,
    GlobalTensor,
    HardEvent,
    SetFlag,
    TBuf,
    TPipe,
    UnaryRepeatParams,
    WaitFlag,
    WholeReduceSum,
    launch,
)
from lngrad_ascend.device.report import Cycles

F = np.dtype(np.float32)
N = 128 * 64  # floats of a block
Body = Callable[[Any, Any], None]


def on_a_tile(body: Body, rows: Callable[[int], int] = lambda block: 1, blocks: int = 1) -> tuple[Cycles, np.ndarray]:
    """Copy N floats in, run ``body`` on them (dst, src), copy N out: so often as ``rows`` says of the block."""

    def kernel(x, y):
        pipe, (source_buffer, target) = TPipe(), (TBuf(), TBuf())
        pipe.InitBuffer(source_buffer, N * 4)
        pipe.InitBuffer(target, N * 4)
        src, dst = source_buffer.Get(F), target.Get(F)
        source, target = GlobalTensor(F), GlobalTensor(F)
        source.SetGlobalBuffer(x)
        target.SetGlobalBuffer(y + GetBlockIdx() * N)
        for _ in range(rows(GetBlockIdx())):
            DataCopy(src, source, N)
            SetFlag(HardEvent.MTE2_V, 0)
            WaitFlag(HardEvent.MTE2_V, 0)
            body(dst, src)
            SetFlag(HardEvent.V_MTE3, 0)
            WaitFlag(HardEvent.V_MTE3, 0)
            DataCopy(target, dst, N)
            SetFlag(HardEvent.MTE3_MTE2, 0)
            WaitFlag(HardEvent.MTE3_MTE2, 0)
            SetFlag(HardEvent.MTE3_V, 0)
            WaitFlag(HardEvent.MTE3_V, 0)

    x, y = np.arange(N, dtype=F) % 7, np.zeros(N * blocks, F)
    cycles = launch(kernel, blocks, x, y, cycles=True).cycles
    assert cycles is not None
    return cycles, y


def check_advice(kind: str, before: Cycles, after: Cycles, near: float = 0.3) -> None:
    """The advice is given before, not after, and saves what it says, within ``near``."""
    (advice,) = (advice for advice in before.advice if advice.kind == kind)
    assert kind not in [advice.kind for advice in after.advice]
    assert before.cycles - after.cycles == pytest.approx(advice.cycles, rel=near)
    assert before.time_us - after.time_us == pytest.approx(advice.time_us, rel=near)


def one_by_one(dst, src):
    for row in range(0, N, 64):
        Adds(dst[row:], src[row:], 1.0, 64, 1, UnaryRepeatParams())


def at_once(dst, src):
    Adds(dst, src, 1.0, 64, N // 64, UnaryRepeatParams())


def test_repeats():
    (before, y), (after, z) = on_a_tile(one_by_one), on_a_tile(at_once)
    np.testing.assert_array_equal(y, z)
    check_advice("repeats", before, after)
    assert "test_advice.py" in next(advice.text for advice in before.advice if advice.kind == "repeats")


def sums(dst, src):
    Adds(dst, src, 0.0, N)
    WholeReduceSum(dst, src, 64, N // 64, 1, 1, 8)


def sums_of_blocks(dst, src):
    Adds(dst, src, 0.0, N)
    BlockReduceSum(src, src, N // 64, 64, 1, 1, 8)
    BlockReduceSum(dst, src, N // 512, 64, 1, 1, 8)


def test_reductions():
    (before, y), (after, z) = on_a_tile(sums), on_a_tile(sums_of_blocks)
    np.testing.assert_array_equal(y, z)
    check_advice("reductions", before, after)


def test_a_block_with_more_work():
    before, _ = on_a_tile(at_once, lambda block: 9 if block == 3 else 3, 4)
    after, _ = on_a_tile(at_once, lambda block: 4 + (block % 2), 4)
    (advice,) = (advice for advice in before.advice if advice.kind == "tail")
    assert advice.text.startswith("block 3 works 2.0 times as long as the mean")
    assert "tail" not in [advice.kind for advice in after.advice]
    assert 0.7 * advice.cycles <= before.cycles - after.cycles <= advice.cycles


MASKS = """
#include "kernel_operator.h"
using namespace AscendC;

extern "C" __global__ __aicore__ void k(GM_ADDR x, GM_ADDR y)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> here, there;
    pipe.InitBuffer(here, 4 * COUNT * 64);
    pipe.InitBuffer(there, 4 * COUNT * 64);
    LocalTensor<float> src = here.Get<float>(), dst = there.Get<float>();
    GlobalTensor<float> source, target;
    source.SetGlobalBuffer((__gm__ float*)x);
    target.SetGlobalBuffer((__gm__ float*)y);
    DataCopy(src, source, COUNT * 64);
    PipeBarrier<PIPE_ALL>();  // the scalar unit does not run ahead
    UnaryRepeatParams strides;
#if ONCE
    SetVectorMask<float, MaskMode::NORMAL>(0, 0xffffffffffffffff);
#endif
    for (int i = 0; i < COUNT; ++i) {
#if ONCE
        Adds<float, false>(dst[i * 64], src[i * 64], 1.0f, MASK_PLACEHOLDER, 1, strides);
#else
        Adds(dst[i * 64], src[i * 64], 1.0f, 64, 1, strides);
#endif
    }
    SetFlag<HardEvent::V_MTE3>(0);
    WaitFlag<HardEvent::V_MTE3>(0);
    DataCopy(target, dst, COUNT * 64);
}
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_masks(tmp_path):
    count, found = 180, []  # as in the manual's example: 4 cycles each, 720 in all
    (tmp_path / "k.cpp").write_text(MASKS)
    x = np.arange(count * 64, dtype=F)
    for once in (0, 1):
        y = np.zeros_like(x)
        kernel = ascendc.compile(tmp_path / "k.cpp", "k", define={"COUNT": count, "ONCE": once})
        found.append(launch(kernel, 1, x, y, cycles=True).cycles)
        np.testing.assert_array_equal(y, x + 1)
    check_advice("masks", *found)
    assert found[0].cycles - found[1].cycles == pytest.approx(720, rel=0.02)


def test_copies_buffers_and_banks_in_the_example(capsys):
    path = Path(__file__).parents[3] / "examples" / "ascendc_cycles.py"
    spec = importlib.util.spec_from_file_location("ascendc_cycles", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert float(lines[-2].split()[0]) >= 1.5
    x, gamma = np.ones((example.BLOCKS * example.ROWS, example.N), F), np.ones(example.N, F)
    found = []
    for step in example.STEPS:
        kernel = example.times_gamma(step)
        found.append(launch(kernel, example.BLOCKS, x, gamma, np.empty_like(x), cycles=True).cycles)
    for kind, before, after in zip(("copies", "buffers", "banks"), found[:-1], found[1:], strict=True):
        assert before.advice[0].kind == kind  # the first advice is the one that is followed
        check_advice(kind, before, after)
