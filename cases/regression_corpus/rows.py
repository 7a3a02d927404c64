"""Mistakes in dx: terms counted twice, sums over other elements than the row's, gamma in the wrong place."""

from __future__ import annotations

from typing import Any

import numpy as np
from cases.regression_corpus.frame import Terms, bug_report, dx_of


def wide(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (int(rng.integers(120, 160)),), (int(rng.integers(70, 96)),)


def three_dimensions(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (int(rng.integers(4, 9)), int(rng.integers(5, 9))), (int(rng.integers(24, 49)),)


def past_65536(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (65536 + int(rng.integers(3, 50)),), (8,)


@bug_report("tenstorrent/tt-metal#53204", "2026-08-15", "mean of dxhat 2 times")
def mean_subtracted_twice(t: Terms) -> dict[str, Any]:
    """A register still has mean(dy·gamma) when xhat's term is added to it, so it is subtracted twice."""
    return {"dx": t.rstd * (t.dxhat - (t.mean_dxhat + t.xhat * t.mean_dxhat_xhat) - t.mean_dxhat)}


@bug_report("tenstorrent/tt-metal#53204", "2026-08-15", "part of the columns in the mean of dxhat·xhat", shapes=wide)
def last_block_of_a_row_sum(t: Terms) -> dict[str, Any]:
    """The running sum of dy·gamma·xhat is lost between blocks of 32 columns: only the last block's remains."""
    products = t.dxhat * t.xhat
    last = (products.shape[1] - 1) // 32 * 32
    second = products[:, last:].sum(1, keepdims=True) / products.shape[1]
    return {"dx": t.rstd * (t.dxhat - t.mean_dxhat - t.xhat * second)}


@bug_report("tenstorrent/tt-metal#53215", "2026-08-15", "row means rounded to bfloat16", standard="stat")
def row_sums_in_bfloat16(t: Terms) -> dict[str, Any]:
    """The row sums pass through a bfloat16 buffer."""
    import ml_dtypes

    first, second = (mean.astype(ml_dtypes.bfloat16).astype(np.float32) for mean in (t.mean_dxhat, t.mean_dxhat_xhat))
    return {"dx": t.rstd * (t.dxhat - first - t.xhat * second)}


@bug_report("flagos-ai/FlagGems#5392", "2026-08-11", "means over sample", version="5.0.2", shapes=three_dimensions)
def a_sample_taken_for_a_row(t: Terms) -> dict[str, Any]:
    """N is x.numel() / x.shape[0], so that both means go over all rows of a sample (the part of it that shows in dx)."""
    samples = t.lead[0]

    def mean(values: Any) -> Any:
        return np.repeat(values.reshape(samples, -1).mean(1), len(values) // samples)[:, None]

    return {"dx": t.rstd * (t.dxhat - mean(t.dxhat) - t.xhat * mean(t.dxhat * t.xhat))}


@bug_report("flagos-ai/FlagGems#59", "2024-06-07", "means over block of 4 rows")
def sum_without_an_axis(t: Terms) -> dict[str, Any]:
    """With several rows a block, tl.sum without an axis adds up the whole block."""
    starts, N = np.arange(0, len(t.dy), 4), t.dy.shape[1]

    def block(values: Any) -> Any:
        return np.repeat(np.add.reduceat(values.sum(1), starts), 4)[: len(t.dy), None] / N

    return {"dx": t.rstd * (t.dxhat - block(t.dxhat) - t.xhat * block(t.dxhat * t.xhat))}


@bug_report("NVIDIA/TransformerEngine#67", "2023-02-08", "dy·(γ−1) for dxhat")
def one_not_added_to_gamma(t: Terms) -> dict[str, Any]:
    """With zero-centered gamma the backward kernels are not told to add 1."""
    dxhat = t.dy * (t.gamma - 1)
    second = (dxhat * t.xhat).mean(1, keepdims=True)
    return {"dx": t.rstd * (dxhat - dxhat.mean(1, keepdims=True) - t.xhat * second)}


@bug_report("NVIDIA/Megatron-LM#6859", "2026-08-25", "gamma twice in the mean of dxhat·xhat")
def weight_twice_in_the_variance_term(t: Terms) -> dict[str, Any]:
    """The term with mean(dy·gamma·xhat) is multiplied by gamma again (an RMSNorm; the term is the same)."""
    return {"dx": t.rstd * (t.dxhat - t.mean_dxhat - t.gamma * t.xhat * t.mean_dxhat_xhat)}


@bug_report("karpathy/llm.c#763", "2024-09-21", "gamma forgotten")
def weight_forgotten(t: Terms) -> dict[str, Any]:
    """dx without the weight: found by a reviewer in a kernel of his own, after days."""
    second = (t.dy * t.xhat).mean(1, keepdims=True)
    return {"dx": t.rstd * (t.dy - t.dy.mean(1, keepdims=True) - t.xhat * second)}


@bug_report("NVIDIA/apex#411", "2019-08-01", "rows of dx never written", shapes=past_65536)
def rows_past_65536(t: Terms) -> dict[str, Any]:
    """A batch of 2^16 rows and more overflows a count: later rows are not computed."""
    dx = dx_of(t)
    dx[65536:] = 0
    return {"dx": dx}
