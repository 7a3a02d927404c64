"""Forwards that users have, in torch or JAX: a trial finds their signature, their library differentiates them.

A trial calls what somebody has, in all ways that names of its arguments leave open, until one gives a norm of the family.
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import permutations, product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lngrad.check.case import STATISTICS
from lngrad.check.implementations.hub import layer
from lngrad.check.implementations.implementation import (
    FORWARD_ALONE,
    OVERWRITTEN,
    Arguments,
    Fault,
    Implementation,
    NotApplicable,
    Rule,
    Signature,
    first_line,
    unprepared,
)
from lngrad.check.implementations.libraries import jax_float64, set_torch_threads, statistics_of_x, xla_flushes
from lngrad.check.implementations.ours import on_device, require_triton, where_triton_runs
from lngrad.check.implementations.users import imported, on_host, users_function
from lngrad.check.inputs import true_grads
from lngrad.core import reference
from lngrad.core.norms import NORMS, norm_with
from lngrad.errors import BackendUnavailable
from lngrad.support.dtypes import DTYPES, UNIT_ROUNDOFF, bytes_of, numpy_dtype
from lngrad.typing import Array, Shape

# What a parameter or an attribute is, by its name. Another one is found by trial, in the order of the rows.
ROLES = {
    "weight": ("weight", "gamma", "w", "scale", "g", "kernel"),
    "bias": ("bias", "beta", "b", "shift"),
    "eps": ("eps", "epsilon", "variance_epsilon", "norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps"),
    "residual": ("residual", "res", "r", "residual_in", "prev_residual"),
    "gate": ("gate", "z"),
    "shape": ("normalized_shape", "shape", "normalized"),
    "offset": ("offset",),
    "alpha": ("alpha",),
}
_ROLE_OF = {"dx": "x", "dgamma": "weight", "dbeta": "bias", "dgate": "gate"}  # whose gradient a result is
TRIED = ("rms_norm", "layer_norm", "gemma_rms_norm", "zero_centred_layer_norm", "add_rms_norm", "deep_norm",
         "add_layer_norm", "gated_rms_norm", "rms_norm_of_gated")  # fmt: skip  # what takes alpha is both of add_… and deep_…
_EPS = 0.37  # so large that a forward which does not take it gives itself away
_CLOSE = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}  # of a sample, by the largest element of a row
_LEAST = {"float32": 1e-6, "bfloat16": 1e-3, "float16": 1e-3}  # of a row, where a written eps shows
_SIZES = 64, 48, 128  # of samples: a kernel that takes one of them alone has a size of its own
_LEADS = ((2, 3), (4,))  # rows of a sample: some forwards take two dimensions alone


_Returned: TypeAlias = "tuple[str | None, ...]"  # the names of results in their order; None for what is not judged


class _Library(NamedTuple):
    """What a forward is written in.

    Attributes:
        name: Of its module.
        owners: How modules of the types begin that only this library can call.
        array: One of its arrays, of a NumPy array.
        gradients: What a call of arrays by role returns, and gradients by role, of these arrays and of dy for each output that
            has one; None: there are none. It raises NotApplicable where the forward refuses the inputs, and Fault where the
            backward raises or there is none.
        takes: Rules besides.
    """

    name: str
    owners: tuple[str, ...]
    array: Callable[[Array], Any]
    gradients: Callable[[Callable[[dict[str, Any]], Any], dict[str, Any], list[Any]], tuple[Any, dict[str, Any]]] | None
    takes: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class _Way:
    """One way to call a forward: which role has which name there, the call by role, shape and eps, and how it is written."""

    roles: dict[str, str]
    call: Callable[[dict[str, Any], Shape, float], Any]
    text: str
    written: str = ""
    own: int | None = None  # the size of its parameters, whatever is asked for


def forward(name: str) -> Implementation:
    """What module:NAME, FILE.py:NAME or hub:FOLDER is: a backward of the user's, or a forward that is differentiated here.

    Raises:
        BackendUnavailable: There is no such thing, or no way to call it gives an array.
    """
    return implementation_of(layer(name.removeprefix("hub:")) if name.startswith("hub:") else imported(name), name)


def implementation_of(target: Any, name: str, has_backward: bool = True) -> Implementation:
    """What a function, a module or a class computes; a function with a parameter dy is a backward. Raises as `forward`."""
    if inspect.isfunction(target) and "dy" in inspect.signature(target).parameters:
        return users_function(name, target=target)
    has_backward = has_backward and getattr(target, "has_backward", True) is not False
    owned, best = _libraries_of(target), None
    refused = ""
    for lead, library in product(_LEADS, [difference for difference in owned if find_spec(difference.name)]):
        for way in _ways(library, target):
            if way.roles.keys() >= {"residual", "gate"}:
                refused = refused or "no norm has both a residual and a gate"
                continue
            found = _tried(library, way, lead)
            if isinstance(found, Exception) and way.own:
                found = _tried(library, way, lead, (way.own,))
            if isinstance(found, Exception):
                refused = refused or f"a call gave {first_line(found)}"  # of the likeliest way
            elif best is None or found[0] < best[0]:
                best = (*found, library, way)
                if found[0] <= 1:
                    return _implementation(name, has_backward, *best)
    if best is None:
        expected = "a function with a parameter dy, or a forward of x, weight, bias and eps"
        raise BackendUnavailable(f"--impl: {name}: expected {expected}; {refused or 'there is no torch and no JAX'}")
    return _implementation(name, has_backward, *best)


def triton_function(name: str) -> Implementation:
    """A function that launches Triton kernels, on tensors: a backward, if it has a parameter dy, else a forward. Raises as
    `forward`."""
    require_triton()
    target = imported(name)
    if inspect.isfunction(target) and "dy" not in inspect.signature(target).parameters:
        row = implementation_of(target, name, has_backward=False)
    else:
        row = users_function(name, on_gpu=True, target=target)
    return where_triton_runs(row)


def _libraries_of(target: Any) -> Sequence[_Library]:
    """What somebody's forward may be written in: by the types of a class, or by what its module imports."""
    kinds = [kind.__module__ for kind in (target if isinstance(target, type) else type(target)).__mro__]
    if owned := [library for library in LIBRARIES if any(kind.startswith(library.owners) for kind in kinds)]:
        return owned
    known = vars(sys.modules.get(getattr(target, "__module__", "") or "", object)).values()
    roots = {
        str(getattr(item, "__module__", None) or getattr(item, "__name__", "")).partition(".")[0] for item in known
    }
    imported = [library for library in LIBRARIES if library.name in roots]
    return imported if [library.name for library in imported] == ["numpy"] else LIBRARIES


