"""Transforms of torch.func over graphs, which hold lngrad's bare operators: compiled, exported, traced, or called."""

import pytest

torch = pytest.importorskip("torch")

from torch.func import functional_call, functionalize, grad, jacrev, jvp, vjp, vmap  # noqa: E402

import lngrad.torch as lngrad_torch  # noqa: E402
from lngrad.torch import operators  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
ROWS, TANGENT = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
CLASSES = {"layer_norm": torch.nn.LayerNorm, "rms_norm": torch.nn.RMSNorm}


def compiled(function):
    return torch.compile(function, backend="aot_eager", fullgraph=True)


GRAPHS = {
    "compiled": lambda module: lambda x, dx: compiled(lambda x, dx: jvp(module, (x,), (dx,)))(x, dx),
    "exported": lambda module: lambda x, dx: jvp(torch.export.export(module, (x,)).module(), (x,), (dx,)),
    "traced": lambda module: lambda x, dx: jvp(torch.jit.trace(module, x), (x,), (dx,)),
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("kind", CLASSES)
def test_forward_mode_over_a_graph_is_that_of_the_formula(kind, graph):
    module = torch.nn.Sequential(CLASSES[kind](8).double())
    expected = jvp(module, (ROWS,), (TANGENT,))
    lngrad_torch.patch(module)
    torch._dynamo.reset()
    for got, right in zip(GRAPHS[graph](module)(ROWS, TANGENT), expected, strict=True):
        torch.testing.assert_close(got, right)


CALLS = {  # of each operator: itself, and the function that it is
    "layer_norm": lambda x, w: torch.ops.lngrad.layer_norm(x, [8], w, None, 1e-5)[0],
    "norm": lambda x, w: torch.ops.lngrad.norm(x, [8], w, None, 1e-5, None, False, 0.0)[0],
    "gated_norm": lambda x, w: torch.ops.lngrad.gated_norm(x, [8], w, x.cos(), 1e-5, 0.0, True)[0],
}
THEIRS = {
    "layer_norm": lambda x, w: torch.nn.functional.layer_norm(x, (8,), w),
    "norm": lambda x, w: torch.nn.functional.rms_norm(x, (8,), w, 1e-5),
    "gated_norm": lambda x, w: torch.nn.functional.rms_norm(x, (8,), w, 1e-5) * torch.nn.functional.silu(x.cos()),
}
TRANSFORMS = {
    "jvp": lambda f, x, w: jvp(f, (x, w), (x.sin(), w.sin())),
    "vjp": lambda f, x, w: vjp(f, x, w)[1](x.sin()),
    "jacrev": lambda f, x, w: jacrev(f, (0, 1))(x, w),
    "vmap": lambda f, x, w: (vmap(f, (0, None))(x, w), vmap(f, (None, 0))(x, torch.stack([w, 2 * w]))),
    "gradients by example": lambda f, x, w: vmap(grad(lambda x, w: f(x, w).pow(3).sum(), (0, 1)), (0, None))(x, w),
    "gradient of a batch": lambda f, x, w: grad(lambda x, w: vmap(f, (0, None))(x, w).pow(3).sum(), (0, 1))(x, w),
    "forward over reverse": lambda f, x, w: jvp(grad(lambda x: f(x, w).pow(3).sum()), (x,), (x.sin(),)),
    "functionalize": lambda f, x, w: functionalize(f)(x, w),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("operator", CALLS)
def test_a_bare_operator_under_a_transform(operator, transform):
    weight = torch.linspace(0.5, 2, 8, dtype=torch.float64)
    got, expected = (TRANSFORMS[transform](calls[operator], ROWS, weight) for calls in (CALLS, THEIRS))
    torch.testing.assert_close(got, expected)


def test_a_gated_backward_under_a_transform_is_batched_and_has_no_forward_mode():
    rstd = torch.rsqrt(ROWS.square().mean(-1, keepdim=True))

    def call(dy):
        return operators.gated_norm_backward(dy, ROWS, [8], rstd, None, ROWS, [True, False, True], 0.0, True)

    batched = vmap(call)(torch.stack([ROWS, TANGENT]))
    torch.testing.assert_close(tuple(result[1] for result in batched), call(TANGENT))
    with pytest.raises(NotImplementedError):
        jvp(call, (ROWS,), (TANGENT,))


@pytest.mark.parametrize("way", [pytest.param("override", marks=pytest.mark.slow), "patch"])
def test_gradients_by_example_in_compiled_code(way):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.RMSNorm(8)).double()
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def step(parameters, x):
        return vmap(grad(lambda p, row: functional_call(model, p, (row[None],)).pow(3).sum()), (None, 0))(parameters, x)

    expected = step(parameters, ROWS)
    torch._dynamo.reset()
    if way == "patch":
        lngrad_torch.patch(model)
        torch.testing.assert_close(compiled(step)(parameters, ROWS), expected)
    else:
        pytest.importorskip("lngrad.torch.inductor", exc_type=ImportError)
        with lngrad_torch.override(compiled=True):
            torch.testing.assert_close(torch.compile(step)(parameters, ROWS), expected)
