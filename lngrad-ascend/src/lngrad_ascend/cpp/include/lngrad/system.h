// What a kernel asks of the launch: its block, its tiling, its workspace.
#ifndef LNGRAD_SYSTEM_H
#define LNGRAD_SYSTEM_H

#include <cassert>
#include <cmath>
#include <cstdio>

#include "lngrad/sync.h"

namespace AscendC {

inline int64_t GetBlockIdx(Where where = Where::here()) { return lngrad::perform(Op::BLOCK_IDX, where).result; }
inline int64_t GetBlockNum(Where where = Where::here()) { return lngrad::perform(Op::BLOCK_NUM, where).result; }
inline int64_t GetSubBlockIdx() { return 0; }
inline int64_t GetSubBlockNum() { return 1; }
inline int64_t GetTaskRation() { return 1; }

inline GM_ADDR GetUserWorkspace(GM_ADDR workspace, Where where = Where::here())
{
    return reinterpret_cast<GM_ADDR>(lngrad::perform(Op::USER_WORKSPACE, where, reinterpret_cast<intptr_t>(workspace)).result);
}
inline void SetSysWorkspace(GM_ADDR) {}

// What a device has to be told and the simulator does not: the state of the chip, caches, hints.
inline void InitSocState() {}
template <MemDsbT what>
void DataSyncBarrier() {}
inline int64_t GetSystemCycle() { return 0; } // instructions take no time here
template <typename T>
void Fill(GlobalTensor<T> memory, uint64_t size, T value, Where where = Where::here())
{
    InitOutput(memory, static_cast<uint32_t>(size), value, where);
}
template <typename T>
void InitGlobalMemory(GlobalTensor<T>& memory, const uint64_t size, const T value, Where where = Where::here())
{
    Fill(memory, size, value, where);
}
inline void Trap() { __builtin_trap(); }
template <typename T, CacheLine line, DcciDst target = DcciDst::CACHELINE_ALL>
void DataCacheCleanAndInvalid(const GlobalTensor<T>& dst, Where where = Where::here())
{
    lngrad::perform(Op::CACHE_CLEAN, where, dst, line);
}
template <typename T, CacheLine line, DcciDst target = DcciDst::CACHELINE_ALL>
void DataCacheCleanAndInvalid(const LocalTensor<T>&) {}
template <typename T>
void DataCachePreload(const GlobalTensor<T>&, int64_t) {}
inline void ICachePreLoad(int64_t) {}
inline void SetHF32Mode(bool) {}
template <typename T>
T ReadGmByPassDCache(__gm__ T* address, Where where = Where::here())
{
    return memory_at(address).GetValue(0, where);
}
template <typename T>
void WriteGmByPassDCache(__gm__ T* address, T value, Where where = Where::here())
{
    GlobalTensor<T> memory = memory_at(address);
    memory.SetValue(0, value, where);
    lngrad::perform(Op::CACHE_CLEAN, where, memory, 2); // past the cache
}

template <typename T>
T AtomicAdd(__gm__ T* address, T value, Where where = Where::here())
{
    return lngrad::scalar_of<T>(lngrad::perform_with(Op::SCALAR_ATOMIC, where, lngrad::real(value), memory_at(address), 0, int64_t(value)));
}
template <typename T>
T AtomicCas(__gm__ T* address, T expected, T value, Where where = Where::here())
{
    return lngrad::scalar_of<T>(lngrad::perform(Op::SCALAR_ATOMIC, where, memory_at(address), 1, int64_t(expected), int64_t(value)));
}
inline uint64_t GetUBSizeInBytes(Where where = Where::here()) { return lngrad::perform(Op::UB_BYTES, where).result; }
inline uint64_t GetRuntimeUBSize(Where where = Where::here()) { return lngrad::perform(Op::UB_BYTES, where).result; }
constexpr uint32_t GetDataBlockSizeInBytes() { return ONE_BLK_SIZE; }

// Bits of the control register. But for Cast of registers they change no result: what is too large is infinity here, in either mode.
template <int8_t first, int8_t last>
constexpr uint64_t control_bits = (~uint64_t(0) >> (63 - (last - first))) << first;
template <int8_t first, int8_t last>
void SetCtrlSpr(int64_t value, Where where = Where::here())
{
    lngrad::control.chosen |= control_bits<first, last>;
    lngrad::control.bits &= ~control_bits<first, last>;
    lngrad::control.bits |= (uint64_t(value) << first) & control_bits<first, last>;
#if __NPU_ARCH__ == 3510
    lngrad::perform(Op::VECTOR_RULE, where, lngrad::Rule::CONTROL, reinterpret_cast<intptr_t>("SetCtrlSpr"), lngrad::control.bits);
#endif
}
template <int8_t first, int8_t last>
int64_t GetCtrlSpr() { return int64_t((lngrad::control.bits & control_bits<first, last>) >> first); }
template <int8_t first, int8_t last>
void ResetCtrlSpr(Where where = Where::here()) { SetCtrlSpr<first, last>(0, where); }

// Tensors whose addresses the host has put one behind the other: first how far away they are, then a shape of each.
template <class T>
class TensorDesc {
public:
    void SetShapeAddr(uint64_t* shape) { shape_ = shape; } uint64_t GetDim() { return dim_; }
    uint64_t GetIndex() { return index_; } uint64_t GetShape(uint32_t axis) { return shape_[axis]; }
    __gm__ T* GetDataPtr() { return data_; } GlobalTensor<T> GetDataObj() { return memory_at(data_); }

private:
    friend class ListTensorDesc;
    uint64_t dim_ = 0, index_ = 0, *shape_ = nullptr;
    __gm__ T* data_ = nullptr;
};
class ListTensorDesc {
public:
    ListTensorDesc() = default;
    ListTensorDesc(__gm__ void* data, uint32_t = 0, uint32_t = 0) { Init(data); }
    void Init(__gm__ void* data, uint32_t = 0, uint32_t = 0)
    {
        shapes_ = reinterpret_cast<__gm__ uint64_t*>(data) + 1;
        data_ = shapes_ - 1 + shapes_[-1] / sizeof(uint64_t);
        dim_ = shapes_[0] & 0xffffffff;
        size_ = dim_ == 0 ? 2 : 1 + dim_;
        count_ = (shapes_[0] >> 32) != 0 ? shapes_[0] >> 32 : (*(data_ - size_) >> 32) + 1;
    }
    template <class T>
    void GetDesc(TensorDesc<T>& desc, uint32_t index)
    {
        desc.dim_ = dim_, desc.index_ = index, desc.data_ = GetDataPtr<T>(index);
        std::copy_n(shapes_ + index * size_ + 1, dim_, desc.shape_);
    }
    template <class T>
    __gm__ T* GetDataPtr(uint32_t index) { return reinterpret_cast<__gm__ T*>(data_[index]); }
    uint32_t GetSize() { return count_; }

private:
    __gm__ uint64_t *shapes_ = nullptr, *data_ = nullptr;
    uint64_t dim_ = 0, size_ = 0, count_ = 0;
};

class AscendCUtils {
public:
    static int32_t GetBitSize(int32_t bytes) { return bytes * ONE_BYTE_BIT_SIZE; }
    static void SetOverflow(uint64_t) {} // what is too large is infinity here, in either mode
    static int64_t GetRsvdCnt() { return gathered; } static int32_t GetC0Size() { return DEFAULT_C0_SIZE; }
    static int32_t GetC0Count(const int32_t bytes) { return GetC0Size() / bytes; }
    static int32_t GetDefaultBlockNum() { return DEFAULT_BLK_NUM; }
    template <typename T, bool isSetMask = true>
    static void SetMask(const uint64_t& high, const uint64_t& low) { if (isSetMask) SetVectorMask<T>(high, low); }
    template <typename T, bool isSetMask = true>
    static void SetMask(int32_t length) { if (isSetMask) SetVectorMask<T>(length); }
    template <typename T>
    static void SetMaskCount() { AscendC::SetMaskCount(); }
    template <typename T>
    static void SetMaskNorm() { AscendC::SetMaskNorm(); }
    template <bool isSetMask = true>
    static void ResetMask() { if (isSetMask) AscendC::ResetMask(); }
};

// Scalar arithmetic.
template <typename T, typename U, RoundMode mode>
U ScalarCast(T value)
{
    double exact = static_cast<double>(value);
    if constexpr (std::is_integral_v<U>) {
        if constexpr (mode == RoundMode::CAST_FLOOR) return static_cast<U>(std::floor(exact));
        else if constexpr (mode == RoundMode::CAST_CEIL) return static_cast<U>(std::ceil(exact));
        else if constexpr (mode == RoundMode::CAST_ROUND) return static_cast<U>(std::round(exact));
        else if constexpr (mode == RoundMode::CAST_TRUNC) return static_cast<U>(exact);
        else return static_cast<U>(std::nearbyint(exact));
    } else {
        return U(static_cast<float>(value));
    }
}
template <typename T, typename U, RoundMode mode>
U Cast(T value)
{
    return ScalarCast<T, U, mode>(value);
}
template <int wanted>
int64_t ScalarGetCountOfValue(uint64_t value)
{
    int64_t set = __builtin_popcountll(value);
    return wanted == 1 ? set : 64 - set;
}
template <int wanted>
constexpr auto GetBitCount = ScalarGetCountOfValue<wanted>;
inline int64_t ScalarCountLeadingZero(uint64_t value) { return value == 0 ? 64 : __builtin_clzll(value); }
inline int64_t CountLeadingZero(uint64_t value) { return ScalarCountLeadingZero(value); }
template <int wanted>
int64_t ScalarGetSFFValue(uint64_t value)
{
    value = wanted == 1 ? value : ~value;
    return value == 0 ? -1 : __builtin_ctzll(value);
}
template <int wanted>
constexpr auto GetSFFValue = ScalarGetSFFValue<wanted>;
inline int64_t CountBitsCntSameAsSignBit(int64_t value) { return __builtin_clrsbll(value); }

constexpr uint32_t F32_INF = 0x7f800000, F32_NEG_INF = 0xff800000, F32_NAN = 0x7fc00000;
template <typename T, typename U = uint64_t>
U GetScalarBitcodeValue(T bits)
{
    U value{};
    std::memcpy(static_cast<void*>(&value), &bits, sizeof bits);
    return value;
}

#define LNGRAD_ROUNDED(Name, rounded) \
    template <typename T, typename U> \
    constexpr auto Name(T value, U unit) { return unit == 0 ? value : (rounded); }
LNGRAD_ROUNDED(AlignUp, (value + unit - 1) / unit * unit)
LNGRAD_ROUNDED(AlignDown, value / unit * unit)
LNGRAD_ROUNDED(CeilDivision, (value + unit - 1) / unit)
LNGRAD_ROUNDED(DivCeil, (value + unit - 1) / unit)

template <typename T, typename U, typename = std::enable_if_t<std::is_integral_v<T> && std::is_integral_v<U>>>
constexpr auto Ceil(T value, U unit) { return CeilDivision(value, unit); }

// Text of the kernel goes to the program's own output.
using ::printf;
template <typename... Values>
void PRINTF(const char* format, Values... values)
{
    ::printf(format, values...);
}
template <typename T, typename... Shape>
void DumpTensor(const T&, uint32_t, uint32_t, const Shape&...) {}

inline float ToFloat(const bfloat16_t& value) { return static_cast<float>(value); }
inline float Cast(const bfloat16_t& value) { return static_cast<float>(value); }
inline bfloat16_t ToBfloat16(const float& value) { return bfloat16_t(value); }

} // namespace AscendC

