"""Our backends, Triton kernels without a GPU, ways in through torch and JAX, and CANN's interfaces without an NPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

import lngrad
from lngrad.api import execute
from lngrad.check.case import CheckCase
from lngrad.check.implementations.implementation import (
    Arguments,
    Implementation,
    NotApplicable,
    dx_as_x,
    takes_variance,
    unprepared,
)
from lngrad.check.inputs import DrawnInputs
from lngrad.core.memory import empty_cache
from lngrad.core.norms import NORMS
from lngrad.core.problem import Forward, Grads, Problem, RmsGrads
from lngrad.core.threads import set_num_threads
from lngrad.errors import BackendUnavailable
from lngrad.support.addresses import as_numpy
from lngrad.support.dtypes import numpy_dtype, to_torch
from lngrad.typing import Array

NO_DEVICE = "what runs here is no device"


def public_functions(backend: str) -> Implementation:
    """lngrad.layer_norm and lngrad.layer_norm_backward with one backend."""

    def forward(a: Arguments) -> Any:
        options = {name: getattr(a, name) for name in ("eps", "offset", "alpha", "residual", "out")}
        if a.normalization.centred:
            return lngrad.layer_norm(a.x, a.normalized_shape, a.gamma, a.beta, backend=backend, **options)
        options |= {"gate": a.gate, "norm_before_gate": a.norm_before_gate, "backend": backend}
        return lngrad.rms_norm(a.x, a.normalized_shape, a.gamma, **options)

    def backward(a: Arguments) -> Grads:
        parameters = a.parameters()[: 2 if a.gate is None else 1]
        out: Any = a.out or (a.grads(None, *parameters, *[None] * (2 - len(parameters))) if a.output_dtypes else None)
        options = {name: getattr(a, name) for name in ("normalized_shape", "offset", "dtotal", "output_mask")}
        options |= {"out": out, "backend": backend}
        if a.normalization.centred:
            return lngrad.layer_norm_backward(a.dy, a.x, a.mean, a.rstd, a.gamma, **options)
        if a.gate is None:
            options |= {"output_mask": a.output_mask[:2], "out": None if out is None else RmsGrads(*out[:2])}
        else:
            options |= {"gate": a.gate, "norm_before_gate": a.norm_before_gate}
        results: Any = lngrad.rms_norm_backward(a.dy, a.x, a.rstd, a.gamma, **options)
        return a.grads(*results, *[None] * (3 - len(results)))

    return Implementation(
        backend, unprepared(backward), unprepared(forward), NORMS, takes=(dx_as_x,), package="lngrad",
        version=lambda: lngrad.__version__, into=True, set_threads=set_num_threads, empty_cache=empty_cache,
    )  # fmt: skip


def backend(name: str) -> Implementation:
    """A backend; what it does not take is skipped."""
    row = public_functions(name)

    def backward(a: Arguments) -> Any:
        try:
            return row.backward(a)()
        except BackendUnavailable as reason:
            raise NotApplicable(str(reason)) from None

    return replace(row, backward=unprepared(backward))


def _tile_takes(case: CheckCase, given: DrawnInputs) -> str | None:
    if case.ranges.get("mean", (0.0, 0.0)) is not None:
        return "a mean that is not the row's: the tile formula keeps a term that the other formulas drop"
    if reason := takes_variance("the tile API")(case, given):
        return reason
    one = given.inputs
    arrays = [array for array in (one.dy, one.x, one.mean, one.rstd, one.gamma) if array is not None]
    if all(array.dtype == np.float16 for array in arrays):
        return "everything in half: the tile APIs keep their sums in half"
    if not all(np.isfinite(array.astype(np.float32)).all() for array in arrays):
        return "infinity or NaN: the tile formula gives NaN where the others give infinity"
    return None


def require_triton() -> None:
    """Turn Triton's interpreter on where there is no GPU.

    Raises:
        BackendUnavailable: There is no torch or no Triton, or Triton was imported before, to compile.
    """
    try:
        import torch

        if not torch.cuda.is_available():
            if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
                raise BackendUnavailable(
                    "--impl: triton: there is no GPU, and Triton is imported without TRITON_INTERPRET=1"
                )
            os.environ["TRITON_INTERPRET"] = "1"
        import triton  # noqa: F401
    except ModuleNotFoundError as error:
        raise BackendUnavailable(f"--impl: triton needs {error.name}, which is not installed") from None


def rounding_of_a_gpu() -> None:
    """Make Triton's interpreter round float32 to bfloat16 as a GPU does, to nearest even: by itself it cuts the digits off."""
    if os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None:
        return
    import triton.language as tl
    from triton.runtime import interpreter

    if (cut := interpreter._convert_float).__name__ == "converted":
        return

    def converted(data: Any, given: Any, wanted: Any, rounding: Any) -> Any:
        if (given, wanted) != (tl.float32, tl.bfloat16) or str(rounding).endswith("RTZ"):
            return cut(data, given, wanted, rounding)
        return data.astype(numpy_dtype("bfloat16")).view(np.uint16)

    interpreter._convert_float = converted


