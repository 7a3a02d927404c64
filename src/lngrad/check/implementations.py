"""What is checked, by name: backends of lngrad, torch, Ascend's doors, a function of the user's, or a known mistake.

Everything is looked up at first use, so that a part that is not installed is missed only when it is asked for.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from lngrad.api import layer_norm_backward
from lngrad.arrays import as_array, as_numpy
from lngrad.check.case import OUTPUTS, CheckCase
from lngrad.check.inputs import Given
from lngrad.dtypes import bytes_of, numpy_dtype, to_torch
from lngrad.errors import BackendUnavailable, FileFormatError
from lngrad.plan import BACKENDS, backends
from lngrad.problem import Grads

__all__ = ["NotApplicable", "find", "names"]


class NotApplicable(Exception):
    """This implementation does not do what the case asks; the text says why. The case is skipped, not failed."""


Impl = Callable[[CheckCase, Given], Grads]


@dataclass(frozen=True)
class _Door:
    """One row of the table: which module must be there, and the function that calls it."""

    module: str
    call: Impl


def names() -> list[str]:
    """All names but those of users' functions."""
    return [*BACKENDS, *(name for name in _DOORS if name not in BACKENDS), "module:function", "mutant:NAME"]


def find(name: str) -> Impl:
    """The implementation of a name.

    Raises:
        BackendUnavailable: There is none, or it is not installed; one line that says which.
    """
    if name.startswith("mutant:"):
        return _mutant(name.removeprefix("mutant:"))
    if name in BACKENDS:
        state = backends()[name]
        if state != "available":
            raise BackendUnavailable(f"--impl: {name} is not available: {state}")
        return _backend(name)
    if name in _DOORS:
        door = _DOORS[name]
        try:
            import_module(door.module)
        except ModuleNotFoundError as error:
            raise BackendUnavailable(f"--impl: {name} needs {door.module}, which is not installed ({error})") from None
        return door.call
    module, colon, function = name.partition(":")
    if not colon:
        raise BackendUnavailable(f"--impl: expected one of {', '.join(names())}, got {name!r}")
    return _users(module, function)


def _parameters(case: CheckCase) -> list[Any]:
    """Arrays for dgamma and dbeta in the dtypes that the case declares; filled, so that what is not written is seen."""
    return [
        np.full(case.normalized, np.nan, numpy_dtype(dtype)) if wanted else None
        for dtype, wanted in zip(case.output_dtypes[1:], case.output_mask[1:], strict=True)
    ]


def _dx_dtype(case: CheckCase) -> None:
    if case.output_mask[0] and case.output_dtypes[0] != case.dtype:
        raise NotApplicable(f"dx in {case.output_dtypes[0]} beside x in {case.dtype}")


def _backend(name: str) -> Impl:
    def call(case: CheckCase, given: Given) -> Grads:
        _dx_dtype(case)
        one = given.inputs
        if name == "ascend_sim":
            _tile(case, given)
        try:
            return layer_norm_backward(
                one.dy, one.x, one.mean, one.rstd, one.gamma,
                normalized_shape=case.normalized, output_mask=case.output_mask,
                out=Grads(None, *_parameters(case)), backend=name,
            )  # fmt: skip
        except BackendUnavailable as reason:
            raise NotApplicable(str(reason)) from None

    return call


def _tile(case: CheckCase, given: Given) -> None:
    if case.ranges.get("mean", (0.0, 0.0)) is not None:
        raise NotApplicable("a mean that is not the row's: the tile formula keeps a term that the other formulas drop")
    if not np.all(np.asarray(given.inputs.rstd, np.float64) > 0):
        raise NotApplicable("rstd is not positive: the tile API takes a variance")
    one = given.inputs
    arrays = [array for array in (one.dy, one.x, one.mean, one.rstd, one.gamma) if array is not None]
    if all(array.dtype == np.float16 for array in arrays):
        raise NotApplicable("everything in half: the tile APIs keep their sums in half")
    if not all(np.isfinite(array.astype(np.float32)).all() for array in arrays):
        raise NotApplicable("infinity or NaN: the tile formula gives NaN where the others give infinity")


