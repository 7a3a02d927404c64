#include "kernel_operator.h"
extern "C" __global__ __aicore__ void scalars(GM_ADDR values, GM_ADDR halves, GM_ADDR brains, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) {
        ((half*)halves)[i] = half(((float*)values)[i]);
        ((bfloat16_t*)brains)[i] = bfloat16_t(((float*)values)[i]);
        ((float*)values)[i] = (float)((half*)halves)[i] + (float)((bfloat16_t*)brains)[i];
    }
}
