"""The operators of root mean squares: results against the reference, and every rule of their pages broken once.

docs/ascend.md lists the rules, lngrad-ascend/tests/host_rules.csv with the ids used here.
"""

from __future__ import annotations

import numpy as np
import pytest

from aclnn_harness import SENTINEL, empty_tensor, strided, tensor
from lngrad.core.problem import RmsForward, RmsGrads
from lngrad.support.dtypes import numpy_dtype
from lngrad.testing import CASES, Case, Normalization, check_forward, check_grads, check_same_bits, make_inputs
from lngrad_ascend import acl, aclnn, soc

NULLPTR, INVALID = aclnn.ACLNN_ERR_PARAM_NULLPTR, aclnn.ACLNN_ERR_PARAM_INVALID
TILING, NO_KERNEL = aclnn.ACLNN_ERR_INNER_TILING_ERROR, aclnn.ACLNN_ERR_INNER_FIND_KERNEL_ERROR
F32, F16, BF16 = acl.ACL_FLOAT, acl.ACL_FLOAT16, acl.ACL_BF16
RMS = Normalization(centred=False)
BASE = Case((3, 4), (16,))  # x (3, 4, 16), 12 rows
NINE = (1,) * 6 + (3, 4, 16)
EPSILON = 1e-6
FUNCTIONS = ("aclnnRmsNorm", "aclnnRmsNormGrad", "aclnnGemmaRmsNorm", "aclnnAddRmsNorm", "aclnnInplaceAddRmsNorm")
FORWARDS = tuple(name for name in FUNCTIONS if name != "aclnnRmsNormGrad")


class Call:
    """A valid call; `arguments` may be exchanged before phase 1."""

    def __init__(self, function, case=BASE, dtype="float32"):
        added = "Add" in function
        norm = RMS._replace(offset=1.0) if "Gemma" in function else RMS
        self.function = function
        self.inputs = i = make_inputs(case, dtype, normalization=norm, residual=added)
        rows = (*case.lead, *(1,) * len(case.normalized))
        x, rstd = i.x.copy(), np.full(rows, SENTINEL, np.float32)
        y = np.full(i.x.shape, SENTINEL, numpy_dtype(dtype))
        if function == "aclnnRmsNormGrad":
            dgamma = np.full(case.normalized, SENTINEL, np.float32)
            self.arrays = {"dy": i.dy, "x": x, "rstd": i.rstd, "gamma": i.gamma, "dxOut": y, "dgammaOut": dgamma}
            self.results = y, dgamma
        elif function == "aclnnInplaceAddRmsNorm":
            total = i.residual.copy()
            self.arrays = {"x1Ref": x, "x2Ref": total, "gamma": i.gamma, "epsilon": EPSILON, "rstdOut": rstd}
            self.results = x, rstd, total
        elif function == "aclnnAddRmsNorm":
            total = np.full_like(y, SENTINEL)
            read = {"x1": x, "x2": i.residual, "gamma": i.gamma, "epsilon": EPSILON}
            self.arrays = read | {"yOut": y, "rstdOut": rstd, "xOut": total}
            self.results = y, rstd, total
        else:
            self.arrays = {"x": x, "gamma": i.gamma, "epsilon": EPSILON, "yOut": y, "rstdOut": rstd}
            self.results = y, rstd
        self.arguments = {name: one if name == "epsilon" else tensor(one) for name, one in self.arrays.items()}

    def phase1(self):
        return getattr(aclnn, f"{self.function}GetWorkspaceSize")(**self.arguments)

    def run(self):
        size, executor, ret = self.phase1()
        assert ret == aclnn.ACLNN_SUCCESS, acl.aclGetRecentErrMsg()
        ret = getattr(aclnn, self.function)(np.empty(size, np.uint8) if size else None, size, executor, None)
        assert ret == aclnn.ACLNN_SUCCESS, acl.aclGetRecentErrMsg()
        assert acl.aclrtSynchronizeStream(None) == acl.ACL_SUCCESS, acl.aclGetRecentErrMsg()

    def check(self):
        self.run()
        if self.function == "aclnnRmsNormGrad":
            check_grads(RmsGrads(*self.results), self.inputs)
        else:
            check_forward(RmsForward(*self.results), self.inputs, eps=EPSILON)


def refused(call, code, text):
    before = [result.copy() for result in call.results]
    size, executor, ret = call.phase1()
    message = acl.aclGetRecentErrMsg()
    assert ret == code, message
    assert text in message, message
    assert (size, executor) == (0, None)
    for result, was in zip(call.results, before, strict=True):
        check_same_bits(result, was)


