// The tiling functions of host programs. Python computes them, from the tables that its own functions use.
#ifndef LNGRAD_TILING_API_H
#define LNGRAD_TILING_API_H

#include <cmath>
#include <string>

#include "register/tilingdata_base.h"
#include "kernel_tiling/kernel_tiling.h"
#include "lngrad/host.h"
#include "securec.h"
#include "tiling/platform/platform_ascendc.h"

namespace optiling {
using namespace AscendC::tiling;
}

namespace AscendC {

// Of the mathematical functions: a shape, the bytes of a type, isReuseSource; 950's take the platform first.
#define LNGRAD_SIZES(Name) \
    inline void Get##Name##MaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize, const bool isReuseSource, \
                                         uint32_t& maxValue, uint32_t& minValue) \
    { \
        lngrad::ask_sizes("Get" #Name "MaxMinTmpSize", maxValue, minValue, srcShape, {typeSize, isReuseSource}); \
    } \
    inline void Get##Name##MaxMinTmpSize(const platform_ascendc::PlatformAscendC&, const TensorShape& srcShape, \
                                         const uint32_t typeSize, const bool isReuseSource, uint32_t& maxValue, \
                                         uint32_t& minValue) \
    { \
        Get##Name##MaxMinTmpSize(srcShape, typeSize, isReuseSource, maxValue, minValue); \
    } \
    inline void Get##Name##TmpBufferFactorSize(const uint32_t typeSize, uint32_t& maxLiveNodeCount, uint32_t& extraBuf) \
    { \
        lngrad::ask_sizes("Get" #Name "TmpBufferFactorSize", maxLiveNodeCount, extraBuf, {}, {typeSize}); \
    }
LNGRAD_MATH_INSTRUCTIONS(LNGRAD_SIZES)
LNGRAD_MATH_BINARY_INSTRUCTIONS(LNGRAD_SIZES)
LNGRAD_SIZES(Exp)
LNGRAD_SIZES(Axpy)
LNGRAD_SIZES(Clamp)
LNGRAD_SIZES(Fma)
LNGRAD_SIZES(LayerNormGrad)
LNGRAD_SIZES(LayerNormGradBeta)
// A function by its name in Python: its parameters, a shape and numbers. Sizes are the largest and the smallest buffer.
#define LNGRAD_ASK_SIZES(Name, Parameters, shape, ...) \
    inline void Get##Name##MaxMinTmpSize(LNGRAD_LIST Parameters, uint32_t& maxValue, uint32_t& minValue) \
    { \
        lngrad::ask_sizes("Get" #Name "MaxMinTmpSize", maxValue, minValue, shape, {__VA_ARGS__}); \
    }
#define LNGRAD_ASK_ONE_SIZE(Function, Name, which, Parameters, ...) \
    inline uint32_t Function Parameters \
    { \
        uint32_t largest, smallest; \
        lngrad::ask_sizes("Get" #Name "MaxMinTmpSize", largest, smallest, srcShape, {__VA_ARGS__}); \
        return which; \
    }
#define LNGRAD_ASK_TILING(Function, api, Parameters, ...) \
    inline bool Function Parameters \
    { \
        lngrad::ask_host(api, &tiling, sizeof tiling, srcShape, {__VA_ARGS__}); \
        return true; \
    }
LNGRAD_ASK_SIZES(Power, (const TensorShape& srcShape1, const TensorShape& srcShape2, const bool typeIsInt, const uint32_t typeSize, const bool isReuseSource),
                 srcShape1.GetShapeSize() > 1 ? srcShape1 : srcShape2, typeSize, isReuseSource, typeIsInt,
                 srcShape1.GetShapeSize() > 1 && srcShape2.GetShapeSize() > 1)
LNGRAD_ASK_ONE_SIZE(GetGeluMaxTmpSize, Gelu, largest, (const TensorShape& srcShape, const uint32_t typeSize), typeSize, false)
LNGRAD_ASK_ONE_SIZE(GetGeluMinTmpSize, Gelu, smallest, (const TensorShape& srcShape, const uint32_t typeSize), typeSize, false)
LNGRAD_ASK_SIZES(Gelu, (const TensorShape& srcShape, const uint32_t typeSize), srcShape, typeSize, false)
inline void GetSwiGLUMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize, uint32_t& maxValue,
                                   uint32_t& minValue, const bool isReuseSource)
{
    lngrad::ask_sizes("GetSwiGLUMaxMinTmpSize", maxValue, minValue, srcShape, {typeSize, isReuseSource});
}
#define LNGRAD_NO_BUFFER(Function, ...) \
    inline void Function(__VA_ARGS__ uint32_t& maxValue, uint32_t& minValue) { maxValue = minValue = 0; }
LNGRAD_NO_BUFFER(GetSiluTmpSize, const TensorShape&, const uint32_t, const bool, )
LNGRAD_NO_BUFFER(GetSwishTmpSize, const TensorShape&, const uint32_t, const bool, )
LNGRAD_NO_BUFFER(GetArangeMaxMinTmpSize, )
LNGRAD_NO_BUFFER(GetArithProgressionMaxMinTmpSize, )

// SoftMax and its like: the last number is isFront, isUpdate, or nothing.
#define LNGRAD_SOFTMAX_SIZES(Name, Parameters, flag) \
    LNGRAD_ASK_ONE_SIZE(Get##Name##MaxTmpSize, Name, largest, Parameters, typeSize, flag) \
    LNGRAD_ASK_ONE_SIZE(Get##Name##MinTmpSize, Name, smallest, Parameters, typeSize, flag)
LNGRAD_SOFTMAX_SIZES(SoftMax, (const TensorShape& srcShape, const uint32_t typeSize, const bool), 0)
LNGRAD_SOFTMAX_SIZES(LogSoftMax, (const TensorShape& srcShape, const uint32_t typeSize, const bool), 0)
LNGRAD_SOFTMAX_SIZES(SoftMaxGrad, (const TensorShape& srcShape, const uint32_t typeSize, const bool isFront, const bool), isFront)
LNGRAD_ASK_TILING(SoftMaxTilingFunc, "SoftMaxTilingFunc",
                  (const TensorShape& srcShape, const uint32_t typeSize, const uint32_t workSize, SoftMaxTiling& tiling), typeSize, workSize, 0, 0)
LNGRAD_ASK_TILING(LogSoftMaxTilingFunc, "SoftMaxTilingFunc",
                  (const TensorShape& srcShape, const uint32_t typeSize, const uint32_t workSize, LogSoftMaxTiling& tiling), typeSize, workSize, 0, 0)
LNGRAD_ASK_TILING(SoftMaxGradTilingFunc, "SoftMaxTilingFunc",
                  (const TensorShape& srcShape, const uint32_t typeSize, const uint32_t workSize, SoftMaxTiling& tiling, const bool isFront = false),
                  typeSize, workSize, isFront, 1)
LNGRAD_ASK_ONE_SIZE(GetSoftMaxFlashV2MinTmpSize, SoftMaxFlashV2, smallest,
                    (const TensorShape& srcShape, const uint32_t typeSize, const uint32_t typeSize2, const bool, const bool isBasicBlock = false),
                    typeSize, typeSize2, isBasicBlock)
LNGRAD_ASK_TILING(SoftMaxFlashV2TilingFunc, "SoftMaxFlashV2TilingFunc",
                  (const TensorShape& srcShape, const uint32_t typeSize, const uint32_t typeSize2, const uint32_t workSize, SoftMaxTiling& tiling,
                   const bool, const bool isBasicBlock = false), typeSize, typeSize2, workSize, isBasicBlock)

LNGRAD_ASK_SIZES(Sum, (const uint32_t n, const uint32_t typeSize, const bool), {}, n, typeSize)
LNGRAD_ASK_SIZES(CumSum, (const TensorShape& srcShape, const uint32_t typeSize, const bool isLastAxis, const bool), srcShape, typeSize, isLastAxis)
LNGRAD_ASK_SIZES(DropOut, (const TensorShape& srcShape, const uint32_t typeSize, const bool), srcShape, typeSize, 0)
LNGRAD_ASK_SIZES(AscendQuant, (const TensorShape& srcShape, const uint32_t typeSize), srcShape, typeSize, 0)
LNGRAD_ASK_SIZES(AscendDequant, (const TensorShape& srcShape, const uint32_t typeSize), srcShape, typeSize)
template <typename DataType>
void GetAscendAntiQuantMaxMinTmpSize(const TensorShape& srcShape, const TensorShape& scaleShape, bool, DataType,
                                     DataType outputDataType, uint32_t& maxValue, uint32_t& minValue)
{
    lngrad::ask_sizes("GetAscendAntiQuantMaxMinTmpSize", maxValue, minValue, srcShape,
                      {scaleShape.GetShapeSize(), int(outputDataType) == 1});
}
LNGRAD_ASK_SIZES(Select,
                 (const TensorShape& src0Shape, const TensorShape& src1Shape, const uint32_t srcTypeSize, const TensorShape& maskShape,
                  const uint32_t maskTypeSize, const bool isReuseMask),
                 src0Shape.GetShapeSize() > 1 ? src0Shape : src1Shape, srcTypeSize, maskTypeSize, isReuseMask,
                 maskShape.GetDim(maskShape.GetDimNum() - 1))
LNGRAD_ASK_SIZES(WelfordUpdate,
                 (const TensorShape& srcShape, const uint32_t typeSizeT, const uint32_t typeSizeU, const bool isReuseSource, const bool isInplace),
                 srcShape, typeSizeT, typeSizeU, isReuseSource, isInplace)
LNGRAD_ASK_SIZES(WelfordFinalize, (const TensorShape& srcShape, const uint32_t typeSize, const bool isReuseSource), srcShape, typeSize, isReuseSource)
LNGRAD_ASK_SIZES(Normalize,
                 (const TensorShape& srcShape, const uint32_t typeSizeU, const uint32_t typeSizeT, const bool isReuseSource,
                  const bool isComputeRstd, const bool isOnlyOutput),
                 srcShape, typeSizeU, typeSizeT, isReuseSource, isComputeRstd, isOnlyOutput)
inline bool GetDeepNormMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize, const bool isReuseSource,
                                     const bool isBasicBlock, uint32_t& maxValue, uint32_t& minValue)
{
    lngrad::ask_sizes("GetDeepNormMaxMinTmpSize", maxValue, minValue, srcShape, {typeSize, isReuseSource, isBasicBlock});
    return true;
}
LNGRAD_ASK_TILING(GetDeepNormTilingInfo, "GetDeepNormTilingInfo",
                  (const TensorShape& srcShape, const TensorShape& originSrcShape, const uint32_t stackBufferSize, const uint32_t typeSize,
                   const bool isReuseSource, const bool isBasicBlock, DeepNormTiling& tiling),
                  originSrcShape.GetDim(2), stackBufferSize, typeSize, isReuseSource, isBasicBlock)

LNGRAD_ASK_SIZES(LayerNorm, (const TensorShape& srcShape, const uint32_t typeSize, const bool isReuseSource), srcShape, typeSize, isReuseSource)
LNGRAD_ASK_SIZES(LayerNorm,
                 (const TensorShape& srcShape, const uint32_t typeSize, const bool isReuseSource, const bool isComputeRstd, const bool isOnlyOutput),
                 srcShape, typeSize, isReuseSource, isComputeRstd, isOnlyOutput)
#define LNGRAD_ND_TILING(Name, Tiling) \
    LNGRAD_ASK_TILING(Name, #Name, \
                      (const TensorShape& srcShape, const uint32_t stackBufferSize, const uint32_t typeSize, const bool isReuseSource, \
                       Tiling& tiling), stackBufferSize, typeSize, isReuseSource)
LNGRAD_ND_TILING(GetLayerNormNDTilingInfo, LayerNormTiling)
LNGRAD_ND_TILING(GetLayerNormGradNDTilingInfo, LayerNormGradTiling)
LNGRAD_ND_TILING(GetLayerNormGradBetaNDTilingInfo, LayerNormGradBetaTiling)
LNGRAD_ASK_TILING(GetLayerNormNDTilingInfo, "GetLayerNormNDTilingInfo",
                  (const TensorShape& srcShape, const uint32_t stackBufferSize, const uint32_t typeSize, const bool isReuseSource,
                   const bool isComputeRstd, LayerNormSeparateTiling& tiling), stackBufferSize, typeSize, isReuseSource, isComputeRstd)

} // namespace AscendC

#endif
