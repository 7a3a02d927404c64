"""One measured property: what was asked, how often, the answer, and the counter-example where it does not hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

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
