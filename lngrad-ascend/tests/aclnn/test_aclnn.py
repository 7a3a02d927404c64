"""aclnnLayerNormBackward: workspace, executors, streams. Its checks are in test_rules.py, its results in test_values.py."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import lngrad
from aclnn_harness import OUTPUTS, Call, refused, strided, tensor
from lngrad.core.problem import Grads
from lngrad.testing import Case, check_grads, check_same_bits, make_inputs
from lngrad_ascend import acl, aclnn, soc
from lngrad_ascend.aclnn.decision import Decision
from lngrad_ascend.faults import AscendWarning

INVALID, NULLPTR = aclnn.ACLNN_ERR_PARAM_INVALID, aclnn.ACLNN_ERR_PARAM_NULLPTR
MASKS = [(a, b, c) for a in (True, False) for b in (True, False) for c in (True, False)]
DTYPES = ("float32", "float16", "bfloat16")


def test_the_bits_are_the_cores():
    call = Call(Case((67,), (300,)), "bfloat16")
    i = call.inputs
    check_same_bits(tuple(call.run()), tuple(lngrad.layer_norm_backward(i.dy, i.x, i.mean, i.rstd, i.gamma)))


def test_the_documents_example():
    x = np.array([[2, 3], [4, 5]], np.float32)
    call = Call(Case((2,), (2,)))
    call.changed(
        gradOut=x,
        input=x.copy(),
        mean=np.array([[2], [3]], np.float32),
        rstd=np.array([[4], [5]], np.float32),
        weightOptional=np.ones(2, np.float32),
    )
    assert [result.tolist() for result in call.run()] == [[[-2, -94], [-877.5, -1747.5]], [20, 62], [6, 8]]


def test_another_format_is_read_as_nd_with_a_warning():
    call, text = Call(), "gradOut: expected ACL_FORMAT_ND, got ACL_FORMAT_FRACTAL_NZ, which is read as ND"
    dy, layout = call.inputs.dy, acl.aclFormat.ACL_FORMAT_FRACTAL_NZ
    call.changed(gradOut=acl.aclCreateTensor(dy.shape, acl.ACL_FLOAT, None, 0, layout, dy.shape, dy))
    with pytest.warns(AscendWarning, match=text):
        call.check()


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_the_mask_decides_what_is_written(mask, weighted):
    call = Call(Case((67,), (37,), gamma=weighted), mask=mask)
    if not any(mask):
        assert call.phase1()[::2] == (0, 0)
        assert call.phase2() == 0
        assert acl.aclrtSynchronizeStream(None) == 0
        call.check_untouched()
        return
    call.check()


@pytest.mark.parametrize("mask", MASKS)
def test_masked_off_outputs_may_be_null(mask):
    call = Call(mask=mask)
    call.arguments |= {name: None for name, wanted in zip(OUTPUTS, mask, strict=True) if not wanted}
    call.check()


def test_a_null_weight_is_ones_and_the_bias_is_never_read():
    plain = Call(Case((9,), (13,), gamma=False))
    plain.check()
    ones, nan = np.ones(13, np.float32), np.full(13, np.nan, np.float32)
    call = Call(Case((9,), (13,), gamma=False))
    call.changed(weightOptional=ones, biasOptional=nan)
    check_same_bits(tuple(call.run()), tuple(plain.computed()))


MIXED = [  # dtype, weight, statistics, outputs
    ("float16", "float32", None, (None, None, None)),
    ("float16", "float32", "float16", (None, "float32", "float32")),
    ("bfloat16", "float32", "bfloat16", (None, None, "bfloat16")),
    ("bfloat16", None, None, (None, "float32", "float32")),
    ("float16", None, "bfloat16", (None, "float16", "float32")),
    ("bfloat16", None, "float16", ("float32", "float32", "float32")),
    ("float16", "float32", None, ("bfloat16", "bfloat16", "float16")),
    ("float32", None, None, ("float16", "bfloat16", "float16")),
    ("float16", None, "float16", ("float32", None, None)),
]


@pytest.mark.parametrize("rounding", ["even", "device"])
@pytest.mark.parametrize(("dtype", "weight", "statistics", "outputs"), MIXED)
def test_mixed_dtypes_are_rounded_once_to_the_outputs_own(dtype, weight, statistics, outputs, rounding):
    case = Case((67,), (37,), gamma_dtype=weight, statistics_dtype=statistics)
    with soc.use("Ascend950", rounding=rounding):  # rounds ties to even in either mode
        call = Call(case, dtype, out_dtypes=outputs)
        call.check()
    assert [call.results[name].dtype.name for name in OUTPUTS] == [
        wanted or default for wanted, default in zip(outputs, (dtype, weight or dtype, weight or dtype), strict=True)
    ]


def test_a_result_too_large_for_float16_is_infinity():
    call = Call(Case((2,), (3,)), out_dtypes=("float16", "float32", "float16"))
    call.changed(gradOut=np.full((2, 3), [1e6, -1e6, 0], np.float32))
    grads = call.run()
    assert grads.dbeta.tolist() == [np.inf, -np.inf, 0]
    assert np.isinf(grads.dx).any()


@pytest.mark.parametrize(
    ("lead", "normalized"), [((0,), (3,)), ((2, 0), (3,)), ((2,), (0,)), ((0,), (0,)), ((2,), (3, 0))]
)
def test_empty_input_zeroes_the_sums_and_needs_no_workspace(lead, normalized):
    x = np.zeros(lead + normalized, np.float32)
    statistics = np.zeros(lead, np.float32)
    results = [np.full(shape, 7, np.float32) for shape in (x.shape, normalized, normalized)]
    size, executor, ret = aclnn.aclnnLayerNormBackwardGetWorkspaceSize(
        tensor(x),
        tensor(x),
        acl.aclCreateIntArray(normalized),
        tensor(statistics),
        tensor(statistics),
        None,
        None,
        acl.aclCreateBoolArray([True, False, True]),
        *map(tensor, results),
    )
    assert (size, ret) == (0, 0)
    assert aclnn.aclnnLayerNormBackward(None, 0, executor, None) == 0
    assert acl.aclrtSynchronizeStream(None) == 0
    check_same_bits(results[1], np.full(normalized, 7, np.float32))  # masked off
    check_same_bits(results[2], np.zeros(normalized, np.float32))


def test_the_strides_of_an_empty_output_do_not_matter():
    call = Call(Case((2,), (3,)))
    x, statistics = np.zeros((0, 3), np.float32), np.zeros((0, 1), np.float32)
    call.changed(gradOut=x, input=x, mean=statistics, rstd=statistics)
    call.changed(gradInputOut=acl.aclCreateTensor((0, 3), acl.ACL_FLOAT, (0, 0), 0, 2, (0,), None))
    assert call.run().dbeta.tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_of_eight_dimensions_in_any_order(dtype):
    call = Call(Case((1, 2, 1, 3, 2), (2, 1, 5)), dtype)
    i, shape = call.inputs, call.inputs.x.shape
    views = {}
    for name, array, order in (
        ("gradOut", i.dy, (7, 6, 5, 4, 3, 2, 1, 0)),
        ("input", i.x, (3, 1, 2, 0, 7, 5, 6, 4)),
        ("gradInputOut", None, (5, 0, 3, 1, 7, 2, 4, 6)),
    ):
        call.arguments[name], views[name] = strided(shape, dtype, order, (1, 2, 1, 1, 1, 2, 1, 3), offset=11)
        if array is not None:
            views[name][...] = array
    for name, array in (("mean", i.mean), ("rstd", i.rstd), ("weightOptional", i.gamma)):
        call.arguments[name], view = strided(array.shape, array.dtype.name, steps=(2,) * array.ndim, offset=3)
        view[...] = array
    call.arguments["gradBiasOut"], views["gradBiasOut"] = strided((2, 1, 5), dtype, (2, 1, 0), (3, 1, 2), 5)
    call.run()
    got = Grads(views["gradInputOut"], call.results["gradWeightOut"], views["gradBiasOut"])
    check_grads(got, i)


def test_between_the_elements_of_a_view_nothing_is_written():
    call = Call(Case((4,), (6,)))
    call.arguments["gradInputOut"], view = strided((4, 6), "float32", steps=(2, 3), offset=2)
    storage = acl.aclGetRawTensorAddr(call.arguments["gradInputOut"])[0]
    before = storage.copy()
    call.run()
    after = storage.copy()
    np.lib.stride_tricks.as_strided(after[2:], (4, 6), view.strides)[...] = before[0]
    check_same_bits(after, np.full_like(before, before[0]))


def test_deterministic_for_any_number_of_threads():
    before, results = lngrad.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            lngrad.set_num_threads(threads)
            results.append(tuple(array.copy() for array in Call(Case((300,), (129,))).run()))
    finally:
        lngrad.set_num_threads(before)
    check_same_bits(results[1], results[0])
    check_same_bits(results[2], results[0])


def test_a_strided_sum_of_another_shape_is_written_through_the_workspace():
    call = Call(Case((9,), (2, 3)))
    storage = np.zeros(20, np.float32)
    call.changed(gradBiasOut=acl.aclCreateTensor((3, 2), acl.ACL_FLOAT, (1, 5), 2, 2, (20,), storage))
    with soc.use(soc.DEFAULT, mode="compat"):
        call.run()
        call.changed(gradBiasOut=call.results["gradBiasOut"])
        expected = call.run()
    view = np.lib.stride_tricks.as_strided(storage[2:], (3, 2), (4, 20))
    assert view.ravel().tolist() == expected.dbeta.ravel().tolist()


def half_away(values):
    """bfloat16 nearest to float32 values, ties away from zero: by comparing distances in float64."""
    words = np.abs(values).view(np.uint32) & np.uint32(0xFFFF0000)
    low, high = words.view(np.float32), (words + np.uint32(0x10000)).view(np.float32)
    size = np.abs(values).astype(np.float64)
    nearest = np.where(size - low >= high.astype(np.float64) - size, high, low)
    return np.copysign(nearest, values).astype(lngrad.support.dtypes.numpy_dtype("bfloat16"))


def tie_call():
    """A call whose gradBias lies halfway between bfloat16 numbers, for either sign and parity."""
    call = Call(Case((2,), (4,)), "bfloat16")
    dy = np.array([[1, -1, 1.0078125, 3], [2**-8, -(2**-8), 2**-8, 2**-8]], call.inputs.dy.dtype)
    call.changed(gradOut=dy)
    return call


@pytest.mark.parametrize(
    ("name", "rounding", "expected"),
    [
        ("Ascend910B1", "device", [1.0078125, -1.0078125, 1.015625, 3]),
        ("Ascend910_93", "device", [1.0078125, -1.0078125, 1.015625, 3]),
        ("Ascend950", "device", [1, -1, 1.015625, 3]),
        ("Ascend910B1", "even", [1, -1, 1.015625, 3]),
    ],
)
def test_ties_of_bfloat16_round_as_the_device_does_if_asked(name, rounding, expected):
    with soc.use(name, rounding=rounding):
        assert tie_call().run().dbeta.tolist() == expected


@pytest.mark.parametrize("outputs", [(None, None, None), (None, "float32", "float16"), ("float32", "bfloat16", None)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_device_rounding_rounds_the_float32_result_once(dtype, outputs):
    outputs = ("bfloat16" if outputs[0] is None else outputs[0], *outputs[1:])
    case = Case((70,), (300,))
    with soc.use("Ascend910B1", rounding="device"):
        call = Call(case, dtype, out_dtypes=outputs)
        got = call.run()
    i = call.inputs
    exact = lngrad.layer_norm_backward(*(a.astype(np.float32) for a in (i.dy, i.x, i.mean, i.rstd, i.gamma)))
    for result, truth in zip(got, exact, strict=True):
        check_same_bits(result, half_away(truth) if result.dtype.name == "bfloat16" else truth.astype(result.dtype))


def test_device_rounding_keeps_infinities_and_nan():
    call = Call(Case((1,), (4,)), "bfloat16")
    call.changed(gradOut=np.array([[np.inf, -np.inf, np.nan, 3.3895e38]], call.inputs.dy.dtype))
    with soc.use("Ascend910B1", rounding="device"):
        dbeta = call.run().dbeta.astype(np.float32)
    assert dbeta[:2].tolist() == [np.inf, -np.inf]
    assert np.isnan(dbeta[2])
    assert dbeta[3] == np.float32(3.3895314e38)


def test_the_workspace_may_begin_anywhere_and_its_surroundings_are_untouched():
    for start in (0, 1, 33):
        call = Call(Case((67,), (37,)), "float16", out_dtypes=("bfloat16", None, None))
        size, executor, _ = call.phase1()
        memory = np.full(size + 100, 0xA5, np.uint8)
        assert aclnn.aclnnLayerNormBackward(memory[start : start + size], size, executor, None) == 0
        assert acl.aclrtSynchronizeStream(None) == 0
        check_grads(call.computed(), call.inputs)
        around = np.concatenate([memory[:start], memory[start + size :]])
        check_same_bits(around, np.full(100, 0xA5, np.uint8))


@pytest.mark.parametrize(
    ("workspace", "size", "code", "text"),
    [
        (None, ..., NULLPTR, "workspace: expected"),
        (None, 0, INVALID, "workspaceSize: expected at least"),
        (np.empty(1 << 20, np.uint8), 8, INVALID, "got 8"),
        (np.empty(8, np.uint8), ..., INVALID, "got 8"),
        (bytes(1 << 20), ..., INVALID, "read-only"),
        (12345, ..., INVALID, "workspace: expected an address inside device memory"),
        (object(), ..., INVALID, "workspace: expected a device address"),
        (np.empty(1 << 20, np.uint8), "much", INVALID, "workspaceSize: expected a number"),
        (np.empty(1 << 20, np.uint8), -1, INVALID, "workspaceSize: expected a number"),
    ],
)
def test_a_workspace_that_does_not_fit_is_refused_and_uses_the_executor_up(workspace, size, code, text):
    call = Call()
    needed, executor, _ = call.phase1()
    refused(aclnn.aclnnLayerNormBackward(workspace, needed if size is ... else size, executor, None), code, text)
    refused(
        aclnn.aclnnLayerNormBackward(np.empty(needed, np.uint8), needed, executor, None),
        INVALID,
        "one-shot",
    )
    call.check_untouched()


def run_phase2(executor, size, stream=None):
    """Phase 2 and synchronize."""
    ret = aclnn.aclnnLayerNormBackward(np.empty(size, np.uint8), size, executor, stream)
    return ret or acl.aclrtSynchronizeStream(stream)


def test_an_executor_is_one_shot():
    call = Call()
    size, executor, _ = call.phase1()
    assert run_phase2(executor, size) == 0
    refused(run_phase2(executor, size), INVALID, "one-shot")
    refused(aclnn.aclDestroyAclOpExecutor(executor), INVALID, "one-shot")


def test_a_null_or_foreign_executor():
    refused(run_phase2(None, 8), NULLPTR, "executor: expected an aclOpExecutor, got a null pointer")
    refused(run_phase2("executor", 8), INVALID, "got str")
    for call in (aclnn.aclSetAclOpExecutorRepeatable, aclnn.aclDestroyAclOpExecutor):
        refused(call(None), acl.ACLNN_ERR_INNER_NULLPTR, "null pointer")
        refused(call(3), INVALID, "got int")


def test_a_repeatable_executor_runs_until_destroyed():
    call = Call()
    size, executor, _ = call.phase1()
    assert aclnn.aclSetAclOpExecutorRepeatable(executor) == 0
    for _ in range(3):
        assert run_phase2(executor, size) == 0
        check_grads(call.computed(), call.inputs)
    refused(aclnn.aclnnLayerNormBackward(None, size, executor, None), NULLPTR, "workspace")
    assert run_phase2(executor, size) == 0  # a failure uses up a one-shot only
    assert aclnn.aclDestroyAclOpExecutor(executor) == 0
    refused(run_phase2(executor, size), INVALID, "destroyed")


def test_memory_is_checked_where_addresses_are_new(monkeypatch):
    """By the decision, so for every executor of such a call; and what was not known to be apart is refused as ever."""
    checked = []
    check = Decision.check_memory
    monkeypatch.setattr(Decision, "check_memory", lambda self, *memory: checked.append(1) or check(self, *memory))
    call = Call(Case((9,), (40,)), seed=1)
    workspace = np.empty(call.phase1()[0] + 4096, np.uint8)
    for turn in range(3):
        size, executor, _ = call.phase1()
        aclnn.aclSetAclOpExecutorRepeatable(executor)
        for _ in range(2):
            assert aclnn.aclnnLayerNormBackward(workspace, size, executor, None) == 0
        if turn < 2:
            assert acl.aclrtSynchronizeStream(None) == 0
    assert len(checked) == 1
    assert aclnn.aclnnLayerNormBackward(workspace[64:], size, executor, None) == 0
    assert len(checked) == 2
    tensor, result = call.arguments["gradInputOut"], call.results["gradInputOut"]
    read_only = result.view()
    read_only.flags.writeable = False
    for place, text in (
        (read_only, "read-only"),
        (workspace[: result.nbytes], "workspace: expected memory of its own"),
    ):
        assert aclnn.aclSetOutputTensorAddr(executor, 0, tensor, place) == 0
        refused(aclnn.aclnnLayerNormBackward(workspace, size, executor, None), INVALID, text)
    assert aclnn.aclSetOutputTensorAddr(executor, 0, tensor, result) == 0
    assert aclnn.aclnnLayerNormBackward(workspace, size, executor, None) == 0
    assert acl.aclrtSynchronizeStream(None) == 0
    check_grads(call.computed(), call.inputs)


def test_a_run_that_comes_again_is_short():
    """Python's calls in lngrad_ascend, of the second phase and the wait for its stream."""
    call, seen = Call(Case((9,), (40,))), []
    size, executor, _ = call.phase1()
    aclnn.aclSetAclOpExecutorRepeatable(executor)
    workspace = np.empty(size, np.uint8)

    def count(frame, event, argument):
        if event == "call" and "lngrad_ascend" in Path(frame.f_code.co_filename).parts:
            seen.append(frame.f_code.co_name)

    for _ in range(2):
        seen.clear()
        sys.setprofile(count)
        try:
            codes = aclnn.aclnnLayerNormBackward(workspace, size, executor, None), acl.aclrtSynchronizeStream(None)
        finally:
            sys.setprofile(None)
        assert codes == (0, 0)
    assert 5 < len(seen) <= 18, seen


