/* How a program with Ascend C kernels of its own finds the simulator; the headers of kernels ask for these two. */
#include "shim.h"

enum { CONNECT_KERNELS = -2, KERNEL_FAULT = -3 }; /* as in attach.py */

/* What answers the calls of kernels: int (*)(Call*). Null if there is no interpreter. */
LNGRAD_EXPORT void *lngrad_kernel_connect(void)
{
    lngrad_frame frame = {.function = CONNECT_KERNELS};
    lngrad_call(&frame, 0);
    return (void *)(intptr_t)frame.results[0];
}

/* The text of this thread's last fault, until the next call from it. */
LNGRAD_EXPORT const char *lngrad_kernel_fault(void)
{
    static _Thread_local char text[LNGRAD_TEXT_BYTES];
    text[0] = '\0';
    lngrad_frame frame = {.function = KERNEL_FAULT, .text = text};
    lngrad_call(&frame, 0);
    return text;
}
