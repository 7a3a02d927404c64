// Library functions on rows: their tensors and numbers go to Python by the function's name.
#ifndef LNGRAD_LIBRARY_H
#define LNGRAD_LIBRARY_H

#include "lngrad/mathematics.h"
#include "lngrad/tiles.h"

namespace AscendC {

struct SoftMaxShapeInfo {
    uint32_t srcM = 0, srcK = 0, oriSrcM = 0, oriSrcK = 0;
};
struct SoftmaxConfig {
    bool isCheckTiling = true;
    uint32_t oriSrcM = 0, oriSrcK = 0;
};
constexpr SoftmaxConfig SOFTMAX_DEFAULT_CFG;
struct SumParams {
    uint32_t outter = 1, inner, n;
};
using MeanParams = SumParams;
enum class CumSumAlgorithm { CUMSUM_ALGORITHM_LINEBYLINE = 0, CUMSUM_ALGORITHM_CASCADE };
struct CumSumConfig {
    bool isLastAxis = true, isReuseSource = false, outputLastRow = false;
    CumSumAlgorithm algorithm = CumSumAlgorithm::CUMSUM_ALGORITHM_LINEBYLINE;
};
constexpr CumSumConfig DEFAULT_CUMSUM_CONFIG;
struct CumSumInfo {
    uint32_t outter = 0, inner = 0;
};
struct DropOutShapeInfo {
    uint32_t firstAxis = 0, srcLastAxis = 0, maskLastAxis = 0;
};
using SelectWithBytesMaskShapeInfo = DropOutShapeInfo;
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
    put(call, reinterpret_cast<intptr_t>(name));
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
          real(shape.oriSrcK ? shape.oriSrcK : columns) {}
};

template <typename T, typename Limit>
int64_t limit_bits(const Limit& limit) // 0 for a tensor
{
    if constexpr (std::is_convertible_v<Limit, T>) return double_bits(real(static_cast<T>(limit)));
    else return 0;
}
template <typename T>
int64_t whole_blocks(int64_t columns)
{
    const int64_t width = 32 / sizeof(T);
    return (columns + width - 1) / width * width;
}
// Whether DropOut's mask has bits in place of bytes.
inline bool has_bits(uint32_t mode, const AscendC::DropOutShapeInfo& info)
{
    return mode > 2 || (mode == 0 && info.maskLastAxis < info.srcLastAxis);
}
template <bool simulated>
constexpr double zero_if()
{
    static_assert(simulated, "lngrad: the format NZ is not simulated, ReducePattern::AR is, and rstd is written");
    return 0;
}

} // namespace lngrad

