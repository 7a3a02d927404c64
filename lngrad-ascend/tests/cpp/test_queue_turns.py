"""Queues as published: buffers in turn, flags between positions that a queue binds or EnQue names, pools of memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from lngrad.testing import check_same_bits
from lngrad_ascend import ascendc
from lngrad_ascend.ascendc import launch
from lngrad_ascend.cpp.compiling import CompileError
from lngrad_ascend.device.queues import TBuf, TBufPool, TPipe
from lngrad_ascend.device.unified_buffer import TPosition
from lngrad_ascend.faults import (
    CapacityFault,
    DeviceFault,
    LeakFault,
    LifetimeFault,
    PoisonFault,
    QueueFault,
    RaceFault,
)

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
PROGRAMS = Path(__file__).with_name("programs")


POOL_MODES = (PROGRAMS / "pools.cpp").read_text().partition("enum { ")[2].partition(" }")[0].replace(",", " ").split()


@pytest.fixture(scope="module")
def pools():
    """Run a mode of the pools' kernel: y is [2x, 3x], and [4x, 5x] after three turns. Returns the report."""
    kernel = ascendc.compile(PROGRAMS / "pools.cpp", "pools")

    def run(mode, **options):
        x, y = np.random.default_rng(1).standard_normal(64).astype(np.float32), np.zeros(128, np.float32)
        report = launch(kernel, 1, x, y, np.int32([POOL_MODES.index(mode)]), **options)
        turns = 2 * (mode == "AGAIN")
        check_same_bits(y, np.concatenate([x * np.float32(2 + turns), x * np.float32(3 + turns)]))
        return report

    return run


def test_a_queue_hands_out_its_buffers_in_turn():
    """Each buffer was cleared, so that both have zeros when they are taken together; a device does not forget them."""
    y = np.zeros(16, np.float32)
    launch(ascendc.compile(PROGRAMS / "turns.cpp", "cleared"), 1, y, strictness="device")
    np.testing.assert_array_equal(y, np.repeat(np.float32([1, 2]), 8))


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_bound_queue_orders_the_pipes_of_its_positions(mode):
    x, y = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    report = launch(ascendc.compile(PROGRAMS / "bound.cpp", "bound", define={"MODE": mode}), 1, x, y)
    np.testing.assert_array_equal(y, x + np.float32(mode == 2))
    assert not report.remarks()


def test_a_bound_queue_orders_no_other_pipes():
    """Without the second EnQue and DeQue nothing orders the computation and the copy out."""
    x, y = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    with pytest.raises(RaceFault, match="V_MTE3"):
        launch(ascendc.compile(PROGRAMS / "bound.cpp", "bound", define={"MODE": 3}), 1, x, y)


@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend950"])
@pytest.mark.parametrize("mode", ["SHARED", "AGAIN", "NESTED", "OUTER", "SCOPE"])
def test_pools_share_memory_in_turn(pools, mode, soc):
    """Two stages in the same 128 KiB; without a new InitBuffer after Reset (AGAIN); in a pool of a pool (NESTED), whose Reset
    ends the inner ones, without their flags (OUTER); in a pool that leaves its C++ scope (SCOPE)."""
    report = pools(mode, soc=soc)
    assert not report.remarks()
    assert report.blocks[0].peak_ub_bytes == 2 * 65536 + (4096 + 32) * (mode == "NESTED")


def test_a_pool_gives_memory_anew_after_reset_on_950_alone(pools):
    """A2's Reset takes the pool's memory: its next InitBuffer begins at byte 0 of all, which a device does not notice."""
    assert not pools("ANEW", soc="Ascend950").remarks()
    with pytest.raises(CapacityFault, match=r"behind its TBufPool; InitBufPool comes first, on A2 again after Reset"):
        pools("ANEW")
    assert any("behind its TBufPool" in remark for remark in pools("ANEW", strictness="device").remarks())


def test_a_pool_s_buffers_are_none_of_the_64_of_a_kernel():
    pipe = TPipe()
    for _ in range(5):
        pool = TBufPool(pipe.core, 16)
        pool.take(pipe, 14 * 32, pipe)
        for _ in range(14):
            assert pool.InitBuffer(TBuf(TPosition.VECCALC), 32)


@pytest.mark.parametrize(
    ("mode", "fault", "text"),
    [
        (
            "NO_RESET",
            QueueFault,
            r"AllocTensor: the VECIN queue .* overlaps buffer 0 of .*: Reset of its TBufPool",
        ),
        ("STALE", PoisonFault, r"was not written since TBufPool.Reset at pools.cpp:\d+"),
        ("HELD", LifetimeFault, "was freed and must not be used any more"),
        ("LEAK", LeakFault, "TBufPool.Reset: 1 tensors were not freed"),
        ("LONG", CapacityFault, "ends 32 bytes behind its TBufPool$"),
        ("MANY", CapacityFault, r"a TBufPool \(bufIDSize\) may have 2 buffers in all, .* would be number 3"),
        ("LARGER", CapacityFault, "InitBufPool: 131104 bytes do not fit, there are 131072"),
        ("OLD", QueueFault, "AllocTensor: the VECIN queue .* has no memory"),
        ("NO_MEMORY", CapacityFault, "InitBufPool comes first"),
        ("GIVEN_BACK", CapacityFault, "InitBufPool comes first"),
        ("OUTER_LEAK", LeakFault, "TBufPool.Reset: 1 tensors were not freed"),
        ("OUTER_RACE", RaceFault, "DataCopy writes 256 bytes .* that Muls reads, .*::V_MTE2"),
        ("GONE", QueueFault, "AllocTensor: the VECIN queue .* has no memory"),
        ("TENSOR_GONE", LifetimeFault, "was freed and must not be used any more"),
    ],
)
def test_what_breaks_a_rule_of_pools_is_refused(pools, mode, fault, text):
    with pytest.raises(fault, match=text):
        pools(mode)


def test_a_pool_of_the_cube_s_memory_is_refused():
    with pytest.raises(DeviceFault, match="InitBufPool: expected a position of the vector core, VECIN"):
        launch(ascendc.compile(PROGRAMS / "cube_pool.cpp", "cube"), 1, np.zeros(8, np.float32))


def test_a_pool_of_the_kernel_s_own_is_refused_by_name():
    with pytest.raises(CompileError, match="EXTERN_IMPL_BUFPOOL is not simulated"):
        ascendc.compile(PROGRAMS / "own_pool.cpp", "k")
