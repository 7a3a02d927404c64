"""lngrad.jax: the core's bits through jit, grad, vmap, scan, checkpoint and shard_map; a formula where there is no CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402  # jax may be missing
from jax.test_util import check_grads as check_by_differences  # noqa: E402

import lngrad  # noqa: E402
import lngrad.jax as lngrad_jax  # noqa: E402
from lngrad.core.calls import forget  # noqa: E402
from lngrad.core.problem import Forward, Grads  # noqa: E402
from lngrad.errors import DtypeError, NumberError, ShapeError  # noqa: E402
from lngrad.jax import calls, operators  # noqa: E402
from lngrad.testing import CASES, Case, check_forward, check_grads, check_same_bits, make_inputs  # noqa: E402

SOME = (CASES[0], Case((3, 5, 7), (4, 6)), Case((65,), (1000,), gamma=False))
DTYPES = ("float16", "bfloat16", "float32", "float64")


@pytest.fixture(autouse=True)
def precision(request):
    """float64 exists under jax's x64 mode alone."""
    with jax.enable_x64("float64" in request.node.name):
        yield


def numpy(arrays):
    return jax.tree.map(np.asarray, arrays)


def core(inputs):
    """The core's forward, and the backward from its statistics."""
    R = inputs.normalized_shape
    forward = lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, normalized_shape=R)
    grads = lngrad.layer_norm_backward(
        inputs.dy, inputs.x, forward.mean, forward.rstd, inputs.gamma, normalized_shape=R, complete_mean=True
    )
    return forward, grads


def pulled(inputs, f=lngrad_jax.layer_norm):
    """y and the gradients of all that is there."""
    arrays = [array for array in (inputs.x, inputs.gamma, inputs.beta) if array is not None]
    y, pullback = jax.vjp(partial(f, normalized_shape=inputs.normalized_shape), *map(jnp.asarray, arrays))
    return numpy(y), numpy(pullback(jnp.asarray(inputs.dy)))


# --- The bits of the core -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", SOME, ids=str)
def test_forward_and_gradients_have_the_bits_of_the_core(case, dtype, jit):
    inputs = make_inputs(case, dtype)
    wrap = partial(jax.jit, static_argnames="normalized_shape") if jit else lambda f: f
    y, grads = pulled(inputs, wrap(lngrad_jax.layer_norm))
    forward, expected = core(inputs)
    check_same_bits(y, forward.y)
    check_same_bits(grads, tuple(expected[: len(grads)]))
    assert len(grads) == (3 if case.gamma else 1)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.usefixtures("threads")
def test_bits_do_not_depend_on_threads(threads):
    inputs = make_inputs(Case((3000,), (40,)), "bfloat16")
    _, expected = core(inputs)
    lngrad.set_num_threads(threads)
    check_same_bits(pulled(inputs)[1], tuple(expected))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_parameters_in_float32(dtype):
    inputs = make_inputs(Case((70,), (33,), gamma_dtype="float32"), dtype)
    y, grads = pulled(inputs)
    forward, expected = core(inputs)
    check_same_bits(y, forward.y)
    check_same_bits(grads, tuple(expected))
    assert grads[1].dtype == np.float32


@pytest.mark.parametrize(
    ("x", "gamma"),
    [
        ("float32", "bfloat16"),
        ("bfloat16", "float16"),
        ("float64", "float16"),
        ("float32", "float64"),
        ("float16", "float64"),
    ],
)
def test_parameters_of_any_dtype(x, gamma):
    inputs = make_inputs(Case((70,), (33,), gamma_dtype=gamma, statistics_dtype="float16"), x)
    y, grads = pulled(inputs)
    forward, expected = core(inputs)
    check_same_bits(y, forward.y)
    check_same_bits(grads, tuple(expected))
    arrays = inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma
    check_same_bits(numpy(tuple(lngrad_jax.layer_norm_backward(*arrays))), tuple(lngrad.layer_norm_backward(*arrays)))


