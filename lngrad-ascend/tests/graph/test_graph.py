from __future__ import annotations

import csv
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import lngrad
from aclnn_harness import Call
from lngrad.core.problem import Grads
from lngrad.errors import BackendUnavailable, DtypeError, ShapeError
from lngrad.support.dtypes import numpy_dtype
from lngrad.testing import CASES, Case, check_grads, check_same_bits, make_inputs
from lngrad_ascend import soc
from lngrad_ascend.faults import AscendWarning
from lngrad_ascend.graph import LayerNormGrad, LayerNormGradV3, PdOutputs, strategy
from lngrad_ascend.graph.layer_norm_grad import DTYPE_ROWS, dtype_name

OPS = (LayerNormGrad, LayerNormGradV3)
CASE = Case((3, 4), (5,))


@pytest.fixture(autouse=True)
def the_product_of_both_ops():
    with soc.use("Ascend950"):
        yield


def variance_of(inputs, epsilon):
    """The variance whose rstd is that of the inputs, in float64."""
    return np.asarray(inputs.rstd, np.float64) ** -2 - epsilon


def call(op, inputs, **arguments):
    """Run an op on inputs; LayerNormGrad on the variance that belongs to their rstd."""
    known = {
        "dy": inputs.dy,
        "x": inputs.x,
        op.inputs[2]: inputs.rstd,
        "mean": inputs.mean,
        "gamma": inputs.gamma,
    }
    if op is LayerNormGrad:
        known["variance"] = variance_of(inputs, 1e-5).astype(np.float32)
        arguments = {"epsilon": 1e-5} | arguments
    return op(**(known | arguments))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", [case for case in CASES if case.gamma][1:12], ids=str)
def test_v3_is_the_reference(case, dtype):
    inputs = make_inputs(case, dtype)
    check_grads(Grads(*call(LayerNormGradV3, inputs)), inputs)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES[6:9], ids=str)
def test_layer_norm_grad_is_v3_of_the_rstd_with_its_root(case, dtype):
    inputs = make_inputs(case, dtype)
    variance = variance_of(inputs, 1e-5).astype(np.float32)
    rstd = (1 / np.sqrt(variance.astype(np.float64) + 1e-5)).astype(np.float32)
    got = LayerNormGrad(inputs.dy, inputs.x, variance, inputs.mean, inputs.gamma, epsilon=1e-5)
    check_same_bits(tuple(got), tuple(LayerNormGradV3(inputs.dy, inputs.x, rstd, inputs.mean, inputs.gamma)))


@pytest.mark.parametrize("mode", ["strict", "compat"])
def test_what_no_return_code_goes_with_is_taken(mode):
    """Statistics without the last dimensions, in aclnn and in the graph op; the documents' tables have [A1, …, 1]."""
    inputs = make_inputs(Case((2, 3), (16,)), "float32")
    mean, rstd = inputs.mean.reshape(2, 3), inputs.rstd.reshape(2, 3)
    with soc.use(soc.DEFAULT, mode=mode):
        check_grads(Grads(*LayerNormGradV3(inputs.dy, inputs.x, rstd, mean, inputs.gamma)), inputs)
        call = Call(Case((2, 3), (16,)))
        call.inputs = inputs
        call.changed(gradOut=inputs.dy, input=inputs.x, mean=mean)
        call.changed(rstd=rstd, weightOptional=inputs.gamma)
        call.check()


def test_the_page_s_rstd_without_the_root_would_be_caught():
    inputs = make_inputs(CASE, "float32")
    rootless = (1 / (variance_of(inputs, 1e-5) + 1e-5)).astype(np.float32)
    wrong = LayerNormGradV3(inputs.dy, inputs.x, rootless, inputs.mean, inputs.gamma)
    with pytest.raises(AssertionError, match="dx"):
        check_grads(Grads(*wrong), inputs)


