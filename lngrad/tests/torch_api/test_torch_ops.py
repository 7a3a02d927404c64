"""lngrad's own operators and module: gradients to any order, transforms, compile, export, patch."""

from __future__ import annotations

import copy
import shutil
from itertools import product

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import lngrad  # noqa: E402  # torch may be missing
import lngrad.torch as lngrad_torch  # noqa: E402
import norms  # noqa: E402
from lngrad.core import reference  # noqa: E402
from lngrad.core.problem import Grads  # noqa: E402
from lngrad.errors import DtypeError, ShapeError  # noqa: E402
from lngrad.testing import CASES, Case, check_grads, check_same_bits, make_inputs  # noqa: E402

# torch's own code scripts a decomposition at the first forward-mode call, and says that scripting is deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.usefixtures("way"),
]
plain = torch.nn.functional.layer_norm
f = torch.func


def leaves(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]


def tensor(array):
    if array is not None and array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("uint16").copy()).view(torch.bfloat16)
    return None if array is None else torch.from_numpy(array.copy())


def close(got, expected):
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("case", norms.light(CASES), ids=str)
def test_gradients_through_autograd(case, dtype):
    inputs = make_inputs(case, dtype)
    x, gamma, beta = (tensor(array) for array in (inputs.x, inputs.gamma, inputs.beta))
    wanted = [t.requires_grad_() for t in (x, gamma, beta) if t is not None]
    y = lngrad_torch.layer_norm(x, case.normalized, gamma, beta)
    grads = torch.autograd.grad(y, wanted, tensor(inputs.dy))
    check_same_bits(
        y.detach(), lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, normalized_shape=case.normalized).y
    )
    mean, rstd = lngrad.layer_norm(inputs.x, normalized_shape=case.normalized)[1:]
    expected = lngrad.layer_norm_backward(
        inputs.dy, inputs.x, mean, rstd, inputs.gamma, normalized_shape=case.normalized, complete_mean=True
    )
    check_same_bits(tuple(grads), tuple(expected[: len(grads)]))


@pytest.mark.parametrize(
    "layer_norm", [lngrad_torch.layer_norm, torch.compile(lngrad_torch.layer_norm, backend="aot_eager")]
)
def test_errors_do_not_grow_with_the_offset(layer_norm):
    """torch's own dgamma is off by 5e-4 here."""
    inputs = make_inputs(Case((130,), (768,), offset=1e4, spread=1.0), "float32")
    x, gamma = tensor(inputs.x).requires_grad_(), tensor(inputs.gamma).requires_grad_()
    y = layer_norm(x, (768,), gamma)
    grads = torch.autograd.grad(y, (x, gamma), tensor(inputs.dy))
    wide = [array.astype(np.float64) for array in (inputs.x, inputs.gamma, inputs.dy)]
    exact = reference.layer_norm(*wide[:2])
    truth = reference.layer_norm_backward(wide[2], wide[0], exact.mean, exact.rstd, wide[1])
    for got, expected in zip((y.detach(), *grads), (exact.y, *truth[:2]), strict=True):
        assert np.linalg.norm(got.numpy() - expected) <= 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("with_weight", [True, False])
def test_a_float32_bias_beside_16_bits_gets_a_float32_gradient(with_weight):
    inputs = make_inputs(Case((300,), (20,), gamma=with_weight), "bfloat16")
    x, gamma = tensor(inputs.x).requires_grad_(), tensor(inputs.gamma)
    bias = torch.randn(20, requires_grad=True)
    wanted = [x, bias] if gamma is None else [x, bias, gamma.requires_grad_()]
    dx, dbias, *dgamma = torch.autograd.grad(lngrad_torch.layer_norm(x, (20,), gamma, bias), wanted, tensor(inputs.dy))
    mean, rstd = lngrad.layer_norm(inputs.x)[1:]
    wide = np.ones(20, np.float32) if gamma is None else inputs.gamma.astype(np.float32)
    expected = lngrad.layer_norm_backward(inputs.dy, inputs.x, mean, rstd, wide)
    check_same_bits((dx, dbias), (expected.dx, expected.dbeta))
    if dgamma:
        check_same_bits(dgamma[0], tensor(expected.dgamma).bfloat16())


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, False), (False, False, True)])
def test_only_what_is_wanted(mask):
    inputs = make_inputs(CASES[5], "float32")
    grads = lngrad_torch.layer_norm_backward(
        *(tensor(a) for a in (inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)), output_mask=mask
    )
    assert isinstance(grads, Grads)
    check_grads(grads, inputs, output_mask=mask)


