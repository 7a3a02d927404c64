"""LayerNorm and RMSNorm, forward and backward: float32 sums rounded once, the same bits with any number of threads."""

from lngrad.api import layer_norm, layer_norm_backward, rms_norm, rms_norm_backward
from lngrad.core.error_bound import ErrorBound, error_bound
from lngrad.core.memory import empty_cache
from lngrad.core.plan import Backend, backends, register_backend
from lngrad.core.problem import Forward, ForwardWithTotal, GatedGrads, Grads, RmsForward, RmsGrads
from lngrad.core.threads import get_num_threads, set_num_threads

__version__ = "0.1.0"

# In order of preference: where the plan is made, what must be installed, which devices are served.
register_backend("numba_cpu", Backend("lngrad.cpu.plan", ("numba",), ("cpu",), prebuilt="lngrad.cpu.prebuilt"))
register_backend("numpy_cpu", Backend("lngrad.core.numpy_backend", (), ("cpu",)))
register_backend("triton_gpu", Backend("lngrad.gpu.plan", ("triton", "torch"), ("cuda",)))
register_backend(
    "ascend_sim", Backend("lngrad_ascend.simulated_backend", ("lngrad_ascend",), ("cpu",), contextual=True)
)

__all__ = [
    "ErrorBound",
    "Forward",
    "ForwardWithTotal",
    "GatedGrads",
    "Grads",
    "RmsForward",
    "RmsGrads",
    "backends",
    "empty_cache",
    "error_bound",
    "get_num_threads",
    "layer_norm",
    "layer_norm_backward",
    "rms_norm",
    "rms_norm_backward",
    "set_num_threads",
]
