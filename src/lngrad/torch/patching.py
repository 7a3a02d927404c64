"""Normalizations of a model, found and turned: torch's own classes, and others that a trial shows to compute the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch

from lngrad.torch.functions import LayerNorm, RMSNorm, layer_norm, rms_norm
from lngrad.typing import Tensor

Names: TypeAlias = "tuple[str | None, str | None, str]"  # of the attributes that are weight, bias and eps
_WEIGHTS, _BIASES = ("weight", "gamma"), ("bias", "beta")
_EPSILONS = ("eps", "epsilon", "variance_epsilon")
# Samples of C channels by layout: over the last axis, and over axis 1 as images have it; RMS normalization over the last.
_SAMPLES = {"last": ((2, 3), ()), "channels first": ((2,), (3, 4))}
_ROUNDED_TWICE = "RMS, xhat rounded before weight"  # Llama's formula; ours rounds once
_OFFSETS = {"RMS": 0.0, _ROUNDED_TWICE: 0.0, "RMS, 1 + weight": 1.0}
_SAMPLES |= dict.fromkeys(_OFFSETS, ((2, 3), ()))
_TRIAL_EPS = 0.37  # so large that a forward which does not use the attribute gives itself away
# In float32, in which some classes compute whatever comes; something else is off by more than a hundredth.
_CLOSE = 1e-4
_SAME_BITS = 0.9  # of RMS results in bfloat16; a float32 that is summed in another order is seldom rounded otherwise


class _Found(NamedTuple):
    """What is known of one module: how to turn it and as what, or why it stays."""

    name: str
    kind: str
    turns_to: type[torch.nn.Module] | None
    reason: str


def patch(model: torch.nn.Module, *, verbose: bool = False) -> int:
    """Turn every layer and RMS normalization in a model, itself included, so that it runs here. Parameters and hooks stay.

    A module whose class is torch.nn.LayerNorm becomes a LayerNorm, and one of torch.nn.RMSNorm an RMSNorm. A module of another
    class, a subclass of them or somebody's own, is turned if it has a weight, a bias or none and an eps, nothing else to
    compute with, and if its forward gives layer normalization over the last axis or over channels (axis 1) on random samples,
    with random parameters and another eps, and the same dtype in bfloat16; or, without a bias, RMS normalization over the last
    axis, by weight or 1 + weight, rounded in bfloat16 as ours, or once more before weight as in Llama's classes. It keeps
    its class as a base; its forward is replaced, whatever else that did.

    Args:
        model: Any module.
        verbose: Print a table of all candidates: name, class, turned or why not.

    Returns:
        How many were turned.
    """
    found = [_look(name, module) for name, module in model.named_modules()]
    rows = [row for row in found if row is not None]
    modules = dict(model.named_modules())
    for row in rows:
        if row.turns_to is not None:
            modules[row.name].__class__ = row.turns_to
    if verbose:
        print(_table(rows))
    return sum(row.turns_to is not None for row in rows)


def unpatch(model: torch.nn.Module) -> int:
    """Give every turned module in a model its own class back; returns how many."""
    count = 0
    for module in model.modules():
        if isinstance(module, _Converted):
            module.__class__ = module.turned_from
        elif type(module) is LayerNorm:
            module.__class__ = torch.nn.LayerNorm
        elif type(module) is RMSNorm and not module.offset:
            module.__class__ = torch.nn.RMSNorm
        else:
            continue
        count += 1
    return count


class _Converted:
    """The base of classes made for modules whose class is not torch's own."""

    turned_from: type
    layout: str
    names: Names

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_scripting():
            # TorchScript compiles this branch alone, and knows attributes by their written names.
            weight: torch.Tensor | None = None
            if hasattr(self, "weight"):
                weight = self.weight
            elif hasattr(self, "gamma"):
                weight = self.gamma
            bias: torch.Tensor | None = None
            if hasattr(self, "bias"):
                bias = self.bias
            elif hasattr(self, "beta"):
                bias = self.beta
            if hasattr(self, "eps"):
                eps = self.eps
            elif hasattr(self, "epsilon"):
                eps = self.epsilon
            elif hasattr(self, "variance_epsilon"):
                eps = self.variance_epsilon
            shape = [x.size(-1)] if weight is None else weight.shape
            if self.layout == "last":
                return torch.ops.lngrad.layer_norm(x, shape, weight, bias, eps)[0]
            if self.layout != "channels first":
                offset = 1.0 if self.layout == "RMS, 1 + weight" else 0.0
                return torch.ops.lngrad.norm(x, shape, weight, None, eps, None, False, offset)[0]
            return torch.ops.lngrad.layer_norm(x.movedim(1, -1), shape, weight, bias, eps)[0].movedim(-1, 1)
        weight, bias = (None if name is None else getattr(self, name) for name in self.names[:2])
        eps = getattr(self, self.names[2])
        if self.layout == "last":
            return layer_norm(x, x.shape[-1:] if weight is None else weight.shape, weight, bias, eps)
        if weight is not None and self.layout in _OFFSETS:
            return rms_norm(x, weight.shape, weight, eps, offset=_OFFSETS[self.layout])
        rows = x.movedim(1, -1)
        return layer_norm(rows, rows.shape[-1:], weight, bias, eps).movedim(-1, 1)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled as its own class and how it was turned: the class made for it can't be imported."""
        return _restore, (self.turned_from, self.layout, self.names), self.__dict__


