// The tile APIs LayerNorm, LayerNormGrad and LayerNormGradBeta.
#ifndef LNGRAD_TILES_H
#define LNGRAD_TILES_H

#include "kernel_tiling/kernel_tiling.h"
#include "lngrad/system.h"

namespace AscendC {

struct LayerNormPara {
    uint32_t aLength = 0, rLength = 0, rLengthWithPadding = 0;
};

struct LayerNormConfig {
    bool isNoBeta = false, isNoGamma = false, isOnlyOutput = false, isOutputRstd = true;
};
constexpr LayerNormConfig LNCFG_NORM = {false, false, false, true};

} // namespace AscendC

namespace lngrad {

// A tile API: its tensors, the temporary buffer or none; the tiling's address and bytes, isReuseSource, whether there is
// a buffer, and what is particular to the call.
template <typename Tiling>
void tile_api(Op op, Where where, double epsilon, std::initializer_list<Operand> tensors, std::initializer_list<Operand> buffer,
              const Tiling& tiling, bool reuse, std::initializer_list<int64_t> more = {})
{
    Call& call = issue(op, where);
    for (const Operand& tensor : tensors) put(call, tensor);
    for (const Operand& shared : buffer) put(call, shared);
    put_each(call, reinterpret_cast<intptr_t>(&tiling), sizeof tiling, reuse, buffer.size());
    for (int64_t number : more) put(call, number);
    call.real = epsilon;
    finish(call);
}

} // namespace lngrad

namespace AscendC {

#if defined(__NPU_ARCH__) && defined(__has_attribute)
#if (__NPU_ARCH__ == 1001 || __NPU_ARCH__ == 3002) && __has_attribute(unavailable)
#define LNGRAD_TILE_API __attribute__((unavailable("not available on this SoC, see the manual's product table")))
#endif
#endif
#ifndef LNGRAD_TILE_API
#define LNGRAD_TILE_API // the call is refused when it runs
#endif

// Each with a temporary buffer and without: `buffer` holds it or nothing; only with it Beta's tiling is const.
#define LNGRAD_TILE_APIS(buffer, Const, Shared, ConstShared) \
    template <typename T, bool isReuseSource = false> \
    LNGRAD_TILE_API void LayerNormGrad(const LocalTensor<T>& outputPdX, const LocalTensor<T>& resForGamma, const LocalTensor<T>& inputDy, \
                       const LocalTensor<T>& inputX, const LocalTensor<T>& inputVariance, const LocalTensor<T>& inputMean, \
                       const LocalTensor<T>& inputGamma, Shared T epsilon, LayerNormGradTiling& tiling, \
                       const LayerNormGradShapeInfo& shapeInfo = {}, Where where = Where::here()) \
    { \
        lngrad::tile_api(Op::LAYER_NORM_GRAD, where, static_cast<float>(epsilon), \
                         {outputPdX, resForGamma, inputDy, inputX, inputVariance, inputMean, inputGamma}, \
                         buffer, tiling, isReuseSource, {int64_t(shapeInfo.dataFormat)}); \
    } \
    template <typename T, bool isReuseSource = false> \
    LNGRAD_TILE_API void LayerNormGradBeta(const LocalTensor<T>& outputPdGamma, const LocalTensor<T>& outputPdBeta, \
                           const LocalTensor<T>& resForGamma, const LocalTensor<T>& inputDy, \
                           ConstShared Const LayerNormGradBetaTiling& tiling, Where where = Where::here()) \
    { \
        lngrad::tile_api(Op::LAYER_NORM_GRAD_BETA, where, 0, {outputPdGamma, outputPdBeta, resForGamma, inputDy}, \
                         buffer, tiling, isReuseSource); \
    } \
    template <typename T, bool isReuseSource = false> \
    LNGRAD_TILE_API void LayerNorm(const LocalTensor<T>& output, const LocalTensor<T>& outputMean, const LocalTensor<T>& outputVariance, \
                   const LocalTensor<T>& inputX, const LocalTensor<T>& gamma, const LocalTensor<T>& beta, \
                   ConstShared const T epsilon, LayerNormTiling& tiling, Where where = Where::here()) \
    { \
        lngrad::tile_api(Op::LAYER_NORM, where, static_cast<float>(epsilon), \
                         {output, outputMean, outputVariance, inputX, gamma, beta}, buffer, tiling, isReuseSource); \
    } \
    template <typename U, typename T, bool isReuseSource = false, const LayerNormConfig& config = LNCFG_NORM> \
    LNGRAD_TILE_API void LayerNorm(const LocalTensor<T>& output, const LocalTensor<float>& outputMean, \
                   const LocalTensor<float>& outputRstd, const LocalTensor<T>& inputX, const LocalTensor<U>& gamma, \
                   const LocalTensor<U>& beta, const float epsilon, ConstShared const LayerNormPara& para, \
                   const LayerNormSeparateTiling& tiling, Where where = Where::here()) \
    { \
        lngrad::tile_api(Op::LAYER_NORM_RSTD, where, epsilon, {output, outputMean, outputRstd, inputX, gamma, beta}, \
                         buffer, tiling, isReuseSource, \
                         {para.aLength, para.rLength, para.rLengthWithPadding, config.isNoBeta, config.isNoGamma, \
                          config.isOnlyOutput, config.isOutputRstd}); \
    }
#define LNGRAD_SHARED LocalTensor<uint8_t>& sharedTmpBuffer,
LNGRAD_TILE_APIS({}, , , )
LNGRAD_TILE_APIS({sharedTmpBuffer}, const, LNGRAD_SHARED, const LNGRAD_SHARED)
#undef LNGRAD_SHARED
#undef LNGRAD_TILE_API
#undef LNGRAD_TILE_APIS

} // namespace AscendC

#endif
