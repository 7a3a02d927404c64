"""Where compiled kernels are kept between processes, and when they are stale.

A kernel is one object file, named by all that it depends on, and behind a digest of itself: one that is not whole is as
if it were not there, and one that can't be written is not kept. The folder is `$XDG_CACHE_HOME/lngrad` or
`~/.cache/lngrad`; where it can't be written, kernels are compiled anew per process. Nothing here imports Numba.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from lngrad.core import column_tree
from lngrad.core.cache_folder import cache_folder
from lngrad.core.machine import processor_identity

_HERE = Path(__file__).parent
_SOURCES = (  # what is compiled, and what compiles it; the column tree's CHUNK is compiled in
    *sorted((_HERE / "kernels").glob("*.py")),
    _HERE / "compiling.py",
    _HERE / "jobs.py",
    Path(column_tree.__file__),
)


def _writable(folder: Path | None) -> bool:
    if folder is None:
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _versions() -> list[str]:
    """The compilers' distributions, such as numba-0.68.1.dist-info: importlib.metadata takes twenty times as long."""
    found = [sys.implementation.cache_tag or ""]
    for name in ("numba", "llvmlite"):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            found += sorted(path.name for path in Path(spec.origin).parents[1].glob(f"{name}-*-info"))
    return found


def _stamp() -> str:
    """A hash of the kernels' sources and of what compiles them."""
    digest = hashlib.sha256("\n".join(_versions()).encode())
    for source in _SOURCES:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _target() -> str:
    """What Numba compiles for: this processor, unless its environment variables say something else."""
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_"))
    return "\n".join([processor_identity(), *settings])


def _folder() -> Path | None:
    try:
        return cache_folder()
    except RuntimeError:  # no home directory
        return None


FOLDER = _folder()
STAMP = _stamp()
TARGET = _target()
ENABLED = _writable(FOLDER)


def path(kernel: str) -> Path:
    """The file of a kernel."""
    assert FOLDER is not None, "asked where ENABLED only"
    depends_on = hashlib.sha256(repr((kernel, STAMP, TARGET)).encode())
    return FOLDER / f"{kernel}-{STAMP[:8]}-{depends_on.hexdigest()[:16]}.kernel"


def load(kernel: str) -> bytes | None:
    """The object file of a kernel, or None where none is kept."""
    return read(path(kernel)) if ENABLED else None


def read(file: Path) -> bytes | None:
    """The object file in a file of ours, or None if that is not whole."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    digest, code = content[:32], content[32:]
    return code if hashlib.sha256(code).digest() == digest else None


def save(kernel: str, code: bytes) -> None:
    """Keep the object file of a kernel; files of it from other sources, or from a process that was killed, are removed.

    It is written under another name and renamed, so that nobody reads half of one.
    """
    if not ENABLED:
        return
    file = path(kernel)
    draft = file.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        try:
            draft.write_bytes(hashlib.sha256(code).digest() + code)
            draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)
        for other in file.parent.glob(f"{kernel}-????????-????????????????.*"):
            if other.suffix != file.suffix or not other.name.startswith(f"{kernel}-{STAMP[:8]}-"):
                other.unlink(missing_ok=True)
