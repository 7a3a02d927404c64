// Layer normalization's backward for short rows, tiles of rows at a time: what the times of FlagGems 4916 are compared with.
#include "kernel_operator.h"

using namespace AscendC;

struct NormBackwardTiling {
    uint32_t rows;
    uint32_t columns;       // 32, 64, 128, 192 or 256
    uint32_t rowsPerBlock;
    uint32_t tileRows;      // a power of two of at least 8; tileRows * columns is at most 8192
};

class NormBackward {
public:
    __aicore__ inline NormBackward(GM_ADDR dy, GM_ADDR x, GM_ADDR mean, GM_ADDR rstd, GM_ADDR gamma, GM_ADDR dx, GM_ADDR dgamma,
                                   GM_ADDR dbeta, TPipe* pipe, const NormBackwardTiling& tiling)
        : t_(tiling)
    {
        const uint64_t all = uint64_t(t_.rows) * t_.columns;
        dy_.SetGlobalBuffer((__gm__ half*)dy, all);
        x_.SetGlobalBuffer((__gm__ half*)x, all);
        dx_.SetGlobalBuffer((__gm__ half*)dx, all);
        mean_.SetGlobalBuffer((__gm__ float*)mean, t_.rows);
        rstd_.SetGlobalBuffer((__gm__ float*)rstd, t_.rows);
        gamma_.SetGlobalBuffer((__gm__ float*)gamma, t_.columns);
        sums_[0].SetGlobalBuffer((__gm__ float*)dgamma, t_.columns);
        sums_[1].SetGlobalBuffer((__gm__ float*)dbeta, t_.columns);
        const uint32_t n = t_.tileRows * t_.columns;
        pipe->InitBuffer(inDy_, 2, n * sizeof(half));
        pipe->InitBuffer(inX_, 2, n * sizeof(half));
        pipe->InitBuffer(inRows_, 2, 2 * t_.tileRows * sizeof(float));
        pipe->InitBuffer(outDx_, 1, n * sizeof(half));
        pipe->InitBuffer(outSums_, 1, 2 * t_.columns * sizeof(float));
        for (auto* buffer : {&dyBuf_, &xBuf_, &workBuf_}) pipe->InitBuffer(*buffer, n * sizeof(float) + (buffer == &xBuf_ ? 256 : 0));
        pipe->InitBuffer(gammaBuf_, t_.columns * sizeof(float));
        pipe->InitBuffer(totalBuf_, 2 * t_.columns * sizeof(float));
        pipe->InitBuffer(blocksBuf_, 3 * t_.tileRows * 32);
    }

    __aicore__ inline void Process()
    {
        gamma = gammaBuf_.Get<float>();
        total = totalBuf_.Get<float>();
        DataCopy(gamma, gamma_, t_.columns);
        TEventID id = GetTPipePtr()->FetchEventID(HardEvent::MTE2_V);
        SetFlag<HardEvent::MTE2_V>(id);
        WaitFlag<HardEvent::MTE2_V>(id);
        Duplicate(total, 0.0f, 2 * t_.columns);
        const uint32_t first = GetBlockIdx() * t_.rowsPerBlock;
        const uint32_t last = first + t_.rowsPerBlock < t_.rows ? first + t_.rowsPerBlock : t_.rows;
        for (uint32_t row = first; row < last; row += t_.tileRows) Tile(row, last - row < t_.tileRows ? last - row : t_.tileRows);
        LocalTensor<float> out = outSums_.AllocTensor<float>();
        Adds(out, total, 0.0f, 2 * t_.columns);
        outSums_.EnQue(out);
        out = outSums_.DeQue<float>();
        SetAtomicAdd<float>();
        for (uint32_t i = 0; i < 2; ++i) DataCopy(sums_[i], out[i * t_.columns], t_.columns);
        SetAtomicNone();
        outSums_.FreeTensor(out);
    }

private:
    // op on every row and a block of one number a row, or one row for all of them: 64 columns at a time.
    template <typename Op>
    __aicore__ inline void EachRow(Op op, const LocalTensor<float>& dst, const LocalTensor<float>& src, const LocalTensor<float>& other, uint32_t rows, bool blocks)
    {
        const uint32_t lanes = t_.columns < 64 ? t_.columns : 64;
        const uint8_t step = t_.columns / 8;
        for (uint32_t c = 0; c < t_.columns; c += lanes) {
            const BinaryRepeatParams p(1, 1, uint8_t(blocks ? 0 : 1), step, step, uint8_t(blocks ? 1 : 0));
            op(dst[c], src[c], blocks ? other : other[c], uint64_t(lanes), uint8_t(rows), p);
        }
    }

