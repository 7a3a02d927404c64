// What is told when a kernel takes its process down: one line on stderr, with the Ascend C call that came last.
//
// A signal's handler, or the handler of exit(), writes it; then the process ends as it would have. Handlers of the
// program's own stay. SIGXCPU is what ends a kernel that has taken too long.
#ifndef LNGRAD_WATCH_H
#define LNGRAD_WATCH_H

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <exception>
#include <string>
#include <unistd.h>

#include "lngrad/call.h"
#pragma weak dladdr // in a library of its own before glibc 2.34

namespace lngrad {

inline const char* volatile watched = nullptr; // the kernel that runs
inline volatile sig_atomic_t blocks_inside = 0;

// Text without memory of the heap, which may be what is broken.
struct Line {
    char text[1024];
    size_t used = 0;
    Line& operator<<(const char* more)
    {
        const size_t length = strnlen(more, sizeof text - used);
        std::memcpy(text + used, more, length);
        used += length;
        return *this;
    }
    Line& operator<<(int number)
    {
        char digits[12] = {};
        int at = 11;
        do {
            digits[--at] = char('0' + number % 10);
            number /= 10;
        } while (number > 0);
        return *this << digits + at;
    }
};

inline Line& add_place(Line& line)
{
    const Call& call = record;
    if (call.file == nullptr) return line << "; it had made no Ascend C call yet";
    const char* slash = std::strrchr(call.file, '/');
    return line << "; its last Ascend C call was at " << (slash ? slash + 1 : call.file) << ":" << call.line;
}

inline void tell(const char* what)
{
    Line line;
    line << "lngrad: " << (watched ? watched : "a kernel") << ": " << what;
    add_place(line) << "\n";
    if (::write(2, line.text, line.used) < 0) return;
}

struct Ending {
    int number;
    const char* text;
};
constexpr Ending ENDINGS[] = {
    {SIGSEGV, "SIGSEGV: it touched memory that is not there, or called itself without end"},
    {SIGBUS, "SIGBUS: it touched memory that is not there"},
    {SIGFPE, "SIGFPE: a whole number was divided by zero"},
    {SIGILL, "SIGILL: it came to no instruction, as behind __builtin_trap"},
    {SIGABRT, "SIGABRT: it called abort, or an assertion failed"},
    {SIGXCPU, "it was stopped"},
    {SIGINT, "it was interrupted"},
};
constexpr const char* CONSTANT = "SIGSEGV: it wrote to memory of its own that is constant, as a const table is";

inline void on_signal(int number, siginfo_t* info, void*)
{
    Dl_info file = {}; // of a const table's memory; the page behind an array is of none
    const bool constant = number == SIGSEGV && info->si_code == SEGV_ACCERR && dladdr && dladdr(info->si_addr, &file);
    for (const Ending& ending : ENDINGS) {
        if (ending.number == number && blocks_inside > 0) tell(constant ? CONSTANT : ending.text);
    }
    std::signal(number, SIG_DFL);
    std::raise(number);
}

inline void on_exit()
{
    if (blocks_inside > 0) {
        tell("it called exit");
        ::_exit(1);
    }
}

// Around a block: on the thread that runs it.
class Watch {
public:
    explicit Watch(const char* kernel)
    {
        static const bool installed = (install(), true);
        (void)installed;
        static thread_local char stack[1 << 16]; // a handler needs one where the kernel's is full
        stack_t other = {};
        other.ss_sp = stack;
        other.ss_size = sizeof stack;
        sigaltstack(&other, nullptr);
        watched = kernel, mask_register = {}, control = {};
        blocks_inside = blocks_inside + 1;
    }
    ~Watch() { blocks_inside = blocks_inside - 1; }

private:
    static void install()
    {
        std::atexit(on_exit);
        for (const Ending& ending : ENDINGS) {
            struct sigaction known = {}, ours = {};
            ours.sa_sigaction = on_signal;
            ours.sa_flags = SA_ONSTACK | SA_NODEFER | SA_SIGINFO;
            if (sigaction(ending.number, nullptr, &known) == 0 && known.sa_handler == SIG_DFL) {
                sigaction(ending.number, &ours, nullptr);
            }
        }
    }
};

// The text of an exception that a kernel has thrown; to be called where it was caught.
inline std::string thrown()
{
    std::string text = "it threw an exception";
    try {
        throw;
    } catch (const std::exception& error) {
        text += std::string(": ") + error.what();
    } catch (...) {
    }
    Line place;
    add_place(place);
    return text.append(place.text, place.used);
}

} // namespace lngrad

#endif
