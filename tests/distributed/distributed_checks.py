"""What is checked in worlds of 2 and 4 processes. Every rank runs every check of its world, in this order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import lngrad
import lngrad.torch as door
from lngrad.arrays import as_numpy
from lngrad.errors import DtypeError, ShapeError
from lngrad.problem import Forward, Grads
from lngrad.testing import Case, check_forward, check_grads, check_same_bits, make_inputs

CHECKS: dict[int, dict[str, Callable[[], None]]] = {2: {}, 4: {}}
torch.set_num_threads(1)
lngrad.set_num_threads(1)
R = Replicate()


def check(*sizes: int) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        for size in sizes:
            CHECKS[size][function.__name__] = function
        return function

    return register


def mesh(*shape: int) -> Any:
    return init_device_mesh("cpu", shape or (dist.get_world_size(),), mesh_dim_names=("a", "b")[: len(shape) or 1])


def tensor(array: Any) -> Any:
    if array is not None and array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return None if array is None else torch.from_numpy(array.copy())


def placed(array: Any, on: Any, placements: Any) -> Any:
    return None if array is None else distribute_tensor(tensor(array), on, placements)


def whole(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().full_tensor()


def same_everywhere(tensor: Any) -> None:
    """That all ranks hold the same bits."""
    mine = torch.from_numpy(np.ascontiguousarray(as_numpy(tensor)).view(np.uint8).copy())
    all_of_them = mine.new_empty((dist.get_world_size() * mine.numel(),))
    dist.all_gather_into_tensor(all_of_them, mine.reshape(-1))
    for other in all_of_them.reshape(dist.get_world_size(), -1):
        check_same_bits(other, mine.reshape(-1))


def compare(
    on: Any, case: Case, dtype: str, x_at: Any, gamma_at: Any = None, dy_at: Any = None, eps: float = 1e-5
) -> None:
    """Forward and backward over DTensors against the reference."""
    gamma_at = gamma_at or [R] * on.ndim
    inputs = make_inputs(case, dtype)
    split = len(case.lead)
    x = placed(inputs.x, on, x_at).requires_grad_()
    gamma, beta = (placed(array, on, gamma_at) for array in (inputs.gamma, inputs.beta))
    wanted = [x] + [parameter.requires_grad_() for parameter in (gamma, beta) if parameter is not None]
    y = door.layer_norm(x, case.normalized, gamma, beta, eps)
    _, mean, rstd = torch.ops.lngrad.layer_norm(x, case.normalized, gamma, beta, eps)
    assert y.placements == x.placements, y.placements
    same_everywhere(whole(mean))
    same_everywhere(whole(rstd))
    hidden = any(place.dim % x.dim() >= split for place in x.placements if isinstance(place, Shard))
    if hidden and not any(isinstance(p, Shard) and p.dim % x.dim() < split for p in x.placements):
        same_everywhere(mean.to_local())  # every rank has computed it for itself
        same_everywhere(rstd.to_local())
    check_forward(Forward(whole(y), whole(mean), whole(rstd)), inputs, eps=eps)
    dy = placed(inputs.dy, on, dy_at or x_at)
    grads = torch.autograd.grad(y, wanted, dy)
    assert grads[0].placements == x.placements, grads[0].placements
    for grad in grads[1:]:
        for got, at in zip(grad.placements, x.placements, strict=True):
            row = not isinstance(at, Shard) or at.dim % x.dim() < split
            expected = (Partial() if isinstance(at, Shard) else R) if row else Shard(at.dim % x.dim() - split)
            assert got == expected, (grad.placements, x.placements)
    got = Grads(*map(whole, grads), *(None,) * (3 - len(grads)))
    mask = (True, True, True) if inputs.gamma is not None else (True, False, False)
    seen = replace(inputs, mean=as_numpy(whole(mean)), rstd=as_numpy(whole(rstd)))
    check_grads(got, seen, output_mask=mask)


LINES = (Case((6,), (40,)), Case((130,), (13,)), Case((3, 5), (4, 6)), Case((2,), (8200,), offset=100.0, spread=1.0))


@check(2, 4)
def rows() -> None:
    for case in LINES:
        for dtype in ("float32", "float64"):
            compare(mesh(), case, dtype, [Shard(0)])
    compare(mesh(), replace(LINES[1], gamma_dtype="float32"), "bfloat16", [Shard(0)])
    compare(mesh(), Case((3, 5), (7,)), "float32", [Shard(-2)])


@check(2, 4)
def rows_fewer_than_ranks() -> None:
    compare(mesh(), Case((1,), (40,)), "float32", [Shard(0)])
    compare(mesh(), Case((3,), (5,)), "float32", [Shard(0)], [Shard(0)])


@check(2, 4)
def replicated() -> None:
    compare(mesh(), LINES[0], "float32", [R])
    compare(mesh(), LINES[2], "float64", [R], [Shard(0)])


@check(2, 4)
def hidden() -> None:
    for case in LINES:
        for dtype in ("float32", "float64", "bfloat16", "float16"):
            compare(mesh(), case, dtype, [Shard(-1)])
            compare(mesh(), case, dtype, [Shard(len(case.lead) + len(case.normalized) - 1)], [Shard(-1)])


@check(2, 4)
def hidden_by_the_first_of_two_normalized_axes() -> None:
    compare(mesh(), Case((3, 5), (4, 6)), "float32", [Shard(2)])
    compare(mesh(), Case((3,), (5, 6)), "float32", [Shard(1)], [Shard(0)])


@check(2, 4)
def hidden_without_gamma() -> None:
    compare(mesh(), Case((6,), (40,), gamma=False), "float32", [Shard(1)])


@check(2, 4)
def hidden_with_uneven_and_empty_slices() -> None:
    for N in (1, 2, 3, 5, 9, 13, 41):
        compare(mesh(), Case((7,), (N,)), "float32", [Shard(1)])
        compare(mesh(), Case((7,), (N,)), "float64", [Shard(1)], [Shard(0)])


@check(2, 4)
def hidden_where_squares_would_cancel() -> None:
    compare(mesh(), Case((9,), (40,), offset=1000.0, spread=1.0), "float32", [Shard(1)])
    compare(mesh(), Case((9,), (40,)), "float32", [Shard(1)], eps=0.5)
    on = mesh()
    x = torch.arange(4.0) + 1e6  # mean² is 1e12, the variance 1.25
    y, mean, rstd = torch.ops.lngrad.layer_norm(distribute_tensor(x[None], on, [Shard(1)]), [4], None, None, 0.0)
    expected = lngrad.layer_norm(x[None].double(), eps=0.0)
    assert abs(float(rstd.full_tensor()) - float(expected.rstd)) < 1e-6
    assert float(mean.full_tensor()) == float(expected.mean)
