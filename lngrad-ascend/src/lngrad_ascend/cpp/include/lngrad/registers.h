// Registers of Ascend 950 as plain C++ lanes, and the vector function that runs: what it reads and writes.
//
// The lanes are computed here, compiled with the kernel; the rules of memory and every text stay in the simulator, to which a
// vector function is one instruction. A load is no read: only the lanes that a mask lets through are, where they are used.
#ifndef LNGRAD_REGISTERS_H
#define LNGRAD_REGISTERS_H
#include <exception>
#include <vector>
#include "lngrad/tensor.h"
#define __simd_vf__
#define __simd_callee__
#define __local_mem__
#define PRELOAD(n)
#define __VEC_SCOPE__ if (lngrad::VectorScope lngrad_scope("__VEC_SCOPE__", lngrad::Where::here()); false) {} else
#define LNGRAD_AT Where where = Where::here() // the place of a call: the last parameter
#define LNGRAD_T typename T = DefaultType
#define LNGRAD_IF(R) typename = if_register<R>
#define LNGRAD_TYPES(T, U) typename T = DefaultType, typename U = DefaultType // as kernels may name them
namespace lngrad {
constexpr int VL = 256; // bytes of a register
// Bytes of the Unified Buffer, and the place of the first access to them. Python reads it as four numbers.
struct Range {
    int64_t start, stop;
    const char* file;
    int64_t line;
};
// Why lanes of a register have no value: a number from 256 on. Smaller ones are those of the Unified Buffer's poison.
struct Doubt {
    Rule rule;
    Where where, loaded;
    int64_t origin; // the poison that it becomes in memory, when it has got there
};
constexpr int FIRST_DOUBT = 256;

template <typename... Values> inline int64_t broken(Rule rule, Where where, const char* api, const Values&... values)
{ return perform(Op::VECTOR_RULE, where, rule, reinterpret_cast<intptr_t>(api), values...).result; }
// The vector function that runs on this thread.
class VectorFunction {
public:
    struct Buffer {
        uint8_t* bytes = nullptr;
        uint16_t* poison = nullptr;      // a number for each byte without a value
        const uint8_t* edges = nullptr;  // the blocks where an allocation begins
        int64_t size = 0;
    };
    Buffer buffer;
    std::vector<Doubt> doubts;
    void begin(const char* name, Where where)
    {
        clear();
        name_ = name, where_ = where;
        perform(Op::VECTOR_BEGIN, where.line != 0 ? where : last_place(), reinterpret_cast<intptr_t>(&buffer));
        if (int64_t(stored_.size()) != buffer.size) forget();
        buffer_address = reinterpret_cast<uintptr_t>(buffer.bytes);
    }
    void finish()
    {
        for (const Tail& tail : tails_) broken(Rule::STORE_POST, tail.where, "StoreUnAlign", tail.bytes);
        if (reads_.empty() && writes_.empty()) return;
        tidy(reads_);
        tidy(writes_);
        perform(Op::VECTOR_FUNCTION, where_, reinterpret_cast<intptr_t>(name_), reinterpret_cast<intptr_t>(reads_.data()),
                reads_.size(), reinterpret_cast<intptr_t>(writes_.data()), writes_.size());
    }
    void clear()
    {
        order();
        reads_.clear(), writes_.clear(), doubts.clear(), tails_.clear();
        buffer_address = 0, accesses_ = 0;
    }
    // The first byte of an access in the Unified Buffer.
    int64_t place(const void* address, int64_t bytes, int64_t multiple, const char* api, Where where)
    {
        const int64_t at = reinterpret_cast<intptr_t>(address) - reinterpret_cast<intptr_t>(buffer.bytes);
        if (at < 0 || at + bytes > buffer.size) {
            broken(Rule::OUTSIDE, where, api, at, bytes);
            throw Fault{}; // also where a device would go on
        }
        if (at % multiple != 0) broken(Rule::ALIGNMENT, where, api, at, multiple);
        if (++accesses_ == MOST_ACCESSES) broken(Rule::ENDLESS, where, api, MOST_ACCESSES);
        return at;
    }
    void read(int64_t start, int64_t stop, Where where)
    {
        if (where_.line == 0) where_ = where;
        extend(reads_, start, stop, where);
    }
    void write(int64_t start, int64_t stop, Where where, const void* source)
    {
        if (where_.line == 0) where_ = where;
        extend(writes_, start, stop, where);
        if (start < stop) last_[start / 32] = {start, stop, source, where, epoch_}, stores_ = true;
    }
    void mark(int64_t start, int64_t bytes) { std::memset(&stored_[start], epoch_, bytes); }
    // LocalMemBar: what was stored before is there.
    void order()
    {
        if (!stores_) return;
        stores_ = false;
        if (++epoch_ == 0) forget();
    }
    // Whether bytes may lack a value: nobody has written them, or a store of this function is still on its way.
    bool doubtful(int64_t at, int bytes) const { return bytes == VL ? look<VL>(at, VL) : look<1>(at, bytes); }
    // The number of why a byte has no value for this register, or 0.
    uint16_t origin(int64_t at, const void* target, Where loaded)
    {
        if (stores_ && stored_[at] == epoch_) {
            const Store* store = &last_[at / 32];
            for (int64_t block = at / 32; block >= 0 && block > at / 32 - 2 * VL / 32; --block) {
                if (last_[block].epoch == epoch_ && last_[block].start <= at && at < last_[block].stop) {
                    store = &last_[block];
                    break;
                }
            }
            if (store->source != target) return doubt({Rule::UNORDERED, store->where, loaded, 0}); // else the register orders them
        }
        const uint16_t poison = buffer.poison[at];
        return poison == 0 ? 0 : (poison & 255) ? poison & 255 : 1;
    }
    uint16_t doubt(const Doubt& reason)
    {
        for (size_t i = doubts.size(); i-- > 0;) {
            const Doubt& other = doubts[i];
            if (other.rule == reason.rule && other.where.line == reason.where.line && other.loaded.line == reason.loaded.line &&
                other.where.file == reason.where.file)
                return static_cast<uint16_t>(FIRST_DOUBT + i);
        }
        doubts.push_back(reason);
        return static_cast<uint16_t>(FIRST_DOUBT + doubts.size() - 1);
    }
    // What a lane with this number leaves in memory.
    uint16_t poison(uint16_t number, Where where, const char* api)
    {
        if (number < FIRST_DOUBT) return number;
        Doubt& reason = doubts[number - FIRST_DOUBT];
        if (reason.rule == Rule::UNORDERED) {
            broken(reason.rule, where, api, reinterpret_cast<intptr_t>(reason.where.file), reason.where.line,
                   reinterpret_cast<intptr_t>(reason.loaded.file), reason.loaded.line);
        } else if (reason.origin == 0) {
            reason.origin = broken(reason.rule, reason.where, api);
        }
        return static_cast<uint16_t>(reason.origin);
    }
    // What an unaligned register still holds: `bytes` is 0 when it holds nothing.
    void keep(const void* unaligned, int64_t bytes, Where where)
    {
        for (size_t i = 0; i < tails_.size(); ++i) {
            if (tails_[i].unaligned == unaligned) tails_.erase(tails_.begin() + i--);
        }
        if (bytes != 0) tails_.push_back({unaligned, bytes, where});
    }

private:
    struct Store {
        int64_t start, stop;
        const void* source;
        Where where;
        uint8_t epoch;
    };
    struct Tail {
        const void* unaligned;
        int64_t bytes;
        Where where;
    };

