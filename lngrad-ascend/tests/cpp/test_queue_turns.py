"""Queues as published: buffers in turn, flags between positions that a queue binds or EnQue names, pools of memory."""

from __future__ import annotations

import shutil

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
SAME_PATHS = True

HEAD = """\
#include "kernel_operator.h"
using namespace AscendC;
"""

TURNS = """
extern "C" __global__ __aicore__ void cleared(GM_ADDR y)
{
    TPipe pipe;
    TQue<TPosition::VECOUT, 2> queue;
    pipe.InitBuffer(queue, 2, 32);
    GlobalTensor<float> target;
    target.SetGlobalBuffer((__gm__ float*)y, 16);
    uint64_t first[4];
    for (int i = 0; i < 4; ++i) { // each buffer is cleared twice
        LocalTensor<float> a = queue.AllocTensor<float>();
        first[i] = a.GetPhyAddr();
        Duplicate(a, 0.0f, 8);
        queue.EnQue(a);
        a = queue.DeQue<float>();
        queue.FreeTensor(a);
    }
    const float in_turn = first[0] != first[1] && first[0] == first[2] && first[1] == first[3];
    LocalTensor<float> a = queue.AllocTensor<float>(), b = queue.AllocTensor<float>();
    Adds(a, a, in_turn, 8);
    Adds(b, b, 2 * in_turn, 8);
    queue.EnQue(a);
    queue.EnQue(b);
    a = queue.DeQue<float>();
    b = queue.DeQue<float>();
    DataCopy(target, a, 8);
    DataCopy(target[8], b, 8);
    queue.FreeTensor(a);
    queue.FreeTensor(b);
}
"""

BOUND = """
extern "C" __global__ __aicore__ void bound(GM_ADDR x, GM_ADDR y)
{
    TPipe pipe;
    TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> queue;
    pipe.InitBuffer(queue, 1, 256);
    GlobalTensor<float> source, target;
    source.SetGlobalBuffer((__gm__ float*)x, 64);
    target.SetGlobalBuffer((__gm__ float*)y, 64);
    LocalTensor<float> a = queue.AllocTensor<float>();
    DataCopy(a, source, 64);
#if MODE == 0 // the manuals' copy: in, then out
    queue.EnQue(a);
    a = queue.DeQue<float>();
#elif MODE == 1 // the same with the positions named
    queue.EnQue<TPosition::VECIN, TPosition::VECOUT, float>(a);
    a = queue.DeQue<TPosition::VECIN, TPosition::VECOUT, float>();
#else // in, computed, out
    queue.EnQue<TPosition::GM, TPosition::VECIN, float>(a);
    a = queue.DeQue<TPosition::GM, TPosition::VECIN, float>();
    Adds(a, a, 1.0f, 64);
#if MODE == 2
    queue.EnQue<TPosition::VECOUT, TPosition::GM, float>(a);
    a = queue.DeQue<TPosition::VECOUT, TPosition::GM, float>();
#endif
#endif
    DataCopy(target, a, 64);
    queue.FreeTensor(a);
}
"""

