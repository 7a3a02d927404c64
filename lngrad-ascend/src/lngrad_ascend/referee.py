"""Implementations for lngrad's check and certify: the simulated backend, graph ops, aclnn, and users' kernels in Ascend C."""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from lngrad.check.case import CheckCase
from lngrad.check.implementations.implementation import (
    BACKWARD_ALONE,
    FORWARD_ALONE,
    Added,
    Arguments,
    Implementation,
    NotApplicable,
    Signature,
    takes_variance,
    tensors_as_x,
    unprepared,
)
from lngrad.check.implementations.ours import NO_DEVICE, backend
from lngrad.check.inputs import DrawnInputs
from lngrad.core.norms import NORMS
from lngrad.core.problem import Grads
from lngrad.errors import MISSING, BackendUnavailable
from lngrad.support.dtypes import numpy_dtype
from lngrad.typing import Array
from lngrad_ascend import graph, soc

acl: Any = import_module("lngrad_ascend.acl")  # its names are CANN's, made from tables
aclnn: Any = import_module("lngrad_ascend.aclnn")


def _tile_takes(case: CheckCase, drawn: DrawnInputs) -> str | None:
    if case.ranges.get("mean", (0.0, 0.0)) is not None:
        return "a mean that is not the row's: the tile formula keeps a term that the other formulas drop"
    if reason := takes_variance("the tile API")(case, drawn):
        return reason
    inputs = drawn.inputs
    arrays = [array for array in (inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma) if array is not None]
    if all(array.dtype == np.float16 for array in arrays):
        return "everything in half: the tile APIs keep their sums in half"
    if not all(np.isfinite(array.astype(np.float32)).all() for array in arrays):
        return "infinity or NaN: the tile formula gives NaN where the others give infinity"
    return None


def _graph_takes(case: CheckCase, drawn: DrawnInputs) -> str | None:
    if reason := tensors_as_x(case, drawn):
        return reason
    if case.dtype == "float64":
        return "the graph ops take float32, float16 and bfloat16"
    if case.gamma_dtype is None:
        return "the graph ops need a gamma"
    if 0 in drawn.inputs.x.shape:
        return "the graph ops take no empty dimension"
    parameter = case.output_dtypes["dgamma"]
    if case.output_dtypes["dbeta"] != parameter or parameter not in ("float32", case.gamma_dtype):
        return f"the graph ops give dgamma and dbeta in float32 or {case.gamma_dtype}, both the same"
    return None


def _graph_variance(case: CheckCase, drawn: DrawnInputs) -> str | None:
    if case.residual or case.third != "rstd":
        return None
    return takes_variance("LayerNormGrad")(case, drawn)


_ADDED_GRADS = {"add_layer_norm": "AddLayerNormGrad", "deep_norm": "DeepNormGrad"}


def _added_takes(case: CheckCase, drawn: DrawnInputs) -> str | None:
    if case.norm not in _ADDED_GRADS:
        return None
    name = _ADDED_GRADS[case.norm]
    if case.dtype != "float32":
        return f"{name} adds in float32; this case's total is rounded to {case.dtype}"
    if {case.gamma_dtype, case.statistics_dtype, *case.output_dtypes.values()} != {"float32"}:
        return f"{name} takes gamma in x's dtype, the rest in float32"
    if case.wanted != case.operator.outputs:
        return f"{name} has no mask"
    return None if case.lead and case.M * case.N else f"{name} takes no empty arrays, and rows alone"


def _added_grads(a: Arguments, dx: Any, dgamma: Any, dbeta: Any) -> Grads:
    """The gradients of the total: DeepNormGrad takes no gradient of it, whose caller adds it."""
    return Grads(dx if a.alpha == 1 else dx + a.dtotal, dgamma, dbeta)


