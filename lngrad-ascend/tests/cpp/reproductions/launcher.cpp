// Every tutorial's kernel file ends so.
#include "kernel_operator.h"
extern "C" __global__ __aicore__ void k(GM_ADDR y) { AscendC::GlobalTensor<float> g; g.SetGlobalBuffer((__gm__ float*)y, 8); g.SetValue(0, 1.0f); }
#ifndef __CCE_KT_TEST__
void k_do(uint32_t blocks, void* l2ctrl, void* stream, uint8_t* y) { k<<<blocks, l2ctrl, stream>>>(y); aclrtSynchronizeStream(stream); }
#endif
