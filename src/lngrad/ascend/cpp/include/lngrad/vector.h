// The vector instructions: by count of elements, by a number of elements a repeat, and by a bit mask.
#ifndef LNGRAD_VECTOR_H
#define LNGRAD_VECTOR_H

#include "lngrad/copy.h"

// The integers of a call: the form (0 count, 1 mask as a number, 2 mask as bits), then the count, or the mask's
// two words, the repeats and the strides in the order of the parameter structs.

#define LNGRAD_BINARY(Name)                                                                                       \
    template <typename T>                                                                                             \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,                      \
              const int32_t& count, Where where = Where::here())                                                      \
    {                                                                                                                 \
        lngrad::perform(Op::Name, where, dst.operand(), src0.operand(), src1.operand(), int64_t(0), int64_t(count));    \
    }                                                                                                                 \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask,       \
              const uint8_t repeatTime, const BinaryRepeatParams& p)                                                  \
    {                                                                                                                 \
        lngrad::repeat(Op::Name, dst, src0, src1, 1, mask, 0, repeatTime, p);                                           \
    }                                                                                                                 \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask[],     \
              const uint8_t repeatTime, const BinaryRepeatParams& p)                                                  \
    {                                                                                                                 \
        lngrad::repeat(Op::Name, dst, src0, src1, 2, mask[0], mask[1], repeatTime, p);                                  \
    }

#define LNGRAD_SCALAR(Name)                                                                                       \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const lngrad::same<T>& scalarValue, const int32_t& count,       \
              Where where = Where::here())                                                                            \
    {                                                                                                                 \
        lngrad::perform_with(Op::Name, where, lngrad::real(scalarValue), dst.operand(), src.operand(), int64_t(0),   \
                             int64_t(count));                                                                         \
    }                                                                                                                 \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const lngrad::same<T>& scalarValue, uint64_t mask,              \
              const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here())                      \
    {                                                                                                                 \
        lngrad::repeat(Op::Name, where, lngrad::real(scalarValue), dst, src, 1, mask, 0, repeatTime, p);             \
    }                                                                                                                 \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const lngrad::same<T>& scalarValue, uint64_t mask[],            \
              const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here())                      \
    {                                                                                                                 \
        lngrad::repeat(Op::Name, where, lngrad::real(scalarValue), dst, src, 2, mask[0], mask[1], repeatTime, p);    \
    }

#define LNGRAD_UNARY(Name)                                                                                        \
    template <typename T>                                                                                             \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t& count, Where where = Where::here()) \
    {                                                                                                                 \
        lngrad::perform(Op::Name, where, dst.operand(), src.operand(), int64_t(0), int64_t(count));                     \
    }                                                                                                                 \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint64_t mask, const uint8_t repeatTime,          \
              const UnaryRepeatParams& p, Where where = Where::here())                                                \
    {                                                                                                                 \
        lngrad::repeat(Op::Name, where, 0, dst, src, 1, mask, 0, repeatTime, p);                                        \
    }                                                                                                                 \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint64_t mask[], const uint8_t repeatTime,        \
              const UnaryRepeatParams& p, Where where = Where::here())                                                \
    {                                                                                                                 \
        lngrad::repeat(Op::Name, where, 0, dst, src, 2, mask[0], mask[1], repeatTime, p);                               \
    }

namespace lngrad {

using AscendC::BinaryRepeatParams;
using AscendC::LocalTensor;
using AscendC::UnaryRepeatParams;

// A scalar takes its type from the tensor, not from what is passed.
template <typename T>
struct Same {
    using type = T;
};
template <typename T>
using same = typename Same<T>::type;

template <typename T>
double real(const T& scalar)
{
    return static_cast<double>(scalar);
}

template <typename T>
void repeat(Op op, const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, int64_t form,
            uint64_t low, uint64_t high, uint8_t repeats, const BinaryRepeatParams& p)
{
    perform(op, p.where, dst.operand(), src0.operand(), src1.operand(), form, int64_t(low), int64_t(high),
            int64_t(repeats), int64_t(p.dstBlkStride), int64_t(p.src0BlkStride), int64_t(p.src1BlkStride),
            int64_t(p.dstRepStride), int64_t(p.src0RepStride), int64_t(p.src1RepStride));
}

template <typename T, typename U>
void repeat(Op op, Where where, double scalar, const LocalTensor<T>& dst, const LocalTensor<U>& src, int64_t form,
            uint64_t low, uint64_t high, uint8_t repeats, const UnaryRepeatParams& p, int64_t extra = 0)
{
    perform_with(op, where, scalar, dst.operand(), src.operand(), form, int64_t(low), int64_t(high), int64_t(repeats),
                 int64_t(p.dstBlkStride), int64_t(p.srcBlkStride), int64_t(p.dstRepStride), int64_t(p.srcRepStride),
                 extra);
}

} // namespace lngrad

