"""lngrad.jax: RMS normalization, offsets and residuals, each through the same transformations as layer_norm."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache, partial
from itertools import product

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402  # jax may be missing
from jax.test_util import check_grads as check_by_differences  # noqa: E402

import lngrad  # noqa: E402
import lngrad.jax as lngrad_jax  # noqa: E402
from lngrad.core.norms import NORMS as FAMILY  # noqa: E402
from lngrad.core.norms import PLAIN  # noqa: E402
from lngrad.core.problem import Forward, ForwardWithTotal, GatedGrads, Grads, RmsForward, RmsGrads  # noqa: E402
from lngrad.errors import DtypeError, NumberError, ShapeError  # noqa: E402
from lngrad.jax import operators  # noqa: E402
from lngrad.testing import (  # noqa: E402
    Case,
    Normalization,
    check_forward,
    check_grads,
    check_same_bits,
    make_inputs,
)
from norms import forward  # noqa: E402

# What is computed, and whether there is a residual; one more with every switch.
NORMS = {name: (FAMILY[name].normalization, FAMILY[name].residual) for name in PLAIN if name != "layer_norm"}
NORMS["add_gemma_rms_norm"] = Normalization(False, 1.0), True
EPS = 1e-5
norms = pytest.mark.parametrize("norm", NORMS)


@pytest.fixture(autouse=True)
def precision(request):
    """float64 exists under jax's x64 mode alone."""
    with jax.enable_x64("float64" in request.node.name):
        yield


def numpy(arrays):
    return jax.tree.map(np.asarray, arrays)


def inputs_of(norm, case, dtype, seed=0):
    normalization, residual = NORMS[norm]
    return make_inputs(case, dtype, seed, normalization=normalization, residual=residual)


def arrays_of(inputs):
    """The arguments of a call by name."""
    names = ("x", "gamma", "beta", "residual")
    return {name: getattr(inputs, name) for name in names if getattr(inputs, name) is not None}


def cotangents(inputs):
    return tuple(map(jnp.asarray, (inputs.dy,) if inputs.residual is None else (inputs.dy, inputs.dtotal)))


def function(norm, shape=None):
    """Of a dictionary of arguments: (y,) or (y, total)."""
    (centred, offset, alpha, *_), residual = NORMS[norm]
    name = ("add_" if residual else "") + ("layer_norm" if centred else "rms_norm")
    static = {"eps": EPS, "offset": offset, "normalized_shape": shape} | ({"alpha": alpha} if residual else {})

    def call(arguments):
        results = getattr(lngrad_jax, name)(**arguments, **static)
        return results if residual else (results,)

    return call


def core(inputs):
    """The core's results, and gradients by name of the argument."""
    R, (centred, offset, alpha, *_) = inputs.normalized_shape, inputs.normalization
    static = {"offset": offset, "residual": inputs.residual, "alpha": alpha, "eps": EPS}
    if centred:
        forward = lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, normalized_shape=R, **static)
        backward = partial(lngrad.layer_norm_backward, mean=forward.mean, complete_mean=True)
    else:
        forward, backward = (
            lngrad.rms_norm(inputs.x, inputs.gamma, normalized_shape=R, **static),
            lngrad.rms_norm_backward,
        )
    total = getattr(forward, "total", None)
    grads = backward(
        inputs.dy, inputs.x if total is None else total, rstd=forward.rstd, gamma=inputs.gamma, normalized_shape=R,
        offset=offset, dtotal=inputs.dtotal,
    )  # fmt: skip
    return (forward.y,) if total is None else (forward.y, total), grads


def expected_grads(inputs):
    """By name; of x with an alpha, that of the total times alpha, in x's dtype."""
    grads = core(inputs)[1]
    wide = np.float64 if inputs.x.dtype == np.float64 else np.float32
    by_name = {"x": (grads.dx.astype(wide) * wide(inputs.normalization.alpha)).astype(inputs.x.dtype)}
    by_name |= {"residual": grads.dx, "gamma": grads.dgamma, "beta": getattr(grads, "dbeta", None)}
    return {name: by_name[name] for name in arrays_of(inputs)}


def check_named(got, expected):
    assert got.keys() == expected.keys()
    for name, grad in got.items():
        check_same_bits(grad, expected[name])


@norms
def test_a_forward_with_statistics_is_what_a_backward_takes(norm):
    inputs = inputs_of(norm, Case((3, 5), (4, 6)), "bfloat16")
    (centred, offset, alpha, *_), _ = NORMS[norm]
    name = "layer_norm" if centred else "rms_norm"
    static = {"eps": EPS, "offset": offset, "alpha": alpha, "normalized_shape": inputs.normalized_shape}
    got = getattr(lngrad_jax, f"{name}_forward")(**arrays_of(inputs), **static)
    expected = getattr(lngrad, name)(**arrays_of(inputs), **static)
    results = numpy(jax.tree.leaves(got))
    check_same_bits(tuple(results), tuple(value for value in expected if value is not None))
    assert got._fields == expected._fields


