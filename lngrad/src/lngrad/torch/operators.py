"""The operators lngrad::layer_norm and lngrad::norm with their backwards: schemas, kernels, fakes, batching.

`norm` is the whole family: RMS normalization, an offset of gamma, a residual. layer_norm is its row with all switches off, with
kernels of its own, which are the faster for it, and no arguments that it does not need; a call with switches is a `norm`.

Opaque to torch.compile and torch.export, hence the same bits compiled as eager. Their derivatives are in derivatives.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module, reload
from typing import Any, NamedTuple

import torch

from lngrad.core import formulas
from lngrad.core.problem import (
    BACKWARD,
    FORWARD,
    LAYER_NORM,
    RMS_BACKWARD,
    RMS_FORWARD,
    WITH_GATE,
    WITH_RESIDUAL,
    Normalization,
    Operator,
    describe,
)
from lngrad.support.dtypes import torch_dtype
from lngrad.torch import calls, native
from lngrad.torch.calls import accumulator_of
from lngrad.typing import Mask, Shape, Tensor

# Modules that were imported anew find the operators of those before them, which give way: torch has a namespace defined once.
for give_way in vars(torch.ops.lngrad).pop("give_way", ()):
    give_way()
library = torch.library.Library("lngrad", "DEF")
SCHEMAS = (
    "layer_norm(Tensor x, SymInt[] normalized_shape, Tensor? gamma, Tensor? beta, float eps) -> (Tensor, Tensor, Tensor)",
    "layer_norm_backward(Tensor dy, Tensor x, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? gamma, "
    "bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    "norm(Tensor x, SymInt[] normalized_shape, Tensor? gamma, Tensor? beta, float eps, Tensor? residual, bool centred, "
    "float offset) -> (Tensor, Tensor, Tensor, Tensor)",
    "norm_backward(Tensor dy, Tensor x, SymInt[] normalized_shape, Tensor? mean, Tensor rstd, Tensor? gamma, "
    "bool[3] output_mask, Tensor? dtotal, bool centred, float offset) -> (Tensor, Tensor, Tensor)",
    # A gate is an array more and a gradient more, so its operators are apart.
    "gated_norm(Tensor x, SymInt[] normalized_shape, Tensor? gamma, Tensor gate, float eps, float offset, "
    "bool norm_before_gate) -> (Tensor, Tensor)",
    "gated_norm_backward(Tensor dy, Tensor x, SymInt[] normalized_shape, Tensor rstd, Tensor? gamma, Tensor gate, "
    "bool[3] output_mask, float offset, bool norm_before_gate) -> (Tensor, Tensor, Tensor)",
)
for schema in SCHEMAS:
    library.define(schema)
ALL = {name: getattr(torch.ops.lngrad, name).default for name in (schema.partition("(")[0] for schema in SCHEMAS)}
for name, operator in ALL.items():
    native.register(name, operator)
layer_norm, layer_norm_backward, norm, norm_backward, gated_norm, gated_norm_backward = ALL.values()


class Switches(NamedTuple):
    """Arguments of norm behind layer_norm's: the residual, if any; centred and offset are Normalization's."""

    residual: Any = None
    centred: bool = True
    offset: float = 0.0


class BackwardSwitches(NamedTuple):
    """Arguments of norm_backward behind layer_norm_backward's: the gradient of the total, where that was used besides."""

    dtotal: Any = None
    centred: bool = True
    offset: float = 0.0


def normalization_of(switches: Switches | BackwardSwitches) -> Normalization:
    return Normalization.of(switches.centred, switches.offset)


RMS = Switches(centred=False)


# --- Composed of torch's operations ----------------------------------------------------------------------------------


TORCH = formulas.Namespace(
    lambda tensor, dtype: tensor.to(dtype), torch.sqrt, torch.zeros_like, torch.sigmoid, accumulator_of
)
_EPS, _EPS64 = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps


def epsilon(x: Tensor) -> float:
    """What an eps of None is in torch's RMS normalization: the machine epsilon of what it computes in."""
    return float(_EPS64 if x.dtype is torch.float64 else _EPS)


def composed_forward(x: Tensor, shape: Shape, gamma: Any, beta: Any, eps: float, *rest: Any) -> tuple[Tensor, ...]:
    switches = Switches(*rest)
    total = x.new_empty(0) if switches.residual is None else x + switches.residual
    dtype, h = x.dtype, x if switches.residual is None else total
    y, mean, rstd = formulas.forward(
        TORCH, h, gamma, beta, normalized=len(shape), eps=eps, normalization=normalization_of(switches), dtype_y=dtype
    )
    return (y, x.new_empty(0) if mean is None else mean, rstd, total) if rest else (y, mean, rstd)


def composed_backward(
    dy: Tensor, x: Tensor, shape: Shape, mean: Tensor, rstd: Tensor, gamma: Any, mask: Mask, *rest: Any
) -> tuple[Tensor, ...]:
    dtype, switches = (x if gamma is None else gamma).dtype, BackwardSwitches(*rest)
    dx, dgamma, dbeta = formulas.backward(
        TORCH, dy, x, mean, rstd, gamma, normalized=len(shape), wanted=mask, dtypes=(dtype, dtype),
        normalization=normalization_of(switches),
    )  # fmt: skip
    if dx is not None and switches.dtotal is not None:
        dx = dx + switches.dtotal
    return tuple(x.new_empty(0) if grad is None else grad for grad in (dx, dgamma, dbeta))


