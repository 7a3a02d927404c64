"""Classes made for modules whose class is not torch's own, and the forward of each: ours for what a trial has seen."""

from __future__ import annotations

import copy
import copyreg
import inspect
import types
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from lngrad.core import fallbacks
from lngrad.torch.functions import _norm, layer_norm, left_to_inductor, rms_norm
from lngrad.torch.reading import now
from lngrad.torch.trial import CHANNELS_FIRST, LAST, Formula


def become(module: torch.nn.Module, kind: Any) -> None:
    """Change a module's class, and that forward of it which hooks set on the instance have kept."""
    forward = type(module).forward
    for name, value in vars(module).items():
        if getattr(value, "__func__", None) is forward and value.__self__ is module:
            vars(module)[name] = types.MethodType(kind.forward, module)
    module.__class__ = kind


def their_class(kind: Any, own: dict[Any, Any]) -> Any:
    """A class without ours among its bases, where parametrizations, FSDP2 and others have mixed in theirs after patch.

    Args:
        kind: The class.
        own: torch's class for each of lngrad's own.
    """
    if kind in own or "turned_from" in vars(kind):
        return own.get(kind) or kind.turned_from
    bases = tuple(their_class(base, own) for base in kind.__bases__)
    if bases == kind.__bases__:
        return kind
    body = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return type(kind.__name__, bases, body)


class _Kind(type):
    """The class of turned classes: whoever makes a module of the same type gets one of the class that it was turned from."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """A module of the class that was turned."""
        return vars(cls).get("turned_from", super().__call__)(*args, **kwargs)


class Turned:
    """The base of classes made for modules whose class is not torch's own."""

    turned_from: Any
    norm_formula: Formula
    lngrad_compiled: str | None

    def __init_subclass__(cls) -> None:
        """Keep a class made here from the registries of those that it was turned from."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled as its own class, which alone can be imported."""
        function, *others = _as_theirs(self, lambda: self.__reduce_ex__(protocol))
        return object.__new__ if function is copyreg.__newobj__ else function, *others  # type: ignore[attr-defined]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A turned copy."""
        copied = _as_theirs(self, lambda: copy.deepcopy(self, memo))
        become(copied, type(self))
        return copied


def _as_theirs(module: Any, function: Callable[[], Any]) -> Any:
    """What a function gives while a module has the class that it was turned from."""
    kind = type(module)
    become(module, their_class(kind, {}))
    try:
        return function()
    finally:
        become(module, kind)


@cache
def turned_class(turned_from: Any, formula: Formula, compiled: str | None = None) -> Any:
    """A class for modules whose forward is this formula."""
    body = {"turned_from": turned_from, "norm_formula": formula, "lngrad_compiled": compiled, "__module__": __name__}
    body |= {
        "forward": _forward(turned_from, formula),
        "__qualname__": turned_from.__qualname__,
        "__doc__": turned_from.__doc__,
    }
    return _Kind.__new__(_Kind, turned_from.__name__, (Turned, turned_from), body)


