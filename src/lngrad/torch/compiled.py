"""The compiled glue, where it was built: C++ that looks a plain call up and runs it, and asks Python for all else.

It decides nothing. Each door says here who answers what it asks: who prepares a call that it sees for the first time, who does
one that is not plain.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

from lngrad.core.threads import granted_threads, setting_address, torch_parallel_for
from lngrad.torch import memory
from lngrad.torch.native import library

_answers: dict[str, Callable[..., Any]] = {}


def answer(name: str, function: Callable[..., Any]) -> None:
    """Let a function answer one of the glue's questions; see `Python` in native/torch.cpp."""
    _answers[name] = function
    if glue is not None:
        glue.answer(name, function)


def load() -> Any:
    """Load the glue: its module, which is also `glue` from now on, or None where it was not built for this torch."""
    global glue
    path = library.find()
    if path is not None:
        glue = _loaded(str(path))
    return glue


def _loaded(path: str) -> Any:
    loader = ExtensionFileLoader(library.MODULE, path)
    spec = spec_from_loader(library.MODULE, loader)
    assert spec is not None  # a loader was given
    try:
        module = module_from_spec(spec)
        loader.exec_module(module)
    except ImportError:  # of a torch that was built otherwise, though it has the same version
        return None
    lent = ctypes.cast(torch_parallel_for(), ctypes.c_void_p).value or 0  # type: ignore[arg-type]  # a function of ctypes
    module.use(setting_address(), granted_threads(), memory.KEPT_FROM, lent)
    for name, function in _answers.items():
        module.answer(name, function)
    return module


glue: Any = None
load()
answer("empty", lambda shape, like: memory.empty(tuple(shape), like.dtype))