@pytest.fixture(autouse=True)
def device():
    acl.aclInit(None)
    acl.aclrtSetDevice(0)
    yield
    acl.aclFinalize()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", [*(case for case in CASES[:14] if case.gamma), BASE], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_of_root_mean_squares_are_those_of_the_reference(function, case, dtype):
    Call(function, case, dtype).check()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("function", ["aclnnRmsNorm", "aclnnRmsNormGrad"])
def test_gamma_may_be_float_beside_16_bits(function, dtype):
    Call(function, Case((9,), (40,), gamma_dtype="float32"), dtype).check()


def test_the_sum_and_its_norm_take_the_places_of_what_was_added():
    call, other = Call("aclnnInplaceAddRmsNorm"), Call("aclnnAddRmsNorm")
    call.run()
    other.run()
    for one, same in zip(call.results, other.results, strict=True):
        check_same_bits(one, same)


def test_rstd_of_gemma_may_lack_the_last_dimensions():
    call = Call("aclnnGemmaRmsNorm")
    call.arguments["rstdOut"] = tensor(call.results[1].reshape(3, 4))
    call.check()


def test_x_and_its_norm_may_be_views():
    call = Call("aclnnRmsNorm")
    call.arguments["x"], x = strided((3, 4, 16), "float32", (1, 0, 2), (1, 2, 1), offset=3)
    call.arguments["yOut"], y = strided((3, 4, 16), "float32", (2, 0, 1), (1, 1, 3))
    x[...] = call.inputs.x
    call.run()
    check_forward(RmsForward(y, call.results[1]), call.inputs, eps=EPSILON)


@pytest.mark.parametrize("function", ["aclnnRmsNorm", "aclnnGemmaRmsNorm", "aclnnAddRmsNorm"])
def test_no_rows_are_no_work(function):
    call = Call(function, Case((0,), (16,)))
    assert call.phase1()[0] == 0
    call.run()


@pytest.mark.parametrize(
    ("function", "output", "other"),
    [
        ("aclnnRmsNorm", "rstdOut", "gamma"),
        ("aclnnAddRmsNorm", "xOut", "gamma"),
        ("aclnnInplaceAddRmsNorm", "x2Ref", "x1Ref"),
        ("aclnnRmsNormGrad", "dgammaOut", "rstd"),
    ],
)
def test_root_mean_squares_whose_outputs_would_destroy_other_memory(function, output, other):
    call = Call(function)
    buffer = np.zeros(400, np.float32)
    for name, start in ((other, 0), (output, 2)):
        shape = acl.aclGetViewShape(call.arguments[name])[0]
        call.arguments[name] = acl.aclCreateTensor(shape, F32, None, start, 2, (400,), buffer)
    size, executor, ret = call.phase1()
    assert ret == aclnn.ACLNN_SUCCESS, acl.aclGetRecentErrMsg()
    ret = getattr(aclnn, function)(np.empty(size, np.uint8) if size else None, size, executor, None)
    assert ret == INVALID
    assert "shares memory with" in acl.aclGetRecentErrMsg()
    assert not buffer.any()


def test_addresses_of_an_operator_that_replaces_its_inputs():
    """The places are those of what goes in: x1Ref, x2Ref, gamma; and of what comes out: x1Ref, x2Ref, rstdOut."""
    call, rstd = Call("aclnnInplaceAddRmsNorm"), np.zeros((3, 4, 1), np.float32)
    size, executor, _ = call.phase1()
    assert aclnn.aclSetAclOpExecutorRepeatable(executor) == 0
    gamma = np.zeros(16, np.float32)
    assert aclnn.aclSetInputTensorAddr(executor, 2, call.arguments["gamma"], gamma) == 0
    assert aclnn.aclSetOutputTensorAddr(executor, 2, call.arguments["rstdOut"], rstd) == 0
    assert aclnn.aclnnInplaceAddRmsNorm(np.empty(size, np.uint8) if size else None, size, executor, None) == 0
    assert acl.aclrtSynchronizeStream(None) == 0
    assert not call.results[0].any()
    assert rstd.all()


REQUIRED = [(function, name) for function in FUNCTIONS for name in Call(function).arrays if name != "epsilon"]


@pytest.mark.parametrize(("function", "name"), REQUIRED)
def test_a_null_tensor_of_root_mean_squares(function, name):
    call = Call(function)
    call.arguments[name] = None
    refused(call, NULLPTR, f"{name}: expected an argument, got a null pointer")


@pytest.mark.parametrize(("function", "name"), REQUIRED)
def test_a_handle_of_another_kind_in_root_mean_squares(function, name):
    call = Call(function)
    call.arguments[name] = acl.aclCreateIntArray([1])
    refused(call, INVALID, f"{name}: expected a living aclTensor")


def of(function, **arguments):
    """The function, and what is exchanged in its valid call."""
    return lambda: (function, arguments)