def _forward(turned_from: Any, formula: Formula) -> Any:
    """A forward with the arguments of the old one; whether the others are their defaults is asked by identity.

    TorchScript, which asks for source, finds the old one's: so its globals are those.
    """
    theirs, ours, watched = turned_from.forward, _ours(formula, turned_from.__name__), _watched(turned_from, formula)
    _, *parameters = inspect.signature(theirs).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD] or [""]
    defaults = {parameter.name: parameter.default for parameter in parameters[1:]}

    def call(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs: tuple[Any, ...] = args
        if kwargs or len(args) != 1:
            passed = dict(zip(names, args)) | kwargs  # noqa: B905  # too many are refused below
            if len(passed) == len(args) + len(kwargs) and names[0] in passed:
                inputs = (passed.pop(names[0]),)
                inputs *= all(defaults.get(name, inputs) is value for name, value in passed.items())
            else:
                inputs = ()
        changed = watched(self) if inputs else "another argument"
        y = ours(self, *inputs) if changed is None else None
        if y is not None:
            return y
        if changed is not None and not torch.compiler.is_compiling():
            fallbacks.count(f"{turned_from.__name__}.forward", changed)
        return self.turned_from.forward(self, *args, **kwargs)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(self, args, kwargs)

    turned = types.FunctionType(
        forward.__code__, getattr(theirs, "__globals__", globals()), "forward", None, forward.__closure__
    )
    turned.__wrapped__ = theirs  # type: ignore[attr-defined]
    turned.__doc__ = theirs.__doc__
    return turned


def _watched(turned_from: Any, formula: Formula) -> Callable[[Any], str | None]:
    """A function of a module: what was changed since the forward was read, None if nothing was."""
    theirs = turned_from.forward
    settings = [(path, value) for path, value in formula.watched if path != ("", "forward")]
    own = [(path[1], value) for path, value in settings if path[0] == "" and len(path) == 2]  # most of them
    others = [(path, value) for path, value in settings if path[0] or len(path) > 2]

    def watched(module: Any) -> str | None:
        if module.turned_from.forward is not theirs:
            return "forward was changed after patch"
        for name, value in own:
            got = getattr(module, name, settings)
            if got is not value and not _equal(got, value):
                return f"{name} was changed after patch"
        for path, value in others:
            got = now(module, path)
            if got is not value and not _equal(got, value):
                return f"{path[-1]} was changed after patch"
        return None

    return watched


def _equal(got: Any, value: Any) -> bool:
    if isinstance(value, types.FunctionType):
        return getattr(got, "__func__", None) is value
    return type(got) is type(value) and bool(got == value)


def _ours(formula: Formula, name: str) -> Callable[..., Any]:
    """A function of a module and x: the formula, or None for a call that the trial has not seen."""
    shape = formula.shape
    axes = dict.fromkeys(range(1, 9), LAST) if formula.axes is None else dict(formula.axes)
    dtypes = None if formula.dtypes is None else dict(formula.dtypes)
    only = set(axes.values())

    def ours(module: Any, x: Any) -> Any:
        eps: Any
        if left_to_inductor(module, x):
            return None
        weight, bias = (None if role is None else getattr(module, role) for role in (formula.weight, formula.bias))
        eps = getattr(module, formula.eps) if isinstance(formula.eps, str) else formula.eps
        is_traced = isinstance(x, torch.fx.Proxy)  # its rank and dtype are unknown: those of the samples are assumed
        layout = result = None
        if is_traced:
            layout = next(iter(only)) if len(only) == 1 else None
        else:
            device = x.device.type
            autocast = device if device != "meta" and torch.is_autocast_enabled(device) else ""
            seen = x.dtype, *(None if role is None else getattr(role, "dtype", "") for role in (weight, bias)), autocast
            result, layout = x.dtype if dtypes is None else dtypes.get(seen), axes.get(x.ndim)
        if layout is None or not (is_traced or (result is not None and _fits(x, layout, shape, weight))):
            if not torch.compiler.is_compiling():
                fallbacks.count(f"{name}.forward", "a call that the trial of patch has not seen")
            return None
        if result is not None and result.itemsize > x.dtype.itemsize:
            x = x.to(result)
        rows = x.movedim(1, -1) if layout == CHANNELS_FIRST else x
        sizes = rows.shape[-1:] if shape is None else shape
        weight, bias = (
            tensor if tensor is None or not (is_traced or tensor.ndim != len(sizes)) else tensor.reshape(sizes)
            for tensor in (weight, bias)
        )
        if formula.centred and not formula.offset:
            y = layer_norm(rows, sizes, weight, bias, eps)
        elif formula.centred:
            y = _norm(rows, sizes, weight, bias, eps, None, True, formula.offset)
        else:
            y = rms_norm(rows, sizes, weight, eps, offset=formula.offset)
        if layout == CHANNELS_FIRST:
            y = y.movedim(-1, 1)
            if formula.keeps_strides and (is_traced or x.stride(1) != 1):
                y = y.contiguous()
        return y if result is None or y.dtype is result else y.to(result)

    return ours


def _fits(x: Any, layout: str | None, shape: tuple[int, ...] | None, weight: Any) -> bool:
    """Whether x and weight have the sizes that they had in the trial."""
    if layout is None or shape is None or torch.jit.is_tracing():
        return layout is not None
    sizes = x.shape[1:2] if layout == CHANNELS_FIRST else x.shape[x.ndim - len(shape) :]
    return bool(sizes == shape and (weight is None or weight.shape == shape or weight.shape.numel() == sizes.numel()))
