"""Forward and backward with the hidden dimension sharded over gloo processes: lngrad's rules beside torch's own.

    python benchmarks/distributed.py [processes] [rows] [columns] [dtype]

torch's rules for DTensors gather x before they normalize. Both sides take turns, round by round; each is checked against
the other before it is timed. Prints medians of the slowest rank; writes no record.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import lngrad.torch

ROUNDS = 30


def main(rank: int, store: str, processes: int, M: int, N: int, dtype: str) -> None:
    torch.distributed.init_process_group("gloo", f"file://{store}", world_size=processes, rank=rank)
    torch.set_num_threads(1)
    lngrad.set_num_threads(1)
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (processes,))
    kind = getattr(torch, dtype)
    x, dy = (distribute_tensor(torch.randn(M, N).to(kind), mesh, [Shard(1)]) for _ in range(2))
    gamma, beta = (distribute_tensor(torch.randn(N).to(kind), mesh, [Shard(0)]) for _ in range(2))
    leaves = [tensor.requires_grad_() for tensor in (x, gamma, beta)]

    def call(layer_norm: Any) -> Any:
        return torch.autograd.grad(layer_norm(x, (N,), gamma, beta), leaves, dy)

    sides = {"lngrad": lngrad.torch.layer_norm, "torch": torch.nn.functional.layer_norm}
    for ours, theirs in zip(*(call(side) for side in sides.values()), strict=True):
        torch.testing.assert_close(ours.full_tensor(), theirs.full_tensor())
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            torch.distributed.barrier()
            start = time.perf_counter()
            call(side)
            slowest = torch.tensor(time.perf_counter() - start)
            torch.distributed.all_reduce(slowest, torch.distributed.ReduceOp.MAX)
            times[name].append(float(slowest))
    if rank == 0:
        for name, seconds in times.items():
            print(f"{name}: {1e3 * statistics.median(seconds):.3f} ms, {M}x{N} {dtype}, {processes} processes")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    words = dict(enumerate(sys.argv[1:]))
    processes, M, N = (int(words.get(at, default)) for at, default in enumerate((2, 2048, 4096)))
    with tempfile.TemporaryDirectory() as folder:
        arguments = (f"{folder}/store", processes, M, N, words.get(3, "float32"))
        torch.multiprocessing.start_processes(main, arguments, processes, start_method="fork")