@pytest.mark.parametrize(
    ("case", "jit", "dtype"),
    [(Case((3, 5, 7), (4, 6)), True, dtype) for dtype in ("float16", "bfloat16", "float32", "float64")]
    + [(Case((65,), (1000,), gamma=False), False, "float32")],
    ids=["float16", "bfloat16", "float32", "float64", "eager-float32"],
)
@norms
def test_results_and_gradients_have_the_bits_of_the_core(norm, dtype, case, jit):
    inputs = inputs_of(norm, case, dtype)
    f = function(norm, inputs.normalized_shape)
    results, pullback = jax.vjp(jax.jit(f) if jit else f, jax.tree.map(jnp.asarray, arrays_of(inputs)))
    check_same_bits(numpy(results), core(inputs)[0])
    check_named(numpy(pullback(cotangents(inputs))[0]), expected_grads(inputs))


def backward(inputs, framework=lngrad_jax, **options):
    """The backward by itself, as a function of dy, x, statistics, gamma and dtotal, and these."""
    centred, offset, *_ = inputs.normalization
    name = "layer_norm_backward" if centred else "rms_norm_backward"
    statistics = (inputs.mean, inputs.rstd) if centred else (inputs.rstd,)
    arrays = [inputs.dy, inputs.total, *statistics, inputs.gamma, inputs.dtotal]
    static = {"normalized_shape": inputs.normalized_shape, "offset": offset, **options}

    def call(*arrays):
        return getattr(framework, name)(*arrays[:-1], dtotal=arrays[-1], **static)

    return call, arrays


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@norms
def test_the_backward_by_itself_has_the_bits_of_the_core(norm, dtype):
    inputs = inputs_of(norm, Case((2, 3, 2), (2, 5), gamma_dtype="float32" if dtype == "bfloat16" else None), dtype)
    all_of_them = (True,) * (3 if inputs.normalization.centred else 2)
    for mask in (all_of_them, (True, *(False,) * len(all_of_them[1:])), (False, *all_of_them[1:])):
        call, arrays = backward(inputs, output_mask=mask)
        grads = jax.jit(call)(*arrays)
        assert type(grads) is (Grads if inputs.normalization.centred else RmsGrads)
        check_grads(type(grads)(*numpy(tuple(grads))), inputs, output_mask=mask)
        check_same_bits(numpy(tuple(grads)), tuple(backward(inputs, lngrad, output_mask=mask)[0](*arrays)))


@norms
def test_the_backward_by_itself_in_batches(norm):
    """By example, each with the bits of a call of its own, and with a gamma and statistics that all share."""
    examples = [inputs_of(norm, Case((5,), (6,)), "float32", seed) for seed in range(3)]
    calls, arguments = zip(*map(backward, examples), strict=True)
    for shared in (set(), {len(arguments[0]) - 2}):
        columns = [arguments[0][k] if k in shared else np.stack(column) if column[0] is not None else None
                   for k, column in enumerate(zip(*arguments, strict=True))]  # fmt: skip
        axes = [None if k in shared or column is None else 0 for k, column in enumerate(columns)]
        batch = numpy(tuple(jax.jit(jax.vmap(calls[0], axes))(*columns)))
        for k in range(len(examples)):
            example = [column if axis is None else column[k] for column, axis in zip(columns, axes, strict=True)]
            expected = backward(examples[k], lngrad)[0](*example)
            check_same_bits(tuple(each[k] for each in batch), tuple(expected))


@pytest.mark.parametrize("norm", ["gemma_rms_norm", "add_rms_norm", "deep_norm"])
def test_the_backward_by_itself_is_differentiable_in_float64(norm):
    call, arrays = backward(inputs_of(norm, Case((3,), (5,)), "float64"))
    present = [array for array in arrays if array is not None]

    def of_present(*leading):
        return tuple(call(*leading, *[None] * (len(arrays) - len(leading))))

    check_by_differences(of_present, present, order=1, modes=["fwd", "rev"], eps=1e-4, rtol=1e-5)


@pytest.mark.parametrize("gamma", ["float32", "float64"])
@norms
def test_parameters_of_another_dtype(norm, gamma):
    with jax.enable_x64(True):
        inputs = inputs_of(norm, Case((70,), (33,), gamma_dtype=gamma), "bfloat16")
        results, pullback = jax.vjp(function(norm), arrays_of(inputs))
        check_same_bits(numpy(results), core(inputs)[0])
        grads, expected = numpy(pullback(cotangents(inputs))[0]), expected_grads(inputs)
        grads.pop("x"), expected.pop("x")  # alpha's rounding is another in float64
        check_named(grads, expected)


def test_eps_of_none_is_the_cores():
    for dtype in ("bfloat16", "float32"):
        inputs = make_inputs(Case((9,), (16,)), dtype, normalization=Normalization(False))
        small = (inputs.x.astype(np.float32) * 1e-4).astype(inputs.x.dtype)
        check_same_bits(numpy(lngrad_jax.rms_norm(small, inputs.gamma)), lngrad.rms_norm(small, inputs.gamma).y)


