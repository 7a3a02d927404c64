"""Layer normalization of a sum: results against float64, and every rule of the pages broken once.

docs/ascend.md lists the rules, lngrad-ascend/tests/host_rules.csv with the ids used here.
"""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from aclnn_harness import SENTINEL, empty_tensor, strided, tensor
from lngrad.core import reference
from lngrad.core.problem import Forward, Grads
from lngrad.support.dtypes import numpy_dtype
from lngrad.testing import (
    CASES,
    Case,
    check_forward,
    check_grads,
    check_same_bits,
    error_share,
    make_inputs,
)
from lngrad_ascend import acl, aclnn, soc

NULLPTR, INVALID = aclnn.ACLNN_ERR_PARAM_NULLPTR, aclnn.ACLNN_ERR_PARAM_INVALID
TILING, NO_KERNEL = aclnn.ACLNN_ERR_INNER_TILING_ERROR, aclnn.ACLNN_ERR_INNER_FIND_KERNEL_ERROR
F32, F16, BF16 = acl.ACL_FLOAT, acl.ACL_FLOAT16, acl.ACL_BF16
BASE = Case((3, 4), (16,))
EPSILON, ALPHA = 1e-6, 0.3
FUNCTIONS = ("aclnnAddLayerNorm", "aclnnAddLayerNormGrad", "aclnnDeepNorm", "aclnnDeepNormGrad")
NUMBERS = {"epsilon": EPSILON, "alpha": ALPHA, "additionalOutput": True}


def named(names, arrays):
    return dict(zip(names, arrays, strict=True))


class Call:
    """A valid call; `arguments` may be exchanged before phase 1."""

    def __init__(self, function, case=BASE, dtype="float32", bias="columns", seed=0):
        self.function, self.forward = function, not function.endswith("Grad")
        self.alpha = ALPHA if "Deep" in function else 1.0
        self.inputs = i = make_inputs(case, dtype, seed, residual=True)
        rows = (*case.lead, *(1,) * len(case.normalized))
        # What is normalized, in float64: the inputs of the comparators have it in float32, and mean and rstd of it.
        exact = self.alpha * i.x.astype(np.float64) + i.residual.astype(np.float64)
        self.bias = None
        if function == "aclnnAddLayerNorm" and bias:
            shape = case.normalized if bias == "columns" else i.x.shape
            self.bias = np.random.default_rng(7).standard_normal(shape).astype(numpy_dtype(dtype))
            exact = exact + self.bias.astype(np.float64)
        self.total, self.scale = exact, np.abs(self.alpha * i.x) + np.abs(i.residual) + np.abs(exact)
        known = reference.layer_norm(exact, normalized=len(case.normalized))
        mean, rstd = (np.asarray(one, np.float32).reshape(rows) for one in (known.mean, known.rstd))
        like_x = lambda: np.full(i.x.shape, SENTINEL, numpy_dtype(dtype))  # noqa: E731
        sums = [np.full(case.normalized, SENTINEL, np.float32) for _ in range(2)]
        statistics = [np.full(rows, SENTINEL, np.float32) for _ in range(2)]
        terms = (i.x.copy(), i.residual.copy())
        if function == "aclnnAddLayerNorm":
            read = named(("x1", "x2", "gamma", "beta", "biasOptional"), (*terms, i.gamma, i.beta, self.bias))
            written = named(("yOut", "meanOut", "rstdOut", "xOut"), (like_x(), *statistics, like_x()))
            numbers = ("epsilon", "additionalOutput")
        elif function == "aclnnDeepNorm":
            read = named(("x", "gx", "beta", "gamma"), (*terms, i.beta, i.gamma))
            written, numbers = named(("meanOut", "rstdOut", "yOut"), (*statistics, like_x())), ("alpha", "epsilon")
        elif function == "aclnnAddLayerNormGrad":
            names = ("dy", "x1", "x2", "rstd", "mean", "gamma", "dsumOptional")
            read = named(names, (i.dy, *terms, rstd, mean, i.gamma, i.dtotal))
            written, numbers = named(("dxOut", "dgammaOut", "dbetaOut"), (like_x(), *sums)), ()
        else:
            read = named(("dy", "x", "gx", "gamma", "mean", "rstd"), (i.dy, *terms, i.gamma, mean, rstd))
            names = ("dxOut", "dgxOut", "dbetaOut", "dgammaOut")
            written, numbers = named(names, (like_x(), like_x(), *sums)), ("alpha",)
        self.mean, self.rstd, self.written = mean, rstd, written
        self.arguments = {name: None if one is None else tensor(one) for name, one in read.items()}
        self.arguments |= {name: NUMBERS[name] for name in numbers}
        self.arguments |= {name: tensor(one) for name, one in written.items()}

    def phase1(self):
        return getattr(aclnn, f"{self.function}GetWorkspaceSize")(**self.arguments)

    def run(self, ret_of_phase2=0):
        size, executor, ret = self.phase1()
        assert ret == aclnn.ACLNN_SUCCESS, acl.aclGetRecentErrMsg()
        ret = getattr(aclnn, self.function)(np.empty(size, np.uint8) if size else None, size, executor, None)
        assert ret == ret_of_phase2, acl.aclGetRecentErrMsg()
        assert acl.aclrtSynchronizeStream(None) == acl.ACL_SUCCESS, acl.aclGetRecentErrMsg()

    def check(self, **other):
        """Against float64: results are those of the sum as it is in float32, each rounded once."""
        self.run()
        made, total = self.written | other, self.total.astype(np.float32)
        exact = replace(self.inputs, x=total, residual=None, mean=self.mean, rstd=self.rstd, dtotal=None)
        if self.forward:
            check_forward(Forward(made["yOut"], made["meanOut"], made["rstdOut"]), exact, eps=EPSILON)
            if "xOut" in made:
                assert error_share(made["xOut"], self.total, self.scale, "float32").max() <= 1
            return
        if self.arguments.get("dsumOptional") is not None:
            exact = replace(exact, dtotal=self.inputs.dtotal)
        sums = made["dgammaOut"], made["dbetaOut"]
        check_grads(Grads(made.get("dgxOut", made["dxOut"]), *sums), exact)
        if "dgxOut" in made:  # linear in dy
            dy = self.alpha * exact.dy.astype(np.float32)
            check_grads(Grads(made["dxOut"], None, None), replace(exact, dy=dy), output_mask=(True, False, False))


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


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", [*(case for case in CASES[:14] if case.gamma and case.lead), BASE], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_of_added_norms_are_those_of_the_reference(function, case, dtype):
    Call(function, case, dtype).check()


