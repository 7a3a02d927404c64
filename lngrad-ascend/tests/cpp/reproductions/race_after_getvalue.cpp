// Two copies in, then a scalar read of the second: MTE2_S stands behind both, and the copy out is issued after that wait.
// x: float[64], i: int32[8], y: float[64]
#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void k(GM_ADDR x, GM_ADDR i, GM_ADDR y)
{
    TPipe pipe; TQue<TPosition::VECIN, 1> q, r;
    GlobalTensor<float> xg, yg; GlobalTensor<int32_t> ig; xg.SetGlobalBuffer((__gm__ float*)x, 64); yg.SetGlobalBuffer((__gm__ float*)y, 64); ig.SetGlobalBuffer((__gm__ int32_t*)i, 8);
    pipe.InitBuffer(q, 1, 256); pipe.InitBuffer(r, 1, 32);
    LocalTensor<float> a = q.AllocTensor<float>(); LocalTensor<int32_t> b = r.AllocTensor<int32_t>();
    DataCopy(a, xg, 64); DataCopy(b, ig, 8);
    q.EnQue(a); r.EnQue(b); a = q.DeQue<float>(); b = r.DeQue<int32_t>();
#ifdef EXPLICIT
    SetFlag<HardEvent::MTE2_S>(EVENT_ID0); WaitFlag<HardEvent::MTE2_S>(EVENT_ID0);
#endif
    if (b.GetValue(0) >= 0) DataCopy(yg, a, 64);
    q.FreeTensor(a); r.FreeTensor(b);
}
