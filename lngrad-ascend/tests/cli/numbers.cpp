// A kernel that takes numbers, and writes them.
#include "kernel_operator.h"

extern "C" __global__ __aicore__ void numbers(GM_ADDR x, int32_t n, float scale, uint8_t flag, half offset)
{
    AscendC::GlobalTensor<float> written;
    written.SetGlobalBuffer((__gm__ float*)x, 4);
    const float values[] = {float(n), scale, float(flag), float(offset)};
    for (int i = 0; i < 4; i++) written.SetValue(i, values[i]);
}
