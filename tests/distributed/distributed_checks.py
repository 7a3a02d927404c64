"""What is checked in worlds of 2 and 4 processes. Every rank runs every check of its world, in this order."""

from __future__ import annotations

import functools
import importlib
import os
import re
import runpy
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import lngrad
import lngrad.torch as door
from lngrad.arrays import as_numpy
from lngrad.errors import DtypeError, PeerError, ShapeError
from lngrad.problem import Forward, Grads
from lngrad.testing import Case, check_forward, check_grads, check_same_bits, error_share, make_inputs

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
    dist.all_gather_single(all_of_them, mine.reshape(-1))
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


def all_reduce_columns() -> Any:
    return importlib.import_module("lngrad.distributed").all_reduce_columns  # not before the first DTensor has come


@check(2, 4)
def the_rules_come_with_the_first_dtensor() -> None:
    assert "lngrad.distributed" not in sys.modules
    y = door.LayerNorm(8, elementwise_affine=False)(distribute_tensor(torch.ones(4, 8), mesh(), [Shard(0)]))
    assert y.placements == (Shard(0),)
    assert "lngrad.distributed" in sys.modules


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


# --- Arguments that lie otherwise -----------------------------------------------------------------------------------


@check(2)
def dy_is_brought_to_where_x_lies() -> None:
    for x_at, dy_at in (([Shard(0)], [R]), ([Shard(1)], [Shard(0)]), ([R], [Shard(1)])):
        compare(mesh(), Case((6,), (40,)), "float32", x_at, None, dy_at)


@check(2)
def partial_inputs_are_summed_first() -> None:
    inputs = make_inputs(Case((6,), (40,)), "float64")
    half = DTensor.from_local(tensor(inputs.x) / 2, mesh(), [Partial()]).requires_grad_()
    y = door.layer_norm(half, 40)
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
        y = door.layer_norm(x, shape[1])
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
        full = door.layer_norm_backward(*backward_arguments(inputs, x_at))
        for mask in ((True, False, False), (False, True, False), (False, False, True), (False, False, False)):
            part = door.layer_norm_backward(*backward_arguments(inputs, x_at), output_mask=mask)
            check_same_bits(
                tuple(whole(grad) for grad in part),
                tuple(whole(grad) if wanted else None for grad, wanted in zip(full, mask, strict=True)),
            )
        check_grads(Grads(*map(whole, full)), inputs)


def backward_arguments(inputs: Any, x_at: Any, on: Any = None) -> tuple[Any, ...]:
    on = on or mesh()
    rows = [Shard(0)] if x_at == [Shard(0)] else [R]
    at = (x_at, x_at, rows, rows, [R])
    arrays = (inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma)
    return tuple(placed(array, on, one) for array, one in zip(arrays, at, strict=True))


@check(2)
def one_gradient_only() -> None:
    inputs = make_inputs(Case((6,), (40,)), "float32")
    for x_at in ([Shard(0)], [Shard(1)]):
        x, gamma = placed(inputs.x, mesh(), x_at), placed(inputs.gamma, mesh(), [R])
        dy = placed(inputs.dy, mesh(), x_at)
        both = torch.autograd.grad(
            door.layer_norm(x.detach().requires_grad_(), 40, wanted := gamma.detach().requires_grad_()), wanted, dy
        )
        alone = torch.autograd.grad(door.layer_norm(x, 40, gamma.requires_grad_()), gamma, dy)
        check_same_bits(whole(alone[0]), whole(both[0]))
        x.requires_grad_()
        (dx,) = torch.autograd.grad(door.layer_norm(x, 40, gamma.detach()), x, dy)
        assert dx.placements == x.placements


@check(2)
def statistics_of_any_shape() -> None:
    inputs = make_inputs(Case((3, 4), (40,)), "float32")
    for x_at in ([Shard(0)], [Shard(2)]):
        dy, x = placed(inputs.dy, mesh(), x_at), placed(inputs.x, mesh(), x_at)
        mean, rstd = (placed(array.reshape(12), mesh(), [R]) for array in (inputs.mean, inputs.rstd))
        grads = door.layer_norm_backward(dy, x, mean, rstd, placed(inputs.gamma, mesh(), [R]))
        check_grads(Grads(*map(whole, grads)), inputs)


