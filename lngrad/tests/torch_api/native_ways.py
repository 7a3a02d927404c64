"""Calls of torch without the native code, where it is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lngrad.torch import native, operators


@contextmanager
def python_alone() -> Iterator[None]:
    """All calls go through Python for a while: functions, modules, override() and torch.ops.lngrad."""
    module, native.module = native.module, None
    if module is not None:
        module.leave_operators()
        _forget_keys()
    try:
        yield
    finally:
        native.module = module
        if module is not None:
            with native.replacing():
                module.serve_operators()
            _forget_keys()


def _forget_keys() -> None:
    """torch's tracers remember which key's kernel an operator has, and know nothing of one that is taken back."""
    for operator in operators.ALL.values():
        operator._dispatch_cache.clear()
