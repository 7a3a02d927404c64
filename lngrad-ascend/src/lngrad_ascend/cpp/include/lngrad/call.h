// The one entry between C++ and the simulated NPU: a record of a call, and a function that runs it.
//
// Nothing here knows a rule or computes a number, but for lanes of registers (registers.h). A template of these headers fills a
// record and calls `run`; the simulator writes its result into the same record. A rule that a kernel breaks comes
// back as a fault, which unwinds the kernel's stack as the C++ exception `Fault`.
#ifndef LNGRAD_CALL_H
#define LNGRAD_CALL_H

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "lngrad/numbers.h"

namespace lngrad {

// A tensor in the Unified Buffer: which hand-out of memory it belongs to, and its bytes there.
struct Operand {
    int32_t handle = -1;
    int32_t type = 0;
    int64_t start = 0;
    int64_t nbytes = 0;
};

constexpr int LOCALS = 8;
constexpr int INTEGERS = 40;

// A vector instruction fills `handle`, `real` and the first 21 integers: the simulator's descriptor.
// Everything else fills locals and integers, and counts them.
struct Call {
    int32_t op;
    int32_t line;
    const char* file;
    int32_t handle[4];
    uint8_t locals_used, integers_used, unused[6]; // Python reads them as one number
    double real;             // in: the scalar; out: a real result
    int64_t result;          // out: an integral result; local[0] is a tensor result
    int64_t integer[INTEGERS];
    Operand local[LOCALS];
};

struct Fault {};

// Where a kernel calls: as a default argument it is the place of the call itself.
struct Where {
    const char* file;
    int line;
    static constexpr Where here(const char* file = __builtin_FILE(), int line = __builtin_LINE())
    {
        return {file, line};
    }
};

using Run = int (*)(Call*); // 0: done; else there is a fault
using Answer = void (*)(Call*, int*); // the same, written where an interrupt on the way leaves what was there

// Set by whoever runs the kernel: by Python for a shared library, by tikicpulib.h for a program.
inline Run run = nullptr;
inline thread_local uint64_t buffer_address = 0; // of the Unified Buffer's first byte, in a vector function
inline thread_local Call record; // one a thread, for blocks run on threads of their own

// What SetVectorMask and SetMaskCount have set: the mask of instructions with isSetMask = false. A kernel begins with all bits.
struct MaskRegister {
    uint64_t low = ~uint64_t(0), high = ~uint64_t(0);
    bool counts = false;
};
inline thread_local MaskRegister mask_register;
// The control register: its bits, and those that were set. Only Cast of registers looks at them.
struct ControlRegister {
    uint64_t bits = 0, chosen = 0;
};
inline thread_local ControlRegister control;

inline Where last_place() { return {record.file, record.line}; }

inline Call& issue(Op op, Where where)
{
    Call& call = record;
    call.op = static_cast<int32_t>(op);
    call.line = where.line;
    call.file = where.file;
    call.locals_used = 0;
    call.integers_used = 0;
    call.real = 0;
    return call;
}

inline Call& finish(Call& call)
{
    if (run == nullptr || run(&call) != 0) {
        throw Fault{};
    }
    return call;
}

// Strides of an instruction with repeats, in blocks: between blocks, then between repeats.
struct Strides {
    int64_t dst_block = 1, src0_block = 1, src1_block = 1;
    int64_t dst_repeat = 8, src0_repeat = 8, src1_repeat = 8;
};

// Which elements: `form` 0 counts them, 1 takes the first `n` of each repeat, 2 takes the bits n and high.
struct Elements {
    int64_t form = 0, n = 0, high = 0, repeat = 1;
};

inline void vector(Op op, Where where, double real, const Elements& elements, const Strides& strides,
                   const Operand& dst, const Operand& src0 = {}, const Operand& src1 = {}, int64_t extra = 0,
                   const Operand& src2 = {})
{
    Call& call = issue(op, where);
    const Operand* tensors[4] = {&dst, &src0, &src1, &src2};
    for (int i = 0; i < 4; ++i) {
        call.handle[i] = tensors[i]->handle;
    }
    call.real = real;
    const int64_t descriptor[21] = {
        int64_t(op), dst.type | int64_t(src0.type) << 8 | int64_t(src1.type) << 16 | int64_t(src2.type) << 24,
        elements.form, elements.n, elements.high, elements.repeat,
        strides.dst_block, strides.src0_block, strides.src1_block,
        strides.dst_repeat, strides.src0_repeat, strides.src1_repeat,
        dst.start, dst.start + dst.nbytes, src0.start, src0.start + src0.nbytes,
        src1.start, src1.start + src1.nbytes, extra, src2.start, src2.start + src2.nbytes,
    };
    std::memcpy(call.integer, descriptor, sizeof descriptor);
    finish(call);
}

inline void put(Call& call, const Operand& operand) { call.local[call.locals_used++] = operand; }
template <typename N, std::enable_if_t<std::is_integral_v<N> || std::is_enum_v<N>, int> = 0>
void put(Call& call, N value)
{
    call.integer[call.integers_used++] = static_cast<int64_t>(value);
}
template <typename... Values>
void put_each(Call& call, const Values&... values)
{
    (put(call, values), ...);
}

template <typename... Values>
inline Call& perform_with(Op op, Where where, double real, const Values&... values)
{
    Call& call = issue(op, where);
    put_each(call, values...);
    call.real = real;
    return finish(call);
}
template <typename... Values>
inline Call& perform(Op op, Where where, const Values&... values)
{
    return perform_with(op, where, 0, values...);
}

} // namespace lngrad

#endif
