"""Where lngrad keeps what outlives a process: compiled code, and what `lngrad info` says of the last run.

Compiled code is kept by `keep` and found by `kept`, whoever compiled it. A file's name says all that it depends on, and it ends
with a digest of that name and of itself: one that is cut off, changed or of another name is as if it were not there. A folder
in which somebody else can write is not used.
"""

from __future__ import annotations

import hashlib
import os
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from time import time

from lngrad.support.trust import anybody_can_make, distrust, others_in

_DIGEST_BYTES = 32
_KEPT_SECONDS = 30 * 86400  # since a file was last used
_NOTED_SECONDS = 86400  # between two notes of that


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/lngrad` or `~/.cache/lngrad`; it need not be there.

    Raises:
        RuntimeError: There is no home directory.
    """
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen) / "lngrad"
    home = Path.home()
    if os.environ.get("HOME") == "" or not home.is_dir():
        raise RuntimeError("expected a home directory, found none")
    return home / ".cache" / "lngrad"


def trusted_folder(*, warns: bool = True) -> Path | None:
    """The cache folder, made where others could make it; None without one or, with a warning, where others can write."""
    try:
        folder = cache_folder()
    except RuntimeError:
        return None
    reason = distrust(folder)
    if reason is None and anybody_can_make(folder):
        with suppress(OSError):
            _make(folder)
        reason = distrust(folder)  # somebody else may have made it
    if reason is None:
        return folder
    if warns:
        warnings.warn(f"cache: {folder} is not used: {reason}", stacklevel=3)
    return None


def _make(folder: Path) -> None:
    """Make a folder and those above it, for this user alone."""
    for place in (*reversed(folder.parents), folder):
        if not place.is_dir():
            place.mkdir(mode=0o700, exist_ok=True)


def kept(path: Path, *, installed: bool = False) -> bytes | None:
    """The content of a file that `keep` wrote; None if it is not there, not whole, or one that somebody else can write.

    Args:
        path: The file.
        installed: Whether it came with the package, whose files may be those of whoever installed it.
    """
    try:
        with path.open("rb") as file:
            if not installed and hasattr(os, "geteuid") and others_in(os.fstat(file.fileno())) is not None:
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


def mark_used(file: Path) -> None:
    """Note by a file's time that it is in use, once a day."""
    with suppress(OSError):
        if time() - file.stat().st_mtime > _NOTED_SECONDS:
            os.utime(file)


def remove_unused(file: Path, pattern: str) -> None:
    """Remove the files beside `file`, of a pattern, that nobody used for long: other versions of lngrad have theirs there."""
    with suppress(OSError):
        for other in file.parent.glob(pattern):
            if other != file and other.stat().st_mtime < time() - _KEPT_SECONDS:
                other.unlink(missing_ok=True)


def _digest(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\0" + content).digest()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that nobody ever reads half of: under another name in its folder, which is made if need be, then renamed.

    Raises:
        OSError: It can't be written; nothing is left behind.
    """
    _make(path.parent)
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        draft.unlink(missing_ok=True)  # of a killed process with this number
        with open(draft, "xb", opener=_private) as file:
            file.write(content)
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), 0o644)  # whatever the umask: what others can write is not read again
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