namespace Ops::Base {
LNGRAD_ROUNDED(CeilDiv, (value + unit - 1) / unit)
LNGRAD_ROUNDED(CeilAlign, (value + unit - 1) / unit * unit)
LNGRAD_ROUNDED(FloorDiv, value / unit)
LNGRAD_ROUNDED(FloorAlign, value / unit * unit)
constexpr uint32_t GetUbBlockSize() { return 32; } constexpr uint32_t GetVRegSize() { return 256; }
} // namespace Ops::Base

namespace lngrad {

template <Op op>
struct Asked {
    operator int64_t() const { return perform(op, Where::here()).result; }
};
inline int64_t tiling_key(Where where = Where::here()) { return perform(Op::TILING_KEY, where).result; }

// Bytes of global memory into the kernel's own variables. Device memory can't be read by the host directly.
inline void read_global(void* target, const void* address, int64_t size, Where where)
{
    perform(Op::GLOBAL_READ, where, reinterpret_cast<intptr_t>(target), reinterpret_cast<intptr_t>(address), size);
}

template <typename T>
T tiling_data(const void* address, Where where = Where::here())
{
    T data;
    read_global(&data, address, sizeof data, where);
    return data;
}

} // namespace lngrad

// The index of the block, as kernels of the compiler's own names read it; a variable of theirs may be called so.
inline constexpr lngrad::Asked<lngrad::Op::BLOCK_IDX> block_idx;
inline constexpr lngrad::Asked<lngrad::Op::BLOCK_NUM> block_num;
#define PRELOAD(kilobytes) AscendC::ICachePreLoad(kilobytes)
// On a device it is nothing, so that samples write it behind a value: "tileNum ASSERT(tileNum != 0)".
#define ASSERT(condition, ...) +(assert(condition), 0)
#define ASCENDC_ASSERT(condition, ...) assert(condition)
#define ascendc_assert(condition, ...) assert(condition)

