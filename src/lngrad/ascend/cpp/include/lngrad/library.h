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

// Functions of dst, sum, max and src, with a temporary buffer or without.
#define LNGRAD_SOFTMAX(Name, ...) \
    template <typename T, bool isReuseSource = false, bool isBasicBlock = false, bool isDataFormatNZ = false, \
              const auto& config = SOFTMAX_DEFAULT_CFG, typename U> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<U>& sum, const LocalTensor<U>& max, const LocalTensor<T>& src, \
              __VA_ARGS__ const SoftMaxTiling& tiling, const SoftMaxShapeInfo& shape = {}, Where where = Where::here()) \
    { \
        static_assert(!isDataFormatNZ, "lngrad: the format NZ is not simulated"); \
        LNGRAD_ROWS; \
        lngrad::library(#Name, where, 0, {dst.operand(), sum.operand(), max.operand(), src.operand()}, \
                        {at.rows, at.columns, at.real}); \
    }
LNGRAD_SOFTMAX(SoftMax)
LNGRAD_SOFTMAX(SoftMax, const Buffer&, )
LNGRAD_SOFTMAX(SimpleSoftMax)
LNGRAD_SOFTMAX(SimpleSoftMax, const Buffer&, )
#undef LNGRAD_SOFTMAX

template <typename T, bool isReuseSource = false, bool isDataFormatNZ = false, typename U>
void LogSoftMax(const LocalTensor<T>& dst, const LocalTensor<U>& sum, const LocalTensor<U>& max,
                const LocalTensor<T>& src, const Buffer&, const LogSoftMaxTiling& tiling,
                const SoftMaxShapeInfo& shape = {}, Where where = Where::here())
{
    static_assert(!isDataFormatNZ, "lngrad: the format NZ is not simulated");
    LNGRAD_ROWS;
    lngrad::library("LogSoftMax", where, 0, {dst.operand(), sum.operand(), max.operand(), src.operand()},
                    {at.rows, at.columns, at.real});
}

#define LNGRAD_SOFTMAX_SHORT(...) \
    template <typename T, bool isReuseSource = false, bool isBasicBlock = false, \
              const auto& config = SOFTMAX_DEFAULT_CFG> \
    void SoftMax(const LocalTensor<T>& dst, const LocalTensor<T>& src, __VA_ARGS__ const SoftMaxTiling& tiling, \
                 const SoftMaxShapeInfo& shape = {}, Where where = Where::here()) \
    { \
        LNGRAD_ROWS; \
        lngrad::library("SoftMax", where, 0, {dst.operand(), src.operand()}, {at.rows, at.columns, at.real}); \
    }
LNGRAD_SOFTMAX_SHORT()
LNGRAD_SOFTMAX_SHORT(const Buffer&, )
#undef LNGRAD_SOFTMAX_SHORT

#define LNGRAD_SOFTMAX_GRAD(Name, front, ...) \
    template <typename T, bool isBasicBlock = false, bool isDataFormatNZ = false> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& grad, const LocalTensor<T>& src, __VA_ARGS__, \
              const SoftMaxShapeInfo& shape = {}, Where where = Where::here()) \
    { \
        LNGRAD_ROWS; \
        lngrad::library("SoftmaxGrad", where, 0, {dst.operand(), grad.operand(), src.operand()}, \
                        {at.rows, at.columns, at.real, front}); \
    }
LNGRAD_SOFTMAX_GRAD(SoftmaxGrad, isFront, const SoftMaxTiling& tiling, bool isFront = false)
LNGRAD_SOFTMAX_GRAD(SoftmaxGrad, isFront, const Buffer&, const SoftMaxTiling& tiling, bool isFront = false)
LNGRAD_SOFTMAX_GRAD(SoftmaxGradFront, 1, const SoftMaxTiling& tiling)
LNGRAD_SOFTMAX_GRAD(SoftmaxGradFront, 1, const Buffer&, const SoftMaxTiling& tiling)
#undef LNGRAD_SOFTMAX_GRAD

