"""Where compiled kernels are kept between processes, and when they are stale.

Numba's own stamp is one source file; ours is this folder, since a kernel inlines functions of its
neighbours. The folder is `$XDG_CACHE_HOME/lngrad` or `~/.cache/lngrad`; where it can't be written, kernels are compiled anew
per process.
"""

import hashlib
import pickle
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

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


_numbas_files = caching.IndexDataCacheFile


class _KernelFiles(_numbas_files):
    """One file for every compiled kernel, named by all that it depends on, and beginning with a digest of the rest.

    Numba's index is read, changed and written: two processes that compile at once can leave the code of one dtype under the
    name of another. Nor does it take a file that was cut off, or a disk that is full. Here a file that is not whole is as if
    it were not there, and one that can't be written is not kept.
    """

    def __init__(self, cache_path: str, filename_base: str, source_stamp: str):
        super().__init__(cache_path, filename_base, source_stamp)
        self._folder, self._base = Path(cache_path), f"{filename_base}-{source_stamp[:8]}"
        self._all_of_it = f"{filename_base}-????????-????????????????.kernel"

    def _path(self, key: Any) -> Path:
        depends_on = repr((self._version, self._source_stamp, key)).encode()
        return self._folder / f"{self._base}-{hashlib.sha256(depends_on).hexdigest()[:16]}.kernel"

    def load(self, key: Any) -> Any:
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        digest, data = content[:32], content[32:]
        return pickle.loads(data) if hashlib.sha256(data).digest() == digest else None  # noqa: S301  # written below

    def save(self, key: Any, data: Any) -> None:
        dumped = self._dump(data)
        with suppress(OSError):
            with self._open_for_write(str(self._path(key))) as file:
                file.write(hashlib.sha256(dumped).digest() + dumped)
            for path in self._folder.glob(self._all_of_it):
                if not path.name.startswith(self._base):  # of other sources
                    path.unlink(missing_ok=True)

    def flush(self) -> None:
        for path in self._folder.glob(self._all_of_it):
            path.unlink(missing_ok=True)


def _files(cache_path: str, filename_base: str, source_stamp: str) -> caching.IndexDataCacheFile:
    """Ours in our folder, Numba's for everybody else."""
    kind = _KernelFiles if cache_path == str(FOLDER) else _numbas_files
    return kind(cache_path=cache_path, filename_base=filename_base, source_stamp=source_stamp)


FOLDER = cache_folder()
STAMP = _stamp()
ENABLED = _writable(FOLDER)
_implementation = getattr(caching, "CacheImpl", None) or caching._CacheImpl
_implementation._locator_classes = [_KernelLocator, *_implementation._locator_classes]
caching.IndexDataCacheFile = _files

OPTIONS = {"cache": ENABLED, "error_model": "numpy"}
