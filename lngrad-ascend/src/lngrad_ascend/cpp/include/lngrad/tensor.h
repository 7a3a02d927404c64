// LocalTensor and GlobalTensor: windows on the Unified Buffer and on global memory.
//
// A window is arithmetic on addresses. Whether an access through it is allowed, the simulator says.
#ifndef LNGRAD_TENSOR_H
#define LNGRAD_TENSOR_H

#include "lngrad/types.h"

namespace lngrad {

// What `tensor(i)` gives: it reads and writes one element through the simulator.
template <typename Tensor, typename T>
class Element {
public:
    Element(const Tensor& tensor, uint64_t index, Where where) : tensor_(tensor), index_(index), where_(where) {}
    operator T() const { return tensor_.GetValue(index_, where_); }
    template <typename U, std::enable_if_t<std::is_arithmetic_v<U> && !std::is_same_v<U, T>, int> = 0>
    explicit operator U() const { return static_cast<U>(static_cast<T>(*this)); }
    const Element& operator+=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) + value); }
    const Element& operator=(T value) const
    {
        tensor_.SetValue(index_, value, where_);
        return *this;
    }
    const Element& operator=(const Element& other) const { return *this = static_cast<T>(other); }

private:
    const Tensor& tensor_;
    uint64_t index_;
    Where where_;
};

// What `one + other` gives, until it is assigned to a tensor: its length counts, for a comparison that of the sources.
template <typename Perform>
struct Symbol {
    Perform into;
    Symbol(Perform perform) : into(perform) {}
};
#define LNGRAD_SYMBOL(sign, Name, ...) \
    auto operator sign(const LocalTensor& other) const \
    { \
        return lngrad::Symbol{[one = *this, other](auto& dst) { Name(__VA_ARGS__, lngrad::last_place()); }}; \
    }
#define LNGRAD_ARITHMETIC(sign, Name) LNGRAD_SYMBOL(sign, Name, dst, one, other, dst.GetSize())
#define LNGRAD_BITWISE(sign, Name) \
    LNGRAD_SYMBOL(sign, Name, bits_of(dst), bits_of(one), bits_of(other), uint32_t(dst.GetSize() * sizeof(T) / 2))
#define LNGRAD_COMPARISON(sign, mode) LNGRAD_SYMBOL(sign, Compare, dst, one, other, mode, one.GetSize())

} // namespace lngrad

namespace AscendC {

using lngrad::Op;
using lngrad::Operand;

template <typename T>
class LocalTensor {
public:
    using PrimType = T;

    LocalTensor() = default;
    explicit LocalTensor(const Operand& operand) : operand_(operand)
    {
        operand_.type = static_cast<int32_t>(lngrad::type_of<T>());
    }

    // Memory by its address, without a queue.
    LocalTensor(TPosition pos, uint32_t addr, uint32_t tileSize, Where where = Where::here())
        : LocalTensor(lngrad::perform(Op::LOCAL_AT, where, pos, lngrad::type_of<T>(), addr, int64_t(tileSize) * int64_t(sizeof(T)) / per_byte).local[0])
    {
        SetPosition(pos);
    }

    const Operand& operand() const { return operand_; } operator const Operand&() const { return operand_; }

    static constexpr int64_t per_byte = std::is_same_v<T, int4b_t> ? 2 : 1;

    uint32_t GetSize() const { return static_cast<uint32_t>(operand_.nbytes * per_byte / int64_t(sizeof(T))); }
    void SetSize(const uint32_t size, Where where = Where::here())
    {
        lngrad::perform(Op::LOCAL_SET_SIZE, where, operand_, size);
        operand_.nbytes = int64_t(size) * sizeof(T);
    }
    void SetShapeInfo(const ShapeInfo& info) { shape_ = info; } const ShapeInfo& GetShapeInfo() const { return shape_; }
    void SetBufferLen(uint32_t size, Where where = Where::here()) { SetSize(size, where); }

    LocalTensor operator[](const uint32_t offset) const
    {
        LocalTensor rest = *this;
        rest.operand_.start += int64_t(offset) * int64_t(sizeof(T)) / per_byte;
        rest.operand_.nbytes -= int64_t(offset) * int64_t(sizeof(T)) / per_byte;
        return rest;
    }

    T GetValue(const uint32_t index, Where where = Where::here()) const
    {
        return lngrad::scalar_of<T>(lngrad::perform(Op::LOCAL_GET, where, operand_, index));
    }
    template <typename U>
    void SetValue(const uint32_t index, const U value, Where where = Where::here()) const
    {
        lngrad::perform_with(Op::LOCAL_SET, where, static_cast<double>(static_cast<T>(value)), operand_, index, whole(static_cast<T>(value)));
    }
    lngrad::Element<LocalTensor, T> operator()(const uint32_t offset, Where where = Where::here()) const
    {
        return {*this, offset, where};
    }

