"""Which template CANN would run for a graph op: its tiling's choice, as a table. Nothing here
computes gradients.

Source: layer_norm_grad_tiling_*.cpp, layer_norm_grad_v3_tiling_*.cpp of CANN's ops-nn, as published
in 2026-11.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from lngrad.ascend import soc as socs
from lngrad.ascend.graph.layer_norm_grad import ALL, GraphOp
from lngrad.ascend.graph.rules import DTYPE_ROWS, DtypeLike, check_mask, dtype_name
from lngrad.errors import BackendUnavailable, DtypeError, ShapeError


class Strategy(NamedTuple):
    """A template's name, and the tiling key that selects it in the kernel."""

    template: str
    tiling_key: int


# The register-based architecture, 3510. Rows are M, normalized elements N; all limits exclude their
# number.
BLOCK_BYTES = 32
TRANSPOSE_ROWS = 256  # N no longer than a block. That it fits the Unified Buffer is taken for granted: rows are short
GRAD_BIG_M = (2048, 1024)  # M above, N below
V3_BIG_M = (4096, 512)
V3_SUMS_CORES, V3_SUMS_BIG_M = 56, ((1792, 512), (8192, 1024))  # where pd_gamma or pd_beta is wanted
BIG_N_ROWS, BIG_N_COLUMNS = 512, 8192

# Atlas A2 and A3, LayerNormGradV3: key = template·100 + deterministic·10 + dtype; deterministic is
# always 1.
SINGLE_READ_COLUMNS, TRANSPOSE_COLUMNS, SHORT_COLUMNS = (768, 12176), 64, 768
TEMPLATES = {"SINGLE_READ": 1, "WORKSPACE": 2, "TRANSPOSE": 3, "COMMON": 4}
DTYPE_KEYS = {
    ("float32", "float32"): 1,
    ("float16", "float16"): 2,
    ("float16", "float32"): 3,
    ("bfloat16", "bfloat16"): 4,
    ("bfloat16", "float32"): 5,
}

REGISTERED = {"LayerNormGrad": "Ascend950", "LayerNormGradV3": "Ascend910B, Ascend910_93, Ascend950 and Ascend350"}


def strategy(
    op: GraphOp | str,
    shape: Sequence[int],
    dtype: DtypeLike,
    soc: str | socs.Soc | None = None,
    *,
    gamma_dtype: DtypeLike | None = None,
    normalized: int = 1,
    output_mask: Sequence[bool] = ALL,
) -> Strategy:
    """Return which template and tiling key CANN would choose.

    Args:
        op: LayerNormGrad or LayerNormGradV3, or the name of one.
        shape: Of x; on the register-based architecture dimensions may be empty.
        dtype: Of x: float32, float16 or bfloat16.
        soc: A SoC's name or row; None for this thread's.
        gamma_dtype: float32 or x's; None for x's.
        normalized: How many last dimensions of shape gamma has.
        output_mask: Which outputs are wanted.

    Raises:
        BackendUnavailable: The op is not registered for the SoC.
        ShapeError, DtypeError: The shape has too few or empty dimensions; the dtypes are no row of
            the op's table.
    """
    name = op if isinstance(op, str) else getattr(op, "name", op)
    if name not in REGISTERED:
        raise BackendUnavailable(f"op: expected LayerNormGrad or LayerNormGradV3, got {name!r}")
    sizes, row, mask = tuple(shape), socs.get(soc), check_mask(output_mask)
    if not 1 <= normalized <= len(sizes) or any(size < (0 if row.regbase else 1) for size in sizes):
        raise ShapeError(f"shape: expected at least {normalized} dimensions, none of them empty, got {sizes}")
    dtypes = dtype_name(dtype), dtype_name(dtype if gamma_dtype is None else gamma_dtype)
    if dtypes not in {known[:2] for known in DTYPE_ROWS}:
        raise DtypeError(f"dtype, gamma_dtype: expected a row of the op's table, got {dtypes[0]} with {dtypes[1]}")
    M, N = math.prod(sizes[:-normalized]), math.prod(sizes[-normalized:])
    row_bytes = N * (4 if dtypes[0] == "float32" else 2)
    if row.regbase and (name == "LayerNormGradV3" or row.name == "Ascend950"):
        return _regbase(name, M, N, row_bytes, any(mask[1:]) and row.vector_cores >= V3_SUMS_CORES)
    if row.arch == 2201 and name == "LayerNormGradV3":
        return _atlas_a2(N, row_bytes, dtypes)
    raise BackendUnavailable(f"op: {name} is registered for {REGISTERED[name]} only, got {row.name}")


def _regbase(name: str, M: int, N: int, row_bytes: int, sums_on_many_cores: bool) -> Strategy:
    if M == 0 or N == 0:
        return Strategy("EMPTY_REGBASE", 900)
    if row_bytes <= BLOCK_BYTES and M > TRANSPOSE_ROWS:
        return Strategy("TRANSPOSE_REGBASE", 800)
    limits = [GRAD_BIG_M] if name == "LayerNormGrad" else [V3_BIG_M, *(V3_SUMS_BIG_M if sums_on_many_cores else ())]
    if any(rows < M and columns > N for rows, columns in limits):
        return Strategy("GROUPED_REDUCE_BIG_M", 600)
    if M < BIG_N_ROWS and N > BIG_N_COLUMNS:
        return Strategy("GROUPED_REDUCE_BIG_N", 700)
    return Strategy("RECOMPUTE", 500)


def _atlas_a2(N: int, row_bytes: int, dtypes: tuple[str, str]) -> Strategy:
    least, most = SINGLE_READ_COLUMNS
    if least <= N <= most:
        template = "SINGLE_READ"
    elif N <= TRANSPOSE_COLUMNS and row_bytes % BLOCK_BYTES:
        template = "TRANSPOSE"
    elif N <= SHORT_COLUMNS:
        template = "COMMON"
    else:
        template = "WORKSPACE"
    return Strategy(template, 100 * TEMPLATES[template] + 10 + DTYPE_KEYS[dtypes])
