"""What explains an output: how its formula differs from the right one, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from lngrad.check.result import Formula, Weights

RIGHT = {
    "dx": "rstd·(dxhat − mean_dxhat − xhat·mean_dxhat_xhat)",
    "dgamma": "Σ_rows dy·xhat",
    "dbeta": "Σ_rows dy",
}


MULTIPLES = (8, 16, 32, 64, 128, 256, 512, 1024)  # that kernels fill a row up to


@dataclass(frozen=True)
class Difference:
    """One way in which a formula differs from the right one.

    Attributes:
        name: Short, for counting: equal mistakes have equal names.
        sentence: What to do.
    """

    name: str
    sentence: str


@dataclass(frozen=True)
class Explanation:
    """What explains one output.

    Attributes:
        formula: None where the difference is not in the formula but in the rounding or the rows.
        differences: At least one.
        weights: Of sums that do not take every term once.
    """

    formula: Formula | None
    differences: tuple[Difference, ...]
    weights: tuple[Weights, ...] = ()


def padded_sizes(N: int) -> dict[int, str]:
    """The sizes that a row of N elements is filled up to, and how each comes about."""
    found: dict[int, str] = {}
    for multiple in MULTIPLES:
        found.setdefault(-(-N // multiple) * multiple, f"a multiple of {multiple}")
    found.setdefault(1 << (N - 1).bit_length(), "a power of two")
    found.pop(N, None)
    return found


def coefficient_text(value: float, N: int, M: int) -> str:
    """A coefficient as people write it: 2, 1/2, 1/N, N/(N−1), or a few digits."""
    for text, number in (("N", N), ("1/N", 1 / N), ("N/(N−1)", N / (N - 1) if N > 1 else 0.0), ("(N−1)/N", 1 - 1 / N),
                         ("M", M), ("1/M", 1 / max(M, 1)), *((f"N/{P}", N / P) for P in padded_sizes(N))):  # fmt: skip
        if number not in (0.0, 1.0, 2.0, 0.5) and abs(abs(value) - number) < 1e-9 * number:
            return text if value > 0 else f"−{text}"
    halves = {0.5: "1/2", 1.5: "3/2", 0.25: "1/4"}
    digits = 3 if abs(value) < 100 else 4  # of what least squares gives of 16-bit results
    text = halves.get(abs(value), f"{abs(value):.{digits}g}")
    return text if value >= 0 else f"−{text}"