#define LNGRAD_FLASH(...) \
    template <typename T, bool isUpdate = false, bool isReuseSource = false, bool isBasicBlock = false, \
              bool isDataFormatNZ = false, const auto& config = SOFTMAX_DEFAULT_CFG, typename U> \
    void SoftmaxFlashV2(const LocalTensor<T>& dst, const LocalTensor<U>& sum, const LocalTensor<U>& max, \
                        const LocalTensor<T>& src, const LocalTensor<T>& expMax, const LocalTensor<U>& inSum, \
                        const LocalTensor<U>& inMax, __VA_ARGS__ const SoftMaxTiling& tiling, \
                        const SoftMaxShapeInfo& shape = {}, Where where = Where::here()) \
    { \
        LNGRAD_ROWS; \
        lngrad::library("SoftmaxFlashV2", where, 0, \
                        {dst.operand(), sum.operand(), max.operand(), src.operand(), expMax.operand(), inSum.operand(), \
                         inMax.operand()}, \
                        {at.rows, at.columns, at.real, isUpdate}); \
    }
LNGRAD_FLASH()
LNGRAD_FLASH(const Buffer&, )
#undef LNGRAD_FLASH
#undef LNGRAD_ROWS

template <typename T, typename U, bool isDataFormatNZ = false, uint8_t stepSizeMode = 0>
bool AdjustSoftMaxRes(const LocalTensor<T>& softMaxRes, const LocalTensor<U>& max, const uint32_t from,
                      const lngrad::same<T> to, const SoftMaxShapeInfo& shape, Where where = Where::here())
{
    return lngrad::library("AdjustSoftMaxRes", where, lngrad::real(to), {softMaxRes.operand(), max.operand()},
                           {shape.srcM, shape.srcK, shape.srcK, int64_t(from)}) != 0;
}

#define LNGRAD_SUM(Name, ...) \
    template <typename T, int32_t reduceDim = -1, bool isReuseSource = false, bool isBasicBlock = false> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, __VA_ARGS__ const SumParams& params, \
              Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, 0, {dst.operand(), src.operand()}, {params.outter, params.inner, params.n}); \
    }
LNGRAD_SUM(Sum)
LNGRAD_SUM(Sum, const Buffer&, )
LNGRAD_SUM(Mean)
LNGRAD_SUM(Mean, const Buffer&, )
#undef LNGRAD_SUM

// Along an axis of a matrix.
#define LNGRAD_ALONG(Name, ...) \
    template <class T, class pattern, bool isReuseSource = false> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, __VA_ARGS__ const uint32_t srcShape[], \
              bool srcInnerPad, Where where = Where::here()) \
    { \
        const int64_t width = 32 / sizeof(T); \
        const int64_t columns = srcInnerPad ? srcShape[1] : (srcShape[1] + width - 1) / width * width; \
        lngrad::library(#Name, where, 0, {dst.operand(), src.operand()}, \
                        {srcShape[0], columns, srcShape[1], std::is_same_v<pattern, Pattern::Reduce::AR>}); \
    }
LNGRAD_ALONG(ReduceSum)
LNGRAD_ALONG(ReduceSum, const Buffer&, )
LNGRAD_ALONG(ReduceMax)
LNGRAD_ALONG(ReduceMax, const Buffer&, )
LNGRAD_ALONG(ReduceMin)
LNGRAD_ALONG(ReduceMin, const Buffer&, )
LNGRAD_ALONG(ReduceProd)
LNGRAD_ALONG(ReduceProd, const Buffer&, )
LNGRAD_ALONG(ReduceMean)
LNGRAD_ALONG(ReduceMean, const Buffer&, )
#undef LNGRAD_ALONG

