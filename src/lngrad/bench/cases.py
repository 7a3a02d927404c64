"""What is timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lngrad.core.dtypes import bytes_of

DTYPES = ("float32", "bfloat16", "float16")
Shapes: TypeAlias = tuple[tuple[int, int], ...]

_PASSES = {"backward": 3, "forward": 2, "both": 5}  # over M·N elements, at the least


@dataclass(frozen=True)
class Job:
    """One thing to time.

    Attributes:
        M, N: Rows and columns.
        dtype: Of x, dy, gamma and beta.
        op: backward, forward, or both: the one after the other.
    """

    M: int
    N: int
    dtype: str
    op: str = "backward"

    @property
    def nbytes(self) -> int:
        """Bytes that must move at the least: dy, x and dx backward, x and y forward."""
        return _PASSES[self.op] * self.M * self.N * bytes_of(self.dtype)


def parse_shape(text: str) -> tuple[int, int]:
    """Return "4096x768" as (4096, 768).

    Raises:
        ValueError: It is not two positive integers with an x between.
    """
    M, cross, N = text.partition("x")
    if cross != "x" or not (M.isdigit() and N.isdigit()) or int(M) * int(N) == 0:
        raise ValueError(f"cases: expected ROWSxCOLUMNS, for example 4096x768, got {text!r}")
    return int(M), int(N)
