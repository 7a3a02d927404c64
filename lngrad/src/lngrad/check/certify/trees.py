"""The order in which numbers are added, as a tree: found by probes, replayed, and said in words.

The method is FPRev's (arXiv 2411.00442). Among n ones, put +L at place i and −L at place j, L so large that it absorbs ones.
Every one that is added to a partial sum with L in it is lost, until both meet: the sum is the number of ones outside the
smallest subtree that has both places. So each probe tells the size of a subtree, and the sizes give the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np

from lngrad.check.mistakes.sum_weights import ordinal

MAX_STEPS = 12  # in words
MIN_PAIRWISE = 8  # terms, for a part to be called pairwise
T = TypeVar("T")
Tree: TypeAlias = "int | tuple[Tree, ...]"  # a leaf's place, or subtrees in the order of their first leaf
Pairs: TypeAlias = "Sequence[tuple[int, int]]"


class Unrevealed(Exception):
    """The probes do not fit any tree; the text says how."""


@dataclass
class _Task:
    """Places whose subtree is to be found, in groups by the sizes that they share with the first of them.

    outer: The size of the subtree that all of them share with what is around them.
    siblings: Trees that are added to this one at once where a sum takes more than two terms.
    """

    items: list[int]
    outer: int
    groups: list[_Task] = field(default_factory=list)
    tree: Tree = 0
    siblings: list[Tree] = field(default_factory=list)


def reveal(n: int, count_outside: Callable[[Pairs], Sequence[float]]) -> Tree:
    """The tree of a sum of n terms.

    Args:
        count_outside: For pairs (i, j), the sum of n ones with +L and −L in the places i and j.

    Raises:
        Unrevealed: The answers are no sizes of subtrees, as where a sum is compensated or exact.
    """
    root = _Task(list(range(n)), 0)
    tasks, frontier = [root], [root]
    while frontier:
        frontier = [task for task in frontier if len(task.items) > 1]
        pairs = [(task.items[0], other) for task in frontier for other in task.items[1:]]
        counts = iter(count_outside(pairs) if pairs else ())
        for task in frontier:
            sizes: dict[int, list[int]] = {}
            for other in task.items[1:]:
                count = next(counts)
                size = n - count
                if not np.isfinite(count) or size != int(size) or not 2 <= size <= n:
                    where = f"ones at {task.items[0]} and {other}"
                    raise Unrevealed(f"{where}: {count:g} of {n} are left, which is no number of terms")
                sizes.setdefault(int(size), []).append(other)
            task.groups = [_Task(items, size) for size, items in sorted(sizes.items())]
        frontier = [group for task in frontier for group in task.groups]
        tasks += frontier
    if not all(_assemble(task) for task in reversed(tasks)) or size_of(root.tree) != n:
        raise Unrevealed("the sizes of subtrees contradict each other: the sum is compensated, exact, or not a tree")
    return root.tree


def _assemble(task: _Task) -> bool:
    """Find the subtree of a task from those of its groups; return whether every subtree has the size that probes said."""
    task.tree, below, consistent = task.items[0], 1, True
    for group in task.groups:
        if group.outer == task.outer:
            task.siblings += [group.tree, *group.siblings]
        else:
            task.tree = _joined(task.tree, group.tree, *group.siblings)
            below += len(group.items)
            consistent = consistent and group.outer == below
    return consistent


def _joined(*parts: Tree) -> Tree:
    return tuple(sorted(parts, key=lambda part: leaves(part)[0]))


def leaves(tree: Tree) -> list[int]:
    """The places of a tree, in order."""
    found, waiting = [], [tree]
    while waiting:
        tree = waiting.pop()
        if isinstance(tree, int):
            found.append(tree)
        else:
            waiting += tree
    return sorted(found)


def size_of(tree: Tree) -> int:
    return len(leaves(tree))


def fold(tree: Tree, value_of: Callable[[Tree], T | None], joined: Callable[[tuple[Tree, ...], list[T]], T]) -> T:
    """What a tree comes to, from its leaves up. No recursion: a sum in sequence is as deep as it is long.

    Args:
        value_of: Of a leaf, and of any subtree that is not to be looked into; None for other subtrees.
        joined: Of a subtree with the values of its parts.
    """
    done: list[T] = []
    waiting: list[tuple[Tree, bool]] = [(tree, False)]
    while waiting:
        tree, ready = waiting.pop()
        value = None if ready else value_of(tree)
        if value is not None:
            done.append(value)
            continue
        assert not isinstance(tree, int)  # every leaf has a value
        if ready:
            done[-len(tree) :] = [joined(tree, done[-len(tree) :])]
        else:
            waiting += [(tree, True), *((part, False) for part in reversed(tree))]
    return done[0]


def text_of(tree: Tree) -> str:
    """A tree in brackets: ((0 1) 2)."""
    return fold(
        tree, lambda item: str(item) if isinstance(item, int) else None, lambda _, parts: f"({' '.join(parts)})"
    )


def _comb(tree: Tree) -> list[int] | None:
    """The places of a sum in sequence, in its order: ((a + b) + c) + d; None for any other tree."""
    order: list[int] = []
    while not isinstance(tree, int):
        if len(tree) != 2 or not any(isinstance(part, int) for part in tree):
            return None
        tree, last = tree if isinstance(tree[1], int) else tree[::-1]
        assert isinstance(last, int)
        order.append(last)
    return [tree, *order[::-1]]


def _is_pairwise(tree: Tree) -> bool:
    """Whether neighbours are added by the binary counter: 2, then 4, then 8 …, the rest joining at the end."""
    if isinstance(tree, int):
        return True
    if len(tree) != 2:
        return False
    before, after = map(leaves, tree)
    n, rest = len(before), len(after)
    halves = abs(n - rest) <= 1 or (n & (n - 1) == 0 and rest < n)
    return before[-1] < after[0] and halves and all(map(_is_pairwise, tree))


def _is_halving(tree: Tree) -> bool:
    """Whether the second half is added to the first, place by place, until one is left: a vector's lanes."""
    n = size_of(tree)
    if n & (n - 1) or n < 4:
        return False
    parts: list[Tree] = list(range(n))
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [(parts[place], parts[place + half]) for place in range(half)]
    return text_of(parts[0]) == text_of(tree)


