"""The family over a table of its members, and RMSNorm."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from family import OF_TORCH, formula_of, letters_of, ours_of  # noqa: E402  # torch may be missing
from native_ways import python_alone  # noqa: E402

import lngrad.torch as lngrad_torch  # noqa: E402
from frames import second_and_third  # noqa: E402
from lngrad.errors import DtypeError, NumberError, ShapeError  # noqa: E402
from lngrad.testing import check_same_bits  # noqa: E402
from lngrad.torch import calls, operators  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
F, f, forward_ad = torch.nn.functional, torch.func, torch.autograd.forward_ad
C = 5


def row(norm, parameters=True, eps=1e-5):
    """Ours, the same in torch's operations, and what they take: of C, or s for each sample."""
    letters = letters_of(norm)
    return ours_of(norm, C, eps), formula_of(norm, eps), letters if parameters else letters.strip("wbs")


NORMS = {name: row(norm, eps=1e-5 if norm.normalization.centred else None) for name, norm in OF_TORCH.items()}
NORMS |= {
    f"{name} without parameters": row(OF_TORCH[name], False, 0.1)
    for name in ("layer_norm", "rms_norm", "gemma_rms_norm", "add_layer_norm", "rms_norm_of_gated")
}
ours, theirs, _ = row(OF_TORCH["modulated_layer_norm"], eps=0.1)
NORMS["modulated_layer_norm without shift"] = ours, theirs, "xs"
each = pytest.mark.parametrize("name", NORMS)


def arguments(name, dtype=torch.float64, rows=(2, 3)):
    generator = torch.Generator().manual_seed(0)
    shapes = {"x": (*rows, C), "r": (*rows, C), "z": (*rows, C), "w": (C,), "b": (C,), "s": (rows[0], C)}
    return [torch.randn(shapes[kind], dtype=torch.float64, generator=generator).to(dtype) for kind in NORMS[name][2]]


def gradients(function, arrays, weights=(1.0, 0.5)):
    leaves = [tensor.detach().requires_grad_() for tensor in arrays]
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    loss = sum(weight * (tensor.double() ** 3).sum() for weight, tensor in zip(weights, results, strict=False))
    return [*(tensor.detach() for tensor in results), *torch.autograd.grad(loss, leaves)]


@each
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_values_and_gradients_are_those_of_float64(name, dtype):
    mine, theirs, _ = NORMS[name]
    arrays = arguments(name, dtype)
    got, expected = gradients(mine, arrays), gradients(theirs, [tensor.double() for tensor in arrays])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 6 * torch.finfo(dtype).eps)
    for tensor, truth in zip(got, expected, strict=True):
        assert tensor.dtype is dtype
        assert tensor.is_contiguous()
        assert (tensor.double() - truth).abs().max() <= tolerance * truth.abs().max().clamp(min=1)


