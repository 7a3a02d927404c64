"""The Triton kernels under Triton's interpreter: every regime, dtype, mask and stride, on the CPU.

conftest.py turns the interpreter on. Tests marked gpu need a process without it: TRITON_INTERPRET=0 pytest -m gpu.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", minversion="3.9")
torch = pytest.importorskip("torch")

import triton.language as tl  # noqa: E402

import interpreted  # noqa: E402, F401
import lngrad  # noqa: E402
import norms  # noqa: E402
from golden_cases import Call, GoldenCase, hashes  # noqa: E402
from lngrad.api import execute  # noqa: E402
from lngrad.core import reference  # noqa: E402
from lngrad.core.plan import make_plan  # noqa: E402
from lngrad.core.problem import (  # noqa: E402
    BACKWARD,
    FORWARD,
    GATED_BACKWARD,
    GATED_FORWARD,
    LAYER_NORM,
    RMS_BACKWARD,
    RMS_FORWARD,
    RMS_NORM,
    ROLES,
    SLICE_BACKWARD,
    WITH_RESIDUAL,
    Forward,
    Grads,
    Problem,
    RmsForward,
    RmsGrads,
    Role,
    describe,
)
from lngrad.errors import BackendUnavailable  # noqa: E402
from lngrad.gpu import kernels  # noqa: E402
from lngrad.gpu import plan as triton_gpu  # noqa: E402
from lngrad.gpu import policy as triton_policy  # noqa: E402
from lngrad.gpu import run as triton_run  # noqa: E402
from lngrad.gpu.policy import Band, Columns, Tiles  # noqa: E402
from lngrad.support.dtypes import numpy_dtype  # noqa: E402
from lngrad.testing import (  # noqa: E402
    Case,
    GradientError,
    Inputs,
    Normalization,
    check_forward,
    check_grads,
    check_same_bits,
    make_inputs,
)

DTYPES = ("float32", "bfloat16", "float16", "float64")

# Every kernel's small cases: the tile's tails, N of 1 and odd, and rows longer than a tile in both regimes for them.
SMALL = (
    Case((1,), (1,)),
    Case((130,), (1,)),
    Case((67,), (7,)),
    Case((3, 5, 7), (4, 6)),
    Case((131,), (13,)),
    Case((100,), (129,), gamma=False),
    Case((17,), (1000,), offset=3.0),
    Case((3,), (4096,)),
)
# Widths that are no power of two, and so rows of several blocks.
BLOCKS = (Case((5,), (320,)), Case((3,), (768,)), Case((2,), (2305,)), Case((2,), (5120,)), Case((2,), (7168,)))


def tensor(array):
    if array is None:
        return None
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("u2").copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def tensors(inputs):
    return tuple(map(tensor, inputs.arguments))


def backward(*arguments, **options):
    problem, arrays = Problem.backward(*arguments, **options)
    return Grads(*execute(triton_gpu.plan(problem, 1), arrays, options.get("out")))


def forward(x, gamma=None, beta=None, *shape):
    problem, arrays = Problem.forward(x, gamma, beta, *shape)
    return Forward(*execute(triton_gpu.plan(problem, 1), (*arrays, 1e-5)))


def check_y(inputs):
    arrays = (tensor(array) for array in (inputs.x, inputs.gamma, inputs.beta))
    check_forward(forward(*arrays, inputs.normalized_shape), inputs)


def check_both(inputs):
    check_grads(backward(*tensors(inputs), normalized_shape=inputs.normalized_shape), inputs)
    check_y(inputs)


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """A program costs the interpreter milliseconds: the last sum of wide rows goes to fewer of them than on a device."""
    if not kernels.INTERPRETED:
        return
    shape = triton_policy.finalize_shape
    monkeypatch.setattr(
        triton_policy,
        "finalize_shape",
        lambda N, dtype: shape(N, dtype) if N < 200 else triton_policy.Finalize(8, 512, 4),
    )


LAYOUTS = ["rows apart", "two levels", "columns apart"]
REGIMES = ("slabs", "few long rows", "long rows")


@pytest.fixture
def regime(request, monkeypatch):
    """Rows of 130 to 256 columns are cut as rows of many thousand are: in slabs, or in chunks of 64 columns."""
    name, slabs = request.param, request.param == "slabs"
    band = Band(512, 256, 2, 4, 4, 2) if slabs else Band(64, 64, 1, 4, 4, 2)
    monkeypatch.setattr(triton_policy, "_BANDS", dict.fromkeys((2, 4, 8), (band,)))
    forward = triton_policy.ForwardBand(512 if slabs else 64, 64, 4)
    monkeypatch.setattr(triton_policy, "_FORWARD_BANDS", dict.fromkeys((2, 4, 8), (forward,)))
    for chunk in ("_FORWARD_CHUNK", "_SUMS_CHUNK"):
        monkeypatch.setattr(triton_policy, chunk, {4: (64, 4, 2), 8: (64, 4, 2)})
    monkeypatch.setattr(triton_policy, "_COLUMNS", {4: (4, 32, 4, 2), 8: (4, 32, 4, 2)})
    monkeypatch.setattr(triton_policy, "_MULTIPROCESSORS", 100 if name == "few long rows" else 1)
    expected = Tiles if slabs else Columns
    assert type(triton_policy.backward(3, 200, "float32")) is expected
    return expected


@pytest.fixture(params=["at once", "with partial sums"])
def launches(request, monkeypatch):
    """A backward of few rows in one launch, and as many rows have it, in two."""
    if request.param == "with partial sums":
        monkeypatch.setattr(triton_policy, "_FEW_ROWS", 0)


in_one_launch_and_two = pytest.mark.usefixtures("launches")
in_every_regime = pytest.mark.parametrize("regime", REGIMES, indirect=True)


def test_the_interpreter_is_on():
    assert kernels.INTERPRETED
    assert type(kernels.backward_tiles).__name__ == "InterpretedFunction"


@in_one_launch_and_two
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_backward(case, dtype):
    inputs = make_inputs(case, dtype)
    check_grads(backward(*tensors(inputs), normalized_shape=inputs.normalized_shape), inputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_forward(case, dtype):
    check_y(make_inputs(case, dtype))


@in_one_launch_and_two
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", BLOCKS, ids=str)
def test_several_blocks(case, dtype):
    assert triton_policy.backward(*case.lead, *case.normalized, dtype).pieces > 1
    inputs = make_inputs(case, dtype)
    check_both(inputs)


# Every dtype on one case, and every case on one dtype.
LONG_ROWS = [(Case((5,), (130,)), dtype) for dtype in DTYPES]
LONG_ROWS += [(Case((2, 7), (200,)), "bfloat16"), (Case((3,), (255,), gamma=False), "float32")]


@in_every_regime
@pytest.mark.parametrize(("case", "dtype"), LONG_ROWS, ids=str)
def test_long_rows(regime, case, dtype):
    inputs = make_inputs(case, dtype)
    check_both(inputs)


# As the policy has them: in slabs, and by columns.
WIDE = (Case((2,), (10245,)), Case((2,), (16400,)))


@pytest.mark.parametrize("case", WIDE, ids=str)
def test_wide(case, monkeypatch):
    monkeypatch.setattr(triton_policy, "_COLUMNS", {4: (2, 2048, 4, 2)})
    inputs = make_inputs(case, "bfloat16")
    check_both(inputs)


def test_forward_with_a_large_offset():
    inputs = make_inputs(Case((6,), (700,), offset=1000.0, spread=1.0), "float32")
    check_y(inputs)


@in_every_regime
def test_forward_of_long_rows_with_a_large_offset(regime):
    inputs = make_inputs(Case((6,), (200,), offset=1000.0, spread=1.0), "float32")
    check_y(inputs)


MASKS = [(dx, dgamma, dbeta) for dx in (True, False) for dgamma in (True, False) for dbeta in (True, False)]


@in_one_launch_and_two
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_masks(mask):
    inputs = make_inputs(Case((19,), (37,)), "float32")
    check_grads(backward(*tensors(inputs), output_mask=mask), inputs, output_mask=mask)


@in_every_regime
@pytest.mark.parametrize("mask", [mask for mask in MASKS if sum(mask) != 2], ids=str)
def test_masks_of_long_rows(regime, mask):
    inputs = make_inputs(Case((5,), (200,)), "float32")
    check_grads(backward(*tensors(inputs), output_mask=mask), inputs, output_mask=mask)


def mixed(dtype, columns):
    inputs = make_inputs(Case((9,), (columns,), gamma_dtype="float32", statistics_dtype=dtype), dtype)
    got = backward(*tensors(inputs))
    check_grads(got, inputs)
    assert got.dgamma.dtype == torch.float32


@in_one_launch_and_two
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_mixed(dtype):
    mixed(dtype, 33)


@in_every_regime
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_mixed_in_long_rows(regime, dtype):
    mixed(dtype, 200)


@in_one_launch_and_two
@pytest.mark.parametrize("x", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("columns", [33, 300])
def test_gamma_in_float64_has_the_call_computed_in_it(x, columns):
    inputs = make_inputs(Case((9,), (columns,), gamma_dtype="float64"), x)
    got = backward(*tensors(inputs))
    check_grads(got, inputs)
    assert [grad.dtype for grad in got] == [getattr(torch, x), torch.float64, torch.float64]
    check_y(inputs)


@in_every_regime
def test_gamma_in_float64_in_long_rows(regime):
    inputs = make_inputs(Case((9,), (200,), gamma_dtype="float64"), "bfloat16")
    check_both(inputs)


@in_one_launch_and_two
def test_one_column_gives_exact_zeros():
    inputs = make_inputs(Case((77,), (1,)), "float32")
    x = tensor(inputs.x)
    got = backward(tensor(inputs.dy), x, x.clone(), tensor(inputs.rstd), tensor(inputs.gamma))
    check_same_bits(got.dx.abs(), torch.zeros(77, 1))
    check_same_bits(got.dgamma.abs(), torch.zeros(1))


def test_nothing():
    x = torch.empty(0, 5)
    got = backward(x, x, torch.empty(0), torch.empty(0), torch.ones(5))
    check_same_bits(got.dgamma, torch.zeros(5))
    x = torch.empty(3, 0)
    result = forward(x)
    check_same_bits(result.mean, torch.zeros(3, 1))
    assert result.rstd.isnan().all()


@in_one_launch_and_two
def test_nan_stays_in_its_row():
    inputs = make_inputs(Case((9,), (20,)), "float32")
    dy, x, mean, rstd, gamma = tensors(inputs)
    before = backward(dy, x, mean, rstd, gamma).dx
    x[4, 7] = float("nan")
    after = backward(dy, x, mean, rstd, gamma).dx
    assert after[4].isnan().all()
    others = [row for row in range(9) if row != 4]
    check_same_bits(after[others], before[others])
    result = forward(x)
    assert result.y[4].isnan().all()
    assert result.rstd[4].isnan().all()


# --- The family -----------------------------------------------------------------------------------------------------


def family(inputs, directions="forward backward", place=tensor, **outs):
    """Forward and backward of the inputs' norm, which its switches say, from tensors that `place` makes of arrays."""
    norm, results = inputs.normalization, []
    for direction in directions.split():
        operator = {"forward": (RMS_FORWARD, FORWARD), "backward": (RMS_BACKWARD, BACKWARD)}[direction][norm.centred]
        x = inputs.x if direction == "forward" else inputs.total
        named = {**vars(inputs), "x": x, **outs.get("given", {})}
        if inputs.residual is not None:
            operator = WITH_RESIDUAL[operator]
        arrays = tuple(place(named[name]) for name in operator.inputs)
        mask, out = outs.get("mask", operator.everything), outs.get("out")
        if out is not None:  # which of the arguments a result takes the place of
            named = dict(zip(operator.inputs, arrays, strict=True))
            out = operator.results(*(named.get(out.get(name)) for name in operator.outputs))
        problem, arrays = describe(operator, arrays, inputs.normalized_shape, mask, out, norm)
        numbers = (1e-5,) if direction == "forward" else ()
        results.append(operator.results(*execute(triton_gpu.plan(problem, 1), (*arrays, *numbers), out)))
    return results


