#include "kernel_operator.h"
using namespace AscendC;
using namespace AscendC::Reg;
#define WAIT(event) SetFlag<HardEvent::event>(0), WaitFlag<HardEvent::event>(0)

// x[0:count] is copied to a; what a vector function makes of it in b is copied to y.
struct Block {
    TPipe pipe;
    TBuf<TPosition::VECCALC> first, second;
    TQue<TPosition::VECOUT, 1> queue;
    GlobalTensor<float> x, y;
    LocalTensor<float> a, b;
    __ubuf__ float *from, *to;
    __aicore__ inline Block(GM_ADDR source, GM_ADDR target, int count = 64, int room = 64)
    {
        x.SetGlobalBuffer((__gm__ float*)source);
        y.SetGlobalBuffer((__gm__ float*)target);
        pipe.InitBuffer(first, 256);
        pipe.InitBuffer(second, room * 4);
        a = first.Get<float>(), b = second.Get<float>();
        from = (__ubuf__ float*)a.GetPhyAddr(), to = (__ubuf__ float*)b.GetPhyAddr();
        DataCopy(a, x, count);
        WAIT(MTE2_V);
    }
    __aicore__ inline void out(int count = 64, bool waits = true)
    {
        if (waits) WAIT(V_MTE3);
        DataCopy(y, b, count);
    }
};
#define ALL CreateMask<float>()
#define REGISTERS RegTensor<float> r, s; MaskReg all = ALL, eight = CreateMask<float, MaskPattern::VL8>();
// A kernel: its block's arguments, those of `out`, what comes ahead of the vector function, and that.
#define PAIR(name, block, result, ahead, ...) \
    __aicore__ inline void name(GM_ADDR x, GM_ADDR y, bool fault) \
    { \
        Block k block; \
        ahead; \
        __VEC_SCOPE__ { REGISTERS __VA_ARGS__ } \
        k.out result; \
    }

PAIR(bar, (x, y), (), , LoadAlign(r, k.from); Muls(r, r, 2.0f, all); StoreAlign(k.to, r, all);
    if (!fault) LocalMemBar<MemType::VEC_STORE, MemType::VEC_LOAD>();
    LoadAlign(s, k.to); StoreAlign(k.to, s, all);)
PAIR(tail_store, (x, y, 64, 8), (8), , LoadAlign(r, k.from); StoreAlign(k.to, r, fault ? all : eight);)
PAIR(tail_reduce, (x, y, 8), (), , LoadAlign(r, k.from); Reduce(s, r, fault ? all : eight); StoreAlign(k.to, s, all);)
PAIR(counter, (x, y, 64, 72), (), uint32_t left = 72, LoadAlign(r, k.from);
    for (uint16_t i = 0; i < 2; ++i) {
        uint32_t again = 72;
        MaskReg mask = UpdateMask<float>(fault ? again : left);
        StoreAlign(k.to + 64 * i, r, mask);
    })
PAIR(narrow, (x, y), (), , RegTensor<half> h; MaskReg mask = fault ? ALL : CreateMask<half>(), halves = CreateMask<half>();
    LoadAlign(h, (__ubuf__ half*)k.from); Adds(h, h, half(0), mask); StoreAlign((__ubuf__ half*)k.to, h, halves);)
constexpr CastTrait NARROWING{RegLayout::ZERO, SatMode::NO_SAT, MaskMergeMode::ZEROING, RoundMode::CAST_RINT};
PAIR(packed, (x, y), (32), __ubuf__ half* to = (__ubuf__ half*)k.to, RegTensor<half> h; MaskReg halves = CreateMask<half>();
    LoadAlign(r, k.from); Cast<half, float, NARROWING>(h, r, all);
    if (fault) StoreAlign<half, StoreDist::DIST_PACK_B16>(to, h, halves);
    else StoreAlign<half, StoreDist::DIST_PACK_B32>(to, h, all);)
PAIR(blank_register, (x, y), (), , LoadAlign(r, k.from);
    if (!fault) Duplicate(s, 0.0f);
    Add(s, s, r, all); StoreAlign(k.to, s, all);)
PAIR(partly_blank, (x, y), (), , LoadAlign(r, k.from);
    if (!fault) Duplicate(s, 0.0f);
    Move(s, r, eight); StoreAlign(k.to, s, all);)