@check(2)
def nothing_to_normalize() -> None:
    for shape in ((0, 8), (4, 0)):
        for dim in (0, 1):
            x = distribute_tensor(torch.zeros(shape), mesh(), [Shard(dim)]).requires_grad_()
            y = door.layer_norm(x, shape[1])
            y.sum().backward()
            assert whole(y).shape == shape
            assert whole(x.grad).shape == shape


@check(2)
def a_mesh_without_this_rank() -> None:
    inputs = make_inputs(Case((6,), (40,)), "float32")
    for dim in (0, 1):
        on = DeviceMesh("cpu", [0])
        x = placed(inputs.x, on, [Shard(dim)]).requires_grad_()
        y = door.layer_norm(x, 40)
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
        given = (
            placed(array, mesh(), at).requires_grad_() for array, at in zip(arrays, (x_at, w_at, w_at), strict=True)
        )
        for got, one in zip(second(door.layer_norm, *given), expected, strict=True):
            near(whole(got), one)


def near(got: Any, expected: Any) -> None:
    """That a float64 result, seen in float32, is another one up to float32's tolerance."""
    expected = as_numpy(expected)
    share = error_share(got.detach().float().numpy(), expected, np.abs(expected), "float32")
    assert share.max() <= 1, share.max()


@check(2)
def compiled_rows() -> None:
    inputs = make_inputs(Case((6,), (8,)), "float32")
    x, w = placed(inputs.x, mesh(), [Shard(0)]).requires_grad_(), placed(inputs.gamma, mesh(), [R]).requires_grad_()
    results = []
    for one in (door.layer_norm, torch.compile(door.layer_norm, backend="aot_eager", fullgraph=True)):
        results.append(
            tuple(map(whole, torch.autograd.grad(one(x, 8, w), (x, w), placed(inputs.dy, mesh(), [Shard(0)]))))
        )
    check_same_bits(results[1], results[0])


# --- What it costs --------------------------------------------------------------------------------------------------


def received(call: Callable[[], Any]) -> list[int]:
    """Bytes that each gather of a call brings from the other ranks."""
    gathers = []

    def gather(out: Any, block: Any, group: Any = None) -> None:
        gathers.append(out.nbytes - block.nbytes)
        original(out, block, group=group)

    original = dist.all_gather_single
    with pytest.MonkeyPatch.context() as patch, CommDebugMode() as seen:
        patch.setattr(dist, "all_gather_single", gather)
        call()
    assert seen.get_total_counts() == len(gathers), seen.get_comm_counts()  # nothing else is sent
    return gathers


def collectives_of(dtype: Any, dim: int, with_x: bool) -> tuple[list[int], list[int]]:
    """The gathers of a forward and of its backward, for x of 6 rows."""
    x = distribute_tensor(torch.randn(6, 40).to(dtype), mesh(), [Shard(dim)]).requires_grad_(with_x)
    gamma = distribute_tensor(torch.randn(40).to(dtype), mesh(), [R]).requires_grad_()
    y: list[Any] = []
    forward = received(lambda: y.append(door.layer_norm(x, 40, gamma)))
    dy = y[0].detach()
    return forward, received(lambda: torch.autograd.grad(y[0], (x, gamma) if with_x else gamma, dy))


@check(2, 4)
def collectives_are_as_documented() -> None:
    others, M = dist.get_world_size() - 1, 6
    for dtype, a in ((torch.float32, 4), (torch.bfloat16, 4), (torch.float64, 8)):
        forward, backward = [others * 3 * a * (M + 1)], [others * 2 * a * M]
        assert collectives_of(dtype, 1, True) == (forward, backward)
        assert collectives_of(dtype, 1, False) == (forward, [])
        assert collectives_of(dtype, 0, True) == ([], [])
    x, statistics = torch.randn(128, 40), torch.ones(128)
    call = functools.partial(all_reduce_columns(), x, x, statistics, statistics)
    assert received(call) == [others * 8, others * 2 * 4 * 40]


@check(2)
def the_documented_example() -> None:
    text = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    torch.manual_seed(0)
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(program)
        file.flush()
        runpy.run_path(file.name)


# --- Errors ---------------------------------------------------------------------------------------------------------


def refuses(error: type[Exception], text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=text):
        call()