@pytest.mark.parametrize("shapes", [((3, 5),), ((2, 3, 4), (3, 4)), ((3, 5), (5,), (5,))], ids=str)
def test_gradcheck_and_gradgradcheck(shapes):
    arrays = leaves(*shapes)
    shape = shapes[1] if len(shapes) > 1 else shapes[0][-1:]
    assert torch.autograd.gradcheck(
        lambda *a: lngrad_torch.layer_norm(a[0], shape, *a[1:]), arrays, check_forward_ad=True
    )
    assert torch.autograd.gradgradcheck(lambda *a: lngrad_torch.layer_norm(a[0], shape, *a[1:]), arrays)


def test_statistics_are_differentiable():
    arrays = leaves((3, 5), (5,), (5,))
    assert torch.autograd.gradcheck(lambda x, w, b: torch.ops.lngrad.layer_norm(x, [5], w, b, 1e-5), arrays)
    assert torch.autograd.gradgradcheck(lambda x, w, b: torch.ops.lngrad.layer_norm(x, [5], w, b, 1e-5), arrays)


def test_backward_is_differentiable_by_each_argument():
    arrays = leaves((3, 5), (3, 5), (3, 1), (3, 1), (5,))
    assert torch.autograd.gradcheck(lambda *a: tuple(lngrad_torch.layer_norm_backward(*a)), arrays)
    assert torch.autograd.gradgradcheck(lambda *a: tuple(lngrad_torch.layer_norm_backward(*a)), arrays)


def cubed(layer_norm):
    return lambda x, w, b: (layer_norm(x, (8,), w, b) ** 3).sum()


TRANSFORMS = {
    "grad": lambda ln: lambda x, w, b: f.grad(cubed(ln), (0, 1, 2))(x, w, b),
    "vjp": lambda ln: lambda x, w, b: f.vjp(lambda x: ln(x, (8,), w, b), x)[1](x * x),
    "vmap": lambda ln: lambda x, w, b: f.vmap(lambda x: ln(x, (8,), w, b), 1)(x),
    "vmap over the weight": lambda ln: lambda x, w, b: f.vmap(lambda w: ln(x, (8,), w, b))(torch.stack([w, 2 * w])),
    "gradients by example": lambda ln: lambda x, w, b: f.vmap(f.grad(cubed(ln), (0, 1, 2)), (0, None, None))(x, w, b),
    "dx by example": lambda ln: lambda x, w, b: f.vmap(f.grad(cubed(ln)), (0, None, None))(x, w, b),
    "jvp": lambda ln: lambda x, w, b: f.jvp(lambda *a: ln(a[0], (8,), *a[1:]), (x, w, b), (x * x, w * w, b * b)),
    "jvp by x": lambda ln: lambda x, w, b: f.jvp(lambda x: ln(x, (8,), w, b), (x,), (x * x,)),
    "hessian": lambda ln: lambda x, w, b: f.jacrev(f.grad(lambda w: cubed(ln)(x, w, b)))(w),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name):
    arrays = [leaf.detach() for leaf in leaves((4, 3, 8), (8,), (8,))]
    close(TRANSFORMS[name](lngrad_torch.layer_norm)(*arrays), TRANSFORMS[name](plain)(*arrays))


def formula(x, shape, w, b, eps=1e-5):
    """In torch's elementary operations: second derivatives of its own layer normalization are wrong in 2.13 and 2.14."""
    centred = x - x.mean(-1, keepdim=True)
    y = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps)
    return y if w is None else y * w + b


def along_a_curve(layer_norm, parameters=True):
    """A function of one number that moves x, and weight and bias where they are wanted."""

    def value(t):
        x, w = torch.stack([t, -t * t, t.sin()]), torch.tensor([1.0, 2.0, -0.5], dtype=t.dtype) * t.cos()
        y = layer_norm(x, (3,), *((w, (0.3 + t * t).expand(3)) if parameters else (None, None)), 0.25)
        return (y * torch.tensor([1.3, -0.7, 0.4], dtype=t.dtype)).sum()

    return value


def composed(modes, function):
    for mode in modes:
        function = {"fwd": f.jacfwd, "rev": f.jacrev}[mode](function)
    return function


def compositions(orders):
    return [modes for n in orders for modes in product(("fwd", "rev"), repeat=n)]


