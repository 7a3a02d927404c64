"""Rules of the graph ops about shapes and dtypes, on what is known of them; and what follows for
the outputs.

On a device the op's tiling checks some of these and fails the graph, and only logs others; here
each raises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from lngrad.errors import DtypeError, ShapeError
from lngrad.typing import Mask, Shape

UNKNOWN = -1  # a dimension
UNKNOWN_RANK = (-2,)

# dtypes of (dy and x, gamma, pd_gamma and pd_beta); pd_x has x's, variance or rstd and mean have
# float32.
DTYPE_ROWS = (
    ("float32", "float32", "float32"),
    ("float16", "float32", "float32"),
    ("float16", "float16", "float32"),
    ("bfloat16", "float32", "float32"),
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float16", "float16"),
    ("bfloat16", "bfloat16", "bfloat16"),
)
_BITS = {"float32": 32, "float16": 16, "bfloat16": 16}


class _Named(Protocol):
    """A dtype of NumPy, or one that prints its name: torch's."""

    def __str__(self) -> str: ...


DtypeLike: TypeAlias = "str | type | _Named"


def infer_shape(
    names: Sequence[str], shapes: Sequence[Sequence[int]], *, empty: bool = False
) -> tuple[Shape, Shape, Shape]:
    """Check what is known of the inputs' shapes, and derive the outputs'.

    Args:
        names: Of dy, x, variance or rstd, mean, gamma.
        shapes: Theirs; -1 is an unknown dimension, (-2,) an unknown rank.
        empty: Take dimensions of 0, as the newest ops do.

    Returns:
        The shapes of pd_x, pd_gamma, pd_beta.

    Raises:
        ShapeError: Naming the argument, the rule and both values.
    """
    dy, x, statistic, mean, gamma = (
        _shape(name, shape, empty or name not in ("dy", "x")) for name, shape in zip(names, shapes, strict=True)
    )
    _check_same(names[1], x, names[0], dy)
    _check_same(names[3], mean, names[2], statistic)
    if UNKNOWN_RANK not in (dy, gamma):
        _check_gamma(dy, gamma)
        rows = dy[: len(dy) - len(gamma)]
        for name, shape in ((names[2], statistic), (names[3], mean)):
            _check_rows(name, shape, rows)
    return dy, gamma, gamma


def _shape(name: str, shape: Sequence[int], empty: bool) -> Shape:
    known = tuple(shape)
    if known == UNKNOWN_RANK:
        return known
    for size in known:
        if size < UNKNOWN or (size == 0 and not empty):
            raise ShapeError(f"{name}: expected dimensions of at least 1, or -1 for an unknown one, got {known}")
    return known


def _check_same(name: str, shape: Shape, other_name: str, other: Shape) -> None:
    if UNKNOWN_RANK in (shape, other):
        return
    if len(shape) != len(other) or any(_differ(one, two) for one, two in zip(shape, other, strict=True)):
        raise ShapeError(f"{name}: expected the shape of {other_name}, {other}, got {shape}")


def _check_gamma(dy: Shape, gamma: Shape) -> None:
    if not gamma:
        raise ShapeError("gamma: expected at least 1 dimension, got ()")
    if len(gamma) > len(dy):
        raise ShapeError(f"gamma: expected at most the {len(dy)} dimensions of dy {dy}, got {len(gamma)}: {gamma}")
    last = dy[len(dy) - len(gamma) :]
    if any(_differ(one, two) for one, two in zip(gamma, last, strict=True)):
        raise ShapeError(f"gamma: expected the last dimensions of dy, {last}, got {gamma}")


def _check_rows(name: str, shape: Shape, rows: Shape) -> None:
    if shape == UNKNOWN_RANK or UNKNOWN in shape or UNKNOWN in rows:
        return
    if math.prod(shape) != math.prod(rows):
        raise ShapeError(
            f"{name}: expected {math.prod(rows)} elements, one per row of dy {rows}, got {math.prod(shape)}: {shape}"
        )


def _differ(one: int, two: int) -> bool:
    return UNKNOWN not in (one, two) and one != two


def check_mask(output_mask: Sequence[bool]) -> Mask:
    """Return output_mask as three booleans.

    Raises:
        ShapeError: They are not three.
    """
    mask = tuple(map(bool, output_mask))
    if len(mask) != 3:
        raise ShapeError(f"output_mask: expected 3 booleans for pd_x, pd_gamma, pd_beta, got {len(mask)}")
    return mask


def infer_dtype(
    names: Sequence[str], dtypes: Sequence[DtypeLike], pd_gamma_dtype: DtypeLike | None, strict: bool
) -> tuple[str, str, str]:
    """Check the inputs' dtypes, and derive the outputs'.

    Args:
        names: Of dy, x, variance or rstd, mean, gamma.
        dtypes: Theirs: names, or dtypes of NumPy or torch.
        pd_gamma_dtype: Which row of the table is meant where two begin alike: float32 or gamma's;
            None for gamma's.
        strict: Take 16-bit statistics of a 16-bit x, as the page says. The published code takes
            float32 alone.

    Returns:
        The dtypes of pd_x, pd_gamma, pd_beta.

    Raises:
        DtypeError: Naming the argument, the rule and both values.
    """
    dy, x, statistic, mean, gamma = map(dtype_name, dtypes)
    if dy not in _BITS:
        raise DtypeError(f"{names[0]}: expected float32, float16 or bfloat16, got {dy}")
    if x != dy:
        raise DtypeError(f"{names[1]}: expected the dtype of {names[0]}, {dy}, got {x}")
    for name, dtype in ((names[2], statistic), (names[3], mean)):
        if not strict and dtype != "float32":
            raise DtypeError(f"{name}: expected float32 in compat mode, got {dtype}")
        if _BITS.get(dtype, 0) < _BITS[x]:
            allowed = "float32" if x == "float32" else "float32, float16 or bfloat16"
            raise DtypeError(f"{name}: expected {allowed} for an x in {x}, got {dtype}")
    if mean != statistic:
        raise DtypeError(f"{names[3]}: expected the dtype of {names[2]}, {statistic}, got {mean}")
    if gamma not in {row[1] for row in DTYPE_ROWS if row[0] == x}:
        raise DtypeError(f"gamma: expected float32 or the dtype of dy, {dy}, got {gamma}")
    parameter = gamma if pd_gamma_dtype is None else dtype_name(pd_gamma_dtype)
    if (x, gamma, parameter) not in DTYPE_ROWS:
        raise DtypeError(f"pd_gamma_dtype: expected float32 or the dtype of gamma, {gamma}, got {parameter}")
    return x, parameter, parameter


def dtype_name(dtype: DtypeLike) -> str:
    """float32 for "float32", numpy.float32, numpy.dtype("float32") and torch.float32."""
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).removeprefix("torch.")
