// The tiling functions of host programs. Python computes them, from the tables that its own functions use.
#ifndef LNGRAD_TILING_API_H
#define LNGRAD_TILING_API_H

#include <cmath>
#include <string>

#include "kernel_tiling/kernel_tiling.h"
#include "lngrad/host.h"
#include "register/tilingdata_base.h"
#include "tiling/platform/platform_ascendc.h"

// As the C11 function of this name: 0 is success.
inline int memcpy_s(void* target, std::size_t room, const void* source, std::size_t count)
{
    if (count > room) return -1;
    std::memcpy(target, source, count);
    return 0;
}

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
#undef LNGRAD_SIZES

inline void GetPowerMaxMinTmpSize(const TensorShape& srcShape1, const TensorShape& srcShape2, const bool typeIsInt,
                                  const uint32_t typeSize, const bool isReuseSource, uint32_t& maxValue,
                                  uint32_t& minValue)
{
    const bool tensors = srcShape1.GetShapeSize() > 1 && srcShape2.GetShapeSize() > 1;
    lngrad::ask_sizes("GetPowerMaxMinTmpSize", maxValue, minValue,
                      srcShape1.GetShapeSize() > 1 ? srcShape1 : srcShape2, {typeSize, isReuseSource, typeIsInt, tensors});
}
inline uint32_t GetGeluMaxTmpSize(const TensorShape& srcShape, const uint32_t typeSize)
{
    uint32_t largest, smallest;
    GetGeluMaxMinTmpSize(srcShape, typeSize, false, largest, smallest);
    return largest;
}
inline uint32_t GetGeluMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize)
{
    uint32_t largest, smallest;
    GetGeluMaxMinTmpSize(srcShape, typeSize, false, largest, smallest);
    return smallest;
}
inline void GetGeluMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize, uint32_t& maxValue, uint32_t& minValue)
{
    GetGeluMaxMinTmpSize(srcShape, typeSize, false, maxValue, minValue);
}
inline void GetSwiGLUMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize, uint32_t& maxValue,
                                   uint32_t& minValue, const bool isReuseSource)
{
    lngrad::ask_sizes("GetSwiGLUMaxMinTmpSize", maxValue, minValue, srcShape, {typeSize, isReuseSource});
}
inline void GetSiluTmpSize(const TensorShape&, const uint32_t, const bool, uint32_t& maxValue, uint32_t& minValue)
{
    maxValue = minValue = 0;
}
inline void GetSwishTmpSize(const TensorShape&, const uint32_t, const bool, uint32_t& maxValue, uint32_t& minValue)
{
    maxValue = minValue = 0;
}

