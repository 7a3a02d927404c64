"""A row is all that a new operator needs: here one whose normalized shape is gamma's, and whose outputs have no mask."""

from __future__ import annotations

import numpy as np
import pytest

from aclnn_harness import tensor
from lngrad.core.problem import BACKWARD, Grads
from lngrad.testing import Case, check_grads, make_inputs
from lngrad_ascend import acl, aclnn
from lngrad_ascend.aclnn.checks import (
    dtypes_of_product,
    known_dtype,
    normalized_rank,
    one_per_row,
    required,
    same_dtype,
    same_shape,
    usable,
)
from lngrad_ascend.aclnn.executor import phase1, phase2
from lngrad_ascend.aclnn.operator import AclnnOperator

NAMES = ("dy", "x", "gamma", "mean", "rstd")


ROW = AclnnOperator(
    "aclnnLayerNormalizationGrad",
    reads={"dy": "dy", "x": "x", "mean": "mean", "rstd": "rstd", "gamma": "gamma"},
    writes={"dx": "dx", "dgamma": "dgamma", "dbeta": "dbeta"},
    core=(BACKWARD,),
    x="x",
    normalized="gamma",
    dtypes=dtypes_of_product,
    checks=(
        required(*NAMES),
        usable,
        known_dtype(*NAMES),
        same_dtype("dy", "x"),
        normalized_rank,
        same_shape("dy", "x"),
        one_per_row("mean", "rstd"),
        same_shape("dx", "x"),
    ),
)


@pytest.fixture(autouse=True)
def device():
    acl.aclInit(None)
    acl.aclrtSetDevice(0)
    yield
    acl.aclFinalize()


def arguments(dtype):
    inputs = make_inputs(Case((3, 4), (5,)), dtype, 0)
    x, gamma = inputs.x, inputs.gamma
    results = [np.zeros(x.shape, x.dtype), np.zeros(gamma.shape, np.float32), np.zeros(gamma.shape, gamma.dtype)]
    read = (inputs.dy, x, gamma, inputs.mean, inputs.rstd)
    return inputs, results, [*map(tensor, read), *map(tensor, results)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_computes(dtype):
    inputs, results, tensors = arguments(dtype)
    size, executor, ret = phase1(ROW, *tensors)
    assert ret == aclnn.ACLNN_SUCCESS, acl.aclGetRecentErrMsg()
    run = phase2("aclnnLayerNormalizationGrad")
    assert run(np.empty(size, np.uint8) if size else None, size, executor, None) == aclnn.ACLNN_SUCCESS
    assert acl.aclrtSynchronizeStream(None) == acl.ACL_SUCCESS
    check_grads(Grads(*results), inputs)


def test_an_output_that_is_null_is_not_wanted():
    inputs, results, tensors = arguments("float32")
    size, executor, _ = phase1(ROW, *tensors[:5], None, *tensors[6:])
    assert phase2("aclnnLayerNormalizationGrad")(np.empty(size, np.uint8), size, executor, None) == aclnn.ACLNN_SUCCESS
    assert acl.aclrtSynchronizeStream(None) == acl.ACL_SUCCESS
    check_grads(Grads(None, *results[1:]), inputs, output_mask=(False, True, True))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dy", "dy: expected the shape of x, (3, 4, 5), got (3, 4, 6)"),
        ("rstd", "rstd: expected 12 elements, the product of x's first 2 dimensions (3, 4), got 72: (3, 4, 6)"),
    ],
)
def test_checks_use_the_row_s_names(name, text):
    _, _, tensors = arguments("float32")
    tensors[NAMES.index(name)] = tensor(np.zeros((3, 4, 6), np.float32))
    assert phase1(ROW, *tensors) == (0, None, aclnn.ACLNN_ERR_PARAM_INVALID)
    assert acl.aclGetRecentErrMsg() == text
    tensors[NAMES.index(name)] = None
    assert phase1(ROW, *tensors)[2] == aclnn.ACLNN_ERR_PARAM_NULLPTR
