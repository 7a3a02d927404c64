"""Phase 1's checks: every rule of the documents' tables is broken once, and the code and text that come are compared.

docs/ascend.md lists the rules row by row, lngrad-ascend/tests/host_rules.csv with the ids used here.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aclnn_harness import OUTPUTS, Call, empty_tensor, tensor
from lngrad.testing import Case
from lngrad_ascend import acl, aclnn, soc

NULLPTR, INVALID = aclnn.ACLNN_ERR_PARAM_NULLPTR, aclnn.ACLNN_ERR_PARAM_INVALID
F32, F16, BF16 = acl.ACL_FLOAT, acl.ACL_FLOAT16, acl.ACL_BF16
BASE = Case((3, 4), (5,))  # input (3, 4, 5), 12 rows


def refused(call, code, text):
    """Phase 1 fails with this code and text, and nothing was written."""
    size, executor, ret = call.phase1()
    message = acl.aclGetRecentErrMsg()
    assert ret == code, message
    assert text in message, message
    assert (size, executor) == (0, None)
    call.check_untouched()


def changed(case=BASE, dtype="float32", **arguments):
    """A valid call with other arguments in place of some."""
    call = Call(case, dtype)
    call.arguments |= arguments
    return call


def destroyed(handle, destroy):
    assert destroy(handle) == 0
    return handle


REQUIRED = ("gradOut", "input", "normalizedShape", "mean", "rstd", "outputMask")


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize("name", REQUIRED)
def test_a_required_argument_is_null(name, mode):
    with soc.use(soc.DEFAULT, mode=mode):
        refused(changed(**{name: None}), NULLPTR, f"{name}: expected an argument, got a null pointer")


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize(("position", "name"), list(enumerate(OUTPUTS)))
def test_an_output_that_is_wanted_is_null(position, name, mode):
    with soc.use(soc.DEFAULT, mode=mode):
        refused(changed(**{name: None}), NULLPTR, f"{name}: expected a tensor, as outputMask[{position}] is true")


@pytest.mark.parametrize("name", [*REQUIRED, "weightOptional", "biasOptional", *OUTPUTS])
def test_a_handle_of_another_kind(name):
    refused(changed(**{name: object()}), INVALID, f"{name}: expected a living acl")
    refused(changed(**{name: np.zeros(3)}), INVALID, "got ndarray")


@pytest.mark.parametrize("name", [*REQUIRED, "weightOptional", "biasOptional", *OUTPUTS])
def test_a_destroyed_handle(name):
    call = Call()
    destroy = {"normalizedShape": acl.aclDestroyIntArray, "outputMask": acl.aclDestroyBoolArray}
    destroyed(call.arguments[name], destroy.get(name, acl.aclDestroyTensor))
    refused(call, INVALID, f"{name}: expected a living acl")


def out_of_range(name):
    shape = {"gradOut": (3, 4, 5), "input": (3, 4, 5), "mean": (3, 4, 1), "rstd": (3, 4, 1)}.get(name, (5,))
    return lambda dtype: changed(**{name: empty_tensor(shape, dtype)})


NINE = (1,) * 7 + (3, 4, 5)
OF_NINE = (1,) * 5 + (2, 1, 3, 4)

RULES = {
    "gradOut-shape": (
        lambda: changed(gradOut=empty_tensor((3, 4, 6))),
        "gradOut: expected the shape of input, (3, 4, 5)",
    ),
    "gradOut-dims": (lambda: changed(gradOut=empty_tensor((60,))), "gradOut: expected the shape of input"),
    "gradOut-dtype-of-input": (
        lambda: changed(gradOut=empty_tensor((3, 4, 5), F16)),
        "gradOut: expected the dtype of input, ACL_FLOAT, got ACL_FLOAT16",
    ),
    "gradOut-over-8-dims": (
        lambda: changed(gradOut=empty_tensor(NINE)),
        "gradOut: expected at most 8 dimensions, got 10",
    ),
    "input-over-8-dims": (
        lambda: changed(gradOut=empty_tensor((60,)), input=empty_tensor(NINE)),
        "input: expected at most 8 dimensions",
    ),
    "mean-over-8-dims": (lambda: changed(mean=empty_tensor(NINE)), "mean: expected at most 8 dimensions"),
    "rstd-over-8-dims": (lambda: changed(rstd=empty_tensor(NINE)), "rstd: expected at most 8 dimensions"),
    "normalizedShape-over-8-dims": (
        lambda: changed(normalizedShape=acl.aclCreateIntArray(NINE)),
        "normalizedShape: expected at most 8 dimensions",
    ),
    "weight-over-8-dims": (
        lambda: changed(weightOptional=empty_tensor(OF_NINE)),
        "weightOptional: expected at most 8 dimensions",
    ),
    "bias-over-8-dims": (
        lambda: changed(biasOptional=empty_tensor(OF_NINE)),
        "biasOptional: expected at most 8 dimensions",
    ),
    "gradInputOut-over-8-dims": (
        lambda: changed(gradInputOut=empty_tensor(NINE)),
        "gradInputOut: expected at most 8 dimensions",
    ),
    "gradWeightOut-over-8-dims": (
        lambda: changed(gradWeightOut=empty_tensor(NINE)),
        "gradWeightOut: expected at most 8 dimensions",
    ),
    "gradBiasOut-over-8-dims": (
        lambda: changed(gradBiasOut=empty_tensor(NINE)),
        "gradBiasOut: expected at most 8 dimensions",
    ),
    "normalizedShape-empty": (
        lambda: changed(normalizedShape=acl.aclCreateIntArray([])),
        "normalizedShape: expected at least 1 dimension, got 0",
    ),
    "input-fewer-dims": (
        lambda: changed(normalizedShape=acl.aclCreateIntArray([1, 3, 4, 5])),
        "input: expected at least the 4 dimensions of normalizedShape (1, 3, 4, 5), got 3",
    ),
    "normalizedShape-whole-input": (
        lambda: changed(normalizedShape=acl.aclCreateIntArray([3, 4, 6])),
        "normalizedShape: expected the last dimensions of input (3, 4, 5), got (3, 4, 6): 6 at 2 against 5",
    ),
    "mean-elements": (
        lambda: changed(mean=empty_tensor((3, 5)), rstd=empty_tensor((3, 5))),
        "mean: expected 12 elements, the product of input's first 2 dimensions (3, 4), got 15",
    ),
    "weight-shape": (
        lambda: changed(weightOptional=empty_tensor((6,))),
        "weightOptional: expected the shape of normalizedShape, (5,), got (6,)",
    ),
    "weight-dims": (lambda: changed(weightOptional=empty_tensor((1, 5))), "weightOptional: expected the shape"),
    "bias-shape": (
        lambda: changed(biasOptional=empty_tensor((6,))),
        "biasOptional: expected the shape of normalizedShape, (5,), got (6,)",
    ),
    "bias-shape-without-weight": (
        lambda: changed(weightOptional=None, biasOptional=empty_tensor((5, 1))),
        "biasOptional: expected the shape",
    ),
    "weight-dtype": (
        lambda: changed(weightOptional=empty_tensor((5,), F16)),
        "weightOptional: expected ACL_FLOAT or the dtype of input, ACL_FLOAT, got ACL_FLOAT16",
    ),
    "weight-dtype-of-another-16-bit": (
        lambda: changed(dtype="float16", weightOptional=empty_tensor((5,), BF16)),
        "weightOptional: expected ACL_FLOAT or the dtype of input, ACL_FLOAT16, got ACL_BF16",
    ),
    "outputMask-2": (
        lambda: changed(outputMask=acl.aclCreateBoolArray([True, True])),
        "outputMask: expected 3 booleans, got 2",
    ),
    "outputMask-4": (lambda: changed(outputMask=acl.aclCreateBoolArray([True] * 4)), "outputMask: expected 3 booleans"),
    "outputMask-0": (lambda: changed(outputMask=acl.aclCreateBoolArray([])), "outputMask: expected 3 booleans, got 0"),
    "gradInputOut-shape": (
        lambda: changed(gradInputOut=empty_tensor((60,))),
        "gradInputOut: expected the shape of input, (3, 4, 5), got (60,)",
    ),
    "gradWeightOut-elements": (lambda: changed(gradWeightOut=empty_tensor((6,))), "gradWeightOut: expected the"),
    "gradBiasOut-elements": (lambda: changed(gradBiasOut=empty_tensor((4,))), "gradBiasOut: expected the"),
    "gradInputOut-overlaps-itself": (
        lambda: changed(gradInputOut=acl.aclCreateTensor((3, 4, 5), F32, (0, 5, 1), 0, 2, (60,), np.zeros(60, "f4"))),
        "gradInputOut: expected a place of its own for every element, got strides (0, 5, 1)",
    ),
}
for _name in ("gradOut", "input", "mean", "rstd", "weightOptional", "biasOptional", *OUTPUTS):
    for _dtype in (acl.ACL_DOUBLE, acl.ACL_INT32, acl.ACL_STRING, acl.ACL_DT_UNDEFINED):
        if _name in OUTPUTS and _dtype != acl.ACL_DOUBLE:
            continue
        RULES[f"{_name}-{_dtype.name}"] = (
            lambda name=_name, dtype=_dtype: (
                changed(gradInputOut=empty_tensor((3, 4, 5), dtype))
                if name == "gradInputOut"
                else out_of_range(name)(dtype)
            ),
            f"{_name}: expected one of ACL_FLOAT, ACL_FLOAT16, ACL_BF16 on Ascend910B1, got {_dtype.name}",
        )


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize("rule", RULES)
def test_rule(rule, mode):
    make, text = RULES[rule]
    with soc.use(soc.DEFAULT, mode=mode):
        refused(make(), INVALID, text)


def test_rstd_of_another_number_of_elements():
    text = "rstd: expected 12 elements, the product of input's first 2 dimensions (3, 4), got 15: (3, 5)"
    refused(changed(rstd=empty_tensor((3, 5))), INVALID, text)
    with soc.use(soc.DEFAULT, mode="compat"):  # whose shape comes first
        refused(changed(rstd=empty_tensor((3, 5))), INVALID, "rstd: expected the shape of mean, (3, 4, 1), got (3, 5)")


def test_a_weight_that_only_the_tiling_stops():
    call = Call(Case((2, 6), (5, 6)))
    call.arguments |= {
        "normalizedShape": acl.aclCreateIntArray([6, 5]),
        "weightOptional": empty_tensor((6, 5)),
        "biasOptional": None,
        "outputMask": acl.aclCreateBoolArray([True, False, False]),
    }
    with soc.use(soc.DEFAULT, mode="compat"):
        refused(
            call, aclnn.ACLNN_ERR_INNER_TILING_ERROR, "weightOptional: expected the last dimensions of input, (5, 6)"
        )


# Each breaks one rule; the rule that comes first in the documented order decides.
IN_ORDER = {
    "gradOut null": ({"gradOut": None}, "gradOut: expected an argument"),
    "input null": ({"input": None}, "input: expected an argument"),
    "outputMask length": ({"outputMask": acl.aclCreateBoolArray([True])}, "outputMask: expected 3"),
    "gradBiasOut null": ({"gradBiasOut": None}, "gradBiasOut: expected a tensor"),
    "mean dtype": ({"mean": empty_tensor((3, 4, 1), acl.ACL_INT8)}, "mean: expected one of"),
    "weight dtype": ({"weightOptional": empty_tensor((5,), F16)}, "weightOptional: expected ACL_FLOAT or"),
    "bias dtype": ({"biasOptional": empty_tensor((5,), acl.ACL_INT8)}, "biasOptional: expected one of"),
    "gradInputOut dtype": ({"gradInputOut": empty_tensor((3, 4, 5), acl.ACL_INT8)}, "gradInputOut: expected one of"),
    "rstd dims": ({"rstd": empty_tensor(NINE)}, "rstd: expected at most 8"),
    "normalizedShape": ({"normalizedShape": acl.aclCreateIntArray([])}, "normalizedShape: expected at least 1"),
    "gradOut shape": ({"gradOut": empty_tensor((3, 4, 6))}, "gradOut: expected the shape"),
    "gradWeightOut elements": ({"gradWeightOut": empty_tensor((6,))}, "gradWeightOut: expected the"),
}


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize(("first", "second"), list(zip(list(IN_ORDER)[:-1], list(IN_ORDER)[1:], strict=True)))
def test_the_first_broken_rule_decides(first, second, mode):
    with soc.use(soc.DEFAULT, mode=mode):
        call = changed(**IN_ORDER[second][0])
        call.arguments |= IN_ORDER[first][0]
        _, _, ret = call.phase1()
    assert IN_ORDER[first][1] in acl.aclGetRecentErrMsg()
    assert ret in (NULLPTR, INVALID)


def bf16_in(name):
    """A call with bfloat16 in one argument, if need be in all that must follow it."""
    if name in ("gradOut", "input"):
        return Call(BASE, "bfloat16")
    if name in ("mean", "rstd"):
        return Call(Case((3, 4), (5,), statistics_dtype="bfloat16", gamma_dtype="float16"), "float16")
    call = Call(Case((3, 4), (5,), gamma=False), "float32")
    shape = (3, 4, 5) if name == "gradInputOut" else (5,)
    if name == "weightOptional":
        call = Call(Case((3, 4), (5,), gamma_dtype="bfloat16"), "bfloat16")
    else:
        call.arguments[name] = empty_tensor(shape, BF16)
    return call


@pytest.mark.parametrize("name", ["gradOut", "input", "mean", "rstd", "weightOptional", *OUTPUTS])
@pytest.mark.parametrize("product", soc.names())
def test_bfloat16_by_product(product, name):
    with soc.use(product):
        call = bf16_in(name)
        if product in ("Ascend310P", "Ascend910A"):
            refused(call, INVALID, f"expected one of ACL_FLOAT, ACL_FLOAT16 on {product}, got ACL_BF16")
        else:
            assert call.phase1()[2] == 0, acl.aclGetRecentErrMsg()


@pytest.mark.parametrize("product", soc.names())
def test_a_bfloat16_bias_by_product(product):
    with soc.use(product):
        if product in ("Ascend310P", "Ascend910A"):
            call = changed(dtype="float16", biasOptional=empty_tensor((5,), BF16))
            refused(call, INVALID, f"biasOptional: expected one of ACL_FLOAT, ACL_FLOAT16 on {product}, got ACL_BF16")
        else:
            changed(dtype="bfloat16", biasOptional=empty_tensor((5,), BF16)).check()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("product", soc.names())
def test_the_other_dtypes_exist_on_every_product(product, dtype):
    with soc.use(product):
        Call(BASE, dtype).check()


@pytest.mark.parametrize("name", ["gradWeightOut", "gradBiasOut"])
def test_the_first_release_has_float_sums_only(name):
    outputs = [None, "float32", "float32"]
    with soc.use("Ascend910B1", cann="8.0.RC1"):
        Call(BASE, "float16", out_dtypes=outputs).check()
        outputs[OUTPUTS.index(name)] = "float16"
        refused(
            Call(BASE, "float16", out_dtypes=outputs), INVALID, f"{name}: expected ACL_FLOAT, as CANN 8.0.RC1 has it"
        )
    with soc.use("Ascend910B1", cann="8.0.RC1", mode="compat"):
        Call(BASE, "float16", out_dtypes=outputs).check()


def test_the_first_release_does_not_ask_about_an_output_that_is_masked_off():
    with soc.use("Ascend910B1", cann="8.0.RC1"):
        Call(BASE, "float16", mask=(True, False, False)).check()


@pytest.mark.parametrize("product", ["Ascend910_93", "Ascend950"])
def test_the_first_release_gives_bfloat16_to_atlas_a2_alone(product):
    outputs = (None, "float32", "float32")
    with soc.use(product, cann="8.0.RC1"):
        refused(Call(BASE, "bfloat16", out_dtypes=outputs), INVALID, "got ACL_BF16")
    with soc.use("Ascend910B1", cann="8.0.RC1"):
        Call(BASE, "bfloat16", out_dtypes=outputs).check()


def test_the_first_release_ties_no_dtypes_of_statistics_and_bias():
    call = Call(Case((3, 4), (5,)), "float16", out_dtypes=(None, "float32", "float32"))
    call.arguments |= {"mean": tensor(call.inputs.mean.astype(np.float16)), "biasOptional": empty_tensor((5,), BF16)}
    with soc.use("Ascend910B1", cann="8.0.RC1"):
        assert call.phase1()[2] == 0, acl.aclGetRecentErrMsg()
    with soc.use("Ascend910B1"):
        refused(call, INVALID, "rstd: expected the dtype of mean, ACL_FLOAT16, got ACL_FLOAT")


def other_norm():
    """The example of the uncompared normalizedShape: input (2, 6, 5, 6), normalizedShape (7, 8)."""
    call = Call(Case((2, 6), (5, 6), gamma=False), mask=(True, False, False))
    call.arguments["normalizedShape"] = acl.aclCreateIntArray([7, 8])
    return call


def half_compared_norm():
    """Three of input's four dimensions: the code compares all but the first."""
    call = Call(Case((2,), (3, 4, 5), gamma=False), mask=(True, False, False))
    call.arguments["normalizedShape"] = acl.aclCreateIntArray([9, 4, 5])
    return call


