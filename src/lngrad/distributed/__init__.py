"""Layer normalization over several processes: DTensor rules for lngrad's operators, and column sums with fixed bits.

Importing this registers the rules. lngrad.torch imports it when the first DTensor comes.
"""

from lngrad.distributed import rules as _rules  # noqa: F401  # registers them
from lngrad.distributed.columns import all_reduce_columns
from lngrad.errors import PeerError

__all__ = ["PeerError", "all_reduce_columns"]