X, ROWS, R = (3, 4, 16), (3, 4, 1), (16,)
RULES = {
    "x-dtype": (
        lambda: ("aclnnRmsNorm", {"x": empty_tensor(X, acl.ACL_INT32)}),
        "x: expected one of ACL_FLOAT, ACL_FLOAT16, ACL_BF16 on Ascend910B1, got ACL_INT32",
    ),
    "gamma-dtype": (
        lambda: ("aclnnRmsNorm", {"gamma": empty_tensor(R, F16)}),
        "gamma: expected ACL_FLOAT or the dtype of x, ACL_FLOAT, got ACL_FLOAT16",
    ),
    "gamma-dtype-of-gemma": (
        lambda: ("aclnnGemmaRmsNorm", {"gamma": empty_tensor(R, F16)}),
        "gamma: expected the dtype of x, ACL_FLOAT, got ACL_FLOAT16",
    ),
    "gamma-dtype-of-add": (
        lambda: ("aclnnAddRmsNorm", {"gamma": empty_tensor(R, BF16)}),
        "gamma: expected the dtype of x1, ACL_FLOAT, got ACL_BF16",
    ),
    "x2-dtype": (
        lambda: ("aclnnAddRmsNorm", {"x2": empty_tensor(X, F16)}),
        "x2: expected the dtype of x1, ACL_FLOAT, got ACL_FLOAT16",
    ),
    "dy-dtype": (
        lambda: ("aclnnRmsNormGrad", {"dy": empty_tensor(X, F16)}),
        "dy: expected the dtype of x, ACL_FLOAT, got ACL_FLOAT16",
    ),
    "yOut-dtype": (
        lambda: ("aclnnRmsNorm", {"yOut": empty_tensor(X, F16)}),
        "yOut: expected the dtype of x, ACL_FLOAT, got ACL_FLOAT16",
    ),
    "dxOut-dtype": (
        lambda: ("aclnnRmsNormGrad", {"dxOut": empty_tensor(X, F16)}),
        "dxOut: expected the dtype of x, ACL_FLOAT, got ACL_FLOAT16",
    ),
    "rstdOut-dtype": (
        lambda: ("aclnnRmsNorm", {"rstdOut": empty_tensor(ROWS, F16)}),
        "rstdOut: expected ACL_FLOAT, got ACL_FLOAT16",
    ),
    "rstd-dtype": (
        lambda: ("aclnnRmsNormGrad", {"rstd": empty_tensor(ROWS, F16)}),
        "rstd: expected ACL_FLOAT, got ACL_FLOAT16",
    ),
    "dgammaOut-dtype": (
        lambda: ("aclnnRmsNormGrad", {"dgammaOut": empty_tensor(R, F16)}),
        "dgammaOut: expected ACL_FLOAT, got ACL_FLOAT16",
    ),
    "x-over-8-dims": (
        lambda: ("aclnnRmsNorm", {"x": empty_tensor(NINE)}),
        "x: expected at most 8 dimensions, got 9",
    ),
    "gamma-of-no-dims": (
        lambda: ("aclnnRmsNorm", {"gamma": empty_tensor(())}),
        "gamma: expected at least 1 dimension, got 0",
    ),
    "gamma-of-more-dims": (
        lambda: ("aclnnRmsNorm", {"gamma": empty_tensor((1, *X))}),
        "x: expected at least the 4 dimensions of gamma (1, 3, 4, 16), got 3: (3, 4, 16)",
    ),
    "gamma-shape": (
        lambda: ("aclnnRmsNorm", {"gamma": empty_tensor((3, 16))}),
        "gamma: expected the last dimensions of x (3, 4, 16), (4, 16), got (3, 16)",
    ),
    "yOut-shape": (
        lambda: ("aclnnRmsNorm", {"yOut": empty_tensor((12, 16))}),
        "yOut: expected the shape of x, (3, 4, 16), got (12, 16)",
    ),
    "x2-shape": (
        lambda: ("aclnnInplaceAddRmsNorm", {"x2Ref": empty_tensor((16,))}),
        "x2Ref: expected the shape of x1Ref, (3, 4, 16), got (16,)",
    ),
    "xOut-shape": (
        lambda: ("aclnnAddRmsNorm", {"xOut": empty_tensor((12, 16))}),
        "xOut: expected the shape of x1, (3, 4, 16), got (12, 16)",
    ),
    "rstdOut-shape": (
        lambda: ("aclnnRmsNorm", {"rstdOut": empty_tensor((3, 4))}),
        "rstdOut: expected the shape (3, 4, 1), one element per row, got (3, 4)",
    ),
    "rstdOut-shape-of-gemma": (
        lambda: ("aclnnGemmaRmsNorm", {"rstdOut": empty_tensor((12,))}),
        "rstdOut: expected the shape (3, 4, 1) or (3, 4), got (12,)",
    ),
    "rstd-elements": (
        lambda: ("aclnnRmsNormGrad", {"rstd": empty_tensor((13,))}),
        "rstd: expected 12 elements, the product of x's first 2 dimensions (3, 4), got 13: (13,)",
    ),
    "dxOut-shape": (
        lambda: ("aclnnRmsNormGrad", {"dxOut": empty_tensor((12, 16))}),
        "dxOut: expected the shape of x, (3, 4, 16), got (12, 16)",
    ),
    "dgammaOut-shape": (
        lambda: ("aclnnRmsNormGrad", {"dgammaOut": empty_tensor((1, 16))}),
        "dgammaOut: expected the shape of gamma, (16,), got (1, 16)",
    ),
    "yOut-overlaps-itself": (
        lambda: (
            "aclnnRmsNorm",
            {"yOut": acl.aclCreateTensor(X, F32, (0, 16, 1), 0, 2, (64,), np.zeros(64, np.float32))},
        ),
        "yOut: expected a place of its own for every element",
    ),
}

