// DataCopy, DataCopyPad and Copy: between global memory and the Unified Buffer, and within it.
#ifndef LNGRAD_COPY_H
#define LNGRAD_COPY_H

#include <vector>

#include "lngrad/pipe.h"

namespace AscendC {

// The blocks of a copy, as numbers of a call.
template <typename Params, std::enable_if_t<std::is_same_v<Params, DataCopyParams> || std::is_same_v<Params, DataCopyExtParams>, int> = 0>
void put(lngrad::Call& call, const Params& p)
{
    lngrad::put_each(call, p.blockCount, p.blockLen, p.srcStride, p.dstStride);
}

// By a count of elements, or in blocks: the local tensors of the call come first.
#define LNGRAD_DATA_COPY(Dst, Src, first, second, count_op, blocks_op) \
    template <typename T> \
    void DataCopy(const Dst<T>& dst, const Src<T>& src, const uint32_t count, Where where = Where::here()) \
    { \
        lngrad::perform(count_op, where, first.operand(), second, count / LocalTensor<T>::per_byte); \
    } \
    template <typename T> \
    void DataCopy(const Dst<T>& dst, const Src<T>& src, const DataCopyParams& p, Where where = Where::here()) \
    { \
        lngrad::perform(blocks_op, where, first.operand(), second, p); \
    }
LNGRAD_DATA_COPY(LocalTensor, GlobalTensor, dst, src, Op::COPY_IN, Op::COPY_IN_BLOCKS)
LNGRAD_DATA_COPY(GlobalTensor, LocalTensor, src, dst, Op::COPY_OUT, Op::COPY_OUT_BLOCKS)
LNGRAD_DATA_COPY(LocalTensor, LocalTensor, dst, src, Op::COPY_LOCAL, Op::COPY_LOCAL_BLOCKS)

// In two forms; the last number says which.
template <typename T, PaddingMode mode = PaddingMode::Normal>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyExtParams& p,
                 const DataCopyPadExtParams<T>& pad, Where where = Where::here())
{
    lngrad::perform_with(Op::PAD_IN, where, static_cast<double>(pad.paddingValue), dst.operand(), src, p, pad.isPad,
                         pad.leftPadding, pad.rightPadding, mode, 0);
}
template <typename T, PaddingMode mode = PaddingMode::Normal>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& p,
                 const DataCopyPadParams& pad, Where where = Where::here())
{
    T value;
    std::memcpy(&value, &pad.paddingValue, sizeof value);
    lngrad::perform_with(Op::PAD_IN, where, static_cast<double>(value), dst.operand(), src, p, pad.isPad,
                         pad.leftPadding, pad.rightPadding, mode, 1);
}
template <typename T, PaddingMode mode = PaddingMode::Normal>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& p, Where where = Where::here())
{
    lngrad::perform(Op::PAD_OUT, where, src.operand(), dst, p, mode, 0);
}
template <typename T, PaddingMode mode = PaddingMode::Normal>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& p, Where where = Where::here())
{
    lngrad::perform(Op::PAD_OUT, where, src.operand(), dst, p, mode, 1);
}

inline void SetLoopModePara(const LoopModeParams& p, DataCopyMVType type, Where where = Where::here())
{
    lngrad::perform(Op::LOOP_MODE, where, type, p.loop1Size, p.loop2Size, p.loop1SrcStride, p.loop1DstStride, p.loop2SrcStride,
                    p.loop2DstStride);
}
inline void ResetLoopModePara(DataCopyMVType type, Where where = Where::here()) { lngrad::perform(Op::LOOP_MODE, where, type); }
inline void NdDmaDci(Where where = Where::here()) { lngrad::perform(Op::CACHE_REFRESH, where); }
template <typename T, uint8_t dim, const NdDmaConfig& config = kDefaultNdDmaConfig>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const NdDmaParams<T, dim>& p, Where where = Where::here())
{
    lngrad::Call& call = lngrad::issue(Op::COPY_DIMENSIONS, where);
    lngrad::put_each(call, dst.operand(), src, config.isNearestValueMode);
    const auto side = [](uint16_t of_all, uint8_t own) { return of_all == NdDmaConfig::unsetPad ? own : of_all; };
    const auto& [from, to, size, left, right] = p.loopInfo;
    for (int i = 0; i < dim; ++i)
        lngrad::put_each(call, from[i], to[i], size[i], side(config.loopLpSize, left[i]), side(config.loopRpSize, right[i]));
    call.real = static_cast<double>(p.constantValue);
    lngrad::finish(call);
}

