#include "kernel_operator.h"
#include "types.h"
extern "C" __global__ __aicore__ void k(GM_ADDR x)
{
    AscendC::GlobalTensor<int32_t> memory;
    memory.SetGlobalBuffer((__gm__ int32_t*)x, 4);
#if ORIG_DTYPE_X == DT_FLOAT16
    memory.SetValue(0, place(WANTED));
    memory.SetValue(1, place(OTHER));
    memory.SetValue(2, place(ge::DT_FLOAT));
    memory.SetValue(3, ORIG_DTYPE_X);
#endif
}
