"""Copies in the workspace, for tensors that the core does not read or write as they are.

The core computes; this is what CANN's host code does with Cast and ViewCopy, and only where it is
needed:

- an input gets a float32 copy (a bfloat16 mean of a float16 input);
- an output gets a stand-in, which is rounded once and copied (a float16 gradInputOut of a float32
  input; a
  gradWeightOut of shape (1, N); bfloat16 rounded as Atlas A2 rounds it), or copied nowhere (a null
  meanOutOptional).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lngrad.ascend.acl.element_types import NUMPY_DTYPES
from lngrad.ascend.acl.enums import aclDataType
from lngrad.ascend.acl.tensor import TensorFacts
from lngrad.ascend.rounding import round_half_away
from lngrad.core.arrays import ArraySpec
from lngrad.core.dtypes import contiguous_strides
from lngrad.typing import Array, Bytes, Dtype, Shape

ALIGNMENT = 64


class StandIn(NamedTuple):
    """A contiguous array in the workspace, in the place of an argument.

    Attributes:
        start: Its first byte, counted from the first aligned byte of the workspace.
        shape, dtype: As the core reads or writes it.
        half_away: Whether it is rounded to bfloat16 with ties away from zero, before it is copied.
    """

    start: int
    shape: Shape
    dtype: Dtype
    half_away: bool

    def array(self, room: Bytes) -> Array:
        """The array, in a workspace that begins at an aligned byte."""
        return np.ndarray(self.shape, self.dtype, room, self.start)

    def fill(self, room: Bytes, source: Array) -> Array:
        """Copy an argument to its place. Returns the copy."""
        copy = self.array(room)
        np.copyto(copy, source)
        return copy

    def deliver(self, result: Array, output: Array) -> None:
        """Round a result and copy it to the output that it stands in for."""
        if self.half_away:
            round_half_away(result)
        with np.errstate(over="ignore", invalid="ignore"):  # too large for float16 is infinity, as in the core
            np.copyto(output, result.reshape(output.shape), casting="unsafe")


class Room:
    """Gives out places of the workspace."""

    def __init__(self) -> None:
        self.used = 0

    def take(self, shape: Shape, dtype: aclDataType, half_away: bool = False) -> StandIn:
        """A place for an array."""
        start, kind = self.used, NUMPY_DTYPES[dtype]
        self.used += -(-math.prod(shape) * kind.itemsize // ALIGNMENT) * ALIGNMENT
        return StandIn(start, shape, kind, half_away)

    def input_copy(self, facts: TensorFacts | None, dtype: aclDataType, widened: bool) -> StandIn | None:
        """A float32 copy of an input, or None where the core reads the tensor itself.

        Args:
            facts: Of the tensor; None for a null pointer.
            dtype: Of x. The core reads statistics, gamma and beta in it, or in float32.
            widened: Whether x itself is read as float32.
        """
        direct = facts is None or facts.dtype == aclDataType.ACL_FLOAT or (facts.dtype == dtype and not widened)
        return None if facts is None or direct else self.take(facts.shape, aclDataType.ACL_FLOAT)

    def output_stand_in(
        self, facts: TensorFacts, shape: Shape, dtypes: tuple[aclDataType, ...], half_away: bool = False
    ) -> StandIn | None:
        """A stand-in for an output, or None where the core writes the tensor itself.

        Args:
            facts: Of the tensor.
            shape: What the core writes.
            dtypes: What the core can write it in.
            half_away: Whether bfloat16 is rounded with ties away from zero.
        """
        away = half_away and facts.dtype == aclDataType.ACL_BF16
        if away or facts.dtype not in dtypes:
            return self.take(shape, aclDataType.ACL_FLOAT, away)
        return None if facts.shape == shape else self.take(shape, facts.dtype)


def core_facts(facts: TensorFacts | None, stand_in: StandIn | None) -> ArraySpec | None:
    """What the core sees of an argument: to describe a problem with, before there is data."""
    if stand_in is not None:
        strides = contiguous_strides(stand_in.shape, stand_in.dtype.itemsize)
        return ArraySpec(stand_in.shape, stand_in.dtype.name, strides, "cpu", "numpy")
    if facts is None:
        return None
    dtype = NUMPY_DTYPES[facts.dtype]
    return ArraySpec(
        facts.shape, dtype.name, tuple(stride * dtype.itemsize for stride in facts.strides), "cpu", "numpy"
    )
