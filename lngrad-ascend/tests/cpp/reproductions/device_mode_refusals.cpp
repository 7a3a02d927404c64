// What a device takes and the checker does not: MODE 0 InitBuffer of 0 bytes, 1 a block copy inside the UB that moves data down
// over itself, 2 Sign in place, 3 a mask of 128 for float, 4 SetSize beyond, 5 Copy in counter mode with repeat strides 0 (in both),
// 6 a copy of 8 floats from an array of 4, 7 GetWithOffset beyond. x: float[64] (MODE 6: float[4]), y: float[64]
#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void k(GM_ADDR x, GM_ADDR y)
{
    TPipe pipe; TQue<TPosition::VECIN, 1> q; TQue<TPosition::VECOUT, 1> o, none; TBuf<TPosition::VECCALC> t;
    GlobalTensor<float> xg, yg; xg.SetGlobalBuffer((__gm__ float*)x); yg.SetGlobalBuffer((__gm__ float*)y, 64);
    pipe.InitBuffer(q, 1, 256); pipe.InitBuffer(o, 1, 256); pipe.InitBuffer(t, 1024);
#if MODE == 0
    pipe.InitBuffer(none, 1, 0);
#endif
    LocalTensor<float> a = q.AllocTensor<float>();
#if MODE == 6
    DataCopy(a, xg, 8);
#else
    DataCopy(a, xg, 64);
#endif
    q.EnQue(a); a = q.DeQue<float>();
    LocalTensor<float> b = o.AllocTensor<float>(); LocalTensor<float> c = t.Get<float>(); Duplicate(c, 1.0f, 256); Duplicate(b, 0.0f, 64);
#if MODE == 1
    DataCopy(c, c[8], 56);
#elif MODE == 2
    Sign(c, c, 64);
#elif MODE == 3
    LocalTensor<uint8_t> m = t.GetWithOffset<uint8_t>(32, 768); Duplicate(m.ReinterpretCast<uint16_t>(), (uint16_t)1, 16);
    Select(c, m, c, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, 128, 1, {1, 1, 1, 8, 8, 8});
#elif MODE == 4
    b.SetSize(1024);
#elif MODE == 5
    SetMaskCount(); SetVectorMask<float, MaskMode::COUNTER>(64); Copy<float, false>(c, a, AscendC::MASK_PLACEHOLDER, 1, {1, 1, 0, 0}); SetMaskNorm(); ResetMask();
#elif MODE == 7
    c = t.GetWithOffset<float>(264, 0);
#endif
    Adds(b, a, 1.0f, MODE == 6 ? 4 : 64);
    o.EnQue(b); q.FreeTensor(a); b = o.DeQue<float>(); DataCopyPad(yg, b, DataCopyExtParams{1, MODE == 6 ? 16u : 256u, 0, 0, 0}); o.FreeTensor(b);
}
