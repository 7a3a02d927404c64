// The samples' "tileNum ASSERT(...)": on a device ASSERT is nothing.
#include "kernel_operator.h"
extern "C" __global__ __aicore__ void k(GM_ADDR y) { uint32_t tileNum = 2, n; n = tileNum ASSERT(tileNum != 0 && "tile num can not be zero!"); (void)n; }