def statistics(mean, rstd, dtype="float16"):
    call = Call(Case((3, 4), (5,)), dtype)
    call.arguments |= {
        "mean": tensor(call.inputs.mean.astype(mean)),
        "rstd": tensor(call.inputs.rstd.astype(rstd)),
    }
    call.inputs = type(call.inputs)(
        **{
            **call.inputs.__dict__,
            "mean": call.inputs.mean.astype(mean).astype(np.float32),
            "rstd": call.inputs.rstd.astype(rstd).astype(np.float32),
        }
    )
    return call


def flat_rstd():
    call = Call()
    call.arguments["rstd"] = tensor(call.inputs.rstd.reshape(12))
    return call


def without_dimensions(name, case=BASE):
    """A call with one tensor of no dimensions where one element is wanted, and rows that are all of input."""
    call = Call(Case((), (3, 4, 5)), mask=(True, True, True))
    call.arguments[name] = tensor(np.array(call.inputs.mean.item(), np.float32))
    return call


def empty_call():
    x, rows = np.zeros((0, 5), np.float32), np.zeros((0, 1), np.float32)
    call = Call(Case((2,), (5,)))
    call.arguments |= {"gradOut": tensor(x), "input": tensor(x), "gradInputOut": tensor(x)}
    call.arguments |= {"mean": tensor(rows), "rstd": tensor(rows)}
    return call