def test_a_repeatable_executor_takes_other_addresses():
    call, other = Call(Case((9,), (40,)), seed=1), Call(Case((9,), (40,)), seed=2)
    size, executor, _ = call.phase1()
    aclnn.aclSetAclOpExecutorRepeatable(executor)
    o = other.inputs
    for index, (name, array) in enumerate(
        zip(("gradOut", "input", "mean", "rstd", "weightOptional"), (o.dy, o.x, o.mean, o.rstd, o.gamma), strict=True)
    ):
        assert aclnn.aclSetInputTensorAddr(executor, index, call.arguments[name], array) == 0
    for index, name in enumerate(OUTPUTS):
        assert aclnn.aclSetOutputTensorAddr(executor, index, call.arguments[name], other.results[name]) == 0
    assert run_phase2(executor, size) == 0
    check_grads(other.computed(), other.inputs)
    call.check_untouched()


def test_what_can_t_be_rebound():
    call = Call()
    _, executor, _ = call.phase1()
    mean, x = call.arguments["mean"], call.inputs.x.copy()
    refused(aclnn.aclSetInputTensorAddr(executor, 2, mean, x), INVALID, "repeatable")
    aclnn.aclSetAclOpExecutorRepeatable(executor)
    refused(aclnn.aclSetInputTensorAddr(None, 2, mean, x), NULLPTR, "executor")
    refused(aclnn.aclSetInputTensorAddr(executor, 2, None, x), NULLPTR, "tensor")
    refused(aclnn.aclSetInputTensorAddr(executor, 2, mean, None), NULLPTR, "addr")
    refused(aclnn.aclSetInputTensorAddr(executor, 6, mean, x), INVALID, "index: expected 0 to 5")
    refused(aclnn.aclSetOutputTensorAddr(executor, 3, mean, x), INVALID, "index: expected 0 to 2")
    refused(aclnn.aclSetInputTensorAddr(executor, "2", mean, x), INVALID, "index")
    refused(aclnn.aclSetInputTensorAddr(executor, 3, mean, x), INVALID, "rstd that phase 1 was given")
    refused(aclnn.aclSetInputTensorAddr(executor, 2, mean, x.ravel()[:3].copy()), INVALID, "48 bytes")
    refused(aclnn.aclSetInputTensorAddr(executor, 2, mean, 77), INVALID, "addr")


