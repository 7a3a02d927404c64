"""A user's program, for type checkers alone: tests/meta/test_types.py has mypy and pyright read it. It is never run.

What a user may write has no error. What a user may not write carries a comment that ignores the error, and both checkers are
told to complain about a comment that ignores nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import lngrad
from lngrad import Forward, ForwardWithTotal, GatedGrads, Grads, RmsForward, RmsGrads
from lngrad.errors import LngradError, ShapeError
from lngrad.testing import Case, check_grads, check_same_bits, make_inputs
from lngrad_ascend import graph, soc, tiling


def train(x: npt.NDArray[np.float32], gamma: npt.NDArray[np.float32]) -> Grads:
    forward = lngrad.layer_norm(x, gamma, eps=1e-6)
    assert_type(forward, Forward)
    y, mean, rstd = forward
    grads = lngrad.layer_norm_backward(y, x, mean, rstd, gamma, output_mask=(True, False, True))
    assert_type(grads, Grads)
    into = Grads(np.empty_like(x), None, None)
    lngrad.layer_norm_backward(y, x, mean, rstd, gamma, normalized_shape=[3, 4], out=into, backend="numpy_cpu")
    return grads


def family(x: npt.NDArray[np.float32], gamma: npt.NDArray[np.float32]) -> RmsGrads:
    assert_type(lngrad.layer_norm(x, gamma, offset=1), Forward)
    assert_type(lngrad.layer_norm(x, residual=x, alpha=0.5), ForwardWithTotal)
    y, rstd, total = lngrad.rms_norm(x, gamma, residual=x)
    assert_type(lngrad.rms_norm(x, eps=1e-6, out=RmsForward(x, None)), RmsForward)
    assert_type(lngrad.rms_norm_backward(y, x, rstd, gamma, gate=x), GatedGrads)
    return lngrad.rms_norm_backward(y, total, rstd, gamma, dtotal=x, output_mask=(True, False))


def settings() -> None:
    assert_type(lngrad.backends(), dict[str, str])
    assert_type(lngrad.get_num_threads(), int)
    assert_type(lngrad.__version__, str)
    lngrad.set_num_threads(2)


def check() -> None:
    inputs = make_inputs(Case((4,), (5,)), "bfloat16", seed=1)
    grads = lngrad.layer_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
    assert_type(check_grads(grads, inputs), float)
    check_same_bits(grads, grads)


def ascend(x: npt.NDArray[np.float32]) -> None:
    with soc.use("Ascend910B1", mode="compat"):
        graph.LayerNormGrad(x, x, x, x, x)
    verdict: str = tiling.lint("LayerNormGrad", [1, 2, 16], "half").verdict
    print(verdict)


def errors(x: npt.NDArray[np.float32]) -> None:
    try:
        lngrad.layer_norm(x)
    except ShapeError as error:
        found: LngradError = error
        as_usual: ValueError = error
        print(found, as_usual)


def mistakes(x: npt.NDArray[np.float32]) -> None:
    lngrad.layer_norm(x, epsilon=1e-6)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    lngrad.layer_norm(x, eps="small")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    lngrad.layer_norm_backward(x, x, x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    lngrad.rms_norm(x, offset="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    lngrad.set_num_threads("2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(lngrad.layer_norm(x).dy)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    Grads(x, x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
