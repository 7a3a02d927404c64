"""Arguments as torch tensors where Triton's kernels run: on the GPU, or on the CPU with Triton's interpreter."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from lngrad.core.dtypes import to_torch
from lngrad.errors import BackendUnavailable


def require_triton() -> None:
    """Turn Triton's interpreter on where there is no GPU.

    Raises:
        BackendUnavailable: There is no torch or no Triton, or Triton was imported before, to compile.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise BackendUnavailable(f"--impl: triton needs {error.name}, which is not installed") from None
    if not torch.cuda.is_available():
        if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
            raise BackendUnavailable(
                "--impl: triton: there is no GPU, and Triton is imported without TRITON_INTERPRET=1"
            )
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        import triton  # noqa: F401
    except ModuleNotFoundError as error:
        raise BackendUnavailable(f"--impl: triton needs {error.name}, which is not installed") from None


def on_device(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arrays as tensors on the GPU, or on the CPU where there is none; everything else as it is."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {
        name: to_torch(np.require(one, requirements=["C", "W"])).to(device) if isinstance(one, np.ndarray) else one
        for name, one in arguments.items()
    }


def quiet() -> AbstractContextManager[Any]:
    """Triton's interpreter computes with NumPy, which warns of NaN and infinity where a GPU says nothing."""
    return np.errstate(all="ignore")
