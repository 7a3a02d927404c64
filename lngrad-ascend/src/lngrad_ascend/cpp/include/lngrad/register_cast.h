// Casts between the element types of registers.
#ifndef LNGRAD_REGISTER_CAST_H
#define LNGRAD_REGISTER_CAST_H
#include "lngrad/byte_types.h"
#include "lngrad/register_memory.h"
#include "lngrad/system.h"
namespace lngrad {
using AscendC::RoundMode;
using AscendC::Reg::CastTrait;
using AscendC::Reg::SatMode;

constexpr Rounding rounding(RoundMode mode)
{
    switch (mode) {
        case RoundMode::CAST_FLOOR: return Rounding::FLOOR;
        case RoundMode::CAST_CEIL: return Rounding::CEIL;
        case RoundMode::CAST_ROUND: return Rounding::AWAY;
        case RoundMode::CAST_TRUNC: return Rounding::TRUNC;
        case RoundMode::CAST_ODD: return Rounding::ODD;
        default: return Rounding::NEAREST;
    }
}
// Whether what is too large becomes the largest number. CTRL[60] decides between the instruction's own mode and those of CTRL[48],
// of floats, and CTRL[59]. Where it was never set, the pages contradict each other: floats keep infinity.
inline bool saturates(SatMode mode, bool floats)
{
    if (control.bits >> 60 & 1) return !(control.bits >> (floats ? 48 : 59) & 1);
    if (control.chosen >> 60 & 1) return floats ? mode == SatMode::SAT : mode != SatMode::NO_SAT;
    return floats ? mode == SatMode::SAT : true;
}
template <typename T> constexpr Format format_of()
{
    if constexpr (std::is_same_v<T, half>) return HALF;
    else if constexpr (std::is_same_v<T, bfloat16_t>) return BFLOAT16;
    else if constexpr (std::is_same_v<T, fp8_e4m3fn_t>) return E4M3;
    else if constexpr (std::is_same_v<T, fp8_e5m2_t>) return E5M2;
    else if constexpr (std::is_same_v<T, fp4x2_e2m1_t>) return E2M1;
    else if constexpr (std::is_same_v<T, fp4x2_e1m2_t>) return E1M2;
    else return FLOAT;
}
template <typename T> constexpr bool is_whole = std::is_integral_v<T> || std::is_same_v<T, int4x2_t>;
// A number, exactly; `bits` of a pair are four.
template <typename T> inline auto value_of(T x)
{
    if constexpr (std::is_integral_v<T>) return x;
    else if constexpr (std::is_same_v<T, hifloat8_t>) return hifloat8_value(x.bits);
    else if constexpr (std::is_same_v<T, fp8_e8m0_t>) return x.bits == 0xFF ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, int(x.bits) - 127);
    else if constexpr (std::is_same_v<T, int4x2_t>) return int32_t(int8_t(x.bits << 4)) >> 4;
    else if constexpr (is_byte_pattern<T>::value) {
        constexpr Format format = format_of<T>();
        constexpr int sign = is_pair<T> ? 8 : 128;
        const uint32_t bits = x.bits & (sign - 1);
        double size = magnitude_of(bits, format);
        if (size > format.largest) size = format.infinity && (bits & ((1u << format.fraction) - 1)) == 0 ? double(std::numeric_limits<float>::infinity()) : double(std::numeric_limits<float>::quiet_NaN());
        return float(x.bits & sign ? -size : size);
    } else return static_cast<float>(x);
}
template <typename T> inline T whole_of(double x, bool clamps) // low bits of what does not fit, or the nearest that does
{
    using Limits = std::numeric_limits<T>;
    if (x != x) return T(0);
    const double low = double(Limits::lowest()), high = std::ldexp(1.0, Limits::digits);
    if (x >= low && x < high) return T(x);
    if (clamps || std::isinf(x) || std::fabs(x) >= 0x1p63) return x < 0 ? Limits::lowest() : Limits::max();
    return T(int64_t(x));
}
template <typename To, typename From> inline To converted(From from, RoundMode mode, SatMode limit)
{
    const auto x = value_of(from);
    constexpr bool from_whole = std::is_integral_v<decltype(x)> || is_whole<From>;
    if constexpr (std::is_integral_v<To> && from_whole) {
        using Limits = std::numeric_limits<To>;
        const bool wider = sizeof(To) > sizeof(From) || saturates(limit, false);
        if (wider && x < 0 && !std::is_signed_v<To>) return To(0);
        if (wider && std::is_signed_v<decltype(+x)> && int64_t(x) < int64_t(Limits::lowest())) return Limits::lowest();
        if (wider && x > 0 && uint64_t(x) > uint64_t(Limits::max())) return Limits::max();
        return To(x);
    } else if constexpr (std::is_integral_v<To>) {
        return whole_of<To>(round_whole(x, rounding(mode)), saturates(limit, false));
    } else if constexpr (std::is_same_v<To, int4x2_t>) {
        const double near = round_whole(double(x), rounding(mode));
        if (saturates(limit, false)) return int4x2_t(uint8_t(int(near != near ? 0 : std::min(7.0, std::max(-8.0, near))) & 15));
        return int4x2_t(uint8_t(whole_of<int64_t>(near, true) & 15));
    } else if constexpr (std::is_same_v<To, hifloat8_t>) {
        return hifloat8_t(hifloat8_bits(float(x), mode == RoundMode::CAST_HYBRID, saturates(limit, true)));
    } else if constexpr (std::is_same_v<To, fp8_e8m0_t>) {
        const float size = std::fabs(float(x));
        return fp8_e8m0_t(size != size ? 0xFF : std::isinf(size) ? 0xFE : uint8_t(bits_of(size) >> 23));
    } else if constexpr (std::is_same_v<To, From>) {
        return from;
    } else {
        constexpr Format format = format_of<To>();
        const bool clamps = !std::is_same_v<To, float> && saturates(limit, true);
        if constexpr (!is_byte_pattern<To>::value) {
            if (rounding(mode) == Rounding::NEAREST && !clamps) return To(x);
            return To(float(round_to(double(x), format, rounding(mode), clamps)));
        } else {
            constexpr uint8_t sign = is_pair<To> ? 8 : 128;
            const double near = round_to(double(x), format, rounding(mode), clamps);
            const uint8_t negative = std::signbit(near) ? sign : 0;
            if (near != near || (std::isinf(near) && !format.infinity)) return To(uint8_t(negative | 0x7F));
            if (std::isinf(near)) return To(uint8_t(negative | 0x7C));
            return To(uint8_t(negative | magnitude_bits(near, format)));
        }
    }
}
} // namespace lngrad
namespace AscendC {
namespace Reg {
using lngrad::merging, lngrad::round_whole, lngrad::rounding;
// The wider type has one element in each of its places, the narrower one in part `layoutMode` of it. Two numbers of four bits are
// one element of a byte, beside two of 16 bits.
template <LNGRAD_TYPES(T, U), const CastTrait& trait = castTrait, typename S, typename V, LNGRAD_IF(V)>
inline void Cast(S& dstReg, V& srcReg, MaskReg& mask, LNGRAD_AT)
{
    using To = typename S::ActualT;
    using From = typename V::ActualT;
    using namespace lngrad;
    static_assert(S::REG_NUM == V::REG_NUM, "Cast: expected registers of one RegTrait");
    constexpr bool merges = trait.mrgMode == MaskMergeMode::MERGING;
    constexpr int part = int(trait.layoutMode) < 0 ? 0 : int(trait.layoutMode);
    constexpr int twins = is_pair<To> || is_pair<From> ? 2 : 1;
    constexpr int to = is_pair<To> ? 1 : int(sizeof(To)) * twins, from = is_pair<From> ? 1 : int(sizeof(From)) * twins;
    constexpr int wide = to > from ? to : from, places = S::bytes / wide;
    alignas(64) uint8_t lanes[S::bytes];
    if constexpr (to < wide) std::memset(lanes, 0, sizeof lanes);
    if (merges) std::memcpy(lanes, dstReg.lane, sizeof lanes);
    const auto on = [&](int i) {
        const int small = (i * wide + (from < wide ? part * from : 0)) / S::REG_NUM;
        return mask.on(small) || (from < wide && mask.on(i * wide / S::REG_NUM));
    };
    const auto place = [&](int i, int size) { return i * wide + (size < wide ? part * size : 0); };
    const uint8_t* source = reinterpret_cast<const uint8_t*>(srcReg.lane);
    for (int i = 0; i < places; ++i) {
        const bool chosen = on(i);
        if (!chosen && merges) continue;
        uint8_t result[to] = {};
        for (int twin = 0; twin < twins && chosen; ++twin) {
            From value;
            std::memcpy(&value, source + place(i, from) + (is_pair<From> ? 0 : twin * int(sizeof(From))), sizeof value);
            if constexpr (is_pair<From>) value = From(uint8_t(twin ? value.bits >> 4 : value.bits & 15));
            const To number = converted<To>(value, trait.roundMode, trait.satMode);
            if constexpr (is_pair<To>) result[0] |= twin ? number.bits << 4 : number.bits;
            else std::memcpy(result + twin * int(sizeof(To)), &number, sizeof number);
        }
        std::memcpy(lanes + place(i, to), result, to);
    }
    Loads loads;
    if (merges) loads.add(dstReg.loads, 2 * VL);
    loads.add(srcReg.loads, (mask.upto + wide - 1) / wide * wide * S::REG_NUM);
    if (srcReg.origins.held == Held::VALUES && mask.origins.held == Held::VALUES && (!merges || dstReg.origins.held == Held::VALUES)) {
        dstReg.origins.held = Held::VALUES;
    } else {
        uint16_t numbers[S::bytes], any = 0;
        for (int b = 0; b < S::bytes; ++b) {
            const int i = b / wide;
            const bool ours = b >= place(i, to) && b < place(i, to) + to;
            numbers[b] = merges ? dstReg.origins.of(b, Rule::BLANK_REGISTER) : 0;
            for (int k = 0; ours && on(i) && k < from; ++k) numbers[b] = std::max(k == 0 ? uint16_t(0) : numbers[b], srcReg.origins.of(place(i, from) + k, Rule::BLANK_REGISTER));
            if (ours) numbers[b] = std::max(numbers[b], mask.origins.of(place(i, from) / S::REG_NUM, Rule::BLANK_MASK));
            any |= numbers[b];
        }
        dstReg.origins.held = any ? Held::SOME : Held::VALUES;
        if (any) std::memcpy(dstReg.origins.number, numbers, sizeof numbers);
    }
    dstReg.loads = loads;
    set_lanes(dstReg, lanes);
}
// To a whole number, in the type that it has.
template <LNGRAD_T, RoundMode roundMode = RoundMode::CAST_NONE, MaskMergeMode mode = zeroing, typename S, LNGRAD_IF(S)>
inline void Truncate(S& dstReg, S& srcReg, MaskReg& mask, LNGRAD_AT)
{
    using A = typename S::ActualT;
    each_lane<merging<mode>()>(dstReg, mask, where, "Truncate", [](A a) { return A(float(round_whole(float(a), rounding(roundMode)))); }, srcReg);
}
// A product that is rounded as it is narrowed; exp(srcReg0 - srcReg1), for which half is widened to float first.
template <LNGRAD_TYPES(T0, T1), typename T2, RegLayout layout = first_layout, typename T3, typename T4, LNGRAD_IF(T4)>
inline void MulsCast(T3& dstReg, T4& srcReg, T2 scalarValue, MaskReg& mask, LNGRAD_AT)
{
    static constexpr CastTrait trait{layout, SatMode::NO_SAT, MaskMergeMode::ZEROING, RoundMode::CAST_ROUND};
    T4 product;
    Muls(product, srcReg, scalarValue, mask, where);
    Cast<DefaultType, DefaultType, trait>(dstReg, product, mask, where);
}
template <LNGRAD_TYPES(T, U), RegLayout layout = first_layout, MaskMergeMode mode = zeroing, typename S, typename V, LNGRAD_IF(V)>
inline void ExpSub(S& dstReg, V& srcReg0, V& srcReg1, MaskReg& mask, LNGRAD_AT)
{
    static constexpr CastTrait trait{layout, SatMode::UNKNOWN, MaskMergeMode::ZEROING, RoundMode::UNKNOWN};
    S first, second, difference;
    Cast<DefaultType, DefaultType, trait>(first, srcReg0, mask, where);
    Cast<DefaultType, DefaultType, trait>(second, srcReg1, mask, where);
    MaskReg every = CreateMask<uint8_t>();
    MaskReg& floats = std::is_same_v<S, V> ? mask : every;
    Sub(difference, first, second, floats, where);
    Exp<DefaultType, mode>(dstReg, difference, floats, where);
}
} // namespace Reg
// Limits of the element types: as scalars, or filled into a tensor.
template <typename T>
struct NumericLimits {
    using Real = std::numeric_limits<float>;
    static constexpr float largest = static_cast<float>(lngrad::format_of<T>().largest);
    static constexpr auto limit(float real, T whole) { return std::is_integral_v<T> ? whole : T(real); }
#define LNGRAD_LIMIT(Name, ...) \
    static constexpr T Name() { return __VA_ARGS__; } \
    static void Name(const LocalTensor<T>& dst, uint32_t count) { Duplicate(dst, Name(), int32_t(count)); }
    LNGRAD_LIMIT(Infinity, T(Real::infinity()))
    LNGRAD_LIMIT(NegativeInfinity, T(-Real::infinity()))
    LNGRAD_LIMIT(QuietNaN, T(Real::quiet_NaN()))
    LNGRAD_LIMIT(Max, limit(largest, std::numeric_limits<T>::max()))
    LNGRAD_LIMIT(Lowest, limit(-largest, std::numeric_limits<T>::lowest()))
#undef LNGRAD_LIMIT
};
} // namespace AscendC
#endif