def _restore(turned_from: Any, layout: str, names: Names) -> Any:
    kind = _converted(turned_from, layout, names)
    return kind.__new__(kind)


@cache
def _converted(turned_from: Any, layout: str, names: Names) -> Any:
    constants = [*getattr(turned_from, "__constants__", ()), "layout"]  # what TorchScript knows of a class
    body = {
        "turned_from": turned_from,
        "layout": layout,
        "names": names,
        "__constants__": constants,
        "__module__": __name__,
    }
    return type(turned_from.__name__, (_Converted, turned_from), body)


# Looking


def _look(name: str, module: torch.nn.Module) -> _Found | None:
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    if type(module) in (torch.nn.LayerNorm, torch.nn.RMSNorm):
        return _Found(name, kind, LayerNorm if type(module) is torch.nn.LayerNorm else RMSNorm, "")
    if isinstance(module, LayerNorm | RMSNorm | _Converted):
        return _Found(name, kind, None, "is lngrad's already")
    names = _names(module)
    if isinstance(names, str):
        return _Found(name, kind, None, names) if isinstance(module, torch.nn.LayerNorm | torch.nn.RMSNorm) else None
    kind_of_it: Any = type(module)
    # RMS normalization has a weight and no bias.
    layouts = [one for one in _SAMPLES if one not in _OFFSETS or (names[0] is not None and names[1] is None)]
    tried = [_converted(kind_of_it, layout, names) for layout in layouts]
    reasons = [_unlike(module, kind) for kind in tried]
    for turns_to, reason in zip(tried, reasons, strict=True):
        if not reason:
            return _Found(name, kind, turns_to, turns_to.layout if turns_to.layout in _OFFSETS else "")
    return _Found(name, kind, None, "; ".join(f"{one.layout}: {why}" for one, why in zip(tried, reasons, strict=True)))