def _graph_backward(a: Arguments) -> Any:
    if a.residual is not None:
        op: Any = getattr(graph, _ADDED_GRADS[a.norm])
        names = {"x": "summand", "x1": "summand", "x2": "residual", "gx": "residual", "dsum": "dtotal"}
        arrays = (np.ascontiguousarray(getattr(a, names.get(name, name))) for name in op.inputs)
        grads = op(*arrays, **{name: getattr(a, name) for name in op.attributes})
        return _added_grads(a, grads.dx if a.alpha == 1 else grads.dgx, grads.dgamma, grads.dbeta)
    options: dict[str, Any] = {"output_mask": a.output_mask, "epsilon": a.eps, "pd_gamma_dtype": a.dtypes["dgamma"]}
    variance, mean = _graph_statistics(a, a.variance)
    with soc.use("Ascend950"):  # the one product of the op's page
        return Grads(*graph.LayerNormGrad(a.dy, a.x, variance, mean, a.gamma, **options))


def _graph_v3_backward(a: Arguments) -> Any:
    options: dict[str, Any] = {"output_mask": a.output_mask, "pd_gamma_dtype": a.dtypes["dgamma"]}
    rstd, mean = _graph_statistics(a, a.rstd)
    return Grads(*graph.LayerNormGradV3(a.dy, a.x, rstd, mean, a.gamma, **options))


def _graph_statistics(a: Arguments, statistic: Array) -> Iterator[Array]:
    """The statistic and the mean in its dtype, both in the graph ops' shape."""
    count = len(a.normalized_shape)
    shape = a.x.shape[: a.x.ndim - count] + (1,) * count
    arrays = statistic, np.asarray(a.mean).astype(statistic.dtype)
    return (np.ascontiguousarray(array).reshape(shape) for array in arrays)


def _aclnn_takes(case: CheckCase, drawn: DrawnInputs) -> str | None:
    if "float64" in (case.dtype, case.gamma_dtype, *case.output_dtypes.values()):
        return "aclnnLayerNormBackward takes FLOAT, FLOAT16 and BF16"
    if drawn.inputs.mean.dtype != drawn.inputs.rstd.dtype:  # that of a narrow variance is in the accumulator's dtype
        return "aclnnLayerNormBackward takes mean and rstd of one dtype"
    if case.norm == "rms_norm" and (case.gamma_dtype is None or case.output_dtypes["dgamma"] != "float32"):
        return "aclnnRmsNormGrad takes a gamma, and gives dgamma in FLOAT"
    if case.norm == "rms_norm" and case.wanted != case.operator.outputs:
        return "aclnnRmsNormGrad has no mask"
    return tensors_as_x(case, drawn)


# Each operator with its arguments in its order: fields of Arguments, names of results, and keys of `values` in aclnn_call.
ACLNN_BACKWARD = {
    "layer_norm": ("aclnnLayerNormBackward", "dy x normalized_shape mean rstd gamma none output_mask dx dgamma dbeta"),
    "rms_norm": ("aclnnRmsNormGrad", "dy x rstd gamma dx dgamma"),
    "add_layer_norm": ("aclnnAddLayerNormGrad", "dy summand residual rstd mean gamma dtotal dx dgamma dbeta"),
    "deep_norm": ("aclnnDeepNormGrad", "dy summand residual gamma mean rstd alpha scaled dx dbeta dgamma"),
}


def aclnn_call(a: Arguments, name: str, arguments: str, results: dict[str, Array | None]) -> None:
    """Run both phases of an operator, which write `results`."""
    codes = {"float32": acl.ACL_FLOAT, "float16": acl.ACL_FLOAT16, "bfloat16": acl.ACL_BF16, "float64": acl.ACL_DOUBLE}
    values: dict[str, Any] = {"none": None, "yes": True, "normalized_shape": acl.aclCreateIntArray(a.normalized_shape)}
    values |= {"output_mask": acl.aclCreateBoolArray(a.output_mask), **results}
    passed = []
    for argument in arguments.split():
        value = values[argument] if argument in values else getattr(a, argument)
        if isinstance(value, np.ndarray):
            array = np.ascontiguousarray(value).reshape(value.shape) if argument in ("dy", "x") else value
            facts = (array.shape, codes[array.dtype.name], None, 0, acl.ACL_FORMAT_ND, array.shape, array)
            if (value := acl.aclCreateTensor(*facts)) is None:
                raise RuntimeError(f"aclCreateTensor: {acl.aclGetRecentErrMsg()}")
        passed.append(value)
    size, executor, status = getattr(aclnn, f"{name}GetWorkspaceSize")(*passed)
    if status == 0:
        workspace = np.empty(size, np.uint8) if size else None
        status = getattr(aclnn, name)(workspace, size, executor, None)
    if status == 0:
        status = acl.aclrtSynchronizeStream(None)
    if status != 0:
        raise RuntimeError(f"{name}: status {int(status)}: {acl.aclGetRecentErrMsg()}")


