"""The forward in two phases: workspace, executors, streams. Its checks are in test_rules.py, its results in test_values.py."""

from __future__ import annotations

import numpy as np
import pytest

import lngrad
from aclnn_harness import FORWARD_OUTPUTS, FORWARDS, Call, ForwardCall, refused, strided, tensor
from lngrad.core.problem import Forward
from lngrad.testing import Case, check_forward, check_grads, check_same_bits
from lngrad_ascend import acl, aclnn, soc

DTYPES = ("float32", "float16", "bfloat16")


@pytest.mark.parametrize("function", FORWARDS)
def test_the_bits_of_the_forward_are_the_cores(function):
    call = ForwardCall(Case((67,), (300,)), "bfloat16", function=function, out_dtypes=(None, "float32", "float32"))
    i = call.inputs
    check_same_bits(tuple(call.run()), tuple(lngrad.layer_norm(i.x, i.gamma, i.beta)))


@pytest.mark.parametrize("function", FORWARDS)
def test_the_documents_example_of_the_forward(function):
    call = ForwardCall(Case((1, 2), (32,)), function=function)
    call.changed(
        input=np.full((1, 2, 32), 2, np.float32),
        weightOptional=np.ones(32, np.float32),
        biasOptional=np.zeros(32, np.float32),
    )
    out, mean, rstd = call.run()
    check_same_bits(out, np.zeros((1, 2, 32), np.float32))
    check_same_bits(mean, np.full((1, 2, 1), 2, np.float32))
    check_same_bits(rstd, np.full((1, 2, 1), 316.22775, np.float32))


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_every_implementation_mode_computes_with_high_precision(mode):
    call = ForwardCall(Case((67,), (37,)), "float16", function="aclnnLayerNormWithImplMode")
    call.arguments["implMode"] = mode
    call.check()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weight", [True, False])
def test_a_null_weight_is_ones_and_a_null_bias_zeros(weight, bias):
    call = ForwardCall(Case((9,), (13,)))
    i = call.inputs
    if not weight:
        call.arguments["weightOptional"] = None
    if not bias:
        call.arguments["biasOptional"] = None
    expected = lngrad.layer_norm(i.x, i.gamma if weight else None, i.beta if bias else None)
    check_same_bits(tuple(call.run()), tuple(expected))


@pytest.mark.parametrize("missing", [("meanOutOptional",), ("rstdOutOptional",), FORWARD_OUTPUTS[1:]])
def test_statistics_may_be_null(missing):
    call = ForwardCall(Case((9,), (13,)))
    whole = ForwardCall(Case((9,), (13,))).run()
    call.arguments |= dict.fromkeys(missing)
    got = call.run()
    call.check_untouched(missing)
    check_same_bits(got.y, whole.y)


MIXED = [  # input, weight and bias, outputs
    ("float16", "float32", (None, "float32", "float32")),
    ("bfloat16", "float32", (None, None, "float32")),
    ("float16", None, (None, "bfloat16", "float16")),
    ("float16", None, ("float32", "float32", None)),
    ("bfloat16", None, ("float16", None, "float16")),
    ("float32", None, ("bfloat16", "float16", "bfloat16")),
]


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize(("dtype", "parameter", "outputs"), MIXED)
def test_forward_outputs_are_rounded_once_to_their_own_dtype(dtype, parameter, outputs, mode):
    with soc.use("Ascend950", mode=mode):
        ForwardCall(Case((67,), (37,), gamma_dtype=parameter), dtype, out_dtypes=outputs).check()


@pytest.mark.parametrize("eps", [0.0, 1e-12, 0.5, 3])
def test_eps_is_added_to_the_variance(eps):
    ForwardCall(Case((9,), (13,)), eps=eps).check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_of_views_of_eight_dimensions(dtype):
    call = ForwardCall(Case((1, 2, 1, 3, 2), (2, 1, 5)), dtype)
    i, shape, views = call.inputs, call.inputs.x.shape, {}
    for name, order in (("input", (3, 1, 2, 0, 7, 5, 6, 4)), ("out", (5, 0, 3, 1, 7, 2, 4, 6))):
        call.arguments[name], views[name] = strided(shape, dtype, order, (1, 2, 1, 1, 1, 2, 1, 3), offset=11)
    views["input"][...] = i.x
    for name, array in (("weightOptional", i.gamma), ("biasOptional", i.beta)):
        call.arguments[name], view = strided(array.shape, dtype, steps=(2, 1, 3), offset=3)
        view[...] = array
    rows = call.results["meanOutOptional"].shape
    call.arguments["meanOutOptional"], views["mean"] = strided(rows, dtype, steps=(2,) * 8, offset=5)
    call.run()
    check_forward(Forward(views["out"], views["mean"], call.results["rstdOutOptional"]), i)


