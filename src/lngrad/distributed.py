"""Normalization over several processes: DTensor rules for lngrad's operators, and column sums with fixed bits.

Importing this registers the rules; lngrad.torch does so by itself when the first DTensor comes.
"""

from lngrad.cpu.cut_rows import segment_borders
from lngrad.errors import PeerError
from lngrad.torch.sharded import rules as _rules  # noqa: F401  # registers them
from lngrad.torch.sharded.columns import all_reduce_columns

__all__ = ["PeerError", "all_reduce_columns", "segment_borders"]