@pytest.mark.parametrize("name", ["gradOut", "input", "mean", "rstd", "weightOptional", *OUTPUTS])
def test_a_tensor_destroyed_between_the_phases(name):
    call = Call()
    size, executor, _ = call.phase1()
    acl.aclDestroyTensor(call.arguments[name])
    refused(run_phase2(executor, size), INVALID, f"{name}: expected a living aclTensor")
    call.check_untouched()


def test_tensors_may_be_destroyed_once_phase_2_has_returned():
    call = Call()
    assert call.phase2() == 0
    for name, handle in call.arguments.items():
        if name not in ("normalizedShape", "outputMask"):
            acl.aclDestroyTensor(handle)
    assert acl.aclrtSynchronizeStream(None) == 0
    check_grads(call.computed(), call.inputs)


def test_a_tensor_described_anew_between_the_phases():
    call = Call()
    size, executor, _ = call.phase1()
    x = np.zeros(60, np.float32)
    acl.aclInitTensor(call.arguments["input"], (60,), acl.ACL_FLOAT, None, 0, 2, (60,), x)
    refused(run_phase2(executor, size), INVALID, "input: expected what phase 1 saw")


def test_a_tensor_without_data_passes_phase_1_and_fails_phase_2():
    call = Call()
    acl.aclSetRawTensorAddr(call.arguments["mean"], None)
    size, executor, ret = call.phase1()
    assert ret == 0
    refused(run_phase2(executor, size), NULLPTR, "mean: expected data, got a null address")
    call.check_untouched()