def test_gamma_and_beta_of_two_dtypes():
    inputs = make_inputs(Case((70,), (33,), gamma_dtype="float32"), "bfloat16")
    inputs = replace(inputs, beta=inputs.beta.astype(inputs.x.dtype))
    _, (dx, dgamma, dbeta) = pulled(inputs)
    _, expected = core(inputs)
    check_same_bits((dx, dgamma), tuple(expected[:2]))
    check_same_bits(dbeta, core(replace(inputs, gamma=inputs.gamma.astype(inputs.x.dtype)))[1].dbeta)


def test_beta_alone_in_float64():
    """Its gradient is summed in float64."""
    inputs = make_inputs(Case((300,), (20,)), "float32")
    inputs = replace(inputs, beta=inputs.beta.astype(np.float64))
    y, grads = pulled(inputs)
    forward, _ = core(inputs)
    check_same_bits(y, forward.y)
    exact = replace(inputs, gamma=inputs.gamma.astype(np.float64))
    _, expected = core(exact)
    check_same_bits(grads, (expected.dx, expected.dgamma.astype(np.float32), expected.dbeta))


def test_beta_alone():
    inputs = make_inputs(Case((9,), (5,)), "float32")
    _, pullback = jax.vjp(lambda x, beta: lngrad_jax.layer_norm(x, None, beta), inputs.x, inputs.beta)
    dx, dbeta = numpy(pullback(jnp.asarray(inputs.dy)))
    expected = core(replace(inputs, gamma=None))[1]
    check_same_bits((dx, dbeta), (expected.dx, expected.dbeta))


def test_eps_and_large_arrays():
    inputs = make_inputs(Case((4100,), (300,)), "float32")  # past HUGE_BYTES
    y = jax.jit(partial(lngrad_jax.layer_norm, eps=0.25))(inputs.x, inputs.gamma, inputs.beta)
    check_same_bits(numpy(y), lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, eps=0.25).y)
    check_same_bits(pulled(inputs)[1], tuple(core(inputs)[1]))


def test_rows_of_one_element_and_one_row():
    inputs = make_inputs(Case((7,), (1,)), "float32")
    dx, dgamma, _ = pulled(inputs)[1]
    assert not dx.any()
    assert not dgamma.any()
    inputs = make_inputs(Case((), (6,)), "float32")
    check_same_bits(pulled(inputs)[1], tuple(core(inputs)[1]))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 4)], ids=str)
def test_empty(shape):
    x, gamma = np.ones(shape, np.float32), np.ones(shape[-1:], np.float32)
    y, pullback = jax.vjp(lngrad_jax.layer_norm, x, gamma, gamma)
    grads = pullback(y)
    assert y.shape == shape
    assert [grad.shape for grad in grads] == [shape, shape[-1:], shape[-1:]]
    assert not any(grad.any() for grad in grads[1:])


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, False), (False, False, True)])
def test_backward_by_itself(mask):
    inputs = make_inputs(Case((2, 3, 2), (2, 5)), "float32")
    arrays = inputs.dy, inputs.x, inputs.mean.ravel(), inputs.rstd, inputs.gamma
    grads = jax.jit(partial(lngrad_jax.layer_norm_backward, output_mask=mask))(*arrays)
    assert isinstance(grads, Grads)
    check_grads(Grads(*numpy(tuple(grads))), inputs, output_mask=mask)
    check_same_bits(numpy(tuple(grads)), tuple(lngrad.layer_norm_backward(*arrays, output_mask=mask)))


# --- Transformations ------------------------------------------------------------------------------------------------