@pytest.mark.parametrize("case", [Case((67,), (7,)), Case((9,), (300,)), Case((3,), (9000,))], ids=str)
@pytest.mark.parametrize("centred", [True, False])
def test_a_float32_stream_beside_16_bits(case, centred):
    inputs = make_inputs(case, "bfloat16", normalization=Normalization(centred), residual="float32")
    results, grads = family(inputs)
    check_forward(results, inputs)
    check_grads(grads, inputs)
    assert results.total.dtype is grads.dx.dtype is torch.float32


@pytest.mark.parametrize(
    ("operator", "normalization", "text"),
    [
        (
            FORWARD,
            LAYER_NORM._replace(modulated=True),
            "forward of x, gamma, beta to y, mean, rstd with modulated=True",
        ),
        (GATED_FORWARD, RMS_NORM, "forward of x, gamma, gate to y, rstd, total"),
        (GATED_BACKWARD, RMS_NORM, "backward of dy, x, rstd, gamma, gate to dx, dgamma, dgate"),
        (SLICE_BACKWARD, LAYER_NORM, "backward of dy, x, mean, rstd, lost, gamma to dx, dgamma, dbeta"),
    ],
    ids=str,
)
def test_what_kernels_lack_is_refused_when_a_call_is_planned(operator, normalization, text):
    """So nothing has been allocated; a call that names no backend gets the same error on a GPU."""
    tensors, rows = torch.ones(6, 8), torch.ones(6, 1)
    of_role = {Role.TENSOR: tensors, Role.STATISTIC: rows, Role.PARAMETER: torch.ones(8)}
    arrays = tuple(of_role[ROLES[name]] for name in operator.inputs)
    problem, _ = describe(operator, arrays, (8,), operator.everything, None, normalization)
    with pytest.raises(BackendUnavailable, match=f"^backend: triton_gpu does not compute the {text}; "):
        make_plan(replace(problem, device="cuda"), "triton_gpu")