@pytest.mark.parametrize(("dtype", "epsilon"), [("float32", 1e-12), ("float16", 1e-5), ("bfloat16", 1e-5)])
def test_the_hidden_epsilon(dtype, epsilon):
    inputs = make_inputs(Case((6,), (8,)), dtype)
    tiny = np.full(inputs.mean.shape, 1e-9, np.float32)  # where the epsilon decides
    default = LayerNormGrad(inputs.dy, inputs.x, tiny, inputs.mean, inputs.gamma, pd_gamma_dtype="float32")
    named = LayerNormGrad(
        inputs.dy, inputs.x, tiny, inputs.mean, inputs.gamma, epsilon=epsilon, pd_gamma_dtype="float32"
    )
    other = LayerNormGrad(inputs.dy, inputs.x, tiny, inputs.mean, inputs.gamma, epsilon=0.0, pd_gamma_dtype="float32")
    check_same_bits(tuple(default), tuple(named))
    with pytest.raises(AssertionError):
        check_same_bits(default.pd_gamma, other.pd_gamma)


def test_a_variance_of_nothing_gives_infinity_as_the_formula_does():
    inputs = make_inputs(Case((2,), (4,)), "float32")
    variance = np.array([[0], [-1]], np.float32)
    results = LayerNormGrad(inputs.dy, inputs.x, variance, inputs.mean, inputs.gamma, epsilon=0.0)
    assert not np.isfinite(results.pd_x[0]).any()
    assert np.isnan(results.pd_x[1]).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", OPS, ids=repr)
def test_the_newer_page_s_example_exactly(op, dtype):
    x = np.broadcast_to(np.array([-2, 2, -2, 2], dtype), (2, 3, 4)).copy()
    dy = np.broadcast_to(np.array([1, 2, 3, 4], dtype), (2, 3, 4)).copy()
    mean, gamma = np.zeros((2, 3, 1), np.float32), np.full(4, 4, dtype)
    statistic = np.full((2, 3, 1), 4 if op is LayerNormGrad else 0.5, np.float32)  # a variance of 4, or its rstd
    for name in ("Ascend950", "Ascend910B1"):
        with soc.use(name, cann="master"):
            got = op(dy, x, statistic, mean, gamma, **({"epsilon": 0.0} if op is LayerNormGrad else {}))
        check_same_bits(got.pd_x, np.broadcast_to(np.array([-2, -2, 2, 2], dtype), (2, 3, 4)))
        check_same_bits(got.pd_gamma, np.array([-6, 12, -18, 24], dtype))
        check_same_bits(got.pd_beta, np.array([6, 12, 18, 24], dtype))


def test_the_golden_s_epsilon_is_another_than_the_tiling_s():
    inputs = make_inputs(Case((6,), (8,)), "float16")
    tiny = np.full(inputs.mean.shape, 1e-5, np.float16)  # shares x's dtype, where the golden has 1e-12
    mean = inputs.mean.astype(np.float16)
    ours = LayerNormGrad(inputs.dy, inputs.x, tiny, mean, inputs.gamma)
    golden = LayerNormGrad(inputs.dy, inputs.x, tiny, mean, inputs.gamma, epsilon=1e-12)
    with pytest.raises(AssertionError):
        check_same_bits(ours.pd_gamma, golden.pd_gamma)


@pytest.mark.parametrize("op", OPS, ids=repr)
@pytest.mark.parametrize("mask", [(a, b, c) for a in (True, False) for b in (True, False) for c in (True, False)])
def test_the_mask(op, mask):
    inputs = make_inputs(Case((67,), (13,)), "float32")
    got = call(op, inputs, output_mask=mask)
    assert [result is not None for result in got] == list(mask)
    check_grads(Grads(*got), inputs, output_mask=mask)


@pytest.mark.parametrize("op", OPS, ids=repr)
@pytest.mark.parametrize("row", DTYPE_ROWS, ids="-".join)
def test_every_row_of_the_dtype_table(op, row):
    dtype, gamma, parameter = row
    inputs = make_inputs(Case((67,), (13,), gamma_dtype=gamma), dtype)
    got = call(op, inputs, pd_gamma_dtype=parameter)
    assert [result.dtype.name for result in got] == [dtype, parameter, parameter]
    check_grads(Grads(*got), inputs)
    assert op.infer_dtype(dtype, dtype, "float32", "float32", gamma, pd_gamma_dtype=parameter) == got_dtypes(got)


def got_dtypes(got):
    return PdOutputs(*(result.dtype.name for result in got))