def _implementation(
    name: str, has_backward: bool, share: float, norms: tuple[str, ...], eps: float | None, returned: _Returned,
    library: _Library, way: _Way,
) -> Implementation:  # fmt: skip
    names = [way.text, *(f"{role} is {label}" for role, label in way.roles.items())]
    names += [f"eps is {eps:g}"] if eps is not None else []
    gives, size = [result for result in returned if result], None
    text = f"taken as {norms[0]}: {', '.join(names)}"
    if gives[1:]:
        others = ["the total" if result == "total" else result for result in gives[1:]]
        text += f"; returns y{''.join(f', {other}' for other in others[:-1])} and {others[-1]}"
    has_backward = has_backward and library.gradients is not None
    takes: tuple[Rule, ...] = (*(statistics_of_x,) * has_backward, *library.takes)
    computes: Collection[str] = norms
    if share > 1:  # of a wrong forward nothing is sure
        text += f"; in a trial its forward was off by {share * _CLOSE['float32']:.2g} of the largest element of a row"
        text, computes = text + ", and its eps is not clear" * (eps is None and "eps" not in way.roles), NORMS
    else:
        tried = {number: _tried(library, way, (3,), (number,)) for number in {*_SIZES, way.own or 64}}
        taken = [number for number, found in tried.items() if not isinstance(found, Exception)]
        size = taken[0] if len(taken) == 1 else None
        text += f"; of {size} columns alone, which all cases have" if size else ""
        if isinstance(two_axes := _tried(library, way, (3,), (4, 16)), Exception) or two_axes[0] > 1:
            takes = (*takes, lambda case, _: "it normalizes one axis" if len(case.normalized) > 1 else None)
        if "weight" in way.roles and not isinstance(_tried(library, way, (2, 3), own=(2, 1)), Exception):
            computes = [
                name
                for name, norm in NORMS.items()
                if norm_with(norm.normalization._replace(modulated=False), norm.residual, norm.gated).name in norms
            ]
    text += f"; {FORWARD_ALONE}" * (not has_backward)
    has = "weight" in way.roles, "bias" in way.roles
    cuda: Any = library.name == "torch" and sys.modules["torch"].cuda
    where = f"on {cuda.get_device_name()}" if cuda and cuda.is_available() else ""
    return Implementation(
        name, unprepared(partial(_results, library, way, returned, has_backward)), norms=computes, takes=takes, where=where,
        set_threads=set_torch_threads if library.name == "torch" else None, own_statistics=NORMS,
        signature=Signature(norms, text, *has, eps, way.written, library.name, tuple(gives), has_backward, size),
    )  # fmt: skip


