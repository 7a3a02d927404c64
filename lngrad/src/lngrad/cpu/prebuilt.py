"""Kernels that the package brings compiled: for each of `processors.PROCESSORS` a shared library, in wheels for Linux.

scripts/prebuilt.py makes them. A function's name in a library has a hash of the sources and of the processor in it, and a file
ends with a digest of itself: a library that is cut off, of another processor or of other sources is as if it were not there.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from lngrad.cpu.cache import SETTINGS, sources
from lngrad.cpu.processors import Processor, fitting
from lngrad.support.cache_folder import kept

FOLDER = Path(__file__).parent / "prebuilt"
INSTALL = "pip install 'lngrad[numba]'"
_FORCED = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")


def symbol(kernel: str, of: Processor) -> str:
    """The name that a kernel's function has in a library.

    Args:
        kernel: Its name with those of its dtypes.
        of: The processor that it is compiled for.
    """
    return f"lngrad_{kernel}_{_made_of(of.name)[:32]}"


@cache
def _made_of(name: str) -> str:
    return hashlib.sha256(b"\0".join([name.encode(), *sources()])).hexdigest()


@cache
def library() -> tuple[Path, Processor] | str:
    """The library for this processor with what it was compiled for, or why there is none."""
    if forced := [name for name in _FORCED if name in SETTINGS]:
        return f"{forced[0]} is set"
    if not FOLDER.is_dir():
        return "this installation was not made from a wheel that has them"
    here = [(FOLDER / f"{processor.name}.so", processor) for processor in fitting()]
    path, processor = next((found for found in here if found[0].exists()), (None, None))
    if path is None or processor is None:
        return "this processor can run none of those in the package"
    content = kept(path, installed=True)
    if content is None:
        return f"{path} is not whole"
    if symbol("begin", processor).encode() not in content:
        return f"{path} is of other sources"
    return path, processor


def why_not() -> str | None:
    """Why there are no compiled kernels for this processor in the package, None if there are."""
    found = library()
    return found if isinstance(found, str) else None
