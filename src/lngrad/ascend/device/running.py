"""Where in a kernel something happens: its line, and what a fault says about an instruction."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import CodeType, FrameType
from typing import Union

from lngrad.ascend.faults import AscendWarning

# A place in Python code, to be turned into a line only when a fault needs it, or a file and a line.
Site = Union[tuple[CodeType, int], tuple[str, int]]  # noqa: UP007  # an alias is evaluated, on Python 3.10 too

# (name, pipe, core, site): what a fault says about an instruction. A plain tuple, for every
# instruction makes one.
Instruction = tuple[str, int, int, Site]
NOBODY: Instruction = ("nothing", 0, 0, ("", 0))

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


def caller(depth: int = 2) -> Site:
    """Return where the caller of the function that calls this stands: the line of a kernel."""
    frame = sys._getframe(depth)
    return frame.f_code, frame.f_lasti


def kernel_site() -> Site:
    """Return where ``kernel_frame`` stands."""
    frame = kernel_frame()
    return frame.f_code, frame.f_lasti


def site_text(site: Site) -> str:
    """Return ``file:line`` of a site."""
    where, place = site
    if isinstance(where, str):
        return f"{os.path.basename(where)}:{place}" if where else "unknown place"
    line = next(
        (line for start, stop, line in where.co_lines() if start <= place < stop and line), where.co_firstlineno
    )
    return f"{Path(where.co_filename).name}:{line}"


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