@check(2)
def errors() -> None:
    on, x = mesh(), distribute_tensor(torch.randn(6, 8), mesh(), [Shard(1)])
    plain, weight = torch.ones(8), distribute_tensor(torch.ones(8), mesh(), [R])
    refuses(
        DtypeError, "^gamma: expected a DTensor beside others on .*, got a Tensor", lambda: door.layer_norm(x, 8, plain)
    )
    refuses(DtypeError, "^beta: expected a DTensor", lambda: door.layer_norm(x, 8, weight, plain))
    refuses(DtypeError, "^x: expected a DTensor", lambda: door.layer_norm(torch.ones(2, 8), 8, weight))
    other = init_device_mesh("cpu", (1, 2))
    elsewhere = distribute_tensor(torch.ones(8), other, [R, R])
    refuses(DtypeError, "^gamma: expected a DTensor on .*, got one on", lambda: door.layer_norm(x, 8, elsewhere))
    refuses(ShapeError, r"^normalized_shape: expected the last dimensions of x", lambda: door.layer_norm(x, 4))
    refuses(ShapeError, r"^gamma: expected the normalized shape \(8,\)", lambda: torch.ops.lngrad.layer_norm(
        x, [8], distribute_tensor(torch.ones(4), on, [R]), None, 1e-5))  # fmt: skip
    uneven = DTensor.from_local(torch.randn(6, 5 - 2 * dist.get_rank()), on, [Shard(1)])  # says 10 here and 6 there
    refuses(ShapeError, r"^x: expected local shards with \d+ normalized elements together, got \[5, 3\]",
            lambda: door.layer_norm(uneven, uneven.shape[1]))  # fmt: skip
    refuses(Exception, "rows cut among processes are computed in eager code only",
            lambda: torch.compile(door.layer_norm, backend="aot_eager", fullgraph=True)(x, 8))  # fmt: skip


# --- Column sums with the bits of one process -----------------------------------------------------------------------


def whole_and_shards(case: Case, dtype: str, rows: list[int]) -> None:
    inputs = make_inputs(case, dtype)
    R_ = case.normalized
    flat = inputs.dy.reshape(-1, *R_), inputs.x.reshape(-1, *R_), inputs.mean.reshape(-1), inputs.rstd.reshape(-1)
    expected = lngrad.layer_norm_backward(*flat, inputs.gamma, normalized_shape=R_)
    start = sum(rows[: dist.get_rank()])
    span = slice(start, start + rows[dist.get_rank()])
    mine = [tensor(array[span]) for array in flat]
    gamma = tensor(inputs.gamma)
    for mask in ((True, True, True), (False, False, True)):
        got = all_reduce_columns()(*mine, gamma, normalized_shape=R_, output_mask=mask)
        assert got.dx is None or mask[0]
        check_same_bits(got.dx, expected.dx[span] if mask[0] else None)
        check_same_bits(tuple(got[1:]), tuple(e if m else None for e, m in zip(expected[1:], mask[1:], strict=True)))


@check(2, 4)
def columns_have_the_bits_of_one_process() -> None:
    divisions = {
        2: ([64, 64], [192, 448], [640, 37], [64, 701], [0, 130], [130, 0], [0, 0], [320, 257]),
        4: ([64] * 4, [128, 0, 192, 5], [64, 448, 320, 64], [192, 64, 64, 13], [0, 100, 0, 0], [64, 64, 0, 0]),
    }[dist.get_world_size()]
    for at, rows in enumerate(divisions):
        M = sum(rows)
        whole_and_shards(Case((M,), (40,)), ("float32", "bfloat16", "float64")[at % 3], rows)
    whole_and_shards(Case((sum(divisions[1]),), (5,)), "float32", divisions[1])
    whole_and_shards(Case((sum(divisions[1]),), (3, 7), gamma_dtype="float32"), "bfloat16", divisions[1])
    whole_and_shards(Case((sum(divisions[2]),), (300,), gamma=False), "float16", divisions[2])
    whole_and_shards(Case((sum(divisions[0]),), (8200,)), "float32", divisions[0])