def aclnn_backward(a: Arguments) -> Any:
    dx = np.empty(a.x.shape, a.x.dtype) if "dx" in a.wanted else None
    results = {"dx": dx, **a.parameters()}
    aclnn_call(a, *ACLNN_BACKWARD[a.norm], results | {"scaled": np.empty(a.x.shape, a.x.dtype)})
    return a.masked(**results) if a.residual is None else _added_grads(a, **results)


INPUTS = "dy", "x", "mean", "rstd", "variance", "gamma", "dtotal", "summand", "residual", "gate"
NAMES = *INPUTS, "dx", "dgamma", "dbeta", "dgate"
OF_FORWARD = ("x", "gamma", "beta", "residual", "gate"), ("y", "mean", "rstd", "total")  # inputs, and results
LAST = ("workspace", "tiling")  # behind the arrays, as launch passes them
OPTIONS = ("blocks", "workspace", "tiling", "tiling_key", "define", "include", "headers", "auto_sync")

Host = Callable[..., Mapping[str, Any]]


def ascendc_kernel(name: str) -> Implementation:
    """A kernel by file and function: "kernel.cpp:my_kernel".

    Its parameters are found in the file and bound by name: dy, x, mean, rstd, variance, gamma, gate, dx, dgamma, dbeta or
    dgate, and then workspace and tiling. The host side is a function `host` in a Python file beside it (kernel.py): for M, N,
    dtype, gamma_dtype and eps, as far as it takes them, it returns what the launch needs, see OPTIONS. It raises
    NotImplementedError for a case that the kernel does not take. A dgamma or dbeta of another dtype than gamma has is for
    no kernel: the case says what is written. A kernel with a parameter y is a forward: of x, gamma, beta, residual and gate it
    takes what it names, and it writes y and, where it has them, mean, rstd and total.

    Raises:
        BackendUnavailable: There is no such file or function, or its parameters have other names.
    """
    path, _, kernel = name.rpartition(":")
    source = Path(path)
    if path and not source.exists():
        raise BackendUnavailable(f"--impl: {path}: {MISSING}")
    if not source.is_file() or not kernel:
        raise BackendUnavailable(f"--impl: ascendc: expected FILE.cpp:KERNEL, got {name!r}")
    parameters = _parameters(source, kernel)
    host = _host(source.with_suffix(".py"), needed=bool(set(parameters) & set(LAST)))

    def backward(a: Arguments) -> Any:
        from lngrad_ascend import ascendc

        options = _options(host, a, source)
        building = {name: options.pop(name) for name in ("define", "include", "headers") if name in options}
        compiled = ascendc.compile(source, kernel, **building)
        arrays = _arrays(a, bool(gives))
        blocks = options.pop("blocks", 1)
        missing = [name for name in parameters if name in arrays and arrays[name] is None]
        if missing:
            raise NotApplicable(f"{kernel} takes {missing[0]}, which the case does not have")
        ascendc.launch(compiled, blocks, *(arrays[name] for name in parameters if name in arrays), **options)
        if gives:
            return {name: arrays[name] for name in a.wanted}
        return a.masked(**{name: arrays[name] for name in a.operator.outputs if name in parameters})

    gives = tuple(name for name in OF_FORWARD[1] if name in parameters and "y" in parameters)
    has = "gamma" in parameters, "beta" in parameters
    signature = (
        Signature((), FORWARD_ALONE, *has, gives=gives, backward=False) if gives else Signature(text=BACKWARD_ALONE)
    )
    return Implementation(
        f"ascendc:{name}", unprepared(backward), norms=NORMS, where="on the simulated NPU", simulated=True,
        elsewhere=NO_DEVICE, signature=signature,
    )  # fmt: skip


