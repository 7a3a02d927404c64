"""One kernel, three tile APIs: LayerNorm, LayerNormGrad and LayerNormGradBeta without leaving the
Unified Buffer.

B=2, S=32, H=16, float, epsilon 1e-4, inputs uniform(-100, 100) with NumPy's seed 42, as CANN's own
sample of the chain uses them. Run it anywhere: ``python examples/ascendc_chain.py [SoC]``. It
checks six results against float64 by the sample's rule, prints what the block did, and exits with 1
where a result is wrong.
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
    LayerNorm,
    LayerNormGrad,
    LayerNormGradBeta,
    LayerNormGradBetaTiling,
    LayerNormGradTiling,
    LayerNormTiling,
    TilingStruct,
    TPipe,
    TPosition,
    TQue,
    launch,
)

B, S, H = 2, 32, 16
EPSILON = 1e-4
# CANN's sample calls an element wrong if it is off by more than 1e-4 both absolutely and
# relatively.
LIMIT = 1e-4


@dataclass
class ChainTiling(TilingStruct):
    """What the host hands to the kernel."""

    forward: LayerNormTiling = field(default_factory=LayerNormTiling)
    grad: LayerNormGradTiling = field(default_factory=LayerNormGradTiling)
    beta: LayerNormGradBetaTiling = field(default_factory=LayerNormGradBetaTiling)
    epsilon: float = 0.0


def layernorm_chain(x, gamma, beta, dy, y, mean, variance, pd_x, pd_gamma, pd_beta, tilingBytes):
    """Copy in, normalize, go back, copy out."""
    info = CopyTiling(ChainTiling, tilingBytes)
    rows, h = info.grad.bLength * info.grad.sLength, info.grad.hLength
    pipe = TPipe()

    def queue(name, position, size):
        queue = TQue(position, 1, name=name)
        pipe.InitBuffer(queue, 1, 4 * size)
        return queue

    def copy_in(name, address, size):
        memory = GlobalTensor(np.float32)
        memory.SetGlobalBuffer(address, size)
        que = queue(name, TPosition.VECIN, size)
        local = que.AllocTensor(np.float32)
        DataCopy(local, memory, size)
        que.EnQue(local)
        return que, que.DeQue(np.float32)

    inputs = [
        copy_in(name, address, size)
        for name, address, size in (("x", x, rows * h), ("gamma", gamma, h), ("beta", beta, h), ("dy", dy, rows * h))
    ]
    x_local, gamma_local, beta_local, dy_local = (local for _, local in inputs)

    results = []
    for name, address, size in (
        ("y", y, rows * h),
        ("mean", mean, rows),
        ("variance", variance, rows),
        ("pd_x", pd_x, rows * h),
        ("pd_gamma", pd_gamma, h),
        ("pd_beta", pd_beta, h),
    ):
        que = queue(name, TPosition.VECOUT, size)
        results.append((que, que.AllocTensor(np.float32), address, size))
    y_local, mean_local, variance_local, pd_x_local, pd_gamma_local, pd_beta_local = (r[1] for r in results)
    res_queue = queue("resForGamma", TPosition.VECCALC, rows * h)
    res_local = res_queue.AllocTensor(np.float32)

    LayerNorm(y_local, mean_local, variance_local, x_local, gamma_local, beta_local, info.epsilon, info.forward)
    LayerNormGrad(
        pd_x_local, res_local, dy_local, x_local, variance_local, mean_local, gamma_local, info.epsilon, info.grad
    )
    LayerNormGradBeta(pd_gamma_local, pd_beta_local, res_local, dy_local, info.beta)

    for que, local in [*inputs, (res_queue, res_local)]:
        que.FreeTensor(local)
    for que, local, address, size in results:
        memory = GlobalTensor(np.float32)
        memory.SetGlobalBuffer(address, size)
        que.EnQue(local)
        done = que.DeQue(np.float32)
        DataCopy(memory, done, size)
        que.FreeTensor(done)


def golden(x, gamma, beta, dy):
    """Return y, mean, variance, pd_x, pd_gamma and pd_beta in float64."""
    x, gamma, beta, dy = (a.astype(np.float64) for a in (x, gamma, beta, dy))
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    rstd = (variance + EPSILON) ** -0.5
    centred = x - mean
    xhat, pd_xl = centred * rstd, dy * gamma
    pd_var = np.sum(-0.5 * pd_xl * centred * rstd**3, axis=-1, keepdims=True)
    pd_mean = np.sum(-pd_xl * rstd, axis=-1, keepdims=True)
    pd_mean += pd_var / H * np.sum(-2.0 * centred, axis=-1, keepdims=True)
    pd_x = pd_xl * rstd + pd_var * 2.0 / H * centred + pd_mean / H
    return (
        xhat * gamma + beta, mean[..., 0], variance[..., 0], pd_x, np.sum(dy * xhat, (0, 1)), np.sum(dy, (0, 1)),
    )  # fmt: skip


def main(name: str) -> int:
    """Run the kernel on the SoC ``name``; return the exit code."""
    rng = np.random.RandomState(42)
    x, gamma, beta, dy = (
        rng.uniform(-100, 100, shape).astype(np.float32) for shape in ((B, S, H), (H,), (H,), (B, S, H))
    )
    outputs = [np.empty(shape, np.float32) for shape in ((B, S, H), (B, S), (B, S), (B, S, H), (H,), (H,))]
    shape = [B, S, H, H]
    with soc.use(name):
        # As the sample: one size for the three calls, the largest of their minimums.
        stack_bytes = max(
            size(shape, 4, False)[1]
            for size in (
                tiling.GetLayerNormMaxMinTmpSize,
                tiling.GetLayerNormGradMaxMinTmpSize,
                tiling.GetLayerNormGradBetaMaxMinTmpSize,
            )
        )
        info = ChainTiling(
            tiling.GetLayerNormNDTilingInfo(shape, stack_bytes, 4, False),
            tiling.GetLayerNormGradNDTilingInfo(shape, stack_bytes, 4, False),
            tiling.GetLayerNormGradBetaNDTilingInfo(shape, stack_bytes, 4, False),
            EPSILON,
        )
        print(f"temporary buffer: {stack_bytes} bytes")
        print(launch(layernorm_chain, 1, x, gamma, beta, dy, *outputs, tiling=info))
    bad = 0
    names = ("y", "mean", "variance", "pd_x", "pd_gamma", "pd_beta")
    for label, got, want in zip(names, outputs, golden(x, gamma, beta, dy), strict=True):
        off = np.abs(got - want)
        # Written so that a NaN counts as wrong.
        wrong = int(np.count_nonzero(~((off <= LIMIT) | (off <= LIMIT * np.abs(want)))))
        bad += wrong
        print(f"{label}: {wrong} of {got.size} elements wrong, largest error {off.max():.1e}")
    print("wrong" if bad else "ok")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [soc.DEFAULT]))
