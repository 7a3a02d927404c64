"""The graph ops of norms of a sum: against float64, shapes and dtypes before there are data, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lngrad.core import reference
from lngrad.core.problem import Forward, Grads
from lngrad.errors import BackendUnavailable, DtypeError, ShapeError
from lngrad.testing import Case, check_forward, check_grads, check_same_bits, make_inputs
from lngrad_ascend import graph, soc

OPS = (graph.AddLayerNorm, graph.AddLayerNormGrad, graph.DeepNorm, graph.DeepNormGrad)


def example(dtype="float32", alpha=1.0):
    """Inputs, and the same with the sum in the place of x."""
    i = make_inputs(Case((3, 4), (16,)), dtype, residual=True)
    total = (alpha * i.x.astype(np.float64) + i.residual.astype(np.float64)).astype(np.float32)
    known = reference.layer_norm(total, normalized=1)
    mean, rstd = (np.asarray(array, np.float32) for array in (known.mean, known.rstd))
    return i, replace(i, x=total, residual=None, mean=mean, rstd=rstd)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_results_of_the_ops(dtype):
    i, s = example(dtype)
    results = graph.AddLayerNorm(i.x, i.residual, i.gamma, i.beta, epsilon=1e-6, additional_output=True)
    check_forward(Forward(results.y, results.mean, results.rstd), replace(s, dtotal=None), eps=1e-6)
    check_same_bits(results.x, s.x.astype(results.x.dtype))
    assert graph.AddLayerNorm(i.x, i.residual, i.gamma, i.beta).x is None
    assert graph.AddLayerNorm.outputs(i.x, i.residual, i.gamma, i.beta).x is None
    results = graph.AddLayerNormGrad(i.dy, i.x, i.residual, s.rstd, s.mean, i.gamma, i.dtotal)
    check_grads(Grads(results.dx, results.dgamma, results.dbeta), s)
    i, s = example(dtype, alpha=0.3)
    s = replace(s, dtotal=None)
    results = graph.DeepNorm(i.x, i.residual, i.beta, i.gamma)
    check_forward(Forward(results.y, results.mean, results.rstd), s, eps=1e-6)
    results = graph.DeepNormGrad(i.dy, i.x, i.residual, i.gamma, s.mean, s.rstd)
    check_grads(Grads(results.dgx, results.dgamma, results.dbeta), s)
    scaled = replace(s, dy=0.3 * i.dy.astype(np.float32))
    check_grads(Grads(results.dx, None, None), scaled, output_mask=(True, False, False))


def test_tensors_of_torch_stay_such():
    torch = pytest.importorskip("torch")
    i, _ = example()
    arrays = (i.x, i.residual, i.beta, i.gamma)
    results = graph.DeepNorm(*map(torch.from_numpy, arrays))
    check_same_bits(results.y.numpy(), graph.DeepNorm(*arrays).y)


def test_shapes_before_there_are_data():
    assert graph.AddLayerNorm.infer_shape((-1, 4, 16), (3, -1, -1), (-1,), (16,)) == (
        (3, 4, 16), (3, 4, 1), (3, 4, 1), (3, 4, 16),
    )  # fmt: skip
    assert graph.DeepNorm.infer_shape((-1, 16), (-1, 16), (16,), (16,)) == ((-1, 1), (-1, 1), (-1, 16))
    assert graph.DeepNormGrad.infer_shape((-2,), (-2,), (-2,), (16,), (-2,), (-2,)) == ((-2,), (-2,), (16,), (16,))
    rows = ((3, 16), (3, 16), (3, 16), (3, 1), (-1, 1), (16,))
    assert graph.AddLayerNormGrad.infer_shape(*rows) == ((3, 16), (16,), (16,))
    results = graph.AddLayerNormGrad.infer_shape((-1, 16), (-1, 16), (-1, 16), (5, 1), (-1, 1), (16,))
    assert results.dx == (5, 16)


def test_dtypes_before_there_are_data():
    assert graph.AddLayerNorm.infer_dtype("float16", np.float32, "float32", "float32").y == "float32"
    assert graph.AddLayerNorm.infer_dtype("float16", "float16", "float32", "float32").x == "float16"
    assert graph.DeepNormGrad.infer_dtype(*["bfloat16"] * 4, "float32", "float32").dgx == "bfloat16"


@pytest.mark.parametrize("op", OPS)
def test_outputs_are_what_the_call_gives(op):
    i, s = example("float16")
    arrays = {
        **dict.fromkeys(("x1", "x"), i.x), **dict.fromkeys(("x2", "gx"), i.residual), "dy": i.dy, "gamma": i.gamma,
        "beta": i.beta, "mean": s.mean, "rstd": s.rstd, "bias": None, "dsum": None,
    }  # fmt: skip
    read = [arrays[name] for name in op.inputs]
    settings = {"additional_output": True} if "additional_output" in op.attributes else {}
    for promised, results in zip(op.outputs(*read, **settings), op(*read, **settings), strict=True):
        assert (promised.shape, promised.dtype) == (results.shape, results.dtype.name)


@pytest.mark.parametrize(
    ("error", "text", "wrong"),
    [
        (ShapeError, "x2: expected the shape of x1, (3, 4, 16), got (4, 16)", {1: np.zeros((4, 16), np.float32)}),
        (ShapeError, "gamma: expected the last dimensions of x1", {2: np.zeros(5, np.float32)}),
        (ShapeError, "bias: expected the shape of gamma, (16,), or of x1", {4: np.zeros((4, 16), np.float32)}),
        (ShapeError, "x1: expected a tensor that is not empty", {0: np.zeros((0, 16), np.float32),
                                                                1: np.zeros((0, 16), np.float32)}),
        (DtypeError, "gamma: expected ACL_FLOAT beside x1 in ACL_FLOAT", {2: np.zeros(16, np.float16)}),
        (DtypeError, "x1: expected one of ACL_FLOAT, ACL_FLOAT16, ACL_BF16 on", {0: np.zeros((3, 4, 16))}),
        (TypeError, "beta: expected an array, got None", {3: None}),
    ],
)  # fmt: skip
def test_what_the_ops_refuse(error, text, wrong):
    i, _ = example()
    read = [i.x, i.residual, i.gamma, i.beta, None]
    for place, array in wrong.items():
        read[place] = array
    with pytest.raises(error) as caught:
        graph.AddLayerNorm(*read)
    assert text in str(caught.value)


def test_a_product_without_the_op_and_unknown_arguments():
    i, _ = example()
    arrays = (i.x, i.residual, i.beta, i.gamma)
    with soc.use("Ascend910A"), pytest.raises(BackendUnavailable, match="DeepNorm: expected a product that has it"):
        graph.DeepNorm(*arrays)
    with pytest.raises(TypeError, match="DeepNorm: expected alpha, epsilon, got eps"):
        graph.DeepNorm(*arrays, eps=1.0)
    with pytest.raises(TypeError, match="DeepNorm: expected x, gx, beta, gamma, got 3 of them"):
        graph.DeepNorm(*arrays[:3])
