#include "kernel_operator.h"
using namespace AscendC;
using namespace AscendC::Reg;

// One instruction on 256 bytes each of a, b and d, under a mask of bytes; d is dst before it.
template <typename T, typename = void>
struct Vectors {
    RegTensor<T> a, b, d;
    MaskReg mask;
};
#define CASE(number, ...) case number: { __VA_ARGS__; break; }
constexpr MaskMergeMode MERGING = MaskMergeMode::MERGING;

template <typename T>
__aicore__ inline void any_type(Vectors<T>& v, int which)
{
    const T two = T(2);
    switch (which) {
        CASE(0, Add(v.d, v.a, v.b, v.mask)) CASE(1, (Add<T, MERGING>(v.d, v.a, v.b, v.mask)))
        CASE(2, Sub(v.d, v.a, v.b, v.mask)) CASE(3, Max(v.d, v.a, v.b, v.mask))
        CASE(4, (Min<T, MERGING>(v.d, v.a, v.b, v.mask))) CASE(5, Mul(v.d, v.a, v.b, v.mask))
        CASE(6, Adds(v.d, v.a, two, v.mask)) CASE(7, Maxs(v.d, v.a, two, v.mask)) CASE(8, Mins(v.d, v.a, two, v.mask))
        CASE(9, Move(v.d, v.a, v.mask)) CASE(10, Duplicate(v.d, two, v.mask)) CASE(11, Duplicate(v.d, v.a, v.mask))
        CASE(12, Select(v.d, v.a, v.b, v.mask))
        CASE(13, MaskReg m; (Compare<T, CMPMODE::LT>(m, v.a, v.b, v.mask)); Duplicate(v.d, two, m))
        CASE(14, MaskReg m; (Compares<T, CMPMODE::GE>(m, v.a, two, v.mask)); Duplicate(v.d, two, m))
        CASE(15, Interleave(v.d, v.b, v.a, v.b)) CASE(16, DeInterleave(v.d, v.b, v.a, v.b)) CASE(17, Squeeze(v.d, v.a, v.mask))
        CASE(18, Arange(v.d, two)) CASE(19, Reduce<ReduceType::MAX>(v.d, v.a, v.mask))
        CASE(20, Reduce<ReduceType::MIN>(v.d, v.a, v.mask)) CASE(21, MulAddDst(v.d, v.a, v.b, v.mask))
    }
}
template <typename T>
__aicore__ inline void float_type(Vectors<T>& v, int which)
{
    switch (which) {
        CASE(40, Div(v.d, v.a, v.b, v.mask)) CASE(41, Exp(v.d, v.a, v.mask))
        CASE(42, Abs(v.d, v.a, v.mask); Ln(v.d, v.d, v.mask)) CASE(43, Abs(v.d, v.a, v.mask); Sqrt(v.d, v.d, v.mask))
        CASE(44, Neg(v.d, v.a, v.mask)) CASE(45, Relu(v.d, v.a, v.mask)) CASE(46, Muls(v.d, v.a, T(2), v.mask))
        CASE(47, MulDstAdd(v.d, v.a, v.b, v.mask)) CASE(48, Axpy(v.d, v.a, T(2), v.mask))
        CASE(49, AbsSub(v.d, v.a, v.b, v.mask)) CASE(50, Reduce<ReduceType::SUM>(v.d, v.a, v.mask))
        CASE(51, ReduceDataBlock<ReduceType::SUM>(v.d, v.a, v.mask)) CASE(52, PairReduceElem(v.d, v.a, v.mask))
        CASE(53, Truncate<T, RoundMode::CAST_FLOOR>(v.d, v.a, v.mask))
    }
}
template <typename T>
__aicore__ inline void whole_type(Vectors<T>& v, int which)
{
    switch (which) {
        CASE(60, And(v.d, v.a, v.b, v.mask)) CASE(61, Or(v.d, v.a, v.b, v.mask)) CASE(62, Xor(v.d, v.a, v.b, v.mask))
        CASE(63, Not(v.d, v.a, v.mask)) CASE(64, ShiftLefts(v.d, v.a, int16_t(3), v.mask))
        CASE(65, ShiftRights(v.d, v.a, int16_t(3), v.mask)) CASE(66, Abs(v.d, v.a, v.mask))
    }
}
// Casts: to T of U, into each layout that there is.
template <typename T, typename U, RegLayout layout, RoundMode mode = RoundMode::CAST_RINT, SatMode limit = SatMode::SAT>
__aicore__ inline void cast(__ubuf__ uint8_t* to, __ubuf__ uint8_t* from, MaskReg& mask)
{
    static constexpr CastTrait trait{layout, limit, MaskMergeMode::ZEROING, mode};
    RegTensor<U> source;
    RegTensor<T> target;
    MaskReg all = CreateMask<uint8_t>();
    LoadAlign((RegTensor<uint8_t>&)source, from);
    Cast<T, U, trait>(target, source, mask);
    StoreAlign(to, (RegTensor<uint8_t>&)target, all);
}
template <typename T>
__aicore__ inline void compute(int which, __ubuf__ uint8_t* at)
{
    Vectors<T> v;
    MaskReg all = CreateMask<uint8_t>();
    LoadAlign(v.a, (__ubuf__ T*)at), LoadAlign(v.b, (__ubuf__ T*)(at + 256)), LoadAlign(v.d, (__ubuf__ T*)(at + 512));
    LoadAlign(v.mask, (__ubuf__ uint32_t*)(at + 768));
    any_type(v, which);
    if constexpr (std::is_integral_v<T>) whole_type(v, which);
    else float_type(v, which);
    StoreAlign(at + 1024, (RegTensor<uint8_t>&)v.d, all);
}
#define CAST(number, ...) case number: return cast<__VA_ARGS__>(at + 1024, at, mask);
__aicore__ inline void casts(int which, __ubuf__ uint8_t* at)
{
    MaskReg mask;
    LoadAlign(mask, (__ubuf__ uint32_t*)(at + 768));
    switch (which) {
        CAST(0, half, float, RegLayout::ZERO) CAST(1, half, float, RegLayout::ONE, RoundMode::CAST_TRUNC)
        CAST(2, bfloat16_t, float, RegLayout::ZERO) CAST(3, float, half, RegLayout::ZERO) CAST(4, float, half, RegLayout::ONE)
        CAST(5, float, bfloat16_t, RegLayout::ZERO) CAST(6, int32_t, float, RegLayout::UNKNOWN, RoundMode::CAST_FLOOR)
        CAST(7, float, int32_t, RegLayout::UNKNOWN) CAST(8, int16_t, float, RegLayout::ZERO, RoundMode::CAST_ROUND)
        CAST(9, int8_t, half, RegLayout::ONE, RoundMode::CAST_CEIL) CAST(10, half, int8_t, RegLayout::ZERO)
        CAST(11, uint8_t, int32_t, RegLayout::THREE) CAST(12, int64_t, int32_t, RegLayout::ZERO)
        CAST(13, fp8_e4m3fn_t, float, RegLayout::TWO)
        CAST(14, fp8_e5m2_t, float, RegLayout::ZERO, RoundMode::CAST_RINT, SatMode::NO_SAT)
        CAST(15, float, fp8_e4m3fn_t, RegLayout::ZERO) CAST(16, float, fp8_e5m2_t, RegLayout::ONE)
        CAST(17, hifloat8_t, float, RegLayout::ZERO, RoundMode::CAST_ROUND) CAST(18, float, hifloat8_t, RegLayout::ZERO)
        CAST(19, fp4x2_e2m1_t, bfloat16_t, RegLayout::ZERO) CAST(20, bfloat16_t, fp4x2_e2m1_t, RegLayout::ONE)
        CAST(21, int4x2_t, half, RegLayout::ZERO) CAST(22, fp8_e8m0_t, bfloat16_t, RegLayout::ZERO)
        CAST(23, bfloat16_t, half, RegLayout::UNKNOWN, RoundMode::CAST_RINT, SatMode::NO_SAT)
    }
}
// x: a, b, d and the mask's bits, of 1024 bytes; y: dst.
extern "C" __global__ __aicore__ void registers(GM_ADDR x, GM_ADDR y, GM_ADDR tiling)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 1280);
    LocalTensor<uint8_t> all = buffer.Get<uint8_t>();
    GlobalTensor<uint8_t> from, to;
    from.SetGlobalBuffer(x), to.SetGlobalBuffer(y);
    const int count = tiling[2] * 256 + tiling[3];
    for (int i = 0; i < count; ++i) { // an instruction each: its number, then its type
        DataCopy(all, from[1024 * i], 1024);
        SetFlag<HardEvent::MTE2_V>(0), WaitFlag<HardEvent::MTE2_V>(0);
        __VEC_SCOPE__ {
            __ubuf__ uint8_t* at = (__ubuf__ uint8_t*)all.GetPhyAddr();
            const int which = tiling[4 + 2 * i];
            switch (tiling[5 + 2 * i]) {
                CASE(0, compute<float>(which, at)) CASE(1, compute<half>(which, at)) CASE(2, compute<bfloat16_t>(which, at))
                CASE(3, compute<int32_t>(which, at)) CASE(4, compute<int16_t>(which, at)) CASE(5, compute<uint8_t>(which, at))
                CASE(6, casts(which, at))
            }
        }
        SetFlag<HardEvent::V_MTE3>(0), WaitFlag<HardEvent::V_MTE3>(0);
        DataCopy(to[256 * i], all[1024], 256);
        PipeBarrier<PIPE_ALL>();
    }
}
