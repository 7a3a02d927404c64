"""What is checked in worlds of 2 and 4 processes: wherever x and the other arguments lie, forward and backward are right."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from distributed_world import (
    R,
    check,
    mesh,
    near,
    placed,
    same_everywhere,
    tensor,
    whole,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

import lngrad
import lngrad.torch as lngrad_torch
from lngrad.core.problem import Forward, Grads
from lngrad.support.addresses import as_numpy
from lngrad.testing import Case, check_forward, check_grads, check_same_bits, make_inputs
from norms import with_own_means


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
    y = lngrad_torch.layer_norm(x, case.normalized, gamma, beta, eps)
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
    seen = replace(with_own_means(inputs), rstd=as_numpy(whole(rstd)))
    check_grads(got, seen, output_mask=mask)


@check(2, 4)
def the_rules_come_with_the_first_dtensor() -> None:
    assert "lngrad.torch.sharded.rules" not in sys.modules
    y = lngrad_torch.LayerNorm(8, elementwise_affine=False)(distribute_tensor(torch.ones(4, 8), mesh(), [Shard(0)]))
    assert y.placements == (Shard(0),)
    assert "lngrad.torch.sharded.rules" in sys.modules


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
        for dtype in ("float32", "float64", "bfloat16", "float16")[: 4 if dist.get_world_size() == 2 else 1]:
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
    _, mean, rstd = torch.ops.lngrad.layer_norm(distribute_tensor(x[None], on, [Shard(1)]), [4], None, None, 0.0)
    expected = lngrad.layer_norm(x[None].double(), eps=0.0)
    near(whole(rstd), expected.rstd)
    near(whole(mean), expected.mean)


# --- Meshes of two axes ---------------------------------------------------------------------------------------------


@check(4)
def two_axes() -> None:
    on = mesh(2, 2)
    for case, x_at, gamma_at in (
        (Case((6,), (40,)), [Shard(0), Shard(1)], [R, Shard(0)]),
        (Case((7,), (41,)), [Shard(1), Shard(0)], None),
        (Case((3, 5), (13,)), [Shard(0), Shard(1)], None),
        (Case((6,), (40,)), [R, Shard(1)], None),
        (Case((6,), (40,)), [Shard(0), R], [Shard(0), R]),
        (Case((5,), (13,)), [Shard(1), Shard(1)], None),  # both axes cut the same dimension
        (Case((5,), (7, 9)), [Shard(1), Shard(2)], None),  # each cuts one of two normalized dimensions
        (Case((5,), (2, 3)), [Shard(2), Shard(1)], [Shard(1), Shard(0)]),
        (Case((1,), (1,)), [Shard(0), Shard(1)], None),
    ):
        compare(on, case, "float32", x_at, gamma_at)
    compare(on, Case((6,), (40,), gamma_dtype="float32"), "bfloat16", [Shard(0), Shard(1)])
    compare(on, Case((6,), (40,), gamma_dtype="float64"), "float32", [Shard(0), Shard(1)])


# --- Arguments that lie otherwise -----------------------------------------------------------------------------------


@check(2)
def dy_is_brought_to_where_x_lies() -> None:
    for x_at, dy_at in (([Shard(0)], [R]), ([Shard(1)], [Shard(0)]), ([R], [Shard(1)])):
        compare(mesh(), Case((6,), (40,)), "float32", x_at, None, dy_at)


@check(2)
def partial_inputs_are_summed_first() -> None:
    inputs = make_inputs(Case((6,), (40,)), "float64")
    half = DTensor.from_local(tensor(inputs.x) / 2, mesh(), [Partial()]).requires_grad_()
    y = lngrad_torch.layer_norm(half, 40)
    (dx,) = torch.autograd.grad(y, half, placed(inputs.dy, mesh(), [R]))
    expected = lngrad.layer_norm(inputs.x)
    check_same_bits(whole(y), expected.y)
    grads = lngrad.layer_norm_backward(inputs.dy, inputs.x, expected.mean, expected.rstd)
    check_same_bits(whole(dx), grads.dx)


@check(2)
def interleaved_shards_are_replicated_first() -> None:
    from torch.distributed.tensor.placement_types import _StridedShard

    local = torch.randn(6, 4, generator=torch.Generator().manual_seed(dist.get_rank()))
    for dim, shape in ((1, (6, 8)), (0, (12, 4))):
        x = DTensor.from_local(local, mesh(), [_StridedShard(dim, split_factor=2)], shape=shape, stride=(shape[1], 1))
        y = lngrad_torch.layer_norm(x, shape[1])
        assert y.placements == (R,)
        check_same_bits(whole(y), lngrad.layer_norm(x.full_tensor().numpy()).y)


@check(2)
def local_shards_of_any_strides() -> None:
    inputs = make_inputs(Case((6,), (40,)), "float32")
    x, dy = (DTensor.from_local(tensor(a).t().contiguous().t(), mesh(), [R]).redistribute(placements=[Shard(1)])
             for a in (inputs.x, inputs.dy))  # fmt: skip
    local = x.to_local().t().contiguous().t()
    assert not local.is_contiguous()
    x = DTensor.from_local(local, mesh(), [Shard(1)]).requires_grad_()
    y, mean, rstd = torch.ops.lngrad.layer_norm(x, [40], None, None, 1e-5)
    (dx,) = torch.autograd.grad(y, x, dy)
    seen = replace(inputs, gamma=None, mean=as_numpy(whole(mean)), rstd=as_numpy(whole(rstd)))
    check_grads(Grads(whole(dx), None, None), seen, output_mask=(True, False, False))


@check(2)
def only_what_is_wanted() -> None:
    inputs = make_inputs(Case((6,), (40,)), "float32")
    for x_at in ([Shard(0)], [Shard(1)]):
        full = lngrad_torch.layer_norm_backward(*backward_arguments(inputs, x_at))
        for mask in ((True, False, False), (False, True, False), (False, False, True), (False, False, False)):
            part = lngrad_torch.layer_norm_backward(*backward_arguments(inputs, x_at), output_mask=mask)
            check_same_bits(
                tuple(whole(grad) for grad in part),
                tuple(whole(grad) if wanted else None for grad, wanted in zip(full, mask, strict=True)),
            )
        check_grads(Grads(*map(whole, full)), inputs)


def backward_arguments(inputs: Any, x_at: Any, on: Any = None) -> tuple[Any, ...]:
    on = on or mesh()
    rows = [Shard(0)] if x_at == [Shard(0)] else [R]
    at = (x_at, x_at, rows, rows, [R])
    arrays = inputs.arguments
    return tuple(placed(array, on, placement) for array, placement in zip(arrays, at, strict=True))


@check(2)
def one_gradient_only() -> None:
    inputs = make_inputs(Case((6,), (40,)), "float32")
    for x_at in ([Shard(0)], [Shard(1)]):
        x, gamma = placed(inputs.x, mesh(), x_at), placed(inputs.gamma, mesh(), [R])
        dy = placed(inputs.dy, mesh(), x_at)
        both = torch.autograd.grad(
            lngrad_torch.layer_norm(x.detach().requires_grad_(), 40, wanted := gamma.detach().requires_grad_()),
            wanted,
            dy,
        )
        alone = torch.autograd.grad(lngrad_torch.layer_norm(x, 40, gamma.requires_grad_()), gamma, dy)
        check_same_bits(whole(alone[0]), whole(both[0]))
        x.requires_grad_()
        (dx,) = torch.autograd.grad(lngrad_torch.layer_norm(x, 40, gamma.detach()), x, dy)
        assert dx.placements == x.placements


@check(2)
def statistics_of_any_shape() -> None:
    inputs = make_inputs(Case((3, 4), (40,)), "float32")
    for x_at in ([Shard(0)], [Shard(2)]):
        dy, x = placed(inputs.dy, mesh(), x_at), placed(inputs.x, mesh(), x_at)
        mean, rstd = (placed(array.reshape(12), mesh(), [R]) for array in (inputs.mean, inputs.rstd))
        grads = lngrad_torch.layer_norm_backward(dy, x, mean, rstd, placed(inputs.gamma, mesh(), [R]))
        check_grads(Grads(*map(whole, grads)), inputs)


@check(2)
def nothing_to_normalize() -> None:
    for shape in ((0, 8), (4, 0)):
        for dim in (0, 1):
            x = distribute_tensor(torch.zeros(shape), mesh(), [Shard(dim)]).requires_grad_()
            y = lngrad_torch.layer_norm(x, shape[1])
            y.sum().backward()
            assert whole(y).shape == shape
            assert whole(x.grad).shape == shape


@check(2)
def a_mesh_without_this_rank() -> None:
    inputs = make_inputs(Case((6,), (40,)), "float32")
    for dim in (0, 1):
        on = DeviceMesh("cpu", [0])
        x = placed(inputs.x, on, [Shard(dim)]).requires_grad_()
        y = lngrad_torch.layer_norm(x, 40)
        (dx,) = torch.autograd.grad(y, x, placed(inputs.dy, on, [Shard(dim)]))
        assert (y.placements, dx.placements) == (x.placements, x.placements)
        assert (y.shape, dx.shape) == (x.shape, x.shape)
        if dist.get_rank() == 0:
            check_forward(
                Forward(y.to_local().detach(), inputs.mean, inputs.rstd), replace(inputs, gamma=None, beta=None)
            )
        else:
            assert y.to_local().numel() == dx.to_local().numel() == 0


@check(2)
def second_derivatives() -> None:
    inputs = make_inputs(Case((6,), (8,)), "float64")

    def second(layer_norm: Any, x: Any, w: Any, b: Any) -> Any:
        dx, dw = torch.autograd.grad((layer_norm(x, (8,), w, b) ** 3).sum(), (x, w), create_graph=True)
        return torch.autograd.grad((dx**2).sum() + (dw**2).sum(), (x, w, b))

    arrays = inputs.x, inputs.gamma, inputs.beta
    expected = second(torch.nn.functional.layer_norm, *(tensor(array).requires_grad_() for array in arrays))
    for x_at, w_at in (([Shard(0)], [R]), ([Shard(1)], [Shard(0)]), ([Shard(1)], [R])):
        arguments = (
            placed(array, mesh(), at).requires_grad_() for array, at in zip(arrays, (x_at, w_at, w_at), strict=True)
        )
        for got, truth in zip(second(lngrad_torch.layer_norm, *arguments), expected, strict=True):
            near(whole(got), truth)


@check(2)
def compiled_rows() -> None:
    inputs = make_inputs(Case((6,), (8,)), "float32")
    x, w = placed(inputs.x, mesh(), [Shard(0)]).requires_grad_(), placed(inputs.gamma, mesh(), [R]).requires_grad_()
    results = []
    for norm in (lngrad_torch.layer_norm, torch.compile(lngrad_torch.layer_norm, backend="aot_eager", fullgraph=True)):
        results.append(
            tuple(map(whole, torch.autograd.grad(norm(x, 8, w), (x, w), placed(inputs.dy, mesh(), [Shard(0)]))))
        )
    check_same_bits(results[1], results[0])