@pytest.mark.parametrize("name", ["mean", "rstd"])
def test_the_newest_page_wants_1_to_8_dimensions(name):
    text = f"{name}: expected 1 to 8 dimensions, got 0: ()"
    with soc.use(soc.DEFAULT, cann="master"):
        refused(without_dimensions(name), INVALID, text)
        refused(changed(gradOut=empty_tensor(NINE)), INVALID, "gradOut: expected 1 to 8 dimensions, got 10")
        Call(BASE).check()
    for settings in ({"cann": "master", "mode": "compat"}, {"cann": "8.3"}):
        with soc.use(soc.DEFAULT, **settings):
            call = without_dimensions(name)
            ret = call.phase1()[2]
            assert ret == (INVALID if "mode" in settings else 0), (
                acl.aclGetRecentErrMsg()
            )  # rstd's shape is mean's there


def test_the_newest_page_refuses_empty_tensors():
    with soc.use(soc.DEFAULT, cann="master"):
        refused(empty_call(), INVALID, "gradOut: expected a tensor that is not empty, got (0, 5)")
    for settings in ({"cann": "master", "mode": "compat"}, {"cann": "8.3"}):
        with soc.use(soc.DEFAULT, **settings):
            assert empty_call().phase1()[2] == 0


BF = "bfloat16"
DIFFERENCES = {  # name: (call, SoC, the text of the mode that refuses, the mode that accepts)
    "bf16-on-310P": (lambda: Call(BASE, BF), "Ascend310P", "gradOut: expected one of ACL_FLOAT, ACL_FLOAT16", "compat"),
    "bf16-on-910A": (lambda: Call(BASE, BF), "Ascend910A", "gradOut: expected one of ACL_FLOAT, ACL_FLOAT16", "compat"),
    "mean-dtype-not-rstd's": (
        lambda: statistics("float16", "float32"),
        soc.DEFAULT,
        "rstd: expected the dtype of mean, ACL_FLOAT16, got ACL_FLOAT",
        "compat",
    ),
    "mean-narrower-than-input": (
        lambda: statistics("float16", "float16", "float32"),
        soc.DEFAULT,
        "mean: expected a dtype no narrower than input's, ACL_FLOAT, got ACL_FLOAT16",
        "compat",
    ),
    "bias-dtype-not-weight's": (
        lambda: changed(dtype="float16", biasOptional=empty_tensor((5,), F32)),
        soc.DEFAULT,
        "biasOptional: expected the dtype of weightOptional, ACL_FLOAT16, got ACL_FLOAT",
        "compat",
    ),
    "bias-dtype-neither-input's-nor-FLOAT": (
        lambda: changed(Case((3, 4), (5,), gamma=False), "float16", biasOptional=empty_tensor((5,), BF16)),
        soc.DEFAULT,
        "biasOptional: expected ACL_FLOAT or the dtype of input, ACL_FLOAT16, got ACL_BF16",
        "compat",
    ),
    "normalizedShape-uncompared": (
        other_norm,
        soc.DEFAULT,
        "normalizedShape: expected the last dimensions of input (2, 6, 5, 6), got (7, 8): 7 at 0 against 5",
        "compat",
    ),
    "normalizedShape-compared-in-part": (
        half_compared_norm,
        soc.DEFAULT,
        "normalizedShape: expected the last dimensions of input (2, 3, 4, 5), got (9, 4, 5): 9 at 0 against 3",
        "compat",
    ),
    "gradWeightOut-of-another-shape": (
        lambda: Call(BASE, out_shapes={"gradWeightOut": (1, 5)}),
        soc.DEFAULT,
        "gradWeightOut: expected the shape of normalizedShape, (5,), got (1, 5)",
        "compat",
    ),
    "gradBiasOut-of-another-shape": (
        lambda: Call(BASE, out_shapes={"gradBiasOut": (5, 1, 1)}),
        soc.DEFAULT,
        "gradBiasOut: expected the shape of normalizedShape, (5,), got (5, 1, 1)",
        "compat",
    ),
    "mean-and-rstd-of-different-shapes": (
        flat_rstd,
        soc.DEFAULT,
        "rstd: expected the shape of mean, (3, 4, 1), got (12,)",
        "strict",
    ),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_difference(difference):
    make, name, text, accepting = DIFFERENCES[difference]
    with soc.use(name, mode="compat" if accepting == "strict" else "strict"):
        refused(make(), INVALID, text)
    call = make()
    with soc.use(name, mode=accepting):
        call.check()


def test_compat_compares_normalizedShape_from_the_first_normalized_axis_on():
    call = half_compared_norm()
    call.arguments["normalizedShape"] = acl.aclCreateIntArray([3, 9, 5])
    with soc.use(soc.DEFAULT, mode="compat"):
        refused(call, INVALID, "9 at 1 against 4")


def test_a_strided_sum_of_another_shape_is_written_through_the_workspace():
    call = Call(Case((9,), (2, 3)))
    storage = np.zeros(20, np.float32)
    call.arguments["gradBiasOut"] = acl.aclCreateTensor((3, 2), F32, (1, 5), 2, 2, (20,), storage)
    with soc.use(soc.DEFAULT, mode="compat"):
        call.run()
        call.arguments["gradBiasOut"] = tensor(call.results["gradBiasOut"])
        expected = call.run()
    view = np.lib.stride_tricks.as_strided(storage[2:], (3, 2), (4, 20))
    assert view.ravel().tolist() == expected.dbeta.ravel().tolist()


STRANGE = (None, 0, -1, 2.5, "x", b"x", [], (1, 2), {}, object(), np.zeros(3), True, Exception, lambda: None)
PARAMETERS = (*REQUIRED[:5], "weightOptional", "biasOptional", "outputMask", *OUTPUTS)


@pytest.mark.property
@given(st.dictionaries(st.sampled_from(PARAMETERS), st.sampled_from(STRANGE), min_size=1, max_size=4))
def test_anything_in_the_place_of_arguments_gives_a_code(arguments):
    call = Call()
    call.arguments |= arguments
    size, executor, ret = call.phase1()
    harmless = {
        name for name, value in arguments.items() if value is None and name in ("weightOptional", "biasOptional")
    }
    if set(arguments) == harmless:
        assert ret == 0
    else:
        assert ret in (NULLPTR, INVALID)
        assert (size, executor) == (0, None)
        assert acl.aclGetRecentErrMsg()
    call.check_untouched()
