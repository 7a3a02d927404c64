// What the vector unit computes in registers: arithmetic lane by lane, comparison, reduction, order of lanes, masks.
#ifndef LNGRAD_REGISTER_MATH_H
#define LNGRAD_REGISTER_MATH_H
#include <cmath>
#include "lngrad/registers.h"
namespace lngrad {
using AscendC::Reg::MaskReg;
// A number to compute with: whole ones wrap around, half and bfloat16_t are computed in float and rounded once.
template <typename A> inline constexpr auto number(A value)
{
    if constexpr (std::is_integral_v<A>) {
        return static_cast<std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>>(value);
    } else {
        return static_cast<float>(value);
    }
}
// A sum of products of 16-bit floats, rounded once: to odd in float, which leaves the last rounding right.
template <typename A> inline A rounded(double value)
{
    float near = static_cast<float>(value);
    const double rest = value - near;
    if (rest != 0 && rest == rest && (bits_of(near) & 1) == 0) {
        const uint32_t bits = bits_of(near);
        near = float_of((rest > 0) == (near >= 0 && !(bits >> 31)) ? bits + 1 : bits - 1);
    }
    return A(near);
}
template <typename A> inline A fused(A a, A b, A c) // a b + c, rounded once
{
    if constexpr (std::is_same_v<A, float>) return __builtin_fmaf(a, b, c);
    else if constexpr (std::is_integral_v<A>) return A(number(a) * number(b) + number(c));
    else return rounded<A>(double(float(a)) * double(float(b)) + double(float(c)));
}
template <typename A> inline bool is_nan(A a)
{
    if constexpr (std::is_integral_v<A>) return false;
    else return float(a) != float(a);
}
template <typename A> inline bool negative_zero(A a)
{
    if constexpr (std::is_integral_v<A>) return false;
    else return float(a) == 0 && std::signbit(float(a));
}
template <typename A> inline A larger(A a, A b) { return is_nan(a) || a > b || (a == b && negative_zero(b)) ? a : b; }
template <typename A> inline A smaller(A a, A b) { return is_nan(a) || a < b || (a == b && negative_zero(a)) ? a : b; }
template <typename A> inline A magnitude(A a)
{
    if constexpr (std::is_integral_v<A>) return std::is_signed_v<A> && a < 0 ? A(0 - number(a)) : a;
    else return bits_as<A>(Word<A>(bits_as<Word<A>>(a) & (Word<A>(-1) >> 1)));
}
// Subnormal numbers are zeros to functions that take several cycles.
inline float flushed(float a) { return std::fabs(a) < 0x1p-126f ? std::copysign(0.0f, a) : a; }
template <typename A, AscendC::CMPMODE mode> inline bool compared(A a, A b)
{
    using AscendC::CMPMODE;
    return mode == CMPMODE::LT ? a < b : mode == CMPMODE::GT ? a > b : mode == CMPMODE::EQ ? a == b
         : mode == CMPMODE::LE ? a <= b : mode == CMPMODE::GE ? a >= b : a != b;
}
// The bits of a mask for lanes of a register, as words of 0 or all ones.
template <typename R> inline auto chosen(const MaskReg& mask, int i)
{
    using W = Word<typename R::ActualT>;
    if constexpr (R::step == int(sizeof(W))) return W(0) - W(reinterpret_cast<const W*>(mask.bit)[i] & 1);
    else return W(0) - W(mask.bit[i * R::step]);
}
// Lanes of sources that have no value leave none in dst.
template <typename R, typename... S> inline void spread(R& dst, const MaskReg& mask, bool merges, const S&... sources)
{
    constexpr int size = sizeof(typename R::ActualT);
    uint16_t numbers[R::bytes], any = 0;
    for (int i = 0; i < R::lanes; ++i) {
        uint16_t number = 0;
        if (mask.on(i * R::step)) number = std::max({uint16_t(0), sources.origin(i)...});
        else if (merges) number = dst.origin(i);
        number = std::max(number, mask.origins.of(i * R::step, Rule::BLANK_MASK));
        for (int b = 0; b < size; ++b) numbers[i * size + b] = number;
        any |= number;
    }
    dst.origins.held = any ? Held::SOME : Held::VALUES;
    if (any) std::memcpy(dst.origins.number, numbers, sizeof numbers);
}
// A mask made for wider elements drops lanes in between: worth a word where they hold something.
template <typename... S> inline void narrow(const MaskReg& mask, Where where, const char* api, int step, const S&... sources)
{
    int64_t lost = 0;
    for (int i = 0; i * step < mask.upto; ++i) {
        if (i * step % mask.width != 0) lost += ((bits_as<Word<typename S::ActualT>>(sources.lane[i]) != 0) || ...);
    }
    if (lost != 0) broken(Rule::NARROW_MASK, where, api, mask.width, step, lost);
}
// What becomes of dst beside its lanes: before these are written.
template <typename R, typename... S>
inline void note(R& dst, const MaskReg& mask, bool merges, Where where, const char* api, const S&... sources)
{
    Loads loads;
    if (merges) loads.add(dst.loads, 2 * VL);
    (loads.add(sources.loads, mask.upto * R::REG_NUM), ...);
    const bool values = ((mask.origins.held == Held::VALUES) & ... & (sources.origins.held == Held::VALUES));
    if (values & (!merges || dst.origins.held == Held::VALUES)) dst.origins.held = Held::VALUES;
    else spread(dst, mask, merges, sources...);
    if constexpr (sizeof...(S) > 0) {
        if (mask.width > R::step) narrow(mask, where, api, R::step, sources...);
    }
    dst.loads = loads;
}
template <typename R> inline void set_lanes(R& dst, const void* lanes) { std::memcpy(dst.lane, lanes, R::bytes); }
// dst = compute(sources…) in the lanes that are on; the others are 0, or stay.
template <bool merges, typename R, typename F, typename... S>
inline void each_lane(R& dst, const MaskReg& mask, Where where, const char* api, F compute, const S&... sources)
{
    using W = Word<typename R::ActualT>;
    alignas(64) W lanes[R::lanes];
    for (int i = 0; i < R::lanes; ++i) {
        const W on = chosen<R>(mask, i);
        lanes[i] = bits_as<W>(typename R::ActualT(compute(sources.lane[i]...))) & on;
        if (merges) lanes[i] |= bits_as<W>(dst.lane[i]) & W(~on);
    }
    note(dst, mask, merges, where, api, sources...);
    set_lanes(dst, lanes);
}
// Lanes of other places: `from(i)` is the first source's lane for dst's, or -1 for none, and from R::lanes on the second source's.
template <typename R, typename S, typename F> inline void move_lanes(R& dst, const S& first, const S& second, F from)
{
    using A = typename R::ActualT;
    constexpr int size = sizeof(A);
    A lanes[R::lanes];
    uint16_t numbers[R::bytes], any = 0;
    for (int i = 0; i < R::lanes; ++i) {
        const int source = from(i);
        const S& side = source < S::lanes ? first : second;
        lanes[i] = source < 0 ? A(0) : A(side.lane[source % S::lanes]);
        const uint16_t number = source < 0 ? 0 : side.origin(source % S::lanes);
        for (int b = 0; b < size; ++b) numbers[i * size + b] = number;
        any |= number;
    }
    set_lanes(dst, lanes);
    dst.loads.count = 0;
    dst.origins.held = any ? Held::SOME : Held::VALUES;
    if (any) std::memcpy(dst.origins.number, numbers, sizeof numbers);
}
template <typename R> inline void read_all(R& source) { source.loads.read(2 * VL); }
template <typename R> inline void set_all(R& dst)
{
    dst.loads.count = 0;
    dst.origins.held = Held::VALUES;
}
// Why what is computed of lanes [first, first + count) under a mask has no value, or 0.
template <typename R> inline uint16_t origin_within(const R& source, const MaskReg& mask, int first, int count)
{
    if (source.origins.held == Held::VALUES && mask.origins.held == Held::VALUES) return 0;
    uint16_t number = 0;
    for (int i = first; i < first + count; ++i) {
        if (mask.on(i * R::step)) number = std::max(number, source.origin(i));
        number = std::max(number, mask.origins.of(i * R::step, Rule::BLANK_MASK));
    }
    return number;
}
// Note why element i, of `size` bytes, has no value, of a register or a mask that otherwise has.
template <typename R> inline void set_origin(R& dst, int size, int i, uint16_t number)
{
    if (number == 0) return;
    if (dst.origins.held != Held::SOME) std::memset(dst.origins.number, 0, sizeof dst.origins.number);
    dst.origins.held = Held::SOME;
    std::fill_n(dst.origins.number + i * size, size, number);
}
template <auto mode> constexpr bool merging()
{
    using AscendC::Reg::MaskMergeMode;
    if constexpr (std::is_same_v<std::decay_t<decltype(mode)>, MaskMergeMode>) return mode == MaskMergeMode::MERGING;
    else return mode->mrgMode == MaskMergeMode::MERGING;
}
} // namespace lngrad
namespace AscendC {
// How exactly a function is computed: here always rounded once. Subnormal numbers are zeros but in the modes of FTZ_FALSE.
#define LNGRAD_ALGORITHM(Name, first, precise, ...) \
    enum class Name##Algo { INTRINSIC = 0, __VA_ARGS__, FIRST_WITH_SUBNORMALS = first }; \
    namespace Reg { \
    struct Name##SpecificMode { \
        MaskMergeMode mrgMode = MaskMergeMode::ZEROING; \
        precise Name##Algo algo = Name##Algo::INTRINSIC; \
    }; \
    }
