#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void nibbles(GM_ADDR x, GM_ADDR y, GM_ADDR back) {
    TPipe pipe;
    TBuf<TPosition::VECCALC> halves, bytes;
    pipe.InitBuffer(halves, 1024);
    pipe.InitBuffer(bytes, 256);
    GlobalTensor<half> source, again;
    GlobalTensor<int8_t> target;
    source.SetGlobalBuffer((__gm__ half*)x, 512);
    again.SetGlobalBuffer((__gm__ half*)back, 512);
    target.SetGlobalBuffer((__gm__ int8_t*)y, 256);
    auto wide = halves.Get<half>();
    auto narrow = bytes.Get<int8_t>();
    auto packed = narrow.ReinterpretCast<int4b_t>();
    DataCopy(wide, source, 512);
    PipeBarrier<PIPE_ALL>();
    Duplicate(narrow.ReinterpretCast<int16_t>(), int16_t(0), 128);
    if (LANES) Cast<int4b_t, half>(packed, wide, RoundMode::CAST_RINT, LANES, 4, {1, 1, 2, 8});
    else Cast<int4b_t, half>(packed, wide, RoundMode::CAST_RINT, 511);
    Cast<half, int4b_t>(wide, packed, RoundMode::CAST_NONE, LANES ? 512 : 509);
    PipeBarrier<PIPE_ALL>();
    DataCopy(target, narrow, 256);
    DataCopy(again, wide, 512);
}