// SoftMax and its like: the last number is isFront, isUpdate, or nothing.
#define LNGRAD_SOFTMAX_SIZES(Name, Parameters, first, flag) \
    inline uint32_t Get##Name##MaxTmpSize Parameters \
    { \
        uint32_t largest, smallest; \
        lngrad::ask_sizes("Get" #Name "MaxMinTmpSize", largest, smallest, srcShape, {first, flag}); \
        return largest; \
    } \
    inline uint32_t Get##Name##MinTmpSize Parameters \
    { \
        uint32_t largest, smallest; \
        lngrad::ask_sizes("Get" #Name "MaxMinTmpSize", largest, smallest, srcShape, {first, flag}); \
        return smallest; \
    }
LNGRAD_SOFTMAX_SIZES(SoftMax, (const TensorShape& srcShape, const uint32_t typeSize, const bool), typeSize, 0)
LNGRAD_SOFTMAX_SIZES(LogSoftMax, (const TensorShape& srcShape, const uint32_t typeSize, const bool), typeSize, 0)
LNGRAD_SOFTMAX_SIZES(SoftMaxGrad, (const TensorShape& srcShape, const uint32_t typeSize, const bool isFront, const bool),
                     typeSize, isFront)
#undef LNGRAD_SOFTMAX_SIZES
inline void SoftMaxTilingFunc(const TensorShape& srcShape, const uint32_t typeSize, const uint32_t workSize,
                              SoftMaxTiling& tiling)
{
    lngrad::ask_host("SoftMaxTilingFunc", &tiling, sizeof tiling, srcShape, {typeSize, workSize, 0, 0});
}
inline void LogSoftMaxTilingFunc(const TensorShape& srcShape, const uint32_t typeSize, const uint32_t workSize,
                                 LogSoftMaxTiling& tiling)
{
    SoftMaxTilingFunc(srcShape, typeSize, workSize, tiling);
}
inline void SoftMaxGradTilingFunc(const TensorShape& srcShape, const uint32_t typeSize, const uint32_t workSize,
                                  SoftMaxTiling& tiling, const bool isFront = false)
{
    lngrad::ask_host("SoftMaxTilingFunc", &tiling, sizeof tiling, srcShape, {typeSize, workSize, isFront, 1});
}
inline void GetSumMaxMinTmpSize(const uint32_t n, const uint32_t typeSize, const bool, uint32_t& maxValue, uint32_t& minValue)
{
    lngrad::ask_sizes("GetSumMaxMinTmpSize", maxValue, minValue, {}, {n, typeSize});
}
inline void GetCumSumMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize, const bool isLastAxis, const bool,
                                   uint32_t& maxValue, uint32_t& minValue)
{
    lngrad::ask_sizes("GetCumSumMaxMinTmpSize", maxValue, minValue, srcShape, {typeSize, isLastAxis});
}
inline void GetDropOutMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize, const bool, uint32_t& maxValue,
                                    uint32_t& minValue)
{
    lngrad::ask_sizes("GetDropOutMaxMinTmpSize", maxValue, minValue, srcShape, {typeSize, 0});
}
inline void GetAscendQuantMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize, uint32_t& maxValue,
                                        uint32_t& minValue)
{
    lngrad::ask_sizes("GetAscendQuantMaxMinTmpSize", maxValue, minValue, srcShape, {typeSize, 0});
}
inline void GetAscendDequantMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize, uint32_t& maxValue,
                                          uint32_t& minValue)
{
    lngrad::ask_sizes("GetAscendDequantMaxMinTmpSize", maxValue, minValue, srcShape, {typeSize});
}
template <typename DataType>
void GetAscendAntiQuantMaxMinTmpSize(const TensorShape& srcShape, const TensorShape& scaleShape, bool, DataType,
                                     DataType outputDataType, uint32_t& maxValue, uint32_t& minValue)
{
    lngrad::ask_sizes("GetAscendAntiQuantMaxMinTmpSize", maxValue, minValue, srcShape,
                      {scaleShape.GetShapeSize(), outputDataType == DataType::DT_FLOAT16});
}
inline void GetSelectMaxMinTmpSize(const TensorShape& src0Shape, const TensorShape& src1Shape, const uint32_t srcTypeSize,
                                   const TensorShape& maskShape, const uint32_t maskTypeSize, const bool isReuseMask,
                                   uint32_t& maxValue, uint32_t& minValue)
{
    const TensorShape& src = src0Shape.GetShapeSize() > 1 ? src0Shape : src1Shape;
    lngrad::ask_sizes("GetSelectMaxMinTmpSize", maxValue, minValue, src,
                      {srcTypeSize, maskTypeSize, isReuseMask, maskShape.GetDim(maskShape.GetDimNum() - 1)});
}
inline uint32_t GetSoftMaxFlashV2MinTmpSize(const TensorShape& srcShape, const uint32_t typeSize, const uint32_t typeSize2,
                                            const bool, const bool isBasicBlock = false)
{
    uint32_t largest, smallest;
    lngrad::ask_sizes("GetSoftMaxFlashV2MaxMinTmpSize", largest, smallest, srcShape, {typeSize, typeSize2, isBasicBlock});
    return smallest;
}
inline void SoftMaxFlashV2TilingFunc(const TensorShape& srcShape, const uint32_t typeSize, const uint32_t typeSize2,
                                     const uint32_t workSize, SoftMaxTiling& tiling, const bool,
                                     const bool isBasicBlock = false)
{
    lngrad::ask_host("SoftMaxFlashV2TilingFunc", &tiling, sizeof tiling, srcShape,
                     {typeSize, typeSize2, workSize, isBasicBlock});
}
inline void GetArangeMaxMinTmpSize(uint32_t& maxValue, uint32_t& minValue) { maxValue = minValue = 0; }
inline void GetArithProgressionMaxMinTmpSize(uint32_t& maxValue, uint32_t& minValue) { maxValue = minValue = 0; }

