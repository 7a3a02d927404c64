// The bounded functions of memory: 0 is success, and nothing is written past the room.
#ifndef LNGRAD_SECUREC_H
#define LNGRAD_SECUREC_H

#include <cstring>

using errno_t = int;
constexpr errno_t EOK = 0;

inline errno_t memcpy_s(void* target, size_t room, const void* source, size_t count)
{
    if (count > room) return -1;
    std::memcpy(target, source, count);
    return EOK;
}
inline errno_t memset_s(void* target, size_t room, int value, size_t count)
{
    if (count > room) return -1;
    std::memset(target, value, count);
    return EOK;
}

#endif
