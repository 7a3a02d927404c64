// Copies of Ascend 950: tiling[0] says which, tiling[1] whether with its fault; y is what lies in the Unified Buffer.
#include "kernel_operator.h"
using namespace AscendC;
static constexpr NdDmaConfig NEAREST = {true}, TWO_AROUND = {false, 2, 2};
constexpr DataCopyMVType IN = DataCopyMVType::OUT_TO_UB, OUT = DataCopyMVType::UB_TO_OUT;
extern "C" __global__ __aicore__ void loops(GM_ADDR x, GM_ADDR y, GM_ADDR tiling)
{
    const uint8_t which = tiling[0], fault = tiling[1];
    TPipe pipe; TBuf<TPosition::VECCALC> buffer; GlobalTensor<float> from, to;
    from.SetGlobalBuffer((__gm__ float*)x), to.SetGlobalBuffer((__gm__ float*)y), pipe.InitBuffer(buffer, 1024);
    LocalTensor<float> a = buffer.Get<float>(); Duplicate(a, 0.0f, 256), PipeBarrier<PIPE_ALL>();
    const NdDmaLoopInfo<2> padded{{1, 8}, {1, 16}, {8, 2}, {3, 1}, {5, 1}}, whole{{1, 8}, {1, 12}, {8, 2}, {0, 0}, {0, 0}};
    const DataCopyPadExtParams<float> nothing{false, 0, 0, 0.0f}, sevens{true, 0, 0, 7.0f};
    if (which == 0) DataCopy<float, 2>(a, from, NdDmaParams<float, 2>{padded, 7.0f});
    if (which == 1) DataCopy<float, 2, NEAREST>(a, from, NdDmaParams<float, 2>{padded, 7.0f});
    if (which == 2) DataCopy<float, 2, TWO_AROUND>(a, from, NdDmaParams<float, 2>{whole, 7.0f});
    if (which == 3) DataCopy<float, 2>(a, from, MultiCopyParams<float, 2>{{{1, 8}, {fault ? 1u : 8u, 1}, {8, 8}, {}, {}}, 0.0f}); // turned
    if (which == 4) SetLoopModePara(LoopModeParams{2, 3, 40, 64, 80, 128}, IN); // 2 x 3 times rows of 2 x 5 elements
    if (which == 4) DataCopyPad(a, from, DataCopyExtParams{2, 20, 0, 0, 0}, sevens);
    if (which == 5) DataCopyPad<float, PaddingMode::Compact>(a, from, DataCopyExtParams{3, 20, 4, 0, 0}, sevens);
    if (which == 6) DataCopyPad(a, from, DataCopyExtParams{4, 20, fault ? -24 : -20, 0, 0}, nothing); // the same row
    if (which == 7) SetLoopModePara(LoopModeParams{2, 3, 512, 512, 0, 0}, IN); // with a reset that comes late
    if (which == 7 && !fault) ResetLoopModePara(IN);
    if (which == 7 || which == 9) DataCopy(a, from, 256);
    if (which == 7 || !fault) ResetLoopModePara(IN);
    if (which == 8 && GetBlockIdx() == 0) DataCopy(to[256], a, 64); // what block 1 reads through the cache
    if (which == 8 && (SyncAll(), GetBlockIdx() == 0)) return; if (which == 8 && !fault) NdDmaDci();
    if (which == 8) DataCopy<float, 1>(a, to[256], NdDmaParams<float, 1>{{{1}, {1}, {64}, {}, {}}, 0.0f});
    if (PipeBarrier<PIPE_ALL>(); which == 9) SetLoopModePara(LoopModeParams{2, 1, 256, 1024, 0, 0}, OUT);
    DataCopy(to, a, which == 9 ? 64 : 256), ResetLoopModePara(OUT);
}
