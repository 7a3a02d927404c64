// Gradients of layer normalization, rows spread over blocks, in basic Ascend C instructions.
//
// Every block takes some rows: it computes their dx, and adds up its share of dgamma and dbeta in the
// Unified Buffer. Then the shares are added up, by the macro COLUMN_SUMS:
//   COLUMN_SUMS 0  each block adds its share to the result with atomic copies; block 0 has cleared it;
//   COLUMN_SUMS 1  each block writes its share to the workspace, and block 0 adds them up in order,
//                  so that the bits do not depend on which block is first.
// The kernel synchronises everything by hand, and so it also runs with the compiler's auto-sync off.
#include "kernel_operator.h"

#ifndef COLUMN_SUMS
#define COLUMN_SUMS 0
#endif

using namespace AscendC;

struct RowsTiling {
    uint32_t rows;          // M
    uint32_t columns;       // N, a multiple of 8
    uint32_t rowsPerBlock;
};

class RowsBackward {
public:
    __aicore__ inline RowsBackward(TPipe* pipe) : pipe_(pipe) {}

    __aicore__ inline void Init(GM_ADDR dy, GM_ADDR x, GM_ADDR mean, GM_ADDR rstd, GM_ADDR gamma, GM_ADDR dx,
                                GM_ADDR dgamma, GM_ADDR dbeta, GM_ADDR workspace, const RowsTiling& tiling)
    {
        columns_ = tiling.columns;
        first_ = GetBlockIdx() * tiling.rowsPerBlock;
        uint32_t left = tiling.rows > first_ ? tiling.rows - first_ : 0;
        rows_ = left < tiling.rowsPerBlock ? left : tiling.rowsPerBlock;
        dy_.SetGlobalBuffer((__gm__ float*)dy, tiling.rows * columns_);
        x_.SetGlobalBuffer((__gm__ float*)x, tiling.rows * columns_);
        dx_.SetGlobalBuffer((__gm__ float*)dx, tiling.rows * columns_);
        mean_.SetGlobalBuffer((__gm__ float*)mean, tiling.rows);
        rstd_.SetGlobalBuffer((__gm__ float*)rstd, tiling.rows);
        gamma_.SetGlobalBuffer((__gm__ float*)gamma, columns_);
        dgamma_.SetGlobalBuffer((__gm__ float*)dgamma, columns_);
        dbeta_.SetGlobalBuffer((__gm__ float*)dbeta, columns_);
        shares_.SetGlobalBuffer((__gm__ float*)workspace, 2 * columns_ * GetBlockNum());
        uint32_t bytes = columns_ * sizeof(float);
        pipe_->InitBuffer(inDy_, 2, bytes);
        pipe_->InitBuffer(inX_, 2, bytes);
        pipe_->InitBuffer(outDx_, 2, bytes);
        pipe_->InitBuffer(gammaBuf_, bytes);
        pipe_->InitBuffer(sumsBuf_, 2 * bytes);
        pipe_->InitBuffer(workBuf_, bytes);
        pipe_->InitBuffer(totalBuf_, 32);
    }

    __aicore__ inline void Process()
    {
        LocalTensor<float> gamma = gammaBuf_.Get<float>();
        DataCopy(gamma, gamma_, columns_);
        Wait<HardEvent::MTE2_V>();
        LocalTensor<float> sums = sumsBuf_.Get<float>();
        Duplicate(sums, 0.0f, 2 * columns_);
        PipeBarrier<PIPE_V>();
        for (uint32_t row = first_; row < first_ + rows_; ++row) {
            CopyIn(row);
            Compute(row, gamma, sums);
            CopyOut(row);
        }
        if (COLUMN_SUMS == 0) {
            AddAtomically(sums);
        } else {
            AddInOrder(sums);
        }
    }

private:
    template <HardEvent event>
    __aicore__ inline void Wait()
    {
        int32_t id = static_cast<int32_t>(pipe_->FetchEventID(event));
        SetFlag<event>(id);
        WaitFlag<event>(id);
    }

    __aicore__ inline void CopyIn(uint32_t row)
    {
        LocalTensor<float> dy = inDy_.AllocTensor<float>();
        LocalTensor<float> x = inX_.AllocTensor<float>();
        DataCopy(dy, dy_[row * columns_], columns_);
        DataCopy(x, x_[row * columns_], columns_);
        inDy_.EnQue(dy);
        inX_.EnQue(x);
    }