@norms
def test_vmap_over_everything(norm):
    examples = [inputs_of(norm, Case((20,), (12,)), "float32", seed) for seed in range(3)]
    batch = jax.tree.map(lambda *each: jnp.stack(each), *map(arrays_of, examples))
    moved = jax.tree.map(lambda *each: jnp.stack(each), *map(cotangents, examples))

    def grads(arguments, cotangents):
        return jax.vjp(function(norm), arguments)[1](cotangents)[0]

    results = numpy(jax.vmap(function(norm))(batch))
    by_example = numpy(jax.jit(jax.vmap(grads))(batch, moved))
    for k, example in enumerate(examples):
        check_same_bits(tuple(each[k] for each in results), core(example)[0])
        check_named({name: each[k] for name, each in by_example.items()}, expected_grads(example))
    # Parameters that are shared: more rows of one call, and their gradients by example.
    shared = {name: each[0] if name in ("gamma", "beta") else each for name, each in batch.items()}
    axes = {name: None if name in ("gamma", "beta") else 0 for name in batch}
    results = numpy(jax.vmap(function(norm), (axes,))(shared))
    unbatched = numpy(function(norm)(shared))
    check_same_bits(results, unbatched)
    summed = jax.grad(
        lambda shared: sum((r * m).sum() for r, m in zip(jax.vmap(function(norm), (axes,))(shared), moved, strict=True))
    )(shared)
    for name, grad in jax.vjp(function(norm), shared)[1](moved)[0].items():
        assert abs(summed[name] - grad).max() <= 1e-5 * abs(grad).max()


def formula(norm, arguments, eps=EPS):
    """In elementary operations: what JAX differentiates by itself."""
    (centred, offset, alpha, *_), residual = NORMS[norm]
    h = alpha * arguments["x"] + arguments["residual"] if residual else arguments["x"]
    moved = h - h.mean(-1, keepdims=True) if centred else h
    y = moved / jnp.sqrt((moved * moved).mean(-1, keepdims=True) + eps) * (offset + arguments["gamma"])
    y = y + arguments["beta"] if centred else y
    return (y, h) if residual else (y,)


# Between them every switch is on, with a mean and without.
EVERY_SWITCH = ["add_gemma_rms_norm", "deep_norm"]
ORDERS = [
    ("rms_norm", ("fwd", "rev")),
    *product(EVERY_SWITCH, [("fwd", "rev"), ("rev", "fwd"), ("fwd", "fwd"), ("rev", "rev")]),
    *product(EVERY_SWITCH, [("fwd", "rev", "fwd")]),
]


def on_a_curve(norm, modes, f):
    """Derivatives along a curve that moves every argument; each result counts."""
    names = arrays_of(inputs_of(norm, Case((1,), (3,)), "float64")).keys()

    def derivative(t):
        arguments = {
            "x": jnp.stack([t, -t * t, jnp.sin(t)]),
            "residual": jnp.stack([t * t, jnp.cos(t), 1 + t]),
            "gamma": jnp.array([1.0, 2.0, -0.5]) * jnp.cos(t),
            "beta": jnp.array([0.3, 0.1, 0.2]) + t * t,
        }
        results = f({name: arguments[name] for name in names})
        return sum((result * jnp.array([1.3, -0.7, 0.4])).sum() ** 2 for result in results)

    for mode in modes:
        derivative = {"fwd": jax.jacfwd, "rev": jax.jacrev}[mode](derivative)
    return numpy(jax.jit(jax.vmap(derivative))(jnp.array([0.7, 0.2, -0.4])))


@cache
def true_derivatives(norm, order):
    """Of the formula, which XLA compiles once for all ways to ask for them."""
    return on_a_curve(norm, ("fwd",) * order, partial(formula, norm))


@pytest.mark.parametrize(
    ("norm", "modes"), ORDERS, ids=lambda value: value if isinstance(value, str) else "-".join(value)
)
def test_forward_and_reverse_mode_in_float64(norm, modes):
    got, truth = on_a_curve(norm, modes, function(norm)), true_derivatives(norm, len(modes))
    assert (abs(got - truth) <= 1e-11 * np.maximum(1, abs(truth))).all()


@pytest.mark.parametrize("norm", EVERY_SWITCH)
def test_derivatives_by_differences_in_float64(norm):
    inputs = inputs_of(norm, Case((3,), (5,)), "float64")
    for names in (tuple(arrays_of(inputs)), ("gamma",), ("residual",) if inputs.residual is not None else ("x",)):

        def f(chosen):
            return function(norm)({**arrays_of(inputs), **chosen})

        chosen = {name: arrays_of(inputs)[name] for name in names}
        check_by_differences(f, (chosen,), order=2, modes=["fwd", "rev"], eps=1e-4)


