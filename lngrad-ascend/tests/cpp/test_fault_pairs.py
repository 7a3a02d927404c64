"""Faults of public reports that a first run does not show: each beside its twin, which is right and says nothing."""

from __future__ import annotations

import re
import shutil
import warnings

import numpy as np
import pytest

from lngrad_ascend import ascendc
from lngrad_ascend.faults import AscendWarning, BoundsFault, DeviceFault, PoisonFault, RaceFault

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
SAME_PATHS = True

PAIRS = r"""
#include "kernel_operator.h"
using namespace AscendC;
#define KERNEL template <typename T> __aicore__ inline void

template <typename T>
struct Block {
    TPipe pipe;
    TBuf<TPosition::VECCALC> a, b;
    GlobalTensor<T> x, y;
    __aicore__ inline Block(GM_ADDR from, GM_ADDR to, int bytes)
    {
        x.SetGlobalBuffer((__gm__ T*)from);
        y.SetGlobalBuffer((__gm__ T*)to);
        pipe.InitBuffer(a, bytes);
        pipe.InitBuffer(b, bytes);
    }
};
#define WAIT(event) SetFlag<HardEvent::event>(0), WaitFlag<HardEvent::event>(0)

KERNEL atomic_none(GM_ADDR x, GM_ADDR y, bool fault) // x[64] is added to y[0:64] and stored in y[64:128]
{
    Block<T> k(x, y, 256);
    LocalTensor<T> a = k.a.template Get<T>();
    DataCopy(a, k.x, 64);
    WAIT(MTE2_MTE3);
    SetAtomicAdd<T>();
    DataCopy(k.y, a, 64);
    if (!fault) SetAtomicNone();
    DataCopy(k.y[64], a, 64);
}

KERNEL rows(GM_ADDR x, GM_ADDR y, bool fault) // y = 2 x of 4 rows of 5, in and out by DataCopyPad
{
    Block<T> k(x, y, 256);
    LocalTensor<T> a = k.a.template Get<T>(), b = k.b.template Get<T>();
    DataCopyPad(a, k.x, DataCopyExtParams{4, 5 * sizeof(T), 0, 0, 0}, DataCopyPadExtParams<T>{false, 0, 0, T(0)});
    WAIT(MTE2_V);
    Muls(b, a, T(2), fault ? 20 : 4 * 32 / sizeof(T));
    WAIT(V_MTE3);
    if (fault) { // the rows are taken for one behind the other
        DataCopyPad(k.y, b, DataCopyExtParams{1, 20 * sizeof(T), 0, 0, 0});
    } else {
        DataCopyPad(k.y, b, DataCopyExtParams{4, 5 * sizeof(T), 0, 0, 0});
    }
}

KERNEL rounded_up(GM_ADDR x, GM_ADDR y, bool fault) // whole blocks are stored, and the next row puts them right
{
    Block<T> k(x, y, 256);
    LocalTensor<T> a = k.a.template Get<T>();
    DataCopyPad(a, k.x, DataCopyExtParams{2, 5 * sizeof(T), 0, 0, 0}, DataCopyPadExtParams<T>{false, 0, 0, T(0)});
    WAIT(MTE2_MTE3);
    DataCopy(k.y, a, 32 / sizeof(T));
    PipeBarrier<PIPE_MTE3>();
    if (fault) {
        DataCopy(k.y[5], a[32 / sizeof(T)], 32 / sizeof(T));
    } else {
        DataCopyPad(k.y[5], a[32 / sizeof(T)], DataCopyExtParams{1, 5 * sizeof(T), 0, 0, 0});
    }
}

KERNEL overflow(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block<T> k(x, y, 256);
    LocalTensor<T> a = k.a.template Get<T>();
    DataCopy(a, k.x, 64);
    WAIT(MTE2_V);
    Muls(a, a, T(fault ? 65504 : 2), 64);
    PipeBarrier<PIPE_V>();
    Mul(a, a, a, 64);
    WAIT(V_MTE3);
    DataCopy(k.y, a, 64);
}

KERNEL lines(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block<T> k(x, y, 256);
    const int place = GetBlockIdx() * (fault ? 1 : 64 / sizeof(T));
    k.y.SetValue(place, T(GetBlockIdx() + 1));
    DataCacheCleanAndInvalid<T, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(k.y[place]);
}

KERNEL cache(GM_ADDR x, GM_ADDR y, bool fault) // y[0] is set, then read by a copy
{
    Block<T> k(x, y, 256);
    k.y.SetValue(0, T(3));
    if (!fault) DataCacheCleanAndInvalid<T, CacheLine::ENTIRE_DATA_CACHE, DcciDst::CACHELINE_OUT>(k.y);
    WAIT(S_MTE2);
    LocalTensor<T> a = k.a.template Get<T>();
    DataCopy(a, k.y, 32 / sizeof(T));
    WAIT(MTE2_MTE3);
    DataCopy(k.y[64], a, 32 / sizeof(T));
}

KERNEL unread(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block<T> k(x, y, 256);
    LocalTensor<T> a = k.a.template Get<T>();
    for (int i = 0; i < 2; ++i) {
        DataCopy(a, k.x, 64);
        if (i == 0) PipeBarrier<PIPE_MTE2>();
        WAIT(MTE2_MTE3);
        if (!fault || i == 1) DataCopy(k.y, a, 64);
        WAIT(MTE3_MTE2);
    }
}

KERNEL repeats(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block<T> k(x, y, 64 * 1024);
    LocalTensor<T> a = k.a.template Get<T>();
    int times = fault ? 256 : 255;
    Duplicate(a, T(1), 64, times, 1, 8);
    Adds(a, a, T(1), 64, times, {1, 1, 8, 8});
    Add(a, a, a, 64, times, {1, 1, 1, 8, 8, 8});
    WAIT(V_MTE3);
    DataCopy(k.y, a, 64);
}

KERNEL lengths(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block<T> k(x, y, 65536 + 64);
    LocalTensor<T> a = k.a.template Get<T>();
    DataCopyParams params;
    params.blockLen = (fault ? 65536 : 65472) + 32;
    DataCopyPad(a, k.x, params, DataCopyPadParams());
    WAIT(MTE2_MTE3);
    DataCopy(k.y, a, 64);
}

template <typename T>
__global__ __aicore__ void pairs(GM_ADDR x, GM_ADDR y, GM_ADDR tiling) // which of them, and whether with its fault
{
    constexpr void (*every[])(GM_ADDR, GM_ADDR, bool) = {
        atomic_none<T>, rows<T>, rounded_up<T>, overflow<T>, lines<T>, cache<T>, unread<T>, repeats<T>,
        lengths<T>};
    every[tiling[0]](x, y, tiling[1]);
}
"""
NAMES = re.findall(r"KERNEL (\w+)\(", PAIRS)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.cpp"
    path.write_text(PAIRS)
    return path


