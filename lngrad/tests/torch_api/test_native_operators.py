"""torch.ops.lngrad as native code serves it: the bits and errors of Python's kernels, which get what is not plain."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from native_ways import python_alone  # noqa: E402  # torch may be missing

import lngrad.torch as lngrad_torch  # noqa: E402
from lngrad.core.norms import NORMS, PLAIN  # noqa: E402
from lngrad.core.problem import Forward, Grads  # noqa: E402
from lngrad.errors import DtypeError, LngradError, NumberError, ShapeError  # noqa: E402
from lngrad.support.dtypes import to_torch  # noqa: E402
from lngrad.testing import Case, check_forward, check_grads, check_same_bits, make_inputs  # noqa: E402
from lngrad.torch import native, operators  # noqa: E402

pytestmark = pytest.mark.usefixtures("native_code")
ops = torch.ops.lngrad
DTYPES = ["float16", "bfloat16", "float32", "float64"]
EPS = 1e-5
# One core's, two normalized dimensions, results from the pool, more than a packed plan takes.
SHAPES = [((64,), (64,)), ((5, 7), (3, 11)), ((1024,), (256,)), ((4096,), (1100,))]
MASKS = [(True, True, True), (True, False, False), (False, True, True), (False, False, True), (False, False, False)]
# Norms that the operators compute of one row of parameters.
MEMBERS = {name: NORMS[name] for name in PLAIN if NORMS[name].normalization.alpha == 1}
MEMBERS["without gamma"] = NORMS["rms_norm"]


def of_mean(centred, beta, mask):
    """beta and the mask without what rows without a mean do not have: the native code leaves that to Python."""
    return (beta, mask) if centred else (None, [*mask[:2], False])


class Call:
    """Tensors of a call, and both directions of the operators with them."""

    def __init__(self, case, dtype, residual=False, ops=ops):
        self.ops = ops
        self.inputs = make_inputs(case, dtype, residual=residual)
        self.shape = list(case.normalized)
        for name in ("dy", "x", "gamma", "beta", *(("residual", "dtotal") if residual else ())):
            setattr(self, name, to_torch(getattr(self.inputs, name).copy()))

    def forward(self):
        return self.ops.layer_norm(self.x, self.shape, self.gamma, self.beta, EPS)

    def backward(self, mean, rstd, mask=(True, True, True)):
        return self.ops.layer_norm_backward(self.dy, self.x, self.shape, mean, rstd, self.gamma, mask)

    def all(self, mask=(True, True, True)):
        y, mean, rstd = self.forward()
        return (y, mean, rstd, *self.backward(mean, rstd, mask))

    def gated(self, norm_before_gate, mask=(True, True, True)):
        parameters = self.gamma, self.residual
        y, rstd = self.ops.gated_norm(self.x, self.shape, *parameters, EPS, 1.0, norm_before_gate)
        return (
            y,
            rstd,
            *self.ops.gated_norm_backward(self.dy, self.x, self.shape, rstd, *parameters, mask, 1.0, norm_before_gate),
        )

    def modulated(self, centred, mask=(True, True, True)):
        """A gamma and a beta for each of x's first dimension, as chunks of one tensor."""
        parameters = torch.stack([torch.cat([self.gamma, self.beta]).roll(k) for k in range(len(self.x))])[:, None]
        gamma, beta = parameters.chunk(2, -1)
        beta, mask = of_mean(centred, beta, mask)
        y, mean, rstd, _ = self.ops.norm(self.x, self.shape, gamma, beta, EPS, None, centred, 1.0)
        grads = self.ops.norm_backward(self.dy, self.x, self.shape, mean, rstd, gamma, mask, None, centred, 1.0)
        return y, mean, rstd, *grads

    def with_wide_residual(self, centred, mask=(True, True, True)):
        beta, mask = of_mean(centred, self.beta, mask)
        residual = self.residual.float()
        y, mean, rstd, total = self.ops.norm(self.x, self.shape, self.gamma, beta, EPS, residual, centred, 0.0)
        dtotal = self.dtotal.float()
        grads = self.ops.norm_backward(self.dy, total, self.shape, mean, rstd, self.gamma, mask, dtotal, centred, 0.0)
        return y, mean, rstd, total, *grads

    def member(self, name, mask=(True, True, True)):
        centred, offset, *_ = MEMBERS[name].normalization
        gamma, beta = (self.gamma, self.beta) if name != "without gamma" else (None, None)
        beta, mask = of_mean(centred, beta, mask)
        residual, dtotal = (self.residual, self.dtotal) if MEMBERS[name].residual else (None, None)
        y, mean, rstd, total = self.ops.norm(self.x, self.shape, gamma, beta, EPS, residual, centred, offset)
        x = self.x if residual is None else total
        grads = self.ops.norm_backward(self.dy, x, self.shape, mean, rstd, gamma, mask, dtotal, centred, offset)
        return y, mean, rstd, total, *grads