def _parameters(source: Path, kernel: str) -> list[str]:
    """The names of a kernel function's parameters, from its text."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source.read_text("utf-8"), flags=re.DOTALL)
    plain = re.escape(kernel.partition("<")[0].rpartition("::")[2])
    found = re.search(rf"__global__[^;{{}}()]*\b{plain}\s*\(([^)]*)\)", text)
    if found is None:
        raise BackendUnavailable(f"--impl: ascendc: {source}: expected a __global__ function {kernel}, found none")
    names = [re.findall(r"\w+", parameter)[-1] for parameter in found[1].split(",") if parameter.strip()]
    known = [name.lower() for name in names]
    of_kind = (*OF_FORWARD[0], *OF_FORWARD[1]) if "y" in known else NAMES
    for name in known:
        if name not in (*of_kind, *LAST):
            expected = ", ".join((*of_kind, *LAST))
            raise BackendUnavailable(f"--impl: ascendc: {kernel}: parameters: expected some of {expected}, got {name}")
    order = [name for name in known if name in LAST]
    if order != [name for name in LAST if name in known] or known[len(known) - len(order) :] != order:
        raise BackendUnavailable(
            f"--impl: ascendc: {kernel}: parameters: expected workspace and tiling last, got {', '.join(known)}"
        )
    return known


def _host(path: Path, needed: bool) -> Host | None:
    if not path.is_file():
        if needed:
            raise BackendUnavailable(f"--impl: ascendc: expected the host side in {path}, for workspace and tiling")
        return None
    host = runpy.run_path(str(path)).get("host")
    if not callable(host):
        raise BackendUnavailable(f"--impl: ascendc: {path}: expected a function host")
    return host  # type: ignore[no-any-return]  # whatever the file defines


def _options(host: Host | None, a: Arguments, source: Path) -> dict[str, Any]:
    if host is None:
        return {}
    gamma_dtype = None if a.gamma is None else a.gamma.dtype.name
    eps = a.case.eps if a.case is not None and "y" in a.wanted else a.eps
    possible = {"M": a.M, "N": a.N, "dtype": a.x.dtype.name, "gamma_dtype": gamma_dtype, "eps": eps}
    wanted = inspect.signature(host).parameters
    try:
        options = dict(host(**{name: value for name, value in possible.items() if name in wanted}))
    except NotImplementedError as reason:
        raise NotApplicable(str(reason)) from None
    for option in options:
        if option not in OPTIONS:
            raise BackendUnavailable(f"{source}: host: expected some of {', '.join(OPTIONS)}, got {option}")
    return options


def _arrays(a: Arguments, is_forward: bool) -> dict[str, Any]:
    """All that a kernel may take: inputs of its own, and outputs in the declared dtypes, filled so that gaps are seen."""
    inputs, shapes, dtypes = {name: getattr(a, name) for name in INPUTS}, a.shapes, a.dtypes
    if is_forward and a.case is not None:
        inputs, shapes, dtypes = a.of_forward(), a.case.shapes_of_results(a.M), a.case.output_dtypes
    arrays = dict.fromkeys((*NAMES, "beta")) | {
        name: np.ascontiguousarray(array) for name, array in inputs.items() if array is not None
    }
    return arrays | {name: np.full(shape, np.nan, numpy_dtype(dtypes[name])) for name, shape in shapes.items()}


_ASCEND_SIM = replace(  # it computes the backward alone, on one thread
    backend("ascend_sim"), forward=None, norms=("layer_norm",), takes=(tensors_as_x, _tile_takes),
    set_threads=None, empty_cache=lambda: None, simulated=True, elsewhere=NO_DEVICE,
)  # fmt: skip
_ROWS = (
    _ASCEND_SIM,
    Implementation(
        "graph", unprepared(_graph_backward), norms=("layer_norm", *_ADDED_GRADS),
        takes=(_graph_takes, _graph_variance, _added_takes),
    ),
    Implementation("graph_v3", unprepared(_graph_v3_backward), takes=(_graph_takes,)),
    Implementation(
        "aclnn", unprepared(aclnn_backward), norms=("layer_norm", "rms_norm", *_ADDED_GRADS),
        takes=(_aclnn_takes, _added_takes),
    ),
)  # fmt: skip
ADDED = Added({row.name: row for row in _ROWS}, {"ascendc": (ascendc_kernel, "FILE.cpp:KERNEL")})
