// Loads and stores of registers: aligned, unaligned, strided by blocks, by indices; and those of masks.
#ifndef LNGRAD_REGISTER_MEMORY_H
#define LNGRAD_REGISTER_MEMORY_H
#include "lngrad/register_order.h"
namespace lngrad {
using AscendC::Reg::AddrReg;
using AscendC::Reg::LoadDist;
using AscendC::Reg::MaskDist;
using AscendC::Reg::RegTensor;
using AscendC::Reg::StoreDist;
using AscendC::Reg::UnalignReg;
// How elements lie in memory and in the register: `element` bytes each, `bytes` in memory from a multiple of `multiple` on.
struct Distribution {
    int element, bytes, multiple, up, down; // up / down: bytes of memory for one of the register; up is 0 where any takes all
};
template <LoadDist dist, typename T> constexpr Distribution loading()
{
    switch (dist) {
        case LoadDist::DIST_NORM: return {sizeof(T), VL, 32, 1, 1}; case LoadDist::DIST_BRC_B8: return {1, 1, 1, 0, 1};
        case LoadDist::DIST_BRC_B16: return {2, 2, 2, 0, 1}; case LoadDist::DIST_BRC_B32: return {4, 4, 4, 0, 1};
        case LoadDist::DIST_US_B8: return {1, 128, 32, 1, 2}; case LoadDist::DIST_US_B16: return {2, 128, 32, 1, 2};
        case LoadDist::DIST_DS_B8: return {1, 512, 32, 2, 1}; case LoadDist::DIST_DS_B16: return {2, 512, 32, 2, 1};
        case LoadDist::DIST_DINTLV_B8: return {1, 512, 32, 2, 1}; case LoadDist::DIST_DINTLV_B16: return {2, 512, 32, 2, 1};
        case LoadDist::DIST_DINTLV_B32: return {4, 512, 32, 2, 1}; case LoadDist::DIST_UNPACK_B8: return {1, 128, 32, 1, 2};
        case LoadDist::DIST_UNPACK_B16: return {2, 128, 32, 1, 2}; case LoadDist::DIST_UNPACK_B32: return {4, 128, 32, 1, 2};
        case LoadDist::DIST_UNPACK4_B8: return {1, 64, 32, 1, 4}; case LoadDist::DIST_BLK: return {1, 32, 32, 0, 1};
        case LoadDist::DIST_E2B_B16: return {2, 16, 16, 0, 1}; case LoadDist::DIST_E2B_B32: return {4, 32, 32, 0, 1};
        default: return {0, 0, 0, 0, 0};
    }
}
constexpr bool is_dual(LoadDist dist)
{ return dist == LoadDist::DIST_DINTLV_B8 || dist == LoadDist::DIST_DINTLV_B16 || dist == LoadDist::DIST_DINTLV_B32; }
// Which byte of memory becomes byte b of the register (of the second one: `second`); -1: it is 0.
template <LoadDist dist, typename T> constexpr int source_of(int b, bool second)
{
    constexpr Distribution d = loading<dist, T>();
    const int within = b % d.element, lane = b / d.element;
    switch (dist) {
        case LoadDist::DIST_NORM: return b;
        case LoadDist::DIST_US_B8: case LoadDist::DIST_US_B16: return lane / 2 * d.element + within;
        case LoadDist::DIST_UNPACK_B8: case LoadDist::DIST_UNPACK_B16: case LoadDist::DIST_UNPACK_B32:
            return lane % 2 ? -1 : lane / 2 * d.element + within;
        case LoadDist::DIST_UNPACK4_B8: return lane % 4 ? -1 : lane / 4;
        case LoadDist::DIST_BLK: return b % 32;
        case LoadDist::DIST_E2B_B16: case LoadDist::DIST_E2B_B32: return b / 32 * d.element + within;
        case LoadDist::DIST_BRC_B8: case LoadDist::DIST_BRC_B16: case LoadDist::DIST_BRC_B32: return within;
        default: return (2 * lane + second) * d.element + within; // DS and DINTLV
    }
}
template <LoadDist dist, typename T, typename R>
inline void load_lanes(R& dst, const T* src, Where where, bool second = false, int multiple = 0, const char* api = "LoadAlign")
{
    constexpr Distribution d = loading<dist, T>();
    static_assert(d.element != 0, "LoadAlign: this LoadDist is not simulated");
    constexpr int bytes = dist == LoadDist::DIST_NORM ? R::bytes : d.bytes;
    static_assert(R::REG_NUM == 1 || dist == LoadDist::DIST_NORM, "LoadAlign: RegTraitNumTwo takes DIST_NORM only");
    VectorFunction& function = function_of(api, where);
    const int64_t at = function.place(src, dist == LoadDist::DIST_NORM ? 1 : bytes, multiple ? multiple : d.multiple, api, where);
    // A load of a whole register may reach behind the buffer's end, where no mask lets a lane through.
    const int inside = int(std::min<int64_t>(bytes, function.buffer.size - at));
    const uint8_t* from = function.buffer.bytes + at;
    uint8_t* lanes = reinterpret_cast<uint8_t*>(dst.lane);
    if constexpr (dist == LoadDist::DIST_NORM) {
        std::memcpy(lanes, from, inside);
        if (inside < bytes) std::memset(lanes + inside, 0, bytes - inside);
    } else if constexpr (dist == LoadDist::DIST_BRC_B32 && sizeof(typename R::ActualT) == 4) {
        for (int i = 0; i < R::lanes; ++i) std::memcpy(&dst.lane[i], from, 4);
    } else if constexpr (dist == LoadDist::DIST_UNPACK_B16) {
        uint32_t wide[VL / 4];
        for (int i = 0; i < VL / 4; ++i) {
            uint16_t narrow;
            std::memcpy(&narrow, from + 2 * i, 2);
            wide[i] = narrow;
        }
        std::memcpy(lanes, wide, VL);
    } else {
        for (int b = 0; b < VL; ++b) {
            const int source = source_of<dist, T>(b, second);
            lanes[b] = source < 0 ? 0 : from[source];
        }
    }
    dst.origins.held = Held::VALUES;
    if (function.doubtful(at, inside)) {
        uint16_t any = 0;
        uint16_t numbers[R::bytes];
        for (int b = 0; b < R::bytes; ++b) {
            const int source = source_of<dist, T>(b, second);
            any |= numbers[b] = source < 0 || source >= inside ? 0 : function.origin(at + source, &dst, where);
        }
        if (any) {
            dst.origins.held = Held::SOME;
            std::memcpy(dst.origins.number, numbers, sizeof numbers);
        }
    }
    dst.loads.count = 1;
    Loaded& loaded = dst.loads.load[0];
    loaded.at = at, loaded.where = where, loaded.upto = R::bytes, loaded.done = 0, loaded.bytes = bytes, loaded.up = d.up, loaded.down = d.down;
}
// The same for stores: an `element` of the register becomes its lowest `packed` bytes. `masked`: whether the mask counts.
struct Storing {
    int element, packed, bytes, multiple;
    bool masked;
};
template <StoreDist dist, typename T> constexpr Storing storing()
{
    switch (dist) {
        case StoreDist::DIST_NORM: return {sizeof(T), sizeof(T), VL, 32, true};
        case StoreDist::DIST_NORM_B8: return {1, 1, VL, 32, true}; case StoreDist::DIST_NORM_B16: return {2, 2, VL, 32, true};
        case StoreDist::DIST_NORM_B32: return {4, 4, VL, 32, true};
        case StoreDist::DIST_FIRST_ELEMENT_B8: return {1, 1, 1, 1, false};
        case StoreDist::DIST_FIRST_ELEMENT_B16: return {2, 2, 2, 2, false};
        case StoreDist::DIST_FIRST_ELEMENT_B32: return {4, 4, 4, 4, false};
        case StoreDist::DIST_PACK_B16: return {2, 1, VL / 2, 32, true};
        case StoreDist::DIST_PACK_B32: return {4, 2, VL / 2, 32, true};
        case StoreDist::DIST_PACK_B64: return {8, 4, VL / 2, 32, true};
        case StoreDist::DIST_PACK4_B32: return {4, 1, VL / 4, 32, true};
        case StoreDist::DIST_INTLV_B8: return {1, 1, VL, 32, false};
        case StoreDist::DIST_INTLV_B16: return {2, 2, VL, 32, false};
        case StoreDist::DIST_INTLV_B32: return {4, 4, VL, 32, false};
        default: return {0, 0, 0, 0, false};
    }
}
constexpr bool is_dual(StoreDist dist)
{ return dist == StoreDist::DIST_INTLV_B8 || dist == StoreDist::DIST_INTLV_B16 || dist == StoreDist::DIST_INTLV_B32; }
// Writes `count` bytes of a register or of what it holds, from `byte` on, to `at`, with the reasons why they have no value; one
// reason more, `masked`, is the mask's.
template <typename R>
inline void put_bytes(VectorFunction& function, int64_t at, const R& src, int byte, int count, uint16_t masked, Where where, const char* api)
{
    std::memcpy(function.buffer.bytes + at, reinterpret_cast<const uint8_t*>(src.lane) + byte, count);
    function.mark(at, count);
    if (src.origins.held == Held::VALUES && masked == 0) {
        std::memset(function.buffer.poison + at, 0, sizeof(uint16_t) * count);
        return;
    }
    for (int b = 0; b < count; ++b) {
        const uint16_t number = std::max(masked, src.origins.of(byte + b, Rule::BLANK_REGISTER));
        function.buffer.poison[at + b] = function.poison(number, where, api);
    }
}
template <StoreDist dist, typename T, typename R> inline void store_lanes(T* dst, R& src, const MaskReg& mask, Where where)
{
    constexpr Storing s = storing<dist, T>();
    static_assert(s.element != 0, "StoreAlign: this StoreDist is not simulated");
    static_assert(R::REG_NUM == 1 || dist == StoreDist::DIST_NORM, "StoreAlign: RegTraitNumTwo takes DIST_NORM only");
    constexpr int step = s.element / R::REG_NUM;
    VectorFunction& function = function_of("StoreAlign", where);
    if (s.packed != int(sizeof(T)) && s.masked) broken(Rule::PACKED_WIDTH, where, "StoreAlign", s.packed, sizeof(T));
    const int first = s.masked ? mask.first(step) : 1, upto = s.masked ? (mask.upto + step - 1) / step : 1;
    const int64_t at = function.place(dst, upto * s.packed, s.multiple, "StoreAlign", where);
    src.loads.read(upto * s.element);
    function.write(at, at + upto * s.packed, where, &src);
    if (s.element == s.packed && first >= 0 && (!s.masked || mask.origins.held == Held::VALUES)) {
        put_bytes(function, at, src, 0, first * s.packed, 0, where, "StoreAlign");
        return;
    }
    if (first >= 0 && src.origins.held == Held::VALUES && mask.origins.held == Held::VALUES) {
        RegTensor<uint8_t, R::trait> packed;
        for (int i = 0; i < first; ++i) std::memcpy(packed.lane + i * s.packed, reinterpret_cast<uint8_t*>(src.lane) + i * s.element, s.packed);
        set_all(packed);
        put_bytes(function, at, packed, 0, first * s.packed, 0, where, "StoreAlign");
        return;
    }
    for (int i = 0; i < upto; ++i) {
        const uint16_t masked = s.masked ? mask.origins.of(i * step, Rule::BLANK_MASK) : 0;
        if (s.masked && !mask.on(i * step) && masked == 0) continue;
        put_bytes(function, at + i * s.packed, src, i * s.element, s.packed, masked, where, "StoreAlign");
    }
    if (s.masked && mask.width > step && mask.width > s.element) narrow(mask, where, "StoreAlign", R::step, src);
}
template <StoreDist dist, typename T, typename R> inline void store_dual(T* dst, R& src0, R& src1, Where where)
{
    constexpr Storing s = storing<dist, T>();
    VectorFunction& function = function_of("StoreAlign", where);
    const int64_t at = function.place(dst, 2 * VL, s.multiple, "StoreAlign", where);
    function.write(at, at + 2 * VL, where, &src0);
    read_all(src0), read_all(src1);
    for (int i = 0; i < 2 * VL / s.element; ++i)
        put_bytes(function, at + i * s.element, i % 2 ? src1 : src0, i / 2 * s.element, s.element, 0, where, "StoreAlign");
}
// Blocks of 32 bytes, `stride` blocks apart; a block without any lane that is on is not touched.
template <typename R> inline bool any_on(const MaskReg& mask, int block)
{
    for (int b = 0; b < 32; b += R::step)
        if (mask.on(block * 32 + b)) return true;
    return false;
}
template <typename T, typename R> inline void load_blocks(R& dst, T* src, uint32_t stride, const MaskReg& mask, Where where)
{
    VectorFunction& function = function_of("LoadAlign", where);
    std::memset(dst.lane, 0, VL);
    set_all(dst);
    for (int block = 0; block < VL / 32; ++block) {
        if (!any_on<R>(mask, block)) continue;
        const int64_t at = function.place(reinterpret_cast<uint8_t*>(src) + int64_t(block) * stride * 32, 32, 32, "LoadAlign", where);
        std::memcpy(reinterpret_cast<uint8_t*>(dst.lane) + 32 * block, function.buffer.bytes + at, 32);
        function.read(at, at + 32, where);
        for (int b = 0; b < 32; ++b) set_origin(dst, 1, 32 * block + b, function.origin(at + b, &dst, where));
    }
}
template <typename T, typename R> inline void store_blocks(T* dst, R& src, uint32_t stride, const MaskReg& mask, Where where)
{
    constexpr int size = sizeof(typename R::ActualT);
    VectorFunction& function = function_of("StoreAlign", where);
    src.loads.read(mask.upto);
    for (int block = 0; block < VL / 32; ++block) {
        if (!any_on<R>(mask, block)) continue;
        const int64_t at = function.place(reinterpret_cast<uint8_t*>(dst) + int64_t(block) * stride * 32, 32, 32, "StoreAlign", where);
        function.write(at, at + 32, where, &src);
        for (int b = 0; b < 32; b += size)
            if (mask.on((block * 32 + b) / size * R::step)) put_bytes(function, at + b, src, 32 * block + b, size, 0, where, "StoreAlign");
    }
}
// Unaligned: what is at the end of a chain stays in the unaligned register until Post.
template <typename T, typename R> inline void load_unaligned(R& dst, UnalignReg& from, T* src, Where where)
{
    if (!from.primed) broken(Rule::LOAD_PRE, where, "LoadUnAlign");
    load_lanes<LoadDist::DIST_NORM>(dst, src, where, false, 1, "LoadUnAlign");
}
template <typename T, typename R> inline void store_unaligned(T* dst, R& src, UnalignReg& to, uint32_t count, Where where)
{
    VectorFunction& function = function_of("StoreUnAlign", where);
    const uintptr_t address = reinterpret_cast<uintptr_t>(dst);
    if (to.held != 0 && to.next != address) broken(Rule::STORE_POST, where, "StoreUnAlign", to.held);
    const int bytes = std::min(int(count * sizeof(T)), R::bytes);
    const int64_t at = function.place(dst, bytes, 1, "StoreUnAlign", where);
    src.loads.read(bytes);
    function.write(at, at + bytes, where, &src);
    put_bytes(function, at, src, 0, bytes, 0, where, "StoreUnAlign");
    to.next = address + bytes;
    to.held = std::min<int64_t>((at + bytes) % 32, to.held + bytes);
    function.keep(&to, to.held, where);
}
inline void post_unaligned(UnalignReg& to, Where where)
{
    to.held = 0;
    function_of("StoreUnAlignPost", where).keep(&to, 0, where);
}
} // namespace lngrad
namespace AscendC {
namespace Reg {
using lngrad::bits_as, lngrad::Word, lngrad::origin_within, lngrad::set_origin, lngrad::broken, lngrad::Rule;
using lngrad::function_of, lngrad::VectorFunction, lngrad::put_bytes, lngrad::set_all, lngrad::load_lanes, lngrad::store_lanes;
using lngrad::load_unaligned, lngrad::store_unaligned, lngrad::post_unaligned, lngrad::clear_lanes, lngrad::Held;
using lngrad::load_blocks, lngrad::store_blocks, lngrad::store_dual, lngrad::is_dual;
#define LNGRAD_UPDATES(api) static_assert(postMode == PostLiteral::POST_MODE_UPDATE, #api ": expected POST_MODE_UPDATE; without it leave the stride out")
// Old names beside the new ones.
#define LNGRAD_LOAD(Name) \
    template <LNGRAD_T, LoadDist dist = plain_load, typename U, LNGRAD_IF(U)> \
    inline void Name(U& dstReg, __ubuf__ T* srcAddr, LNGRAD_AT) \
    { load_lanes<dist>(dstReg, srcAddr, where); } \
    template <LNGRAD_T, PostLiteral postMode, LoadDist dist = plain_load, typename U, LNGRAD_IF(U)> \
    inline void Name(U& dstReg, __ubuf__ T*& srcAddr, int32_t postUpdateStride, LNGRAD_AT) \
    { \
        LNGRAD_UPDATES(Name); \
        load_lanes<dist>(dstReg, srcAddr, where), srcAddr += postUpdateStride; \
    } \
    template <LNGRAD_T, LoadDist dist = plain_load, typename U, LNGRAD_IF(U)> \
    inline void Name(U& dstReg, __ubuf__ T* srcAddr, AddrReg offset, LNGRAD_AT) \
    { load_lanes<dist>(dstReg, srcAddr + offset.elements, where); } \
    template <LNGRAD_T, LoadDist dist, typename U, LNGRAD_IF(U)> \
    inline void Name(U& dstReg0, U& dstReg1, __ubuf__ T* srcAddr, LNGRAD_AT) \
    { \
        static_assert(is_dual(dist), #Name ": two registers take DIST_DINTLV_B8, _B16 or _B32"); \
        load_lanes<dist>(dstReg0, srcAddr, where); \
        load_lanes<dist>(dstReg1, srcAddr, where, true); \
    } \
    template <LNGRAD_T, PostLiteral postMode, LoadDist dist, typename U, LNGRAD_IF(U)> \
    inline void Name(U& dstReg0, U& dstReg1, __ubuf__ T*& srcAddr, int32_t postUpdateStride, LNGRAD_AT) \
    { \
        LNGRAD_UPDATES(Name); \
        Name<T, dist>(dstReg0, dstReg1, srcAddr, where), srcAddr += postUpdateStride; \
    } \
    template <LNGRAD_T, LoadDist dist, typename U, LNGRAD_IF(U)> \
    inline void Name(U& dstReg0, U& dstReg1, __ubuf__ T* srcAddr, AddrReg offset, LNGRAD_AT) \
    { Name<T, dist>(dstReg0, dstReg1, srcAddr + offset.elements, where); } \
    template <LNGRAD_T, DataCopyMode dataMode, typename U, LNGRAD_IF(U)> \
    inline void Name(U& dstReg, __ubuf__ T* srcAddr, uint32_t dataBlockStride, MaskReg& mask, LNGRAD_AT) \
    { load_blocks(dstReg, srcAddr, dataBlockStride, mask, where); } \
    template <LNGRAD_T, DataCopyMode dataMode, PostLiteral postMode, typename U, LNGRAD_IF(U)> \
    inline void Name(U& dstReg, __ubuf__ T*& srcAddr, uint32_t dataBlockStride, uint32_t repeatStride, MaskReg& mask, LNGRAD_AT) \
    { \
        constexpr bool updates = postMode == PostLiteral::POST_MODE_UPDATE; \
        const int64_t further = int64_t(repeatStride) * 32 / int64_t(sizeof(T)); \
        load_blocks(dstReg, updates ? srcAddr : srcAddr + further, dataBlockStride, mask, where); \
        if (updates) srcAddr += further; \
    }
#define LNGRAD_STORE(Name) \
    template <LNGRAD_T, StoreDist dist = plain_store, typename U, LNGRAD_IF(U)> \
    inline void Name(__ubuf__ T* dstAddr, U& srcReg, MaskReg& mask, LNGRAD_AT) \
    { store_lanes<dist>(dstAddr, srcReg, mask, where); } \
    template <LNGRAD_T, PostLiteral postMode, StoreDist dist = plain_store, typename U, LNGRAD_IF(U)> \
    inline void Name(__ubuf__ T*& dstAddr, U& srcReg, int32_t postUpdateStride, MaskReg& mask, LNGRAD_AT) \
    { \
        LNGRAD_UPDATES(Name); \
        store_lanes<dist>(dstAddr, srcReg, mask, where), dstAddr += postUpdateStride; \
    } \
    template <LNGRAD_T, StoreDist dist = plain_store, typename U, LNGRAD_IF(U)> \
    inline void Name(__ubuf__ T* dstAddr, U& srcReg, AddrReg offset, MaskReg& mask, LNGRAD_AT) \
    { store_lanes<dist>(dstAddr + offset.elements, srcReg, mask, where); } \
    template <LNGRAD_T, StoreDist dist, typename U, LNGRAD_IF(U)> \
    inline void Name(__ubuf__ T* dstAddr, U& srcReg0, U& srcReg1, MaskReg& mask, LNGRAD_AT) \
    { \
        static_assert(is_dual(dist), #Name ": two registers take DIST_INTLV_B8, _B16 or _B32"); \
        store_dual<dist>(dstAddr, srcReg0, srcReg1, where); \
    } \
    template <LNGRAD_T, StoreDist dist, typename U, LNGRAD_IF(U)> \
    inline void Name(__ubuf__ T* dstAddr, U& srcReg0, U& srcReg1, AddrReg offset, MaskReg& mask, LNGRAD_AT) \
    { Name<T, dist>(dstAddr + offset.elements, srcReg0, srcReg1, mask, where); } \
    template <LNGRAD_T, DataCopyMode dataMode, typename U, LNGRAD_IF(U)> \
    inline void Name(__ubuf__ T* dstAddr, U& srcReg, uint32_t dataBlockStride, MaskReg& mask, LNGRAD_AT) \
    { store_blocks(dstAddr, srcReg, dataBlockStride, mask, where); } \
    template <LNGRAD_T, DataCopyMode dataMode, PostLiteral postMode, typename U, LNGRAD_IF(U)> \
    inline void Name(__ubuf__ T*& dstAddr, U& srcReg, uint32_t dataBlockStride, uint32_t repeatStride, MaskReg& mask, LNGRAD_AT) \
    { \
        constexpr bool updates = postMode == PostLiteral::POST_MODE_UPDATE; \
        const int64_t further = int64_t(repeatStride) * 32 / int64_t(sizeof(T)); \
        store_blocks(updates ? dstAddr : dstAddr + further, srcReg, dataBlockStride, mask, where); \
        if (updates) dstAddr += further; \
    }
LNGRAD_LOAD(LoadAlign)
LNGRAD_LOAD(DataCopy)
LNGRAD_STORE(StoreAlign)
LNGRAD_STORE(DataCopy)
#undef LNGRAD_LOAD
#undef LNGRAD_STORE
#define LNGRAD_UNALIGNED(Pre, LoadName, StoreName, Post) \
    template <typename T> inline void Pre(UnalignReg& ureg, __ubuf__ T*, LNGRAD_AT) \
    { \
        function_of(#Pre, where); \
        ureg.primed = true; \
    } \
    template <LNGRAD_T, PostLiteral postMode = updating, typename U, LNGRAD_IF(U)> \
    inline void LoadName(U& dstReg, UnalignReg& ureg, __ubuf__ T*& srcAddr, uint32_t postUpdateStride, LNGRAD_AT) \
    { \
        LNGRAD_UPDATES(LoadName); \
        load_unaligned(dstReg, ureg, srcAddr, where), srcAddr += postUpdateStride; \
    } \
    template <LNGRAD_T, typename U, LNGRAD_IF(U)> \
    inline void LoadName(U& dstReg, UnalignReg& ureg, __ubuf__ T* srcAddr, LNGRAD_AT) { load_unaligned(dstReg, ureg, srcAddr, where); } \
    template <LNGRAD_T, PostLiteral postMode = updating, typename U, LNGRAD_IF(U)> \
    inline void StoreName(__ubuf__ T*& dstAddr, U& srcReg, UnalignReg& ureg, uint32_t postUpdateStride, LNGRAD_AT) \
    { \
        store_unaligned(dstAddr, srcReg, ureg, postUpdateStride, where); \
        if (postMode == PostLiteral::POST_MODE_UPDATE) dstAddr += postUpdateStride; \
    } \
    template <LNGRAD_T, PostLiteral postMode = updating, typename U, LNGRAD_IF(U)> \
    inline void StoreName(__ubuf__ T* dstAddr, U& srcReg, UnalignReg& ureg, LNGRAD_AT) \
    { \
        const uint32_t count = squeezed_bytes / int64_t(sizeof(T)); \
        if (ureg.held == 0 && ureg.next == 0) ureg.next = reinterpret_cast<uintptr_t>(dstAddr); \
        store_unaligned(reinterpret_cast<T*>(ureg.next), srcReg, ureg, count, where); \
    } \
    template <typename T, PostLiteral postMode = updating> \
    inline void Post(__ubuf__ T*& dstAddr, UnalignReg& ureg, int32_t postUpdateStride, LNGRAD_AT) \
    { \
        post_unaligned(ureg, where); \
        if (postMode == PostLiteral::POST_MODE_UPDATE) dstAddr += postUpdateStride; \
    } \
    template <typename T> inline void Post(__ubuf__ T*, UnalignReg& ureg, LNGRAD_AT) { post_unaligned(ureg, where); }
LNGRAD_UNALIGNED(LoadUnAlignPre, LoadUnAlign, StoreUnAlign, StoreUnAlignPost)
LNGRAD_UNALIGNED(DataCopyUnAlignPre, DataCopyUnAlign, DataCopyUnAlign, DataCopyUnAlignPost)
#undef LNGRAD_UNALIGNED
#undef LNGRAD_UPDATES

template <LNGRAD_T, typename U, LNGRAD_IF(U)> inline void Load(U& dstReg, __ubuf__ T* srcAddr, LNGRAD_AT)
{ load_lanes<LoadDist::DIST_NORM>(dstReg, srcAddr, where, false, 1, "Load"); }
template <LNGRAD_T, typename U, LNGRAD_IF(U)> inline void Store(__ubuf__ T* dstAddr, U& srcReg, uint32_t count, LNGRAD_AT)
{
    UnalignReg ureg;
    store_unaligned(dstAddr, srcReg, ureg, count, where);
    post_unaligned(ureg, where);
}
template <LNGRAD_T, typename U, LNGRAD_IF(U)>
inline void Store(__ubuf__ T* dstAddr, U& srcReg, LNGRAD_AT) { Store<T>(dstAddr, srcReg, U::bytes / sizeof(T), where); }
// The element of memory that a lane's index names; lanes that are off are not looked at. 8 bits are widened to 16.
template <typename V, typename F> inline void each_index(V& index, const MaskReg& mask, Where where, const char* api, F visit)
{
    index.loads.read(mask.upto);
    if (const uint16_t number = origin_within(index, mask, 0, V::lanes))
        broken(Rule::INDEX, where, api, 0, function_of(api, where).poison(number, where, api));
    for (int i = 0; i < V::lanes; ++i)
        if (mask.on(i * V::step)) visit(i, int64_t(std::make_unsigned_t<typename V::ActualT>(index.lane[i])));
}
#define LNGRAD_GATHER(Name, ScatterName) \
    template <typename T0 = DefaultType, typename T1, typename T2 = DefaultType, typename T3, typename T4, LNGRAD_IF(T3)> \
    inline void Name(T3& dstReg, __ubuf__ T1* baseAddr, T4& index, MaskReg& mask, LNGRAD_AT) \
    { \
        using A = typename T3::ActualT; \
        VectorFunction& function = function_of(#Name, where); \
        function.place(baseAddr, 0, 32, #Name, where); \
        T3 result; \
        clear_lanes(result), set_all(result); \
        each_index(index, mask, where, #Name, [&](int i, int64_t k) { \
            const int64_t at = function.place(baseAddr + k, sizeof(T1), 1, #Name, where); \
            function.read(at, at + sizeof(T1), where); \
            if constexpr (sizeof(A) == sizeof(T1)) std::memcpy(&result.lane[i], baseAddr + k, sizeof(A)); \
            else result.lane[i] = bits_as<A>(Word<A>(bits_as<Word<T1>>(baseAddr[k]))); \
            uint16_t number = 0; \
            for (size_t b = 0; b < sizeof(T1); ++b) number = std::max(number, function.origin(at + b, &dstReg, where)); \
            set_origin(result, sizeof result.lane[0], i, number); \
        }); \
        dstReg = result; \
    } \
    template <LNGRAD_TYPES(T, U), typename S, typename V, LNGRAD_IF(S)> \
    inline void ScatterName(__ubuf__ T* baseAddr, S& srcReg, V& index, MaskReg& mask, LNGRAD_AT) \
    { \
        VectorFunction& function = function_of(#ScatterName, where); \
        function.place(baseAddr, 0, 32, #ScatterName, where); \
        srcReg.loads.read(mask.upto); \
        std::vector<int64_t> places; \
        each_index(index, mask, where, #ScatterName, [&](int i, int64_t k) { \
            constexpr int lanes_apart = S::lanes / V::lanes; \
            const int64_t at = function.place(baseAddr + k, sizeof(T), 1, #ScatterName, where); \
            function.write(at, at + sizeof(T), where, &srcReg); \
            put_bytes(function, at, srcReg, i * lanes_apart * int(sizeof srcReg.lane[0]), sizeof(T), 0, where, #ScatterName); \
            places.push_back(k); \
        }); \
        std::sort(places.begin(), places.end()); \
        const auto twice = std::adjacent_find(places.begin(), places.end()); \
        if (twice != places.end()) broken(Rule::SAME_INDEX, where, #ScatterName, *twice); \
    }
LNGRAD_GATHER(Gather, Scatter)
LNGRAD_GATHER(DataCopyGather, DataCopyScatter)
#undef LNGRAD_GATHER
// Masks in memory: a bit a byte of the register, 32 bytes; US and PACK: 16 bytes, each bit twice; DS: 64 bytes, every second bit.
template <typename T, MaskDist dist> inline void load_mask(MaskReg& mask, T* src, Where where)
{
    constexpr int bytes = dist == MaskDist::DIST_US ? 16 : dist == MaskDist::DIST_DS ? 64 : 32;
    VectorFunction& function = function_of("LoadAlign", where);
    const int64_t at = function.place(src, bytes, bytes == 16 ? 16 : 32, "LoadAlign", where);
    function.read(at, at + bytes, where);
    for (int i = 0; i < VL; ++i) {
        const int bit = dist == MaskDist::DIST_US ? i / 2 : dist == MaskDist::DIST_DS ? 2 * i : i;
        mask.bit[i] = function.buffer.bytes[at + bit / 8] >> bit % 8 & 1;
        mask.origins.number[i] = function.origin(at + bit / 8, &mask, where);
    }
    mask.describe(1);
    if (function.doubtful(at, bytes)) mask.origins.held = Held::SOME;
}
template <typename T, MaskDist dist> inline void store_mask(T* dst, MaskReg& mask, Where where)
{
    constexpr int bytes = dist == MaskDist::DIST_PACK ? 16 : 32;
    VectorFunction& function = function_of("StoreAlign", where);
    const int64_t at = function.place(dst, bytes, bytes == 16 ? 16 : 32, "StoreAlign", where);
    uint8_t packed[bytes] = {};
    uint16_t numbers[bytes] = {};
    for (int i = 0; i < 8 * bytes; ++i) {
        const int bit = dist == MaskDist::DIST_PACK ? 2 * i : i;
        packed[i / 8] |= mask.bit[bit] << i % 8;
        numbers[i / 8] = std::max(numbers[i / 8], mask.origins.of(bit, Rule::BLANK_MASK));
    }
    function.write(at, at + bytes, where, &mask);
    std::memcpy(function.buffer.bytes + at, packed, bytes);
    function.mark(at, bytes);
    for (int b = 0; b < bytes; ++b) function.buffer.poison[at + b] = function.poison(numbers[b], where, "StoreAlign");
}
template <typename T, MaskDist dist = MaskDist::DIST_NORM>
inline void LoadAlign(MaskReg& mask, __ubuf__ T* srcAddr, LNGRAD_AT) { load_mask<T, dist>(mask, srcAddr, where); }
template <typename T, MaskDist dist = MaskDist::DIST_NORM>
inline void LoadAlign(MaskReg& mask, __ubuf__ T* srcAddr, AddrReg offset, LNGRAD_AT) { load_mask<T, dist>(mask, srcAddr + offset.elements, where); }
template <typename T, PostLiteral postMode, MaskDist dist = MaskDist::DIST_NORM>
inline void LoadAlign(MaskReg& mask, __ubuf__ T*& srcAddr, int32_t offset, LNGRAD_AT)
{
    load_mask<T, dist>(mask, srcAddr, where);
    srcAddr += offset;
}
template <typename T, MaskDist dist = MaskDist::DIST_NORM>
inline void StoreAlign(__ubuf__ T* dstAddr, MaskReg& mask, LNGRAD_AT) { store_mask<T, dist>(dstAddr, mask, where); }
template <typename T, MaskDist dist = MaskDist::DIST_NORM>
inline void StoreAlign(__ubuf__ T* dstAddr, MaskReg& mask, AddrReg offset, LNGRAD_AT) { store_mask<T, dist>(dstAddr + offset.elements, mask, where); }
template <typename T, PostLiteral postMode, MaskDist dist = MaskDist::DIST_NORM>
inline void StoreAlign(__ubuf__ T*& dstAddr, MaskReg& mask, int32_t offset, LNGRAD_AT)
{
    store_mask<T, dist>(dstAddr, mask, where);
    dstAddr += offset;
}
} // namespace Reg
} // namespace AscendC
#endif
