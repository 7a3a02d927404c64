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
