"""The forward's checks: every rule of the documents' tables is broken once, and the code and text that come are compared.

docs/ascend.md lists the rules row by row, lngrad-ascend/tests/host_rules.csv with the ids used here.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aclnn_harness import FORWARD_OUTPUTS, FORWARDS, ForwardCall, empty_tensor, tensor
from lngrad.testing import Case
from lngrad_ascend import acl, aclnn, soc

NULLPTR, INVALID = aclnn.ACLNN_ERR_PARAM_NULLPTR, aclnn.ACLNN_ERR_PARAM_INVALID
NO_KERNEL, INNER_NULLPTR = aclnn.ACLNN_ERR_INNER_FIND_KERNEL_ERROR, aclnn.ACLNN_ERR_INNER_NULLPTR
F32, F16, BF16 = acl.ACL_FLOAT, acl.ACL_FLOAT16, acl.ACL_BF16
BASE = Case((3, 4), (5,))  # input (3, 4, 5), 12 rows
NINE = (1,) * 7 + (3, 4, 5)
TENSORS = ("input", "weightOptional", "biasOptional", *FORWARD_OUTPUTS)


def refused(call, code, text):
    """Phase 1 fails with this code and text, and nothing was written."""
    size, executor, ret = call.phase1()
    message = acl.aclGetRecentErrMsg()
    assert ret == code, message
    assert text in message, message
    assert (size, executor) == (0, None)
    call.check_untouched()


def changed(dtype="float32", function="aclnnLayerNorm", case=BASE, **arguments):
    """A valid call with other arguments in place of some."""
    call = ForwardCall(case, dtype, function=function)
    call.arguments |= arguments
    return call


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize("function", FORWARDS)
@pytest.mark.parametrize("name", ["input", "normalizedShape", "out"])
def test_a_required_argument_of_the_forward_is_null(name, function, mode):
    with soc.use(soc.DEFAULT, mode=mode):
        call = changed(function=function, **{name: None})
        refused(call, NULLPTR, f"{name}: expected an argument, got a null pointer")


@pytest.mark.parametrize("name", [*TENSORS, "normalizedShape"])
def test_a_handle_of_another_kind_in_a_forward(name):
    refused(changed(**{name: object()}), INVALID, f"{name}: expected a living acl")
    call = changed()
    destroy = acl.aclDestroyIntArray if name == "normalizedShape" else acl.aclDestroyTensor
    assert destroy(call.arguments[name]) == 0
    refused(call, INVALID, "got a destroyed one")


RULES = {
    "input-over-8-dims": (lambda: {"input": empty_tensor(NINE)}, "input: expected at most 8 dimensions, got 10"),
    "out-over-8-dims": (lambda: {"out": empty_tensor(NINE)}, "out: expected at most 8 dimensions"),
    "weight-over-8-dims": (
        lambda: {"weightOptional": empty_tensor((1,) * 9)},
        "weightOptional: expected at most 8 dimensions",
    ),
    "bias-over-8-dims": (
        lambda: {"biasOptional": empty_tensor((1,) * 9)},
        "biasOptional: expected at most 8 dimensions",
    ),
    "mean-over-8-dims": (
        lambda: {"meanOutOptional": empty_tensor(NINE)},
        "meanOutOptional: expected at most 8 dimensions",
    ),
    "rstd-over-8-dims": (
        lambda: {"rstdOutOptional": empty_tensor(NINE)},
        "rstdOutOptional: expected at most 8 dimensions",
    ),
    "normalizedShape-over-8-dims": (
        lambda: {"normalizedShape": acl.aclCreateIntArray(NINE)},
        "normalizedShape: expected at most 8 dimensions",
    ),
    "normalizedShape-empty": (
        lambda: {"normalizedShape": acl.aclCreateIntArray([])},
        "normalizedShape: expected at least 1 dimension, got 0",
    ),
    "input-fewer-dims": (
        lambda: {"normalizedShape": acl.aclCreateIntArray([1, 3, 4, 5])},
        "input: expected at least the 4 dimensions of normalizedShape (1, 3, 4, 5), got 3",
    ),
    "normalizedShape-not-input's": (
        lambda: {"normalizedShape": acl.aclCreateIntArray([3, 5])},
        "normalizedShape: expected the last dimensions of input (3, 4, 5), (4, 5), got (3, 5)",
    ),
    "weight-shape": (
        lambda: {"weightOptional": empty_tensor((6,))},
        "weightOptional: expected the shape of normalizedShape, (5,), got (6,)",
    ),
    "weight-dims": (
        lambda: {"weightOptional": empty_tensor((1, 5))},
        "weightOptional: expected the shape of normalizedShape",
    ),
    "bias-shape": (
        lambda: {"biasOptional": empty_tensor((4,))},
        "biasOptional: expected the shape of normalizedShape, (5,), got (4,)",
    ),
    "out-shape": (
        lambda: {"out": empty_tensor((3, 4, 6))},
        "out: expected the shape of input, (3, 4, 5), got (3, 4, 6)",
    ),
    "weight-dtype": (
        lambda: {"weightOptional": empty_tensor((5,), F16)},
        "weightOptional: expected ACL_FLOAT or the dtype of input, ACL_FLOAT, got ACL_FLOAT16",
    ),
    "bias-dtype": (
        lambda: {"biasOptional": empty_tensor((5,), F16)},
        "biasOptional: expected ACL_FLOAT or the dtype of input, ACL_FLOAT, got ACL_FLOAT16",
    ),
    "out-overlaps-itself": (
        lambda: {"out": acl.aclCreateTensor((3, 4, 5), F32, (0, 5, 1), 0, 2, (60,), np.zeros(60, "f4"))},
        "out: expected a place of its own for every element, got strides (0, 5, 1)",
    ),
    "eps-no-number": (lambda: {"eps": "small"}, "eps: expected a number, got str"),
}
SHAPES = {"input": (3, 4, 5), "out": (3, 4, 5), "meanOutOptional": (3, 4, 1), "rstdOutOptional": (3, 4, 1)}
for _name in TENSORS:
    RULES[f"{_name}-ACL_DOUBLE"] = (
        lambda name=_name: {name: empty_tensor(SHAPES.get(name, (5,)), acl.ACL_DOUBLE)},
        f"{_name}: expected one of ACL_FLOAT, ACL_FLOAT16, ACL_BF16 on Ascend910B1, got ACL_DOUBLE",
    )


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize("function", FORWARDS)
@pytest.mark.parametrize("rule", RULES)
def test_forward_rule(rule, function, mode):
    make, text = RULES[rule]
    with soc.use(soc.DEFAULT, mode=mode):
        refused(changed(function=function, **make()), INVALID, text)


@pytest.mark.parametrize("mode", ["strict", "compat"])
def test_weight_and_bias_have_one_dtype(mode):
    with soc.use(soc.DEFAULT, mode=mode):
        call = changed("float16", biasOptional=empty_tensor((5,), F32))
        refused(call, INVALID, "biasOptional: expected the dtype of weightOptional, ACL_FLOAT16, got ACL_FLOAT")


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize("value", [-1, 3, 1.5, "0"])
def test_the_implementation_mode_is_0_to_2(value, mode):
    with soc.use(soc.DEFAULT, mode=mode):
        refused(changed(function="aclnnLayerNormWithImplMode", implMode=value), INVALID, "implMode: expected")


@pytest.mark.parametrize("mode", ["strict", "compat"])
def test_the_float16_mode_wants_float16_inputs(mode):
    with soc.use(soc.DEFAULT, mode=mode):
        call = changed(function="aclnnLayerNormWithImplMode", implMode=2)
        refused(call, INVALID, "input: expected ACL_FLOAT16, as implMode is 2, got ACL_FLOAT")
        call = changed(
            "float16", "aclnnLayerNormWithImplMode", implMode=2,
            weightOptional=empty_tensor((5,), F32), biasOptional=empty_tensor((5,), F32),
        )  # fmt: skip
        refused(call, INVALID, "weightOptional: expected ACL_FLOAT16, as implMode is 2, got ACL_FLOAT")


@pytest.mark.parametrize("mode", ["strict", "compat"])
def test_the_fast_function_has_a_limit_of_normalized_elements(mode):
    def call(columns, function):
        made = changed(function=function, weightOptional=None, biasOptional=None)
        for name, size in (("input", columns), ("out", columns), ("meanOutOptional", 1), ("rstdOutOptional", 1)):
            made.arguments[name] = acl.aclCreateTensor((1, size), F32, None, 0, 2, (1, size), None)
        made.arguments["normalizedShape"] = acl.aclCreateIntArray([columns])
        return made

    with soc.use(soc.DEFAULT, mode=mode):
        over = call(583_705_601, "aclnnFastLayerNorm")
        refused(over, INNER_NULLPTR, "normalizedShape: expected at most 583705600 elements, got (583705601,)")
        assert call(583_705_600, "aclnnFastLayerNorm").phase1()[2] == 0
        assert call(583_705_601, "aclnnLayerNorm").phase1()[2] == 0


# Each breaks one rule; the rule that comes first in the published order decides.
IN_ORDER = {
    "out null": ({"out": None}, "out: expected an argument"),
    "input dtype": ({"input": empty_tensor((3, 4, 5), acl.ACL_INT8)}, "input: expected one of"),
    "weight dtype": ({"weightOptional": empty_tensor((5,), F16)}, "weightOptional: expected ACL_FLOAT or"),
    "bias dtype": ({"biasOptional": empty_tensor((5,), acl.ACL_INT8)}, "biasOptional: expected one of"),
    "rstd dtype": ({"rstdOutOptional": empty_tensor((3, 4, 1), acl.ACL_INT8)}, "rstdOutOptional: expected one of"),
    "mean dims": ({"meanOutOptional": empty_tensor(NINE)}, "meanOutOptional: expected at most 8"),
    "normalizedShape": ({"normalizedShape": acl.aclCreateIntArray([])}, "normalizedShape: expected at least 1"),
    "out shape": ({"out": empty_tensor((3, 4, 6))}, "out: expected the shape"),
    "implMode": ({"implMode": 7}, "implMode: expected"),
}


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize(("first", "second"), list(zip(list(IN_ORDER)[:-1], list(IN_ORDER)[1:], strict=True)))
def test_the_first_broken_rule_of_a_forward_decides(first, second, mode):
    with soc.use(soc.DEFAULT, mode=mode):
        call = changed(function="aclnnLayerNormWithImplMode", **(IN_ORDER[second][0] | IN_ORDER[first][0]))
        call.phase1()
    assert IN_ORDER[first][1] in acl.aclGetRecentErrMsg()


HAS_NO_BF16 = ("Ascend310P", "Ascend910A")


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("product", soc.names())
def test_bfloat16_of_the_forward_by_product(product, name):
    if name in ("input", "weightOptional", "biasOptional"):
        call = changed("bfloat16")
    else:
        call = changed("float16", **{name: empty_tensor(SHAPES[name], BF16)})
    for mode in ("strict", "compat"):  # the published code has a list per architecture
        with soc.use(product, mode=mode):
            if product in HAS_NO_BF16:
                refused(call, INVALID, f"expected one of ACL_FLOAT, ACL_FLOAT16 on {product}, got ACL_BF16")
            else:
                assert call.phase1()[2] == 0, acl.aclGetRecentErrMsg()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("product", soc.names())
def test_the_forward_runs_on_every_product(product, dtype):
    with soc.use(product):
        changed(dtype).check()


# name: (call, SoC, cann, code and text of the mode that refuses: strict)
DIFFERENCES = {
    "fast-on-950": (
        lambda: changed(function="aclnnFastLayerNorm"),
        ("Ascend950", "8.3"),
        (NO_KERNEL, "aclnnFastLayerNorm: expected a product that has it, got Ascend950"),
    ),
    "fast-on-310P": (
        lambda: changed(function="aclnnFastLayerNorm"),
        ("Ascend310P", "8.3"),
        (NO_KERNEL, "aclnnFastLayerNorm: expected a product that has it, got Ascend310P"),
    ),
    "bf16-of-fast-on-910A": (
        lambda: changed("bfloat16", "aclnnFastLayerNorm"),
        ("Ascend910A", "8.3"),
        (NO_KERNEL, "aclnnFastLayerNorm: expected a product that has it"),
    ),
    "310P-by-the-newest-page": (
        changed,
        ("Ascend310P", "master"),
        (NO_KERNEL, "aclnnLayerNorm: expected a product that has it, got Ascend310P"),
    ),
    "mean-of-another-shape": (
        lambda: ForwardCall(BASE, out_shapes={"meanOutOptional": (12,)}),
        (soc.DEFAULT, "8.3"),
        (INVALID, "meanOutOptional: expected the shape (3, 4, 1), one element per row of input, got (12,)"),
    ),
    "rstd-of-another-shape": (
        lambda: ForwardCall(BASE, out_shapes={"rstdOutOptional": (4, 3)}),
        (soc.DEFAULT, "8.3"),
        (INVALID, "rstdOutOptional: expected the shape (3, 4, 1), one element per row of input, got (4, 3)"),
    ),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_forward_difference(difference):
    make, (name, cann), (code, text) = DIFFERENCES[difference]
    with soc.use(name, cann=cann):
        refused(make(), code, text)
    with soc.use(name, cann=cann, mode="compat"):
        make().check()


@pytest.mark.parametrize(("name", "function"), [("Ascend950", "aclnnLayerNorm"), (soc.DEFAULT, "aclnnFastLayerNorm")])
def test_compat_too_compares_statistics_where_the_code_does(name, function):
    call = ForwardCall(BASE, function=function, out_shapes={"meanOutOptional": (12,)})
    with soc.use(name, mode="compat"):
        refused(call, INVALID, "meanOutOptional: expected the shape (3, 4, 1)")


def test_a_mean_of_too_few_elements_fails_in_compat_when_it_would_be_copied():
    with soc.use(soc.DEFAULT, mode="compat"):
        refused(
            changed(meanOutOptional=empty_tensor((3, 1, 1))),
            INNER_NULLPTR,
            "meanOutOptional: expected 12 elements, one per row of input, got 3: (3, 1, 1)",
        )


STRANGE = (None, -1, 2.5, "x", [], {}, object(), np.zeros(3), True, Exception, float("nan"), 10**400)


@pytest.mark.property
@given(
    st.sampled_from(FORWARDS),
    st.dictionaries(
        st.sampled_from((*TENSORS, "normalizedShape", "eps", "implMode")),
        st.sampled_from(STRANGE),
        min_size=1,
        max_size=4,
    ),
)
def test_anything_in_the_place_of_a_forward_s_arguments_gives_a_code(function, arguments):
    call = ForwardCall(BASE, function=function)
    call.arguments |= {name: value for name, value in arguments.items() if name in call.arguments}
    size, executor, ret = call.phase1()
    if ret != 0:
        assert ret in (NULLPTR, INVALID)
        assert (size, executor) == (0, None)
        assert acl.aclGetRecentErrMsg()
    call.check_untouched()


def test_a_weight_in_float32_of_a_16_bit_input():
    call = ForwardCall(Case((3, 4), (5,), gamma_dtype="float32"), "bfloat16")
    call.check()
    call.arguments["biasOptional"] = tensor(call.inputs.beta.astype(np.float32))
    call.run()
