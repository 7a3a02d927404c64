"""Native code between torch's dispatcher and the kernels: C++ that runs a plain call, and asks Python for the rest.

It decides nothing. The modules of lngrad.torch register the functions that it asks: what prepares a call that it sees for the
first time, what does a call that is not plain. Wheels for Linux bring a library for each release of torch that
scripts/prebuilt.py names; for any other torch, and in a checkout, `building` makes one of the sources beside this file. A
library is made for one torch and any Python: it takes only functions of Python's that all have alike.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import torch

from lngrad.core.threads import chosen, granted_threads, torch_parallel_for
from lngrad.support.cache_folder import kept, mark_used, trusted_folder
from lngrad.torch import memory

MODULE = "lngrad_torch_native"
SWITCH = "LNGRAD_TORCH_NATIVE"  # environment variable; 0 leaves the library alone
SOURCES = Path(__file__).parent
PREBUILT = SOURCES / "prebuilt"  # in wheels alone
DIGITS = 16  # of a digest

module: Any = None  # the library, loaded; None where there is none for this torch
_functions: dict[str, Callable[..., Any]] = {}


def register(name: str, function: Callable[..., Any]) -> None:
    """Let the native code call a function of ours; the names are those of `Python` in python.h."""
    _functions[name] = function
    if module is not None:
        module.register(name, function)


def load() -> Any:
    """Load the library that fits this torch; returns `module`."""
    global module
    module = next((loaded for path in fitting() if (loaded := _loaded(str(path))) is not None), None)
    return module


def _loaded(path: str) -> Any:
    loader = ExtensionFileLoader(MODULE, path)
    spec = spec_from_loader(MODULE, loader)
    assert spec is not None  # a loader was given
    try:
        loaded = module_from_spec(spec)
        loader.exec_module(loaded)
    except ImportError:  # of a torch that was built otherwise, though it has the same version
        return None
    _lend_threads(loaded)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _lend_threads(loaded))
    for name, function in _functions.items():
        loaded.register(name, function)
    if torch.version.cuda is not None:
        _lend_driver(loaded)
    with replacing():
        loaded.serve_operators()
    return loaded


@contextmanager
def replacing() -> Iterator[None]:
    """Kernels that take the place of others, for a while: torch says so once per process, and here it is the very purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
        yield


def _lend_threads(loaded: Any) -> None:
    """Tell the library who helps with its jobs: torch's threads, where there are such."""
    lent = ctypes.cast(torch_parallel_for(), ctypes.c_void_p).value or 0  # type: ignore[arg-type]  # a function of ctypes
    loaded.use(ctypes.addressof(chosen), granted_threads(), memory.KEPT_FROM, lent)


def _lend_driver(loaded: Any) -> None:
    """Tell the library what launches kernels on a GPU, and what knows torch's current stream there, if both are here."""
    with suppress(OSError, AttributeError):
        launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
        stream = ctypes.CDLL(str(torch_folder() / "lib/libtorch_cuda.so")).aoti_torch_get_current_cuda_stream
        loaded.use_driver(*(ctypes.cast(function, ctypes.c_void_p).value for function in (launch, stream)))


def find() -> Path | None:
    """The library for the torch that is installed, None where there is none, or it is switched off."""
    return next(fitting(), None)


def fitting() -> Iterator[Path]:
    """The libraries for the torch that is installed, the package's own first; none where they are switched off."""
    if is_off():
        return
    with suppress(OSError):
        own = brought()
        if own is not None:
            yield own
        yield from libraries(stamp())


def brought() -> Path | None:
    """The library that the package has for the torch that is installed.

    A torch that somebody has built from other sources than a release's (2.13.0a0+git…) may be laid out otherwise. The releases
    of one minor version have the same headers.
    """
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\+(cpu|cu\d+|rocm[\d.]+|xpu))?", str(torch.__version__))
    if release is None or is_free_threaded():
        return None
    path = PREBUILT / name_of(release[1])
    return path if kept(path, installed=True) is not None else None


def name_of(release: str) -> str:
    """The name of the package's library for a minor version of torch, such as 2.13."""
    return f"torch-{release}-{made_of()}.so"


def is_free_threaded() -> bool:
    """Whether this Python has no global lock: its objects are laid out otherwise."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def is_off() -> bool:
    """Whether the user has switched the library off."""
    return os.environ.get(SWITCH) == "0"


def torch_folder() -> Path:
    """The folder of the installed torch."""
    return Path(str(torch.__file__)).parent


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def stamp() -> str:
    """What a library depends on but for the compiler: torch's version and build, the architecture, then our sources."""
    architecture = f"{platform.machine()}{'t' if is_free_threaded() else ''}"
    return f"{digest(architecture.encode() + (torch_folder() / 'version.py').read_bytes())}-{made_of()}"


def made_of() -> str:
    """A digest of our sources."""
    sources = sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")])
    return digest(b"\0".join(source.read_bytes() for source in sources))


def libraries(stamp: str) -> Iterator[Path]:
    """The whole libraries with a stamp that are kept."""
    folder = trusted_folder()
    if folder is not None:
        for path in sorted(folder.glob(f"torch-{stamp}-*.so")):
            if kept(path) is not None:
                mark_used(path)
                yield path


register("empty", lambda shape, like: memory.empty(tuple(shape), like.dtype))
