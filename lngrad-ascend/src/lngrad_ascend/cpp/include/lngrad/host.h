// Questions of a host program that Python answers by name: shapes and numbers in, bytes out.
#ifndef LNGRAD_HOST_H
#define LNGRAD_HOST_H

#include <cstddef>
#include <vector>

#include "lngrad/ge_types.h"
#include "tikicpulib.h"

namespace AscendC {
using TensorShape = ge::Shape;
using TensorDataType = ge::DataType;
} // namespace AscendC

namespace lngrad {

// Throws std::runtime_error where Python refuses. `numbers` follow the dimensions.
inline void ask_host(const char* name, void* out, std::size_t bytes, const ge::Shape& shape,
                     std::initializer_list<int64_t> numbers = {}, Where where = Where::here())
{
    Call& call = issue(Op::ASK_HOST, where);
    put_each(call, reinterpret_cast<intptr_t>(name), reinterpret_cast<intptr_t>(out), bytes, shape.GetDimNum());
    for (int64_t one : shape.GetDims()) put(call, one);
    for (int64_t one : numbers) put(call, one);
    try {
        finish(call);
    } catch (const Fault&) {
        throw fault_of(name);
    }
}

// The largest and the smallest temporary buffer, in bytes.
inline void ask_sizes(const char* name, uint32_t& largest, uint32_t& smallest, const ge::Shape& shape,
                      std::initializer_list<int64_t> numbers, Where where = Where::here())
{
    uint32_t sizes[2];
    ask_host(name, sizes, sizeof sizes, shape, numbers, where);
    largest = sizes[0];
    smallest = sizes[1];
}

} // namespace lngrad

#endif
