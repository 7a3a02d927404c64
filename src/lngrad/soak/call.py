"""One call, described so that its text can be run again: shapes, dtypes, memory, masks, special values, door."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import numpy as np

from lngrad.dtypes import DTYPES
from lngrad.typing import Mask, Shape

__all__ = ["DOORS", "LAYOUTS", "SPECIALS", "Call", "draw"]

# How a large array lies in memory; "shared" repeats one row with stride 0, and is for inputs alone.
LAYOUTS = ("plain", "reversed axes", "every second", "backwards", "odd bytes", "shared")
SPECIALS = ("", "zeros", "inf in x", "nan in x", "inf in dy", "nan in dy", "offset", "tiny")
DOORS = ("numba_cpu", "numpy_cpu", "torch", "override", "jax")
PLACES = ("", "dy", "x", "shifted x")  # whose memory dx takes; the last must be refused
_SIZES = (0, 1, 1, 2, 3, 5, 7, 8, 9, 16, 17, 33)


@dataclass(frozen=True)
class Call:
    """A forward and a backward with the same arrays.

    Attributes:
        seed: Of all values.
        lead, normalized: x has the shape (*lead, *normalized).
        dtype: Of x and dy; `parameters` of gamma and beta, "" for neither; `statistics` of mean and rstd.
        x, dy, dx: Layouts; dx "" lets the call allocate it.
        mask: Which gradients are wanted.
        place: Whose memory dx takes.
        special: What is unusual about the values.
        door: Which of the ways in.
        threads: With how many threads the call is repeated, for its bits; 0 does not repeat it.
    """

    seed: int = 0
    lead: Shape = (2,)
    normalized: Shape = (3,)
    dtype: str = "float32"
    parameters: str = "float32"
    statistics: str = "float32"
    x: str = "plain"
    dy: str = "plain"
    dx: str = ""
    mask: Mask = (True, True, True)
    place: str = ""
    special: str = ""
    door: str = "numba_cpu"
    threads: int = 0


def draw(rng: np.random.Generator, doors: tuple[str, ...] = DOORS) -> Call:
    """A random call: 1 to 6 dimensions, sizes 0 and 1 among them, sometimes a long row or many rows."""

    def one(choices: tuple[str, ...], usual: float = 0.0) -> str:
        return choices[0] if rng.random() < usual else choices[int(rng.integers(len(choices)))]

    dims = int(rng.integers(1, 7))
    shape = [int(rng.choice(_SIZES)) for _ in range(dims)]
    while np.prod(shape, dtype=np.int64) > 4096:
        shape[int(np.argmax(shape))] //= 2
    split = int(rng.integers(0, dims))
    if rng.random() < 0.05:
        shape[-1] = int(rng.integers(1, 3000))
        shape[:-1] = [min(size, 2) for size in shape[:-1]]
    if rng.random() < 0.05 and split:
        shape = [int(rng.integers(60, 700)), *[1] * (dims - 2), int(rng.integers(1, 40))] if dims > 1 else shape
    dtype = one(tuple(DTYPES))
    door = one(tuple(door for door in doors if door in _installed()))
    return Call(
        seed=int(rng.integers(1 << 31)),
        lead=tuple(shape[:split]),
        normalized=tuple(shape[split:]),
        dtype=dtype,
        parameters=one(("", *DTYPES)),
        statistics=one(tuple(DTYPES)),
        x=one(LAYOUTS, 0.3),
        dy=one(LAYOUTS, 0.3),
        dx=one(("", *LAYOUTS[:-1]), 0.5),
        mask=tuple(bool(rng.integers(4)) for _ in range(3)),  # type: ignore[arg-type]  # three
        place=one(PLACES, 0.8),
        special=one(SPECIALS, 0.5),
        door=door,
        threads=int(rng.integers(1, 5)) if rng.random() < 0.2 else 0,
    )


@cache
def _installed() -> tuple[str, ...]:
    torch = ("torch", "override") if find_spec("torch") else ()
    jax = ("jax",) if find_spec("jax") else ()
    return ("numba_cpu", "numpy_cpu", *torch, *jax)
