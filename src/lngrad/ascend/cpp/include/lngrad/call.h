// The one door between C++ and the simulated NPU: a record of a call, and a function that runs it.
//
// Nothing here knows a rule or computes a number. A template of these headers fills a record and
// calls `run`; the simulator answers in the same record. A rule that a kernel breaks comes
// back as a fault, which unwinds the kernel's stack as the C++ exception `Fault`.
#ifndef LNGRAD_CALL_H
#define LNGRAD_CALL_H

#include <cstdint>
#include <cstring>
#include <initializer_list>

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

struct Call {
    int32_t op;
    int32_t line;
    const char* file;
    int32_t locals_used;
    int32_t integers_used;
    Operand local[LOCALS];
    int64_t integer[INTEGERS];
    double real;    // in: the scalar; out: a real result
    int64_t result; // out: an integral result; local[0] is a tensor result
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

// Set by whoever runs the kernel: by Python for a shared library, by the toolkit for a program.
inline Run run = nullptr;
inline thread_local Call record; // one a thread, for blocks run on threads of their own

} // namespace lngrad

// A program that is linked with the toolkit's library finds the simulator there.
extern "C" __attribute__((weak)) lngrad::Run lngrad_kernel_connect(void);

namespace lngrad {

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
    if (run == nullptr && lngrad_kernel_connect != nullptr) {
        run = lngrad_kernel_connect();
    }
    if (run == nullptr || run(&call) != 0) {
        throw Fault{};
    }
    return call;
}

inline void put(Call& call, const Operand& operand) { call.local[call.locals_used++] = operand; }
inline void put(Call& call, int64_t value) { call.integer[call.integers_used++] = value; }

template <typename... Values>
inline Call& perform(Op op, Where where, const Values&... values)
{
    Call& call = issue(op, where);
    (put(call, values), ...);
    return finish(call);
}

template <typename... Values>
inline Call& perform_with(Op op, Where where, double real, const Values&... values)
{
    Call& call = issue(op, where);
    (put(call, values), ...);
    call.real = real;
    return finish(call);
}

} // namespace lngrad

#endif
