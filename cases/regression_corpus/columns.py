"""Mistakes in dgamma and dbeta: rows lost or counted twice, columns mixed, another product summed."""

from __future__ import annotations

from typing import Any

import numpy as np
from cases.regression_corpus.frame import Terms, bug_report, dx_of


def few_wide_rows(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (int(rng.integers(30, 48)),), (128,)


def three_dimensions(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (int(rng.integers(4, 9)), int(rng.integers(5, 9))), (int(rng.integers(24, 49)),)


def two_tiles(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (int(rng.integers(20, 60)),), (int(rng.integers(2, 4)) * 64,)


def sums(t: Terms, weight: Any) -> dict[str, Any]:
    weight = np.asarray(weight, np.float32).reshape(-1, 1)
    return {"dgamma": (t.dy * t.xhat * weight).sum(0), "dbeta": (t.dy * weight).sum(0)}


@bug_report("flagos-ai/FlagGems#5490", "2026-08-14", "part of the rows in the column sums", version="5.4.0.dev20260810",
         shapes=three_dimensions)  # fmt: skip
def rows_counted_by_shape_0(t: Terms) -> dict[str, Any]:
    """M is input.shape[0]: of a batch of sequences, only so many rows are summed."""
    return sums(t, np.arange(len(t.dy)) < t.lead[0])


@bug_report("Oneflow-Inc/oneflow#6149", "2021-09-03", "dgamma and dbeta swapped")
def gamma_and_beta_swapped(t: Terms) -> dict[str, Any]:
    """The gradients of weight and bias are handed back in each other's place."""
    return {"dgamma": t.dy.sum(0), "dbeta": (t.dy * t.xhat).sum(0)}


@bug_report("deepspeedai/DeepSpeed#692", "2021-01-26", "xhat with gamma of another index, tile 32")
def gamma_of_the_thread(t: Terms) -> dict[str, Any]:
    """xhat is (y − beta)/gamma, with the gamma of the thread's row in the tile in place of the column's."""
    other = t.gamma[0, np.arange(len(t.dy)) % 32 % t.gamma.size][:, None]
    return {"dgamma": (t.dy * (t.xhat * t.gamma / other)).sum(0)}


@bug_report("BobMcDear/attorch#18", "2026-08-11", "last part of",
         shapes=lambda rng: ((8 * int(rng.integers(4, 12)) + int(rng.integers(2, 8)),), (32,)))  # fmt: skip
def last_block_dropped(t: Terms) -> dict[str, Any]:
    """Buffers for M // 8 blocks of rows, but ⌈M / 8⌉ blocks: the last block's sums go elsewhere."""
    M = len(t.dy)
    return sums(t, np.arange(M) < (M // 8 * 8 or M))


@bug_report("pytorch/pytorch#183861", "2026-05-15", "part of the columns of dgamma", shapes=two_tiles)
def half_of_the_columns(t: Terms) -> dict[str, Any]:
    """Blocks of 64 columns on hardware with warps of 32: half of each block is never stored."""
    stored = np.arange(t.dy.shape[1]) % 64 < 32
    return {"dgamma": (t.dy * t.xhat).sum(0) * stored, "dbeta": t.dy.sum(0) * stored}


@bug_report(
    "pytorch/pytorch#178663", "2026-03-27", "dy·xhat of columns j and j^1 for dy·xhat in dgamma", shapes=two_tiles
)
def two_columns_added(t: Terms) -> dict[str, Any]:
    """A reduction over 64 lanes where a column has 32: two columns are added together (a GroupNorm)."""
    both = np.arange(t.dy.shape[1]) ^ 1
    dgamma, dbeta = (t.dy * t.xhat).sum(0), t.dy.sum(0)
    return {"dgamma": dgamma + dgamma[both], "dbeta": dbeta + dbeta[both]}


@bug_report("meta-pytorch/tritonbench#1266", "2026-09-14", "part of the rows in the column sums", shapes=few_wide_rows)
def partial_sums_overwritten(t: Terms) -> dict[str, Any]:
    """A lock is released before all warps have stored: the next holder overwrites some rows' sums."""
    lost = np.random.default_rng(len(t.dy)).random(len(t.dy)) < 0.3
    lost[0] = True
    return sums(t, ~lost)


@bug_report("ml-explore/mlx#941", "2024-04-01", "dx for dy in dbeta")
def dbeta_of_a_donated_buffer(t: Terms) -> dict[str, Any]:
    """dx is written into dy's memory, which is then summed for dbeta."""
    return {"dbeta": dx_of(t).sum(0)}


@bug_report("pytorch/pytorch#18233", "2019-03-20", "dy·xhat·γ for dy·xhat in dgamma")
def gamma_in_its_own_gradient(t: Terms) -> dict[str, Any]:
    """dy is multiplied by the weight first, and then used for the weight's gradient too."""
    return {"dgamma": (t.dxhat * t.xhat).sum(0)}


@bug_report("Oneflow-Inc/oneflow#10561", "2024-11-10", "part of the rows in the column sums",
         shapes=lambda rng: ((2 * int(rng.integers(34, 45)),), (int(rng.integers(24, 48)),)))  # fmt: skip
def one_of_two_devices(t: Terms) -> dict[str, Any]:
    """Rows are split over two devices, and the column sums are taken for split too, not for partial sums."""
    return sums(t, np.arange(len(t.dy)) < (len(t.dy) + 1) // 2)


@bug_report("ooples/AiDotNet.Tensors#390", "2026-05-19", "sums added twice")
def added_to_what_was_there(t: Terms) -> dict[str, Any]:
    """+= into a buffer that has the sums of the last call; here the last call was the same."""
    return sums(t, np.full(len(t.dy), 2))


@bug_report("karpathy/llm.c#476", "2024-05-27", "bfloat16 sums", dtype="bfloat16",
         shapes=lambda rng: ((int(rng.integers(500, 700)),), (int(rng.integers(24, 48)),)))  # fmt: skip
def atomics_in_bfloat16(t: Terms) -> dict[str, Any]:
    """dweight and dbias are added up in bfloat16."""
    import ml_dtypes

    totals = np.zeros((2, t.dy.shape[1]), ml_dtypes.bfloat16)
    for row in np.stack([t.dy * t.xhat, t.dy], axis=1):
        totals = (totals.astype(np.float32) + row).astype(ml_dtypes.bfloat16)
    return {"dgamma": totals[0].astype(np.float32), "dbeta": totals[1].astype(np.float32)}


@bug_report("linkedin/Liger-Kernel#950", "2025-11-23", "products rounded to bfloat16", standard="stat", dtype="bfloat16",
         gamma_dtype="float32", output_dtypes={"dx": "bfloat16", "dgamma": "float32", "dbeta": "float32"},
         shapes=lambda rng: ((int(rng.integers(100, 200)),), (int(rng.integers(24, 48)),)))  # fmt: skip
def products_in_bfloat16(t: Terms) -> dict[str, Any]:
    """x·rstd and its product with dy are bfloat16 before they are summed (an RMSNorm)."""
    import ml_dtypes

    xhat = t.xhat.astype(ml_dtypes.bfloat16).astype(np.float32)
    return {"dgamma": (t.dy * xhat).astype(ml_dtypes.bfloat16).astype(np.float32).sum(0)}
