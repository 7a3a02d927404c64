// The vector instructions: by count of elements, by a number of elements a repeat, and by a bit mask.
#ifndef LNGRAD_VECTOR_H
#define LNGRAD_VECTOR_H

#include "lngrad/copy.h"

namespace lngrad {

inline uint64_t ones(int64_t n) { return n <= 0 ? 0 : n >= 64 ? ~uint64_t(0) : (uint64_t(1) << n) - 1; }

// Every instruction leaves its own mask in the register.
inline Elements counted(int64_t count)
{
    mask_register.low = mask_register.high = ~uint64_t(0);
    return {0, count, 0, 1};
}

// The mask of an instruction: how many elements of each repeat come first, or the address of its bits.
struct MaskArg {
    uint64_t first = 0;
    const uint64_t* bits = nullptr;
    MaskArg(const uint64_t* words) : bits(words) {}
    template <typename N, std::enable_if_t<std::is_convertible_v<N, uint64_t>, int> = 0>
    MaskArg(N count) : first(static_cast<uint64_t>(count)) {}
};

template <typename T, bool set = true>
Elements masked(const MaskArg& mask, int64_t repeats)
{
    MaskRegister& m = mask_register;
    if (set && (mask.bits != nullptr || m.counts)) {
        m.low = mask.bits != nullptr ? mask.bits[0] : mask.first;
        m.high = mask.bits != nullptr && !m.counts ? mask.bits[1] : 0;
    } else if (set) {
        m.low = ones(int64_t(mask.first));
        m.high = ones(int64_t(mask.first) - 64);
        return {1, int64_t(mask.first), 0, repeats};
    }
    if (m.counts) return {3, int64_t(m.low), 0, 1};
    return {2, int64_t(m.low), sizeof(T) < 4 ? int64_t(m.high) : 0, repeats};
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
template <typename T, typename U = T>
using Wider = std::conditional_t<(sizeof(U) > sizeof(T)), U, T>;

} // namespace lngrad

#define LNGRAD_LIST(...) __VA_ARGS__

// The form by count as a plain pointer to a function takes it: its place is that of the last call. A call prefers the other
// form, which has no trailing parameters.
#define LNGRAD_POINTED(Name, Count, Types, Parameters, ...) \
    template <LNGRAD_LIST Types, typename... None> \
    std::enable_if_t<sizeof...(None) == 0> Name(LNGRAD_LIST Parameters, Count count, None...) \
    { \
        Name(__VA_ARGS__, count, lngrad::last_place()); \
    }

// An instruction by count of elements, and with a mask and repeats: the parameters of both, those of the second alone,
// the strides of the second, and what `lngrad::vector` takes: the scalar, the tensors and what is particular. A device has 8 bits for
// repeatTime; its type is deduced, so that what does not fit is told.
#define LNGRAD_INSTRUCTION(Name, OpName, CountTypes, MaskTypes, MaskType, Parameters, RepeatParameters, repeats, scalar, ...) \
    template <LNGRAD_LIST CountTypes> \
    void Name(LNGRAD_LIST Parameters, const int32_t& count, Where where = Where::here()) \
    { \
        lngrad::vector(Op::OpName, where, scalar, lngrad::counted(count), {}, __VA_ARGS__); \
    } \
    template <LNGRAD_LIST MaskTypes, bool isSetMask = true, typename Repeats, std::enable_if_t<std::is_integral_v<Repeats>, int> = 0> \
    void Name(LNGRAD_LIST Parameters, lngrad::MaskArg mask, const Repeats repeatTime, LNGRAD_LIST RepeatParameters, Where where = Where::here()) \
    { \
        lngrad::vector(Op::OpName, where, scalar, lngrad::masked<lngrad::Wider<LNGRAD_LIST MaskType>, isSetMask>(mask, repeatTime), LNGRAD_LIST repeats, __VA_ARGS__); \
    }

#define LNGRAD_UNARY(Name) \
    LNGRAD_INSTRUCTION(Name, Name, (typename T), (typename T), (T), (const LocalTensor<T>& dst, const LocalTensor<T>& src), \
                       (const UnaryRepeatParams& p), (lngrad::strides(p)), 0, dst, src) \
    LNGRAD_POINTED(Name, const int32_t&, (typename T), (const LocalTensor<T>& dst, const LocalTensor<T>& src), dst, src)
#define LNGRAD_SCALAR(Name) \
    LNGRAD_INSTRUCTION(Name, Name, (typename T, bool isSetMask = true), (typename T), (T), \
                       (const LocalTensor<T>& dst, const LocalTensor<T>& src, const lngrad::same<T>& scalarValue), \
                       (const UnaryRepeatParams& p), (lngrad::strides(p)), lngrad::real(scalarValue), dst, src)
#define LNGRAD_MIXED_SCALAR(Name) \
    LNGRAD_INSTRUCTION(Name, Name, (typename T, typename U), (typename T, typename U), (T, U), \
                       (const LocalTensor<T>& dst, const LocalTensor<U>& src, const lngrad::same<U>& scalarValue), \
                       (const UnaryRepeatParams& p), (lngrad::strides(p)), lngrad::real(scalarValue), dst, src)

// Two tensors. The type of the mask is deduced, so that the form with repeats fits plain pointers to functions.
#define LNGRAD_TWO_SOURCES(Name, Source, ...) \
    template <__VA_ARGS__> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<Source>& src0, const LocalTensor<Source>& src1, const int32_t& count, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, 0, lngrad::counted(count), {}, dst, src0, src1); \
    } \
    template <__VA_ARGS__, bool isSetMask = true, typename Mask, typename Repeats> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<Source>& src0, const LocalTensor<Source>& src1, Mask mask, const Repeats repeatTime, const BinaryRepeatParams& p) \
    { \
        lngrad::vector(Op::Name, p.where, 0, lngrad::masked<lngrad::Wider<T, Source>, isSetMask>(mask, repeatTime), lngrad::strides(p), dst, src0, src1); \
    }
