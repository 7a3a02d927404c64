"""Normalization over several processes: DTensor rules for lngrad's operators, and column sums with fixed bits.

Importing this registers the rules; lngrad.torch does so by itself when the first DTensor comes.

dgamma and dbeta of rows that lie on several processes have the bits of one process that has them all. A column is summed
over chunks of 64 rows and the binary tree of their index (decision 3). A process whose rows begin at a chunk's border can add
up whole subtrees alone; every process then has all subtrees and adds up the rest of the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
from torch.distributed.tensor import DTensor

from lngrad.api import layer_norm_backward, rms_norm_backward
from lngrad.core.column_tree import CHUNK, ColumnTree, subtrees
from lngrad.core.problem import RMS_BACKWARD, RMS_NORM, ROLES, Grads, Problem, Role, describe
from lngrad.cpu.cut_rows import segment_borders
from lngrad.errors import DtypeError, PeerError, ShapeError
from lngrad.torch.calls import accumulator_of
from lngrad.torch.sharded import rules as _rules  # noqa: F401  # registers them
from lngrad.torch.sharded.cuts import all_gather

__all__ = ["PeerError", "all_reduce_columns", "segment_borders"]


def all_reduce_columns(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any = None,
    *,
    normalized_shape: int | Sequence[int] | None = None,
    output_mask: Sequence[bool] = (True, True, True),
    group: Any = None,
) -> Grads:
    """lngrad.layer_norm_backward, or rms_norm_backward, of rows that are spread over a process group in rank order.

    On CPUs dgamma and dbeta have the bits that one process with all rows would get, whatever the number of processes.
    Every process of the group must call it.

    Args:
        dy, x: This process's rows, (*A, *R): torch tensors of the same shape and dtype, which may have no rows. On every
            process but the last that has rows, their number is a multiple of 64.
        mean, rstd: One element per row. mean None: RMS normalization, whose dbeta is None.
        gamma: (*R), the same on every process, or None.
        normalized_shape: R. None: gamma's shape, or the last axis.
        output_mask: Which of dx, dgamma, dbeta are wanted, the same on every process; the others are None.
        group: A process group; None is the default one.

    Returns:
        dx of this process's rows; dgamma and dbeta of all rows, the same bits on every process, in gamma's dtype, or in
        x's without gamma.

    Raises:
        ShapeError, DtypeError: An argument breaks a rule.
        PeerError: A peer failed, or did not come before the group's timeout.
    """
    _check_plain({"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma})
    if mean is None:
        wanted = dict(zip(Grads._fields, output_mask, strict=False))
        mask = tuple(wanted[name] for name in RMS_BACKWARD.outputs if name in wanted)
        problem, _ = describe(RMS_BACKWARD, (dy, x, rstd, gamma), normalized_shape, mask, None, RMS_NORM)
    else:
        problem, _ = Problem.backward(dy, x, mean, rstd, gamma, normalized_shape, output_mask)
    M, R = problem.M, problem.normalized_shape
    rows = all_gather(torch.tensor([M], device=x.device), group, "numbers of rows").flatten().tolist()
    trees = [list(subtrees(*chunks)) for chunks in _chunks(rows)]
    named = {"dy": dy, "x": x, "mean": mean, "rstd": rstd}
    flat = {
        name: array.detach().reshape((M,) if ROLES[name] is Role.STATISTIC else (M, *R))
        for name, array in named.items()
        if name in problem.inputs
    }
    gamma = None if gamma is None else gamma.detach()
    sums = [name for name in problem.out if name in problem.wanted and ROLES[name] is Role.PARAMETER]
    dx, parts = _parts(problem, flat, gamma, sums, trees[torch.distributed.get_rank(group)], max(map(len, trees)))
    grads: dict[str, Any] = {"dx": None if dx is None else dx.reshape(x.shape)}
    if sums:
        gathered = all_gather(parts, group, "subtrees of dgamma and dbeta")
        sums_of_columns = ColumnTree()
        for rank, tree in enumerate(trees):
            for at, (level, _) in enumerate(tree):
                sums_of_columns.add(gathered[rank, at], level)
        totals = sums_of_columns.total(parts.new_zeros((len(sums), *R))).to(x.dtype if gamma is None else gamma.dtype)
        grads |= zip(sums, totals, strict=True)
    return Grads(*map(grads.get, Grads._fields))


def _check_plain(tensors: dict[str, Any]) -> None:
    for name, tensor in tensors.items():
        if tensor is None and name in ("gamma", "mean"):
            continue
        if isinstance(tensor, DTensor) or not isinstance(tensor, torch.Tensor):
            kind = type(tensor).__name__
            raise DtypeError(f"{name}: expected this process's rows as a torch.Tensor, got a {kind} (see to_local())")


def _parts(
    problem: Problem, flat: dict[str, Any], gamma: Any, sums: list[str], tree: list[tuple[int, int]], most: int
) -> tuple[Any, Any]:
    """dx of this process's rows, and the sums of each of its subtrees, (most, sums, *R) in the accumulator's dtype."""
    x, operator = flat["x"], problem.operator
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if "dx" in problem.wanted else None
    parts = torch.zeros((most, len(sums), *problem.normalized_shape), dtype=accumulator_of(x, gamma), device=x.device)
    function: Any = layer_norm_backward if "mean" in flat else rms_norm_backward
    start = 0
    for (level, _), part in zip(tree, parts, strict=False):
        span = slice(start, start + (CHUNK << level))
        places = dict(zip(sums, part, strict=True)) | ({} if dx is None else {"dx": dx[span]})
        function(
            **{name: array[span] for name, array in flat.items()}, gamma=gamma, normalized_shape=problem.normalized_shape,
            output_mask=tuple(name in places for name in operator.outputs),
            out=operator.results(*map(places.get, operator.outputs)),
        )  # fmt: skip
        start = span.stop
    return dx, parts


def _chunks(rows: list[int]) -> list[tuple[int, int]]:
    """The chunks of each process, as (first, stop)."""
    last = max((rank for rank, M in enumerate(rows) if M), default=0)
    if any(M % CHUNK for M in rows[:last]):
        raise ShapeError(
            f"x: expected a multiple of {CHUNK} rows on every process but the last that has any, got {rows} rows"
        )
    starts = [sum(rows[:rank]) // CHUNK for rank in range(len(rows))]
    return [(start, start - (-M // CHUNK)) for start, M in zip(starts, rows, strict=True)]
