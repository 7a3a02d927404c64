// The vector instructions: by count of elements, by a number of elements a repeat, and by a bit mask.
#ifndef LNGRAD_VECTOR_H
#define LNGRAD_VECTOR_H

#include "lngrad/copy.h"

namespace lngrad {

inline Elements counted(int64_t count) { return {0, count, 0, 1}; }
inline Elements first(uint64_t mask, int64_t repeats) { return {1, int64_t(mask), 0, repeats}; }
inline Elements bits(const uint64_t* mask, int64_t repeats)
{
    return {2, int64_t(mask[0]), int64_t(mask[1]), repeats};
}

inline Strides strides(const AscendC::BinaryRepeatParams& p)
{
    return {p.dstBlkStride, p.src0BlkStride, p.src1BlkStride, p.dstRepStride, p.src0RepStride, p.src1RepStride};
}
inline Strides strides(const AscendC::UnaryRepeatParams& p)
{
    return {p.dstBlkStride, p.srcBlkStride, 1, p.dstRepStride, p.srcRepStride, 8};
}

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

// Cast has its round mode where others have the address of a second source.
inline void cast(Where where, AscendC::RoundMode mode, const Elements& elements, const Strides& strides,
                 const Operand& dst, const Operand& src)
{
    vector(Op::Cast, where, 0, elements, strides, dst, src, {src.handle, src.type, int64_t(mode), -int64_t(mode)});
}

} // namespace lngrad

#define LNGRAD_BINARY(Name)                                                                                           \
    template <typename T>                                                                                             \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,                      \
              const int32_t& count, Where where = Where::here())                                                      \
    {                                                                                                                 \
        lngrad::vector(Op::Name, where, 0, lngrad::counted(count), {}, dst.operand(), src0.operand(), src1.operand());\
    }                                                                                                                 \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask,       \
              const uint8_t repeatTime, const BinaryRepeatParams& p)                                                  \
    {                                                                                                                 \
        lngrad::vector(Op::Name, p.where, 0, lngrad::first(mask, repeatTime), lngrad::strides(p), dst.operand(),      \
                       src0.operand(), src1.operand());                                                               \
    }                                                                                                                 \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask[],     \
              const uint8_t repeatTime, const BinaryRepeatParams& p)                                                  \
    {                                                                                                                 \
        lngrad::vector(Op::Name, p.where, 0, lngrad::bits(mask, repeatTime), lngrad::strides(p), dst.operand(),       \
                       src0.operand(), src1.operand());                                                               \
    }

#define LNGRAD_SCALAR(Name)                                                                                           \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const lngrad::same<T>& scalarValue, const int32_t& count,\
              Where where = Where::here())                                                                            \
    {                                                                                                                 \
        lngrad::vector(Op::Name, where, lngrad::real(scalarValue), lngrad::counted(count), {}, dst.operand(),         \
                       src.operand(), src.operand());                                                                 \
    }                                                                                                                 \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const lngrad::same<T>& scalarValue, uint64_t mask,\
              const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here())                      \
    {                                                                                                                 \
        lngrad::vector(Op::Name, where, lngrad::real(scalarValue), lngrad::first(mask, repeatTime), lngrad::strides(p), dst.operand(),\
                       src.operand(), src.operand());                                                                 \
    }                                                                                                                 \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const lngrad::same<T>& scalarValue, uint64_t mask[],\
              const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here())                      \
    {                                                                                                                 \
        lngrad::vector(Op::Name, where, lngrad::real(scalarValue), lngrad::bits(mask, repeatTime), lngrad::strides(p), dst.operand(),\
                       src.operand(), src.operand());                                                                 \
    }

#define LNGRAD_UNARY(Name)                                                                                            \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t& count,                             \
              Where where = Where::here())                                                                            \
    {                                                                                                                 \
        lngrad::vector(Op::Name, where, 0, lngrad::counted(count), {}, dst.operand(),                                 \
                       src.operand(), src.operand());                                                                 \
    }                                                                                                                 \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint64_t mask,                                    \
              const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here())                      \
    {                                                                                                                 \
        lngrad::vector(Op::Name, where, 0, lngrad::first(mask, repeatTime), lngrad::strides(p), dst.operand(),        \
                       src.operand(), src.operand());                                                                 \
    }                                                                                                                 \
    template <typename T, bool isSetMask = true>                                                                      \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint64_t mask[],                                  \
              const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here())                      \
    {                                                                                                                 \
        lngrad::vector(Op::Name, where, 0, lngrad::bits(mask, repeatTime), lngrad::strides(p), dst.operand(),         \
                       src.operand(), src.operand());                                                                 \
    }

namespace AscendC {

// numbers.h lists the instructions of each form: the rows of the table in lngrad/ascend/device/vector.py.
LNGRAD_BINARY_INSTRUCTIONS(LNGRAD_BINARY)
LNGRAD_SCALAR_INSTRUCTIONS(LNGRAD_SCALAR)
LNGRAD_UNARY_INSTRUCTIONS(LNGRAD_UNARY)

} // namespace AscendC

