"""Which template CANN would run for a graph op: its tiling's choice, as a table. Nothing here computes gradients.

Sources: layer_norm_grad_tiling_*.cpp, layer_norm_grad_v3_tiling_*.cpp of CANN's ops-nn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from lngrad.ascend import soc as socs
from lngrad.ascend.graph.rules import DTYPE_ROWS, dtype_name
from lngrad.errors import BackendUnavailable, DtypeError, ShapeError

__all__ = ["Strategy", "strategy"]


class Strategy(NamedTuple):
    """A template's name, and the tiling key that selects it in the kernel."""

    template: str
    tiling_key: int


# Ascend 950, both ops.
BIG_M_ROWS, BIG_N_ROWS, BIG_N_COLUMNS = 4096, 512, 8192
BIG_M_COLUMNS = {"LayerNormGrad": 528, "LayerNormGradV3": 512}

# Atlas A2 and A3, LayerNormGradV3: key = template·100 + deterministic·10 + dtype; deterministic is always 1.
SINGLE_READ_COLUMNS, TRANSPOSE_COLUMNS, SHORT_COLUMNS = (768, 12176), 64, 768
TEMPLATES = {"SINGLE_READ": 1, "WORKSPACE": 2, "TRANSPOSE": 3, "COMMON": 4}
DTYPE_KEYS = {
    ("float32", "float32"): 1,
    ("float16", "float16"): 2,
    ("float16", "float32"): 3,
    ("bfloat16", "bfloat16"): 4,
    ("bfloat16", "float32"): 5,
}
BLOCK_BYTES = 32


def strategy(
    op: Any, shape: Sequence[int], dtype: Any, soc: str | socs.Soc | None = None, *, gamma_dtype: Any = None,
    normalized: int = 1,
) -> Strategy:  # fmt: skip
    """Tell which template and tiling key CANN would choose.

    Args:
        op: LayerNormGrad or LayerNormGradV3, or the name of one.
        shape: of x.
        dtype: of x: float32, float16 or bfloat16.
        soc: a SoC's name or row; None for this thread's.
        gamma_dtype: float32 or x's; None for x's.
        normalized: how many last dimensions of shape gamma has.

    Raises:
        BackendUnavailable: the op is not registered for the SoC.
        ShapeError, DtypeError: the shape has too few or empty dimensions; the dtypes are no row of the op's table.
    """
    name = getattr(op, "name", op)
    if name not in BIG_M_COLUMNS:
        raise BackendUnavailable(f"op: expected LayerNormGrad or LayerNormGradV3, got {name!r}")
    sizes, row = tuple(shape), socs.get(soc)
    if not 1 <= normalized <= len(sizes) or any(size < 1 for size in sizes):
        raise ShapeError(f"shape: expected at least {normalized} dimensions, none of them empty, got {sizes}")
    dtypes = dtype_name(dtype), dtype_name(dtype if gamma_dtype is None else gamma_dtype)
    if dtypes not in {known[:2] for known in DTYPE_ROWS}:
        raise DtypeError(f"dtype, gamma_dtype: expected a row of the op's table, got {dtypes[0]} with {dtypes[1]}")
    M, N = math.prod(sizes[:-normalized]), math.prod(sizes[-normalized:])
    if row.arch == 3510:
        return _ascend950(name, M, N)
    if row.arch == 2201 and name == "LayerNormGradV3":
        return _atlas_a2(N, dtypes)
    registered = "Ascend950" if name == "LayerNormGrad" else "Ascend910B, Ascend910_93 and Ascend950"
    raise BackendUnavailable(f"op: {name} is registered for {registered} only, got {row.name}")


def _ascend950(name: str, M: int, N: int) -> Strategy:
    if M > BIG_M_ROWS and N in range(BIG_M_COLUMNS[name]):
        return Strategy("GROUPED_REDUCE_BIG_M", 600)
    if M < BIG_N_ROWS and N > BIG_N_COLUMNS:
        return Strategy("GROUPED_REDUCE_BIG_N", 700)
    return Strategy("RECOMPUTE", 500)


def _atlas_a2(N: int, dtypes: tuple[str, str]) -> Strategy:
    least, most = SINGLE_READ_COLUMNS
    row_bytes = N * (4 if dtypes[0] == "float32" else 2)
    if least <= N <= most:
        template = "SINGLE_READ"
    elif N <= TRANSPOSE_COLUMNS and row_bytes % BLOCK_BYTES:
        template = "TRANSPOSE"
    elif N <= SHORT_COLUMNS:
        template = "COMMON"
    else:
        template = "WORKSPACE"
    return Strategy(template, 100 * TEMPLATES[template] + 10 + DTYPE_KEYS[dtypes])
