"""What is timed."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CALL_SHAPES", "DTYPES", "MODULE_SHAPES", "QUICK", "SHAPES", "Job", "parse_shape"]

DTYPES = ("float32", "bfloat16", "float16")

# From small to large rows, with tiny and odd N among them.
SHAPES = (
    (512, 384),
    (1024, 256),
    (4096, 768),
    (16384, 1024),
    (2048, 5120),
    (4096, 4096),
    (1024, 16384),
    (64, 65536),
    (100000, 64),
    (50000, 37),
    (200000, 13),
    (300000, 7),
)
# With dx of 64 MB and more in at least one dtype.
CALL_SHAPES = ((16384, 1024), (32768, 1024), (8192, 4096))
# Of a module's forward and backward, a small one among them.
MODULE_SHAPES = ((64, 64), (1024, 256), (4096, 768), (16384, 1024), (4096, 4096), (8192, 4096))
QUICK = ((512, 384), (4096, 768), (50000, 37))


@dataclass(frozen=True)
class Job:
    """One thing to time: M rows of N columns in a dtype, backward or forward or both, the one after the other."""

    M: int
    N: int
    dtype: str
    op: str = "backward"

    @property
    def nbytes(self) -> int:
        """Bytes that must move at the least: backward reads dy and x and writes dx, forward reads x and writes y."""
        passes = {"backward": 3, "forward": 2, "both": 5}[self.op]
        itemsize = 4 if self.dtype == "float32" else 8 if self.dtype == "float64" else 2
        return passes * self.M * self.N * itemsize


def parse_shape(text: str) -> tuple[int, int]:
    """ "4096x768" as (4096, 768).

    Raises:
        ValueError: It is not two positive integers with an x between.
    """
    M, cross, N = text.partition("x")
    if cross != "x" or not (M.isdigit() and N.isdigit()) or int(M) * int(N) == 0:
        raise ValueError(f"cases: expected ROWSxCOLUMNS, for example 4096x768, got {text!r}")
    return int(M), int(N)