#define LNGRAD_CUMSUM(...) \
    template <typename T, const CumSumConfig& config = DEFAULT_CUMSUM_CONFIG> \
    void CumSum(const LocalTensor<T>& dst, const LocalTensor<T>& lastRow, const LocalTensor<T>& src, \
                __VA_ARGS__ const CumSumInfo& info, Where where = Where::here()) \
    { \
        lngrad::library("CumSum", where, 0, {dst.operand(), lastRow.operand(), src.operand()}, \
                        {info.outter, info.inner, info.inner, config.isLastAxis, config.outputLastRow}); \
    }
LNGRAD_CUMSUM(LocalTensor<uint8_t>&, )
LNGRAD_CUMSUM()
#undef LNGRAD_CUMSUM

#define LNGRAD_FMA(...) \
    template <const auto& config = DEFAULT_LIBRARY_CONFIG, typename T> \
    void Fma(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, \
             const LocalTensor<T>& src2, __VA_ARGS__ const uint32_t count, Where where = Where::here()) \
    { \
        lngrad::library("Fma", where, 0, {dst.operand(), src0.operand(), src1.operand(), src2.operand()}, {count}); \
    }
LNGRAD_FMA()
LNGRAD_FMA(const Buffer&, )
#undef LNGRAD_FMA

template <typename T>
void Arange(const LocalTensor<T>& dst, const lngrad::same<T> firstValue, const lngrad::same<T> diffValue,
            const int32_t count, Where where = Where::here())
{
    lngrad::library("Arange", where, 0, {dst.operand()},
                    {lngrad::double_bits(lngrad::real(firstValue)), lngrad::double_bits(lngrad::real(diffValue)), count});
}
template <typename T>
void ArithProgression(const LocalTensor<T>& dst, const lngrad::same<T> firstValue, const lngrad::same<T> diffValue,
                      const int32_t count, Where where = Where::here())
{
    Arange(dst, firstValue, diffValue, count, where);
}

#define LNGRAD_QUANT(...) \
    template <typename T, bool isReuseSource = false> \
    void AscendQuant(const LocalTensor<int8_t>& dst, const LocalTensor<T>& src, __VA_ARGS__ const float scale, \
                     const float offset, const uint32_t count, Where where = Where::here()) \
    { \
        lngrad::library("AscendQuant", where, scale, {dst.operand(), src.operand()}, {lngrad::double_bits(offset), count}); \
    } \
    template <typename T, bool isReuseSource = false> \
    void AscendQuant(const LocalTensor<int8_t>& dst, const LocalTensor<T>& src, __VA_ARGS__ const float scale, \
                     const float offset, Where where = Where::here()) \
    { \
        lngrad::library("AscendQuant", where, scale, {dst.operand(), src.operand()}, \
                        {lngrad::double_bits(offset), int64_t(src.GetSize())}); \
    }
LNGRAD_QUANT()
LNGRAD_QUANT(const Buffer&, )
#undef LNGRAD_QUANT

#define LNGRAD_DROPOUT(...) \
    template <typename T, bool isInitBitMode = false, uint32_t dropOutMode = 0> \
    void DropOut(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint8_t>& mask, \
                 __VA_ARGS__ const float keepProb, const DropOutShapeInfo& info, Where where = Where::here()) \
    { \
        const bool bits = dropOutMode > 2 || (dropOutMode == 0 && info.maskLastAxis < info.srcLastAxis); \
        lngrad::library("DropOut", where, keepProb, {dst.operand(), src.operand(), mask.operand()}, \
                        {info.firstAxis, info.srcLastAxis, int64_t(info.maskLastAxis) * (bits ? 8 : 1), bits}); \
    }
LNGRAD_DROPOUT()
LNGRAD_DROPOUT(const Buffer&, )
#undef LNGRAD_DROPOUT

