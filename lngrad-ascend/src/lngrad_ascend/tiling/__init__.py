"""Host-side tiling of the three tile APIs: for op authors and ``lngrad tiling``.

The functions return what CANN's host functions return through references, and refuse what those only log::

    largest, smallest = GetLayerNormGradMaxMinTmpSize([2, 32, 16, 16], 4, False)
    tiling = GetLayerNormGradNDTilingInfo([2, 32, 16, 16], smallest, 4, False)
    report = lint("LayerNormGrad", [2, 32, 16], "float")
"""

from __future__ import annotations

# ruff: noqa: F403, F405 - the names are listed once, below
from lngrad_ascend.tiling.host_functions import *
from lngrad_ascend.tiling.lint import *
from lngrad_ascend.tiling.structs import *

__all__ = [
    "GetLayerNormMaxMinTmpSize", "GetLayerNormNDTilingInfo", "GetLayerNormGradMaxMinTmpSize",
    "GetLayerNormGradNDTilingInfo", "GetLayerNormGradBetaMaxMinTmpSize", "GetLayerNormGradBetaNDTilingInfo",
    "LayerNormTiling", "LayerNormSeparateTiling", "LayerNormGradTiling", "LayerNormGradBetaTiling", "TilingStruct",
    "TilingReport", "lint", "safe_stack_bytes", "sweep",
]  # fmt: skip