@pytest.mark.parametrize(
    ("modes", "parameters"),
    [(m, True) for m in compositions((1, 2, 3))]
    + [pytest.param(m, True, marks=pytest.mark.slow) for m in compositions((4,))]
    + [(m, False) for m in compositions((1, 2))],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "" if value else "without parameters",
)
def test_every_composition_of_forward_and_reverse_mode(modes, parameters):
    """Forward over forward was silently 0."""
    mine, expected = (
        composed(modes, along_a_curve(function, parameters)) for function in (lngrad_torch.layer_norm, formula)
    )
    times = torch.tensor([0.7, 0.2, -0.4], dtype=torch.float64)
    for t, got, truth in ((times[0], mine, expected), (times, f.vmap(mine), f.vmap(expected))):
        exact = truth(t)
        assert ((got(t) - exact).abs() <= 1e-12 * exact.abs().clamp(min=1)).all()


@pytest.mark.parametrize(
    ("parameters", "right"), [(True, {"fwd", "rev"}), (False, {"fwd", "rev", "rev-fwd", "rev-rev"})]
)
def test_override_keeps_torchs_own_wrong_derivatives_and_patch_is_the_recipe(parameters, right):
    """docs/torch.md says so, by order; once torch's own are right, that paragraph goes."""
    t, found = torch.tensor(0.7, dtype=torch.float64), set()
    for modes in compositions((1, 2)):
        exact = composed(modes, along_a_curve(formula, parameters))(t)
        with lngrad_torch.override():
            theirs, mine = (
                composed(modes, along_a_curve(function, parameters))(t) for function in (plain, lngrad_torch.layer_norm)
            )
        assert abs(mine - exact) < 1e-12 * max(1, abs(exact))
        if abs(theirs - exact) < 1e-10 * max(1, abs(exact)):
            found.add("-".join(modes))
    assert found == right


def test_forward_over_forward_of_the_recipe():
    """pytorch#196700: a jvp of a jvp."""
    w, b, t = torch.tensor([1.0, 2.0]).double(), torch.zeros(2).double(), torch.tensor(0.7).double()

    def twice(layer_norm):
        def g(t):
            return layer_norm(torch.stack([t, -t * t]), (2,), w, b, 0.25).sum()

        def inner(t):
            return f.jvp(g, (t,), (torch.ones_like(t),))[1]

        return f.jvp(inner, (t,), (torch.ones_like(t),))[1].item()

    assert abs(twice(formula)) > 0.1
    assert abs(twice(lngrad_torch.layer_norm) - twice(formula)) < 1e-12


def test_forward_over_forward_of_the_backward():
    arrays = [leaf.detach() for leaf in leaves((3, 5), (3, 5), (3, 1), (3, 1), (5,))]

    def expected(dy, x, mean, rstd, gamma):
        xhat = (x - mean) * rstd
        g = dy * gamma
        return rstd * (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True))

    def twice(backward):
        def along(t):
            return backward(*(array + t * array.sin() for array in arrays)).pow(2).sum()

        return f.jacfwd(f.jacfwd(along))(torch.tensor(0.1).double()).item()

    truth = twice(expected)
    mine = twice(lambda *a: lngrad_torch.layer_norm_backward(*a, output_mask=(True, False, False)).dx)
    assert abs(mine - truth) <= 1e-12 * abs(truth)


@pytest.mark.parametrize("mode", ["forward over reverse", "a jvp of grad"])
def test_forward_mode_over_the_backward(mode):
    """Against the formula in torch's elementary operations: the second order of torch's own has d²/dw dx wrong (2.13)."""

    arrays = tuple(leaf.detach() for leaf in leaves((4, 3, 8), (8,), (8,)))
    every = (0, 1, 2)
    expected = f.jacrev(f.jacrev(cubed(formula), every), every)(*arrays)
    if mode == "forward over reverse":
        close(f.hessian(cubed(lngrad_torch.layer_norm), every)(*arrays), expected)
    else:
        tangents = tuple(torch.cos(3 * tensor) for tensor in arrays)
        got = f.jvp(f.grad(cubed(lngrad_torch.layer_norm), every), arrays, tangents)[1]
        along = [
            sum(torch.tensordot(block, t, t.dim()) for block, t in zip(row, tangents, strict=True)) for row in expected
        ]
        close(got, tuple(along))