def words(tree: Tree, what: str) -> str:
    """The tree in one line. what: "rows" or "columns"."""
    n = size_of(tree)
    steps: list[str] = []
    unit = what
    for _ in range(MAX_STEPS):
        n = size_of(tree)
        if n == 1:
            break
        if (order := _comb(tree)) is not None:
            backwards = order[2:] == sorted(order, reverse=True)[2:] and n > 2  # the first two have no order
            steps.append(f"{n} {unit} in sequence{', from the last to the first' if backwards else ''}")
            break
        if _is_pairwise(tree):
            steps.append(f"{n} {unit} pairwise")
            break
        if _is_halving(tree):
            steps.append(f"{n} {unit} by halves: each half added to the other, place by place")
            break
        blocks: list[list[int]] = []
        if (parts := _pairwise_parts(tree, blocks)) is not None:
            size, last = len(blocks[0]), len(blocks[-1])
            steps.append(f"{len(blocks)} parts of {size} {unit} pairwise{f' (others {last})' if last < size else ''}")
            tree, unit = parts, "of these"
            continue
        blocks.clear()
        tree = _collapsed(tree, blocks, _comb)
        if len(blocks) == n:
            steps.append(f"{n} {unit} in an order of their own")
            break
        steps.append(_block_words(blocks, unit))
        unit = "of these"
    return ", then ".join(steps) or f"one of the {what}"


def _pairwise_parts(tree: Tree, blocks: list[list[int]]) -> Tree | None:
    """The tree with parts of one size, as large as may be, made leaves, if each is a pairwise sum; else None."""
    size = 1 << (size_of(tree) - 1).bit_length() - 1
    while size >= MIN_PAIRWISE:
        blocks.clear()
        parts = _collapsed(tree, blocks, partial(_places_of_pairwise, size))
        if {len(block) for block in blocks[:-1]} == {size} and len(blocks[-1]) <= size:
            return parts
        size //= 2
    blocks.clear()
    return None


def _places_of_pairwise(most: int, tree: Tree) -> list[int] | None:
    """The places of a pairwise sum of so many terms; None for any other tree."""
    return leaves(tree) if isinstance(tree, int) or (size_of(tree) <= most and _is_pairwise(tree)) else None


def _collapsed(tree: Tree, blocks: list[list[int]], places_of: Callable[[Tree], list[int] | None]) -> Tree:
    """The tree with every largest sum of a kind made one leaf, numbered by the first place in it."""
    found: dict[int, list[int]] = {}

    def first_of(tree: Tree) -> int | None:
        order = places_of(tree)
        if order is None:
            return None
        found[min(order)] = order
        return min(order)

    collapsed = _with_leaves(tree, first_of)
    numbers = {first: number for number, first in enumerate(sorted(found))}
    blocks += [found[first] for first in numbers]
    return _with_leaves(collapsed, lambda item: numbers[item] if isinstance(item, int) else None)


def _with_leaves(tree: Tree, leaf_of: Callable[[Tree], Any]) -> Tree:
    """The tree with a leaf for every largest subtree that has one."""
    found: Tree = fold(tree, leaf_of, lambda _, parts: tuple(parts))
    return found


def _block_words(blocks: list[list[int]], unit: str) -> str:
    lengths = [len(block) for block in blocks]
    steps = {b - a for block in blocks for a, b in zip(sorted(block), sorted(block)[1:], strict=False)}
    usual = max(set(lengths), key=lengths.count)
    rest = "" if len(set(lengths)) == 1 else f" (others {', '.join(map(str, sorted(set(lengths) - {usual})[:4]))})"
    if steps == {1}:
        return f"{len(blocks)} parts of {usual} {unit} in sequence{rest}"
    if len(steps) == 1:
        what = "these" if unit == "of these" else f"the {unit}"
        return f"{len(blocks)} lanes, in each every {ordinal(steps.pop())} of {what} in sequence{rest}"
    return f"{len(blocks)} parts of {usual} {unit} in sequence, not neighbours{rest}"
