"""Where the built library is, and whether it fits: torch, Python and the sources it was made of are in its name.

So is a digest of its content: a file that is cut off or changed is as if it were not there.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from lngrad.core.cache_folder import cache_folder

MODULE = "lngrad_torch_glue"
SWITCH = "LNGRAD_TORCH_GLUE"  # environment variable; 0 leaves the library alone
SOURCES = Path(__file__).parent
DIGITS = 16


def is_off() -> bool:
    """Whether the user has switched the library off."""
    return os.environ.get(SWITCH) == "0"


def torch_folder() -> Path | None:
    """The folder of the installed torch; None without one. torch is not imported."""
    spec = find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def stamp(torch: Path) -> str:
    """What a library depends on but for the compiler: torch's version and build, Python's ABI, our sources."""
    parts = [str(sysconfig.get_config_var("SOABI")).encode(), (torch / "version.py").read_bytes()]
    parts += [source.read_bytes() for source in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")])]
    return digest(b"\0".join(parts))


def libraries(stamp: str) -> Iterator[Path]:
    """The whole libraries with a stamp that are kept."""
    for path in sorted(cache_folder().glob(f"torch-{stamp}-*.so")):
        with suppress(OSError):
            if digest(path.read_bytes()) == path.stem.rpartition("-")[2]:
                yield path


def find() -> Path | None:
    """The library for the torch that is installed, None where there is none, or it is switched off."""
    torch = torch_folder()
    if torch is None or is_off():
        return None
    with suppress(OSError, RuntimeError):  # RuntimeError: no home directory
        return next(libraries(stamp(torch)), None)
    return None
