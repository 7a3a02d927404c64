// Macros, enumerators and parameter structs with CANN's names and numbers.
#ifndef LNGRAD_TYPES_H
#define LNGRAD_TYPES_H

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "lngrad/scalar.h"

// Of scalars, as the device's compiler has them.
template <typename A, typename B, typename C = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, std::common_type_t<A, B>>>
constexpr C min(A a, B b) { return C(b) < C(a) ? C(b) : C(a); }
template <typename A, typename B, typename C = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, std::common_type_t<A, B>>>
constexpr C max(A a, B b) { return C(a) < C(b) ? C(b) : C(a); }

#define __aicore__
#define __inout_pipe__(pipe)
#define __global__
#define __gm__
#define __ubuf__
#define __vector__
#define __cube__
#define __mix__(cube, vector)
#define likely(condition) __builtin_expect(!!(condition), 1)
#define unlikely(condition) __builtin_expect(!!(condition), 0)
#define GM_ADDR __gm__ uint8_t*

#define KERNEL_TASK_TYPE(key, type)
#define KERNEL_TASK_TYPE_DEFAULT(type)
#define ENABLE_DETERMINISTIC()

using float16_t = half;
using float32_t = float;

enum event_t { EVENT_ID0 = 0, EVENT_ID1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5, EVENT_ID6, EVENT_ID7 };

