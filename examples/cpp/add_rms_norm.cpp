// sum = x + residual, y = sum / sqrt(mean(sum * sum) + epsilon) * gamma: rows spread over blocks, whole rows in the Unified Buffer.
//
// A short row goes in a tile of several rows; a long one in pieces of `piece` columns, its sum kept in float between two passes.
#include "kernel_operator.h"

using namespace AscendC;

struct AddRmsNormTiling {
    uint32_t rows;          // M
    uint32_t columns;       // N, a multiple of piece
    uint32_t rowsPerBlock;
    uint32_t tileRows;      // 1 where piece < columns
    uint32_t piece;         // columns of a copy: 512 to 8192, a power of two; tileRows * piece is at most 8192
    uint32_t buffers;       // of each input
    float epsilon;
};

template <typename T>
class AddRmsNorm {
public:
    __aicore__ inline void Init(GM_ADDR x, GM_ADDR residual, GM_ADDR gamma, GM_ADDR y, GM_ADDR sum, TPipe* pipe, const AddRmsNormTiling& tiling)
    {
        t_ = tiling;
        first_ = GetBlockIdx() * t_.rowsPerBlock;
        last_ = first_ + t_.rowsPerBlock < t_.rows ? first_ + t_.rowsPerBlock : t_.rows;
        const uint64_t all = uint64_t(t_.rows) * t_.columns;
        x_.SetGlobalBuffer((__gm__ T*)x, all);
        residual_.SetGlobalBuffer((__gm__ T*)residual, all);
        y_.SetGlobalBuffer((__gm__ T*)y, all);
        sum_.SetGlobalBuffer((__gm__ T*)sum, all);
        gamma_.SetGlobalBuffer((__gm__ T*)gamma, t_.columns);
        pieces_ = t_.columns / t_.piece;
        const uint32_t n = t_.tileRows * t_.piece;
        pipe->InitBuffer(inX_, t_.buffers, n * sizeof(T));
        pipe->InitBuffer(inResidual_, t_.buffers, n * sizeof(T));
        pipe->InitBuffer(outSum_, 1, n * sizeof(T));
        pipe->InitBuffer(outY_, 1, n * sizeof(T));
        pipe->InitBuffer(inGamma_, 1, t_.piece * sizeof(T));
        pipe->InitBuffer(rowBuf_, t_.tileRows * t_.columns * sizeof(float));
        pipe->InitBuffer(workBuf_, n * sizeof(float));
        pipe->InitBuffer(sumsBuf_, 256);
        row_ = rowBuf_.Get<float>();
        work_ = workBuf_.Get<float>();
        sums_ = sumsBuf_.Get<float>();
    }

    __aicore__ inline void Process()
    {
        if (pieces_ == 1 && first_ < last_) CopyGamma(0);
        for (uint32_t row = first_; row < last_; row += t_.tileRows) {
            const uint32_t rows = last_ - row < t_.tileRows ? last_ - row : t_.tileRows;
            for (uint32_t p = 0; p < pieces_; ++p) AddPiece(row, rows, p);
            Rstd(rows);
            for (uint32_t p = 0; p < pieces_; ++p) ScalePiece(row, rows, p);
        }
        if (pieces_ == 1 && first_ < last_) inGamma_.FreeTensor(kept_);
    }

private:
    __aicore__ inline uint64_t Offset(uint32_t row, uint32_t p) { return uint64_t(row) * t_.columns + p * t_.piece; }

    __aicore__ inline void CopyGamma(uint32_t p)
    {
        LocalTensor<T> gamma = inGamma_.template AllocTensor<T>();
        DataCopy(gamma, gamma_[p * t_.piece], t_.piece);
        inGamma_.EnQue(gamma);
        kept_ = inGamma_.template DeQue<T>();
    }