def on_device(array: Any) -> Any:
    """A tensor on the GPU, or on the CPU where there is none, of an array; anything else as it is.

    It has the array's strides where torch has such: none are negative, and its elements are aligned.
    """
    if not isinstance(array, np.ndarray):
        return array
    import torch

    plain = any(step < 0 or step % array.itemsize for step in array.strides) or not array.flags.aligned
    tensor = to_torch(np.require(array, requirements=["C", "W"] if plain else ["W"]))
    if not torch.cuda.is_available() or tensor.is_contiguous():
        return tensor.to("cuda" if torch.cuda.is_available() else "cpu")
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,)).to("cuda").as_strided(tensor.shape, tensor.stride())


def where_triton_runs(row: Implementation) -> Implementation:
    """A row of Triton kernels, with what is known of the GPU or of the interpreter in its place."""
    import torch

    if torch.cuda.is_available():
        return replace(row, where=f"on {torch.cuda.get_device_name()}")
    return replace(row, where="in Triton's interpreter, without a GPU", simulated=True, elsewhere=NO_DEVICE)


def triton_gpu() -> Implementation:
    """Our Triton kernels: on a GPU, or on the CPU with Triton's interpreter, where no plan chooses them."""
    require_triton()

    def backward(a: Arguments) -> Grads:
        t = replace(a, out=a.out or Grads(None, *a.parameters())).map(on_device)
        out: Any = t.out
        problem, arrays = Problem.backward(t.dy, t.x, t.mean, t.rstd, t.gamma, a.normalized_shape, a.output_mask, out)
        return Grads(*_executed(problem, arrays, out))

    def forward(a: Arguments) -> Forward:
        t = a.map(on_device)
        out: Any = t.out
        problem, arrays = Problem.forward(t.x, t.gamma, t.beta, out=out)
        return Forward(*_executed(problem, (*arrays, a.eps), out))

    return where_triton_runs(
        Implementation(
            "triton_gpu", unprepared(backward), unprepared(forward), takes=(dx_as_x,), package="lngrad",
            version=lambda: lngrad.__version__, into=True,
        )
    )  # fmt: skip


def _executed(problem: Problem, arrays: Any, out: Any) -> list[Array | None]:
    from lngrad.gpu.plan import plan

    with np.errstate(all="ignore"):  # Triton's interpreter computes with NumPy, which warns where a GPU says nothing
        return _each(execute(plan(problem, 1), arrays, out), lambda one: as_numpy(one.cpu()))


def _each(results: Iterable[Any], convert: Callable[[Any], Array]) -> list[Array | None]:
    return [None if one is None else convert(one) for one in results]


