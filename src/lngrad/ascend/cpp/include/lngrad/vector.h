// The vector instructions: by count of elements, by a number of elements a repeat, and by a bit mask.
#ifndef LNGRAD_VECTOR_H
#define LNGRAD_VECTOR_H

#include "lngrad/copy.h"

namespace lngrad {

// What SetVectorMask and SetMaskCount have set: the mask of instructions with isSetMask = false.
struct MaskRegister {
    uint64_t low = ~uint64_t(0);
    uint64_t high = ~uint64_t(0);
    bool counts = false;
};
inline thread_local MaskRegister mask_register;

inline uint64_t ones(int64_t n) { return n <= 0 ? 0 : n >= 64 ? ~uint64_t(0) : (uint64_t(1) << n) - 1; }

// Every instruction leaves its own mask in the register.
inline Elements counted(int64_t count)
{
    mask_register.low = mask_register.high = ~uint64_t(0);
    return {0, count, 0, 1};
}

template <typename T, bool set = true>
Elements bits(const uint64_t* mask, int64_t repeats)
{
    MaskRegister& m = mask_register;
    if (set) {
        m.low = mask[0];
        m.high = m.counts ? 0 : mask[1];
    }
    if (m.counts) return {3, int64_t(m.low), 0, 1};
    return {2, int64_t(m.low), sizeof(T) < 4 ? int64_t(m.high) : 0, repeats};
}
template <typename T, bool set = true>
Elements first(uint64_t mask, int64_t repeats)
{
    if (!set || mask_register.counts) return bits<T, set>(&mask, repeats);
    mask_register.low = ones(int64_t(mask));
    mask_register.high = ones(int64_t(mask) - 64);
    return {1, int64_t(mask), 0, repeats};
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

// The one of two types that has more bytes: its repeats count.
template <typename T, typename U>
using Wider = std::conditional_t<(sizeof(U) > sizeof(T)), U, T>;

// The instructions that are elementwise on two tensors, on a tensor and a scalar, on one tensor.
template <typename T, typename U>
void binary(Op op, Where where, const Elements& elements, const Strides& strides, const AscendC::LocalTensor<T>& dst,
            const AscendC::LocalTensor<U>& src0, const AscendC::LocalTensor<U>& src1)
{
    vector(op, where, 0, elements, strides, dst.operand(), src0.operand(), src1.operand());
}

} // namespace lngrad

#define LNGRAD_BINARY(Name) \
    template <typename T> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, const int32_t& count, Where where = Where::here()) \
    { \
        lngrad::binary(Op::Name, where, lngrad::counted(count), {}, dst, src0, src1); \
    } \
    template <typename T, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask, const uint8_t repeatTime, const BinaryRepeatParams& p) \
    { \
        lngrad::binary(Op::Name, p.where, lngrad::first<T, isSetMask>(mask, repeatTime), lngrad::strides(p), dst, src0, src1); \
    } \
    template <typename T, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask[], const uint8_t repeatTime, const BinaryRepeatParams& p) \
    { \
        lngrad::binary(Op::Name, p.where, lngrad::bits<T, isSetMask>(mask, repeatTime), lngrad::strides(p), dst, src0, src1); \
    }

#define LNGRAD_MIXED_BINARY(Name) \
    template <typename T, typename U> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1, const int32_t& count, Where where = Where::here()) \
    { \
        lngrad::binary(Op::Name, where, lngrad::counted(count), {}, dst, src0, src1); \
    } \
    template <typename T, typename U, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1, uint64_t mask, const uint8_t repeatTime, const BinaryRepeatParams& p) \
    { \
        lngrad::binary(Op::Name, p.where, lngrad::first<lngrad::Wider<T, U>, isSetMask>(mask, repeatTime), lngrad::strides(p), dst, src0, src1); \
    } \
    template <typename T, typename U, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1, uint64_t mask[], const uint8_t repeatTime, const BinaryRepeatParams& p) \
    { \
        lngrad::binary(Op::Name, p.where, lngrad::bits<lngrad::Wider<T, U>, isSetMask>(mask, repeatTime), lngrad::strides(p), dst, src0, src1); \
    }

#define LNGRAD_SCALAR(Name) \
    template <typename T, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const lngrad::same<T>& scalarValue, const int32_t& count, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, lngrad::real(scalarValue), lngrad::counted(count), {}, dst.operand(), src.operand()); \
    } \
    template <typename T, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const lngrad::same<T>& scalarValue, uint64_t mask, const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, lngrad::real(scalarValue), lngrad::first<T, isSetMask>(mask, repeatTime), lngrad::strides(p), dst.operand(), src.operand()); \
    } \
    template <typename T, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const lngrad::same<T>& scalarValue, uint64_t mask[], const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, lngrad::real(scalarValue), lngrad::bits<T, isSetMask>(mask, repeatTime), lngrad::strides(p), dst.operand(), src.operand()); \
    }