    template <typename U>
    LocalTensor<U> ReinterpretCast() const
    {
        return LocalTensor<U>(operand_);
    }

    // The bytes themselves, as the CPU build of CANN gives them: what is read and written there is not checked.
    uint64_t GetPhyAddr(Where where = Where::here()) const
    {
        if (lngrad::buffer_address != 0 && operand_.handle >= 0) return lngrad::buffer_address + operand_.start;
        return static_cast<uint64_t>(lngrad::perform(Op::LOCAL_ADDRESS, where, operand_).result);
    }
    uint64_t GetPhyAddr(const uint32_t offset, Where where = Where::here()) const
    {
        return GetPhyAddr(where) + uint64_t(offset) * sizeof(T);
    }

    template <typename Perform>
    void operator=(const lngrad::Symbol<Perform>& symbol) { symbol.into(*this); }
    LNGRAD_ARITHMETIC(+, Add) LNGRAD_ARITHMETIC(-, Sub) LNGRAD_ARITHMETIC(*, Mul) LNGRAD_ARITHMETIC(/, Div)
    LNGRAD_BITWISE(&, And) LNGRAD_BITWISE(|, Or)
    LNGRAD_COMPARISON(<, CMPMODE::LT) LNGRAD_COMPARISON(>, CMPMODE::GT) LNGRAD_COMPARISON(==, CMPMODE::EQ)
    LNGRAD_COMPARISON(<=, CMPMODE::LE) LNGRAD_COMPARISON(>=, CMPMODE::GE) LNGRAD_COMPARISON(!=, CMPMODE::NE)

    int32_t GetPosition() const { return position_; }
    void SetPosition(TPosition position) { position_ = static_cast<int32_t>(position); }
    void SetUserTag(int32_t tag) { tag_ = tag; } int32_t GetUserTag() const { return tag_; }

    static int64_t whole(T value)
    {
        if constexpr (std::is_integral_v<T>) return static_cast<int64_t>(value);
        else return 0;
    }

private:
    static LocalTensor<uint16_t> bits_of(const LocalTensor& tensor) { return tensor.template ReinterpretCast<uint16_t>(); }

    Operand operand_;
    ShapeInfo shape_;
    int32_t position_ = static_cast<int32_t>(TPosition::VECCALC);
    int32_t tag_ = 0;
};

template <typename T>
class GlobalTensor {
public:
    using PrimType = T;

    // 0 is no size, as in CANN, which checks none: to the end of the memory that the address lies in.
    void SetGlobalBuffer(__gm__ T* buffer, uint64_t bufferSize = 0)
    {
        address_ = buffer;
        size_ = bufferSize == 0 ? -1 : static_cast<int64_t>(bufferSize);
    }

    const __gm__ T* GetPhyAddr() const { return address_; }
    __gm__ T* GetPhyAddr(const uint64_t offset) const { return address_ + offset; }
    uint64_t GetSize() const { return size_ < 0 ? 0 : static_cast<uint64_t>(size_); }

    GlobalTensor operator[](const uint64_t offset) const
    {
        GlobalTensor rest = *this;
        rest.address_ += offset / LocalTensor<T>::per_byte;
        if (size_ >= 0) {
            rest.size_ = size_ - static_cast<int64_t>(offset);
            rest.size_ = rest.size_ < 0 ? 0 : rest.size_;
        }
        return rest;
    }

    T GetValue(const uint64_t offset, Where where = Where::here()) const
    {
        return lngrad::scalar_of<T>(lngrad::perform(Op::GLOBAL_GET, where, *this, offset));
    }
    void SetValue(const uint64_t offset, T value, Where where = Where::here()) const
    {
        lngrad::perform_with(Op::GLOBAL_SET, where, static_cast<double>(value), *this, offset, LocalTensor<T>::whole(value));
    }
    lngrad::Element<GlobalTensor, T> operator()(const uint64_t offset, Where where = Where::here()) const
    {
        return {*this, offset, where};
    }

    template <typename U>
    GlobalTensor<U> ReinterpretCast() const
    {
        GlobalTensor<U> other;
        other.SetGlobalBuffer(reinterpret_cast<U*>(address_), size_ < 0 ? 0 : uint64_t(size_) * sizeof(T) / sizeof(U));
        return other;
    }
    void SetL2CacheHint(CacheMode mode) { bypass_ = mode == CacheMode::CACHE_MODE_DISABLE; }

    // As numbers of a call: the address, the size, the type and whether copies pass the L2 cache by.
    friend void put(lngrad::Call& call, const GlobalTensor& tensor)
    {
        lngrad::put_each(call, reinterpret_cast<intptr_t>(tensor.address_), tensor.size_, int64_t(lngrad::type_of<T>()) | int64_t(tensor.bypass_) << 8);
    }

private:
    __gm__ T* address_ = nullptr;
    int64_t size_ = 0;
    bool bypass_ = false;
};

} // namespace AscendC

#endif