def _names(module: torch.nn.Module) -> Names | str:
    """The attributes that are weight, bias and eps, or why the module is no candidate."""
    parameters = {name: value for name, value in module._parameters.items() if value is not None}
    weight = next((name for name in _WEIGHTS if name in parameters), None)
    bias = next((name for name in _BIASES if name in parameters), None)
    eps = next((name for name in _EPSILONS if isinstance(getattr(module, name, None), float)), None)
    if isinstance(module, torch.jit.ScriptModule):
        return "is a ScriptModule"
    if eps is None:
        return "has no eps"
    if any(True for _ in module.children()) or any(True for _ in module.buffers(recurse=False)):
        return "has submodules or buffers"
    if len(parameters) != (weight is not None) + (bias is not None):
        return f"has more parameters: {', '.join(parameters)}"
    if weight is None and not isinstance(module, torch.nn.LayerNorm):
        return "has no weight"
    if len({parameter.shape for parameter in parameters.values()}) > 1:
        return "its weight and bias have two shapes"
    return weight, bias, eps


def _unlike(module: torch.nn.Module, kind: Any) -> str:
    """Why a module does not compute what a class made for it does; nothing if it does."""
    generator = torch.Generator().manual_seed(0)
    try:
        theirs = _sample_of(module, kind.names, generator)
        shape = next((tuple(value.shape) for value in theirs._parameters.values() if value is not None), None)
        shape = shape or tuple(getattr(module, "normalized_shape", (8,)))
        before, after = _SAMPLES[kind.layout]
        if after and len(shape) != 1:
            return "has a weight of several dimensions"
        x = torch.randn(*before, *shape, *after, dtype=torch.float32, generator=generator)
        for training in (False, True):
            theirs.training = training
            ours = copy.copy(theirs)
            ours.__class__ = kind
            reason = _differs(theirs, ours, x)
            if reason:
                return reason
    except Exception as error:  # whatever somebody's forward does with a sample that it is not made for
        return f"refuses a sample: {type(error).__name__}"
    return ""


def _differs(theirs: torch.nn.Module, ours: torch.nn.Module, x: Tensor) -> str:
    """Called by their forward alone, so that no hook hears of it."""
    with torch.no_grad():
        expected, got = type(theirs).forward(theirs, x), type(ours).forward(ours, x)
        if not isinstance(expected, torch.Tensor) or expected.shape != got.shape:
            return "gives another shape"
        if not (expected - got).abs().max() <= _CLOSE:
            return "computes something else"
        narrow = [_in_bfloat16(module) for module in (theirs, ours)]
        try:
            expected = type(theirs).forward(narrow[0], x.bfloat16())
        except RuntimeError:
            return ""  # takes no 16 bits, so nothing is lost
        got = type(ours).forward(narrow[1], x.bfloat16())
        if expected.dtype is not got.dtype:
            return f"gives {expected.dtype} for bfloat16"
        if ours.layout not in _OFFSETS:
            return ""
        if ours.layout == _ROUNDED_TWICE:
            weight = next(iter(narrow[1].parameters()))
            got = rms_norm(x.bfloat16().float(), weight.shape, eps=_TRIAL_EPS).bfloat16() * weight
        return "" if (expected == got).float().mean() >= _SAME_BITS else "is rounded otherwise in bfloat16"


def _sample_of(module: Any, names: Names, generator: torch.Generator) -> Any:
    """A shallow copy with random parameters and an eps of its own; the module itself is never called."""
    sample = _with_parameters(module, lambda value: torch.randn(value.shape, dtype=torch.float32, generator=generator))
    setattr(sample, names[2], _TRIAL_EPS)
    return sample


def _in_bfloat16(module: Any) -> Any:
    return _with_parameters(module, lambda value: value.detach().bfloat16())


def _with_parameters(module: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A shallow copy whose parameters are changed ones."""
    sample = copy.copy(module)
    sample.__dict__ = dict(module.__dict__)
    sample._parameters = {
        name: None if value is None else torch.nn.Parameter(change(value)) for name, value in module._parameters.items()
    }
    return sample


def _table(rows: list[_Found]) -> str:
    if not rows:
        return "no layer normalization found"
    cells = [("module", "class", "turned")]
    for row in rows:
        turned = ("yes" if row.turns_to else "no") + (f": {row.reason}" if row.reason else "")
        cells.append((row.name or "(the model)", row.kind, turned))
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )
