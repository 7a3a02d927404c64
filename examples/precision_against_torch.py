"""Where torch's CPU backward loses accuracy and ours does not. Prints a table; exits with 1 if a claim does not hold."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np

import lngrad
from lngrad.core import reference

try:
    import torch
except ImportError:
    sys.exit("this example compares with torch, which is not installed: pip install 'lngrad[torch]'")


def tensor(array):
    """The same memory as a torch tensor."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def both(dy, x, gamma):
    """Gradients by lngrad, by torch and by the float64 reference, from the same statistics."""
    forward = lngrad.layer_norm(x, gamma=gamma)
    ours = lngrad.layer_norm_backward(dy, x, forward.mean, forward.rstd, gamma)
    statistics = [tensor(array).to(tensor(x).dtype) for array in (forward.mean, forward.rstd)]
    theirs = torch.ops.aten.native_layer_norm_backward(
        tensor(dy), tensor(x), [x.shape[1]], *statistics, tensor(gamma), tensor(gamma), [True] * 3
    )
    truth = reference.layer_norm_backward(dy, x, forward.mean, forward.rstd, gamma)
    return ours, [result.double().numpy() for result in theirs], truth


def error(got, truth):
    return float(np.linalg.norm(got.astype(np.float64) - truth) / np.linalg.norm(truth))


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
        ours, theirs, truth = both(rng.standard_normal(x.shape).astype(dtype), x, gamma)
        t, o = error(theirs[1], truth.dgamma), error(ours.dgamma, truth.dgamma)
        claim(f"{name}, random, 16384 x 64: relative error of dgamma", f"{t:.2g}", f"{o:.2g}", o <= t / 10)

    x = (1e4 + rng.standard_normal((512, 768))).astype(np.float32)
    gamma = (1 + 0.5 * rng.standard_normal(768)).astype(np.float32)
    ours, theirs, truth = both(rng.standard_normal(x.shape).astype(np.float32), x, gamma)
    for k, (field, factor) in enumerate((("dx", 1), ("dgamma", 10))):
        t, o = error(theirs[k], truth[k]), error(ours[k], truth[k])
        claim(f"float32, 512 x 768, offset 1e4: relative error of {field}", f"{t:.2g}", f"{o:.2g}", o <= t / factor)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
