"""Where lngrad keeps what outlives a process: compiled kernels, and what `lngrad info` tells of the last run."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/lngrad` or `~/.cache/lngrad`; it need not be there.

    Raises:
        RuntimeError: There is no home directory.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lngrad"