def composed_gated(
    x: Tensor, shape: Shape, gamma: Tensor | None, gate: Tensor, eps: float, offset: float, norm_before_gate: bool
) -> tuple[Tensor, ...]:
    normalization = Normalization.of(False, offset, norm_before_gate=norm_before_gate)
    return formulas.gated_forward(TORCH, x, gamma, gate, normalized=len(shape), eps=eps, normalization=normalization)


# --- Kernels --------------------------------------------------------------------------------------------------------


FORWARD_RESULTS = ("y", "mean", "rstd", "total")
BACKWARD_RESULTS = ("dx", "dgamma", "dbeta")
GATED_RESULTS = ("y", "rstd")
GATED_BACKWARD_RESULTS = ("dx", "dgamma", "dgate")


def is_dense(x: Tensor) -> bool:
    """Whether a tensor has rows of numbers, which is all that the core knows."""
    return not x.is_nested and x.layout is torch.strided and not x.is_quantized


def is_of_samples(gamma: Any, shape: Any) -> bool:
    """Whether each sample has a gamma of its own: it has more dimensions than a row."""
    return gamma is not None and gamma.dim() > len(shape)


def norm_call(
    x: Any, shape: Any, gamma: Any, beta: Any, residual: Any, gate: Any, centred: bool, offset: float,
    norm_before_gate: bool = True,
) -> calls.Call:  # fmt: skip
    """A forward's call; a residual or a gate that is None is absent."""
    operator, arrays = (FORWARD, (x, gamma, beta)) if centred else (RMS_FORWARD, (x, gamma))
    modulated = is_of_samples(gamma, shape)
    normalization = Normalization.of(centred, offset, modulated=modulated, norm_before_gate=norm_before_gate)
    if residual is not None:
        operator, arrays = WITH_RESIDUAL[operator], (*arrays, residual)
    if gate is not None:
        operator, arrays = WITH_GATE[operator], (*arrays, gate)
    return operator, arrays, shape, operator.everything, normalization


def norm_backward_call(
    dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, gamma: Any, mask: Any, dtotal: Any, gate: Any, centred: bool,
    offset: float, norm_before_gate: bool = True,
) -> calls.Call:  # fmt: skip
    """A backward's call; mask: of BACKWARD_RESULTS, or with a gate of GATED_BACKWARD_RESULTS."""
    operator, arrays = (BACKWARD, (dy, x, mean, rstd, gamma)) if centred else (RMS_BACKWARD, (dy, x, rstd, gamma))
    modulated = is_of_samples(gamma, shape)
    normalization = Normalization.of(centred, offset, modulated=modulated, norm_before_gate=norm_before_gate)
    if dtotal is not None:
        operator, arrays = WITH_RESIDUAL[operator], (*arrays, dtotal)
    if gate is not None:
        operator, arrays = WITH_GATE[operator], (*arrays, gate)
    wanted = zip(BACKWARD_RESULTS if gate is None else GATED_BACKWARD_RESULTS, mask, strict=True)
    mask = tuple([is_wanted for name, is_wanted in wanted if name in operator.outputs])
    return operator, arrays, shape, mask, normalization


def _prepare_backward(
    dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, gamma: Any, beta: Any, *rest: Any
) -> tuple[calls.Call]:
    """Without beta, which aten's backward has."""
    return (norm_backward_call(dy, x, shape, mean, rstd, gamma, *rest),)


native.register("prepare_forward", calls.prepare(lambda *arguments: (norm_call(*arguments),)))
native.register("prepare_backward", calls.prepare(_prepare_backward))


def _in_order(names: tuple[str, ...], operator: Operator, results: Sequence[Any], x: Any) -> tuple[Any, ...]:
    """Results by names; an empty tensor for an absent one, since an operator of torch's must return a tensor."""
    named = dict(zip(operator.outputs, results, strict=True))
    return tuple([x.new_empty(0) if named.get(name) is None else named[name] for name in names])


