"""Which process has which columns of a row, and sums of whole rows from those of its slices.

A row is summed by segments of 512 columns and the binary tree of their number (decision 31). Where no process begins inside
a segment, each sends the lanes of the whole subtrees that it has, and all add up the rest of the tree: the bits of one process
(decision 33). Otherwise a slice's sum is one number, and slices are added in rank order.

The one collective is a gather, every process's block to every process; sums are then taken locally. An all-reduce would leave
their order to the transport. A gather moves bits only, so all processes add the same numbers in the same order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, product
from typing import Any, TypeVar

import torch
import torch.distributed
from torch.distributed.tensor import Shard

from lngrad.cpu.cut_rows import subtrees_of_slices, sums_of_rows
from lngrad.errors import BackendUnavailable, PeerError, ShapeError

_Result = TypeVar("_Result")
_DIGITS = 1 << 12  # of a number of columns that one float holds


class Cut:
    """How rows of N columns are cut among the processes of some groups, as far as this process knows.

    It knows how torch cuts a dimension. Whether all processes have cut it so is seen when their blocks come.

    Attributes:
        N: Columns of a row.
        columns: That this process has.
        groups: The process groups along which rows are cut, the first one gathered first.
        mine: The place of this process's block among all that are gathered.
        counts: Columns of every process, by that place.
        starts: Their first columns; None where the columns of a process do not follow each other.
    """

    def __init__(self, N: int, columns: int, groups: list[Any], mine: int, spans: list[tuple[int, int]] | None):
        self.N, self.columns, self.groups, self.mine = N, columns, groups, mine
        self.starts = None if spans is None else [start for start, _ in spans]
        self.counts = None if spans is None else [count for _, count in spans]

    @staticmethod
    def of(x: Any, local: Any, split: int, hidden: tuple[int, ...]) -> Cut:
        """Of a DTensor, its local shard, whose rows have `split` dimensions, and the mesh axes that cut the others."""
        _refuse_tracing()
        mesh, shape = x.device_mesh, x.shape
        groups = [mesh.get_group(axis) for axis in hidden]
        sizes = [mesh.size(axis) for axis in hidden]
        place = 0
        for axis, size in reversed(list(zip(hidden, sizes, strict=True))):
            place = place * size + mesh.get_local_rank(axis)
        dims = {x.placements[axis].dim % x.dim() for axis in hidden if type(x.placements[axis]) is Shard}
        spans, ranks = None, mesh.mesh.flatten().tolist()
        if ranks == sorted(ranks) and len(dims) == 1 and math.prod(shape[split : min(dims)]) == 1:
            (dim,) = dims
            inner = math.prod(shape[dim + 1 :])
            spans = [
                (start * inner, count * inner)
                for start, count in (
                    _chunk(shape[dim], sizes, coordinates[::-1]) for coordinates in product(*map(range, sizes[::-1]))
                )
            ]
        return Cut(math.prod(shape[split:]), math.prod(local.shape[split:]), groups, place, spans)

    @property
    def trees(self) -> list[list[tuple[int, int, int]]] | None:
        """The whole subtrees that each process has, as (level, first column, columns); None if a segment is cut."""
        if self.starts is None or self.counts is None:
            return None
        return subtrees_of_slices(self.N, self.starts, self.counts)

    def gather(self, block: Any, what: str) -> tuple[Any, Any] | None:
        """The blocks of all processes (P, *block.shape), and their numbers of columns (P,).

        None if the columns are not where they were thought to be: now they are known, and all processes have found that out.
        """
        numbers = [part for number in (self.columns, self.N) for part in divmod(number, _DIGITS)]
        blocks = torch.cat([block.new_tensor(numbers), block.reshape(-1)]).unsqueeze(0)
        for group in self.groups:
            blocks = all_gather(blocks, group, what).flatten(0, 1)
        high, low, N_high, N_low = blocks[:, :4].double().unbind(1)
        columns = high * _DIGITS + low
        if block.device.type == "cpu":  # on a GPU a look would wait
            self._check(counts := [int(count) for count in columns.tolist()], N_high * _DIGITS + N_low)
            if counts != self.counts:
                was_thought = self.counts is not None
                self.counts = counts
                # In which order slices of other sizes lie is known along one axis alone.
                self.starts = [0, *accumulate(counts)][:-1] if len(self.groups) == 1 and was_thought else None
                if was_thought:
                    return None
        return blocks[:, 4:].reshape(len(blocks), *block.shape), columns

    def _check(self, counts: list[int], totals: Any) -> None:
        if sum(counts) != self.N or any(total != self.N for total in totals.tolist()):
            raise ShapeError(
                f"x: expected local shards with {self.N} normalized elements together, got {counts} "
                "(DTensor.from_local needs shape= and stride= for uneven shards)"
            )

    def agreed(self, by_lanes: Callable[[], _Result | None], by_slices: Callable[[], _Result | None]) -> _Result:
        """What one of two ways comes to, which gather; the one that no cut segment forbids, and once more if it was another."""
        while True:
            if (result := (by_slices if self.trees is None else by_lanes)()) is not None:
                return result

    def whole_sums(self, lanes: Callable[[int, int], Any | None], like: Any, what: str) -> Any | None:
        """(sums, M) over whole rows from lanes of the shape of `like` over columns (start, count) of this slice."""
        trees = self.trees
        assert trees is not None
        assert self.starts is not None
        assert self.counts is not None
        block = like.new_zeros((max(map(len, trees)), *like.shape))
        if self.columns == self.counts[self.mine]:
            for part, (_, start, count) in zip(block, trees[self.mine], strict=False):
                found = lanes(start - self.starts[self.mine], count)
                if found is not None:  # there are rows
                    part.copy_(found)
        gathered = self.gather(block, what)
        if gathered is None:
            return None
        order = sorted(range(len(trees)), key=self.starts.__getitem__)
        parts = ((part, level) for at in order for part, (level, _, _) in zip(gathered[0][at], trees[at], strict=False))
        return sums_of_rows(parts, torch.zeros_like(like))


def _chunk(size: int, parts: list[int], coordinates: tuple[int, ...]) -> tuple[int, int]:
    """(start, count) of a shard, as torch cuts a dimension for one mesh axis after the other."""
    start = 0
    for number, coordinate in zip(parts, coordinates, strict=True):
        chunk = -(-size // number)
        first = min(size, coordinate * chunk)
        start, size = start + first, min(chunk, size - first)
    return start, size


def _refuse_tracing() -> None:
    if torch.compiler.is_compiling():
        raise BackendUnavailable(
            "torch.compile: rows cut among processes are computed in eager code only; put torch.compiler.disable on the "
            "layer normalization, or cut its input by rows"
        )


def all_gather(block: Any, group: Any, what: str) -> Any:
    """The blocks of all ranks of a group, in rank order.

    Args:
        block: The same shape and dtype on every rank.
        group: A process group; None is the default one.
        what: The name of what is gathered, for the error.

    Returns:
        (P, *block.shape), the same bits on every rank.

    Raises:
        PeerError: A peer failed, or did not come before the group's timeout.
        BackendUnavailable: It is being traced by torch.compile.
    """
    size = torch.distributed.get_world_size(group)
    if size == 1:
        return block.unsqueeze(0)
    _refuse_tracing()
    blocks = block.new_empty((size * block.numel(),))
    with peers(f"all_gather of {what}", size):
        torch.distributed.all_gather_single(blocks, block.reshape(-1), group=group)
    return blocks.reshape(size, *block.shape)


@contextmanager
def peers(collective: str, size: int) -> Iterator[None]:
    """Turn what a collective raises when a peer is gone, or never comes, into one clear error."""
    start = time.monotonic()
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as reason:  # torch.distributed.DistError is one too
        waited = time.monotonic() - start
        first = str(reason).strip().partition("\n")[0]
        raise PeerError(
            f"{collective}: expected all {size} processes of the group, got no answer from one of them within "
            f"{waited:.1f} s (the group's timeout is given to init_process_group or new_group): {first}"
        ) from reason
