"""What all bug reports share: the terms of a right backward in float32, and how a mistake becomes a kernel of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lngrad.check.case import CheckCase, Source

BUG_REPORTS: dict[str, BugReport] = {}


@dataclass(frozen=True)
class BugReport:
    """A mistake from a public report, rebuilt in a few lines.

    Attributes:
        name: Of the function.
        report: Project and number of the report, as on GitHub.
        date: When it was reported.
        version: That the report names, or "" where it names none.
        standard: By which its users would have judged.
        named: What the diagnosis must begin with.
        facts: Of the cases: what differs from a small float32 case.
        shapes: (leading sizes, normalized sizes) from a random generator.
        kernel: The mistake, as `lngrad check --impl` takes it.
        story: The mistake in one sentence.
    """

    name: str
    report: str
    date: str
    version: str
    standard: str
    named: str
    facts: dict[str, Any]
    shapes: Callable[[np.random.Generator], tuple[tuple[int, ...], tuple[int, ...]]]
    kernel: Callable[..., Any]
    story: str

    def case(self, seed: int) -> CheckCase:
        """A random case on which the mistake shows."""
        lead, normalized = self.shapes(np.random.default_rng([seed, 14]))
        dtype = self.facts.get("dtype", "float32")
        facts: dict[str, Any] = {
            "name": f"{self.name} {seed}", "source": Source("regression corpus"), "lead": lead,
            "normalized": normalized, "dtype": dtype,
            "gamma_dtype": dtype, "statistics_dtype": "float32",
            "ranges": {"mean": None, "statistic": None}, "standard": self.standard,
        }  # fmt: skip
        return CheckCase(**(facts | self.facts))


@dataclass(frozen=True)
class Terms:
    """A right backward's terms: (M, N), or (M, 1) for what a row has one of. In float32."""

    dy: Any
    x: Any
    xhat: Any
    dxhat: Any
    gamma: Any
    mean: Any
    rstd: Any
    mean_dxhat: Any
    mean_dxhat_xhat: Any
    lead: tuple[int, ...]
    eps: float


def terms_of(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, normalized_shape: tuple[int, ...], eps: float) -> Terms:
    N = math.prod(normalized_shape)
    M = x.size // N
    dy, x = dy.reshape(M, N).astype(np.float32), x.reshape(M, N).astype(np.float32)
    mean, rstd = mean.reshape(M, 1).astype(np.float32), rstd.reshape(M, 1).astype(np.float32)
    gamma = np.ones((1, N), np.float32) if gamma is None else gamma.reshape(1, N).astype(np.float32)
    xhat, dxhat = (x - mean) * rstd, dy * gamma
    lead = tuple(x.shape[:1]) if M == 0 else ()
    return Terms(dy, x, xhat, dxhat, gamma, mean, rstd, dxhat.mean(1, keepdims=True),
                 (dxhat * xhat).mean(1, keepdims=True), lead, eps)  # fmt: skip


def dx_of(t: Terms) -> Any:
    return t.rstd * (t.dxhat - t.mean_dxhat - t.xhat * t.mean_dxhat_xhat)


def two_axes(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (int(rng.integers(3, 8)), int(rng.integers(9, 13))), (int(rng.integers(2, 5)), int(rng.integers(5, 8)))


def bug_report(
    report: str, date: str, named: str, *, version: str = "", standard: str = "mixed",
    shapes: Callable[[np.random.Generator], tuple[tuple[int, ...], tuple[int, ...]]] = two_axes, **facts: Any,
) -> Callable[[Callable[[Terms], dict[str, Any]]], Callable[..., Any]]:  # fmt: skip
    """Make a bug report of a function that returns what is wrong, of dx, dgamma and dbeta."""

    def decorate(wrong: Callable[[Terms], dict[str, Any]]) -> Callable[..., Any]:
        def kernel(
            dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, normalized_shape: tuple[int, ...]
        ) -> tuple[Any, ...]:
            with np.errstate(all="ignore"):
                t = terms_of(dy, x, mean, rstd, gamma, normalized_shape, facts.get("eps", 1e-5))
                t = Terms(**{**vars(t), "lead": x.shape[: x.ndim - len(normalized_shape)]})
                results = {"dx": dx_of(t), "dgamma": (t.dy * t.xhat).sum(0), "dbeta": t.dy.sum(0)} | wrong(t)
            shapes_ = {"dx": x.shape, "dgamma": normalized_shape, "dbeta": normalized_shape}
            return tuple(np.asarray(results[name], np.float32).reshape(shape) for name, shape in shapes_.items())

        name = f"{wrong.__module__.rpartition('.')[2]}:{wrong.__name__}"
        story = (wrong.__doc__ or "").strip()
        BUG_REPORTS[name] = BugReport(name, report, date, version, standard, named, facts, shapes, kernel, story)
        return kernel

    return decorate
