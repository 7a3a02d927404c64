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

template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dst, const lngrad::same<T>& scalarValue, const int32_t& count, Where where = Where::here())
{
    lngrad::vector(Op::Duplicate, where, lngrad::real(scalarValue), lngrad::counted(count), {}, dst.operand());
}
template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dst, const lngrad::same<T>& scalarValue, lngrad::MaskArg mask, const uint8_t repeatTime, const uint16_t dstBlockStride, const uint8_t dstRepeatStride, Where where = Where::here())
{
    lngrad::vector(Op::Duplicate, where, lngrad::real(scalarValue), lngrad::masked<T, isSetMask>(mask, repeatTime), {dstBlockStride, 1, 1, dstRepeatStride, 8, 8}, dst.operand());
}

template <typename T>
void CreateVecIndex(const LocalTensor<T>& dst, const lngrad::same<T>& firstValue, uint32_t count, Where where = Where::here())
{
    lngrad::vector(Op::CreateVecIndex, where, lngrad::real(firstValue), lngrad::counted(count), {}, dst.operand());
}
template <typename T, bool isSetMask = true>
void CreateVecIndex(const LocalTensor<T>& dst, const lngrad::same<T>& firstValue, lngrad::MaskArg mask, const uint8_t repeatTime, uint16_t dstBlkStride, uint8_t dstRepStride, Where where = Where::here())
{
    lngrad::vector(Op::CreateVecIndex, where, lngrad::real(firstValue), lngrad::masked<T, isSetMask>(mask, repeatTime), {dstBlkStride, 1, 1, dstRepStride, 8, 8}, dst.operand());
}

template <typename T, typename U>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, const uint32_t count, Where where = Where::here())
{
    lngrad::vector(Op::Cast, where, 0, lngrad::counted(count), {}, dst.operand(), src.operand(), {}, int64_t(roundMode));
}
template <typename T, typename U, bool isSetMask = true>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, lngrad::MaskArg mask, const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here())
{
    lngrad::vector(Op::Cast, where, 0, lngrad::masked<lngrad::Wider<T, U>, isSetMask>(mask, repeatTime), lngrad::strides(p), dst.operand(), src.operand(), {}, int64_t(roundMode));
}

template <typename T, bool isSetMask = true>
void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count, Where where = Where::here())
{
    lngrad::vector(Op::Copy, where, 0, lngrad::counted(count), {}, dst.operand(), src.operand());
}
template <typename T, bool isSetMask = true>
void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, lngrad::MaskArg mask, const uint8_t repeatTime, const CopyRepeatParams& p, Where where = Where::here())
{
    lngrad::vector(Op::Copy, where, 0, lngrad::masked<T, isSetMask>(mask, repeatTime), {p.dstStride, p.srcStride, 1, p.dstRepeatSize, p.srcRepeatSize, 8}, dst.operand(), src.operand());
}

template <typename T>
void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint8_t repeatTime, const BrcbRepeatParams& p, Where where = Where::here())
{
    lngrad::vector(Op::Brcb, where, 0, {1, 0, 0, repeatTime}, {p.dstBlkStride, 1, 1, p.dstRepStride, 8, 8},
                   dst.operand(), src.operand());
}

template <typename T, typename U>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode, const uint32_t count, Where where = Where::here())
{
    lngrad::vector(Op::Compare, where, 0, lngrad::counted(count), {}, dst.operand(), src0.operand(), src1.operand(), int64_t(cmpMode));
}
template <typename T, typename U, bool isSetMask = true>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode, lngrad::MaskArg mask, const uint8_t repeatTime, const BinaryRepeatParams& p, Where where = Where::here())
{
    lngrad::vector(Op::Compare, where, 0, lngrad::masked<T, isSetMask>(mask, repeatTime), lngrad::strides(p), dst.operand(), src0.operand(), src1.operand(), int64_t(cmpMode));
}