def test_an_overlap_is_told_in_the_callers_names():
    call = Call(mask=(False, True, False))
    call.arguments["gradWeightOut"] = call.arguments["weightOptional"]
    refused(call.phase2(), INVALID, "gradWeightOut: shares memory with weightOptional")


def test_the_workspace_shares_memory_with_no_tensor():
    call = Call()
    size, executor, _ = call.phase1()
    buffer = np.zeros(max(size, 240), np.uint8)
    acl.aclSetRawTensorAddr(call.arguments["gradOut"], buffer)
    ret = aclnn.aclnnLayerNormBackward(buffer, size, executor, None)
    refused(ret, INVALID, "workspace: expected memory of its own, but it shares some with gradOut")


def test_a_read_only_output():
    call = Call()
    call.results["gradInputOut"].flags.writeable = False
    call.changed(gradInputOut=call.results["gradInputOut"])
    refused(call.phase2(), INVALID, "gradInputOut: expected a writable array")


@pytest.fixture
def stream():
    acl.aclFinalize()
    acl.aclInit()
    acl.aclrtSetDevice(0)
    yield acl.aclrtCreateStream()[0]
    acl.aclFinalize()
    acl.aclGetRecentErrMsg()


def on_device(array):
    address, ret = acl.aclrtMalloc(array.nbytes)
    assert ret == 0
    assert acl.aclrtMemcpy(address, array.nbytes, array, array.nbytes, acl.ACL_MEMCPY_HOST_TO_DEVICE) == 0
    return address


