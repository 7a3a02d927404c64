"""LayerNorm and RMSNorm for PyTorch: functions, modules, and ways to bring lngrad into a model that knows nothing of it.

>>> from lngrad.torch import override, patch            # doctest: +SKIP
>>> patch(model)                                        # the norms of a model, in place
>>> with override():                                    # or torch's own kernels on the CPU, for whatever runs
...     train(model)
"""

from lngrad.errors import install_command

# First of all, and not at the first call that misses something: which torch is needed.
try:
    import torch
except ImportError as reason:
    raise ImportError(f"lngrad.torch: expected torch 2.10 or later, got none: {install_command('torch')}") from reason
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
    raise ImportError(f"lngrad.torch: expected torch 2.10 or later, got {torch.__version__}")

from lngrad.core.fallbacks import counts as fallbacks
from lngrad.torch.aten import disable, enable, override
from lngrad.torch.derivatives import register_rules
from lngrad.torch.functions import (
    LayerNorm,
    RMSNorm,
    add_layer_norm,
    add_rms_norm,
    gated_rms_norm,
    layer_norm,
    layer_norm_backward,
    modulated_layer_norm,
    rms_norm,
)
from lngrad.torch.memory import empty_cache
from lngrad.torch.operators import register_code_generator
from lngrad.torch.patching import patch, register_norm, unpatch
from lngrad.torch.trial import Formula

__all__ = [
    "Formula",
    "LayerNorm",
    "RMSNorm",
    "add_layer_norm",
    "add_rms_norm",
    "disable",
    "empty_cache",
    "enable",
    "fallbacks",
    "layer_norm",
    "layer_norm_backward",
    "gated_rms_norm",
    "modulated_layer_norm",
    "override",
    "patch",
    "register_norm",
    "rms_norm",
    "unpatch",
]

register_rules("torch.distributed.tensor", "DTensor", "lngrad.torch.sharded.rules")
register_code_generator("torch._inductor.compile_fx", "lngrad.torch.inductor")
