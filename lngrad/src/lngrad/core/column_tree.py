"""The order of every sum over rows: chunks of CHUNK rows top to bottom, then the binary tree of the chunk's index.

Two whole neighbouring subtrees of one size are added as soon as both are there, as a binary counter carries; what is left at
the end is added from the last to the first. The order is a function of the number of rows alone, so dgamma and dbeta have the
same bits with any number of threads, blocks of rows or processes, and their error grows with log M, not with M.
See docs/decisions/0003.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

CHUNK = 64  # rows


def subtrees(first: int, stop: int) -> Iterator[tuple[int, int]]:
    """The fewest whole subtrees that make up chunks first … stop-1, as (level, index): 2^level chunks from index·2^level."""
    while first < stop:
        level = (stop - first).bit_length() - 1
        if first:
            level = min(level, (first & -first).bit_length() - 1)
        yield level, first >> level
        first += 1 << level


class ColumnTree:
    """A sum over subtrees that come in order, from chunk 0 on. It keeps one partial sum a level.

    A partial sum is anything with `+`: a NumPy array or a torch tensor.
    """

    def __init__(self) -> None:
        self._partials: list[tuple[int, Any]] = []

    def add(self, partial: Any, level: int = 0) -> None:
        """Add the sum over the next 2^level chunks, or over what is left of them at the end of the rows."""
        while self._partials and self._partials[-1][0] == level:
            partial = self._partials.pop()[1] + partial
            level += 1
        self._partials.append((level, partial))

    def total(self, nothing: Any = None) -> Any:
        """The sum over all chunks, or `nothing` if there was none."""
        if not self._partials:
            return nothing
        total = self._partials[-1][1]
        for _, partial in reversed(self._partials[:-1]):
            total = partial + total
        return total
