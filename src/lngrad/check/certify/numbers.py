"""Accuracy and the edges of the number range: errors as sums grow, 16-bit sums, subnormals, NaN, constants, overflow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lngrad.check.certify.bits import arguments
from lngrad.check.certify.measured import Measured
from lngrad.check.certify.subject import Subject
from lngrad.core import reference
from lngrad.core.dtypes import UNIT_ROUNDOFF, numpy_dtype
from lngrad.typing import Array

GROWTH = (64, 256, 1024, 4096, 16384)


def accuracy(subject: Subject, trials: int) -> list[Measured]:
    """Errors of column sums against exact ones as rows are added, and where 16-bit sums stop growing."""
    group, found = "Accuracy", []
    errors, growth = [], GROWTH[:-1] if subject.simulated else GROWTH
    for M in growth:
        worst = 0.0
        for seed in range(max(1, trials // 5)):
            dy, x, mean, rstd, gamma = arguments(M, 64, seed)
            dy = np.abs(dy) + np.float32(0.5)  # of one sign, so that partial sums grow with the rows
            dbeta = np.asarray(subject.backward(dy, x, mean, rstd, gamma).dbeta, np.float64)
            wide = dy.astype(np.float64)
            worst = max(
                worst, float((np.abs(dbeta - wide.sum(0)) / np.abs(wide).sum(0)).max() / UNIT_ROUNDOFF["float32"])
            )
        errors.append(worst)
    slope = float(np.polyfit(np.log(growth), np.log(np.maximum(errors, 1e-3)), 1)[0])
    text = ", ".join(f"{error:.2f} at {M}" for M, error in zip(growth, errors, strict=True))
    found.append(Measured(group, "error of dbeta in units of roundoff of Σdy, dy > 0, by rows", f"{text}; slope {slope:+.2f}",
                          facts={"rows": list(growth), "errors": errors, "slope": slope}))  # fmt: skip
    for dtype, most in (("bfloat16", 1024), ("float16", 16384)):
        found.append(_growth(subject, dtype, most))
    return found


def _growth(subject: Subject, dtype: str, most: int) -> Measured:
    """dbeta of so many rows of ones."""
    narrow = numpy_dtype(dtype)
    zeros, ones = np.zeros((most, 16), narrow), np.ones((most, 16), narrow)
    name = f"dbeta of {most} rows of ones in {dtype}"
    refused = ""
    # Some take statistics in x's dtype only, or gamma in float32 only.
    for wide, parameter in ((np.float32, narrow), (narrow, narrow), (np.float32, np.float32)):
        try:
            dbeta = subject.backward(
                ones, zeros, np.zeros(most, wide), np.ones(most, wide), np.ones(16, parameter)
            ).dbeta
            break
        except Exception as error:
            refused = f"refused: {_line(error)}"
    else:
        return Measured("Accuracy", name, refused)
    got = float(np.asarray(dbeta).astype(np.float64).max())
    right = got == most
    text = "right" if right else f"{got:g}: the sum stops growing, or is kept in {dtype}"
    return Measured("Accuracy", name, text, right, 1, "" if right else f"expected {most}, got {got:g}")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:110]


def number_range(subject: Subject) -> list[Measured]:
    """What comes of subnormals, NaN and infinity, one column, constant rows, offsets and overflow."""
    group = "The range of numbers"
    dy, x, mean, rstd, gamma = arguments(8, 32, 0)
    small = np.full_like(dy, 2.0**-140)
    found = []

    def add(name: str, measure: Callable[[], str]) -> None:
        try:
            with np.errstate(all="ignore"):
                answer = measure()
        except Exception as error:
            answer = f"refused: {_line(error)}"
        found.append(Measured(group, name, answer, None, 1))

    def dbeta(some: Array) -> Array:
        return np.asarray(subject.backward(some, x, mean, rstd, gamma).dbeta, np.float64)

    add("subnormal dy in dbeta", lambda: "kept" if (dbeta(small) == 8 * 2.0**-140).all() else "flushed to zero")

    def spoiled(value: float) -> str:
        some = dy.copy()
        some[3, 5] = value
        got = subject.backward(some, x, mean, rstd, gamma)
        dx, column = (np.asarray(one, np.float64) for one in (got.dx, got.dbeta))
        rows = np.flatnonzero(~np.isfinite(dx).all(1)).tolist()
        columns = np.flatnonzero(~np.isfinite(column)).tolist()
        return "in its row of dx and its column of dbeta, nowhere else" if (rows, columns) == ([3], [5]) else (
            f"in rows {rows} of dx and columns {columns[:6]} of dbeta"
        )  # fmt: skip

    add("a NaN in dy", lambda: spoiled(np.nan))
    add("an infinity in dy", lambda: spoiled(np.inf))

    def one_column() -> str:
        given = arguments(9, 1, 0)
        got = subject.backward(*given)
        zero = not np.asarray(got.dx).any() and not np.asarray(got.dgamma).any()
        return (
            "dx and dgamma are 0"
            if zero
            else f"dx is {np.abs(np.asarray(got.dx)).max():.3g} at most, which should be 0"
        )

    add("N = 1", one_column)

    def constant_rows() -> str:
        given = list(arguments(8, 32, 1))
        given[1] = np.full((8, 32), 3.25, np.float32)
        given[2], given[3] = np.full(8, 3.25, np.float32), np.full(8, 1e-5**-0.5, np.float32)
        truth = reference.layer_norm_backward(*given)
        got = np.asarray(subject.backward(*given).dx, np.float64)
        scale = np.abs(given[3]).max() * np.abs(given[0] * given[4]).max()
        return f"error {np.abs(got - truth.dx).max() / scale / UNIT_ROUNDOFF['float32']:.1f} units of roundoff"

    add("constant rows", constant_rows)

    def offset() -> str:
        given = list(arguments(8, 64, 2))
        wide = 1e6 + np.random.default_rng(5).standard_normal((8, 64))
        given[1] = wide.astype(np.float32)
        exact = given[1].astype(np.float64)
        given[2], given[3] = exact.mean(1).astype(np.float32), (1 / np.sqrt(exact.var(1) + 1e-5)).astype(np.float32)
        truth = reference.layer_norm_backward(*given)
        got = np.asarray(subject.backward(*given).dx, np.float64)
        return f"largest error of dx {np.abs(got - truth.dx).max() / np.abs(truth.dx).max():.1e} of its largest element"

    add("x around 1e6, statistics given", offset)

    def overflow() -> str:
        given = list(arguments(4, 64, 3))
        given[1] = (1e30 * given[1]).astype(np.float32)
        exact = given[1].astype(np.float64)
        given[2], given[3] = exact.mean(1).astype(np.float32), (1 / np.sqrt(exact.var(1) + 1e-5)).astype(np.float32)
        got = np.asarray(subject.backward(*given).dx, np.float64)
        truth = reference.layer_norm_backward(*given).dx
        if not np.isfinite(got).all():
            return f"{int((~np.isfinite(got)).sum())} of {got.size} elements of dx are not finite"
        return f"finite; largest error {np.abs(got - truth).max() / np.abs(truth).max():.1e} of the largest element"

    add("x around 1e30, statistics given", overflow)
    return found
