"""How a layer normalization lies on a mesh: what is read off x's placements. Pure; nothing here communicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.distributed.tensor import Partial, Replicate, Shard


@dataclass(frozen=True)
class Layout:
    """Placements, one per mesh axis, of everything that a call reads and writes.

    Attributes:
        full: Of x, dy, y, dx.
        statistics: Of mean and rstd.
        parameters: Of gamma and beta as they are read.
        sums: Of dgamma and dbeta as they are written.
        hidden: The mesh axes that cut the normalized dimensions.
    """

    full: tuple[Any, ...]
    statistics: tuple[Any, ...]
    parameters: tuple[Any, ...]
    sums: tuple[Any, ...]
    hidden: tuple[int, ...]

    @staticmethod
    def of(placements: tuple[Any, ...], dims: int, split: int) -> Layout:
        """The layout that x's placements ask for.

        Args:
            placements: Of x. What is neither Replicate nor Shard (Partial, torch's interleaved shards) becomes Replicate.
            dims, split: How many dimensions x has, and how many of them are rows.
        """
        rows, hidden = [], []
        for axis, placement in enumerate(placements):
            if type(placement) is not Shard:
                rows.append((Replicate(), Replicate(), Replicate(), Replicate()))
            elif placement.dim % dims < split:
                row = Shard(placement.dim % dims)
                rows.append((row, row, Replicate(), Partial("sum")))
            else:
                column = Shard(placement.dim % dims - split)
                rows.append((Shard(placement.dim % dims), Replicate(), column, column))
                hidden.append(axis)
        full, statistics, parameters, sums = zip(*rows, strict=True)
        return Layout(full, statistics, parameters, sums, tuple(hidden))
