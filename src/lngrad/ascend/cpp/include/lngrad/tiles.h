// The tile APIs LayerNorm, LayerNormGrad and LayerNormGradBeta.
#ifndef LNGRAD_TILES_H
#define LNGRAD_TILES_H

#include "kernel_tiling/kernel_tiling.h"
#include "lngrad/system.h"

namespace AscendC {

struct LayerNormPara {
    uint32_t aLength = 0;
    uint32_t rLength = 0;
    uint32_t rLengthWithPadding = 0;
};

struct LayerNormConfig {
    bool isNoBeta = false;
    bool isNoGamma = false;
    bool isOnlyOutput = false;
    bool isOutputRstd = true;
};
constexpr LayerNormConfig LNCFG_NORM = {false, false, false, true};

} // namespace AscendC

namespace lngrad {

// The integers of a tile API: the tiling's address and bytes, isReuseSource, whether the last local is the
// temporary buffer, and what is particular to the call.
template <typename Tiling>
void put_tiling(Call& call, const Tiling& tiling, bool reuse, bool shared)
{
    put(call, static_cast<int64_t>(reinterpret_cast<intptr_t>(&tiling)));
    put(call, static_cast<int64_t>(sizeof tiling));
    put(call, static_cast<int64_t>(reuse));
    put(call, static_cast<int64_t>(shared));
}

} // namespace lngrad