@pytest.mark.parametrize(
    ("norm", "used"), [(norm, used) for norm, (_, residual) in NORMS.items() for used in range(1 + residual)]
)
def test_a_gradient_of_one_result_alone(norm, used):
    """Of the total alone it is the cotangent itself, without a backward; of y alone there is nothing to add."""
    inputs = inputs_of(norm, Case((8,), (5,)), "float32")
    gradient = jax.grad(lambda arguments: (function(norm)(arguments)[used] * inputs.dy).sum())
    program = str(jax.make_jaxpr(gradient)(arrays_of(inputs)))
    assert program.count("lngrad_layer_norm") == (1 if used else 2)
    grads, truth = (
        gradient(arrays_of(inputs)),
        jax.grad(lambda a: (formula(norm, a)[used] * inputs.dy).sum())(arrays_of(inputs)),
    )
    for name, grad in grads.items():
        assert abs(grad - truth[name]).max() <= 1e-4 * max(1, abs(truth[name]).max())


# Every dtype where every switch is on; of the other norms one dtype, the next one of the next. XLA compiles two programs each.
FORMULAS = [
    (norm, dtype)
    for turn, norm in enumerate(NORMS)
    for place, dtype in enumerate(("float16", "bfloat16", "float32", "float64"))
    if norm in EVERY_SWITCH or place == turn % 4
]


@pytest.mark.parametrize(("norm", "dtype"), FORMULAS)
def test_formulas_have_the_numerics_of_the_kernels(norm, dtype):
    inputs = inputs_of(norm, Case((3, 5), (4, 6)), dtype)
    static = {"normalized": 2, "normalization": inputs.normalization}
    y, mean, rstd, total = numpy(
        jax.jit(partial(operators.forward_formula, eps=EPS, **static))(
            inputs.x, inputs.gamma, inputs.beta, inputs.residual
        )
    )
    if not inputs.normalization.centred:
        assert mean is None
        check_forward(RmsForward(y, rstd, total), inputs, eps=EPS)
    else:
        check_forward(
            Forward(y, mean, rstd) if total is None else ForwardWithTotal(y, mean, rstd, total), inputs, eps=EPS
        )
    centred, parameter = inputs.normalization.centred, inputs.gamma.dtype
    backward = partial(
        operators.backward_formula, wanted=(True, True, centred), dtypes=(parameter, parameter), **static
    )
    mean = inputs.mean if centred else None
    grads = numpy(jax.jit(backward)(inputs.dy, inputs.total, mean, inputs.rstd, inputs.gamma, inputs.dtotal))
    check_grads(Grads(*grads) if centred else RmsGrads(*grads[:2]), inputs)


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@norms
def test_lowered_for_another_platform_there_is_no_call_of_ours(norm, platform):
    inputs = inputs_of(norm, Case((6,), (5,)), "bfloat16")
    grads = jax.jit(lambda arguments, cotangents: jax.vjp(function(norm), arguments)[1](cotangents))
    program = grads.trace(arrays_of(inputs), cotangents(inputs)).lower(lowering_platforms=(platform,)).as_text()
    assert program.count("@lngrad_layer_norm") == (2 if platform == "cpu" else 0)


@norms
def test_exported_and_called_again(norm):
    inputs = inputs_of(norm, Case((6,), (5,)), "float32")
    allowed = [jax.export.DisabledSafetyCheck.custom_call("lngrad_layer_norm")]
    exported = jax.export.export(jax.jit(function(norm)), platforms=("cpu", "cuda"), disabled_checks=allowed)(
        arrays_of(inputs)
    )
    check_same_bits(numpy(exported.call(arrays_of(inputs))), core(inputs)[0])


@norms
def test_a_traced_eps_in_float64(norm):
    inputs = inputs_of(norm, Case((4,), (5,)), "float64")
    (centred, offset, alpha, *_), residual = NORMS[norm]
    name = ("add_" if residual else "") + ("layer_norm" if centred else "rms_norm")
    static = {"offset": offset} | ({"alpha": alpha} if residual else {})

    def mine(eps):
        return (jax.tree.leaves(getattr(lngrad_jax, name)(**arrays_of(inputs), eps=eps, **static))[0] ** 3).sum()

    def truth(eps):
        return (formula(norm, arrays_of(inputs), eps)[0] ** 3).sum()

    got, expected = jax.jit(jax.grad(mine))(0.25), jax.grad(truth)(0.25)
    assert abs(got - expected) <= 1e-11 * abs(expected)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)], ids=str)
@norms
def test_empty(norm, shape):
    x, gamma = np.ones(shape, np.float32), np.ones(shape[-1:], np.float32)
    names = arrays_of(inputs_of(norm, Case((1,), (4,)), "float32"))
    arguments = {name: gamma if name in ("gamma", "beta") else x for name in names}
    results, pullback = jax.vjp(function(norm), arguments)
    assert all(result.shape == shape for result in results)
    grads = pullback(results)[0]
    assert {name: grad.shape for name, grad in grads.items()} == {name: each.shape for name, each in arguments.items()}


