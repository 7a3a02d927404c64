"""Layer-normalization gradients of NumPy arrays, in float32 and bfloat16, checked.

python examples/numpy_quickstart.py
"""

import ml_dtypes
import numpy as np

import lngrad
from lngrad.testing import Inputs, check_grads, check_same_bits

rng = np.random.default_rng(0)

for dtype in (np.float32, ml_dtypes.bfloat16):
    x = (3 + rng.standard_normal((4, 512, 768))).astype(dtype)  # batch, tokens, features
    dy = rng.standard_normal(x.shape).astype(dtype)  # what the rest of the network hands back
    gamma, beta = rng.standard_normal((2, 768)).astype(dtype)

    y, mean, rstd = lngrad.layer_norm(x, gamma, beta)
    grads = lngrad.layer_norm_backward(dy, x, mean, rstd, gamma)
    assert grads.dx.shape == x.shape
    assert grads.dgamma.shape == grads.dbeta.shape == gamma.shape

    share = check_grads(grads, Inputs(dy, x, mean, rstd, gamma, beta, normalized=1))
    print(f"{np.dtype(dtype).name:8}  worst error against float64: {share:.2f} of the tolerance")

    # Only what is wanted: the others cost nothing. dx may take dy's place, and has the same bits there.
    in_place = lngrad.layer_norm_backward(
        dy, x, mean, rstd, gamma, output_mask=(True, False, False), out=lngrad.Grads(dy, None, None)
    )
    assert in_place.dx is dy
    assert in_place.dgamma is None
    check_same_bits(in_place.dx, grads.dx)