FAMILY = [
    (Case((3, 5, 7), (4, 6)), "float32"),
    (Case((67,), (7,)), "float16"),
    (Case((5,), (320,), gamma=False), "float32"),
    (Case((3,), (768,)), "bfloat16"),
    (Case((3,), (2305,), gamma_dtype="float32"), "bfloat16"),
    (Case((9,), (33,)), "float64"),
]


@in_one_launch_and_two
@pytest.mark.parametrize(("case", "dtype"), FAMILY, ids=str)
def test_norms(norm, case, dtype):
    inputs = make_inputs(case, dtype, **norm)
    forward, grads = family(inputs)
    check_forward(forward, inputs)
    check_grads(grads, inputs)


@in_every_regime
def test_norms_in_long_rows(norm, regime, monkeypatch):
    """Right, and a row has the same bits whether its chunks went to one program or to many."""
    inputs = make_inputs(Case((3,), (130,)), "bfloat16", **norm)
    whole = family(inputs)
    check_forward(whole[0], inputs)
    check_grads(whole[1], inputs)
    rows = norms.of_rows(inputs, slice(1, 2))
    for multiprocessors in (1, 100):
        monkeypatch.setattr(triton_policy, "_MULTIPROCESSORS", multiprocessors)
        forward, grads = family(rows)
        check_same_bits(tuple(forward), tuple(None if part is None else part[1:2].clone() for part in whole[0]))
        check_same_bits(grads.dx, whole[1].dx[1:2].clone())


@in_every_regime
@pytest.mark.parametrize("how", ["", "two levels"])
def test_norms_in_place_and_with_strides(regime, how):
    """The total may replace x or the residual, y the other one, and dx any tensor that goes in."""
    inputs = make_inputs(Case((2, 2), (130,)), "float32", normalization=norms.RMS._replace(offset=1.0), residual=True)

    def place(array):
        return tensor(array) if not how or array is None or array.ndim == 1 else strided(tensor(array), how)

    expected, grads = family(inputs)
    for out in ({"y": "x", "total": "residual"}, {"y": "residual", "total": "x"}):
        (got,) = family(inputs, "forward", place, out=out)
        check_same_bits(tuple(part.contiguous() for part in got), tuple(expected))
    for name in ("dy", "x", "dtotal"):
        (got,) = family(inputs, "backward", place, out={"dx": name})
        check_same_bits(tuple(part.contiguous() for part in got), tuple(grads))


