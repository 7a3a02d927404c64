"""What is measured, and of whom: one property with its counter-example, a page of them, and the subject."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from lngrad.check.case import CheckCase, Source
from lngrad.check.implementations import Arguments, Call, Implementation, NotApplicable, find
from lngrad.check.inputs import DrawnInputs
from lngrad.core.arrays import as_numpy
from lngrad.core.dtypes import ACCUMULATORS
from lngrad.core.problem import Forward, Grads
from lngrad.testing import Inputs
from lngrad.typing import Array

Backward: TypeAlias = "Callable[[Array, Array, Array, Array, Array], Grads]"
Place: TypeAlias = Literal["dy", "x"]


@dataclass(frozen=True)
class Measured:
    """A property.

    Attributes:
        group, name: Which, for people.
        answer: In a few words: "yes", "no", a number with its unit, a tree in words.
        holds: Whether a promise holds; None where the property is a fact and no promise.
        trials: How many calls were compared.
        counterexample: Shape, seed, index and both bit patterns of the first failure.
        facts: Numbers behind the answer.
    """

    group: str
    name: str
    answer: str
    holds: bool | None = None
    trials: int = 0
    counterexample: str = ""
    facts: dict[str, Any] | None = None


@dataclass(frozen=True)
class Certificate:
    """All properties of one implementation, on one machine.

    Attributes:
        name, version, machine: Whose, and where it was measured.
        dtype: Of x in all measurements that do not say another.
        measured: In the order of the page.
    """

    name: str
    version: str
    machine: str
    dtype: str
    measured: tuple[Measured, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(entry: dict[str, Any]) -> Certificate:
        return Certificate(**{**entry, "measured": tuple(Measured(**one) for one in entry["measured"])})


def different_bits(got: Array, expected: Array) -> str | None:
    """Where two arrays first differ in bits, and both patterns; None if they do not. NaNs of any payload are equal."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{got.dtype} {got.shape} against {expected.dtype} {expected.shape}"
    kind = f"u{got.dtype.itemsize}"
    bits = [np.ascontiguousarray(one).view(kind).reshape(one.shape) for one in (got, expected)]
    wide = [one.astype(np.float64) for one in (got, expected)]
    unlike = (bits[0] != bits[1]) & ~(np.isnan(wide[0]) & np.isnan(wide[1]))
    if not unlike.any():
        return None
    at = tuple(int(axis[0]) for axis in np.nonzero(unlike))
    digits = 2 * got.dtype.itemsize
    return (
        f"{int(unlike.sum())} of {unlike.size} elements, first at {at}: "
        f"0x{int(bits[0][at]):0{digits}x} against 0x{int(bits[1][at]):0{digits}x}"
    )


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
        allocated, empty_cache, own_statistics, simulated, elsewhere: As of Implementation.
    """

    name: str
    version: str
    backward: Backward
    forward: Callable[[Array, Array, Array, float], Forward] | None = None
    set_threads: Callable[[int], None] | None = None
    backward_into: Callable[[Place, Array, Array, Array, Array, Array], Grads] | None = None
    forward_into: Callable[[Array, Array, Array, float], Forward] | None = None
    allocated: Callable[[Call], tuple[int, str]] | None = None
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


def subject_of(name: str) -> Subject:
    """Any implementation that `lngrad check` knows.

    Raises:
        BackendUnavailable: There is none of this name, or it is not installed.
    """
    row = find(name)

    def forward(x: Array, gamma: Array, beta: Array, eps: float, out: Forward | None = None) -> Forward:
        assert row.forward is not None  # looked at below
        arguments = Arguments(x=x, gamma=gamma, beta=beta, normalized_shape=x.shape[1:], eps=eps, out=out)
        return Forward(*map(as_numpy, row.forward(arguments)()))

    def forward_into(x: Array, gamma: Array, beta: Array, eps: float) -> Forward:
        rows = (np.empty((len(x), 1), np.float32) for _ in range(2))
        return forward(x, gamma, beta, eps, Forward(x, *rows))

    def backward_into(place: Place, dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array) -> Grads:
        out = Grads(dy if place == "dy" else x, np.empty_like(gamma), np.empty_like(gamma))
        rows = mean.reshape(-1, 1), rstd.reshape(-1, 1)
        got = row.backward(
            Arguments(dy, x, *rows, gamma, None, x.shape[1:], variance=_variance(rstd), eps=0.0, out=out)
        )()
        return out if got is None else Grads(*map(as_numpy, got))

    return Subject(
        name, row.described(), backward_of(row), forward if row.forward else None, row.set_threads,
        backward_into if row.into else None, forward_into if row.into and row.forward else None,
        row.allocated, row.empty_cache, row.own_statistics, row.simulated, row.elsewhere,
    )  # fmt: skip


def backward_of(implementation: Implementation) -> Backward:
    """The backward of an implementation, on plain matrices."""

    def backward(dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array) -> Grads:
        M, N = x.shape
        dtype, parameter = x.dtype.name, gamma.dtype.name
        case = CheckCase(
            name="certify", source=Source("certify"), lead=(M,), normalized=(N,), dtype=dtype, gamma_dtype=parameter,
            statistics_dtype=ACCUMULATORS[dtype], output_dtypes=(dtype, parameter, parameter),
            ranges={"mean": None, "statistic": None},
        )  # fmt: skip
        inputs = Inputs(dy, x, mean.reshape(M, 1), rstd.reshape(M, 1), gamma, None, 1)
        got = implementation(case, DrawnInputs(inputs, inputs, _variance(rstd).reshape(M, 1), 0.0, 0, M))
        return Grads(*(None if one is None else as_numpy(one) for one in got))

    return backward


def _variance(rstd: Array) -> Array:
    with np.errstate(all="ignore"):
        return (1 / rstd.astype(np.float64) ** 2).astype(rstd.dtype)
