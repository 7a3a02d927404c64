// The CPU-debug side of a sample: global memory, and kernels run from a C++ main or a unit test.
//
// ICPU_RUN_KF runs every block of a kernel on the simulated NPU and returns when all have ended. A rule
// that the kernel breaks is thrown as std::runtime_error with the simulator's text.
#ifndef LNGRAD_TIKICPULIB_H
#define LNGRAD_TIKICPULIB_H

#include <functional>
#include <stdexcept>
#include <string>

#include "kernel_operator.h"
#include "lngrad/entry.h"
#include "lngrad/watch.h"

// In the toolkit's library: what answers this program's calls, and the text of this thread's last fault.
extern "C" lngrad::Answer lngrad_kernel_connect(void);
extern "C" const char* lngrad_kernel_fault(void);

namespace lngrad {

// The first call of the program starts the simulator.
inline Answer answer_of_simulator = nullptr;
inline int connect_and_run(Call* call)
{
    if (answer_of_simulator == nullptr) answer_of_simulator = lngrad_kernel_connect();
    int outcome = 1;
    if (answer_of_simulator != nullptr) answer_of_simulator(call, &outcome);
    return outcome;
}
inline const bool connects = (run = connect_and_run, true);

inline std::runtime_error fault_of(const char* what)
{
    return std::runtime_error(std::string(what) + ": " + lngrad_kernel_fault());
}

template <typename... Values>
inline int64_t on_host(const char* what, Op op, Where where, const Values&... values)
{
    try {
        return perform(op, where, values...).result;
    } catch (const Fault&) {
        throw fault_of(what);
    }
}

// A kernel with its arguments, and the exception of its own that it ended with: the program may catch it.
struct Launch {
    const char* name;
    std::function<void()> kernel;
    std::exception_ptr thrown;
};

// What the simulator calls once a block.
inline int run_block(void* closure)
{
    Launch& launch = *static_cast<Launch*>(closure);
    const Watch watch(launch.name);
    try {
        launch.kernel();
        return 0;
    } catch (const Fault&) {
        return 1;
    } catch (...) {
        launch.thrown = std::current_exception();
        return 2;
    }
}

template <typename Kernel, typename... Arguments>
void run_kernel(const char* name, Where where, Kernel kernel, int64_t blocks, Arguments... arguments)
{
    Launch launch{name, [&] { kernel(arguments...); }, nullptr};
    try {
        on_host(name, Op::RUN_KERNEL, where, reinterpret_cast<intptr_t>(name), reinterpret_cast<intptr_t>(&run_block),
                reinterpret_cast<intptr_t>(&launch), blocks);
    } catch (const std::runtime_error&) {
        if (launch.thrown) std::rethrow_exception(launch.thrown);
        throw;
    }
}

} // namespace lngrad

namespace AscendC {

inline void* GmAlloc(size_t size, Where where = Where::here())
{
    return reinterpret_cast<void*>(lngrad::on_host("GmAlloc", lngrad::Op::GM_ALLOC, where, int64_t(size)));
}

inline void GmFree(void* address, Where where = Where::here())
{
    lngrad::on_host("GmFree", lngrad::Op::GM_FREE, where, reinterpret_cast<intptr_t>(address));
}

inline void SetKernelMode(KernelMode) {}

} // namespace AscendC

#define ICPU_SET_TILING_KEY(key) \
    lngrad::on_host("ICPU_SET_TILING_KEY", lngrad::Op::SET_TILING_KEY, lngrad::Where::here(), int64_t(key))
#define ICPU_RUN_KF(kernel, blocks, ...) \
    lngrad::run_kernel(#kernel, lngrad::Where::here(), kernel, int64_t(blocks), ##__VA_ARGS__)

// A launch as host programs write it: ACLRT_LAUNCH_KERNEL(kernel)(blocks, stream, arguments…).
#define ACLRT_LAUNCH_KERNEL(...)                                                                       \
    [&](auto blocks, auto /* stream */, auto... arguments) {                                              \
        lngrad::run_kernel(#__VA_ARGS__, lngrad::Where::here(), __VA_ARGS__, int64_t(blocks), arguments...);   \
        return 0;                                                                                         \
    }

#endif
