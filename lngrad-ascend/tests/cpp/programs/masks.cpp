#include "kernel_operator.h"
using namespace AscendC;
using Pointer = void (*)(const LocalTensor<float>&, const LocalTensor<float>&, const LocalTensor<float>&, uint64_t,
                         const uint8_t, const BinaryRepeatParams&);
template <Pointer function>
void masked(const LocalTensor<float>& a, const LocalTensor<float>& x) { function(a, x, x, 3, 1, {1, 1, 1, 8, 8, 8}); }
extern "C" __global__ __aicore__ void masks(GM_ADDR x, GM_ADDR y) {
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 2048);
    GlobalTensor<float> source, target;
    source.SetGlobalBuffer((__gm__ float*)x, 64);
    target.SetGlobalBuffer((__gm__ float*)y, 448);
    const BinaryRepeatParams two = {1, 1, 1, 8, 8, 8};
    const UnaryRepeatParams one = {1, 1, 8, 8};
    uint64_t bits[2] = {5, 0};
    const uint64_t constant[2] = {5, 0};
    const int32_t count = 3;
    LocalTensor<float> a = buffer.Get<float>(), from = a[448];
    DataCopy(from, source, 64);
    PipeBarrier<PIPE_ALL>();
    Duplicate(a, 0.0f, 448);
    masked<Add<float>>(a, from);
    Add(a[64], from, from, bits, 1, two);
    Add(a[128], from, from, constant, 1, two);
    Adds(a[192], from, 1.0f, constant, 1, one);
    Adds(a[256], from, 1.0f, count, 1, one);
    Add<float, false>(a[320], from, from, MASK_PLACEHOLDER, 1, two);
    if (ZERO) Exp(a[384], from, 0, 1, one);
    PipeBarrier<PIPE_ALL>();
    DataCopy(target, a, 448);
}
