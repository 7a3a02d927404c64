"""By which rule an index is wrong: for a few places, those that may have been used in their stead; a rule for all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set

import numpy as np

from lngrad.typing import Array, Shape

BLOCKS = (2, 4, 8, 16, 32, 64, 128, 256)
LOOKED_AT = 4  # places, one by one
MOST = 4  # rules of a kind


def spread(places: Array) -> Array:
    """A few of the places, from the first to the last."""
    return np.asarray(places[np.linspace(0, len(places) - 1, min(LOOKED_AT, len(places))).astype(int)])


def maps_through(
    pairs: Sequence[tuple[int, Set[int]]], size: int, dims: Shape, what: str
) -> Iterator[tuple[str, Array]]:
    """Rules that all pairs obey, the simplest first: (in words, the place that each place uses).

    Args:
        pairs: (place, those that may have been used).
        size: Number of places.
        dims: The dimensions that the places are counted over.
        what: "row" or "column".
    """
    index = np.arange(size)
    if not pairs:
        return
    if len(pairs) > 1:
        for source in sorted(set.intersection(*(set(sources) for _, sources in pairs)))[:MOST]:
            yield f"of {what} {source}", np.full(size, source)
    offsets = set.intersection(*({(place - source) % size for source in sources} for place, sources in pairs))
    wraps = any(place - offset < 0 for place, _ in pairs for offset in offsets)
    for offset in sorted((one - size if wraps and 2 * one > size else one for one in offsets), key=abs)[:MOST]:
        text = f"of the {what} {abs(offset)} {'before' if offset > 0 else 'after'}"
        yield text, np.clip(index - offset, 0, size - 1)
        yield text, (index - offset) % size
    found = [(f"of the first {what} of each block of {block}", index // block * block) for block in BLOCKS]
    found += [(f"of the {what} at its place in the transposed dimensions {text}", one) for text, one in _turned(dims)]
    found += [(f"of the {what} modulo {count}", index % count) for count in _counts(pairs, size)]
    found += [(f"of the {what} at {step} times its index", index * step % size) for step in (2, 4, 8)]
    found.append((f"of the {what} counted from the end", index[::-1]))
    for text, one in found:
        if all(int(one[place]) in sources for place, sources in pairs):
            yield text, one


def _turned(dims: Shape) -> Iterator[tuple[str, Array]]:
    """The two orders that places have where an array is read as if its dimensions were turned round."""
    if sum(one > 1 for one in dims) < 2:
        return
    index, text = np.arange(math.prod(dims)), "×".join(map(str, dims))
    yield text, index.reshape(dims).T.reshape(-1)
    if dims != dims[::-1]:
        yield text, index.reshape(dims[::-1]).T.reshape(-1)


def _counts(pairs: Sequence[tuple[int, Set[int]]], size: int) -> list[int]:
    """After how many places an index may begin anew, powers of two first."""
    last = max(place for place, _ in pairs)
    found = [count for count in range(2, last + 1) if all(place % count in sources for place, sources in pairs)]
    return sorted(found, key=lambda count: (count & (count - 1) != 0, count))[:MOST]