# The pages give them to the tiling: 561002. That of aclnnAddRmsNorm has 161002 for everything.
SHAPES = tuple(rule for rule in RULES if not rule.endswith(("dtype", "-of-gemma", "-of-add", "itself")))
SHAPES += ("rstdOut-shape-of-gemma",)

STRICT_RULES = {
    "rms-empty-gamma": (
        soc.DEFAULT,
        lambda: (
            "aclnnRmsNorm",
            {"x": empty_tensor((3, 0)), "gamma": empty_tensor((0,)), "yOut": empty_tensor((3, 0)),
             "rstdOut": empty_tensor((3, 1))},
        ),
        (TILING, "gamma: expected a tensor that is not empty, got (0,)"),
    ),
    "rms-inplace-not-contiguous": (
        soc.DEFAULT,
        lambda: ("aclnnInplaceAddRmsNorm", {"x1Ref": strided(X, "float32", (1, 0, 2))[0]}),
        (INVALID, "x1Ref: expected a contiguous tensor, got strides"),
    ),
    "rms-short-rows-on-310P": (
        "Ascend310P",
        lambda: (
            "aclnnRmsNorm",
            {"x": empty_tensor((3, 7)), "gamma": empty_tensor((7,)), "yOut": empty_tensor((3, 7)),
             "rstdOut": empty_tensor((3, 1))},
        ),
        (TILING, "gamma: expected a last axis of at least 32 bytes on Ascend310P, got 28"),
    ),
    "rms-mixed-on-310P": (
        "Ascend310P",
        lambda: ("aclnnRmsNorm", {"x": empty_tensor(X, F16), "yOut": empty_tensor(X, F16)}),
        (INVALID, "gamma: expected the dtype of x, ACL_FLOAT16, got ACL_FLOAT"),
    ),
    "rms-on-910A": (
        "Ascend910A", of("aclnnRmsNorm"), (NO_KERNEL, "aclnnRmsNorm: expected a product that has it, got Ascend910A")
    ),
    "rms-grad-on-910A": (
        "Ascend910A", of("aclnnRmsNormGrad"), (NO_KERNEL, "aclnnRmsNormGrad: expected a product that has it")
    ),
    "gemma-on-310P": (
        "Ascend310P", of("aclnnGemmaRmsNorm"), (NO_KERNEL, "aclnnGemmaRmsNorm: expected a product that has it")
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize("rule", RULES)
def test_rms_rule(rule, mode):
    make, text = RULES[rule]
    function, arguments = make()
    call = Call(function)
    call.arguments |= arguments
    with soc.use(soc.DEFAULT, mode=mode):
        refused(call, TILING if rule in SHAPES and function != "aclnnAddRmsNorm" else INVALID, text)


@pytest.mark.parametrize("rule", STRICT_RULES)
def test_rms_difference(rule):
    """Only what documents say: compat lets it pass."""
    name, make, (code, text) = STRICT_RULES[rule]
    function, arguments = make()
    call = Call(function)
    call.arguments |= arguments
    with soc.use(name):
        refused(call, code, text)
    with soc.use(name, mode="compat"):
        assert call.phase1()[2] == aclnn.ACLNN_SUCCESS, acl.aclGetRecentErrMsg()


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize("function", FORWARDS[:1] + FORWARDS[2:])
def test_no_root_mean_squares_of_bfloat16_on_atlas_inference(function, mode):
    with soc.use("Ascend310P", mode=mode):
        refused(Call(function, dtype="bfloat16"), INVALID, "expected one of ACL_FLOAT, ACL_FLOAT16 on Ascend310P")
