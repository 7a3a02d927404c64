#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void cube(GM_ADDR y)
{
    TPipe pipe;
    TBufPool<TPosition::A1> pool;
    TBuf<> buf;
    pipe.InitBufPool(pool, 1024);
    pool.InitBuffer(buf, 1024);
}
