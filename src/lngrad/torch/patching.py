"""Normalizations of a model, replaced: torch's own classes, and others that a trial shows to compute the same."""

from __future__ import annotations

import inspect
import itertools
import linecache
import math
import time
import types
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch

from lngrad.core import fallbacks
from lngrad.core.machine import BUSY, Others
from lngrad.torch import native, operators
from lngrad.torch.functions import (
    LayerNorm,
    RMSNorm,
    _is_torchs,
    _norm,
    gated_rms_norm,
    layer_norm,
    left_to_inductor,
    rms_norm,
)
from lngrad.torch.trial import CHANNELS_FIRST, Formula, learn, undisturbed

_OWN = {torch.nn.LayerNorm: LayerNorm, torch.nn.RMSNorm: RMSNorm}
_BACK = {ours: theirs for theirs, ours in _OWN.items()}
_SETTING = bool, int, float, str, tuple, type(None)  # what a trial's outcome may depend on


class _Found(NamedTuple):
    """What is known of one module: as which class it is turned, or None, and what there is to say of it."""

    name: str
    kind: str
    turns_to: type[torch.nn.Module] | None
    reason: str


def patch(model: torch.nn.Module, *, verbose: bool = False, compiled: str | None = None) -> int:
    """Replace every layer and RMS normalization in a model, itself included, by lngrad's. Parameters and hooks stay.

    A module whose class is torch.nn.LayerNorm becomes a LayerNorm, and one of torch.nn.RMSNorm an RMSNorm. A module of another
    class is tried on random samples: if its forward gives layer normalization or RMS normalization, by weight or 1 + weight,
    over the last axes or over channels (axis 1), or gated_rms_norm with its second argument as the gate, and if its derivatives
    are those of the formula, it is replaced. It keeps its class as a base, and its forward keeps its arguments. A call that the
    trial did not see (of another rank, other dtypes, with another argument, under the autocast of another device, a gate on a
    GPU) goes to the forward that it had, and so do all after a setting of the module was changed; lngrad.torch.fallbacks()
    counts them.

    Args:
        model: Any module.
        verbose: Print a table of all normalizations (name, class, replaced or why not), and for each class, shape, dtype
            and device that is replaced the time of a step over that by its own forward, measured here.
        compiled: What replaced modules are under torch.compile: "lngrad", an opaque operator with the bits of eager code, or
            "torch", the formula that they had, which Inductor fuses with what is around it. None: the latter for CUDA tensors,
            and a torch.nn.LayerNorm on a GPU stays as it is where there is no native code to launch ours.

    Returns:
        How many were replaced.

    Raises:
        ValueError: compiled is another word.
    """
    if compiled not in (None, "lngrad", "torch"):
        raise ValueError(f"compiled: expected 'lngrad', 'torch' or None, got {compiled!r}")
    known: dict[Hashable, Formula | str | None] = {}
    modules = dict(model.named_modules())
    found = [_look(name, module, known) for name, module in modules.items()]
    rows = [row for row in found if row is not None]
    if compiled is None and not (native.module and native.module.launches()):
        rows = [_left_on_a_gpu(row, modules[row.name]) for row in rows]
    turned: list[Any] = []
    for row in rows:
        if row.turns_to is not None:
            turned.append(modules[row.name])
            _become(turned[-1], row.turns_to)
            vars(turned[-1])["lngrad_compiled"] = compiled
    if verbose:
        print(_table(rows), end="\n\n")
        with undisturbed():
            for line in _gains(turned):
                print(line)
    return len(turned)


def unpatch(model: torch.nn.Module) -> int:
    """Give every replaced module in a model its own class back; returns how many."""
    count = 0
    for module in model.modules():
        back = module.turned_from if isinstance(module, _Turned) else _BACK.get(type(module))
        if back is not None and not getattr(module, "offset", 0.0):
            _become(module, back)
            vars(module).pop("lngrad_compiled", None)
            count += 1
    return count


def _become(module: torch.nn.Module, kind: Any) -> None:
    """Change a module's class, and that forward of it which hooks set on the instance have kept."""
    forward = type(module).forward
    for name, value in vars(module).items():
        if getattr(value, "__func__", None) is forward and value.__self__ is module:
            vars(module)[name] = types.MethodType(kind.forward, module)
    module.__class__ = kind


# The classes that are made


class _Turned:
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
            _become(self, self.turned_from)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled as its own class and its formula: the class made for it can't be imported."""
        return _restore, (self.turned_from, self.formula), self.__dict__


def _restore(turned_from: Any, formula: Formula) -> Any:
    kind = _turned(turned_from, formula)
    return kind.__new__(kind)


