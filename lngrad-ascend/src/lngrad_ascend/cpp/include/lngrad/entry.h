// How a kernel is called from outside C++: its arguments by address, and a fault as a return value.
#ifndef LNGRAD_ENTRY_H
#define LNGRAD_ENTRY_H

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "lngrad/call.h"

namespace lngrad {

template <typename T>
T argument(void* const* place)
{
    T value;
    std::memcpy(static_cast<void*>(&value), place, sizeof value < sizeof(void*) ? sizeof value : sizeof(void*));
    return value;
}

template <typename... Arguments, std::size_t... Index>
void call_with(void (*kernel)(Arguments...), void* const* arguments, std::index_sequence<Index...>)
{
    static_assert(((sizeof(Arguments) <= sizeof(void*)) && ...),
                  "lngrad: a kernel takes pointers and numbers; a struct goes through GM_ADDR tiling");
    kernel(argument<Arguments>(arguments + Index)...);
}

// 0: done. 1: the simulator has a fault to tell.
template <typename... Arguments>
int call_kernel(void (*kernel)(Arguments...), void* const* arguments)
{
    try {
        call_with(kernel, arguments, std::index_sequence_for<Arguments...>{});
        return 0;
    } catch (const Fault&) {
        return 1;
    }
}

// What stands for a launch in a kernel's file: the launch is made from outside.
#define LNGRAD_ELSEWHERE(...) static_cast<void>(0)

// What a parameter takes, as Python's struct names it: P an address, f and d floats, e 16 bits of one, q a whole number.
template <typename T>
constexpr char kind()
{
    if (std::is_pointer_v<T>) return 'P';
    if (std::is_integral_v<T> || std::is_enum_v<T>) return 'q';
    return std::is_same_v<T, float> ? 'f' : std::is_same_v<T, double> ? 'd' : 'e';
}

template <typename... Arguments>
const char* kinds(void (*)(Arguments...))
{
    static const char all[] = {kind<Arguments>()..., '\0'};
    return all;
}

} // namespace lngrad

extern "C" inline int aclrtSynchronizeStream(void*) { return 0; } // behind a launch in a kernel's file

#endif
