// Gradients of layer normalization of one tile [B, S, H] with the tile APIs: LayerNormGrad gives dx and
// the normalized x, LayerNormGradBeta adds up dgamma and dbeta from it. The tiling comes from
// GetLayerNormGradNDTilingInfo and GetLayerNormGradBetaNDTilingInfo.
#include "kernel_operator.h"

using namespace AscendC;

struct TileTiling {
    LayerNormGradTiling grad;
    LayerNormGradBetaTiling beta;
    float epsilon;
};

class TileBackward {
public:
    __aicore__ inline void Init(GM_ADDR dy, GM_ADDR x, GM_ADDR variance, GM_ADDR mean, GM_ADDR gamma, GM_ADDR dx,
                                GM_ADDR dgamma, GM_ADDR dbeta, const TileTiling& tiling)
    {
        tiling_ = tiling;
        columns_ = tiling.grad.hLength;
        rows_ = tiling.grad.bLength * tiling.grad.sLength;
        elements_ = rows_ * columns_;
        dy_.SetGlobalBuffer((__gm__ float*)dy, elements_);
        x_.SetGlobalBuffer((__gm__ float*)x, elements_);
        variance_.SetGlobalBuffer((__gm__ float*)variance, rows_);
        mean_.SetGlobalBuffer((__gm__ float*)mean, rows_);
        gamma_.SetGlobalBuffer((__gm__ float*)gamma, columns_);
        dx_.SetGlobalBuffer((__gm__ float*)dx, elements_);
        dgamma_.SetGlobalBuffer((__gm__ float*)dgamma, columns_);
        dbeta_.SetGlobalBuffer((__gm__ float*)dbeta, columns_);
        pipe_.InitBuffer(inDy_, 1, elements_ * sizeof(float));
        pipe_.InitBuffer(inX_, 1, elements_ * sizeof(float));
        pipe_.InitBuffer(inVariance_, 1, rows_ * sizeof(float));
        pipe_.InitBuffer(inMean_, 1, rows_ * sizeof(float));
        pipe_.InitBuffer(inGamma_, 1, columns_ * sizeof(float));
        pipe_.InitBuffer(outDx_, 1, elements_ * sizeof(float));
        pipe_.InitBuffer(xhat_, elements_ * sizeof(float));
        pipe_.InitBuffer(outSums_, 2, columns_ * sizeof(float));
    }

    __aicore__ inline void Process()
    {
        CopyIn(inDy_, dy_, elements_);
        CopyIn(inX_, x_, elements_);
        CopyIn(inVariance_, variance_, rows_);
        CopyIn(inMean_, mean_, rows_);
        CopyIn(inGamma_, gamma_, columns_);
        Compute();
        CopyOut(outDx_, dx_, elements_);
        CopyOut(outSums_, dgamma_, columns_);
        CopyOut(outSums_, dbeta_, columns_);
    }

private:
    template <typename Queue>
    __aicore__ inline void CopyIn(Queue& queue, const GlobalTensor<float>& source, uint32_t count)
    {
        LocalTensor<float> tensor = queue.template AllocTensor<float>();
        DataCopy(tensor, source, count);
        queue.EnQue(tensor);
    }

    template <typename Queue>
    __aicore__ inline void CopyOut(Queue& queue, const GlobalTensor<float>& target, uint32_t count)
    {
        LocalTensor<float> tensor = queue.template DeQue<float>();
        DataCopy(target, tensor, count);
        queue.FreeTensor(tensor);
    }

    __aicore__ inline void Compute()
    {
        LocalTensor<float> dy = inDy_.DeQue<float>(), x = inX_.DeQue<float>(), variance = inVariance_.DeQue<float>(),
                           mean = inMean_.DeQue<float>(), gamma = inGamma_.DeQue<float>();
        LocalTensor<float> dx = outDx_.AllocTensor<float>(), xhat = xhat_.Get<float>();
        LayerNormGrad<float, false>(dx, xhat, dy, x, variance, mean, gamma, tiling_.epsilon, tiling_.grad);
        outDx_.EnQue(dx);
        LocalTensor<float> dgamma = outSums_.AllocTensor<float>(), dbeta = outSums_.AllocTensor<float>();
        LayerNormGradBeta<float, false>(dgamma, dbeta, xhat, dy, tiling_.beta);
        outSums_.EnQue(dgamma);
        outSums_.EnQue(dbeta);
        inDy_.FreeTensor(dy);
        inX_.FreeTensor(x);
        inVariance_.FreeTensor(variance);
        inMean_.FreeTensor(mean);
        inGamma_.FreeTensor(gamma);
    }

    TPipe pipe_;
    TQue<TPosition::VECIN, 1> inDy_, inX_, inVariance_, inMean_, inGamma_;
    TQue<TPosition::VECOUT, 1> outDx_;
    TQue<TPosition::VECOUT, 2> outSums_;
    TBuf<TPosition::VECCALC> xhat_;
    GlobalTensor<float> dy_, x_, variance_, mean_, gamma_, dx_, dgamma_, dbeta_;
    TileTiling tiling_;
    uint32_t rows_, columns_, elements_;
};

extern "C" __global__ __aicore__ void tile_backward(GM_ADDR dy, GM_ADDR x, GM_ADDR variance, GM_ADDR mean,
                                                    GM_ADDR gamma, GM_ADDR dx, GM_ADDR dgamma, GM_ADDR dbeta,
                                                    GM_ADDR tiling)
{
    TileTiling data;
    CopyTiling(&data, tiling);
    TileBackward op;
    op.Init(dy, x, variance, mean, gamma, dx, dgamma, dbeta, data);
    op.Process();
}
