#include "kernel_operator.h"
using namespace AscendC;
// Each stage has two buffers of 64 KiB: four do not fit into the Unified Buffer of an A2.
#define FLAG(event) SetFlag<HardEvent::event>(0), WaitFlag<HardEvent::event>(0)
constexpr uint32_t BYTES = 65536, N = 64;
enum { SHARED, AGAIN, NESTED, ANEW, NO_RESET, STALE, HELD, LEAK, LONG, MANY, LARGER, OLD, NO_MEMORY, GIVEN_BACK,
       OUTER, OUTER_LEAK, OUTER_RACE, SCOPE, GONE, TENSOR_GONE };
using In = TQue<TPosition::VECIN, 1>;
using Out = TQue<TPosition::VECOUT, 1>;

struct Stages {
    TPipe pipe;
    TBufPool<TPosition::VECCALC> whole;
    TBufPool<TPosition::VECCALC, 2> first, second;
    In in1, in2;
    Out out1, out2;
    TBuf<> last;
    GlobalTensor<float> x, y;
    int32_t mode = 0;

    __aicore__ inline void stage(In& in, Out& out, float factor, int32_t at)
    {
        LocalTensor<float> a = in.AllocTensor<float>();
        if (mode == AGAIN) // by address: whose it is, the pool in use says
            DataCopyPadGm2UBImpl((__ubuf__ float*)a.GetPhyAddr(), (__gm__ float*)x.GetPhyAddr(),
                                 DataCopyExtParams{1, 4 * N, 0, 0, 0}, DataCopyPadExtParams<float>());
        else
            DataCopy(a, x, N);
        in.EnQue(a);
        a = in.DeQue<float>();
        LocalTensor<float> b = out.AllocTensor<float>();
        Muls(b, a, factor, N);
        out.EnQue(b);
        in.FreeTensor(a);
        b = out.DeQue<float>();
        DataCopy(y[at], b, N);
        if (mode != LEAK && mode != OUTER_LEAK) out.FreeTensor(b);
    }
    __aicore__ inline void run()
    {
        if (mode == NESTED || (mode >= OUTER && mode < SCOPE)) {
            pipe.InitBufPool(whole, 2 * BYTES + 4096);
            whole.InitBufPool(first, 2 * BYTES - 31); // rounded up
            whole.InitBufPool(second, 2 * BYTES, first);
        } else if (mode != NO_MEMORY) {
            pipe.InitBufPool(first, 2 * BYTES);
            pipe.InitBufPool(second, 2 * BYTES + 32 * (mode == LARGER), first);
        }
        if (mode == GIVEN_BACK) pipe.Reset();
        first.InitBuffer(in1, 1 + (mode == MANY), mode == MANY ? 32 : BYTES);
        first.InitBuffer(out1, 1, BYTES + (mode == LONG));
        if (mode == NESTED) pipe.InitBuffer(last, 32);
        if (mode == AGAIN) {
            second.InitBuffer(in2, 1, BYTES);
            second.InitBuffer(out2, 1, BYTES);
        }
        for (int32_t turn = 0; turn < (mode == AGAIN ? 3 : 1); ++turn) {
            stage(in1, out1, 2.0f + turn, 0);
            if (mode >= OUTER) whole.Reset();
            else if (mode != NO_RESET) first.Reset();
            if (mode == OUTER) PipeBarrier<PIPE_ALL>();
            if (mode != AGAIN) {
                TBufPool<TPosition::VECCALC, 2>& pool = mode == ANEW || mode == OLD ? first : second;
                if (mode == OLD) pipe.InitBufPool(first, 2 * BYTES, second);
                pool.InitBuffer(in2, 1, BYTES);
                pool.InitBuffer(out2, 1, BYTES);
            }
            stage(mode == OLD ? in1 : in2, out2, 3.0f + turn, N);
            second.Reset();
        }
    }
    __aicore__ inline void scoped() // the first pool's C++ object ends before the second's buffers are used
    {
        TBuf<> buf;
        LocalTensor<float> tensor;
        pipe.InitBufPool(second, 2 * BYTES);
        {
            TBufPool<TPosition::VECIN, 3> local;
            pipe.InitBufPool(local, 2 * BYTES, second);
            local.InitBuffer(in1, 1, BYTES);
            local.InitBuffer(out1, 1, BYTES - 32);
            local.InitBuffer(buf, 32);
            tensor = buf.Get<float>();
            Duplicate(tensor, 1.0f, 8);
            stage(in1, out1, 2.0f, 0);
        }
        second.InitBuffer(in2, 1, BYTES);
        second.InitBuffer(out2, 1, BYTES);
        if (mode == TENSOR_GONE) Duplicate(tensor, 1.0f, 8);
        stage(mode == GONE ? in1 : in2, out2, 3.0f, N);
        second.Reset();
    }
    __aicore__ inline void temporary() // what the first stage has written is read in the second, or written there again
    {
        TBuf<> buf1, buf2;
        pipe.InitBufPool(first, BYTES);
        pipe.InitBufPool(second, BYTES, first);
        first.InitBuffer(buf1, BYTES);
        second.InitBuffer(buf2, BYTES);
        LocalTensor<float> a = buf1.Get<float>();
        Duplicate(a, 1.0f, 2 * N);
        first.Reset();
        LocalTensor<float> b = buf2.Get<float>();
        PipeBarrier<PIPE_V>();
        if (mode == HELD) Duplicate(a, 2.0f, 2 * N);
        FLAG(V_MTE3);
        DataCopy(y, b, 2 * N);
    }
};

extern "C" __global__ __aicore__ void pools(GM_ADDR x, GM_ADDR y, GM_ADDR mode)
{
    Stages stages;
    stages.x.SetGlobalBuffer((__gm__ float*)x, N);
    stages.y.SetGlobalBuffer((__gm__ float*)y, 2 * N);
    GlobalTensor<int32_t> number;
    number.SetGlobalBuffer((__gm__ int32_t*)mode, 1);
    stages.mode = number.GetValue(0);
    if (stages.mode >= SCOPE) stages.scoped();
    else stages.mode == STALE || stages.mode == HELD ? stages.temporary() : stages.run();
}