#define LNGRAD_BINARY(Name) \
    LNGRAD_TWO_SOURCES(Name, T, typename T) \
    LNGRAD_POINTED(Name, const int32_t&, (typename T), \
                   (const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1), dst, src0, src1)
#define LNGRAD_MIXED_BINARY(Name) LNGRAD_TWO_SOURCES(Name, U, typename T, typename U)

// Of each repeat: results in an order behind the mask and repeatTime; or of blocks and pairs, with repeatTime first.
#define LNGRAD_EACH_REPEAT(Name, Masks, Order, extra) \
    template <typename T, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, LNGRAD_LIST Masks, const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride, Order Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, 0, lngrad::masked<T, isSetMask>(mask, repeatTime), {1, srcBlkStride, 1, dstRepStride, srcRepStride, 8}, dst, src, {}, extra); \
    }
#define LNGRAD_ORDER ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX,
#define LNGRAD_REPEAT_REDUCE(Name) LNGRAD_EACH_REPEAT(Name, (lngrad::MaskArg mask, const int32_t repeatTime), LNGRAD_ORDER, int64_t(order))
#define LNGRAD_GROUP_REDUCE(Name) LNGRAD_EACH_REPEAT(Name, (const int32_t repeatTime, lngrad::MaskArg mask), , 0)

#define LNGRAD_REDUCE(Name) \
    template <typename T, bool isSetMask = true> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer, const int32_t count, bool calIndex = false, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, 0, lngrad::counted(count), {}, dst, src, sharedTmpBuffer, calIndex); \
    } \
    template <typename T> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer, lngrad::MaskArg mask, const int32_t repeatTime, const int32_t srcRepStride, bool calIndex = false, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Name, where, 0, lngrad::masked<T>(mask, repeatTime), {1, 1, 1, 8, srcRepStride, 8}, dst, src, sharedTmpBuffer, calIndex); \
    }

namespace AscendC {

// numbers.h lists the instructions of each form: the rows of the table in lngrad_ascend/device/operations.py.
LNGRAD_BINARY_INSTRUCTIONS(LNGRAD_BINARY)
LNGRAD_MIXED_BINARY_INSTRUCTIONS(LNGRAD_MIXED_BINARY)
LNGRAD_SCALAR_INSTRUCTIONS(LNGRAD_SCALAR)
LNGRAD_MIXED_SCALAR_INSTRUCTIONS(LNGRAD_MIXED_SCALAR)
LNGRAD_UNARY_INSTRUCTIONS(LNGRAD_UNARY)
LNGRAD_REPEAT_REDUCE_INSTRUCTIONS(LNGRAD_REPEAT_REDUCE)
LNGRAD_GROUP_REDUCE_INSTRUCTIONS(LNGRAD_GROUP_REDUCE)
LNGRAD_REDUCE_INSTRUCTIONS(LNGRAD_REDUCE)

} // namespace AscendC

#endif