    // dx = rstd·(dxhat - mean_dxhat - xhat·mean_dxhat_xhat), with xhat = (x - mean)·rstd and dxhat = dy·gamma.
    __aicore__ inline void Compute(uint32_t row, const LocalTensor<float>& gamma, const LocalTensor<float>& sums)
    {
        LocalTensor<float> dy = inDy_.DeQue<float>();
        LocalTensor<float> xhat = inX_.DeQue<float>();
        LocalTensor<float> dx = outDx_.AllocTensor<float>();
        LocalTensor<float> work = workBuf_.Get<float>();
        float rstd = rstd_.GetValue(row);
        Adds(xhat, xhat, -mean_.GetValue(row), columns_);
        PipeBarrier<PIPE_V>();
        Muls(xhat, xhat, rstd, columns_);
        PipeBarrier<PIPE_V>();
        Mul(work, dy, xhat, columns_);
        PipeBarrier<PIPE_V>();
        Add(sums, sums, work, columns_);
        Add(sums[columns_], sums[columns_], dy, columns_);
        Mul(dx, dy, gamma, columns_);
        PipeBarrier<PIPE_V>();
        float meanDxhat = Total(dx, work) / columns_;
        Mul(work, dx, xhat, columns_);
        PipeBarrier<PIPE_V>();
        float meanDxhatXhat = Total(work, work) / columns_;
        Muls(xhat, xhat, meanDxhatXhat, columns_);
        Adds(dx, dx, -meanDxhat, columns_);
        PipeBarrier<PIPE_V>();
        Sub(dx, dx, xhat, columns_);
        PipeBarrier<PIPE_V>();
        Muls(dx, dx, rstd, columns_);
        outDx_.EnQue(dx);
        inDy_.FreeTensor(dy);
        inX_.FreeTensor(xhat);
    }

    __aicore__ inline float Total(const LocalTensor<float>& values, const LocalTensor<float>& work)
    {
        LocalTensor<float> total = totalBuf_.Get<float>();
        ReduceSum(total, values, work, columns_);
        Wait<HardEvent::V_S>();
        float sum = total.GetValue(0);
        Wait<HardEvent::S_V>();
        return sum;
    }

    __aicore__ inline void CopyOut(uint32_t row)
    {
        LocalTensor<float> dx = outDx_.DeQue<float>();
        DataCopy(dx_[row * columns_], dx, columns_);
        outDx_.FreeTensor(dx);
    }

    __aicore__ inline void AddAtomically(const LocalTensor<float>& sums)
    {
        if (GetBlockIdx() == 0) {
            LocalTensor<float> zeros = workBuf_.Get<float>();
            Duplicate(zeros, 0.0f, columns_);
            Wait<HardEvent::V_MTE3>();
            DataCopy(dgamma_, zeros, columns_);
            DataCopy(dbeta_, zeros, columns_);
        }
        SyncAll();
        Wait<HardEvent::V_MTE3>();
        SetAtomicAdd<float>();
        DataCopy(dgamma_, sums, columns_);
        DataCopy(dbeta_, sums[columns_], columns_);
        SetAtomicNone();
    }

    __aicore__ inline void AddInOrder(const LocalTensor<float>& sums)
    {
        Wait<HardEvent::V_MTE3>();
        DataCopy(shares_[GetBlockIdx() * 2 * columns_], sums, 2 * columns_);
        SyncAll();
        if (GetBlockIdx() != 0) {
            return;
        }
        LocalTensor<float> share = workBuf_.Get<float>();
        for (uint32_t half = 0; half < 2; ++half) {
            for (int64_t block = 1; block < GetBlockNum(); ++block) {
                DataCopy(share, shares_[(2 * block + half) * columns_], columns_);
                Wait<HardEvent::MTE2_V>();
                Add(sums[half * columns_], sums[half * columns_], share, columns_);
                PipeBarrier<PIPE_V>();
                Wait<HardEvent::V_MTE2>();
            }
        }
        Wait<HardEvent::V_MTE3>();
        DataCopy(dgamma_, sums, columns_);
        DataCopy(dbeta_, sums[columns_], columns_);
    }

    TPipe* pipe_;
    TQue<TPosition::VECIN, 2> inDy_, inX_;
    TQue<TPosition::VECOUT, 2> outDx_;
    TBuf<TPosition::VECCALC> gammaBuf_, sumsBuf_, workBuf_, totalBuf_;
    GlobalTensor<float> dy_, x_, dx_, mean_, rstd_, gamma_, dgamma_, dbeta_, shares_;
    uint32_t columns_, first_, rows_;
};

extern "C" __global__ __aicore__ void rows_backward(GM_ADDR dy, GM_ADDR x, GM_ADDR mean, GM_ADDR rstd, GM_ADDR gamma,
                                                    GM_ADDR dx, GM_ADDR dgamma, GM_ADDR dbeta, GM_ADDR workspace,
                                                    GM_ADDR tiling)
{
    RowsTiling data;
    CopyTiling(&data, tiling);
    TPipe pipe;
    RowsBackward op(&pipe);
    op.Init(dy, x, mean, rstd, gamma, dx, dgamma, dbeta, workspace, data);
    op.Process();
}
