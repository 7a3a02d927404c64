#include "kernel_operator.h"
using namespace AscendC;
const __gm__ float TABLE[8] = {1, 2, 3, 4, 5, 6, 7, 8};
extern "C" __global__ __aicore__ void k(GM_ADDR x, GM_ADDR y)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 64);
    LocalTensor<float> local = buffer.Get<float>();
    GlobalTensor<float> in, out, table;
    in.SetGlobalBuffer((__gm__ float*)x + OFFSET, 8);
    out.SetGlobalBuffer((__gm__ float*)y, 8);
    table.SetGlobalBuffer(const_cast<__gm__ float*>(TABLE), 8);
    TURN
}
