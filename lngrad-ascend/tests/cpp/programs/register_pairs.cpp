#include "kernel_operator.h"
using namespace AscendC;
using namespace AscendC::Reg;
#define KERNEL __aicore__ inline void
#define WAIT(event) SetFlag<HardEvent::event>(0), WaitFlag<HardEvent::event>(0)
#define SCOPE(...) __VEC_SCOPE__ { __VA_ARGS__ }

// x[0:count] is copied to a; what a vector function makes of it in b is copied to y.
struct Block {
    TPipe pipe;
    TBuf<TPosition::VECCALC> first, second;
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
    __aicore__ inline void out(int count = 64)
    {
        WAIT(V_MTE3);
        DataCopy(y, b, count);
    }
};
#define ALL CreateMask<float>()
#define REGISTERS RegTensor<float> r, s; MaskReg all = ALL, eight = CreateMask<float, MaskPattern::VL8>();

KERNEL bar(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    SCOPE(REGISTERS
        LoadAlign(r, k.from);
        Muls(r, r, 2.0f, all);
        StoreAlign(k.to, r, all);
        if (!fault) LocalMemBar<MemType::VEC_STORE, MemType::VEC_LOAD>();
        LoadAlign(s, k.to);
        StoreAlign(k.to, s, all);)
    k.out();
}
KERNEL tail_store(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y, 64, 8);
    SCOPE(REGISTERS
        LoadAlign(r, k.from);
        StoreAlign(k.to, r, fault ? all : eight);)
    k.out(8);
}
KERNEL tail_reduce(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y, 8);
    SCOPE(REGISTERS
        LoadAlign(r, k.from);
        Reduce(s, r, fault ? all : eight);
        StoreAlign(k.to, s, all);)
    k.out();
}
KERNEL counter(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y, 64, 72);
    SCOPE(REGISTERS
        uint32_t left = 72;
        LoadAlign(r, k.from);
        for (uint16_t i = 0; i < 2; ++i) {
            uint32_t again = 72;
            MaskReg mask = UpdateMask<float>(fault ? again : left);
            StoreAlign(k.to + 64 * i, r, mask);
        })
    k.out();
}
KERNEL narrow(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    SCOPE(RegTensor<half> r; MaskReg mask = fault ? CreateMask<float>() : CreateMask<half>(); MaskReg all = CreateMask<half>();
        LoadAlign(r, (__ubuf__ half*)k.from);
        Adds(r, r, half(0), mask);
        StoreAlign((__ubuf__ half*)k.to, r, all);)
    k.out();
}
KERNEL packed(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    static constexpr CastTrait narrowing{RegLayout::ZERO, SatMode::NO_SAT, MaskMergeMode::ZEROING, RoundMode::CAST_RINT};
    SCOPE(REGISTERS RegTensor<half> h; MaskReg halves = CreateMask<half>();
        LoadAlign(r, k.from);
        Cast<half, float, narrowing>(h, r, all);
        if (fault) StoreAlign<half, StoreDist::DIST_PACK_B16>((__ubuf__ half*)k.to, h, halves);
        else StoreAlign<half, StoreDist::DIST_PACK_B32>((__ubuf__ half*)k.to, h, all);)
    k.out(32);
}
KERNEL blank_register(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    SCOPE(REGISTERS
        LoadAlign(r, k.from);
        if (!fault) Duplicate(s, 0.0f);
        Add(s, s, r, all);
        StoreAlign(k.to, s, all);)
    k.out();
}
KERNEL partly_blank(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    SCOPE(REGISTERS
        LoadAlign(r, k.from);
        if (!fault) Duplicate(s, 0.0f);
        Move(s, r, eight);
        StoreAlign(k.to, s, all);)
    k.out();
}
KERNEL blank_mask(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    SCOPE(REGISTERS MaskReg mask;
        std::memset(mask.bit, 1, sizeof mask.bit);
        if (!fault) mask = ALL;
        LoadAlign(r, k.from);
        Adds(r, r, 1.0f, mask);
        StoreAlign(k.to, r, all);)
    k.out();
}
KERNEL compared(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y, 8);
    SCOPE(REGISTERS MaskReg positive;
        LoadAlign(r, k.from);
        Compares<float, CMPMODE::GT>(positive, r, 0.0f, fault ? all : eight);
        Duplicate(r, 1.0f), Duplicate(s, 0.0f);
        Select(r, r, s, positive);
        StoreAlign(k.to, r, all);)
    k.out();
}
KERNEL load_pre(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    SCOPE(REGISTERS UnalignRegForLoad u;
        __ubuf__ float* from = k.from + 1;
        if (!fault) LoadUnAlignPre(u, from);
        LoadUnAlign(r, u, from, 64);
        StoreAlign(k.to, r, eight);)
    k.out(8);
}
KERNEL store_post(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    SCOPE(REGISTERS UnalignRegForStore u;
        __ubuf__ float* to = k.to;
        LoadAlign(r, k.from);
        StoreUnAlign(to, r, u, 30);
        StoreUnAlign(to, r, u, 34 - 1);
        if (!fault) StoreUnAlignPost(to, u, 0);)
    k.out(32);
}
KERNEL alignment(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    SCOPE(REGISTERS
        LoadAlign(r, k.from + (fault ? 1 : 8));
        StoreAlign(k.to, r, eight);)
    k.out(8);
}
KERNEL flag_in(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    DataCopy(k.b, k.x, 64);
    if (!fault) WAIT(MTE2_V);
    SCOPE(REGISTERS
        LoadAlign(r, k.to);
        Muls(r, r, 2.0f, all);
        StoreAlign(k.to, r, all);)
    k.out();
}
KERNEL flag_out(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    SCOPE(REGISTERS
        LoadAlign(r, k.from);
        StoreAlign(k.to, r, all);)
    if (!fault) WAIT(V_MTE3);
    DataCopy(k.y, k.b, 64);
}
KERNEL freed(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    TQue<TPosition::VECOUT, 1> queue;
    k.pipe.InitBuffer(queue, 1, 256);
    LocalTensor<float> c = queue.AllocTensor<float>();
    __ubuf__ float* at = (__ubuf__ float*)c.GetPhyAddr();
    if (fault) queue.FreeTensor(c);
    SCOPE(REGISTERS
        LoadAlign(r, k.from);
        StoreAlign(at, r, all);
        StoreAlign(k.to, r, all);)
    if (!fault) queue.FreeTensor(c);
    k.out();
}
KERNEL blank_index(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    SCOPE(REGISTERS RegTensor<int32_t> i; RegTensor<uint32_t> index;
        if (!fault) Arange<int32_t, IndexOrder::DECREASE_ORDER>(i, 0), index = (RegTensor<uint32_t>&)i;
        Gather(r, k.from, index, all);
        StoreAlign(k.to, r, all);)
    k.out();
}
KERNEL scattered(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    SCOPE(REGISTERS RegTensor<int32_t> i;
        LoadAlign(r, k.from);
        Arange(i, 0);
        if (fault) Mins(i, i, 62, all);
        StoreAlign(k.to, r, all);
        Scatter(k.to, r, (RegTensor<uint32_t>&)i, all);)
    k.out();
}
KERNEL outside(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    float own[72];
    SCOPE(REGISTERS
        LoadAlign(r, fault ? own : k.from);
        StoreAlign(k.to, r, all);)
    k.out();
}
KERNEL no_function(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    RegTensor<float> r;
    MaskReg all = ALL;
    if (fault) LoadAlign(r, k.from);
    SCOPE(LoadAlign(r, k.from);
        StoreAlign(k.to, r, all);)
    k.out();
}
KERNEL wrapped(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    const uint32_t rows = fault ? 65536 : 65535;
    SCOPE(REGISTERS
        LoadAlign(r, k.from);
        for (uint16_t i = 0; i < rows; ++i) StoreAlign(k.to, r, all);)
    k.out();
}
KERNEL control_set(GM_ADDR x, GM_ADDR y, bool fault)
{
    Block k(x, y);
    SetCtrlSpr<60, 60>(1);
    SCOPE(REGISTERS
        LoadAlign(r, k.from);
        StoreAlign(k.to, r, all);)
    if (!fault) ResetCtrlSpr<60, 60>();
    k.out();
}

using Kernel = void (*)(GM_ADDR, GM_ADDR, bool);
extern "C" __global__ __aicore__ void register_pairs(GM_ADDR x, GM_ADDR y, GM_ADDR tiling)
{
    constexpr Kernel kernels[] = {bar, tail_store, tail_reduce, counter, narrow, packed, blank_register, partly_blank, blank_mask, compared, load_pre,
                                  store_post, alignment, flag_in, flag_out, freed, blank_index, scattered, outside, no_function, wrapped, control_set};
    kernels[tiling[0]](x, y, tiling[1] != 0);
}
