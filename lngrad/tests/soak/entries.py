"""The ways into lngrad that the soak knows, each a row: two backends from NumPy, torch's functions, torch's own, JAX, aclnn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from lngrad.check.implementations.implementation import Arguments, Implementation, NotApplicable, unprepared
from lngrad.check.implementations.ours import public_functions
from lngrad.core.norms import NORMS, PLAIN
from lngrad.core.problem import BACKWARD
from lngrad.support.dtypes import from_torch, to_torch
from lngrad.typing import Array


def _torch_tensor(array: Array | None) -> Any:
    if array is None:
        return None
    odd = any(step < 0 or step % array.itemsize for step in array.strides)
    odd = odd or array.__array_interface__["data"][0] % array.itemsize != 0
    return to_torch(array.copy() if odd else array)  # torch has no such strides


def _torch_functions_forward(a: Arguments) -> Any:
    import lngrad.torch as functions

    t, shape = a.map(_torch_tensor), a.normalized_shape
    results: Any
    if a.residual is None and a.normalization.centred:
        results = functions.layer_norm(t.x, shape, t.gamma, t.beta, a.eps)
    elif a.residual is None:
        results = functions.rms_norm(t.x, shape, t.gamma, a.eps, offset=a.offset)
    elif a.normalization.centred:
        results = functions.add_layer_norm(t.x, t.residual, shape, t.gamma, t.beta, a.eps)
    else:
        results = functions.add_rms_norm(t.x, t.residual, shape, t.gamma, a.eps, offset=a.offset)
    return tuple(map(from_torch, results)) if isinstance(results, tuple) else from_torch(results)


def _torch_functions_backward(a: Arguments) -> Any:
    import lngrad.torch

    t, shape, mask = a.map(_torch_tensor), a.normalized_shape, a.output_mask
    if a.norm == "layer_norm":
        grads = lngrad.torch.layer_norm_backward(
            t.dy, t.x, t.mean, t.rstd, t.gamma, normalized_shape=shape, output_mask=mask
        )
        return _converted(a, grads, from_torch)
    switches = t.dtotal, a.normalization.centred, a.offset
    mask = [name in a.wanted for name in BACKWARD.outputs]
    grads = lngrad.torch.operators.norm_backward(t.dy, t.x, shape, t.mean, t.rstd, t.gamma, mask, *switches)
    return a.masked(**dict(zip(BACKWARD.outputs, map(from_torch, grads), strict=True)))


def _converted(a: Arguments, grads: Any, convert: Callable[[Any], Array]) -> Any:
    """The operator's results, as NumPy arrays, of a tuple in its order."""
    return a.operator.results(*(None if grad is None else convert(grad) for grad in grads))


def _override_forward(a: Arguments) -> Array:
    import torch

    from lngrad.torch import override

    _refuse_unlike_aten(a)
    t = a.map(_torch_tensor)
    with override(), torch.no_grad():
        if not a.normalization.centred:
            return from_torch(torch.nn.functional.rms_norm(t.x, a.normalized_shape, t.gamma, a.eps))
        return from_torch(torch.nn.functional.layer_norm(t.x, a.normalized_shape, t.gamma, t.beta, a.eps))


def _override_backward(a: Arguments) -> Any:
    import torch

    from lngrad.torch import override

    _refuse_unlike_aten(a)
    if not a.normalization.centred:
        return _override_derivative(a)
    if a.mean.dtype != (a.x if a.gamma is None else a.gamma).dtype:
        raise NotApplicable("override: statistics in another dtype than weight's")
    if a.gamma is None and not {"dgamma", "dbeta"}.isdisjoint(a.wanted):
        raise NotApplicable("override: gradients of absent parameters")
    t, backward = a.map(_torch_tensor), torch.ops.aten.native_layer_norm_backward.default
    with override():
        grads = backward(t.dy, t.x, list(a.normalized_shape), t.mean, t.rstd, t.gamma, t.gamma, list(a.output_mask))
    return _converted(a, grads, from_torch)


def _override_derivative(a: Arguments) -> Any:
    """aten::rms_norm has no backward of its own: its derivative, with the statistics of x."""
    import torch

    from lngrad.torch import override

    t = a.map(_torch_tensor)
    if a.gamma is None and "dgamma" in a.wanted:
        raise NotApplicable("override: gradients of absent parameters")
    leaves = {"dx": t.x.detach(), "dgamma": None if t.gamma is None else t.gamma.detach()}
    wanted = {name: leaves[name].requires_grad_() for name in a.wanted}
    if not wanted:
        return a.masked()
    with override(), torch.enable_grad():  # a finalizer may come where gradients are off
        y = torch.nn.functional.rms_norm(leaves["dx"], a.normalized_shape, leaves["dgamma"], a.eps)
        grads = torch.autograd.grad(y, list(wanted.values()), t.dy)
    return a.masked(**{name: from_torch(grad) for name, grad in zip(wanted, grads, strict=True)})


def _refuse_unlike_aten(a: Arguments) -> None:
    x, gamma = a.x, a.gamma
    if gamma is not None and gamma.dtype != x.dtype and not (gamma.dtype == np.float32 and x.dtype.itemsize == 2):
        raise NotApplicable("override: dtypes that aten does not mix")
    if not x.size or not x.ndim:
        raise NotApplicable("override: tensors without elements or dimensions are aten's")