#define LNGRAD_COMPARE_SCALAR(Name) \
    template <typename T, typename U> \
    void Name(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const lngrad::same<T> src1Scalar, CMPMODE cmpMode, const uint32_t count, Where where = Where::here()) \
    { \
        lngrad::vector(Op::CompareScalar, where, lngrad::real(src1Scalar), lngrad::counted(count), {}, dst.operand(), src0.operand(), {}, int64_t(cmpMode)); \
    } \
    template <typename T, typename U, bool isSetMask = true> \
    void Name(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const lngrad::same<T> src1Scalar, CMPMODE cmpMode, lngrad::MaskArg mask, const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here()) \
    { \
        lngrad::vector(Op::CompareScalar, where, lngrad::real(src1Scalar), lngrad::masked<T, isSetMask>(mask, repeatTime), lngrad::strides(p), dst.operand(), src0.operand(), {}, int64_t(cmpMode)); \
    }
LNGRAD_COMPARE_SCALAR(CompareScalar)
LNGRAD_COMPARE_SCALAR(Compares)

template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, const LocalTensor<T>& src1, SELMODE selMode, const uint32_t count, Where where = Where::here())
{
    lngrad::vector(Op::Select, where, 0, lngrad::counted(count), {}, dst.operand(), selMask.operand(), src0.operand(), int64_t(selMode), src1.operand());
}
template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, const LocalTensor<T>& src1, SELMODE selMode, lngrad::MaskArg mask, const uint8_t repeatTime, const BinaryRepeatParams& p, Where where = Where::here())
{
    lngrad::vector(Op::Select, where, 0, lngrad::masked<T, isSetMask>(mask, repeatTime), lngrad::strides(p), dst.operand(), selMask.operand(), src0.operand(), int64_t(selMode), src1.operand());
}

template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, lngrad::same<T> src1, SELMODE selMode, const uint32_t count, Where where = Where::here())
{
    lngrad::vector(Op::SelectScalar, where, lngrad::real(src1), lngrad::counted(count), {}, dst.operand(), selMask.operand(), src0.operand(), int64_t(selMode));
}
template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, lngrad::same<T> src1, SELMODE selMode, lngrad::MaskArg mask, const uint8_t repeatTime, const BinaryRepeatParams& p, Where where = Where::here())
{
    lngrad::vector(Op::SelectScalar, where, lngrad::real(src1), lngrad::masked<T, isSetMask>(mask, repeatTime), lngrad::strides(p), dst.operand(), selMask.operand(), src0.operand(), int64_t(selMode));
}

template <typename T>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& srcOffset, const uint32_t srcBaseOffset, const uint32_t count, Where where = Where::here())
{
    lngrad::vector(Op::Gather, where, 0, lngrad::counted(count), {}, dst.operand(), src.operand(), srcOffset.operand(), int64_t(srcBaseOffset));
}
template <typename T, bool isSetMask = true>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& srcOffset, const uint32_t srcBaseOffset, lngrad::MaskArg mask, const uint8_t repeatTime, const uint16_t dstRepStride, Where where = Where::here())
{
    lngrad::vector(Op::Gather, where, 0, lngrad::masked<T, isSetMask>(mask, repeatTime), {1, 1, 1, dstRepStride, 8, 8}, dst.operand(), src.operand(), srcOffset.operand(), int64_t(srcBaseOffset));
}

// The reductions by their newer names: what they compute is an argument of the template.
#define LNGRAD_CHOOSE_REDUCE(Kind, ...) \
    if constexpr (reduceType == ReduceType::SUM) { \
        Kind##ReduceSum<T, isSetMask>(__VA_ARGS__); \
    } else if constexpr (reduceType == ReduceType::MAX) { \
        Kind##ReduceMax<T, isSetMask>(__VA_ARGS__); \
    } else { \
        Kind##ReduceMin<T, isSetMask>(__VA_ARGS__); \
    }
