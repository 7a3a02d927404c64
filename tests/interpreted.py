"""Triton's interpreter without its most repeated step: importing this is enough.

It replaces the functions of triton.language whenever a jitted function is called, also by another one, where they are replaced
already: it then looks through all names of the module and finds nothing. That was two fifths of a kernel's time.
"""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter

_DONE = "_lngrad_done"
_patch_builtin = getattr(interpreter, "_patch_builtin", None)  # of Triton 3.9


def _once(package: Any, builder: Any, scope: Any) -> None:
    if _DONE not in vars(package):
        _patch_builtin(package, builder, scope)
        scope.set_attr(package, _DONE, True)  # taken back where the functions are


if _patch_builtin is not None:
    interpreter._patch_builtin = _once
