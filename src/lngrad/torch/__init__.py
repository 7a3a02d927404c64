"""LayerNorm for PyTorch: functions, a module, and ways to bring lngrad into a model that knows nothing of it.

>>> from lngrad.torch import override, patch            # doctest: +SKIP
>>> patch(model)                                        # every nn.LayerNorm of a model, in place
>>> with override():                                    # or torch's own kernels on the CPU, for whatever runs
...     train(model)
"""

from lngrad.core.fallbacks import counts as fallbacks
from lngrad.torch import version as _version  # noqa: F401  # first: it says what is missing
from lngrad.torch.aten import disable, enable, override
from lngrad.torch.functions import LayerNorm, layer_norm, layer_norm_backward
from lngrad.torch.memory import empty_cache
from lngrad.torch.patching import patch, unpatch

__all__ = [
    "LayerNorm",
    "disable",
    "empty_cache",
    "enable",
    "fallbacks",
    "layer_norm",
    "layer_norm_backward",
    "override",
    "patch",
    "unpatch",
]
