"""The manual's sample kernel of LayerNormGrad, in Python: [2, 32, 16], float, CopyIn, Compute,
CopyOut.

Run it anywhere: ``python examples/ascendc_layer_norm_grad.py [SoC]``. It checks its results against
the formula of the manual in float64, prints what the block did, and exits with 1 where a result is
wrong.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np

from lngrad_ascend import soc, tiling
from lngrad_ascend.ascendc import (
    CopyTiling,
    DataCopy,
    GlobalTensor,
    LayerNormGrad,
    LayerNormGradTiling,
    TilingStruct,
    TPipe,
    TPosition,
    TQue,
    launch,
)

B, S, H = 2, 32, 16
EPSILON = 1e-4
# Float32 against float64, relative to the largest value of a result; the worst seen is 1.1e-7.
TOLERANCE = 2e-6


@dataclass
class VecTiling(TilingStruct):
    """What the host hands to the kernel."""

    layernormGradTilingData: LayerNormGradTiling = field(default_factory=LayerNormGradTiling)
    epsilon: float = 0.0


class KernelLayernormGrad:
    """One call of the tile API between two copies."""

    def Init(self, inputX, inputDy, inputVariance, inputMean, inputGamma, outputPdX, resForGamma, tilingData):
        self.epsilon = tilingData.epsilon
        self.tiling = tilingData.layernormGradTilingData
        self.bsLength = self.tiling.bLength * self.tiling.sLength
        self.hLength = self.tiling.hLength
        self.bshLength = self.bsLength * self.hLength
        sizes = [self.bshLength, self.bshLength, self.bsLength, self.bsLength, self.hLength]
        self.pipe = TPipe()
        self.inputs = []
        for name, address, size in zip(
            ("X", "Dy", "Variance", "Mean", "Gamma"),
            (inputX, inputDy, inputVariance, inputMean, inputGamma),
            sizes,
            strict=True,
        ):
            self.inputs.append(self._queue(f"inQueue{name}", TPosition.VECIN, address, size))
        self.outputs = [
            self._queue("outQueuePdX", TPosition.VECOUT, outputPdX, self.bshLength),
            self._queue("outQueueResForGamma", TPosition.VECOUT, resForGamma, self.bshLength),
        ]

    def _queue(self, name, position, address, size):
        """Return global memory, a queue of one buffer for it, and their size."""
        memory = GlobalTensor(np.float32)
        memory.SetGlobalBuffer(address, size)
        queue = TQue(position, 1, name=name)
        self.pipe.InitBuffer(queue, 1, 4 * size)
        return memory, queue, size

    def Process(self):
        self.CopyIn()
        self.Compute()
        self.CopyOut()

    def CopyIn(self):
        for memory, queue, size in self.inputs:
            local = queue.AllocTensor(np.float32)
            DataCopy(local, memory, size)
            queue.EnQue(local)

    def Compute(self):
        inputX, inputDy, inputVariance, inputMean, inputGamma = (q.DeQue(np.float32) for _, q, _ in self.inputs)
        outputPdX, resForGamma = (q.AllocTensor(np.float32) for _, q, _ in self.outputs)
        LayerNormGrad(
            outputPdX, resForGamma, inputDy, inputX, inputVariance, inputMean, inputGamma, self.epsilon, self.tiling
        )
        for (_, queue, _), local in zip(self.outputs, (outputPdX, resForGamma), strict=True):
            queue.EnQue(local)
        for (_, queue, _), local in zip(
            self.inputs, (inputX, inputDy, inputVariance, inputMean, inputGamma), strict=True
        ):
            queue.FreeTensor(local)

    def CopyOut(self):
        for memory, queue, size in self.outputs:
            local = queue.DeQue(np.float32)
            DataCopy(memory, local, size)
            queue.FreeTensor(local)


def layernorm_grad_custom(x, dy, variance, mean, gamma, pd_x, res_for_gamma, tilingBytes):
    """The kernel function: one block does everything."""
    op = KernelLayernormGrad()
    op.Init(x, dy, variance, mean, gamma, pd_x, res_for_gamma, CopyTiling(VecTiling, tilingBytes))
    op.Process()


def formula(dy, x, variance, mean, gamma):
    """Return pd_x and res_for_gamma by the manual's formula, in float64."""
    dy, x, variance, mean, gamma = (a.astype(np.float64) for a in (dy, x, variance, mean, gamma))
    rstd = (variance[..., None] + EPSILON) ** -0.5
    centred = x - mean[..., None]
    pd_xl = dy * gamma
    pd_var = np.sum(-0.5 * pd_xl * centred * rstd**3, axis=-1, keepdims=True)
    pd_mean = np.sum(-pd_xl * rstd, axis=-1, keepdims=True)
    pd_mean += pd_var / H * np.sum(-2.0 * centred, axis=-1, keepdims=True)
    return pd_xl * rstd + pd_var * 2.0 / H * centred + pd_mean / H, centred * rstd


def main(name: str) -> int:
    """Run the kernel on the SoC ``name``; return the exit code."""
    rng = np.random.default_rng(0)
    x, dy = (rng.uniform(-100, 100, (B, S, H)).astype(np.float32) for _ in range(2))
    gamma = rng.uniform(-100, 100, H).astype(np.float32)
    mean, variance = x.mean(-1, dtype=np.float64).astype(np.float32), x.var(-1, dtype=np.float64).astype(np.float32)
    pd_x, res_for_gamma = np.empty_like(x), np.empty_like(x)
    with soc.use(name):
        shape = [B, S, H, H]
        _, smallest = tiling.GetLayerNormGradMaxMinTmpSize(shape, 4, False)
        info = tiling.GetLayerNormGradNDTilingInfo(shape, smallest, 4, False)
        print(
            launch(
                layernorm_grad_custom, 1, x, dy, variance, mean, gamma, pd_x, res_for_gamma,
                tiling=VecTiling(info, EPSILON),
            )
        )  # fmt: skip
    wrong = 0
    expected = formula(dy, x, variance, mean, gamma)
    for label, got, want in zip(("outputPdX", "resForGamma"), (pd_x, res_for_gamma), expected, strict=True):
        error = np.max(np.abs(got - want)) / np.max(np.abs(want))
        wrong += not error < TOLERANCE
        print(f"{label}: largest error {error:.1e} of the largest value, {TOLERANCE:.0e} allowed")
    print("wrong" if wrong else "ok")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [soc.DEFAULT]))