def check_as_python(call, *arguments):
    """Twice the bits, dtypes and layouts of Python's kernels."""
    got, again = call(*arguments), call(*arguments)
    with python_alone():
        expected = call(*arguments)
    for results in (got, again):
        assert [(t.shape, t.dtype, t.stride()) for t in results] == [(t.shape, t.dtype, t.stride()) for t in expected]
        check_same_bits(results, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lead", "shape"), SHAPES)
def test_the_bits_of_pythons_kernels(lead, shape, dtype):
    call = Call(Case(lead, shape), dtype)
    check_as_python(call.all)
    y, mean, rstd, *grads = call.all()
    check_forward(Forward(y, mean, rstd), call.inputs, eps=EPS)
    check_grads(Grads(*grads), call.inputs)


@pytest.mark.parametrize(
    ("dtype", "parameters"), [("bfloat16", "float32"), ("float16", "float64"), ("float64", "float16")]
)
def test_parameters_of_another_dtype(dtype, parameters):
    call = Call(Case((65,), (40,), gamma_dtype=parameters), dtype)
    check_as_python(call.all)
    y, mean, rstd, *grads = call.all()
    check_forward(Forward(y, mean, rstd), call.inputs, eps=EPS)
    check_grads(Grads(*grads), call.inputs)


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_what_is_masked_off_has_no_elements(mask):
    call = Call(Case((65,), (40,)), "float32")
    check_as_python(call.all, mask)
    assert [bool(grad.numel()) for grad in call.all(mask)[3:]] == list(mask)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("name", MEMBERS)
def test_the_family(name, mask):
    call = Call(Case((65,), (40,)), "bfloat16", residual=True)
    check_as_python(call.member, name, mask)


OTHERS = [(call, flag) for call in (Call.gated, Call.modulated, Call.with_wide_residual) for flag in (False, True)]
others = pytest.mark.parametrize(("call", "flag"), OTHERS, ids=lambda value: getattr(value, "__name__", str(value)))


@others
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gates_samples_and_a_float32_residual(call, flag, mask, dtype):
    operands = Call(Case((5, 13), (40,)), dtype, residual=True)
    check_as_python(lambda: call(operands, flag, mask))


@others
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_direct_call_of_these_is_the_operators(call, flag, mask):
    check_direct(Case((5, 13), (40,)), "bfloat16", call, flag, mask)


@others
def test_one_of_these_that_was_seen_asks_python_nothing(seen, call, flag):
    operands = Call(Case((5, 13), (40,)), "bfloat16", residual=True)
    call(operands, flag)
    assert seen == ["prepare_forward", "prepare_backward"]
    call(operands, flag)
    operands.ops = direct()
    call(operands, flag, [True] * 3)
    assert len(seen) == 2


def direct():
    """The operators as generated code of Inductor calls them: without torch's dispatcher."""
    return SimpleNamespace(**{name: getattr(native.module, f"direct_{name}") for name in operators.ALL})


def check_direct(case, dtype, call, *arguments, **changes):
    """The results of a direct call, those of the operator, or None for one without elements; the same errors."""

    def whole(results):
        return tuple(None if result is None or not result.numel() else result for result in results)

    got, expected = (Call(case, dtype, True, way) for way in (direct(), ops))
    for operands in (got, expected):
        for name, value in changes.items():
            setattr(operands, name, value)
    try:
        results = call(expected, *arguments)
    except LngradError as error:
        with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
            call(got, *arguments)
        return
    for _ in range(2):
        check_same_bits(whole(call(got, *arguments)), whole(results))


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("name", MEMBERS)
def test_a_direct_call_is_the_operators(name, mask):
    check_direct(Case((65,), (40,)), "bfloat16", Call.member, name, mask)
    check_direct(Case((65,), (40,)), "bfloat16", Call.all, mask)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lead", "shape"), SHAPES)
def test_direct_calls_of_any_size_and_dtype(lead, shape, dtype):
    check_direct(Case(lead, shape), dtype, Call.all)


@pytest.mark.parametrize(
    "change",
    [
        {"x": torch.arange(96.0).reshape(6, 16)[:, ::2]},
        {"gamma": torch.arange(16.0)[::2]},
        {"dy": torch.ones(8, 6).T},
        {"shape": (8,)},
        {"shape": [7]},
        {"dy": torch.ones(8, 6)},
        {"dy": torch.ones(5, 8)},
        {"gamma": torch.ones(8, dtype=torch.int32)},
    ],
    ids=str,
)
def test_a_direct_call_that_is_not_plain_is_the_operators(change):
    check_direct(Case((6,), (8,)), "float32", Call.all, **change)


class Listening(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.heard.append(str(function))
        return function(*arguments, **(keywords or {}))


def check_that_a_mode_hears(call):
    expected = call.forward()
    mode = Listening()
    mode.heard = []
    with mode:
        got = call.forward()
    check_same_bits(got, expected)
    assert mode.heard == ["lngrad.layer_norm.default"]


def test_a_direct_call_keeps_derivatives_modes_and_profiles():
    call = Call(Case((64,), (64,)), "float32", ops=direct())
    check_that_a_mode_hears(call)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call.forward()
    assert "lngrad::layer_norm" in [event.name for event in profile.events()]
    leaves = [tensor.requires_grad_() for tensor in (call.x, call.gamma, call.beta)]
    check_grads(Grads(*torch.autograd.grad(call.forward()[0], leaves, call.dy)), call.inputs)
    with torch.no_grad():
        assert not call.forward()[0].requires_grad


def test_a_call_that_was_seen_asks_python_nothing(seen):
    call = Call(Case((64,), (64,)), "float32", residual=True)
    with torch.no_grad():
        for tensor in (call.x, call.gamma, call.beta):
            tensor.requires_grad_()  # as parameters in compiled code, which wants no derivative of the operator
        call.all()
        assert seen == ["prepare_forward", "prepare_backward"]
        call.all()
        call.member("layer_norm")  # the same call by another name
        assert len(seen) == 2
        call.member("gemma_rms_norm")
        assert len(seen) == 4
        with torch.inference_mode():
            call.member("gemma_rms_norm")
    assert len(seen) == 4


def test_statistics_of_another_shape_and_dtype():
    call = Call(Case((5, 6), (40,)), "float16")
    _, mean, rstd = call.forward()
    for statistics in ((mean.reshape(30), rstd.reshape(6, 5)), (mean.half(), rstd.half()), (mean.half(), rstd)):
        check_as_python(call.backward, *statistics)


def test_derivatives_are_those_of_pythons_kernels(seen):
    call = Call(Case((64,), (64,)), "float32")
    leaves = [tensor.requires_grad_() for tensor in (call.x, call.gamma, call.beta)]

    def step():
        return torch.autograd.grad(call.forward()[0], leaves, call.dy)

    check_as_python(step)
    check_grads(Grads(*step()), call.inputs)
    assert set(seen) == {"prepare_forward", "prepare_backward"}  # the kernels below autograd


def test_what_is_not_plain_is_left_to_python(seen):
    call = Call(Case((6,), (8,)), "float32")
    expected = call.all()
    del seen[:]
    call.x = torch.empty(6, 16)[:, ::2].copy_(call.x)
    check_same_bits(call.all(), expected)
    assert not seen
    batched = torch.func.vmap(lambda x: ops.layer_norm(x, [8], call.gamma, call.beta, EPS)[0])(call.x.reshape(2, 3, 8))
    check_same_bits((batched.reshape(6, 8),), expected[:1])


def test_a_mode_hears_of_the_call():
    call = Call(Case((6,), (8,)), "float32")
    check_that_a_mode_hears(call)


def test_tensors_without_memory_are_traced():
    with torch._subclasses.FakeTensorMode():
        y, mean, _ = ops.layer_norm(torch.empty(6, 8), [8], torch.empty(8), None, EPS)
    assert (y.shape, mean.shape) == ((6, 8), (6, 1))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"shape": [7]}, ShapeError),
        ({"gamma": torch.ones(7)}, ShapeError),
        ({"x": torch.ones(6, 8, dtype=torch.int64)}, DtypeError),
        ({"dy": torch.ones(8, 6)}, ShapeError),
        ({"dy": torch.ones(6, 8, dtype=torch.float64)}, DtypeError),
        ({"mean": torch.ones(5)}, ShapeError),
    ],
    ids=str,
)
def test_errors_are_the_same(change, error):
    call = Call(Case((6,), (8,)), "float32")
    _, call.mean, call.rstd = call.forward()
    for name, value in change.items():
        setattr(call, name, value)

    def text():
        with pytest.raises(error) as raised:
            call.backward(call.mean, call.rstd)
        return str(raised.value)

    ours = text()
    with python_alone():
        assert ours == text()


