// Library functions on rows: their tensors and numbers go to Python by the function's name.
#ifndef LNGRAD_LIBRARY_H
#define LNGRAD_LIBRARY_H

#include "lngrad/mathematics.h"
#include "lngrad/tiles.h"

namespace AscendC {

struct SoftMaxShapeInfo {
    uint32_t srcM = 0;
    uint32_t srcK = 0;
    uint32_t oriSrcM = 0;
    uint32_t oriSrcK = 0;
};
struct SoftmaxConfig {
    bool isCheckTiling = true;
    uint32_t oriSrcM = 0;
    uint32_t oriSrcK = 0;
};
constexpr SoftmaxConfig SOFTMAX_DEFAULT_CFG;
struct SumParams {
    uint32_t outter = 1;
    uint32_t inner;
    uint32_t n;
};
using MeanParams = SumParams;
enum class CumSumAlgorithm { CUMSUM_ALGORITHM_LINEBYLINE = 0, CUMSUM_ALGORITHM_CASCADE };
struct CumSumConfig {
    bool isLastAxis = true;
    bool isReuseSource = false;
    bool outputLastRow = false;
    CumSumAlgorithm algorithm = CumSumAlgorithm::CUMSUM_ALGORITHM_LINEBYLINE;
};
constexpr CumSumConfig DEFAULT_CUMSUM_CONFIG;
struct CumSumInfo {
    uint32_t outter = 0;
    uint32_t inner = 0;
};
struct DropOutShapeInfo {
    uint32_t firstAxis = 0;
    uint32_t srcLastAxis = 0;
    uint32_t maskLastAxis = 0;
};
struct SelectWithBytesMaskShapeInfo {
    uint32_t firstAxis = 0;
    uint32_t srcLastAxis = 0;
    uint32_t maskLastAxis = 0;
};
namespace Pattern {
namespace Reduce {
struct AR {};
struct RA {};
} // namespace Reduce
} // namespace Pattern
enum class ReducePattern { AR = 0, RA };

} // namespace AscendC

