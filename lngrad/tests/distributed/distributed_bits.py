"""What is checked in worlds of 2, 3, 4 and 8 processes: rows cut at borders of segments have the bits of one process."""

from __future__ import annotations

import importlib
from itertools import accumulate
from typing import Any

import distributed_layouts  # noqa: F401  # whose checks come first
import torch
import torch.distributed as dist
from distributed_world import check, mesh, placed, tensor
from torch.distributed.tensor import DTensor, Shard

import lngrad.torch as lngrad_torch
from lngrad.support.addresses import as_numpy
from lngrad.testing import Case, Inputs, check_same_bits, make_inputs
from norms import NORMS

SEGMENT = 512


def results(norm: Any, x: Any, gamma: Any, beta: Any, residual: Any, dy: Any, dtotal: Any) -> list[Any]:
    """y, mean, rstd, total and all gradients of an operator; where there is a residual the total is used besides."""
    leaves = [t.detach().requires_grad_() for t in (x, gamma, beta, residual) if t is not None]
    importlib.import_module("lngrad.distributed")  # not before the first DTensor has come
    used = iter(leaves)
    x, gamma, beta, residual = (None if t is None else next(used) for t in (x, gamma, beta, residual))
    outputs = torch.ops.lngrad.norm(x, gamma.shape, gamma, beta, 1e-5, residual, norm.centred, norm.offset)
    wanted = [outputs[0]] if residual is None else [outputs[0], outputs[3]]
    grads = torch.autograd.grad(wanted, leaves, [dy, dtotal][: len(wanted)])
    return [*outputs, *grads]


def cut(tensor: Any, columns: list[int], on: Any) -> Any:
    """A DTensor whose local shards have these columns, which need not be how torch cuts it."""
    if tensor is None:
        return None
    dim, rank, shape = tensor.ndim - 1, dist.get_rank(), tensor.shape
    start = [0, *accumulate(columns)][rank]
    local = tensor.narrow(dim, start, columns[rank]).contiguous()
    return DTensor.from_local(local, on, [Shard(dim)], shape=shape, stride=tensor.stride())


def same_bits(case: Case, dtype: str, columns: list[int], norm: dict[str, Any]) -> None:
    """That each process has its columns of what one process computes."""
    inputs: Inputs = make_inputs(case, dtype, **norm)
    beta = inputs.beta if inputs.normalization.centred else None
    names = inputs.x, inputs.gamma, beta, inputs.residual, inputs.dy, inputs.dtotal
    arrays = [tensor(array) for array in names]
    expected = results(inputs.normalization, *arrays)
    on = mesh()
    got = results(inputs.normalization, *(cut(array, columns, on) for array in arrays))
    start, N = sum(columns[: dist.get_rank()]), case.normalized[0]
    for result, other in zip(got, expected, strict=True):
        mine = result.to_local() if isinstance(result, DTensor) else result
        if other.shape[-1:] == (N,):
            other = other.narrow(-1, start, columns[dist.get_rank()])
        check_same_bits(as_numpy(mine.detach()), as_numpy(other.detach().contiguous()))


# Columns of each process: as torch cuts 4096 and 1024 a process, uneven, with the long last segment, with nothing at all.
CUTS = {
    2: ([2048, 2048], [512, 1535], [3072, 1024], [0, 700], [1024, 5 * 512 + 9]),
    3: ([1024] * 3, [1536, 1536, 1024], [512, 2048, 513], [3 * 512, 0, 8 * 512 + 511]),
    4: ([1024] * 4, [512, 512, 512, 1023], [2560, 0, 512, 4096]),
    8: ([512] * 8, [512, 1024, 512, 1536, 512, 512, 512, 700]),
}


@check(2, 3, 4, 8)
def any_cut_at_segments_has_the_bits_of_one_process() -> None:
    size = dist.get_world_size()
    norms = list(NORMS.values())
    for at, columns in enumerate(CUTS[size]):
        for number in (0, 1 + (at + size) % (len(norms) - 1)):  # layer normalization, and another one
            norm = dict(norms[number])
            if norm.get("residual"):  # the operators have no alpha
                norm["normalization"] = norm["normalization"]._replace(alpha=1.0)
            case = Case((67 if at == 0 else 5,), (sum(columns),), gamma_dtype="float32")
            same_bits(case, ("float32", "bfloat16", "float64")[(at + number) % 3], columns, norm)
    columns = CUTS[size][1]
    for dtype, offset in (
        ("float64", 0.0),
        ("float32", 1e3),
        ("float32", 1e6),
    ):  # whose mean needs more than one float32
        same_bits(Case((9,), (sum(columns),), offset=offset, spread=1.0, gamma_dtype=dtype), dtype, columns, {})


@check(2, 3)
def a_cut_inside_a_segment_is_right_up_to_roundings() -> None:
    size = dist.get_world_size()
    columns = [700] * size
    for norm in ("layer_norm", "rms_norm", "gemma_rms_norm"):
        inputs = make_inputs(Case((9,), (sum(columns),)), "float32", **NORMS[norm])
        arrays = [tensor(a) for a in (inputs.x, inputs.gamma, inputs.beta, None, inputs.dy, None)]
        arrays[2] = arrays[2] if inputs.normalization.centred else None
        expected = results(inputs.normalization, *arrays)
        got = results(inputs.normalization, *(cut(array, columns, mesh()) for array in arrays))
        for result, other in zip(got, expected, strict=True):
            if isinstance(result, DTensor):
                torch.testing.assert_close(result.full_tensor(), other)


@check(4)
def two_axes_cut_one_dimension_at_segments() -> None:
    inputs = make_inputs(Case((6,), (4096,)), "float32")
    arrays = inputs.x, inputs.gamma, inputs.beta
    expected = lngrad_torch.layer_norm(*(tensor(arrays[0]), 4096, *map(tensor, arrays[1:])))
    on = mesh(2, 2)
    x, gamma, beta = (placed(array, on, [Shard(array.ndim - 1)] * 2) for array in arrays)
    check_same_bits(lngrad_torch.layer_norm(x, 4096, gamma, beta).full_tensor(), expected)