# Each stage has two buffers of 64 KiB: four do not fit into the Unified Buffer of an A2.
POOLS = """
#define FLAG(event) SetFlag<HardEvent::event>(0), WaitFlag<HardEvent::event>(0)
constexpr uint32_t BYTES = 65536, N = 64;
enum { SHARED, AGAIN, NESTED, ANEW, NO_RESET, STALE, HELD, LEAK, LONG, MANY, LARGER, OLD, NO_MEMORY, GIVEN_BACK,
       OUTER, OUTER_LEAK, OUTER_RACE, SCOPE, GONE, TENSOR_GONE };
using In = TQue<TPosition::VECIN, 1>;
using Out = TQue<TPosition::VECOUT, 1>;

struct Stages {
    TPipe pipe;
    TBufPool<TPosition::VECCALC> whole;
    TBufPool<TPosition::VECCALC, 2> first, second;
    In in1, in2;
    Out out1, out2;
    TBuf<> last;
    GlobalTensor<float> x, y;
    int32_t mode = 0;

    __aicore__ inline void stage(In& in, Out& out, float factor, int32_t at)
    {
        LocalTensor<float> a = in.AllocTensor<float>();
        if (mode == AGAIN) // by address: whose it is, the pool in use says
            DataCopyPadGm2UBImpl((__ubuf__ float*)a.GetPhyAddr(), (__gm__ float*)x.GetPhyAddr(),
                                 DataCopyExtParams{1, 4 * N, 0, 0, 0}, DataCopyPadExtParams<float>());
        else
            DataCopy(a, x, N);
        in.EnQue(a);
        a = in.DeQue<float>();
        LocalTensor<float> b = out.AllocTensor<float>();
        Muls(b, a, factor, N);
        out.EnQue(b);
        in.FreeTensor(a);
        b = out.DeQue<float>();
        DataCopy(y[at], b, N);
        if (mode != LEAK && mode != OUTER_LEAK) out.FreeTensor(b);
    }
    __aicore__ inline void run()
    {
        if (mode == NESTED || (mode >= OUTER && mode < SCOPE)) {
            pipe.InitBufPool(whole, 2 * BYTES + 4096);
            whole.InitBufPool(first, 2 * BYTES - 31); // rounded up
            whole.InitBufPool(second, 2 * BYTES, first);
        } else if (mode != NO_MEMORY) {
            pipe.InitBufPool(first, 2 * BYTES);
            pipe.InitBufPool(second, 2 * BYTES + 32 * (mode == LARGER), first);
        }
        if (mode == GIVEN_BACK) pipe.Reset();
        first.InitBuffer(in1, 1 + (mode == MANY), mode == MANY ? 32 : BYTES);
        first.InitBuffer(out1, 1, BYTES + (mode == LONG));
        if (mode == NESTED) pipe.InitBuffer(last, 32);
        if (mode == AGAIN) {
            second.InitBuffer(in2, 1, BYTES);
            second.InitBuffer(out2, 1, BYTES);
        }
        for (int32_t turn = 0; turn < (mode == AGAIN ? 3 : 1); ++turn) {
            stage(in1, out1, 2.0f + turn, 0);
            if (mode >= OUTER) whole.Reset();
            else if (mode != NO_RESET) first.Reset();
            if (mode == OUTER) PipeBarrier<PIPE_ALL>();
            if (mode != AGAIN) {
                TBufPool<TPosition::VECCALC, 2>& pool = mode == ANEW || mode == OLD ? first : second;
                if (mode == OLD) pipe.InitBufPool(first, 2 * BYTES, second);
                pool.InitBuffer(in2, 1, BYTES);
                pool.InitBuffer(out2, 1, BYTES);
            }
            stage(mode == OLD ? in1 : in2, out2, 3.0f + turn, N);
            second.Reset();
        }
    }
    __aicore__ inline void scoped() // the first pool's C++ object ends before the second's buffers are used
    {
        TBuf<> buf;
        LocalTensor<float> tensor;
        pipe.InitBufPool(second, 2 * BYTES);
        {
            TBufPool<TPosition::VECIN, 3> local;
            pipe.InitBufPool(local, 2 * BYTES, second);
            local.InitBuffer(in1, 1, BYTES);
            local.InitBuffer(out1, 1, BYTES - 32);
            local.InitBuffer(buf, 32);
            tensor = buf.Get<float>();
            Duplicate(tensor, 1.0f, 8);
            stage(in1, out1, 2.0f, 0);
        }
        second.InitBuffer(in2, 1, BYTES);
        second.InitBuffer(out2, 1, BYTES);
        if (mode == TENSOR_GONE) Duplicate(tensor, 1.0f, 8);
        stage(mode == GONE ? in1 : in2, out2, 3.0f, N);
        second.Reset();
    }
    __aicore__ inline void temporary() // what the first stage has written is read in the second, or written there again
    {
        TBuf<> buf1, buf2;
        pipe.InitBufPool(first, BYTES);
        pipe.InitBufPool(second, BYTES, first);
        first.InitBuffer(buf1, BYTES);
        second.InitBuffer(buf2, BYTES);
        LocalTensor<float> a = buf1.Get<float>();
        Duplicate(a, 1.0f, 2 * N);
        first.Reset();
        LocalTensor<float> b = buf2.Get<float>();
        PipeBarrier<PIPE_V>();
        if (mode == HELD) Duplicate(a, 2.0f, 2 * N);
        FLAG(V_MTE3);
        DataCopy(y, b, 2 * N);
    }
};

extern "C" __global__ __aicore__ void pools(GM_ADDR x, GM_ADDR y, GM_ADDR mode)
{
    Stages stages;
    stages.x.SetGlobalBuffer((__gm__ float*)x, N);
    stages.y.SetGlobalBuffer((__gm__ float*)y, 2 * N);
    GlobalTensor<int32_t> number;
    number.SetGlobalBuffer((__gm__ int32_t*)mode, 1);
    stages.mode = number.GetValue(0);
    if (stages.mode >= SCOPE) stages.scoped();
    else stages.mode == STALE || stages.mode == HELD ? stages.temporary() : stages.run();
}
"""
POOL_MODES = POOLS.partition("enum { ")[2].partition(" }")[0].replace(",", " ").split()


