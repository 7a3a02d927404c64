"""Results of every aclnn operator against float64, and where tensors may lie. Its checks are in test_rules.py."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
from norm_calls import BASE, EPSILON, FUSED, QUANTIZED, ROOT_MEAN_SQUARES, SUMS, layer, valid_call, wide

from aclnn_harness import FORWARDS, SENTINEL, Call, ForwardCall, accepted, refused, strided, tensor, view_of
from lngrad.core.problem import RmsForward
from lngrad.support.dtypes import numpy_dtype
from lngrad.testing import CASES, Case, check_forward, check_same_bits, error_share
from lngrad_ascend import acl, aclnn, soc

DTYPES = ("float32", "float16", "bfloat16")
SMALL = (BASE, Case((5,), (33,)), Case((2, 3, 2), (70,)))
LAST_DIMENSION_ALONE = ("aclnnAdaLayerNorm", "aclnnAdaLayerNormV2", "aclnnRmsNormQuant", "aclnnLayerNormQuant")
WITH_GAMMA = [case for case in CASES[:14] if case.gamma]
SHAPES = {
    "aclnnLayerNormBackward": CASES[:14],
    "aclnnLayerNorm": (*CASES[:14], CASES[-1]),
    **dict.fromkeys(ROOT_MEAN_SQUARES, (*WITH_GAMMA, BASE)),
    **dict.fromkeys(SUMS, (*(case for case in WITH_GAMMA if case.lead), BASE)),
    **dict.fromkeys(FUSED, (*SMALL, Case((2, 3), (4, 8)))),
    **dict.fromkeys(LAST_DIMENSION_ALONE, SMALL),
}


@pytest.mark.parametrize(
    ("function", "case", "dtype"),
    [
        (function, case, dtype)
        for function, cases in SHAPES.items()
        for case in cases
        for dtype in (DTYPES[1:] if function in (*QUANTIZED, "aclnnAddRmsNormCast") else DTYPES)
    ],
    ids=str,
)
def test_results_are_those_of_float64(function, case, dtype):
    valid_call(function, case, dtype).check()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("function", ["aclnnRmsNorm", "aclnnRmsNormGrad"])
def test_gamma_may_be_float_beside_16_bits(function, dtype):
    valid_call(function, Case((9,), (40,), gamma_dtype="float32"), dtype).check()


def test_rstd_of_gemma_may_lack_the_last_dimensions():
    call = valid_call("aclnnGemmaRmsNorm")
    call.changed(rstdOut=call.results["rstdOut"].reshape(3, 4))
    call.check()


def test_a_bias_of_every_shape_and_none():
    for bias in ("columns", "x", None):
        valid_call("aclnnAddLayerNorm", dtype="bfloat16", bias=bias).check()


def test_a_gradient_without_the_further_one():
    valid_call("aclnnAddLayerNormGrad", dtype="float16").changed("dsumOptional=null").check()


def test_the_sum_is_written_where_it_is_asked_for():
    call = valid_call("aclnnAddLayerNorm").changed("additionalOutput=False")
    call.run()
    assert (call.results.pop("xOut") == SENTINEL).all()
    call.check()


@pytest.mark.parametrize("float_term", ["x1", "x2"])
def test_one_term_may_be_float_beside_16_bits(float_term):
    call, other = valid_call("aclnnAddLayerNorm", BASE, "bfloat16"), valid_call("aclnnAddLayerNorm", BASE, "float32")
    narrow, array = ("x2", call.inputs.residual) if float_term == "x1" else ("x1", call.inputs.x)
    other.arguments[narrow] = tensor(array)
    added = other.inputs.residual if float_term == "x2" else other.inputs.x
    other.total = sum(wide(array, added, other.bias))
    other.check()


def test_quantized_numbers_are_saturated_and_rounded_to_even():
    call, half = valid_call("aclnnRmsNormQuant", Case((1,), (8,))), np.float16
    beta = np.array([[0.5, 1.5, 2.5, -0.5, 400, -400, np.nan, np.inf]], half)
    call.changed(gamma=tensor(np.zeros((1, 8), half)), beta=tensor(beta), scale=tensor(np.ones(1, half)))
    call.changed(offset=tensor(np.zeros(1, np.int8))).run()
    assert call.results["y"].tolist() == [[0, 2, 2, 0, 127, -128, 0, 127]]


def test_scales_and_points_that_are_not_given():
    call = valid_call("aclnnAddRmsNormQuant").changed("scales2Optional zeroPoints1Optional zeroPoints2Optional=null")
    call.int8["y1Out"] = call.int8["y1Out"] - call.read["zeroPoints1Optional"]
    untouched = call.int8.pop("y2Out")
    call.check()
    assert (call.results["y2Out"] == 99).all()
    assert untouched.shape == (3, 4, 16)


def test_modulation_without_parameters_and_statistics():
    call = valid_call("aclnnAdaLayerNormV2", dtype="float32")
    call.changed("weightOptional biasOptional meanOutOptional rstdOutOptional=null").run()
    x, *factors = wide(call.inputs.x, call.read["scale"], call.read["shift"])
    scale, shift = (array[..., None, :] for array in factors)
    truth = layer(x, 1, 0, -1)[0] * (1 + scale) + shift
    assert error_share(call.results["out"], truth, np.abs(truth) + 1, "float32").max() <= 1


def test_modulation_with_one_row_for_each_batch():
    """[B, 1, H] is [B, H], and parameters may be FLOAT beside 16 bits in V2."""
    call, other = valid_call("aclnnAdaLayerNormV2"), valid_call("aclnnAdaLayerNormV2")
    call.changed("scale shift=FLOAT16(3,1,16); weightOptional biasOptional=FLOAT(16)")
    check_same_bits(call.run()["out"], other.run()["out"])


@pytest.mark.parametrize("function", FUSED)
def test_results_of_fused_norms_from_and_to_any_strides(function):
    call, other = valid_call(function), valid_call(function)
    name = "x1" if "x1" in call.read else "x"
    array = call.read[name]
    call.arguments[name], view = strided(array.shape, array.dtype.name, order=(1, 0, 2), steps=(1, 2, 1))
    view[...] = array
    for result, expected in zip(call.run().values(), other.run().values(), strict=True):
        check_same_bits(result, expected)


def test_x_and_its_norm_may_be_views():
    call = valid_call("aclnnRmsNorm")
    call.arguments["x"], x = strided((3, 4, 16), "float32", (1, 0, 2), (1, 2, 1), offset=3)
    call.arguments["yOut"], y = strided((3, 4, 16), "float32", (2, 0, 1), (1, 1, 3))
    x[...] = call.inputs.x
    call.run()
    check_forward(RmsForward(y, call.results["rstdOut"]), call.inputs, eps=EPSILON)


def test_terms_may_be_views_and_are_bound_anew():
    call = valid_call("aclnnDeepNorm")
    call.arguments["gx"], gx = strided((3, 4, 16), "float32", (1, 0, 2), (1, 2, 1), offset=3)
    gx[...] = call.inputs.residual
    call.check()
    call.changed(gx=np.zeros((3, 4, 16), np.float32))
    size, executor, _ = call.phase1()
    accepted(aclnn.aclSetAclOpExecutorRepeatable(executor))
    accepted(aclnn.aclSetInputTensorAddr(executor, 1, call.arguments["gx"], call.inputs.residual.copy()))
    accepted(aclnn.aclnnDeepNorm(np.empty(size, np.uint8), size, executor, None))
    accepted(acl.aclrtSynchronizeStream(None))
    check_same_bits(call.results["yOut"], valid_call("aclnnDeepNorm").run()["yOut"])


@pytest.mark.parametrize(
    ("function", "dtype", "places"),
    [
        ("aclnnLayerNormBackward", "float32", {"gradInputOut": "gradOut"}),
        ("aclnnLayerNorm", "float32", {"out": "input"}),
        (
            "aclnnAddLayerNorm",
            "bfloat16",
            {"yOut": "x1", "xOut": "x2"},
        ),  # a 16-bit x1 is read whole before yOut is written
        ("aclnnAddLayerNormGrad", "bfloat16", {"dxOut": "x1"}),
        ("aclnnDeepNorm", "bfloat16", {"yOut": "x"}),
        ("aclnnDeepNormGrad", "bfloat16", {"dxOut": "x", "dgxOut": "gx"}),
        ("aclnnFusedAddRmsNorm", "float32", {"xOut": "x2"}),
        ("aclnnFusedAddRmsNorm", "float32", {"yOut": "x1"}),
        ("aclnnAdaLayerNorm", "float32", {"out": "x"}),
    ],
)
def test_outputs_may_take_the_places_of_inputs(function, dtype, places):
    call = valid_call(function, dtype=dtype)
    for output, name in places.items():
        call.results[output] = call.read[name].copy()
        call.arguments[output] = call.arguments[name] = tensor(call.results[output])
    call.check()


def test_the_sum_and_its_norm_take_the_places_of_what_was_added():
    results = valid_call("aclnnInplaceAddRmsNorm").run(), valid_call("aclnnAddRmsNorm").run()
    for result, expected in zip(*(each.values() for each in results), strict=True):
        check_same_bits(result, expected)


def test_addresses_of_an_operator_that_replaces_its_inputs():
    """The places are those of what goes in: x1Ref, x2Ref, gamma; and of what comes out: x1Ref, x2Ref, rstdOut."""
    call, rstd = valid_call("aclnnInplaceAddRmsNorm"), np.zeros((3, 4, 1), np.float32)
    size, executor, _ = call.phase1()
    accepted(aclnn.aclSetAclOpExecutorRepeatable(executor))
    accepted(aclnn.aclSetInputTensorAddr(executor, 2, call.arguments["gamma"], np.zeros(16, np.float32)))
    accepted(aclnn.aclSetOutputTensorAddr(executor, 2, call.arguments["rstdOut"], rstd))
    accepted(aclnn.aclnnInplaceAddRmsNorm(np.empty(size, np.uint8) if size else None, size, executor, None))
    accepted(acl.aclrtSynchronizeStream(None))
    assert not call.results["x1Ref"].any()
    assert rstd.all()


@pytest.mark.parametrize(
    ("function", "output", "other"),
    [
        ("aclnnLayerNormBackward", "gradInputOut", "mean"),
        ("aclnnLayerNormBackward", "gradWeightOut", "input"),
        ("aclnnLayerNormBackward", "gradBiasOut", "gradWeightOut"),
        ("aclnnLayerNormBackward", "gradInputOut", "input"),
        ("aclnnLayerNorm", "out", "weightOptional"),
        ("aclnnLayerNorm", "meanOutOptional", "input"),
        ("aclnnLayerNorm", "rstdOutOptional", "meanOutOptional"),
        ("aclnnLayerNorm", "out", "input"),
        ("aclnnRmsNorm", "rstdOut", "gamma"),
        ("aclnnAddRmsNorm", "xOut", "gamma"),
        ("aclnnInplaceAddRmsNorm", "x1Ref", "x2Ref"),
        ("aclnnRmsNormGrad", "dgammaOut", "rstd"),
        ("aclnnAddLayerNorm", "xOut", "gamma"),
        ("aclnnAddLayerNorm", "xOut", "yOut"),
        ("aclnnAddLayerNorm", "meanOut", "x2"),
        ("aclnnDeepNorm", "yOut", "gx"),
        ("aclnnDeepNormGrad", "dxOut", "dgxOut"),
        ("aclnnAddLayerNormGrad", "dgammaOut", "dsumOptional"),
        ("aclnnAdaLayerNorm", "out", "shift"),
        ("aclnnAddRmsNormQuant", "xOut", "scales1"),
    ],
)
def test_outputs_that_would_destroy_other_memory(function, output, other):
    dtype = "bfloat16" if function in FUSED else "float32"
    call, buffer = valid_call(function, BASE, dtype), np.zeros(400, numpy_dtype(dtype))
    for name, start in ((other, 0), (output, 2)):
        facts = call.arguments[name].facts
        call.arguments[name], _ = view_of(buffer, facts.shape, facts.strides, start)
    refused(call.phase2(), aclnn.ACLNN_ERR_PARAM_INVALID, f"{output}: shares memory with {other}")
    assert not buffer.any()


TAKING_NO_ROWS = (*FORWARDS, "aclnnRmsNorm", "aclnnGemmaRmsNorm", "aclnnAddRmsNorm", "aclnnAddRmsNormCast")
TAKING_NO_ROWS += ("aclnnAddRmsNormQuant", "aclnnLayerNormQuant", "aclnnLayerNormalizationGrad")


@pytest.mark.parametrize("function", TAKING_NO_ROWS)
def test_no_rows_are_no_work(function):
    call = valid_call(function, Case((0, 4), (16,)))
    size, executor, ret = call.phase1()
    accepted(ret)
    assert size == 0
    accepted(getattr(aclnn, function)(None, 0, executor, None))
    accepted(acl.aclrtSynchronizeStream(None))


def strided_call():
    """A call with an input and an output that no single row stride describes."""
    call = Call(Case((16, 16), (2048,)))
    call.arguments["input"], view = strided(call.inputs.x.shape, "float32", (1, 0, 2))
    view[...] = call.inputs.x
    call.arguments["gradInputOut"], _ = strided(call.inputs.x.shape, "float32", (1, 0, 2))
    return call


LARGE = Case((256,), (2048,))
SPACIOUS = {
    "direct": lambda: Call(LARGE),
    "strided": strided_call,
    "cast gradInput": lambda: Call(LARGE, out_dtypes=("float16", "bfloat16", "float32")),
    "widened": lambda: Call(LARGE, "float16", out_dtypes=("bfloat16", None, None)),
    "device rounding": lambda: Call(LARGE, "bfloat16"),
    "without gradInput": lambda: Call(LARGE, "bfloat16", mask=(False, True, True)),
    "forward": lambda: ForwardCall(LARGE),
    "forward without statistics": lambda: ForwardCall(LARGE, "bfloat16").changed(
        "meanOutOptional rstdOutOptional=null"
    ),
    "forward cast out": lambda: ForwardCall(LARGE, out_dtypes=("float16", "bfloat16", "float32")),
    "forward widened": lambda: ForwardCall(LARGE, "float16", out_dtypes=("bfloat16", None, None)),
    "of a sum": lambda: valid_call("aclnnDeepNormGrad", LARGE, "bfloat16"),
}


@pytest.mark.parametrize("name", SPACIOUS)
def test_phase_2_allocates_nothing_of_size(name):
    with soc.use("Ascend910B1", rounding="device" if name == "device rounding" else "even"):
        call = SPACIOUS[name]()
        call.run()  # compiles
        size, executor, _ = call.phase1()
    workspace = np.empty(size, np.uint8)
    gc.collect()
    tracemalloc.start()
    try:
        accepted(getattr(aclnn, call.function)(workspace, size, executor, None))
        accepted(acl.aclrtSynchronizeStream(None))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000 < LARGE.lead[0] * LARGE.normalized[0] * 2 / 5  # a fifth of the smallest tensor
