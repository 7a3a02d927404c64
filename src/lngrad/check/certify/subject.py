"""A kernel that is certified: its backward and forward on NumPy arrays, and what else it lets us do with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from lngrad.check.case import CheckCase, Source
from lngrad.check.implementations import Implementation, NotApplicable
from lngrad.check.inputs import DrawnInputs
from lngrad.core.arrays import as_numpy
from lngrad.core.dtypes import ACCUMULATORS
from lngrad.core.problem import Forward, Grads
from lngrad.testing import Inputs
from lngrad.typing import Array

Backward: TypeAlias = "Callable[[Array, Array, Array, Array, Array], Grads]"
Place: TypeAlias = Literal["dy", "x"]


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
        name, version: For people.
        backward: (dy, x, mean, rstd, gamma) of shapes (M, N), (M, N), (M,), (M,), (N,) → NumPy arrays. It raises
            NotApplicable for a shape or dtype that the kernel does not take.
        forward: (x, gamma, beta, eps) → y, mean, rstd, or None where there is none.
        set_threads: The implementation's own switch, or None.
        backward_into: (place, dy, x, mean, rstd, gamma): dx is written to the memory of dy or of x. None: it takes no
            outputs.
        forward_into: (x, gamma, beta, eps): y is written to x's memory.
        allocated: (dy, x, mean, rstd, gamma) → bytes that its own allocator gives out in a call, and whose figure that
            is. None: what Python and NumPy allocate is traced.
        empty_cache: Gives memory back that it keeps for later results.
        own_statistics: It takes no mean and rstd, and computes them from x.
        simulated: A call takes long, as on a simulator, in an interpreter or in a process of its own: fewer rows are taken.
        elsewhere: Why the memory that a call takes here is not the kernel's; "" where it is.
    """

    name: str
    version: str
    backward: Backward
    forward: Callable[[Array, Array, Array, float], Forward] | None = None
    set_threads: Callable[[int], None] | None = None
    backward_into: Callable[[Place, Array, Array, Array, Array, Array], Grads] | None = None
    forward_into: Callable[[Array, Array, Array, float], Forward] | None = None
    allocated: Callable[[Array, Array, Array, Array, Array], tuple[int, str]] | None = None
    empty_cache: Callable[[], None] = lambda: None
    own_statistics: bool = False
    simulated: bool = False
    elsewhere: str = ""

    def takes(self, M: int, N: int) -> bool:
        """Whether the kernel takes a shape, in float32."""
        rows, one = np.zeros((M, N), np.float32), np.ones(M, np.float32)
        try:
            self.backward(rows, rows.copy(), one - 1, one, np.ones(N, np.float32))
        except NotApplicable:
            return False
        return True


def backward_of(call: Implementation) -> Backward:
    """An implementation of `lngrad check`, on plain matrices."""

    def backward(dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array) -> Grads:
        M, N = x.shape
        dtype, parameter = x.dtype.name, gamma.dtype.name
        case = CheckCase(
            name="certify", source=Source("certify"), lead=(M,), normalized=(N,), dtype=dtype, gamma_dtype=parameter,
            statistics_dtype=ACCUMULATORS[dtype], output_dtypes=(dtype, parameter, parameter),
            ranges={"mean": None, "statistic": None},
        )  # fmt: skip
        inputs = Inputs(dy, x, mean.reshape(M, 1), rstd.reshape(M, 1), gamma, None, 1)
        with np.errstate(all="ignore"):
            variance = (1 / rstd.astype(np.float64) ** 2).astype(rstd.dtype)
        got = call(case, DrawnInputs(inputs, inputs, variance.reshape(M, 1), 0.0, 0, M))
        return Grads(*(None if one is None else as_numpy(one) for one in got))

    return backward