def test_errors_when_the_call_is_traced():
    x, gamma = jnp.ones((2, 3, 4)), jnp.ones((3,))
    for wrap in (lambda f: f, jax.jit):
        with pytest.raises(ShapeError, match=r"residual: expected the shape of x, \(2, 3, 4\), got \(2, 3, 1\)"):
            wrap(lngrad_jax.add_rms_norm)(x, x[..., :1])
        with pytest.raises(DtypeError, match=r"residual: expected the dtype of x, float32, got bfloat16"):
            wrap(lngrad_jax.add_layer_norm)(x, x.astype(jnp.bfloat16))
        with pytest.raises(ShapeError, match=r"normalized_shape: expected the last dimensions of x.*got \(3,\)"):
            wrap(lngrad_jax.rms_norm)(x, gamma)
    with pytest.raises(NumberError, match="offset: expected a finite number, got nan"):
        lngrad_jax.rms_norm(x, offset=float("nan"))
    with pytest.raises(ShapeError, match=r"dtotal: expected the shape of x, \(2, 3, 4\), got \(4,\)"):
        lngrad_jax.rms_norm_backward(x, x, jnp.ones((2, 3)), dtotal=jnp.ones(4))
    with pytest.raises(ShapeError, match="output_mask: expected 2 booleans for dx, dgamma, got 3"):
        lngrad_jax.rms_norm_backward(x, x, jnp.ones((2, 3)), output_mask=(True, True, True))
    with pytest.raises(ShapeError, match="rstd: expected 6 elements"):
        lngrad_jax.rms_norm_backward(x, x, jnp.ones(3))
    with pytest.raises(DtypeError, match="residual: expected"):
        lngrad_jax.add_rms_norm(x, None)


MESHES = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
from functools import partial
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import lngrad
from lngrad.errors import ShapeError
from lngrad.jax import add_rms_norm, rms_norm_backward
from lngrad.testing import Case, Normalization, check_same_bits, make_inputs

i = make_inputs(Case((128,), (96,)), "float32", normalization=Normalization(False), residual=True)
forward = lngrad.rms_norm(i.x, i.gamma, residual=i.residual)
expected = lngrad.rms_norm_backward(i.dy, forward.total, forward.rstd, i.gamma, dtotal=i.dtotal)
rows, given = P("rows"), (i.x, i.residual, i.gamma)

def grads(f, x, residual, gamma, dy, dtotal):
    def loss(x, residual, gamma):
        y, total = f(x, residual, gamma)
        return (y * dy + total * dtotal).sum()
    return jax.grad(loss, (0, 1, 2))(x, residual, gamma)

def check(results, got):
    check_same_bits(tuple(map(np.asarray, results)), (forward.y, forward.total))
    check_same_bits(tuple(map(np.asarray, got[:2])), (expected.dx, expected.dx))
    assert abs(got[2] - expected.dgamma).max() <= 1e-5 * abs(expected.dgamma).max()

mesh = jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Auto,))
for check_vma in (True, False):
    sharded = jax.shard_map(
        add_rms_norm, mesh=mesh, in_specs=(rows, rows, P()), out_specs=(rows, rows), check_vma=check_vma
    )
    check(sharded(*map(jax.numpy.asarray, given)), jax.jit(partial(grads, sharded))(*given, i.dy, i.dtotal))
    alone = jax.shard_map(
        lambda dy, total, rstd, gamma, dtotal: rms_norm_backward(
            dy, total, rstd, gamma, dtotal=dtotal, output_mask=(True, False)
        ).dx,
        mesh=mesh, in_specs=(rows, rows, rows, P(), rows), out_specs=rows, check_vma=check_vma,
    )
    check_same_bits(np.asarray(alone(i.dy, forward.total, forward.rstd, i.gamma, i.dtotal)), expected.dx)

mesh = jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Explicit,))
x, residual, dy, dtotal = (jax.device_put(a, NamedSharding(mesh, rows)) for a in (i.x, i.residual, i.dy, i.dtotal))
with jax.set_mesh(mesh):
    for wrap in (lambda f: f, jax.jit):
        results = wrap(add_rms_norm)(x, residual, i.gamma)
        assert all(result.sharding.spec == P("rows", None) for result in results)
        check(results, wrap(partial(grads, add_rms_norm))(x, residual, i.gamma, dy, dtotal))
    try:
        add_rms_norm(x, i.residual, i.gamma)
    except ShapeError as error:
        print(error)
