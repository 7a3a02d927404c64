"""Where lngrad keeps what outlives a process: compiled code, and what `lngrad info` says of the last run.

Compiled code is kept by `keep` and found by `kept`, whoever compiled it. A file's name says all that it depends on, and it ends
with a digest of that name and of itself: one that is cut off, changed or of another name is as if it were not there. A folder
in which somebody else can write is not used.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import warnings
from pathlib import Path

_DIGEST_BYTES = 32


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
    return _others_in(found)


def _others_in(found: os.stat_result) -> str | None:
    """Who but this user (and root) can write to a file or folder, None if nobody."""
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & stat.S_IWOTH:
        return "every user can write there"
    if found.st_mode & stat.S_IWGRP:  # also one's own: others may be in it
        return f"group {found.st_gid} can write there"
    return None


def trusted_folder() -> Path | None:
    """The cache folder, or None where there is none or, with a warning, where code from it must not be run."""
    try:
        folder = cache_folder()
    except RuntimeError:
        return None
    reason = distrust(folder)
    if reason is None:
        return folder
    warnings.warn(f"cache: {folder} is not used: {reason}", stacklevel=3)
    return None


def kept(path: Path, *, installed: bool = False) -> bytes | None:
    """The content of a file that `keep` wrote; None if it is not there, not whole, or one that somebody else can write.

    Args:
        path: The file.
        installed: Whether it came with the package, whose files may be those of whoever installed it.
    """
    try:
        with path.open("rb") as file:
            if not installed and hasattr(os, "geteuid") and _others_in(os.fstat(file.fileno())) is not None:
                return None
            content = file.read()
    except OSError:
        return None
    content, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return content if _digest(path, content) == digest else None


def keep(path: Path, content: bytes) -> None:
    """Write a file with its digest behind it, which a system's loader passes over.

    Raises:
        OSError: It can't be written; nothing is left behind.
    """
    write_whole(path, content + _digest(path, content))


def _digest(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\0" + content).digest()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that nobody ever reads half of: under another name in its folder, which is made if need be, then renamed.

    Raises:
        OSError: It can't be written; nothing is left behind.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        draft.write_bytes(content)
        draft.chmod(0o644)  # whatever the umask: what others can write is not read again
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
