"""The graph ops inside graphs that torch captures."""

from __future__ import annotations

import numpy as np
import pytest

from lngrad.core.problem import Grads
from lngrad.errors import DtypeError
from lngrad.testing import Case, check_grads, check_same_bits, make_inputs
from lngrad_ascend import soc
from lngrad_ascend.graph import LayerNormGrad, LayerNormGradV3

torch = pytest.importorskip("torch")
graph_torch = pytest.importorskip("lngrad_ascend.graph_torch")

EPSILON = 1e-5


@pytest.fixture(autouse=True)
def the_product_of_both_ops():
    with soc.use("Ascend950"):
        yield


def arguments_of(case, dtype="float32"):
    """Inputs, and (dy, x, rstd, variance, mean, gamma) as tensors."""
    inputs = make_inputs(case, dtype)
    variance = (np.asarray(inputs.rstd, np.float64) ** -2 - EPSILON).astype(np.float32)
    arrays = (inputs.dy, inputs.x, inputs.rstd, variance, inputs.mean, inputs.gamma)
    return inputs, tuple(as_tensor(array) for array in arrays)


def as_tensor(array):
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))


class Both(torch.nn.Module):
    """Both ops in one graph."""

    def forward(self, dy, x, rstd, variance, mean, gamma):
        first = graph_torch.layer_norm_grad(dy, x, variance, mean, gamma, epsilon=EPSILON)
        third = graph_torch.layer_norm_grad_v3(dy, x, rstd, mean, gamma, output_mask=(True, False, True))
        return (*first, third.pd_x, third.pd_beta)


