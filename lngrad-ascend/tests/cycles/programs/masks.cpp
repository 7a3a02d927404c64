#include "kernel_operator.h"
using namespace AscendC;

extern "C" __global__ __aicore__ void k(GM_ADDR x, GM_ADDR y)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> here, there;
    pipe.InitBuffer(here, 4 * COUNT * 64);
    pipe.InitBuffer(there, 4 * COUNT * 64);
    LocalTensor<float> src = here.Get<float>(), dst = there.Get<float>();
    GlobalTensor<float> source, target;
    source.SetGlobalBuffer((__gm__ float*)x);
    target.SetGlobalBuffer((__gm__ float*)y);
    DataCopy(src, source, COUNT * 64);
    PipeBarrier<PIPE_ALL>();  // the scalar unit does not run ahead
    UnaryRepeatParams strides;
#if ONCE
    SetVectorMask<float, MaskMode::NORMAL>(0, 0xffffffffffffffff);
#endif
    for (int i = 0; i < COUNT; ++i) {
#if ONCE
        Adds<float, false>(dst[i * 64], src[i * 64], 1.0f, MASK_PLACEHOLDER, 1, strides);
#else
        Adds(dst[i * 64], src[i * 64], 1.0f, 64, 1, strides);
#endif
    }
    SetFlag<HardEvent::V_MTE3>(0);
    WaitFlag<HardEvent::V_MTE3>(0);
    DataCopy(target, dst, COUNT * 64);
}
