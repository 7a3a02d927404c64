"""The ways in, each as two functions on NumPy arrays by name: x, gamma, beta; and dy, x, mean, rstd, gamma."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import lngrad
from lngrad.check.soak.call import installed
from lngrad.core.dtypes import from_torch, to_torch
from lngrad.core.problem import Forward, Grads
from lngrad.typing import Array

EPS = 1e-5


class NotTaken(Exception):
    """The door does not take such a call, by its documentation; the text is counted."""


def takes_outputs(door: str) -> bool:
    """Whether results can be given arrays."""
    return door in ("numba_cpu", "numpy_cpu")


@contextmanager
def kept_open(doors: Sequence[str]) -> Iterator[None]:
    """What takes long to open stays open for many calls; override() in it costs nothing then."""
    if "override" not in installed(tuple(doors)):
        yield
        return
    from lngrad.torch import override

    with override():
        yield


def forward(door: str, arrays: dict[str, Array | None], normalized: int, out: Forward | None) -> Forward | Array:
    """y, mean and rstd, or y alone where the door gives no more; arrays are x, gamma and beta by name."""
    x, gamma, beta = arrays.values()
    assert x is not None
    shape = x.shape[x.ndim - normalized :]
    if takes_outputs(door):
        return lngrad.layer_norm(x, shape, gamma, beta, eps=EPS, out=out, backend=door)
    if door == "jax":
        with _jax(x, gamma) as jax_door:
            y = jax_door.layer_norm(_plain(x), _plain(gamma), _plain(beta), eps=EPS, normalized_shape=shape)
            return np.asarray(y)
    import torch

    import lngrad.torch as torch_door

    tensors = [_tensor(array) for array in (x, gamma, beta)]
    if door == "torch":
        return from_torch(torch_door.layer_norm(tensors[0], shape, tensors[1], tensors[2], EPS))
    _refuse_unlike_atens(x, gamma)
    with torch_door.override(), torch.no_grad():
        return from_torch(torch.nn.functional.layer_norm(tensors[0], shape, tensors[1], tensors[2], EPS))


def backward(door: str, arrays: dict[str, Array | None], normalized: int, mask: Any, out: Grads | None) -> Grads:
    """dx, dgamma and dbeta; arrays are dy, x, mean, rstd and gamma by name."""
    x = arrays["x"]
    assert x is not None
    options: dict[str, Any] = {"normalized_shape": x.shape[x.ndim - normalized :], "output_mask": mask}
    if takes_outputs(door):
        return lngrad.layer_norm_backward(*arrays.values(), **options, out=out, backend=door)
    if door == "jax":
        with _jax(x, arrays["gamma"]) as jax_door:
            got = jax_door.layer_norm_backward(*map(_plain, arrays.values()), **options)
            return Grads(*(None if grad is None else np.asarray(grad) for grad in got))
    import torch

    import lngrad.torch as torch_door

    tensors = [_tensor(array) for array in arrays.values()]
    if door == "torch":
        grads = torch_door.layer_norm_backward(*tensors, **options)
    else:
        gamma, statistics = arrays["gamma"], arrays["mean"]
        _refuse_unlike_atens(x, gamma)
        if statistics is None or statistics.dtype != (x if gamma is None else gamma).dtype:
            raise NotTaken("override: statistics in another dtype than weight's")
        if gamma is None and (mask[1] or mask[2]):
            raise NotTaken("override: gradients of absent parameters")
        call = torch.ops.aten.native_layer_norm_backward.default
        with torch_door.override():
            grads = call(*tensors[:2], list(options["normalized_shape"]), *tensors[2:], tensors[4], list(mask))
    return Grads(*(None if grad is None else from_torch(grad) for grad in grads))


def _refuse_unlike_atens(x: Array, gamma: Array | None) -> None:
    if gamma is not None and gamma.dtype != x.dtype and not (gamma.dtype == np.float32 and x.dtype.itemsize == 2):
        raise NotTaken("override: dtypes that aten does not mix")
    if not x.size or not x.ndim:
        raise NotTaken("override: tensors without elements or dimensions are aten's")


def _tensor(array: Array | None) -> Any:
    if array is None:
        return None
    odd = any(step < 0 or step % array.itemsize for step in array.strides)
    odd = odd or array.__array_interface__["data"][0] % array.itemsize != 0
    return to_torch(array.copy() if odd else array)  # torch has no such strides


def _plain(array: Array | None) -> Array | None:
    return None if array is None else np.ascontiguousarray(array).reshape(array.shape)


@contextmanager
def _jax(*arrays: Array | None) -> Iterator[Any]:
    """The door, where float64 is float64."""
    import jax

    import lngrad.jax as jax_door

    with jax.enable_x64(any(one is not None and one.dtype == np.float64 for one in arrays)):
        yield jax_door