@cache
def _turned(turned_from: Any, formula: Formula) -> Any:
    body = {
        "turned_from": turned_from,
        "formula": formula,
        "their_forward": _renamed(turned_from.forward, "their_forward"),
        "forward": _forward(turned_from, formula),
        "__module__": __name__,
    }
    return type(turned_from.__name__, (_Turned, turned_from), body)


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
    names: dict[str, Any] = {f"default_{one.name}": one.default for one in parameters}
    names |= {"torch": torch, "Turned": _Turned, "theirs": theirs, "ours": _ours(formula, turned_from.__name__)}
    header, alone, given = [own.replace(name="self")], "", []
    for one in parameters:
        default = one.empty if one.default is one.empty else _Name(f"default_{one.name}")
        kind = _annotation(one.annotation) if parameters[1:] else one.empty
        header.append(one.replace(annotation=kind, default=default))
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**", one.KEYWORD_ONLY: f"{one.name}="}.get(one.kind, "")  # type: ignore[call-overload]
        given.append(stars + one.name)
        if one in others:
            alone += f" and not {one.name}" if stars in ("*", "**") else f" and {one.name} is default_{one.name}"
    is_ours = len(parameters) == 1 == len({layout for _, layout in formula.axes})
    told = {"header": inspect.Signature(header), "alone": alone, "x": x, "given": ", ".join(given)}
    told["gate"] = formula.gate and f", {formula.gate}"
    script = _script(formula, x) if is_ours else f"self.their_forward({told['given']})"
    text = _TEMPLATE.format(script=script, **told)
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
        weight, bias = (None if one is None else getattr(module, one) for one in formula[:2])
        eps = getattr(module, formula.eps) if isinstance(formula.eps, str) else formula.eps
        is_traced = isinstance(x, torch.fx.Proxy)  # its rank and dtype are unknown: those of the samples are assumed
        layout = result = None
        if is_traced:
            layout = next(iter(only)) if len(only) == 1 and not formula.gate else None
        else:
            device = x.device.type
            autocast = device if device != "meta" and torch.is_autocast_enabled(device) else ""
            of_weight, of_bias, of_gate = (
                one if one is None else getattr(one, "dtype", "") for one in (weight, bias, gate)
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
            one if one is None or not (is_traced or one.ndim != len(sizes)) else one.reshape(sizes)
            for one in (weight, bias)
        )
        if gate is not None:
            ways: Any = {"norm_before_gate": not formula.gates_x, "group_size": formula.group, "offset": formula.offset}
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
    is_plain = torch.compiler.is_compiling() or {type(x), type(gate), type(weight)} <= operators.PLAIN
    is_recorded = torch.jit.is_tracing() or torch.onnx.is_in_onnx_export()
    is_here = x.device.type in ("cpu", "meta") and is_plain and not is_recorded
    return is_here and not any(_is_torchs("gated_rms_norm", one) for one in (x, gate)) and bool(gate.shape == x.shape)


# Looking


def _look(name: str, module: torch.nn.Module, known: dict[Hashable, Formula | str | None]) -> _Found | None:
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    if isinstance(module, LayerNorm | RMSNorm | _Turned):
        return _Found(name, kind, None, "is lngrad's already")
    turns_to, reason = _OWN.get(type(module)), ""
    if turns_to is None:
        if kind.startswith("torch.") and not isinstance(module, torch.nn.LayerNorm | torch.nn.RMSNorm):
            return None
        formula = _formula(module, known)
        if not isinstance(formula, Formula):
            return None if formula is None else _Found(name, kind, None, formula)
        kind_of_it: Any = type(module)
        turns_to, reason = _turned(kind_of_it, formula), _described(formula)
        if formula.gate and _is_on_a_gpu(module):
            return _Found(name, kind, None, "gates are computed on the CPU alone")
    if "forward" in vars(module) and not _calls_its_class(module):
        return _Found(name, kind, None, "its forward is set on the instance")
    return _Found(name, kind, turns_to, reason)


def _left_on_a_gpu(row: _Found, module: torch.nn.Module) -> _Found:
    """torch's own fused layer normalization is the faster one on a GPU where Python launches ours."""
    if row.turns_to is not LayerNorm or not _is_on_a_gpu(module):
        return row
    reason = "slower on a GPU without native code: lngrad info --warm, or compiled='lngrad'"
    return row._replace(turns_to=None, reason=reason)


def _is_on_a_gpu(module: torch.nn.Module) -> bool:
    return any(one.is_cuda for one in module.parameters(recurse=False))


def _formula(module: torch.nn.Module, known: dict[Hashable, Formula | str | None]) -> Formula | str | None:
    """learn's answer, once for modules that differ in nothing but their tensors' numbers."""
    ignored = vars(torch.nn.Module()).keys() - {"training"}
    tensors = {**module._parameters, **module._buffers}
    sizes = tuple((name, None if value is None else (value.shape, value.dtype)) for name, value in tensors.items())
    settings = ((name, value) for name, value in vars(module).items() if name not in ignored)
    facts = type(module), sizes, *settings, any(True for _ in module.children())
    try:
        hash(facts)
    except TypeError:
        return learn(module)
    if facts not in known:
        known[facts] = learn(module)
    return known[facts]