def run(pairs, name, fault, x, y, dtype="float", blocks=1, **options):
    """Run one of a pair. Returns what is told of it: warnings, then remarks."""
    kernel, which = ascendc.compile(pairs, f"pairs<{dtype}>"), bytes([NAMES.index(name), fault])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AscendWarning)
        report = ascendc.launch(kernel, blocks, x, y, tiling=which, **options)
    return report.warnings(), report.remarks()


X = np.random.default_rng(0).standard_normal(65600).astype(np.float32)
NEW = np.frombuffer(b"\xff" * 512, np.float32)  # as memory is allotted


def test_set_atomic_none_is_missing(pairs):
    for fault in (False, True):
        y = np.zeros(128, np.float32)
        texts, _ = run(pairs, "atomic_none", int(fault), X[:64].copy(), y)
        assert (len(texts), "SetAtomicNone is missing" in str(texts)) == (fault, fault)
        np.testing.assert_array_equal(y, np.tile(X[:64], 2))


@pytest.mark.parametrize(("dtype", "kind"), [("float", np.float32), ("half", np.float16), ("int32_t", np.int32)])
def test_an_atomic_sum_needs_memory_that_somebody_has_cleared(pairs, dtype, kind):
    x, y = np.ones(64, kind), NEW.copy().view(kind)[:128].copy()
    with pytest.raises(PoisonFault, match=r"arrays\[1\] has no value in 64 of the elements"):
        run(pairs, "atomic_none", 0, x, y, dtype)
    y[:] = 0
    assert run(pairs, "atomic_none", 0, x, y, dtype) == ((), ())
    y.view(np.uint8)[:] = 0xFF
    _, texts = run(pairs, "atomic_none", 0, x, y, dtype, strictness="device")
    assert "clear them first" in str(texts)