def _graph_rules(case: CheckCase, given: Given) -> None:
    _dx_dtype(case)
    if case.dtype == "float64":
        raise NotApplicable("the graph ops take float32, float16 and bfloat16")
    if case.gamma_dtype is None:
        raise NotApplicable("the graph ops need a gamma")
    if 0 in given.inputs.x.shape:
        raise NotApplicable("the graph ops take no empty dimension")
    parameter = case.output_dtypes[1]
    if case.output_dtypes[2] != parameter or parameter not in ("float32", case.gamma_dtype):
        raise NotApplicable(f"the graph ops give dgamma and dbeta in float32 or {case.gamma_dtype}, both the same")


def _rows_of(case: CheckCase, given: Given, array: Any) -> Any:
    """Statistics in the shape that the graph ops want."""
    split = given.inputs.x.ndim - given.inputs.normalized
    return np.ascontiguousarray(array).reshape(given.inputs.x.shape[:split] + (1,) * given.inputs.normalized)


def _graph(case: CheckCase, given: Given) -> Grads:
    from lngrad.ascend import graph

    _graph_rules(case, given)
    one = given.inputs
    if case.third == "rstd" and not np.all(np.asarray(one.rstd, np.float64) > 0):
        raise NotApplicable("rstd is not positive: LayerNormGrad takes a variance")
    variance = _rows_of(case, given, given.variance)
    mean = _rows_of(case, given, np.asarray(one.mean).astype(variance.dtype))
    return Grads(
        *graph.LayerNormGrad(
            one.dy, one.x, variance, mean, one.gamma,
            output_mask=case.output_mask, epsilon=given.eps, pd_gamma_dtype=case.output_dtypes[1],
        )
    )  # fmt: skip


def _graph_v3(case: CheckCase, given: Given) -> Grads:
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


def _aclnn(case: CheckCase, given: Given) -> Grads:
    acl: Any = import_module("lngrad.ascend.acl")  # its names are CANN's, made from tables
    aclnn: Any = import_module("lngrad.ascend.aclnn")

    if "float64" in (case.dtype, case.gamma_dtype, *case.output_dtypes):
        raise NotApplicable("aclnnLayerNormBackward takes FLOAT, FLOAT16 and BF16")
    _dx_dtype(case)
    one = given.inputs
    codes = {"float32": acl.ACL_FLOAT, "float16": acl.ACL_FLOAT16, "bfloat16": acl.ACL_BF16}

    def tensor(array: Any) -> Any:
        if array is None:
            return None
        made = acl.aclCreateTensor(array.shape, codes[array.dtype.name], None, 0, acl.ACL_FORMAT_ND, array.shape, array)
        if made is None:
            raise RuntimeError(f"aclCreateTensor: {acl.aclGetRecentErrMsg()}")
        return made

    outputs = [np.empty(one.x.shape, one.x.dtype) if case.output_mask[0] else None, *_parameters(case)]
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


def _torch(case: CheckCase, given: Given) -> Grads:
    import torch

    _dx_dtype(case)
    parameter = case.gamma_dtype or case.dtype
    for name, dtype, wanted in zip(OUTPUTS[1:], case.output_dtypes[1:], case.output_mask[1:], strict=True):
        if wanted and dtype != parameter:
            raise NotApplicable(f"torch gives {name} in gamma's dtype, {parameter}, not in {dtype}")

    def tensor(array: Any) -> Any:
        return to_torch(np.ascontiguousarray(array))

    one = given.inputs
    dy, x, mean, rstd = map(tensor, (one.dy, one.x, one.mean, one.rstd))
    weight = torch.ones(case.normalized, dtype=x.dtype) if one.gamma is None else tensor(one.gamma)
    # torch's kernel reads the statistics in the weight's dtype.
    if mean.dtype != weight.dtype:
        if weight.dtype not in (torch.float32, torch.float64):
            raise NotApplicable(
                f"torch reads mean and rstd in gamma's dtype, {parameter}, not in {case.statistics_dtype}"
            )
        mean, rstd = mean.to(weight.dtype), rstd.to(weight.dtype)
    results = torch.ops.aten.native_layer_norm_backward(
        dy, x, list(case.normalized), mean, rstd, weight, torch.zeros_like(weight), list(case.output_mask)
    )
    return Grads(*results)