def three(count=3, shape=((20,), (12,))):
    """Examples, and x, dy, gamma and beta of all of them."""
    examples = [make_inputs(Case(*shape), "float32", seed) for seed in range(count)]
    return examples, *(np.stack([getattr(e, name) for e in examples]) for name in ("x", "dy", "gamma", "beta"))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_vmap_over_x_is_one_call_of_more_rows(axis, monkeypatch):
    examples, x, _, _, _ = three()
    problems = []
    make_plan = calls.make_plan
    monkeypatch.setattr(calls, "make_plan", lambda problem, *_: problems.append(problem) or make_plan(problem, *_))
    forget()
    calls.handler.forget()
    gamma, beta = examples[0].gamma, examples[0].beta
    batched = jax.vmap(lngrad_jax.layer_norm, (axis, None, None), axis)
    y = jax.jit(batched)(np.moveaxis(x, 0, axis), gamma, beta)
    check_same_bits(np.moveaxis(numpy(y), axis, 0), lngrad.layer_norm(x, gamma, beta).y)
    assert [problem.M for problem in problems] == [60]


def test_vmap_over_everything():
    examples, x, dy, gamma, beta = three()

    def grads(x, gamma, beta, dy):
        return jax.vjp(lngrad_jax.layer_norm, x, gamma, beta)[1](dy)

    got = numpy(jax.jit(jax.vmap(grads))(x, gamma, beta, dy))
    for k, example in enumerate(examples):
        check_same_bits(tuple(part[k] for part in got), tuple(core(example)[1]))
    # Gradients by example of parameters that are shared, and of rows of one dimension, batched twice.
    got = numpy(jax.vmap(grads, (0, None, None, 0))(x, gamma[0], beta[0], dy))
    alike = [replace(e, gamma=gamma[0], beta=beta[0]) for e in examples]
    for k, example in enumerate(alike):
        check_same_bits(tuple(part[k] for part in got), tuple(core(example)[1]))
    twice = numpy(jax.vmap(jax.vmap(lngrad_jax.layer_norm, (0, None, None)), (0, 0, None))(x, gamma, beta[0]))
    for k, example in enumerate(examples):
        check_same_bits(twice[k], core(replace(example, beta=beta[0]))[0].y)
    only_gamma = numpy(jax.vmap(grads, (None, 0, None, None))(x[0], gamma, beta[0], dy[0]))
    for k in range(3):
        check_same_bits(tuple(p[k] for p in only_gamma), tuple(core(replace(examples[0], gamma=gamma[k]))[1]))


def test_grad_of_jit_of_grad_of_vmap():
    examples, x, dy, gamma, beta = three()
    loss = jax.jit(lambda x, gamma, beta: (jax.vmap(lngrad_jax.layer_norm, (0, None, None))(x, gamma, beta) * dy).sum())
    value, (dx, dgamma, dbeta) = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(x, gamma[0], beta[0])
    alike = [replace(e, gamma=gamma[0], beta=beta[0]) for e in examples]
    check_same_bits(numpy(dx), np.stack([core(e)[1].dx for e in alike]))
    whole = make_inputs(Case((60,), (12,)), "float32")
    whole = replace(whole, x=x.reshape(60, 12), dy=dy.reshape(60, 12), gamma=gamma[0], beta=beta[0])
    forward, _ = core(whole)
    whole = replace(whole, mean=forward.mean, rstd=forward.rstd)
    check_grads(Grads(numpy(dx).reshape(60, 12), numpy(dgamma), numpy(dbeta)), whole)
    assert np.isfinite(value)


def test_pullbacks_of_one_jitted_function_do_not_mix():
    """jax shares what it knows of residuals among all uses of a jitted function."""
    inputs = make_inputs(Case((8,), (5,)), "float32")
    dy = jnp.asarray(inputs.dy)
    f = jax.jit(lngrad_jax.layer_norm)
    _, by_all = jax.vjp(f, inputs.x, inputs.gamma, inputs.beta)
    _, by_x = jax.vjp(lambda x: f(x, inputs.gamma, inputs.beta), inputs.x)
    _, by_gamma = jax.vjp(lambda gamma: f(inputs.x, gamma, inputs.beta), inputs.gamma)
    expected = core(inputs)[1]
    check_same_bits(numpy(by_all(dy)), tuple(expected))
    check_same_bits(numpy(by_gamma(dy)), (expected.dgamma,))
    check_same_bits(numpy(by_x(dy)), (expected.dx,))