@in_one_launch_and_two
@pytest.mark.parametrize("mask", [(True, False), (False, True), (False, False)], ids=str)
@pytest.mark.parametrize("columns", [37, 200])
def test_masks_of_rms_norm(columns, mask):
    inputs = make_inputs(Case((19,), (columns,)), "float32", normalization=norms.RMS)
    (grads,) = family(inputs, "backward", mask=mask)
    check_grads(grads, inputs, output_mask=mask)


@pytest.mark.parametrize("wrong", ["centred", "offset", "dtotal", "residual", "alpha"])
def test_a_forgotten_switch_is_rejected(wrong):
    right = make_inputs(Case((9,), (40,)), "bfloat16", normalization=Normalization(False, 1.0, 1.3), residual=True)
    changed = {
        "centred": {"normalization": right.normalization._replace(centred=True)},
        "offset": {"normalization": right.normalization._replace(offset=0.0)},
        "alpha": {"normalization": right.normalization._replace(alpha=1.0)},
        "dtotal": {"dtotal": np.zeros_like(right.dtotal)},
        "residual": {"residual": np.zeros_like(right.residual)},
    }[wrong]
    forward, grads = family(replace(right, **changed))
    parts = {**forward._asdict(), **grads._asdict()}
    if wrong != "dtotal":
        with pytest.raises(GradientError):
            check_forward(RmsForward(parts["y"], parts["rstd"], parts["total"]), right)
    if wrong not in ("residual", "alpha"):  # whose total is an argument of the backward
        with pytest.raises(GradientError):
            check_grads(RmsGrads(parts["dx"], parts["dgamma"]), right)


def test_operators_of_torch_on_another_device(norm, monkeypatch):
    """What torch.ops.lngrad.norm runs for CUDA tensors, on the CPU."""
    operators = pytest.importorskip("lngrad.torch.operators")
    calls = operators.calls
    monkeypatch.setattr(calls, "make_plan", lambda problem, *_: triton_gpu.plan(problem, 1))
    _, _, forward, backward, *_ = operators.kernels(calls.run_elsewhere)
    switches = norm.get("normalization", Normalization())._replace(alpha=1.0)  # which torch's functions do not have
    inputs = make_inputs(Case((9,), (40,)), "bfloat16", **{**norm, "normalization": switches})
    parts = {name: tensor(array) for name, array in vars(inputs).items() if isinstance(array, np.ndarray)}
    shape, gamma, beta = inputs.normalized_shape, parts["gamma"], parts.get("beta")
    results = forward(parts["x"], shape, gamma, beta, 1e-5, parts.get("residual"), *switches[:2])
    grads = backward(
        parts["dy"], tensor(inputs.total), shape, parts["mean"], parts["rstd"], gamma, (True, True, switches.centred),
        parts.get("dtotal"), *switches[:2],
    )  # fmt: skip
    forward_there, grads_there = ([result for result in on_device if result.numel()] for on_device in (results, grads))
    for got, on_device in zip(family(inputs), (forward_there, grads_there), strict=True):
        check_same_bits(tuple(result for result in got if result is not None), tuple(on_device))


# --- Bits -----------------------------------------------------------------------------------------------------------


@in_one_launch_and_two
@pytest.mark.parametrize("columns", [13, 300])
def test_bits_are_the_same_every_run(columns):
    inputs = make_inputs(Case((37,), (columns,)), "float32")
    check_same_bits(tuple(backward(*tensors(inputs))), tuple(backward(*tensors(inputs))))


@in_one_launch_and_two
@pytest.mark.parametrize("columns", [13, 300])
def test_a_row_does_not_know_its_batch(columns):
    inputs = make_inputs(Case((71,), (columns,)), "float32")
    dy, x, mean, rstd, gamma = tensors(inputs)
    rows = slice(50, 53)
    whole = backward(dy, x, mean, rstd, gamma).dx
    alone = backward(dy[rows], x[rows], mean[rows], rstd[rows], gamma).dx
    check_same_bits(alone, whole[rows].clone())


@in_every_regime
def test_a_long_row_does_not_know_its_batch(regime, monkeypatch):
    """And not whether it was alone, so that its chunks went to many programs, or one of many."""
    inputs = make_inputs(Case((9,), (200,)), "float32")
    dy, x, mean, rstd, gamma = tensors(inputs)
    beta = tensor(inputs.beta)
    rows = slice(4, 7)
    whole, all_rows = backward(dy, x, mean, rstd, gamma).dx[rows], forward(x, gamma, beta)
    for multiprocessors in (1, 100):
        monkeypatch.setattr(triton_policy, "_MULTIPROCESSORS", multiprocessors)
        check_same_bits(backward(dy[rows], x[rows], mean[rows], rstd[rows], gamma).dx, whole.clone())
        check_same_bits(tuple(forward(x[rows], gamma, beta)), tuple(part[rows].clone() for part in all_rows))


# --- Strides and outputs --------------------------------------------------------------------------------------------