PAIR(blank_mask, (x, y), (), , MaskReg mask; std::memset(mask.bit, 1, sizeof mask.bit);
    if (!fault) mask = ALL;
    LoadAlign(r, k.from); Adds(r, r, 1.0f, mask); StoreAlign(k.to, r, all);)
PAIR(compared, (x, y, 8), (), , MaskReg positive; LoadAlign(r, k.from);
    Compares<float, CMPMODE::GT>(positive, r, 0.0f, fault ? all : eight);
    Duplicate(r, 1.0f); Duplicate(s, 0.0f); Select(r, r, s, positive); StoreAlign(k.to, r, all);)
PAIR(load_pre, (x, y), (8), __ubuf__ float* from = k.from + 1, UnalignRegForLoad u;
    if (!fault) LoadUnAlignPre(u, from);
    LoadUnAlign(r, u, from, 64); StoreAlign(k.to, r, eight);)
PAIR(store_post, (x, y), (32), __ubuf__ float* to = k.to, UnalignRegForStore u; LoadAlign(r, k.from);
    StoreUnAlign(to, r, u, 30); StoreUnAlign(to, r, u, 33);
    if (!fault) StoreUnAlignPost(to, u, 0);)
PAIR(alignment, (x, y), (8), , LoadAlign(r, k.from + (fault ? 1 : 8)); StoreAlign(k.to, r, eight);)
PAIR(flag_in, (x, y), (), DataCopy(k.b, k.x, 64); if (!fault) WAIT(MTE2_V),
    LoadAlign(r, k.to); Muls(r, r, 2.0f, all); StoreAlign(k.to, r, all);)
PAIR(flag_out, (x, y), (64, !fault), , LoadAlign(r, k.from); StoreAlign(k.to, r, all);)
PAIR(freed, (x, y), (), k.pipe.InitBuffer(k.queue, 1, 256); LocalTensor<float> c = k.queue.AllocTensor<float>();
    __ubuf__ float* at = (__ubuf__ float*)c.GetPhyAddr(); k.queue.FreeTensor(c); if (!fault) at = k.to,
    LoadAlign(r, k.from); StoreAlign(at, r, all); StoreAlign(k.to, r, all);)
PAIR(blank_index, (x, y), (), , RegTensor<int32_t> i;
    if (!fault) Arange<int32_t, IndexOrder::DECREASE_ORDER>(i, 0);
    Gather(r, k.from, (RegTensor<uint32_t>&)i, all); StoreAlign(k.to, r, all);)
PAIR(scattered, (x, y), (), , RegTensor<int32_t> i; LoadAlign(r, k.from); Arange(i, 0);
    if (fault) Mins(i, i, 62, all);
    StoreAlign(k.to, r, all); Scatter(k.to, r, (RegTensor<uint32_t>&)i, all);)
PAIR(outside, (x, y), (), float own[72], LoadAlign(r, fault ? own : k.from); StoreAlign(k.to, r, all);)
PAIR(no_function, (x, y), (), RegTensor<float> o; if (fault) LoadAlign(o, k.from), LoadAlign(r, k.from); StoreAlign(k.to, r, all);)
PAIR(wrapped, (x, y), (), const uint32_t rows = fault ? 65536 : 65535, LoadAlign(r, k.from);
    for (uint16_t i = 0; i < rows; ++i) StoreAlign(k.to, r, all);)
PAIR(control_set, (x, y), (), (SetCtrlSpr<60, 60>(1)); if (!fault) (ResetCtrlSpr<60, 60>()),
    LoadAlign(r, k.from); StoreAlign(k.to, r, all);)

using Kernel = void (*)(GM_ADDR, GM_ADDR, bool);
extern "C" __global__ __aicore__ void register_pairs(GM_ADDR x, GM_ADDR y, GM_ADDR tiling)
{
    constexpr Kernel kernels[] = {bar, tail_store, tail_reduce, counter, narrow, packed, blank_register, partly_blank, blank_mask,
                                  compared, load_pre, store_post, alignment, flag_in, flag_out, freed, blank_index, scattered,
                                  outside, no_function, wrapped, control_set};
    kernels[tiling[0]](x, y, tiling[1] != 0);
}
