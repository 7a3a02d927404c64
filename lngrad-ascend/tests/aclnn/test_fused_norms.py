"""Norms with what follows them: results against float64, and every rule of the pages broken once.

docs/ascend.md lists the rules, lngrad-ascend/tests/host_rules.csv with the ids used here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aclnn_harness import SENTINEL, empty_tensor, strided, tensor
from lngrad.core import reference
from lngrad.core.problem import Grads
from lngrad.support.dtypes import numpy_dtype
from lngrad.testing import Case, check_grads, check_same_bits, error_share, make_inputs
from lngrad_ascend import acl, aclnn, soc

NULLPTR, INVALID = aclnn.ACLNN_ERR_PARAM_NULLPTR, aclnn.ACLNN_ERR_PARAM_INVALID
TILING, NO_KERNEL = aclnn.ACLNN_ERR_INNER_TILING_ERROR, aclnn.ACLNN_ERR_INNER_FIND_KERNEL_ERROR
F32, F16, BF16, I8, I32 = acl.ACL_FLOAT, acl.ACL_FLOAT16, acl.ACL_BF16, acl.ACL_INT8, acl.ACL_INT32
EPSILON, SCALE = 1e-5, 0.7
CASES = (Case((3, 4), (16,)), Case((5,), (33,)), Case((2, 3, 2), (70,)))
MANY = (*CASES, Case((2, 3), (4, 8)))  # where more than the last dimension may be normalized
NUMBERS = {"epsilon": EPSILON, "scale": SCALE, "axis": -1, "divMode": True, "quantMode": 0}
QUANTIZED = ("aclnnRmsNormQuant", "aclnnAddRmsNormQuant", "aclnnLayerNormQuant")
FUNCTIONS = (
    "aclnnAddRmsNormCast",
    "aclnnFusedAddRmsNorm",
    "aclnnAdaLayerNorm",
    "aclnnAdaLayerNormV2",
    *QUANTIZED,
    "aclnnLayerNormalizationGrad",
)


def rms(h, gamma, axes):
    rstd = 1 / np.sqrt((h**2).mean(axes, keepdims=True) + EPSILON)
    return h * rstd * gamma, rstd


def layer(h, gamma, beta, axes):
    mean = h.mean(axes, keepdims=True)
    rstd = 1 / np.sqrt(((h - mean) ** 2).mean(axes, keepdims=True) + EPSILON)
    return (h - mean) * rstd * gamma + beta, mean, rstd


class Call:
    """A valid call, with its results in float64; `arguments` may be exchanged before phase 1."""

    def __init__(self, function, case=CASES[0], dtype="float16", seed=0):
        self.function, self.inputs = function, make_inputs(case, dtype, seed, residual=True)
        i, random, kind = self.inputs, np.random.default_rng(seed + 1), numpy_dtype(dtype)
        x, residual, gamma, beta = (one.astype(np.float64) for one in (i.x, i.residual, i.gamma, i.beta))
        axes = tuple(range(-len(case.normalized), 0))
        rows = (*case.lead, *(1,) * len(case.normalized))
        size = case.normalized[-1]

        def drawn(shape, dtype=kind, low=0.02, high=0.05):
            return random.uniform(low, high, shape).astype(dtype)

        given = {"x": i.x, "gamma": i.gamma}
        self.like, made, self.int8 = {}, {}, {}
        added = {"x1": i.x, "x2": i.residual, "gamma": i.gamma}
        if function in ("aclnnAddRmsNormCast", "aclnnFusedAddRmsNorm"):
            total = (SCALE if "Fused" in function else 1) * x + residual
            y, rstd = rms(total, gamma, axes)
            given, made = added, {"rstdOut": (rstd, "float32"), "xOut": (total, dtype)}
            cast = {"y1Out": (y, "float32"), "y2Out": (y, dtype)}
            made |= cast if "Cast" in function else {"yOut": (y, dtype)}
        elif function.startswith("aclnnAda"):
            batch = case.lead[:-1]
            scale, shift = (random.standard_normal((*batch, size)).astype(kind) for _ in range(2))
            given = {"x": i.x, "scale": scale, "shift": shift, "weightOptional": i.gamma, "biasOptional": i.beta}
            y, mean, rstd = layer(x, gamma, beta, axes)
            scale, shift = (one.astype(np.float64)[..., None, :] for one in (scale, shift))
            made["out"] = (y * (1 + scale) + shift, dtype)
            if function.endswith("V2"):
                made |= {"meanOutOptional": (mean, dtype), "rstdOutOptional": (rstd, dtype)}
        elif function == "aclnnAddRmsNormQuant":
            kinds = (kind, kind) if dtype != "float16" else (np.dtype(np.float32), np.dtype(np.int32))
            scales = [drawn(case.normalized, kinds[0]) for _ in range(2)]
            zeros = [random.integers(-9, 9, case.normalized).astype(kinds[1]) for _ in range(2)]
            names = ("scales1", "scales2Optional", "zeroPoints1Optional", "zeroPoints2Optional")
            given = added | dict(zip(names, (*scales, *zeros), strict=True))
            y, _ = rms(x + residual, gamma, axes)
            made["xOut"] = (x + residual, dtype)
            for name, scale, zero in zip(("y1Out", "y2Out"), scales, zeros, strict=True):
                self.int8[name] = y / scale.astype(np.float64) + zero.astype(np.float64)
        elif function == "aclnnLayerNormalizationGrad":
            known = reference.layer_norm(x, normalized=len(case.normalized))
            mean, rstd = (np.asarray(one).reshape(rows).astype(kind) for one in (known.mean, known.rstd))
            self.statistics = mean, rstd
            given = {"dy": i.dy, "x": i.x, "gamma": i.gamma, "mean": mean, "rstd": rstd}
            made = {"dx": (x, dtype), "dgamma": (gamma, dtype), "dbeta": (gamma, dtype)}
        else:
            scale, zero = drawn((1,)), np.array([3], np.int8)
            columns = [one.reshape(1, size) for one in (i.gamma, i.beta)]
            given = {"x": i.x, "gamma": columns[0], "beta": columns[1], "scale": scale}
            if function == "aclnnRmsNormQuant":
                y, _ = rms(x, gamma, axes)
                given["offset"], name, y = zero, "y", y + beta
            else:
                y, name = layer(x, gamma, beta, axes)[0], "res"
                given["zeroPointsOptional"] = zero
            self.int8[name] = y / scale.astype(np.float64) + 3
        self.given, self.made = given, made
        self.written = {name: np.full(y.shape, SENTINEL, numpy_dtype(of)) for name, (y, of) in made.items()}
        self.written |= {name: np.full(y.shape, 99, np.int8) for name, y in self.int8.items()}
        self.arguments = {name: tensor(one) for name, one in given.items()}
        names = getattr(aclnn, f"{function}GetWorkspaceSize").__annotations__
        self.arguments |= {name: number for name, number in NUMBERS.items() if name in names and name not in given}
        self.arguments |= {name: tensor(one) for name, one in self.written.items()}
        if function == "aclnnLayerNormQuant":
            self.arguments["scaleOut"] = None

    def phase1(self):
        return getattr(aclnn, f"{self.function}GetWorkspaceSize")(**self.arguments)

    def run(self, ret_of_phase2=0):
        size, executor, ret = self.phase1()
        assert ret == aclnn.ACLNN_SUCCESS, acl.aclGetRecentErrMsg()
        ret = getattr(aclnn, self.function)(np.empty(size, np.uint8) if size else None, size, executor, None)
        assert ret == ret_of_phase2, acl.aclGetRecentErrMsg()
        assert acl.aclrtSynchronizeStream(None) == acl.ACL_SUCCESS, acl.aclGetRecentErrMsg()

    def check(self, **other):
        """Each result against float64: rounded once, or the nearest integer where it is no tie."""
        self.run()
        made = self.written | other
        if self.function == "aclnnLayerNormalizationGrad":
            mean, rstd = self.statistics
            exact = replace(self.inputs, mean=mean, rstd=rstd, residual=None, dtotal=None)
            check_grads(Grads(made["dx"], made["dgamma"], made["dbeta"]), exact)
            return
        for name, (truth, _) in self.made.items():
            size = np.abs(truth) + np.abs(truth).max(-1, keepdims=True)
            if name == "meanOutOptional":  # terms of either sign
                size = size + np.abs(self.inputs.x).astype(np.float64).mean(-1, keepdims=True)
            assert error_share(made[name], truth, size, "float32").max() <= 1, name
        for name, truth in self.int8.items():
            nearest = np.clip(np.rint(truth), -128, 127)
            off = made[name].astype(np.float64) - nearest
            tie = np.abs(np.abs(truth - np.floor(truth)) - 0.5) < 1e-3
            assert made[name].dtype == np.int8
            assert (np.abs(off)[~tie] == 0).all(), name
            assert np.abs(off).max() <= 1, name
            assert len(np.unique(made[name])) > 20, name  # not all at one end


def refused(call, code, text):
    before = {name: result.copy() for name, result in call.written.items()}
    size, executor, ret = call.phase1()
    message = acl.aclGetRecentErrMsg()
    assert ret == code, message
    assert text in message, message
    assert (size, executor) == (0, None)
    for name, was in before.items():
        check_same_bits(call.written[name], was)


@pytest.fixture(autouse=True)
def device():
    acl.aclInit(None)
    acl.aclrtSetDevice(0)
    yield
    acl.aclFinalize()


def dtypes_of(function):
    if "Cast" in function or function in QUANTIZED:
        return ("float16", "bfloat16")
    return ("float32", "float16", "bfloat16")


@pytest.mark.parametrize(
    ("function", "case", "dtype"),
    [
        (function, case, dtype)
        for function in FUNCTIONS
        for case in (CASES if "Ada" in function or function in (QUANTIZED[0], QUANTIZED[2]) else MANY)
        for dtype in dtypes_of(function)
    ],
    ids=str,
)
def test_results_of_fused_norms_are_those_of_float64(function, case, dtype):
    Call(function, case, dtype).check()


def test_quantized_numbers_are_saturated_and_rounded_to_even():
    call = Call("aclnnRmsNormQuant", Case((1,), (8,)))
    ones, beta = np.zeros((1, 8), np.float16), np.array([[0.5, 1.5, 2.5, -0.5, 400, -400, np.nan, np.inf]], np.float16)
    call.arguments |= {"gamma": tensor(ones), "beta": tensor(beta), "scale": tensor(np.ones(1, np.float16))}
    call.arguments["offset"] = tensor(np.zeros(1, np.int8))
    call.run()
    assert call.written["y"].tolist() == [[0, 2, 2, 0, 127, -128, 0, 127]]


def test_scales_and_points_that_are_not_given():
    call = Call("aclnnAddRmsNormQuant")
    call.arguments |= dict.fromkeys(("scales2Optional", "zeroPoints1Optional", "zeroPoints2Optional"))
    call.int8["y1Out"] = call.int8["y1Out"] - call.given["zeroPoints1Optional"]
    untouched = call.int8.pop("y2Out")
    call.check()
    assert (call.written["y2Out"] == 99).all()
    assert untouched.shape == (3, 4, 16)


def test_modulation_without_parameters_and_statistics():
    call = Call("aclnnAdaLayerNormV2", dtype="float32")
    names = ("weightOptional", "biasOptional", "meanOutOptional", "rstdOutOptional")
    call.arguments |= dict.fromkeys(names)
    call.run()
    x = call.inputs.x.astype(np.float64)
    scale, shift = (call.given[name].astype(np.float64)[..., None, :] for name in ("scale", "shift"))
    truth = layer(x, 1, 0, -1)[0] * (1 + scale) + shift
    assert error_share(call.written["out"], truth, np.abs(truth) + 1, "float32").max() <= 1


def test_modulation_with_one_row_for_each_batch():
    """[B, 1, H] is [B, H], and parameters may be FLOAT beside 16 bits in V2."""
    call, other = Call("aclnnAdaLayerNormV2"), Call("aclnnAdaLayerNormV2")
    for name in ("scale", "shift"):
        call.arguments[name] = tensor(call.given[name][:, None, :])
    for name in ("weightOptional", "biasOptional"):
        call.arguments[name] = tensor(call.given[name].astype(np.float32))
    call.run()
    other.run()
    check_same_bits(call.written["out"], other.written["out"])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_of_fused_norms_from_and_to_any_strides(function):
    call, other = Call(function), Call(function)
    name = "x1" if "x1" in call.given else "x"
    array = call.given[name]
    call.arguments[name], view = strided(array.shape, array.dtype.name, order=(1, 0, 2), steps=(1, 2, 1))
    view[...] = array
    call.run()
    other.run()
    for result, made in call.written.items():
        check_same_bits(made, other.written[result])


@pytest.mark.parametrize(
    ("function", "output", "place"),
    [("aclnnFusedAddRmsNorm", "xOut", "x2"), ("aclnnFusedAddRmsNorm", "yOut", "x1"), ("aclnnAdaLayerNorm", "out", "x")],
)
def test_outputs_of_fused_norms_may_take_the_places_of_what_they_are_made_of(function, output, place):
    call = Call(function, dtype="float32")
    taken = call.given[place].copy()
    call.arguments[output] = call.arguments[place] = tensor(taken)
    call.check(**{output: taken})


@pytest.mark.parametrize(
    ("function", "output", "other"),
    [("aclnnAdaLayerNorm", "out", "shift"), ("aclnnAddRmsNormQuant", "xOut", "scales1")],
)
def test_fused_norms_whose_outputs_would_destroy_other_memory(function, output, other):
    call, buffer = Call(function, dtype="bfloat16"), np.zeros(400, numpy_dtype("bfloat16"))
    for name, start in ((other, 0), (output, 2)):
        shape = acl.aclGetViewShape(call.arguments[name])[0]
        call.arguments[name] = acl.aclCreateTensor(shape, BF16, None, start, 2, (400,), buffer)
    call.run(ret_of_phase2=INVALID)
    assert f"{output}: shares memory with {other}" in acl.aclGetRecentErrMsg()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_null_tensor_of_fused_norms(function):
    for name, value in Call(function).arguments.items():
        optional = name.endswith("Optional") and function != "aclnnLayerNormQuant"
        if value is None or optional or not isinstance(value, acl.aclTensor):
            continue
        call = Call(function)
        call.arguments[name] = None
        refused(call, NULLPTR, f"{name}: expected an argument, got a null pointer")


def test_no_rows_of_fused_norms_are_no_work():
    for function in (
        "aclnnAddRmsNormCast",
        "aclnnAddRmsNormQuant",
        "aclnnLayerNormQuant",
        "aclnnLayerNormalizationGrad",
    ):
        call = Call(function, Case((0, 4), (16,)))
        size, executor, ret = call.phase1()
        assert (size, ret) == (0, 0), acl.aclGetRecentErrMsg()
        assert getattr(aclnn, function)(None, 0, executor, None) == 0


R, S = (16,), (3, 4, 16)
RULES = {
    "cast-x-dtype": (
        "aclnnAddRmsNormCast",
        {"x1": empty_tensor(S)},
        INVALID,
        "x1: expected one of ACL_FLOAT16, ACL_BF16",
    ),
    "cast-y1-dtype": ("aclnnAddRmsNormCast", {"y1Out": empty_tensor(S, F16)}, INVALID, "y1Out: expected ACL_FLOAT"),
    "cast-y2-dtype": (
        "aclnnAddRmsNormCast",
        {"y2Out": empty_tensor(S, BF16)},
        INVALID,
        "y2Out: expected the dtype of x1",
    ),
    "cast-y2-shape": (
        "aclnnAddRmsNormCast",
        {"y2Out": empty_tensor((12, 16), F16)},
        TILING,
        "y2Out: expected the shape",
    ),
    "cast-rstd-shape": (
        "aclnnAddRmsNormCast",
        {"rstdOut": empty_tensor((3, 4))},
        TILING,
        "rstdOut: expected the shape",
    ),
    "cast-gamma-shape": ("aclnnAddRmsNormCast", {"gamma": empty_tensor((4,), F16)}, TILING, "gamma: expected the last"),
    "fused-x2-shape": ("aclnnFusedAddRmsNorm", {"x2": empty_tensor(R, F16)}, INVALID, "x2: expected the shape of x1"),
    "fused-gamma-dtype": (
        "aclnnFusedAddRmsNorm",
        {"gamma": empty_tensor(R)},
        INVALID,
        "gamma: expected the dtype of x1",
    ),
    "fused-rstd-dtype": (
        "aclnnFusedAddRmsNorm",
        {"rstdOut": empty_tensor((3, 4, 1), F16)},
        INVALID,
        "rstdOut: expected",
    ),
    "fused-over-8-dims": (
        "aclnnFusedAddRmsNorm",
        {"x1": empty_tensor((1,) * 9, F16)},
        INVALID,
        "x1: expected at most 8",
    ),
    "ada-one-dim": ("aclnnAdaLayerNorm", {"x": empty_tensor(R, F16)}, INVALID, "x: expected 2 to 8 dimensions"),
    "ada-scale-shape": (
        "aclnnAdaLayerNorm",
        {"scale": empty_tensor((4, 16), F16)},
        INVALID,
        "scale: expected the shape",
    ),
    "ada-shift-dtype": (
        "aclnnAdaLayerNorm",
        {"shift": empty_tensor((3, 16))},
        INVALID,
        "shift: expected the dtype of x",
    ),
    "ada-weight-shape": (
        "aclnnAdaLayerNorm",
        {"weightOptional": empty_tensor((1, 16), F16)},
        INVALID,
        "weightOptional:",
    ),
    "ada-weight-dtype": (
        "aclnnAdaLayerNorm",
        {"weightOptional": empty_tensor(R)},
        INVALID,
        "weightOptional: expected the",
    ),
    "ada-bias-not-weight's": (
        "aclnnAdaLayerNormV2",
        {"weightOptional": empty_tensor(R)},
        INVALID,
        "the dtype of biasOptional",
    ),
    "ada-mean-shape": (
        "aclnnAdaLayerNormV2",
        {"meanOutOptional": empty_tensor((3, 4), F16)},
        INVALID,
        "meanOutOptional:",
    ),
    "ada-mean-dtype": (
        "aclnnAdaLayerNormV2",
        {"meanOutOptional": empty_tensor((3, 4, 1))},
        INVALID,
        "meanOutOptional:",
    ),
    "quant-x-dtype": ("aclnnRmsNormQuant", {"x": empty_tensor(S)}, INVALID, "x: expected ACL_FLOAT16 or ACL_BF16"),
    "quant-offset-dtype": (
        "aclnnRmsNormQuant",
        {"offset": empty_tensor((1,), F16)},
        INVALID,
        "offset: expected ACL_INT8",
    ),
    "quant-y-dtype": ("aclnnRmsNormQuant", {"y": empty_tensor(S, I32)}, INVALID, "y: expected ACL_INT8"),
    "quant-gamma-shape": (
        "aclnnRmsNormQuant",
        {"gamma": empty_tensor((4, 16), F16)},
        INVALID,
        "gamma: expected the shape",
    ),
    "quant-beta-shape": (
        "aclnnRmsNormQuant",
        {"beta": empty_tensor(R, F16)},
        INVALID,
        "beta: expected the shape of gamma",
    ),
    "quant-scale-shape": (
        "aclnnRmsNormQuant",
        {"scale": empty_tensor((2,), F16)},
        INVALID,
        "scale: expected the shape (1,)",
    ),
    "add-quant-scale-dtype": (
        "aclnnAddRmsNormQuant",
        {"scales1": empty_tensor(R, F16)},
        INVALID,
        "scales1: expected ACL_F",
    ),
    "add-quant-zero-dtype": (
        "aclnnAddRmsNormQuant",
        {"zeroPoints1Optional": empty_tensor(R)},
        INVALID,
        "expected ACL_INT32",
    ),
    "add-quant-scale-shape": (
        "aclnnAddRmsNormQuant",
        {"scales1": empty_tensor((1,))},
        INVALID,
        "scales1: expected the shape",
    ),
    "add-quant-y2-shape": (
        "aclnnAddRmsNormQuant",
        {"y2Out": empty_tensor((1,), I8)},
        INVALID,
        "y2Out: expected the shape",
    ),
    "add-quant-div-mode": ("aclnnAddRmsNormQuant", {"divMode": False}, INVALID, "divMode: expected true"),
    "layer-quant-mode": ("aclnnLayerNormQuant", {"quantMode": 1}, INVALID, "quantMode: expected 0"),
    "layer-quant-gamma-shape": (
        "aclnnLayerNormQuant",
        {"gamma": empty_tensor(R, F16)},
        INVALID,
        "gamma: expected the shape",
    ),
    "layer-quant-res-shape": (
        "aclnnLayerNormQuant",
        {"res": empty_tensor((12, 16), I8)},
        INVALID,
        "res: expected the shape",
    ),
    "grad-mean-dtype": (
        "aclnnLayerNormalizationGrad",
        {"mean": empty_tensor((3, 4, 1))},
        INVALID,
        "mean: expected the dtype",
    ),
    "grad-mean-elements": (
        "aclnnLayerNormalizationGrad",
        {"mean": empty_tensor((3,), F16)},
        INVALID,
        "mean: expected 12",
    ),
    "grad-dbeta-shape": (
        "aclnnLayerNormalizationGrad",
        {"dbeta": empty_tensor((1, 16), F16)},
        INVALID,
        "dbeta: expected",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_fused_rule(name):
    function, changes, code, text = RULES[name]
    call = Call(function)
    call.arguments |= changes
    refused(call, code, text)


@pytest.mark.parametrize(
    ("product", "function", "text"),
    [
        *(("Ascend910A", function, "expected a product that has it") for function in FUNCTIONS),
        *(("Ascend310P", function, "expected a product") for function in FUNCTIONS if function not in QUANTIZED),
        ("Ascend950", "aclnnAdaLayerNorm", "expected a product that has it"),
        ("Ascend950", "aclnnLayerNormalizationGrad", "expected a product that has it"),
    ],
)
def test_products_that_the_pages_of_fused_norms_do_not_list(product, function, text):
    with soc.use(product):
        refused(Call(function), NO_KERNEL, text)


def test_dtypes_of_quantized_norms_on_ascend_950():
    with soc.use("Ascend950"):
        call = Call("aclnnRmsNormQuant", dtype="float32")
        call.arguments["offset"] = tensor(np.full(1, 3, np.float32))
        call.check()
        Call("aclnnAddRmsNormQuant", dtype="float32").check()
        Call("aclnnLayerNormQuant", dtype="float32").check()


def test_quantized_norms_of_atlas_inference_need_rows_of_32_bytes():
    with soc.use("Ascend310P"):
        for function in QUANTIZED:
            refused(Call(function, Case((4,), (8,))), INVALID, "a last axis of at least 32 bytes")
            Call(function).check()
