"""Rules about memory that a call writes to: it must be writable, and no one else's, save exact in-place use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lngrad.core.arrays import address_of, array_at, as_numpy, key_of, spec_of
from lngrad.core.problem import Problem
from lngrad.errors import OverlapError
from lngrad.typing import AnyArray, Array

# Each output's own inputs: those it may replace element by element, since every element is read before it is written.
_IN_PLACE = {"dx": ("dy", "x"), "y": ("x",)}
_MOST_WORK = 1000  # of numpy.shares_memory; a pair too entangled to be told apart is refused


def check_memory(problem: Problem, inputs: Sequence[AnyArray | None], out: Sequence[AnyArray | None]) -> None:
    """Refuse outputs that can't be written, or share memory with an input or another output.

    Raises:
        OverlapError: Naming both arrays.
    """
    outputs = [
        (name, array)
        for name, array, wanted in zip(problem.out, out, problem.wanted, strict=True)
        if wanted and array is not None
    ]
    for position, (name, array) in enumerate(outputs):
        view = _view(array, problem.device)
        if not view.flags.writeable:
            raise OverlapError(f"out.{name}: expected a writable array, got a read-only one")
        for other_name, other in zip(problem.inputs, inputs, strict=False):
            if other is None or (other_name in _IN_PLACE.get(name, ()) and _same(array, other)):
                continue
            if _shares(view, _view(other, problem.device)):
                allowed = " or ".join(_IN_PLACE.get(name, ())) or "none"
                raise OverlapError(
                    f"out.{name}: shares memory with {other_name}; an output may take the place of an input only as a "
                    f"whole, with the same strides (out.{name}: {allowed})"
                )
        for other_name, other in outputs[:position]:
            if _shares(view, _view(other, problem.device)):
                raise OverlapError(f"out.{name}: shares memory with out.{other_name}")


def _view(array: AnyArray, device: str) -> Array:
    """An array as NumPy sees its memory; on another device than the CPU its elements must not be read."""
    return as_numpy(array) if device == "cpu" else array_at(address_of(array), spec_of("array", array))


def _same(one: AnyArray, other: AnyArray) -> bool:
    return one is other or (address_of(one) == address_of(other) and key_of(one) == key_of(other))


def _shares(one: Array, other: Array) -> bool:
    if not np.may_share_memory(one, other):
        return False
    try:
        return bool(np.shares_memory(one, other, max_work=_MOST_WORK))  # type: ignore[arg-type]  # any int is taken
    except Exception as reason:  # numpy.exceptions.TooHardError since 1.25, elsewhere before
        if type(reason).__name__ != "TooHardError":
            raise
        return True
