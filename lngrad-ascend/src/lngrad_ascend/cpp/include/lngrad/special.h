// The vector instructions that are not elementwise or have parameters of their own, and the mask register.
#ifndef LNGRAD_SPECIAL_H
#define LNGRAD_SPECIAL_H

#include "lngrad/vector.h"

namespace AscendC {

inline void SetMaskCount() { lngrad::mask_register.counts = true; }
inline void SetMaskNorm() { lngrad::mask_register.counts = false; }
inline void ResetMask() { lngrad::mask_register.low = lngrad::mask_register.high = FULL_MASK; }

template <typename T, MaskMode mode = MaskMode::NORMAL>
void SetVectorMask(const uint64_t maskHigh, const uint64_t maskLow)
{
    lngrad::mask_register.low = maskLow;
    lngrad::mask_register.high = maskHigh;
}
template <typename T, MaskMode mode = MaskMode::NORMAL>
void SetVectorMask(int32_t len)
{
    if constexpr (mode == MaskMode::COUNTER) {
        SetVectorMask<T, mode>(0, len);
    } else {
        SetVectorMask<T, mode>(lngrad::ones(len - 64), lngrad::ones(len));
    }
}

LNGRAD_INSTRUCTION(Duplicate, Duplicate, (typename T, bool isSetMask = true), (typename T), (T),
                   (const LocalTensor<T>& dst, const lngrad::same<T>& scalarValue), (const uint16_t dstBlockStride, const uint8_t dstRepeatStride),
                   ({dstBlockStride, 1, 1, dstRepeatStride, 8, 8}), lngrad::real(scalarValue), dst)
LNGRAD_INSTRUCTION(CreateVecIndex, CreateVecIndex, (typename T), (typename T), (T),
                   (const LocalTensor<T>& dst, const lngrad::same<T>& firstValue), (uint16_t dstBlkStride, uint8_t dstRepStride),
                   ({dstBlkStride, 1, 1, dstRepStride, 8, 8}), lngrad::real(firstValue), dst)
LNGRAD_INSTRUCTION(Cast, Cast, (typename T, typename U), (typename T, typename U), (T, U),
                   (const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode),
                   (const UnaryRepeatParams& p), (lngrad::strides(p)), 0, dst, src, {}, int64_t(roundMode))
LNGRAD_INSTRUCTION(Copy, Copy, (typename T, bool isSetMask = true), (typename T), (T),
                   (const LocalTensor<T>& dst, const LocalTensor<T>& src), (const CopyRepeatParams& p),
                   ({p.dstStride, p.srcStride, 1, p.dstRepeatSize, p.srcRepeatSize, 8}), 0, dst, src)
LNGRAD_INSTRUCTION(Compare, Compare, (typename T, typename U), (typename T, typename U), (T),
                   (const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode),
                   (const BinaryRepeatParams& p), (lngrad::strides(p)), 0, dst, src0, src1, int64_t(cmpMode))
#define LNGRAD_COMPARE_SCALAR(Name) \
    LNGRAD_INSTRUCTION(Name, CompareScalar, (typename T, typename U), (typename T, typename U), (T), \
                       (const LocalTensor<U>& dst, const LocalTensor<T>& src0, const lngrad::same<T> src1Scalar, CMPMODE cmpMode), \
                       (const UnaryRepeatParams& p), (lngrad::strides(p)), lngrad::real(src1Scalar), dst, src0, {}, int64_t(cmpMode))
LNGRAD_COMPARE_SCALAR(CompareScalar)
LNGRAD_COMPARE_SCALAR(Compares)
LNGRAD_INSTRUCTION(Select, Select, (typename T, typename U), (typename T, typename U), (T),
                   (const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, const LocalTensor<T>& src1, SELMODE selMode),
                   (const BinaryRepeatParams& p), (lngrad::strides(p)), 0, dst, selMask, src0, int64_t(selMode), src1)
LNGRAD_INSTRUCTION(Select, SelectScalar, (typename T, typename U), (typename T, typename U), (T),
                   (const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, lngrad::same<T> src1, SELMODE selMode),
                   (const BinaryRepeatParams& p), (lngrad::strides(p)), lngrad::real(src1), dst, selMask, src0, int64_t(selMode))
// By the 128 bits of a register, at address 0, that of the last Compare without a dst.
template <typename T, bool isSetMask = true>
void Compare(const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode, lngrad::MaskArg mask, const BinaryRepeatParams& p,
             Where where = Where::here())
{
    lngrad::vector(Op::Compare, where, 0, lngrad::masked<T, isSetMask>(mask, 1), lngrad::strides(p), at_address<uint8_t>(nullptr, where), src0,
                   src1, int64_t(cmpMode));
}
template <typename T, SELMODE selMode, typename Repeats>
void Select(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, const Repeats repeatTime, const BinaryRepeatParams& p)
{
    static_assert(selMode == SELMODE::VSEL_CMPMASK_SPR, "lngrad: Select without a mask is simulated in mode VSEL_CMPMASK_SPR");
    lngrad::vector(Op::Select, p.where, 0, lngrad::masked<T, false>(0, repeatTime), lngrad::strides(p), dst, at_address<uint8_t>(nullptr, p.where),
                   src0, int64_t(selMode), src1);
}
#define LNGRAD_MOVE_MASK(Name, tensor, to, from) \
    template <typename T> \
    void Name(const LocalTensor<T>& tensor, Where where = Where::here()) \
    { \
        const Operand kept = at_address<uint16_t>(nullptr, where), given = tensor.template ReinterpretCast<uint16_t>(); \
        lngrad::vector(Op::Or, where, 0, {0, 8, 0, 1}, {}, to, from, from); \
    }
LNGRAD_MOVE_MASK(GetCmpMask, dst, given, kept)
LNGRAD_MOVE_MASK(SetCmpMask, src, kept, given)
LNGRAD_INSTRUCTION(Gather, Gather, (typename T), (typename T), (T),
                   (const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& srcOffset, const uint32_t srcBaseOffset),
                   (const uint16_t dstRepStride), ({1, 1, 1, dstRepStride, 8, 8}), 0, dst, src, srcOffset, int64_t(srcBaseOffset))

template <typename T>
void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint8_t repeatTime, const BrcbRepeatParams& p, Where where = Where::here())
{
    lngrad::vector(Op::Brcb, where, 0, {1, 0, 0, repeatTime}, {p.dstBlkStride, 1, 1, p.dstRepStride, 8, 8}, dst, src);
}