def _jax_functions_forward(a: Arguments) -> Any:
    with _jax(a.x, a.gamma) as functions:
        t = a.map(_contiguous)
        options = {"eps": a.eps, "normalized_shape": a.normalized_shape, "offset": a.offset}
        options |= {} if a.residual is None else {"alpha": a.alpha}
        name = "layer_norm" if a.normalization.centred else "rms_norm"
        arrays = (t.x, t.gamma) if a.residual is None else (t.x, t.residual, t.gamma)
        arrays = (*arrays, t.beta) if a.normalization.centred else arrays
        results = getattr(functions, name if a.residual is None else f"add_{name}")(*arrays, **options)
        return tuple(map(np.asarray, results)) if isinstance(results, tuple) else np.asarray(results)


def _jax_functions_backward(a: Arguments) -> Any:
    with _jax(a.x, a.gamma) as functions:
        t = a.map(_contiguous)
        options = {"normalized_shape": a.normalized_shape, "offset": a.offset, "dtotal": t.dtotal}
        options |= {"output_mask": a.output_mask}
        if a.normalization.centred:
            grads = functions.layer_norm_backward(t.dy, t.x, t.mean, t.rstd, t.gamma, **options)
        else:
            grads = functions.rms_norm_backward(t.dy, t.x, t.rstd, t.gamma, **options)
        return _converted(a, grads, np.asarray)


def _contiguous(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(array.shape)


@contextmanager
def _jax(*arrays: Array | None) -> Iterator[Any]:
    """lngrad.jax, where float64 is float64."""
    import jax

    import lngrad.jax

    with jax.enable_x64(any(array is not None and array.dtype == np.float64 for array in arrays)):
        yield lngrad.jax


# Each operator with its arguments in its order, as lngrad_ascend.referee's ACLNN_BACKWARD has them.
_ACLNN_FORWARD = {
    "layer_norm": ("aclnnLayerNorm", "x normalized_shape gamma beta eps y mean rstd"),
    "rms_norm": ("aclnnRmsNorm", "x gamma eps y rstd"),
    "gemma_rms_norm": ("aclnnGemmaRmsNorm", "x gamma eps y rstd"),
    "add_rms_norm": ("aclnnAddRmsNorm", "x residual gamma eps y rstd total"),
    "add_layer_norm": ("aclnnAddLayerNorm", "x residual gamma beta none eps yes y mean rstd total"),
    "deep_norm": ("aclnnDeepNorm", "x residual beta gamma alpha eps mean rstd y"),
}


def _aligned(array: Array) -> Array:
    return array.copy()


def _aclnn_refused(name: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RuntimeError as reason:
        code = re.match(r"\w+: status (\d+)", str(reason))
        if code is None:
            raise
        raise NotApplicable(f"aclnn: {name} refuses dtypes, shapes or absent tensors, {code[1]}") from None


def _aclnn_entry_forward(a: Arguments) -> Any:
    from lngrad_ascend.referee import aclnn_call

    name, arguments = _ACLNN_FORWARD[a.norm]
    t = a.map(_aligned)
    rows = (*t.x.shape[: t.x.ndim - len(a.normalized_shape)], *(1,) * len(a.normalized_shape))
    results: dict[str, Any] = {name: np.empty(rows, np.float32) for name in ("mean", "rstd")}
    results |= {name: np.empty_like(t.x) for name in ("y", "total")}
    _aclnn_refused(name, lambda: aclnn_call(t, name, arguments, results))
    return {name: results[name] for name in arguments.split() if name in results}


def _aclnn_entry_backward(a: Arguments) -> Any:
    from lngrad_ascend.referee import ACLNN_BACKWARD, aclnn_backward

    if a.norm not in ACLNN_BACKWARD:
        raise NotApplicable(f"aclnn: no operator has the gradients of {a.norm}")
    parameter = "float32" if a.norm != "layer_norm" else (a.x if a.gamma is None else a.gamma).dtype.name
    dtypes = {name: a.x.dtype.name if name == "dx" else parameter for name in a.operator.outputs}
    t = replace(a.map(_aligned), declared=dtypes, names=a.names if a.norm == "layer_norm" else None)
    t = replace(t, dtotal=np.zeros_like(t.x)) if a.norm == "deep_norm" else t  # DeepNormGrad has none
    grads = _aclnn_refused(ACLNN_BACKWARD[a.norm][0], lambda: aclnn_backward(t))
    return a.masked(**grads._asdict())


# "torch" and "jax" are lngrad.torch and lngrad.jax here.
ENTRIES = {
    row.name: row
    for row in (
        public_functions("numba_cpu"),
        public_functions("numpy_cpu"),
        Implementation(
            "torch", unprepared(_torch_functions_backward), unprepared(_torch_functions_forward),
            [name for name in PLAIN if NORMS[name].torch],
            needs="torch",
        ),
        Implementation(
            "override", unprepared(_override_backward), unprepared(_override_forward), ("layer_norm", "rms_norm"),
            needs="torch", own_statistics=("rms_norm",),
        ),
        Implementation("jax", unprepared(_jax_functions_backward), unprepared(_jax_functions_forward), PLAIN, needs="jax"),
        Implementation(
            "aclnn", unprepared(_aclnn_entry_backward), unprepared(_aclnn_entry_forward), tuple(_ACLNN_FORWARD),
            needs="lngrad_ascend.aclnn",
        ),
    )
}  # fmt: skip