@pytest.mark.parametrize("argument", [0, 1, 2])
def test_only_what_is_asked_for_is_computed(argument):
    inputs = make_inputs(Case((8,), (5,)), "float32")
    grad = jax.grad(lambda *arrays: (lngrad_jax.layer_norm(*arrays) * inputs.dy).sum(), argument)
    program = str(jax.make_jaxpr(grad)(inputs.x, inputs.gamma, inputs.beta))
    flags = ", ".join(str(int(k == argument)) for k in range(3))
    assert f"array([1, 1, 1, 1, {flags}])" in program
    assert program.count("lngrad_layer_norm") == 2


def test_scan_over_layers_and_checkpoint():
    inputs = make_inputs(Case((6,), (8,)), "float32")
    rng = np.random.default_rng(0)
    layers = [rng.standard_normal((4, 8)).astype(np.float32) for _ in range(2)]

    def block(x, layer):
        return x + lngrad_jax.layer_norm(x, *layer), None

    def scanned(step, x, layers):
        return (jax.lax.scan(step, x, layers)[0] * inputs.dy).sum()

    def unrolled(x, layers):
        for k in range(4):
            x, _ = block(x, [array[k] for array in layers])
        return (x * inputs.dy).sum()

    expected = numpy(jax.grad(unrolled, (0, 1))(inputs.x, layers))
    for step in (block, jax.checkpoint(block)):
        got = numpy(jax.jit(jax.grad(partial(scanned, step), (0, 1)))(inputs.x, layers))
        check_same_bits(tuple(jax.tree.leaves(got)), tuple(jax.tree.leaves(expected)))
    # The statistics' own gradients are known to be zero: no formula of theirs runs beside the kernels.
    program = str(jax.make_jaxpr(jax.grad(partial(scanned, block)))(inputs.x, layers))
    assert program.count("lngrad_layer_norm") == 2


@pytest.mark.parametrize("shapes", [((3, 5),), ((2, 3, 4), (3, 4)), ((3, 5), (5,), (5,))], ids=str)
def test_derivatives_by_differences_in_float64(shapes):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    shape = shapes[1] if len(shapes) > 1 else shapes[0][-1:]
    weight = rng.standard_normal(shapes[0])
    check_by_differences(
        lambda *a: lngrad_jax.layer_norm(*a, normalized_shape=shape) * weight,
        arrays,
        order=2,
        modes=["fwd", "rev"],
        eps=1e-4,
    )


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, False)])
def test_the_backward_is_differentiable_by_each_argument_in_float64(mask):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in ((3, 5), (3, 5), (3, 1), (3, 1), (5,))]
    check_by_differences(
        partial(lngrad_jax.layer_norm_backward, output_mask=mask),
        arrays,
        order=1,
        modes=["fwd", "rev"],
        eps=1e-4,
        rtol=1e-5,
    )