def test_everything_in_device_memory(stream):
    call = Call(Case((67,), (37,)), "bfloat16")
    i, addresses = call.inputs, {}
    arrays = {"gradOut": i.dy, "input": i.x, "mean": i.mean, "rstd": i.rstd, "weightOptional": i.gamma, **call.results}
    for name, array in arrays.items():
        addresses[name] = on_device(array)
        call.arguments[name] = tensor(array, data=addresses[name])
    size, executor, ret = call.phase1()
    assert ret == 0
    workspace, _ = acl.aclrtMalloc(size)
    assert aclnn.aclnnLayerNormBackward(workspace, size, executor, stream) == 0
    assert acl.aclrtSynchronizeStream(stream) == 0
    call.check_untouched()  # the host's copies
    for name, result in call.results.items():
        assert (
            acl.aclrtMemcpy(result, result.nbytes, addresses[name], result.nbytes, acl.ACL_MEMCPY_DEVICE_TO_HOST) == 0
        )
    check_grads(call.computed(), i)
    refused(
        aclnn.aclnnLayerNormBackward(workspace + 64, size, call.phase1()[1], stream),
        INVALID,
        "workspace: expected memory of workspaceSize",
    )


def test_device_memory_freed_before_phase_2(stream):
    call = Call()
    address = on_device(call.inputs.dy)
    call.changed(gradOut=tensor(call.inputs.dy, data=address))
    size, executor, _ = call.phase1()
    acl.aclrtFree(address)
    refused(run_phase2(executor, size, stream), INVALID, "gradOut: expected device memory that is still")
    call.check_untouched()