def test_pd_gamma_has_gamma_s_dtype_by_default():
    inputs = make_inputs(CASE, "float16")
    assert call(LayerNormGradV3, inputs).pd_gamma.dtype == np.float16
    assert call(LayerNormGradV3, make_inputs(Case((3,), (5,), gamma_dtype="float32"), "float16")).pd_beta.dtype == "f4"


@pytest.mark.parametrize("op", OPS, ids=repr)
@pytest.mark.parametrize("dtypes", [("float16", "float16"), ("bfloat16", "bfloat16"), ("float16", "bfloat16")])
def test_16_bit_statistics_are_taken_as_the_page_says(op, dtypes):
    dtype, statistics = dtypes
    inputs = make_inputs(Case((40,), (24,), statistics_dtype=statistics), dtype)
    if op is LayerNormGradV3:
        check_grads(Grads(*call(op, inputs)), inputs)
        return
    variance = variance_of(inputs, 1e-5).astype(numpy_dtype(statistics))
    narrow = LayerNormGrad(inputs.dy, inputs.x, variance, inputs.mean, inputs.gamma)
    wide = LayerNormGrad(inputs.dy, inputs.x, variance.astype(np.float32), inputs.mean.astype(np.float32), inputs.gamma)
    check_same_bits(tuple(narrow), tuple(wide))


PRODUCTS = {  # the SoCs of an op's page, by its documents
    (LayerNormGrad, "8.3"): "Ascend950",
    (LayerNormGrad, "master"): "Ascend950 Ascend910_93 Ascend910B",
    (LayerNormGradV3, "8.3"): "Ascend950 Ascend350 Ascend910_93 Ascend910B",
}


@pytest.mark.parametrize("name", soc.names())
@pytest.mark.parametrize(("op", "cann"), PRODUCTS)
def test_strict_takes_the_products_of_the_page_and_compat_all(op, cann, name):
    inputs = make_inputs(CASE, "float16")
    listed = name.startswith(tuple(PRODUCTS[op, cann].split()))
    text = rf"{op.name}: expected a product of its page, Ascend 950.*, got {name} \("
    with soc.use(name, cann=cann), nullcontext() if listed else pytest.raises(BackendUnavailable, match=text):
        check_grads(Grads(*call(op, inputs)), inputs)
    with soc.use(name, cann=cann, mode="compat"), nullcontext() if listed else pytest.warns(AscendWarning, match=text):
        check_grads(Grads(*call(op, inputs)), inputs)


@pytest.mark.parametrize("op", OPS, ids=repr)
def test_bfloat16_rounds_as_the_device_does_if_asked(op):
    inputs = make_inputs(Case((2,), (4,)), "bfloat16")
    inputs.dy[...] = np.array([[1, -1, 1.0078125, 3], [2**-8, -(2**-8), 2**-8, 2**-8]])  # sums halfway between numbers
    even, away = [1, -1, 1.015625, 3], [1.0078125, -1.0078125, 1.015625, 3]
    for name, rounding, expected in (
        ("Ascend910B1", "device", away),
        ("Ascend950", "device", even),
        ("Ascend910B1", "even", even),
    ):
        with soc.use(name, rounding=rounding, cann="master"):
            got = call(op, inputs)
        assert got.pd_beta.astype(np.float32).tolist() == expected
        assert got_dtypes(got) == ("bfloat16",) * 3
    with soc.use("Ascend910B1", rounding="device", cann="master"):
        assert call(op, inputs, output_mask=(False, False, True))[:2] == (None, None)


def test_torch_tensors_give_torch_tensors():
    torch = pytest.importorskip("torch")
    for dtype in ("float32", "bfloat16"):
        inputs = make_inputs(Case((9,), (33,)), dtype)
        arrays = [torch_of(torch, array) for array in (inputs.dy, inputs.x, inputs.mean, inputs.gamma)]
        dy, x, mean, gamma = arrays
        got = LayerNormGradV3(dy, x, torch.from_numpy(inputs.rstd), mean, gamma)
        assert all(isinstance(result, torch.Tensor) for result in got)
        check_grads(Grads(*got), inputs)
        variance = torch.from_numpy(variance_of(inputs, 1e-5).astype(np.float32))
        check_grads(Grads(*LayerNormGrad(dy, x, variance, mean, gamma, epsilon=1e-5)), inputs)
        with soc.use("Ascend910B1", rounding="device"):
            assert LayerNormGradV3(dy, x, torch.from_numpy(inputs.rstd), mean, gamma).pd_x.dtype == x.dtype


