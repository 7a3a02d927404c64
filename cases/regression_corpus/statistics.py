"""Mistakes in mean and rstd, in kernels that compute them again or read them as what they are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from cases.regression_corpus.frame import Terms, bug_report, dx_of

FROM_X: dict[str, Any] = {"mean": None, "statistic": None}
SMALL = {**FROM_X, "x": (-0.006, 0.006)}


def with_rstd(t: Terms, rstd: Any) -> dict[str, Any]:
    rstd = np.asarray(rstd, np.float32).reshape(-1, 1)
    xhat = (t.x - t.mean) * rstd
    t = replace(t, rstd=rstd, xhat=xhat, mean_dxhat_xhat=(t.dxhat * xhat).mean(1, keepdims=True))
    return {"dx": dx_of(t), "dgamma": (t.dy * xhat).sum(0)}


def variance(t: Terms) -> Any:
    return np.square(t.x.astype(np.float64) - t.x.astype(np.float64).mean(1, keepdims=True)).mean(1, keepdims=True)


def no_power_of_two(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (int(rng.integers(30, 60)),), (int(rng.integers(66, 120)),)


@bug_report("linkedin/Liger-Kernel#518", "2025-01-09", "variance of a padded row", shapes=no_power_of_two,
         ranges={**FROM_X, "x": (0.0, 2.0)})  # fmt: skip
def padding_counted_in_the_variance(t: Terms) -> dict[str, Any]:
    """Columns that fill the block up to a power of two are loaded as 0, so that x − mean is −mean there."""
    N = t.x.shape[1]
    padding = (1 << (N - 1).bit_length()) - N
    return with_rstd(t, 1 / np.sqrt(variance(t) + padding / N * t.mean**2 + t.eps))


@bug_report("pytorch/pytorch#40302", "2020-06-19", "variance by cancellation", ranges={**FROM_X, "x": (1000.0, 1001.0)})
def one_pass_variance(t: Terms) -> dict[str, Any]:
    """The variance is E[x²] − E[x]²: nothing is left of it where the mean is large."""
    found = (t.x * t.x).mean(1, keepdims=True) - np.square(t.x.mean(1, keepdims=True))
    return with_rstd(t, 1 / np.sqrt(np.maximum(found, 0) + t.eps))


@bug_report("pyg-team/pytorch_geometric#2917", "2021-07-28", "eps outside the root", ranges=SMALL)
def eps_outside_the_root(t: Terms) -> dict[str, Any]:
    """x / (√variance + eps) for x / √(variance + eps)."""
    return with_rstd(t, 1 / (np.sqrt(variance(t)) + t.eps))


@bug_report("FluxML/Flux.jl#529", "2018-12-26", "variance over N - 1")
def corrected_variance(t: Terms) -> dict[str, Any]:
    """The standard deviation's default divides by N − 1."""
    N = t.x.shape[1]
    return with_rstd(t, 1 / np.sqrt(variance(t) * N / (N - 1) + t.eps))


@bug_report("flagos-ai/FlagGems#5222", "2026-08-04", "rstd taken for a variance", ranges={**FROM_X, "x": (-6.0, 6.0)})
def root_of_a_root(t: Terms) -> dict[str, Any]:
    """rsqrt is applied to the saved value, which is 1/√(variance + eps) already (a BatchNorm)."""
    return with_rstd(t, 1 / np.sqrt(t.rstd + t.eps))


@bug_report("131250208/TPlinker-joint-extraction#37", "2021-04-07", "root forgotten")
def square_for_root(t: Terms) -> dict[str, Any]:
    """std = (variance + eps) ** 2 for ** 0.5."""
    return with_rstd(t, 1 / (variance(t) + t.eps) ** 2)


@bug_report("pytorch/pytorch#188375", "2026-06-28", "xhat by cancellation", standard="exact",
         shapes=lambda rng: ((int(rng.integers(30, 60)),), (1,)), ranges={**FROM_X, "x": (1e6, 1.001e6)})  # fmt: skip
def one_element(t: Terms) -> dict[str, Any]:
    """With N = 1 the weight's gradient is 0, but a fused x·rstd + (−mean·rstd) is not where x is 1e6."""
    bias = -t.mean * t.rstd
    xhat = (t.x.astype(np.float64) * t.rstd + bias).astype(np.float32)
    second = (t.dxhat * xhat).mean(1, keepdims=True)
    return {"dx": t.rstd * (t.dxhat - t.mean_dxhat - xhat * second), "dgamma": (t.dy * xhat).sum(0)}
