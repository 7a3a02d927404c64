"""What the mathematical functions compute: in float64, and rounded once to the type of the result.

CANN's own are polynomials and steps in float, so that a device's result differs from these in its last bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lngrad.typing import Array

_ASYMPTOTIC = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760)  # of digamma, in 1 / x²


def exactly(function: Callable[..., Any]) -> Callable[..., None]:
    """``function`` of numbers, as the arithmetic of a row: of arrays of any type, into ``out``."""

    def compute(*arrays: Array) -> None:
        *sources, out = arrays
        with np.errstate(all="ignore"):
            out[...] = function(*(source.astype(np.float64) for source in sources))

    return compute


def each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of Python's as one of arrays; where it has no value, NaN, or infinity at a pole."""

    def one(value: float) -> float:
        try:
            return function(value)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan if math.isinf(value) else math.inf

    return np.vectorize(one, otypes=[np.float64])


def digamma(x: float) -> float:
    """The derivative of ln Γ: NaN at 0 and at the negative whole numbers."""
    if x <= 0 and x == math.floor(x):
        return math.nan
    if x < 0:
        return digamma(1 - x) - math.pi / math.tan(math.pi * x)
    shift = 0.0
    while x < 10:
        shift, x = shift - 1 / x, x + 1
    return shift + math.log(x) - 1 / (2 * x) + sum(c / x ** (2 * k) for k, c in enumerate(_ASYMPTOTIC, 1))


def sigmoid(x: Array) -> Array:
    """1 / (1 + e ** -x)."""
    return 1 / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    """x / (1 + e ** (-1.5957691 x - 0.0713548 x³)): the form of CANN's Gelu, with tanh."""
    return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x**3))


def faster_gelu(x: Array) -> Array:
    """x / (1 + e ** (-1.702 x))."""
    return x * sigmoid(1.702 * x)


def power(base: Array, exponent: Array, out: Array) -> None:
    """base ** exponent, of whole numbers modulo 2 ** 32."""
    if out.dtype.kind == "i":
        wide = [int(b) ** int(e) if e >= 0 else int(float(b) ** int(e)) if b else 0
                for b, e in np.broadcast(base, exponent)]  # fmt: skip
        out[...] = np.array([one & 0xFFFFFFFF for one in wide], np.uint32).view(np.int32).reshape(out.shape)
    else:
        exactly(np.power)(base, exponent, out)