def formula(x, gamma, beta, eps):
    """In elementary operations: what JAX differentiates by itself."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred * centred).mean(-1, keepdims=True) + eps) * gamma + beta


def along_a_curve(layer_norm):
    """A function of one number that moves x, gamma and beta."""

    def value(t):
        x, gamma = jnp.stack([t, -t * t, jnp.sin(t)]), jnp.array([1.0, 2.0, -0.5]) * jnp.cos(t)
        return (layer_norm(x, gamma, 0.3 + t * t, 0.25) * jnp.array([1.3, -0.7, 0.4])).sum()

    return value


# Of the third order the two that hold every pair of modes; the others, and the fourth, are slow.
MIXED = [("fwd", "fwd", "rev"), ("rev", "rev", "fwd")]
ORDERS = [
    pytest.param(modes, marks=() if order < 3 or modes in MIXED else pytest.mark.slow)
    for order in (1, 2, 3, 4)
    for modes in product(("fwd", "rev"), repeat=order)
]


def derivatives(modes, layer_norm):
    f = along_a_curve(layer_norm)
    for mode in modes:
        f = {"fwd": jax.jacfwd, "rev": jax.jacrev}[mode](f)
    return numpy(jax.jit(jax.vmap(f))(jnp.array([0.7, 0.2, -0.4])))


@cache
def true_derivatives(order):
    """Of the formula, which XLA compiles once for all ways to ask for them."""
    return derivatives(("fwd",) * order, formula)


@pytest.mark.parametrize("modes", ORDERS, ids="-".join)
def test_every_composition_of_forward_and_reverse_mode_in_float64(modes):
    """Forward mode over forward mode is where a rule can be silently 0."""
    got = derivatives(
        modes, lambda x, gamma, beta, eps: lngrad_jax.layer_norm(x, gamma, jnp.broadcast_to(beta, (3,)), eps=eps)
    )
    truth = true_derivatives(len(modes))
    assert (abs(got - truth) <= 1e-12 * np.maximum(1, abs(truth))).all()


@pytest.mark.parametrize("order", [1, 2, 3])
def test_jvp_of_jvp_in_float64(order):
    """Without vmap, from one function to the next: torch's recipe for the defect (pytorch#196700)."""
    gamma, beta = jnp.array([1.0, 2.0]), jnp.zeros(2)
    derivatives = []
    for layer_norm in (
        lambda x: lngrad_jax.layer_norm(x, gamma, beta, eps=0.25),
        lambda x: formula(x, gamma, beta, 0.25),
    ):

        def f(t, layer_norm=layer_norm):
            return layer_norm(jnp.stack([t, -t * t])).sum()

        for _ in range(order):

            def f(t, f=f):
                return jax.jvp(f, (t,), (jnp.ones_like(t),))[1]

        derivatives.append(float(f(jnp.float64(0.7))))
    assert abs(derivatives[0] - derivatives[1]) <= 1e-12 * max(1, abs(derivatives[1]))


def test_a_gradient_through_vmap_over_every_argument_in_float64():
    """The tangents of a batch of gammas are as many calls, and their transpose is our backward, too."""
    examples = [make_inputs(Case((6,), (5,)), "float64", seed) for seed in range(3)]
    x, gamma, beta, dy = (jnp.stack([getattr(e, name) for e in examples]) for name in ("x", "gamma", "beta", "dy"))
    for axes in ((0, 0, 0), (0, None, 0), (None, 0, None)):
        arrays = [part if axis == 0 else part[0] for part, axis in zip((x, gamma, beta), axes, strict=True)]
        f = jax.vmap(lngrad_jax.layer_norm, axes)
        grads = numpy(jax.jit(jax.grad(lambda *arrays, f=f: (f(*arrays) * dy).sum(), (0, 1, 2)))(*arrays))
        for k, (grad, axis) in enumerate(zip(grads, axes, strict=True)):
            each = [
                core(replace(e, **{n: np.asarray(g if a is None else g[i]) for n, g, a in
                                   zip(("x", "gamma", "beta"), arrays, axes, strict=True)}))[1][k]
                for i, e in enumerate(examples)
            ]  # fmt: skip
            expected = np.stack(each) if axis == 0 else sum(each)
            assert abs(grad - expected).max() <= 1e-13 * abs(expected).max() * 10


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_tangents_come_in_the_dtype_of_the_result(dtype):
    inputs = make_inputs(Case((9,), (16,)), dtype)
    arrays = [jnp.asarray(array) for array in (inputs.x, inputs.gamma, inputs.beta)]
    y, tangent = jax.jvp(lngrad_jax.layer_norm, arrays, arrays)
    check_same_bits(numpy(y), core(inputs)[0].y)
    assert tangent.dtype == y.dtype