// The reductions by their newer names: what they compute is an argument of the template.
#define LNGRAD_REPEATED \
    const LocalTensor<T>& dst, const LocalTensor<U>& src, lngrad::MaskArg mask, const int32_t repeatTime, const int32_t dstRepStride, \
    const int32_t srcBlkStride, const int32_t srcRepStride
#define LNGRAD_CHOOSE_REDUCE(Kind, ...) \
    if constexpr (reduceType == ReduceType::SUM) { \
        Kind##ReduceSum<T, isSetMask>(__VA_ARGS__); \
    } else if constexpr (reduceType == ReduceType::MAX) { \
        Kind##ReduceMax<T, isSetMask>(__VA_ARGS__); \
    } else { \
        Kind##ReduceMin<T, isSetMask>(__VA_ARGS__); \
    }
template <ReduceType reduceType, typename T, typename U, bool isSetMask = true>
void ReduceRepeat(LNGRAD_REPEATED, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX, Where where = Where::here())
{
    LNGRAD_CHOOSE_REDUCE(Whole, dst, src, mask, repeatTime, dstRepStride, srcBlkStride, srcRepStride, order, where)
}
template <ReduceType reduceType, typename T, typename U, bool isSetMask = true>
void ReduceDataBlock(LNGRAD_REPEATED, Where where = Where::here())
{
    LNGRAD_CHOOSE_REDUCE(Block, dst, src, repeatTime, mask, dstRepStride, srcBlkStride, srcRepStride, where)
}
template <ReduceType reduceType, typename T, typename U, bool isSetMask = true>
void ReducePairElem(LNGRAD_REPEATED, Where where = Where::here())
{
    static_assert(reduceType == ReduceType::SUM);
    PairReduceSum<T, isSetMask>(dst, src, repeatTime, mask, dstRepStride, srcBlkStride, srcRepStride, where);
}

template <typename T, bool isSetMask = true>
void RepeatReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime, lngrad::MaskArg mask, const int32_t,
                     const int32_t srcBlkStride, const int32_t dstRepStride, const int32_t srcRepStride, Where where = Where::here())
{
    WholeReduceSum<T, isSetMask>(dst, src, mask, repeatTime, dstRepStride, srcBlkStride, srcRepStride, ReduceOrder::ORDER_VALUE_INDEX, where);
}

