"""A tree's own sums, rounded as a kernel would round them, and whether they have the kernel's bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lngrad.check.certify.trees import Tree
from lngrad.typing import Array, Dtype


def replay(tree: Tree, terms: Array, dtype: Dtype, factors: Array | None = None) -> Array:
    """The sum of terms (n, …) over the first axis in a tree's order, each addition rounded to dtype.

    Args:
        tree: The order.
        terms: (n, …).
        dtype: In which sums are kept.
        factors: (n, …): the sum of terms·factors by fused multiply-add: a product that is added alone to a sum is not
            rounded before. float32 only.
    """
    done: dict[int, Array] = {}
    waiting: list[tuple[Tree, bool]] = [(tree, False)]
    while waiting:  # no recursion: a sum in sequence is as deep as it is long
        one, ready = waiting.pop()
        if isinstance(one, int):
            first = terms[one] if factors is None else terms[one] * factors[one]
            done[_key(one)] = first.astype(dtype)
        elif not ready:
            waiting.append((one, True))
            waiting += [(part, False) for part in one]
        else:
            done[_key(one)] = _added(one, done, terms, factors, dtype)
    return done[_key(tree)]


def _added(node: tuple[Tree, ...], done: dict[int, Array], terms: Array, factors: Array | None, dtype: Dtype) -> Array:
    """The parts of a node: a sum takes leaves, whichever of them comes first in the tree's text."""
    parts = sorted(node, key=lambda part: isinstance(part, int)) if factors is not None else node
    total = done.pop(_key(parts[0]))
    for part in parts[1:]:
        value = done.pop(_key(part))
        if factors is not None and isinstance(part, int):
            total = _fused(terms[part], factors[part], total)
        else:
            total = (total + value).astype(dtype)
    return total


def _fused(one: Array, other: Array, addend: Array) -> Array:
    """one·other + addend in float32, rounded once.

    The product is exact in float64. The sum is rounded to odd there, so that rounding it to float32 is the only rounding
    that shows.
    """
    product, wide = one.astype(np.float64) * other.astype(np.float64), addend.astype(np.float64)
    total = product + wide
    back = total - product
    lost = (product - (total - back)) + (wide - back)
    even = (total.view(np.int64) & 1) == 0
    return np.where((lost != 0) & even, np.nextafter(total, np.where(lost > 0, np.inf, -np.inf)), total).astype(
        np.float32
    )


def _key(tree: Tree) -> int:
    return -1 - tree if isinstance(tree, int) else id(tree)


def product_sums(tree: Tree, dy: Array, x: Array, mean: Array, rstd: Array) -> Iterator[tuple[str, Array]]:
    """Σ dy·xhat in a tree's order, in each way that kernels are known to round it: (in words, the sums).

    Args:
        tree: The order of rows.
        dy, x: (M, …, N) in float32.
        mean, rstd: (M, …); rstd a power of two, so that xhat has the same bits however a kernel computes it.
    """
    narrow, wide = np.dtype(np.float32), np.dtype(np.float64)
    xhat = (x - mean[..., None]) * rstd[..., None]
    yield "dy·xhat added by fused multiply-add in float32", replay(tree, dy, narrow, xhat)
    yield "dy·xhat rounded, then added in float32", replay(tree, dy * xhat, narrow)
    yield "dy·xhat exact, added in float64", replay(tree, dy.astype(wide) * xhat, wide).astype(narrow)