def test_many_threads_at_once():
    inputs = make_inputs(Case((300,), (64,)), "float32")
    grads = jax.jit(lambda x, gamma, beta, dy: jax.vjp(lngrad_jax.layer_norm, x, gamma, beta)[1](dy))
    expected = tuple(core(inputs)[1])
    waiting = [grads(inputs.x, inputs.gamma, inputs.beta, inputs.dy) for _ in range(50)]  # dispatched, not awaited
    for result in waiting:
        check_same_bits(numpy(result), expected)


# --- Elsewhere ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [SOME[1], SOME[2], CASES[-1]], ids=str)
def test_formulas_have_the_numerics_of_the_kernels(case, dtype):
    inputs = make_inputs(case, dtype)
    normalized = len(case.normalized)
    forward = jax.jit(partial(operators.forward_formula, normalized=normalized, eps=1e-5))
    y, mean, rstd, _ = numpy(forward(inputs.x, inputs.gamma, inputs.beta))
    check_forward(Forward(y, mean, rstd), inputs)
    parameter = (inputs.x if inputs.gamma is None else inputs.gamma).dtype
    backward = partial(
        operators.backward_formula, normalized=normalized, wanted=(True, True, True), dtypes=(parameter, parameter)
    )
    grads = jax.jit(backward)(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
    check_grads(Grads(*numpy(grads)), inputs)


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_lowered_for_another_platform_there_is_no_call_of_ours(platform):
    grads = jax.jit(lambda x, gamma, beta, dy: jax.vjp(lngrad_jax.layer_norm, x, gamma, beta)[1](dy))
    x, gamma = jax.ShapeDtypeStruct((6, 5), jnp.bfloat16), jax.ShapeDtypeStruct((5,), jnp.float32)
    program = grads.trace(x, gamma, gamma, x).lower(lowering_platforms=(platform,)).as_text()
    assert program.count("@lngrad_layer_norm") == (2 if platform == "cpu" else 0)
    assert ("stablehlo.custom_call" in program) == (platform == "cpu")


def test_the_layout_of_call_frames_is_the_one_we_know():
    """A new major version of XLA's interface may move fields; jaxlib ships the header."""
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
    assert f"#define XLA_FFI_API_MAJOR {calls.MAJOR}\n" in header


def test_symbolic_sizes():
    inputs = make_inputs(Case((6,), (5,)), "float32")
    allowed = [jax.export.DisabledSafetyCheck.custom_call("lngrad_layer_norm")]
    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape("rows, 5"), jnp.float32)
    row = jax.ShapeDtypeStruct((5,), jnp.float32)
    grads = jax.jit(lambda x, gamma, beta, dy: jax.vjp(lngrad_jax.layer_norm, x, gamma, beta)[1](dy))
    exported = jax.export.export(grads, platforms=("cpu",), disabled_checks=allowed)(rows, row, row, rows)
    check_same_bits(numpy(exported.call(inputs.x, inputs.gamma, inputs.beta, inputs.dy)), tuple(core(inputs)[1]))


def test_exported_for_two_platforms():
    inputs = make_inputs(Case((6,), (5,)), "float32")
    allowed = [jax.export.DisabledSafetyCheck.custom_call("lngrad_layer_norm")]
    export = jax.export.export(jax.jit(lngrad_jax.layer_norm), platforms=("cpu", "cuda"), disabled_checks=allowed)
    exported = export(inputs.x, inputs.gamma, inputs.beta)
    y = exported.call(inputs.x, inputs.gamma, inputs.beta)
    check_same_bits(numpy(y), core(inputs)[0].y)


# --- Errors ---------------------------------------------------------------------------------------------------------


def test_errors_when_the_call_is_traced():
    x, gamma = jnp.ones((2, 3, 4)), jnp.ones((3,))
    for wrap in (lambda f: f, jax.jit):
        with pytest.raises(ShapeError, match=r"normalized_shape: expected the last dimensions of x.*got \(3,\)"):
            wrap(lngrad_jax.layer_norm)(x, gamma)
        with pytest.raises(ShapeError, match=r"beta: expected the normalized shape \(4,\), got \(3,\)"):
            wrap(lngrad_jax.layer_norm)(x, None, gamma)
        with pytest.raises(DtypeError, match=r"x: expected float16, bfloat16, float32 or float64, got int32"):
            wrap(lngrad_jax.layer_norm)(x.astype(jnp.int32))
        with pytest.raises(ShapeError, match=r"mean: expected 6 elements"):
            wrap(lngrad_jax.layer_norm_backward)(x, x, x, x)


