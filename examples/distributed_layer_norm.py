"""Layer normalization over two processes, each holding half of every row, or half of the rows. Checks itself.

    python examples/distributed_layer_norm.py

1. Tensor parallel: the hidden dimension is cut. Gradients are compared with one process's.
2. Sequence parallel: a patched model is trained for three steps, and so is a copy on one process.
3. Data parallel: dgamma and dbeta are summed over processes, and have the bits of one process.
"""

from __future__ import annotations

import copy
import tempfile
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import lngrad.torch
from lngrad.distributed import all_reduce_columns
from lngrad.testing import check_same_bits

PROCESSES = 2


def tensor_parallel(mesh: Any) -> None:
    x, gamma, beta, dy = torch.randn(32, 100), torch.randn(100), torch.randn(100), torch.randn(32, 100)
    shard, cut = [Shard(1)], [Shard(0)]
    leaves = [distribute_tensor(t, mesh, at).requires_grad_() for t, at in ((x, shard), (gamma, cut), (beta, cut))]
    y = lngrad.torch.layer_norm(leaves[0], 100, *leaves[1:])
    y.backward(distribute_tensor(dy, mesh, shard))

    alone = [tensor.clone().requires_grad_() for tensor in (x, gamma, beta)]
    expected = lngrad.torch.layer_norm(alone[0], 100, *alone[1:])
    expected.backward(dy)
    torch.testing.assert_close(y.full_tensor(), expected)
    for got, want in zip(leaves, alone, strict=True):
        torch.testing.assert_close(got.grad.full_tensor(), want.grad)


def sequence_parallel(mesh: Any) -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)).double()
    lngrad.torch.patch(model)
    alone = copy.deepcopy(model)
    x, target = torch.randn(4, 10, 16).double(), torch.randn(4, 10, 16).double()
    sequence = Shard(1)
    ways = {
        "0": SequenceParallel(),
        "1": ColwiseParallel(input_layouts=sequence),
        "2": RowwiseParallel(output_layouts=sequence, use_local_output=False),
    }
    parallelize_module(model, mesh, ways)
    train(model, distribute_tensor(x, mesh, [sequence]), distribute_tensor(target, mesh, [sequence]))
    train(alone, x, target)
    for got, want in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(got.full_tensor(), want)


def train(model: Any, x: Any, target: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    for _ in range(3):
        optimizer.zero_grad()
        ((model(x) - target) ** 2).mean().backward()
        optimizer.step()


def data_parallel(rank: int) -> None:
    x, dy, gamma = torch.randn(300, 100), torch.randn(300, 100), torch.randn(100)
    _, mean, rstd = lngrad.layer_norm(x)
    expected = lngrad.layer_norm_backward(dy, x, mean, rstd, gamma)
    mine = slice(0, 192) if rank == 0 else slice(192, 300)  # it begins at a multiple of 64
    got = all_reduce_columns(dy[mine], x[mine], mean[mine], rstd[mine], gamma)
    check_same_bits(tuple(got), (expected.dx[mine], expected.dgamma, expected.dbeta))


def main(rank: int, store: str) -> None:
    torch.distributed.init_process_group(
        "gloo", f"file://{store}", timedelta(seconds=60), world_size=PROCESSES, rank=rank
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)  # the same on every process
    mesh = init_device_mesh("cpu", (PROCESSES,))
    assert mesh.size() == PROCESSES
    tensor_parallel(mesh)
    sequence_parallel(mesh)
    data_parallel(rank)
    if rank == 0:
        print("tensor parallel, sequence parallel, data parallel: ok")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(main, (f"{folder}/store",), PROCESSES, start_method="fork")
