// DataCopy, DataCopyPad and Copy: between global memory and the Unified Buffer, and within it.
#ifndef LNGRAD_COPY_H
#define LNGRAD_COPY_H

#include "lngrad/pipe.h"

namespace AscendC {

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const uint32_t count, Where where = Where::here())
{
    lngrad::perform(Op::COPY_IN, where, dst.operand(), src.address(), src.size(), src.type(), count / LocalTensor<T>::per_byte);
}

template <typename T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count, Where where = Where::here())
{
    lngrad::perform(Op::COPY_OUT, where, src.operand(), dst.address(), dst.size(), dst.type(), count / LocalTensor<T>::per_byte);
}

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count, Where where = Where::here())
{
    lngrad::perform(Op::COPY_LOCAL, where, dst.operand(), src.operand(), count / LocalTensor<T>::per_byte);
}

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& p,
              Where where = Where::here())
{
    lngrad::perform(Op::COPY_IN_BLOCKS, where, dst.operand(), src.address(), src.size(), src.type(),
                    int64_t(p.blockCount), int64_t(p.blockLen), int64_t(p.srcStride), int64_t(p.dstStride));
}

template <typename T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& p,
              Where where = Where::here())
{
    lngrad::perform(Op::COPY_OUT_BLOCKS, where, src.operand(), dst.address(), dst.size(), dst.type(),
                    int64_t(p.blockCount), int64_t(p.blockLen), int64_t(p.srcStride), int64_t(p.dstStride));
}

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& p,
              Where where = Where::here())
{
    lngrad::perform(Op::COPY_LOCAL_BLOCKS, where, dst.operand(), src.operand(), int64_t(p.blockCount),
                    int64_t(p.blockLen), int64_t(p.srcStride), int64_t(p.dstStride));
}

template <typename T, PaddingMode mode = PaddingMode::Normal>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyExtParams& p,
                 const DataCopyPadExtParams<T>& pad, Where where = Where::here())
{
    lngrad::perform_with(Op::PAD_IN, where, static_cast<double>(pad.paddingValue), dst.operand(), src.address(),
                         src.size(), src.type(), int64_t(p.blockCount), int64_t(p.blockLen), int64_t(p.srcStride),
                         int64_t(p.dstStride), int64_t(pad.isPad), int64_t(pad.leftPadding),
                         int64_t(pad.rightPadding), int64_t(mode), int64_t(0));
}

template <typename T, PaddingMode mode = PaddingMode::Normal>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& p,
                 const DataCopyPadParams& pad, Where where = Where::here())
{
    T value;
    std::memcpy(&value, &pad.paddingValue, sizeof value);
    lngrad::perform_with(Op::PAD_IN, where, static_cast<double>(value), dst.operand(), src.address(), src.size(),
                         src.type(), int64_t(p.blockCount), int64_t(p.blockLen), int64_t(p.srcStride),
                         int64_t(p.dstStride), int64_t(pad.isPad), int64_t(pad.leftPadding),
                         int64_t(pad.rightPadding), int64_t(mode), int64_t(1));
}

template <typename T, PaddingMode mode = PaddingMode::Normal>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& p,
                 Where where = Where::here())
{
    lngrad::perform(Op::PAD_OUT, where, src.operand(), dst.address(), dst.size(), dst.type(), int64_t(p.blockCount),
                    int64_t(p.blockLen), int64_t(p.srcStride), int64_t(p.dstStride), int64_t(mode), int64_t(0));
}

template <typename T, PaddingMode mode = PaddingMode::Normal>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& p,
                 Where where = Where::here())
{
    lngrad::perform(Op::PAD_OUT, where, src.operand(), dst.address(), dst.size(), dst.type(), int64_t(p.blockCount),
                    int64_t(p.blockLen), int64_t(p.srcStride), int64_t(p.dstStride), int64_t(mode), int64_t(1));
}

template <typename T>
void InitOutput(GlobalTensor<T> gm, uint32_t size, T value = T(0), Where where = Where::here())
{
    lngrad::perform_with(Op::INIT_OUTPUT, where, static_cast<double>(value), gm.address(), gm.size(), gm.type(),
                         int64_t(size), LocalTensor<T>::whole(value));
}

template <typename T>
void SetAtomicAdd(Where where = Where::here())
{
    lngrad::perform(Op::ATOMIC_ADD, where, static_cast<int64_t>(lngrad::type_of<T>()));
}
template <typename T>
void SetAtomicMax(Where where = Where::here())
{
    lngrad::perform(Op::ATOMIC_MAX, where, static_cast<int64_t>(lngrad::type_of<T>()));
}
template <typename T>
void SetAtomicMin(Where where = Where::here())
{
    lngrad::perform(Op::ATOMIC_MIN, where, static_cast<int64_t>(lngrad::type_of<T>()));
}
template <typename T>
void SetPadValue(T paddingValue, Where where = Where::here())
{
    lngrad::perform_with(Op::PAD_VALUE, where, static_cast<double>(paddingValue));
}
inline void SetAtomicNone(Where where = Where::here()) { lngrad::perform(Op::ATOMIC_NONE, where); }
inline void DisableDmaAtomic(Where where = Where::here()) { SetAtomicNone(where); }

} // namespace AscendC

#endif