template <typename T>
void Transpose(const LocalTensor<T>& dst, const LocalTensor<T>& src, Where where = Where::here())
{
    lngrad::perform(Op::TRANSPOSE, where, dst, src);
}

#define LNGRAD_BROADCAST(Name, Shared) \
    template <typename T, int32_t dim, int32_t axis, bool isReuseSource = false> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t dstShape[dim], \
              const uint32_t srcShape[dim] LNGRAD_LIST Shared, Where where = Where::here()) \
    { \
        lngrad::Call& call = lngrad::issue(Op::BROADCAST, where); \
        lngrad::put_each(call, dst, src, dim); \
        for (int i = 0; i < 2 * dim; ++i) lngrad::put(call, i < dim ? dstShape[i] : srcShape[i - dim]); \
        lngrad::finish(call); \
    }
LNGRAD_BROADCAST(BroadCast, ())
LNGRAD_BROADCAST(BroadCast, (, LocalTensor<uint8_t>&))
LNGRAD_BROADCAST(Broadcast, ())
LNGRAD_BROADCAST(Broadcast, (, LocalTensor<uint8_t>&))

inline thread_local int64_t gathered = 0; // by the last GatherMask: a register
inline void put(lngrad::Call& call, const GatherMaskParams& p)
{
    lngrad::put_each(call, p.src0BlockStride, p.repeatTimes, p.src0RepeatStride, p.src1RepeatStride);
}
template <typename T, typename U, GatherMaskMode mode = GatherMaskMode::VERSION_V2>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<U>& src1Pattern,
                const bool reduceMode, const uint32_t mask, const GatherMaskParams& p, uint64_t& rsvdCnt, Where where = Where::here())
{
    rsvdCnt = gathered = lngrad::perform(Op::GATHER_MASK, where, dst, src0, src1Pattern, 0, reduceMode, mask, p).result;
}
template <typename T, GatherMaskMode mode = GatherMaskMode::VERSION_V2>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const uint8_t src1Pattern,
                const bool reduceMode, const uint32_t mask, const GatherMaskParams& p, uint64_t& rsvdCnt, Where where = Where::here())
{
    rsvdCnt = gathered = lngrad::perform(Op::GATHER_MASK, where, dst, src0, src1Pattern, reduceMode, mask, p).result;
}

// What the last reduction by count has left in the registers.
template <typename T>
T GetAccVal(Where where = Where::here())
{
    return T(static_cast<float>(lngrad::perform(Op::ACCUMULATED, where, 0).real));
}
// Without a type it is the register itself: the bits of a float.
inline uint64_t GetAccVal(Where where = Where::here()) { return lngrad::bits_of(GetAccVal<float>(where)); }
template <typename T>
T GetReduceRepeatSumSpr(Where where = Where::here())
{
    return GetAccVal<T>(where);
}
template <typename T>
void GetReduceRepeatMaxMinSpr(T& maxMinValue, T& maxMinIndex, Where where = Where::here())
{
    maxMinValue = T(static_cast<float>(lngrad::perform(Op::ACCUMULATED, where, 1).real));
    int64_t place = lngrad::perform(Op::ACCUMULATED, where, 2).result;
    std::memcpy(static_cast<void*>(&maxMinIndex), &place, sizeof maxMinIndex);
}
template <typename T>
void GetReduceMaxMinCount(T& maxMinValue, T& maxMinIndex, Where where = Where::here())
{
    GetReduceRepeatMaxMinSpr(maxMinValue, maxMinIndex, where);
}

inline void SetDeqScale(half scale, Where where = Where::here()) { lngrad::perform_with(Op::DEQ_SCALE, where, double(float(scale))); }

// The compiler's intrinsics take addresses, repeats ahead of strides, and the mask that is set.
#define LNGRAD_INTRINSIC(name, Name, Parameters, Sizes, strides, real, ...) \
    template <typename T> \
    void name(__ubuf__ T* dst, LNGRAD_LIST Parameters, uint8_t repeat, LNGRAD_LIST Sizes, Where where = Where::here()) \
    { \
        auto at = [&](T* address) { return at_address<T>(address, where); }; \
        lngrad::vector(Op::Name, where, real, lngrad::masked<T, false>(0, repeat), LNGRAD_LIST strides, at(dst), __VA_ARGS__); \
    }
