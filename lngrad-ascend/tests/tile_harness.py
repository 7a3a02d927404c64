"""What the tile tests share: one comparator that raises, the float64 formulas, and kernels that run
one tile API."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lngrad_ascend import tiling
from lngrad_ascend.ascendc import (
    DataCopy,
    Duplicate,
    GlobalTensor,
    LayerNorm,
    LayerNormGrad,
    LayerNormGradBeta,
    TBuf,
    TPipe,
    TPosition,
    TQue,
    launch,
)

SOCS = ("Ascend310P", "Ascend910B1", "Ascend950")  # one of each architecture


def check_close(name, got, want, allowed):
    """Raise with the worst element unless |got - want| <= allowed everywhere. ``want`` and
    ``allowed`` are float64."""
    got = np.asarray(got, np.float64)
    if got.shape != np.shape(want):
        raise AssertionError(f"{name}: expected shape {np.shape(want)}, got {got.shape}")
    ratio = np.abs(got - want) / np.maximum(allowed, 1e-300)
    worst = np.unravel_index(np.argmax(np.where(np.isnan(ratio), np.inf, ratio)), ratio.shape)
    if not ratio[worst] <= 1:
        raise AssertionError(
            f"{name}{[int(i) for i in worst]}: expected {want[worst]}, got {got[worst]}, {ratio[worst]:.2g} times "
            "what is allowed"
        )


def check_same_bits(name, got, want):
    """Raise with the first differing element unless both arrays hold the same bits."""
    if got.shape != want.shape or got.dtype != want.dtype:
        raise AssertionError(f"{name}: expected {want.dtype}{want.shape}, got {got.dtype}{got.shape}")
    unsigned = f"u{got.dtype.itemsize}"
    wrong = np.argwhere(got.view(unsigned) != want.view(unsigned))
    if len(wrong):
        place = tuple(wrong[0])
        raise AssertionError(
            f"{name}{[int(i) for i in place]}: expected {want[place]}, got {got[place]}; {len(wrong)} differ"
        )


@dataclass
class Case:
    """Inputs of one backward call: dy, x (B, S, H); variance, mean (B, S); gamma (H,)."""

    dy: np.ndarray
    x: np.ndarray
    variance: np.ndarray
    mean: np.ndarray
    gamma: np.ndarray
    epsilon: float = 1e-3


def make_case(B, S, H, dtype, seed, *, true_mean=True, originH=None):
    """Return random inputs, dy and gamma distinct; columns from ``originH`` on are zero padding."""
    rng = np.random.default_rng(seed)
    width = H if originH is None else originH
    x = (rng.normal(size=(B, S, width)) * 2 + rng.normal(size=(B, S, 1))).astype(dtype)
    mean = x.mean(-1, dtype=np.float64) if true_mean else rng.normal(size=(B, S))
    pad = ((0, 0), (0, 0), (0, H - width))
    return Case(
        dy=np.pad(rng.normal(size=x.shape).astype(dtype), pad),
        x=np.pad(x, pad),
        variance=x.var(-1, dtype=np.float64).astype(dtype),
        mean=mean.astype(dtype),
        gamma=np.pad(rng.uniform(0.5, 2, width).astype(dtype), (0, H - width)),
    )


def grad_formula(case, originH=None):
    """Return pd_x and res_for_gamma of the tile formula in float64, and for each the size of its
    terms."""
    H = case.x.shape[-1] if originH is None else originH
    dy, x, gamma = (np.asarray(a, np.float64)[..., :H] for a in (case.dy, case.x, case.gamma))
    mean, variance = (np.asarray(a, np.float64)[..., None] for a in (case.mean, case.variance))
    rstd = (variance + float(case.dy.dtype.type(case.epsilon))) ** -0.5
    centred, x1 = x - mean, dy * gamma
    spread = np.abs(x) + np.abs(mean)

    def total(terms):
        return np.sum(terms, axis=-1, keepdims=True)

    var = total(-0.5 * x1 * centred * rstd**3)
    var_size = total(np.abs(0.5 * x1 * rstd**3) * spread)
    mean_grad = total(-x1 * rstd) + var / H * total(-2 * centred)
    mean_size = total(np.abs(x1 * rstd)) + var_size / H * total(2 * spread)
    pd_x = x1 * rstd + var * 2 / H * centred + mean_grad / H
    pd_x_size = np.abs(x1 * rstd) + var_size * 2 / H * spread + mean_size / H
    return (pd_x, pd_x_size), (centred * rstd, spread * rstd)


def allowed_error(want, size, dtype, factor=8):
    """Return what float arithmetic on terms of ``size`` and one store to ``dtype`` may be off."""
    error = factor * 2.0**-24 * size
    return error if np.dtype(dtype) == np.float32 else error + 2.0**-11 * np.abs(want) + 2.0**-25


class Tile:
    """The tensors of a kernel in one block: copies in through queues, results out through
    queues."""

    def __init__(self):
        self.pipe = TPipe()
        self._inputs, self._outputs = [], []

    def take(self, name, address, dtype, size):
        """Return ``size`` elements of global memory as a VECIN tensor."""
        memory = GlobalTensor(dtype)
        memory.SetGlobalBuffer(address)
        nbytes = -(-size * np.dtype(dtype).itemsize // 32) * 32
        queue = TQue(TPosition.VECIN, 1, name=name)
        self.pipe.InitBuffer(queue, 1, nbytes)
        local = queue.AllocTensor(dtype)
        DataCopy(local, memory, nbytes // np.dtype(dtype).itemsize)
        queue.EnQue(local)
        self._inputs.append((queue, queue.DeQue(dtype), memory))
        return self._inputs[-1][1]

    def make(self, name, address, dtype, size):
        """Return a VECOUT tensor of ``size`` elements whose content ends up in global memory."""
        memory = GlobalTensor(dtype)
        memory.SetGlobalBuffer(address)
        queue = TQue(TPosition.VECOUT, 1, name=name)
        self.pipe.InitBuffer(queue, 1, size * np.dtype(dtype).itemsize)
        local = queue.AllocTensor(dtype)
        self._outputs.append((queue, local, memory, size))
        return local

    def temporary(self, nbytes):
        """Return a sharedTmpBuffer."""
        buffer = TBuf(name="sharedTmpBuffer")
        self.pipe.InitBuffer(buffer, nbytes)
        return buffer.Get(np.uint8)

    def finish(self):
        """Copy the results out and free everything."""
        for queue, local, memory, size in self._outputs:
            queue.EnQue(local)
            done = queue.DeQue()
            lanes = 32 // done.dtype.itemsize
            DataCopy(memory, done, -(-size // lanes) * lanes)
            queue.FreeTensor(done)
        for queue, local, _ in self._inputs:
            queue.FreeTensor(local)


def _padded(array):
    """Return the array flat with room for whole blocks, as device memory has."""
    flat = np.zeros(-(-array.nbytes // 32) * 32 // array.dtype.itemsize, array.dtype)
    flat[: array.size] = array.reshape(-1)
    return flat


def run_grad(
    case,
    soc="Ascend910B1",
    *,
    stack_bytes=None,
    shared=True,
    reuse=False,
    exact=False,
    originH=None,
    after=None,
    cycles=False,
):
    """Run LayerNormGrad once and return pd_x, res_for_gamma and the launch report.

    ``stack_bytes=None`` takes the safe size; ``shared=False`` leaves the temporary buffer to the
    framework; ``after(tile, tensors)`` runs in the kernel, before the copies out.
    """
    B, S, H = case.x.shape
    dtype = case.x.dtype
    shape = (B, S, H, H if originH is None else originH)
    if stack_bytes is None:
        stack_bytes = tiling.safe_stack_bytes("LayerNormGrad", shape, dtype.itemsize, reuse, soc)
    info = tiling.GetLayerNormGradNDTilingInfo(shape, stack_bytes, dtype.itemsize, reuse, soc=soc, quiet=True)
    pd_x, res = np.empty(case.x.size, dtype), np.empty(case.x.size, dtype)

    def kernel(dy, x, variance, mean, gamma, pd_x, res):
        tile = Tile()
        tensors = {
            "dy": tile.take("dy", dy, dtype, B * S * H),
            "x": tile.take("x", x, dtype, B * S * H),
            "variance": tile.take("variance", variance, dtype, B * S),
            "mean": tile.take("mean", mean, dtype, B * S),
            "gamma": tile.take("gamma", gamma, dtype, H),
            "pd_x": tile.make("pd_x", pd_x, dtype, B * S * H),
            "res": tile.make("res", res, dtype, B * S * H),
        }
        temporary = tile.temporary(stack_bytes) if shared and stack_bytes else None
        LayerNormGrad(
            tensors["pd_x"], tensors["res"], tensors["dy"], tensors["x"], tensors["variance"], tensors["mean"],
            tensors["gamma"], case.epsilon, info, sharedTmpBuffer=temporary, isReuseSource=reuse, exact_padding=exact,
            quiet=True,
        )  # fmt: skip
        if after:
            after(tile, tensors)
        tile.finish()

    arrays = [_padded(a) for a in (case.dy, case.x, case.variance, case.mean, case.gamma)]
    report = launch(kernel, 1, *arrays, pd_x, res, soc=soc, cycles=cycles)
    return pd_x.reshape(case.x.shape), res.reshape(case.x.shape), report


def run_beta(
    res, dy, soc="Ascend910B1", *, stack_bytes=None, reuse=False, exact=False, originH=None, after=None, cycles=False
):
    """Run LayerNormGradBeta once and return pd_gamma, pd_beta and the launch report."""
    B, S, H = dy.shape
    dtype = dy.dtype
    shape = (B, S, H, H if originH is None else originH)
    if stack_bytes is None:
        stack_bytes = tiling.safe_stack_bytes("LayerNormGradBeta", shape, dtype.itemsize, reuse, soc)
    info = tiling.GetLayerNormGradBetaNDTilingInfo(shape, stack_bytes, dtype.itemsize, reuse, soc=soc, quiet=True)
    pd_gamma, pd_beta = np.empty(H, dtype), np.empty(H, dtype)

    def kernel(res, dy, pd_gamma, pd_beta):
        tile = Tile()
        tensors = {
            "res": tile.take("res", res, dtype, B * S * H),
            "dy": tile.take("dy", dy, dtype, B * S * H),
            "pd_gamma": tile.make("pd_gamma", pd_gamma, dtype, H),
            "pd_beta": tile.make("pd_beta", pd_beta, dtype, H),
        }
        for result in ("pd_gamma", "pd_beta"):  # as published, columns from originH on are never written
            Duplicate(tensors[result], 0.0, H)
        LayerNormGradBeta(
            tensors["pd_gamma"], tensors["pd_beta"], tensors["res"], tensors["dy"], info,
            sharedTmpBuffer=tile.temporary(stack_bytes), isReuseSource=reuse, exact_padding=exact,
        )  # fmt: skip
        if after:
            after(tile, tensors)
        tile.finish()

    report = launch(kernel, 1, res.reshape(-1), dy.reshape(-1), pd_gamma, pd_beta, soc=soc, cycles=cycles)
    return pd_gamma, pd_beta, report


def run_forward(x, gamma, beta, epsilon, info, soc, *, para=None, config=None, reuse=False, exact=False):
    """Run LayerNorm once in the form of its tiling and return y, mean and the third output."""
    rows = x.size // x.shape[-1]
    statistics = np.dtype(np.float32) if para else x.dtype
    lanes = 32 // statistics.itemsize
    y = np.empty(x.size, x.dtype)
    mean, spread = (np.empty(-(-rows // lanes) * lanes, statistics) for _ in range(2))

    def kernel(x_address, gamma_address, beta_address, y_address, mean_address, spread_address):
        tile = Tile()
        x_local = tile.take("x", x_address, x.dtype, x.size)
        gamma_local = tile.take("gamma", gamma_address, gamma.dtype, gamma.size)
        beta_local = tile.take("beta", beta_address, beta.dtype, beta.size)
        y_local = tile.make("y", y_address, x.dtype, x.size)
        mean_local = tile.make("mean", mean_address, statistics, rows)
        spread_local = tile.make("spread", spread_address, statistics, rows)
        for local in (mean_local, spread_local):  # a copy out takes whole blocks, the API fills only the rows
            local.write("zero", "padding", local.GetSize())[:] = 0
        LayerNorm(
            y_local, mean_local, spread_local, x_local, gamma_local, beta_local, epsilon, info, para,
            config=config, isReuseSource=reuse, exact_padding=exact,
        )  # fmt: skip
        tile.finish()

    launch(kernel, 1, x.reshape(-1), _padded(gamma), _padded(beta), y, mean, spread, soc=soc)
    return y.reshape(x.shape), mean[:rows], spread[:rows]
