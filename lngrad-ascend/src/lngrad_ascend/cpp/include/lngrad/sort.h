// Sorting by falling score: lists of 8 bytes an element, the score below and its number above.
#ifndef LNGRAD_SORT_H
#define LNGRAD_SORT_H

#include "lngrad/library.h"

namespace AscendC {

struct MrgSort4Info {
    uint16_t elementLengths[4] = {};
    bool ifExhaustedSuspension = false;
    uint16_t validBit = 0;
    uint8_t repeatTimes = 1;
    MrgSort4Info() = default;
    MrgSort4Info(const uint16_t lengths[4], bool suspension, uint16_t valid, uint16_t repeats)
        : elementLengths{lengths[0], lengths[1], lengths[2], lengths[3]}, ifExhaustedSuspension(suspension), validBit(valid),
          repeatTimes(repeats) {}
};
template <typename T>
struct MrgSortSrcList {
    LocalTensor<T> src1, src2, src3, src4;
    MrgSortSrcList() = default;
    MrgSortSrcList(const LocalTensor<T>& one, const LocalTensor<T>& two, const LocalTensor<T>& three, const LocalTensor<T>& four)
        : src1(one), src2(two), src3(three), src4(four) {}
};

LNGRAD_FUNCTION(Sort32, "Sort32", (typename T), (const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<uint32_t>& src1,
                const int32_t repeatTime), 0, (dst, src0, src1), (repeatTime, 32))
LNGRAD_FUNCTION(Extract, "Extract", (typename T), (const LocalTensor<T>& dstValue, const LocalTensor<uint32_t>& dstIndex,
                const LocalTensor<T>& sorted, const int32_t repeatTime), 0, (dstValue, dstIndex, sorted), (repeatTime))
LNGRAD_FUNCTION(Sort, "Sort32", (typename T, bool isFullSort), (const LocalTensor<T>& dst, const LocalTensor<T>& concat,
                const LocalTensor<uint32_t>& index, LocalTensor<T>&, const int32_t repeatTime), 0, (dst, concat, index),
                (repeatTime, isFullSort ? 32 * repeatTime : 32))

enum class TopKMode { TOPK_NORMAL = 0, TOPK_NSMALL };
struct TopKInfo {
    int32_t outter = 1, inner, n;
};
LNGRAD_LIBRARY(TopK, "TopK",
               (typename T, bool isInitIndex = false, bool isHasfinish = false, bool isReuseSrc = false, TopKMode mode = TopKMode::TOPK_NORMAL),
               (const LocalTensor<T>& values, const LocalTensor<int32_t>& indices, const LocalTensor<T>& src,
                const LocalTensor<int32_t>& srcIndex, const LocalTensor<bool>& finish),
               (const int32_t k, const TopkTiling&, const TopKInfo& info, const bool isLargest = true), 0,
               (values, indices, src, isInitIndex ? srcIndex.operand() : src.operand(), isHasfinish ? finish.operand() : src.operand()),
               (info.outter, info.inner, info.n, k, isInitIndex, isHasfinish, mode == TopKMode::TOPK_NSMALL, isLargest))

inline thread_local int64_t merged = 0; // elements that the last MrgSort took of each list, 16 bits each
template <typename T>
void MrgSort(const LocalTensor<T>& dst, const MrgSortSrcList<T>& src, const MrgSort4Info& p, Where where = Where::here())
{
    // A list that takes no part may be no tensor at all.
    const LocalTensor<T>&third = p.validBit & 4 ? src.src3 : src.src1, &fourth = p.validBit & 8 ? src.src4 : src.src1;
    merged = lngrad::library("MrgSort", where, 0, {dst, src.src1, src.src2, third, fourth},
                             {p.elementLengths[0], p.elementLengths[1], p.elementLengths[2], p.elementLengths[3], p.ifExhaustedSuspension,
                              p.validBit, p.repeatTimes});
}
inline void GetMrgSortResult(uint16_t& one, uint16_t& two, uint16_t& three, uint16_t& four)
{
    one = merged, two = merged >> 16, three = merged >> 32, four = merged >> 48;
}
template <typename T, bool isExhaustedSuspension = false>
void MrgSort(const LocalTensor<T>& dst, const MrgSortSrcList<T>& sortList, const uint16_t elementCountList[4], uint32_t sortedNum[4],
             uint16_t validBit, const int32_t repeatTime, Where where = Where::here())
{
    MrgSort(dst, sortList, MrgSort4Info(elementCountList, isExhaustedSuspension, validBit, repeatTime), where);
    for (int i = 0; i < 4; ++i) sortedNum[i] = uint16_t(merged >> 16 * i);
}
template <typename T>
void Concat(LocalTensor<T>& concat, const LocalTensor<T>& src, const LocalTensor<T>&, const int32_t) { concat = src; }
template <typename T>
constexpr uint32_t GetSortOffset(const uint32_t elemOffset) { return elemOffset * (8 / sizeof(T)); }
template <typename T>
constexpr uint32_t GetSortLen(const uint32_t elemCount) { return GetSortOffset<T>(elemCount); }

} // namespace AscendC

#endif