def strided(array, how):
    """The same values with other strides."""
    if how in ("rows apart", "off by one"):
        wide = torch.zeros(*array.shape[:-1], array.shape[-1] + 3, dtype=array.dtype, device=array.device)
        view = wide[..., :-3] if how == "rows apart" else wide[..., 1:-2]  # which begins on no 16 bytes
        return view.copy_(array)
    if how == "two levels":
        return array.transpose(0, 1).contiguous().transpose(0, 1)
    return array.transpose(0, -1).contiguous().transpose(0, -1)  # columns apart


def check_layout(how, columns):
    inputs = make_inputs(Case((2, 3), (columns,)), "float32")
    dy, x, mean, rstd, gamma = tensors(inputs)
    out = Grads(strided(torch.zeros_like(x), how), None, None)
    problem, arrays = Problem.backward(strided(dy, how), strided(x, how), mean, rstd, gamma, out=out)
    plan = triton_gpu.plan(problem, 1)
    assert bool(plan.steps.copied) == (how == "columns apart")
    got = Grads(*execute(plan, arrays, out))
    assert got.dx is out.dx
    check_same_bits(tuple(got), tuple(backward(dy, x, mean, rstd, gamma)))
    result = forward(strided(x, how), gamma, tensor(inputs.beta))
    check_same_bits(tuple(result), tuple(forward(x, gamma, tensor(inputs.beta))))


@in_one_launch_and_two
@pytest.mark.parametrize("how", LAYOUTS)
def test_strides(how):
    check_layout(how, 24)


@pytest.mark.slow
@in_every_regime
@pytest.mark.parametrize("how", LAYOUTS)
def test_strides_of_long_rows(regime, how):
    check_layout(how, 200)


def test_three_levels_are_copied():
    inputs = make_inputs(Case((2, 3, 4), (8,)), "float32")
    dy, x, mean, rstd, gamma = tensors(inputs)
    permuted = x.permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3)
    check_same_bits(tuple(backward(dy, permuted, mean, rstd, gamma)), tuple(backward(dy, x, mean, rstd, gamma)))


def check_in_place(columns, lead=(5,), how=""):
    inputs = make_inputs(Case(lead, (columns,)), "bfloat16")
    expected = backward(*tensors(inputs))
    for place in range(2):  # dx in place of dy, and of x
        arguments = tensors(inputs)
        if how:
            arguments = *(strided(rows, how) for rows in arguments[:2]), *arguments[2:]
        apart = torch.empty(2 * columns, dtype=torch.float32)[::2]
        got = backward(*arguments, out=Grads(arguments[place], None, apart))
        assert got.dx is arguments[place]
        check_same_bits(got.dx.contiguous(), expected.dx)
        check_same_bits(got.dgamma, expected.dgamma)
        check_same_bits(got.dbeta.to(torch.bfloat16), expected.dbeta)


@in_one_launch_and_two
def test_in_place():
    check_in_place(24)


@in_every_regime
def test_long_rows_in_place(regime):
    check_in_place(200)


@in_every_regime
@pytest.mark.parametrize("how", ["rows apart", "two levels"])
def test_long_rows_with_strides_in_place(regime, how):
    """Pairs write to a contiguous tensor first, whose strides are others."""
    check_in_place(200, (2, 3), how)


@in_every_regime
def test_partial_sums_begin_on_16_bytes(regime, monkeypatch):
    """Or a second kernel would be compiled for those of dbeta, which follow those of dgamma."""
    monkeypatch.setattr(triton_policy, "_FEW_ROWS", 0)
    seen = []
    pieces = triton_run._pieces

    def spied(*arguments):
        cut = pieces(*arguments)
        seen.extend(piece.data_ptr() % 16 for piece in cut)
        return cut

    monkeypatch.setattr(triton_run, "_pieces", spied)
    for columns in (13, 201):
        inputs = make_inputs(Case((5,), (columns,)), "float32")
        check_grads(backward(*tensors(inputs)), inputs)
    assert len(seen) >= 2
    assert not any(seen)


# --- Large ----------------------------------------------------------------------------------------------------------

FAR = 1 << 30  # elements between rows: the third begins 2^31 elements behind the first


def check_far(lead, steps, columns):
    """Rows in one buffer of 4 GiB and more, of which the system maps the few pages that are touched."""
    inputs = make_inputs(Case(lead, (columns,)), "bfloat16")
    dy, x, mean, rstd, gamma = tensors(inputs)
    buffer = torch.empty(sum((size - 1) * step for size, step in zip(lead, steps, strict=True)) + 2048, dtype=x.dtype)

    def far(like, number):
        view = buffer.as_strided(like.shape, (*steps, 1), number * 512)
        return view.copy_(like)

    out = Grads(far(torch.zeros_like(x), 2), None, None)
    got = backward(far(dy, 0), far(x, 1), mean, rstd, gamma, out=out)
    check_same_bits(got.dx.contiguous(), backward(dy, x, mean, rstd, gamma).dx)
    check_grads(got._replace(dx=got.dx.contiguous()), inputs)
    y = far(torch.zeros_like(x), 3)
    problem, arrays = Problem.forward(far(x, 1), gamma, None, None, Forward(y, None, None))
    execute(triton_gpu.plan(problem, 1), (*arrays, 1e-5), Forward(y, None, None))
    check_same_bits(y.contiguous(), forward(x, gamma).y)


