"""Where compiled kernels are kept between processes, and when they are stale.

Numba's own stamp is one source file; ours is this folder, since a kernel inlines functions of its
neighbours. The folder is `$XDG_CACHE_HOME/lngrad` or `~/.cache/lngrad`; where it can't be written, kernels are compiled anew
per process.
"""

import hashlib
import tempfile
from pathlib import Path

import numba
from numba.core import caching

from lngrad import column_tree
from lngrad.system.cache_folder import cache_folder

_SOURCES = Path(__file__).parent
_COLUMN_TREE = Path(column_tree.__file__)  # its CHUNK is compiled in


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return False
    return True


def _stamp() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for source in [*sorted(_SOURCES.glob("*.py")), _COLUMN_TREE]:
        digest.update(source.read_bytes())
    return digest.hexdigest()


class _KernelLocator(caching._CacheLocator):
    """Answers for the functions of this folder and for no others, so other users of Numba are not touched."""

    def __init__(self, line: int):
        self._line = line

    def get_cache_path(self) -> str:
        return str(FOLDER)

    def get_source_stamp(self) -> str:
        return STAMP

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, py_func, py_file):
        return cls(py_func.__code__.co_firstlineno) if Path(py_file).parent == _SOURCES else None


FOLDER = cache_folder()
STAMP = _stamp()
ENABLED = _writable(FOLDER)
_implementation = getattr(caching, "CacheImpl", None) or caching._CacheImpl
_implementation._locator_classes = [_KernelLocator, *_implementation._locator_classes]

OPTIONS = {"cache": ENABLED, "error_model": "numpy"}
