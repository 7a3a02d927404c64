// half and bfloat16_t as scalars of a kernel: stored in 16 bits, computed in float, rounded to nearest even.
#ifndef LNGRAD_SCALAR_H
#define LNGRAD_SCALAR_H

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lngrad/byte_types.h"
#include "lngrad/call.h"

namespace lngrad {

// The same bits as another type; a constant where the compiler can (g++ 11, clang 9).
template <typename To, typename From>
constexpr To bits_as(const From& value)
{
#if __clang_major__ >= 9 || __GNUC__ >= 11
    return __builtin_bit_cast(To, value);
#else
    To bits{};
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
#endif
}
constexpr uint32_t bits_of(float value) { return bits_as<uint32_t>(value); }
constexpr float float_of(uint32_t bits) { return bits_as<float>(bits); }

constexpr uint16_t bfloat16_bits(float value)
{
    uint32_t bits = bits_of(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
        return static_cast<uint16_t>((bits >> 16) | 0x40u);
    }
    return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float bfloat16_value(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

constexpr float half_value(uint16_t bits)
{
    uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    uint32_t exponent = (bits >> 10) & 0x1Fu;
    uint32_t fraction = bits & 0x3FFu;
    if (exponent == 0x1Fu) {
        return float_of(sign | 0x7F800000u | (fraction << 13));
    }
    if (exponent == 0) {
        float magnitude = static_cast<float>(fraction) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return float_of(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

constexpr uint16_t half_bits(float value)
{
    uint32_t bits = bits_of(value);
    uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    bits &= 0x7FFFFFFFu;
    if (bits > 0x7F800000u) {
        return sign | 0x7E00u;
    }
    if (bits >= 0x47800000u) { // 65536 and more, infinity
        return sign | 0x7C00u;
    }
    if (bits < 0x38800000u) { // below 2^-14: a subnormal half; the sum rounds to its last place
        return sign | static_cast<uint16_t>(bits_of(float_of(bits) + 0.5f) - 0x3F000000u);
    }
    bits += 0xC8000FFFu + ((bits >> 13) & 1u); // less 112 in the exponent, rounded at bit 13
    return sign | static_cast<uint16_t>(bits >> 13);
}

template <uint16_t (*Narrow)(float), float (*Widen)(uint16_t)>
struct Scalar16 {
    uint16_t bits;

    Scalar16() = default; // trivial: a union may hold one
    template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
    constexpr Scalar16(T value) : bits(Narrow(static_cast<float>(value))) {}
    constexpr operator float() const { return Widen(bits); }
    Scalar16& operator+=(float other) { return *this = Scalar16(*this + other); }
    Scalar16& operator-=(float other) { return *this = Scalar16(*this - other); }
    Scalar16& operator*=(float other) { return *this = Scalar16(*this * other); }
    Scalar16& operator/=(float other) { return *this = Scalar16(*this / other); }
};

} // namespace lngrad

using half = lngrad::Scalar16<lngrad::half_bits, lngrad::half_value>;
// Two of these lie in a byte; a tensor of them has half as many bytes as elements.
struct int4b_t {
    uint8_t pair = 0;
};
using bfloat16_t = lngrad::Scalar16<lngrad::bfloat16_bits, lngrad::bfloat16_value>;

namespace lngrad {

template <typename T>
constexpr Type type_of()
{
    if constexpr (std::is_same_v<T, float>) return Type::FLOAT;
    else if constexpr (std::is_same_v<T, half>) return Type::HALF;
    else if constexpr (std::is_same_v<T, bfloat16_t>) return Type::BFLOAT16;
    else if constexpr (std::is_same_v<T, int4b_t>) return Type::INT4B;
    else if constexpr (std::is_same_v<T, int8_t>) return Type::INT8;
    else if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, bool> || is_byte_pattern<T>::value) return Type::UINT8;
    else if constexpr (std::is_same_v<T, int16_t>) return Type::INT16;
    else if constexpr (std::is_same_v<T, uint16_t>) return Type::UINT16;
    else if constexpr (std::is_same_v<T, int32_t>) return Type::INT32;
    else if constexpr (std::is_same_v<T, uint32_t>) return Type::UINT32;
    else if constexpr (std::is_integral_v<T> && sizeof(T) == 8) return std::is_signed_v<T> ? Type::INT64 : Type::UINT64;
    else {
        static_assert(sizeof(T) == 0, "lngrad: this element type is not simulated; see docs/ascend-c.md");
        return Type::FLOAT;
    }
}

template <typename T>
T scalar_of(const Call& call)
{
    if constexpr (std::is_integral_v<T>) return static_cast<T>(call.result);
    else return T(static_cast<float>(call.real));
}

} // namespace lngrad

#endif