@each
def test_gradcheck_and_gradgradcheck(name):
    mine, _, _ = NORMS[name]
    arrays = [tensor.requires_grad_() for tensor in arguments(name)]
    assert torch.autograd.gradcheck(mine, arrays, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(mine, arrays)


@pytest.mark.parametrize("dtotal", [False, True])
@pytest.mark.parametrize("centred", [False, True])
def test_the_backward_operator_is_differentiable_by_each_argument(centred, dtotal):
    generator = torch.Generator().manual_seed(0)
    dy, x, mean, rstd, w, more = (
        torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
        for shape in ((3, C), (3, C), (3, 1), (3, 1), (C,), (3, C))
    )

    def backward(dy, x, rstd, w, *rest):
        mean, more = (rest[0] if centred else torch.empty(0)), rest[-1] if dtotal else None
        mask = [True, True, centred]
        return torch.ops.lngrad.norm_backward(dy, x, [C], mean, rstd, w, mask, more, centred, 1.0)[: 2 + centred]

    arrays = [dy, x, rstd, w, *([mean] if centred else []), *([more] if dtotal else [])]
    assert torch.autograd.gradcheck(backward, arrays)
    assert torch.autograd.gradgradcheck(backward, arrays)


@each
@pytest.mark.parametrize("transform", ["hessian", "vmap", "gradients by example", "jacfwd twice", "jacrev twice"])
def test_transforms(name, transform):
    def loss(function):
        def value(*arrays):
            results = function(*arrays)
            return sum((result**3).sum() for result in (results if isinstance(results, tuple) else (results,)))

        return value

    mine, theirs, _ = NORMS[name]
    arrays, every = arguments(name), tuple(range(len(NORMS[name][2])))
    rows = tuple(0 if tensor.ndim > 1 else None for tensor in arrays)
    apply = {
        "hessian": lambda function: f.hessian(loss(function), every)(*arrays),
        "vmap": lambda function: f.vmap(function, rows)(*arrays),
        "gradients by example": lambda function: f.vmap(f.grad(loss(function), every), rows)(*arrays),
        "jacfwd twice": lambda function: f.jacfwd(f.jacfwd(loss(function), every), every)(*arrays),
        "jacrev twice": lambda function: f.jacrev(f.jacrev(loss(function), every), every)(*arrays),
    }[transform]
    torch.testing.assert_close(apply(mine), apply(theirs))


def test_vmap_over_the_weight_and_over_a_residual_alone():
    x, r, w = arguments("add_rms_norm")
    weights, residuals = torch.stack([w, 2 * w]), torch.stack([r, -r])
    for mine, theirs, dims, arrays in (
        (*NORMS["rms_norm"][:2], (None, 0), (x, weights)),
        (*NORMS["add_rms_norm"][:2], (None, 0, None), (x, residuals, w)),
    ):
        torch.testing.assert_close(f.vmap(mine, dims)(*arrays), f.vmap(theirs, dims)(*arrays))


@each
@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_compiles_whole_and_keeps_the_bits(name, dynamic):
    mine, _, _ = NORMS[name]
    torch.compiler.reset()  # norms share a function, which is compiled for a few of them only
    compiled = torch.compile(mine, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (4, 6):
        arrays = arguments(name, torch.float32, (rows, 3))
        check_same_bits(tuple(gradients(compiled, arrays)), tuple(gradients(mine, arrays)))


@each
def test_strides_do_not_matter_and_unwanted_gradients_are_not_made(name):
    mine, _, _ = NORMS[name]
    arrays = arguments(name, torch.float32, (6, 7))
    strided = [tensor.transpose(0, 1).contiguous().transpose(0, 1) if tensor.ndim > 1 else tensor for tensor in arrays]
    check_same_bits(tuple(gradients(mine, strided)), tuple(gradients(mine, arrays)))
    for wanted in range(len(arrays)):
        given_one = [tensor.detach().requires_grad_(at == wanted) for at, tensor in enumerate(arrays)]
        results = mine(*given_one)
        y = results[0] if isinstance(results, tuple) else results
        y.sum().backward()
        assert [tensor.grad is not None for tensor in given_one] == [at == wanted for at in range(len(arrays))]


@each
@pytest.mark.parametrize("rows", [(0,), (2, 0)], ids=str)
def test_no_rows(name, rows):
    mine, theirs, _ = NORMS[name]
    for got, expected in zip(
        *(gradients(function, arguments(name, rows=rows)) for function in (mine, theirs)), strict=True
    ):
        torch.testing.assert_close(got, expected)


@each
def test_autocast_on_the_cpu_leaves_dtypes_alone(name):
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", torch.bfloat16):
            assert all(tensor.dtype is dtype for tensor in gradients(NORMS[name][0], arguments(name, dtype)))


@pytest.mark.parametrize("operator", ["lngrad::layer_norm", "lngrad::norm"])
def test_autocast_on_a_gpu_is_as_torchs_own(operator):
    """torch has rules of the same key for layer_norm, later for rms_norm too, and none of its own for the CPU."""
    later = ["aten::rms_norm"] if torch.__version__ >= (2, 13) else []
    for name in (operator, "aten::layer_norm", *later):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")


def test_parameters_of_another_dtype_get_gradients_in_theirs():
    x, r, w, b = arguments("add_layer_norm", torch.bfloat16)
    arrays = x, r, w.float(), b.double()
    got = gradients(NORMS["add_layer_norm"][0], arrays)
    expected = gradients(NORMS["add_layer_norm"][1], [tensor.double() for tensor in arrays])
    assert [tensor.dtype for tensor in got[2:]] == [tensor.dtype for tensor in arrays]
    for tensor, truth in zip(got, expected, strict=True):
        assert (tensor.double() - truth).abs().max() <= 0.05 * truth.abs().max().clamp(min=1)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(("residual", "centred"), [(False, False), (True, False), (True, True)])
def test_operators_keep_torchs_contract(residual, centred):
    x, more = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8) if residual else None
    torch.library.opcheck(torch.ops.lngrad.norm.default, (x, [8], None, None, 1e-5, more, centred, 1.0))
    mean = torch.randn(4, 1) if centred else None
    arrays = (torch.randn(4, 8), x, [8], mean, torch.rand(4, 1), None, [True, True, centred], more, centred, 0.0)
    torch.library.opcheck(torch.ops.lngrad.norm_backward.default, arrays)


@pytest.mark.parametrize(
    "options", [{}, {"elementwise_affine": False}, {"eps": 1e-6, "dtype": torch.bfloat16}], ids=str
)
def test_module_is_torchs_but_for_the_arithmetic(options):
    mine, theirs = lngrad_torch.RMSNorm((2, 4), **options), torch.nn.RMSNorm((2, 4), **options)
    assert repr(mine) == repr(theirs)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    mine.load_state_dict(theirs.state_dict())
    x = torch.randn(5, 2, 4, dtype=options.get("dtype"))
    torch.testing.assert_close(mine(x), theirs(x))
    assert isinstance(mine, torch.nn.RMSNorm)


def test_module_with_an_offset_is_traced_scripted_and_exported():
    module, x = lngrad_torch.RMSNorm(8, offset=1.0), torch.randn(4, 8)
    assert repr(module) == "RMSNorm((8,), eps=None, elementwise_affine=True, offset=1.0)"
    assert not module.weight.any()  # stored around zero
    torch.testing.assert_close(module(x), F.rms_norm(x, (8,)))
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    assert "lngrad.norm.default" in [str(node.target) for node in exported.graph.nodes]
    for other in (
        torch.jit.script(module),
        torch.jit.trace(module, x),
        torch.fx.symbolic_trace(module),
        exported.module(),
    ):
        check_same_bits(other(x).detach(), module(x).detach())


def test_errors_name_the_argument():
    x = torch.ones(2, 3)
    with pytest.raises(ShapeError, match="normalized_shape: expected the last dimensions of x"):
        lngrad_torch.rms_norm(x, 4)
    with pytest.raises(ShapeError, match="residual: expected"):
        lngrad_torch.add_rms_norm(x, torch.ones(3), 3)
    with pytest.raises(DtypeError, match="residual: expected"):
        lngrad_torch.add_layer_norm(x, x.double(), 3)
    with pytest.raises(NumberError, match="offset: expected a finite number, got nan"):
        lngrad_torch.rms_norm(x, 3, offset=float("nan"))
    x.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="x: expected"):
        lngrad_torch.rms_norm(x, 3)