def _results(library: _Library, way: _Way, returned: _Returned, has_backward: bool, a: Arguments) -> dict[str, Any]:
    """One call and its derivative, by name."""
    eps = a.eps if a.case is None else a.case.eps
    gamma = np.ones(a.normalized_shape, a.x.dtype) if a.gamma is None else a.gamma
    bias = np.zeros_like(gamma) if a.beta is None else a.beta
    arrays = {"x": a.x if a.summand is None else a.summand, "weight": gamma, "bias": bias}
    arrays |= {"residual": a.residual, "gate": a.gate}
    leaves = {role: array for role, array in arrays.items() if role == "x" or role in way.roles}
    switches = {"offset": a.offset, "alpha": a.alpha}

    def call(arrays: dict[str, Any]) -> tuple[Any, ...]:
        try:
            results = _outputs(way.call(arrays | switches, a.normalized_shape, eps))
        except Exception as error:
            if "in-place operation" in str(error):  # torch sees that x is written to
                raise Fault(OVERWRITTEN, f"the forward writes to its inputs: {first_line(error)}") from None
            raise NotApplicable(first_line(error)) from None
        if tuple(results[0].shape) != tuple(arrays["x"].shape):
            raise Fault("another shape", f"y: expected {tuple(arrays['x'].shape)}, got {tuple(results[0].shape)}")
        return results

    inputs, found = {role: library.array(array) for role, array in leaves.items()}, dict[str, Any]()
    if has_backward and library.gradients is not None:
        dys = [{"y": a.dy, "total": a.dtotal}.get(label or "") for label in returned]
        results, found = library.gradients(call, inputs, dys)
    else:
        results = call(inputs)
    gradients = [label for label in a.wanted if label in _ROLE_OF]
    for label in gradients:
        role = _ROLE_OF[label]
        if role in leaves and found[role] is None:
            raise Fault("no gradient", f"{label} is None: backward returns nothing for {way.roles.get(role, role)}")
    if "residual" in found and "dx" in a.wanted:
        found["x"] = _of_the_total(a, found["x"], found["residual"])
    forward = {
        label: _judged(a, label, array) for label, array in zip(returned, results, strict=False) if label in a.wanted
    }
    return {label: found.get(_ROLE_OF[label]) for label in gradients} | forward


def _judged(a: Arguments, label: Any, result: Any) -> Array:
    """A result of the forward: a statistic as it is declared, and what x and gamma of two dtypes have widened, narrowed."""
    array, dtype = _on_host(result), (a.declared or {})[label]
    if array.dtype.name not in DTYPES:
        raise Fault("another dtype", f"{label}: expected {dtype}, got {array.dtype.name}")
    if label in STATISTICS:
        lead = a.x.shape[: a.x.ndim - len(a.normalized_shape)]
        return array.reshape(*lead, *(1 for _ in a.normalized_shape)).astype(dtype)
    is_mixed = a.gamma is not None and a.gamma.dtype != a.x.dtype
    return array.astype(numpy_dtype(dtype)) if is_mixed and array.itemsize > bytes_of(dtype) else array


def _on_host(result: Any) -> Array:
    return np.array(on_host(result.detach()) if hasattr(result, "detach") else result)