namespace AscendC {

using lngrad::Where;
using ::bfloat16_t, ::half, ::int4b_t;

enum class TPosition : uint8_t {
    GM = 0, A1, A2, B1, B2, C1, C2, CO1, CO2, VECIN, VECOUT, VECCALC, LCM = VECCALC, SPM, SHM = SPM, TSCM,
    C2PIPE2GM, C2PIPE2LOCAL, MAX,
};
using QuePosition = TPosition;

enum class RoundMode : uint8_t {
    CAST_NONE = 0, CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC, CAST_ODD, CAST_HYBRID, UNKNOWN = 0xFF,
};

enum class CMPMODE : uint8_t { LT = 0, GT, EQ, LE, GE, NE };
enum class SELMODE : uint8_t { VSEL_CMPMASK_SPR = 0, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };
enum class MaskMode : uint8_t { NORMAL = 0, COUNTER };
enum class ReduceType : uint8_t { SUM = 0, MAX, MIN };
enum class ReduceOrder : uint8_t { ORDER_VALUE_INDEX = 0, ORDER_INDEX_VALUE, ORDER_ONLY_VALUE, ORDER_ONLY_INDEX };
enum class Hardware : uint8_t { GM = 0, UB, L1, L0A, L0B, L0C, BIAS, FIXBUF, MAX };
enum class MemDsbT : uint8_t { ALL = 0, DDR, UB, SEQ };
enum class CacheLine : uint64_t { SINGLE_CACHE_LINE = 0, ENTIRE_DATA_CACHE };
enum class DcciDst : uint64_t { CACHELINE_ALL = 0, CACHELINE_UB, CACHELINE_OUT, CACHELINE_ATOMIC };
enum class DataFormat : uint8_t { ND = 0, NZ, NCHW, NC1HWC0, NHWC, NCDHW, NDC1HWC0, FRACTAL_Z_3D };
#ifndef K_MAX_SHAPE_DIM // kernels set it ahead of the header
constexpr int32_t K_MAX_SHAPE_DIM = 8;
#endif
// What a tensor's memory means: of library functions that have no other place for it.
struct ShapeInfo {
    uint8_t shapeDim = 0;
    uint32_t shape[8] = {};
    uint8_t originalShapeDim = 0;
    uint32_t originalShape[8] = {};
    DataFormat dataFormat = DataFormat::ND;
    ShapeInfo() = default;
    ShapeInfo(uint8_t dim, const uint32_t* sizes, DataFormat format = DataFormat::ND) : ShapeInfo(dim, sizes, dim, sizes, format) {}
    ShapeInfo(uint8_t dim, const uint32_t* sizes, uint8_t originalDim, const uint32_t* originalSizes, DataFormat format)
        : shapeDim(dim), originalShapeDim(originalDim), dataFormat(format)
    {
        for (int i = 0; i < dim; ++i) shape[i] = sizes[i];
        for (int i = 0; i < originalDim; ++i) originalShape[i] = originalSizes[i];
    }
};
enum class KernelMode : uint8_t { MIX_MODE = 0, AIC_MODE, AIV_MODE, MIX_AIC_1_1 };
enum class PaddingMode : uint8_t { Normal = 0, Compact };
enum class CacheMode : uint8_t { CACHE_MODE_NORMAL = 0, CACHE_MODE_DISABLE };

using TEventID = int8_t;
constexpr TEventID INVALID_TEVENTID = -1;

constexpr uint32_t ONE_BLK_SIZE = 32;
constexpr uint32_t DEFAULT_C0_SIZE = 32;
constexpr uint32_t ONE_REPEAT_BYTE_SIZE = 256;
constexpr uint32_t MAX_REPEAT_TIMES = 255;
constexpr uint32_t DEFAULT_BLK_NUM = 8;
constexpr uint8_t DEFAULT_BLK_STRIDE = 1;
constexpr uint8_t DEFAULT_REPEAT_STRIDE = 8;
constexpr uint8_t HALF_DEFAULT_REPEAT_STRIDE = 4;
constexpr uint64_t MASK_PLACEHOLDER = 0;
constexpr uint64_t MASK_PLACEHOLDER_LIST[2] = {0, 0};
constexpr uint64_t FULL_MASK = ~uint64_t(0);
constexpr int32_t ONE_BLK_FLOAT_NUM = 8;
constexpr int32_t ONE_BLK_HALF_NUM = 16;
constexpr int32_t ONE_REPEAT_FLOAT_SIZE = 64;
constexpr int32_t ONE_REPEAT_HALF_SIZE = 128;
constexpr int32_t ONE_BYTE_BIT_SIZE = 8;
constexpr int32_t BYTE_PER_REPEAT = 256;
constexpr int32_t B32_DATA_NUM_PER_BLOCK = 8;
constexpr int32_t B16_DATA_NUM_PER_BLOCK = 16;
constexpr int32_t B32_BYTE_SIZE = 4;
constexpr int32_t B16_BYTE_SIZE = 2;
constexpr int32_t B32_DATA_NUM_PER_REPEAT = 64;
constexpr int32_t B16_DATA_NUM_PER_REPEAT = 128;
constexpr uint16_t DEFAULT_DATA_COPY_NBURST = 1;
constexpr uint8_t DEFAULT_DATA_COPY_STRIDE = 0;
constexpr uint16_t SYNC_AIV_FLAG = 12;
constexpr uint16_t SYNC_AIV_ONLY_ALL = 14;
constexpr int32_t NCHW_CONV_ADDR_LIST_SIZE = 16;

constexpr int32_t AIV = 2;
constexpr int32_t AIC = 1;
constexpr int32_t g_coreType = AIV;

template <typename T, typename U>
struct IsSameType : std::is_same<T, U> {};

template <bool condition, typename T, typename U>
struct Conditional : std::conditional<condition, T, U> {};

namespace Std {
using std::add_const_t, std::add_pointer_t, std::conditional, std::decay_t, std::enable_if, std::is_array, std::is_base_of;
using std::is_const, std::is_floating_point, std::is_function, std::is_integral, std::is_lvalue_reference, std::is_pointer;
using std::is_reference, std::is_rvalue_reference, std::is_void, std::remove_const, std::remove_const_t, std::remove_cv;
using std::remove_cv_t, std::remove_pointer, std::remove_pointer_t, std::remove_reference;
using std::remove_reference_t, std::remove_volatile, std::remove_volatile_t, std::add_const, std::add_cv, std::decay;
using std::add_volatile_t, std::add_cv_t, std::add_lvalue_reference_t, std::add_rvalue_reference_t;
using std::add_lvalue_reference, std::add_pointer, std::add_rvalue_reference, std::add_volatile, std::move, std::forward;
using std::conditional_t, std::enable_if_t, std::integral_constant, std::is_convertible, std::is_same, std::is_same_v;
using std::false_type, std::true_type, std::tuple, std::get, std::make_tuple, std::integer_sequence, std::max, std::min;
} // namespace Std

enum { BRCB_BROADCAST_NUMBER = 8 }; // elements that a repeat of Brcb spreads

// A field of 16 bits that keeps what it was given, so that what does not fit is told.
struct Short {
    int64_t given = 0;
    template <typename N, std::enable_if_t<std::is_convertible_v<N, int64_t> && !std::is_same_v<N, Short>, int> = 0>
    constexpr Short(N value) : given(static_cast<int64_t>(value)) {}
    constexpr operator uint16_t() const { return static_cast<uint16_t>(given); }
    constexpr Short& operator+=(int64_t n) { return *this = Short(given + n); }
    constexpr Short& operator-=(int64_t n) { return *this = Short(given - n); }
    constexpr Short& operator*=(int64_t n) { return *this = Short(given * n); }
};
inline void put(lngrad::Call& call, const Short& value) { lngrad::put(call, value.given); }

struct DataCopyParams {
    Short blockCount = 1;
    Short blockLen = 0;
    union {
        uint16_t srcStride, srcGap;
    };
    union {
        uint16_t dstStride, dstGap;
    };
    DataCopyParams(Short count = 1, Short length = 0, uint16_t source = 0, uint16_t target = 0)
        : blockCount(count), blockLen(length), srcStride(source), dstStride(target) {}
};

#if __NPU_ARCH__ == 3510
using CopyGap = int64_t;
#else
using CopyGap = uint32_t;
#endif
struct DataCopyExtParams {
    Short blockCount = 1;
    uint32_t blockLen = 0;
    CopyGap srcStride = 0, dstStride = 0;
    uint32_t rsv = 0;
    DataCopyExtParams() = default;
    DataCopyExtParams(Short count, uint32_t length, CopyGap source, CopyGap target, uint32_t reserved)
        : blockCount(count), blockLen(length), srcStride(source), dstStride(target), rsv(reserved) {}
};

template <typename T>
struct DataCopyPadExtParams {
    bool isPad = false;
    uint8_t leftPadding = 0, rightPadding = 0;
    T paddingValue = T(0);
    DataCopyPadExtParams() = default;
    DataCopyPadExtParams(bool pad, uint8_t left, uint8_t right, T value)
        : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
};

struct DataCopyPadParams : DataCopyPadExtParams<uint64_t> { // the older form, with the value's bits
    using DataCopyPadExtParams::DataCopyPadExtParams;
};

// Copies of Ascend 950: two loops around those of a path, and NDDMA with up to five, the innermost first.
enum class DataCopyMVType : uint8_t { UB_TO_OUT = 0, OUT_TO_UB };
struct LoopModeParams {
    uint32_t loop1Size = 0, loop2Size = 0;
    uint64_t loop1SrcStride = 0, loop1DstStride = 0, loop2SrcStride = 0, loop2DstStride = 0;
};
template <uint8_t dim>
struct NdDmaLoopInfo {
    static_assert(0 < dim && dim <= 5, "NDDMA has 1 to 5 dimensions");
    uint64_t loopSrcStride[dim] = {};
    uint32_t loopDstStride[dim] = {}, loopSize[dim] = {};
    uint8_t loopLpSize[dim] = {}, loopRpSize[dim] = {};
};
template <typename T, uint8_t dim>
struct NdDmaParams { NdDmaLoopInfo<dim> loopInfo; T constantValue; };
struct NdDmaConfig {
    static constexpr uint16_t unsetPad = 0xffff;
    bool isNearestValueMode = false;
    uint16_t loopLpSize = unsetPad, loopRpSize = unsetPad;
    bool ascOptimize = false;
};
inline constexpr NdDmaConfig kDefaultNdDmaConfig = {}; using MultiCopyConfig = NdDmaConfig;
template <uint8_t dim> using MultiCopyLoopInfo = NdDmaLoopInfo<dim>; // the older names
template <typename T, uint8_t dim> using MultiCopyParams = NdDmaParams<T, dim>;

struct CopyRepeatParams {
    uint16_t dstStride = 0, srcStride = 0, dstRepeatSize = 8, srcRepeatSize = 8;
    CopyRepeatParams() = default;
    CopyRepeatParams(uint16_t target, uint16_t source, uint16_t target_repeat, uint16_t source_repeat)
        : dstStride(target), srcStride(source), dstRepeatSize(target_repeat), srcRepeatSize(source_repeat) {}
};

// The forms with a mask are also called through plain function pointers, so the place of the call
// can't be an argument of theirs: it comes with the repeat parameters, which are made where they are passed.
struct BinaryRepeatParams {
    uint32_t blockNumber = DEFAULT_BLK_NUM;
    uint8_t dstBlkStride = 1, src0BlkStride = 1, src1BlkStride = 1, dstRepStride = 8, src0RepStride = 8;
    uint8_t src1RepStride = 8;
    bool repeatStrideMode = false, strideSizeMode = false;
    Where where;
    BinaryRepeatParams(Where place = Where::here()) : where(place) {}
    BinaryRepeatParams(uint8_t target, uint8_t source0, uint8_t source1, uint8_t target_repeat, uint8_t source0_repeat,
                       uint8_t source1_repeat, Where place = Where::here())
        : dstBlkStride(target), src0BlkStride(source0), src1BlkStride(source1), dstRepStride(target_repeat),
          src0RepStride(source0_repeat), src1RepStride(source1_repeat), where(place) {}
};

struct UnaryRepeatParams {
    uint32_t blockNumber = DEFAULT_BLK_NUM;
    uint16_t dstBlkStride = 1, srcBlkStride = 1;
    uint8_t dstRepStride = 8, srcRepStride = 8;
    bool halfBlock = false;
    UnaryRepeatParams() = default;
    UnaryRepeatParams(uint16_t target, uint16_t source, uint8_t target_repeat, uint8_t source_repeat, bool half = false)
        : dstBlkStride(target), srcBlkStride(source), dstRepStride(target_repeat), srcRepStride(source_repeat),
          halfBlock(half) {}
};

struct BrcbRepeatParams {
    uint16_t dstBlkStride = 1, dstRepStride = 8;
    BrcbRepeatParams() = default;
    BrcbRepeatParams(uint16_t target, uint16_t target_repeat) : dstBlkStride(target), dstRepStride(target_repeat) {}
};

struct TransDataTo5HDParams {
    bool dstHighHalf = false, srcHighHalf = false;
    uint8_t repeatTimes = 1;
    uint16_t dstRepStride = 0, srcRepStride = 0;
    TransDataTo5HDParams() = default;
    TransDataTo5HDParams(bool target_high, bool source_high, uint8_t repeats, uint16_t target, uint16_t source)
        : dstHighHalf(target_high), srcHighHalf(source_high), repeatTimes(repeats), dstRepStride(target),
          srcRepStride(source) {}
};

struct GatherRepeatParams {
    uint8_t dstBlkStride = 1, dstRepStride = 8;
};

enum class TransposeType : uint8_t {
    TRANSPOSE_TYPE_NONE = 0, TRANSPOSE_NZ2ND_0213, TRANSPOSE_NZ2NZ_0213, TRANSPOSE_NZ2NZ_012_WITH_N,
    TRANSPOSE_NZ2ND_012_WITH_N, TRANSPOSE_NZ2ND_012_WITHOUT_N, TRANSPOSE_NZ2NZ_012_WITHOUT_N, TRANSPOSE_ND2ND_ONLY,
    TRANSPOSE_ND_UB_GM, TRANSPOSE_GRAD_ND_UB_GM, TRANSPOSE_ND2ND_B16, TRANSPOSE_NCHW2NHWC, TRANSPOSE_NHWC2NCHW,
};
struct TransposeParamsExt {
    uint16_t nSize = 0, cSize = 0, hSize = 0, wSize = 0;
    TransposeType transposeType = TransposeType::TRANSPOSE_ND2ND_B16;
};

enum class GatherMaskMode : uint8_t { VERSION_V1 = 0, VERSION_V2 };

struct GatherMaskParams {
    uint8_t src0BlockStride = 1;
    uint16_t repeatTimes = 0, src0RepeatStride = 0;
    uint8_t src1RepeatStride = 0;
    GatherMaskParams() = default;
    GatherMaskParams(uint8_t block, uint16_t repeats, uint16_t source, uint8_t pattern)
        : src0BlockStride(block), repeatTimes(repeats), src0RepeatStride(source), src1RepeatStride(pattern) {}
};

struct TQueConfig {
    bool nd2nz = false, nz2nd = false, scmBlockGroup = false;
    uint32_t bufferLen = 0, bufferNumber = 0, consumerSize = 0;
    TPosition consumer[8] = {};
    bool enableStaticEvtId = false, enableLoopQueue = false;
};

struct SyncAllConfig {
    pipe_t triggerPipe = PIPE_ALL;
    pipe_t waitPipe = PIPE_ALL;
};
constexpr SyncAllConfig DEFAULT_SYNC_ALL_CONFIG = {PIPE_ALL, PIPE_ALL};

struct LayerNormGradShapeInfo {
    DataFormat dataFormat = DataFormat::ND;
};

} // namespace AscendC

#define ASCEND_IS_AIC constexpr(AscendC::g_coreType == AscendC::AIC)
#define ASCEND_IS_AIV constexpr(AscendC::g_coreType == AscendC::AIV)

#endif