// The copies with addresses.
template <typename T>
Operand at_address(const void* address, Where where)
{
    return lngrad::perform(Op::LOCAL_OF, where, lngrad::type_of<T>(), reinterpret_cast<intptr_t>(address)).local[0];
}
template <typename T>
GlobalTensor<T> memory_at(__gm__ T* address)
{
    GlobalTensor<T> memory;
    memory.SetGlobalBuffer(address);
    return memory;
}
template <typename T, typename Params, typename Pad>
void DataCopyPadGm2UBImpl(__ubuf__ T* dst, __gm__ T* src, const Params& p, const Pad& pad, Where where = Where::here())
{
    DataCopyPad(LocalTensor<T>(at_address<T>(dst, where)), memory_at(src), p, pad, where);
}
template <typename T, typename Params>
void DataCopyPadUB2GMImpl(__gm__ T* dst, __ubuf__ T* src, const Params& p, Where where = Where::here())
{
    DataCopyPad(memory_at(dst), LocalTensor<T>(at_address<T>(src, where)), p, where);
}

template <typename T>
void InitOutput(GlobalTensor<T> gm, uint32_t size, T value = T(0), Where where = Where::here())
{
    lngrad::perform_with(Op::INIT_OUTPUT, where, static_cast<double>(value), gm, size, LocalTensor<T>::whole(value));
}

#define LNGRAD_SET_ATOMIC(Name, op) \
    template <typename T> \
    void Name(Where where = Where::here()) \
    { \
        lngrad::perform(op, where, lngrad::type_of<T>()); \
    }
LNGRAD_SET_ATOMIC(SetAtomicAdd, Op::ATOMIC_ADD)
LNGRAD_SET_ATOMIC(SetAtomicMax, Op::ATOMIC_MAX)
LNGRAD_SET_ATOMIC(SetAtomicMin, Op::ATOMIC_MIN)
template <typename T>
void SetPadValue(T paddingValue, Where where = Where::here())
{
    lngrad::perform_with(Op::PAD_VALUE, where, static_cast<double>(paddingValue));
}
inline void SetAtomicNone(Where where = Where::here()) { lngrad::perform(Op::ATOMIC_NONE, where); }
inline void DisableDmaAtomic(Where where = Where::here()) { SetAtomicNone(where); }

// Slices of up to eight dimensions, the innermost first: a burst of whole blocks at each place of both.
constexpr int32_t K_MAX_DIM = 8;
struct SliceInfo {
    uint32_t startIndex = 0, endIndex = 0, stride = 0, burstLen = 0, shapeValue = 0;
};

inline std::vector<uint32_t> slice_starts(const SliceInfo info[], uint32_t dims, uint32_t burst)
{
    std::vector<uint32_t> starts = {0};
    uint32_t size = 1;
    for (uint32_t i = 0; i < dims; size *= info[i++].shapeValue) {
        std::vector<uint32_t> more;
        const uint32_t length = i == 0 ? burst : 1;
        for (uint32_t at = info[i].startIndex; at + length <= info[i].endIndex + 1; at += length + info[i].stride) {
            for (uint32_t start : starts) more.push_back(start + at * size);
        }
        starts = more;
    }
    return starts;
}
template <template <typename> class Dst, template <typename> class Src, typename T>
void DataCopy(const Dst<T>& dst, const Src<T>& src, const SliceInfo dstSliceInfo[], const SliceInfo srcSliceInfo[],
              const uint32_t dimValue = 1, Where where = Where::here())
{
    const uint32_t burst = srcSliceInfo[0].burstLen * 32 / sizeof(T);
    const std::vector<uint32_t> to = slice_starts(dstSliceInfo, dimValue, burst), from = slice_starts(srcSliceInfo, dimValue, burst);
    for (std::size_t i = 0; i < from.size() && i < to.size(); ++i) DataCopy(dst[to[i]], src[from[i]], burst, where);
}

template <typename T, TPosition pos>
bool PopStackBuffer(LocalTensor<T>& popLocal, Where where = Where::here())
{
    popLocal = LocalTensor<T>(lngrad::perform(Op::POP_STACK, where, pos, lngrad::type_of<T>()).local[0]);
    return true;
}

} // namespace AscendC

#endif
