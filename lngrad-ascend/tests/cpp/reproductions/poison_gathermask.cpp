// GatherMask over 64 floats, 8 of them copied in; COUNT of the 4 that are wanted and the 28 others are copied out. x: float[8], y: float[8]
#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void k(GM_ADDR x, GM_ADDR y)
{
    TPipe pipe; TQue<TPosition::VECIN, 1> q; TQue<TPosition::VECOUT, 1> o;
    GlobalTensor<float> xg, yg; xg.SetGlobalBuffer((__gm__ float*)x, 8); yg.SetGlobalBuffer((__gm__ float*)y, 8);
    pipe.InitBuffer(q, 1, 256); pipe.InitBuffer(o, 1, 256);
    LocalTensor<float> a = q.AllocTensor<float>(); DataCopy(a, xg, 8); q.EnQue(a); a = q.DeQue<float>();
    LocalTensor<float> b = o.AllocTensor<float>(); uint64_t n = 0;
    GatherMask(b, a, 1, false, 0, {1, 1, 8, 0}, n);
    o.EnQue(b); q.FreeTensor(a); b = o.DeQue<float>();
    DataCopyPad(yg, b, DataCopyExtParams{1, COUNT * 4, 0, 0, 0}); o.FreeTensor(b);
}
