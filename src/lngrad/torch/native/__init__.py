"""Native code between torch's dispatcher and the kernels: C++ that runs a plain call, and asks Python for the rest.

It decides nothing. The modules of lngrad.torch register the functions that it asks: what prepares a call that it sees for the
first time, what does a call that is not plain. `building` makes the library of the sources beside this file. torch, Python,
these sources and the compiler are in the library's name.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
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
from lngrad.support.cache_folder import kept, trusted_folder
from lngrad.torch import memory

MODULE = "lngrad_torch_native"
SWITCH = "LNGRAD_TORCH_NATIVE"  # environment variable; 0 leaves the library alone
SOURCES = Path(__file__).parent
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
    path = find()
    if path is not None:
        module = _loaded(str(path))
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
    if is_off():
        return None
    with suppress(OSError):
        return next(libraries(stamp()), None)
    return None


def is_off() -> bool:
    """Whether the user has switched the library off."""
    return os.environ.get(SWITCH) == "0"


def torch_folder() -> Path:
    """The folder of the installed torch."""
    return Path(str(torch.__file__)).parent


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def stamp() -> str:
    """What a library depends on but for the compiler: torch's version and build with Python's ABI, then our sources."""
    made_for = [str(sysconfig.get_config_var("SOABI")).encode(), (torch_folder() / "version.py").read_bytes()]
    made_of = [source.read_bytes() for source in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")])]
    return "-".join(digest(b"\0".join(parts)) for parts in (made_for, made_of))


def libraries(stamp: str) -> Iterator[Path]:
    """The whole libraries with a stamp that are kept."""
    folder = trusted_folder()
    if folder is not None:
        yield from (path for path in sorted(folder.glob(f"torch-{stamp}-*.so")) if kept(path) is not None)


register("empty", lambda shape, like: memory.empty(tuple(shape), like.dtype))