#define LNGRAD_MIXED_SCALAR(Name) \
    template <typename T, typename U> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<U>& src, const lngrad::same<U>& scalarValue, const int32_t& count, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, lngrad::real(scalarValue), lngrad::counted(count), {}, dst.operand(), src.operand()); \
    } \
    template <typename T, typename U, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<U>& src, const lngrad::same<U>& scalarValue, uint64_t mask, const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, lngrad::real(scalarValue), lngrad::first<lngrad::Wider<T, U>, isSetMask>(mask, repeatTime), lngrad::strides(p), dst.operand(), src.operand()); \
    } \
    template <typename T, typename U, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<U>& src, const lngrad::same<U>& scalarValue, uint64_t mask[], const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, lngrad::real(scalarValue), lngrad::bits<lngrad::Wider<T, U>, isSetMask>(mask, repeatTime), lngrad::strides(p), dst.operand(), src.operand()); \
    }

#define LNGRAD_UNARY(Name) \
    template <typename T> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t& count, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, 0, lngrad::counted(count), {}, dst.operand(), src.operand()); \
    } \
    template <typename T, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint64_t mask, const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, 0, lngrad::first<T, isSetMask>(mask, repeatTime), lngrad::strides(p), dst.operand(), src.operand()); \
    } \
    template <typename T, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint64_t mask[], const uint8_t repeatTime, const UnaryRepeatParams& p, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, 0, lngrad::bits<T, isSetMask>(mask, repeatTime), lngrad::strides(p), dst.operand(), src.operand()); \
    }

#define LNGRAD_REPEAT_REDUCE(Name) \
    template <typename T, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask, const int32_t repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, 0, lngrad::first<T, isSetMask>(mask, repeatTime), {1, srcBlkStride, 1, dstRepStride, srcRepStride, 8}, dst.operand(), src.operand(), {}, int64_t(order)); \
    } \
    template <typename T, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask[], const int32_t repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, 0, lngrad::bits<T, isSetMask>(mask, repeatTime), {1, srcBlkStride, 1, dstRepStride, srcRepStride, 8}, dst.operand(), src.operand(), {}, int64_t(order)); \
    }

#define LNGRAD_GROUP_REDUCE(Name) \
    template <typename T, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime, const int32_t mask, const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, 0, lngrad::first<T, isSetMask>(mask, repeatTime), {1, srcBlkStride, 1, dstRepStride, srcRepStride, 8}, dst.operand(), src.operand()); \
    } \
    template <typename T, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime, const uint64_t mask[], const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, 0, lngrad::bits<T, isSetMask>(mask, repeatTime), {1, srcBlkStride, 1, dstRepStride, srcRepStride, 8}, dst.operand(), src.operand()); \
    }

#define LNGRAD_REDUCE(Name) \
    template <typename T, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer, const int32_t count, bool calIndex = false, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, 0, lngrad::counted(count), {}, dst.operand(), src.operand(), sharedTmpBuffer.operand(), calIndex); \
    } \
    template <typename T> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer, const int32_t mask, const int32_t repeatTime, const int32_t srcRepStride, bool calIndex = false, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, 0, lngrad::first<T>(mask, repeatTime), {1, 1, 1, 8, srcRepStride, 8}, dst.operand(), src.operand(), sharedTmpBuffer.operand(), calIndex); \
    } \
    template <typename T> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer, const uint64_t mask[], const int32_t repeatTime, const int32_t srcRepStride, bool calIndex = false, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, 0, lngrad::bits<T>(mask, repeatTime), {1, 1, 1, 8, srcRepStride, 8}, dst.operand(), src.operand(), sharedTmpBuffer.operand(), calIndex); \
    }

namespace AscendC {

// numbers.h lists the instructions of each form: the rows of the table in lngrad/ascend/device/operations.py.
LNGRAD_BINARY_INSTRUCTIONS(LNGRAD_BINARY)
LNGRAD_MIXED_BINARY_INSTRUCTIONS(LNGRAD_MIXED_BINARY)
LNGRAD_SCALAR_INSTRUCTIONS(LNGRAD_SCALAR)
LNGRAD_MIXED_SCALAR_INSTRUCTIONS(LNGRAD_MIXED_SCALAR)
LNGRAD_UNARY_INSTRUCTIONS(LNGRAD_UNARY)
LNGRAD_REPEAT_REDUCE_INSTRUCTIONS(LNGRAD_REPEAT_REDUCE)
LNGRAD_GROUP_REDUCE_INSTRUCTIONS(LNGRAD_GROUP_REDUCE)
LNGRAD_REDUCE_INSTRUCTIONS(LNGRAD_REDUCE)

} // namespace AscendC

#undef LNGRAD_BINARY
#undef LNGRAD_MIXED_BINARY
#undef LNGRAD_SCALAR
#undef LNGRAD_MIXED_SCALAR
#undef LNGRAD_UNARY
#undef LNGRAD_REPEAT_REDUCE
#undef LNGRAD_GROUP_REDUCE
#undef LNGRAD_REDUCE

#endif