def _of_the_total(a: Arguments, of_x: Any, of_residual: Any) -> Any:
    """The total's gradient: the residual's, and x's over alpha; where these differ, the one that is further from the truth."""
    if of_residual is None:
        raise Fault("no gradient", "backward returns nothing for the residual")
    if a.case is not None and a.case.of_total == "residual":
        return of_residual
    own, total = (np.array(on_host(array)).astype(np.float64) for array in (of_x, of_residual))
    with np.errstate(all="ignore"):
        apart = np.abs(own - a.alpha * total) > 4 * a.alpha * UNIT_ROUNDOFF[a.x.dtype.name] * np.abs(total).max(
            initial=0
        )
        if not apart.any() or a.exact is None:
            return of_residual
        of_total, true = own / a.alpha, true_grads(a.exact).dx
        errors = [np.nan_to_num(np.abs(array - true), nan=np.inf).max() for array in (total, of_total)]
    is_own = errors[0] <= errors[1] or (a.case is not None and a.case.of_total == "x")
    return of_total.astype(a.x.dtype) if is_own else of_residual


def _outputs(results: Any) -> tuple[Any, ...]:
    """y, and what a forward returned behind it: a total, statistics."""
    return tuple(results) if isinstance(results, tuple | list) else (results,)


# The trial


def _tried(
    library: _Library, way: _Way, lead: Shape, shape: Shape = (64,), own: Shape = ()
) -> tuple[Any, ...] | Exception:
    """How far a call is from the nearest norm, in tolerances; which norms it gives, the epsilon that is written in it, and
    what it returns.

    Where it raises in each dtype, whatever somebody's forward does with a sample that it is not made for: the last error.
    """
    for dtype, close in _CLOSE.items():
        try:
            found = list(_shares(library, way, dtype, lead, shape, own))
        except Exception as reason:
            error = reason
            continue
        if not found:
            error = ValueError("no array of x's shape")
            continue
        multiples = [item for item in found if item[4] <= close]  # of the right y, if it is not that itself
        norm, eps, share, returned, _ = min(multiples or found, key=lambda item: item[2])
        norms = tuple(other for other, its, share, *_ in found if its == eps and share <= close)
        is_shown = "eps" not in way.roles and (share <= close or f"{eps:.3e}".startswith("1.000e"))
        return share / close, norms or (norm,), eps if is_shown else None, returned
    return error


def _shares(
    library: _Library, way: _Way, dtype: str, lead: Shape, shape: Shape, own: Shape
) -> Iterator[tuple[str, float, float, _Returned, float]]:
    """(norm, epsilon, error over the largest element of a row, what is returned, error of a multiple) of a sample, by norm."""
    rng, axes, has_residual = np.random.default_rng(0), tuple(range(-len(shape), 0)), "residual" in way.roles
    has_gate = "gate" in way.roles
    deviations = np.geomspace(1, _LEAST[dtype], math.prod(lead)).reshape(*lead, *(1 for _ in shape))
    drawn: dict[str, Array] = {
        role: rng.normal(size=(*own, *shape)) for role in ("weight", "bias") if role in way.roles
    }
    drawn |= {role: rng.normal(0.5, 1, (*lead, *shape)) * deviations for role in ("x", "residual")[: 1 + has_residual]}
    drawn |= {"gate": rng.normal(size=(*lead, *shape))} if has_gate else {}
    sample = {role: array.astype(numpy_dtype(dtype)) for role, array in drawn.items()}
    x, weight, bias = (sample.get(role) for role in ("x", "weight", "bias"))
    for norm in (name for name in TRIED if (NORMS[name].residual, NORMS[name].gated) == (has_residual, has_gate)):
        normalization, gate = NORMS[norm].normalization, sample.get("gate")
        total: Any = normalization.alpha * np.asarray(x, float) + np.asarray(sample.get("residual", 0), float)
        arrays = {role: library.array(array) for role, array in sample.items()}
        arrays |= {"offset": normalization.offset, "alpha": normalization.alpha}
        results = _outputs(way.call(arrays, shape, _EPS))
        got = [_on_host(item).astype(np.float64) if isinstance(item, type(arrays["x"])) else None for item in results]
        if not got or got[0] is None or got[0].shape != total.shape:
            continue  # a function of JAX takes torch's tensors too, and gives none
        facts: dict[str, Any] = {"normalized": len(shape), "normalization": normalization, "gate": gate}
        true: Any = partial(reference.layer_norm, total, weight, bias, **facts)
        eps = _EPS if "eps" in way.roles else _written(got[0], true(eps=0.0), 0.0 if bias is None else bias, axes)
        right = true(eps=eps)
        returned: _Returned = ("y", *_named(got[1:], right, total if has_residual else None, normalization.centred))
        pairs = [(got[0], right.y)] + [(got[at], total) for at, label in enumerate(returned) if label == "total"]
        off = [np.abs(array - true).max(axes) / np.abs(true).max(axes) for array, true in pairs]
        factor = (got[0] * right.y).sum() / np.square(right.y).sum()
        unlike = np.abs(got[0] - factor * right.y).max(axes) / np.abs(right.y).max(axes)
        yield norm, eps, float(np.max(off)), returned, float(np.max(unlike))