#define LNGRAD_INTRINSIC_2(name, Name) \
    LNGRAD_INTRINSIC(name, Name, (__ubuf__ T* src0, __ubuf__ T* src1), \
                     (uint8_t dstBlk, uint8_t src0Blk, uint8_t src1Blk, uint8_t dstRep, uint8_t src0Rep, uint8_t src1Rep), \
                     ({dstBlk, src0Blk, src1Blk, dstRep, src0Rep, src1Rep}), 0, at(src0), at(src1))
#define LNGRAD_INTRINSIC_1(name, Name, Scalar, real) \
    LNGRAD_INTRINSIC(name, Name, (__ubuf__ T* src LNGRAD_LIST Scalar), (uint16_t dstBlk, uint16_t srcBlk, uint8_t dstRep, uint8_t srcRep), \
                     ({dstBlk, srcBlk, 1, dstRep, srcRep, 8}), real, at(src))
#define LNGRAD_SCALED(name, Name) LNGRAD_INTRINSIC_1(name, Name, (, lngrad::same<T> scalar), lngrad::real(scalar))
#define LNGRAD_REDUCED(name, Name) \
    LNGRAD_INTRINSIC(name, Name, (__ubuf__ T* src), (uint16_t dstRep, uint16_t srcBlk, uint16_t srcRep, bool inRegister = false), \
                     ({1, srcBlk, 1, dstRep, srcRep, 8}), \
                     inRegister ? throw std::runtime_error(#name ": a result in the register is not simulated") : 0.0, at(src))
LNGRAD_INTRINSIC_2(vadd, Add) LNGRAD_INTRINSIC_2(vsub, Sub) LNGRAD_INTRINSIC_2(vmul, Mul) LNGRAD_INTRINSIC_2(vdiv, Div)
LNGRAD_INTRINSIC_2(vmax, Max) LNGRAD_INTRINSIC_2(vmin, Min) LNGRAD_INTRINSIC_2(vand, And) LNGRAD_INTRINSIC_2(vor, Or)
LNGRAD_INTRINSIC_1(vabs, Abs, (), 0) LNGRAD_INTRINSIC_1(vexp, Exp, (), 0) LNGRAD_INTRINSIC_1(vln, Ln, (), 0)
LNGRAD_INTRINSIC_1(vrec, Reciprocal, (), 0) LNGRAD_INTRINSIC_1(vrelu, Relu, (), 0) LNGRAD_INTRINSIC_1(vnot, Not, (), 0)
LNGRAD_INTRINSIC_1(vsqrt, Sqrt, (), 0) LNGRAD_INTRINSIC_1(vrsqrt, Rsqrt, (), 0)
LNGRAD_SCALED(vadds, Adds) LNGRAD_SCALED(vmuls, Muls) LNGRAD_SCALED(vmaxs, Maxs) LNGRAD_SCALED(vmins, Mins)
LNGRAD_REDUCED(vcadd, WholeReduceSum) LNGRAD_REDUCED(vcmax, WholeReduceMax) LNGRAD_REDUCED(vcmin, WholeReduceMin)
LNGRAD_REDUCED(vcgadd, BlockReduceSum) LNGRAD_REDUCED(vcgmax, BlockReduceMax) LNGRAD_REDUCED(vcgmin, BlockReduceMin)
LNGRAD_REDUCED(vcpadd, PairReduceSum)
LNGRAD_REDUCED(BlockReduceSumIntrinsicsImpl, BlockReduceSum) LNGRAD_REDUCED(BlockReduceMaxIntrinsicsImpl, BlockReduceMax)
LNGRAD_INTRINSIC(vector_dup, Duplicate, (lngrad::same<T> scalar), (uint16_t dstBlk, uint16_t, uint8_t dstRep, uint8_t),
                 ({dstBlk, 1, 1, dstRep, 8, 8}), lngrad::real(scalar), {})
inline void set_vector_mask(uint64_t high, uint64_t low) { SetVectorMask<half>(high, low); }
inline void set_mask_count() { SetMaskCount(); }
inline void set_mask_norm() { SetMaskNorm(); }

} // namespace AscendC

#endif