def check_both(results, inputs):
    check_grads(Grads(*results[:3]), inputs)
    check_grads(Grads(results[3], None, results[4]), inputs, output_mask=(True, False, True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_ops_have_the_bits_of_the_functions(dtype):
    _, (dy, x, rstd, variance, mean, gamma) = arguments_of(Case((9, 2), (33,)), dtype)
    check_same_bits(
        tuple(graph_torch.layer_norm_grad(dy, x, variance, mean, gamma)),
        tuple(LayerNormGrad(dy, x, variance, mean, gamma)),
    )
    check_same_bits(
        tuple(graph_torch.layer_norm_grad_v3(dy, x, rstd, mean, gamma, pd_gamma_dtype=torch.float32)),
        tuple(LayerNormGradV3(dy, x, rstd, mean, gamma, pd_gamma_dtype="float32")),
    )


def test_masked_off_is_empty_for_the_op_and_none_for_the_function():
    _, (dy, x, rstd, _, mean, gamma) = arguments_of(Case((9,), (33,)))
    pd_x, pd_gamma, pd_beta = torch.ops.lngrad.layer_norm_grad_v3(dy, x, rstd, mean, gamma, [False, True, False])
    assert (pd_x.numel(), pd_gamma.numel(), pd_beta.numel()) == (0, 33, 0)
    results = graph_torch.layer_norm_grad_v3(dy, x, rstd, mean, gamma, output_mask=(False, True, False))
    assert [result is None for result in results] == [True, False, True]


@pytest.mark.parametrize("mask", [[True, True, True], [True, False, True], [False, True, False]])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_s_own_checks_of_a_custom_op(dtype, mask):
    _, (dy, x, rstd, variance, mean, gamma) = arguments_of(Case((9,), (33,)), dtype)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    kind = torch.float32
    for op, arguments in (
        (torch.ops.lngrad.layer_norm_grad.default, (dy, x, variance, mean, gamma, mask, None, kind)),
        (torch.ops.lngrad.layer_norm_grad_v3.default, (dy, x, rstd, mean, gamma, mask, kind)),
    ):
        assert set(torch.library.opcheck(op, arguments, test_utils=tests).values()) == {"SUCCESS"}


def test_the_functions_have_the_signatures_of_the_graph_ops():
    _, (dy, x, rstd, variance, mean, gamma) = arguments_of(Case((9,), (33,)))
    named = {"mean": mean, "gamma": gamma, "output_mask": (True, False, False)}
    assert graph_torch.layer_norm_grad(dy, x, variance, epsilon=1e-5, **named).pd_beta is None
    assert graph_torch.layer_norm_grad_v3(dy, x, rstd, **named).pd_gamma is None
    with pytest.raises(
        TypeError, match=r"LayerNormGradV3: expected dy, x, rstd, mean, gamma; .* by name, got no gamma"
    ):
        graph_torch.layer_norm_grad_v3(dy, x, rstd, mean)
    with pytest.raises(TypeError, match="got epsilon"):
        graph_torch.layer_norm_grad_v3(dy, x, rstd, mean, gamma, epsilon=1e-5)
    with pytest.raises(DtypeError, match=r"output_mask: expected 3 booleans .*, got None"):
        graph_torch.layer_norm_grad_v3(dy, x, rstd, mean, gamma, output_mask=None)
    with pytest.raises(TypeError, match="got 6 arrays"):
        graph_torch.layer_norm_grad(dy, x, variance, mean, gamma, (True, True, True))


def test_export_with_fixed_shapes():
    inputs, arguments = arguments_of(Case((4, 3), (16,)))
    program = torch.export.export(Both(), arguments)
    check_both(program.module()(*arguments), inputs)


def test_export_with_dynamic_shapes_saved_and_loaded(tmp_path):
    _, arguments = arguments_of(Case((4, 3), (16,)))
    rows, columns = torch.export.Dim("rows", min=2), torch.export.Dim("columns", min=2)
    full, statistics = {0: rows, 2: columns}, {0: rows}
    program = torch.export.export(
        Both(), arguments, dynamic_shapes=(full, full, statistics, statistics, statistics, {0: columns})
    )
    torch.export.save(program, tmp_path / "graph.pt2")
    loaded = torch.export.load(tmp_path / "graph.pt2").module()
    for case in (Case((4, 3), (16,)), Case((67, 3), (5,)), Case((2, 3), (300,))):
        inputs, arguments = arguments_of(case)
        check_both(loaded(*arguments), inputs)


def test_compile_captures_both_ops_in_one_graph_for_any_shape():
    graphs = []

    def backend(module, _):
        graphs.append([str(node.target) for node in module.graph.nodes if "lngrad" in str(node.target)])
        return module.forward

    compiled = torch.compile(Both(), fullgraph=True, dynamic=True, backend=backend)
    for case in (Case((4, 3), (16,)), Case((67, 3), (5,)), Case((9, 2), (40,))):
        inputs, arguments = arguments_of(case)
        check_both(compiled(*arguments), inputs)
    assert graphs == [["lngrad.layer_norm_grad", "lngrad.layer_norm_grad_v3"]]


def test_the_fake_kernel_promises_shapes_and_dtypes_without_data():
    from torch._subclasses.fake_tensor import FakeTensorMode

    _, arguments = arguments_of(Case((4, 3), (2, 8)), "bfloat16")
    with FakeTensorMode() as mode:
        dy, x, rstd, _, mean, gamma = (mode.from_tensor(tensor) for tensor in arguments)
        got = graph_torch.layer_norm_grad_v3(dy, x, rstd, mean, gamma, pd_gamma_dtype=torch.float32)
    assert [(tuple(tensor.shape), tensor.dtype) for tensor in got] == [
        ((4, 3, 2, 8), torch.bfloat16),
        ((2, 8), torch.float32),
        ((2, 8), torch.float32),
    ]


def test_a_wrong_shape_is_refused_while_tracing():
    _, (dy, x, rstd, _, mean, gamma) = arguments_of(Case((4,), (16,)))
    with pytest.raises(Exception, match="gamma: expected the last dimensions of dy"):
        torch.export.export(V3(), (dy, x, rstd, mean, gamma[:5]))


class V3(torch.nn.Module):
    def forward(self, dy, x, rstd, mean, gamma):
        return tuple(graph_torch.layer_norm_grad_v3(dy, x, rstd, mean, gamma))