print("done")
"""


def test_meshes():
    """A residual and its total are sharded as x is."""
    result = subprocess.run([sys.executable, "-c", MESHES], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    error, done = result.stdout.splitlines()
    assert error.startswith("residual: expected to be sharded as x")
    assert done == "done"


@pytest.mark.parametrize("rms", [False, True])
def test_a_float32_stream_beside_16_bits(rms):
    inputs = make_inputs(Case((70,), (40,)), "bfloat16", normalization=Normalization(not rms), residual="float32")
    arrays = [jnp.asarray(array) for array in (inputs.x, inputs.residual, inputs.gamma)]

    def ours(x, stream, gamma):
        return (lngrad_jax.add_rms_norm if rms else lngrad_jax.add_layer_norm)(x, stream, gamma, eps=1e-5)

    def formula(x, stream, gamma):
        total = x + stream
        centred = total if rms else total - total.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gamma, total

    y, total = ours(*arrays)
    call = partial(lngrad.rms_norm if rms else lngrad.layer_norm, eps=1e-5)
    expected = call(inputs.x, inputs.gamma, residual=inputs.residual)
    check_same_bits((np.asarray(y), np.asarray(total)), (expected.y, expected.total))
    for weights in ((1.0, 0.0), (0.0, 1.0), (1.0, 0.5)):

        def loss(function, *arrays, weights=weights):
            parts = zip(weights, function(*arrays), strict=True)
            return sum((weight * result.astype(jnp.float32) ** 2).sum() for weight, result in parts if weight)

        got = jax.grad(partial(loss, ours), (0, 1, 2))(*arrays)
        truth = jax.grad(partial(loss, formula), (0, 1, 2))(*(array.astype(jnp.float32) for array in arrays))
        assert [array.dtype.name for array in got] == ["bfloat16", "float32", "bfloat16"]
        for array, other in zip(got, truth, strict=True):
            scale = max(1.0, float(jnp.abs(other).max()))
            assert float(jnp.abs(array.astype(jnp.float32) - other).max()) <= 0.03 * scale
        compiled = jax.jit(jax.grad(partial(loss, ours), (0, 1, 2)))(*arrays)
        check_same_bits(tuple(map(np.asarray, compiled)), tuple(map(np.asarray, got)))
    tangents = jax.jvp(ours, arrays, arrays)[1]
    assert [array.dtype.name for array in tangents] == ["bfloat16", "float32"]


def test_an_axis_in_the_middle():
    x, gamma = jnp.asarray(np.random.default_rng(0).standard_normal((2, 6, 3, 4)), jnp.float32), jnp.arange(6.0)
    for function in (lngrad_jax.layer_norm, lngrad_jax.rms_norm):
        y = function(x, gamma, axis=1)
        check_same_bits(np.asarray(y), np.asarray(jnp.moveaxis(function(jnp.moveaxis(x, 1, -1), gamma), -1, 1)))
        assert jax.grad(lambda x, function=function: function(x, gamma, axis=-3).sum())(x).shape == x.shape
        with pytest.raises(ShapeError, match=r"^axis: expected one of x's 4 axes, got 4$"):
            function(x, axis=4)
        with pytest.raises(ShapeError, match=r"^axis: expected no normalized_shape with it, got 6$"):
            function(x, axis=1, normalized_shape=6)


# Gates

RMS = Normalization(centred=False)
GATES = {
    "of y": RMS, "of x": RMS._replace(norm_before_gate=False), "of y, gamma around zero": RMS._replace(offset=1.0),
    "of x, gamma around zero": RMS._replace(offset=1.0, norm_before_gate=False),
}  # fmt: skip
gates = pytest.mark.parametrize("normalization", GATES.values(), ids=GATES)


def gated(normalization):
    return partial(
        lngrad_jax.gated_rms_norm, eps=EPS, offset=normalization.offset, norm_before_gate=normalization.norm_before_gate
    )


def gated_core(inputs, x, dy, gate):
    switches = {
        "offset": inputs.normalization.offset,
        "gate": gate,
        "norm_before_gate": inputs.normalization.norm_before_gate,
    }
    y, rstd, _ = lngrad.rms_norm(x, inputs.gamma, normalized_shape=inputs.normalized_shape, eps=EPS, **switches)
    grads = lngrad.rms_norm_backward(dy, x, rstd, inputs.gamma, normalized_shape=inputs.normalized_shape, **switches)
    return y, (grads.dx, grads.dgate, grads.dgamma)


@pytest.mark.parametrize(
    ("case", "jit", "dtype"),
    [(Case((3, 5, 7), (4, 6)), True, dtype) for dtype in ("float16", "bfloat16", "float32", "float64")]
    + [(Case((65,), (1000,), gamma=False), False, "float32"), (Case((67,), (7,), gamma_dtype="float32"), True, "bfloat16")],
    ids=["float16", "bfloat16", "float32", "float64", "eager-float32", "beside-float32"],
)  # fmt: skip
@gates
def test_a_gated_norm_and_its_gradients_have_the_bits_of_the_core(normalization, dtype, case, jit):
    inputs = make_inputs(case, dtype, normalization=normalization, gated=True)
    f = gated(normalization)
    arrays = [jnp.asarray(array) for array in (inputs.x, inputs.gate, inputs.gamma) if array is not None]
    y, pullback = jax.vjp(jax.jit(f) if jit else f, *arrays)
    expected, grads = gated_core(inputs, inputs.x, inputs.dy, inputs.gate)
    check_same_bits(np.asarray(y), expected)
    for got, right in zip(numpy(pullback(jnp.asarray(inputs.dy))), grads, strict=False):
        check_same_bits(got, right)


@gates
def test_a_batch_of_gated_norms_has_the_bits_of_its_examples(normalization):
    """Of gammas of their own, as of groups of columns, and of one gamma, whose gradients are of one call each."""
    many = [
        make_inputs(Case((9,), (33,)), "float32", seed, normalization=normalization, gated=True) for seed in range(3)
    ]
    x, gate, gamma, dy = (
        jnp.stack([getattr(inputs, name) for inputs in many]) for name in ("x", "gate", "gamma", "dy")
    )

    def gradients(x, gate, gamma, dy):
        y, pullback = jax.vjp(gated(normalization), x, gate, gamma)
        return y, pullback(dy)

    got = numpy(jax.jit(jax.vmap(gradients))(x, gate, gamma, dy))
    shared = numpy(jax.vmap(gradients, (0, 0, None, 0))(x, gate, gamma[0], dy))
    for k, inputs in enumerate(many):
        for results, gamma_of in ((got, inputs.gamma), (shared, many[0].gamma)):
            y, grads = gated_core(replace(inputs, gamma=gamma_of), inputs.x, inputs.dy, inputs.gate)
            check_same_bits(results[0][k], y)
            for result, right in zip(results[1], grads, strict=True):
                check_same_bits(result[k], right)


@gates
def test_derivatives_of_a_gated_norm_s_gradients(normalization):
    """Of float64, by differences, in reverse mode twice and forward over reverse; and sums over no rows."""
    with jax.enable_x64():
        inputs = make_inputs(Case((3,), (5,)), "float64", normalization=normalization, gated=True)
        arrays = [jnp.asarray(array) for array in (inputs.x, inputs.gate, inputs.gamma)]
        check_by_differences(gated(normalization), arrays, order=2, modes=["rev"])
        loss = lambda *arrays: (gated(normalization)(*arrays) ** 3).sum()  # noqa: E731
        check_by_differences(jax.grad(loss, (0, 1, 2)), arrays, order=1, modes=["fwd"])
    empty = jnp.zeros((0, 4))
    dx, dgate, dgamma = jax.grad(lambda *arrays: gated(normalization)(*arrays).sum(), (0, 1, 2))(
        empty, empty, jnp.ones(4)
    )
    assert dx.shape == dgate.shape == (0, 4)
    assert dgamma.tolist() == [0] * 4


@gates
def test_where_our_kernels_do_not_run_a_gated_norm_is_a_formula(normalization):
    inputs = make_inputs(Case((40,), (96,)), "float32", normalization=normalization, gated=True)
    arrays, static = [jnp.asarray(array) for array in (inputs.x, inputs.gamma, inputs.gate)], (1, EPS, normalization)
    y, rstd, _ = operators.gated_formula(*arrays, static)
    check_forward(RmsForward(np.asarray(y), np.asarray(rstd)), inputs)
    grads = operators.gated_gradients_formula(jnp.asarray(inputs.dy), arrays[0], rstd, *arrays[1:], static)
    check_grads(GatedGrads(*numpy(grads)), inputs)


def test_a_gated_norm_refuses_what_the_core_refuses():
    x, w = jnp.ones((4, 8)), jnp.ones(8)
    with pytest.raises(ShapeError, match=r"^gate: expected the shape of x, \(4, 8\), got \(4, 7\)"):
        lngrad_jax.gated_rms_norm(x, jnp.ones((4, 7)), w)
    with pytest.raises(DtypeError, match=r"^gate: expected the dtype of x, float32, got bfloat16"):
        lngrad_jax.gated_rms_norm(x, x.astype(jnp.bfloat16), w)
    with pytest.raises(NumberError, match=r"^eps: expected a number"):
        lngrad_jax.gated_rms_norm(x, x, w, eps="1e-5")
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lngrad_jax.gated_rms_norm, (x, x, w), (x, x, w))


# Samples with a scale and a shift each

MODULATED = {name: norm.normalization for name, norm in FAMILY.items() if norm.modulated and not norm.gated}
modulations = pytest.mark.parametrize("normalization", MODULATED.values(), ids=MODULATED)
PLACES = (Case((3, 5), (24,)), Case((3, 2, 5), (7,)), Case((2, 130), (33,)), Case((4, 1), (700,)), Case((1, 9), (16,)))


def modulated(normalization):
    function = lngrad_jax.modulated_layer_norm if normalization.centred else lngrad_jax.modulated_rms_norm
    return partial(function, eps=EPS)


def of_samples(inputs):
    """x and what each sample has, as (S, N)."""
    N = inputs.x.shape[-1]
    return [jnp.asarray(inputs.x)] + [
        jnp.asarray(p).reshape(-1, N) for p in (inputs.gamma, inputs.beta) if p is not None
    ]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("case", PLACES, ids=str)
@modulations
def test_a_modulated_norm_and_its_gradients_have_the_bits_of_the_core(normalization, case, dtype):
    inputs = make_inputs(case, dtype, normalization=normalization)
    arrays = of_samples(inputs)
    y, pullback = jax.vjp(jax.jit(modulated(normalization)), *arrays)
    got = numpy(pullback(jnp.asarray(inputs.dy)))
    results, grads = core(inputs)
    check_same_bits(np.asarray(y), results[0])
    check_same_bits(got, tuple(g.reshape(a.shape) for g, a in zip(grads, arrays, strict=True)))
    if dtype == "float32":  # float64's truth, rounded once
        right = type(grads)(*(g.reshape(r.shape) for g, r in zip(got, grads, strict=True)))
        statistics = forward(inputs)
        inputs = replace(inputs, rstd=statistics.rstd, mean=getattr(statistics, "mean", inputs.mean))
        check_grads(right, inputs)
        for k in range(1, len(right)):
            wrong = list(right)
            wrong[k] = np.roll(right[k], 1, 0) if case.lead[0] > 1 else right[k] * 1.01
            with pytest.raises(AssertionError):
                check_grads(type(grads)(*wrong), inputs)


def test_samples_and_a_batch_of_gammas_are_one_call(monkeypatch):
    from lngrad.core.calls import forget
    from lngrad.jax import calls

    problems, make_plan = [], calls.make_plan
    monkeypatch.setattr(calls, "make_plan", lambda problem, *_: problems.append(problem) or make_plan(problem, *_))
    forget()
    calls.handler.forget()
    x, scale = jnp.ones((3, 4, 8)), jnp.ones((3, 8))
    gradient = jax.jit(jax.grad(lambda *arrays: lngrad_jax.modulated_layer_norm(*arrays).sum(), (0, 1, 2)))
    jax.block_until_ready(gradient(x, scale, scale))
    jax.block_until_ready(jax.vmap(lngrad_jax.rms_norm)(x, scale))
    jax.block_until_ready(jax.vmap(lngrad_jax.layer_norm, (0, 0, None))(x, scale, scale[0]))
    assert [(problem.samples, problem.M) for problem in problems] == [(3, 12), (3, 12), (3, 12), (1, 4)]


@modulations
def test_derivatives_of_a_modulated_norm_in_float64(normalization):
    arrays = of_samples(make_inputs(Case((2, 3), (5,)), "float64", normalization=normalization))
    check_by_differences(modulated(normalization), arrays, order=2, modes=["fwd", "rev"], eps=1e-4)
    f = partial(modulated(normalization), *arrays[:2])
    check_by_differences(lambda eps: f(eps=eps), [0.37], order=1, modes=["fwd", "rev"])


@modulations
def test_batches_shards_and_other_platforms_of_a_modulated_norm(normalization):
    f, inputs = modulated(normalization), make_inputs(Case((2, 6, 4), (16,)), "float32", normalization=normalization)
    x, *own = of_samples(inputs)
    y = f(x, *own)
    check_same_bits(np.asarray(jax.vmap(f)(x, *[p[:, None] for p in own])), np.asarray(y))
    full = [
        jnp.broadcast_to(p[:, None], (2, 6, 16)).reshape(12, 16) for p in own
    ]  # a row of parameters for each example
    check_same_bits(np.asarray(f(x.reshape(12, 4, 16), *full).reshape(x.shape)), np.asarray(y))
    check_same_bits(np.asarray(f(x, *[p[0] for p in own])[0]), np.asarray(y[0]))
    lowered = jax.jit(f).trace(x, *own).lower(lowering_platforms=("tpu",)).as_text()
    assert "lngrad" not in lowered
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    rows = jax.sharding.PartitionSpec("data")
    sharded = jax.shard_map(f, mesh=mesh, in_specs=rows, out_specs=rows)
    check_same_bits(np.asarray(jax.jit(sharded)(x, *own)), np.asarray(y))


def test_a_modulated_norm_refuses_what_the_core_refuses():
    x, scale = jnp.ones((3, 4, 8)), jnp.ones((3, 8))
    for wrong, text in (
        ((x, scale[:2]), r"^gamma: expected the first of x's dimensions \(3, 4\), ones and \(8,\), got \(2, 1, 8\)$"),
        ((x, jnp.ones((3, 7))), r"^gamma: expected the normalized shape \(8,\), got \(3, 1, 7\)$"),
        ((x, scale, scale[0]), r"^beta: expected the shape of gamma, \(3, 1, 8\), got \(8,\)$"),
    ):
        with pytest.raises(ShapeError, match=text):
            lngrad_jax.modulated_layer_norm(*wrong)
    with pytest.raises(NumberError, match=r"^eps: expected a number"):
        lngrad_jax.modulated_rms_norm(x, scale, eps="1e-5")
    for shape, own in (((0, 4, 8), (0, 8)), ((2, 0, 8), (2, 8))):
        grads = jax.grad(lambda *arrays: lngrad_jax.modulated_rms_norm(*arrays).sum(), (0, 1))(
            jnp.ones(shape), jnp.ones(own)
        )
        assert [grad.shape for grad in grads] == [shape, own]
        assert not grads[1].any()