// A byte that is not 0 chooses the second of the two.
template <typename T, typename U, bool isReuseMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<T>& src0, lngrad::same<T> src1, const LocalTensor<U>& mask,
            const Buffer&, const SelectWithBytesMaskShapeInfo& info, Where where = Where::here())
{
    lngrad::library("Select", where, lngrad::real(src1), {dst.operand(), src0.operand(), mask.operand()},
                    {info.firstAxis, info.srcLastAxis, info.maskLastAxis, 1});
}
template <typename T, typename U, bool isReuseMask = true>
void Select(const LocalTensor<T>& dst, lngrad::same<T> src0, const LocalTensor<T>& src1, const LocalTensor<U>& mask,
            const Buffer&, const SelectWithBytesMaskShapeInfo& info, Where where = Where::here())
{
    lngrad::library("Select", where, lngrad::real(src0), {dst.operand(), src1.operand(), mask.operand()},
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
    return {true, tensor.operand()};
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
    with_either<T>("Clamp", where, dst.operand(), src.operand(), count, either<T>(min), either<T>(max));
}
#define LNGRAD_TEST(Name) \
    template <typename T, typename U> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<U>& src, const uint32_t count, Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, 0, {dst.operand(), src.operand()}, {count}); \
    }
LNGRAD_TEST(IsFinite)
LNGRAD_TEST(IsInf)
LNGRAD_TEST(IsNan)
LNGRAD_TEST(LogicalNot)
#undef LNGRAD_TEST
#define LNGRAD_LOGICAL(Name) \
    template <typename T, typename U> \
    void Name(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1, const uint32_t count, Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, 0, {dst.operand(), src0.operand(), src1.operand()}, {count}); \
    }
LNGRAD_LOGICAL(LogicalAnd)
LNGRAD_LOGICAL(LogicalOr)
LNGRAD_LOGICAL(LogicalXor)
#undef LNGRAD_LOGICAL

// The comparison of one repeat, kept in a register of 128 bits, and the register.
template <typename T>
void Compare(const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode, const uint64_t mask[],
             const BinaryRepeatParams& p, Where where = Where::here())
{
    lngrad::library("Compare", where, 0, {src0.operand(), src1.operand()},
                    {int64_t(cmpMode), int64_t(mask[0]), int64_t(mask[1]), p.src0BlkStride, p.src1BlkStride});
}
template <typename T>
void Compare(const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode, const uint64_t mask,
             const BinaryRepeatParams& p, Where where = Where::here())
{
    const uint64_t all = ~uint64_t(0);
    const uint64_t bits[2] = {mask >= 64 ? all : ~(all << mask), mask <= 64 ? 0 : mask >= 128 ? all : ~(all << (mask - 64))};
    Compare(src0, src1, cmpMode, bits, p, where);
}
template <typename T>
void GetCmpMask(const LocalTensor<T>& dst, Where where = Where::here())
{
    lngrad::library("GetCmpMask", where, 0, {dst.operand()}, {});
}

