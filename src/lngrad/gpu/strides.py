"""Row strides that several tensors share: what a kernel needs to address their rows without a copy."""

from __future__ import annotations

from dataclasses import dataclass

from lngrad.core.arrays import ArraySpec
from lngrad.core.dtypes import bytes_of
from lngrad.core.problem import Problem


@dataclass(frozen=True)
class RowStrides:
    """Row r begins at (r // inner)·outer + (r % inner)·step elements.

    Attributes:
        split: Whether there are two levels; if not, only step counts.
        inner: Rows of the inner level.
        steps: By name, (outer, step) of each tensor.
        copied: Names of tensors that must be made contiguous first, or be written through a contiguous one.
        aligned: Whether N and all steps are multiples of 16 elements.
    """

    split: bool
    inner: int
    steps: dict[str, tuple[int, int]]
    copied: frozenset[str]
    aligned: bool


def row_strides(problem: Problem, tensors: dict[str, ArraySpec | None]) -> RowStrides:
    """Merge the leading axes of all tensors, as far as all allow.

    Args:
        problem: Their shape.
        tensors: By name; None for one that will be made contiguous.
    """
    contiguous = _contiguous((*problem.lead, *problem.normalized_shape))
    strides = {name: _elements(facts) if facts else contiguous for name, facts in tensors.items()}
    lead, columns = len(problem.lead), _contiguous(problem.normalized_shape)
    copied = {name for name, steps in strides.items() if not _same(steps[lead:], columns, problem.normalized_shape)}
    groups = _merge(problem, strides, contiguous, copied)
    if len(groups) > 2:  # rarer than rare: leading axes permuted in three parts
        copied |= {name for name, steps in strides.items() if not _same(steps[:lead], contiguous[:lead], problem.lead)}
        groups = _merge(problem, strides, contiguous, copied)
    (_, outer), (inner, step) = ([(1, (0,) * len(tensors))] * 2 + groups)[-2:]
    split = len(groups) > 1
    if not split:
        inner, outer = 1, (0,) * len(tensors)
    aligned = all(value % 16 == 0 for value in (problem.N, *outer, *step))
    steps = dict(zip(tensors, zip(outer, step, strict=True), strict=True))
    return RowStrides(split, inner, steps, frozenset(copied), aligned)


def _merge(
    problem: Problem, strides: dict[str, tuple[int, ...]], contiguous: tuple[int, ...], copied: set[str]
) -> list[tuple[int, tuple[int, ...]]]:
    """The leading axes as few (size, strides of all tensors), outermost first."""
    groups: list[tuple[int, tuple[int, ...]]] = []
    for axis in reversed(range(len(problem.lead))):
        size = problem.lead[axis]
        steps = tuple(contiguous[axis] if name in copied else each[axis] for name, each in strides.items())
        if size == 1:
            continue
        if groups and steps == tuple(groups[0][0] * step for step in groups[0][1]):
            groups[0] = (groups[0][0] * size, groups[0][1])
        else:
            groups.insert(0, (size, steps))
    return groups


def _elements(facts: ArraySpec) -> tuple[int, ...]:
    itemsize = bytes_of(facts.dtype)
    return tuple(step // itemsize for step in facts.strides)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return tuple(reversed(steps))


def _same(steps: tuple[int, ...], expected: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return all(one == other for one, other, size in zip(steps, expected, shape, strict=True) if size > 1)