def test_a_bias_of_every_shape_and_none():
    for bias in ("columns", "x", None):
        Call("aclnnAddLayerNorm", dtype="bfloat16", bias=bias).check()


def test_a_gradient_without_the_further_one():
    call = Call("aclnnAddLayerNormGrad", dtype="float16")
    call.arguments["dsumOptional"] = None
    call.check()


def test_the_sum_is_written_where_it_is_asked_for():
    call = Call("aclnnAddLayerNorm")
    call.arguments["additionalOutput"] = False
    call.run()
    assert (call.written.pop("xOut") == SENTINEL).all()
    call.check()


@pytest.mark.parametrize("wide", ["x1", "x2"])
def test_one_term_may_be_float_beside_16_bits(wide):
    call, other = Call("aclnnAddLayerNorm", BASE, "bfloat16"), Call("aclnnAddLayerNorm", BASE, "float32")
    narrow, place = ("x2", call.inputs.residual) if wide == "x1" else ("x1", call.inputs.x)
    other.arguments[narrow] = tensor(place)
    added = other.inputs.residual if wide == "x2" else other.inputs.x
    other.total = place.astype(np.float64) + added.astype(np.float64) + other.bias.astype(np.float64)
    other.check()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_outputs_may_take_the_places_of_what_is_added(function):
    """And a 16-bit x1 is read whole before yOut is written over it."""
    call = Call(function, dtype="bfloat16")
    names = [name for name in ("x1", "x2", "x", "gx") if name in call.arguments]
    outputs = [name for name in ("yOut", "xOut", "dxOut", "dgxOut") if name in call.written]
    taken = dict(zip(outputs, (call.inputs.x.copy(), call.inputs.residual.copy()), strict=False))
    for (output, array), name in zip(taken.items(), names, strict=False):
        call.arguments[output] = call.arguments[name] = tensor(array)
    call.check(**taken)


@pytest.mark.parametrize(
    ("function", "output", "other"),
    [
        ("aclnnAddLayerNorm", "xOut", "gamma"),
        ("aclnnAddLayerNorm", "xOut", "yOut"),
        ("aclnnAddLayerNorm", "meanOut", "x2"),
        ("aclnnDeepNorm", "yOut", "gx"),
        ("aclnnDeepNormGrad", "dxOut", "dgxOut"),
        ("aclnnAddLayerNormGrad", "dgammaOut", "dsumOptional"),
    ],
)
def test_added_norms_whose_outputs_would_destroy_other_memory(function, output, other):
    call, buffer = Call(function), np.zeros(400, np.float32)
    for name, start in ((other, 0), (output, 2)):
        shape = acl.aclGetViewShape(call.arguments[name])[0]
        call.arguments[name] = acl.aclCreateTensor(shape, F32, None, start, 2, (400,), buffer)
    call.run(ret_of_phase2=INVALID)
    assert f"{output}: shares memory with {other}" in acl.aclGetRecentErrMsg()
    assert not buffer.any()