LEADS = [((3,), (FAR,)), ((2, 2), (2 * FAR, 512 * 8))]


@in_one_launch_and_two
@pytest.mark.parametrize(("lead", "steps"), LEADS, ids=["one level", "two levels"])
def test_offsets_beyond_two_to_the_31(lead, steps):
    check_far(lead, steps, 24)


@in_every_regime
@pytest.mark.parametrize(("lead", "steps"), LEADS, ids=["one level", "two levels"])
def test_offsets_of_long_rows(regime, lead, steps):
    check_far(lead, steps, 200)


@pytest.mark.slow  # half a minute in the interpreter; test_wide has rows by columns too
def test_262144_columns(monkeypatch):
    assert isinstance(triton_policy.backward(2, 262144, "bfloat16"), Columns)
    # Fewer programs for the interpreter, in the kernel and in the last sum.
    monkeypatch.setattr(triton_policy, "_COLUMNS", {4: (2, 16384, 4, 2)})
    monkeypatch.setattr(triton_policy, "finalize_shape", lambda N, dtype: triton_policy.Finalize(8, 16384, 4))
    inputs = make_inputs(Case((2,), (262144,)), "bfloat16")
    check_both(inputs)


# --- The door -------------------------------------------------------------------------------------------------------


def test_cpu_arrays_are_not_served_by_name():
    x = torch.zeros(2, 3)
    with pytest.raises(BackendUnavailable, match=r"triton_gpu serves \('cuda',\), got arrays on cpu"):
        lngrad.layer_norm(x, backend="triton_gpu")


def test_numpy_is_not_served():
    problem, _ = Problem.forward(make_inputs(Case((2,), (3,)), "float32").x, None, None)
    with pytest.raises(BackendUnavailable, match="takes torch tensors, got numpy arrays"):
        triton_gpu.plan(problem, 1)


def test_cpu_tensors_need_the_interpreter(monkeypatch):
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    problem, _ = Problem.forward(torch.zeros(2, 3), None, None)
    with pytest.raises(BackendUnavailable, match="only under TRITON_INTERPRET=1"):
        triton_gpu.plan(problem, 1)


# --- Golden bits ----------------------------------------------------------------------------------------------------


def exact_case(M, N, dtype):
    """Arguments (dy, x, mean, rstd, gamma, beta) of whose results only the last rounding is one, and the results.

    N is a power of two, and everything a small multiple of a power of two: no order of sums and no fused product changes a bit,
    so these are the bits of every device.
    """
    rng, kind = np.random.default_rng(N), numpy_dtype(dtype)
    spread, mean = 2.0 ** rng.integers(-1, 3, (M, 1)), rng.integers(-8, 9, (M, 1)).astype(float)
    xhat = rng.permuted(np.tile(rng.permuted(np.resize([1.0, -1.0], N)), (M, 1)), axis=1)  # a mean of 0, squares of 1
    gamma, beta = rng.choice([-2.0, -1.0, 0.5, 1.0, 2.0], (2, N))
    dy, x = rng.integers(-3, 4, (M, N)).astype(float), mean + spread * xhat
    arrays = [array.astype(kind) for array in (dy, x)] + [array.astype("float32") for array in (mean, 1 / spread)]
    arrays += [array.astype(kind) for array in (gamma, beta)]
    grads = reference.layer_norm_backward(*arrays[:5])
    forward = xhat * gamma + beta, mean, 1 / spread
    return (
        tuple(arrays),
        Grads(*(array.astype(kind) for array in grads)),
        Forward(*(array.astype(to) for array, to in zip(forward, (kind, "float32", "float32"), strict=True))),
    )


def check_exact(M, N, dtype, device):
    arrays, grads, results = exact_case(M, N, dtype)
    dy, x, mean, rstd, gamma, beta = (tensor(array).to(device) for array in arrays)
    problem, arrays = Problem.forward(x, gamma, beta)
    with np.errstate(divide="ignore", invalid="ignore"):  # of rows that are not there, without an eps
        got = *backward(dy, x, mean, rstd, gamma), *execute(triton_gpu.plan(problem, 1), (*arrays, 0.0))
    for result, right in zip(on_the_host(got), (*grads, *results), strict=True):
        check_same_bits(result.double().numpy().reshape(right.shape) + 0.0, right.astype(float) + 0.0)  # -0 is 0


@in_one_launch_and_two
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("M", "N"), [(70, 64), (5, 1024), (3, 8192)])
def test_exact_numbers_have_one_rounding(M, N, dtype):
    check_exact(M, N, dtype, "cpu")


@pytest.mark.parametrize("name", Grads._fields)
def test_a_number_off_by_one_bit_is_rejected(name, monkeypatch):
    right = backward
    off = {name: lambda grad: torch.nextafter(grad, grad + 1)}
    monkeypatch.setitem(
        globals(),
        "backward",
        lambda *arguments: (g := right(*arguments))._replace(**{name: off[name](getattr(g, name))}),
    )
    with pytest.raises(AssertionError):
        check_exact(5, 64, "float32", "cpu")