inline void GetWelfordUpdateMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSizeT, const uint32_t typeSizeU,
                                          const bool isReuseSource, const bool isInplace, uint32_t& maxValue,
                                          uint32_t& minValue)
{
    lngrad::ask_sizes("GetWelfordUpdateMaxMinTmpSize", maxValue, minValue, srcShape,
                      {typeSizeT, typeSizeU, isReuseSource, isInplace});
}
inline void GetWelfordFinalizeMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize, const bool isReuseSource,
                                            uint32_t& maxValue, uint32_t& minValue)
{
    lngrad::ask_sizes("GetWelfordFinalizeMaxMinTmpSize", maxValue, minValue, srcShape, {typeSize, isReuseSource});
}
inline void GetNormalizeMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSizeU, const uint32_t typeSizeT,
                                      const bool isReuseSource, const bool isComputeRstd, const bool isOnlyOutput,
                                      uint32_t& maxValue, uint32_t& minValue)
{
    lngrad::ask_sizes("GetNormalizeMaxMinTmpSize", maxValue, minValue, srcShape,
                      {typeSizeU, typeSizeT, isReuseSource, isComputeRstd, isOnlyOutput});
}
inline bool GetDeepNormMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize, const bool isReuseSource,
                                     const bool isBasicBlock, uint32_t& maxValue, uint32_t& minValue)
{
    lngrad::ask_sizes("GetDeepNormMaxMinTmpSize", maxValue, minValue, srcShape, {typeSize, isReuseSource, isBasicBlock});
    return true;
}
inline bool GetDeepNormTilingInfo(const TensorShape& srcShape, const TensorShape& originSrcShape,
                                  const uint32_t stackBufferSize, const uint32_t typeSize, const bool isReuseSource,
                                  const bool isBasicBlock, DeepNormTiling& tiling)
{
    lngrad::ask_host("GetDeepNormTilingInfo", &tiling, sizeof tiling, srcShape,
                     {originSrcShape.GetDim(2), stackBufferSize, typeSize, isReuseSource, isBasicBlock});
    return true;
}

inline void GetLayerNormMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize, const bool isReuseSource,
                                      uint32_t& maxValue, uint32_t& minValue)
{
    lngrad::ask_sizes("GetLayerNormMaxMinTmpSize", maxValue, minValue, srcShape, {typeSize, isReuseSource});
}
inline void GetLayerNormMaxMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize, const bool isReuseSource,
                                      const bool isComputeRstd, const bool isOnlyOutput, uint32_t& maxValue,
                                      uint32_t& minValue)
{
    lngrad::ask_sizes("GetLayerNormMaxMinTmpSize", maxValue, minValue, srcShape,
                      {typeSize, isReuseSource, isComputeRstd, isOnlyOutput});
}
inline void GetLayerNormNDTilingInfo(const TensorShape& srcShape, const uint32_t stackBufferSize, const uint32_t typeSize,
                                     const bool isReuseSource, LayerNormTiling& tiling)
{
    lngrad::ask_host("GetLayerNormNDTilingInfo", &tiling, sizeof tiling, srcShape, {stackBufferSize, typeSize, isReuseSource});
}
inline void GetLayerNormNDTilingInfo(const TensorShape& srcShape, const uint32_t stackBufferSize, const uint32_t typeSize,
                                     const bool isReuseSource, const bool isComputeRstd, LayerNormSeparateTiling& tiling)
{
    lngrad::ask_host("GetLayerNormNDTilingInfo", &tiling, sizeof tiling, srcShape,
                     {stackBufferSize, typeSize, isReuseSource, isComputeRstd});
}
inline void GetLayerNormGradNDTilingInfo(const TensorShape srcShape, const uint32_t stackBufferSize, const uint32_t typeSize,
                                         const bool isReuseSource, LayerNormGradTiling& tiling)
{
    lngrad::ask_host("GetLayerNormGradNDTilingInfo", &tiling, sizeof tiling, srcShape,
                     {stackBufferSize, typeSize, isReuseSource});
}
inline void GetLayerNormGradBetaNDTilingInfo(const TensorShape srcShape, const uint32_t stackBufferSize,
                                             const uint32_t typeSize, const bool isReuseSource,
                                             LayerNormGradBetaTiling& tiling)
{
    lngrad::ask_host("GetLayerNormGradBetaNDTilingInfo", &tiling, sizeof tiling, srcShape,
                     {stackBufferSize, typeSize, isReuseSource});
}

} // namespace AscendC

#endif
