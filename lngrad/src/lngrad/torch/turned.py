"""Classes made for modules whose class is not torch's own, and the forward of each: ours for what a trial has seen."""

from __future__ import annotations

import inspect
import itertools
import linecache
import types
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from lngrad.core import fallbacks
from lngrad.torch import derivatives
from lngrad.torch.functions import _norm, gated_rms_norm, layer_norm, left_to_inductor, left_to_torch, rms_norm
from lngrad.torch.trial import CHANNELS_FIRST, Formula

_SETTING = bool, int, float, str, tuple, type(None)  # what a trial's outcome may depend on


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


class Turned:
    """The base of classes made for modules whose class is not torch's own."""

    turned_from: Any
    formula: Formula
    lngrad_compiled = None

    def __setattr__(self, name: str, value: Any) -> None:
        """A setting that changes after the trial gives the module its own class back."""
        before = vars(self).get(name, getattr(self.turned_from, name, value))
        torch.nn.Module.__setattr__(self, name, value)
        is_changed = isinstance(value, _SETTING) and isinstance(before, _SETTING) and before != value
        if is_changed and name not in ("training", self.formula.eps):
            fallbacks.count(f"{self.turned_from.__name__}.forward", f"{name} was changed after patch")
            become(self, their_class(type(self), {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled as its own class and its formula: the class made for it can't be imported."""
        return _restore, (self.turned_from, self.formula), self.__dict__


def _restore(turned_from: Any, formula: Formula) -> Any:
    kind = turned_class(turned_from, formula)
    return kind.__new__(kind)


@cache
def turned_class(turned_from: Any, formula: Formula) -> Any:
    body = {
        "turned_from": turned_from,
        "formula": formula,
        "their_forward": _renamed(turned_from.forward, "their_forward"),
        "forward": _forward(turned_from, formula),
        "__module__": __name__,
    }
    return type(turned_from.__name__, (Turned, turned_from), body)


def _annotation(kind: Any) -> Any:
    """An annotation as TorchScript reads it in source; none where it can't be written out."""
    text = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    try:
        compile(text, "<annotation>", "eval")
    except SyntaxError:
        return inspect.Parameter.empty
    return kind if kind is inspect.Parameter.empty else _Name(text)


def _renamed(function: Any, name: str) -> Any:
    """A copy under the name that it is called by: TorchScript compiles a method under that of its function."""
    if not isinstance(function, types.FunctionType):
        return function
    copied = types.FunctionType(
        function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__, copied.__annotations__ = function.__kwdefaults__, function.__annotations__
    copied.__dict__.update(function.__dict__)
    return copied


class _Name(str):
    """A default or an annotation, shown by its name."""

    __slots__ = ()
    __repr__ = str.__str__


_numbers = itertools.count()
_TEMPLATE = """\
def forward{header}:
    if torch.jit.is_scripting():
        return {script}
    if isinstance(self, Turned){alone}:
        y = ours(self, {x}{gate})
        if y is not None:
            return y
    return theirs(self, {given})
"""


def _forward(turned_from: Any, formula: Formula) -> Any:
    """A forward with the signature of the old one, written out as TorchScript and torch.fx read it.

    Whether its other arguments are the defaults, as they were in the trial, is asked by identity.
    """
    theirs = turned_from.forward
    own, *parameters = inspect.signature(theirs).parameters.values()
    x, others = parameters[0].name, parameters[1 + bool(formula.gate) :]
    names: dict[str, Any] = {f"default_{parameter.name}": parameter.default for parameter in parameters}
    names |= {"torch": torch, "Turned": Turned, "theirs": theirs, "ours": _ours(formula, turned_from.__name__)}
    header, alone, passed = [own.replace(name="self")], "", []
    for parameter in parameters:
        default = parameter.empty if parameter.default is parameter.empty else _Name(f"default_{parameter.name}")
        kind = _annotation(parameter.annotation) if parameters[1:] else parameter.empty
        header.append(parameter.replace(annotation=kind, default=default))
        stars = {
            parameter.VAR_POSITIONAL: "*",
            parameter.VAR_KEYWORD: "**",
            parameter.KEYWORD_ONLY: f"{parameter.name}=",
        }.get(parameter.kind, "")  # type: ignore[call-overload]
        passed.append(stars + parameter.name)
        if parameter in others:
            alone += (
                f" and not {parameter.name}"
                if stars in ("*", "**")
                else f" and {parameter.name} is default_{parameter.name}"
            )
    is_ours = len(parameters) == 1 == len({layout for _, layout in formula.axes})
    fields = {"header": inspect.Signature(header), "alone": alone, "x": x, "given": ", ".join(passed)}
    fields["gate"] = formula.gate and f", {formula.gate}"
    script = _script(formula, x) if is_ours else f"self.their_forward({fields['given']})"
    text = _TEMPLATE.format(script=script, **fields)
    file = f"<lngrad's forward {next(_numbers)}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file  # where inspect finds it
    exec(compile(text, file, "exec"), names)  # noqa: S102  # names of parameters, and ours
    forward = names["forward"]
    if len(parameters) > 1:
        forward.__annotations__ = dict(getattr(theirs, "__annotations__", {}))
    return forward


def _script(formula: Formula, x: str) -> str:
    """The call as TorchScript compiles it, which knows attributes by their written names."""
    sizes = f"[{x}.size(-1)]" if formula.shape is None else str(list(formula.shape))
    weight, bias = (name and f"self.{name}.reshape({sizes})" for name in formula[:2])
    eps = f"self.{formula.eps}" if isinstance(formula.eps, str) else repr(formula.eps)
    if formula.eps is None:
        eps = f"(2.220446049250313e-16 if {x}.dtype == torch.float64 else 1.1920928955078125e-07)"
    is_first = next(iter(formula.axes))[1] == CHANNELS_FIRST
    rows = f"{x}.movedim(1, -1)" if is_first else x
    call = f"layer_norm({rows}, {sizes}, {weight}, {bias}, {eps})[0]"
    if not formula.centred or formula.offset:
        call = f"norm({rows}, {sizes}, {weight}, {bias}, {eps}, None, {formula.centred}, {formula.offset})[0]"
    return f"torch.ops.lngrad.{call}{'.movedim(-1, 1)' * is_first}"


def _ours(formula: Formula, name: str) -> Callable[..., Any]:
    """A function of a module, x and a gate: the formula, or None for a call that the trial has not seen."""
    axes, dtypes, shape = dict(formula.axes), dict(formula.dtypes), formula.shape
    only = set(axes.values())

    def ours(module: Any, x: Any, gate: Any = None) -> Any:
        eps: Any
        if left_to_inductor(module, x):
            return None
        weight, bias = (
            None if parameter is None else getattr(module, parameter) for parameter in (formula.weight, formula.bias)
        )
        eps = getattr(module, formula.eps) if isinstance(formula.eps, str) else formula.eps
        is_traced = isinstance(x, torch.fx.Proxy)  # its rank and dtype are unknown: those of the samples are assumed
        layout = result = None
        if is_traced:
            layout = next(iter(only)) if len(only) == 1 and not formula.gate else None
        else:
            device = x.device.type
            autocast = device if device != "meta" and torch.is_autocast_enabled(device) else ""
            of_weight, of_bias, of_gate = (
                tensor if tensor is None else getattr(tensor, "dtype", "") for tensor in (weight, bias, gate)
            )
            result, layout = dtypes.get((x.dtype, of_weight, of_bias, autocast, of_gate)), axes.get(x.ndim)
            if gate is not None and (result is None or not _takes_gate(x, gate, weight)):
                layout = None
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
        if gate is not None:
            ways: Any = {
                "norm_before_gate": formula.norm_before_gate,
                "group_size": formula.group,
                "offset": formula.offset,
            }
            y = gated_rms_norm(x, gate.to(x.dtype), weight, eps, **ways)
        elif formula.centred and not formula.offset:
            y = layer_norm(rows, sizes, weight, bias, eps)
        elif formula.centred:
            y = _norm(rows, sizes, weight, bias, eps, None, True, formula.offset)
        else:
            y = rms_norm(rows, sizes, weight, eps, offset=formula.offset)
        y = y.movedim(-1, 1) if layout == CHANNELS_FIRST else y
        return y if result is None or y.dtype is result else y.to(result)

    return ours


def _fits(x: Any, layout: str | None, shape: tuple[int, ...] | None, weight: Any) -> bool:
    """Whether x and weight have the sizes that they had in the trial."""
    if layout is None or shape is None or torch.jit.is_tracing():
        return layout is not None
    sizes = x.shape[1:2] if layout == CHANNELS_FIRST else x.shape[x.ndim - len(shape) :]
    return bool(sizes == shape and (weight is None or weight.shape == shape or weight.shape.numel() == sizes.numel()))


def _takes_gate(x: Any, gate: Any, weight: Any) -> bool:
    """Whether a gated call is for our operator: plain tensors on a CPU, and no graph whose format lacks it."""
    is_plain = torch.compiler.is_compiling() or {type(x), type(gate), type(weight)} <= derivatives.PLAIN
    is_recorded = torch.jit.is_tracing() or torch.onnx.is_in_onnx_export()
    is_here = x.device.type in ("cpu", "meta") and is_plain and not is_recorded
    return (
        is_here
        and not any(left_to_torch("gated_rms_norm", tensor) for tensor in (x, gate))
        and bool(gate.shape == x.shape)
    )
