// The mathematical functions and activations: by count, with or without a temporary buffer.
#ifndef LNGRAD_MATHEMATICS_H
#define LNGRAD_MATHEMATICS_H

#include "lngrad/system.h"

namespace AscendC {

// What selects an algorithm on a device selects nothing here: results are rounded once.
struct LibraryConfig {
    int algo = 0;
    uint32_t iterationNum = 0;
};
constexpr LibraryConfig DEFAULT_LIBRARY_CONFIG;
enum class PowerAlgo { INTRINSIC = 0, DOUBLE_FLOAT_TECH };
struct PowerConfig {
    PowerAlgo algo = PowerAlgo::INTRINSIC;
};
enum class FmodAlgo { NORMAL = 0, ITERATION_COMPENSATION };
constexpr uint32_t FMOD_ITERATION_NUM_MAX = 11;
struct FmodConfig {
    FmodAlgo algo = FmodAlgo::NORMAL;
    uint32_t iterationNum = FMOD_ITERATION_NUM_MAX;
};

} // namespace AscendC

namespace lngrad {

template <typename T>
void library(Op op, Where where, int64_t count, double scalar, const Operand& temporary, const AscendC::LocalTensor<T>& dst,
             const AscendC::LocalTensor<T>& src0, const AscendC::LocalTensor<T>& src1 = {})
{
    vector(op, where, scalar, counted(count), {}, dst, src0, src1, 0, temporary);
}

} // namespace lngrad

// The four forms of each: with a buffer or without, with a count or for all of the first source.
#define LNGRAD_FORM(Name, OpName, Operands, Passed, Scalar, buffer, length, ...) \
    template <typename T, bool isReuseSource = false, const auto& config = DEFAULT_LIBRARY_CONFIG> \
    void Name(LNGRAD_LIST Operands, __VA_ARGS__ Where where = Where::here()) \
    { \
        lngrad::library<T>(Op::OpName, where, length, Scalar, buffer, LNGRAD_LIST Passed); \
    }
#define LNGRAD_FORMS(Name, OpName, Operands, Passed, Scalar, source) \
    LNGRAD_FORM(Name, OpName, Operands, Passed, Scalar, tmp, count, const LocalTensor<uint8_t>& tmp, const uint32_t count, ) \
    LNGRAD_FORM(Name, OpName, Operands, Passed, Scalar, tmp, source.GetSize(), const LocalTensor<uint8_t>& tmp, ) \
    LNGRAD_FORM(Name, OpName, Operands, Passed, Scalar, {}, count, const uint32_t count, ) \
    LNGRAD_FORM(Name, OpName, Operands, Passed, Scalar, {}, source.GetSize(), )
#define LNGRAD_MATH(Name) \
    LNGRAD_FORMS(Name, Name, (const LocalTensor<T>& dst, const LocalTensor<T>& src), (dst, src), 0, src) \
    LNGRAD_POINTED(Name, uint32_t, (typename T, bool isReuseSource = false), (const LocalTensor<T>& dst, const LocalTensor<T>& src), dst, src)
#define LNGRAD_MATH_BINARY(Name) \
    LNGRAD_FORMS(Name, Name, (const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1), \
                 (dst, src0, src1), 0, src0)

namespace AscendC {

LNGRAD_MATH_INSTRUCTIONS(LNGRAD_MATH)
LNGRAD_MATH_BINARY_INSTRUCTIONS(LNGRAD_MATH_BINARY)
LNGRAD_FORMS(Power, PowerOfTensor, (const LocalTensor<T>& dst, const LocalTensor<T>& src0, const lngrad::same<T>& src1),
             (dst, src0), lngrad::real(src1), src0)
LNGRAD_FORMS(Power, PowerOfScalar, (const LocalTensor<T>& dst, const lngrad::same<T>& src0, const LocalTensor<T>& src1),
             (dst, src1), lngrad::real(src0), src1)
LNGRAD_FORMS(SwiGLU, SwiGLU,
             (const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, const float& beta),
             (dst, src0, src1), beta, src0)

#define LNGRAD_CLAMP(Name, buffer, ...) \
    template <typename T, bool isReuseSource = false> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, __VA_ARGS__ const lngrad::same<T> scalar, const uint32_t count, Where where = Where::here()) \
    { \
        lngrad::library<T>(Op::Name, where, count, lngrad::real(scalar), buffer, dst, src); \
    }
LNGRAD_CLAMP(ClampMax, tmp, const LocalTensor<uint8_t>& tmp, )
LNGRAD_CLAMP(ClampMax, {}, )
LNGRAD_CLAMP(ClampMin, tmp, const LocalTensor<uint8_t>& tmp, )
LNGRAD_CLAMP(ClampMin, {}, )

template <typename T, bool isReuseSource = false>
void Swish(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint32_t dataSize, const lngrad::same<T> scalarValue, Where where = Where::here())
{
    lngrad::library<T>(Op::Swish, where, dataSize, lngrad::real(scalarValue), {}, dst, src);
}
// The instructions Exp and Axpy with the arguments of the library's.
#define LNGRAD_EXP(...) \
    template <typename T, uint8_t taylorExpandLevel, bool isReuseSource = false> \
    void Exp(const LocalTensor<T>& dst, const LocalTensor<T>& src, __VA_ARGS__ const uint32_t count, Where where = Where::here()) \
    { \
        lngrad::vector(Op::Exp, where, 0, lngrad::counted(count), {}, dst, src); \
    }
LNGRAD_EXP()
LNGRAD_EXP(const LocalTensor<uint8_t>&, )
template <typename T, typename U, bool isReuseSource = false>
void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const lngrad::same<U>& scalarValue, const LocalTensor<uint8_t>&, const uint32_t count, Where where = Where::here())
{
    lngrad::vector(Op::Axpy, where, lngrad::real(scalarValue), lngrad::counted(count), {}, dst.operand(), src.operand());
}

} // namespace AscendC

#endif