template <ReduceType reduceType, typename T, typename U, bool isSetMask = true>
void ReduceRepeat(const LocalTensor<T>& dst, const LocalTensor<U>& src, lngrad::MaskArg mask, const int32_t repeatTime, const int32_t dstRepStride,
                  const int32_t srcBlkStride, const int32_t srcRepStride,
                  ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX, Where where = Where::here())
{
    LNGRAD_CHOOSE_REDUCE(Whole, dst, src, mask, repeatTime, dstRepStride, srcBlkStride, srcRepStride, order, where)
}
template <ReduceType reduceType, typename T, typename U, bool isSetMask = true>
void ReduceDataBlock(const LocalTensor<T>& dst, const LocalTensor<U>& src, lngrad::MaskArg mask, const int32_t repeatTime, const int32_t dstRepStride,
                     const int32_t srcBlkStride, const int32_t srcRepStride, Where where = Where::here())
{
    LNGRAD_CHOOSE_REDUCE(Block, dst, src, repeatTime, mask, dstRepStride, srcBlkStride, srcRepStride, where)
}
template <ReduceType reduceType, typename T, typename U, bool isSetMask = true>
void ReducePairElem(const LocalTensor<T>& dst, const LocalTensor<U>& src, lngrad::MaskArg mask, const int32_t repeatTime, const int32_t dstRepStride,
                    const int32_t srcBlkStride, const int32_t srcRepStride, Where where = Where::here())
{
    static_assert(reduceType == ReduceType::SUM);
    PairReduceSum<T, isSetMask>(dst, src, repeatTime, mask, dstRepStride, srcBlkStride, srcRepStride, where);
}

template <typename T>
void Transpose(const LocalTensor<T>& dst, const LocalTensor<T>& src, Where where = Where::here())
{
    lngrad::perform(Op::TRANSPOSE, where, dst.operand(), src.operand());
}

template <typename T, int32_t dim, int32_t axis, bool isReuseSource = false>
void BroadCast(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t dstShape[dim],
               const uint32_t srcShape[dim], Where where = Where::here())
{
    lngrad::Call& call = lngrad::issue(Op::BROADCAST, where);
    lngrad::put_each(call, dst.operand(), src.operand(), dim);
    for (int i = 0; i < 2 * dim; ++i) lngrad::put(call, i < dim ? dstShape[i] : srcShape[i - dim]);
    lngrad::finish(call);
}
template <typename T, int32_t dim, int32_t axis, bool isReuseSource = false>
void BroadCast(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t dstShape[dim],
               const uint32_t srcShape[dim], LocalTensor<uint8_t>&, Where where = Where::here())
{
    BroadCast<T, dim, axis, isReuseSource>(dst, src, dstShape, srcShape, where);
}
template <typename T, int32_t dim, int32_t axis, bool isReuseSource = false, typename... Rest>
void Broadcast(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t dstShape[dim],
               const uint32_t srcShape[dim], Rest&&... rest)
{
    BroadCast<T, dim, axis, isReuseSource>(dst, src, dstShape, srcShape, rest...);
}

inline void put(lngrad::Call& call, const GatherMaskParams& p)
{
    lngrad::put_each(call, p.src0BlockStride, p.repeatTimes, p.src0RepeatStride, p.src1RepeatStride);
}
template <typename T, typename U, GatherMaskMode mode = GatherMaskMode::VERSION_V2>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<U>& src1Pattern,
                const bool reduceMode, const uint32_t mask, const GatherMaskParams& p, uint64_t& rsvdCnt, Where where = Where::here())
{
    rsvdCnt = lngrad::perform(Op::GATHER_MASK, where, dst.operand(), src0.operand(), src1Pattern.operand(), 0, reduceMode, mask, p).result;
}
template <typename T, GatherMaskMode mode = GatherMaskMode::VERSION_V2>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const uint8_t src1Pattern,
                const bool reduceMode, const uint32_t mask, const GatherMaskParams& p, uint64_t& rsvdCnt, Where where = Where::here())
{
    rsvdCnt = lngrad::perform(Op::GATHER_MASK, where, dst.operand(), src0.operand(), src1Pattern, reduceMode, mask, p).result;
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

} // namespace AscendC

#endif
