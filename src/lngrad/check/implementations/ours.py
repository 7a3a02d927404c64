"""Our backends, and the CANN interfaces without an NPU."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from lngrad.api import execute, layer_norm_backward
from lngrad.check.case import CheckCase
from lngrad.check.implementations.interface import (
    Implementation,
    NotApplicable,
    dx_as_x,
    no_variance_below_zero,
    parameters,
)
from lngrad.check.implementations.tensors import on_device, quiet
from lngrad.check.inputs import DrawnInputs
from lngrad.core.problem import Grads, Problem
from lngrad.errors import BackendUnavailable


def backend(name: str) -> Implementation:
    def call(case: CheckCase, given: DrawnInputs) -> Grads:
        dx_as_x(case)
        one = given.inputs
        if name == "ascend_sim":
            _tile(case, given)
        try:
            return layer_norm_backward(
                one.dy, one.x, one.mean, one.rstd, one.gamma,
                normalized_shape=case.normalized, output_mask=case.output_mask,
                out=Grads(None, *parameters(case)), backend=name,
            )  # fmt: skip
        except BackendUnavailable as reason:
            raise NotApplicable(str(reason)) from None

    return call


def triton_gpu(case: CheckCase, given: DrawnInputs) -> Grads:
    """Our Triton kernels: on a GPU, or on the CPU with Triton's interpreter, where no plan chooses them."""
    from lngrad.gpu.plan import plan

    dx_as_x(case)
    inputs = given.inputs
    arguments = {"dy": inputs.dy, "x": inputs.x, "mean": inputs.mean, "rstd": inputs.rstd, "gamma": inputs.gamma}
    arrays = dict(zip(("dgamma", "dbeta"), parameters(case), strict=True))
    some = on_device({name: one for name, one in {**arguments, **arrays}.items() if one is not None})
    dy, x, mean, rstd = (some[name] for name in ("dy", "x", "mean", "rstd"))
    out = Grads(None, some.get("dgamma"), some.get("dbeta"))
    problem, tensors = Problem.backward(dy, x, mean, rstd, some.get("gamma"), case.normalized, case.output_mask, out)
    with quiet():
        return Grads(*(None if one is None else one.cpu() for one in execute(plan(problem, 1), tensors, out)))


def _tile(case: CheckCase, given: DrawnInputs) -> None:
    if case.ranges.get("mean", (0.0, 0.0)) is not None:
        raise NotApplicable("a mean that is not the row's: the tile formula keeps a term that the other formulas drop")
    no_variance_below_zero(given, "the tile API")
    one = given.inputs
    arrays = [array for array in (one.dy, one.x, one.mean, one.rstd, one.gamma) if array is not None]
    if all(array.dtype == np.float16 for array in arrays):
        raise NotApplicable("everything in half: the tile APIs keep their sums in half")
    if not all(np.isfinite(array.astype(np.float32)).all() for array in arrays):
        raise NotApplicable("infinity or NaN: the tile formula gives NaN where the others give infinity")


def _graph_rules(case: CheckCase, given: DrawnInputs) -> None:
    dx_as_x(case)
    if case.dtype == "float64":
        raise NotApplicable("the graph ops take float32, float16 and bfloat16")
    if case.gamma_dtype is None:
        raise NotApplicable("the graph ops need a gamma")
    if 0 in given.inputs.x.shape:
        raise NotApplicable("the graph ops take no empty dimension")
    parameter = case.output_dtypes[1]
    if case.output_dtypes[2] != parameter or parameter not in ("float32", case.gamma_dtype):
        raise NotApplicable(f"the graph ops give dgamma and dbeta in float32 or {case.gamma_dtype}, both the same")


def _rows_of(case: CheckCase, given: DrawnInputs, array: Any) -> Any:
    """Statistics in the shape that the graph ops want."""
    split = given.inputs.x.ndim - given.inputs.normalized
    return np.ascontiguousarray(array).reshape(given.inputs.x.shape[:split] + (1,) * given.inputs.normalized)


def graph_op(case: CheckCase, given: DrawnInputs) -> Grads:
    from lngrad.ascend import graph

    _graph_rules(case, given)
    one = given.inputs
    if case.third == "rstd":
        no_variance_below_zero(given, "LayerNormGrad")
    variance = _rows_of(case, given, given.variance)
    mean = _rows_of(case, given, np.asarray(one.mean).astype(variance.dtype))
    return Grads(
        *graph.LayerNormGrad(
            one.dy, one.x, variance, mean, one.gamma,
            output_mask=case.output_mask, epsilon=given.eps, pd_gamma_dtype=case.output_dtypes[1],
        )
    )  # fmt: skip


def graph_v3_op(case: CheckCase, given: DrawnInputs) -> Grads:
    from lngrad.ascend import graph

    _graph_rules(case, given)
    one = given.inputs
    rstd = _rows_of(case, given, one.rstd)
    mean = _rows_of(case, given, np.asarray(one.mean).astype(rstd.dtype))
    return Grads(
        *graph.LayerNormGradV3(
            one.dy, one.x, rstd, mean, one.gamma, output_mask=case.output_mask, pd_gamma_dtype=case.output_dtypes[1]
        )
    )


def aclnn_op(case: CheckCase, given: DrawnInputs) -> Grads:
    acl: Any = import_module("lngrad.ascend.acl")  # its names are CANN's, made from tables
    aclnn: Any = import_module("lngrad.ascend.aclnn")

    if "float64" in (case.dtype, case.gamma_dtype, *case.output_dtypes):
        raise NotApplicable("aclnnLayerNormBackward takes FLOAT, FLOAT16 and BF16")
    if (
        given.inputs.mean.dtype != given.inputs.rstd.dtype
    ):  # a narrow variance gives its rstd in the accumulator's dtype
        raise NotApplicable("aclnnLayerNormBackward takes mean and rstd of one dtype")
    dx_as_x(case)
    one = given.inputs
    codes = {"float32": acl.ACL_FLOAT, "float16": acl.ACL_FLOAT16, "bfloat16": acl.ACL_BF16}

    def tensor(array: Any) -> Any:
        if array is None:
            return None
        made = acl.aclCreateTensor(array.shape, codes[array.dtype.name], None, 0, acl.ACL_FORMAT_ND, array.shape, array)
        if made is None:
            raise RuntimeError(f"aclCreateTensor: {acl.aclGetRecentErrMsg()}")
        return made

    outputs = [np.empty(one.x.shape, one.x.dtype) if case.output_mask[0] else None, *parameters(case)]
    inputs = [np.ascontiguousarray(one.dy), np.ascontiguousarray(one.x), one.mean, one.rstd, one.gamma]
    dy, x, mean, rstd, gamma = map(tensor, inputs)
    size, executor, status = aclnn.aclnnLayerNormBackwardGetWorkspaceSize(
        dy, x, acl.aclCreateIntArray(case.normalized), mean, rstd, gamma, None,
        acl.aclCreateBoolArray(case.output_mask), *map(tensor, outputs),
    )  # fmt: skip
    if status == 0:
        workspace = np.empty(size, np.uint8) if size else None
        status = aclnn.aclnnLayerNormBackward(workspace, size, executor, None)
    if status == 0:
        status = acl.aclrtSynchronizeStream(None)
    if status != 0:
        raise RuntimeError(f"aclnnLayerNormBackward: status {int(status)}: {acl.aclGetRecentErrMsg()}")
    return Grads(*outputs)
