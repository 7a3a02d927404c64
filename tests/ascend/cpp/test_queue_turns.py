"""Queues as published: buffers in turn, and flags between the positions that a queue binds or EnQue names."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from lngrad.ascend import ascendc
from lngrad.ascend.ascendc import launch
from lngrad.ascend.faults import RaceFault

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