namespace AscendC {

LNGRAD_BINARY(Add)
LNGRAD_BINARY(Sub)
LNGRAD_BINARY(Mul)
LNGRAD_BINARY(Div)
LNGRAD_BINARY(Max)
LNGRAD_BINARY(Min)

LNGRAD_SCALAR(Adds)
LNGRAD_SCALAR(Muls)
LNGRAD_SCALAR(Maxs)
LNGRAD_SCALAR(Mins)

LNGRAD_UNARY(Sqrt)
LNGRAD_UNARY(Rsqrt)
LNGRAD_UNARY(Exp)
LNGRAD_UNARY(Abs)
LNGRAD_UNARY(Reciprocal)
LNGRAD_UNARY(Ln)
LNGRAD_UNARY(Relu)

template <typename T>
void Duplicate(const LocalTensor<T>& dst, const lngrad::same<T>& scalarValue, const int32_t& count, Where where = Where::here())
{
    lngrad::perform_with(Op::Duplicate, where, lngrad::real(scalarValue), dst.operand(), int64_t(0),
                         int64_t(count), LocalTensor<T>::whole(scalarValue));
}
template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dst, const lngrad::same<T>& scalarValue, uint64_t mask, const uint8_t repeatTime,
               const uint16_t dstBlockStride, const uint8_t dstRepeatStride, Where where = Where::here())
{
    lngrad::perform_with(Op::Duplicate, where, lngrad::real(scalarValue), dst.operand(), int64_t(1), int64_t(mask),
                         int64_t(0), int64_t(repeatTime), int64_t(dstBlockStride), int64_t(dstRepeatStride),
                         LocalTensor<T>::whole(scalarValue));
}
template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dst, const lngrad::same<T>& scalarValue, uint64_t mask[], const uint8_t repeatTime,
               const uint16_t dstBlockStride, const uint8_t dstRepeatStride, Where where = Where::here())
{
    lngrad::perform_with(Op::Duplicate, where, lngrad::real(scalarValue), dst.operand(), int64_t(2),
                         int64_t(mask[0]), int64_t(mask[1]), int64_t(repeatTime), int64_t(dstBlockStride),
                         int64_t(dstRepeatStride), LocalTensor<T>::whole(scalarValue));
}

template <typename T, typename U>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, const uint32_t count,
          Where where = Where::here())
{
    lngrad::perform(Op::Cast, where, dst.operand(), src.operand(), int64_t(0), int64_t(count), int64_t(roundMode));
}
template <typename T, typename U, bool isSetMask = true>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, const uint64_t mask,
          const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here())
{
    lngrad::repeat(Op::Cast, where, 0, dst, src, 1, mask, 0, repeatTime, p, int64_t(roundMode));
}
template <typename T, typename U, bool isSetMask = true>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, const uint64_t mask[],
          const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here())
{
    lngrad::repeat(Op::Cast, where, 0, dst, src, 2, mask[0], mask[1], repeatTime, p, int64_t(roundMode));
}

template <typename T>
void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint8_t repeatTime, const BrcbRepeatParams& p,
          Where where = Where::here())
{
    lngrad::perform(Op::Brcb, where, dst.operand(), src.operand(), int64_t(repeatTime), int64_t(p.dstBlkStride),
                    int64_t(p.dstRepStride));
}

template <typename T, bool isSetMask = true>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
               const int32_t count, Where where = Where::here())
{
    lngrad::perform(Op::ReduceSum, where, dst.operand(), src.operand(), sharedTmpBuffer.operand(), int64_t(count));
}
template <typename T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
               const int32_t mask, const int32_t repeatTime, const int32_t srcRepStride, Where where = Where::here())
{
    lngrad::perform(Op::REDUCE_SUM_REPEAT, where, dst.operand(), src.operand(), sharedTmpBuffer.operand(), int64_t(1),
                    int64_t(mask), int64_t(0), int64_t(repeatTime), int64_t(srcRepStride));
}
template <typename T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
               const uint64_t mask[], const int32_t repeatTime, const int32_t srcRepStride,
               Where where = Where::here())
{
    lngrad::perform(Op::REDUCE_SUM_REPEAT, where, dst.operand(), src.operand(), sharedTmpBuffer.operand(), int64_t(2),
                    int64_t(mask[0]), int64_t(mask[1]), int64_t(repeatTime), int64_t(srcRepStride));
}

template <typename T, bool isSetMask = true>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask, const int32_t repeatTime,
                    const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,
                    Where where = Where::here())
{
    lngrad::perform(Op::WholeReduceSum, where, dst.operand(), src.operand(), int64_t(1), int64_t(mask), int64_t(0),
                    int64_t(repeatTime), int64_t(dstRepStride), int64_t(srcBlkStride), int64_t(srcRepStride));
}
template <typename T, bool isSetMask = true>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask[],
                    const int32_t repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,
                    const int32_t srcRepStride, Where where = Where::here())
{
    lngrad::perform(Op::WholeReduceSum, where, dst.operand(), src.operand(), int64_t(2), int64_t(mask[0]),
                    int64_t(mask[1]), int64_t(repeatTime), int64_t(dstRepStride), int64_t(srcBlkStride),
                    int64_t(srcRepStride));
}

} // namespace AscendC

#undef LNGRAD_BINARY
#undef LNGRAD_SCALAR
#undef LNGRAD_UNARY

#endif
