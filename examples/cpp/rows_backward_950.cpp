// dx of layer normalization on Ascend 950: rows in registers, with tails of any length.
//
// A block takes every GetBlockNum()-th row, of which a queue holds dy and x. One vector function computes it: 64 floats are a
// register, a mask says how many of them count, and both sums of the row stay in registers until they are needed.
#include "kernel_operator.h"

using namespace AscendC;
using namespace AscendC::Reg;

constexpr uint32_t LANES = 64; // floats of a register: 256 bytes

// Sums over the row of dxhat and dxhat·xhat, and from them dx = rstd·(dxhat - mean_dxhat - xhat·mean_dxhat_xhat).
__simd_vf__ inline void RowBackward(__ubuf__ float* dx, __ubuf__ float* dy, __ubuf__ float* x, __ubuf__ float* gamma, float mean,
                                    float rstd, uint32_t columns, uint16_t repeats)
{
    RegTensor<float> xhat, dxhat, product, first, second;
    MaskReg all = CreateMask<float>();
    Duplicate(first, 0.0f, all);
    Duplicate(second, 0.0f, all);
    uint32_t left = columns;
    for (uint16_t i = 0; i < repeats; ++i) {
        MaskReg mask = UpdateMask<float>(left); // the last one is the tail
        LoadAlign(xhat, x + i * LANES);
        LoadAlign(dxhat, dy + i * LANES);
        LoadAlign(product, gamma + i * LANES);
        Adds(xhat, xhat, -mean, mask);
        Muls(xhat, xhat, rstd, mask);
        Mul(dxhat, dxhat, product, mask); // lanes that the mask leaves out are 0
        Mul(product, dxhat, xhat, mask);
        Add(first, first, dxhat, all);
        Add(second, second, product, all);
    }
    Reduce<ReduceType::SUM>(first, first, all);
    Reduce<ReduceType::SUM>(second, second, all);
    Duplicate(first, first, all); // lane 0, in every lane
    Duplicate(second, second, all);
    Muls(first, first, 1.0f / columns, all);
    Muls(second, second, 1.0f / columns, all);
    left = columns;
    for (uint16_t i = 0; i < repeats; ++i) {
        MaskReg mask = UpdateMask<float>(left);
        LoadAlign(xhat, x + i * LANES);
        LoadAlign(dxhat, dy + i * LANES);
        LoadAlign(product, gamma + i * LANES);
        Adds(xhat, xhat, -mean, mask);
        Muls(xhat, xhat, rstd, mask);
        Mul(dxhat, dxhat, product, mask);
        Mul(xhat, xhat, second, mask);
        Sub(dxhat, dxhat, first, mask);
        Sub(dxhat, dxhat, xhat, mask);
        Muls(dxhat, dxhat, rstd, mask);
        StoreAlign(dx + i * LANES, dxhat, mask);
    }
}

template <HardEvent event>
__aicore__ inline void Wait()
{
    const TEventID id = GetTPipePtr()->FetchEventID(event);
    SetFlag<event>(id);
    WaitFlag<event>(id);
}

extern "C" __global__ __aicore__ void rows_backward_950(GM_ADDR dy, GM_ADDR x, GM_ADDR mean, GM_ADDR rstd, GM_ADDR gamma, GM_ADDR dx,
                                                        uint32_t rows, uint32_t columns)
{
    TPipe pipe;
    TQue<TPosition::VECIN, 2> in;
    TQue<TPosition::VECOUT, 2> out;
    TBuf<TPosition::VECCALC> weights;
    const uint32_t repeats = (columns + LANES - 1) / LANES, room = repeats * LANES;
    pipe.InitBuffer(in, 2, 2 * room * sizeof(float));
    pipe.InitBuffer(out, 2, room * sizeof(float));
    pipe.InitBuffer(weights, room * sizeof(float));
    GlobalTensor<float> dyOf, xOf, meanOf, rstdOf, gammaOf, dxOf;
    dyOf.SetGlobalBuffer((__gm__ float*)dy, rows * columns);
    xOf.SetGlobalBuffer((__gm__ float*)x, rows * columns);
    meanOf.SetGlobalBuffer((__gm__ float*)mean, rows);
    rstdOf.SetGlobalBuffer((__gm__ float*)rstd, rows);
    gammaOf.SetGlobalBuffer((__gm__ float*)gamma, columns);
    dxOf.SetGlobalBuffer((__gm__ float*)dx, rows * columns);

    const DataCopyExtParams row{1, columns * (uint32_t)sizeof(float), 0, 0, 0};
    const DataCopyPadExtParams<float> nothing{false, 0, 0, 0};
    LocalTensor<float> gammaRow = weights.Get<float>();
    DataCopyPad(gammaRow, gammaOf, row, nothing);
    Wait<HardEvent::MTE2_V>();
    for (uint32_t r = GetBlockIdx(); r < rows; r += GetBlockNum()) {
        LocalTensor<float> both = in.AllocTensor<float>();
        DataCopyPad(both, dyOf[r * columns], row, nothing);
        DataCopyPad(both[room], xOf[r * columns], row, nothing);
        in.EnQue(both);
        both = in.DeQue<float>();
        LocalTensor<float> result = out.AllocTensor<float>();
        asc_vf_call<RowBackward>((__ubuf__ float*)result.GetPhyAddr(), (__ubuf__ float*)both.GetPhyAddr(),
                                 (__ubuf__ float*)both[room].GetPhyAddr(), (__ubuf__ float*)gammaRow.GetPhyAddr(),
                                 meanOf.GetValue(r), rstdOf.GetValue(r), columns, (uint16_t)repeats);
        in.FreeTensor(both);
        out.EnQue(result);
        result = out.DeQue<float>();
        DataCopyPad(dxOf[r * columns], result, row);
        out.FreeTensor(result);
    }
}