#undef LNGRAD_BINARY
#undef LNGRAD_SCALAR
#undef LNGRAD_UNARY

namespace AscendC {

template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dst, const lngrad::same<T>& scalarValue, const int32_t& count,
               Where where = Where::here())
{
    lngrad::vector(Op::Duplicate, where, lngrad::real(scalarValue), lngrad::counted(count), {}, dst.operand(),
                   dst.operand(), dst.operand());
}
template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dst, const lngrad::same<T>& scalarValue, uint64_t mask, const uint8_t repeatTime,
               const uint16_t dstBlockStride, const uint8_t dstRepeatStride, Where where = Where::here())
{
    lngrad::vector(Op::Duplicate, where, lngrad::real(scalarValue), lngrad::first(mask, repeatTime),
                   {dstBlockStride, 1, 1, dstRepeatStride, 8, 8}, dst.operand(), dst.operand(), dst.operand());
}
template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dst, const lngrad::same<T>& scalarValue, uint64_t mask[],
               const uint8_t repeatTime, const uint16_t dstBlockStride, const uint8_t dstRepeatStride,
               Where where = Where::here())
{
    lngrad::vector(Op::Duplicate, where, lngrad::real(scalarValue), lngrad::bits(mask, repeatTime),
                   {dstBlockStride, 1, 1, dstRepeatStride, 8, 8}, dst.operand(), dst.operand(), dst.operand());
}

template <typename T, typename U>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, const uint32_t count,
          Where where = Where::here())
{
    lngrad::cast(where, roundMode, lngrad::counted(count), {}, dst.operand(), src.operand());
}
template <typename T, typename U, bool isSetMask = true>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, const uint64_t mask,
          const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here())
{
    lngrad::cast(where, roundMode, lngrad::first(mask, repeatTime), lngrad::strides(p), dst.operand(), src.operand());
}
template <typename T, typename U, bool isSetMask = true>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, const uint64_t mask[],
          const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here())
{
    lngrad::cast(where, roundMode, lngrad::bits(mask, repeatTime), lngrad::strides(p), dst.operand(), src.operand());
}

template <typename T, bool isSetMask = true>
void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask, const uint8_t repeatTime,
          const CopyRepeatParams& p, Where where = Where::here())
{
    lngrad::vector(Op::Copy, where, 0, lngrad::first(mask, repeatTime),
                   {p.dstStride, p.srcStride, 1, p.dstRepeatSize, p.srcRepeatSize, 8}, dst.operand(), src.operand(),
                   src.operand());
}
template <typename T, bool isSetMask = true>
void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask[], const uint8_t repeatTime,
          const CopyRepeatParams& p, Where where = Where::here())
{
    lngrad::vector(Op::Copy, where, 0, lngrad::bits(mask, repeatTime),
                   {p.dstStride, p.srcStride, 1, p.dstRepeatSize, p.srcRepeatSize, 8}, dst.operand(), src.operand(),
                   src.operand());
}

template <typename T>
void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint8_t repeatTime, const BrcbRepeatParams& p,
          Where where = Where::here())
{
    lngrad::vector(Op::Brcb, where, 0, lngrad::first(0, repeatTime),
                   {p.dstBlkStride, 1, 1, p.dstRepStride, 8, 8}, dst.operand(), src.operand(), src.operand());
}

template <typename T, bool isSetMask = true>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
               const int32_t count, Where where = Where::here())
{
    lngrad::vector(Op::ReduceSum, where, 0, lngrad::counted(count), {}, dst.operand(), src.operand(),
                   sharedTmpBuffer.operand());
}
template <typename T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
               const int32_t mask, const int32_t repeatTime, const int32_t srcRepStride, Where where = Where::here())
{
    lngrad::vector(Op::ReduceSum, where, 0, lngrad::first(mask, repeatTime), {1, 1, 1, 8, srcRepStride, 8},
                   dst.operand(), src.operand(), sharedTmpBuffer.operand());
}
template <typename T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
               const uint64_t mask[], const int32_t repeatTime, const int32_t srcRepStride,
               Where where = Where::here())
{
    lngrad::vector(Op::ReduceSum, where, 0, lngrad::bits(mask, repeatTime), {1, 1, 1, 8, srcRepStride, 8},
                   dst.operand(), src.operand(), sharedTmpBuffer.operand());
}

template <typename T, bool isSetMask = true>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask, const int32_t repeatTime,
                    const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,
                    Where where = Where::here())
{
    lngrad::vector(Op::WholeReduceSum, where, 0, lngrad::first(mask, repeatTime),
                   {1, srcBlkStride, 1, dstRepStride, srcRepStride, 8}, dst.operand(), src.operand(), src.operand());
}
template <typename T, bool isSetMask = true>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask[],
                    const int32_t repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,
                    const int32_t srcRepStride, Where where = Where::here())
{
    lngrad::vector(Op::WholeReduceSum, where, 0, lngrad::bits(mask, repeatTime),
                   {1, srcBlkStride, 1, dstRepStride, srcRepStride, 8}, dst.operand(), src.operand(), src.operand());
}

} // namespace AscendC

#endif