@pytest.mark.parametrize("wants_gradients", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_a_second_call_without_native_code_is_the_third(name, wants_gradients):
    ours, _, takes = NORMS[name]
    arrays = [torch.randn(64, C) if kind in "xrz" else torch.randn(C) for kind in takes]
    with python_alone():
        if not wants_gradients:
            assert len(second_and_third(lambda: ours(*arrays))) <= 30
            return
        arrays = [array.requires_grad_() for array in arrays]

        def call():
            results = ours(*arrays)
            torch.autograd.grad(results[0] if isinstance(results, tuple) else results, arrays, torch.ones(64, C))

        second_and_third(call)


@pytest.mark.parametrize("function", ["layer_norm", "rms_norm"])
def test_a_second_call_under_override_is_the_third(function):
    x, gamma = torch.randn(64, C), torch.randn(C)
    with python_alone(), lngrad_torch.override():
        assert len(second_and_third(lambda: getattr(F, function)(x, (C,), gamma))) <= 30


@pytest.mark.parametrize("used", ["y", "total", "both"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["add_layer_norm", "add_rms_norm"])
def test_a_float32_stream_beside_16_bits(name, dtype, used):
    mine, theirs, _ = NORMS[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(70, C, generator=generator).to(dtype)
    arrays = [x, torch.randn(70, C, generator=generator), torch.randn(C, generator=generator)]
    weights = {"y": (1.0, 0.0), "total": (0.0, 1.0), "both": (1.0, 0.5)}[used]

    def steps(function, arrays):
        leaves = [tensor.detach().requires_grad_() for tensor in arrays]
        results = function(*leaves)
        chosen = [(weight, tensor) for weight, tensor in zip(weights, results, strict=True) if weight]
        loss = sum(weight * tensor.double().sin().sum() for weight, tensor in chosen)
        return [*(tensor.detach() for tensor in results), *torch.autograd.grad(loss, leaves, allow_unused=True)]

    got, expected = steps(mine, arrays), steps(theirs, [tensor.double() for tensor in arrays])
    kinds = dtype, torch.float32, dtype, torch.float32, torch.float32
    for tensor, truth, kind in zip(got, expected, kinds, strict=True):
        assert (tensor is None) == (truth is None)
        if tensor is not None:
            assert tensor.dtype is kind
            assert (tensor.double() - truth).abs().max() <= 16 * torch.finfo(dtype).eps * truth.abs().max().clamp(min=1)
    torch.compiler.reset()
    compiled = steps(torch.compile(mine, fullgraph=True), arrays)
    for tensor, other in zip(got, compiled, strict=True):
        unused = tensor is None and (other is None or not other.any())  # compiled code gives zeros
        assert unused or torch.equal(tensor, other)
    with forward_ad.dual_level():
        y, total = mine(forward_ad.make_dual(x, torch.ones_like(x)), *arrays[1:])
        assert forward_ad.unpack_dual(y).tangent.dtype is dtype
        assert forward_ad.unpack_dual(total).tangent.dtype is torch.float32


def test_chunks_of_a_linear_layer_are_samples():
    x, parameters = torch.randn(4, 70, 64), torch.randn(4, 6 * 64, requires_grad=True)
    shift, scale, *_ = parameters.chunk(6, 1)
    assert not scale.is_contiguous()
    y = lngrad_torch.modulated_layer_norm(x, scale, shift)
    assert torch.equal(y, lngrad_torch.modulated_layer_norm(x, scale.contiguous(), shift.clone()))
    assert torch.equal(y, lngrad_torch.modulated_layer_norm(x, scale[:, None], shift[:, None]))

    def of_chunks(x, parameters):
        shift, scale, *_ = parameters.chunk(6, 1)
        return lngrad_torch.modulated_layer_norm(x, scale, shift)

    compiled, dy = torch.compile(of_chunks)(x, parameters), torch.randn_like(y)
    assert torch.equal(y, compiled)
    assert torch.equal(*(torch.autograd.grad(tensor, parameters, dy)[0] for tensor in (y, compiled)))


def test_a_modulated_norm_elsewhere_is_composed():
    """What runs on other devices than the CPU."""
    forward, backward = operators.kernels(calls.run_elsewhere)[2:4]
    x, dy, scale, shift = torch.randn(2, 5, 8), torch.randn(2, 5, 8), torch.randn(2, 1, 8), torch.randn(2, 1, 8)
    arrays = x, [8], scale, shift, 1e-5, None, True, 1.0
    results = forward(*arrays)
    for tensor, other in zip(results, torch.ops.lngrad.norm(*arrays), strict=True):
        torch.testing.assert_close(tensor.reshape(other.shape), other)
    arrays = dy, x, [8], *results[1:3], scale, [True] * 3, None, True, 1.0
    torch.testing.assert_close(backward(*arrays), torch.ops.lngrad.norm_backward(*arrays))
    with pytest.raises(ValueError, match="gamma: expected"):
        forward(x, [8], torch.randn(3, 1, 8), None, 1e-5, None, True, 1.0)


@pytest.mark.parametrize("dim", [1, -3])
def test_a_dimension_in_the_middle(dim):
    x, w = torch.randn(2, 6, 3, 4, requires_grad=True), torch.randn(6)
    for mine, theirs in ((lngrad_torch.rms_norm, F.rms_norm), (lngrad_torch.layer_norm, F.layer_norm)):
        y, moved = mine(x, None, w, eps=1e-5, dim=dim), x.movedim(1, -1)
        torch.testing.assert_close(y, theirs(moved, (6,), w, eps=1e-5).movedim(-1, 1))
        assert torch.equal(y, mine(moved, 6, w, eps=1e-5).movedim(-1, 1))
        assert torch.equal(
            *(
                torch.autograd.grad(tensor.sin().sum(), x)[0]
                for tensor in (y, torch.compile(mine)(x, None, w, eps=1e-5, dim=dim))
            )
        )
        with pytest.raises(ValueError, match="dim: expected a normalized_shape of None with it, got 6"):
            mine(x, 6, w, dim=dim)