@pytest.mark.parametrize(
    "eps", [jnp.float32(0.25), np.float64(0.25), np.array(0.25)], ids=lambda eps: type(eps).__name__
)
def test_eps_may_be_any_number(eps):
    inputs = make_inputs(SOME[0], "float32")
    expected = lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta, eps=0.25).y
    check_same_bits(numpy(lngrad_jax.layer_norm(inputs.x, inputs.gamma, inputs.beta, eps=eps)), expected)
    closed_over = jax.jit(lambda x: lngrad_jax.layer_norm(x, inputs.gamma, inputs.beta, eps=eps))
    check_same_bits(numpy(closed_over(inputs.x)), expected)


def test_a_traced_eps_is_taken_and_differentiable_in_float64():
    rng = np.random.default_rng(0)
    x, gamma, beta = (rng.standard_normal(shape) for shape in ((4, 5), (5,), (5,)))

    def f(x, eps):
        return (lngrad_jax.layer_norm(x, gamma, beta, eps=eps) ** 3).sum()

    def truth(x, eps):
        return (formula(x, gamma, beta, eps) ** 3).sum()

    got = numpy(jax.jit(jax.grad(f, (0, 1)))(x, 0.25))
    for grad, other in zip(got, numpy(jax.grad(truth, (0, 1))(x, 0.25)), strict=True):
        assert abs(grad - other).max() < 1e-12 * abs(other).max() * 10


def test_eps_that_is_no_number():
    for eps in ("small", jnp.ones(2)):
        with pytest.raises(NumberError, match="eps: expected a number, got"):
            lngrad_jax.layer_norm(jnp.ones((3, 4)), eps=eps)
    with pytest.raises(DtypeError, match=r"eps: expected a float of no dimensions, got float32 of shape \(2,\)"):
        jax.jit(lambda x, eps: lngrad_jax.layer_norm(x, eps=eps))(jnp.ones((3, 4)), jnp.ones(2))


@pytest.mark.parametrize("reason", [ValueError("no"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_what_a_handler_raises_ends_the_program(reason, monkeypatch):
    def broken(*_):
        raise reason

    monkeypatch.setattr(calls.XlaCall, "run_buffers", broken)
    with pytest.raises(Exception, match=f"lngrad: {type(reason).__name__}"):
        jax.block_until_ready(jax.jit(lngrad_jax.layer_norm)(jnp.ones((3, 4))))


@pytest.mark.parametrize(
    ("before", "got"),
    [
        ("import sys; sys.modules['jax'] = None", "none"),
        ("import jax; del jax.sharding.ManualAxisType; jax.__version__ = '0.9'", "0.9"),
    ],
    ids=["none", "old"],
)
def test_without_the_right_jax_the_error_names_the_extra(before, got):
    program = f"import lngrad\n{before}\nimport lngrad.jax"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    text = f"ImportError: lngrad.jax: expected jax 0.10 or later, got {got}: pip install 'lngrad[jax]'"
    assert result.stderr.splitlines()[-1] == text


# --- Several devices, and the end of a process ----------------------------------------------------------------------

MESHES = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
from dataclasses import replace
from functools import partial
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import lngrad
from lngrad.errors import ShapeError
from lngrad.jax import layer_norm
from lngrad.core.problem import Grads
from lngrad.testing import Case, check_grads, check_same_bits, make_inputs

inputs = make_inputs(Case((128,), (96,)), "float32")
forward = lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta)
inputs = replace(inputs, mean=forward.mean, rstd=forward.rstd)
dx = lngrad.layer_norm_backward(inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma).dx
given = inputs.x, inputs.gamma, inputs.beta, inputs.dy
rows, all_rows = P("rows"), (P("rows"), P(), P())

def grads(f, x, gamma, beta, dy):
    return jax.grad(lambda x, gamma, beta: (f(x, gamma, beta) * dy).sum(), (0, 1, 2))(x, gamma, beta)

def check(got):
    got = Grads(*map(np.asarray, got))
    check_same_bits(got.dx, dx)
    check_grads(got, inputs)

mesh = jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Auto,))
for check_vma in (True, False):
    sharded = jax.shard_map(layer_norm, mesh=mesh, in_specs=all_rows, out_specs=rows, check_vma=check_vma)
    check_same_bits(np.asarray(sharded(*map(jax.numpy.asarray, given[:3]))), forward.y)
    check(jax.jit(partial(grads, sharded))(*given))