namespace lngrad {

inline int64_t library(const char* name, Where where, double real, std::initializer_list<Operand> tensors,
                       std::initializer_list<int64_t> numbers)
{
    Call& call = issue(Op::LIBRARY, where);
    for (const Operand& one : tensors) put(call, one);
    put(call, static_cast<int64_t>(reinterpret_cast<intptr_t>(name)));
    for (int64_t one : numbers) put(call, one);
    call.real = real;
    return finish(call).result;
}

inline int64_t double_bits(double value)
{
    int64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// The rows and columns of a call: its shape, else its tiling's.
struct Rows {
    int64_t rows, columns, real;
    Rows(const AscendC::SoftMaxShapeInfo& shape, const SoftMaxTiling& tiling)
        : rows(shape.srcM ? shape.srcM : tiling.srcM), columns(shape.srcK ? shape.srcK : tiling.srcK),
          real(shape.oriSrcK ? shape.oriSrcK : columns)
    {
    }
};

} // namespace lngrad

namespace AscendC {

using Buffer = LocalTensor<uint8_t>;

#define LNGRAD_ROWS lngrad::Rows at(shape, tiling)
// A form, whose last parameters are __VA_ARGS__ of it, without a temporary buffer and with one.
#define LNGRAD_BOTH(Form, ...) Form(__VA_ARGS__, ) Form(__VA_ARGS__, const Buffer&, )

// Functions of dst, sum, max and src, with a temporary buffer or without.
#define LNGRAD_SOFTMAX(Name, ...) \
    template <typename T, bool isReuseSource = false, bool isBasicBlock = false, bool isDataFormatNZ = false, \
              const auto& config = SOFTMAX_DEFAULT_CFG, typename U> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<U>& sum, const LocalTensor<U>& max, const LocalTensor<T>& src, \
              __VA_ARGS__ const SoftMaxTiling& tiling, const SoftMaxShapeInfo& shape = {}, Where where = Where::here()) \
    { \
        static_assert(!isDataFormatNZ, "lngrad: the format NZ is not simulated"); \
        LNGRAD_ROWS; \
        lngrad::library(#Name, where, 0, {dst, sum, max, src}, {at.rows, at.columns, at.real}); \
    }
LNGRAD_BOTH(LNGRAD_SOFTMAX, SoftMax)
LNGRAD_BOTH(LNGRAD_SOFTMAX, SimpleSoftMax)

template <typename T, bool isReuseSource = false, bool isDataFormatNZ = false, typename U>
void LogSoftMax(const LocalTensor<T>& dst, const LocalTensor<U>& sum, const LocalTensor<U>& max,
                const LocalTensor<T>& src, const Buffer&, const LogSoftMaxTiling& tiling,
                const SoftMaxShapeInfo& shape = {}, Where where = Where::here())
{
    static_assert(!isDataFormatNZ, "lngrad: the format NZ is not simulated");
    LNGRAD_ROWS;
    lngrad::library("LogSoftMax", where, 0, {dst, sum, max, src}, {at.rows, at.columns, at.real});
}

#define LNGRAD_SOFTMAX_SHORT(Name, ...) \
    template <typename T, bool isReuseSource = false, bool isBasicBlock = false, const auto& config = SOFTMAX_DEFAULT_CFG> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, __VA_ARGS__ const SoftMaxTiling& tiling, \
                 const SoftMaxShapeInfo& shape = {}, Where where = Where::here()) \
    { \
        LNGRAD_ROWS; \
        lngrad::library(#Name, where, 0, {dst, src}, {at.rows, at.columns, at.real}); \
    }
LNGRAD_BOTH(LNGRAD_SOFTMAX_SHORT, SoftMax)

#define LNGRAD_SOFTMAX_GRAD(Name, front, ...) \
    template <typename T, bool isBasicBlock = false, bool isDataFormatNZ = false> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& grad, const LocalTensor<T>& src, \
              __VA_ARGS__, const SoftMaxShapeInfo& shape = {}, Where where = Where::here()) \
    { \
        LNGRAD_ROWS; \
        lngrad::library("SoftmaxGrad", where, 0, {dst, grad, src}, {at.rows, at.columns, at.real, front}); \
    }
#define LNGRAD_SOFTMAX_GRADS(nothing, ...) \
    LNGRAD_SOFTMAX_GRAD(SoftmaxGrad, isFront, __VA_ARGS__ const SoftMaxTiling& tiling, bool isFront = false) \
    LNGRAD_SOFTMAX_GRAD(SoftmaxGradFront, 1, __VA_ARGS__ const SoftMaxTiling& tiling)
LNGRAD_BOTH(LNGRAD_SOFTMAX_GRADS, )

#define LNGRAD_FLASH(Name, ...) \
    template <typename T, bool isUpdate = false, bool isReuseSource = false, bool isBasicBlock = false, \
              bool isDataFormatNZ = false, const auto& config = SOFTMAX_DEFAULT_CFG, typename U> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<U>& sum, const LocalTensor<U>& max, \
                        const LocalTensor<T>& src, const LocalTensor<T>& expMax, const LocalTensor<U>& inSum, \
                        const LocalTensor<U>& inMax, __VA_ARGS__ const SoftMaxTiling& tiling, \
                        const SoftMaxShapeInfo& shape = {}, Where where = Where::here()) \
    { \
        LNGRAD_ROWS; \
        lngrad::library(#Name, where, 0, {dst, sum, max, src, expMax, inSum, inMax}, \
                        {at.rows, at.columns, at.real, isUpdate}); \
    }
LNGRAD_BOTH(LNGRAD_FLASH, SoftmaxFlashV2)

template <typename T, typename U, bool isDataFormatNZ = false, uint8_t stepSizeMode = 0>
bool AdjustSoftMaxRes(const LocalTensor<T>& softMaxRes, const LocalTensor<U>& max, const uint32_t from,
                      const lngrad::same<T> to, const SoftMaxShapeInfo& shape, Where where = Where::here())
{
    return lngrad::library("AdjustSoftMaxRes", where, lngrad::real(to), {softMaxRes, max},
                           {shape.srcM, shape.srcK, shape.srcK, int64_t(from)}) != 0;
}

#define LNGRAD_SUM(Name, ...) \
    template <typename T, int32_t reduceDim = -1, bool isReuseSource = false, bool isBasicBlock = false> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, __VA_ARGS__ const SumParams& params, \
              Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, 0, {dst, src}, {params.outter, params.inner, params.n}); \
    }