def test_forward_mode_over_the_backward_operator():
    arrays = leaves((3, 5), (3, 5), (3, 1), (3, 1), (5,))
    assert torch.autograd.gradcheck(
        lambda *a: tuple(lngrad_torch.layer_norm_backward(*a)), arrays, check_forward_ad=True, check_backward_ad=False
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whole_and_keeps_the_bits(dynamic):
    def loss(x, w, b):
        return (lngrad_torch.layer_norm(x, (8,), w, b) * x).sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (5, 7, 9):
        arrays = [leaf.detach().float().requires_grad_() for leaf in leaves((rows, 3, 8), (8,), (8,))]
        got, expected = (torch.autograd.grad(function(*arrays), arrays) for function in (compiled, loss))
        check_same_bits(tuple(got), tuple(expected))


def test_exports():
    exported = torch.export.export(
        lngrad_torch.LayerNorm(8), (torch.randn(4, 8),), dynamic_shapes=({0: torch.export.Dim("rows")},)
    )
    assert "lngrad.layer_norm.default" in [str(node.target) for node in exported.graph.nodes]
    x = torch.randn(9, 8)
    close(exported.module()(x), plain(x, (8,), torch.ones(8), torch.zeros(8)))


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # opcheck's own, in 2.14
def test_operators_keep_torchs_contract():
    x = torch.randn(4, 8, requires_grad=True)
    torch.library.opcheck(torch.ops.lngrad.layer_norm.default, (x, [8], None, None, 1e-5))
    arrays = (x, torch.randn(4, 8), [8], torch.randn(4, 1), torch.rand(4, 1), None, [True, False, True])
    torch.library.opcheck(torch.ops.lngrad.layer_norm_backward.default, arrays)


def test_autocast_on_the_cpu_leaves_dtypes_alone():
    x, w = torch.randn(4, 8), torch.ones(8)
    with torch.autocast("cpu", torch.bfloat16):
        for array in (x, x.bfloat16()):
            assert lngrad_torch.layer_norm(array, 8, w).dtype == plain(array, (8,), w).dtype == array.dtype


def test_errors_name_the_argument():
    with pytest.raises(ShapeError, match="normalized_shape: expected the last dimensions of x"):
        lngrad_torch.layer_norm(torch.ones(2, 3), 4)
    with pytest.raises(DtypeError, match="x: expected float16, bfloat16, float32 or float64, got int64"):
        lngrad_torch.layer_norm(torch.ones(2, 3, dtype=torch.int64), 3)


@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"elementwise_affine": False}, {"dtype": torch.bfloat16}], ids=str
)
def test_module_is_torchs_but_for_the_arithmetic(options):
    mine, theirs = lngrad_torch.LayerNorm((2, 4), **options), torch.nn.LayerNorm((2, 4), **options)
    assert repr(mine) == repr(theirs)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    mine.load_state_dict(theirs.state_dict())
    x = torch.randn(5, 2, 4, dtype=options.get("dtype"))
    close(mine(x), theirs(x))
    assert isinstance(mine, torch.nn.LayerNorm)
    assert mine.to(torch.float64)(x.double()).dtype == torch.float64


def test_forward_mode_is_heard_without_gradients_too():
    """A call nobody differentiates backwards takes a short cut; tangents must not be lost on it."""
    inputs = make_inputs(Case((5,), (8,)), "float64")
    x, gamma, beta = map(tensor, (inputs.x, inputs.gamma, inputs.beta))
    tangent = tensor(inputs.dy)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        with torch.no_grad():
            quiet = torch.autograd.forward_ad.unpack_dual(lngrad_torch.layer_norm(dual, [8], gamma, beta)).tangent
        loud = torch.autograd.forward_ad.unpack_dual(lngrad_torch.layer_norm(dual, [8], gamma, beta)).tangent
    assert quiet is not None
    check_same_bits((quiet,), (loud,))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_inductor_gives_the_gradients_of_eager_code():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.LayerNorm(64)
    )
    assert lngrad_torch.patch(model.bfloat16()) == 2
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for rows in (33, 70, 512):
        x, dy = torch.randn(2, rows, 64).bfloat16()
        for module, call in ((model, compiled), (twin, twin)):
            module.zero_grad()
            call(x).backward(dy)
        for module in (1, 3):  # the layer normalizations' own gradients
            pairs = zip(model[module].parameters(), twin[module].parameters(), strict=True)
            for compiled_parameter, parameter in pairs:
                close(compiled_parameter.grad, parameter.grad)


@pytest.mark.gpu
def test_autocast_on_a_gpu_trains():
    inputs = make_inputs(Case((64,), (256,)), "bfloat16")
    x, gamma, beta, dy = (tensor(a).cuda() for a in (inputs.x, inputs.gamma, inputs.beta, inputs.dy))
    leaves = [leaf.requires_grad_() for leaf in (x, gamma, beta)]
    grads = {}
    for layer_norm in (lngrad_torch.layer_norm, plain):
        with torch.autocast("cuda", torch.bfloat16):
            y = layer_norm(x, (256,), gamma, beta)
        assert y.dtype is torch.float32
        grads[layer_norm] = torch.autograd.grad(y, leaves, dy.float())
    assert [g.dtype for g in grads[lngrad_torch.layer_norm]] == [g.dtype for g in grads[plain]]
    close(grads[lngrad_torch.layer_norm], grads[plain])