def _graph_takes(case: CheckCase, given: DrawnInputs) -> str | None:
    if reason := dx_as_x(case, given):
        return reason
    if case.dtype == "float64":
        return "the graph ops take float32, float16 and bfloat16"
    if case.gamma_dtype is None:
        return "the graph ops need a gamma"
    if 0 in given.inputs.x.shape:
        return "the graph ops take no empty dimension"
    parameter = case.output_dtypes[1]
    if case.output_dtypes[2] != parameter or parameter not in ("float32", case.gamma_dtype):
        return f"the graph ops give dgamma and dbeta in float32 or {case.gamma_dtype}, both the same"
    return None


def _graph_variance(case: CheckCase, given: DrawnInputs) -> str | None:
    if case.residual or case.third != "rstd":
        return None
    return takes_variance("LayerNormGrad")(case, given)


_ADDED_GRADS = {"add_layer_norm": "AddLayerNormGrad", "deep_norm": "DeepNormGrad"}


def _added_takes(case: CheckCase, given: DrawnInputs) -> str | None:
    if case.norm not in _ADDED_GRADS:
        return None
    name = _ADDED_GRADS[case.norm]
    if case.dtype != "float32":
        return f"{name} adds in float32; this case's total is rounded to {case.dtype}"
    if {case.gamma_dtype, case.statistics_dtype, *case.output_dtypes} != {"float32"}:
        return f"{name} takes gamma in x's dtype, the rest in float32"
    if not all(case.output_mask):
        return f"{name} has no mask"
    return None if case.lead and case.M * case.N else f"{name} takes no empty arrays, and rows alone"


def _added_grads(a: Arguments, dx: Any, dgamma: Any, dbeta: Any) -> Grads:
    """The gradients of the total: DeepNormGrad takes no gradient of it, whose caller adds it."""
    return Grads(dx if a.alpha == 1 else dx + a.dtotal, dgamma, dbeta)


def _graph_backward(a: Arguments) -> Any:
    from lngrad_ascend import graph

    if a.residual is not None:
        op: Any = getattr(graph, _ADDED_GRADS[a.norm])
        names = {"x": "summand", "x1": "summand", "x2": "residual", "gx": "residual", "dsum": "dtotal"}
        arrays = (np.ascontiguousarray(getattr(a, names.get(name, name))) for name in op.inputs)
        one = op(*arrays, **{name: getattr(a, name) for name in op.attributes})
        return _added_grads(a, one.dx if a.alpha == 1 else one.dgx, one.dgamma, one.dbeta)
    given = *_graph_statistics(a, a.variance), a.gamma
    return graph.LayerNormGrad(a.dy, a.x, *given, output_mask=a.output_mask, epsilon=a.eps, pd_gamma_dtype=a.dtypes[1])


def _graph_v3_backward(a: Arguments) -> Any:
    from lngrad_ascend import graph

    given = *_graph_statistics(a, a.rstd), a.gamma
    return graph.LayerNormGradV3(a.dy, a.x, *given, output_mask=a.output_mask, pd_gamma_dtype=a.dtypes[1])


def _graph_statistics(a: Arguments, statistic: Array) -> Iterator[Array]:
    """The statistic, and the mean in its dtype, in the shape that the graph ops want."""
    count = len(a.normalized_shape)
    shape = a.x.shape[: a.x.ndim - count] + (1,) * count
    return (np.ascontiguousarray(one).reshape(shape) for one in (statistic, np.asarray(a.mean).astype(statistic.dtype)))


def _aclnn_takes(case: CheckCase, given: DrawnInputs) -> str | None:
    if "float64" in (case.dtype, case.gamma_dtype, *case.output_dtypes):
        return "aclnnLayerNormBackward takes FLOAT, FLOAT16 and BF16"
    if given.inputs.mean.dtype != given.inputs.rstd.dtype:  # that of a narrow variance is in the accumulator's dtype
        return "aclnnLayerNormBackward takes mean and rstd of one dtype"
    if case.norm == "rms_norm" and (case.gamma_dtype is None or case.output_dtypes[1] != "float32"):
        return "aclnnRmsNormGrad takes a gamma, and gives dgamma in FLOAT"
    if case.norm == "rms_norm" and case.output_mask[:2] != (True, True):
        return "aclnnRmsNormGrad has no mask"
    return dx_as_x(case, given)


