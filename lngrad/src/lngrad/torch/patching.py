"""Normalizations of a model, replaced: torch's own classes, and others that a trial shows to compute the same."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import torch

from lngrad.core.machine import BUSY, Others
from lngrad.torch import native
from lngrad.torch.functions import LayerNorm, RMSNorm
from lngrad.torch.trial import CHANNELS_FIRST, LAST, Formula, learn, undisturbed
from lngrad.torch.turned import Turned, become, their_class, turned_class

_OWN = {torch.nn.LayerNorm: LayerNorm, torch.nn.RMSNorm: RMSNorm}
_BACK = {ours: theirs for theirs, ours in _OWN.items()}
_FORWARDS = {theirs: theirs.forward for theirs in _OWN}
_registered: dict[type, Formula] = {}


class _Found(NamedTuple):
    """What is known of one module: as which class it is turned, or None, and what there is to say of it."""

    name: str
    kind: str
    turns_to: type[torch.nn.Module] | None
    reason: str


def patch(model: torch.nn.Module, *, verbose: bool = False, compiled: str | None = None) -> int:
    """Replace every layer and RMS normalization in a model, itself included, by lngrad's. Parameters and hooks stay.

    torch.nn.LayerNorm becomes a LayerNorm, torch.nn.RMSNorm an RMSNorm. The forward of any other class is read: if it is
    pure and analytic, and layer or RMS normalization over the last axes or over axis 1, by weight or 1 + weight, it is
    replaced. Calls that were not tried, and all while what was read has another value, go to the forward that it had.

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
        TypeError: model is no module.
        ValueError: compiled is another word.
    """
    _check(model)
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
            kind: Any = row.turns_to
            is_theirs = issubclass(kind, Turned)
            become(turned[-1], turned_class(kind.turned_from, kind.norm_formula, compiled) if is_theirs else kind)
            if not is_theirs:
                vars(turned[-1])["lngrad_compiled"] = compiled
    if verbose:
        print(_table(rows), end="\n\n")
        with undisturbed():
            for line in _gains(turned):
                print(line)
    return len(turned)


def register_norm(cls: type[torch.nn.Module], formula: Formula) -> None:
    """Say which formula the forward of a class is, where patch cannot read it: compiled code, or autograd Functions of its own.

    You answer for it: nothing is tried. Formula(weight="weight", eps="eps") is RMS normalization of the last axis, and
    Formula("weight", "bias", 1e-5, centred=True) is LayerNorm.

    Raises:
        TypeError: cls is no class of modules, or formula no Formula.
    """
    if not (isinstance(cls, type) and issubclass(cls, torch.nn.Module)):
        raise TypeError(f"cls: expected a class of modules, got {cls!r}")
    if not isinstance(formula, Formula):
        raise TypeError(f"formula: expected a Formula, got {formula!r}")
    _registered[cls] = formula


def unpatch(model: torch.nn.Module) -> int:
    """Give every replaced module in a model its own class back; returns how many."""
    _check(model)
    back: dict[Any, Any] = {}  # modules of a class have one again
    count = 0
    for module in model.modules():
        kind = type(module)
        is_patched = isinstance(module, Turned) or kind in _BACK or "lngrad_compiled" in vars(module)
        if is_patched and not getattr(module, "offset", 0.0):
            back[kind] = back.get(kind) or their_class(kind, _BACK)
            become(module, back[kind])
            vars(module).pop("lngrad_compiled", None)
            count += 1
    return count


def _check(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        hint = "; give it a module, not its class" if isinstance(model, type) else ""
        raise TypeError(f"model: expected a torch.nn.Module, got {model!r}{hint}")


# Looking


def _look(name: str, module: torch.nn.Module, known: dict[Hashable, Formula | str | None]) -> _Found | None:
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    if isinstance(module, LayerNorm | RMSNorm | Turned):
        return _Found(name, kind, None, "is lngrad's already")
    turns_to, reason = _OWN.get(type(module)), ""
    if turns_to is None or type(module).forward is not _FORWARDS[type(module)]:
        if kind.startswith("torch.") and not isinstance(module, torch.nn.LayerNorm | torch.nn.RMSNorm):
            return None
        formula = _registered.get(type(module)) or _formula(module, known)
        if not isinstance(formula, Formula):
            return None if formula is None else _Found(name, kind, None, formula)
        kind_of_it: Any = type(module)
        turns_to, reason = turned_class(kind_of_it, formula), _described(formula)
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
    return any(parameter.is_cuda for parameter in module.parameters(recurse=False))


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
    parts = [kind + ", 1 + weight" * bool(formula.offset) + f", {formula.rounded}" * bool(formula.rounded)]
    taken = {x for (x, *_), _ in formula.dtypes or ()}
    left = [str(dtype)[6:] for dtype in (torch.bfloat16, torch.float16) if dtype not in taken and taken]
    return "; ".join(filter(None, [*parts, f"{', '.join(left)} by its own forward" * bool(left)]))


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
_ASKED = 0.1  # seconds that show whether the machine is busy
_BUSY = "not measured: the machine is busy"


def _gains(modules: list[Any]) -> Iterator[str]:
    """For each class, shape, dtype and device of turned modules, a line: the time of a step over that by its own forward."""
    seen, others = set(), Others()
    time.sleep(_ASKED)
    for module in modules:
        leaves = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
        shape, _ = _sample(module)
        if shape is None or not leaves or leaves[0].device.type not in ("cpu", "cuda"):
            continue
        theirs = getattr(type(module), "turned_from", None) or _BACK[type(module)]
        row = theirs.__name__, shape, leaves[0].dtype, leaves[0].device
        if row in seen:
            continue
        seen.add(row)
        found = _BUSY
        if others.share() <= BUSY:  # else it will be no less so
            others = Others()
            ratios = _ratios(module, theirs.forward, leaves)
            found = _BUSY if others.share() > BUSY else ratios
        yield f"{row[0]} {shape}, {str(row[2])[6:]} on {row[3]}: time of a step over that by its own forward: {found}"


def _ratios(module: Any, theirs: Any, leaves: list[Any]) -> str:
    shape: Any
    shape, lead = _sample(module)
    found = []
    for rows in sorted({min(rows, max(1, _MOST_ELEMENTS // math.prod(shape))) for rows in _ROWS}):
        inputs = [torch.randn(lead(rows)).to(leaves[0]).requires_grad_()]
        try:
            ratio = _ratio(module, theirs, inputs, leaves)
        except Exception as error:  # of a forward that does not take such a call
            return f"not measured: {type(error).__name__}"
        found.append(f"{rows} rows {ratio:.2f}{' (slower)' * (ratio > 1)}")
    return ", ".join(found)


def _sample(module: Any) -> tuple[tuple[int, ...] | None, Callable[[int], tuple[int, ...]]]:
    """The normalized shape, and the shape of an input by its number of rows."""
    if not isinstance(module, Turned):
        shape = tuple(module.normalized_shape)
        return shape, lambda rows: (rows, *shape)
    weight: Any = getattr(module, module.norm_formula.weight or "", None)
    sizes = module.norm_formula.shape or (None if weight is None else (weight.numel(),))
    ndim, layout = max(module.norm_formula.axes or {(2, LAST)})
    if sizes is None or layout == CHANNELS_FIRST:
        return sizes, lambda rows: (1, *(sizes or ()), rows, *[1] * (ndim - 3))
    return sizes, lambda rows: (*[1] * (ndim - 1 - len(sizes)), rows, *sizes)


def _ratio(module: Any, theirs: Any, inputs: list[Any], leaves: list[Any]) -> float:
    """A step's least time by our forward over that by theirs, in turns."""

    def seconds(forward: Any, count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            y = forward(module, *inputs)
            torch.autograd.grad(y, [*inputs, *leaves], y.detach(), allow_unused=True)
        if y.is_cuda:
            torch.cuda.synchronize(y.device)
        return (time.perf_counter() - began) / count

    ways = type(module).forward, theirs
    with torch.enable_grad():
        counts = [1 + int(_TURN / max(min(seconds(way, 1), seconds(way, 1)), 1e-6)) for way in ways]  # one compiles
        turns = [[seconds(way, count) for way, count in zip(ways, counts, strict=True)] for _ in range(_ROUNDS)]
    ours, others = map(min, zip(*turns, strict=True))
    return float(ours / others)