def test_device_memory_freed_before_the_stream_ran_surfaces_at_synchronize(stream):
    call = Call()
    address = on_device(call.inputs.dy)
    call.changed(gradOut=tensor(call.inputs.dy, data=address))
    stream._running.acquire()  # the stream is busy
    try:
        assert call.phase2(stream) == 0
        acl.aclrtFree(address)
    finally:
        stream._running.release()
    refused(acl.aclrtSynchronizeStream(stream), acl.ACL_ERROR_RT_FAILURE, "freed before the stream ran")
    call.check_untouched()
    assert acl.aclrtSynchronizeStream(stream) == 0


def test_a_destroyed_stream_is_refused(stream):
    acl.aclrtDestroyStream(stream)
    call = Call()
    refused(call.phase2(stream), INVALID, "stream: expected a living aclrtStream")
    refused(call.phase2("stream"), INVALID, "got str")
    call.check_untouched()


def test_streams_run_beside_each_other(stream):
    streams = [stream, *(acl.aclrtCreateStream()[0] for _ in range(3))]
    calls = [Call(Case((130,), (129,)), seed=seed) for seed in range(16)]
    for number, call in enumerate(calls):
        assert call.phase2(streams[number % 4]) == 0
    for each in streams:
        assert acl.aclrtSynchronizeStream(each) == 0
    for call in calls:
        check_grads(call.computed(), call.inputs)


