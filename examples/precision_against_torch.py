"""Where torch's CPU kernels, and jax.numpy's formula, lose accuracy and ours do not. Exits with 1 if a claim does not hold.

Liger's kernels are asked too where they are installed and TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib.util import find_spec

import ml_dtypes
import numpy as np

import lngrad
from lngrad.core import reference

try:
    import torch

    import lngrad.torch
except ImportError:
    sys.exit("this example compares with torch, which is not installed: pip install 'lngrad[torch]'")


def tensor(array):
    """The same memory as a torch tensor."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def both(dy, x, gamma):
    """Gradients by lngrad, by torch and by the float64 reference, from the same statistics."""
    forward = lngrad.layer_norm(x, gamma)
    ours = lngrad.layer_norm_backward(dy, x, forward.mean, forward.rstd, gamma)
    statistics = [tensor(array).to(tensor(gamma).dtype) for array in (forward.mean, forward.rstd)]
    theirs = torch.ops.aten.native_layer_norm_backward(
        tensor(dy), tensor(x), [x.shape[1]], *statistics, tensor(gamma), tensor(gamma), [True] * 3
    )
    truth = reference.layer_norm_backward(dy, x, forward.mean, forward.rstd, gamma)
    return ours, [result.double().numpy() for result in theirs], truth


def error(got, truth):
    return float(np.linalg.norm(got.astype(np.float64) - truth) / np.linalg.norm(truth))


def by_torch(layer_norm, x, dy, gamma):
    """y, dx and dgamma of a function of torch's or ours, forward and backward."""
    x, gamma = (torch.from_numpy(array).requires_grad_() for array in (x, gamma))
    y = layer_norm(x, x.shape[1:], gamma)
    return [result.detach().numpy() for result in (y, *torch.autograd.grad(y, (x, gamma), torch.from_numpy(dy)))]


def by_jax(layer_norm, x, dy, gamma):
    """The same of JAX, compiled."""
    import jax

    y, pullback = jax.vjp(jax.jit(layer_norm), x, gamma)
    return [np.asarray(result) for result in (y, *pullback(dy))]


def jax_formula(x, gamma):
    import jax

    centred = x - x.mean(1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(1, keepdims=True) + 1e-5) * gamma


class Eps(float):
    """What Liger's kernels ask of a number, which is a plain float in the interpreter."""

    def to(self, dtype):
        return self


def liger_layer_norm(x, shape, gamma):
    import triton.language as tl
    from liger_kernel.ops import layer_norm

    layer_norm.rsqrt = lambda variance: tl.math.rsqrt(variance)  # the interpreter has no libdevice
    return layer_norm.LigerLayerNormFunction.apply(x, gamma, torch.zeros_like(gamma), Eps(1e-5))


def by_numpy(x, dy, gamma, complete):
    y, mean, rstd = lngrad.layer_norm(x, gamma)
    return [y, *lngrad.layer_norm_backward(dy, x, mean, rstd, gamma, complete_mean=complete)[:2]]


def ways():
    found = {
        "torch": partial(by_torch, torch.nn.functional.layer_norm),
        "lngrad.torch": partial(by_torch, lngrad.torch.layer_norm),
        "lngrad, means as given": partial(by_numpy, complete=False),
        "lngrad, complete_mean": partial(by_numpy, complete=True),
    }
    if find_spec("jax"):
        from lngrad.jax import layer_norm

        found["jax.numpy"] = partial(by_jax, jax_formula)
        found["lngrad.jax"] = partial(by_jax, lambda x, gamma: layer_norm(x, gamma=gamma))
    if find_spec("liger_kernel") and os.environ.get("TRITON_INTERPRET") == "1":
        found["Liger, interpreted"] = partial(by_torch, liger_layer_norm)
    return found


def offsets(claim):
    """Errors of y, dx and dgamma where rows have a mean that is large beside their spread."""
    rng = np.random.default_rng(0)
    for offset in (0.0, 10.0, 1e3, 1e4, 1e6):
        x = (offset + rng.standard_normal((512, 768))).astype(np.float32)
        dy, gamma = rng.standard_normal(x.shape).astype(np.float32), np.float32(1 + 0.5 * rng.standard_normal(768))
        true = reference.layer_norm(x, gamma)
        truth = true.y, *reference.layer_norm_backward(dy, x, true.mean, true.rstd, gamma)[:2]
        rstd = lngrad.layer_norm(x).rstd
        units = np.abs(rstd - true.rstd) / np.spacing(rstd)
        print(f"offset {offset:8g}  rstd of lngrad: {units.max():.1f} units in the last place")
        for name, way in ways().items():
            errors = list(map(error, way(x=x, dy=dy, gamma=gamma), truth))
            print(f"offset {offset:8g}  {name:24} y {errors[0]:.1e}  dx {errors[1]:.1e}  dgamma {errors[2]:.1e}")
            if name in ("lngrad.torch", "lngrad.jax", "lngrad, complete_mean"):
                claim(max(errors) <= 1e-6)


def main() -> int:
    rng = np.random.default_rng(0)
    torch.set_num_threads(2)
    wrong = 0

    def claim(text, theirs, ours, holds):
        nonlocal wrong
        wrong += not holds
        print(f"{text:62} torch {theirs:<10} lngrad {ours:<10} {'' if holds else 'DOES NOT HOLD'}")

    for dtype in (ml_dtypes.bfloat16, np.float16):
        name = np.dtype(dtype).name
        x = rng.standard_normal((16384, 64)).astype(dtype)
        gamma = (1 + 0.5 * rng.standard_normal(64)).astype(dtype)
        ours, theirs, _ = both(np.ones_like(x), x, gamma)
        worst = float(np.max(np.abs(ours.dbeta.astype(np.float64) - 16384)))
        claim(f"{name}, ones, 16384 rows: dbeta", f"{theirs[2].max():.0f}", f"{float(ours.dbeta[0]):.0f}", worst == 0)
        dy = rng.standard_normal(x.shape).astype(dtype)
        for weights, factor in ((gamma, 10), (gamma.astype(np.float32), 1e4)):
            ours, theirs, truth = both(dy, x, weights)
            t, o = error(theirs[1], truth.dgamma), error(ours.dgamma, truth.dgamma)
            text = f"{name}, random, 16384 x 64, {weights.dtype} weights: error of dgamma"
            claim(text, f"{t:.2g}", f"{o:.2g}", o <= t / factor)

    x = (1e4 + rng.standard_normal((512, 768))).astype(np.float32)
    gamma = (1 + 0.5 * rng.standard_normal(768)).astype(np.float32)
    ours, theirs, truth = both(rng.standard_normal(x.shape).astype(np.float32), x, gamma)
    for k, (field, factor) in enumerate((("dx", 1), ("dgamma", 10))):
        t, o = error(theirs[k], truth[k]), error(ours[k], truth[k])
        claim(f"float32, 512 x 768, offset 1e4: relative error of {field}", f"{t:.2g}", f"{o:.2g}", o <= t / factor)
    holds = []
    offsets(holds.append)
    return int(wrong > 0 or not all(holds))


if __name__ == "__main__":
    sys.exit(main())
