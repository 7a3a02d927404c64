"""A small transformer trained with 1, 2 and 3 processes whose normalizations are cut by rows or by columns. Checks itself.

    python examples/train_over_processes.py [steps]

All else is computed by every process for itself. At the end all weights must be the same bits as with one process. Then it
says which operator would differ first if more were cut: a matrix product, whose sum torch takes in another order.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from datetime import timedelta
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import lngrad.torch
from lngrad.distributed import all_reduce_columns

LENGTH, BATCH, HIDDEN, INNER, TOKENS = 32, 6, 1536, 64, 40  # 192 rows of 1536 columns: three chunks, three segments
ROWS = {1: [192], 2: [128, 64], 3: [64] * 3}  # of each process: multiples of 64
COLUMNS = {1: [1536], 2: [512, 1024], 3: [512] * 3}  # multiples of 512


class Cut(torch.autograd.Function):
    """This process's part of a tensor along a dimension; the gradient is put together again."""

    @staticmethod
    def forward(ctx: Any, whole: Any, dim: int, sizes: list[int]) -> Any:
        ctx.dim, ctx.sizes = dim, sizes
        start = [0, *accumulate(sizes)][dist.get_rank()]
        return whole.narrow(dim, start, sizes[dist.get_rank()]).contiguous()

    @staticmethod
    def backward(ctx: Any, part: Any) -> Any:
        return together(part, ctx.dim, ctx.sizes), None, None


class Join(torch.autograd.Function):
    """The whole of all processes' parts."""

    @staticmethod
    def forward(ctx: Any, part: Any, dim: int, sizes: list[int]) -> Any:
        ctx.dim, ctx.sizes = dim, sizes
        return together(part, dim, sizes)

    @staticmethod
    def backward(ctx: Any, whole: Any) -> Any:
        return Cut.apply(whole, ctx.dim, ctx.sizes), None, None


def together(part: Any, dim: int, sizes: list[int]) -> Any:
    parts = []
    for rank, size in enumerate(sizes):
        shape = [*part.shape[:dim], size, *part.shape[dim + 1 :]]
        parts.append(part.contiguous() if rank == dist.get_rank() else part.new_empty(shape))
        dist.broadcast(parts[rank], rank)
    return torch.cat(parts, dim)


class RowNorm(torch.autograd.Function):
    """Layer normalization of this process's rows, whose weight and bias get the gradients of all rows."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        y, mean, rstd = lngrad.layer_norm(x, weight.detach(), bias.detach())
        ctx.save_for_backward(x, mean, rstd, weight)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return tuple(all_reduce_columns(dy.contiguous(), *ctx.saved_tensors))


def by_rows(x: Any, weight: Any, bias: Any) -> Any:
    sizes = ROWS[dist.get_world_size()]
    return Join.apply(RowNorm.apply(Cut.apply(x, 0, sizes), weight, bias), 0, sizes)


def by_columns(mesh: Any, x: Any, weight: Any, bias: Any) -> Any:
    sizes = COLUMNS[dist.get_world_size()]
    parts = []
    for tensor in (x, weight, bias):
        dim = tensor.ndim - 1
        local = Cut.apply(tensor, dim, sizes)
        parts.append(DTensor.from_local(local, mesh, [Shard(dim)], shape=tensor.shape, stride=tensor.stride()))
    y = lngrad.torch.layer_norm(parts[0], HIDDEN, *parts[1:])
    return Join.apply(y.to_local(), 1, sizes)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(HIDDEN) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(HIDDEN, 3 * INNER), torch.nn.Linear(INNER, HIDDEN)
        self.up, self.down = torch.nn.Linear(HIDDEN, 2 * INNER), torch.nn.Linear(2 * INNER, HIDDEN)

    def forward(self, x: Any, norm: Any) -> Any:
        q, k, v = self.qkv(norm(x, self.norms[0])).reshape(BATCH, LENGTH, 3, INNER).unbind(2)
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.reshape(-1, INNER))
        return x + self.down(self.up(norm(x, self.norms[1])).relu())


class Transformer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(TOKENS, HIDDEN)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = torch.nn.LayerNorm(HIDDEN), torch.nn.Linear(HIDDEN, TOKENS)

    def forward(self, tokens: Any, norm: Any) -> Any:
        x = self.embedding(tokens).reshape(-1, HIDDEN)
        for block in self.blocks:
            x = block(x, norm)
        return self.head(norm(x, self.norm))


def train(layer_norm: Any, steps: int) -> str:
    """A hash of all weights after so many steps, and the loss."""
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
    data = torch.Generator().manual_seed(1)
    for _ in range(steps):
        start = torch.randint(TOKENS, (BATCH, 1), generator=data)
        tokens = (start + 7 * torch.arange(LENGTH + 1)) % TOKENS
        logits = model(tokens[:, :-1], lambda x, module: layer_norm(x, module.weight, module.bias))
        loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    bits = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return f"{hashlib.sha256(bits).hexdigest()[:16]}, loss {loss:.4f}"


def main(rank: int, folder: str, processes: int, cut: str, steps: int) -> None:
    timeout = timedelta(seconds=120)
    dist.init_process_group("gloo", f"file://{folder}/store", timeout, world_size=processes, rank=rank)
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (processes,))
    ways = {"nothing": lambda x, w, b: lngrad.torch.layer_norm(x, HIDDEN, w, b), "rows": by_rows}
    result = train(ways.get(cut) or partial(by_columns, mesh), steps)
    Path(folder, str(rank)).write_text(result)
    dist.destroy_process_group()


def run(processes: int, cut: str, steps: int) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = folder, processes, cut, steps
        torch.multiprocessing.start_processes(main, arguments, processes, start_method="fork")
        return {Path(folder, str(rank)).read_text() for rank in range(processes)}


def cut_product() -> int:
    """How many elements of a matrix product change if its sum is cut in two, as a row-parallel Linear does."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, weight = torch.randn(192, HIDDEN), torch.randn(HIDDEN, INNER)
    first = COLUMNS[2][0]
    return int((x @ weight != x[:, :first] @ weight[:first] + x[:, first:] @ weight[first:]).sum())


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    (alone,) = run(1, "nothing", steps)
    print(f"1 process: {alone}")
    for processes in (2, 3):
        for cut in ("rows", "columns"):
            found = run(processes, cut, steps)
            print(f"{processes} processes, normalizations cut by {cut}: {', '.join(found)}")
            assert found == {alone}
    print(
        f"the same weights, bit for bit; of a matrix product that is cut too, {cut_product()} of {192 * INNER} would differ"
    )