namespace AscendC {

using Buffer = LocalTensor<uint8_t>;

// A function by its name in the table of Python: the types of its template, its parameters, the real number, the tensors
// and the whole numbers. LNGRAD_LIBRARY: in two forms, with a temporary buffer between its parameters and without.
#define LNGRAD_FUNCTION(Name, api, Types, Parameters, real, tensors, numbers) \
    template <LNGRAD_LIST Types> \
    void Name(LNGRAD_LIST Parameters, Where where = Where::here()) \
    { \
        lngrad::library(api, where, real, {LNGRAD_LIST tensors}, {LNGRAD_LIST numbers}); \
    }
#define LNGRAD_LIBRARY(Name, api, Types, Front, Back, real, tensors, numbers) \
    LNGRAD_FUNCTION(Name, api, Types, (LNGRAD_LIST Front, LNGRAD_LIST Back), real, tensors, numbers) \
    LNGRAD_FUNCTION(Name, api, Types, (LNGRAD_LIST Front, const Buffer&, LNGRAD_LIST Back), real, tensors, numbers)

#define LNGRAD_ROWS lngrad::Rows(shape, tiling).rows, lngrad::Rows(shape, tiling).columns, lngrad::Rows(shape, tiling).real
#define LNGRAD_SOFTMAX_TYPES \
    typename T, bool isReuseSource = false, bool isBasicBlock = false, bool isDataFormatNZ = false, \
    const auto& config = SOFTMAX_DEFAULT_CFG, typename U
#define LNGRAD_OF_ROWS const LocalTensor<T>& dst, const LocalTensor<U>& sum, const LocalTensor<U>& max, const LocalTensor<T>& src
#define LNGRAD_SHAPE const SoftMaxTiling& tiling, const SoftMaxShapeInfo& shape = {}
LNGRAD_LIBRARY(SoftMax, "SoftMax", (LNGRAD_SOFTMAX_TYPES), (LNGRAD_OF_ROWS), (LNGRAD_SHAPE), lngrad::zero_if<!isDataFormatNZ>(),
               (dst, sum, max, src), (LNGRAD_ROWS))
LNGRAD_LIBRARY(SimpleSoftMax, "SimpleSoftMax", (LNGRAD_SOFTMAX_TYPES), (LNGRAD_OF_ROWS), (LNGRAD_SHAPE), lngrad::zero_if<!isDataFormatNZ>(),
               (dst, sum, max, src), (LNGRAD_ROWS))
LNGRAD_FUNCTION(LogSoftMax, "LogSoftMax", (typename T, bool isReuseSource = false, bool isDataFormatNZ = false, typename U),
                (LNGRAD_OF_ROWS, const Buffer&, LNGRAD_SHAPE), lngrad::zero_if<!isDataFormatNZ>(), (dst, sum, max, src), (LNGRAD_ROWS))
LNGRAD_LIBRARY(SoftMax, "SoftMax", (typename T, bool isReuseSource = false, bool isBasicBlock = false, const auto& config = SOFTMAX_DEFAULT_CFG),
               (const LocalTensor<T>& dst, const LocalTensor<T>& src), (LNGRAD_SHAPE), 0, (dst, src), (LNGRAD_ROWS))
#define LNGRAD_GRAD_TYPES typename T, bool isBasicBlock = false, bool isDataFormatNZ = false
#define LNGRAD_GRAD const LocalTensor<T>& dst, const LocalTensor<T>& grad, const LocalTensor<T>& src
LNGRAD_LIBRARY(SoftmaxGrad, "SoftmaxGrad", (LNGRAD_GRAD_TYPES), (LNGRAD_GRAD),
               (const SoftMaxTiling& tiling, bool isFront = false, const SoftMaxShapeInfo& shape = {}), 0, (dst, grad, src), (LNGRAD_ROWS, isFront))
LNGRAD_LIBRARY(SoftmaxGradFront, "SoftmaxGrad", (LNGRAD_GRAD_TYPES), (LNGRAD_GRAD), (LNGRAD_SHAPE), 0, (dst, grad, src), (LNGRAD_ROWS, 1))
LNGRAD_LIBRARY(SoftmaxFlashV2, "SoftmaxFlashV2",
               (typename T, bool isUpdate = false, bool isReuseSource = false, bool isBasicBlock = false,
                bool isDataFormatNZ = false, const auto& config = SOFTMAX_DEFAULT_CFG, typename U),
               (LNGRAD_OF_ROWS, const LocalTensor<T>& expMax, const LocalTensor<U>& inSum, const LocalTensor<U>& inMax),
               (LNGRAD_SHAPE), 0, (dst, sum, max, src, expMax, inSum, inMax), (LNGRAD_ROWS, isUpdate))

template <typename T, typename U, bool isDataFormatNZ = false, uint8_t stepSizeMode = 0>
bool AdjustSoftMaxRes(const LocalTensor<T>& softMaxRes, const LocalTensor<U>& max, const uint32_t from,
                      const lngrad::same<T> to, const SoftMaxShapeInfo& shape, Where where = Where::here())
{
    return lngrad::library("AdjustSoftMaxRes", where, lngrad::real(to), {softMaxRes, max},
                           {shape.srcM, shape.srcK, shape.srcK, int64_t(from)}) != 0;
}

#define LNGRAD_SUM(Name) \
    LNGRAD_LIBRARY(Name, #Name, (typename T, int32_t reduceDim = -1, bool isReuseSource = false, bool isBasicBlock = false), \
                   (const LocalTensor<T>& dst, const LocalTensor<T>& src), (const SumParams& params), 0, (dst, src), \
                   (params.outter, params.inner, params.n))
LNGRAD_SUM(Sum)
LNGRAD_SUM(Mean)

// Along an axis of a matrix.
#define LNGRAD_ALONG(Name) \
    LNGRAD_LIBRARY(Name, #Name, (class T, class pattern, bool isReuseSource = false), \
                   (const LocalTensor<T>& dst, const LocalTensor<T>& src), (const uint32_t srcShape[], bool srcInnerPad), 0, \
                   (dst, src), (srcShape[0], srcInnerPad ? srcShape[1] : lngrad::whole_blocks<T>(srcShape[1]), srcShape[1], \
                                std::is_same_v<pattern, Pattern::Reduce::AR>))
LNGRAD_ALONG(ReduceSum)
LNGRAD_ALONG(ReduceMax)
LNGRAD_ALONG(ReduceMin)
LNGRAD_ALONG(ReduceProd)
LNGRAD_ALONG(ReduceMean)
LNGRAD_LIBRARY(CumSum, "CumSum", (typename T, const CumSumConfig& config = DEFAULT_CUMSUM_CONFIG),
               (const LocalTensor<T>& dst, const LocalTensor<T>& lastRow, const LocalTensor<T>& src), (const CumSumInfo& info), 0,
               (dst, lastRow, src), (info.outter, info.inner, info.inner, config.isLastAxis, config.outputLastRow))
LNGRAD_LIBRARY(Fma, "Fma", (const auto& config = DEFAULT_LIBRARY_CONFIG, typename T),
               (const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, const LocalTensor<T>& src2),
               (const uint32_t count), 0, (dst, src0, src1, src2), (count))
#define LNGRAD_ARANGE(Name) \
    LNGRAD_FUNCTION(Name, "Arange", (typename T), \
                    (const LocalTensor<T>& dst, const lngrad::same<T> firstValue, const lngrad::same<T> diffValue, const int32_t count), \
                    0, (dst), (lngrad::double_bits(lngrad::real(firstValue)), lngrad::double_bits(lngrad::real(diffValue)), count))
LNGRAD_ARANGE(Arange)
LNGRAD_ARANGE(ArithProgression)
#define LNGRAD_QUANT(Parameters, count) \
    LNGRAD_LIBRARY(AscendQuant, "AscendQuant", (typename T, bool isReuseSource = false), \
                   (const LocalTensor<int8_t>& dst, const LocalTensor<T>& src), Parameters, scale, (dst, src), \
                   (lngrad::double_bits(offset), count))
LNGRAD_QUANT((const float scale, const float offset, const uint32_t count), count)
LNGRAD_QUANT((const float scale, const float offset), src.GetSize())
LNGRAD_LIBRARY(DropOut, "DropOut", (typename T, bool isInitBitMode = false, uint32_t dropOutMode = 0),
               (const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint8_t>& mask),
               (const float keepProb, const DropOutShapeInfo& info), keepProb, (dst, src, mask),
               (info.firstAxis, info.srcLastAxis, int64_t(info.maskLastAxis) * (lngrad::has_bits(dropOutMode, info) ? 8 : 1),
                lngrad::has_bits(dropOutMode, info)))

// A byte that is not 0 chooses the second of the two.
#define LNGRAD_SELECT(One, Other, tensor, scalar, first) \
    LNGRAD_FUNCTION(Select, "Select", (typename T, typename U, bool isReuseMask = true), \
                    (const LocalTensor<T>& dst, One src0, Other src1, const LocalTensor<U>& mask, const Buffer&, \
                     const SelectWithBytesMaskShapeInfo& info), \
                    lngrad::real(scalar), (dst, tensor, mask), (info.firstAxis, info.srcLastAxis, info.maskLastAxis, first))
LNGRAD_SELECT(const LocalTensor<T>&, lngrad::same<T>, src0, src1, 1)
LNGRAD_SELECT(lngrad::same<T>, const LocalTensor<T>&, src1, src0, 0)
template <typename T, typename U, bool isReuseMask = true, typename One, typename Other>
void SelectWithBytesMask(const LocalTensor<T>& dst, const One& src0, const Other& src1, const LocalTensor<U>& mask,
                         const LocalTensor<uint8_t>& tmp, const SelectWithBytesMaskShapeInfo& info, Where where = Where::here())
{
    Select<T, U, isReuseMask>(dst, src0, src1, mask, tmp, info, where);
}

// Between limits that are tensors or scalars; 950 has it.
template <typename T, typename U, typename V>
void Clamp(const LocalTensor<T>& dst, const LocalTensor<T>& src, const U& min, const V& max, const uint32_t count, Where where = Where::here())
{
    lngrad::Call& call = lngrad::issue(Op::LIBRARY, where);
    lngrad::put_each(call, dst, src);
    if constexpr (!std::is_convertible_v<U, T>) lngrad::put(call, min);
    if constexpr (!std::is_convertible_v<V, T>) lngrad::put(call, max);
    lngrad::put_each(call, reinterpret_cast<intptr_t>("Clamp"), count, !std::is_convertible_v<U, T>, !std::is_convertible_v<V, T>,
                     lngrad::limit_bits<T>(min), lngrad::limit_bits<T>(max));
    lngrad::finish(call);
}
#define LNGRAD_TEST(Name) \
    LNGRAD_FUNCTION(Name, #Name, (typename T, typename U), (const LocalTensor<T>& dst, const LocalTensor<U>& src, const uint32_t count), \
                    0, (dst, src), (count))
LNGRAD_TEST(IsFinite)
LNGRAD_TEST(IsInf)
LNGRAD_TEST(IsNan)
LNGRAD_TEST(LogicalNot)
#define LNGRAD_LOGICAL(Name) \
    LNGRAD_FUNCTION(Name, #Name, (typename T, typename U), \
                    (const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1, const uint32_t count), 0, \
                    (dst, src0, src1), (count))
LNGRAD_LOGICAL(LogicalAnd)
LNGRAD_LOGICAL(LogicalOr)
LNGRAD_LOGICAL(LogicalXor)

#define LNGRAD_PAIR(Name) \
    LNGRAD_FUNCTION(Name, #Name, (typename T), \
                    (const LocalTensor<T>& dst0, const LocalTensor<T>& dst1, const LocalTensor<T>& src0, const LocalTensor<T>& src1, \
                     const int32_t count), 0, (dst0, dst1, src0, src1), (count))
LNGRAD_PAIR(Interleave)
LNGRAD_PAIR(DeInterleave)

// Back from whole numbers: one scale a column, or one for all.
struct DequantParams {
    uint32_t m, n, calCount;
};
#define LNGRAD_DEQUANT(Scale, real, tensors, scalar) \
    LNGRAD_LIBRARY(AscendDequant, "AscendDequant", (typename T, typename S), \
                   (const LocalTensor<T>& dst, const LocalTensor<int32_t>& src, Scale deqScale), (DequantParams p), real, tensors, \
                   (p.m, p.n, p.calCount, scalar))
LNGRAD_DEQUANT(const LocalTensor<S>&, 0, (dst, src, deqScale), 0)
LNGRAD_DEQUANT(const S, lngrad::real(deqScale), (dst, src), 1)
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
LNGRAD_LIBRARY(RmsNorm, "RmsNorm", (typename T, bool isBasicBlock = false),
               (const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& gamma),
               (const lngrad::same<T> epsilon, const RmsNormTiling& tiling), lngrad::real(epsilon), (dst, src, gamma),
               (int64_t(tiling.bLength) * tiling.sLength, tiling.hLength, tiling.originalHLength))

struct WelfordUpdateConfig {
    bool isInplace = false;
};
constexpr WelfordUpdateConfig WFUPDATE_DEFAULT_CFG = {false};
struct WelfordUpdateParam {
    uint32_t rnLength, abLength, abComputeLength;
    float nRec;
};
LNGRAD_LIBRARY(WelfordUpdate, "WelfordUpdate",
               (typename T, typename U, bool isReuseSource = false, const WelfordUpdateConfig& config = WFUPDATE_DEFAULT_CFG),
               (const LocalTensor<U>& outputMean, const LocalTensor<U>& outputVariance, const LocalTensor<U>& inputMean,
                const LocalTensor<U>& inputVariance, const LocalTensor<T>& inputX),
               (const WelfordUpdateParam& para), para.nRec, (outputMean, outputVariance, inputMean, inputVariance, inputX),
               (para.abLength, para.abComputeLength, config.isInplace))

struct WelfordFinalizeConfig {
    bool isCorrection = false;
};
constexpr WelfordFinalizeConfig WFFINALIZE_DEFAULT_CFG = {false};
struct WelfordFinalizePara {
    uint32_t rnLength, abLength, headCount, headCountLength, tailCount, tailCountLength;
    float abRec, rRec, rRecWithCorrection;
};
#define LNGRAD_WELFORD_FINALIZE(Counts, tensors) \
    LNGRAD_LIBRARY(WelfordFinalize, "WelfordFinalize", \
                   (bool isReuseSource = false, const WelfordFinalizeConfig& config = WFFINALIZE_DEFAULT_CFG), \
                   (const LocalTensor<float>& outputMean, const LocalTensor<float>& outputVariance, \
                    const LocalTensor<float>& inputMean, const LocalTensor<float>& inputVariance LNGRAD_LIST Counts), \
                   (const WelfordFinalizePara& p), 0, tensors, \
                   (p.rnLength, p.abLength, p.headCount, p.headCountLength, p.tailCount, p.tailCountLength, \
                    lngrad::double_bits(p.abRec), lngrad::double_bits(p.rRec), \
                    lngrad::double_bits(config.isCorrection ? p.rRecWithCorrection : p.rRec)))
LNGRAD_WELFORD_FINALIZE((), (outputMean, outputVariance, inputMean, inputVariance))
LNGRAD_WELFORD_FINALIZE((, const LocalTensor<int32_t>& counts), (outputMean, outputVariance, inputMean, inputVariance, counts))

struct NormalizeConfig {
    ReducePattern reducePattern = ReducePattern::AR;
    int32_t aLength = -1;
    bool isNoBeta = false, isNoGamma = false, isOnlyOutput = false;
};
constexpr NormalizeConfig NLCFG_NORM;
struct NormalizePara {
    uint32_t aLength, rLength, rLengthWithPadding;
};
LNGRAD_LIBRARY(Normalize, "Normalize", (typename U, typename T, bool isReuseSource = false, const NormalizeConfig& config = NLCFG_NORM),
               (const LocalTensor<T>& output, const LocalTensor<float>& outputRstd, const LocalTensor<float>& inputMean,
                const LocalTensor<float>& inputVariance, const LocalTensor<T>& inputX, const LocalTensor<U>& gamma, const LocalTensor<U>& beta),
               (const float epsilon, const NormalizePara& para),
               epsilon + lngrad::zero_if<config.reducePattern == ReducePattern::AR && !config.isOnlyOutput>(),
               (output, outputRstd, inputMean, inputVariance, inputX, gamma, beta),
               (para.aLength, para.rLengthWithPadding, para.rLength, config.isNoGamma, config.isNoBeta))
LNGRAD_LIBRARY(DeepNorm, "DeepNorm", (typename T, bool isReuseSrc = false, bool isBasicBlock = false),
               (const LocalTensor<T>& dst, const LocalTensor<T>& mean, const LocalTensor<T>& rstd, const LocalTensor<T>& src,
                const LocalTensor<T>& gx, const LocalTensor<T>& beta, const LocalTensor<T>& gamma),
               (const lngrad::same<T> alpha, const lngrad::same<T> epsilon, const DeepNormTiling& tiling), lngrad::real(epsilon),
               (dst, mean, rstd, src, gx, beta, gamma),
               (int64_t(tiling.bLength) * tiling.sLength, tiling.hLength, tiling.originalHLength, lngrad::double_bits(lngrad::real(alpha))))

LNGRAD_FUNCTION(Gatherb, "Gatherb", (typename T),
                (const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<uint32_t>& offset, const uint8_t repeatTime,
                 const GatherRepeatParams& p), 0, (dst, src0, offset), (repeatTime, p.dstBlkStride, p.dstRepStride))
LNGRAD_FUNCTION(Transpose, "Transpose", (typename T),
                (const LocalTensor<T>& dst, const LocalTensor<T>& src, const Buffer&, const TransposeParamsExt& p), 0, (dst, src),
                (p.nSize, p.cSize, p.hSize, p.wSize, int64_t(p.transposeType)))

} // namespace AscendC

#endif