LNGRAD_BOTH(LNGRAD_SUM, Sum)
LNGRAD_BOTH(LNGRAD_SUM, Mean)

// Along an axis of a matrix.
#define LNGRAD_ALONG(Name, ...) \
    template <class T, class pattern, bool isReuseSource = false> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, __VA_ARGS__ const uint32_t srcShape[], \
              bool srcInnerPad, Where where = Where::here()) \
    { \
        const int64_t width = 32 / sizeof(T); \
        const int64_t columns = srcInnerPad ? srcShape[1] : (srcShape[1] + width - 1) / width * width; \
        lngrad::library(#Name, where, 0, {dst, src}, \
                        {srcShape[0], columns, srcShape[1], std::is_same_v<pattern, Pattern::Reduce::AR>}); \
    }
LNGRAD_BOTH(LNGRAD_ALONG, ReduceSum)
LNGRAD_BOTH(LNGRAD_ALONG, ReduceMax)
LNGRAD_BOTH(LNGRAD_ALONG, ReduceMin)
LNGRAD_BOTH(LNGRAD_ALONG, ReduceProd)
LNGRAD_BOTH(LNGRAD_ALONG, ReduceMean)

#define LNGRAD_CUMSUM(Name, ...) \
    template <typename T, const CumSumConfig& config = DEFAULT_CUMSUM_CONFIG> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& lastRow, const LocalTensor<T>& src, \
                __VA_ARGS__ const CumSumInfo& info, Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, 0, {dst, lastRow, src}, \
                        {info.outter, info.inner, info.inner, config.isLastAxis, config.outputLastRow}); \
    }
LNGRAD_BOTH(LNGRAD_CUMSUM, CumSum)

#define LNGRAD_FMA(Name, ...) \
    template <const auto& config = DEFAULT_LIBRARY_CONFIG, typename T> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, \
             const LocalTensor<T>& src2, __VA_ARGS__ const uint32_t count, Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, 0, {dst, src0, src1, src2}, {count}); \
    }
LNGRAD_BOTH(LNGRAD_FMA, Fma)

template <typename T>
void Arange(const LocalTensor<T>& dst, const lngrad::same<T> firstValue, const lngrad::same<T> diffValue,
            const int32_t count, Where where = Where::here())
{
    lngrad::library("Arange", where, 0, {dst},
                    {lngrad::double_bits(lngrad::real(firstValue)), lngrad::double_bits(lngrad::real(diffValue)), count});
}
template <typename T>
void ArithProgression(const LocalTensor<T>& dst, const lngrad::same<T> firstValue, const lngrad::same<T> diffValue,
                      const int32_t count, Where where = Where::here())
{
    Arange(dst, firstValue, diffValue, count, where);
}

#define LNGRAD_QUANT(Name, ...) \
    template <typename T, bool isReuseSource = false> \
    void Name(const LocalTensor<int8_t>& dst, const LocalTensor<T>& src, __VA_ARGS__ const float scale, \
                     const float offset, const uint32_t count, Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, scale, {dst, src}, {lngrad::double_bits(offset), count}); \
    } \
    template <typename T, bool isReuseSource = false> \
    void Name(const LocalTensor<int8_t>& dst, const LocalTensor<T>& src, __VA_ARGS__ const float scale, \
                     const float offset, Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, scale, {dst, src}, {lngrad::double_bits(offset), int64_t(src.GetSize())}); \
    }
LNGRAD_BOTH(LNGRAD_QUANT, AscendQuant)

#define LNGRAD_DROPOUT(Name, ...) \
    template <typename T, bool isInitBitMode = false, uint32_t dropOutMode = 0> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint8_t>& mask, \
                 __VA_ARGS__ const float keepProb, const DropOutShapeInfo& info, Where where = Where::here()) \
    { \
        const bool bits = dropOutMode > 2 || (dropOutMode == 0 && info.maskLastAxis < info.srcLastAxis); \
        lngrad::library(#Name, where, keepProb, {dst, src, mask}, \
                        {info.firstAxis, info.srcLastAxis, int64_t(info.maskLastAxis) * (bits ? 8 : 1), bits}); \
    }
LNGRAD_BOTH(LNGRAD_DROPOUT, DropOut)