def _calls_its_class(module: torch.nn.Module) -> bool:
    """Whether a forward that was set on an instance calls its class's by an attribute, as dispatch hooks of accelerate do."""
    forward = vars(module)["forward"]
    called = getattr(getattr(getattr(forward, "func", forward), "__code__", None), "co_names", ())
    return any(getattr(vars(module).get(name), "__func__", None) is type(module).forward for name in called)


def _described(formula: Formula) -> str:
    kind = "" if formula.centred and not formula.offset else "layer normalization" if formula.centred else "RMS"
    if formula.gate:
        kind += f", {'of x' if formula.gates_x else 'then'} times silu({formula.gate})"
    kind += f", groups of {formula.group}" * bool(formula.group) + ", 1 + weight" * bool(formula.offset)
    parts = [kind + f", {formula.rounded}" * bool(formula.rounded)]
    for case in ("with", "without") if formula.gate else ("",):
        taken = {x for (x, *_, gate), _ in formula.dtypes if (gate is not None) == (case == "with")}
        left = [str(one)[6:] for one in (torch.bfloat16, torch.float16) if one not in taken] if taken else ["calls"]
        if left:
            parts.append(f"{', '.join(left)}{f' {case} {formula.gate}' * bool(case)} by its own forward")
    return "; ".join(filter(None, parts))


def _table(rows: list[_Found]) -> str:
    if not rows:
        return "no layer normalization found"
    cells = [("module", "class", "replaced")]
    for row in rows:
        turned = ("yes" if row.turns_to else "no") + (f": {row.reason}" if row.reason else "")
        cells.append((row.name or "(the model)", row.kind, turned))
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


# What it gains

_ROWS, _MOST_ELEMENTS = (128, 8192), 1 << 22  # of a step that is timed
_ROUNDS, _TURN = 5, 0.002  # turns of each, and seconds of one


def _gains(modules: list[Any]) -> Iterator[str]:
    """For each class, shape, dtype and device of turned modules, a line: the time of a step over that by its own forward."""
    seen = set()
    for module in modules:
        leaves = [one for one in module.parameters(recurse=False) if one.requires_grad]
        shape, lead = _sample(module)
        if shape is None or not leaves or leaves[0].device.type not in ("cpu", "cuda"):
            continue
        theirs = getattr(type(module), "turned_from", None) or _BACK[type(module)]
        row = theirs.__name__, shape, leaves[0].dtype, leaves[0].device
        if row in seen:
            continue
        seen.add(row)
        ratios, others = [], Others()
        for rows in sorted({min(rows, max(1, _MOST_ELEMENTS // math.prod(shape))) for rows in _ROWS}):
            given = [torch.randn(lead(rows)).to(row[3], row[2]).requires_grad_() for _ in range(1 + _has_gate(module))]
            ratio = _ratio(module, theirs.forward, given, leaves)
            ratios.append(f"{rows} rows {ratio:.2f}{' (slower)' * (ratio > 1)}")
        found = "not measured: the machine is busy" if others.share() > BUSY else ", ".join(ratios)
        yield f"{row[0]} {shape}, {str(row[2])[6:]} on {row[3]}: time of a step over that by its own forward: {found}"


def _sample(module: Any) -> tuple[tuple[int, ...] | None, Callable[[int], tuple[int, ...]]]:
    """The normalized shape, and the shape of an input by its number of rows."""
    if not isinstance(module, _Turned):
        shape = tuple(module.normalized_shape)
        return shape, lambda rows: (rows, *shape)
    weight: Any = getattr(module, module.formula.weight or "", None)
    sizes = module.formula.shape or (None if weight is None else (weight.numel(),))
    ndim, layout = max(module.formula.axes)
    if sizes is None or layout == CHANNELS_FIRST:
        return sizes, lambda rows: (1, *(sizes or ()), rows, *[1] * (ndim - 3))
    return sizes, lambda rows: (*[1] * (ndim - 1 - len(sizes)), rows, *sizes)


def _has_gate(module: Any) -> bool:
    return isinstance(module, _Turned) and bool(module.formula.gate)


def _ratio(module: Any, theirs: Any, given: list[Any], leaves: list[Any]) -> float:
    """A step's least time by our forward over that by theirs, in turns."""

    def seconds(forward: Any, count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            y = forward(module, *given)
            torch.autograd.grad(y, [*given, *leaves], y.detach())
        if y.is_cuda:
            torch.cuda.synchronize(y.device)
        return (time.perf_counter() - began) / count

    ways = type(module).forward, theirs
    with torch.enable_grad():
        counts = [
            1 + int(_TURN / max(seconds(way, 1) and seconds(way, 1), 1e-6)) for way in ways
        ]  # the first one compiles
        turns = [[seconds(way, count) for way, count in zip(ways, counts, strict=True)] for _ in range(_ROUNDS)]
    ours, others = map(min, zip(*turns, strict=True))
    return float(ours / others)
