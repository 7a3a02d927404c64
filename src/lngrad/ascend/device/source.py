"""Where in a kernel an instruction stands: the first frame outside the simulator."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import FrameType

from lngrad.ascend.faults import AscendWarning

__all__ = ["kernel_frame", "warn_at_kernel"]

_ASCEND = Path(__file__).parents[1]
_INSIDE = tuple(f"{_ASCEND / folder}" for folder in ("device", "tile"))
_KERNELS = (f"{_ASCEND / 'tile' / 'backward_kernel.py'}",)  # kernels that live in these folders


def kernel_frame() -> FrameType:
    """Return the innermost frame that does not belong to the simulator: the line of the kernel."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_INSIDE) or file in _KERNELS:
            return frame
        frame = frame.f_back
    return frame


def warn_at_kernel(text: str) -> None:
    """Give an AscendWarning at the line of the kernel."""
    frame = kernel_frame()
    warnings.warn_explicit(
        text,
        AscendWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