    // The mean of each row of work, as a block a row. The columns are folded to at most 64 first.
    __aicore__ inline void RowMeans(const LocalTensor<float>& blocks, const LocalTensor<float>& work, uint32_t rows)
    {
        const uint32_t lanes = t_.columns < 64 ? t_.columns : 64;
        const uint8_t step = t_.columns / 8;
        for (uint32_t c = lanes; c < t_.columns; c += lanes) Add(work, work, work[c], uint64_t(lanes), uint8_t(rows), BinaryRepeatParams(1, 1, 1, step, step, step));
        BlockReduceSum(work, work, rows, lanes, 1, 1, step);  // a block of 8 sums a row
        if (lanes == 64) {
            BlockReduceSum(work, work, (rows + 7) / 8, 64, 1, 1, 8);
        } else {
            WholeReduceSum(work, work, lanes / 8, rows, 1, 1, 1);
        }
        Muls(work, work, 1.0f / t_.columns, rows);
        Brcb(blocks, work, (rows + 7) / 8, {1, 8});
    }

    __aicore__ inline void AddRows(const LocalTensor<float>& sum, const LocalTensor<float>& work, uint32_t rows)
    {
        for (uint32_t half = rows / 2; rows > 1; half = rows / 2) {
            Add(work, work, work[(rows - half) * t_.columns], half * t_.columns);
            rows -= half;
        }
        Add(sum, sum, work, t_.columns);
    }

    __aicore__ inline void Tile(uint32_t row, uint32_t rows)
    {
        const uint32_t n = rows * t_.columns;
        const uint64_t at = uint64_t(row) * t_.columns;
        LocalTensor<half> dyIn = inDy_.AllocTensor<half>(), xIn = inX_.AllocTensor<half>();
        LocalTensor<float> stats = inRows_.AllocTensor<float>();
        DataCopy(dyIn, dy_[at], n);
        DataCopy(xIn, x_[at], n);
        const DataCopyExtParams params(1, rows * sizeof(float), 0, 0, 0);
        DataCopyPad(stats, mean_[row], params, DataCopyPadExtParams<float>());
        DataCopyPad(stats[t_.tileRows], rstd_[row], params, DataCopyPadExtParams<float>());
        inDy_.EnQue(dyIn);
        inX_.EnQue(xIn);
        inRows_.EnQue(stats);
        dyIn = inDy_.DeQue<half>();
        xIn = inX_.DeQue<half>();
        stats = inRows_.DeQue<float>();
        LocalTensor<float> dy = dyBuf_.Get<float>(), x = xBuf_.Get<float>()[64], work = workBuf_.Get<float>(), blocks = blocksBuf_.Get<float>();
        LocalTensor<float> mean = blocks, rstd = blocks[8 * t_.tileRows], other = blocks[16 * t_.tileRows];
        Cast(dy, dyIn, RoundMode::CAST_NONE, n);
        Cast(x, xIn, RoundMode::CAST_NONE, n);
        Brcb(mean, stats, (rows + 7) / 8, {1, 8});
        Brcb(rstd, stats[t_.tileRows], (rows + 7) / 8, {1, 8});
        inDy_.FreeTensor(dyIn);
        inX_.FreeTensor(xIn);
        inRows_.FreeTensor(stats);
        const auto sub = [](auto&&... a) { Sub(a...); };
        const auto mul = [](auto&&... a) { Mul(a...); };
        EachRow(sub, x, x, mean, rows, true);
        EachRow(mul, x, x, rstd, rows, true);  // xhat
        Mul(work, dy, x, n);
        AddRows(total, work, rows);
        Adds(work, dy, 0.0f, n);
        AddRows(total[t_.columns], work, rows);
        EachRow(mul, dy, dy, gamma, rows, false);  // dxhat
        Mul(work, dy, x, n);
        RowMeans(other, work, rows);
        EachRow(mul, x, x, other, rows, true);
        Adds(work, dy, 0.0f, n);
        RowMeans(other, work, rows);
        Sub(dy, dy, x, n);
        EachRow(sub, dy, dy, other, rows, true);
        EachRow(mul, dy, dy, rstd, rows, true);
        LocalTensor<half> out = outDx_.AllocTensor<half>();
        Cast(out, dy, RoundMode::CAST_RINT, n);
        outDx_.EnQue(out);
        out = outDx_.DeQue<half>();
        DataCopy(dx_[at], out, n);
        outDx_.FreeTensor(out);
    }

    NormBackwardTiling t_;
    GlobalTensor<half> dy_, x_, dx_;
    GlobalTensor<float> mean_, rstd_, gamma_, sums_[2];
    TQue<QuePosition::VECIN, 2> inDy_, inX_, inRows_;
    TQue<QuePosition::VECOUT, 1> outDx_, outSums_;
    TBuf<QuePosition::VECCALC> dyBuf_, xBuf_, workBuf_, gammaBuf_, totalBuf_, blocksBuf_;
    LocalTensor<float> gamma, total;
};

extern "C" __global__ __aicore__ void norm_backward(GM_ADDR dy, GM_ADDR x, GM_ADDR mean, GM_ADDR rstd, GM_ADDR gamma, GM_ADDR dx,
                                                    GM_ADDR dgamma, GM_ADDR dbeta, GM_ADDR tiling)
{
    TPipe pipe;
    NormBackward op(dy, x, mean, rstd, gamma, dx, dgamma, dbeta, &pipe, *reinterpret_cast<__gm__ NormBackwardTiling*>(tiling));
    op.Process();
}