def test_terms_may_be_views_and_are_bound_anew():
    call = Call("aclnnDeepNorm")
    call.arguments["gx"], gx = strided((3, 4, 16), "float32", (1, 0, 2), (1, 2, 1), offset=3)
    gx[...] = call.inputs.residual
    call.check()
    size, executor, _ = call.phase1()
    assert aclnn.aclSetAclOpExecutorRepeatable(executor) == 0
    other = np.zeros((3, 4, 16), np.float32)
    call.arguments["gx"] = tensor(other)
    size, executor, _ = call.phase1()
    assert aclnn.aclSetAclOpExecutorRepeatable(executor) == 0
    assert aclnn.aclSetInputTensorAddr(executor, 1, call.arguments["gx"], call.inputs.residual.copy()) == 0
    assert aclnn.aclnnDeepNorm(np.empty(size, np.uint8), size, executor, None) == 0
    assert acl.aclrtSynchronizeStream(None) == 0
    fresh = Call("aclnnDeepNorm")
    fresh.run()
    check_same_bits(call.written["yOut"], fresh.written["yOut"])


REQUIRED = [
    (function, name)
    for function in FUNCTIONS
    for name in Call(function).arguments
    if name not in NUMBERS and not name.endswith("Optional")
]


@pytest.mark.parametrize(("function", "name"), REQUIRED)
def test_a_null_tensor_of_added_norms(function, name):
    call = Call(function)
    call.arguments[name] = None
    refused(call, NULLPTR, f"{name}: expected an argument, got a null pointer")


X, ROWS, R = (3, 4, 16), (3, 4, 1), (16,)
ALN, ALNG, DN, DNG = FUNCTIONS
NINE = (1,) * 6 + X


def shaped(function, x, rows, gamma, dtype=F32):
    """Every tensor of a call anew: in the shape of x, of rows, of gamma."""
    arguments = {}
    for name in Call(function).arguments:
        if name not in NUMBERS:
            like = rows if name[:4] in ("mean", "rstd") else gamma if name[:3] in ("gam", "bet", "dga", "dbe") else x
            wide = name[:4] in ("mean", "rstd", "dgam", "dbet")
            arguments[name] = None if name == "biasOptional" else empty_tensor(like, F32 if wide else dtype)
    return arguments


