"""Phase 1's checks: rules.csv breaks every rule of the documents' tables once, and the code and text that come are compared.

docs/ascend.md lists the rules, lngrad-ascend/tests/host_rules.csv with the ids used here. A row has the operators, the target
(products, a release), the dtype of x, the arguments that are exchanged in the valid call (OperatorCall.changed), what phase 1
returns in either mode, and a part of the text. Instead of an error: "values", which are compared with float64; "accepted",
where the exchanged tensors have no right values to compare; or nothing, where the other mode says enough.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from norm_calls import FUNCTIONS, QUANTIZED, valid_call

from aclnn_harness import FORWARDS, OUTPUTS
from lngrad.testing import Case
from lngrad_ascend import acl, aclnn, soc

NULLPTR, INVALID = aclnn.ACLNN_ERR_PARAM_NULLPTR, aclnn.ACLNN_ERR_PARAM_INVALID
MODES = ("strict", "compat")
with (Path(__file__).parent / "rules.csv").open(encoding="utf-8", newline="") as file:
    RULES = {row["id"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize(("rule", "mode"), [(rule, mode) for rule, row in RULES.items() for mode in MODES if row[mode]])
def test_rule(rule, mode):
    row = RULES[rule]
    release = dict(word.split("=") for word in row["target"].split() if "=" in word)
    products = [word for word in row["target"].split() if "=" not in word] or [soc.DEFAULT]
    operators = FORWARDS if row["operators"] == "forwards" else row["operators"].split()
    for operator, product in ((operator, product) for operator in operators for product in products):
        with soc.use(product, mode=mode, **release):
            call = valid_call(operator, dtype=row["dtype"] or None).changed(row["changes"])
            if row[mode] == "values":
                call.check()
            elif row[mode] == "accepted":
                call.run()
            else:
                call.refused(aclnn.aclnnStatus[f"ACLNN_ERR_{row[mode]}"], row["text"].replace("{product}", product))


ARGUMENTS = [
    (function, name)
    for function in FUNCTIONS
    for name, value in valid_call(function).arguments.items()
    if isinstance(value, acl.aclTensor | acl.aclIntArray | acl.aclBoolArray)
]
REQUIRED = [
    (function, name)
    for function, name in ARGUMENTS
    if not name.endswith("Optional") or (function, name) == ("aclnnLayerNormQuant", "zeroPointsOptional")
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("function", "name"), REQUIRED)
def test_a_required_argument_is_null(function, name, mode):
    text = f"{name}: expected an argument, got a null pointer"
    if name in OUTPUTS:
        text = f"{name}: expected a tensor, as outputMask[{OUTPUTS.index(name)}] is true"
    with soc.use(soc.DEFAULT, mode=mode):
        valid_call(function).changed(**{name: None}).refused(NULLPTR, text)


@pytest.mark.parametrize(("function", "name"), ARGUMENTS)
def test_a_handle_of_another_kind_and_a_destroyed_one(function, name):
    call = valid_call(function)
    handle = call.arguments[name]
    kind = type(handle).__name__
    other = acl.aclCreateBoolArray([1]) if kind == "aclIntArray" else acl.aclCreateIntArray([1])
    for value, text in ((object(), "got object"), (np.zeros(3), "got ndarray"), (other, f"got {type(other).__name__}")):
        call.arguments[name] = value
        call.refused(INVALID, f"{name}: expected a living {kind}, {text}")
    assert getattr(acl, kind.replace("acl", "aclDestroy"))(handle) == 0
    call.changed(**{name: handle}).refused(INVALID, f"{name}: expected a living {kind}, got a destroyed one")


# Each breaks one rule; the rule that comes first in the documented order decides.
IN_ORDER = {
    "aclnnLayerNormBackward": {
        "gradOut=null": "gradOut: expected an argument",
        "input=null": "input: expected an argument",
        "outputMask=bools(1)": "outputMask: expected 3",
        "gradBiasOut=null": "gradBiasOut: expected a tensor",
        "mean=INT8(3,4,1)": "mean: expected one of",
        "weightOptional=FLOAT16(5)": "weightOptional: expected ACL_FLOAT or",
        "biasOptional=INT8(5)": "biasOptional: expected one of",
        "gradInputOut=INT8(3,4,5)": "gradInputOut: expected one of",
        "rstd=FLOAT(1,1,1,1,1,1,1,3,4,5)": "rstd: expected at most 8",
        "normalizedShape=ints()": "normalizedShape: expected at least 1",
        "gradOut=FLOAT(3,4,6)": "gradOut: expected the shape",
        "gradWeightOut=FLOAT(6)": "gradWeightOut: expected the",
    },
    "aclnnLayerNormWithImplMode": {
        "out=null": "out: expected an argument",
        "input=INT8(3,4,5)": "input: expected one of",
        "weightOptional=FLOAT16(5)": "weightOptional: expected ACL_FLOAT or",
        "biasOptional=INT8(5)": "biasOptional: expected one of",
        "rstdOutOptional=INT8(3,4,1)": "rstdOutOptional: expected one of",
        "meanOutOptional=FLOAT(1,1,1,1,1,1,1,3,4,5)": "meanOutOptional: expected at most 8",
        "normalizedShape=ints()": "normalizedShape: expected at least 1",
        "out=FLOAT(3,4,6)": "out: expected the shape",
        "implMode=7": "implMode: expected",
    },
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("function", "first", "second"),
    [
        (function, first, second)
        for function, rules in IN_ORDER.items()
        for first, second in zip(list(rules)[:-1], list(rules)[1:], strict=True)
    ],
)
def test_the_first_broken_rule_decides(function, first, second, mode):
    with soc.use(soc.DEFAULT, mode=mode):
        call = valid_call(function).changed(second).changed(first)
        call.refused(NULLPTR if first.endswith("null") else INVALID, IN_ORDER[function][first])


@pytest.mark.parametrize("mode", MODES)
def test_the_fast_function_has_a_limit_of_normalized_elements(mode):
    def call(columns, function):
        wide, narrow = (
            acl.aclCreateTensor((1, size), acl.ACL_FLOAT, None, 0, 2, (1, size), None) for size in (columns, 1)
        )
        return valid_call(function).changed(
            "weightOptional biasOptional=null", input=wide, out=wide, meanOutOptional=narrow, rstdOutOptional=narrow,
            normalizedShape=acl.aclCreateIntArray([columns]),
        )  # fmt: skip

    with soc.use(soc.DEFAULT, mode=mode):
        text = "normalizedShape: expected at most 583705600 elements, got (583705601,)"
        call(583_705_601, "aclnnFastLayerNorm").refused(aclnn.ACLNN_ERR_INNER_NULLPTR, text)
        assert call(583_705_600, "aclnnFastLayerNorm").phase1()[2] == 0
        assert call(583_705_601, "aclnnLayerNorm").phase1()[2] == 0


def test_dtypes_of_quantized_norms_on_ascend_950():
    with soc.use("Ascend950"):
        valid_call("aclnnRmsNormQuant", dtype="float32").changed("offset=FLOAT(1)").check()
        valid_call("aclnnAddRmsNormQuant", dtype="float32").check()
        valid_call("aclnnLayerNormQuant", dtype="float32").check()


@pytest.mark.parametrize("function", QUANTIZED)
def test_quantized_norms_of_atlas_inference_need_rows_of_32_bytes(function):
    with soc.use("Ascend310P"):
        valid_call(function, Case((4,), (8,))).refused(INVALID, "a last axis of at least 32 bytes")
        valid_call(function).check()


STRANGE = (None, 0, -1, 2.5, "x", b"x", [], (1, 2), {}, object(), np.zeros(3), True, Exception, lambda: None)
STRANGE += (float("nan"), 10**400)


@pytest.mark.property
@given(st.data())
def test_anything_in_the_place_of_arguments_gives_a_code(data):
    function = data.draw(st.sampled_from(FUNCTIONS))
    call = valid_call(function)
    names = st.sampled_from(list(call.arguments))
    arguments = data.draw(st.dictionaries(names, st.sampled_from(STRANGE), min_size=1, max_size=4))
    call.arguments |= arguments
    size, executor, ret = call.phase1()
    if ret:
        assert ret in (NULLPTR, INVALID)
        assert (size, executor) == (0, None)
        assert acl.aclGetRecentErrMsg()
    if function == "aclnnLayerNormBackward":
        optional = {name for name, value in arguments.items() if value is None and name.endswith("Optional")}
        assert (ret == 0) == (set(arguments) == optional)
    call.check_untouched()