@in_every_regime
def test_exact_numbers_of_long_rows_have_one_rounding(regime):
    check_exact(9, 256, "bfloat16", "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("M", "N"), [(1, 64), (300, 64), (300, 1024), (200, 8192), (200, 16384), (60, 32768)])
def test_exact_numbers_have_one_rounding_on_a_device(M, N, dtype):
    check_exact(M, N, dtype, "cuda")


# --- Golden bits of sums in a written order: LNGRAD_GPU_ORDERED=1 ---------------------------------------------------

GOLDEN = Path(__file__).with_name("golden_bits.json")
FINALIZE_SHAPE = triton_policy.finalize_shape
# Bands of tiles at once and with partial sums, pairs, and long rows.
ORDERED = {
    f"{norms.OF_GOLDEN_BITS.get(name, name)} ({M},{N}) {dtype}": Call((M,), (N,), dtype, **norms.NORMS[name])
    for name, M, N, dtypes in (
        ("layer_norm", 3, 64, "float32"), ("layer_norm", 130, 64, "float32 bfloat16"), ("layer_norm", 130, 256, "bfloat16"),
        ("layer_norm", 5, 300, " ".join(DTYPES)), ("layer_norm", 3, 768, "float32 bfloat16 float64"),
        ("layer_norm", 2, 1024, "float32 bfloat16 float16"), ("layer_norm", 2, 2304, "float32 bfloat16"),
        ("layer_norm", 2, 5120, "bfloat16"), ("layer_norm", 1, 8200, "bfloat16"), ("layer_norm", 2, 4200, "float64"),
        ("layer_norm", 1, 16400, "float32"), ("rms_norm", 3, 768, "bfloat16"), ("gemma_rms_norm", 130, 64, "float16"),
        ("add_rms_norm", 5, 300, "float32"), ("deep_norm", 3, 1024, "bfloat16"),
    )
    for dtype in dtypes.split()
}  # fmt: skip


@pytest.fixture
def ordered(monkeypatch):
    """The interpreter with the switch on, and the last sum as it is cut on a device."""
    monkeypatch.setattr(kernels, "_ORDERED", tl.constexpr(True))
    monkeypatch.setattr(triton_policy, "finalize_shape", FINALIZE_SHAPE)


def ordered_bits(name, how="", device="cpu"):
    """Hashes of a forward's and a backward's results, which are right; `how` says how rows lie, as strided() takes it."""
    call = ORDERED[name]
    arrays = call.inputs()
    if not call.normalization.centred:
        arrays["mean"] = np.zeros_like(arrays["mean"])
    inputs = Inputs(**arrays, normalized=1, normalization=call.normalization)

    def place(array):
        placed = None if array is None else tensor(array).to(device)
        return strided(placed, how) if how and array is not None and array.ndim == 2 else placed

    results = [type(part)(*on_the_host(part)) for part in family(inputs, place=place)]
    check_forward(results[0], inputs)
    check_grads(results[1], inputs)
    arrays = {key: part for result in results for key, part in result._asdict().items()}
    return hashes(GoldenCase(name, "everywhere", (1,), lambda: {key: as_array(part) for key, part in arrays.items()}))


def as_array(result):
    if result is None or result.dtype is not torch.bfloat16:
        return result if result is None else result.numpy()
    return result.contiguous().view(torch.int16).numpy().view(numpy_dtype("bfloat16"))


def test_the_file_has_these_calls_and_no_others():
    assert list(json.loads(GOLDEN.read_text())) == list(ORDERED)


@pytest.mark.usefixtures("ordered")
@pytest.mark.parametrize("name", ORDERED)
def test_golden_bits_of_ordered_sums(name):
    """Hashes of "everywhere": no alignment, compiler or model of GPU decides them."""
    assert ordered_bits(name) == json.loads(GOLDEN.read_text())[name]


@pytest.mark.usefixtures("ordered")
@pytest.mark.parametrize("how", ["rows apart", "off by one", "columns apart"])
@pytest.mark.parametrize("name", [name for name in ORDERED if "(5,300)" in name])
def test_golden_bits_wherever_rows_lie(name, how):
    assert ordered_bits(name, how) == json.loads(GOLDEN.read_text())[name]


@pytest.mark.usefixtures("ordered")
@pytest.mark.parametrize("wrong", ["off", "rows", "columns", "products"])
def test_another_order_has_other_bits(wrong, monkeypatch):
    """Without the switch, or where one kind of sum, or the products, are as they are without it."""
    plainly = {
        "rows": (
            "row_sum",
            lambda values, *of: tl.sum(values, len(values.shape) - 1, keep_dims=len(values.shape) == 2),
        ),
        "columns": ("column_sum", lambda values: tl.sum(values, 0)),
        "products": ("multiply_add", lambda factor, other, value: value + factor * other),
        "off": ("_ORDERED", tl.constexpr(False)),
    }
    monkeypatch.setattr(kernels, *plainly[wrong])
    name = "layer_norm (5,300) float32"
    got, golden = ordered_bits(name), json.loads(GOLDEN.read_text())[name]
    changed = {"rows": {"y", "dx"}, "columns": {"dgamma", "dbeta"}, "products": {"y", "dx"}}
    assert changed.get(wrong, {"y", "dx", "dgamma", "dbeta"}) <= {key for key in got if got[key] != golden[key]}


@pytest.mark.gpu
@pytest.mark.skipif(
    not triton_policy.ORDERED, reason="needs LNGRAD_GPU_ORDERED=1, which is read when the kernels are imported"
)
@pytest.mark.parametrize("how", ["", "off by one"])
@pytest.mark.parametrize("name", ORDERED)
def test_a_device_has_the_golden_bits(name, how):
    assert ordered_bits(name, how, "cuda") == json.loads(GOLDEN.read_text())[name]


# --- On a device ----------------------------------------------------------------------------------------------------


# Programs loop over several tiles in these; the last two are chunks of rows by one program each, and spread over many.
LOOPS = [
    Case((20000,), (64,)), Case((4000,), (768,)), Case((3000,), (4096,)), Case((3000,), (5120,)),
    Case((3000,), (8192,)), Case((3000,), (16384,)), Case((200,), (20000,)), Case((40,), (20000,)),
]  # fmt: skip


def on_cuda(arrays):
    return tuple(None if array is None else array.cuda() for array in arrays)


def on_the_host(results):
    return tuple(None if result is None else result.cpu() for result in results)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [*SMALL, *BLOCKS, *WIDE, *LOOPS], ids=str)
