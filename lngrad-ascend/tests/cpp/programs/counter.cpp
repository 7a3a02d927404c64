#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void counter(GM_ADDR x, GM_ADDR y) {
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 1024);
    GlobalTensor<float> source, target;
    source.SetGlobalBuffer((__gm__ float*)x);
    target.SetGlobalBuffer((__gm__ float*)y, 0); // 0 is no size
    LocalTensor<float> a = buffer.Get<float>();
    LocalTensor<float> b = a[128];
    DataCopy(a, source, 104);
    Duplicate(b, 5.0f, 104);
    PipeBarrier<PIPE_ALL>();
    SetMaskCount();
    SetVectorMask<float, MaskMode::COUNTER>(0, 100);
#ifdef SUMS
    SetVectorMask<float, MaskMode::COUNTER>(0, SUMS);
    BlockReduceMax<float, false>(b, a, 7, MASK_PLACEHOLDER, 1, 1, 8);
    WholeReduceSum<float, false>(b[24], a, MASK_PLACEHOLDER, 7, 1, 1, 8);
    if (SUMS == 128) return; // the mode ends with the kernel
#elif GAP
    Add<float, false>(a, a, a, MASK_PLACEHOLDER, 1, {1, 1, 1, 8, 8, GAP});
#else
    Copy<float, false>(b, a, MASK_PLACEHOLDER, 1, {1, 1, 0, 0});
#endif
    SetMaskNorm();
    ResetMask();
    PipeBarrier<PIPE_ALL>();
    DataCopy(target, GAP ? a : b, 104);
}
