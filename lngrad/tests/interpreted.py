"""Triton's interpreter without its most repeated steps: importing this is enough.

It replaces the functions of triton.language whenever a jitted function is called, also by another one, where they are replaced
already: it then looks through all names of the module and finds nothing. That was two fifths of a kernel's time. The types of
blocks, their shapes and NumPy's dtypes of them it makes anew for each value: a third of what was left.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_DONE = "_lngrad_done"
_patch_builtin = getattr(interpreter, "_patch_builtin", None)  # of Triton 3.9
_patch_lang = getattr(interpreter, "_patch_lang", None)
_get_np_dtype = getattr(interpreter, "_get_np_dtype", None)
_made_block, _made_tensor = tl.block_type.__init__, tl.tensor.__init__

_languages: dict[
    int, tuple[dict[str, Any], list[Any]]
] = {}  # by the address of a module's names, which are kept with it
_dtypes: dict[str, Any] = {}
_blocks: dict[Any, dict[str, Any]] = {}
_shapes: dict[str, tuple[Any, Any]] = {}  # by a type's name: as a tensor has it, and its number of elements


def _once(package: Any, builder: Any, scope: Any) -> None:
    if _DONE not in vars(package):
        _patch_builtin(package, builder, scope)
        scope.set_attr(package, _DONE, True)  # taken back where the functions are


def _at_first(function: Any) -> Any:
    names = function.__globals__
    _, seen = _languages.setdefault(id(names), (names, []))
    if not seen:
        seen += [module for module in (tl, tl.core) if any(module is value for value in names.values())]
    if seen and all(_DONE in vars(module) for module in (*seen, tl.tensor)):
        return interpreter._LangPatchScope()
    return _patch_lang(function)


def _dtype_of(dtype: Any) -> Any:
    if dtype.name not in _dtypes:
        _dtypes[dtype.name] = _get_np_dtype(dtype)
    return _dtypes[dtype.name]


def _block(self: Any, element_ty: Any, shape: Any) -> None:
    key = element_ty.name, *(getattr(length, "value", length) for length in shape)
    if key not in _blocks:
        _made_block(self, element_ty, shape)
        _blocks[key] = dict(vars(self))
    vars(self).update(_blocks[key], element_ty=element_ty)


def _tensor(self: Any, handle: Any, type: Any) -> None:
    if type.name not in _shapes:
        _made_tensor(self, handle, type)
        _shapes[type.name] = self.shape, self.numel
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = _shapes[type.name]


if _patch_builtin is not None:
    interpreter._patch_builtin = _once
if _patch_builtin is not None and _patch_lang is not None and hasattr(interpreter, "_LangPatchScope"):
    interpreter._patch_lang = _at_first
if _get_np_dtype is not None:
    interpreter._get_np_dtype = _dtype_of
    tl.block_type.__init__, tl.tensor.__init__ = _block, _tensor