def _named(others: Sequence[Any], right: Any, total: Any, centred: bool) -> Iterator[str | None]:
    """What a forward returns behind y: the total, mean and rstd, by their values or else in this order; None is not judged."""
    statistics = {"mean": right.mean.ravel()} if centred else {}
    statistics["rstd"] = right.rstd.ravel()
    deviation = 1 / statistics["rstd"]

    def is_near(array: Array, true: Array) -> bool:
        return bool(np.allclose(array, true, _CLOSE["float32"], 0.0))  # noqa: TID251  # a likeness, no verdict

    for array in others:
        label = None
        if array is not None and total is not None and array.shape == total.shape:
            label, total = "total", None
        elif array is not None and array.size == deviation.size:
            flat = array.ravel()
            if not any(is_near(flat, other) for other in (deviation, deviation**2)):  # are a choice
                label = next(
                    (name for name, true in statistics.items() if is_near(flat, true)), next(iter(statistics), None)
                )
                statistics.pop(label or "", None)
        yield label


def _written(y: Array, true: Any, bias: Any, axes: Shape) -> float:
    """The epsilon of y beside the same norm without one: what is added to a variance that nearly vanishes."""
    hat, variances = true.y - bias, np.ravel(true.rstd) ** -2.0
    first, *_, last = variances * np.square(np.square(hat).sum(axes) / ((y - bias) * hat).sum(axes)).ravel()
    multiple = first / variances[0]  # of variance plus eps, in a wrong norm
    eps = last - multiple * variances[-1]
    if not 1e-3 * variances[-1] < eps < math.inf:
        return 0.0
    near = [(array, float(f"1e{round(math.log10(array))}")) for array in (eps, eps / multiple)]
    return next((plain for number, plain in near if abs(number / plain - 1) < 0.05), float(f"{eps:.3g}"))


# The forms


def _ways(library: _Library, target: Any) -> Iterator[_Way]:
    """All ways to call what somebody has, the likeliest first."""
    if hasattr(target, "init") and hasattr(target, "apply"):  # flax.linen
        return _of_flax(target)
    if hasattr(target, "named_parameters"):  # torch.nn
        return _of_modules(*_maker(target))
    is_operator = isinstance(target, type) and hasattr(target, "apply")
    call, described = (target.apply, target.forward) if is_operator else (target, target)
    parameters = list(inspect.signature(described).parameters.values())[is_operator:]  # without ctx
    return _assigned(call, parameters, "kernel.apply" if is_operator else "kernel")