def kernels(run: Callable[..., Sequence[Any]]) -> tuple[Callable[..., Any], ...]:
    """The kernels of ALL, with what runs a call of the core."""

    def layer_norm(x: Any, shape: Any, gamma: Any, beta: Any, eps: float) -> tuple[Any, ...]:
        return tuple(run(FORWARD, (x, gamma, beta), shape, FORWARD.everything, LAYER_NORM, (eps,)))

    def layer_norm_backward(
        dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, gamma: Any, mask: Any
    ) -> tuple[Any, ...]:
        grads = run(BACKWARD, (dy, x, mean, rstd, gamma), shape, mask, LAYER_NORM)
        return tuple([x.new_empty(0) if grad is None else grad for grad in grads])

    def norm(x: Any, shape: Any, gamma: Any, beta: Any, eps: float, residual: Any, *switches: Any) -> tuple[Any, ...]:
        call = norm_call(x, shape, gamma, beta, residual, None, *switches)
        if call[-1].modulated and run is calls.run_elsewhere:
            fake_results(*call)  # for the checks
            return composed_forward(x, shape, gamma, beta, eps, residual, *switches)
        return _in_order(FORWARD_RESULTS, call[0], run(*call, (eps,)), x)

    def norm_backward(
        dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, gamma: Any, mask: Any, dtotal: Any, *switches: Any
    ) -> tuple[Any, ...]:
        call = norm_backward_call(dy, x, shape, mean, rstd, gamma, mask, dtotal, None, *switches)
        if call[-1].modulated and run is calls.run_elsewhere:
            fake_results(*call)
            return composed_backward(dy, x, shape, mean, rstd, gamma, mask, dtotal, *switches)
        return _in_order(BACKWARD_RESULTS, call[0], run(*call), x)

    def gated_norm(x: Any, shape: Any, gamma: Any, gate: Any, eps: float, *switches: Any) -> tuple[Any, ...]:
        call = norm_call(x, shape, gamma, None, None, gate, False, *switches)
        return _in_order(GATED_RESULTS, call[0], run(*call, (eps,)), x)

    def gated_norm_backward(
        dy: Any, x: Any, shape: Any, rstd: Any, gamma: Any, gate: Any, mask: Any, *switches: Any
    ) -> tuple[Any, ...]:
        call = norm_backward_call(dy, x, shape, None, rstd, gamma, mask, None, gate, False, *switches)
        return _in_order(GATED_BACKWARD_RESULTS, call[0], run(*call), x)

    return layer_norm, layer_norm_backward, norm, norm_backward, gated_norm, gated_norm_backward


# Modules to import before the first fake results that a compiler asks for, by the compiler's module: what generates its code.
_CODE_GENERATORS: dict[str, str] = {}


def register_code_generator(compiler: str, module: str) -> None:
    """Have a module imported when a compiler asks for results without data: what makes its code call the native code."""
    _CODE_GENERATORS[compiler] = module


def fake_results(
    operator: Operator,
    arrays: tuple[Any, ...],
    shape: Any,
    mask: Any,
    normalization: Normalization,
    numbers: tuple[float, ...] = (),
) -> list[Any]:
    """Results without data, of the shapes and dtypes that Problem predicts."""
    for compiler, module in _CODE_GENERATORS.items():
        if compiler in sys.modules:
            with suppress(ImportError):  # a torch with another Inductor
                import_module(module)
    x = arrays[operator.inputs.index("x")]
    problem, _ = describe(operator, arrays, tuple(shape), tuple(mask), None, normalization)
    return [
        None if output is None else x.new_empty(output.shape, dtype=torch_dtype(output.dtype))
        for output in problem.outputs()
    ]


for device, run in (("CPU", calls.run), ("CUDA", calls.run_elsewhere)):
    for kernel in kernels(run):
        library.impl(kernel.__name__, kernel, device)
for operator, kernel in zip(ALL.values(), kernels(fake_results), strict=True):
    torch.library.register_fake(operator, kernel, lib=library)
# As torch has it: autocast on a GPU computes layer normalization in float32, autocast on the CPU leaves the dtypes alone.
for name in ("layer_norm", "norm"):
    torch.library.register_autocast(f"lngrad::{name}", "cuda", torch.float32, lib=library)


# --- Batching -------------------------------------------------------------------------------------------------------


def one_by_one(operator: Any, info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
    """Example after example, each with the bits of a call of its own: what can't be done as more rows of one call."""
    results = []
    for example in range(info.batch_size):
        of_example = (
            argument.select(dim, example) if isinstance(dim, int) else argument  # a list's dim is a list
            for argument, dim in zip(arguments, in_dims, strict=True)
        )
        results.append(operator(*of_example))
    stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
    return stacked, (0,) * len(stacked)


_OF_ROWS = ("dy", "x", "mean", "rstd", "residual", "dtotal")


def batch(operator: Any, info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
    """More rows of one call, where all that has rows is batched and nothing is a sum over rows; else example after example."""
    names = [argument.name for argument in operator._schema.arguments]
    named, dims = dict(zip(names, arguments, strict=True)), dict(zip(names, in_dims, strict=True))
    read = _OF_ROWS if named.get("centred", True) else [name for name in _OF_ROWS if name != "mean"]
    of_rows = [name for name in read if named.get(name) is not None]
    parameters = [name for name in ("gamma", "beta") if isinstance(dims.get(name), int)]
    _, *sums = named.get("output_mask", (True, False, False))
    of_samples = is_of_samples(named["gamma"], named["normalized_shape"])
    if parameters or of_samples or any(sums) or any(dims[name] is None for name in of_rows):
        return one_by_one(operator, info, in_dims, *arguments)
    results = operator(*(named | {name: named[name].movedim(dims[name], 0) for name in of_rows}).values())
    return results, tuple(0 if result.ndim > 1 else None for result in results)


if hasattr(sys.modules.get("lngrad.torch.derivatives"), "differentiable_gated"):  # those of operators that gave way
    reload(sys.modules["lngrad.torch.derivatives"])