@check(2)
def columns_refuse_rows_that_do_not_end_with_a_chunk() -> None:
    rows = (100, 64)[dist.get_rank()]
    x, statistics = torch.randn(rows, 8), torch.ones(rows)
    refuses(ShapeError, r"^x: expected a multiple of 64 rows on every process but the last that has any, got \[100, 64\]",
            lambda: all_reduce_columns()(x, x, statistics, statistics))  # fmt: skip
    shard = DTensor.from_local(x, mesh(), [Shard(0)], shape=(164, 8), stride=(8, 1))
    refuses(DtypeError, r"^dy: expected this process's rows as a torch.Tensor, got a DTensor",
            lambda: all_reduce_columns()(shard, x, statistics, statistics))  # fmt: skip


@check(4)
def columns_of_a_smaller_group() -> None:
    on, rows = mesh(2, 2), [64, 70]
    inputs = make_inputs(Case((134,), (40,)), "float32", seed=on.get_local_rank("a"))
    span = slice(0, 64) if on.get_local_rank("b") == 0 else slice(64, 134)
    assert span.stop - span.start == rows[on.get_local_rank("b")]
    arrays = inputs.dy, inputs.x, inputs.mean, inputs.rstd
    got = all_reduce_columns()(*(tensor(a[span]) for a in arrays), tensor(inputs.gamma), group=on.get_group("b"))
    dx, *sums = lngrad.layer_norm_backward(*arrays, inputs.gamma)
    check_same_bits(tuple(got), (dx[span], *sums))


# --- A model --------------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(24)
        self.up, self.down = torch.nn.Linear(24, 48), torch.nn.Linear(48, 24)

    def forward(self, x: Any) -> Any:
        return x + self.down(self.up(self.norm(x)).relu())


def model() -> Any:
    torch.manual_seed(1)
    built = torch.nn.Sequential(Block(), Block()).double()
    for name, parameter in built.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.5)
    return built


def train(built: Any, x: Any, target: Any) -> None:
    optimizer = torch.optim.SGD(built.parameters(), 0.05, foreach=False)
    for _ in range(3):
        optimizer.zero_grad()
        ((built(x) - target) ** 2).mean().backward()
        optimizer.step()


@check(2, 4)
def sequence_parallel() -> None:
    on = mesh()
    x, target = (torch.randn(2, 9, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (2, 3))
    expected, parallel = model(), model()
    train(expected, x, target)
    assert door.patch(parallel) == 2
    sequence = Shard(1)
    for block in parallel:
        parallelize_module(block, on, {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=sequence),
            "down": RowwiseParallel(output_layouts=sequence, use_local_output=False),
        })  # fmt: skip
    train(parallel, *(distribute_tensor(t, on, [sequence]) for t in (x, target)))
    assert type(parallel[0].norm) is door.LayerNorm
    for (name, got), one in zip(parallel.named_parameters(), expected.parameters(), strict=True):
        near(whole(got), one)
        near(whole(got.grad), one.grad)
        assert "norm" not in name or got.placements == (R,)


# --- Peers that do not come: last, since nothing works with a dead one -----------------------------------------------

SILENT = {"a_dead_peer": 1}  # the rank that says nothing any more


@check(2)
def a_missing_peer() -> None:
    dist.barrier()  # a new group waits for its members no longer than its own timeout
    group = dist.new_group(timeout=timedelta(seconds=3))
    on = DeviceMesh.from_group(group, "cpu")
    x = DTensor.from_local(torch.randn(6, 4), on, [Shard(1)])
    if dist.get_rank() == 0:
        start = time.monotonic()
        refuses(PeerError, r"^all_gather of mean and centred squares: expected all 2 processes of the group, got no answer "
                r"from one of them within \d+\.\d s \(the group's timeout", lambda: door.layer_norm(x, 8))  # fmt: skip
        assert time.monotonic() - start < 20  # it ends; no statement about speed
    dist.barrier()


@check(2)
def a_dead_peer() -> None:
    x, statistics = torch.randn(64, 8), torch.ones(64)
    summed = DTensor.from_local(x, mesh(), [Partial()])
    if dist.get_rank() == 1:
        os._exit(1)
    refuses(PeerError, "^all_gather of numbers of rows: expected all 2 processes",
            lambda: all_reduce_columns()(x, x, statistics, statistics))  # fmt: skip
    refuses(PeerError, r"^redistribution from \(Partial\(sum\),\) to \(Replicate\(\),\): expected all 2 processes",
            lambda: door.layer_norm(summed, 8))  # fmt: skip