// A byte that is not 0 chooses the second of the two.
template <typename T, typename U, bool isReuseMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<T>& src0, lngrad::same<T> src1, const LocalTensor<U>& mask,
            const Buffer&, const SelectWithBytesMaskShapeInfo& info, Where where = Where::here())
{
    lngrad::library("Select", where, lngrad::real(src1), {dst, src0, mask},
                    {info.firstAxis, info.srcLastAxis, info.maskLastAxis, 1});
}
template <typename T, typename U, bool isReuseMask = true>
void Select(const LocalTensor<T>& dst, lngrad::same<T> src0, const LocalTensor<T>& src1, const LocalTensor<U>& mask,
            const Buffer&, const SelectWithBytesMaskShapeInfo& info, Where where = Where::here())
{
    lngrad::library("Select", where, lngrad::real(src0), {dst, src1, mask},
                    {info.firstAxis, info.srcLastAxis, info.maskLastAxis, 0});
}

// Of tensors or scalars; 950 has it.
template <typename T>
struct Either {
    bool is_tensor;
    Operand tensor;
    double scalar = 0;
};
template <typename T>
Either<T> either(const LocalTensor<T>& tensor)
{
    return {true, tensor};
}
template <typename T, typename U, std::enable_if_t<std::is_convertible_v<U, T>, int> = 0>
Either<T> either(const U& scalar)
{
    return {false, {}, lngrad::real(static_cast<T>(scalar))};
}
template <typename T>
void with_either(const char* name, Where where, const Operand& dst, const Operand& src, int64_t count, const Either<T>& one,
                 const Either<T>& other)
{
    lngrad::Call& call = lngrad::issue(Op::LIBRARY, where);
    lngrad::put(call, dst);
    lngrad::put(call, src);
    if (one.is_tensor) lngrad::put(call, one.tensor);
    if (other.is_tensor) lngrad::put(call, other.tensor);
    for (int64_t value : {static_cast<int64_t>(reinterpret_cast<intptr_t>(name)), count, int64_t(one.is_tensor),
                          int64_t(other.is_tensor), lngrad::double_bits(one.scalar), lngrad::double_bits(other.scalar)}) {
        lngrad::put(call, value);
    }
    lngrad::finish(call);
}
template <typename T, typename U, typename V>
void Clamp(const LocalTensor<T>& dst, const LocalTensor<T>& src, const U& min, const V& max, const uint32_t count, Where where = Where::here())
{
    with_either<T>("Clamp", where, dst, src, count, either<T>(min), either<T>(max));
}
#define LNGRAD_TEST(Name) \
    template <typename T, typename U> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<U>& src, const uint32_t count, Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, 0, {dst, src}, {count}); \
    }
LNGRAD_TEST(IsFinite)
LNGRAD_TEST(IsInf)
LNGRAD_TEST(IsNan)
LNGRAD_TEST(LogicalNot)
#define LNGRAD_LOGICAL(Name) \
    template <typename T, typename U> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1, const uint32_t count, Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, 0, {dst, src0, src1}, {count}); \
    }
LNGRAD_LOGICAL(LogicalAnd)
LNGRAD_LOGICAL(LogicalOr)
LNGRAD_LOGICAL(LogicalXor)

// The comparison of one repeat, kept in a register of 128 bits, and the register.
template <typename T>
void Compare(const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode, lngrad::MaskArg mask, const BinaryRepeatParams& p,
             Where where = Where::here())
{
    const uint64_t low = mask.bits ? mask.bits[0] : lngrad::ones(mask.first), high = mask.bits ? mask.bits[1] : lngrad::ones(mask.first - 64);
    lngrad::library("Compare", where, 0, {src0, src1}, {int64_t(cmpMode), int64_t(low), int64_t(high), p.src0BlkStride, p.src1BlkStride});
}
template <typename T>
void GetCmpMask(const LocalTensor<T>& dst, Where where = Where::here())
{
    lngrad::library("GetCmpMask", where, 0, {dst}, {});
}

#define LNGRAD_PAIR(Name) \
    template <typename T> \
    void Name(const LocalTensor<T>& dst0, const LocalTensor<T>& dst1, const LocalTensor<T>& src0, \
              const LocalTensor<T>& src1, const int32_t count, Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, 0, {dst0, dst1, src0, src1}, {count}); \
    }
LNGRAD_PAIR(Interleave)
LNGRAD_PAIR(DeInterleave)