#define LNGRAD_PAIR(Name) \
    template <typename T> \
    void Name(const LocalTensor<T>& dst0, const LocalTensor<T>& dst1, const LocalTensor<T>& src0, \
              const LocalTensor<T>& src1, const int32_t count, Where where = Where::here()) \
    { \
        lngrad::library(#Name, where, 0, {dst0.operand(), dst1.operand(), src0.operand(), src1.operand()}, {count}); \
    }
LNGRAD_PAIR(Interleave)
LNGRAD_PAIR(DeInterleave)
#undef LNGRAD_PAIR

// Back from whole numbers: one scale a column, or one for all; with a temporary buffer or without.
struct DequantParams {
    uint32_t m;
    uint32_t n;
    uint32_t calCount;
};
#define LNGRAD_DEQUANT(...) \
    template <typename T, typename S> \
    void AscendDequant(const LocalTensor<T>& dst, const LocalTensor<int32_t>& src, const LocalTensor<S>& deqScale, \
                       __VA_ARGS__ DequantParams p, Where where = Where::here()) \
    { \
        lngrad::library("AscendDequant", where, 0, {dst.operand(), src.operand(), deqScale.operand()}, \
                        {p.m, p.n, p.calCount, 0}); \
    } \
    template <typename T, typename S> \
    void AscendDequant(const LocalTensor<T>& dst, const LocalTensor<int32_t>& src, const S deqScale, \
                       __VA_ARGS__ DequantParams p, Where where = Where::here()) \
    { \
        lngrad::library("AscendDequant", where, lngrad::real(deqScale), {dst.operand(), src.operand()}, \
                        {p.m, p.n, p.calCount, 1}); \
    }
LNGRAD_DEQUANT()
LNGRAD_DEQUANT(const Buffer&, )
#undef LNGRAD_DEQUANT
template <typename U, typename T, bool isTranspose>
void AscendAntiQuant(const LocalTensor<T>& dst, const LocalTensor<U>& src, const LocalTensor<T>& offset,
                     const LocalTensor<T>& scale, const Buffer&, const uint32_t k, Where where = Where::here())
{
    static_assert(!isTranspose, "lngrad: isTranspose is not simulated");
    const ShapeInfo& shape = offset.GetShapeInfo();
    const int64_t columns = src.GetSize() / k;
    lngrad::library("AscendAntiQuant", where, 0, {dst.operand(), src.operand(), offset.operand(), scale.operand()},
                    {k, columns, shape.shapeDim ? shape.shape[0] : offset.GetSize() / columns});
}
template <typename U, typename T, bool isTranspose>
void AscendAntiQuant(const LocalTensor<T>& dst, const LocalTensor<U>& src, const lngrad::same<T> offset,
                     const lngrad::same<T> scale, const Buffer&, const uint32_t, Where where = Where::here())
{
    lngrad::library("AscendAntiQuant", where, 0, {dst.operand(), src.operand()},
                    {src.GetSize(), lngrad::double_bits(lngrad::real(offset)), lngrad::double_bits(lngrad::real(scale))});
}
#define LNGRAD_RMS_NORM(...) \
    template <typename T, bool isBasicBlock = false> \
    void RmsNorm(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& gamma, \
                 __VA_ARGS__ const lngrad::same<T> epsilon, const RmsNormTiling& tiling, Where where = Where::here()) \
    { \
        lngrad::library("RmsNorm", where, lngrad::real(epsilon), {dst.operand(), src.operand(), gamma.operand()}, \
                        {int64_t(tiling.bLength) * tiling.sLength, tiling.hLength, tiling.originalHLength}); \
    }
LNGRAD_RMS_NORM()
LNGRAD_RMS_NORM(const Buffer&, )
#undef LNGRAD_RMS_NORM

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
#define LNGRAD_WELFORD_UPDATE(...) \
    template <typename T, typename U, bool isReuseSource = false, const WelfordUpdateConfig& config = WFUPDATE_DEFAULT_CFG> \
    void WelfordUpdate(const LocalTensor<U>& outputMean, const LocalTensor<U>& outputVariance, \
                       const LocalTensor<U>& inputMean, const LocalTensor<U>& inputVariance, const LocalTensor<T>& inputX, \
                       __VA_ARGS__ const WelfordUpdateParam& para, Where where = Where::here()) \
    { \
        lngrad::library("WelfordUpdate", where, para.nRec, \
                        {outputMean.operand(), outputVariance.operand(), inputMean.operand(), inputVariance.operand(), \
                         inputX.operand()}, \
                        {para.abLength, para.abComputeLength, config.isInplace}); \
    }
LNGRAD_WELFORD_UPDATE()
LNGRAD_WELFORD_UPDATE(const Buffer&, )
#undef LNGRAD_WELFORD_UPDATE

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
        lngrad::library("WelfordFinalize", where, 0, \
                        {outputMean.operand(), outputVariance.operand(), inputMean.operand(), \
                         inputVariance.operand() counts}, \
                        {p.rnLength, p.abLength, p.headCount, p.headCountLength, p.tailCount, p.tailCountLength, \
                         lngrad::double_bits(p.abRec), lngrad::double_bits(p.rRec), \
                         lngrad::double_bits(config.isCorrection ? p.rRecWithCorrection : p.rRec)}); \
    }