@pytest.fixture(scope="module")
def pools(tmp_path_factory):
    """Run a mode of the pools' kernel: y is [2x, 3x], and [4x, 5x] after three turns. Returns the report."""
    path = tmp_path_factory.mktemp("pools") / "pools.cpp"
    path.write_text(HEAD + POOLS)
    kernel = ascendc.compile(path, "pools")

    def run(mode, **options):
        x, y = np.random.default_rng(1).standard_normal(64).astype(np.float32), np.zeros(128, np.float32)
        report = launch(kernel, 1, x, y, np.int32([POOL_MODES.index(mode)]), **options)
        turns = 2 * (mode == "AGAIN")
        check_same_bits(y, np.concatenate([x * np.float32(2 + turns), x * np.float32(3 + turns)]))
        return report

    return run


def test_a_queue_hands_out_its_buffers_in_turn(tmp_path):
    """Each buffer was cleared, so that both have zeros when they are taken together; a device does not forget them."""
    (tmp_path / "turns.cpp").write_text(HEAD + TURNS)
    y = np.zeros(16, np.float32)
    launch(ascendc.compile(tmp_path / "turns.cpp", "cleared"), 1, y, strictness="device")
    np.testing.assert_array_equal(y, np.repeat(np.float32([1, 2]), 8))


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_bound_queue_orders_the_pipes_of_its_positions(tmp_path, mode):
    (tmp_path / "bound.cpp").write_text(HEAD + BOUND)
    x, y = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    report = launch(ascendc.compile(tmp_path / "bound.cpp", "bound", define={"MODE": mode}), 1, x, y)
    np.testing.assert_array_equal(y, x + np.float32(mode == 2))
    assert not report.remarks()


def test_a_bound_queue_orders_no_other_pipes(tmp_path):
    """Without the second EnQue and DeQue nothing orders the computation and the copy out."""
    (tmp_path / "bound.cpp").write_text(HEAD + BOUND)
    x, y = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    with pytest.raises(RaceFault, match="V_MTE3"):
        launch(ascendc.compile(tmp_path / "bound.cpp", "bound", define={"MODE": 3}), 1, x, y)


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


def test_a_pool_of_the_cube_s_memory_is_refused(tmp_path):
    (tmp_path / "cube.cpp").write_text(
        HEAD
        + """
extern "C" __global__ __aicore__ void cube(GM_ADDR y)
{
    TPipe pipe;
    TBufPool<TPosition::A1> pool;
    TBuf<> buf;
    pipe.InitBufPool(pool, 1024);
    pool.InitBuffer(buf, 1024);
}
"""
    )
    with pytest.raises(DeviceFault, match="InitBufPool: expected a position of the vector core, VECIN"):
        launch(ascendc.compile(tmp_path / "cube.cpp", "cube"), 1, np.zeros(8, np.float32))


def test_a_pool_of_the_kernel_s_own_is_refused_by_name(tmp_path):
    own = "struct Own { void Init() {} EXTERN_IMPL_BUFPOOL(Own, TPosition::VECCALC, 16); };\n"
    (tmp_path / "own.cpp").write_text(HEAD + own + 'extern "C" __global__ __aicore__ void k(GM_ADDR y) {}\n')
    with pytest.raises(CompileError, match="EXTERN_IMPL_BUFPOOL is not simulated"):
        ascendc.compile(tmp_path / "own.cpp", "k")
