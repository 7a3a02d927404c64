"""Where lngrad keeps what outlives a process: compiled kernels, and what `lngrad info` says of the last run."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/lngrad` or `~/.cache/lngrad`; it need not be there.

    Raises:
        RuntimeError: There is no home directory.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lngrad"


def distrust(folder: Path) -> str | None:
    """Why code from a folder must not be run: somebody else can write there. None if it may, or there is no such folder."""
    if not hasattr(os, "geteuid"):
        return None
    try:
        found = folder.stat()
    except OSError:
        return None
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & stat.S_IWOTH:
        return "every user can write there"
    if found.st_mode & stat.S_IWGRP and found.st_gid != os.getegid():
        return f"group {found.st_gid} can write there"
    return None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that nobody ever reads half of: under another name in its folder, which is made if need be, then renamed.

    Raises:
        OSError: It can't be written; nothing is left behind.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