# Each operator with its arguments in its order: fields of Arguments, results, and what is said below.
_ACLNN_BACKWARD = {
    "layer_norm": ("aclnnLayerNormBackward", "dy x normalized_shape mean rstd gamma none output_mask dx dgamma dbeta"),
    "rms_norm": ("aclnnRmsNormGrad", "dy x rstd gamma dx dgamma"),
    "add_layer_norm": ("aclnnAddLayerNormGrad", "dy summand residual rstd mean gamma dtotal dx dgamma dbeta"),
    "deep_norm": ("aclnnDeepNormGrad", "dy summand residual gamma mean rstd alpha scaled dx dbeta dgamma"),
}


def _aclnn_call(a: Arguments, name: str, arguments: str, results: dict[str, Array | None]) -> None:
    """Both phases, and what they wrote to `results`."""
    acl: Any = import_module("lngrad_ascend.acl")  # its names are CANN's, made from tables
    aclnn: Any = import_module("lngrad_ascend.aclnn")
    codes = {"float32": acl.ACL_FLOAT, "float16": acl.ACL_FLOAT16, "bfloat16": acl.ACL_BF16, "float64": acl.ACL_DOUBLE}
    values: dict[str, Any] = {"none": None, "yes": True, "normalized_shape": acl.aclCreateIntArray(a.normalized_shape)}
    values |= {"output_mask": acl.aclCreateBoolArray(a.output_mask), **results}
    given = []
    for one in arguments.split():
        value = values[one] if one in values else getattr(a, one)
        if isinstance(value, np.ndarray):
            array = np.ascontiguousarray(value).reshape(value.shape) if one in ("dy", "x") else value
            made = (array.shape, codes[array.dtype.name], None, 0, acl.ACL_FORMAT_ND, array.shape, array)
            if (value := acl.aclCreateTensor(*made)) is None:
                raise RuntimeError(f"aclCreateTensor: {acl.aclGetRecentErrMsg()}")
        given.append(value)
    size, executor, status = getattr(aclnn, f"{name}GetWorkspaceSize")(*given)
    if status == 0:
        workspace = np.empty(size, np.uint8) if size else None
        status = getattr(aclnn, name)(workspace, size, executor, None)
    if status == 0:
        status = acl.aclrtSynchronizeStream(None)
    if status != 0:
        raise RuntimeError(f"{name}: status {int(status)}: {acl.aclGetRecentErrMsg()}")


def _aclnn_backward(a: Arguments) -> Grads:
    dx = np.empty(a.x.shape, a.x.dtype) if a.output_mask[0] else None
    results = dict(zip(Grads._fields, (dx, *a.parameters()), strict=True))
    _aclnn_call(a, *_ACLNN_BACKWARD[a.norm], results | {"scaled": np.empty(a.x.shape, a.x.dtype)})
    return Grads(**results) if a.residual is None else _added_grads(a, *results.values())


ASCEND_SIM = replace(  # it computes the backward alone, on one thread
    backend("ascend_sim"), forward=None, norms=("layer_norm",), takes=(dx_as_x, _tile_takes),
    needs="lngrad_ascend.simulated_backend", set_threads=None, empty_cache=lambda: None, simulated=True, elsewhere=NO_DEVICE,
)  # fmt: skip
CANN = (
    Implementation(
        "graph",
        unprepared(_graph_backward),
        norms=("layer_norm", *_ADDED_GRADS),
        takes=(_graph_takes, _graph_variance, _added_takes),
        needs="lngrad_ascend.graph",
    ),
    Implementation("graph_v3", unprepared(_graph_v3_backward), takes=(_graph_takes,), needs="lngrad_ascend.graph"),
    Implementation(
        "aclnn",
        unprepared(_aclnn_backward),
        norms=("layer_norm", "rms_norm", *_ADDED_GRADS),
        takes=(_aclnn_takes, _added_takes),
        needs="lngrad_ascend.aclnn",
    ),
)
