"""The operators lngrad::layer_norm and lngrad::norm with their backwards: schemas, kernels, fakes, batching.

`norm` is the whole family: RMS normalization, an offset of gamma, a residual. layer_norm is its row with all switches off, with
kernels of its own, which are the faster for it, and no arguments that it does not need; a call with switches is a `norm`.

Opaque to torch.compile and torch.export, hence the same bits compiled as eager. Their derivatives are in derivatives.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
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
ALL = {name: getattr(torch.ops.lngrad, name).default for name in (one.partition("(")[0] for one in SCHEMAS)}
for name, one in ALL.items():
    native.register(name, one)
layer_norm, layer_norm_backward, norm, norm_backward, gated_norm, gated_norm_backward = ALL.values()


class Switches(NamedTuple):
    """What follows layer_norm's arguments in norm's, and layer_norm_backward's in norm_backward's.

    Attributes:
        added: The residual; in a backward the gradient of the total, where that was used besides.
        centred, offset: As in Normalization.
    """

    added: Any = None
    centred: bool = True
    offset: float = 0.0

    @property
    def normalization(self) -> Normalization:
        return Normalization.of(self.centred, self.offset)


RMS = Switches(centred=False)


# --- Composed of torch's operations ----------------------------------------------------------------------------------


TORCH = formulas.Namespace(lambda tensor, dtype: tensor.to(dtype), torch.sqrt, torch.zeros_like, accumulator_of)
_EPS, _EPS64 = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps


def epsilon(x: Tensor) -> float:
    """What an eps of None is in torch's RMS normalization: the machine epsilon of what it computes in."""
    return float(_EPS64 if x.dtype is torch.float64 else _EPS)


def composed_forward(x: Tensor, shape: Shape, gamma: Any, beta: Any, eps: float, *rest: Any) -> tuple[Tensor, ...]:
    switches = Switches(*rest)
    total = x.new_empty(0) if switches.added is None else x + switches.added
    dtype, x = x.dtype, x if switches.added is None else total
    y, mean, rstd = formulas.forward(
        TORCH, x, gamma, beta, normalized=len(shape), eps=eps, normalization=switches.normalization, dtype_y=dtype
    )
    return (y, x.new_empty(0) if mean is None else mean, rstd, total) if rest else (y, mean, rstd)


def composed_backward(
    dy: Tensor, x: Tensor, shape: Shape, mean: Tensor, rstd: Tensor, gamma: Any, mask: Mask, *rest: Any
) -> tuple[Tensor, ...]:
    dtype, switches = (x if gamma is None else gamma).dtype, Switches(*rest)
    dx, *sums = formulas.backward(
        TORCH, dy, x, mean, rstd, gamma, normalized=len(shape), wanted=mask, dtypes=(dtype, dtype),
        normalization=switches.normalization,
    )  # fmt: skip
    if dx is not None and switches.added is not None:
        dx = dx + switches.added
    return tuple(x.new_empty(0) if grad is None else grad for grad in (dx, *sums))


def composed_gated(
    x: Tensor, shape: Shape, gamma: Tensor | None, gate: Tensor, eps: float, offset: float, norm_before_gate: bool
) -> tuple[Tensor, ...]:
    dtype, normalization = accumulator_of(x, gamma), Normalization.of(False, offset)
    z = gate.to(dtype)
    factor = z * torch.sigmoid(z)
    h, of_y = (x, factor) if norm_before_gate else (x.to(dtype) * factor, 1.0)
    y, _, rstd = formulas.forward(
        TORCH, h, gamma, None, normalized=len(shape), eps=eps, normalization=normalization, dtype_y=dtype
    )
    return (y * of_y).to(x.dtype), rstd


# --- Kernels --------------------------------------------------------------------------------------------------------


FORWARD_RESULTS = ("y", "mean", "rstd", "total")
BACKWARD_RESULTS = ("dx", "dgamma", "dbeta")


def is_of_samples(gamma: Any, shape: Any) -> bool:
    """Whether each sample has a gamma of its own: it has more dimensions than a row."""
    return gamma is not None and gamma.dim() > len(shape)