def _assigned(call: Callable[..., Any], parameters: list[Any], written: str) -> Iterator[_Way]:
    """A function's arguments have roles by their names; others are tried, if they have no default."""
    named = [
        parameter for parameter in parameters if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    roles = {difference.name: _role(difference.name) for difference in named[1:]}
    free = [
        parameter.name
        for parameter in named[1:]
        if roles[parameter.name] is None and parameter.default is parameter.empty
    ]
    for chosen in permutations([role for role in ROLES if role not in roles.values()], len(free)):
        taken = roles | dict(zip(free, chosen, strict=True))
        last = max((number for number, difference in enumerate(named[1:], 1) if taken[difference.name]), default=0)
        order = [(difference, taken.get(difference.name, "x")) for difference in named[: last + 1]]
        words = (
            f"{parameter.name}=" * (parameter.kind is parameter.KEYWORD_ONLY) + (role or repr(parameter.default))
            for parameter, role in order
        )

        def run(arrays: dict[str, Any], shape: Shape, eps: float, order: Any = order) -> Any:
            values = arrays | {"shape": shape, "eps": eps}
            passed = [(parameter, values.get(role) if role else parameter.default) for parameter, role in order]
            at = [value for parameter, value in passed if parameter.kind is not parameter.KEYWORD_ONLY]
            return call(
                *at,
                **{parameter.name: value for parameter, value in passed if parameter.kind is parameter.KEYWORD_ONLY},
            )

        names = {role: difference.name for difference, role in order[1:] if role}
        yield _Way(names, run, f"x is {named[0].name}", f"{written}({', '.join(words)})")


def _role(name: str) -> str | None:
    return next((role for role, names in ROLES.items() if name.lower() in names), None)


def _of_modules(make: Callable[[Shape, float], Any], written: str) -> Iterator[_Way]:
    """torch's modules, on parameters that are given: over the last axis, or over axis 1 as images have it."""
    import torch

    modules: dict[Any, Any] = {}

    def module(shape: Shape, eps: float) -> Any:
        if (shape, eps) not in modules:
            module = make(shape, eps)
            for part in module.modules():
                vars(part).update(dict.fromkeys(epsilons(part), eps))
            modules[shape, eps] = module.cuda() if torch.cuda.is_available() else module
        return modules[shape, eps]

    def epsilons(part: Any) -> list[str]:
        return [name for name, value in vars(part).items() if _role(name) == "eps" and isinstance(value, float)]

    first = module((64,), _EPS)
    parts = {role: label for label, _ in first.named_parameters() if (role := _role(label.rpartition(".")[2]))}
    others = dict([("eps", name) for part in first.modules() for name in epsilons(part)][:1])
    written_parts = ", ".join(f"{label!r}: {role}" for role, label in parts.items())

    def run(arrays: dict[str, Any], shape: Shape, eps: float, way: _Way, turned: bool) -> Any:
        returned = way.call(arrays, shape, eps)
        returned = (arrays["x"].movedim(-1, 1), *returned[1:]) if turned else returned
        parameters = {label: arrays[role] for role, label in parts.items()}
        results = torch.func.functional_call(module(shape, eps), parameters, returned)
        return results.movedim(1, -1) if turned else results

    own = next((parameter.numel() for parameter in first.parameters()), None)
    parameters = list(inspect.signature(first.forward).parameters.values())
    for way, turned in product(_assigned(lambda *arguments_: arguments_, parameters, ""), (False, True)):
        text = way.text + " with the normalized axis as axis 1" * turned
        call = f"torch.func.functional_call({written}, {{{written_parts}}}, ({way.written[1:-1]},))"
        script = "" if turned or not written else call
        yield _Way({**parts, **others, **way.roles}, partial(run, way=way, turned=turned), text, script, own)


def _maker(target: Any) -> tuple[Callable[[Shape, float], Any], str]:
    """What makes a module of a shape and an epsilon: from an instance, a layer of the hub, KernelBench's file or a class."""
    import torch

    if not isinstance(target, type):
        old = next((tuple(parameter.shape) for parameter in target.parameters()), ())

        def resized(shape: Shape, eps: float) -> Any:
            """A copy in which attributes that have its parameters' size have the case's."""
            module, sizes = copy.deepcopy(target), {old: shape, **dict.fromkeys(old[:1], shape[0])}
            for part in module.modules():
                same = [(name, var) for name, var in vars(part).items() if type(var) in (int, tuple) and var in sizes]
                vars(part).update({name: sizes[value] for name, value in same})
            return module

        return resized, ""
    attributes = [name for kind in target.__mro__ for name in inspect.get_annotations(kind) if _role(name)]
    if attributes and target.__init__ is torch.nn.Module.__init__:  # type: ignore[misc]  # it is a class

        def layer_of(shape: Shape, eps: float) -> Any:
            """A layer has no constructor: it stands for a module that has its attributes."""
            module = target()
            for name in attributes:
                setattr(module, name, eps if _role(name) == "eps" else torch.nn.Parameter(torch.ones(shape)))
            return module

        return layer_of, ""
    file = sys.modules[target.__module__]
    if hasattr(file, "get_init_inputs"):
        sizes, settings = file.get_inputs()[0].shape[1:], file.get_init_inputs()

        def fitted(value: Any, shape: Any, first: Any) -> Any:
            """What is x's size becomes the case's."""
            if isinstance(value, tuple | list):
                return shape if tuple(value) == tuple(sizes[-len(value) :]) else value
            return first if type(value) is int and value in sizes else value

        words = ", ".join(str(fitted(value, "shape", "N")) for value in settings)
        return (lambda shape, eps: target(*(fitted(value, shape, shape[0]) for value in settings))), f"kernel({words})"
    parameters = inspect.signature(target).parameters.values()
    names = [
        parameter.name
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    eps_names = [name for name in names if _role(name) == "eps"][:1]
    has_size = len(names) > len(eps_names)

    def module_of(shape: Shape, eps: float) -> Any:
        size = (shape[0] if len(shape) == 1 else shape,) * has_size
        return target(*size, **dict.fromkeys(eps_names, eps))

    return module_of, f"kernel({', '.join(['N'] * has_size + [f'{name}=eps' for name in eps_names])})"


def _of_flax(target: Any) -> Iterator[_Way]:
    """flax.linen's modules, whose parameters come with each call."""
    import jax

    make: Callable[..., Any] = target if isinstance(target, type) else lambda epsilon: target

    def run(arrays: dict[str, Any], shape: Shape, eps: float) -> Any:
        return make(epsilon=eps).apply({"params": {label: arrays[role] for role, label in names.items()}}, arrays["x"])

    found = make(epsilon=_EPS).init(jax.random.key(0), jax.numpy.ones((2, 64))).get("params", {})
    names = {role: label for role, label in (("weight", "scale"), ("bias", "bias")) if label in found}
    yield _Way(names | {"eps": "epsilon"} if isinstance(target, type) else names, run, "x is its argument")


# The libraries


def _torch_gradients(call: Any, leaves: dict[str, Any], dys: list[Any]) -> tuple[Any, dict[str, Any]]:
    import torch

    arrays = {role: leaf.detach().requires_grad_() for role, leaf in leaves.items()}
    returned = call(arrays)
    results = [tensor for dy, tensor in zip(dys, returned, strict=False) if dy is not None]
    if not all(tensor.requires_grad for tensor in results):
        mistake, what = ("dtotal forgotten", "the total") if results[0].requires_grad else ("no gradient", "y")
        text = f"{what} does not require a gradient although x does: autograd ends in the forward"
        raise Fault(mistake, text + "; of a forward that has no backward, set has_backward = False" * (what == "y"))
    rows = (dy for dy in dys if dy is not None)
    cotangents = [on_device(dy).to(array.dtype) for dy, array in zip(rows, results, strict=False)]
    try:
        found = torch.autograd.grad(results, list(arrays.values()), cotangents, allow_unused=True)
    except NotImplementedError as reason:
        raise NotApplicable(first_line(reason)) from None
    except Exception as error:
        text = f"the forward took these inputs; its backward raises {first_line(error)}"
        raise Fault("backward raises", text) from None
    own = {tensor.data_ptr() for tensor in cotangents}  # a sum over one row is dy itself
    return returned, {
        role: None if tensor is None else (tensor.clone() if tensor.data_ptr() in own else tensor).cpu()
        for role, tensor in zip(arrays, found, strict=True)
    }


def _jax_array(array: Array) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(np.ascontiguousarray(array))


def _jax_gradients(call: Any, leaves: dict[str, Any], dys: list[Any]) -> tuple[Any, dict[str, Any]]:
    import jax
    import jax.numpy as jnp

    results, pull = jax.vjp(call, leaves)
    cotangents = [jnp.zeros_like(array) for array in results]
    for at, dy in enumerate(dys[: len(results)]):
        if dy is not None:
            cotangents[at] = _jax_array(dy).astype(results[at].dtype)
    (found,) = pull(tuple(cotangents))
    return results, {role: np.array(gradient) for role, gradient in found.items()}


LIBRARIES: tuple[_Library, ...] = (
    _Library("torch", ("torch",), on_device, _torch_gradients),
    _Library("jax", ("jax", "flax"), _jax_array, _jax_gradients, (jax_float64, xla_flushes)),
    _Library("numpy", ("numpy",), np.asarray, None),
)