@pytest.mark.parametrize("function", FORWARDS)
def test_rows_of_nothing_have_a_mean_of_0_and_no_rstd(function):
    call = ForwardCall(Case((2, 3), (4,)), function=function)
    empty = np.zeros((2, 3, 0), np.float32)
    call.changed(input=empty, normalizedShape=acl.aclCreateIntArray([0]), out=empty)
    call.changed(weightOptional=None, biasOptional=None)
    assert call.phase1()[::2] == (0, 0)
    call.run()
    assert call.results["meanOutOptional"].ravel().tolist() == [0] * 6
    assert np.isnan(call.results["rstdOutOptional"]).all()
    call.check_untouched(["out"])


def test_no_rows_write_nothing():
    call = ForwardCall(Case((2,), (4,)))
    empty, rows = np.zeros((0, 4), np.float32), np.zeros((0, 1), np.float32)
    call.changed(input=empty, out=empty)
    call.changed(meanOutOptional=rows, rstdOutOptional=None)
    assert call.phase1()[::2] == (0, 0)
    call.run()
    call.check_untouched()


def test_a_repeatable_forward_takes_other_addresses():
    call, other = ForwardCall(Case((9,), (40,)), seed=1), ForwardCall(Case((9,), (40,)), seed=2)
    size, executor, _ = call.phase1()
    aclnn.aclSetAclOpExecutorRepeatable(executor)
    i, tensors = other.inputs, call.arguments
    for index, (name, array) in enumerate(
        zip(("input", "weightOptional", "biasOptional"), (i.x, i.gamma, i.beta), strict=True)
    ):
        assert aclnn.aclSetInputTensorAddr(executor, index, tensors[name], array) == 0
    assert aclnn.AclSetOutputTensorAddr(executor, 0, tensors["out"], other.results["out"]) == 0
    for index, name in enumerate(FORWARD_OUTPUTS[1:], start=4):  # among all tensors
        assert aclnn.aclSetTensorAddr(executor, index, tensors[name], other.results[name]) == 0
    for _ in range(2):
        assert aclnn.aclnnLayerNorm(np.empty(size, np.uint8), size, executor, None) == 0
        assert acl.aclrtSynchronizeStream(None) == 0
        check_forward(other.computed(), i)
    call.check_untouched()
    refused(
        aclnn.aclSetTensorAddr(executor, 6, tensors["out"], i.x), acl.ACLNN_ERR_PARAM_INVALID, "index: expected 0 to 5"
    )


@pytest.mark.parametrize("kind", ["Input", "Output", ""])
def test_there_are_no_lists_of_tensors_to_rebind(kind):
    call = ForwardCall()
    _, executor, _ = call.phase1()
    aclnn.aclSetAclOpExecutorRepeatable(executor)
    tensors = acl.aclCreateTensorList([call.arguments["input"]])
    for prefix in ("acl", "Acl"):
        rebind = getattr(aclnn, f"{prefix}SetDynamic{kind}TensorAddr")
        refused(rebind(executor, 0, 0, tensors, 0), acl.ACLNN_ERR_PARAM_INVALID, "aclnnLayerNorm takes none")


@pytest.mark.parametrize("name", ["input", "weightOptional", "biasOptional", *FORWARD_OUTPUTS])
def test_a_forward_s_tensor_destroyed_between_the_phases(name):
    call = ForwardCall()
    size, executor, _ = call.phase1()
    acl.aclDestroyTensor(call.arguments[name])
    ret = aclnn.aclnnLayerNorm(np.empty(size, np.uint8), size, executor, None)
    refused(ret, acl.ACLNN_ERR_PARAM_INVALID, f"{name}: expected a living aclTensor")
    call.check_untouched()


def test_forward_and_backward_on_a_stream_in_device_memory():
    acl.aclFinalize()
    acl.aclInit()
    acl.aclrtSetDevice(0)
    try:
        stream, _ = acl.aclrtCreateStream()
        forward, backward = ForwardCall(Case((67,), (37,))), Call(Case((67,), (37,)))
        statistics = {}
        for output, argument in (("meanOutOptional", "mean"), ("rstdOutOptional", "rstd")):
            array = forward.results[output]
            address, ret = acl.aclrtMalloc(array.nbytes)
            assert ret == 0
            statistics[argument] = forward.arguments[output] = tensor(array, data=address)
        backward.arguments |= statistics
        assert forward.phase2(stream) == backward.phase2(stream) == 0  # the second reads what the first writes
        assert acl.aclrtSynchronizeStream(stream) == 0
        check_grads(backward.computed(), backward.inputs)
        forward.check_untouched(FORWARD_OUTPUTS[1:])  # the host's arrays
    finally:
        acl.aclFinalize()
        acl.aclGetRecentErrMsg()


def test_the_backward_of_a_forward_s_statistics():
    forward = ForwardCall(Case((3, 4), (5,)))
    forward.run()
    backward = Call(Case((3, 4), (5,)))
    for output, argument in (("meanOutOptional", "mean"), ("rstdOutOptional", "rstd")):
        backward.arguments[argument] = tensor(forward.results[output])
    backward.check()


def test_aclnn_needs_no_initialising():
    assert aclnn.aclnnInit(None) == aclnn.aclnnFinalize() == 0