def test_phase_1_captures_the_soc():
    with soc.use("Ascend910B1", rounding="device"):
        call = tie_call()
        size, executor, _ = call.phase1()
    assert run_phase2(executor, size) == 0
    assert call.computed().dbeta.tolist()[0] == 1.0078125


def test_torch_buffers_are_written():
    torch = pytest.importorskip("torch")
    call = Call(Case((9,), (16,)), "bfloat16")
    result = torch.zeros(9, 16, dtype=torch.bfloat16)
    x = torch.from_numpy(call.inputs.x.view(np.uint16).copy()).view(torch.bfloat16)
    call.changed(input=acl.aclCreateTensor((9, 16), acl.ACL_BF16, None, 0, 2, (9, 16), x))
    call.changed(gradInputOut=acl.aclCreateTensor((9, 16), acl.ACL_BF16, None, 0, 2, (9, 16), result))
    call.run()
    expected = lngrad.support.addresses.as_numpy(result)
    check_grads(call.computed()._replace(dx=expected), call.inputs)


def test_inputs_are_never_written():
    call = Call(Case((67,), (37,)), "float16", out_dtypes=("float32", None, None))
    call.run()
    fresh = make_inputs(Case((67,), (37,)), "float16")
    for name in ("dy", "x", "mean", "rstd", "gamma", "beta"):
        check_same_bits(getattr(call.inputs, name), getattr(fresh, name))