@pytest.mark.parametrize(("dtype", "kind"), [("float", np.float32), ("half", np.float16)])
def test_padding_of_rows_in_an_output(pairs, dtype, kind):
    x, y = X[:20].astype(kind), np.zeros(20, kind)
    assert run(pairs, "rows", 0, x, y, dtype) == ((), ())
    np.testing.assert_array_equal(y, 2 * x)
    (text,), _ = run(pairs, "rows", 1, x, y, dtype)
    lost = (20 // (32 // x.itemsize)) * (32 // x.itemsize - 5) + max(0, 20 % (32 // x.itemsize) - 5)
    assert f"{lost * x.itemsize} bytes of arrays[1] are left holding what DataCopyPad filled" in text


def test_padding_that_is_overwritten_is_none(pairs):
    for fault in (False, True):
        y = np.zeros(16, np.float32)
        texts, _ = run(pairs, "rounded_up", int(fault), X[:10].copy(), y)
        np.testing.assert_array_equal(y[:10], X[:10])
        assert ("12 bytes of arrays[1]" in str(texts)) == fault


def test_a_half_becomes_infinite(pairs):
    x = np.linspace(2, 9, 64).astype(np.float16)
    assert run(pairs, "overflow", 0, x, np.zeros(64, np.float16), "half") == ((), ())
    texts, _ = run(pairs, "overflow", 1, x, np.zeros(64, np.float16), "half")
    assert "Muls: a result is beyond 65504" in texts[0]
    assert run(pairs, "overflow", 1, np.float32(x) * 1e20, np.zeros(64, np.float32)) == ((), ())  # a float is no half


def test_two_blocks_in_one_line_of_their_data_caches(pairs):
    y = np.zeros(64, np.float32)
    assert run(pairs, "lines", 0, X[:64].copy(), y, blocks=4) == ((), ())
    np.testing.assert_array_equal(y[::16], [1, 2, 3, 4])
    with pytest.raises(RaceFault, match="blocks 0 and 1 write one line of 64 bytes"):
        run(pairs, "lines", 1, X[:64].copy(), y, blocks=4)
    assert run(pairs, "lines", 1, X[:64].copy(), y, blocks=1) == ((), ())


def test_what_the_scalar_unit_wrote_is_in_its_data_cache(pairs):
    y = np.zeros(128, np.float32)
    assert run(pairs, "cache", 0, X[:64].copy(), y) == ((), ())
    assert y[64] == 3
    with pytest.raises(RaceFault, match=r"reads 4 bytes of arrays\[1\] that SetValue at .*DataCacheCleanAndInvalid"):
        run(pairs, "cache", 1, X[:64].copy(), y)


def test_overwritten_before_it_was_read(pairs):
    y = np.zeros(64, np.float32)
    assert run(pairs, "unread", 0, X[:64].copy(), y) == ((), ())
    _, (text,) = run(pairs, "unread", 1, X[:64].copy(), y)
    assert "is overwritten before anything has read what DataCopy" in text


@pytest.mark.parametrize(
    ("name", "text"),
    [("repeats", "repeatTime must be .* got 256; a device takes 0"), ("lengths", "got 65568; a device takes 32")],
)
def test_numbers_that_do_not_fit_are_named(pairs, name, text):
    assert run(pairs, name, 0, X, np.zeros(64, np.float32)) == ((), ())
    with pytest.raises(BoundsFault, match=text):
        run(pairs, name, 1, X, np.zeros(64, np.float32))


@pytest.mark.filterwarnings("ignore::lngrad_ascend.faults.AscendWarning")
def test_a_device_takes_the_rest_of_a_number(pairs):
    y = np.zeros(64, np.float32)
    _, texts = run(pairs, "lengths", 1, X, y, strictness="device")
    np.testing.assert_array_equal(y[:8], X[:8])
    assert "a device takes 32" in str(texts)


def test_warnings_come_from_launch(pairs):
    with pytest.warns(AscendWarning, match=r"pairs.cpp:\d+: SetAtomicAdd"):
        ascendc.launch(
            ascendc.compile(pairs, "pairs<float>"), 1, X[:64].copy(), np.zeros(128, np.float32), tiling=bytes([0, 1])
        )


def test_python_kernels_clean_the_cache():
    def body(x, cleans):
        memory, buf = ascendc.GlobalTensor(np.float32), ascendc.TBuf()
        memory.SetGlobalBuffer(x)
        ascendc.TPipe().InitBuffer(buf, 256)
        memory.SetValue(0, 1)
        if cleans:
            ascendc.DataCacheCleanAndInvalid(memory)
        ascendc.DataCopy(buf.Get(np.float32), memory, 8)

    ascendc.launch(lambda x: body(x, True), 1, X[:64].copy())
    with pytest.raises(DeviceFault, match="DataCacheCleanAndInvalid"):
        ascendc.launch(lambda x: body(x, False), 1, X[:64].copy())