    void forget()
    {
        stored_.assign(buffer.size, 0), last_.assign(buffer.size / 32 + 1, {0, 0, nullptr, {"", 0}, 0});
        epoch_ = 1;
    }
    template <int unit> // a loop of fixed length is vectorised
    bool look(int64_t at, int bytes) const
    {
        for (const int64_t end = at + bytes; at < end; at += unit) {
            uint16_t missing = 0;
            uint8_t moving = 0;
            const uint16_t* poison = buffer.poison + at;
            const uint8_t *stored = &stored_[at], epoch = epoch_;
            for (int i = 0; i < unit; ++i) missing |= poison[i];
            for (int i = 0; i < unit; ++i) moving |= stored[i] == epoch;
            if (missing | (stores_ & moving)) return true;
        }
        return false;
    }
    // Whether two ranges are one: they overlap, or touch within an allocation.
    bool joins(int64_t start, int64_t stop, const Range& range) const
    {
        if (start > range.stop || range.start > stop) return false;
        const int64_t seam = start == range.stop ? start : range.start == stop ? stop : 1;
        return seam % 32 != 0 || !buffer.edges[seam / 32];
    }
    void extend(std::vector<Range>& ranges, int64_t start, int64_t stop, Where where) const
    {
        if (start >= stop) return;
        const size_t count = ranges.size(), last = count < 4 ? count : 4;
        for (size_t back = 1; back <= last; ++back) {
            Range& range = ranges[count - back];
            if (joins(start, stop, range)) {
                range.start = std::min(range.start, start);
                range.stop = std::max(range.stop, stop);
                return;
            }
        }
        ranges.push_back({start, stop, where.file, where.line});
    }
    void tidy(std::vector<Range>& ranges) const
    {
        std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.start < b.start; });
        size_t count = 0;
        for (const Range& range : ranges) {
            if (count != 0 && joins(range.start, range.stop, ranges[count - 1])) {
                ranges[count - 1].stop = std::max(ranges[count - 1].stop, range.stop);
            } else {
                ranges[count++] = range;
            }
        }
        ranges.resize(count);
    }

    static constexpr int64_t MOST_ACCESSES = 1 << 24; // of 64 passes over the buffer; more make a loop that does not end
    int64_t accesses_ = 0;
    const char* name_ = "";
    Where where_{"", 0};
    uint8_t epoch_ = 1;
    std::vector<uint8_t> stored_; // for each byte the epoch of its last store; bars begin a new one
    std::vector<Store> last_;     // by the block where it begins, the last store
    bool stores_ = false;         // there was one since the last bar
    std::vector<Range> reads_, writes_;
    std::vector<Tail> tails_;
};
inline thread_local VectorFunction* running_function = nullptr; // a plain pointer: reading it calls nothing
// One vector function: what it has read and written is checked at its end.
class VectorScope {
public:
    VectorScope(const char* name, Where where) : outer_(running_function), exceptions_(std::uncaught_exceptions())
    {
        static thread_local VectorFunction function;
        if (outer_ == nullptr) function.begin(name, where);
        running_function = &function;
    }
    VectorScope(const VectorScope&) = delete;
    ~VectorScope() noexcept(false)
    {
        VectorFunction* function = running_function;
        running_function = outer_;
        if (outer_ != nullptr) return;
        struct Cleared {
            VectorFunction* function;
            ~Cleared() { function->clear(); }
        } cleared{function};
        if (std::uncaught_exceptions() == exceptions_) function->finish();
    }

private:
    VectorFunction* outer_;
    int exceptions_;
};
inline VectorFunction& function_of(const char* api, Where where)
{
    if (running_function == nullptr) {
        broken(Rule::NO_FUNCTION, where, api);
        throw Fault{};
    }
    return *running_function;
}
// Where lanes of a register were loaded from. `upto`: the register's bytes that are used; `done`: those that are noted as read.
struct Loaded {
    int64_t at = 0;
    Where where{"", 0};
    int16_t upto = 0, done = 0, bytes = 0;
    int8_t up = 1, down = 1; // a byte of the register is up/down of one in memory; 0: any takes all