// Back from whole numbers: one scale a column, or one for all; with a temporary buffer or without.
struct DequantParams {
    uint32_t m;
    uint32_t n;
    uint32_t calCount;
};
#define LNGRAD_DEQUANT(Name, ...) \
    template <typename T, typename S> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<int32_t>& src, const LocalTensor<S>& deqScale, \
                       __VA_ARGS__ DequantParams p, Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, 0, {dst, src, deqScale}, {p.m, p.n, p.calCount, 0}); \
    } \
    template <typename T, typename S> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<int32_t>& src, const S deqScale, \
                       __VA_ARGS__ DequantParams p, Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, lngrad::real(deqScale), {dst, src}, {p.m, p.n, p.calCount, 1}); \
    }
LNGRAD_BOTH(LNGRAD_DEQUANT, AscendDequant)
template <typename U, typename T, bool isTranspose>
void AscendAntiQuant(const LocalTensor<T>& dst, const LocalTensor<U>& src, const LocalTensor<T>& offset,
                     const LocalTensor<T>& scale, const Buffer&, const uint32_t k, Where where = Where::here())
{
    static_assert(!isTranspose, "lngrad: isTranspose is not simulated");
    const ShapeInfo& shape = offset.GetShapeInfo();
    const int64_t columns = src.GetSize() / k;
    lngrad::library("AscendAntiQuant", where, 0, {dst, src, offset, scale},
                    {k, columns, shape.shapeDim ? shape.shape[0] : offset.GetSize() / columns});
}
template <typename U, typename T, bool isTranspose>
void AscendAntiQuant(const LocalTensor<T>& dst, const LocalTensor<U>& src, const lngrad::same<T> offset,
                     const lngrad::same<T> scale, const Buffer&, const uint32_t, Where where = Where::here())
{
    lngrad::library("AscendAntiQuant", where, 0, {dst, src},
                    {src.GetSize(), lngrad::double_bits(lngrad::real(offset)), lngrad::double_bits(lngrad::real(scale))});
}
#define LNGRAD_RMS_NORM(Name, ...) \
    template <typename T, bool isBasicBlock = false> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& gamma, \
                 __VA_ARGS__ const lngrad::same<T> epsilon, const RmsNormTiling& tiling, Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, lngrad::real(epsilon), {dst, src, gamma}, \
                        {int64_t(tiling.bLength) * tiling.sLength, tiling.hLength, tiling.originalHLength}); \
    }
LNGRAD_BOTH(LNGRAD_RMS_NORM, RmsNorm)

struct WelfordUpdateConfig {
    bool isInplace = false;
};
constexpr WelfordUpdateConfig WFUPDATE_DEFAULT_CFG = {false};
struct WelfordUpdateParam {
    uint32_t rnLength;
    uint32_t abLength;
    uint32_t abComputeLength;
    float nRec;
};
#define LNGRAD_WELFORD_UPDATE(Name, ...) \
    template <typename T, typename U, bool isReuseSource = false, const WelfordUpdateConfig& config = WFUPDATE_DEFAULT_CFG> \
    void Name(const LocalTensor<U>& outputMean, const LocalTensor<U>& outputVariance, \
                       const LocalTensor<U>& inputMean, const LocalTensor<U>& inputVariance, const LocalTensor<T>& inputX, \
                       __VA_ARGS__ const WelfordUpdateParam& para, Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, para.nRec, {outputMean, outputVariance, inputMean, inputVariance, inputX}, \
                        {para.abLength, para.abComputeLength, config.isInplace}); \
    }
LNGRAD_BOTH(LNGRAD_WELFORD_UPDATE, WelfordUpdate)