def test_on_a_device(case, dtype):
    assert not kernels.INTERPRETED
    inputs = make_inputs(case, dtype)
    dy, x, mean, rstd, gamma = (None if t is None else t.cuda() for t in tensors(inputs))
    for _ in range(2):  # bound by Triton, and launched again from what it compiled
        got = lngrad.layer_norm_backward(dy, x, mean, rstd, gamma, normalized_shape=inputs.normalized_shape)
        check_grads(Grads(*(t.cpu() for t in got)), inputs)
        beta = None if inputs.beta is None else tensor(inputs.beta).cuda()
        result = lngrad.layer_norm(x, gamma, beta, normalized_shape=inputs.normalized_shape)
        check_forward(Forward(*(t.cpu() for t in result)), inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", [*SMALL, *LOOPS], ids=str)
def test_norms_on_a_device(norm, case, dtype):
    inputs = make_inputs(case, dtype, **norm)
    arrays_there = {name: tensor(array).cuda() for name, array in vars(inputs).items() if isinstance(array, np.ndarray)}
    on_device = replace(inputs, **arrays_there)
    for _ in range(2):
        check_forward(type(norms.forward(inputs))(*on_the_host(norms.forward(on_device))), inputs)
        arrays = replace(on_device, x=tensor(inputs.total).cuda(), residual=None)
        check_grads(type(norms.backward(inputs))(*on_the_host(norms.backward(arrays))), inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [64, 5120, 12288, 20000])
def test_a_row_does_not_know_its_batch_on_a_device(columns):
    inputs = make_inputs(Case((300,), (columns,)), "bfloat16")
    dy, x, mean, rstd, gamma = (t.cuda() for t in tensors(inputs))
    rows = slice(100, 103)
    whole, all_rows = lngrad.layer_norm_backward(dy, x, mean, rstd, gamma).dx, lngrad.layer_norm(x, gamma)
    alone = lngrad.layer_norm_backward(dy[rows], x[rows], mean[rows], rstd[rows], gamma).dx
    check_same_bits(alone.cpu(), whole[rows].cpu())
    again = lngrad.layer_norm(x[rows], gamma)
    check_same_bits(tuple(t.cpu() for t in again), tuple(t[rows].cpu() for t in all_rows))


@pytest.mark.gpu
@pytest.mark.parametrize("mask", [mask for mask in MASKS if any(mask)], ids=str)
@pytest.mark.parametrize("case", [Case((5000,), (64,)), Case((2500,), (5120,)), Case((600,), (12288,))], ids=str)
def test_masks_on_a_device(case, mask):
    inputs = make_inputs(case, "bfloat16")
    got = lngrad.layer_norm_backward(*on_cuda(tensors(inputs)), output_mask=mask)
    check_grads(Grads(*on_the_host(got)), inputs, output_mask=mask)


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["rows apart", "off by one", "two levels"])
@pytest.mark.parametrize("columns", [64, 1000, 5120, 12288, 20000])
def test_views_on_a_device(columns, how):
    """Not the bits of contiguous rows: what the compiler knows of strides and pointers may change the order of a sum."""
    inputs = make_inputs(Case((20, 30), (columns,)), "bfloat16")
    dy, x, mean, rstd, gamma = on_cuda(tensors(inputs))
    beta = tensor(inputs.beta).cuda()
    for place in (strided(x, how), x):
        rows = strided(dy, how)
        got = lngrad.layer_norm_backward(rows, place, mean, rstd, gamma, out=Grads(rows, None, None))
        check_grads(Grads(*on_the_host(got)), inputs)
        result = lngrad.layer_norm(place, gamma, beta)
        check_forward(Forward(*on_the_host(result)), inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("columns", [64, 5120, 12288, 20000])
def test_mixed_on_a_device(columns, dtype):
    inputs = make_inputs(Case((600,), (columns,), gamma_dtype="float32", statistics_dtype=dtype), dtype)
    got = Grads(*on_the_host(lngrad.layer_norm_backward(*on_cuda(tensors(inputs)))))
    check_grads(got, inputs)
    assert got.dgamma.dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [1024, 131072])
def test_more_than_two_to_the_31_elements_on_a_device(columns):
    from lngrad.bench.cases import Job
    from peer_libraries import cuda

    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB of the device's memory")
    backward_job = Job((1 << 31) // columns + 5, columns, "bfloat16")
    t = cuda.tensors(backward_job, "cuda")
    cuda.errors_of(backward_job, t, cuda.ours(backward_job, t)(), strict=True)
    forward_job = Job(backward_job.M, columns, "bfloat16", "forward")
    cuda.errors_of(forward_job, t, cuda.ours(forward_job, t)(), strict=True)