namespace AscendC {

template <typename T, bool isReuseSource = false>
void LayerNormGrad(const LocalTensor<T>& outputPdX, const LocalTensor<T>& resForGamma, const LocalTensor<T>& inputDy,
                   const LocalTensor<T>& inputX, const LocalTensor<T>& inputVariance, const LocalTensor<T>& inputMean,
                   const LocalTensor<T>& inputGamma, LocalTensor<uint8_t>& sharedTmpBuffer, T epsilon,
                   LayerNormGradTiling& tiling, const LayerNormGradShapeInfo& shapeInfo = {},
                   Where where = Where::here())
{
    lngrad::Call& call = lngrad::issue(Op::LAYER_NORM_GRAD, where);
    for (const LocalTensor<T>* tensor :
         {&outputPdX, &resForGamma, &inputDy, &inputX, &inputVariance, &inputMean, &inputGamma}) {
        lngrad::put(call, tensor->operand());
    }
    lngrad::put(call, sharedTmpBuffer.operand());
    lngrad::put_tiling(call, tiling, isReuseSource, true);
    lngrad::put(call, static_cast<int64_t>(shapeInfo.dataFormat));
    call.real = static_cast<double>(static_cast<float>(epsilon));
    lngrad::finish(call);
}

template <typename T, bool isReuseSource = false>
void LayerNormGrad(const LocalTensor<T>& outputPdX, const LocalTensor<T>& resForGamma, const LocalTensor<T>& inputDy,
                   const LocalTensor<T>& inputX, const LocalTensor<T>& inputVariance, const LocalTensor<T>& inputMean,
                   const LocalTensor<T>& inputGamma, T epsilon, LayerNormGradTiling& tiling,
                   const LayerNormGradShapeInfo& shapeInfo = {}, Where where = Where::here())
{
    lngrad::Call& call = lngrad::issue(Op::LAYER_NORM_GRAD, where);
    for (const LocalTensor<T>* tensor :
         {&outputPdX, &resForGamma, &inputDy, &inputX, &inputVariance, &inputMean, &inputGamma}) {
        lngrad::put(call, tensor->operand());
    }
    lngrad::put_tiling(call, tiling, isReuseSource, false);
    lngrad::put(call, static_cast<int64_t>(shapeInfo.dataFormat));
    call.real = static_cast<double>(static_cast<float>(epsilon));
    lngrad::finish(call);
}

template <typename T, bool isReuseSource = false>
void LayerNormGradBeta(const LocalTensor<T>& outputPdGamma, const LocalTensor<T>& outputPdBeta,
                       const LocalTensor<T>& resForGamma, const LocalTensor<T>& inputDy,
                       const LocalTensor<uint8_t>& sharedTmpBuffer, const LayerNormGradBetaTiling& tiling,
                       Where where = Where::here())
{
    lngrad::Call& call = lngrad::issue(Op::LAYER_NORM_GRAD_BETA, where);
    for (const LocalTensor<T>* tensor : {&outputPdGamma, &outputPdBeta, &resForGamma, &inputDy}) {
        lngrad::put(call, tensor->operand());
    }
    lngrad::put(call, sharedTmpBuffer.operand());
    lngrad::put_tiling(call, tiling, isReuseSource, true);
    lngrad::finish(call);
}

template <typename T, bool isReuseSource = false>
void LayerNormGradBeta(const LocalTensor<T>& outputPdGamma, const LocalTensor<T>& outputPdBeta,
                       const LocalTensor<T>& resForGamma, const LocalTensor<T>& inputDy,
                       const LayerNormGradBetaTiling& tiling, Where where = Where::here())
{
    lngrad::Call& call = lngrad::issue(Op::LAYER_NORM_GRAD_BETA, where);
    for (const LocalTensor<T>* tensor : {&outputPdGamma, &outputPdBeta, &resForGamma, &inputDy}) {
        lngrad::put(call, tensor->operand());
    }
    lngrad::put_tiling(call, tiling, isReuseSource, false);
    lngrad::finish(call);
}

template <typename T, bool isReuseSource = false>
void LayerNorm(const LocalTensor<T>& output, const LocalTensor<T>& outputMean, const LocalTensor<T>& outputVariance,
               const LocalTensor<T>& inputX, const LocalTensor<T>& gamma, const LocalTensor<T>& beta,
               const LocalTensor<uint8_t>& sharedTmpBuffer, const T epsilon, LayerNormTiling& tiling,
               Where where = Where::here())
{
    lngrad::Call& call = lngrad::issue(Op::LAYER_NORM, where);
    for (const LocalTensor<T>* tensor : {&output, &outputMean, &outputVariance, &inputX, &gamma, &beta}) {
        lngrad::put(call, tensor->operand());
    }
    lngrad::put(call, sharedTmpBuffer.operand());
    lngrad::put_tiling(call, tiling, isReuseSource, true);
    call.real = static_cast<double>(static_cast<float>(epsilon));
    lngrad::finish(call);
}

template <typename T, bool isReuseSource = false>
void LayerNorm(const LocalTensor<T>& output, const LocalTensor<T>& outputMean, const LocalTensor<T>& outputVariance,
               const LocalTensor<T>& inputX, const LocalTensor<T>& gamma, const LocalTensor<T>& beta, const T epsilon,
               LayerNormTiling& tiling, Where where = Where::here())
{
    lngrad::Call& call = lngrad::issue(Op::LAYER_NORM, where);
    for (const LocalTensor<T>* tensor : {&output, &outputMean, &outputVariance, &inputX, &gamma, &beta}) {
        lngrad::put(call, tensor->operand());
    }
    lngrad::put_tiling(call, tiling, isReuseSource, false);
    call.real = static_cast<double>(static_cast<float>(epsilon));
    lngrad::finish(call);
}

#define LNGRAD_LAYER_NORM_RSTD(buffer, ...) \
    template <typename U, typename T, bool isReuseSource = false, const LayerNormConfig& config = LNCFG_NORM> \
    void LayerNorm(const LocalTensor<T>& output, const LocalTensor<float>& outputMean, \
                   const LocalTensor<float>& outputRstd, const LocalTensor<T>& inputX, const LocalTensor<U>& gamma, \
                   const LocalTensor<U>& beta, const float epsilon, __VA_ARGS__ const LayerNormPara& para, \
                   const LayerNormSeparateTiling& tiling, Where where = Where::here()) \
    { \
        lngrad::Call& call = lngrad::issue(Op::LAYER_NORM_RSTD, where); \
        for (const lngrad::Operand& one : {output.operand(), outputMean.operand(), outputRstd.operand(), \
                                           inputX.operand(), gamma.operand(), beta.operand() buffer}) { \
            lngrad::put(call, one); \
        } \
        lngrad::put_tiling(call, tiling, isReuseSource, sizeof #buffer > 1); \
        for (int64_t value : {int64_t(para.aLength), int64_t(para.rLength), int64_t(para.rLengthWithPadding), \
                              int64_t(config.isNoBeta), int64_t(config.isNoGamma), int64_t(config.isOnlyOutput), \
                              int64_t(config.isOutputRstd)}) { \
            lngrad::put(call, value); \
        } \
        call.real = static_cast<double>(epsilon); \
        lngrad::finish(call); \
    }
#define LNGRAD_BUFFER , sharedTmpBuffer.operand()
LNGRAD_LAYER_NORM_RSTD(LNGRAD_BUFFER, const LocalTensor<uint8_t>& sharedTmpBuffer, )
LNGRAD_LAYER_NORM_RSTD(, )
#undef LNGRAD_BUFFER
#undef LNGRAD_LAYER_NORM_RSTD

} // namespace AscendC

#endif