def torch_of(torch, array):
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def test_the_bits_are_the_cores():
    i = make_inputs(Case((67,), (300,)), "float16")
    check_same_bits(
        tuple(call(LayerNormGradV3, i)), tuple(lngrad.layer_norm_backward(i.dy, i.x, i.mean, i.rstd, i.gamma))
    )


def zeros(shape, dtype="float32"):
    return np.zeros(shape, numpy_dtype(dtype))


RULES = {  # changed arguments of a float16 call of (3, 4, 5) normalized over (5,); the third input is called statistic
    "x shape": (
        {"x": zeros((3, 4, 6), "float16")},
        ShapeError,
        r"x: expected the shape of dy, \(3, 4, 5\), got \(3, 4, 6\)",
    ),
    "x dims": ({"x": zeros((60,), "float16")}, ShapeError, "x: expected the shape of dy"),
    "mean shape": ({"mean": zeros((12,))}, ShapeError, r"mean: expected the shape of \w+, \(3, 4, 1\), got \(12,\)"),
    "statistics": (
        {"mean": zeros((3, 5)), "statistic": zeros((3, 5))},
        ShapeError,
        r"(variance|rstd): expected 12 elements, one per row of dy \(3, 4\), got 15: \(3, 5\)",
    ),
    "gamma shape": (
        {"gamma": zeros((6,))},
        ShapeError,
        r"gamma: expected the last dimensions of dy, \(5,\), got \(6,\)",
    ),
    "gamma dims": ({"gamma": zeros((1, 3, 4, 5))}, ShapeError, "gamma: expected at most the 3 dimensions of dy"),
    "gamma scalar": ({"gamma": zeros(())}, ShapeError, "gamma: expected at least 1 dimension"),
    "dy empty": ({"dy": zeros((0, 5), "float16")}, ShapeError, "dy: expected dimensions of at least 1"),
    "dy dtype": (
        {"dy": zeros((3, 4, 5), "float64")},
        DtypeError,
        "dy: expected float32, float16 or bfloat16, got float64",
    ),
    "x dtype": ({"x": zeros((3, 4, 5))}, DtypeError, "x: expected the dtype of dy, float16, got float32"),
    "statistic dtype": (
        {"statistic": zeros((3, 4, 1), "float64")},
        DtypeError,
        r"(variance|rstd): expected float32, float16 or bfloat16 for an x in float16, got float64",
    ),
    "statistics differ": (
        {"mean": zeros((3, 4, 1), "float16")},
        DtypeError,
        r"mean: expected the dtype of (variance|rstd), float32, got float16",
    ),
    "gamma dtype": (
        {"gamma": zeros((5,), "bfloat16")},
        DtypeError,
        "gamma: expected float32 or the dtype of dy, float16, got bfloat16",
    ),
    "pd_gamma_dtype": (
        {"pd_gamma_dtype": "bfloat16"},
        DtypeError,
        "pd_gamma_dtype: expected float32 or the dtype of gamma, float16, got bfloat16",
    ),
    "output_mask": (
        {"output_mask": (True, True)},
        ShapeError,
        "output_mask: expected 3 booleans for pd_x, pd_gamma, pd_beta",
    ),
    "output_mask None": ({"output_mask": None}, DtypeError, "output_mask: expected 3 booleans .*, got None"),
    "output_mask a string": ({"output_mask": "110"}, DtypeError, "output_mask: expected 3 booleans .*, got '110'"),
    "output_mask of strings": (
        {"output_mask": (True, "no", True)},
        DtypeError,
        r"output_mask: expected 3 booleans .*, got \(True, 'no', True\)",
    ),
    "dims": (
        {
            "dy": zeros((1,) * 8 + (5,), "float16"),
            "x": zeros((1,) * 8 + (5,), "float16"),
            "mean": zeros((1,)),
            "statistic": zeros((1,)),
        },
        ShapeError,
        "dy: expected at most 8 dimensions, got 9",
    ),
    "no array": ({"x": 3}, DtypeError, "x: expected an array"),
    "null": ({"gamma": None}, DtypeError, "gamma: expected an array"),
}