    __aicore__ inline void AddPiece(uint32_t row, uint32_t rows, uint32_t p)
    {
        const uint32_t n = rows * t_.piece;
        LocalTensor<T> x = inX_.template AllocTensor<T>(), residual = inResidual_.template AllocTensor<T>();
        DataCopy(x, x_[Offset(row, p)], n);
        DataCopy(residual, residual_[Offset(row, p)], n);
        inX_.EnQue(x);
        inResidual_.EnQue(residual);
        x = inX_.template DeQue<T>();
        residual = inResidual_.template DeQue<T>();
        LocalTensor<T> sum = outSum_.template AllocTensor<T>();
        LocalTensor<float> part = row_[p * t_.piece];
        if constexpr (std::is_same_v<T, float>) {
            Add(sum, x, residual, n);
            Add(part, x, residual, n);
        } else if constexpr (std::is_same_v<T, half>) {
            Add(sum, x, residual, n);
            Cast(part, sum, RoundMode::CAST_NONE, n);
        } else {
            Cast(part, x, RoundMode::CAST_NONE, n);
            Cast(work_, residual, RoundMode::CAST_NONE, n);
            Add(part, part, work_, n);
            Cast(sum, part, RoundMode::CAST_RINT, n);
        }
        inX_.FreeTensor(x);
        inResidual_.FreeTensor(residual);
        outSum_.EnQue(sum);
        sum = outSum_.template DeQue<T>();
        DataCopy(sum_[Offset(row, p)], sum, n);
        outSum_.FreeTensor(sum);
        Mul(work_, part, part, n);
        BlockReduceSum(work_, work_, n / 64, 64, 1, 1, 8);
        BlockReduceSum(work_, work_, n / 512, 64, 1, 1, 8);
        uint32_t left = t_.piece / 64;  // sums of a row
        if (left > 64) {
            BlockReduceSum(work_, work_, n / 64 / 64, 64, 1, 1, 8);
            left /= 8;
        }
        WholeReduceSum(sums_[p], work_, left, rows, 1, 1, left / 8);
    }

    __aicore__ inline void Rstd(uint32_t rows)
    {
        if (pieces_ > 1) WholeReduceSum(sums_, sums_, pieces_, 1, 1, 1, 8);
        Muls(sums_, sums_, 1.0f / t_.columns, rows);
        Adds(sums_, sums_, t_.epsilon, rows);
        Sqrt(sums_, sums_, rows);
        Duplicate(work_, 1.0f, rows);
        Div(sums_, work_, sums_, rows);
    }

    __aicore__ inline void ScalePiece(uint32_t row, uint32_t rows, uint32_t p)
    {
        const uint32_t n = rows * t_.piece;
        if (pieces_ > 1) CopyGamma(p);
        LocalTensor<T> y = outY_.template AllocTensor<T>();
        LocalTensor<float> part = row_[p * t_.piece], gamma = work_;
        if constexpr (!std::is_same_v<T, float>) Cast(gamma, kept_, RoundMode::CAST_NONE, t_.piece);
        for (uint32_t r = 0; r < rows; ++r) Muls(part[r * t_.piece], part[r * t_.piece], sums_.GetValue(r), t_.piece);
        for (uint32_t r = 0; r < rows; ++r) {
            if constexpr (std::is_same_v<T, float>) {
                Mul(y[r * t_.piece], part[r * t_.piece], kept_, t_.piece);
            } else {
                Mul(part[r * t_.piece], part[r * t_.piece], gamma, t_.piece);
            }
        }
        if constexpr (!std::is_same_v<T, float>) Cast(y, part, RoundMode::CAST_RINT, n);
        if (pieces_ > 1) inGamma_.FreeTensor(kept_);
        outY_.EnQue(y);
        y = outY_.template DeQue<T>();
        DataCopy(y_[Offset(row, p)], y, n);
        outY_.FreeTensor(y);
    }

    AddRmsNormTiling t_;
    uint32_t first_, last_, pieces_;
    GlobalTensor<T> x_, residual_, gamma_, y_, sum_;
    TQue<QuePosition::VECIN, 1> inX_, inResidual_, inGamma_;
    TQue<QuePosition::VECOUT, 1> outSum_, outY_;
    TBuf<QuePosition::VECCALC> rowBuf_, workBuf_, sumsBuf_;
    LocalTensor<float> row_, work_, sums_;
    LocalTensor<T> kept_;
};

template <typename T>
__global__ __aicore__ void add_rms_norm(GM_ADDR x, GM_ADDR residual, GM_ADDR gamma, GM_ADDR y, GM_ADDR sum, GM_ADDR tiling)
{
    TPipe pipe;
    AddRmsNorm<T> op;
    op.Init(x, residual, gamma, y, sum, &pipe, *reinterpret_cast<__gm__ AddRmsNormTiling*>(tiling));
    op.Process();
}
