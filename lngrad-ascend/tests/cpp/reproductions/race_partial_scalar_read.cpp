// A buffer is filled twice by DataCopy, and read by the scalar unit between the fills: auto-sync waits for the first copy,
// and the second one is issued after that. With -D FLAGS the kernel says so itself. x: float[16], y: float[8]
#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void k(GM_ADDR x, GM_ADDR y)
{
    TPipe pipe; TBuf<TPosition::VECCALC> t, o; pipe.InitBuffer(t, 32); pipe.InitBuffer(o, 32);
    GlobalTensor<float> xg, yg; xg.SetGlobalBuffer((__gm__ float*)x, 16); yg.SetGlobalBuffer((__gm__ float*)y, 8);
    LocalTensor<float> a = t.Get<float>(), b = o.Get<float>();
    float sum = 0;
    for (int i = 0; i < 2; ++i) {
#ifdef FLAGS
        SetFlag<HardEvent::S_MTE2>(EVENT_ID0); WaitFlag<HardEvent::S_MTE2>(EVENT_ID0);
#endif
        DataCopy(a, xg[8 * i], 8);
#ifdef FLAGS
        SetFlag<HardEvent::MTE2_S>(EVENT_ID0); WaitFlag<HardEvent::MTE2_S>(EVENT_ID0);
#endif
        for (int j = 0; j < 8; ++j) sum += a.GetValue(j);
    }
    for (int j = 0; j < 8; ++j) b.SetValue(j, sum);
    DataCopy(yg, b, 8);
}
