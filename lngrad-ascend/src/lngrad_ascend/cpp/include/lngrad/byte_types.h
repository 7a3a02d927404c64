// Element types of a byte: floats of 8 and 4 bits, and pairs of 4. To tensors they are bytes; Cast knows what they stand for.
#ifndef LNGRAD_BYTE_TYPES_H
#define LNGRAD_BYTE_TYPES_H
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
namespace lngrad {
enum class Rounding : uint8_t { NEAREST, FLOOR, CEIL, AWAY, TRUNC, ODD };
// A binary format: bits of the fraction, the exponent of the least normal number, the largest number, what there is beyond it.
struct Format {
    int fraction, least;
    double largest;
    bool infinity, nan;
};
inline double round_whole(double x, Rounding mode)
{
    switch (mode) {
        case Rounding::FLOOR: return std::floor(x);
        case Rounding::CEIL: return std::ceil(x);
        case Rounding::AWAY: return std::round(x);
        case Rounding::TRUNC: return std::trunc(x);
        case Rounding::ODD: return std::floor(x) == x ? x : 2 * std::floor(x / 2) + 1;
        default: return std::nearbyint(x);
    }
}
// The number of a format that a number is rounded to; beyond the largest one it is that, or infinity.
inline double round_to(double x, const Format& format, Rounding mode, bool saturates)
{
    if (x != x) return saturates || !format.nan ? 0 : x;
    const double size = std::fabs(x), largest = std::copysign(format.largest, x);
    const double beyond = saturates || (!format.infinity && !format.nan) ? largest : std::copysign(std::numeric_limits<double>::infinity(), x);
    if (std::isinf(size)) return beyond;
    if (x == 0) return x;
    const int exponent = std::max(std::ilogb(size), format.least) - format.fraction;
    const double near = std::copysign(std::ldexp(round_whole(std::ldexp(x, -exponent), mode), exponent), x);
    if (std::fabs(near) <= format.largest) return near;
    const bool inward = mode == Rounding::TRUNC || mode == Rounding::ODD || mode == (x > 0 ? Rounding::FLOOR : Rounding::CEIL);
    return inward ? largest : beyond;
}
// The bits of a number of the format, without its sign.
inline uint32_t magnitude_bits(double x, const Format& format)
{
    const double size = std::fabs(x);
    if (size == 0) return 0;
    const int exponent = std::max(std::ilogb(size), format.least);
    return (uint32_t(exponent - format.least) << format.fraction) + uint32_t(std::ldexp(size, format.fraction - exponent));
}
inline double magnitude_of(uint32_t bits, const Format& format)
{
    const int exponent = int(bits >> format.fraction), fraction = int(bits & ((1u << format.fraction) - 1));
    if (exponent == 0) return std::ldexp(fraction, format.least - format.fraction);
    return std::ldexp(fraction + (1 << format.fraction), format.least - format.fraction + exponent - 1);
}
constexpr Format HALF{10, -14, 65504, true, true}, BFLOAT16{7, -126, 3.3895313892515355e38, true, true};
constexpr Format FLOAT{23, -126, 3.4028234663852886e38, true, true};
constexpr Format E4M3{3, -6, 448, false, true}, E5M2{2, -14, 57344, true, true};
constexpr Format E2M1{1, 0, 6, false, false}, E1M2{2, 0, 1.75, false, false};
// Two numbers of four bits are one element.
template <int>
struct BytePattern {
    uint8_t bits = 0;
    BytePattern() = default;
    explicit constexpr BytePattern(uint8_t pattern) : bits(pattern) {}
};
} // namespace lngrad
using fp8_e4m3fn_t = lngrad::BytePattern<0>;
using fp8_e5m2_t = lngrad::BytePattern<1>;
using fp8_e8m0_t = lngrad::BytePattern<2>;
using hifloat8_t = lngrad::BytePattern<3>;
using fp4x2_e2m1_t = lngrad::BytePattern<4>;
using fp4x2_e1m2_t = lngrad::BytePattern<5>;
using int4x2_t = lngrad::BytePattern<6>;
namespace lngrad {
template <typename T>
struct is_byte_pattern : std::false_type {};
template <int which>
struct is_byte_pattern<BytePattern<which>> : std::true_type {};
template <typename T>
constexpr bool is_pair = std::is_same_v<T, fp4x2_e2m1_t> || std::is_same_v<T, fp4x2_e1m2_t> || std::is_same_v<T, int4x2_t>;
// hifloat8: the more bits the exponent takes, the fewer the fraction has. `hybrid`: far from 1 by the number's own low bits.
inline uint8_t hifloat8_bits(float x, bool hybrid, bool saturates)
{
    const uint8_t sign = std::signbit(x) ? 0x80 : 0;
    if (x != x) return saturates ? 0 : 0x80;
    const uint8_t beyond = static_cast<uint8_t>(sign | (saturates ? 0x6E : 0x6F));
    if (std::isinf(x) || std::fabs(x) >= 0x1p16f) return beyond;
    int exponent = x == 0 ? -99 : std::ilogb(x);
    if (exponent < -23) return 0;
    const uint32_t fraction = uint32_t(std::ldexp(std::fabs(x), 23 - exponent)) & 0x7FFFFF, threshold = fraction & 0x3FFF;
    const int size = std::abs(exponent);
    const int bits = exponent < -15 ? 0 : size <= 3 ? 3 : size <= 7 ? 2 : 1;
    uint32_t kept = fraction >> (23 - bits);
    const uint32_t rest = exponent == -23 ? (1u << 13) | (fraction >> 10) : fraction >> (23 - bits - 14) & 0x3FFF; // 14 bits behind the kept ones
    const bool up = exponent == -23 ? !hybrid || rest >= threshold : hybrid && size > 3 ? rest >= threshold : rest >> 13 & 1;
    if (exponent == -23) return up ? sign | 1 : 0;
    if (up && (++kept >> bits) != 0) kept = 0, ++exponent;
    if (exponent > 15 || (exponent == 15 && kept != 0)) return beyond;
    if (exponent < -15) return static_cast<uint8_t>(sign | (exponent + 23));
    const int now = std::abs(exponent), width = now == 0 ? 0 : std::ilogb(now) + 1; // bits of the exponent, its sign among them
    const uint32_t dots[] = {0b0001000, 0b0010000, 0b0100000, 0b1000000, 0b1100000};
    if (now == 0) return static_cast<uint8_t>(sign | dots[0] | kept);
    const uint32_t field = (exponent < 0 ? 1u << (width - 1) : 0) | (uint32_t(now) & ((1u << (width - 1)) - 1));
    const int left = width <= 2 ? 3 : 5 - width;
    kept = bits > left ? kept >> (bits - left) : kept << (left - bits);
    return static_cast<uint8_t>(sign | dots[width] | field << left | kept);
}
inline float hifloat8_value(uint8_t code)
{
    const uint32_t bits = code & 0x7F;
    const float sign = code & 0x80 ? -1.0f : 1.0f;
    if (code == 0x80) return std::numeric_limits<float>::quiet_NaN();
    if (bits == 0x6F) return sign * std::numeric_limits<float>::infinity();
    if (bits < 8) return bits == 0 ? 0.0f : sign * std::ldexp(1.0f, int(bits) - 23);
    const int width = bits >= 0x60 ? 4 : bits >= 0x40 ? 3 : bits >= 0x20 ? 2 : bits >= 0x10 ? 1 : 0;
    const int left = width <= 2 ? 3 : 5 - width;
    const uint32_t fraction = bits & ((1u << left) - 1), field = bits >> left & ((1u << width) - 1);
    int exponent = 0;
    if (width > 0) {
        const int size = int((1u << (width - 1)) | (field & ((1u << (width - 1)) - 1)));
        exponent = field >> (width - 1) & 1 ? -size : size;
    }
    return sign * std::ldexp(1.0f + std::ldexp(float(fraction), -left), exponent);
}
} // namespace lngrad
#endif