_SPOKEN = ("dy", "x", "mean", "rstd", "variance", "gamma", "eps", "normalized_shape", "output_mask", "output_dtypes")


def _users(module: str, function: str) -> Impl:
    """A function of the user's: given what its parameters are named after."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        target: Any = import_module(module)
        for part in function.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise BackendUnavailable(f"--impl: {module}:{function}: {error}") from None
    finally:
        sys.path.pop(0)
    parameters = inspect.signature(target).parameters
    catches = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    wanted = [name for name in _SPOKEN if catches or name in parameters]
    needed = [
        name
        for name, one in parameters.items()
        if name not in _SPOKEN and one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]
    if needed:
        raise BackendUnavailable(
            f"--impl: {module}:{function}: parameters: expected some of {', '.join(_SPOKEN)}, got {needed[0]}"
        )

    def call(case: CheckCase, given: Given) -> Grads:
        one = given.inputs
        spoken = {
            "dy": one.dy, "x": one.x, "mean": one.mean, "rstd": one.rstd, "variance": given.variance,
            "gamma": one.gamma, "eps": given.eps, "normalized_shape": case.normalized, "output_mask": case.output_mask,
            "output_dtypes": case.output_dtypes,
        }  # fmt: skip
        results = three(target(**{name: spoken[name] for name in wanted}), f"{module}:{function}")
        return Grads(*(_narrowed(one, dtype) for one, dtype in zip(results, case.output_dtypes, strict=True)))

    return call


def _narrowed(result: Any, dtype: str) -> Any:
    """A result that is wider than the case declares, rounded; a narrower one stays, and fails."""
    if result is None or result.dtype.itemsize <= bytes_of(dtype):
        return result
    with np.errstate(over="ignore", invalid="ignore"):
        return result.astype(numpy_dtype(dtype))


def three(results: Any, name: str) -> Grads:
    """What a user's function returned, as NumPy arrays.

    Raises:
        FileFormatError: These are not three arrays or None.
    """
    if not isinstance(results, tuple | list) or len(results) != 3:
        raise FileFormatError(f"{name}: expected to return dx, dgamma, dbeta, got {type(results).__name__}")
    arrays = [None if one is None else as_array(label, one) for label, one in zip(OUTPUTS, results, strict=True)]
    return Grads(*(None if one is None else as_numpy(one.cpu() if hasattr(one, "cpu") else one) for one in arrays))


def _mutant(name: str) -> Impl:
    from lngrad.check.mistakes.catalogue import MISTAKES

    if name not in MISTAKES:
        raise BackendUnavailable(f"--impl: mutant: expected one of {', '.join(MISTAKES)}, got {name!r}")

    def call(case: CheckCase, given: Given) -> Grads:
        grads = MISTAKES[name].grads(case, given.exact)
        if grads is None:
            raise NotApplicable(f"{name} makes no difference to this case")
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = [one.astype(numpy_dtype(dtype)) for one, dtype in zip(grads, case.output_dtypes, strict=True)]
        return Grads(*(one if wanted else None for one, wanted in zip(rounded, case.output_mask, strict=True)))

    return call


_DOORS = {
    "ascend_sim": _Door("lngrad.backend.ascend_sim", _backend("ascend_sim")),
    "torch": _Door("torch", _torch),
    "graph": _Door("lngrad.ascend.graph", _graph),
    "graph_v3": _Door("lngrad.ascend.graph", _graph_v3),
    "aclnn": _Door("lngrad.ascend.aclnn", _aclnn),
}
