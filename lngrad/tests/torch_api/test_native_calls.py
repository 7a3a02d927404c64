"""The native code: the bits of the way through Python, to which it leaves whatever is not plain."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from family import OF_TORCH, ours_of  # noqa: E402  # torch may be missing
from native_ways import python_alone  # noqa: E402

import lngrad  # noqa: E402
import lngrad.torch as lngrad_torch  # noqa: E402
from lngrad.core.problem import Grads  # noqa: E402
from lngrad.errors import DtypeError, LngradError, NumberError, ShapeError  # noqa: E402
from lngrad.testing import Case, check_grads, check_same_bits, make_inputs  # noqa: E402
from lngrad.torch import native  # noqa: E402

# torch's own code scripts a decomposition at the first forward-mode call, and says that scripting is deprecated.
pytestmark = [
    pytest.mark.usefixtures("native_code"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]
F = torch.nn.functional
DTYPES = ["float16", "bfloat16", "float32", "float64"]
# One core's, two cores', results from the pool, past the caches, more than a packed plan takes; a table of tiny rows; two
# normalized dimensions.
SHAPES = [
    ((64,), (64,)), ((1024,), (256,)), ((2, 300), (512,)), ((4096,), (768,)), ((4096,), (1100,)), ((130,), (3,)),
    ((5, 7), (3, 11)),
]  # fmt: skip


def tensor(array):
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("uint16").copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def step(call, inputs, shape):
    """y and the gradients of a call."""
    leaves = [tensor(array).requires_grad_() for array in (inputs.x, inputs.gamma, inputs.beta)]
    y = call(leaves[0], shape, *leaves[1:], 1e-5)
    return (y.detach(), *torch.autograd.grad(y, leaves, tensor(inputs.dy)))


def overridden(x, shape, gamma, beta, eps):
    return torch.nn.functional.layer_norm(x, shape, gamma, beta, eps)


def of_norm(norm, x, r, gamma, beta, shape):
    """Its function, of x, a residual or gate, gamma and beta; two, three or five samples' scale and shift are chunks."""
    call = ours_of(norm, shape, 1e-5)
    parameters = (gamma, beta) if "beta" in norm.forward.inputs else (gamma,)
    if norm.residual:
        return call(x, r, *parameters)
    if norm.gated:
        x, z = (array.reshape(-1, gamma.numel()) for array in (x, r))
        return call(x, z, gamma.flatten()).reshape(r.shape)
    if not norm.modulated:
        return call(x, *parameters)
    rows, N = x.numel() // gamma.numel(), gamma.numel()
    samples = next(number for number in (2, 3, 5) if rows % number == 0)
    scale, shift = torch.stack([torch.cat([gamma.flatten(), beta.flatten()]).roll(k) for k in range(samples)]).chunk(
        2, 1
    )
    assert not scale.is_contiguous()
    return call(x.reshape(samples, rows // samples, N), scale, shift).reshape(r.shape)


def with_wide_residual(x, r, gamma, beta, shape):
    return lngrad_torch.add_rms_norm(x, r.float() if x.itemsize == 2 else r, shape, gamma, 1e-5)


GATE_FIRST = OF_TORCH["rms_norm_of_gated"]
# The family: of x, residual, gamma, beta, shape; y, and the total where there is a residual.
FAMILY = {
    **{name: partial(of_norm, norm) for name, norm in OF_TORCH.items() if name not in ("layer_norm", "add_gemma")},
    "rms_norm_of_gated": partial(
        of_norm, GATE_FIRST._replace(normalization=GATE_FIRST.normalization._replace(offset=1.0))
    ),
    "without gamma": lambda x, r, gamma, beta, shape: lngrad_torch.rms_norm(x, shape, eps=1e-5),
    "float32 residual": with_wide_residual,
    "a gamma of each row": lambda x, r, gamma, beta, shape: lngrad_torch.rms_norm(x, shape, r, 1e-5, offset=1.0),
    "modulated sum": lambda x, r, gamma, beta, shape: lngrad_torch.add_layer_norm(x, r, shape, r.flip(0), x),
    "F.rms_norm": lambda x, r, gamma, beta, shape: torch.nn.functional.rms_norm(x, shape, gamma, 1e-5),
}
each = pytest.mark.parametrize("name", FAMILY)


def family_leaves(case, dtype):
    inputs = make_inputs(case, dtype, residual=True)
    arrays = inputs.x, inputs.residual, inputs.gamma, inputs.beta
    return [tensor(array).requires_grad_() for array in arrays], (tensor(inputs.dy), tensor(inputs.dtotal))


def family_step(name, case, dtype):
    """Results and gradients by x, residual, gamma and beta, as far as they are used."""
    leaves, dys = family_leaves(case, dtype)
    results = FAMILY[name](*leaves, case.normalized)
    results = results if isinstance(results, tuple) else (results,)
    dys = [dy.to(result.dtype) for result, dy in zip(results, dys, strict=False)]
    grads = torch.autograd.grad(results, leaves, dys, allow_unused=True)
    return (*(result.detach() for result in results), *grads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lead", "shape"), SHAPES)
@pytest.mark.parametrize("override", [False, True])
def test_the_bits_are_those_of_the_way_through_python(lead, shape, dtype, override):
    inputs = make_inputs(Case(lead, shape), dtype)
    call = overridden if override else lngrad_torch.layer_norm
    with lngrad_torch.override():
        first, again = step(call, inputs, shape), step(call, inputs, shape)
    with python_alone(), lngrad_torch.override():
        expected = step(call, inputs, shape)
    check_same_bits(first, expected)
    check_same_bits(again, expected)


def test_a_call_that_was_seen_asks_python_nothing(seen):
    inputs = make_inputs(Case((64,), (64,)), "float32")
    step(lngrad_torch.layer_norm, inputs, (64,))
    assert seen == ["prepare_forward", "prepare_backward"]
    with lngrad_torch.override():
        step(overridden, inputs, (64,))
        assert seen[2:] == ["prepare_aten_forward", "prepare_aten_backward"]
        step(overridden, inputs, (64,))
    step(lngrad_torch.layer_norm, inputs, (64,))
    assert len(seen) == 4


@each
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lead", "shape"), [((64,), (64,)), ((300,), (512,)), ((130,), (3,)), ((5, 7), (3, 11))])
def test_the_bits_of_the_family_are_those_of_the_way_through_python(name, lead, shape, dtype):
    case = Case(lead, shape)
    with lngrad_torch.override():
        first, again = family_step(name, case, dtype), family_step(name, case, dtype)
    with python_alone(), lngrad_torch.override():
        expected = family_step(name, case, dtype)
    check_same_bits(first, expected)
    check_same_bits(again, expected)


@each
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_call_of_the_family_that_was_seen_asks_python_nothing(seen, name, dtype):
    case = Case((64,), (64,))
    with lngrad_torch.override():
        family_step(name, case, dtype)
        assert seen == ["prepare_forward", "prepare_backward"]
        family_step(name, case, dtype)
    assert len(seen) == 2


def test_no_two_members_of_the_family_share_a_prepared_call(seen):
    """Also where shapes and dtypes are equal: the switches are facts of a call."""
    case = Case((9,), (16,))
    members = [
        name for name in FAMILY if name not in ("F.rms_norm", "float32 residual")
    ]  # the same as others in float32
    alone = {}
    for name in members:
        native.module.forget()
        alone[name] = family_step(name, case, "float32")
    native.module.forget()
    del seen[:]
    for name in members:
        check_same_bits(family_step(name, case, "float32"), alone[name])
    assert seen == ["prepare_forward", "prepare_backward"] * len(members)


@pytest.mark.parametrize("used", ["y", "total", "both"])
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_gradients_through_one_result_and_to_one_input(used, wanted):
    """x and the residual have the same gradient, of y and of the total; gamma has one through y alone."""

    def grads():
        leaves, (dy, dtotal) = family_leaves(Case((64,), (64,)), "float32")
        arrays = [leaf.detach().requires_grad_(at in wanted) for at, leaf in enumerate(leaves)]
        y, total = lngrad_torch.add_rms_norm(arrays[0], arrays[1], 64, arrays[2])
        uses = {"y": ((y,), (dy,)), "total": ((total,), (dtotal,)), "both": ((y, total), (dy, dtotal))}[used]
        return torch.autograd.grad(uses[0], [arrays[at] for at in wanted], uses[1], allow_unused=True)

    got = grads()
    with python_alone():
        expected = grads()
    if used == "total" and 2 in wanted:  # a zero, or that there is none: torch takes both
        got, expected = (
            [result for result in ones if result is not None and result.ndim > 1] for ones in (got, expected)
        )
    check_same_bits(tuple(got), tuple(expected))


@each
@pytest.mark.parametrize("wanted", [0, 1, 2, 3])
def test_the_gradient_to_one_input(name, wanted):
    def grads():
        leaves, dys = family_leaves(Case((60,), (40,)), "bfloat16")
        arrays = [leaf.detach().requires_grad_(at == wanted) for at, leaf in enumerate(leaves)]
        results = FAMILY[name](*arrays, (40,))
        results = results if isinstance(results, tuple) else (results,)
        if not results[0].requires_grad:
            return results
        dys = [dy.to(result.dtype) for result, dy in zip(results, dys, strict=False)]
        return torch.autograd.grad(results, arrays[wanted], dys)

    got = grads()
    with python_alone():
        check_same_bits(got, grads())


@each
def test_nothing_of_a_step_is_kept(name):
    leaves, dys = family_leaves(Case((64,), (64,)), "bfloat16")

    def counts():
        return [(array._use_count(), sys.getrefcount(array)) for array in (*leaves, *dys)]

    def step():
        results = FAMILY[name](*leaves, (64,))
        results = results if isinstance(results, tuple) else (results,)
        torch.autograd.backward(results, [dy.to(result.dtype) for result, dy in zip(results, dys, strict=False)])
        for leaf in leaves:
            leaf.grad = None

    step()
    before = counts()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    assert counts() == before
    assert sum(event.self_cpu_memory_usage for event in profile.events()) == 0


def test_samples_that_lie_otherwise_are_other_calls():
    """Shapes and steps of gamma and beta beside one x; those of no constant step go through Python."""
    generator = torch.Generator().manual_seed(0)
    x, dy, wide = (torch.randn(shape, generator=generator) for shape in ((2, 3, 4, 8), (2, 3, 4, 8), (2, 3, 4, 24)))
    forms = [
        (scale, shift)
        for rows in ((2, 1, 1), (2, 3, 1), (2, 3, 4), (1, 1, 1))
        for own in [wide[tuple(slice(size) for size in rows)]]
        for scale, shift in (
            (own[..., :8], own[..., 8:16]),
            (own[..., 16:].contiguous(), own[..., 8:16]),
            (own[..., :8], own[..., 16:].contiguous()),
            (own[..., ::2][..., :8], own[..., 8:16]),
            (own[..., :8], own[:, :, :1, :8].expand(own[..., :8].shape)),
        )
    ]

    def steps():
        results = []
        for scale, shift in forms:
            leaves = [array.detach().requires_grad_() for array in (x, scale, shift)]
            y = lngrad_torch.modulated_layer_norm(*leaves)
            results += [y.detach(), *torch.autograd.grad(y, leaves, dy)]
        return tuple(results)

    native.module.forget()
    got = steps()
    with python_alone():
        check_same_bits(got, steps())


@pytest.mark.parametrize("order", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)], ids=str)
def test_a_float32_residual_beside_two_dtypes(order):
    """The total, gamma and statistics have the same dtype; dy has x's."""
    native.module.forget()
    x, residual, dy, w = torch.randn(4, 64, 32, generator=torch.Generator().manual_seed(0)).split([1, 1, 1, 1])
    for dtype in order:

        def step(dtype=dtype):
            leaves = [
                array.detach().to(kind).requires_grad_()
                for array, kind in ((x, dtype), (residual, None), (w[0, 0], None))
            ]
            results = lngrad_torch.add_rms_norm(*leaves[:2], 32, leaves[2])
            return (*(result.detach() for result in results), *torch.autograd.grad(results, leaves, (dy.to(dtype), dy)))

        got = step()
        with python_alone():
            check_same_bits(got, step())


def test_a_result_of_a_megabyte_comes_from_the_pool(seen):
    inputs = make_inputs(Case((1024,), (256,)), "float32")
    step(lngrad_torch.layer_norm, inputs, (256,))
    assert seen.count("empty") == 2  # y and dx


def test_an_absent_parameter_and_a_frozen_input():
    inputs = make_inputs(Case((70,), (33,)), "float32")
    x, gamma, dy = tensor(inputs.x), tensor(inputs.gamma).requires_grad_(), tensor(inputs.dy)
    (dgamma,) = torch.autograd.grad(lngrad_torch.layer_norm(x, 33, gamma), gamma, dy)
    x.requires_grad_()
    (dx,) = torch.autograd.grad(lngrad_torch.layer_norm(x, 33, gamma.detach()), x, dy)
    check_grads(Grads(dx, dgamma, None), inputs, output_mask=(True, True, False))


def test_what_is_not_plain_is_left_to_python(seen):
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    gamma = torch.ones(8)
    expected = lngrad_torch.layer_norm(x, 8, gamma)
    del seen[:]
    wide = torch.empty(6, 16)[:, ::2].copy_(x)
    check_same_bits((lngrad_torch.layer_norm(wide, 8, gamma),), (expected,))
    check_same_bits((torch.func.vmap(lambda row: lngrad_torch.layer_norm(row, 8, gamma))(x),), (expected,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        y, tangent = torch.autograd.forward_ad.unpack_dual(lngrad_torch.layer_norm(dual, 8, gamma))
    assert tangent is not None
    check_same_bits((y,), (expected,))
    check_same_bits(
        (lngrad_torch.layer_norm(x, 8, gamma, None, 1),), (lngrad.layer_norm(x, gamma, normalized_shape=8, eps=1).y,)
    )
    assert seen == []


def test_what_a_signals_handler_raises_in_the_python_that_is_asked_reaches_the_caller():
    """For each time that native code asks Python for a step: where it is interrupted, and the same step afterwards."""
    asked = {getattr(function, "__code__", None) for function in native._functions.values()}
    rows, entries = itertools.count(40), []  # rows: calls that nothing is prepared for

    def traced(stop=None):
        def trace(frame, event, argument):
            if frame.f_code in asked:
                entries.append(frame.f_code)
                if len(entries) == stop:
                    raise KeyboardInterrupt

        entries.clear()
        inputs = make_inputs(Case((next(rows), 2), (24,)), "float32")
        sys.settrace(trace)
        try:
            step(lngrad_torch.layer_norm, inputs, (24,))
        finally:
            sys.settrace(None)
            check_grads(Grads(*step(lngrad_torch.layer_norm, inputs, (24,))[1:]), inputs)

    traced()
    assert entries
    for stop in range(1, len(entries) + 1):
        with pytest.raises(KeyboardInterrupt):
            traced(stop)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((torch.ones(4, 8), 7), ShapeError),
        ((torch.ones(4, 8), (4, 7)), ShapeError),
        ((torch.ones(4, 8), 8, torch.ones(7)), ShapeError),
        ((torch.ones(4, 8, dtype=torch.int64), 8), DtypeError),
        ((torch.ones(4, 8), 2**70), RuntimeError),
    ],
)
def test_errors_are_the_same(arguments, error):
    with pytest.raises(error) as ours:
        lngrad_torch.layer_norm(*arguments)
    with python_alone(), pytest.raises(error) as pythons:
        lngrad_torch.layer_norm(*arguments)
    assert str(ours.value) == str(pythons.value)


def refused(call):
    with pytest.raises((LngradError, RuntimeError)) as raised:
        call()
    return type(raised.value), str(raised.value)


SAMPLES = torch.ones(2, 1, 8)
REFUSED = {
    "two dtypes of a gate": lambda x, r, w: lngrad_torch.gated_rms_norm(x, r.bfloat16(), w),
    "two shapes of a gate": lambda x, r, w: lngrad_torch.gated_rms_norm(x, r[:1], w),
    "a gated weight": lambda x, r, w: lngrad_torch.gated_rms_norm(x, r, w[:7]),
    "a gated offset": lambda x, r, w: lngrad_torch.gated_rms_norm(x, r, w, offset=float("inf")),
    "a gate of integers": lambda x, r, w: lngrad_torch.gated_rms_norm(x.long(), r.long(), w),
    "three samples of two": lambda x, r, w: lngrad_torch.modulated_layer_norm(x, torch.ones(3, 8)),
    "two kinds of samples": lambda x, r, w: lngrad_torch.modulated_layer_norm(x, torch.ones(2, 8), torch.ones(2, 3, 8)),
    "a shift alone": lambda x, r, w: lngrad_torch.add_layer_norm(x, r, 8, None, SAMPLES),
    "samples of layer_norm": lambda x, r, w: lngrad_torch.layer_norm(x, 8, SAMPLES, SAMPLES),
    "samples of its operator": lambda x, r, w: torch.ops.lngrad.layer_norm(x, [8], SAMPLES, SAMPLES, 1e-5),
    "samples of F.layer_norm": lambda x, r, w: F.layer_norm(x, (8,), SAMPLES),
    "samples of F.rms_norm": lambda x, r, w: F.rms_norm(x, (8,), SAMPLES),
    "a narrow residual": lambda x, r, w: lngrad_torch.add_rms_norm(x, r.bfloat16(), 8, w),
    "a wide residual": lambda x, r, w: lngrad_torch.add_rms_norm(x.double(), r, 8, w),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_of_the_family_are_the_same(name):
    x, r, w = torch.ones(2, 3, 8), torch.ones(2, 3, 8), torch.ones(8)
    with lngrad_torch.override():
        ours = refused(lambda: REFUSED[name](x, r, w))
    with python_alone(), lngrad_torch.override():
        assert refused(lambda: REFUSED[name](x, r, w)) == ours


def test_freed_memory_of_the_family_is_refused():
    x, r, scale = torch.ones(2, 3, 8), torch.ones(2, 3, 8), torch.ones(2, 16)[:, 8:]
    lngrad_torch.gated_rms_norm(x, r), lngrad_torch.modulated_layer_norm(x, scale)
    scale.untyped_storage().resize_(124)
    with pytest.raises(ShapeError, match="gamma: expected 128 bytes of storage, got 124"):
        lngrad_torch.modulated_layer_norm(x, scale)
    r.untyped_storage().resize_(0)
    with pytest.raises(ShapeError, match="gate: expected 192 bytes of storage, got 0"):
        lngrad_torch.gated_rms_norm(x, r)


@pytest.mark.parametrize("override", [False, True])
def test_memory_that_was_freed_is_refused(override):
    x, gamma = torch.randn(64, 64), torch.ones(64)
    lngrad_torch.layer_norm(x, 64, gamma)
    x.untyped_storage().resize_(0)
    with lngrad_torch.override(), pytest.raises(ShapeError, match=r"(x|input): expected 16384 bytes of storage, got 0"):
        (overridden if override else lngrad_torch.layer_norm)(x, (64,), gamma, None, 1e-5)


def test_a_gradient_in_another_dtype_than_gammas():
    inputs = make_inputs(Case((64,), (64,)), "bfloat16")
    x, gamma = tensor(inputs.x).requires_grad_(), tensor(inputs.gamma).requires_grad_()
    beta = tensor(inputs.beta).float().requires_grad_()
    grads = torch.autograd.grad(lngrad_torch.layer_norm(x, 64, gamma, beta), (x, gamma, beta), tensor(inputs.dy))
    assert [grad.dtype for grad in grads] == [torch.bfloat16, torch.bfloat16, torch.float32]


def test_derivatives_of_any_order():
    generator = torch.Generator().manual_seed(0)
    x, gamma, beta = (torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in ((3, 5), 5, 5))
    assert torch.autograd.gradcheck(lngrad_torch.layer_norm, (x, 5, gamma, beta))
    assert torch.autograd.gradgradcheck(lngrad_torch.layer_norm, (x, 5, gamma, beta))


@each
def test_derivatives_of_the_family_of_any_order(name):
    generator = torch.Generator().manual_seed(0)
    shapes = (3, 5), (3, 5), 5, 5
    leaves = [torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]
    with lngrad_torch.override():
        assert torch.autograd.gradcheck(lambda *arrays: FAMILY[name](*arrays, (5,)), leaves)
        assert torch.autograd.gradgradcheck(lambda *arrays: FAMILY[name](*arrays, (5,)), leaves)


def test_what_is_not_plain_in_the_family_is_left_to_python(seen):
    x, r = torch.randn(6, 8), torch.randn(6, 8)
    expected = lngrad_torch.add_rms_norm(x, r, 8)
    del seen[:]
    wide = torch.empty(6, 16)[:, ::2].copy_(r)
    check_same_bits(lngrad_torch.add_rms_norm(x, wide, 8), expected)
    check_same_bits(torch.func.vmap(lambda x, r: lngrad_torch.add_rms_norm(x, r, 8))(x, r), expected)
    check_same_bits((lngrad_torch.rms_norm(x, 8, eps=1),), (lngrad.rms_norm(x, normalized_shape=8, eps=1).y,))
    with pytest.raises(ShapeError, match="residual: expected"):
        lngrad_torch.add_rms_norm(x, r[0], 8)
    with pytest.raises(DtypeError, match="residual: expected"):
        lngrad_torch.add_rms_norm(x, r.double(), 8)
    with pytest.raises(NumberError, match="offset: expected a finite number, got inf"):
        lngrad_torch.rms_norm(x, 8, offset=float("inf"))
    r.untyped_storage().resize_(0)
    with pytest.raises(ShapeError, match="residual: expected 192 bytes of storage, got 0"):
        lngrad_torch.add_rms_norm(x, r, 8)
    assert set(seen) <= {"prepare_forward"}


def test_gradients_of_a_batch_of_gradients():
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = lngrad_torch.layer_norm(x, 6)
    batch = torch.eye(24).reshape(24, 4, 6)
    (together,) = torch.autograd.grad(y, x, batch, is_grads_batched=True, retain_graph=True)
    alone = torch.stack([torch.autograd.grad(y, x, dy, retain_graph=True)[0] for dy in batch])
    check_same_bits((together,), (alone,))


def test_an_input_changed_in_place_is_noticed():
    x = torch.randn(4, 6, requires_grad=True) * 1
    y = lngrad_torch.layer_norm(x, 6)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_hooks_of_saved_tensors_are_asked():
    kept = []
    x = torch.randn(4, 6, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        lngrad_torch.layer_norm(x, 6, torch.ones(6))
    assert kept == [(4, 6), (4, 1), (4, 1), (6,)]


def test_many_threads_at_once(threads):
    inputs = make_inputs(Case((512,), (128,)), "float32")
    expected = step(lngrad_torch.layer_norm, inputs, (128,))
    failed = []

    def repeat():
        try:
            for _ in range(50):
                check_same_bits(step(lngrad_torch.layer_norm, inputs, (128,)), expected)
        except BaseException as reason:
            failed.append(reason)

    crew = [threading.Thread(target=repeat) for _ in range(4)]
    for thread in crew:
        thread.start()
    lngrad.set_num_threads(1)
    check_same_bits(step(lngrad_torch.layer_norm, inputs, (128,)), expected)
    for thread in crew:
        thread.join()
    assert not failed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Python's: the process has threads
def test_a_forked_child_computes():
    inputs = make_inputs(Case((64,), (64,)), "float32")
    expected = step(lngrad_torch.layer_norm, inputs, (64,))
    child = os.fork()
    if not child:
        code = 1
        try:
            check_same_bits(step(lngrad_torch.layer_norm, inputs, (64,)), expected)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_a_profiler_sees_the_calls():
    x = torch.randn(64, 64, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        lngrad_torch.layer_norm(x, 64).sum().backward()
    names = {event.name for event in profile.events()}
    assert {"lngrad::layer_norm", "lngrad::layer_norm_backward"} <= names
    for call, name in ((lngrad_torch.rms_norm, "norm"), (lngrad_torch.gated_rms_norm, "gated_norm")):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            call(x, 64 if name == "norm" else x).sum().backward()
        assert {f"lngrad::{name}", f"lngrad::{name}_backward"} <= {event.name for event in profile.events()}
