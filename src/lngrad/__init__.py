"""Layer-normalization gradients that are exact, fast and the same everywhere."""

from lngrad.api import layer_norm, layer_norm_backward
from lngrad.core.memory import empty_cache
from lngrad.core.plan import backends
from lngrad.core.problem import Forward, Grads
from lngrad.core.threads import get_num_threads, set_num_threads

__version__ = "0.1.0"

__all__ = [
    "Forward",
    "Grads",
    "backends",
    "empty_cache",
    "get_num_threads",
    "layer_norm",
    "layer_norm_backward",
    "set_num_threads",
]
