// Tiling structs as the host's operator code declares them: fields in order, with set_ and get_ functions.
#ifndef LNGRAD_TILINGDATA_BASE_H
#define LNGRAD_TILINGDATA_BASE_H

#include <cstddef>
#include <cstdint>
#include <cstring>

#define BEGIN_TILING_DATA_DEF(Name) struct Name {
#define TILING_DATA_FIELD_DEF(Type, name) \
    Type name = {}; \
    void set_##name(Type value) { name = value; } \
    Type get_##name() const { return name; }
#define TILING_DATA_FIELD_DEF_ARR(Type, count, name) \
    Type name[count] = {}; \
    void set_##name(const Type* values) { std::memcpy(name, values, sizeof name); } \
    Type* get_##name() { return name; }
#define TILING_DATA_FIELD_DEF_STRUCT(Type, name) alignas(8) Type name = {};
#define END_TILING_DATA_DEF \
    std::size_t GetDataSize() const { return sizeof *this; } \
    void SaveToBuffer(void* target, std::size_t size) const \
    { \
        std::memcpy(target, this, size < sizeof *this ? size : sizeof *this); \
    } \
    }
#define REGISTER_TILING_DATA_CLASS(operator_name, Name)

#endif