@pytest.mark.parametrize("op", OPS, ids=repr)
@pytest.mark.parametrize("rule", RULES)
def test_rule(op, rule):
    arguments, kind, text = RULES[rule]
    named = {op.inputs[2] if name == "statistic" else name: value for name, value in arguments.items()}
    with pytest.raises(kind, match=text):
        call(op, make_inputs(CASE, "float16"), **named)


def test_a_float32_x_has_float32_statistics():
    inputs = make_inputs(CASE, "float32")
    with pytest.raises(DtypeError, match="rstd: expected float32 for an x in float32, got float16"):
        call(LayerNormGradV3, inputs, rstd=zeros((3, 4, 1), "float16"))


@pytest.mark.parametrize("op", OPS, ids=repr)
def test_compat_refuses_16_bit_statistics_as_the_code_does(op):
    inputs = make_inputs(CASE, "float16")
    narrow = {op.inputs[2]: zeros((3, 4, 1), "float16"), "mean": zeros((3, 4, 1), "float16")}
    with soc.use("Ascend950", mode="compat"):
        with pytest.raises(DtypeError, match="expected float32 in compat mode, got float16"):
            call(op, inputs, **narrow)
        call(op, inputs)
    call(op, inputs, **narrow)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (3, 0, 5)])
@pytest.mark.parametrize("op", OPS, ids=repr)
def test_the_newest_ops_take_empty_tensors(op, shape):
    full, row, gamma = zeros(shape), zeros((*shape[:-1], 1)), zeros(shape[-1:])
    for target in ({"name": "Ascend910B1", "cann": "master"}, {"name": "Ascend950"}):
        with soc.use(**target), pytest.raises(ShapeError, match=r"\w: expected dimensions of at least 1"):
            op.infer_shape(shape, shape, row.shape, row.shape, gamma.shape)
    with soc.use("Ascend950", cann="master"):
        got = op(full, full, row, row, gamma)
        assert op.infer_shape(shape, shape, row.shape, row.shape, gamma.shape) == tuple(array.shape for array in got)
    check_same_bits(tuple(got), (full, gamma, gamma))


@pytest.mark.parametrize("op", OPS, ids=repr)
def test_infer_shape(op):
    dy, row, gamma = (3, 4, 5), (3, 4, 1), (5,)
    assert op.infer_shape(dy, dy, row, row, gamma) == (dy, gamma, gamma)
    assert op.infer_shape(dy, dy, row, row, gamma, output_mask=(True, False, True)) == (dy, None, gamma)
    assert op.infer_shape(dy, dy, (3,), (3,), (4, 5)) == (dy, (4, 5), (4, 5))


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (((-1, 4, 5), (-1, 4, 5), (-1, 4, 1), (-1, 4, 1), (5,)), ((-1, 4, 5), (5,), (5,))),
        (((3, -1, -1), (3, 4, -1), (3, 4, 1), (3, -1, 1), (-1,)), ((3, -1, -1), (-1,), (-1,))),
        (((-2,), (3, 4, 5), (-2,), (3, 4, 1), (5,)), ((-2,), (5,), (5,))),
        (((3, 4, 5), (-2,), (3, 4, 1), (-2,), (-2,)), ((3, 4, 5), (-2,), (-2,))),
        (((-2,),) * 5, ((-2,),) * 3),
        ([[3, 5], [3, 5], [3, 1], [3, 1], [5]], ((3, 5), (5,), (5,))),
    ],
)
@pytest.mark.parametrize("op", OPS, ids=repr)
def test_infer_shape_of_what_is_unknown(op, shapes, expected):
    assert op.infer_shape(*shapes) == expected


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (((-1, 5), (3, 6), (3, 1), (3, 1), (5,)), "x: expected the shape of dy"),
        (((3, -1), (3, 5), (3, 1), (4, 1), (5,)), "mean: expected the shape of"),
        (((-1, 5), (3, 5), (-1,), (-1,), (6,)), "gamma: expected the last dimensions"),
        (((3, 5), (-2,), (4,), (-2,), (-1,)), "expected 3 elements"),
        (((3, -3), (3, 5), (3,), (3,), (5,)), "dy: expected dimensions of at least 1, or -1"),
        (((-1,) * 9, (-1,) * 9, (-2,), (-2,), (5,)), "dy: expected at most 8 dimensions, got 9"),
    ],
)
def test_infer_shape_refuses_what_is_known_to_be_wrong(shapes, text):
    with pytest.raises(ShapeError, match=text):
        LayerNormGradV3.infer_shape(*shapes)


