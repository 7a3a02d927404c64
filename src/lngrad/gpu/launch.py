"""Launching a Triton kernel on the current stream of a device, without looking everything up at every call.

`kernel[grid](...)` binds, specializes and hashes all arguments each time. What it returns, the compiled kernel, can be launched
with a grid too, as `warmup` is used in Triton's own tutorials; it is kept here by all that the specialization depends on.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from lngrad.core.bounded_cache import BoundedCache
from lngrad.gpu import kernels

_MOST = 4096  # compiled kernels that are remembered
_compiled: BoundedCache[Hashable, tuple[Any, tuple[Any, ...]]] = BoundedCache(_MOST)


def on_device(tensor: Any) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def launch(kernel: Any, programs: int, named: Mapping[str, Any], warps: int, **constants: Any) -> None:
    """Launch a kernel.

    Args:
        kernel: From kernels.triton_gpu, whose whole numbers are annotated or not specialized.
        programs: How many; the grid has one axis.
        named: Its run-time arguments; those that it does not have are passed over.
        warps: 32 threads each, of a program.
        constants: Its compile-time arguments; those that it does not have are passed over.
    """
    arguments = tuple([named[name] for name in kernel.arg_names if name in named])
    constants = {name: constants[name] for name in kernel.arg_names[len(arguments) :]}
    if kernels.INTERPRETED:
        kernel[(programs,)](*arguments, **constants)
        return
    device = torch.cuda.current_device()
    key = kernel, device, warps, tuple(map(_specialized, arguments)), tuple(constants.values())
    # On ROCm a kernel also depends on whether a tensor's storage is below 2 GB; there Triton looks it up itself.
    known = _compiled.get(key) if torch.version.hip is None else None
    if known is None:
        # Said here, since Triton's default for the fusion of products and sums is about to change, and with it all bits.
        compiled = kernel[(programs,)](*arguments, **constants, num_warps=warps, enable_fp_fusion=True)
        _compiled.keep(key, (compiled, tuple(constants.values())))
        return
    compiled, tail = known
    compiled[(programs, 1, 1)](*arguments, *tail)


def _specialized(argument: Any) -> Any:
    """What Triton compiles into a kernel: a tensor's dtype and whether it lies on 16 bytes; that there is no tensor."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return argument is None
