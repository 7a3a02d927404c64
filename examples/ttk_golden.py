"""A golden plugin for TTK: float64-true gradients for LayerNormGrad, LayerNormGradV3 and aclnnLayerNormBackward.

TTK imports this file, looks the op up in `__golden__`, and calls the function named there with the inputs as NumPy arrays
and facts of the case as keywords. The order of the inputs is the op's; what comes back is rounded once to the declared
dtypes. For LayerNormGrad this is the only public golden there is: torch has no backward that takes a variance.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from lngrad.core import reference
from lngrad.support.dtypes import numpy_dtype
from lngrad.testing import Case, check_same_bits, make_inputs

__golden__ = {
    "kernel": {
        "layer_norm_grad": "layer_norm_grad_golden",
        "layer_norm_grad_v3": "layer_norm_grad_v3_golden",
    },
    "aclnn": {"aclnnLayerNormBackward": "layer_norm_backward_golden"},
}

EPSILON, EPSILON_FLOAT32 = 1e-5, 1e-12  # hard-coded in LayerNormGrad's tiling


def layer_norm_grad_golden(dy: Any, x: Any, variance: Any, mean: Any, gamma: Any, **facts: Any) -> list[Any]:
    """From the variance: rstd = 1/sqrt(variance + epsilon), in float64."""
    epsilon = EPSILON_FLOAT32 if x.dtype == np.float32 else EPSILON
    rstd = 1 / np.sqrt(variance.astype(np.float64) + epsilon)
    return _golden(dy, x, mean, rstd, gamma, gamma.ndim, facts)


def layer_norm_grad_v3_golden(dy: Any, x: Any, rstd: Any, mean: Any, gamma: Any, **facts: Any) -> list[Any]:
    """From rstd."""
    return _golden(dy, x, mean, rstd, gamma, gamma.ndim, facts)


def layer_norm_backward_golden(
    gradOut: Any, input: Any, normalizedShape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, outputMask: Any,
    **facts: Any,
) -> list[Any]:  # fmt: skip
    """aclnn's arguments in their order; an absent weight is None."""
    return _golden(gradOut, input, mean, rstd, weight, len(normalizedShape), {"output_mask": outputMask, **facts})


def _golden(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, normalized: int, facts: dict[str, Any]) -> list[Any]:
    grads = reference.layer_norm_backward(dy, x, mean, rstd, gamma, normalized=normalized)
    parameter = x.dtype.name if gamma is None else gamma.dtype.name
    dtypes = facts.get("output_dtypes") or (x.dtype.name, parameter, parameter)
    mask = facts.get("output_mask") or (True, True, True)
    return [
        grad.astype(numpy_dtype(dtype)) if wanted else None
        for grad, dtype, wanted in zip(grads, dtypes, mask, strict=True)
    ]


def main() -> int:
    """The three functions agree on one problem."""
    inputs = make_inputs(Case((6,), (4, 8)), "bfloat16")
    dtypes = ("bfloat16", "float32", "float32")
    v3 = layer_norm_grad_v3_golden(inputs.dy, inputs.x, inputs.rstd, inputs.mean, inputs.gamma, output_dtypes=dtypes)
    aclnn = layer_norm_backward_golden(
        inputs.dy, inputs.x, [4, 8], inputs.mean, inputs.rstd, inputs.gamma, None, [True] * 3, output_dtypes=dtypes
    )
    check_same_bits(tuple(v3), tuple(aclnn))
    variance = 1 / inputs.rstd.astype(np.float64) ** 2 - EPSILON
    graph = layer_norm_grad_golden(inputs.dy, inputs.x, variance, inputs.mean, inputs.gamma, output_dtypes=dtypes)
    check_same_bits(graph[0], v3[0])
    print("bfloat16 goldens of 6 rows of 4×8: the same at all three entry points")
    return 0


if __name__ == "__main__":
    sys.exit(main())
