#include "kernel_operator.h"
using namespace AscendC;
struct Own {
    void Init() {}
    EXTERN_IMPL_BUFPOOL(Own, TPosition::VECCALC, 16);
};
extern "C" __global__ __aicore__ void k(GM_ADDR y) {}
