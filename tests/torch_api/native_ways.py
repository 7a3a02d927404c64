"""Calls of torch without the native code, where it is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lngrad.torch import native


@contextmanager
def python_alone() -> Iterator[None]:
    """All calls go through Python for a while: functions, modules, override() and torch.ops.lngrad."""
    module, native.module = native.module, None
    if module is not None:
        module.leave_operators()
    try:
        yield
    finally:
        native.module = module
        if module is not None:
            with native.replacing():
                module.serve_operators()
