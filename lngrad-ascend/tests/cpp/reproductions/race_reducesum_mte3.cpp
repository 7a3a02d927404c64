// ReduceSum by count, then a copy out: A2's published ReduceSum ends with V_S, S_V and S_MTE3. x: float[64], y: float[1]
#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void k(GM_ADDR x, GM_ADDR y)
{
    TPipe pipe; TQue<TPosition::VECIN, 1> q; TBuf<TPosition::VECCALC> t;
    GlobalTensor<float> xg, yg; xg.SetGlobalBuffer((__gm__ float*)x, 64); yg.SetGlobalBuffer((__gm__ float*)y, 1);
    pipe.InitBuffer(q, 1, 256); pipe.InitBuffer(t, 320);
    LocalTensor<float> a = q.AllocTensor<float>(); DataCopy(a, xg, 64); q.EnQue(a); a = q.DeQue<float>();
    LocalTensor<float> s = t.Get<float>();
    ReduceSum(s, a, s[8], 64);
    DataCopyPad(yg, s, DataCopyExtParams{1, 4, 0, 0, 0});
    q.FreeTensor(a);
}
