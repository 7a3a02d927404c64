"""Which torch lngrad.torch needs: said at once, and not at the first call that misses something."""

try:
    import torch
except ImportError as reason:
    raise ImportError("lngrad.torch: expected torch 2.13 or later, got none: pip install 'lngrad[torch]'") from reason
if not hasattr(torch.library, "get_kernel"):
    raise ImportError(f"lngrad.torch: expected torch 2.13 or later, got {torch.__version__}")