    void read(int limit)
    {
        limit = limit < upto ? limit : upto;
        if (limit <= done) return;
        const int first = up == 0 ? 0 : done * up / down, last = up == 0 ? bytes : limit * up / down;
        running_function->read(at + first, at + (last < bytes ? last : bytes), where);
        done = static_cast<int16_t>(limit);
    }
};
// The loads that a register's lanes come from; more than four are noted as read at once.
struct Loads {
    int count = 0;
    Loaded load[4];
    inline void add(const Loads& other, int upto) { for (int i = 0; i < other.count; ++i) push(other.load[i], upto); }
    void push(const Loaded& loaded, int upto)
    {
        upto = upto < loaded.upto ? upto : loaded.upto;
        if (upto <= loaded.done) return;
        for (int i = 0; i < count; ++i) {
            if (load[i].at == loaded.at && load[i].bytes == loaded.bytes && load[i].down == loaded.down) {
                load[i].upto = static_cast<int16_t>(std::max<int>(load[i].upto, upto));
                load[i].done = std::min(load[i].done, loaded.done);
                return;
            }
        }
        if (count == 4) {
            load[0].read(2 * VL);
            for (int i = 1; i < 4; ++i) load[i - 1] = load[i];
            count = 3;
        }
        load[count] = loaded;
        load[count++].upto = static_cast<int16_t>(upto);
    }
    void read(int upto) { for (int i = 0; i < count; ++i) load[i].read(upto); }
    void operator=(const Loads& other)
    {
        count = other.count;
        for (int i = 0; i < count; ++i) load[i] = other.load[i];
    }
    Loads() = default;
    Loads(const Loads& other) { *this = other; }
};
enum class Held : uint8_t { VALUES, SOME, NOTHING }; // what lanes have a value: all, some, none
// Beside the lanes of a register or a mask: for each byte why it has no value, where it is SOME.
template <int bytes> struct Origins {
    Held held = Held::NOTHING;
    uint16_t number[bytes];
    Where declared;
    explicit Origins(Where where) : declared(where) {}
    Origins(const Origins& other) : held(other.held), declared(other.declared) { copy(other); }
    void operator=(const Origins& other)
    {
        held = other.held;
        copy(other);
    }
    uint16_t of(int byte, Rule rule) const
    {
        if (held == Held::VALUES) return 0;
        return held == Held::SOME ? number[byte] : running_function->doubt({rule, declared, {"", 0}, 0});
    }

private:
    void copy(const Origins& other)
    {
        if (held == Held::SOME) std::memcpy(number, other.number, sizeof number);
        if (held == Held::NOTHING) declared = other.declared;
    }
};
template <int size> struct WordOf;
template <> struct WordOf<1> { using type = uint8_t; };
template <> struct WordOf<2> { using type = uint16_t; };
template <> struct WordOf<4> { using type = uint32_t; };
template <> struct WordOf<8> { using type = uint64_t; };
template <typename T> using Word = typename WordOf<sizeof(T)>::type;
} // namespace lngrad
namespace AscendC {
constexpr uint32_t VECTOR_REG_WIDTH = lngrad::VL;
constexpr uint32_t GetVecLen() { return lngrad::VL; }
namespace Reg {
using lngrad::VL;
using ReduceType = AscendC::ReduceType;

enum class RegLayout { UNKNOWN = -1, ZERO, ONE, TWO, THREE };
enum class SatMode { UNKNOWN = -1, NO_SAT, SAT };
enum class IndexOrder { INCREASE_ORDER, DECREASE_ORDER };
enum class MaskMergeMode { UNKNOWN, MERGING, ZEROING };
enum class HistogramsBinType { BIN0 = 0, BIN1, BIN2, BIN3, BIN4, BIN5, BIN6, BIN7 };
enum class HistogramsType { FREQUENCY = 0, ACCUMULATE };
enum class HighLowPart { LOWEST, HIGHEST };
enum class PostLiteral { POST_MODE_NORMAL, POST_MODE_UPDATE };
enum class MaskPattern { ALL, VL1, VL2, VL3, VL4, VL8, VL16, VL32, VL64, VL128, M3, M4, H, Q, ALLF = 15 };
enum class LoadDist {
    DIST_NORM, DIST_BRC_B8, DIST_BRC_B16, DIST_BRC_B32, DIST_US_B8 = 6, DIST_US_B16, DIST_DS_B8, DIST_DS_B16, DIST_BDINTLV,
    DIST_DINTLV_B8, DIST_DINTLV_B16, DIST_UNPACK_B8, DIST_UNPACK_B16, DIST_BLK, DIST_E2B_B16, DIST_E2B_B32, DIST_UNPACK_B32,
    DIST_DINTLV_B32, DIST_UNPACK4_B8, DIST_SPLT4CHN_B8, DIST_SPLT2CHN_B8, DIST_SPLT2CHN_B16,
};
enum class MaskDist { DIST_NORM, DIST_US = 1, DIST_DS = 2, DIST_PACK = 1 };
enum class StoreDist {
    DIST_NORM_B8, DIST_NORM_B16, DIST_NORM_B32, DIST_FIRST_ELEMENT_B8, DIST_FIRST_ELEMENT_B16, DIST_FIRST_ELEMENT_B32,
    DIST_PACK_B16, DIST_PACK_B32, DIST_INTLV_B8, DIST_INTLV_B16, DIST_PACK_B64, DIST_INTLV_B32, DIST_PACK4_B32,
    DIST_MRG4CHN_B8, DIST_MRG2CHN_B8, DIST_MRG2CHN_B16, DIST_NORM,
};
enum class MemType { VEC_STORE, VEC_LOAD, SCALAR_STORE, SCALAR_LOAD, VEC_ALL, SCALAR_ALL };
enum class DataCopyMode { DATA_BLOCK_COPY };
enum class GatherMaskMode { NO_STORE_REG, STORE_REG };
enum class StoreMode { NOSTORED = 0, STORED };
enum class PairReduce { SUM = 0 };
struct DefaultType {};
// The defaults of what is below, under shorter names.
inline constexpr MaskMergeMode zeroing = MaskMergeMode::ZEROING;
inline constexpr PostLiteral updating = PostLiteral::POST_MODE_UPDATE;
inline constexpr LoadDist plain_load = LoadDist::DIST_NORM;
inline constexpr StoreDist plain_store = StoreDist::DIST_NORM;
inline constexpr RegLayout first_layout = RegLayout::ZERO;
struct CastTrait {
    RegLayout layoutMode = RegLayout::UNKNOWN;
    SatMode satMode = SatMode::UNKNOWN;
    MaskMergeMode mrgMode = MaskMergeMode::UNKNOWN;
    RoundMode roundMode = RoundMode::UNKNOWN;
};
inline constexpr CastTrait castTrait{};
struct RegTrait {
    int REG_NUM = 1;
};
inline constexpr RegTrait RegTraitNumOne{1}, RegTraitNumTwo{2};
// Every register of a trait has the same layout: kernels cast references of one to another.
template <typename T, const RegTrait& regTrait = RegTraitNumOne> struct RegTensor {
    using ActualT = T;
    static constexpr RegTrait trait = regTrait;
    static constexpr int REG_NUM = regTrait.REG_NUM;
    static constexpr int bytes = VL * REG_NUM, lanes = bytes / int(sizeof(T));
    static constexpr int step = VL / lanes; // a mask's bits for a lane

    alignas(64) T lane[lanes];
    lngrad::Loads loads;
    lngrad::Origins<bytes> origins;
    RegTensor(const char* file = __builtin_FILE(), int line = __builtin_LINE()) : origins(Where{file, line}) {}
    uint16_t origin(int i) const
    {
        uint16_t number = origins.of(i * int(sizeof(T)), lngrad::Rule::BLANK_REGISTER);
        if (origins.held == lngrad::Held::SOME) {
            for (size_t b = 1; b < sizeof(T); ++b) number = std::max(number, origins.number[i * sizeof(T) + b]);
        }
        return number;
    }
};
template <typename R> struct is_register : std::false_type {};
template <typename T, const RegTrait& trait> struct is_register<RegTensor<T, trait>> : std::true_type {};
template <typename R> using if_register = std::enable_if_t<is_register<R>::value>;
template <typename S> using if_scalar = std::enable_if_t<!is_register<S>::value>;
// One byte a bit. `upto`: no bit from here on is set; `width`: of the elements that it was made for.
struct MaskReg {
    alignas(64) uint8_t bit[VL];
    int16_t upto = 0;
    uint8_t width = 1;
    bool prefix = false; // the lowest elements and no others
    lngrad::Origins<VL> origins;
    MaskReg(const char* file = __builtin_FILE(), int line = __builtin_LINE()) : origins(Where{file, line}) {}
    inline bool on(int byte) const { return bit[byte] != 0; }
    // How many elements of `size` bits are on, where they are the lowest; -1 where they are not.
    int first(int size) const { return prefix && size >= width ? (upto + size - 1) / size : -1; }
    // Note what the bits are.
    void describe(int size)
    {
        width = static_cast<uint8_t>(size);
        upto = 0;
        int count = 0;
        for (int i = 0; i < VL; ++i) {
            if (bit[i] != 0) upto = static_cast<int16_t>(i + 1), ++count;
        }
        if (upto != 0) upto = static_cast<int16_t>((upto - 1) / size * size + size);
        prefix = count * size == upto;
        origins.held = lngrad::Held::VALUES;
    }
};
using vector_bool = MaskReg;

struct UnalignReg {
    bool primed = false;
    uintptr_t next = 0; // behind the last element of a chain
    int64_t held = 0;   // bytes of it that are not in memory yet
};
using UnalignRegForLoad = UnalignReg;
using UnalignRegForStore = UnalignReg;

struct AddrReg {
    int64_t elements = 0;
};
template <typename T>
AddrReg CreateAddrReg(uint16_t index0, uint32_t stride0, uint16_t index1 = 0, uint32_t stride1 = 0, uint16_t index2 = 0,
                      uint32_t stride2 = 0, uint16_t index3 = 0, uint32_t stride3 = 0)
{ return {int64_t(index0) * stride0 + int64_t(index1) * stride1 + int64_t(index2) * stride2 + int64_t(index3) * stride3}; }
// The lowest `count` elements.
template <typename T, const RegTrait& regTrait> inline MaskReg first_elements(uint32_t count)
{
    constexpr int size = int(sizeof(T)) / regTrait.REG_NUM, lanes = VL / size;
    MaskReg mask;
    auto* word = reinterpret_cast<typename lngrad::WordOf<size>::type*>(mask.bit);
    for (int i = 0; i < lanes; ++i) word[i] = uint32_t(i) < count;
    mask.upto = static_cast<int16_t>(count * size);
    mask.width = size;
    mask.prefix = true;
    mask.origins.held = lngrad::Held::VALUES;
    return mask;
}
template <typename T, const RegTrait& regTrait = RegTraitNumOne> inline MaskReg UpdateMask(uint32_t& scalarValue)
{
    constexpr uint32_t lanes = VL * regTrait.REG_NUM / sizeof(T);
    const uint32_t count = scalarValue < lanes ? scalarValue : lanes;
    scalarValue -= count;
    return first_elements<T, regTrait>(count);
}
template <typename T, MaskPattern mode = MaskPattern::ALL, const RegTrait& regTrait = RegTraitNumOne>
inline MaskReg CreateMask()
{
    constexpr int size = int(sizeof(T)) / regTrait.REG_NUM, lanes = VL / size;
    if constexpr (mode == MaskPattern::M3 || mode == MaskPattern::M4) {
        MaskReg mask;
        std::memset(mask.bit, 0, VL);
        for (int i = 0; i < lanes; ++i) mask.bit[i * size] = i % (mode == MaskPattern::M3 ? 3 : 4) == 0;
        mask.describe(size);
        return mask;
    } else {
        constexpr int counts[] = {lanes, 1, 2, 3, 4, 8, 16, 32, 64, 128, 0, 0, lanes / 2, lanes / 4, 0, 0};
        constexpr int count = counts[int(mode)] < lanes ? counts[int(mode)] : lanes;
        return first_elements<T, regTrait>(count);
    }
}
// Whether stores of one kind are ordered before accesses of another. Only stores before loads are followed here.
template <MemType src, MemType dst> inline void LocalMemBar(LNGRAD_AT)
{
    constexpr bool from = src == MemType::VEC_STORE || src == MemType::VEC_ALL;
    constexpr bool to = dst == MemType::VEC_LOAD || dst == MemType::VEC_ALL;
    if (from && to) lngrad::function_of("LocalMemBar", where).order();
}
} // namespace Reg
namespace MicroAPI = Reg;

template <auto function, typename... Arguments> inline void VF_CALL(Arguments&&... arguments)
{
    lngrad::VectorScope scope("VF_CALL", Where{"", 0});
    function(std::forward<Arguments>(arguments)...);
}
} // namespace AscendC
// Behind a pack of arguments there is no room for the place of the call: it is that of the function's first access.
template <auto function, typename... Arguments> inline void asc_vf_call(Arguments&&... arguments)
{
    lngrad::VectorScope scope("asc_vf_call", lngrad::Where{"", 0});
    function(std::forward<Arguments>(arguments)...);
}
using AscendC::Reg::vector_bool;
enum { POST_UPDATE = 1 };
enum { PAT_ALL = 0 };
#define LNGRAD_MASK_BUILTINS(bits, T) \
    inline vector_bool pset_b##bits(int) { return AscendC::Reg::CreateMask<T>(); } \
    inline vector_bool plt_b##bits(uint32_t& count, int) { return AscendC::Reg::UpdateMask<T>(count); }
LNGRAD_MASK_BUILTINS(8, uint8_t)
LNGRAD_MASK_BUILTINS(16, uint16_t)
LNGRAD_MASK_BUILTINS(32, uint32_t)
#undef LNGRAD_MASK_BUILTINS
#endif