#define TILING_KEY_IS(key) (lngrad::tiling_key() == static_cast<int64_t>(key))
#define TILING_KEY_LIST(...)
#define REGISTER_NONE_TILING
#define REGISTER_TILING_FOR_TILINGKEY(expression, Struct)
#define REGISTER_TILING_DEFAULT(Struct) using lngrad_tiling_struct [[maybe_unused]] = Struct

// The operator build writes these two for the struct of the operator. Here the struct is the one that
// REGISTER_TILING_DEFAULT names where the macro stands.
#ifndef GET_TILING_DATA
#define GET_TILING_DATA(name, address) auto name = lngrad::tiling_data<lngrad_tiling_struct>(address)
#endif
#ifndef GET_TILING_DATA_WITH_STRUCT
#define GET_TILING_DATA_WITH_STRUCT(Struct, name, address) auto name = lngrad::tiling_data<Struct>(address)
#endif
#ifndef GET_TILING_DATA_MEMBER
#define GET_TILING_DATA_MEMBER(Struct, member, name, address) auto name = lngrad::tiling_data<Struct>(address).member
#endif

// The samples of the manuals call CopyTiling without defining it.
template <typename T>
void CopyTiling(T* target, const uint8_t* address, lngrad::Where where = lngrad::Where::here())
{
    lngrad::read_global(target, address, sizeof(T), where);
}

#endif