jax.jit(jax.grad(lambda x: (jax.grad(lambda x: (sharded(x, *given[1:3])**2).sum())(x)**2).sum()))(inputs.x)
inside = jax.shard_map(partial(grads, layer_norm), mesh=mesh, in_specs=(*all_rows, rows), out_specs=all_rows)
check(jax.jit(inside)(*given))
check(jax.jit(partial(grads, layer_norm))(jax.device_put(inputs.x, NamedSharding(mesh, rows)), *given[1:]))

mesh = jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Explicit,))
x, dy = (jax.device_put(array, NamedSharding(mesh, rows)) for array in (inputs.x, inputs.dy))
with jax.set_mesh(mesh):
    for wrap in (lambda f: f, jax.jit):
        y = wrap(layer_norm)(x, inputs.gamma, inputs.beta)
        assert y.sharding.spec == P("rows", None), y.sharding
        check_same_bits(np.asarray(y), forward.y)
        got = wrap(partial(grads, layer_norm))(x, inputs.gamma, inputs.beta, dy)
        assert got[0].sharding.spec == P("rows", None), got[0].sharding
        check(got)
    try:
        layer_norm(x, jax.reshard(inputs.gamma, rows))
    except ShapeError as error:
        print(error)
print("done")
"""


def test_meshes():
    """Sharded by jax.shard_map, by the compiler and by explicit axes."""
    result = subprocess.run([sys.executable, "-c", MESHES], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    refused, done = result.stdout.splitlines()
    assert refused.startswith("gamma, beta: expected to be sharded as x's rows, P(None,), got P('rows',)")
    assert done == "done"


def test_rows_cut_over_devices():
    """Over 2, 4 and 8 devices, at borders of segments: the bits of one."""
    program, tests = Path(__file__).with_name("hidden_shards.py"), str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run([sys.executable, program], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    sharding, axis, done = result.stdout.splitlines()
    assert sharding.startswith("gamma, beta: expected to be sharded as x's rows, P('hidden',), got P(None,)")
    assert axis == "axis_name: expected an axis of jax.shard_map around this call, got 'hidden'"
    assert done == "done"


def test_a_process_may_end_while_a_program_runs():
    program = """
import jax, jax.numpy as jnp
from lngrad.jax import layer_norm
step = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda _, x: layer_norm(x) + x, x))
x = jnp.ones((512, 512))
x = step(x).block_until_ready()
for _ in range(5):
    x = step(x)
for _ in range(3):
    step(x)  # results that nobody holds
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_core_gives_numpys_arrays_for_those_of_jax():
    """Functions of lngrad itself; lngrad.jax gives JAX's."""
    inputs = make_inputs(Case((5,), (24,)), "float32")
    x, gamma = jnp.asarray(inputs.x), jnp.asarray(inputs.gamma)
    results = lngrad.layer_norm(x, gamma)
    assert [type(result) for result in results] == [np.ndarray] * 3
    check_same_bits(tuple(results), tuple(lngrad.layer_norm(inputs.x, inputs.gamma)))
    assert isinstance(lngrad_jax.layer_norm(x, gamma), jax.Array)
