"""What is timed: jobs, and the settings of a run from the options of the command."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from lngrad.core.threads import get_num_threads
from lngrad.support.dtypes import bytes_of

DTYPES = ("float32", "bfloat16", "float16")
QUICK_ROUNDS = 3
# On a CPU: of a module's forward and backward, a small one among them; and of a quick run.
MODULE_SHAPES = ((64, 64), (1024, 256), (4096, 768), (16384, 1024), (4096, 4096), (8192, 4096))
MODEL_SHAPES = ((512, 768),)  # tokens, and hidden size
QUICK = ((512, 384), (4096, 768), (50000, 37))
Shapes: TypeAlias = tuple[tuple[int, int], ...]

LAYERS = 4  # of a model, whose norms are two in each and a last one
_PASSES = {"backward": 3, "forward": 2, "both": 5, "step": 5 * (2 * LAYERS + 1)}  # over M·N elements, at the least


@dataclass(frozen=True)
class Job:
    """One thing to time.

    Attributes:
        M, N: Rows and columns.
        dtype: Of x, dy, gamma and beta.
        op: backward, forward, or both: the one after the other; or step, of a model's training.
        norm: By its name in lngrad.core.norms.NORMS.
    """

    M: int
    N: int
    dtype: str
    op: str = "backward"
    norm: str = "layer_norm"

    @property
    def nbytes(self) -> int:
        """Bytes that must move at the least: dy, x and dx backward, x and y forward; in a step, of all norms."""
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


@dataclass(frozen=True)
class Settings:
    """What to time.

    Attributes:
        scopes, dtypes, peers: Names.
        shapes: None: those of each scope.
        threads: Numbers of threads; a job is timed with each of them.
        rounds: Turns of each contestant.
        quick: Fewer shapes.
    """

    scopes: tuple[str, ...]
    peers: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    shapes: Shapes | None = None
    threads: tuple[int, ...] = ()
    rounds: int = 15
    quick: bool = False


def names_of(option: str, text: str, allowed: Iterable[str], default: tuple[str, ...]) -> tuple[str, ...]:
    """Names separated by commas; the default where there is none.

    Raises:
        ValueError: A name is not allowed; the text names the option and what it takes.
    """
    allowed = tuple(allowed)
    names = tuple(filter(None, text.split(",")))
    for name in names:
        if name not in allowed:
            raise ValueError(f"{option}: expected some of {', '.join(allowed)}, got {name!r}")
    return names or default


def shapes_of(text: str) -> Shapes | None:
    """Shapes ROWSxCOLUMNS separated by commas, or None for an empty text.

    Raises:
        ValueError: One of them is no shape.
    """
    return tuple(map(parse_shape, text.split(","))) if text else None


def threads_of(text: str) -> tuple[int, ...]:
    """Numbers of threads separated by commas; what this process is granted for an empty text.

    Raises:
        ValueError: One of them is no positive number.
    """
    if not text:
        return (get_num_threads(),)
    for number in text.split(","):
        if not number.isdigit() or int(number) == 0:
            raise ValueError(f"threads: expected positive numbers, for example 1,2, got {number!r}")
    return tuple(map(int, text.split(",")))