struct WelfordFinalizeConfig {
    bool isCorrection = false;
};
constexpr WelfordFinalizeConfig WFFINALIZE_DEFAULT_CFG = {false};
struct WelfordFinalizePara {
    uint32_t rnLength;
    uint32_t abLength;
    uint32_t headCount;
    uint32_t headCountLength;
    uint32_t tailCount;
    uint32_t tailCountLength;
    float abRec;
    float rRec;
    float rRecWithCorrection;
};
#define LNGRAD_WELFORD_FINALIZE(counts, ...) \
    template <bool isReuseSource = false, const WelfordFinalizeConfig& config = WFFINALIZE_DEFAULT_CFG> \
    void WelfordFinalize(const LocalTensor<float>& outputMean, const LocalTensor<float>& outputVariance, \
                         const LocalTensor<float>& inputMean, const LocalTensor<float>& inputVariance, \
                         __VA_ARGS__ const WelfordFinalizePara& p, Where where = Where::here()) \
    { \
        lngrad::library("WelfordFinalize", where, 0, {outputMean, outputVariance, inputMean, inputVariance counts}, \
                        {p.rnLength, p.abLength, p.headCount, p.headCountLength, p.tailCount, p.tailCountLength, \
                         lngrad::double_bits(p.abRec), lngrad::double_bits(p.rRec), \
                         lngrad::double_bits(config.isCorrection ? p.rRecWithCorrection : p.rRec)}); \
    }
#define LNGRAD_COUNTS , counts
LNGRAD_BOTH(LNGRAD_WELFORD_FINALIZE, )
LNGRAD_WELFORD_FINALIZE(LNGRAD_COUNTS, const LocalTensor<int32_t>& counts, )
LNGRAD_WELFORD_FINALIZE(LNGRAD_COUNTS, const LocalTensor<int32_t>& counts, const Buffer&, )

struct NormalizeConfig {
    ReducePattern reducePattern = ReducePattern::AR;
    int32_t aLength = -1;
    bool isNoBeta = false;
    bool isNoGamma = false;
    bool isOnlyOutput = false;
};
constexpr NormalizeConfig NLCFG_NORM;
struct NormalizePara {
    uint32_t aLength;
    uint32_t rLength;
    uint32_t rLengthWithPadding;
};
#define LNGRAD_NORMALIZE(Name, ...) \
    template <typename U, typename T, bool isReuseSource = false, const NormalizeConfig& config = NLCFG_NORM> \
    void Name(const LocalTensor<T>& output, const LocalTensor<float>& outputRstd, const LocalTensor<float>& inputMean, \
                   const LocalTensor<float>& inputVariance, const LocalTensor<T>& inputX, const LocalTensor<U>& gamma, \
                   const LocalTensor<U>& beta, __VA_ARGS__ const float epsilon, const NormalizePara& para, \
                   Where where = Where::here()) \
    { \
        static_assert(config.reducePattern == ReducePattern::AR && !config.isOnlyOutput, \
                      "lngrad: ReducePattern::AR is simulated, and rstd is written"); \
        lngrad::library(#Name, where, epsilon, {output, outputRstd, inputMean, inputVariance, inputX, gamma, beta}, \
                        {para.aLength, para.rLengthWithPadding, para.rLength, config.isNoGamma, config.isNoBeta}); \
    }
LNGRAD_BOTH(LNGRAD_NORMALIZE, Normalize)

#define LNGRAD_DEEP_NORM(Name, ...) \
    template <typename T, bool isReuseSrc = false, bool isBasicBlock = false> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& mean, const LocalTensor<T>& rstd, \
                  const LocalTensor<T>& src, const LocalTensor<T>& gx, const LocalTensor<T>& beta, \
                  const LocalTensor<T>& gamma, __VA_ARGS__ const lngrad::same<T> alpha, const lngrad::same<T> epsilon, \
                  const DeepNormTiling& tiling, Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, lngrad::real(epsilon), {dst, mean, rstd, src, gx, beta, gamma}, \
                        {int64_t(tiling.bLength) * tiling.sLength, tiling.hLength, tiling.originalHLength, \
                         lngrad::double_bits(lngrad::real(alpha))}); \
    }
LNGRAD_BOTH(LNGRAD_DEEP_NORM, DeepNorm)

template <typename T>
void Gatherb(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<uint32_t>& offset, const uint8_t repeatTime, const GatherRepeatParams& p, Where where = Where::here())
{
    lngrad::library("Gatherb", where, 0, {dst, src0, offset}, {repeatTime, p.dstBlkStride, p.dstRepStride});
}
template <typename T>
void Transpose(const LocalTensor<T>& dst, const LocalTensor<T>& src, const Buffer&, const TransposeParamsExt& p, Where where = Where::here())
{
    lngrad::library("Transpose", where, 0, {dst, src}, {p.nSize, p.cSize, p.hSize, p.wSize, int64_t(p.transposeType)});
}

} // namespace AscendC

#endif
