"""What is measured: one property with its counter-example, a page of them; and the calls that measurements are made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lngrad.check.case import CheckCase, Source
from lngrad.check.implementations import Arguments, Implementation, NotApplicable
from lngrad.check.inputs import DrawnInputs
from lngrad.core.arrays import as_numpy
from lngrad.core.dtypes import ACCUMULATORS
from lngrad.core.problem import Forward, Grads
from lngrad.testing import Inputs
from lngrad.typing import Array


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


def gradients(subject: Implementation, *given: Array, place: Array | None = None) -> Grads:
    """dx, dgamma and dbeta of an implementation, on plain matrices.

    Args:
        subject: Whose.
        given: dy, x, mean, rstd, gamma, of shapes (M, N), (M, N), (M,), (M,), (N,).
        place: dx is written to the memory of this array.

    Raises:
        NotApplicable: It does not take the shape or dtype.
    """
    dy, x, mean, rstd, gamma = given
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
    out = None if place is None else Grads(place, np.empty_like(gamma), np.empty_like(gamma))
    got = subject(case, DrawnInputs(inputs, inputs, variance.reshape(M, 1), 0.0, 0, M), out)
    return Grads(*(None if one is None else as_numpy(one) for one in got))


def normalized(subject: Implementation, x: Array, gamma: Array, beta: Array, place: Array | None = None) -> Forward:
    """y, mean and rstd of an implementation that has a forward; y is written to the memory of `place`."""
    assert subject.forward is not None  # callers have looked
    out = None if place is None else Forward(place, *(np.empty((len(x), 1), np.float32) for _ in range(2)))
    given = Arguments(x=x, gamma=gamma, beta=beta, normalized_shape=x.shape[1:], out=out)
    return Forward(*map(as_numpy, subject.forward(given)()))


def takes(subject: Implementation, M: int, N: int) -> bool:
    """Whether the kernel takes a shape, in float32."""
    rows, one = np.zeros((M, N), np.float32), np.ones(M, np.float32)
    try:
        gradients(subject, rows, rows.copy(), one - 1, one, np.ones(N, np.float32))
    except NotApplicable:
        return False
    return True
