// What a kernel asks of the launch: its block, its tiling, its workspace.
#ifndef LNGRAD_SYSTEM_H
#define LNGRAD_SYSTEM_H

#include "lngrad/sync.h"

namespace AscendC {

inline int64_t GetBlockIdx(Where where = Where::here()) { return lngrad::perform(Op::BLOCK_IDX, where).result; }
inline int64_t GetBlockNum(Where where = Where::here()) { return lngrad::perform(Op::BLOCK_NUM, where).result; }
inline int64_t GetSubBlockIdx() { return 0; }
inline int64_t GetSubBlockNum() { return 1; }
inline int64_t GetTaskRation() { return 1; }

inline GM_ADDR GetUserWorkspace(GM_ADDR workspace, Where where = Where::here())
{
    int64_t address = static_cast<int64_t>(reinterpret_cast<intptr_t>(workspace));
    return reinterpret_cast<GM_ADDR>(lngrad::perform(Op::USER_WORKSPACE, where, address).result);
}
inline void SetSysWorkspace(GM_ADDR) {}

inline float ToFloat(const bfloat16_t& value) { return static_cast<float>(value); }
inline float Cast(const bfloat16_t& value) { return static_cast<float>(value); }
inline bfloat16_t ToBfloat16(const float& value) { return bfloat16_t(value); }

} // namespace AscendC

namespace lngrad {

inline int64_t tiling_key(Where where = Where::here()) { return perform(Op::TILING_KEY, where).result; }

// Bytes of global memory into the kernel's own variables. Device memory can't be read by the host directly.
inline void read_global(void* target, const void* address, int64_t size, Where where)
{
    perform(Op::GLOBAL_READ, where, static_cast<int64_t>(reinterpret_cast<intptr_t>(target)),
            static_cast<int64_t>(reinterpret_cast<intptr_t>(address)), size);
}

template <typename T>
T tiling_data(const void* address, Where where = Where::here())
{
    T data;
    read_global(&data, address, sizeof data, where);
    return data;
}

} // namespace lngrad

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
