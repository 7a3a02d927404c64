"""What is measured: one property with its counter-example, a page of them; and the calls that measurements are made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lngrad.check.case import OF_ROWS, CheckCase, Source
from lngrad.check.implementations import Arguments, Implementation, NotApplicable
from lngrad.check.inputs import DrawnInputs
from lngrad.core.norms import NORMS
from lngrad.core.problem import Grads
from lngrad.support.addresses import as_numpy
from lngrad.support.dtypes import ACCUMULATORS
from lngrad.testing import Inputs
from lngrad.typing import Array

OWN = "not measured: it computes its own mean and rstd, and the probes need others"


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
        norm: Which one it is of.
    """

    name: str
    version: str
    machine: str
    dtype: str
    measured: tuple[Measured, ...]
    norm: str = "layer_norm"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(entry: dict[str, Any]) -> Certificate:
        return Certificate(**{**entry, "measured": tuple(Measured(**facts) for facts in entry["measured"])})


def different_bits(got: Array, expected: Array) -> str | None:
    """Where two arrays first differ in bits, and both patterns; None if they do not. NaNs of any payload are equal."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{got.dtype} {got.shape} against {expected.dtype} {expected.shape}"
    kind = f"u{got.dtype.itemsize}"
    bits = [np.ascontiguousarray(array).view(kind).reshape(array.shape) for array in (got, expected)]
    wide = [array.astype(np.float64) for array in (got, expected)]
    unlike = (bits[0] != bits[1]) & ~(np.isnan(wide[0]) & np.isnan(wide[1]))
    if not unlike.any():
        return None
    at = tuple(int(axis[0]) for axis in np.nonzero(unlike))
    digits = 2 * got.dtype.itemsize
    patterns = " against ".join(f"0x{int(bit[at]):0{digits}x}" for bit in bits)
    return f"{int(unlike.sum())} of {unlike.size} elements, first at {at}: {patterns}"


def gradients(subject: Implementation, *arrays: Array, place: Array | None = None) -> Grads:
    """dx, dgamma and dbeta of an implementation, on plain matrices. Where there is a residual, it is x, and its summand 0.

    Args:
        given: dy, x, mean, rstd, and what xhat is multiplied with, of shapes (M, N), (M, N), (M,), (M,), (N,).
        place: dx is written to the memory of this array.

    Raises:
        NotApplicable: It does not take the shape or dtype.
    """
    dy, x, mean, rstd, scale = arrays
    M, N = x.shape
    norm = NORMS[subject.norm]
    normalization = norm.normalization
    gamma = scale - scale.dtype.type(normalization.offset) if normalization.offset else scale
    mean = mean if normalization.centred else np.zeros_like(mean)
    nothing = np.zeros_like(x) if norm.residual else None
    dtype, parameter = x.dtype.name, gamma.dtype.name
    case = CheckCase(
        name="certify", source=Source("certify"), lead=(M,), normalized=(N,), dtype=dtype, gamma_dtype=parameter,
        statistics_dtype=ACCUMULATORS[dtype], ranges={"mean": None, "statistic": None}, norm=subject.norm,
    )  # fmt: skip
    inputs = Inputs(
        dy, x if nothing is None else nothing, mean.reshape(M, 1), rstd.reshape(M, 1), gamma, None, 1, normalization,
        None if nothing is None else x, nothing,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        variance = (1 / rstd.astype(np.float64) ** 2).astype(rstd.dtype)
    out = None
    if place is not None:
        out = case.operator.results(
            **{name: place if name == "dx" else np.empty_like(gamma) for name in case.operator.outputs}
        )
    got = subject(case, DrawnInputs(inputs, inputs, variance.reshape(M, 1), 0.0, 0, M), out)._asdict()
    return Grads(**{name: None if got.get(name) is None else as_numpy(got[name]) for name in Grads._fields})


def column_names(subject: Implementation) -> tuple[str, ...]:
    """dgamma, and dbeta where the norm has one; the last is where bare sums are seen."""
    return tuple(name for name in NORMS[subject.norm].backward.outputs if name not in OF_ROWS)


def bare_sums(subject: Implementation, *arrays: Array) -> Array:
    """Σ dy over rows: dbeta, or, of a norm that has no beta, dgamma where xhat is 1."""
    if NORMS[subject.norm].normalization.has_beta:
        return np.asarray(gradients(subject, *arrays).dbeta)
    dy, x, mean, rstd, scale = arrays
    return np.asarray(gradients(subject, dy, np.ones_like(x), mean, np.ones_like(rstd), scale).dgamma)


def normalized(
    subject: Implementation, x: Array, gamma: Array, beta: Array, place: Array | None = None
) -> dict[str, Array]:
    """The forward's results by name, of an implementation that has one; y is written to the memory of `place`."""
    assert subject.forward is not None  # callers have looked
    norm = NORMS[subject.norm]
    residual = x[:, ::-1].copy() if norm.residual else None
    out: Any = None
    if place is not None:
        memory = {"y": place, "total": np.empty_like(x) if norm.residual else None}
        rows = {name: np.empty((len(x), 1), np.float32) for name in norm.forward.outputs if name not in memory}
        out = norm.forward.results(**{name: (memory | rows)[name] for name in norm.forward.outputs})
    beta_or_none = beta if "beta" in norm.forward.inputs else None
    arguments = Arguments(
        x=x, gamma=gamma, beta=beta_or_none, normalized_shape=x.shape[1:], out=out, residual=residual,
        normalization=norm.normalization,
    )  # fmt: skip
    results = subject.forward(arguments)()
    results = results if isinstance(results, tuple) else (results,)
    names = getattr(results, "_fields", norm.forward.outputs)  # torch gives y alone
    return {name: as_numpy(array) for name, array in zip(names, results, strict=False) if array is not None}


def takes(subject: Implementation, M: int, N: int) -> bool:
    """Whether the kernel takes a shape, in float32."""
    rows, ones = np.zeros((M, N), np.float32), np.ones(M, np.float32)
    try:
        gradients(subject, rows, rows.copy(), ones - 1, ones, np.ones(N, np.float32))
    except NotApplicable:
        return False
    return True