# The code where pages and tiling agree, in both modes: aclnnDeepNorm's pages give shapes to the first phase.
RULES = {
    "x1-dtype": (INVALID, ALN, {"x1": empty_tensor(X, acl.ACL_INT32)}, "x1: expected one of ACL_FLOAT, ACL_FLOAT16"),
    "x2-dtype": (INVALID, DN, {"gx": empty_tensor(X, F16)}, "gx: expected the dtype of x, ACL_FLOAT, got ACL_FLOAT16"),
    "gamma-beside-mixed": (
        INVALID, ALN, {"x1": empty_tensor(X, F16), "gamma": empty_tensor(R, F16)},
        "gamma: expected ACL_FLOAT beside x1 in ACL_FLOAT16, x2 in ACL_FLOAT, got ACL_FLOAT16",
    ),
    "beta-not-gamma's": (INVALID, ALN, {"beta": empty_tensor(R, BF16)}, "beta: expected ACL_FLOAT beside x1 in"),
    "bias-dtype": (INVALID, ALN, {"biasOptional": empty_tensor(R, F16)}, "biasOptional: expected ACL_FLOAT beside"),
    "xOut-dtype": (INVALID, ALN, {"xOut": empty_tensor(X, F16)}, "xOut: expected ACL_FLOAT beside"),
    "gamma-dtype-of-grad": (INVALID, ALNG, {"gamma": empty_tensor(R, F16)}, "gamma: expected the dtype of x1"),
    "dsum-dtype": (INVALID, ALNG, {"dsumOptional": empty_tensor(X, F16)}, "dsumOptional: expected the dtype of x1"),
    "dbetaOut-dtype": (INVALID, DNG, {"dbetaOut": empty_tensor(R, F16)}, "dbetaOut: expected ACL_FLOAT, got"),
    "meanOut-dtype": (INVALID, ALN, {"meanOut": empty_tensor(ROWS, F16)}, "meanOut: expected ACL_FLOAT, got"),
    "over-8-dims": (TILING, ALN, {"x1": empty_tensor(NINE)}, "x1: expected at most 8 dimensions, got 9"),
    "gamma-of-no-dims": (TILING, ALNG, {"gamma": empty_tensor(())}, "gamma: expected at least 1 dimension, got 0"),
    "gamma-shape": (TILING, ALN, {"gamma": empty_tensor((3, 16))}, "gamma: expected the last dimensions of x1"),
    "gamma-shape-of-deep": (INVALID, DN, {"gamma": empty_tensor((3, 16))}, "gamma: expected the last dimensions of x"),
    "gamma-whole-x": (INVALID, DN, shaped(DN, X, (1, 1, 1), X), "gamma: expected fewer dimensions than x has"),
    "beta-shape": (TILING, ALN, {"beta": empty_tensor((1, 16))}, "beta: expected the shape of gamma, (16,)"),
    "x2-shape": (TILING, ALNG, {"x2": empty_tensor((12, 16))}, "x2: expected the shape of x1, (3, 4, 16)"),
    "bias-shape": (
        TILING, ALN, {"biasOptional": empty_tensor((4, 16))},
        "biasOptional: expected the shape of gamma, (16,), or of x1, (3, 4, 16), got (4, 16)",
    ),
    "mean-shape": (TILING, ALNG, {"mean": empty_tensor((3, 4))}, "mean: expected the shape (3, 4, 1), one element"),
    "dgxOut-shape": (INVALID, DNG, {"dgxOut": empty_tensor((12, 16))}, "dgxOut: expected the shape of x, (3, 4, 16)"),
    "dgammaOut-shape": (INVALID, DNG, {"dgammaOut": empty_tensor((1, 16))}, "dgammaOut: expected the shape of gamma"),
    "no-rows": (TILING, ALN, shaped(ALN, (0, 16), (0, 1), R), "x1: expected a tensor that is not empty"),
    "no-columns-of-grad": (TILING, ALNG, shaped(ALNG, (3, 0), (3, 1), (0,)), "dy: expected a tensor that is not"),
    "places-of-its-own": (
        INVALID, ALNG, {"dxOut": acl.aclCreateTensor(X, F32, (0, 16, 1), 0, 2, (64,), np.zeros(64, np.float32))},
        "dxOut: expected a place of its own for every element",
    ),
}  # fmt: skip
STRICT_RULES = {
    "added-on-910A": ("Ascend910A", NO_KERNEL, ALN, {}, "aclnnAddLayerNorm: expected a product that has it"),
    "deep-on-910A": ("Ascend910A", NO_KERNEL, DNG, {}, "aclnnDeepNormGrad: expected a product that has it"),
    "output-not-contiguous": (
        soc.DEFAULT, INVALID, ALN, {"yOut": strided(X, "float32", (1, 0, 2))[0]},
        "yOut: expected a contiguous tensor, got strides",
    ),
    "short-rows-on-310P": (
        "Ascend310P", TILING, ALN, shaped(ALN, (3, 7), (3, 1), (7,)),
        "x1: expected a last axis of at least 32 bytes on Ascend310P, got 28",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize("rule", RULES)
def test_added_rule(rule, mode):
    code, function, arguments, text = RULES[rule]
    call = Call(function)
    call.arguments |= arguments
    with soc.use(soc.DEFAULT, mode=mode):
        refused(call, code, text)


@pytest.mark.parametrize("rule", STRICT_RULES)
def test_added_difference(rule):
    """Only what documents say: compat lets it pass."""
    name, code, function, arguments, text = STRICT_RULES[rule]
    call = Call(function)
    call.arguments |= arguments
    with soc.use(name):
        refused(call, code, text)
    with soc.use(name, mode="compat"):
        assert call.phase1()[2] == aclnn.ACLNN_SUCCESS, acl.aclGetRecentErrMsg()


def test_empty_tensors_of_deep_norm_are_taken_by_the_page_and_not_by_the_code():
    call = Call(DN)
    call.arguments |= shaped(DN, (0, 16), (0, 1), R)
    call.run()
    with soc.use(soc.DEFAULT, mode="compat"):
        refused(call, TILING, "x: expected a tensor that is not empty")


def test_dtypes_of_added_norms_on_atlas_inference():
    """No bfloat16, and no mixed ones."""
    with soc.use("Ascend310P"):
        for function in FUNCTIONS:
            Call(function, dtype="float16").check()
            refused(Call(function, dtype="bfloat16"), INVALID, "expected one of ACL_FLOAT, ACL_FLOAT16 on Ascend310P")
        call = Call(ALN)
        call.arguments["x1"] = empty_tensor(X, F16)
        refused(call, INVALID, "x2: expected ACL_FLOAT16 beside x1 in ACL_FLOAT16, got ACL_FLOAT")


def test_phase_2_of_an_added_norm_allocates_nothing_of_size():
    call = Call("aclnnDeepNormGrad", Case((512,), (512,)), "bfloat16")
    size, executor, _ = call.phase1()
    workspace = np.empty(size, np.uint8)
    tracemalloc.start()
    try:
        assert aclnn.aclnnDeepNormGrad(workspace, size, executor, None) == 0
        assert acl.aclrtSynchronizeStream(None) == 0
        assert tracemalloc.get_traced_memory()[1] < 512 * 512
    finally:
        tracemalloc.stop()