#define LNGRAD_COUNTS , counts.operand()
LNGRAD_WELFORD_FINALIZE(, )
LNGRAD_WELFORD_FINALIZE(, const Buffer&, )
LNGRAD_WELFORD_FINALIZE(LNGRAD_COUNTS, const LocalTensor<int32_t>& counts, )
LNGRAD_WELFORD_FINALIZE(LNGRAD_COUNTS, const LocalTensor<int32_t>& counts, const Buffer&, )
#undef LNGRAD_COUNTS
#undef LNGRAD_WELFORD_FINALIZE

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
#define LNGRAD_NORMALIZE(...) \
    template <typename U, typename T, bool isReuseSource = false, const NormalizeConfig& config = NLCFG_NORM> \
    void Normalize(const LocalTensor<T>& output, const LocalTensor<float>& outputRstd, const LocalTensor<float>& inputMean, \
                   const LocalTensor<float>& inputVariance, const LocalTensor<T>& inputX, const LocalTensor<U>& gamma, \
                   const LocalTensor<U>& beta, __VA_ARGS__ const float epsilon, const NormalizePara& para, \
                   Where where = Where::here()) \
    { \
        static_assert(config.reducePattern == ReducePattern::AR && !config.isOnlyOutput, \
                      "lngrad: ReducePattern::AR is simulated, and rstd is written"); \
        lngrad::library("Normalize", where, epsilon, \
                        {output.operand(), outputRstd.operand(), inputMean.operand(), inputVariance.operand(), \
                         inputX.operand(), gamma.operand(), beta.operand()}, \
                        {para.aLength, para.rLengthWithPadding, para.rLength, config.isNoGamma, config.isNoBeta}); \
    }
LNGRAD_NORMALIZE()
LNGRAD_NORMALIZE(const Buffer&, )
#undef LNGRAD_NORMALIZE

#define LNGRAD_DEEP_NORM(...) \
    template <typename T, bool isReuseSrc = false, bool isBasicBlock = false> \
    void DeepNorm(const LocalTensor<T>& dst, const LocalTensor<T>& mean, const LocalTensor<T>& rstd, \
                  const LocalTensor<T>& src, const LocalTensor<T>& gx, const LocalTensor<T>& beta, \
                  const LocalTensor<T>& gamma, __VA_ARGS__ const lngrad::same<T> alpha, const lngrad::same<T> epsilon, \
                  const DeepNormTiling& tiling, Where where = Where::here()) \
    { \
        lngrad::library("DeepNorm", where, lngrad::real(epsilon), \
                        {dst.operand(), mean.operand(), rstd.operand(), src.operand(), gx.operand(), beta.operand(), \
                         gamma.operand()}, \
                        {int64_t(tiling.bLength) * tiling.sLength, tiling.hLength, tiling.originalHLength, \
                         lngrad::double_bits(lngrad::real(alpha))}); \
    }
LNGRAD_DEEP_NORM()
LNGRAD_DEEP_NORM(const Buffer&, )
#undef LNGRAD_DEEP_NORM

template <typename T>
void Gatherb(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<uint32_t>& offset, const uint8_t repeatTime, const GatherRepeatParams& p, Where where = Where::here())
{
    lngrad::library("Gatherb", where, 0, {dst.operand(), src0.operand(), offset.operand()},
                    {repeatTime, p.dstBlkStride, p.dstRepStride});
}
template <typename T>
void Transpose(const LocalTensor<T>& dst, const LocalTensor<T>& src, const Buffer&, const TransposeParamsExt& p, Where where = Where::here())
{
    lngrad::library("Transpose", where, 0, {dst.operand(), src.operand()},
                    {p.nSize, p.cSize, p.hSize, p.wSize, int64_t(p.transposeType)});
}

} // namespace AscendC

#endif