#define LNGRAD_PRECISE bool precisionMode = false;
LNGRAD_ALGORITHM(Exp, 2, , PRECISION_1ULP_FTZ_TRUE, PRECISION_1ULP_FTZ_FALSE)
LNGRAD_ALGORITHM(Ln, 2, , PRECISION_1ULP_FTZ_TRUE, PRECISION_1ULP_FTZ_FALSE)
LNGRAD_ALGORITHM(Log, 2, , PRECISION_1ULP_FTZ_TRUE, PRECISION_1ULP_FTZ_FALSE)
LNGRAD_ALGORITHM(Log2, 2, , PRECISION_1ULP_FTZ_TRUE, PRECISION_1ULP_FTZ_FALSE)
LNGRAD_ALGORITHM(Log10, 2, , PRECISION_1ULP_FTZ_TRUE, PRECISION_1ULP_FTZ_FALSE)
LNGRAD_ALGORITHM(Div, 4, LNGRAD_PRECISE, DIFF_COMPENSATION, PRECISION_1ULP_FTZ_TRUE, PRECISION_0ULP_FTZ_TRUE,
                 PRECISION_0ULP_FTZ_FALSE, PRECISION_1ULP_FTZ_FALSE)
LNGRAD_ALGORITHM(Sqrt, 3, LNGRAD_PRECISE, FAST_INVERSE, PRECISION_1ULP_FTZ_TRUE, PRECISION_0ULP_FTZ_FALSE, PRECISION_1ULP_FTZ_FALSE)
#undef LNGRAD_ALGORITHM
#undef LNGRAD_PRECISE
namespace Reg {
using lngrad::each_lane, lngrad::number, lngrad::merging, lngrad::bits_as, lngrad::Word, lngrad::fused, lngrad::larger;
using lngrad::smaller, lngrad::magnitude, lngrad::origin_within, lngrad::set_origin, lngrad::read_all, lngrad::move_lanes;
using lngrad::set_all, lngrad::is_nan, lngrad::compared, lngrad::set_lanes;

template <auto mode> constexpr bool flushes()
{
    if constexpr (std::is_same_v<std::decay_t<decltype(mode)>, MaskMergeMode>) return true;
    else return mode->algo < std::decay_t<decltype(mode->algo)>::FIRST_WITH_SUBNORMALS;
}
// A function of floats with the mode's treatment of subnormal numbers.
template <auto mode, typename A, typename F, typename... Values> inline A float_result(F compute, Values... values)
{
    if constexpr (std::is_same_v<A, float> && flushes<mode>()) return lngrad::flushed(compute(lngrad::flushed(values)...));
    else return A(compute(static_cast<float>(values)...));
}
// The forms of instructions. `a`, `b`, `d`: lanes of the sources and of dst; A: their type.
#define LNGRAD_UNARY(Name, ModeType, ...) \
    template <LNGRAD_T, ModeType mode = zeroing, typename U, LNGRAD_IF(U)> \
    inline void Name(U& dstReg, U& srcReg, MaskReg& mask, LNGRAD_AT) \
    { \
        using A = typename U::ActualT; \
        each_lane<merging<mode>()>(dstReg, mask, where, #Name, [](A a) { return __VA_ARGS__; }, srcReg); \
    }
#define LNGRAD_BINARY(Name, ModeType, ...) \
    template <LNGRAD_T, ModeType mode = zeroing, typename U, LNGRAD_IF(U)> \
    inline void Name(U& dstReg, U& srcReg0, U& srcReg1, MaskReg& mask, LNGRAD_AT) \
    { \
        using A = typename U::ActualT; \
        each_lane<merging<mode>()>(dstReg, mask, where, #Name, [](A a, A b) { return __VA_ARGS__; }, srcReg0, srcReg1); \
    }
#define LNGRAD_TERNARY(Name, ...) \
    template <LNGRAD_T, MaskMergeMode mode = zeroing, typename U, LNGRAD_IF(U)> \
    inline void Name(U& dstReg, U& srcReg0, U& srcReg1, MaskReg& mask, LNGRAD_AT) \
    { \
        using A = typename U::ActualT; \
        each_lane<merging<mode>()>(dstReg, mask, where, #Name, [](A a, A b, A d) { return __VA_ARGS__; }, srcReg0, srcReg1, dstReg); \
    }
#define LNGRAD_SCALAR(Name, ...) \
    template <LNGRAD_T, typename U, MaskMergeMode mode = zeroing, typename S, LNGRAD_IF(S)> \
    inline void Name(S& dstReg, S& srcReg, U scalarValue, MaskReg& mask, LNGRAD_AT) \
    { \
        using A = typename S::ActualT; \
        const A b = A(scalarValue); \
        each_lane<merging<mode>()>(dstReg, mask, where, #Name, [b](A a) { return __VA_ARGS__; }, srcReg); \
    }
#define LNGRAD_SHIFT(Name, ...) \
    template <LNGRAD_TYPES(T, U), MaskMergeMode mode = zeroing, typename S, typename V, LNGRAD_IF(V)> \
    inline void Name(S& dstReg, S& srcReg0, V& srcReg1, MaskReg& mask, LNGRAD_AT) \
    { \
        using A = typename S::ActualT; \
        using B = typename V::ActualT; \
        each_lane<merging<mode>()>(dstReg, mask, where, #Name, [](A a, B b) { return __VA_ARGS__; }, srcReg0, srcReg1); \
    } \
    template <LNGRAD_T, typename U, MaskMergeMode mode = zeroing, typename S, LNGRAD_IF(S)> \
    inline void Name##s(S& dstReg, S& srcReg, U b, MaskReg& mask, LNGRAD_AT) \
    { \
        using A = typename S::ActualT; \
        each_lane<merging<mode>()>(dstReg, mask, where, #Name "s", [b](A a) { return __VA_ARGS__; }, srcReg); \
    }
#define LNGRAD_MODE MaskMergeMode
#define LNGRAD_BITS(a) bits_as<Word<A>>(a)
#define LNGRAD_WORD(...) bits_as<A>(Word<A>(__VA_ARGS__))
LNGRAD_BINARY(Add, LNGRAD_MODE, A(number(a) + number(b)))
LNGRAD_BINARY(Sub, LNGRAD_MODE, A(number(a) - number(b)))
LNGRAD_BINARY(Mul, LNGRAD_MODE, A(number(a) * number(b)))
LNGRAD_BINARY(Max, LNGRAD_MODE, larger(a, b))
LNGRAD_BINARY(Min, LNGRAD_MODE, smaller(a, b))
LNGRAD_BINARY(And, LNGRAD_MODE, LNGRAD_WORD(LNGRAD_BITS(a) & LNGRAD_BITS(b)))
LNGRAD_BINARY(Or, LNGRAD_MODE, LNGRAD_WORD(LNGRAD_BITS(a) | LNGRAD_BITS(b)))
LNGRAD_BINARY(Xor, LNGRAD_MODE, LNGRAD_WORD(LNGRAD_BITS(a) ^ LNGRAD_BITS(b)))
LNGRAD_BINARY(Prelu, LNGRAD_MODE, a > A(0) ? a : A(number(a) * number(b)))
LNGRAD_BINARY(AbsSub, LNGRAD_MODE, magnitude(A(number(a) - number(b))))
LNGRAD_UNARY(Abs, LNGRAD_MODE, magnitude(a))
LNGRAD_UNARY(Relu, LNGRAD_MODE, a > A(0) || is_nan(a) ? a : A(0))
LNGRAD_UNARY(Neg, LNGRAD_MODE, A(-number(a)))
LNGRAD_UNARY(Not, LNGRAD_MODE, LNGRAD_WORD(~LNGRAD_BITS(a)))
LNGRAD_UNARY(Exp, auto, float_result<mode, A>([](float x) { return std::exp(x); }, a))
LNGRAD_UNARY(Ln, auto, float_result<mode, A>([](float x) { return std::log(x); }, a))
LNGRAD_UNARY(Log, auto, float_result<mode, A>([](float x) { return std::log(x); }, a))
LNGRAD_UNARY(Log2, auto, float_result<mode, A>([](float x) { return std::log2(x); }, a))
LNGRAD_UNARY(Log10, auto, float_result<mode, A>([](float x) { return std::log10(x); }, a))
LNGRAD_UNARY(Sqrt, auto, float_result<mode, A>([](float x) { return std::sqrt(x); }, a))
LNGRAD_TERNARY(MulAddDst, fused(a, b, d))
LNGRAD_TERNARY(Mula, fused(a, b, d))
LNGRAD_TERNARY(MulDstAdd, fused(d, a, b))
LNGRAD_TERNARY(FusedMulDstAdd, fused(d, a, b))
LNGRAD_SCALAR(Adds, A(number(a) + number(b)))
LNGRAD_SCALAR(Muls, A(number(a) * number(b)))
LNGRAD_SCALAR(Maxs, larger(a, b))
LNGRAD_SCALAR(Mins, smaller(a, b))
LNGRAD_SCALAR(LeakyRelu, a > A(0) ? a : A(number(a) * number(b)))
LNGRAD_SHIFT(ShiftLeft, uint64_t(b) >= 8 * sizeof(A) ? A(0) : A(number(a) << b))
LNGRAD_SHIFT(ShiftRight, uint64_t(b) >= 8 * sizeof(A) ? A(a < A(0) ? -1 : 0) : A(a >> b))

template <typename A> inline A quotient(A a, A b) // whole numbers: towards 0; by 0 all bits, as the emulation of them has it
{
    if constexpr (std::is_integral_v<A>) return b == A(0) ? A(-1) : std::is_signed_v<A> && b == A(-1) ? A(0 - number(a)) : A(a / b);
    else return A(float(a) / float(b));
}
template <auto mode, typename A> inline A quotient_in(A a, A b)
{
    if constexpr (std::is_same_v<A, float>) return float_result<mode, A>([](float x, float y) { return x / y; }, a, b);
    else return quotient(a, b);
}
LNGRAD_BINARY(Div, auto, quotient_in<mode>(a, b))
#undef LNGRAD_MODE

template <LNGRAD_T, typename U, MaskMergeMode mode = zeroing, typename S, LNGRAD_IF(S)>
inline void Axpy(S& dstReg, S& srcReg, const U scalarValue, MaskReg& mask, LNGRAD_AT)
{
    using A = typename S::ActualT;
    const A s = A(scalarValue);
    each_lane<merging<mode>()>(dstReg, mask, where, "Axpy", [s](A a, A d) { return fused(s, a, d); }, srcReg, dstReg);
}
// Sums and differences with carries: masks with a bit an element; a difference's is 1 where nothing was borrowed.
template <bool adds, typename U>
inline void carry_lanes(MaskReg& carry, U& dstReg, U& srcReg0, U& srcReg1, const MaskReg* in, MaskReg& mask, Where where)
{
    using A = typename U::ActualT;
    static_assert(sizeof(A) == 4, "AddC, SubC: expected int32_t or uint32_t");
    MaskReg out = mask;
    A result[U::lanes];
    for (int i = 0; i < U::lanes; ++i) {
        const uint64_t a = uint32_t(srcReg0.lane[i]), b = uint32_t(adds ? srcReg1.lane[i] : ~srcReg1.lane[i]);
        const uint64_t sum = a + b + (in ? in->bit[4 * i] : !adds);
        result[i] = mask.bit[4 * i] ? A(sum) : A(0);
        out.bit[4 * i] = mask.bit[4 * i] && sum >> 32;
    }
    each_lane<false>(dstReg, mask, where, adds ? "AddC" : "SubC", [](A a, A) { return a; }, srcReg0, srcReg1);
    set_lanes(dstReg, result);
    out.describe(4);
    carry = out;
}
#define LNGRAD_CARRY(Name, adds) \
    template <LNGRAD_T, typename U> \
    inline void Name##C(MaskReg& carry, U& dstReg, U& src0, U& src1, MaskReg& carrySrc, MaskReg& mask, LNGRAD_AT) \
    { carry_lanes<adds>(carry, dstReg, src0, src1, &carrySrc, mask, where); } \
    template <LNGRAD_T, typename U> inline void Name(MaskReg& carry, U& dstReg, U& src0, U& src1, MaskReg& mask, LNGRAD_AT) \
    { carry_lanes<adds>(carry, dstReg, src0, src1, nullptr, mask, where); }
LNGRAD_CARRY(Add, true)
LNGRAD_CARRY(Sub, false)
#undef LNGRAD_CARRY
// Low and high words of products.
template <LNGRAD_T, typename U> inline void Mull(U& dstReg0, U& dstReg1, U& srcReg0, U& srcReg1, MaskReg& mask, LNGRAD_AT)
{
    using A = typename U::ActualT;
    using Twice = std::conditional_t<std::is_signed_v<A>, int64_t, uint64_t>;
    static_assert(sizeof(A) == 4, "Mull: expected int32_t or uint32_t");
    U low;
    each_lane<false>(low, mask, where, "Mull", [](A a, A b) { return A(uint64_t(Twice(a) * Twice(b))); }, srcReg0, srcReg1);
    each_lane<false>(dstReg1, mask, where, "Mull", [](A a, A b) { return A(uint64_t(Twice(a) * Twice(b)) >> 32); }, srcReg0, srcReg1);
    dstReg0 = low;
}
template <LNGRAD_T, typename U, typename S, typename = if_register<S>, typename = if_scalar<U>>
inline void Duplicate(S& dstReg, U scalarValue)
{
    using A = typename S::ActualT;
    const A value = A(scalarValue);
    for (int i = 0; i < S::lanes; ++i) dstReg.lane[i] = value;
    set_all(dstReg);
}
template <LNGRAD_T, MaskMergeMode mode = zeroing, typename U, typename S, typename = if_register<S>, typename = if_scalar<U>>
inline void Duplicate(S& dstReg, U scalarValue, MaskReg& mask, LNGRAD_AT)
{
    using A = typename S::ActualT;
    const A value = A(scalarValue);
    each_lane<merging<mode>()>(dstReg, mask, where, "Duplicate", [value] { return value; });
}
template <LNGRAD_T, HighLowPart pos = HighLowPart::LOWEST, MaskMergeMode mode = zeroing, typename S, LNGRAD_IF(S)>
inline void Duplicate(S& dstReg, S& srcReg, MaskReg& mask, LNGRAD_AT)
{
    constexpr int at = pos == HighLowPart::LOWEST ? 0 : S::lanes - 1;
    read_all(srcReg);
    S every;
    move_lanes(every, srcReg, srcReg, [](int) { return at; });
    each_lane<merging<mode>()>(dstReg, mask, where, "Duplicate", [](auto a) { return a; }, every);
}
template <LNGRAD_T, MaskMergeMode mode = MaskMergeMode::MERGING, typename U, LNGRAD_IF(U)>
inline void Move(U& dstReg, U& srcReg, MaskReg mask, LNGRAD_AT)
{ each_lane<merging<mode>()>(dstReg, mask, where, "Move", [](auto a) { return a; }, srcReg); }
template <LNGRAD_T, typename U, LNGRAD_IF(U)> inline void Move(U& dstReg, U& srcReg) { dstReg = srcReg; }
template <LNGRAD_T, MaskMergeMode mode = MaskMergeMode::MERGING, typename U, LNGRAD_IF(U)>
inline void Copy(U& dstReg, U& srcReg, MaskReg mask, LNGRAD_AT) { Move<T, mode>(dstReg, srcReg, mask, where); }
template <LNGRAD_T, typename U, LNGRAD_IF(U)> inline void Copy(U& dstReg, U& srcReg) { dstReg = srcReg; }
// srcReg0 where the mask is on, else srcReg1.
template <LNGRAD_T, typename U, LNGRAD_IF(U)> inline void Select(U& dstReg, U& srcReg0, U& srcReg1, MaskReg& mask, LNGRAD_AT)
{
    U both = srcReg1;
    each_lane<true>(both, mask, where, "Select", [](auto a) { return a; }, srcReg0);
    dstReg = both;
}
// A mask of the lanes that are on for which compute(sources…) is true.
template <typename R, typename F, typename... More>
inline void compare_lanes(MaskReg& dst, const MaskReg& mask, F compute, R& first, More&... more)
{
    using W = typename lngrad::WordOf<R::step>::type;
    alignas(64) W bits[VL / sizeof(W)];
    for (int i = 0; i < R::lanes; ++i) bits[i] = W(compute(first.lane[i], more.lane[i]...)) & reinterpret_cast<const W*>(mask.bit)[i];
    first.loads.read(mask.upto * R::REG_NUM), (more.loads.read(mask.upto * R::REG_NUM), ...);
    MaskReg result;
    std::memcpy(result.bit, bits, VL);
    result.describe(R::step);
    for (const R* source : {&first, &more...}) {
        if (origin_within(*source, mask, 0, R::lanes) == 0) continue;
        for (int i = 0; i < R::lanes; ++i) set_origin(result, R::step, i, origin_within(*source, mask, i, 1));
    }
    dst = result;
}
template <LNGRAD_T, CMPMODE mode = CMPMODE::EQ, typename U, LNGRAD_IF(U)>
inline void Compare(MaskReg& dst, U& srcReg0, U& srcReg1, MaskReg& mask)
{
    using A = typename U::ActualT;
    compare_lanes(dst, mask, [](A a, A b) { return compared<A, mode>(a, b); }, srcReg0, srcReg1);
}
template <LNGRAD_T, CMPMODE mode = CMPMODE::EQ, typename U, typename S, LNGRAD_IF(U)>
inline if_scalar<S> Compares(MaskReg& dst, U& srcReg, S scalarValue, MaskReg& mask)
{
    using A = typename U::ActualT;
    compare_lanes(dst, mask, [b = A(scalarValue)](A a) { return compared<A, mode>(a, b); }, srcReg);
}
template <LNGRAD_T, CMPMODE mode = CMPMODE::EQ, typename U, typename S, LNGRAD_IF(U)>
inline if_scalar<S> CompareScalar(MaskReg& dst, U& srcReg, S scalarValue, MaskReg& mask) { Compares<T, mode>(dst, srcReg, scalarValue, mask); }
} // namespace Reg
} // namespace AscendC
#endif