def norm_call(
    x: Any,
    shape: Any,
    gamma: Any,
    beta: Any,
    second: Any,
    centred: bool,
    offset: float,
    norm_before_gate: bool | None = None,
) -> calls.Call:
    """The operator of the core and its arrays; second is the residual, or with norm_before_gate the gate."""
    operator, arrays = (FORWARD, (x, gamma, beta)) if centred else (RMS_FORWARD, (x, gamma))
    normalization = Normalization.of(
        centred, offset, modulated=is_of_samples(gamma, shape), norm_before_gate=norm_before_gate is not False
    )
    if second is not None:
        operator, arrays = (WITH_RESIDUAL if norm_before_gate is None else WITH_GATE)[operator], (*arrays, second)
    return operator, arrays, shape, operator.everything, normalization


def norm_backward_call(
    dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, gamma: Any, mask: Any, second: Any, centred: bool, offset: float,
    norm_before_gate: bool | None = None,
) -> calls.Call:  # fmt: skip
    operator, arrays = (BACKWARD, (dy, x, mean, rstd, gamma)) if centred else (RMS_BACKWARD, (dy, x, rstd, gamma))
    normalization = Normalization.of(
        centred, offset, modulated=is_of_samples(gamma, shape), norm_before_gate=norm_before_gate is not False
    )
    if second is not None:
        operator, arrays = (WITH_RESIDUAL if norm_before_gate is None else WITH_GATE)[operator], (*arrays, second)
    return operator, arrays, shape, mask[: len(operator.outputs)], normalization


native.register("prepare_forward", calls.prepare(lambda *given: (norm_call(*given),)))
# Without beta, which aten's backward has.
native.register("prepare_backward", calls.prepare(lambda *given: (norm_backward_call(*given[:6], *given[7:]),)))


def _named(operator: Operator, results: Sequence[Any], names: tuple[str, ...], x: Any) -> tuple[Any, ...]:
    """Results in the order of an operator of torch's, which must return a tensor: an empty one for what there is not."""
    given = dict(zip(operator.outputs, results, strict=True))
    return tuple([x.new_empty(0) if given.get(name) is None else given[name] for name in names])


def kernels(run: Callable[..., Sequence[Any]]) -> tuple[Callable[..., Any], ...]:
    """Those of ALL, with what runs a call of the core."""

    def layer_norm(x: Any, shape: Any, gamma: Any, beta: Any, eps: float) -> tuple[Any, ...]:
        return tuple(run(FORWARD, (x, gamma, beta), shape, FORWARD.everything, LAYER_NORM, (eps,)))

    def layer_norm_backward(
        dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, gamma: Any, mask: Any
    ) -> tuple[Any, ...]:
        grads = run(BACKWARD, (dy, x, mean, rstd, gamma), shape, mask, LAYER_NORM)
        return tuple([x.new_empty(0) if grad is None else grad for grad in grads])

    def norm(x: Any, shape: Any, gamma: Any, beta: Any, eps: float, *switches: Any) -> tuple[Any, ...]:
        call = norm_call(x, shape, gamma, beta, *switches)
        if call[-1].modulated and run is calls.run_elsewhere:
            _foretell(*call)  # for the checks
            return composed_forward(x, shape, gamma, beta, eps, *switches)
        return _named(call[0], run(*call, (eps,)), FORWARD_RESULTS, x)

    def norm_backward(dy: Any, x: Any, *rest: Any) -> tuple[Any, ...]:
        call = norm_backward_call(dy, x, *rest)
        if call[-1].modulated and run is calls.run_elsewhere:
            _foretell(*call)
            return composed_backward(dy, x, *rest)
        return _named(call[0], run(*call), BACKWARD_RESULTS, x)

    def gated_norm(
        x: Any, shape: Any, gamma: Any, gate: Any, eps: float, offset: float, norm_before_gate: bool
    ) -> tuple[Any, ...]:
        return tuple(run(*norm_call(x, shape, gamma, None, gate, False, offset, norm_before_gate), (eps,))[:2])

    def gated_norm_backward(
        dy: Any, x: Any, shape: Any, rstd: Any, gamma: Any, gate: Any, mask: Any, offset: float, norm_before_gate: bool
    ) -> tuple[Any, ...]:
        call = norm_backward_call(dy, x, shape, None, rstd, gamma, mask, gate, False, offset, norm_before_gate)
        return _named(call[0], run(*call), call[0].outputs, x)

    return layer_norm, layer_norm_backward, norm, norm_backward, gated_norm, gated_norm_backward