def test_inference_wants_all_five_inputs():
    with pytest.raises(TypeError, match="LayerNormGrad: expected 5, for dy, x, variance, mean, gamma, got 2"):
        LayerNormGrad.infer_shape((3, 5), (5,))
    with pytest.raises(TypeError, match="LayerNormGradV3: expected 5, for dy, x, rstd, mean, gamma, got 1"):
        LayerNormGradV3.infer_dtype("float32")


def test_dtypes_of_numpy_and_torch_have_one_name():
    torch = pytest.importorskip("torch")
    for dtype in ("float32", np.float32, np.dtype(np.float32), torch.float32):
        assert dtype_name(dtype) == "float32"
    assert dtype_name(torch.bfloat16) == dtype_name(numpy_dtype("bfloat16")) == "bfloat16"
    assert LayerNormGradV3.infer_dtype(*[torch.float16] * 2, *[np.float32] * 2, torch.float16) == ("float16",) * 3


with (Path(__file__).parent / "strategies.csv").open(newline="") as file:
    STRATEGIES = [list(row.values()) for row in csv.DictReader(file)]


@pytest.mark.parametrize(("op", "rows", "columns", "dtype", "name", "template", "key"), STRATEGIES)
def test_strategy(op, rows, columns, dtype, name, template, key):
    assert strategy(op, (int(rows), int(columns)), dtype, name) == (template, int(key))


@pytest.mark.parametrize(("mask", "key"), [((True, False, False), 500), ((True, False, True), 600)])
def test_strategy_of_v3_depends_on_the_sums_that_are_wanted(mask, key):
    assert strategy("LayerNormGradV3", (3000, 500), "float16", "Ascend950", output_mask=mask).tiling_key == key
    assert strategy("LayerNormGradV3", (5000, 500), "float16", "Ascend950", output_mask=mask).tiling_key == 600


def test_strategy_takes_ops_rows_and_more_dimensions():
    with soc.use("Ascend950"):
        assert strategy(LayerNormGrad, (6, 3, 20000), np.float16).tiling_key == 700
    row = soc.get("Ascend910B1")
    assert (
        strategy(LayerNormGradV3, (48, 64, 64), "bfloat16", row, gamma_dtype="float32", normalized=2).tiling_key == 115
    )
    assert strategy(LayerNormGradV3, (48, 64, 64), "float16", row, gamma_dtype="float32").tiling_key == 413


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (
            ("LayerNorm", (2, 3), "float16", "Ascend950"),
            BackendUnavailable,
            "expected LayerNormGrad or LayerNormGradV3",
        ),
        (
            ("LayerNormGrad", (2, 3), "float16", "Ascend910B1"),
            BackendUnavailable,
            "registered for Ascend950 only, got Asc",
        ),
        (
            ("LayerNormGradV3", (2, 3), "float16", "Ascend310P"),
            BackendUnavailable,
            "Ascend910B, Ascend910_93, Ascend950 and Ascend350",
        ),
        (("LayerNormGrad", (2, 3), "float16", "Ascend350"), BackendUnavailable, "registered for Ascend950 only"),
        (("LayerNormGradV3", (2, 0), "float16", "Ascend910B1"), ShapeError, "none of them empty"),
        (("LayerNormGradV3", (-2, 3), "float16", "Ascend950"), ShapeError, "none of them empty"),
        (("LayerNormGradV3", (), "float16", "Ascend950"), ShapeError, "at least 1 dimensions"),
        (
            ("LayerNormGradV3", (2, 3), "float64", "Ascend950"),
            DtypeError,
            "expected a row of the op's table, got float64",
        ),
    ],
)
def test_strategy_refuses(arguments, kind, text):
    with pytest.raises(kind, match=text):
        strategy(*arguments)
