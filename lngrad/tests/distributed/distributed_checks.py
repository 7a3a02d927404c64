"""What is checked in worlds of 2, 3, 4 and 8 processes. Every rank runs every check of its world, in this order."""

from __future__ import annotations

import functools
import os
import re
import runpy
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import distributed_bits  # noqa: F401  # whose checks come first
import pytest
import torch
import torch.distributed as dist
from distributed_world import (
    CHECKS,
    R,
    all_reduce_columns,
    check,
    mesh,
    near,
    refuses,
    tensor,
    whole,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import lngrad
import lngrad.torch as lngrad_torch
from lngrad.core.problem import RMS_NORM
from lngrad.errors import DtypeError, PeerError, ShapeError
from lngrad.testing import Case, check_same_bits, make_inputs

__all__ = ["CHECKS", "SILENT"]

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
    forward = received(lambda: y.append(lngrad_torch.layer_norm(x, 40, gamma)))
    dy = y[0].detach()
    return forward, received(lambda: torch.autograd.grad(y[0], (x, gamma) if with_x else gamma, dy))


@check(2, 4)
def collectives_are_as_documented() -> None:
    others, M = dist.get_world_size() - 1, 6
    for dtype, a in ((torch.float32, 4), (torch.bfloat16, 4), (torch.float64, 8)):
        forward, backward = [others * a * (4 + 3 * M)], [others * a * (4 + 2 * M)]
        assert collectives_of(dtype, 1, True) == (forward, backward)
        assert collectives_of(dtype, 1, False) == (forward, [])
        assert collectives_of(dtype, 0, True) == ([], [])
    x, statistics = torch.randn(128, 40), torch.ones(128)
    call = functools.partial(all_reduce_columns(), x, x, statistics, statistics)
    assert received(call) == [others * 8, others * 2 * 4 * 40]


@check(2)
def the_documented_example() -> None:
    text = (Path(__file__).parents[3] / "docs" / "distributed.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    torch.manual_seed(0)
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(program)
        file.flush()
        runpy.run_path(file.name)


# --- Errors ---------------------------------------------------------------------------------------------------------


@check(2)
def errors() -> None:
    on, x = mesh(), distribute_tensor(torch.randn(6, 8), mesh(), [Shard(1)])
    plain, weight = torch.ones(8), distribute_tensor(torch.ones(8), mesh(), [R])
    refuses(
        DtypeError,
        "^gamma: expected a DTensor beside others on .*, got a Tensor",
        lambda: lngrad_torch.layer_norm(x, 8, plain),
    )
    refuses(DtypeError, "^beta: expected a DTensor", lambda: lngrad_torch.layer_norm(x, 8, weight, plain))
    refuses(DtypeError, "^x: expected a DTensor", lambda: lngrad_torch.layer_norm(torch.ones(2, 8), 8, weight))
    other = init_device_mesh("cpu", (1, 2))
    elsewhere = distribute_tensor(torch.ones(8), other, [R, R])
    refuses(
        DtypeError, "^gamma: expected a DTensor on .*, got one on", lambda: lngrad_torch.layer_norm(x, 8, elsewhere)
    )
    refuses(ShapeError, r"^normalized_shape: expected the last dimensions of x", lambda: lngrad_torch.layer_norm(x, 4))
    refuses(ShapeError, r"^gamma: expected the normalized shape \(8,\)", lambda: torch.ops.lngrad.layer_norm(
        x, [8], distribute_tensor(torch.ones(4), on, [R]), None, 1e-5))  # fmt: skip
    uneven = DTensor.from_local(torch.randn(6, 5 - 2 * dist.get_rank()), on, [Shard(1)])  # says 10 here and 6 there
    refuses(ShapeError, r"^x: expected local shards with \d+ normalized elements together, got \[5, 3\]",
            lambda: lngrad_torch.layer_norm(uneven, uneven.shape[1]))  # fmt: skip
    n = 5 - 2 * dist.get_rank()  # torch cuts a replicated weight of 8 into 4 and 4
    x_5_3 = DTensor.from_local(torch.randn(6, n), on, [Shard(1)], shape=torch.Size((6, 8)), stride=(8, 1))
    refuses(ShapeError, rf"^gamma: expected a shard of shape \({n},\), as x has in this process, got \(4,\)",
            lambda: lngrad_torch.layer_norm(x_5_3, 8, weight))  # fmt: skip
    refuses(Exception, "rows cut among processes are computed in eager code only",
            lambda: torch.compile(lngrad_torch.layer_norm, backend="aot_eager", fullgraph=True)(x, 8))  # fmt: skip


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


@check(3)
def columns_of_rms_normalization_have_the_bits_of_one_process() -> None:
    for dtype, rows in (("float32", [128, 64, 37]), ("bfloat16", [64, 0, 130])):
        inputs = make_inputs(Case((sum(rows),), (40,)), dtype, normalization=RMS_NORM)
        arrays = inputs.dy, inputs.x, inputs.rstd
        expected = lngrad.rms_norm_backward(*arrays, inputs.gamma)
        start = sum(rows[: dist.get_rank()])
        span = slice(start, start + rows[dist.get_rank()])
        dy, x, rstd = (tensor(array[span]) for array in arrays)
        for mask in ((True, True), (False, True), (True, False)):
            got = all_reduce_columns()(dy, x, None, rstd, tensor(inputs.gamma), output_mask=(*mask, False))
            check_same_bits(got.dx, expected.dx[span] if mask[0] else None)
            check_same_bits(got.dgamma, expected.dgamma if mask[1] else None)
            assert got.dbeta is None


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
    assert lngrad_torch.patch(parallel) == 2
    sequence = Shard(1)
    for block in parallel:
        parallelize_module(block, on, {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=sequence),
            "down": RowwiseParallel(output_layouts=sequence, use_local_output=False),
        })  # fmt: skip
    train(parallel, *(distribute_tensor(t, on, [sequence]) for t in (x, target)))
    assert type(parallel[0].norm) is lngrad_torch.LayerNorm
    for (name, got), parameter in zip(parallel.named_parameters(), expected.parameters(), strict=True):
        near(whole(got), parameter)
        near(whole(got.grad), parameter.grad)
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
                r"from one of them within \d+\.\d s \(the group's timeout", lambda: lngrad_torch.layer_norm(x, 8))  # fmt: skip
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
            lambda: lngrad_torch.layer_norm(summed, 8))  # fmt: skip