def _foretell(
    operator: Operator,
    arrays: tuple[Any, ...],
    shape: Any,
    mask: Any,
    normalization: Normalization,
    numbers: tuple[float, ...] = (),
) -> list[Any]:
    """Results without data, as the problem foretells them. Where Inductor asks, its code calls the native code directly."""
    if "torch._inductor.compile_fx" in sys.modules:
        with suppress(ImportError):  # of a torch whose Inductor is another
            import_module("lngrad.torch.inductor")
    x = arrays[operator.inputs.index("x")]
    problem, _ = describe(operator, arrays, tuple(shape), tuple(mask), None, normalization)
    return [
        None if output is None else x.new_empty(output.shape, dtype=torch_dtype(output.dtype))
        for output in problem.outputs()
    ]


for device, run in (("CPU", calls.run), ("CUDA", calls.run_elsewhere)):
    for kernel in kernels(run):
        library.impl(kernel.__name__, kernel, device)
for one, kernel in zip(ALL.values(), kernels(_foretell), strict=True):
    torch.library.register_fake(one, kernel, lib=library)
# As torch has it: autocast on a GPU computes layer normalization in float32, autocast on the CPU leaves the dtypes alone.
for name in ("layer_norm", "norm"):
    torch.library.register_autocast(f"lngrad::{name}", "cuda", torch.float32, lib=library)


# --- Batching -------------------------------------------------------------------------------------------------------


def _one_by_one(operator: Any, info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
    """Example after example: the bits of a call of its own, for what can't be done as more rows of one call."""
    results = []
    for example in range(info.batch_size):
        taken = (
            argument.select(dim, example) if isinstance(dim, int) else argument  # None for each number of a shape
            for argument, dim in zip(arguments, in_dims, strict=True)
        )
        results.append(operator(*taken))
    stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
    return stacked, (0,) * len(stacked)


def _batch_forward(
    info: Any, in_dims: Any, x: Any, shape: Any, gamma: Any, beta: Any, eps: float, *switches: Any
) -> Any:
    operator, added = torch.ops.lngrad.norm if switches else torch.ops.lngrad.layer_norm, Switches(*switches).added
    dims = (in_dims[0], None, in_dims[2], in_dims[3], None, *in_dims[5:6], *(None for _ in switches[1:]))
    by_rows = dims[0] is not None and dims[2] is None and dims[3] is None and not is_of_samples(gamma, shape)
    if not by_rows or (added is not None and dims[5] is None):
        return _one_by_one(operator, info, dims, x, shape, gamma, beta, eps, *switches)
    if added is not None:
        switches = (added.movedim(dims[5], 0), *switches[1:])
    results = operator(x.movedim(dims[0], 0), shape, gamma, beta, eps, *switches)
    return results, tuple(0 if result.ndim > 1 else None for result in results)


def _batch_backward(
    info: Any, in_dims: Any, dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, gamma: Any, mask: Any, *switches: Any
) -> Any:
    operator = torch.ops.lngrad.norm_backward if switches else torch.ops.lngrad.layer_norm_backward
    added, centred, _ = Switches(*switches)
    dims = (*in_dims[:2], None, *in_dims[3:6], None, *in_dims[7:8], *(None for _ in switches[1:]))
    tensors = {0: dy, 1: x, 3: mean, 4: rstd}
    if not centred:
        del tensors[3]
    if added is not None:
        tensors[7] = added
    given = [dy, x, shape, mean, rstd, gamma, mask, *switches]
    of_samples = dims[5] is not None or is_of_samples(gamma, shape)
    if mask[1] or mask[2] or of_samples or any(dims[at] is None for at in tensors):
        return _one_by_one(operator, info, dims, *given)
    for at, tensor in tensors.items():
        given[at] = tensor.movedim(dims[at], 0)
    dx, _, _ = operator(*given)
    return (dx, x.new_empty(0), x.new_empty(0)), (0, None, None)


for forward, backward in ((layer_norm, layer_norm_backward), (norm, norm_backward)):
    torch.library.register_vmap(forward, _batch_forward, lib=library)
    torch.library.register_vmap(backward, _batch_backward, lib=library)
for one in (gated_norm, gated_norm_backward):
    torch.library.register_vmap(one, partial(_one_by_one, one), lib=library)

if hasattr(sys.modules.get("lngrad.torch.derivatives"), "differentiable_gated"):  # those of operators that gave way
    reload(sys.modules["lngrad.torch.derivatives"])
