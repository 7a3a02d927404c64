#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void bound(GM_ADDR x, GM_ADDR y)
{
    TPipe pipe;
    TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> queue;
    pipe.InitBuffer(queue, 1, 256);
    GlobalTensor<float> source, target;
    source.SetGlobalBuffer((__gm__ float*)x, 64);
    target.SetGlobalBuffer((__gm__ float*)y, 64);
    LocalTensor<float> a = queue.AllocTensor<float>();
    DataCopy(a, source, 64);
#if MODE == 0 // the manuals' copy: in, then out
    queue.EnQue(a);
    a = queue.DeQue<float>();
#elif MODE == 1 // the same with the positions named
    queue.EnQue<TPosition::VECIN, TPosition::VECOUT, float>(a);
    a = queue.DeQue<TPosition::VECIN, TPosition::VECOUT, float>();
#else // in, computed, out
    queue.EnQue<TPosition::GM, TPosition::VECIN, float>(a);
    a = queue.DeQue<TPosition::GM, TPosition::VECIN, float>();
    Adds(a, a, 1.0f, 64);
#if MODE == 2
    queue.EnQue<TPosition::VECOUT, TPosition::GM, float>(a);
    a = queue.DeQue<TPosition::VECOUT, TPosition::GM, float>();
#endif
#endif
    DataCopy(target, a, 64);
    queue.FreeTensor(a);
}
