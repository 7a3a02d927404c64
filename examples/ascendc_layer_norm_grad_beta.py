"""The manual's sample kernel of LayerNormGradBeta, in Python: [2, 32, 16], half, CopyIn, Compute,
CopyOut.

Run it anywhere: ``python examples/ascendc_layer_norm_grad_beta.py [SoC]``. It checks its results
against the formula of the manual in float64, prints what the block did, and exits with 1 where a
result is wrong.
"""

from __future__ import annotations

import sys

import numpy as np

from lngrad_ascend import soc, tiling
from lngrad_ascend.ascendc import (
    GET_TILING_DATA,
    DataCopy,
    GlobalTensor,
    LayerNormGradBeta,
    LayerNormGradBetaTiling,
    QuePosition,
    TPipe,
    TQue,
    half,
    launch,
)

B, S, H = 2, 32, 16
# Sums are float and rounded to half once, to nearest: half a unit in the last place, and a little
# for the sums.
TOLERANCE = 0.51 * 2.0**-10


class KernelLayernormGradBeta:
    """One call of the tile API between two copies, for any T."""

    def __init__(self, T, isReuseSource=False):
        self.T = T
        self.isReuseSource = isReuseSource

    def Init(self, resForGamma, inputDy, outputPdGamma, outputPdBeta, tiling):
        self.tiling = tiling
        self.hLength = tiling.hLength
        self.bshLength = tiling.bLength * tiling.sLength * tiling.hLength
        self.pipe = TPipe()
        self.resForGammaGlobal, self.inQueueResForGamma = self._bind(resForGamma, QuePosition.VECIN, self.bshLength)
        self.inputDyGlobal, self.inQueueDy = self._bind(inputDy, QuePosition.VECIN, self.bshLength)
        self.outputPdGammaGlobal, self.outQueuePdGamma = self._bind(outputPdGamma, QuePosition.VECOUT, self.hLength)
        self.outputPdBetaGlobal, self.outQueuePdBeta = self._bind(outputPdBeta, QuePosition.VECOUT, self.hLength)

    def _bind(self, address, position, size):
        memory = GlobalTensor(self.T)
        memory.SetGlobalBuffer(address, size)
        queue = TQue(position, 1)
        self.pipe.InitBuffer(queue, 1, np.dtype(self.T).itemsize * size)
        return memory, queue

    def Process(self):
        self.CopyIn()
        self.Compute()
        self.CopyOut()

    def CopyIn(self):
        resForGammaLocal = self.inQueueResForGamma.AllocTensor(self.T)
        inputDyLocal = self.inQueueDy.AllocTensor(self.T)
        DataCopy(resForGammaLocal, self.resForGammaGlobal, self.bshLength)
        DataCopy(inputDyLocal, self.inputDyGlobal, self.bshLength)
        self.inQueueResForGamma.EnQue(resForGammaLocal)
        self.inQueueDy.EnQue(inputDyLocal)

    def Compute(self):
        resForGammaLocal = self.inQueueResForGamma.DeQue(self.T)
        inputDyLocal = self.inQueueDy.DeQue(self.T)
        outputPdGammaLocal = self.outQueuePdGamma.AllocTensor(self.T)
        outputPdBetaLocal = self.outQueuePdBeta.AllocTensor(self.T)
        LayerNormGradBeta(
            outputPdGammaLocal,
            outputPdBetaLocal,
            resForGammaLocal,
            inputDyLocal,
            self.tiling,
            isReuseSource=self.isReuseSource,
        )
        self.outQueuePdGamma.EnQue(outputPdGammaLocal)
        self.outQueuePdBeta.EnQue(outputPdBetaLocal)
        self.inQueueResForGamma.FreeTensor(resForGammaLocal)
        self.inQueueDy.FreeTensor(inputDyLocal)

    def CopyOut(self):
        outputPdGammaLocal = self.outQueuePdGamma.DeQue(self.T)
        outputPdBetaLocal = self.outQueuePdBeta.DeQue(self.T)
        DataCopy(self.outputPdGammaGlobal, outputPdGammaLocal, self.hLength)
        DataCopy(self.outputPdBetaGlobal, outputPdBetaLocal, self.hLength)
        self.outQueuePdGamma.FreeTensor(outputPdGammaLocal)
        self.outQueuePdBeta.FreeTensor(outputPdBetaLocal)


def kernel_layernorm_grad_beta_operator(outputPdGamma, outputPdBeta, resForGamma, inputDy, tilingBytes):
    """The kernel function: one block does everything."""
    tilingData = GET_TILING_DATA(LayerNormGradBetaTiling, tilingBytes)
    op = KernelLayernormGradBeta(half, False)
    op.Init(resForGamma, inputDy, outputPdGamma, outputPdBeta, tilingData)
    op.Process()


def main(name: str) -> int:
    """Run the kernel on the SoC ``name``; return the exit code."""
    rng = np.random.default_rng(0)
    res_for_gamma, dy = (rng.uniform(-2, 2, (B, S, H)).astype(half) for _ in range(2))
    pd_gamma, pd_beta = np.empty(H, half), np.empty(H, half)
    with soc.use(name):
        shape = [B, S, H, H]
        _, smallest = tiling.GetLayerNormGradBetaMaxMinTmpSize(shape, 2, False)
        info = tiling.GetLayerNormGradBetaNDTilingInfo(shape, smallest, 2, False)
        print(launch(kernel_layernorm_grad_beta_operator, 1, pd_gamma, pd_beta, res_for_gamma, dy, tiling=info))
    wrong = 0
    rows = dy.astype(np.float64)
    expected = (np.sum(rows * res_for_gamma, axis=(0, 1)), np.sum(rows, axis=(0, 1)))
    for label, got, want in zip(("outputPdGamma", "outputPdBeta"), (pd_gamma, pd_beta), expected, strict=True):
        error = np.max(np.abs(got - want) / np.maximum(np.abs(want), 2.0**-14))
        wrong += not error < TOLERANCE
        print(f"{label}: largest relative error {error:.1e}, {TOLERANCE:.1e} allowed")
    print("wrong" if wrong else "ok")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [soc.DEFAULT]))
