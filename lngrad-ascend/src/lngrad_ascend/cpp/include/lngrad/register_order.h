// What takes lanes of other places: reductions, the order of lanes, and the same of masks.
#ifndef LNGRAD_REGISTER_ORDER_H
#define LNGRAD_REGISTER_ORDER_H
#include <limits>
#include "lngrad/register_math.h"
namespace lngrad {
template <typename A, bool lowest> inline A extreme() // what lanes that are off count as
{
    if constexpr (std::is_integral_v<A>) return lowest ? std::numeric_limits<A>::lowest() : std::numeric_limits<A>::max();
    else return A(lowest ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity());
}
// The result of lanes [first, first + count): of sums neighbours are added, and then neighbouring sums.
template <AscendC::ReduceType type, typename B, typename R>
inline B reduced(const R& src, const MaskReg& mask, int first, int count, int& place)
{
    using AscendC::ReduceType;
    using A = typename R::ActualT;
    const auto on = [&](int i) { return mask.on((first + i) * R::step); };
    if constexpr (type == ReduceType::SUM) {
        B sum[R::lanes];
        for (int i = 0; i < count; ++i) sum[i] = on(i) ? B(src.lane[first + i]) : B(0);
        for (int n = count / 2; n > 0; n /= 2)
            for (int i = 0; i < n; ++i) sum[i] = B(number(sum[2 * i]) + number(sum[2 * i + 1]));
        return sum[0];
    } else {
        A best = extreme<A, type == ReduceType::MAX>();
        for (int i = 0; i < count; ++i) {
            if (!on(i) || is_nan(best)) continue;
            const A a = src.lane[first + i];
            const bool better = is_nan(a) || (type == ReduceType::MAX ? a > best || (a == best && negative_zero(best) && !negative_zero(a))
                                                                      : a < best || (a == best && negative_zero(a) && !negative_zero(best)));
            if (better) best = a, place = i;
        }
        return B(best);
    }
}
template <typename R> inline void clear_lanes(R& dst) { std::memset(dst.lane, 0, R::bytes); }
// One result for each `count` lanes, in the lowest lanes; `indices`: the place of an extreme in the lane behind.
template <AscendC::ReduceType type, bool indices, typename S, typename R>
inline void reduce_lanes(S& dst, R& src, const MaskReg& mask, int count)
{
    using B = typename S::ActualT;
    src.loads.read(mask.upto * R::REG_NUM);
    S result;
    clear_lanes(result);
    set_all(result);
    for (int part = 0; part * count < R::lanes; ++part) {
        int place = 0;
        result.lane[part] = reduced<type, B>(src, mask, part * count, count, place);
        set_origin(result, sizeof result.lane[0], part, origin_within(src, mask, part * count, count));
        if constexpr (indices && type != AscendC::ReduceType::SUM) {
            result.lane[1] = bits_as<B>(Word<B>(place));
            set_origin(result, sizeof result.lane[0], 1, origin_within(src, mask, 0, count));
        }
    }
    dst = result;
}
} // namespace lngrad
namespace AscendC {
namespace Reg {
using lngrad::origin_within, lngrad::set_origin, lngrad::broken, lngrad::Rule, lngrad::function_of, lngrad::read_all;
using lngrad::move_lanes, lngrad::set_all, lngrad::reduce_lanes, lngrad::Held;
template <ReduceType type = ReduceType::SUM, LNGRAD_TYPES(T, U), MaskMergeMode mode = zeroing,
          typename S, typename V, LNGRAD_IF(V)>
inline void Reduce(S& dstReg, V& srcReg, MaskReg mask) { reduce_lanes<type, true>(dstReg, srcReg, mask, V::lanes); }
template <ReduceType type = ReduceType::SUM, LNGRAD_T, MaskMergeMode mode = zeroing, typename U, LNGRAD_IF(U)>
inline void ReduceDataBlock(U& dstReg, U& srcReg, MaskReg mask)
{ reduce_lanes<type, false>(dstReg, srcReg, mask, 32 / int(sizeof(typename U::ActualT))); }
template <ReduceType type = ReduceType::SUM, LNGRAD_TYPES(T, U), MaskMergeMode mode = zeroing,
          typename S, typename V, typename = std::enable_if_t<!std::is_same_v<S, V>>>
inline void ReduceDataBlock(S& dstReg, V& srcReg, MaskReg mask)
{ reduce_lanes<type, false>(dstReg, srcReg, mask, 32 / int(sizeof(typename V::ActualT))); }
template <PairReduce type = PairReduce::SUM, LNGRAD_T, MaskMergeMode mode = zeroing, typename U, LNGRAD_IF(U)>
inline void PairReduceElem(U& dstReg, U& srcReg, MaskReg mask)
{ reduce_lanes<ReduceType::SUM, false>(dstReg, srcReg, mask, 2); }
#define LNGRAD_OLD_REDUCE(Name, NewName, how) \
    template <LNGRAD_TYPES(T, U), MaskMergeMode mode = zeroing, typename S, typename V, LNGRAD_IF(V)> \
    inline void Name(S& dstReg, V& srcReg, MaskReg mask) { NewName<how>(dstReg, srcReg, mask); }
LNGRAD_OLD_REDUCE(ReduceSum, Reduce, ReduceType::SUM)
LNGRAD_OLD_REDUCE(ReduceMax, Reduce, ReduceType::MAX)
LNGRAD_OLD_REDUCE(ReduceMin, Reduce, ReduceType::MIN)
LNGRAD_OLD_REDUCE(ReduceSumWithDataBlock, ReduceDataBlock, ReduceType::SUM)
LNGRAD_OLD_REDUCE(ReduceMaxWithDataBlock, ReduceDataBlock, ReduceType::MAX)
LNGRAD_OLD_REDUCE(ReduceMinWithDataBlock, ReduceDataBlock, ReduceType::MIN)
LNGRAD_OLD_REDUCE(PairReduceSum, PairReduceElem, PairReduce::SUM)
#undef LNGRAD_OLD_REDUCE

template <LNGRAD_T, typename U, LNGRAD_IF(U)> inline void Interleave(U& dstReg0, U& dstReg1, U& srcReg0, U& srcReg1)
{
    read_all(srcReg0), read_all(srcReg1);
    const U first = srcReg0, second = srcReg1;
    const auto from = [](int i) { return i / 2 + (i % 2) * U::lanes; };
    move_lanes(dstReg0, first, second, from);
    move_lanes(dstReg1, first, second, [&](int i) { return from(i + U::lanes); });
}
template <LNGRAD_T, typename U, LNGRAD_IF(U)> inline void DeInterleave(U& dstReg0, U& dstReg1, U& srcReg0, U& srcReg1)
{
    read_all(srcReg0), read_all(srcReg1);
    const U first = srcReg0, second = srcReg1;
    move_lanes(dstReg0, first, second, [](int i) { return 2 * i; });
    move_lanes(dstReg1, first, second, [](int i) { return 2 * i + 1; });
}
// The lower half of each element, into one half of dst; the other half is 0.
template <LNGRAD_TYPES(T, U), HighLowPart part = HighLowPart::LOWEST, typename S, typename V, LNGRAD_IF(V)>
inline void Pack(S& dstReg, V& srcReg)
{
    using Half = RegTensor<typename S::ActualT, V::trait>;
    static_assert(2 * sizeof(typename S::ActualT) == sizeof(typename V::ActualT), "Pack: expected a dst of half the width of src");
    read_all(srcReg);
    const V source = srcReg;
    move_lanes(dstReg, reinterpret_cast<const Half&>(source), reinterpret_cast<const Half&>(source), [](int i) {
        const int place = part == HighLowPart::LOWEST ? i : i - V::lanes;
        return place < 0 || place >= V::lanes ? -1 : 2 * place;
    });
}
// One half of src, extended by its sign or by zeros.
template <LNGRAD_TYPES(T, U), HighLowPart part = HighLowPart::LOWEST, typename S, typename V, LNGRAD_IF(V)>
inline void UnPack(S& dstReg, V& srcReg)
{
    read_all(srcReg);
    const V source = srcReg;
    move_lanes(dstReg, source, source, [](int i) { return part == HighLowPart::LOWEST ? i : i + S::lanes; });
}
template <LNGRAD_T, IndexOrder order = IndexOrder::INCREASE_ORDER, typename U, typename S, LNGRAD_IF(S)>
inline void Arange(S& dstReg, U scalarValue)
{
    using A = typename S::ActualT;
    for (int i = 0; i < S::lanes; ++i) dstReg.lane[i] = A(number(A(scalarValue)) + number(A(order == IndexOrder::INCREASE_ORDER ? i : S::lanes - 1 - i)));
    set_all(dstReg);
}
// The special register that Squeeze counts in, in bytes.
inline thread_local int64_t squeezed_bytes = 0;
enum class SpecialPurposeReg { AR = 0 };
template <SpecialPurposeReg spr> inline void ClearSpr() { squeezed_bytes = 0; }
// The lanes that are on, one behind the other; the rest is 0.
template <LNGRAD_T, GatherMaskMode store = GatherMaskMode::NO_STORE_REG, typename U, LNGRAD_IF(U)>
inline void Squeeze(U& dstReg, U& srcReg, MaskReg& mask)
{
    srcReg.loads.read(mask.upto * U::REG_NUM);
    const U source = srcReg;
    int chosen[U::lanes], count = 0;
    for (int i = 0; i < U::lanes; ++i)
        if (mask.on(i * U::step)) chosen[count++] = i;
    move_lanes(dstReg, source, source, [&](int i) { return i < count ? chosen[i] : -1; });
    if constexpr (store == GatherMaskMode::STORE_REG) squeezed_bytes = count * int64_t(sizeof(typename U::ActualT));
}
template <LNGRAD_T, GatherMaskMode store = GatherMaskMode::NO_STORE_REG, typename U, LNGRAD_IF(U)>
inline void GatherMask(U& dstReg, U& srcReg, MaskReg& mask) { Squeeze<T, store>(dstReg, srcReg, mask); }
template <LNGRAD_TYPES(T, U), typename S, typename V, LNGRAD_IF(V)>
inline void Gather(S& dstReg, S& srcReg, V& indexReg, LNGRAD_AT)
{
    read_all(srcReg), read_all(indexReg);
    const S source = srcReg;
    for (int i = 0; i < V::lanes; ++i) {
        if (const uint16_t number = indexReg.origin(i)) {
            broken(Rule::INDEX, where, "Gather", i, function_of("Gather", where).poison(number, where, "Gather"));
            break;
        }
    }
    move_lanes(dstReg, source, source, [&](int i) { return int(uint64_t(indexReg.lane[i]) % uint64_t(S::lanes)); });
}
// How often each of 256 bytes comes, from 128 * bin on; ACCUMULATE: or a smaller one. dst counts on.
template <LNGRAD_TYPES(T, U), HistogramsBinType mode, HistogramsType type, typename S, typename V>
inline void Histograms(V& dstReg, S& srcReg, MaskReg& mask)
{
    srcReg.loads.read(mask.upto);
    const uint16_t why = origin_within(srcReg, mask, 0, S::lanes);
    for (int bin = 0; bin < V::lanes; ++bin) {
        const int value = bin + V::lanes * int(mode);
        for (int i = 0; i < S::lanes; ++i) {
            const bool counts = type == HistogramsType::FREQUENCY ? srcReg.lane[i] == value : srcReg.lane[i] <= value;
            if (counts && mask.on(i)) dstReg.lane[bin] = dstReg.lane[bin] + 1;
        }
        set_origin(dstReg, sizeof dstReg.lane[0], bin, why);
    }
}
// Of masks: bits of sources where the mask is on, else 0.
template <typename F, typename... Sources>
inline void combine_masks(MaskReg& dst, const MaskReg& mask, F compute, const Sources&... sources)
{
    MaskReg result;
    for (int i = 0; i < VL; ++i) result.bit[i] = mask.bit[i] && compute(sources.bit[i]...);
    int width = std::max({int(mask.width), int(sources.width)...});
    result.describe(width);
    for (const MaskReg* source : {&mask, &sources...}) {
        if (source->origins.held == Held::VALUES) continue;
        for (int i = 0; i < VL; ++i) {
            const uint16_t number = source->origins.of(i, Rule::BLANK_MASK);
            if (number == 0) continue;
            if (result.origins.held != Held::SOME) std::memset(result.origins.number, 0, sizeof result.origins.number);
            result.origins.held = Held::SOME;
            result.origins.number[i] = number;
        }
    }
    dst = result;
}
inline MaskReg every_bit() { return CreateMask<uint8_t>(); }
#define LNGRAD_MASK(Name, OldName, ...) \
    inline void Name(MaskReg& dst, MaskReg& src0, MaskReg& src1, MaskReg& mask) { combine_masks(dst, mask, [](bool a, bool b) { return __VA_ARGS__; }, src0, src1); } \
    inline void OldName(MaskReg& dst, MaskReg& src0, MaskReg& src1, MaskReg& mask) { Name(dst, src0, src1, mask); }
LNGRAD_MASK(And, MaskAnd, a && b)
LNGRAD_MASK(Or, MaskOr, a || b)
LNGRAD_MASK(Xor, MaskXor, a != b)
#undef LNGRAD_MASK
inline void Not(MaskReg& dst, MaskReg& src, MaskReg& mask) { combine_masks(dst, mask, [](bool a) { return !a; }, src); }
inline void Move(MaskReg& dst, MaskReg& src, MaskReg& mask) { combine_masks(dst, mask, [](bool a) { return a; }, src); }
inline void Move(MaskReg& dst, MaskReg& src) { dst = src; }
inline void Select(MaskReg& dst, MaskReg& src0, MaskReg& src1, MaskReg& mask)
{ combine_masks(dst, every_bit(), [](bool a, bool b, bool m) { return m ? a : b; }, src0, src1, mask); }
inline void MaskNot(MaskReg& dst, MaskReg& src, MaskReg& mask) { Not(dst, src, mask); }
inline void MaskMov(MaskReg& dst, MaskReg& src, MaskReg& mask) { Move(dst, src, mask); }
inline void MaskMov(MaskReg& dst, MaskReg& src) { dst = src; }
inline void MaskSel(MaskReg& dst, MaskReg& src0, MaskReg& src1, MaskReg& mask) { Select(dst, src0, src1, mask); }
// dst's bit i is bit from(i) of both masks, one behind the other; -1: none.
template <typename F> inline MaskReg moved_bits(const MaskReg& first, const MaskReg& second, int width, F from)
{
    MaskReg result;
    uint16_t numbers[VL], any = 0;
    for (int i = 0; i < VL; ++i) {
        const int place = from(i);
        const MaskReg& side = place < VL ? first : second;
        result.bit[i] = place < 0 ? 0 : side.bit[place % VL];
        any |= numbers[i] = place < 0 ? 0 : side.origins.of(place % VL, Rule::BLANK_MASK);
    }
    result.describe(width);
    if (any) {
        result.origins.held = Held::SOME;
        std::memcpy(result.origins.number, numbers, sizeof numbers);
    }
    return result;
}
// Every second bit, in one half; each bit of one half, with a 0 behind it.
template <HighLowPart part = HighLowPart::LOWEST> inline void Pack(MaskReg& dst, MaskReg& src)
{
    dst = moved_bits(src, src, std::max(1, src.width / 2), [](int i) {
        const int place = part == HighLowPart::LOWEST ? i : i - VL / 2;
        return place < 0 || place >= VL / 2 ? -1 : 2 * place;
    });
}
template <HighLowPart part = HighLowPart::LOWEST> inline void UnPack(MaskReg& dst, MaskReg& src)
{
    dst = moved_bits(src, src, std::min(8, 2 * src.width), [](int i) { return i % 2 ? -1 : i / 2 + (part == HighLowPart::LOWEST ? 0 : VL / 2); });
}
template <typename T> inline void Interleave(MaskReg& dst0, MaskReg& dst1, MaskReg& src0, MaskReg& src1)
{
    constexpr int size = sizeof(T);
    const MaskReg first = src0, second = src1;
    const auto from = [](int i) { const int k = i / size; return k / 2 * size + i % size + (k % 2) * VL; };
    dst0 = moved_bits(first, second, size, from);
    dst1 = moved_bits(first, second, size, [&](int i) { return from(i + VL); });
}
template <typename T> inline void DeInterleave(MaskReg& dst0, MaskReg& dst1, MaskReg& src0, MaskReg& src1)
{
    constexpr int size = sizeof(T);
    const MaskReg first = src0, second = src1;
    dst0 = moved_bits(first, second, size, [](int i) { return 2 * (i / size) * size + i % size; });
    dst1 = moved_bits(first, second, size, [](int i) { return (2 * (i / size) + 1) * size + i % size; });
}
template <HighLowPart part = HighLowPart::LOWEST> inline void MaskPack(MaskReg& dst, MaskReg& src) { Pack<part>(dst, src); }
template <HighLowPart part = HighLowPart::LOWEST> inline void MaskUnPack(MaskReg& dst, MaskReg& src) { UnPack<part>(dst, src); }
template <typename T>
inline void MaskInterleave(MaskReg& dst0, MaskReg& dst1, MaskReg& src0, MaskReg& src1) { Interleave<T>(dst0, dst1, src0, src1); }
template <typename T>
inline void MaskDeInterleave(MaskReg& dst0, MaskReg& dst1, MaskReg& src0, MaskReg& src1) { DeInterleave<T>(dst0, dst1, src0, src1); }
} // namespace Reg
} // namespace AscendC
#endif