def test_memory_that_was_freed_and_numbers_that_are_not_finite_are_refused():
    call = Call(Case((64,), (64,)), "float32")
    call.all()
    with pytest.raises(NumberError, match="offset: expected a finite number, got inf"):
        ops.norm(call.x, [64], None, None, EPS, None, False, float("inf"))
    call.x = call.x.clone()  # torch's own memory
    call.x.untyped_storage().resize_(0)
    with pytest.raises(ShapeError, match="x: expected 16384 bytes of storage, got 0"):
        call.forward()


def test_a_profiler_sees_one_call():
    call = Call(Case((64,), (64,)), "float32")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call.all()
    names = [event.name for event in profile.events()]
    assert [name for name in names if name.startswith("lngrad")] == [
        "lngrad::layer_norm",
        "lngrad::layer_norm_backward",
    ]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:`torch.jit:FutureWarning")
def test_a_scripted_call():
    @torch.jit.script
    def scripted(x, gamma):
        return torch.ops.lngrad.layer_norm(x, [8], gamma, None, 1e-5)[0]

    x, gamma = torch.randn(6, 8), torch.randn(8)
    check_same_bits((scripted(x, gamma),), (lngrad_torch.layer_norm(x, 8, gamma),))


def test_python_alone_has_no_native_kernel(seen):
    """The yardstick of the tests above."""
    call = Call(Case((63,), (65,)), "float32")
    with python_alone():
        call.all()
        assert native.module is None
    assert not seen
